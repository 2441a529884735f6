"""Validation: its engine, and that its scores are those of the evaluation."""

import pytest
from toy import FOUR_STEPS

from seq2seq.data.corpus import read_pairs
from seq2seq.evaluation.scores import score_pairs, to_dict
from seq2seq.inference import engines
from seq2seq.storage.checkpoints import best_bundle, bundle_metadata
from seq2seq.training.run import start_training, train
from seq2seq.translation.translator import Translator

RNN = "model={type: rnn, d_model: 16, dropout: 0.0}"
SETTINGS = ["training.max_steps=8", "training.validate_every=4", "metrics=[chrf]", "training.best_metric=chrf",
            "training.learning_rate=0.03", "decoding.max_length_offset=1"]


@pytest.fixture(autouse=True)
def bf16_is_fast(monkeypatch):
    """Else trainings in bf16 are refused, because it is emulated."""
    monkeypatch.setattr("seq2seq.devices.has_fast_bf16", lambda device: True)


@pytest.mark.parametrize(("precision", "settings"), [("bf16", []), ("fp32", []), ("bf16", [RNN])], ids=str)
def test_on_a_cpu_validation_test_and_evaluation_have_the_same_scores(toy_recipe, tmp_path, precision, settings):
    recipe = toy_recipe(f"training.precision={precision}", *SETTINGS, *settings)
    tested = train(recipe, tmp_path / "run")["small"]["chrf"]
    pairs = [(source, target) for _, source, target in read_pairs(recipe, recipe.data.valid[0])]
    evaluated = score_pairs(Translator.load(tmp_path / "run", "cpu", "reference"), pairs, ["chrf"])["chrf"]
    assert evaluated.precision == "fp32" and tested == evaluated
    assert bundle_metadata(best_bundle(tmp_path / "run"))["validation"]["chrf"] == to_dict({"chrf": evaluated})["chrf"]


def test_on_a_cpu_validation_translates_without_the_operators_of_pytorch(toy_recipe, tmp_path, monkeypatch):
    recipe = toy_recipe("training.precision=bf16", *FOUR_STEPS)
    if engines.native_obstacle(recipe.model, "fp32"):
        pytest.skip("the package was built without kernels")
    training = start_training(recipe, tmp_path / "run")
    monkeypatch.setattr(engines, "torch_engine", None)
    training.train()
    assert len(training.state.validations) == 2
