"""The command line: one output line for each input line, only results on standard output, and exit codes."""

import gzip
import io
import itertools
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
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
import zstandard

from seq2seq.check import Report
from seq2seq.cli import COMMANDS, main
from seq2seq.errors import CorpusError
from seq2seq.inference.load_model import stored_weights
from seq2seq.model import build_model
from seq2seq.recipe import Recipe, parse_recipe
from seq2seq.signals import Stopped
from seq2seq.storage.checkpoints import load_bundle, save_bundle, save_checkpoint
from seq2seq.storage.tokenizer_files import save_tokenizers
from seq2seq.tokenizers.tokenizer import Tokenizers, train_tokenizers
from seq2seq.training import trainer
from seq2seq.translation.text_io import writing
from seq2seq.translation.translator import Translator

# The model is random: it says nothing, but says it reproducibly, and never ends before its longest translation. (Its
# faults are the matter of test_safety_net.py.)
RECIPE = """\
name: tiny
languages: {source: de, target: en}
data:
  root: data
  train: [{source: train.de, target: train.en}]
  valid: {source: test.de, target: test.en}
  test: {first: {source: test.de, target: test.en}}
  cleaning: {max_pieces: 29}
tokenizer: {vocab_size: 283}
model: {d_model: 12, encoder_layers: 1, decoder_layers: 1, num_heads: 2, feed_forward: 7, max_positions: 31}
decoding: {beam_size: 2, max_length_ratio: 1.0, max_length_offset: 3, safety_net: false}
expected: {first: {bleu: [90, 100]}}
"""
GERMAN = ["ein Hund läuft", "eine Katze schläft", "der Hund schläft", "die Katze läuft im Haus"]
ENGLISH = ["a dog runs", "a cat sleeps", "the dog sleeps", "the cat runs in the house"]


class Result(NamedTuple):
    code: int
    out: bytes
    err: str

    @property
    def complaints(self) -> str:
        """Standard error without the line that reports precision and device."""
        return re.sub(r"^translating in \w+(, \d workers| on cpu)\n", "", self.err)


Run = Callable[..., Result]


@pytest.fixture(scope="module")
def recipe() -> Recipe:
    return parse_recipe(RECIPE, "recipe.yaml")


@pytest.fixture(scope="module")
def tokenizers(recipe) -> Tokenizers:
    return train_tokenizers(zip(GERMAN, ENGLISH, strict=True), recipe.tokenizer, seed=1)


def random_weights(recipe: Recipe, seed: int) -> dict[str, torch.Tensor]:
    torch.manual_seed(seed)
    return stored_weights(build_model(recipe.model, recipe.tokenizer.vocab_size, recipe.tokenizer.vocab_size))


