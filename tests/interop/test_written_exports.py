"""An export is written once: complete or missing, even if the process is killed, and never over anything."""

import os
import shutil

import pytest
from dying import killed_at_operation

from seq2seq.errors import FormatError, OptionError
from seq2seq.interop import exporting
from seq2seq.interop.argos import require_new_package
from seq2seq.interop.exporting import Parity, Tolerance, write_checked_export


@pytest.fixture
def export_of(monkeypatch):
    """Function that writes an export with the given contents, without another library."""
    equal = Parity(1, 1, 0.0, 0.0, [])
    monkeypatch.setattr(exporting, "compare", lambda ours, theirs, lines: equal)

    def export(output, value, name="model"):
        return write_checked_export(output, "it", lambda directory: (directory / name).write_text(value),
                                    lambda directory: None, None, ["Hund"], Tolerance(1, 1, each=True))

    return export


def test_after_a_kill_at_any_operation_an_export_is_complete_or_missing(export_of, tmp_path):
    output, found = tmp_path / "theirs", []
    while killed_at_operation(len(found) + 1, lambda: export_of(output, "new")):
        found.append(sorted(path.name for path in output.iterdir()) if output.exists() else None)
        shutil.rmtree(output, ignore_errors=True)
    assert [None] in ([each] for each in found)
    assert all(each in (None, ["model", "parity.json"]) for each in found)
    assert [path.name for path in tmp_path.iterdir()] == ["theirs"]


def test_a_refused_export_leaves_nothing(tmp_path, export_of):
    with pytest.raises(FormatError):
        write_checked_export(tmp_path / "theirs", "it", lambda directory: None, lambda directory: None, None, [],
                             Tolerance(-1, 1, each=True))
    assert not list(tmp_path.iterdir())


def test_nothing_is_replaced_by_an_export(export_of, tmp_path):
    export_of(tmp_path / "theirs", "old")
    with pytest.raises(OptionError):
        export_of(tmp_path / "theirs", "new")
    assert (tmp_path / "theirs" / "model").read_text() == "old"
    os.mkfifo(tmp_path / "e.argosmodel")
    with pytest.raises(FormatError, match="exists already"):
        require_new_package(tmp_path / "e.argosmodel")
