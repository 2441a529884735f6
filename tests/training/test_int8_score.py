"""At its end, a training measures BLEU in int8 beside the BLEU of its validation, and the bundle records both."""

from dataclasses import replace

import pytest
from toy import copy_finished_run
from trainings import final_weights, press_ctrl_c, same

from seq2seq.devices import cpu_flags
from seq2seq.evaluation.scores import score_pairs
from seq2seq.inference import engines
from seq2seq.inference.kernel_library import usable_libraries
from seq2seq.recipe import load_recipe
from seq2seq.signals import Stopped
from seq2seq.storage.averaging import average_checkpoints
from seq2seq.storage.checkpoints import bundle_metadata
from seq2seq.storage.int8_score import MAX_LOSS
from seq2seq.training.run import train
from seq2seq.training.validation import Validation
from seq2seq.translation.translator import Translator

pytestmark = pytest.mark.skipif(not usable_libraries(cpu_flags()), reason="the package was built without kernels")


@pytest.fixture
def run(tmp_path):
    return copy_finished_run(tmp_path)


@pytest.fixture
def recipe(tmp_path, run):
    return lambda *settings: load_recipe(tmp_path / "recipe.yaml", settings)


def bleu(run, precision, **decoding):
    pairs = list(zip(*((run.parent / f"valid.{side}").read_text().splitlines() for side in ("en", "de")), strict=True))
    translator = Translator.load(run, "cpu", precision)
    translator = replace(translator, decoding=translator.decoding.model_copy(update=decoding))
    return score_pairs(translator, pairs, ["bleu"])["bleu"].value


def best(run):
    return bundle_metadata(run / "best")


def measured_anew(monkeypatch, act=lambda: None, change=0.0):
    """Call `act` before each BLEU that the end of a training measures, and change the result. Return the precisions of
    the models that were measured."""
    measured, measure = [], Validation.bleu

    def replaced(self, translator, group):
        measured.append(translator.precision)
        act()
        score = measure(self, translator, group)
        return replace(score, value=score.value + change)

    monkeypatch.setattr(Validation, "bleu", replaced)
    return measured


def test_the_bundle_has_bleu_in_int8_and_in_the_precision_of_the_training(run):
    validated = best(run)["validation"]["bleu"]
    assert best(run)["int8"] == {
        "bleu": bleu(run, "int8"), "reference_bleu": validated["value"], "reference_precision": "fp32", "sentences": 7,
        "signature": validated["signature"]}


def test_the_validation_is_not_translated_again_in_the_reference_precision(run, recipe, monkeypatch):
    before, measured = best(run), measured_anew(monkeypatch)
    train(recipe(), run)
    assert measured == ["int8"] and best(run) == before


@pytest.mark.parametrize(("setting", "decoding", "sentences"), [
    ("decoding.beam_size=1", {"beam_size": 1}, 7), ("training.valid_sentences=3", None, 3)])
def test_both_are_measured_with_the_search_and_the_sentences_of_the_present_recipe(
        run, recipe, monkeypatch, setting, decoding, sentences):
    measured = measured_anew(monkeypatch)
    train(recipe(setting), run)
    found = best(run)["int8"]
    assert measured == ["fp32", "int8"] and found["sentences"] == sentences
    if decoding:
        assert (found["bleu"], found["reference_bleu"]) == (bleu(run, "int8", **decoding), bleu(run, "fp32", **decoding))


@pytest.mark.parametrize(("loss", "default"), [(MAX_LOSS, "int8"), (MAX_LOSS + 0.01, "fp32")])
def test_a_model_that_loses_too_much_in_int8_is_not_used_in_int8_by_default(
        run, recipe, monkeypatch, capsys, loss, default):
    monkeypatch.setattr("seq2seq.devices.has_fast_bf16", lambda device: False)
    found = best(run)["int8"]
    measured_anew(monkeypatch, change=found["reference_bleu"] - loss - found["bleu"])
    train(recipe(), run)
    assert ("warning" in capsys.readouterr().err.lower()) == (default != "int8")
    assert Translator.load(run, "cpu").precision == default
    assert Translator.load(run, "cpu", "int8").precision == "int8"


def test_an_interrupted_measurement_is_repeated(run, recipe, monkeypatch):
    expected, weights = best(run), final_weights(run)
    train(recipe("training.max_steps=12"), run)                                 # another model
    later, weights = best(run), final_weights(run)
    copy = copy_finished_run(run.parent / "again")
    with monkeypatch.context() as context, pytest.raises(Stopped):
        measured_anew(context, press_ctrl_c)
        train(load_recipe(copy.parent / "recipe.yaml", ["training.max_steps=12"]), copy)
    if best(copy)["step"] == 12:
        assert "int8" not in best(copy) and "test" not in best(copy)
    else:
        assert best(copy) == expected
    train(load_recipe(copy.parent / "recipe.yaml", ["training.max_steps=12"]), copy)
    paths = "recipe_directory"
    assert best(copy) | {paths: ""} == later | {paths: ""} and same(final_weights(copy), weights)


@pytest.mark.parametrize("setting", ["metrics=[chrf]", "model.copy=true", "model.type=rnn"])
def test_without_bleu_or_int8_nothing_is_measured_or_said(run, recipe, monkeypatch, capsys, setting):
    measured = measured_anew(monkeypatch)
    train(recipe("training.max_steps=1", setting), run.parent / "other")
    assert not measured and "int8" not in best(run.parent / "other") and "int8" not in capsys.readouterr().err


def test_without_kernels_nothing_is_measured_or_said(run, recipe, monkeypatch, capsys):
    monkeypatch.setattr(engines, "_kernels", lambda: "there are none")
    measured = measured_anew(monkeypatch)
    train(recipe("training.max_steps=1"), run.parent / "other")
    assert not measured and "int8" not in best(run.parent / "other") and "there are none" not in capsys.readouterr().err


def test_an_average_of_checkpoints_has_no_record_of_other_weights(run, tmp_path):
    average_checkpoints([run], tmp_path / "average")
    assert "int8" not in bundle_metadata(tmp_path / "average")