@pytest.fixture(scope="module")
def shared_model(recipe, tokenizers, tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("models") / "model"
    return save_bundle(place, random_weights(recipe, 1), RECIPE, tokenizers.files(), {})


@pytest.fixture
def model(shared_model, directory) -> Path:
    """Copy of the shared bundle in the working directory."""
    place = directory / "model"
    place.mkdir()
    for path in shared_model.iterdir():
        (place / path.name).write_bytes(path.read_bytes())
    return place


@pytest.fixture
def directory(tmp_path, monkeypatch) -> Path:
    """Empty temporary directory, which is the working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run(directory, monkeypatch, capsysbinary) -> Run:
    """Function that runs a command in this process."""

    def run(*arguments: object, stdin: bytes = b"") -> Result:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        capsysbinary.readouterr()
        code = main([str(argument) for argument in arguments])
        out, err = capsysbinary.readouterr()
        return Result(code, out, err.decode())

    return run


@pytest.mark.parametrize("name", ["\x1b]0;title\x07.de", "\x9b31m.de", "half\rhidden.de"])
def test_control_characters_in_names_are_escaped(run, model, name):
    code, out, err = run("translate", model, name)
    assert (code, out) == (2, b"") and ".de cannot be read" in err
    assert not any(character < " " and character != "\n" or "\x7f" <= character < "\xa0" for character in err)


def test_messages_keep_letters_of_all_languages(capsys):
    from seq2seq import console

    assert console.escape_control_characters("Zürich 東京\n\tאב\x1b[31m") == "Zürich 東京\n\tאב\\x1b[31m"


def write_tests(directory: Path) -> None:
    """Write the files that the recipe of the model names."""
    (directory / "data").mkdir(parents=True, exist_ok=True)
    (directory / "data" / "test.de").write_text("".join(f"{line}\n" for line in GERMAN))
    (directory / "data" / "test.en").write_text("".join(f"{line}\n" for line in ENGLISH))


# translate


def test_four_lines_in_give_four_lines_out(run, model):
    result = run("translate", model, stdin=b"a\n\n  \nb")
    assert result.code == 0
    lines = result.out.split(b"\n")
    assert len(lines) == 4
    assert lines[1:3] == [b"", b"  "]
    assert lines[0].strip() and lines[3].strip()
    assert result.err.startswith("translating in ") and not result.complaints


@pytest.mark.parametrize("text", [
    "ein Hund\r\neine Katze\nein Haus\r\n",
    "ein Hund\n\n\n",
    "\n",
    "\r\n",
    "ein Hund\r",
    "\u2028\nein\u2028Hund\u0085\x0b\x0c\x1c\x1deine\u2029Katze\n\u0085",
    "ein\rHund\neine \x00 Katze\r\r\n",
    "\t ein Hund \u3000\n\ufeffein\n",
], ids=repr)
def test_line_ends_are_those_of_the_input(run, model, text):
    result = run("translate", model, stdin=text.encode())
    assert result.code == 0
    assert re.findall(rb"\r?\n", result.out) == re.findall(rb"\r?\n", text.encode())
    for line, translation in zip(text.encode().split(b"\n"), result.out.split(b"\n"), strict=True):
        assert line.endswith(b"\r") == translation.endswith(b"\r")
        assert bool(line.decode().strip()) == bool(translation.decode().strip())


def test_white_space_comes_back_unchanged(run, model):
    blank = "\n \n\t\n\u3000\u2028\r\n\u0085\n\x1c\x1d\n  ".encode()
    result = run("translate", model, stdin=blank)
    assert (result.code, result.out, result.complaints) == (0, blank, "")


def test_white_space_around_a_line_is_copied_to_the_output(run, model):
    plain = run("translate", model, stdin=b"ein Hund").out.decode()
    assert run("translate", model, stdin="\t ein Hund\u3000 \r\n".encode()).out.decode() == f"\t {plain}\u3000 \r\n"


def test_a_recipe_given_as_model_is_refused_with_the_command_to_train_it(run, directory, model):
    (directory / "mine.yaml").write_text(RECIPE)
    (directory / "not.yaml").write_text("name: tiny\n")
    for command in (["translate", "mine.yaml"], ["evaluate", "mine.yaml"],
                    ["export", "mine.yaml", "--to", "ctranslate2", "-o", "x"],
                    ["translate", model, "--fusion", "mine.yaml"]):
        result = run(*command, stdin=b"ein Hund\n")
        assert result.code == 2
        assert ("mine.yaml is a recipe, and its run, runs/tiny, contains no model yet. Train the model first (seq2seq "
                "train mine.yaml)") in result.err
    assert "not.yaml is a file. A model is" in run("translate", "not.yaml", stdin=b"").err
    shutil.copytree(model, directory / "runs/tiny/best")
    (directory / "runs/tiny/recipe.yaml").write_text(RECIPE)
    assert "mine.yaml is a recipe. Name the model that was trained with it: runs/tiny\n" in run(
        "translate", "mine.yaml", stdin=b"").err
    assert "Name its directory, runs/tiny" in run("translate", "runs/tiny/recipe.yaml", stdin=b"").err


@pytest.mark.parametrize(("given", "right"), [
    (["translate", "s.de", "model"], ["translate", "model", "s.de"]),
    (["score", "s.de", "model", "t.en"], ["score", "model", "s.de", "t.en"]),
    (["score", "s.de", "t.en", "model"], ["score", "model", "s.de", "t.en"]),
    (["align", "s.de", "t.en", "model"], ["align", "model", "s.de", "t.en"]),
    (["generate", "s.de", "model"], ["generate", "model", "s.de"]),
])
def test_a_model_after_its_text_is_refused_with_the_right_order(run, directory, model, given, right):
    for name in ("s.de", "t.en"):
        (directory / name).write_text("ein Hund\n")
    result = run(*given)
    assert (result.code, result.out) == (2, b"")
    assert result.err == f"s.de is a file and model is a model, but the model comes first: seq2seq {' '.join(right)}\n"
    (directory / "model/metadata.json").unlink()                                # nothing is known to be a model now
    assert "the model comes first" not in run(*given).err


def test_no_input_gives_no_output(run, model):
    result = run("translate", model)
    assert (result.code, result.out, result.complaints) == (0, b"", "")


def test_random_bytes_yield_one_line_for_each_line(run, model):
    source = random.Random(3)
    data = bytes(source.choice([10, 10, 13, source.randrange(256), source.randrange(256)]) for _ in range(700))
    result = run("translate", model, "--beam-size", 1, stdin=data)
    assert result.code == 0
    assert re.findall(rb"\r?\n", result.out) == re.findall(rb"\r?\n", data)
    assert result.out.decode()                                                  # what comes out is UTF-8


def test_a_line_of_5000_words_is_one_line(run, model):
    data = b"Hund " * 4999 + b"Katze\nein Hund\n"
    result = run("translate", model, "--beam-size", 1, "--format", "jsonl", stdin=data)
    first, second = map(json.loads, result.out.splitlines())
    assert first["parts"] > 100
    assert len(first["translation"]) > 100
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
    assert (result.code, result.out, result.complaints) == (0, b"", "")
    assert (directory / "out.txt").read_bytes() == printed
    assert sorted(path.name for path in directory.iterdir()) == ["in.txt", "model", "out.txt"]


def test_a_dash_is_standard_input_and_output(run, model, directory):
    printed = run("translate", model, stdin=b"ein Hund\n").out
    assert run("translate", model, "-", "--output", "-", stdin=b"ein Hund\n").out == printed
    assert not (directory / "-").exists() and not (directory / "-.part").exists()


def test_a_file_may_be_translated_in_place(run, model, directory):
    (directory / "text").write_bytes(b"ein Hund\n" * 100)
    (directory / "link").symlink_to("text")
    assert run("translate", model, "text", "-o", "link").code == 0
    assert (directory / "link").is_symlink()
    assert (directory / "text").read_bytes().count(b"\n") == 100
    assert b"ein Hund" not in (directory / "text").read_bytes()


def test_a_translation_that_fails_leaves_the_old_output_and_says_where_the_new_is(run, model, directory, monkeypatch):
    translate = Translator.translate_blocks

    def failing(self, lines, *arguments, **options):
        yield next(translate(self, lines, *arguments, **options))[:1]
        raise CorpusError("the disk is on fire")

    monkeypatch.setattr(Translator, "translate_blocks", failing)
    (directory / "out").write_text("old\n")
    result = run("translate", model, "-o", "out", stdin=b"ein Hund\neine Katze\n")
    assert result.code == 2
    assert (directory / "out").read_text() == "old\n"
    assert (directory / "out.part").read_bytes().count(b"\n") == 1
    assert "out is not complete; the finished part is in" in result.err
    assert "the disk is on fire" in result.err


def test_a_pipe_can_be_named_by_its_descriptor():
    read, write = os.pipe()
    with writing(Path(f"/dev/fd/{write}")) as output:
        output.write("a\n")
    os.close(write)
    with open(read) as file:
        assert file.read() == "a\n"


def test_files_that_cannot_be_opened_are_reported_before_the_model_is_loaded(run, directory, monkeypatch):
    monkeypatch.setattr(Translator, "load", None)
    assert "no.txt cannot be read: No such file" in run("translate", "model", "no.txt").err
    assert "nowhere/out cannot be written: there is no directory nowhere. Create it (mkdir -p nowhere), or name" in run(
        "translate", "model", "-o", "nowhere/out").err
    assert f"{directory} cannot be written: it is a directory. Name a file." in run(
        "translate", "model", "-o", directory).err
    assert not list(directory.iterdir())
    Path("file").touch()
    assert "file/out cannot be written: file is a file. Name another file." in run(
        "translate", "model", "-o", "file/out").err


def test_a_line_too_long_to_read_is_refused_by_its_number(run, model, directory):
    text = b"ein Hund\n" + b"x" * 1_000_001
    Path("long.gz").write_bytes(gzip.compress(text))
    for arguments, stdin, name in ((["long.gz"], b"", "long.gz"), ([], text, "standard input")):
        result = run("translate", model, *arguments, stdin=stdin)
        assert result.code == 2
        assert f"{name}:2: the line has more than 1,000,000 bytes." in result.err
        assert "cut it into sentences, or raise --max-line-bytes." in result.err
    shorter = run("translate", model, "long.gz", "--max-line-bytes", "7")
    assert "long.gz:1: the line has more than 7 bytes." in shorter.err
    score = run("score", model, "long.gz", "long.gz")
    assert score.code == 2 and "cut it into sentences.\n" in score.err


def test_without_a_model_no_output_appears(run, directory):
    result = run("translate", "nothing", "-o", "out", stdin=b"ein Hund\n")
    assert result.code == 2
    assert "nothing does not exist" in result.err
    assert not list(directory.iterdir())


def test_a_full_disk_is_reported(run, model):
    result = run("translate", model, "-o", "/dev/full", stdin=b"ein Hund\n")
    assert result.code == 2
    assert "/dev/full cannot be written: No space left on device. Free some space" in result.err


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


def test_n_best_is_refused_where_it_cannot_be(run, model):
    result = run("translate", model, "--n-best", 2, stdin=b"ein Hund\n")
    assert (result.code, result.out) == (2, b"")
    assert "Add --format jsonl" in result.err
    result = run("translate", model, "--n-best", 3, "--format", "jsonl", stdin=b"ein Hund\n")
    assert (result.code, result.out) == (2, b"")
    assert "--n-best: a beam of 2 cannot produce 3 translations; raise beam_size\n" in result.err


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
    assert re.fullmatch(r"translating in \w+ on cpu\n", capfd.readouterr().err)


def test_a_byte_order_mark_is_not_translated(run, model):
    text = b"ein Hund\neine Katze\n"
    assert run("translate", model, stdin=b"\xef\xbb\xbf" + text).out == run("translate", model, stdin=text).out


@pytest.mark.parametrize("ending", ["gz", "zst"])
def test_output_with_a_name_of_compressed_files_is_refused(run, model, tmp_path, ending):
    result = run("translate", model, "--output", f"out.{ending}", stdin=b"ein Hund\n")
    assert result.code == 2 and f"Name a file without .{ending}" in result.err and not list(tmp_path.glob("out*"))


def test_several_workers_give_the_output_of_one_in_the_same_order(run, model):
    data = "\n".join([*GERMAN, "", "  ", *GERMAN[::-1]] * 9).encode()
    alone = run("translate", model, "--precision", "fp32", "--format", "jsonl", stdin=data)
    shared = run("translate", model, "--precision", "fp32", "--format", "jsonl", "--workers", 2, stdin=data)
    assert shared.code == 0 and shared.err == "translating in fp32, 2 workers\n"
    translations = [[json.loads(line)["translation"] for line in result.out.splitlines()] for result in (alone, shared)]
    assert translations[0] == translations[1] and len(translations[0]) == data.count(b"\n") + 1


def test_a_worker_that_cannot_load_the_model_says_why(run, directory):
    result = run("translate", "nothing", "--workers", 2)
    assert result.code == 2 and "nothing does not exist" in result.err

# translate: the decoding toolbox


def records(result: Result) -> list[dict]:
    assert result.code == 0, result.err
    return [json.loads(line) for line in result.out.splitlines()]


def other_model(directory: Path, recipe, tokenizers, name: str = "other", seed: int = 2) -> Path:
    return save_bundle(directory / name, random_weights(recipe, seed), RECIPE, tokenizers.files(), {})


def language_model(directory: Path, tokenizers) -> Path:
    """Bundle `speaker` of a language model with the vocabulary of the translation model."""
    text = """\
name: speaker
languages: {target: en}
data: {train: [{text: train.en}], valid: {text: test.en}, cleaning: {max_pieces: 29}}
tokenizer: {vocab_size: 283}
model: {type: language_model, d_model: 12, decoder_layers: 1, num_heads: 2, feed_forward: 7, max_positions: 31}
training: {best_metric: loss}
"""
    weights = random_weights(parse_recipe(text, "recipe.yaml"), 2)
    return save_bundle(directory / "speaker", weights, text, tokenizers.files(), {})


def test_samples_depend_on_seed_and_line_alone(run, model):
    lines = ("ein Hund\n" * 3).encode()
    options = ("--sampling", "--n-best", 3, "--format", "jsonl", "--temperature", 0.8, "--top-p", 0.9,
               "--set", "decoding.top_k=100", "--set", "decoding.min_p=0.001")
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
    first, blank, _, last = run("translate", model, "in", "--prefix", "prefixes").out.decode().splitlines()
    assert first.startswith("a dog") and blank == "" and last.startswith("the")
    first, blank, _, last = run("translate", model, "in", "--require", "phrases.tsv", "--beam-size", 4,
                                ).out.decode().splitlines()
    assert "cat" in first and "dog" in first and blank == "" and "house" in last
    piped = run("translate", model, "--prefix", "prefixes", "--require", "phrases.tsv",
                stdin=(directory / "in").read_bytes()).out.decode().splitlines()
    assert piped[0].startswith("a dog") and "cat" in piped[0] and piped[3].startswith("the") and "house" in piped[3]
    any_casing = run("translate", model, "in", "--require", "phrases.tsv", "--beam-size", 4,
                     "--set", "decoding.ignore_case=true")
    first, blank, _, last = any_casing.out.decode().lower().splitlines()
    assert "cat" in first and "dog" in first and blank == "" and "house" in last


@pytest.mark.parametrize("option", ["--prefix", "--require"])
def test_files_beside_the_input_match_it_line_by_line(run, model, directory, option):
    (directory / "two").write_text("a\nb\n")
    for lines, count in ((b"ein\n", 1), (b"ein\nzwei\ndrei\n", 3)):
        (directory / "in").write_bytes(lines)
        for source, options in (("standard input", ()), ("in", ("in",))):
            result = run("translate", model, *options, option, "two", stdin=lines)
            assert result.code == 2 and f"{source}: {count} line{'s' * (count > 1)}; two: 2 lines." in result.err
    assert "no.txt cannot be read" in run("translate", model, option, "no.txt").err


def test_forbidden_phrases_occur_in_no_translation(run, model):
    words = set(run("translate", model, stdin=b"ein Hund\neine Katze\n").out.decode().split())
    readable = [word for word in words if word.isalnum()][:3]
    forbidding = [part for word in readable for part in ("--forbid", word)]
    result = run("translate", model, *forbidding, "--set", "decoding.no_repeat_ngram=2",
                 stdin=b"ein Hund\neine Katze\n")
    assert result.code == 0 and not set(readable) & set(result.out.decode().split())
    swapped = [part for word in readable for part in ("--forbid", word.swapcase())]
    result = run("translate", model, *swapped, "--set", "decoding.ignore_case=true", stdin=b"ein Hund\neine Katze\n")
    assert not {word.lower() for word in readable} & set(result.out.decode().lower().split())


def test_lengths_coverage_and_groups_reach_the_search(run, model):
    def record(*options: object, **decoding: object) -> dict:
        settings = [part for key, value in decoding.items() for part in ("--set", f"decoding.{key}={value}")]
        (found,) = records(run("translate", model, "--format", "jsonl", *options, *settings, stdin=b"ein Hund\n"))
        return found

    assert record(max_length=2)["tokens"] == 3 and record(min_length=9)["tokens"] >= 10
    assert record(max_length=1, coverage_penalty=5)["score"] < record(max_length=1)["score"]
    beam = record("--beam-size", 4, "--n-best", 4)
    assert record("--beam-size", 4, "--n-best", 4, diverse_groups=2, diverse_strength=9)["n_best"] != beam["n_best"]
    assert record(beam_size=4, n_best=4) == beam


@pytest.mark.parametrize("options", [("--beam-size", 4), ("--sampling",)])
def test_minimum_bayes_risk_ranks_by_agreement(run, model, options):
    (record,) = records(run("translate", model, "--set", "decoding.mbr=4", "--n-best", 2, "--format", "jsonl", *options,
                            stdin=b"ein Hund\n"))
    assert 0 < record["score"] <= 100 and record["log_probability"] < 0
    assert run("translate", model, "--set", "decoding.mbr=4", *options, stdin=b"ein Hund\n").out.decode() \
        == record["translation"] + "\n"


def test_jsonl_contains_word_confidence(run, model):
    (record,) = records(run("translate", model, "--word-confidence", "--n-best", 2, "--format", "jsonl",
                            stdin=b"ein Hund\n"))
    assert set(record["words"][0]) == {"word", "confidence"}
    assert all(0 < word["confidence"] <= 1 for one in record["n_best"] for word in one["words"])
    assert record["n_best"][0]["words"] == record["words"]


def test_several_models_translate_together(run, model, directory, recipe, tokenizers):
    other_model(directory, recipe, tokenizers)
    language_model(directory, tokenizers)
    data = "".join(f"{line}\n" for line in GERMAN).encode()

    def translations(*options: object) -> bytes:
        result = run("translate", model, "--precision", "fp32", *options, stdin=data)
        assert result.code == 0, result.err
        return result.out

    alone = translations()
    assert translations("--ensemble", model) == alone
    assert translations("--fusion", "speaker", "--fusion-weight", 0) == alone
    assert translations("--fusion", "speaker", "--fusion-weight", 5) != alone
    assert translations("--ensemble", "other", "--set", "decoding.ensemble_mean=log_probability") != alone


@pytest.mark.slow
def test_several_models_translate_in_several_workers_as_in_one(run, model, directory, recipe, tokenizers):
    other_model(directory, recipe, tokenizers)
    alone, shared = (run("translate", model, "--precision", "fp32", "--ensemble", "other", *options,
                         stdin=b"ein Hund\neine Katze\n") for options in ((), ("--workers", 2)))
    assert shared.code == 0 and shared.out == alone.out


def test_a_language_model_cannot_be_an_ensemble_member(run, model, directory, tokenizers):
    language_model(directory, tokenizers)
    result = run("translate", model, "--ensemble", "speaker", stdin=b"ein Hund\n")
    assert result.code == 2 and "speaker is a language model, which cannot be a member of an ensemble" in result.err


def test_word_confidence_requested_by_the_recipe_is_in_jsonl(run, directory, recipe, tokenizers):
    text = RECIPE.replace("beam_size: 2,", "beam_size: 2, word_confidence: true,")
    place = save_bundle(directory / "sure", random_weights(recipe, 1), text, tokenizers.files(), {})
    record = json.loads(run("translate", place, "--format", "jsonl", stdin=b"ein Hund\n").out)
    assert [set(word) for word in record["words"]] == [{"word", "confidence"}] * len(record["words"])


def test_a_closed_standard_output_is_reported(model):
    command = [sys.executable, "-m", "seq2seq", "translate", model]
    done = subprocess.run(command, input=b"ein Hund\n", stderr=subprocess.PIPE, preexec_fn=lambda: os.close(1))
    assert done.returncode == 2 and b"standard output is closed" in done.stderr


def test_models_of_other_vocabularies_are_refused(run, model, directory, recipe):
    other = train_tokenizers([("ein Haus", "a house"), *zip(GERMAN, ENGLISH, strict=True)], recipe.tokenizer, seed=1)
    other_model(directory, recipe, other)
    language_model(directory, other)
    for option, name in (("--ensemble", "other"), ("--fusion", "speaker")):
        result = run("translate", model, option, name, stdin=b"ein Hund\n")
        assert result.code == 2 and "different vocabularies" in result.err and not result.out


@pytest.mark.parametrize(("options", "message"), [
    (["--sampling", "--beam-size", 3], "--beam-size has no effect: sampling has no beam"),
    (["--top-p", 0.5], "--top-p: affects only samples; turn sampling on, or leave it out"),
    (["--temperature", 0.5], "--temperature: affects only samples"),
    (["--set", "decoding.mbr=32"], "--set decoding.mbr=32: a beam of 2 cannot produce 32 candidates; raise beam_size"),
    (["--sampling", "--temperature", 0], "--temperature"),
    (["--sampling", "--set", "decoding.diverse_groups=2"], "--sampling: cannot be combined with diverse groups"),
    (["--set", "decoding.diverse_groups=3"], "a beam of 2 cannot be divided into 3 groups of equal size; a beam of 3"),
    (["--set", "decoding.diverse_strength=3"], "strength=3 has no effect: the beam has only one group. Add --set"),
    (["--seed", 3], "--seed has no effect: beam search draws nothing at random. Add --sampling."),
    (["--set", "decoding.ignore_case=true"], "Add --require FILE or --forbid TEXT"),
    (["--set", "decoding.mbr=2", "--n-best", 3, "--format", "jsonl"], "2 candidates cannot produce 3 translations"),
    (["--n-best", 3, "--format", "jsonl"], "--n-best: a beam of 2 cannot produce 3 translations; raise beam_size"),
    (["--set", "decoding.min_length=3", "--set", "decoding.max_length=2"],
     "--set decoding.max_length=2: must not be smaller than min_length (3), found 2"),
    (["--forbid", " "], "--forbid: a phrase must not be blank"), (["--word-confidence"], "Add --format jsonl"),
    (["--set", "decoding.word_confidence=true"], "word_confidence=true adds numbers to the output"),
    (["--n-best", 2], "--n-best gives several translations of a line"),
    (["--set", "decoding.n_best=2"], "--set decoding.n_best=2 gives several translations of a line"),
    (["--set", "decoding.ensemble_mean=probability"], "has no effect: there is only one model. Add --ensemble MODEL"),
    (["--fusion-weight", 0.5], "--fusion-weight has no effect: there is no language model. Add --fusion LM"),
    (["--ensemble", "nothing"], "nothing does not exist"),
    (["--sampling", "--require", "phrases"], "--require works only with beam search in a single group"),
    (["--forbid", "caf\udce9"], "a phrase contains bytes that are not UTF-8"),
    (["--length-penalty", 1000], "--length-penalty: expected a number of at most 10; found 1000"),
    (["--set", "decoding.mbr=5000"], "--set decoding.mbr=5000: expected a number of at most 1,000; found 5000"),
    (["--device", "meta"], "device 'meta' cannot be used here. Use cpu"),
    (["--device", "tpu"], "there is no device 'tpu'. Devices are cpu, cuda, cuda:1, …, and auto. Use cpu"),
    (["--set", "decoding.min_length=500"], "need a translation of 500 pieces, but the maximum is"),
])
def test_options_that_make_no_sense_together_are_refused(run, model, directory, options, message):
    (directory / "phrases").write_text("cat\n")
    result = run("translate", model, *options, stdin=b"ein Hund\n")
    assert (result.code, result.out) == (2, b"") and message in result.err


@pytest.mark.parametrize(("settings", "message"), [
    (["decoding.top_k"], "--set decoding.top_k: expected KEY=VALUE"),
    (["decoding.topk=10"], "--set decoding.topk=10: unknown key. Did you mean 'top_k'?"),
    (["training.max_steps=3"], "--set training.max_steps=3: only keys of the decoding section can be set here"),
    (["model.base=tiny"], "--set model.base=tiny: only keys of the decoding section can be set here"),
    (["beam_size=3"], "--set beam_size=3: only keys of the decoding section can be set here, such as "
                      "decoding.beam_size=1. Did you mean 'decoding.beam_size'?"),
    (["decoding={beam_size: 3}"], "expected decoding.KEY=VALUE, such as decoding.beam_size=1"),
    (["decoding.forbid.0=dog"], "--set decoding.forbid.0=dog: expected decoding.KEY=VALUE"),
    (["decoding.forbid=[dog"], "--set decoding.forbid=[dog:"),
    (["decoding.mbr=many"], "--set decoding.mbr=many: expected a whole number of at least 0 and of at most 1,000; "
                            "found 'many'"),
    (["decoding.length_penalty_form=Wu"], "expected 'power' or 'wu'; found 'Wu'. Did you mean 'wu'?"),
    (["decoding.topk=1", "training.seed=2"], "unknown key. Did you mean 'top_k'?\n--set training.seed=2: only keys of"),
    (["decoding.beam_size=3"], "--beam-size is short for --set decoding.beam_size, which is also given. Remove one"),
])
def test_keys_that_cannot_be_set_are_refused(run, model, settings, message):
    options = [part for setting in settings for part in ("--set", setting)]
    result = run("translate", model, "--beam-size", 2, *options, stdin=b"ein Hund\n")
    assert (result.code, result.out) == (2, b"") and message in result.err


@pytest.mark.parametrize("command", ["translate", "generate"])
@pytest.mark.parametrize(("options", "setting"), [
    (["--top-k", 10], "decoding.top_k=10"), (["--top-k=10"], "decoding.top_k=10"),
    (["--min-p", 0.1], "decoding.min_p=0.1"),
    (["--max-length", 7], "decoding.max_length=7"), (["--ignore-case"], "decoding.ignore_case=true"),
    (["--no-ignore-case"], "decoding.ignore_case=false"), (["--no-repeat-ngram", 3], "decoding.no_repeat_ngram=3"),
    (["--patience"], "decoding.patience=VALUE"), (["--batch-tokens", 5], "decoding.batch_tokens=5"),
    (["--ensemble-mean", "log_probability"], "decoding.ensemble_mean=log_probability"),
])
def test_a_removed_flag_names_its_replacement(run, command, options, setting):
    result = run(command, "model", *options)
    assert (result.code, result.out) == (2, b"")
    assert result.err == f"there is no option {options[0].partition('=')[0]}; use --set {setting}\n"


def test_other_unknown_options_are_refused_as_ever(run):
    result = run("translate", "model", "--beams", 3)
    assert result.code == 2 and "No such option: --beams" in result.err
    result = run("score", "model", "a", "b", "--top-k", 3)
    assert result.code == 2 and "No such option: --top-k" in result.err, "it has no --set"


def test_a_list_can_be_set(run, model):
    words = set(run("translate", model, stdin=b"ein Hund\neine Katze\n").out.decode().split())
    readable = [word for word in words if word.isalnum()][:3]
    flags = [part for word in readable for part in ("--forbid", word)]
    setting = f"decoding.forbid={json.dumps(readable)}"
    assert run("translate", model, "--set", setting, stdin=b"ein Hund\neine Katze\n").out \
        == run("translate", model, *flags, stdin=b"ein Hund\neine Katze\n").out


def test_the_recipe_may_say_how_to_decode(run, directory, recipe, tokenizers):
    text = RECIPE.replace("beam_size: 2,", "sampling: true, top_p: 0.9, seed: 5, no_repeat_ngram: 2, forbid: [dog],")
    place = save_bundle(directory / "sampler", random_weights(recipe, 1), text, tokenizers.files(), {})
    drawn = run("translate", place, stdin=b"ein Hund\neine Katze\n")
    assert drawn.code == 0
    assert run("translate", place, "--seed", 6, stdin=b"ein Hund\neine Katze\n").out != drawn.out
    searched = run("translate", place, "--no-sampling", "--top-p", 1, stdin=b"ein Hund\neine Katze\n")
    assert searched.code == 0 and searched.out != drawn.out
    assert run("translate", place, "--no-sampling", stdin=b"ein Hund\neine Katze\n").out == searched.out


# score


def test_scores_are_those_of_the_model(run, model, directory):
    write_tests(directory)
    scores = Translator.load(model, precision="fp32").score(list(zip(GERMAN, ENGLISH, strict=True)))
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


def test_texts_with_different_numbers_of_lines_are_not_scored(run, directory, monkeypatch):
    monkeypatch.setattr(Translator, "load", None)                               # it is seen before the model is loaded
    (directory / "a").write_text("x\n" * 5)
    (directory / "b").write_text("x\n" * 3)
    result = run("score", "model", "a", "b")
    assert (result.code, result.out) == (2, b"")
    assert "a: 5 lines; b: 3 lines" in result.err


def test_a_pair_too_long_to_score_is_named(run, model, directory):
    (directory / "a").write_text("x\ny\n")
    (directory / "b").write_text("x\n" + "Hund " * 100)
    result = run("score", model, "a", "b")
    assert result.code == 2
    assert re.search(r"^b:2: \d+ pieces; the model accepts at most 30\.", result.err)


# evaluate


def test_any_systems_output_is_evaluated_without_a_model(run, directory):
    write_tests(directory)
    (directory / "other").write_text("x\n" * 4)
    result = run("evaluate", "--hypothesis", "data/test.en", "--reference", "other", "--reference", "data/test.en")
    assert result.code == 0
    assert re.match(rb"BLEU +100\.00  nrefs:2\|case:mixed\|eff:no\|tok:13a", result.out)
    assert [line.split()[0] for line in result.out.splitlines()] == [b"BLEU", b"chrF", b"TER"]
    scores = json.loads(run("evaluate", "--hypothesis", "data/test.en", "--reference", "data/test.en",
                            "--language", "zh", "--format", "json").out)
    assert scores["bleu"]["value"] == pytest.approx(100)
    assert "tok:zh" in scores["bleu"]["signature"]


def test_translations_on_standard_input_are_evaluated_like_a_file(run, directory):
    write_tests(directory)
    options = ["--reference", "data/test.en", "--format", "json"]
    piped = subprocess.run([sys.executable, "-m", "seq2seq", "evaluate", "--hypothesis", "-", *options],
                           input=(directory / "data" / "test.en").read_bytes(), capture_output=True, check=True)
    assert json.loads(piped.stdout) == json.loads(run("evaluate", "--hypothesis", "data/test.en", *options).out)


def test_only_the_metrics_that_are_named_are_measured(run, directory):
    write_tests(directory)
    (directory / "other").write_text("x\n" * 4)
    result = run("evaluate", "--hypothesis", "other", "--reference", "other", "--metric", "exact", "--metric", "chrf")
    assert [line.split()[:2] for line in result.out.splitlines()] == [[b"exact", b"100.00"], [b"chrF", b"100.00"]]
    result = run("evaluate", "--hypothesis", "other", "--reference", "data/test.en", "--metric", "exact")
    assert result.out == b"exact    0.00  nrefs:1|case:mixed|equal:line\n"


def test_the_scores_of_a_few_metrics_are_not_kept_with_the_model(run, directory, recipe, tokenizers):
    write_tests(directory)
    place = save_bundle(directory / "model", random_weights(recipe, 1), RECIPE.replace("root: data", "root: ../data"),
                        tokenizers.files(), {"step": 3})
    result = run("evaluate", place, "--metric", "exact", "--format", "json")
    assert (result.code, result.err) == (0, "")
    assert {name: list(scores) for name, scores in json.loads(result.out).items()}["first"] == ["exact"]
    assert "test" not in load_bundle(place).metadata


def test_evaluating_a_model_is_translating_and_comparing(run, model, directory):
    write_tests(directory)
    run("translate", model, "data/test.de", "-o", "translated")
    by_hand = run("evaluate", "--hypothesis", "translated", "--reference", "data/test.en", "--format", "json")
    result = run("evaluate", model, "--source", "data/test.de", "--reference", "data/test.en", "--format", "json")
    assert result.code == 0
    scores = json.loads(result.out)
    assert {score.pop("precision") for score in scores.values()} <= {"fp32", "bf16"}
    assert scores == json.loads(by_hand.out), "whose precision nobody knows"
    table = run("evaluate", model, "--source", "data/test.de", "--reference", "data/test.en", "--precision", "int8").out
    assert table.count(b"  precision:int8") == 3


def test_the_recipes_test_sets_are_used_and_the_scores_are_kept_with_a_run(run, directory, recipe, tokenizers):
    write_tests(directory)
    text = RECIPE.replace("root: data", "root: ../data")
    bundle, best = (save_bundle(directory / name, random_weights(recipe, 1), text, tokenizers.files(), {"step": 3})
                    for name in ("model", "mine/best"))
    (directory / "mine" / "recipe.yaml").write_text(text, encoding="utf-8")
    before = {path: path.read_bytes() for path in bundle.iterdir()}
    for model in (bundle, best):
        result = run("evaluate", model, "--format", "json")
        assert result.code == 0
        assert "first: bleu is" in result.err and "below the expected 90 to 100" in result.err
    assert {path: path.read_bytes() for path in bundle.iterdir()} == before, "a bundle is only read"
    metadata = load_bundle(best).metadata
    assert metadata["test"] == json.loads(result.out)
    assert metadata["step"] == 3
    assert run("evaluate", best).out.startswith(b"first\nBLEU ")


def test_a_run_finds_its_test_sets_from_anywhere(run, directory, recipe, tokenizers):
    write_tests(directory / "elsewhere")
    place = directory / "runs" / "tiny"
    save_bundle(place / "best", random_weights(recipe, 1), RECIPE, tokenizers.files(), {})
    (place / "recipe.yaml").write_text(recipe.with_directory(directory / "elsewhere").resolve().to_yaml(),
                                       encoding="utf-8")
    for model in (place, place / "best"):
        assert run("evaluate", model).out.startswith(b"first\nBLEU ")


def test_missing_test_sets_are_reported(run, model):
    result = run("evaluate", model)
    assert result.code == 2
    assert "test.de" in result.err and "Name files with --source and --reference" in result.err


@pytest.mark.parametrize("options, message", [
    ([], "name a MODEL to translate with, or --hypothesis"),
    (["model", "--hypothesis", "h", "--reference", "r"], "not both"),
    (["h", "r"], "one MODEL is expected, found 2 names. To score translations: seq2seq evaluate "
                 "--hypothesis FILE --reference FILE"),
    ([__file__, "--reference", "r"], "is a file, not a model. To score translations: seq2seq evaluate"),
    (["--hypothesis", "h"], "--hypothesis needs --reference"),
    (["model", "--source", "s"], "--source and --reference must be given together"),
    (["model", "--reference", "r"], "--source and --reference must be given together"),
    (["model", "--language", "zh"], "--language is for --hypothesis and --source"),
    (["--hypothesis", "h", "--reference", "r", "--language", "japanese"],
     "--language japanese: expected the code of the language, ja."),
    (["--hypothesis", "h", "--reference", "r", "--source", "s"], "Leave one out"),
    (["model", "--text", "t", "--metric", "bleu"], "--metric bleu is for translations; --text is evaluated by"),
])
def test_options_of_evaluate_that_exclude_each_other_are_refused(run, options, message):
    result = run("evaluate", *options)
    assert (result.code, result.out) == (2, b"")
    assert message in result.err


def test_the_help_of_evaluate_does_not_show_the_argument_that_only_catches_a_mistake(run):
    assert b"seq2seq evaluate [OPTIONS] [MODEL]" in (text := run("evaluate", "--help").out) and b"others" not in text


def test_files_that_do_not_match_are_refused_before_translating(run, model, directory, monkeypatch):
    monkeypatch.setattr(Translator, "load", None)
    (directory / "a").write_text("x\n" * 5)
    (directory / "b").write_text("x\n" * 3)
    result = run("evaluate", model, "--source", "a", "--reference", "b")
    assert result.code == 2
    assert "a: 5 lines; b: 3 lines" in result.err


@pytest.mark.parametrize("others", [[], ["--baseline", "theirs"]], ids=["alone", "compared"])
def test_files_of_evaluate_are_read_like_corpora(run, directory, others):
    lines = "".join(f"a dog runs through garden {number}\r\n" for number in range(7))
    (directory / "theirs").write_text(lines.replace("dog", "cat"), newline="")
    for ours, reference in (("\ufeff", ""), ("", "\ufeff")):
        (directory / "ours").write_text(ours + lines, encoding="utf-8", newline="")
        (directory / "reference").write_text(reference + lines.replace("\r", ""), encoding="utf-8", newline="")
        result = run("evaluate", "--hypothesis", "ours", "--reference", "reference", "--metric", "bleu", *others)
        assert result.code == 0 and b"100.0" in result.out
    for damaged in ("ours", "reference", *others[1:]):
        for name in ("ours", "reference", "theirs"):
            (directory / name).write_bytes(b"a dog\nthe k\xe4tzchen\n" if name == damaged else b"a dog\na cat\n")
        result = run("evaluate", "--hypothesis", "ours", "--reference", "reference", *others)
        assert result.code == 2 and f"{damaged}:2: byte 0xe4 at position 6 is not UTF-8" in result.err


# average


def make_run(place: Path, recipe: Recipe, tokenizers: Tokenizers, steps: list[int]) -> None:
    for step in steps:
        state = {"average.x": torch.ones(1)} if step == 0 else {}
        save_checkpoint(place, step, random_weights(recipe, step), state, {})
    (place / "recipe.yaml").write_text(recipe.to_yaml(), encoding="utf-8")
    save_tokenizers(tokenizers.files(), place / "tokenizer")


def test_the_average_of_a_run_is_the_mean_of_its_newest_checkpoints(run, directory, recipe, tokenizers):
    make_run(directory / "runs/tiny", recipe, tokenizers, [5, 7, 11])
    assert run("average", "runs/tiny", "--last", 2, "--output", "mean").code == 0
    bundle = load_bundle(directory / "mean")
    first, second = random_weights(recipe, 7), random_weights(recipe, 11)
    assert bundle.weights.keys() == first.keys()
    for name, weight in bundle.weights.items():
        torch.testing.assert_close(weight, (first[name] + second[name]) / 2)
    assert bundle.metadata["averaged_steps"] == [7, 11]
    said = run("average", "runs/tiny", "--last", 5, "--output", "all").err
    assert ("averaged 3 checkpoints (--last 5 was requested, but the run has only these checkpoints; "
            "training.keep_checkpoints is the number that a run keeps), saved at steps") in said
    assert run("translate", "mean", stdin=b"ein Hund\n").code == 0
    by_name = [f"runs/tiny/checkpoints/step-{step:08d}" for step in (11, 7, 7)]
    assert run("average", *by_name, "-o", "same").code == 0
    assert (directory / "same/model.safetensors").read_bytes() == (directory / "mean/model.safetensors").read_bytes()
    refused = run("average", *by_name, "--last", 1, "-o", "newest")
    assert refused.code == 2
    assert "step-00000011 is a checkpoint; --last selects the newest checkpoints of a run" in refused.err
    assert not (directory / "newest").exists()


def test_an_average_replaces_a_bundle_only_with_overwrite(run, model, directory, recipe, tokenizers):
    make_run(directory / "runs/tiny", recipe, tokenizers, [5])
    before = (directory / "model/model.safetensors").read_bytes()
    for output, message in ((model, "model is an existing bundle. Name a new directory, or add --overwrite"),
                            ("runs/tiny", "runs/tiny contains ")):
        refused = run("average", "runs/tiny", "-o", output)
        assert refused.code == 2 and message in refused.err
    assert (directory / "model/model.safetensors").read_bytes() == before
    assert run("average", "runs/tiny", "-o", "runs/tiny", "--overwrite").code == 2      # a run is never replaced
    assert run("average", "runs/tiny", "-o", model, "--overwrite").code == 0
    assert load_bundle(directory / "model").metadata["averaged_steps"] == [5]


def test_checkpoints_of_different_runs_are_not_averaged(run, directory, recipe, tokenizers):
    for name in ("one", "other"):
        make_run(directory / name, recipe, tokenizers, [5])
    result = run("average", "one", "other", "-o", "mean")
    assert result.code == 2
    assert "belong to 2 runs" in result.err
    assert not (directory / "mean").exists()


def test_a_directory_without_checkpoints_is_not_averaged(run, model):
    result = run("average", model, "-o", "mean")
    assert result.code == 2
    assert "is neither a run with checkpoints nor a checkpoint" in result.err


# train, and what every command has in common


def write_recipe(directory: Path) -> None:
    write_tests(directory)
    (directory / "recipe.yaml").write_text(RECIPE.replace("train.", "test."))


def test_options_of_train_reach_the_trainer(run, directory, monkeypatch):
    write_recipe(directory)
    calls = []
    monkeypatch.setattr(trainer, "train", lambda *arguments: calls.append(arguments) or {})
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
    (Stopped(2, "saved at step 7"), 130, "saved at step 7\n"),
])
def test_known_errors_have_their_exit_code_and_message(run, directory, monkeypatch, error, code, message):
    write_recipe(directory)
    monkeypatch.setattr(trainer, "train", lambda *arguments: (_ for _ in ()).throw(error))
    assert run("train", "recipe.yaml") == (code, b"", message)


def test_an_interrupt_has_exit_code_130(run, directory, monkeypatch):
    write_recipe(directory)
    monkeypatch.setattr(trainer, "train", lambda *arguments: (_ for _ in ()).throw(KeyboardInterrupt()))
    assert run("train", "recipe.yaml").code == 130


def test_an_unexpected_error_prints_a_traceback(run, directory, monkeypatch):
    write_recipe(directory)
    monkeypatch.setattr(trainer, "train", lambda *arguments: 1 // 0)
    result = run("train", "recipe.yaml")
    assert result.code == 1
    assert "test_cli.py" in result.err and "ZeroDivisionError" in result.err and "bug in seq2seq" in result.err


@pytest.mark.parametrize("error", [MemoryError(), torch.OutOfMemoryError("CUDA out of memory"),
                                   RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried …")], ids=repr)
def test_running_out_of_memory_is_reported_without_traceback(run, directory, monkeypatch, error):
    write_recipe(directory)
    monkeypatch.setattr(trainer, "train", lambda *arguments: (_ for _ in ()).throw(error))
    result = run("train", "recipe.yaml")
    assert result.code == 2 and result.err.startswith("Out of memory (")


def test_a_wrong_command_line_has_exit_code_2(run):
    for arguments in (["fly"], ["translate"], ["translate", "model", "--beam-size", "0"], ["train", "--fast"]):
        result = run(*arguments)
        assert (result.code, result.out) == (2, b"")
        assert "Usage" in result.err


def test_the_version_is_printed(run):
    assert run("--version") == (0, b"seq2seq 0.1.0\n", "")


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
        for command in ([], ["check"], ["train"], ["translate"], ["score"], ["evaluate"], ["average"]):
            assert main([*command, "--help"]) == 0
        slow = {"seq2seq.recipe.schema", "numpy", "sentencepiece"} & set(sys.modules)
        assert not slow, slow
        assert main(["train", "wrong.yaml"]) == 2
        assert main(["check", "wrong.yaml", "--set", "seed=x"]) == 2
        assert main(["evaluate", "--hypothesis", "data/test.en", "--reference", "data/test.en"]) == 0
        found = {"torch", "datasets"} & set(sys.modules)
        assert not found, found
    """)
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    told = result.stderr.splitlines()
    assert [line.split(":")[0] for line in told] == ["wrong.yaml"] * 6 + ["--set seed=x"]
    assert any("tokenizer.vocab_sise: unknown key. Did you mean 'vocab_size'?" in line for line in told)
    assert result.stdout.count("Examples") == 6


