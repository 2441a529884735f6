"""`seq2seq init --other`: a recipe whose model learns pairs of other languages, too."""

import itertools
import json
from pathlib import Path

import pytest
from command_files import run_command

from seq2seq.check import check_recipe
from seq2seq.check.recipe_text import MIN_STEPS
from seq2seq.recipe import Languages, load_recipe
from tests.check.test_monolingual_text import SHORT
from tests.check.test_new_recipe import CODES, PAIRS, directory, split_of, write  # noqa: F401

OTHERS = [(f"{first[::-1]} {second[::-1]}", f"{target} {other}") for (first, target), (second, other)
          in itertools.islice(itertools.product(PAIRS, PAIRS), 997)]
"""Pairs of the languages zz and yy."""
ZZ = ("--other-source", "zz")


def init(*arguments: object, others=OTHERS, names=("big.zz", "big.yy"), codes=ZZ):
    return run_command("init", *write(PAIRS), *CODES, "--output", "mine", "--seed", "3", "--other",
                       *write(others, names), *codes, *arguments)


def test_the_model_learns_all_pairs_with_the_settings_for_their_number(directory):  # noqa: F811
    written = init()
    assert written.code == 0 and b"997 of 997 pairs from zz to yy" in written.out
    recipe = load_recipe("mine/recipe.yaml")
    own, other = recipe.data.train
    assert recipe.languages == own.languages == Languages(source="xx", target="yy")
    assert other.languages == Languages(source="zz", target="yy")
    pairs = len(split_of(directory / "mine")["train"])
    assert abs(own.weight * pairs / (own.weight * pairs + 997) - 0.25) < 0.1, "a quarter of an epoch are own pairs"
    assert len(recipe.data.valid) == len(recipe.data.test) == 1 and recipe.training.max_steps >= MIN_STEPS
    assert recipe.training.consistency == 5, "as measured in recipes/little_text"
    assert not check_recipe(recipe, Path("run")).errors


def test_many_pairs_of_other_languages_do_not_repeat_the_own_pairs_without_limit(directory):  # noqa: F811
    assert init(others=[(f"{source} {number}", f"{target} {number}") for number in range(97)
                        for source, target in OTHERS[:97]]).code == 0
    assert load_recipe("mine/recipe.yaml").data.train[0].weight == 10


def test_no_sentence_of_a_held_out_set_is_in_the_pairs_of_other_languages(directory):  # noqa: F811
    assert init().code == 0
    held_out = [pair for name in ("valid", "test") for pair in split_of(directory / "mine")[name]]
    assert run_command("init", *write(PAIRS), *CODES, "--output", "again", "--seed", "3", "--other", *write(
        [("first", f"{held_out[0][1].upper()}!"), *OTHERS[:97], *(("other", target) for _, target in held_out)],
        ("big.zz", "big.yy")), *ZZ).code == 0
    assert Path("again/other.zz").read_text().splitlines() == [source for source, _ in OTHERS[:97]]
    assert Path("again/other.yy").read_text().splitlines() == [target for _, target in OTHERS[:97]]


def test_the_settings_follow_from_both_texts_after_cleaning(directory):  # noqa: F811
    assert init(others=[*OTHERS[:597], *OTHERS[:597] * 7]).code == 0
    recipe = load_recipe("mine/recipe.yaml")
    assert recipe.data.cleaning.remove_duplicates
    pairs, weight = len(split_of(directory / "mine")["train"]), recipe.data.train[0].weight
    assert abs(weight * pairs / (weight * pairs + 597) - 0.25) < 0.1
    assert f"tiny suits {pairs + 597} pairs after cleaning" in Path("mine/recipe.yaml").read_text()


def test_a_test_set_with_the_name_of_another_text_gets_another_name(directory):  # noqa: F811
    sets = [*write(PAIRS[:11], ("other.xx", "other.yy")), *write(PAIRS[11:18], ("news.xx", "news.yy"))]
    assert init("--test", *sets).code == 0
    assert len(Path("mine/other.zz").read_text().splitlines()) == 997
    names = load_recipe("mine/recipe.yaml").data.test
    assert {name: len(Path(f"mine/{name}.yy").read_text().splitlines()) for name in names} == {"other_2": 11, "news": 7}


def test_a_memory_is_read_in_the_direction_of_the_own_pairs(directory):  # noqa: F811
    units = "".join(f"<tu><tuv xml:lang='yy'><seg>{target}</seg></tuv><tuv xml:lang='zz'><seg>{source}</seg></tuv></tu>"
                    for source, target in OTHERS[:97])
    Path("big.tmx").write_text(f"<tmx version='1.4'><header srclang='yy'/><body>{units}</body></tmx>")
    assert run_command("init", *write(PAIRS), *CODES, "--output", "mine", "--other", "big.tmx").code == 0
    assert Path("mine/other.yy").read_text().splitlines() == [target for _, target in OTHERS[:97]]


