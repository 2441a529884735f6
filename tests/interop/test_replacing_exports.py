"""An export replaces an earlier one atomically, even if the process is killed."""

import os

import pytest
from dying import killed_at_operation

from seq2seq.errors import FormatError
from seq2seq.interop import exporting
from seq2seq.interop.argos import require_replaceable
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


@pytest.mark.parametrize("report", ["[]", '{"files": 5}', '{"files": [[], {}]}', "{", '{"files": {"a": 1}}'])
def test_an_earlier_export_whose_report_is_damaged_has_no_files_that_may_be_replaced(export_of, tmp_path, report):
    export_of(tmp_path / "theirs", "old")
    (tmp_path / "theirs" / "other").write_text("mine")
    (tmp_path / "theirs" / "parity.json").write_text(report)
    with pytest.raises(FormatError, match="contains other besides an earlier export"):
        export_of(tmp_path / "theirs", "new")
    assert (tmp_path / "theirs" / "other").read_text() == "mine"


def test_an_earlier_readme_that_is_a_link_shows_nothing_in_the_new_export(export_of, tmp_path):
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "secret").chmod(0o600)
    export_of(tmp_path / "theirs", "old", "README.md")
    (tmp_path / "theirs" / "README.md").unlink()
    (tmp_path / "theirs" / "README.md").symlink_to(tmp_path / "secret")
    export_of(tmp_path / "theirs", "new", "README.md")
    assert (tmp_path / "theirs" / "README.md").read_text() == "new"
    assert (tmp_path / "secret").read_text() == "secret" and (tmp_path / "secret").stat().st_mode & 0o777 == 0o600


def test_an_earlier_readme_of_a_terabyte_is_kept_without_a_copy(export_of, tmp_path):
    export_of(tmp_path / "theirs", "old")
    with open(tmp_path / "theirs" / "README.md", "wb") as file:
        file.truncate(10**12)
    export_of(tmp_path / "theirs", "new", "README.md")
    assert (tmp_path / "theirs" / "README.md").stat().st_size == 10**12


def test_a_pipe_in_place_of_the_report_of_an_earlier_export_is_not_waited_for(export_of, tmp_path):
    export_of(tmp_path / "theirs", "old")
    (tmp_path / "theirs" / "parity.json").unlink()
    os.mkfifo(tmp_path / "theirs" / "parity.json")
    export_of(tmp_path / "theirs", "new")
    os.mkfifo(tmp_path / "e.argosmodel")
    with pytest.raises(FormatError, match="is not an export"):
        require_replaceable(tmp_path / "e.argosmodel")