@pytest.mark.parametrize("command", [["train"], ["train", "--restart"], ["check"]])
@pytest.mark.parametrize("inside", ["", "/run"])
def test_a_file_is_no_run_directory(run, directory, command, inside):
    write_recipe(directory)
    Path("file").touch()
    result = run(*command, "recipe.yaml", "--run-dir", f"file{inside}")
    assert (result.code, result.out) == (2, b"")
    assert re.fullmatch(rf"--run-dir file{inside}: \S*file is a file. Name a directory, .*\n", result.err)


@pytest.mark.parametrize(("option", "value", "key"), [
    ("--device", "cpu", "device"), ("--precision", "fp32", "precision"), ("--threads", 3, "threads")])
def test_options_of_the_machine_are_short_for_keys_of_the_recipe(run, directory, monkeypatch, option, value, key):
    write_recipe(directory)
    recipes = []
    monkeypatch.setattr(trainer, "train", lambda recipe, *_: recipes.append(recipe) or {})
    monkeypatch.setattr("seq2seq.check.check_recipe", lambda recipe, *_: recipes.append(recipe) or Report("", []))
    monkeypatch.setattr("seq2seq.check.show_report", lambda report: None)
    for command in ("train", "check"):
        assert run(command, "recipe.yaml", option, value).code == 0
        assert getattr(recipes.pop().training, key) == value
        twice = run(command, "recipe.yaml", option, value, "--set", f"training.{key}={value}")
        assert (twice.code, twice.out) == (2, b"")
        assert twice.err == f"{option} is short for --set training.{key}, which is also given. Remove one of them.\n"
    assert not recipes