def test_all_files_up_to_the_next_option_belong_together_and_have_the_own_form_of_a_code(directory):  # noqa: F811
    files = [*write(OTHERS[:97], ("a.zz", "a.yy")), *write(OTHERS[97:120], ("b.zz", "b.yy"))]
    found = run_command("init", "--other", *files, *write(PAIRS), *ZZ, *CODES, "--output", "mine")
    assert found.code == 2 and "the files must be given" in found.err
    assert run_command("init", *write(PAIRS), "--other", *files, *ZZ, "--other-target", "YY", *CODES, "--output",
                       "mine").code == 0
    assert len(Path("mine/other.yy").read_text().splitlines()) == 120


def test_columns_of_a_table_are_found_by_the_other_languages(directory):  # noqa: F811
    for names, options in ((("zz", "yy"), ()), (("a", "b"), ("--source-column", "a", "--target-column", "b"))):
        Path("big.jsonl").write_text("".join(json.dumps({"id": "7", names[1]: target, names[0]: source}) + "\n"
                                             for source, target in OTHERS[:97]))
        assert run_command("init", *write(PAIRS), *CODES, "--output", "_".join(names), "--other", "big.jsonl", *ZZ,
                           *options).code == 0
        assert Path("_".join(names), "other.yy").read_text().splitlines() == [target for _, target in OTHERS[:97]]


def test_what_does_not_fit_is_refused_before_anything_is_written(directory):  # noqa: F811
    write(OTHERS[:97], ("mono.yy", "others"))
    for found, reason in (
            (init("--monolingual", "mono.yy"), "--monolingual and --other"),
            (init("--minutes", "3"), "--minutes does not plan a training with --other"),
            (init(codes=("--other-source", "xx")), "those of your own pairs, xx and yy"),
            (init(codes=("--other-source", "yy")), "the same language, yy"),
            (init(codes=()), "the languages of --other must be given"),
            (init(codes=("--other-source", "z z")), "--other-source"),
            (init(others=[]), "big.zz is empty"),
            (init(others=[pair[::-1] for pair in OTHERS]), "the target does not look like the target of"),
            (init(others=[(other, own) for (other, _), (own, _) in zip(OTHERS, itertools.cycle(PAIRS))],
                  codes=("--other-target", "zz")), "the source does not look like"),
            (init(others=[pair[::-1] for pair in OTHERS], codes=("--other-target", "zz")),
             "the source does not look like"),
            (init(others=[pair[::-1] for pair in PAIRS[:97]], codes=("--other-source", "yy", "--other-target", "xx")),
             "those of your own pairs"),
            (init(others=[pair[::-1] for pair in OTHERS], codes=("--other-source", "yy", "--other-target", "zz")),
             "the source is in yy, the language of the other side"),
            (init("--valid"), "--valid has no file"),
            (init(others=PAIRS, names=("train.xx", "train.yy")), "are the same file"),
            (run_command("init", *write(PAIRS), *CODES, "--output", "mine", *ZZ), "no effect")):
        assert found.code == 2 and reason in found.err, reason
        assert not Path("mine").exists()


@pytest.mark.slow
@pytest.mark.parametrize("codes", [ZZ, ("--other-target", "zz")], ids=["same target", "same source"])
def test_the_model_is_checked_and_trained_and_translates_into_the_own_language(directory, codes):  # noqa: F811
    others = [(source, f"Z{target.upper()}") for source, target in OTHERS[:97]]
    if codes is not ZZ:
        others = [(f"Z{own.upper()}", other) for (other, _), (own, _)
                  in zip(others, itertools.cycle(PAIRS), strict=False)]
    assert init(others=others, codes=codes).code == 0
    recipe = "mine/recipe.yaml"
    checked = run_command("check", recipe, *SHORT, "--format", "json")
    assert checked.code == 0 and len(json.loads(checked.out)["corpora"]) == 4
    assert run_command("train", recipe, *SHORT).code == 0
    again = run_command("train", recipe, *SHORT)
    assert again.code == 0 and again.err.count("has finished: 2 steps") == 1 and "loss: " not in again.err
    assert run_command("translate", "runs/mine", "mine/test.xx", "--document", "lines", "--output", "out").code == 0
    assert len(Path("out").read_text().splitlines()) == len(split_of(directory / "mine")["test"])
