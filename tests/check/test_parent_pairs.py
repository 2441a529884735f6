"""`seq2seq init --parent`: two recipes for transfer learning, which are checked and trained in order."""

import itertools
import json
from pathlib import Path

import pytest
from command_files import run_command

from seq2seq.check.recipe_text import CONTINUED_RATE, Step
from seq2seq.recipe import Languages, load_recipe
from tests.check.test_monolingual_text import SHORT, plan
from tests.check.test_new_recipe import CODES, PAIRS, directory, split_of, write  # noqa: F401

OTHERS = [(f"{first[::-1]} {second[::-1]}", f"{target} {other}") for (first, target), (second, other)
          in itertools.islice(itertools.product(PAIRS, PAIRS), 997)]
"""Pairs of the languages zz and yy."""
ZZ = ("--parent-source", "zz")


def init(*arguments: object, others=OTHERS, names=("big.zz", "big.yy"), codes=ZZ):
    return run_command("init", *write(PAIRS), *CODES, "--output", "mine", "--seed", "3", "--parent",
                       *write(others, names), *codes, *arguments)


def test_the_parent_learns_all_pairs_and_the_child_continues_with_the_own_ones(directory):  # noqa: F811
    assert run_command("init", *write(PAIRS), *CODES, "--output", "only", "--seed", "3").code == 0
    written = init()
    assert written.code == 0 and b"parent: 997 of 997 pairs from zz to yy" in written.out
    parent, child = plan("mine")
    assert [one.group for one in (parent, child)] == [step.run for step in (*Step.CHILD.before, Step.CHILD)]
    own, other = parent.recipe.data.train
    assert parent.recipe.languages == child.recipe.languages == Languages(source="xx", target="yy")
    assert other.languages == Languages(source="zz", target="yy") and own.languages == parent.recipe.languages
    pairs = len(split_of(directory / "mine")["train"])
    assert abs(own.weight * pairs / (own.weight * pairs + 997) - 0.25) < 0.1, "a quarter of an epoch are own pairs"
    assert child.recipe.training.start_from == "runs/1_parent"
    assert child.recipe.tokenizer == parent.recipe.tokenizer and child.recipe.model == parent.recipe.model
    only, of_child = (recipe.training.model_dump() for recipe in (load_recipe("only/recipe.yaml"), child.recipe))
    changed = {key for key in only if only[key] != of_child[key]}
    assert changed == {"start_from", "learning_rate"}
    assert of_child["learning_rate"] == only["learning_rate"] * CONTINUED_RATE
    assert parent.recipe.data.held_out() == child.recipe.data.held_out()


def test_many_pairs_of_other_languages_do_not_repeat_the_own_pairs_without_limit(directory):  # noqa: F811
    assert init(others=[(f"{source} {number}", f"{target} {number}") for number in range(97)
                        for source, target in OTHERS[:97]]).code == 0
    assert plan("mine")[0].recipe.data.train[0].weight == 10


def test_no_sentence_of_a_held_out_set_is_in_the_pairs_of_the_parent(directory):  # noqa: F811
    assert init().code == 0
    held_out = [pair for name in ("valid", "test") for pair in split_of(directory / "mine")[name]]
    assert run_command("init", *write(PAIRS), *CODES, "--output", "again", "--seed", "3", "--parent", *write(
        [("first", f"{held_out[0][1].upper()}!"), *OTHERS[:97], *(("other", target) for _, target in held_out)],
        ("big.zz", "big.yy")), *ZZ).code == 0
    assert Path("again/parent.zz").read_text().splitlines() == [source for source, _ in OTHERS[:97]]
    assert Path("again/parent.yy").read_text().splitlines() == [target for _, target in OTHERS[:97]]


def test_the_settings_of_the_parent_follow_from_both_texts_after_cleaning(directory):  # noqa: F811
    assert init(others=[*OTHERS[:597], *OTHERS[:597] * 7]).code == 0
    parent, child = plan("mine")
    assert parent.recipe.data.cleaning.remove_duplicates and not child.recipe.data.cleaning.remove_duplicates
    pairs, weight = len(split_of(directory / "mine")["train"]), parent.recipe.data.train[0].weight
    assert abs(weight * pairs / (weight * pairs + 597) - 0.25) < 0.1
    assert f"tiny suits {pairs + 597} pairs after cleaning" in Path("mine/1_parent.yaml").read_text()


def test_a_test_set_with_the_name_of_another_text_gets_another_name(directory):  # noqa: F811
    sets = [*write(PAIRS[:11], ("parent.xx", "parent.yy")), *write(PAIRS[11:18], ("news.xx", "news.yy"))]
    assert init("--test", *sets).code == 0
    assert len(Path("mine/parent.zz").read_text().splitlines()) == 997
    assert {name: len(Path(f"mine/{name}.yy").read_text().splitlines()) for name in plan("mine")[0].recipe.data.test
            } == {"parent_2": 11, "news": 7}


