"""Recipes that `seq2seq compare` trains with several values and seeds."""

import json

import pytest
from command_files import run_command
from toy import FOUR_STEPS, RECIPE, write_corpus
from trainings import final_weights, interrupting, press_ctrl_c, same

from seq2seq.errors import UserError
from seq2seq.evaluation.system_comparison import groups_by_recipe
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
    markdown = (directory / "runs/compare_tiny/comparison.md").read_text()
    assert "| model.norm=post |" in markdown and "two seeds tell little" in markdown
    assert "| model.norm | pre | post |" in markdown and "| precision | fp32 | fp32 |" in markdown
    assert "| seed |" not in markdown and "model.norm=post: runs/compare_tiny/model.norm=post_seed_1, " in markdown
    assert markdown.count("model.norm=pre_seed_2") == 1
    assert load_recipe(directory / "runs/compare_tiny/model.norm=pre_seed_1/recipe.yaml", check_files=False
                       ).training.threads == 1, "--threads is that of the trainings, too"

    train(load_recipe("recipe.yaml", [*FOUR_STEPS, "model.norm=post", "seed=2"]), directory / "alone")
    assert same(final_weights(directory / "runs/compare_tiny/model.norm=post_seed_2"),
                final_weights(directory / "alone"))
    again = run_command(*command)
    assert json.loads(again.out) == json.loads(done.out) and "has finished" in again.err
    assert "seed 2" in done.err and " left for all" in done.err and " left for all" not in again.err
    # The runs by themselves are the same groups.
    runs = [f"runs/compare_tiny/model.norm={norm}_seed_{seed}" for norm in ("pre", "post") for seed in (1, 2)]
    of_runs = json.loads(run_command("compare", *runs, "--metric", "chrf", "--samples", "20", "--threads", "1",
                                     "--format", "json").out)["small"]["chrf"]
    assert [group["values"] for group in of_runs.values()] == [group["values"] for group in groups.values()]
    # A prolonged training is no training of the recipe with more steps. The fault is found before the first training.
    longer = ["training.max_steps=8" if part == "training.max_steps=4" else part for part in [*command, "--seeds", "3"]]
    for changed in ([*command, "--set", "training.learning_rate=0.02"], longer):
        found = run_command(*changed)
        assert found.code == 2 and "was trained with another recipe" in found.err
    assert not list((directory / "runs/compare_tiny").glob("*seed_3"))


def test_models_of_one_recipe_are_a_group_though_they_were_trained_on_other_machines_and_elsewhere(directory):
    run = {1: directory / "runs/1", 2: directory / "2", 3: directory / "weight", 4: directory / "start",
           5: directory / "text"}
    for seed, settings in {1: ["training.threads=1"], 2: ["data.test={}"], 3: ["data.train.0.weight=3"],
                           4: ["training.start_from=./2"], 5: []}.items():
        if seed == 5:
            for side in ("en", "de"):
                path = directory / f"train.{side}"
                path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
        train(load_recipe("recipe.yaml", [*FOUR_STEPS, f"seed={seed}", *settings]), run[seed])
    assert groups_by_recipe(list(run.values())) == [
        {1: run[1], 2: run[2]}, {3: run[3]}, {4: run[4]}, {5: run[5]}], "a weight, another start, other text"


def test_a_comparison_begins_with_the_first_system_that_is_named(directory):
    train(load_recipe("recipe.yaml", [*FOUR_STEPS, "seed=7"]), directory / "own")
    (directory / "other.yaml").write_text(RECIPE.replace("name: tiny", "name: own"))
    arguments = ["--metric", "chrf", "--samples", "20", "--format", "json", *SETTINGS]
    found = run_command("compare", "own", "other.yaml", "--set", "training.learning_rate=0.02", *arguments)
    groups = json.loads(found.out)["small"]["chrf"]
    assert [group["difference"] is None for group in groups.values()] == [True, False] and list(groups) == [
        "own", "runs/compare_own/own_seed_1"], "the planned group has the name of the run"
    same = run_command("compare", "recipe.yaml", "own", *arguments)
    assert same.code == 2 and "seeds of one recipe" in same.err
    assert run_command("compare", "own", "runs/compare_tiny/tiny_seed_1", "--metric", "chrf").code == 2


def test_a_test_set_in_the_training_text_is_warned_of_once_for_each_recipe(directory):
    (directory / "seen.yaml").write_text(RECIPE.replace("test: {small: {source: valid.en, target: valid.de}}",
                                                        "test: {small: {source: train.en, target: train.de}}"))
    alone = run_command("train", "seen.yaml", *SETTINGS).err.count("also occur in train")
    found = run_command("compare", "seen.yaml", "--set", "model.norm=pre,post", "--seeds", "2", "--metric", "chrf",
                        "--samples", "2", *SETTINGS)
    assert found.code == 0 and found.err.count("also occur in train") == 2 * alone > 0


def test_a_model_of_other_languages_is_not_compared(directory):
    train(load_recipe("recipe.yaml", FOUR_STEPS), directory / "one")
    (directory / "reverse.yaml").write_text(RECIPE.replace("{source: en, target: de}", "{source: de, target: en}"))
    train(load_recipe("reverse.yaml", FOUR_STEPS), directory / "reverse")
    for command in (["compare"], ["report", "--output", "x.html"]):
        found = run_command(*command, "one", "reverse", "--source", "valid.en", "--reference", "valid.de")
        assert found.code == 2 and "reverse translates into en, not into de" in found.err


