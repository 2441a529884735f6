"""`seq2seq init --monolingual`: three recipes for back-translation, which are checked and trained in order."""

import itertools
import json
import os
import random
import shutil
from pathlib import Path

import pytest
from command_files import run_command

from seq2seq.check.directory_cost import without_planned_models
from seq2seq.check.monolingual_text import choose_lines
from seq2seq.check.new_recipe import MONOLINGUAL_PER_PAIR
from seq2seq.check.pair_checks import LanguageChecker
from seq2seq.check.recipe_text import REAL_WEIGHT, Step
from seq2seq.check.split_text import Sentences
from seq2seq.recipe import Languages, load_recipe
from seq2seq.training.planned_runs import plan_directory
from tests.check.test_new_recipe import CODES, PAIRS, directory, write  # noqa: F401

NOT_HELD_OUT = Sentences([])
SHORT = [part for setting in ("max_steps=2", "validate_every=2", "valid_sentences=2", "precision=fp32", "threads=1")
         for part in ("--set", f"training.{setting}")]


def lines_of(*paths: Path, maximum: int = 1000, seed: int = 1, held_out: Sentences = NOT_HELD_OUT) -> list[str]:
    checker = LanguageChecker([], Languages(source="xx", target="yy"))                      # too little to learn from
    return choose_lines(paths, held_out, maximum, seed, checker)[0]


