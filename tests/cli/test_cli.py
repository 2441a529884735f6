"""The command line: one output line for each input line, only results on standard output, and exit codes."""

import errno
import gzip
import json
import os
import pty
import random
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import zstandard
from command_files import (
    ENGLISH,
    GERMAN,
    LANGUAGE_MODEL,
    RECIPE,
    Result,
    parsed,
    random_weights,
    run_command,
    save_model,
    save_run,
    write_recipe,
    write_tests,
)

from seq2seq.check import Report
from seq2seq.cli import main
from seq2seq.errors import CorpusError
from seq2seq.inference.load_model import as_tensors
from seq2seq.signals import Stopped
from seq2seq.storage.checkpoints import load_bundle
from seq2seq.translation.scoring import pair_scores
from seq2seq.translation.search_setup import SearchSetup
from seq2seq.translation.text_io import writing
from seq2seq.translation.translator import Translator


@pytest.fixture(scope="module")
def shared_model(tmp_path_factory) -> Path:
    return save_model(tmp_path_factory.mktemp("models") / "model")


@pytest.fixture
def model(shared_model, directory) -> Path:
    """Copy of the shared bundle in the working directory."""
    return shutil.copytree(shared_model, directory / "model")


@pytest.fixture
def directory(tmp_path, monkeypatch) -> Path:
    """Empty temporary directory, which is the working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run(directory) -> Callable[..., Result]:
    """Function that runs a command in this process."""
    return run_command


def complaints(result: Result) -> str:
    """Return standard error without the line that reports precision and device."""
    return re.sub(r"^translating in \w+(, \d workers| on cpu)(; --precision reference .*)?\n", "", result.err)


def test_control_characters_in_names_are_escaped(run, model):
    code, out, err = run("translate", model, "\x1b]0;title\x07\x9b31m, half\rhidden.de")
    assert (code, out) == (2, b"") and ".de cannot be read" in err
    assert not any(character < " " and character != "\n" or "\x7f" <= character < "\xa0" for character in err)


# translate


@pytest.mark.parametrize("text", [
    "",
    "a\n\n  \nein Hund\r\neine Katze\n\r\n\n\t ein Hund \u3000\n\ufeffein\nein\rHund\neine \x00 Katze\r\r\nein Hund\r",
    "\u2028\nein\u2028Hund\u0085\x0b\x0c\x1c\x1deine\u2029Katze\n\t\n\u3000\u2028\r\n\u0085\n\x1c\x1d\n  ",
    *(pytest.param(text, marks=pytest.mark.slow) for text in ("ein Hund\n\n\n", "\n", "\r\n", "a", "ein\n\u0085")),
], ids=repr)
def test_line_ends_and_white_space_are_those_of_the_input(run, model, text):
    result = run("translate", model, stdin=text.encode())
    assert (result.code, complaints(result)) == (0, "")
    translations = result.out.decode().split("\n")
    for line, translation in zip(text.split("\n"), translations, strict=True):
        assert bool(line.strip()) == bool(translation.strip())
        assert re.match(r"\s*", line)[0] == re.match(r"\s*", translation)[0]
        assert line[len(line.rstrip()):] == translation[len(translation.rstrip()):]


def test_random_bytes_yield_one_line_for_each_line(run, model):
    source = random.Random(3)
    data = bytes(source.choice([10, 10, 13, source.randrange(256), source.randrange(256)]) for _ in range(700))
    result = run("translate", model, "--beam-size", 1, stdin=data)
    assert result.code == 0
    assert re.findall(rb"\r?\n", result.out) == re.findall(rb"\r?\n", data)
    assert result.out.decode()                                                  # what comes out is UTF-8


def test_a_line_of_1000_words_is_one_line(run, model):
    data = b"Hund " * 999 + b"Katze\nein Hund\n"
    result = run("translate", model, "--beam-size", 1, "--format", "jsonl", stdin=data)
    first, second = map(json.loads, result.out.splitlines())
    assert first["parts"] > 20
    assert len(first["translation"]) > 20
    assert (second["line"], second["parts"]) == (2, 1)


def test_bytes_that_are_not_utf8_are_named_by_line_and_then_counted(run, model):
    lines = [b"ein \xff Hund", b"eine Katze", b"\xe4", b"\xed\xa0\x80", b"\xfe", b"\xfe"]
    result = run("translate", model, stdin=b"\n".join(lines))
    assert result.code == 0
    named = re.findall(r"standard input:(\d+): byte (\d+)", result.err)
    assert named == [("1", "5"), ("3", "1"), ("4", "1")]
    assert "2 more lines are not UTF-8" in result.err
    readable = "\n".join(line.decode(errors="replace") for line in lines).encode()
    assert result.out == run("translate", model, stdin=readable).out


def test_a_file_is_translated_as_standard_input_is(run, model, directory):
    (directory / "in.txt").write_bytes(b"ein Hund\r\n\neine Katze")
    printed = run("translate", model, "in.txt").out
    assert run("translate", model, stdin=b"ein Hund\r\n\neine Katze").out == printed
    result = run("translate", model, "in.txt", "--output", "out.txt")
    assert (result.code, result.out, complaints(result)) == (0, b"", "")
    assert (directory / "out.txt").read_bytes() == printed
    assert sorted(path.name for path in directory.iterdir()) == ["in.txt", "model", "out.txt"]


@pytest.mark.slow
def test_a_dash_is_standard_input_and_output(run, model, directory):
    printed = run("translate", model, stdin=b"ein Hund\n").out
    assert run("translate", model, "-", "--output", "-", stdin=b"ein Hund\n").out == printed
    assert not (directory / "-").exists() and not (directory / "-.part").exists()


def test_an_output_that_is_a_link_stays_one(run, model, directory):
    (directory / "text").write_bytes(b"ein Hund\n" * 100)
    (directory / "old").write_bytes(b"ein Hund\n")
    (directory / "link").symlink_to("old")
    assert run("translate", model, "text", "-o", "link").code == 0
    assert (directory / "link").is_symlink()
    assert (directory / "old").read_bytes().count(b"\n") == 100
    assert b"ein Hund" not in (directory / "old").read_bytes()


def test_a_translation_that_fails_leaves_the_old_output_and_says_where_the_new_is(run, model, directory, monkeypatch):
    translate = Translator.translate

    def failing(self, lines, **options):
        if len(lines) == 1:
            raise CorpusError("the disk is on fire")
        return translate(self, lines, **options)

    monkeypatch.setattr(Translator, "translate", failing)
    monkeypatch.setattr("seq2seq.cli.translate.BLOCK_LINES", 2)
    (directory / "out").write_text("old\n")
    result = run("translate", model, "-o", "out", "--no-safety-net", stdin=b"ein Hund\neine Katze\nein\n")
    assert result.code == 2
    assert (directory / "out").read_text() == "old\n"
    assert (directory / "out.part").read_bytes().count(b"\n") == 2
    assert "out is not complete; the finished part is in" in result.err
    assert "the disk is on fire" in result.err


def test_a_pipe_can_be_named_by_its_descriptor():
    read, write = os.pipe()
    with writing(Path(f"/dev/fd/{write}")) as output:
        output.write("a\n")
    os.close(write)
    with open(read) as file:
        assert file.read() == "a\n"


def test_jsonl_has_an_object_for_each_line(run, model):
    data = b"ein Hund\r\n\neine Katze"
    texts = run("translate", model, stdin=data).out.decode().split("\n")
    result = run("translate", model, "--format", "jsonl", stdin=data)
    records = [json.loads(line) for line in result.out.decode().split("\n")]
    assert [record["line"] for record in records] == [1, 2, 3]
    assert [record["source"] for record in records] == ["ein Hund", "", "eine Katze"]
    assert [record["translation"] for record in records] == [text.removesuffix("\r") for text in texts]
    assert [record["parts"] for record in records] == [1, 0, 1]
    assert records[0]["score"] == pytest.approx(records[0]["log_probability"] / records[0]["tokens"])
    assert set(records[0]) == {"line", "source", "translation", "score", "log_probability", "tokens", "parts"}


def test_n_best_gives_the_translations_best_first(run, model):
    result = run("translate", model, "--format", "jsonl", "--n-best", 3, "--beam-size", 5, stdin=b"ein Hund\n")
    record = json.loads(result.out)
    scores = [one["score"] for one in record["n_best"]]
    assert len(scores) == 3 and scores == sorted(scores, reverse=True)
    assert record["n_best"][0]["translation"] == record["translation"]


def test_lines_with_fewer_different_translations_than_requested_are_named(run, model, monkeypatch):
    monkeypatch.setattr(SearchSetup, "texts", lambda self, hypotheses: ["the same"] * len(hypotheses))
    result = run("translate", model, "--format", "jsonl", "--n-best", 3, "--beam-size", 5,
                 stdin=b"ein Hund\n\neine Katze\n")
    assert [len(json.loads(line)["n_best"]) for line in result.out.splitlines()] == [1, 1, 1]
    assert result.err.count("1 of 3") == 2                                      # nothing is missing of a blank line
    assert "1 of 3" not in run("translate", model, "--format", "jsonl", "--n-best", 3, "--sampling",
                               stdin=b"ein Hund\n").err


def test_search_options_reach_the_search(run, model):
    def found(*options: object) -> dict:
        return json.loads(run("translate", model, "--format", "jsonl", *options, stdin=b"ein Hund\n").out)

    assert found("--beam-size", 7)["score"] > found("--beam-size", 1)["score"]
    plain = found("--length-penalty", 0)
    assert plain["score"] == plain["log_probability"]


def test_a_terminal_gets_its_answer_line_by_line(run, model, monkeypatch, capsysbinary):
    blocks = []
    translate = Translator.translate
    monkeypatch.setattr(Translator, "translate",
                        lambda self, lines, **options: blocks.append(len(lines)) or translate(self, lines, **options))
    keyboard, screen = pty.openpty()
    os.write(keyboard, b"ein Hund\neine Katze\n\x04")
    with open(screen) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        assert main(["translate", str(model)]) == 0
    os.close(keyboard)
    assert blocks == [1, 1]
    assert capsysbinary.readouterr().out.count(b"\n") == 2


def test_a_reader_that_stops_reading_is_no_error(model, directory, monkeypatch, capfd):
    (directory / "in").write_bytes(b"ein Hund\n" * 3)
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        assert main(["translate", str(model), "in"]) == 141
    assert re.fullmatch(r"translating in \w+ on cpu; --precision .*\n", capfd.readouterr().err)


def test_a_byte_order_mark_is_not_translated(run, model):
    text = b"ein Hund\neine Katze\n"
    assert run("translate", model, stdin=b"\xef\xbb\xbf" + text).out == run("translate", model, stdin=text).out


@pytest.mark.slow
def test_several_workers_give_the_output_of_one_in_the_same_order(run, model):
    data = "\n".join([*GERMAN, "", "  ", *GERMAN[::-1]] * 9).encode()
    alone = run("translate", model, "--precision", "fp32", "--format", "jsonl", stdin=data)
    shared = run("translate", model, "--precision", "fp32", "--format", "jsonl", "--workers", 2, stdin=data)
    assert shared.code == 0 and shared.err == "translating in fp32, 2 workers\n"
    translations = [[json.loads(line)["translation"] for line in result.out.splitlines()] for result in (alone, shared)]
    assert translations[0] == translations[1] and len(translations[0]) == data.count(b"\n") + 1


# translate: the decoding toolbox


def records(result: Result) -> list[dict]:
    assert result.code == 0, result.err
    return [json.loads(line) for line in result.out.splitlines()]


def test_samples_depend_on_seed_and_line_alone(run, model):
    lines = ("ein Hund\n" * 3).encode()
    options = ("--sampling", "--n-best", 3, "--format", "jsonl", "--temperature", 0.8, "--top-p", 0.9,
               "--top-k", "100", "--min-p", "0.001")
    found = records(run("translate", model, *options, stdin=lines))
    assert all(len(record["n_best"]) == 3 for record in found)
    assert len({record["translation"] for record in found}) == 3                # each line draws for itself
    (alone,) = records(run("translate", model, *options, stdin=b"ein Hund\n"))
    for sample, other in zip(alone["n_best"], found[0]["n_best"], strict=True):
        assert (sample["translation"], sample["tokens"]) == (other["translation"], other["tokens"])
        assert sample["score"] == pytest.approx(other["score"], abs=1e-5)               # sums depend on the batch
    others = records(run("translate", model, *options, "--seed", 7, stdin=lines))
    assert [record["translation"] for record in others] != [record["translation"] for record in found]


def test_prefix_and_require_files_apply_line_by_line(run, model, directory):
    (directory / "in").write_text("ein Hund\n\neine Katze\nder Hund\n")
    (directory / "prefixes").write_text("a dog\n\n\nthe\n")
    (directory / "phrases.tsv").write_text("cat\tdog\n\n\nhouse\n")
    first, blank, _, last = run("translate", model, "in", "--prefix-file", "prefixes").out.decode().splitlines()
    assert first.startswith("a dog") and blank == "" and last.startswith("the")
    first, blank, _, last = run("translate", model, "in", "--require-file", "phrases.tsv", "--beam-size", 4,
                                ).out.decode().splitlines()
    assert "cat" in first and "dog" in first and blank == "" and "house" in last
    piped = run("translate", model, "--prefix-file", "prefixes", "--require-file", "phrases.tsv",
                stdin=(directory / "in").read_bytes()).out.decode().splitlines()
    assert piped[0].startswith("a dog") and "cat" in piped[0] and piped[3].startswith("the") and "house" in piped[3]


@pytest.mark.slow
def test_forbidden_phrases_occur_in_no_translation(run, model):
    words = set(run("translate", model, stdin=b"ein Hund\neine Katze\n").out.decode().split())
    readable = [word for word in words if word.isalnum()][:3]
    forbidding = [part for word in readable for part in ("--forbid", word)]
    result = run("translate", model, *forbidding, "--no-repeat-ngram", "2",
                 stdin=b"ein Hund\neine Katze\n")
    assert result.code == 0 and not set(readable) & set(result.out.decode().split())
    swapped = [part for word in readable for part in ("--forbid", word.swapcase())]
    result = run("translate", model, *swapped, "--ignore-case", stdin=b"ein Hund\neine Katze\n")
    assert not {word.lower() for word in readable} & set(result.out.decode().lower().split())


def test_lengths_coverage_and_groups_reach_the_search(run, model):
    def record(*options: object, **decoding: object) -> dict:
        settings = [part for key, value in decoding.items() for part in (f"--{key.replace('_', '-')}", value)]
        (found,) = records(run("translate", model, "--format", "jsonl", *options, *settings, stdin=b"ein Hund\n"))
        return found

    assert record(max_length=2)["tokens"] == 3 and record(min_length=9)["tokens"] >= 10
    assert record(max_length=1, coverage_penalty=5)["score"] < record(max_length=1)["score"]
    beam = record("--beam-size", 4, "--n-best", 4)
    assert record("--beam-size", 4, "--n-best", 4, diverse_groups=2, diverse_strength=9)["n_best"] != beam["n_best"]


@pytest.mark.slow
@pytest.mark.parametrize("options", [("--beam-size", 4), ("--sampling",)])
def test_minimum_bayes_risk_ranks_by_agreement(run, model, options):
    (record,) = records(run("translate", model, "--mbr", "4", "--n-best", 2, "--format", "jsonl", *options,
                            stdin=b"ein Hund\n"))
    assert 0 < record["score"] <= 100 and record["log_probability"] < 0
    assert run("translate", model, "--mbr", "4", *options, stdin=b"ein Hund\n").out.decode() \
        == record["translation"] + "\n"


def test_jsonl_contains_word_confidence(run, model):
    (record,) = records(run("translate", model, "--word-confidence", "--n-best", 2, "--format", "jsonl",
                            stdin=b"ein Hund\n"))
    assert set(record["words"][0]) == {"word", "confidence"}
    assert all(0 < word["confidence"] <= 1 for one in record["n_best"] for word in one["words"])
    assert record["n_best"][0]["words"] == record["words"]


def test_several_models_translate_together(run, model, directory):
    save_model(directory / "other", 2)
    save_model(directory / "speaker", 2, LANGUAGE_MODEL)
    data = "".join(f"{line}\n" for line in GERMAN).encode()

    def translations(*options: object) -> bytes:
        result = run("translate", model, "--precision", "fp32", *options, stdin=data)
        assert result.code == 0, result.err
        return result.out

    alone = translations()
    assert translations("--ensemble", model) == alone
    assert translations("--fusion", "speaker", "--fusion-weight", 0) == alone
    assert translations("--fusion", "speaker", "--fusion-weight", 5) != alone
    assert translations("--ensemble", "other", "--ensemble-mean", "log_probability") != alone


@pytest.mark.slow
def test_several_models_translate_in_several_workers_as_in_one(run, model, directory):
    save_model(directory / "other", 2)
    alone, shared = (run("translate", model, "--precision", "fp32", "--ensemble", "other", *options,
                         stdin=b"ein Hund\neine Katze\n") for options in ((), ("--workers", 2)))
    assert shared.code == 0 and shared.out == alone.out


@pytest.mark.slow
def test_a_closed_standard_output_is_reported(model):
    command = [sys.executable, "-m", "seq2seq", "translate", model]
    done = subprocess.run(command, input=b"ein Hund\n", stderr=subprocess.PIPE, preexec_fn=lambda: os.close(1))
    assert done.returncode == 2 and b"standard output is closed" in done.stderr


def test_the_recipe_may_say_how_to_decode(run, directory):
    text = RECIPE.replace("beam_size: 2,", "sampling: true, top_p: 0.9, seed: 5, no_repeat_ngram: 2, forbid: [dog],")
    place = save_model(directory / "sampler", text=text)
    drawn = run("translate", place, stdin=b"ein Hund\neine Katze\n")
    assert drawn.code == 0
    assert run("translate", place, "--seed", 6, stdin=b"ein Hund\neine Katze\n").out != drawn.out
    searched = run("translate", place, "--no-sampling", "--top-p", 1, stdin=b"ein Hund\neine Katze\n")
    assert searched.code == 0 and searched.out != drawn.out
    assert run("translate", place, "--no-sampling", stdin=b"ein Hund\neine Katze\n").out == searched.out


# score


def test_scores_are_those_of_the_model(run, model, directory):
    write_tests(directory)
    scores = pair_scores(Translator.load(model, precision="fp32"), list(zip(GERMAN, ENGLISH, strict=True)))
    expected = [found.log_probability for found in scores]
    result = run("score", model, "data/test.de", "data/test.en")
    assert result.code == 0
    assert [float(line) for line in result.out.splitlines()] == pytest.approx(expected, abs=1e-6)
    records = [json.loads(line) for line in
               run("score", model, "data/test.de", "data/test.en", "--format", "jsonl").out.splitlines()]
    assert [(record["line"], record["source"], record["target"]) for record in records] == list(
        zip(range(1, 5), GERMAN, ENGLISH, strict=True))
    assert [record["log_probability"] for record in records] == pytest.approx(expected)


def test_white_space_around_a_line_is_not_scored(run, model, directory):
    for name, margin in (("plain", ""), ("wide", "  ")):
        for ending, lines in (("de", GERMAN), ("en", ENGLISH)):
            (directory / f"{name}.{ending}").write_text("".join(f"{margin}{line}{margin}\n" for line in lines))
    plain, wide = (run("score", model, f"{name}.de", f"{name}.en").out for name in ("plain", "wide"))
    assert plain == wide and plain.count(b"\n") == len(GERMAN)


def test_standard_input_is_scored_like_a_file_and_blocks_stay_in_order(run, model, directory, monkeypatch):
    write_tests(directory)
    scores = run("score", model, "data/test.de", "data/test.en").out
    monkeypatch.setattr("seq2seq.cli.common.for_each_block.__defaults__", (3,))           # lines of a block
    piped = run("score", model, "-", "data/test.en", stdin=(directory / "data/test.de").read_bytes()).out
    assert [float(line) for line in piped.split()] == pytest.approx([float(line) for line in scores.split()], abs=1e-4)


# evaluate


def test_any_systems_output_is_evaluated_without_a_model(run, directory):
    write_tests(directory)
    (directory / "other").write_text("x\n" * 4)
    result = run("evaluate", "data/test.en", "--reference", "other", "--reference", "data/test.en")
    assert result.code == 0
    assert re.match(rb"BLEU +100\.00  nrefs:2\|case:mixed\|eff:no\|tok:13a", result.out)
    assert [line.split()[0] for line in result.out.splitlines()] == [b"BLEU", b"chrF", b"TER"]
    scores = json.loads(run("evaluate", "data/test.en", "--reference", "data/test.en",
                            "--target-language", "zh", "--format", "json").out)
    assert scores["bleu"]["value"] == pytest.approx(100)
    assert "tok:zh" in scores["bleu"]["signature"]


def test_translations_on_standard_input_are_evaluated_like_a_file(run, directory):
    write_tests(directory)
    options = ["--reference", "data/test.en", "--format", "json"]
    piped = subprocess.run([sys.executable, "-m", "seq2seq", "evaluate", "-", *options],
                           input=(directory / "data" / "test.en").read_bytes(), capture_output=True, check=True)
    assert json.loads(piped.stdout) == json.loads(run("evaluate", "data/test.en", *options).out)


def test_only_the_metrics_that_are_named_are_measured(run, directory):
    write_tests(directory)
    (directory / "other").write_text("x\n" * 4)
    result = run("evaluate", "other", "--reference", "other", "--metric", "exact", "--metric", "chrf")
    assert [line.split()[:2] for line in result.out.splitlines()] == [[b"exact", b"100.00"], [b"chrF", b"100.00"]]
    result = run("evaluate", "other", "--reference", "data/test.en", "--metric", "exact")
    assert result.out == b"exact    0.00  nrefs:1|case:mixed|equal:line\n"


def test_evaluating_a_model_is_translating_and_comparing(run, model, directory):
    write_tests(directory)
    run("translate", model, "data/test.de", "-o", "translated")
    by_hand = run("evaluate", "translated", "--reference", "data/test.en", "--format", "json")
    result = run("evaluate", model, "--source", "data/test.de", "--reference", "data/test.en", "--format", "json")
    assert result.code == 0
    scores = json.loads(result.out)
    assert {score.pop("precision") for score in scores.values()} == {"fp32"}
    assert scores == json.loads(by_hand.out), "whose precision nobody knows"
    table = run("evaluate", model, "--source", "data/test.de", "--reference", "data/test.en", "--precision", "int8").out
    assert table.count(b"  precision:int8") == 3
    options = ["--source", "data/test.de", "--reference", "data/test.en", "--reference", "data/test.en", "--format",
               "json", "--metric", "perplexity", "--metric", "bleu"]
    both = json.loads(run("evaluate", model, *options).out)
    found = json.loads(run("score", model, "data/test.de", "data/test.en", "--format", "jsonl").out.splitlines()[0])
    in_int8 = json.loads(run("evaluate", model, *options, "--precision", "int8").out)
    assert in_int8["bleu"]["precision"] == "int8" and in_int8["perplexity"] == both["perplexity"]
    assert both["bleu"]["signature"].startswith("nrefs:2") and both["perplexity"]["lines"] == 2 * len(GERMAN)
    assert both["perplexity"]["negative_log_likelihood"] > -2 * found["log_probability"]


def test_a_run_is_evaluated_on_the_test_sets_of_its_recipe_and_keeps_the_scores(run, directory):
    write_tests(directory)
    bundle = save_model(directory / "mine/bundles/x", text=RECIPE.replace("root: data", "root: ../data"))
    before = {path: path.read_bytes() for path in bundle.iterdir()}
    for model in (directory / "mine", bundle):
        result = run("evaluate", model, "--format", "json")
        assert result.code == 0
        assert f"of first with {bundle} in " in result.err
        assert "first: bleu is" in result.err and "below the expected 90 to 100" in result.err
    few = run("evaluate", "mine", "--metric", "exact", "--format", "json")
    assert list(json.loads(few.out)["first"]) == ["exact"]
    assert run("evaluate", "mine").out.startswith(b"first\nBLEU ")
    records = [json.loads(line) for line in (directory / "mine/scores.jsonl").read_text().splitlines()]
    assert [(record["bundle"], record["scores"]["first"]) for record in records] == [
        ("x", json.loads(result.out)["first"])] * 3, "not those of other metrics"
    assert {path: path.read_bytes() for path in bundle.iterdir()} == before


def test_a_bundle_is_evaluated_with_a_recipe_that_the_user_names(run, model, directory):
    write_tests(directory)
    write_recipe(directory)
    assert "--recipe" in run("evaluate", model).err
    assert run("evaluate", model, "--recipe", "recipe.yaml").out.startswith(b"first\nBLEU ")
    assert run("compare", model, model, "--recipe", "recipe.yaml").code == 0
    assert run("tune", model, "beam_size=1", "--recipe", "recipe.yaml").code == 0
    for others in (["--source", "data/test.de", "--reference", "data/test.en"], ["--recipe", "french.yaml"]):
        text = (directory / "recipe.yaml").read_text()
        (directory / "french.yaml").write_text(text.replace("target: en", "target: fr"))
        assert run("evaluate", model, "--recipe", "recipe.yaml", *others).code == 2


def test_the_scores_of_several_seeds_have_a_mean_and_a_deviation(run, directory):
    write_tests(directory)
    recipe = RECIPE.replace("root: data", "root: ../data")
    for seed, name, text in ((1, "a_1", recipe), (2, "a_2", f"{recipe}seed: 2\n"), (5, "a_5", f"{recipe}seed: 5\n"),
                             (3, "b", recipe.replace("max_length_offset: 3", "max_length_offset: 2"))):
        save_model(directory / name / "bundles/x", seed, text)
    systems = ["a_1", "b", "a_2", "a_5", "a_2"]
    found = json.loads(run("compare", *systems, "--metric", "chrf", "--format", "json").out)["first"]["chrf"]
    assert {name: group["systems"] for name, group in found.items()} == {"a_1": ["a_1", "a_2", "a_5"], "b": ["b"]}
    pairs = [json.loads(run("compare", "b", name, "--metric", "chrf", "--format", "json").out)["first"]["chrf"]
             for name in ("a_1", "a_2", "a_5")]
    values = [pair["baseline"]["value"] for pair in pairs]
    assert found["a_1"]["values"] == values and found["b"]["values"] == [pairs[0]["system"]["value"]]
    assert found["a_1"]["seeds"] == [1, 2, 5]
    assert found["a_1"]["mean"] == pytest.approx(sum(values) / 3)
    assert found["a_1"]["deviation"] == pytest.approx(
        (sum((value - found["a_1"]["mean"]) ** 2 for value in values) / 2) ** 0.5)
    assert b"single seed" in run("compare", *systems, "--metric", "chrf").out
    save_model(directory / "a_1_again" / "bundles/x", 1, recipe)                # with the same recipe and seed
    again = json.loads(run("compare", *systems, "a_1_again", "--metric", "chrf", "--format", "json").out)
    assert {name: group["systems"] for name, group in again["first"]["chrf"].items()} == {
        "a_1": ["a_1", "a_2", "a_5"], "b": ["b"], "a_1_again": ["a_1_again"]}


def test_values_of_decoding_are_compared_on_the_validation_set(run, directory):
    text = RECIPE.replace("root: data", "root: ../data")
    model = save_model(directory / "run/bundles/x", text=text)
    beam_size = parsed(text).decoding.beam_size
    write_tests(directory)                                                      # they are the validation set, too
    result = run("tune", model, f"beam_size=1,{beam_size}", "length_penalty=0,1.0", "--metric", "chrf", "--format",
                 "json")
    found = json.loads(result.out)
    assert (found["metric"], found["pairs"]) == ("chrf", len(GERMAN))
    tried = [tuple(trial["decoding"].values()) for trial in found["trials"]]
    assert tried[0] == (beam_size, 1.0), "the present values come first"
    assert sorted(tried[1:]) == [(1, 0), (1, 1.0), (beam_size, 0)]
    assert found["trials"][0]["p_value"] is None and not any(trial["significant"] for trial in found["trials"])
    assert found["best"] == max(found["trials"], key=lambda trial: trial["value"])["decoding"]
    table = run("tune", model, "beam_size=1", "--metric", "chrf").out.decode()
    assert table.startswith(f"{len(GERMAN)} pairs of the validation set")
    assert "present value" in table and "chrF  difference" in table and "-0.00" not in table
    assert "no reason to change the recipe" in table and "for the recipe" not in table
    files = run("tune", model, "beam_size=1", "--metric", "chrf", "--source", "data/test.de", "--reference",
                "data/test.en").out.decode()
    assert files.startswith(f"{len(GERMAN)} pairs of data/test.de")
    assert [line.split()[:2] for line in files.splitlines()[2:4]] == [line.split()[:2]
                                                                      for line in table.splitlines()[2:4]]


@pytest.mark.parametrize(("setting", "message"), [
    ("length_penalt=1", "Did you mean 'length_penalty'"), ("length_penalty=0.5,long", "found 'long'"),
    ("length_penalty", "values with commas"), ("length_penalty=1.0", "only the present values")])
def test_mistakes_in_values_to_compare_are_errors_before_translating(run, directory, setting, message):
    result = run("tune", save_model(directory / "model"), setting)
    assert result.code == 2 and message in result.err and not result.out


@pytest.mark.slow
def test_a_run_finds_its_test_sets_from_anywhere(run, directory):
    write_tests(directory / "elsewhere")
    place = directory / "runs" / "tiny"
    bundle = save_model(place / "bundles" / "x")
    (place / "recipe.yaml").write_text(
        parsed().with_directory(directory / "elsewhere").for_directory(place).to_yaml(), encoding="utf-8")
    for model in (place, bundle):
        assert run("evaluate", model).out.startswith(b"first\nBLEU ")


@pytest.mark.parametrize(("command", "others"), [("evaluate", []), ("compare", ["theirs"])])
def test_files_of_evaluate_and_compare_are_read_like_corpora(run, directory, command, others):
    lines = "".join(f"a dog runs through garden {number}\r\n" for number in range(7))
    (directory / "theirs").write_text(lines.replace("dog", "cat"), newline="")
    for ours, reference in (("\ufeff", ""), ("", "\ufeff")):
        (directory / "ours").write_text(ours + lines, encoding="utf-8", newline="")
        (directory / "reference").write_text(reference + lines.replace("\r", ""), encoding="utf-8", newline="")
        result = run(command, "ours", *others, "--reference", "reference", "--metric", "bleu")
        assert result.code == 0 and b"100.0" in result.out
    for damaged in ("ours", "reference", *others):
        for name in ("ours", "reference", "theirs"):
            (directory / name).write_bytes(b"a dog\nthe k\xe4tzchen\n" if name == damaged else b"a dog\na cat\n")
        result = run(command, "ours", *others, "--reference", "reference")
        assert result.code == 2 and f"{damaged}:2: byte 0xe4 at position 6 is not UTF-8" in result.err


# average


def test_the_average_of_a_run_is_the_mean_of_its_newest_checkpoints(run, directory):
    save_run(directory / "runs/tiny", [5, 7, 11], between=[6, 8, 9, 10, 12])
    assert run("average", "runs/tiny", "--last", 2, "--output", "mean").code == 0
    bundle = load_bundle(directory / "mean")
    first, second = random_weights(7), random_weights(11)
    assert bundle.weights.keys() == first.keys()
    for name, weight in as_tensors(bundle.weights).items():
        torch.testing.assert_close(weight, (first[name] + second[name]) / 2)
    assert bundle.metadata["averaged_steps"] == [7, 11]
    assert "averaged 3 checkpoints" in run("average", "runs/tiny", "--last", 5, "--output", "all").err
    assert run("translate", "mean", stdin=b"ein Hund\n").code == 0
    by_name = [f"runs/tiny/checkpoints/step-{step:08d}" for step in (11, 7, 7)]
    assert run("average", *by_name, "-o", "same").code == 0
    assert (directory / "same/model.safetensors").read_bytes() == (directory / "mean/model.safetensors").read_bytes()


def test_an_average_replaces_nothing(run, model, directory):
    save_run(directory / "runs/tiny", [5])
    before = (directory / "model/model.safetensors").read_bytes()
    for output in (model, "runs/tiny"):
        result = run("average", "runs/tiny", "-o", output)
        assert result.code == 2 and "exists already" in result.err
    assert (directory / "model/model.safetensors").read_bytes() == before


# shortlist


def test_a_model_with_a_shortlist_translates_with_listed_words(run, model, directory):
    (directory / "text.de").write_text("ein Hund\n\nein Hund läuft\n" + "ein Hund " * 99 + "\n", encoding="utf-8")
    (directory / "text.en").write_text("a dog\n\na dog runs\na dog\n", encoding="utf-8")
    result = run("shortlist", model, "text.de", "text.en", "--output", "short")
    assert result.code == 0 and "1 pairs are too long for the model" in result.err
    assert run("shortlist", model, "text.de", "text.en", "--output", "short").code == 2
    options = ["--precision", "int8", "--shortlist"]
    assert run("translate", "short", *options, 3, stdin=b"ein Hund\n").code == 0
    assert run("translate", model, *options, 0, stdin=b"ein Hund\n").code == 0


# train, and what every command has in common


def test_options_of_train_reach_the_trainer(run, directory, monkeypatch):
    write_recipe(directory)
    calls = []
    monkeypatch.setattr("seq2seq.training.run.train", lambda *arguments: calls.append(arguments) or {})
    result = run("train", "recipe.yaml", "--set", "training.max_steps=7", "--restart")
    assert (result.code, result.out) == (0, b"")
    assert "seq2seq translate runs/tiny" in result.err
    (recipe, place, restart), = calls
    assert (recipe.training.max_steps, place, restart) == (7, Path("runs/tiny"), True)
    run("train", "recipe.yaml", "--run-dir", "here")
    assert calls[1][1:] == (Path("here"), False)


@pytest.mark.parametrize("error, code, message", [
    (CorpusError("no text\nat all"), 2, "no text\nat all\n"),
    (Stopped(15, "saved at step 7"), 143, "saved at step 7\n"),
    (Stopped(2, "saved at step 7"), 130, "saved at step 7\n"), (KeyboardInterrupt(), 130, ""),
    (MemoryError(), 2, "Out of memory ("), (torch.OutOfMemoryError("CUDA out of memory"), 2, "Out of memory ("),
    (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried …"), 2, "Out of memory ("),
    (OSError(errno.ENOSPC, "No space left on device", "out"), 2, "out: No space left on device"),
    (ZeroDivisionError(), 1, "Traceback"),
], ids=repr)
def test_errors_have_their_exit_code_and_message(run, directory, monkeypatch, error, code, message):
    write_recipe(directory)
    monkeypatch.setattr("seq2seq.training.run.train", lambda *arguments: (_ for _ in ()).throw(error))
    result = run("train", "recipe.yaml")
    assert (result.code, result.out) == (code, b"") and result.err.startswith(message)
    assert ("Traceback" in result.err) == ("bug in seq2seq" in result.err) == (code == 1)


def test_a_wrong_command_line_has_exit_code_2(run):
    for arguments in (["fly"], ["translate"], ["translate", "model", "--workers", "0"], ["train", "--fast"]):
        result = run(*arguments)
        assert (result.code, result.out) == (2, b"")
        assert result.err.endswith(" -h lists arguments and options.\n") and result.err.count("\n") == 2


def test_the_versions_and_the_kernels_in_use_are_printed(run, monkeypatch):
    monkeypatch.setattr("seq2seq.inference.engines._kernels",
                        {"int8": SimpleNamespace(instruction_set="avx7"), "fp32": "there are none"}.get)
    assert run("--version") == (
        0, f"seq2seq 0.1.0\nint8 kernels: avx7\nthere are none\nPyTorch: {version('torch')}\n".encode(), "")


def test_help_and_mistakes_in_a_recipe_need_neither_torch_nor_datasets(directory):
    """Runs in a new process, because the packages are already imported in this one."""
    write_recipe(directory)
    text = (directory / "recipe.yaml").read_text()
    for right, wrong in (("vocab_size", "vocab_sise"), ("name: tiny", "name: 3"), ("beam_size: 2", "beam_size: two")):
        text = text.replace(right, wrong)
    (directory / "wrong.yaml").write_text(text)
    program = textwrap.dedent("""
        import sys
        from seq2seq.cli import main
        for command in ([], ["check"], ["train"], ["translate"], ["score"], ["evaluate"], ["compare"], ["average"]):
            assert main([*command, "--help"]) == 0
        slow = {"seq2seq.recipe.schema", "numpy", "sentencepiece"} & set(sys.modules)
        assert not slow, slow
        assert main(["train", "wrong.yaml"]) == 2
        assert main(["check", "wrong.yaml", "--set", "seed=x"]) == 2
        assert main(["evaluate", "data/test.en", "--reference", "data/test.en"]) == 0
        found = {"torch", "datasets"} & set(sys.modules)
        assert not found, found
    """)
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    told = result.stderr.splitlines()
    assert [line.split(":")[0] for line in told] == ["wrong.yaml"] * 6 + ["--set seed=x"], result.stderr
    assert any("tokenizer.vocab_sise: unknown key. Did you mean 'vocab_size'?" in line for line in told)
    assert result.stdout.count("Examples") == 7


@pytest.mark.parametrize(("option", "value", "key"), [
    ("--device", "cpu", "device"), pytest.param("--precision", "fp32", "precision", marks=pytest.mark.slow),
    ("--threads", 3, "threads")])
def test_options_of_the_machine_are_short_for_keys_of_the_recipe(run, directory, monkeypatch, option, value, key):
    write_recipe(directory)
    recipes = []
    monkeypatch.setattr("seq2seq.training.run.train", lambda recipe, *_: recipes.append(recipe) or {})
    monkeypatch.setattr("seq2seq.check.check_recipe", lambda recipe, *_: recipes.append(recipe) or Report("", []))
    monkeypatch.setattr("seq2seq.check.show_report", lambda report: None)
    for command in ("train", "check"):
        assert run(command, "recipe.yaml", option, value).code == 0
        assert getattr(recipes.pop().training, key) == value
        assert run(command, "recipe.yaml", option, value, "--set", f"training.{key}=auto").code == 0
        assert getattr(recipes.pop().training, key) == value, "the option overrides --set"


@pytest.mark.parametrize("command", ["train", "check"])
def test_the_help_lists_the_sizes_of_models(command):
    shown = run_command(command, "--help").out.decode()
    assert "tiny, small, base, big, rnn_small" in " ".join(shown.replace("│", " ").split())


@pytest.mark.parametrize(("typed", "expected"), [
    ("seq2seq train --dev", {"--device"}),
    pytest.param("seq2seq tra", {"train", "translate"}, marks=pytest.mark.slow)])
def test_a_shell_completes_commands_and_options(directory, typed, expected):
    environment = {**os.environ, "_SEQ2SEQ_COMPLETE": "complete_bash", "COMP_WORDS": typed,
                   "COMP_CWORD": str(len(typed.split()) - 1)}
    result = subprocess.run([sys.executable, "-m", "seq2seq"], env=environment, capture_output=True, text=True)
    assert set(result.stdout.split()) == expected, result.stderr


@pytest.mark.slow
def test_translating_imports_nothing_that_training_and_measuring_need(model):
    """Runs in a new process, because the packages are already imported in this one. Importing torch._dynamo and sympy
    takes a second."""
    program = textwrap.dedent("""
        import sys
        from seq2seq.cli import main
        assert main(["translate", "model", "one.de", "--max-length", "3"]) == 0
        found = {"torch._dynamo", "sympy", "torch.utils.tensorboard", "tensorboard", "datasets", "pyarrow", "sacrebleu",
                 "transformers", "scipy", "matplotlib"} & set(sys.modules)
        assert not found, found
    """)
    Path("one.de").write_text("ein Hund\n")
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("pack", [
    pytest.param(gzip.compress, id="gz"), pytest.param(zstandard.compress, id="zst", marks=pytest.mark.slow)])
def test_compressed_input_is_read_and_a_damaged_file_is_reported(run, model, directory, pack):
    name = f"text.{'gz' if pack is gzip.compress else 'zst'}"
    data = pack("\n".join(GERMAN * 5).encode())
    Path(name).write_bytes(data)
    assert run("translate", "model", name, "--beam-size", "1").out.count(b"\n") == len(GERMAN) * 5 - 1
    Path(name).write_bytes(data[:-9] + bytes(9))
    damaged = run("translate", "model", name)
    assert damaged.code == 2 and name in damaged.err and "Traceback" not in damaged.err