def test_a_training_that_has_not_ended_is_named_where_its_model_is_used(directory, monkeypatch):
    train(load_recipe("recipe.yaml", FOUR_STEPS), directory / "one")
    interrupting(monkeypatch, 3, press_ctrl_c)
    settings = [part for setting in [*FOUR_STEPS, "training.validate_every=2"] for part in ("--set", setting)]
    assert run_command("train", "recipe.yaml", "--run-dir", "two", *settings, "--set", "name=other").code == 130
    found = run_command("compare", "one", "two", "--metric", "chrf", "--samples", "2")
    assert "the training of two has not ended" in found.err and "training of one" not in found.err
    for model, warned in (("two", True), ("one", False)):
        told = run_command("train", "recipe.yaml", "--run-dir", f"from_{model}", *settings,
                           "--set", f"training.start_from=./{model}")
        assert told.code == 0 and ("has not ended" in told.err) == warned


def test_faults_are_reported_before_the_first_training(directory):
    for arguments in (["--set", "model.score=dot,unknown"], ["--set", "model.norm=pre,pre"], ["--set", "model.norm"],
                      [], ["--seeds", "3"], ["--set", "model.norm=pre,post", "--output", "x.txt"],
                      ["--set", "model.norm=pre,post", "--paired", "randomization"],
                      ["--set", "model.norm=pre,post", "--samples", "1"],
                      ["--set", "model.norm=pre,post", "--output", "missing/x.html"],
                      ["--set", "model.norm=pre,post", "--source", "typo.en", "--reference", "valid.de"],
                      ["--set", "model.norm=pre,post", "--source", "valid.en"], ["runs/typo"],
                      ["train.de", "--source", "valid.en", "--reference", "valid.de"]):
        assert run_command("compare", "recipe.yaml", *arguments).code == 2
    assert run_command("compare", "runs/a", "runs/b", "--seeds", "2").code == 2
    (directory / "other.yaml").write_text(RECIPE.replace("name: tiny", "name: other").replace(
        "  test: {small: {source: valid.en, target: valid.de}}\n", ""))
    assert "no test sets" in run_command("compare", "other.yaml", "recipe.yaml").err
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


CONTINUED = """
name: continued
languages: {source: en, target: de}
data: {train: [{source: train.en, target: train.de}], valid: {source: valid.en, target: valid.de}}
training: {start_from: runs/1_first, max_steps: 4, validate_every: 4, batch_tokens: 64, precision: fp32}
"""


def test_the_numbered_recipes_of_a_directory_are_trained_in_order_and_resumed(directory, monkeypatch):
    (directory / "road").mkdir()
    write_corpus(directory / "road")
    (directory / "road/1_first.yaml").write_text(RECIPE)
    (directory / "road/10_last.yaml").write_text(CONTINUED.replace("1_first", "9_next"))
    (directory / "road/9_next.yaml").write_text(CONTINUED)
    interrupting(monkeypatch, 3, press_ctrl_c)
    command = ["train", "road", *SETTINGS, "--threads", "1"]
    assert run_command(*command).code == 130
    assert [path.name for path in (directory / "road/runs").iterdir()] == ["1_first"]
    assert run_command(*command).code == 0
    weights = [final_weights(directory / "road/runs" / name) for name in ("1_first", "9_next", "10_last")]
    assert not same(weights[0], weights[1]) and not same(weights[1], weights[2])
    recipe = load_recipe(directory / "road/10_last.yaml", [*FOUR_STEPS, "training.threads=1"])
    train(recipe, directory / "alone")
    assert same(final_weights(directory / "alone"), weights[2])


def test_an_error_in_the_last_recipe_of_a_directory_comes_before_the_first_training(directory):
    (directory / "road").mkdir()
    write_corpus(directory / "road")
    (directory / "road/1_first.yaml").write_text(RECIPE)
    for fault, reason in (("start_from: runs/2_first", "there is no directory"), ("max_stps: 4", "unknown key")):
        text = CONTINUED.replace(*("start_from: runs/1_first", fault) if "start" in fault else ("max_steps: 4", fault))
        (directory / "road/2_next.yaml").write_text(text)
        found = run_command("train", "road", *SETTINGS)
        assert found.code == 2 and reason in found.err and "2_next.yaml" in found.err
    assert not (directory / "road/runs").exists()


def test_a_directory_without_numbered_recipes_cannot_be_trained(directory):
    (directory / "empty").mkdir()
    for command in ("train", "check"):
        found = run_command(command, "empty")
        assert found.code == 2 and "no numbered recipes" in found.err
    (directory / "empty/1_a.yaml").write_text(RECIPE)
    assert "no effect" in run_command("train", "empty", "--run-dir", "x").err
    assert "Name the one" in run_command("train", "empty", "--restart").err


def test_a_stopped_restart_is_resumed_without_the_option(directory, monkeypatch):
    for expected in ("run the same command again", "run the same command without --restart"):
        interrupting(monkeypatch, 3, press_ctrl_c)
        restart = ["--restart"] if "without" in expected else []
        stopped = run_command("train", "recipe.yaml", *SETTINGS, *restart)
        assert stopped.code == 130 and expected in stopped.err
    assert run_command("train", "recipe.yaml", *SETTINGS).code == 0


def test_what_does_not_exist_is_no_file_of_translations(directory):
    found = run_command("compare", "runs/a", "runs/b")
    assert found.code == 2 and "runs/a does not exist" in found.err
