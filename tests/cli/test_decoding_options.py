"""Options of commands that are made from the recipe's section `decoding`."""

import re

import pytest
from command_files import GERMAN, run_command, save_model

from seq2seq.cli.decoding_options import LEFT_OUT, option_of
from seq2seq.recipe import DecodingSection

KEYS = DecodingSection.model_fields


@pytest.mark.parametrize("command", ["translate", "generate", "serve"])
def test_each_key_of_the_section_is_an_option_with_its_text_and_default(command):
    shown = " ".join(re.sub("[│╭─╮╰╯]", " ", run_command(command, "--help").out.decode()).split())
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


def test_the_options_of_a_command_leave_its_own_parameters_alone(tmp_path):
    code, out, err = run_command("translate", "model", "--ensemble-mean", "probability")
    assert (code, out) == (2, b"") and "--ensemble MODEL" in err
