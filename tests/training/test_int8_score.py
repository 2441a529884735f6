"""At its end, a training measures BLEU in int8 beside the BLEU of its validation, and the bundle records both."""

import shutil
import signal
from dataclasses import replace

import pytest
from toy import train_toy
from trainings import final_weights, press_ctrl_c, same

from seq2seq.devices import cpu_flags
from seq2seq.evaluation.scores import score_pairs
from seq2seq.inference import engines
from seq2seq.inference.kernel_library import usable_libraries
from seq2seq.recipe import load_recipe
from seq2seq.signals import Stopped
from seq2seq.storage.averaging import average_checkpoints
from seq2seq.storage.checkpoints import best_bundle, bundle_metadata
from seq2seq.storage.int8_score import MAX_LOSS
from seq2seq.training.run import train
from seq2seq.training.validation import Validation
from seq2seq.translation.translator import Translator

pytestmark = pytest.mark.skipif(not usable_libraries(cpu_flags()), reason="the package was built without kernels")


STEPS = "training.max_steps=160", "training.validate_every=160"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Directory of a run that has learnt enough for a BLEU above 0, and which no test changes."""
    folder = tmp_path_factory.mktemp("trained")
    train_toy(folder, STEPS)
    assert bundle_metadata(best_bundle(folder / "run"))["int8"]["bleu"] > 1
    return folder


def copied(folder, place):
    shutil.copytree(folder, place)
    return place / "run"


@pytest.fixture
def run(trained, tmp_path):
    return copied(trained, tmp_path / "folder")


@pytest.fixture
def recipe(run):
    return lambda *settings: load_recipe(run.parent / "recipe.yaml", [*STEPS, *settings])


def bleu(run, precision, **decoding):
    pairs = list(zip(*((run.parent / f"valid.{side}").read_text().splitlines() for side in ("en", "de")), strict=True))
    translator = Translator.load(run, "cpu", precision)
    translator = replace(translator, decoding=translator.decoding.model_copy(update=decoding))
    return score_pairs(translator, pairs, ["bleu"])["bleu"].value


def best(run):
    return bundle_metadata(best_bundle(run))


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


def test_both_are_measured_with_the_search_of_the_present_recipe(run, recipe, monkeypatch):
    measured = measured_anew(monkeypatch)
    train(recipe("decoding.beam_size=1", "decoding.max_length_offset=1"), run)
    found, search = best(run)["int8"], {"beam_size": 1, "max_length_offset": 1}
    assert measured == ["fp32", "int8"]
    assert (found["bleu"], found["reference_bleu"]) == (bleu(run, "int8", **search), bleu(run, "fp32", **search))


@pytest.mark.parametrize(("loss", "default"), [(MAX_LOSS, "int8"), (MAX_LOSS + 0.01, "fp32")])
def test_a_model_that_loses_too_much_in_int8_is_not_used_in_int8_by_default(
        run, recipe, monkeypatch, capsys, loss, default):
    found = best(run)["int8"]
    measured_anew(monkeypatch, change=found["reference_bleu"] - loss - found["bleu"])
    train(recipe(), run)
    assert ("warning" in capsys.readouterr().err.lower()) == (default != "int8")
    assert Translator.load(run, "cpu").precision == default
    assert Translator.load(run, "cpu", "int8").precision == "int8"


@pytest.fixture
def ctrl_c_interrupts():
    """Ctrl-C raises KeyboardInterrupt, also if a shell started the tests in the background and so ignores Ctrl-C."""
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, previous)


def test_an_interrupted_measurement_is_repeated(trained, run, tmp_path, monkeypatch, ctrl_c_interrupts):
    longer = "training.max_steps=170", "training.validate_every=170"
    other = copied(trained, tmp_path / "other")
    train(load_recipe(run.parent / "recipe.yaml", longer), run)
    with monkeypatch.context() as context, pytest.raises(Stopped):
        measured_anew(context, press_ctrl_c)
        train(load_recipe(other.parent / "recipe.yaml", longer), other)
    assert best(other)["step"] in (160, 170) and ("int8" in best(other)) == (best(other)["step"] == 160)
    train(load_recipe(other.parent / "recipe.yaml", longer), other)
    place = "recipe_directory"
    assert best(other) | {place: ""} == best(run) | {place: ""} and same(*map(final_weights, (run, other)))


@pytest.mark.parametrize("setting", ["metrics=[chrf]", "model.copy=true"])
def test_without_bleu_or_int8_nothing_is_measured_or_said(run, recipe, monkeypatch, capsys, setting):
    measured = measured_anew(monkeypatch)
    train(recipe("training.max_steps=1", setting), run.parent / "other")
    assert not measured and "int8" not in best(run.parent / "other") and " int8" not in capsys.readouterr().err


def test_without_kernels_nothing_is_measured_or_said(run, recipe, monkeypatch, capsys):
    monkeypatch.setattr(engines, "_kernels", lambda precision: "there are none")
    measured = measured_anew(monkeypatch)
    train(recipe("training.max_steps=1"), run.parent / "other")
    assert not measured and "int8" not in best(run.parent / "other") and "there are none" not in capsys.readouterr().err


def test_an_average_of_checkpoints_has_no_record_of_other_weights(run, tmp_path):
    average_checkpoints([run], tmp_path / "average")
    assert "int8" not in bundle_metadata(tmp_path / "average")