def test_training_on_a_device_that_is_not_there_is_refused(run, directory, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    write_recipe(directory)
    result = run("train", "recipe.yaml", "--device", "tpu")
    assert (result.code, result.out) == (2, b"")
    assert "there is no device 'tpu'" in result.err
    result = run("check", "recipe.yaml", "--device", "tpu")
    assert result.code == 2 and "training.device: there is no device 'tpu'" in result.err


ALL_COMMANDS = [command.__name__.rpartition(".")[2].rstrip("_").replace("_", "-") for command in COMMANDS]


@pytest.mark.parametrize("command", ALL_COMMANDS)
def test_help_is_wrapped_once(run, monkeypatch, command):
    """A line of help may be short only at the end of a paragraph or if the next word does not fit."""
    monkeypatch.setenv("COLUMNS", "80")
    shown = run(command, "--help").out.decode()
    above = shown.split("╭")[0].strip().split("\n \n")[0].splitlines()
    assert all(len(line) <= 80 for line in shown.splitlines())
    for line, following in itertools.pairwise(line.strip() for line in above):
        if line and following:
            assert len(line) + 1 + len(following.split()[0]) > 78, f"{line!r} ends before {following!r}"
    for line in shown.splitlines():
        if line.startswith("│"):
            assert not re.search(" <[^>]*$", re.sub(r"\[.*?\]", "", line)), f"the name of a value is cut: {line}"


@pytest.mark.parametrize("command", [(), *((command,) for command in ALL_COMMANDS)])
def test_the_help_shows_what_is_to_be_typed_and_no_types(run, monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "140")
    shown = run(*command, "--help").out.decode()
    assert not re.search(r"<\w+(\|\w+)*(\[\w+\])?>", shown.replace("<BT>", "")), "a value in angle brackets"
    assert not re.search(r"[{}]", shown)
    if command == ("translate",):
        assert "seq2seq translate [OPTIONS] MODEL [INPUT]" in shown
        assert re.search(r"--format +text\|jsonl ", shown) and re.search(r"--resume +Continue", shown)


def test_every_unusual_word_of_a_help_is_explained_there(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    words = {"pieces": "subword", "perplexity": "exp of the mean negative log-probability", "nat": "natural logarithm",
             "nats": "natural logarithm", "writes: the": "step that predicts the piece"}
    for command in ALL_COMMANDS:
        text = " ".join(run(command, "--help").out.decode().replace("│", " ").split()).lower()
        for word, explanation in words.items():
            if re.search(rf"\b{word}\b", text):
                assert explanation in text, f"{command}: {word}"


def test_a_shell_completes_commands_and_options(directory):
    for typed, expected in (("seq2seq tra", {"train", "translate"}), ("seq2seq train --dev", {"--device"})):
        environment = {**os.environ, "_SEQ2SEQ_COMPLETE": "complete_bash", "COMP_WORDS": typed,
                       "COMP_CWORD": str(len(typed.split()) - 1)}
        result = subprocess.run([sys.executable, "-m", "seq2seq"], env=environment, capture_output=True, text=True)
        assert set(result.stdout.split()) == expected, result.stderr


@pytest.mark.parametrize("command", ["train", "check"])
def test_the_help_lists_the_sizes_of_models(run, command):
    text = " ".join(run(command, "--help").out.decode().replace("│", " ").split())
    assert "tiny, small, base, big, rnn_small" in text


def test_translating_imports_nothing_that_training_and_measuring_need(model):
    """Runs in a new process, because the packages are already imported in this one. Importing torch._dynamo and sympy
    takes a second."""
    program = textwrap.dedent("""
        import sys
        from seq2seq.cli import main
        assert main(["translate", "model", "one.de", "--set", "decoding.max_length=3"]) == 0
        found = {"torch._dynamo", "sympy", "torch.utils.tensorboard", "tensorboard", "datasets", "pyarrow", "sacrebleu",
                 "transformers", "scipy", "matplotlib"} & set(sys.modules)
        assert not found, found
    """)
    Path("one.de").write_text("ein Hund\n")
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr


def test_the_module_is_the_command(directory):
    result = subprocess.run([sys.executable, "-m", "seq2seq", "translate", "nothing", "no.txt"], capture_output=True,
                            text=True, timeout=60)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == ("no.txt cannot be read: No such file or directory. Check its name; relative paths start "
                             f"at {directory}.\n")


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress], ids=["gz", "zst"])
def test_compressed_input_is_read_and_a_damaged_file_is_reported(run, model, directory, pack):
    name = f"text.{'gz' if pack is gzip.compress else 'zst'}"
    data = pack("\n".join(GERMAN * 300).encode())
    Path(name).write_bytes(data)
    assert run("translate", "model", name, "--beam-size", "1").out.count(b"\n") == len(GERMAN) * 300 - 1
    Path(name).write_bytes(data[:-9] + bytes(9))
    damaged = run("translate", "model", name)
    assert damaged.code == 2 and name in damaged.err and "Traceback" not in damaged.err
