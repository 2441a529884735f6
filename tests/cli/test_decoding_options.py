"""Options of commands that are made from the recipe's section `decoding`."""

import os
import re
import subprocess
import sys

import pytest
from command_files import GERMAN, run_command, save_model

from seq2seq.cli.decoding_options import LEFT_OUT, decoding_options, option_of
from seq2seq.recipe import DecodingSection

KEYS = DecodingSection.model_fields
FRAME = re.compile("[│╭─╮╰╯]")


def help_of(command: str) -> str:
    return " ".join(FRAME.sub(" ", run_command(command, "--help").out.decode()).split())


class LongerSection(DecodingSection):
    """A section with one more key."""

    volume: float = 7.0
    """Loudness of `beam_size` voices. Another sentence."""


def test_a_new_key_of_the_section_is_an_option_of_every_command(monkeypatch):
    monkeypatch.setattr("seq2seq.recipe.decoding_section.DecodingSection", LongerSection)
    decoding_options.cache_clear()
    try:
        for command in ("translate", "generate", "serve"):
            assert "--volume X Loudness of --beam-size voices. [default: (the recipe's, else 7.0)]" in help_of(command)
    finally:
        decoding_options.cache_clear()


@pytest.mark.parametrize("command", ["translate", "generate", "serve"])
def test_each_key_of_the_section_is_an_option_with_its_text_and_default(command):
    shown = help_of(command)
    left_out = LEFT_OUT.get(command, ())
    for key in KEYS:
        assert (f" {option_of(key)} " in shown) == (key not in left_out) or key == "batch_tokens", key
    assert "--beam-size N Number of hypotheses kept for each sentence; 1 is greedy search." in shown
    assert "(the recipe's, else 5)" in shown and "`" not in shown


def test_keys_without_effect_in_a_command_are_keys_of_the_section():
    for command, keys in LEFT_OUT.items():
        assert set(keys) <= set(KEYS), command


def test_an_option_overrides_the_recipe_and_its_value_is_checked_by_the_section(tmp_path):
    model = save_model(tmp_path / "model")
    text = GERMAN[0].encode()
    assert run_command("translate", model, "--max-length", "null", "--safety-net", "--require", "dog", "--beam-size", 4,
                       stdin=text).out.count(b"dog") >= 1
    for option, value in (("--beam-size", "0"), ("--beam-size", "[1"), ("--length-penalty-form", "google"),
                          ("--top-p", 0.5), ("--require", " ")):
        code, out, err = run_command("translate", model, option, value, stdin=text)
        assert (code, out) == (2, b"") and option in err, option


def test_an_option_without_effect_names_the_option_that_gives_it_one():
    code, out, err = run_command("translate", "model", "--ensemble-mean", "probability")
    assert (code, out) == (2, b"") and "--ensemble MODEL" in err


def test_a_shell_completes_the_options():
    environment = {**os.environ, "_SEQ2SEQ_COMPLETE": "complete_bash", "COMP_WORDS": "seq2seq generate --min-",
                   "COMP_CWORD": "2"}
    done = subprocess.run([sys.executable, "-m", "seq2seq"], env=environment, capture_output=True, text=True)
    assert set(done.stdout.split()) == {"--min-length", "--min-p"}, done.stderr