def monolingual(lines: list[str], name: str = "mono.yy") -> Path:
    Path(name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return Path(name)


def plan(path: str):
    return plan_directory(Path(path), lambda recipe, runs: load_recipe(recipe, planned=runs))


SENTENCES = [f"{first} {second}" for (_, first), (_, second) in list(itertools.product(PAIRS, PAIRS))[:7919]]


@pytest.fixture
def three(directory):  # noqa: F811
    """Directory that init wrote, with a text that has a held-out sentence in it."""
    written = run_command("init", *write(PAIRS), *CODES, "--output", "mine", "--seed", "3")
    assert written.code == 0
    held_out = [line for name in ("valid", "test") for line in Path(f"mine/{name}.yy").read_text().splitlines()]
    text = monolingual([*SENTENCES[:97], f"{held_out[0].upper()}!", *held_out[1:]])
    run_command("init", *map(str, (Path("train.xx"), Path("train.yy"))), *CODES, "--output", "three", "--seed", "3",
                "--monolingual", text)
    return held_out


def test_the_recipes_follow_each_other_from_the_pairs_to_the_model_that_continues(three):
    baseline, reverse, final = plan("three")
    assert [one.group for one in (baseline, reverse, final)] == [
        step.run for step in (*Step.FINAL.before, Step.FINAL)]
    assert baseline.recipe.languages.pair == reverse.recipe.languages.pair[::-1] == final.recipe.languages.pair
    real, generated = final.recipe.data.train
    assert real.weight == REAL_WEIGHT and generated.samples is False and not reverse.recipe.data.test
    assert [str(path) for path in generated.translated_by] == ["runs/2_reverse"]
    assert final.recipe.model == baseline.recipe.model and final.recipe.training.start_from == "runs/1_baseline"
    only = load_recipe("mine/recipe.yaml")
    assert baseline.recipe.training == only.training and baseline.recipe.model == only.model


def test_no_reference_of_a_held_out_set_is_translated_for_the_training(three):
    assert Path("three/monolingual.yy").read_text().splitlines() == SENTENCES[:97]
    assert Path("three/test.yy").read_text().splitlines()[-1] in three


def test_lines_are_drawn_at_random_from_all_files_and_keep_their_order(directory):  # noqa: F811
    first, second = monolingual(SENTENCES[:5003], "first"), monolingual(SENTENCES[5003:], "second")
    drawn = lines_of(first, second)
    assert drawn == lines_of(first, second) != lines_of(first, second, seed=2)
    numbers = [SENTENCES.index(line) for line in drawn]
    assert len(numbers) == 1000 and numbers == sorted(set(numbers))
    # Each tenth of the text gives a tenth of the lines, with a standard deviation of 9.
    tenths = [sum(number * 10 // len(SENTENCES) == tenth for number in numbers) for tenth in range(10)]
    assert all(60 < count < 140 for count in tenths)


def test_repeated_blank_and_damaged_lines_are_not_drawn(directory):  # noqa: F811
    noise = ["", "  ", "\t", "damaged \ufffd line", "a \x01 b"]
    lines = [*SENTENCES[:89], *noise, *(line.upper() for line in SENTENCES[:89]), *SENTENCES[:10]]
    random.Random(1).shuffle(lines)
    drawn = lines_of(monolingual(lines))
    assert len(drawn) == 89 and len({line.casefold() for line in drawn}) == 89


def test_lines_in_the_source_language_are_left_out_and_counted(directory):  # noqa: F811
    sources = [f"{first} {second}" for (first, _), (second, _) in zip(PAIRS, PAIRS[7:], strict=False)][:23]
    found = run_command("init", *write(PAIRS), *CODES, "--output", "mine", "--monolingual",
                        monolingual([*SENTENCES[:61], *sources, *SENTENCES[61:97]]))
    assert found.code == 0 and b"left out: 23 sentences like the source language, xx" in found.out
    assert Path("mine/monolingual.yy").read_text().splitlines() == SENTENCES[:97]


@pytest.mark.parametrize(("change", "warned"), [
    (str, ""), (lambda line: line.replace(" ", "@@ "), "marks of subwords"),
    (lambda line: f"{line} , {line} .", "looks tokenised"), (lambda line: f"&quot;{line}&quot;", "HTML entities")])
def test_text_that_would_teach_the_model_another_form_is_warned_of(directory, change, warned):  # noqa: F811
    text = monolingual(list(map(change, SENTENCES[:97])) + SENTENCES[:3])
    found = run_command("init", *write(PAIRS), *CODES, "--output", "mine", "--monolingual", text)
    warnings = [line for line in found.err.splitlines() if line.startswith("warning: --monolingual")]
    assert found.code == 0 and len(warnings) == bool(warned) and all(warned in line for line in warnings)


def test_a_pipe_is_refused_because_it_could_be_read_only_once(directory):  # noqa: F811
    os.mkfifo("pipe")
    found = run_command("init", *write(PAIRS), *CODES, "--output", "mine", "--monolingual", "pipe")
    assert found.code == 2 and "not a regular file" in found.err


def test_more_text_than_back_translation_needs_is_left_out(directory):  # noqa: F811
    assert run_command("init", *write(PAIRS), *CODES, "--output", "mine", "--monolingual",
                       monolingual(SENTENCES)).code == 0
    pairs = len(Path("mine/train.xx").read_text().splitlines())
    assert len(Path("mine/monolingual.yy").read_text().splitlines()) == MONOLINGUAL_PER_PAIR * pairs


def test_text_or_options_of_which_nothing_comes_are_refused(directory):  # noqa: F811
    files = write(PAIRS)
    for text, option, reason in ((["", " "], (), "mono.yy is empty"),
                                 (["a \ufffd"], (), "has no line for back-translation"),
                                 ([source for source, _ in PAIRS], (), "more like the source of the pairs (xx)"),
                                 (SENTENCES[:9], ("--minutes", "3"), "--minutes does not plan a training")):
        found = run_command("init", *files, *CODES, "--output", "mine", "--monolingual", monolingual(text), *option)
        assert found.code == 2 and reason in found.err and not Path("mine").exists()
    for name in ("pairs.tsv", "missing.yy"):
        found = run_command("init", *files, *CODES, "--output", "mine", "--monolingual", name)
        assert found.code == 2 and name in found.err and not Path("mine").exists()


def test_the_cost_of_a_recipe_is_measured_before_its_models_exist(three):
    baseline, reverse, final = plan("three")
    planned = {one.run.absolute(): one.recipe for one in (baseline, reverse, final)}
    measurable = without_planned_models(final.recipe, planned, final.run)
    assert measurable.training.start_from is None and measurable.tokenizer == baseline.recipe.tokenizer
    assert measurable.data.train[1].source == measurable.data.train[1].target == "monolingual.yy"
    assert without_planned_models(baseline.recipe, planned, baseline.run) == baseline.recipe
    for run in (baseline.run, reverse.run):                                                 # stopped without a model
        run.mkdir(parents=True)
    assert without_planned_models(final.recipe, planned, final.run) == measurable


@pytest.mark.slow
def test_all_recipes_are_checked_and_trained_by_one_command_each(three):
    checked = run_command("check", "three", *SHORT, "--format", "json")
    assert checked.code == 0
    baseline, reverse, final = json.loads(checked.out)
    assert final["pairs"] == baseline["pairs"] + 97 and final["sentences"] > 97
    assert all(cost["hours"] > 0 for cost in (baseline, reverse, final))
    assert not final["report"]["warnings"], "the text is no real translation of itself"
    quick = run_command("check", "three", *SHORT, "--no-measure")
    assert quick.code == 0 and b" 3_final " in quick.out
    trained = run_command("train", "three", *SHORT)
    assert trained.code == 0
    assert "compare them with: seq2seq compare three/runs/1_baseline three/runs/3_final" in trained.err
    told = run_command("evaluate", "three")
    assert told.code == 2 and told.err.rstrip().endswith("The last of the runs in it is three/runs/3_final.")
    assert [path.name for path in sorted(Path("three/runs").iterdir())] == ["1_baseline", "2_reverse", "3_final"]
    assert list(Path("three/runs/3_final/synthetic").glob("monolingual.yy-xx.*.txt"))
    shutil.rmtree("three/runs/3_final/synthetic")
    again = json.loads(run_command("check", "three", *SHORT, "--no-measure", "--format", "json").out)[2]
    assert again["pairs"] == final["pairs"] and again["sentences"] == final["sentences"]
    assert run_command("train", "three/3_final.yaml", "--restart", *SHORT).code == 0
    shutil.rmtree("three/runs/3_final.1")

    # A change of the text is noticed before anything is translated or trained, and one recipe alone is trained anew.
    with Path("three/monolingual.yy").open("a", encoding="utf-8") as file:
        file.write(f"{SENTENCES[-1]}\n")
    changed = run_command("train", "three", *SHORT)
    assert changed.code == 2 and "another translation of" in changed.err and "translating" not in changed.err
    assert "seq2seq train three/3_final.yaml --restart" in changed.err
    assert run_command("train", "three/3_final.yaml", "--restart", *SHORT).code == 0
    assert run_command("train", "three", *SHORT).code == 0
    assert [path.name for path in sorted(Path("three/runs").iterdir())] == ["1_baseline", "2_reverse", "3_final",
                                                                            "3_final.1"]


def test_an_empty_text_that_a_later_recipe_translates_is_an_error_before_the_first_training(three):
    Path("three/monolingual.yy").write_text("")
    for command in ("train", "check"):
        found = run_command(command, "three", *SHORT)
        assert found.code == 2 and "has no text to translate" in found.err
    assert not Path("three/runs").exists()
