"""`translate` writes one line for each line of input: for any bytes, any Unicode, lines of any length."""

import io
import json
import random
import sys
from collections.abc import Iterator

import hypothesis
import pytest
import typer
from hypothesis import strategies
from random_models import recipe_text, save_random_model, trained_tokenizers

from seq2seq import cli
from seq2seq.translation.translator import Translator

# The model is random. Its translations are short, so that many can be made.
RECIPE = recipe_text(
    283, "d_model: 6, encoder_layers: 1, decoder_layers: 1, num_heads: 1, feed_forward: 7, max_positions: 101",
    "beam_size: 1, max_length: 3", max_pieces=97)
PAIRS = [("ein Hund läuft", "a dog runs"), ("die Katze schläft im Haus", "the cat sleeps in the house")]


@pytest.fixture(scope="module")
def translate(tmp_path_factory) -> Iterator:
    """Function that translates a text in this process with a model that is loaded once; returns exit code, output and
    errors."""
    place = tmp_path_factory.mktemp("models") / "model"
    bundle = save_random_model(place, RECIPE, trained_tokenizers(RECIPE, PAIRS), seed=1)
    loaded, command = Translator.load(bundle, "cpu", "fp32", 1), typer.main.get_command(cli.application([]))

    def translate(text: bytes, *options: str) -> tuple[int, bytes, str]:
        out, err = io.BytesIO(), io.StringIO()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Translator, "load", lambda *arguments, **options: loaded)
            patch.setattr(cli, "application", lambda words: command)
            for name, stream in {"stdin": io.BytesIO(text), "stdout": out}.items():
                patch.setattr(sys, name, io.TextIOWrapper(stream, encoding="utf-8", write_through=True))
            patch.setattr(sys, "stderr", err)
            code = cli.main(["translate", str(bundle), *options])
            return code, out.getvalue(), err.getvalue()

    yield translate


def check(translate, text: bytes) -> None:
    """Check all guarantees about the translation of a text."""
    code, out, err = translate(text)
    if code == 2:                                                               # by its beginning, it is no text
        assert out == b"" and "--document lines" in err, err
        code, out, err = translate(text, "--document", "lines")
    assert code == 0 and "Traceback" not in err, err
    # A byte order mark before the first line is left out.
    lines, translations = text.removeprefix(b"\xef\xbb\xbf").split(b"\n"), out.split(b"\n")
    assert len(translations) == len(lines)
    for line, translation in zip(lines[:-1], translations[:-1], strict=True):
        assert translation.endswith(b"\r") or not line.endswith(b"\r")
    for line, translation in zip(lines, translations, strict=True):
        if not line.decode(errors="replace").strip():
            assert translation == line.decode(errors="replace").encode()
        translation.decode()                                                    # UTF-8 whatever came in
    code, out, err = translate(text, "--format", "jsonl", "--document", "lines")
    assert code == 0, err
    records = [json.loads(record) for record in out.split(b"\n") if record]
    assert len(records) == len(lines) - text.endswith(b"\n") - (text == b"")
    for number, (record, line, translation) in enumerate(zip(records, lines, translations, strict=False), start=1):
        ended = number < len(lines) and line.endswith(b"\r")
        assert record["line"] == number
        assert record["source"] == line.removesuffix(b"\r" if ended else b"").decode(errors="replace")
        assert record["translation"] == translation.removesuffix(b"\r" if ended else b"").decode()


# Text of all planes, of what text must not hold, of all kinds of white space and line ends, and bytes that are no text.
CHARACTERS = strategies.characters(exclude_categories=["Cs"])
CONTROLS = strategies.sampled_from([*map(chr, range(32)), "\x7f", "\x85", "\u2028", "\u2029", "\ufeff", "\ufffd",
                                    "\ufffe", "\uffff", "\u200d", "\u202e", "\U000e0001", "\U0010ffff", "\u2581",
                                    "\ue000"])
WORDS = strategies.sampled_from(["Hund", "Katze", "1987", "http://a.example/1", "a@b.example", "</s>", "<0x0A>", "。",
                                 "狗", "กขค", "🏳️‍🌈", "e\u0301", " ", "  ", "\t", "\u3000", "\n", "\r\n", "\r", "..."])
TEXT = strategies.lists(strategies.one_of(CHARACTERS, CONTROLS, WORDS, strategies.text(CHARACTERS, max_size=11)),
                        max_size=29).map("".join)
BYTES = strategies.one_of(
    TEXT.map(str.encode), strategies.binary(max_size=101), TEXT.map(lambda text: text.encode("utf-16")),
    strategies.tuples(TEXT, strategies.binary(max_size=5), TEXT).map(
        lambda parts: parts[0].encode() + parts[1] + parts[2].encode()),
    strategies.just(b""), strategies.just(b"\n"), strategies.just(b"\n\n\r\n \n"))

SETTINGS = {"deadline": None, "derandomize": True, "database": None,
            "suppress_health_check": list(hypothesis.HealthCheck)}


@hypothesis.settings(max_examples=6, **SETTINGS)
@hypothesis.given(text=BYTES)
def test_any_text_is_translated_line_by_line(translate, text):
    check(translate, text)


@pytest.mark.slow
@hypothesis.settings(max_examples=2000, **SETTINGS)
@hypothesis.given(text=BYTES)
def test_2000_texts_are_translated_line_by_line(translate, text):
    check(translate, text)


def long_lines(seed: int, length: int) -> bytes:
    """A line of random characters between short lines."""
    draw = random.Random(seed)
    units = [["Hund "], ["a"], ["Das ist ein Satz. "], ["狗跑。"], ["狗"], ["é", "\u0301"], ["\x00", "\x01 "],
             [" ", "\t", "x"],
             ["http://a.example/"], ["1.", "2,"], ["🏳️‍🌈"], [chr(code) for code in range(0x21, 0x2FFF)],
             [chr(code) for code in range(0x1F000, 0x1FAFF)], ["? ", "! ", ". "], ["ab", "cd "], ["\ufffd"], ["\u2028"],
             ["@a.b"], ["<a>", "</a>"], ["\r", "-"]][seed % 20]
    line = ""
    while len(line) < length:
        line += "".join(draw.choices(units, k=1000))
    return b"ein Hund\n" + line[:length].encode() + b"\r\n" * (seed % 3) + b"\xff" * (seed % 2)


@pytest.mark.parametrize(("seed", "length"), [
    (0, 10_000), *(pytest.param(seed, 100_000, marks=pytest.mark.slow) for seed in range(20))])
def test_a_line_of_many_thousand_characters_is_one_line(translate, seed, length):
    check(translate, long_lines(seed, length))
