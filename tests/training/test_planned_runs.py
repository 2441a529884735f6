"""Recipes that `seq2seq compare` trains with several values and seeds."""

import json

import pytest
from command_files import run_command
from toy import FOUR_STEPS, RECIPE, write_corpus
from trainings import final_weights, interrupting, press_ctrl_c, same

from seq2seq.errors import UserError
from seq2seq.recipe import load_recipe
from seq2seq.training.planned_runs import plan_runs
from seq2seq.training.run import train

SETTINGS = [part for setting in FOUR_STEPS for part in ("--set", setting)]


@pytest.fixture
def directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_corpus(tmp_path)
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    return tmp_path


def test_all_values_and_seeds_are_trained_as_ordinary_runs_and_compared(directory, monkeypatch):
    command = ["compare", "recipe.yaml", "--set", "model.norm=pre,post", *SETTINGS, "--seeds", "2", "--metric", "chrf",
               "--samples", "20", "--threads", "1", "--format", "json"]
    interrupting(monkeypatch, 3, press_ctrl_c)
    assert run_command(*command).code == 130
    assert [path.name for path in (directory / "runs/compare_tiny").iterdir()] == ["model.norm=pre_seed_1"]
    done = run_command(*command)
    assert done.code == 0
    groups = json.loads(done.out)["small"]["chrf"]
    assert list(groups) == ["model.norm=pre", "model.norm=post"]
    assert groups["model.norm=post"]["seeds"] == [1, 2] and len(groups["model.norm=post"]["values"]) == 2
    page = (directory / "runs/compare_tiny/comparison.html").read_text()
    assert "<svg" in page and "model.norm=post" in page and "http://" not in page.replace("http://www.w3.org", "")
    assert "| model.norm=post |" in (directory / "runs/compare_tiny/comparison.md").read_text()

    train(load_recipe("recipe.yaml", [*FOUR_STEPS, "model.norm=post", "seed=2"]), directory / "alone")
    assert same(final_weights(directory / "runs/compare_tiny/model.norm=post_seed_2"),
                final_weights(directory / "alone"))
    again = run_command(*command)
    assert json.loads(again.out) == json.loads(done.out) and "has finished" in again.err
    # The runs by themselves are the same groups.
    runs = [f"runs/compare_tiny/model.norm={norm}_seed_{seed}" for norm in ("pre", "post") for seed in (1, 2)]
    of_runs = json.loads(run_command("compare", *runs, "--metric", "chrf", "--samples", "20", "--threads", "1",
                                     "--format", "json").out)["small"]["chrf"]
    assert [group["values"] for group in of_runs.values()] == [group["values"] for group in groups.values()]
    changed = run_command(*command, "--set", "training.learning_rate=0.02")
    assert changed.code == 2 and "was trained with another recipe" in changed.err


def test_faults_are_reported_before_the_first_training(directory):
    for arguments in (["--set", "model.score=dot,unknown"], ["--set", "model.norm=pre,pre"], ["--set", "model.norm"],
                      [], ["--seeds", "3"], ["--set", "model.norm=pre,post", "--output", "x.txt"],
                      ["--set", "model.norm=pre,post", "--paired", "randomization"]):
        assert run_command("compare", "recipe.yaml", *arguments).code == 2
    assert run_command("compare", "runs/a", "runs/b", "--seeds", "2").code == 2
    (directory / "other.yaml").write_text(RECIPE.replace("  test: {small: {source: valid.en, target: valid.de}}\n", ""))
    assert "no test sets" in run_command("compare", "recipe.yaml", "other.yaml").err
    assert not (directory / "runs").exists()


def test_runs_of_a_seed_are_trained_for_all_recipes_before_the_next_seed(directory):
    (directory / "second.yaml").write_text(RECIPE.replace("name: tiny", "name: second\nseed: 7"))
    planned = plan_runs(["recipe.yaml", "second.yaml"], ["model.dropout=0,0.1", "model.norm=pre"], 2, None)
    assert [(one.group, one.recipe.seed) for one in planned] == [
        *[(f"{name}, model.dropout={value}", seed) for number in (0, 1)
          for name, seed in (("tiny", 1 + number), ("second", 7 + number)) for value in ("0", "0.1")]]
    assert str(planned[-1].run) == "runs/compare_tiny/second_model.dropout=0.1_seed_8"
    assert all(one.recipe.model.norm == "pre" for one in planned)
    with pytest.raises(UserError, match="its own `name`"):
        plan_runs(["recipe.yaml", "recipe.yaml"], [], 1, None)
