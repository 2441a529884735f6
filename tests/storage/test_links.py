"""A run or a bundle that a stranger has made contains links to files of the user: none of these is read or changed."""

import os
import shutil
from pathlib import Path

import pytest

from seq2seq.cli import main
from seq2seq.errors import CheckpointError
from seq2seq.storage import checkpoints
from seq2seq.storage.links import DamagedError, path_inside, refuse_links

IN_BUNDLE = ("metadata.json", "model.safetensors", "recipe.yaml", "tokenizer.model")
IN_RUN = ("recipe.yaml", "metrics.jsonl", "curves.svg", ".lock", "checkpoints", "best", "tokenizer", "tensorboard",
          "prepared", "synthetic", "checkpoints/step-00000004", "checkpoints/step-00000004/metadata.json",
          "prepared/*/source.ids", "tokenizer/metadata.json", ".best.replaced")
# Names that seq2seq could use for temporary files if they were not random.
HARMLESS = ("metrics.jsonl.writing", "recipe.yaml.writing", "curves.svg.writing", "best/metadata.json.writing",
            "best/.metadata.json.saving", "best/.README.md.saving", "best/README.md")
HIDDEN = (".best.saving", ".metadata.json.saving", ".start", "checkpoints/.step-00000006.saving",
          "tokenizer/.metadata.json.saving")


@pytest.fixture
def strangers(made, tmp_path, monkeypatch):
    """Working directory with a copy of the run. Beside it is the user's directory `mine`."""
    shutil.copytree(made / "run", tmp_path / "work" / "run")
    monkeypatch.chdir(tmp_path / "work")
    for name in ("recipe.yaml", "valid.en"):
        Path(name).symlink_to(made / name)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes").write_text("irreplaceable")
    return tmp_path


def move_out(path: Path, elsewhere: Path) -> None:
    """Move a file or directory out of the run, and leave a link to it. If it does not exist, link a file."""
    target = elsewhere / path.name
    if path.exists():
        path.rename(target)
    else:
        target.write_text("irreplaceable")
    path.symlink_to(target)


def contents(directory):
    return {str(path): (path.read_bytes() if path.is_file() else None, path.is_symlink())
            for path in sorted(directory.rglob("*"))}


def run_commands():
    """Run each command with the run; return the exit codes."""
    options = ["--device", "cpu", "--threads", "1", "--precision", "fp32"]
    recipe = str(Path("recipe.yaml").resolve())
    return [main(["translate", "run", "valid.en", "-o", "out", *options]), main(["evaluate", "run", *options]),
            main(["average", "run", "--output", "averaged"]),
            main(["train", recipe, "--run-dir", "run", "--set=training.max_steps=6",
                  "--set=training.validate_every=2"])]


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=() if name == "model.safetensors" else pytest.mark.slow) for name in IN_BUNDLE])
def test_a_bundle_with_a_link_to_another_file_is_refused(strangers, capfd, name):
    move_out(Path("run/best", name), strangers / "mine")
    before = contents(strangers / "mine")
    options = ["--device", "cpu", "--threads", "1"]
    for command in (["translate", "run/best", "valid.en", *options], ["evaluate", "run/best", *options]):
        assert main(command) == 2
        assert f"run/best/{name} leads out of " in capfd.readouterr().err
    assert contents(strangers / "mine") == before


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=() if name in ("recipe.yaml", "checkpoints", ".best.replaced") else pytest.mark.slow)
    for name in IN_RUN])
def test_a_run_with_a_link_out_of_it_is_not_trained_further(strangers, capfd, name):
    (path,) = Path("run").glob(name) if "*" in name else [Path("run", name)]
    if name == ".best.replaced":
        shutil.rmtree("run/best")
    move_out(path, strangers / "mine")
    before = contents(strangers)
    *_, averaged, trained = run_commands()
    assert (averaged, trained) == (2, 2)
    assert str(path) in capfd.readouterr().err
    for written in ("out", "averaged"):
        (strangers / "work" / written).unlink(missing_ok=True)
    after = contents(strangers)
    # Evaluation writes scores into the run's best bundle, if that is not the link.
    assert {name: value for name, value in after.items() if "/run/best/" not in name} == {
        name: value for name, value in before.items() if "/run/best/" not in name}


def test_links_with_the_names_of_temporary_files_change_nothing_outside(strangers):
    for name in HARMLESS:
        Path("run", name).symlink_to(strangers / "mine" / "notes")
    before = contents(strangers / "mine")
    assert run_commands() == [0, 0, 0, 0]
    assert contents(strangers / "mine") == before
    assert Path("run/best/README.md").is_symlink()


@pytest.mark.parametrize("name", [HIDDEN[0], *(pytest.param(name, marks=pytest.mark.slow) for name in HIDDEN[1:])])
def test_hidden_links_out_of_a_run_are_refused(strangers, capfd, name):
    Path("run", name).symlink_to(strangers / "mine" / "notes")
    before = contents(strangers / "mine")
    assert run_commands() == [0, 0, 2, 2]
    assert f"run/{name}" in capfd.readouterr().err
    assert contents(strangers / "mine") == before


def test_an_output_is_not_written_through_a_link(strangers):
    Path("out.part").symlink_to(strangers / "mine" / "notes")
    assert main(["translate", "run", "valid.en", "-o", "out", "--device", "cpu", "--threads", "1"]) == 2
    assert (strangers / "mine" / "notes").read_text() == "irreplaceable"


def test_a_run_is_reached_through_a_link(strangers):
    Path("run").rename(strangers / "mine" / "disk")
    Path("run").symlink_to(strangers / "mine" / "disk")
    assert run_commands() == [0, 0, 0, 0]
    assert Path("run").is_symlink()


def test_a_loop_of_links_is_refused(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "loop").symlink_to("loop")
    with pytest.raises(DamagedError):
        refuse_links(tmp_path)


def test_after_a_kill_between_two_renames_every_command_finds_the_best_model(strangers, monkeypatch):
    monkeypatch.setattr(checkpoints, "RENAME_SECONDS", 0)
    os.rename("run/best", "run/.best.replaced")
    for command in (["translate", "run", "valid.en", "-o", "out"], ["score", "run", "valid.en", "valid.en"],
                    ["report", "run", "--output", "page.html"], ["evaluate", "run"]):
        assert main([*command, "--device", "cpu"]) == 0, command


def test_links_inside_a_run_are_followed(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk" / "step").touch()
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "last").symlink_to(tmp_path / "disk" / "step")
    (tmp_path / "notes").symlink_to("/etc/hostname")                            # not a name of seq2seq
    refuse_links(tmp_path)
    assert path_inside(tmp_path, "checkpoints").is_dir()
    (tmp_path / "metrics.jsonl").symlink_to("/etc/hostname")
    os.mkfifo(tmp_path / "pipe")
    for refused in (lambda: refuse_links(tmp_path), lambda: path_inside(tmp_path, "notes"),
                    lambda: path_inside(tmp_path, "../x"), lambda: path_inside(tmp_path, "a\0b"),
                    lambda: path_inside(tmp_path, "pipe")):
        with pytest.raises(CheckpointError):
            refused()


def test_a_link_to_nothing_in_a_model_is_damage(tmp_path):
    (tmp_path / "model.safetensors").symlink_to(tmp_path / "gone")
    with pytest.raises(DamagedError, match="is not a regular file"):
        path_inside(tmp_path, "model.safetensors")
    assert path_inside(tmp_path, "recipe.yaml") == tmp_path / "recipe.yaml"     # may be missing, too
