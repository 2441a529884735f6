"""`verify-resume`: the comparison of two trainings, one of which is killed, and its report."""

import json
import os
import signal
import sys

import pytest
from toy import RECIPE, write_corpus

from seq2seq.check import verify_resume as verification
from seq2seq.check.verify_resume import collect_results, differences, shorten
from seq2seq.cli import main
from seq2seq.errors import UserError
from seq2seq.recipe import load_recipe
from seq2seq.signals import Stopped


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_corpus(tmp_path)
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    return tmp_path


def write_counters(checkpoint, step=4, seconds=1.0, candidate=0):
    progress = {"step": step, "seconds": seconds, "window": {"seconds": seconds, "steps": 1},
                "candidate_step": candidate, "good_step": candidate}
    (checkpoint / "metadata.json").write_text(json.dumps({"info": {"progress": progress}}))


@pytest.mark.slow
def test_verify_resume_succeeds_and_removes_its_files(folder, capsys):
    before = sorted(path.name for path in folder.iterdir())
    assert main(["verify-resume", "recipe.yaml", "--steps", "60", "--kills", "2"]) == 0
    out = capsys.readouterr().out
    assert "SIGKILL after step" in out, out
    assert "bit-identical after 60 steps" in out
    assert sorted(path.name for path in folder.iterdir()) == sorted([*before, "runs"])
    assert not any((folder / "runs").iterdir())


def test_a_difference_is_reported_and_both_trainings_are_kept(folder, capsys, monkeypatch):
    def careless(place, run, until, advance, before, kill=None):
        """Replacement for a training whose result depends on whether it is killed."""
        (run / "best").mkdir(parents=True, exist_ok=True)
        (run / "best" / "model.safetensors").write_bytes(run.name.encode())
        for path in (run / "tokenizer", run / "prepared", run / "checkpoints" / "step-00000004"):
            path.mkdir(parents=True, exist_ok=True)
        for name in ("model.safetensors", "state.safetensors"):
            (run / "checkpoints" / "step-00000004" / name).write_bytes(b"the same")
        write_counters(run / "checkpoints" / "step-00000004", seconds=run.name)
        return kill is not None

    monkeypatch.setattr(verification, "_watch", careless)
    monkeypatch.setattr(verification.shutil, "copytree", lambda source, target: None)
    assert main(["verify-resume", "recipe.yaml", "--steps", "4", "--kills", "1"]) == 1
    out = capsys.readouterr().out
    assert "SIGTERM after step 0, resumed from step 4\nNOT identical: best/model.safetensors\n" in out
    assert (folder / "runs" / "tiny.verify-resume" / "whole").exists()
    # What is there is not overwritten.
    assert main(["verify-resume", "recipe.yaml"]) == 2


def test_an_error_of_the_training_is_reported(folder, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(UserError, match="exit code 1"):
        verification.verify_resume(load_recipe("recipe.yaml"), folder / "place", 4, 1, lambda done: None)


def test_a_directory_that_cannot_be_made_is_named(folder, capsys):
    (folder / "file").write_text("precious")
    assert main(["verify-resume", "recipe.yaml", "--directory", "file/x"]) == 2
    assert "file/x cannot be created: Not a directory" in capsys.readouterr().err
    assert (folder / "file").read_text() == "precious"


def test_only_values_that_depend_on_the_clock_may_differ(tmp_path):
    for name, seconds, loss in (("one", 1.0, 5.0), ("two", 2.0, 5.0), ("three", 2.0, 5.1)):
        (tmp_path / name / "best").mkdir(parents=True)
        (tmp_path / name / "best" / "model.safetensors").write_bytes(b"weights")
        record = {"kind": "training", "step": 3, "seconds": seconds, "tokens_per_second": 1 / seconds, "loss": loss}
        (tmp_path / name / "metrics.jsonl").write_text(json.dumps(record) + '\n{"kind": "tr')
    one, two, three = (collect_results(tmp_path / name) for name in ("one", "two", "three"))
    assert differences(one, two) == []
    assert differences(one, three) == ["the log of step 3"]


def test_additional_checkpoints_are_not_a_difference(tmp_path):
    for name, steps in (("one", (3, 9)), ("two", (7, 9)), ("three", (7,))):
        for place in ("best", *(f"checkpoints/step-{step:08d}" for step in steps)):
            (tmp_path / name / place).mkdir(parents=True)
            for file in ("model.safetensors", "state.safetensors"):
                (tmp_path / name / place / file).write_bytes(place.encode())
            write_counters(tmp_path / name / place, steps[-1], seconds=name, candidate=steps[0])
    one, two, three = (collect_results(tmp_path / name) for name in ("one", "two", "three"))
    assert differences(one, two) == []
    assert {"checkpoints/step-00000009/model.safetensors", "the train state"} <= set(differences(one, three))


def test_the_shortened_recipe_keeps_the_model_and_training_settings(folder):
    recipe = load_recipe("recipe.yaml")
    short = shorten(recipe, 24)
    assert short.training.max_steps == 24 and short.training.validate_every == 8 and not short.data.test
    assert short.model == recipe.model and short.training.ema_decay == recipe.training.ema_decay


def test_the_shortened_recipe_resolves_the_path_of_start_from(folder):
    (folder / "other").mkdir()
    recipe = load_recipe("recipe.yaml", ["training.start_from=other"])
    written = load_recipe("recipe.yaml", check_files=False)
    start = written.training.model_copy(update={"start_from": "other"})
    relative = written.model_copy(update={"training": start})
    assert shorten(relative, 24).training.start_from == shorten(recipe, 24).training.start_from == str(
        folder / "other")


def test_a_kill_after_the_end_of_the_training_is_not_counted(folder, monkeypatch):
    (folder / "run").mkdir()
    (folder / "run" / "metrics.jsonl").write_text('{"step": 3}\n')
    monkeypatch.setattr(sys, "executable", "/bin/true")
    kill = verification.signal.SIGKILL, 0.3
    assert verification._watch(folder, folder / "run", 3, lambda done: None, 0, kill) is False


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_training_too(folder, monkeypatch, number):
    started = []

    class Endless(verification.subprocess.Popen):
        """Replacement for a training that does not end by itself."""

        def __init__(self, command, **options):
            super().__init__(["sleep", "60"], **options)
            started.append(self)

    monkeypatch.setattr(verification.subprocess, "Popen", Endless)
    with pytest.raises(Stopped):
        verification._watch(folder, folder / "run", 3, lambda done: os.kill(os.getpid(), number), 0)
    assert started[0].poll() == -signal.SIGKILL


def test_the_log_of_a_killed_training_does_not_kill_the_next_one(folder, monkeypatch):
    (folder / "run").mkdir()
    (folder / "run" / "metrics.jsonl").write_text('{"step": 3}\n')
    (folder / "training").write_text("#!/bin/sh\nsleep 1\n")                 # ends before it writes to its log
    (folder / "training").chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(folder / "training"))
    kill = verification.signal.SIGKILL, 0
    assert verification._watch(folder, folder / "run", 3, lambda done: None, 0, kill) is False
