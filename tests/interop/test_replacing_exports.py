"""An export replaces an earlier one atomically, even if the process is killed."""

import pytest
from dying import killed_at_operation

from seq2seq.errors import FormatError
from seq2seq.interop import exporting
from seq2seq.interop.exporting import Parity, Tolerance, write_checked_export
from seq2seq.storage import atomic


@pytest.fixture
def export_of(monkeypatch):
    """Function that writes an export with the given contents, without another library."""
    equal = Parity(1, 1, 0.0, 0.0, [])
    monkeypatch.setattr(exporting, "compare", lambda ours, theirs, lines: equal)

    def export(output, value, name="model"):
        return write_checked_export(output, "it", lambda directory: (directory / name).write_text(value),
                                    lambda directory: None, None, ["Hund"], Tolerance(1, 1, each=True))

    return export


def test_recovery_after_a_kill_at_any_operation_restores_the_old_or_the_new_export(export_of, tmp_path):
    output, contents = tmp_path / "theirs", []
    while True:
        export_of(output, "old")
        if not killed_at_operation(len(contents) + 1, lambda: export_of(output, "new")):
            break
        atomic.recover(output)
        assert (output / "parity.json").exists()
        contents.append((output / "model").read_text())
    assert {*contents} == {"old", "new"}
    assert [path.name for path in tmp_path.iterdir()] == ["theirs"]


def test_a_refused_export_restores_an_earlier_one_that_a_kill_left_under_its_temporary_name(export_of, tmp_path,
                                                                                            monkeypatch):
    output = tmp_path / "theirs"
    export_of(output, "old")
    output.rename(atomic.old_path(output))
    with pytest.raises(FormatError):
        write_checked_export(output, "it", lambda directory: None, lambda directory: None, None, [],
                             Tolerance(-1, 1, each=True))
    assert [path.name for path in tmp_path.iterdir()] == ["theirs"]
    assert (output / "model").read_text() == "old"


def test_an_export_in_another_format_replaces_all_files_of_the_earlier_one_but_no_other_file(export_of, tmp_path):
    output = tmp_path / "theirs"
    export_of(output, "old", "model.bin")
    export_of(output, "new", "model.safetensors")
    assert {path.name for path in output.iterdir()} == {"model.safetensors", "parity.json"}
    (output / "notes.txt").write_text("mine")
    with pytest.raises(FormatError):
        export_of(output, "old", "model.bin")
    assert {path.name for path in output.iterdir()} == {"model.safetensors", "parity.json", "notes.txt"}


def test_an_export_to_a_symbolic_link_replaces_the_target_of_the_link(export_of, tmp_path):
    export_of(tmp_path / "theirs", "old")
    (tmp_path / "latest").symlink_to(tmp_path / "theirs")
    (tmp_path / "next").symlink_to(tmp_path / "to_be_made")
    export_of(tmp_path / "latest", "new")
    export_of(tmp_path / "next", "next")
    assert (tmp_path / "latest").is_symlink() and (tmp_path / "theirs" / "model").read_text() == "new"
    assert (tmp_path / "to_be_made" / "model").read_text() == "next"
