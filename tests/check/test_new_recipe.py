"""`seq2seq init`: the recipe that it writes, the split without leaks, and input that it refuses."""

import json
import os
import random
import re
import sys
import unicodedata
from pathlib import Path

import pytest

from seq2seq import devices
from seq2seq.check import check_recipe
from seq2seq.check.given_text import corpora_of, identify_languages, is_doubtful
from seq2seq.check.new_recipe import (
    BATCH_TOKENS,
    MIN_BATCH_TOKENS,
    MIN_STEPS,
    _language_line,
    write_recipe,
)
from seq2seq.check.results import CorpusReport, Finding, PairReport
from seq2seq.check.split_text import choose_held_out
from seq2seq.cli import main
from seq2seq.data.language_identification import is_installed
from seq2seq.recipe import load_recipe
from seq2seq.training import run
from tests.check.test_pair_checks import corpus

LANGUAGES = ("xx", "yy")
PAIRS = corpus(211)


@pytest.fixture
def directory(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("seq2seq.check.pair_checks.is_installed", lambda: False)    # unknown languages
    monkeypatch.setitem(sys.modules, "lingua", None)                            # its models take seconds to load
    return tmp_path


def write(pairs, names=("train.xx", "train.yy")) -> list[Path]:
    for side, name in enumerate(names):
        Path(name).write_text("".join(f"{pair[side]}\n" for pair in pairs), encoding="utf-8")
    return list(map(Path, names))


def split_of(output: Path) -> dict[str, list[tuple[str, str]]]:
    return {name: list(zip(*((output / f"{name}.{code}").read_text(encoding="utf-8").splitlines()
                             for code in LANGUAGES), strict=True)) for name in ("train", "valid", "test")}


CODES = ("--source-language", "xx", "--target-language", "yy")


def init(*arguments: object) -> int:
    return main(["init", *map(str, arguments), *CODES, "--output", "mine"])


def test_the_recipe_is_checked_without_errors_and_has_all_pairs(directory, capsys):
    assert init(*write(PAIRS)) == 0
    assert "seq2seq train mine/recipe.yaml" in capsys.readouterr().out
    recipe = load_recipe(Path("mine/recipe.yaml"))
    assert not check_recipe(recipe, Path("run")).errors
    split = split_of(directory / "mine")
    assert sorted(pair for pairs in split.values() for pair in pairs) == sorted(PAIRS)
    assert len(split["valid"]) == len(split["test"]) == len(PAIRS) // 20
    assert recipe.training.max_steps == MIN_STEPS
    assert MIN_BATCH_TOKENS <= recipe.training.batch_tokens < BATCH_TOKENS["tiny"]


def test_the_number_of_pairs_that_decides_the_size_is_that_after_cleaning(directory):
    assert init(*write([*PAIRS, *PAIRS[:100]])) == 0
    recipe = Path("mine/recipe.yaml").read_text()
    pairs = len(split_of(directory / "mine")["train"])
    assert "remove_duplicates: true" in recipe and f"train.yy}}]  # {pairs} pairs\n" in recipe
    assert f"tiny suits {len(set(split_of(directory / 'mine')['train']))} pairs after cleaning; " in recipe


def test_lines_are_not_dropped_because_they_contradict_a_language_that_was_only_identified():
    report = CorpusReport("train", "a", judgement=PairReport(
        pairs=200, recognised=100, wrong_language={"source": Finding(30, [7])}))
    line, doubt = _language_line(report, (), ("cy", "en"))
    assert "language: lingua" in line and not doubt
    line, (doubt,) = _language_line(report, ("source",), ("cy", "en"))
    assert not line and "identified as Welsh" in doubt and "--source-language" in doubt
    assert "language: lingua" in _language_line(report, ("target",), ("cy", "en"))[0]


@pytest.mark.slow
def test_the_training_command_names_a_run_directory_if_the_default_one_is_that_of_the_recipe(directory, capsys,
                                                                                             quick_tensorboard):
    files = map(str, write(PAIRS))
    assert main(["init", *files, *CODES, "--output", "runs/mine"]) == 0
    command = capsys.readouterr().out.splitlines()[-1].split()
    assert command == ["seq2seq", "train", "runs/mine/recipe.yaml", "--run-dir", "runs/mine/run"]
    settings = ["--set", "training.max_steps=1", "--set", "training.precision=fp32"]
    assert main([*command[1:], *settings]) == 0 and Path("runs/mine/run/best").is_file()


def test_no_held_out_sentence_is_in_the_training_text_whatever_its_case_and_white_space(directory):
    rng = random.Random(1)
    repeated = [(source.upper(), f" {target}") for source, target in rng.sample(PAIRS, 73)]
    crossed = [(source, target) for (source, _), (_, target) in zip(PAIRS[:31], PAIRS[97:], strict=False)]
    pairs = PAIRS + repeated + crossed
    rng.shuffle(pairs)
    new = write_recipe(corpora_of(write(pairs)), LANGUAGES, directory / "mine")
    split = split_of(directory / "mine")
    assert split["valid"] and split["test"] and new.copies
    for side in range(2):
        sentences = {name: [" ".join(pair[side].split()).casefold() for pair in pairs] for name, pairs in split.items()}
        for name in ("valid", "test"):
            others = {sentence for other in split if other != name for sentence in sentences[other]}
            assert not others.intersection(sentences[name])


def test_the_same_seed_gives_the_same_files_and_another_seed_another_split(directory):
    files = write(PAIRS)
    for name, seed in (("first", 1), ("again", 1), ("other", 2)):
        write_recipe(corpora_of(files), LANGUAGES, directory / name, seed)
    assert split_of(directory / "first") == split_of(directory / "again") != split_of(directory / "other")


def test_copies_in_another_unicode_normalisation_are_not_in_the_training_text(directory):
    composed = [(f"é{source}", target) for source, target in PAIRS]
    decomposed = [(unicodedata.normalize("NFD", source), f"{target}!") for source, target in composed[:90]]
    write_recipe(corpora_of(write(composed + decomposed)), LANGUAGES, directory / "mine")
    split = split_of(directory / "mine")
    sources = {name: {unicodedata.normalize("NFC", source) for source, _ in pairs} for name, pairs in split.items()}
    assert not sources["train"] & (sources["valid"] | sources["test"])


def test_a_file_name_that_is_not_utf8_is_written_with_escapes(directory):
    source, target = write(PAIRS, (os.fsdecode(b"a-\xe4.xx"), "a.yy"))
    write_recipe(corpora_of([source, target]), LANGUAGES, directory / "mine")
    assert r"a-\\udce4.xx" in (directory / "mine" / "recipe.yaml").read_text(encoding="utf-8")


@pytest.mark.parametrize("name, columns", [
    ("pairs.tsv", ()), ("pairs.jsonl", ("left", "right")),
    pytest.param("pairs.tsv", ("1", "2"), marks=pytest.mark.slow)])
def test_one_file_with_both_sides_gives_the_same_split_as_two_files(directory, name, columns):
    rows = (json.dumps({"left": source, "right": target}) if name.endswith("jsonl") else f"{source}\t{target}"
            for source, target in PAIRS)
    Path(name).write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")
    write_recipe(corpora_of([Path(name)], columns or (None, None)), LANGUAGES, directory / "table")
    write_recipe(corpora_of(write(PAIRS)), LANGUAGES, directory / "files")
    assert split_of(directory / "table") == split_of(directory / "files")


UTF16 = "\n".join(target for _, target in PAIRS).encode("utf-16")


@pytest.mark.parametrize("sources, targets", [
    (PAIRS, PAIRS[:-1]), (PAIRS, []), (PAIRS[:1], PAIRS[:1]), ([(f"{one}\0", "") for one, _ in PAIRS], PAIRS),
    (PAIRS, [("", source) for source, _ in PAIRS]), (PAIRS, UTF16)],
    ids=["misaligned", "empty", "one pair", "damaged", "not translated", "UTF-16"])
def test_files_that_make_no_corpus_are_refused_and_nothing_is_written(directory, sources, targets):
    write(sources, ("train.xx", "unused"))
    if isinstance(targets, bytes):
        Path("train.yy").write_bytes(targets)
    else:
        write(targets, ("unused", "train.yy"))
    assert init("train.xx", "train.yy") == 2
    assert sorted(path.name for path in directory.iterdir()) == ["train.xx", "train.yy", "unused"]


def test_an_existing_directory_is_not_overwritten(directory):
    (directory / "mine").mkdir()
    (directory / "mine" / "notes").write_text("mine")
    assert init(*write(PAIRS)) == 2
    assert [path.name for path in (directory / "mine").iterdir()] == ["notes"]


def test_without_a_terminal_what_is_missing_is_named(directory, capsys):
    write(PAIRS)
    for arguments, told in (((), "the files must be given"),
                            (("train.xx", "train.yy"), "the language of the source and of the target"),
                            (("train.xx", "train.yy", *CODES),
                             "the new directory must be given")):
        assert main(["init", *arguments]) == 2
        assert told in capsys.readouterr().err


@pytest.mark.skipif(not is_installed(), reason="needs the extra `language`")
@pytest.mark.parametrize(("given", "identified", "other", "doubtful"), [
    ("ne", "hi", "en", False), ("ne", "en", "en-GB", True), ("de", "en", "fr", True), ("deu", "de", "en", False),
    ("no", "nb", "en", False), ("no", "sv", "en", True), ("pt-BR", "pt", "en", False)])
def test_text_of_a_language_unknown_to_lingua_is_doubtful_only_if_the_sides_look_swapped(given, identified, other,
                                                                                         doubtful):
    assert is_doubtful(given, identified, other) == doubtful


@pytest.mark.skipif(not is_installed(), reason="needs the extra `language`")
@pytest.mark.parametrize("form", [pytest.param("NFC", marks=pytest.mark.slow), "NFD"])
def test_languages_are_identified_in_every_normal_form_of_unicode(tmp_path, monkeypatch, form):
    monkeypatch.chdir(tmp_path)
    text = unicodedata.normalize(form, "bác sĩ mua một con ngựa và bán một cái xe hơi cho cô giáo\n" * 9)
    Path("train.xx").write_text(text, encoding="utf-8")
    Path("train.yy").write_text("the doctor buys a horse and sells a car to the teacher\n" * 9, encoding="utf-8")
    assert identify_languages(corpora_of([Path("train.xx"), Path("train.yy")])) == ("vi", "en")


def test_text_that_cannot_be_read_is_reported_without_languages_too(directory, capsys):
    Path("train.xx").write_bytes(b"a\n\xf6\n" * 99)
    Path("train.yy").write_bytes(b"a\nb\n" * 99)
    assert main(["init", "train.xx", "train.yy", "--output", "mine"]) == 2
    assert "train.xx:2: byte 0xf6" in capsys.readouterr().err


@pytest.mark.parametrize("name", [
    "2024", *(pytest.param(name, marks=pytest.mark.slow) for name in ("1.0", "null", "true"))])
def test_a_directory_may_have_a_name_that_yaml_reads_as_another_type(directory, name):
    write(PAIRS)
    assert main(["init", "train.xx", "train.yy", *CODES, "--output", name]) == 0
    assert load_recipe(Path(name) / "recipe.yaml").name == name


def test_the_missing_package_of_bleu_is_named_in_the_recipe(directory, monkeypatch):
    monkeypatch.setattr("sacrebleu.tokenizers.tokenizer_ja_mecab.MeCab", None)
    write_recipe(corpora_of(write(PAIRS)), ("xx", "ja"), directory / "mine")
    text = (directory / "mine" / "recipe.yaml").read_text(encoding="utf-8")
    assert "\nmetrics: [chrf]\n" in text


def catalogue(pairs) -> str:
    return 'msgid ""\nmsgstr "Language: yy\\n"\n\n' + "\n".join(
        f'msgid "{source}"\nmsgstr "{target}"\n' for source, target in pairs)


def test_files_of_several_formats_are_one_training_text(directory, capsys):
    Path("ui.po").write_text(catalogue(PAIRS[:50]) + '\n#, fuzzy\nmsgid "open"\nmsgstr "close"\n')
    Path("pairs.jsonl").write_text("".join(json.dumps({"xx": source, "note": "n", "yy": target}) + "\n"
                                           for source, target in PAIRS[50:100]))
    Path("pairs.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in PAIRS[100:150]))
    assert init("ui.po", *write(PAIRS[150:]), "pairs.jsonl", "pairs.tsv") == 0
    printed = capsys.readouterr().out
    assert "1 messages without a finished translation" in printed and "211 pairs of ui.po and 3 others" in printed
    assert sorted(pair for pairs in split_of(directory / "mine").values() for pair in pairs) == sorted(PAIRS)


def test_own_sets_are_kept_and_their_sentences_leave_the_training_text(directory, capsys):
    write(PAIRS)
    write(PAIRS[:7] + [("new", "neu")], ("dev.xx", "dev.yy"))
    Path("news.tsv").write_text("".join(f"{source.upper()}\t{target}!\n" for source, target in PAIRS[7:18]))
    Path("talks.po").write_text(catalogue([(f"{source}?", target) for source, target in PAIRS[18:23]]))
    assert init("train.xx", "train.yy", "--valid", "dev.xx", "dev.yy", "--test", "news.tsv", "--test", "talks.po") == 0
    assert "left out of train: 23 pairs" in capsys.readouterr().out
    data = load_recipe(Path("mine/recipe.yaml")).data
    assert list(data.test) == ["news", "talks"]
    read = {name: Path(f"mine/{name}.xx").read_text().splitlines() for name in ("train", "valid", "news", "talks")}
    assert read["train"] == [source for source, _ in PAIRS[23:]]
    assert read["valid"] == [*(source for source, _ in PAIRS[:7]), "new"]
    assert (len(read["news"]), len(read["talks"])) == (11, 5)


@pytest.mark.parametrize("option", ["--valid", "--test"])
def test_the_set_that_is_not_given_is_split_off(directory, option):
    write(PAIRS)
    write(PAIRS[:11], ("own.xx", "own.yy"))
    assert init("train.xx", "train.yy", option, "own.xx", "own.yy") == 0
    sizes = {name: len(pairs) for name, pairs in split_of(directory / "mine").items()}
    split = "test" if option == "--valid" else "valid"
    assert sizes == {option[2:]: 11, split: 10, "train": 190}


@pytest.mark.parametrize(("arguments", "told"), [
    (("a.xx", "a.yy", "a.xx"), "a.xx and a.xx are the same file"), (("a.xx",), "a.xx has one side"),
    (("a.xx", "a.tsv", "a.yy"), "a.xx has one side"),
    (("a.xx", "a.yy", "--valid", "a.tsv", "a.tsv"), "a.tsv and a.tsv"),
    (("a.xx", "a.yy", "--valid", "a.tsv", "--test", "a.tsv"), "a.tsv and a.tsv"),
    (("a.xx", "a.yy", "--test", "a.xx", "a.yy"), "a.xx and a.xx"), (("a.xx", "none"), "none does not exist"),
    (("a.xx", "short"), "short: 3 lines"), (("a.xx", "empty"), "empty is empty"),
    (("a.xx", "a.yy", "--valid", "copy.tsv", "--test", "dev.tsv"), "a.xx: every one of 211 pairs"),
    (("a.xx", "a.yy", "--valid", "blank.tsv"), "--valid blank.tsv has no pair"),
    (("a.jsonl",), "a.jsonl: its columns are a, b, c"), (("de.po",), "de.po: its messages are not in")])
def test_files_that_cannot_be_meant_are_refused_with_their_name(directory, capsys, arguments, told):
    write(PAIRS, ("a.xx", "a.yy"))
    Path("short").write_text("1\n2\n3\n")
    Path("empty").write_text("")
    Path("a.tsv").write_text("one\tother\n")
    Path("dev.tsv").write_text("one\tother\n")
    Path("blank.tsv").write_text("one\t\n")
    Path("copy.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in PAIRS))
    Path("a.jsonl").write_text('{"a": "1", "b": "2", "c": "3"}\n')
    Path("de.po").write_text(catalogue(PAIRS).replace("Language: yy", "Language: de"))
    assert init(*arguments) == 2
    assert told in capsys.readouterr().err and not Path("mine").exists()


def test_a_catalogue_names_its_languages(directory, capsys):
    Path("ui.po").write_text(catalogue(PAIRS).replace("yy", "pt_BR"))
    assert main(["init", "ui.po", "--output", "mine"]) == 0
    assert load_recipe(Path("mine/recipe.yaml")).languages.pair == ("en", "pt-BR")


def test_text_decides_cleaning_and_augmentation(directory, capsys):
    pairs = [(f"{source} %s", f"{target} %s") if number % 20 == 0 else (source, target)
             for number, (source, target) in enumerate(corpus(1201))]
    pairs = [pair[::-1] if number % 50 == 7 else pair for number, pair in enumerate(pairs)]
    pairs = [(f"{source} 3", f"{target} 4") if number % 11 == 0 else (source, target)
             for number, (source, target) in enumerate(pairs)]
    assert init(*write(pairs)) == 0
    data = load_recipe(Path("mine/recipe.yaml")).data
    assert data.cleaning.min_number_agreement == 0.7 and data.cleaning.language == "sides"
    assert data.augmentation.placeholders == 0.05 and not data.augmentation.tags
    assert not data.cleaning.remove_duplicates
    assert not any("Check" in line and "train" in line for line in capsys.readouterr().err.splitlines())


def test_sets_that_are_too_small_to_mean_anything_are_reported_with_a_size_that_is_not(directory, capsys):
    assert init(*write(PAIRS)) == 0
    assert "test: with 10 pairs, BLEU is known to about ±" in capsys.readouterr().err
    words = sum(len(target.split()) for _, target in PAIRS) / len(PAIRS)
    needed = int(re.findall(r"Some ([\d,]+) pairs", init_warnings(directory))[-1].replace(",", ""))
    assert 165 / (needed * words) ** 0.5 == pytest.approx(2, rel=0.2)


def init_warnings(directory) -> str:
    return "\n".join(write_recipe(corpora_of(write(PAIRS)), LANGUAGES, directory / "again").warnings)


@pytest.mark.skipif(not is_installed(), reason="needs the extra `language`")
@pytest.mark.parametrize(("given", "found", "answer", "expected"), [
    (("en", "de"), ("de", "en"), True, ("de", "en")), (("en", "de"), ("de", "en"), False, ("en", "de")),
    (("se", "en"), ("sv", "en"), True, ("sv", "en")), (("se", "en"), ("sv", "en"), False, ("se", "en")),
    (("fr", "en"), ("de", "en"), True, ("de", "en"))])
def test_languages_that_do_not_look_like_the_text_are_changed_if_the_user_says_so(tmp_path, monkeypatch, given, found,
                                                                                  answer, expected):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("seq2seq.check.given_text.identify_languages", lambda corpora: found)
    monkeypatch.setattr("seq2seq.check.pair_checks.is_installed", lambda: False)
    monkeypatch.setattr("sys.stdin", type("Terminal", (), {"isatty": lambda self: True})())
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.setattr("typer.confirm", lambda *arguments, **options: answer)
    write(PAIRS)
    assert main(["init", "train.xx", "train.yy", "--source-language", given[0], "--target-language",
                 given[1], "--output", "mine"]) == 0
    assert load_recipe(Path("mine/recipe.yaml")).languages.pair == expected


@pytest.mark.skipif(not is_installed(), reason="needs the extra `language`")
def test_without_a_terminal_the_command_that_exchanges_the_languages_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("seq2seq.check.given_text.identify_languages", lambda corpora: ("de", "en"))
    monkeypatch.setattr("seq2seq.check.pair_checks.is_installed", lambda: False)
    write(PAIRS)
    assert main(["init", "train.xx", "train.yy", "--source-language", "en", "--target-language", "de", "--output",
                 "mine"]) == 0
    assert "give --source-language de --target-language en" in capsys.readouterr().err


@pytest.mark.skipif(not is_installed(), reason="needs the extra `language`")
@pytest.mark.parametrize("options", [["train.xx", "train.yy", "more.xx", "more.yy", "{}.xx", "{}.yy"],
                                     ["train.xx", "train.yy", "--other-target", "de", "--other", "more.xx", "more.yy",
                                      "{}.xx", "{}.yy"]])
def test_files_in_another_language_than_the_rest_are_named(tmp_path, monkeypatch, capsys, options):
    monkeypatch.chdir(tmp_path)
    languages = {"train.xx": ("en", "fr"), "more.xx": ("en", "de" if "--other" in options else "fr"),
                 "zh.xx": ("en", "zh"), "same.xx": ("en", "de" if "--other" in options else "fr")}
    monkeypatch.setattr("seq2seq.check.given_text.identify_languages", lambda corpora: languages[corpora[0].label])
    monkeypatch.setattr("seq2seq.check.pair_checks.is_installed", lambda: False)
    write(PAIRS)
    for name, pairs in (("more", PAIRS[:60]), ("zh", PAIRS[60:]), ("same", PAIRS[60:])):
        for side, code in enumerate(("xx", "yy")):
            Path(f"{name}.{code}").write_text("".join(f"{pair[side]}\n" for pair in pairs))
    for stray, expected in (("zh", ["zh.xx: the target looks like Chinese"]), ("same", [])):
        arguments = [option.format(stray) for option in options]
        assert main(["init", *arguments, "--source-language", "en", "--target-language", "fr", "-o", stray]) == 0
        assert re.findall(r"\S+: the target looks like \w+", capsys.readouterr().err) == expected


@pytest.mark.parametrize(("code", "told"), [("cz", "The code of Czech is cs."), ("jp", "The code of Japanese is ja."),
                                            ("german", "The code of German is de.")])
def test_a_country_is_no_language(directory, capsys, code, told):
    write(PAIRS)
    assert main(["init", "train.xx", "train.yy", "--source-language", code, "--target-language", "yy", "--output",
                 "mine"]) == 2
    assert told in capsys.readouterr().err


@pytest.mark.slow
def test_the_recipe_is_checked_and_trained(directory, capsys, quick_tensorboard):
    assert init(*write(PAIRS), "--valid", *write(PAIRS[:5], ("dev.xx", "dev.yy"))) == 0
    assert main(["check", "mine/recipe.yaml", "--no-measure"]) == 0
    settings = ["--set", "training.max_steps=3", "--set", "training.precision=fp32"]
    assert main(["train", "mine/recipe.yaml", *settings]) == 0
    assert Path("runs/mine/best").is_file()


@pytest.mark.slow
def test_a_recipe_is_fitted_to_a_time(directory, capsys, monkeypatch):
    monkeypatch.setattr(run, "choose_dtype", devices.choose_dtype)              # that of conftest refuses auto
    assert init(*write(corpus(1201)), "--minutes", "1") == 0
    assert "of 1 minutes on this machine" in capsys.readouterr().out
    training = load_recipe(Path("mine/recipe.yaml")).training
    assert 3 <= training.max_steps <= MIN_STEPS and training.validate_every <= training.max_steps


def test_pairs_that_share_a_sentence_are_not_held_out():
    pairs = [(number, f"source {number // 2}", f"target {number}") for number in range(100)]
    assert not choose_held_out(pairs, 1, lambda source, target: True).valid