def test_a_memory_is_read_in_the_direction_of_the_own_pairs(directory):  # noqa: F811
    units = "".join(f"<tu><tuv xml:lang='yy'><seg>{target}</seg></tuv><tuv xml:lang='zz'><seg>{source}</seg></tuv></tu>"
                    for source, target in OTHERS[:97])
    Path("big.tmx").write_text(f"<tmx version='1.4'><header srclang='yy'/><body>{units}</body></tmx>")
    assert run_command("init", *write(PAIRS), *CODES, "--output", "mine", "--parent", "big.tmx").code == 0
    assert Path("mine/parent.yy").read_text().splitlines() == [target for _, target in OTHERS[:97]]


def test_all_files_up_to_the_next_option_belong_to_the_parent_and_have_the_own_form_of_a_code(directory):  # noqa: F811
    files = [*write(OTHERS[:97], ("a.zz", "a.yy")), *write(OTHERS[97:120], ("b.zz", "b.yy"))]
    found = run_command("init", "--parent", *files, *write(PAIRS), *ZZ, *CODES, "--output", "mine")
    assert found.code == 2 and "the files must be given" in found.err
    assert run_command("init", *write(PAIRS), "--parent", *files, *ZZ, "--parent-target", "YY", *CODES, "--output",
                       "mine").code == 0
    assert len(Path("mine/parent.yy").read_text().splitlines()) == 120


def test_columns_of_a_table_are_found_by_the_languages_of_the_parent(directory):  # noqa: F811
    for names, options in ((("zz", "yy"), ()), (("a", "b"), ("--source-column", "a", "--target-column", "b"))):
        Path("big.jsonl").write_text("".join(json.dumps({"id": "7", names[1]: target, names[0]: source}) + "\n"
                                             for source, target in OTHERS[:97]))
        assert run_command("init", *write(PAIRS), *CODES, "--output", "_".join(names), "--parent", "big.jsonl", *ZZ,
                           *options).code == 0
        assert Path("_".join(names), "parent.yy").read_text().splitlines() == [target for _, target in OTHERS[:97]]


def test_what_does_not_fit_is_refused_before_anything_is_written(directory):  # noqa: F811
    write(OTHERS[:97], ("mono.yy", "others"))
    for found, reason in (
            (init("--monolingual", "mono.yy"), "--monolingual and --parent"),
            (init("--minutes", "3"), "--minutes plans a single training, and --parent several"),
            (init(codes=("--parent-source", "xx")), "those of your own pairs, xx and yy"),
            (init(codes=("--parent-source", "yy")), "the same language, yy"),
            (init(codes=()), "the languages of --parent must be given"),
            (init(codes=("--parent-source", "z z")), "--parent-source"),
            (init(others=[]), "big.zz is empty"),
            (init(others=[pair[::-1] for pair in OTHERS]), "the other side, not the target, looks"),
            (init(others=[(other, own) for (other, _), (own, _) in zip(OTHERS, itertools.cycle(PAIRS))],
                  codes=("--parent-target", "zz")), "the other side, not the source, looks"),
            (init(others=[pair[::-1] for pair in PAIRS[:97]], codes=("--parent-source", "yy", "--parent-target", "xx")),
             "those of your own pairs"),
            (init(others=[pair[::-1] for pair in OTHERS], codes=("--parent-source", "yy", "--parent-target", "zz")),
             "the source is in yy, the language of the other side"),
            (init("--valid"), "--valid has no file"),
            (init(others=PAIRS, names=("train.xx", "train.yy")), "are the same file"),
            (run_command("init", *write(PAIRS), *CODES, "--output", "mine", *ZZ), "no effect")):
        assert found.code == 2 and reason in found.err, reason
        assert not Path("mine").exists()


@pytest.mark.slow
@pytest.mark.parametrize("codes", [ZZ, ("--parent-target", "zz")], ids=["same target", "same source"])
def test_both_recipes_are_checked_and_trained_by_one_command_each(directory, codes):  # noqa: F811
    others = OTHERS[:97] if codes is ZZ else [pair[::-1] for pair in OTHERS[:97]]
    assert init(others=others, codes=codes).code == 0
    checked = run_command("check", "mine", *SHORT, "--format", "json")
    assert checked.code == 0 and [cost["name"] for cost in json.loads(checked.out)] == ["1_parent", "2_final"]
    trained = run_command("train", "mine", *SHORT)
    assert trained.code == 0
    assert "compare them with: seq2seq compare mine/runs/1_parent mine/runs/2_final" in trained.err
    again = run_command("train", "mine", *SHORT)
    assert again.code == 0 and again.err.count("has finished: 2 steps") == 2 and "loss: " not in again.err
    assert run_command("translate", "mine/runs/2_final", "mine/test.xx", "--document", "lines", "--output",
                       "out").code == 0
    assert len(Path("out").read_text().splitlines()) == len(split_of(directory / "mine")["test"])
