"""Commands on the runs, bundles, exports and unfinished outputs of a stranger change and show nothing outside them.

A stranger's directory has links to files, to directories and to names that do not exist yet, hard links and named pipes
under all names that seq2seq reads, writes or deletes.
"""

import json
import os
import shutil
import signal
import zlib
from contextlib import suppress
from pathlib import Path

import pytest

from seq2seq.cli import main
from seq2seq.errors import CheckpointError
from seq2seq.interop import exporting
from seq2seq.translation.unfinished_output import INPUTS

SECRET = "opensesame"
CPU = ["--device", "cpu", "--threads", "1", "--precision", "fp32"]
IN_RUN = (".lock", "recipe.yaml", "metrics.jsonl", "curves.svg", "best", "best/metadata.json", "best/README.md",
          "best/recipe.yaml", "checkpoints", "checkpoints/step-00000004", "checkpoints/step-00000006",
          "checkpoints/step-00000004/metadata.json", "tokenizer", "tokenizer/metadata.json", "tensorboard",
          "tensorboard/events.out.tfevents.1", "prepared", "prepared/x", "synthetic", "synthetic/x.part.0",
          ".best.replaced", ".recipe.yaml.0123456789abcdef.tmp", "checkpoints/.step-00000004.replaced",
          "best/.metadata.json.0123456789abcdef.tmp")
QUICK = (".lock", "metrics.jsonl", "best/README.md", "checkpoints", "tensorboard/events.out.tfevents.1", "synthetic")


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


def commands(run="run"):
    """All commands that read or write a run, with their arguments."""
    recipe = str(Path("recipe.yaml").resolve())
    training = ["train", recipe, "--run-dir", run, "--set=training.max_steps=6", "--set=training.validate_every=2"]
    return [["translate", run, "valid.en", "-o", "out", *CPU], ["evaluate", run, *CPU],
            ["report", run, "-o", "page.html", *CPU[:4]], ["average", run, "--output", "averaged"],
            ["average", f"{run}/checkpoints/step-00000004", "--output", "one"],
            ["evaluate", f"{run}/best", *CPU], training, [*training, "--restart"]]


def said_by(capfd, wanted):
    for command in wanted:
        assert main(command) in (0, 2), command
    said = "".join(capfd.readouterr())
    assert "Traceback" not in said and "waits for ever" not in said and SECRET not in said
    return said


@pytest.mark.parametrize("kind", ["file", "directory", "nothing", "hard link", "pipe"])
@pytest.mark.parametrize("name", [
    pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in IN_RUN])
def test_a_strangers_run_changes_and_shows_nothing_outside(work, name, kind, capfd):
    put(kind, Path("run", name), work / "mine")
    before = state(work / "mine")
    said_by(capfd, commands())
    assert state(work / "mine") == before


def test_a_run_of_hard_links_is_trained_without_a_change_of_the_other_names(work, capfd):
    shutil.copytree("run", work / "mine" / "copy", copy_function=os.link)
    (work / "mine" / "copy" / ".lock").unlink()
    before = state(work / "mine")
    assert [main(command) for command in commands()] == [0] * len(commands())
    assert state(work / "mine") == before


def test_a_lock_that_has_another_name_is_refused_and_named(work, capfd):
    put("hard link", "run/.lock", work / "mine")
    assert main(commands()[-2]) == 2
    assert "run/.lock" in (said := " ".join(capfd.readouterr().err.split())) and "hard link" in said


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


@pytest.mark.parametrize("kind", ["file", "directory", "nothing", "hard link", "pipe"])
@pytest.mark.parametrize("name", ["README.md", "model.safetensors", "metadata.json", "notes",
                                  ".metadata.json.0123456789abcdef.tmp", "folder/notes"])
def test_a_bundle_that_is_replaced_changes_nothing_outside(work, name, kind, capfd):
    shutil.copytree("run/best", "bundle")
    put(kind, Path("bundle", name), work / "mine")
    before = state(work / "mine")
    said_by(capfd, [["average", "run", "--output", "bundle"], ["translate", "bundle", "valid.en", "-o", "out", *CPU],
                    ["evaluate", "bundle", *CPU]])
    assert state(work / "mine") == before


@pytest.mark.parametrize("kind", ["file", "directory", "nothing", "hard link", "pipe"])
@pytest.mark.parametrize("name", ["README.md", exporting.REPORT, "model.bin", ".old.replaced"])
def test_an_export_that_is_replaced_changes_and_shows_nothing_outside(work, name, kind):
    Path("old").mkdir()
    Path("old", exporting.REPORT).write_text('{"files": ["model.bin", "parity.json"]}')
    put(kind, name if name.startswith(".") else Path("old", name), work / "mine")
    before = state(work / "mine")
    with pytest.MonkeyPatch.context() as patch, suppress(exporting.FormatError, CheckpointError):
        patch.setattr(exporting, "compare", lambda *_: exporting.Parity(1, 1, 0, 0, []))
        exporting.write_checked_export(Path("old"), "x", lambda new: (new / "model.bin").write_bytes(b"new"),
                                       lambda new: None, None, [], exporting.Tolerance(1, 0, each=True))
    assert state(work / "mine") == before
    assert not any(SECRET in path.read_text() for path in Path("old").iterdir()
                   if path.is_file() and not path.is_symlink() and path.stat().st_nlink == 1)


@pytest.mark.parametrize("kind", ["file", "directory", "nothing", "hard link", "pipe"])
@pytest.mark.parametrize("name", ["text", "text/inputs.json", "text/domain.valid.source", "training", "training/.lock",
                                  "recipe.yaml", "best", "best/metadata.json"])
def test_a_strangers_adaptation_changes_and_shows_nothing_outside(work, name, kind, capfd):
    put(kind, Path("adapted", name), work / "mine")
    before = state(work / "mine")
    command = ["adapt", "run", "train.en", "train.de", "--output", "adapted"]
    said_by(capfd, [command, ["evaluate", "adapted", *CPU]])
    assert state(work / "mine") == before
