"""An unfinished output in the directory of a stranger changes and shows nothing outside.

The directory has links to files, to directories and to names that do not exist yet, hard links and named pipes
under all names that seq2seq reads, writes or deletes.
"""

import json
import os
import shutil
import signal
import zlib
from pathlib import Path

import pytest

from seq2seq.cli import main
from seq2seq.translation.unfinished_output import INPUTS

SECRET = "opensesame"
CPU = ["--device", "cpu", "--threads", "1", "--precision", "fp32"]


@pytest.fixture
def work(made, tmp_path, monkeypatch):
    """Working directory with a copy of the run. Beside it is the user's directory `mine`. A command that waits for ever
    is interrupted."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    shutil.copytree(made / "run", "run")
    for name in ("recipe.yaml", "train.en", "train.de", "valid.en", "valid.de"):
        Path(name).symlink_to(made / name)
    (tmp_path / "mine" / "folder").mkdir(parents=True)
    for name in ("notes", "folder/notes", "folder/events.out.tfevents.1", "folder/inputs.json"):
        (tmp_path / "mine" / name).write_text(f'{{"{SECRET}": "{SECRET}"}}\n' * (1 + ("json" not in name)))

    def interrupt(*_):
        raise AssertionError("the command waits for ever")

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.alarm(50)
    yield tmp_path
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def state(directory):
    """Contents, times and modes of all files of the user."""
    return {str(path): (path.read_bytes() if path.is_file() else None, (status := path.lstat()).st_mtime_ns,
                        status.st_mode) for path in (directory, *sorted(directory.rglob("*")))}


def put(kind, path, mine):
    """Put what a stranger could have put at a path of his directory."""
    path = Path(path)
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "hard link":
        os.link(mine / "notes", path)
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(mine / {"file": "notes", "directory": "folder", "nothing": "new"}[kind])


def said_by(capfd, wanted):
    for command in wanted:
        assert main(command) in (0, 2), command
    said = "".join(capfd.readouterr())
    assert "Traceback" not in said and "waits for ever" not in said and SECRET not in said
    return said


@pytest.mark.parametrize("kind", ["file", "directory", "nothing", "hard link", "pipe"])
@pytest.mark.parametrize("name", ["out.part", "out.part.0"])
def test_an_unfinished_output_changes_and_shows_nothing_outside(work, name, kind, capfd):
    # The user's file could be resumed, and be joined to the output.
    block = (work / "mine" / "notes").read_bytes()
    records = [{INPUTS: {}}, {"lines": 1, "bytes": len(block), "crc32": zlib.crc32(block)}]
    part = "".join(f"{json.dumps(record)}\n" for record in records).encode() + block
    Path("out.part.0").write_bytes(part)
    (work / "mine" / "notes").write_bytes(part)
    put(kind, name, work / "mine")
    before = state(work / "mine")
    said_by(capfd, [["translate", "run", "valid.en", "-o", "out", *CPU, *option] for option in ([], ["--resume"])])
    assert state(work / "mine") == before
    assert not Path("out").exists() or SECRET not in Path("out").read_text()
