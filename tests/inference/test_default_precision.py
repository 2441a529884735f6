"""The precision of a model if the user names none: the fastest to translate, the reference for measurements."""

import importlib
import inspect
import pkgutil

import pytest
from bundle_metadata import change_metadata
from random_models import GERMAN, parsed, recipe_text, save_random_model, trained_tokenizers

from seq2seq import cli
from seq2seq.devices import choose_precision
from seq2seq.errors import CheckpointError
from seq2seq.evaluation.systems import read_system
from seq2seq.inference.engines import default_precision
from seq2seq.inference.load_model import read_stored_model
from seq2seq.translation.translator import Translator
from seq2seq.translation.worker_processes import TranslatorPool

SIZES = "d_model: 12, encoder_layers: 1, decoder_layers: 1, num_heads: 2, feed_forward: 7, max_positions: 31"
SCORE = {"bleu": 41.9, "reference_bleu": 42.0, "reference_precision": "bf16", "sentences": 1014, "signature": "tok:13a"}
DEFAULTS = {
    "translate": "auto", "serve": "auto", "shortlist": "auto",
    "generate": "reference", "evaluate": "reference", "compare": "reference", "tune": "reference",
    "report": "reference", "check": None, "train": None, "adapt": None,
    "score": "fp32", "rescore": "fp32", "align": "fp32", "attention": "fp32",
}


@pytest.fixture
def make(tmp_path, libraries):
    """Function that writes a bundle with a recipe's model section and metadata."""
    def written(model=SIZES, **metadata):
        text = recipe_text(283, model, "beam_size: 2")
        place = save_random_model(tmp_path / f"model{len(list(tmp_path.iterdir()))}", text, trained_tokenizers(text), 1)
        change_metadata(place, **metadata)
        return place

    return written


def default_of(function):
    default = inspect.signature(function).parameters["precision"].default
    return getattr(default, "value", default)


def test_each_command_has_its_default():
    commands = {name: getattr(importlib.import_module(f"seq2seq.cli.{name}"), name, None)
                for _, name, _ in pkgutil.iter_modules(cli.__path__)}
    with_precision = {name: command for name, command in commands.items()
                      if command and "precision" in inspect.signature(command).parameters}
    assert {name: default_of(command) for name, command in with_precision.items()} == DEFAULTS
    functions = Translator.load, TranslatorPool, read_system
    assert list(map(default_of, functions)) == ["auto", "auto", "reference"]


@pytest.mark.parametrize(("device", "expected"), [("cpu", "int8"), ("cuda", "reference"), ("cuda:1", "reference")])
def test_auto_is_int8_on_a_cpu_only(make, device, expected):
    assert default_precision(read_stored_model(make()), device) == expected


@pytest.mark.parametrize(("bleu", "default"), [(41.9, "int8"), (41.7, "int8"), (41.69, "reference"), (0, "reference"),
                                               (43, "int8"), (100, "int8")])
def test_the_loss_that_the_bundle_records_decides(make, capsys, bleu, default):
    place = make(int8=SCORE | {"bleu": bleu})
    precision = choose_precision(default, "cpu")
    assert Translator.load(place, "cpu").precision == precision
    assert capsys.readouterr().err.count(f"{bleu:.2f}") == (precision != "int8")
    for chosen in ("int8", "fp32"):
        assert Translator.load(place, "cpu", chosen).precision == chosen


@pytest.mark.parametrize("bleu", [41.9, 30.0])
def test_workers_have_the_default_of_a_single_translator(make, bleu):
    place = make(int8=SCORE | {"bleu": bleu})
    with TranslatorPool(place, 1, "cpu") as pool:
        assert pool.precision == Translator.load(place, "cpu").precision
        assert len(pool.translate(GERMAN)) == len(GERMAN)


def test_each_member_of_an_ensemble_has_its_own_default(make):
    ensemble = Translator.load(make(), "cpu", ensemble=[make(int8=SCORE | {"bleu": 30.0})])
    assert ensemble.precision == "int8" and ensemble.other_engines[0].precision == choose_precision("reference", "cpu")
    assert len(ensemble.translate(GERMAN)) == len(GERMAN)


def test_a_model_without_int8_has_the_reference_precision_and_says_why(make, capsys):
    assert Translator.load(make(f"{SIZES}, copy: true"), "cpu").precision == choose_precision("reference", "cpu")
    assert "copies pieces of the source" in capsys.readouterr().err


@pytest.mark.parametrize("entry", [
    "much", [41.9, 42.0], {}, {"bleu": 41.9}, SCORE | {"bleu": "41.9"}, SCORE | {"bleu": float("nan")},
    SCORE | {"reference_bleu": 1e400}, SCORE | {"sentences": "7"}, SCORE | {"more": 1}], ids=str)
def test_a_record_of_another_kind_is_reported(make, entry):
    place = make(int8=entry)
    with pytest.raises(CheckpointError, match="int8 is"):
        Translator.load(place, "cpu")
    assert Translator.load(place, "cpu", "int8").precision == "int8"


def test_a_language_model_has_the_reference_precision_without_a_message(tmp_path, capsys):
    text = "\n".join(["name: tiny", "languages: {target: en}", "data:", "  train: [{text: train.en}]",
                      "  valid: {text: valid.en}", "  cleaning: {max_pieces: 29}", "tokenizer: {vocab_size: 283}",
                      "model: {type: language_model, d_model: 8, decoder_layers: 1, num_heads: 2, feed_forward: 7, "
                      "max_positions: 31}", ""])
    assert not parsed(text).task.has_source
    place = save_random_model(tmp_path / "model", text, trained_tokenizers(text), 1)
    assert Translator.load(place, "cpu").precision == choose_precision("reference", "cpu")
    assert not capsys.readouterr().err
