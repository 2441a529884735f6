"""Whole trainings on the simulated GPU: train, validate, test, resume and translate, as on the CPU."""

import json
import math

import pytest
import torch
from simulation import SimulatedGPU
from toy import WORDS

from seq2seq.data.batching import Shape
from seq2seq.model.variants import rnn
from seq2seq.recipe import load_recipe
from seq2seq.storage.checkpoints import newest_checkpoint
from seq2seq.training.clock import PHASES
from seq2seq.training.run import start_training, train
from seq2seq.translation.generation import generate
from seq2seq.translation.translator import Translator

pytestmark = pytest.mark.usefixtures("quick_tensorboard")

# With a tiny epsilon, Adam turns a gradient that is rounding alone, such as that of keys' biases, into a whole step.
FOUR_STEPS = ("training.max_steps=4", "training.validate_every=2", "training.log_every=1",
              "data.cleaning.max_pieces=30", "training.valid_sentences=3", "decoding.max_length_ratio=0.3",
              "decoding.safety_net=false", "training.batch_tokens=40", "training.epsilon=0.001", "model.d_model=32")
RNN = ("model={type: rnn, d_model: 32, encoder_layers: 1, decoder_layers: 1, num_heads: 1, dropout: 0.0}",)
SETTINGS = {
    "transformer": ("training.accumulation=3", "training.average.kind=last", "training.average.count=2"),
    "transformer-muon": ("training.optimizer=muon", "tokenizer.subword_sampling=0.1", "training.gradient_clip=0"),
    "transformer-copy": ("model.copy=true", "training.label_smoothing=0", "model.norm=pre"),
    "rnn": (*RNN, "model.cell=lstm"),
    "rnn-hard": (*RNN, "model.selection=hard"),
}
SLOW = ("transformer-copy", "transformer-muon", "rnn", "rnn-hard")

POINTER = """
name: sorting
languages: {source: numbers, target: order}
data:
  train: [{source: train.numbers, target: train.order}]
  valid: {source: train.numbers, target: train.order}
  test: {same: {source: train.numbers, target: train.order}}
  cleaning: {max_pieces: 17}
tokenizer: {type: words}
model: {type: pointer, d_model: 16, encoder_layers: 1, decoder_layers: 1, dropout: 0.0, max_positions: 19}
metrics: [exact]
training: {batch_tokens: 50, learning_rate: 0.02, warmup_steps: 2, max_steps: 4, validate_every: 2, log_every: 1,
           epsilon: 0.001, label_smoothing: 0.0, best_metric: exact, precision: fp32, threads: 1}
decoding: {beam_size: 2}
"""
LANGUAGE_MODEL = """
name: text
languages: {target: en}
data:
  train: [{text: train.en}]
  valid: {text: train.en}
  test: {same: {text: train.en}}
tokenizer: {vocab_size: 280}
model: {type: language_model, d_model: 16, decoder_layers: 1, num_heads: 2, feed_forward: 24, dropout: 0.0}
training: {batch_tokens: 100, learning_rate: 0.01, warmup_steps: 2, max_steps: 4, validate_every: 2, log_every: 1,
           epsilon: 0.001, precision: fp32, threads: 1}
"""


def scores(found):
    return {test: {metric: score.value for metric, score in of_test.items()} for test, of_test in found.items()}


def records(run):
    """The log without what depends on the clock."""
    lines = (run / "metrics.jsonl").read_text().splitlines()
    clock = ("seconds", "peak_memory", "tokens_per_second", *PHASES)
    return [{key: value for key, value in json.loads(line).items() if key not in clock} for line in lines]


def numbers(record):
    return {key: value for key, value in record.items() if not isinstance(value, str)}


def assert_same_training(found, expected, tolerance=1e-4):
    """Compare the logs and the weights of two runs: equal to rounding in fp32."""
    assert len(records(found)) == len(records(expected)) >= 4
    for record, same in zip(records(found), records(expected), strict=True):
        assert numbers(record) == pytest.approx(numbers(same), rel=1e-3, abs=1e-6)
    weights = newest_checkpoint(found).model
    for name, weight in newest_checkpoint(expected).model.items():
        torch.testing.assert_close(weights[name], weight, atol=tolerance, rtol=0, msg=name)


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ())
                                  for name in SETTINGS])
def test_a_training_equals_the_cpus(toy_recipe, tmp_path, monkeypatch, name):
    if name == "rnn-hard":                                                      # draws equally many random numbers
        monkeypatch.setattr(rnn, "plan_active_rows", lambda sentences: ([len(sentences)] * sentences.longest, None))
        monkeypatch.setattr(Shape, "rounded", lambda shape: shape)
    recipe = toy_recipe(*FOUR_STEPS, *SETTINGS[name])
    lines = (tmp_path / "valid.en").read_text().splitlines()
    expected = scores(train(recipe, tmp_path / "cpu"))
    translated = [best.text for best, *_ in Translator.load(tmp_path / "cpu", "cpu", "fp32").translate(lines)]
    with SimulatedGPU():
        found = scores(train(recipe, tmp_path / "gpu"))
        again = [best.text for best, *_ in Translator.load(tmp_path / "gpu", "cuda", "fp32").translate(lines)]
    assert (found, again) == (expected, translated)
    # Muon makes whole steps of all directions of a gradient, those of rounding included.
    assert_same_training(tmp_path / "gpu", tmp_path / "cpu", 0.05 if "muon" in name else 1e-4)


def test_heads_of_a_size_without_kernels_are_reported(toy_recipe, tmp_path, capsys):
    pytest.importorskip("triton")
    with SimulatedGPU():
        for d_model in (16, 32):
            recipe = toy_recipe("training.precision=bf16", f"model.d_model={d_model}")
            training = start_training(recipe, tmp_path / str(d_model))
            assert (training.step.shape is None) == (d_model == 16)
    assert capsys.readouterr().err.count("heads of 8 features") == 1


@pytest.mark.slow
def test_a_pointer_network_trains_as_on_the_cpu(tmp_path):
    lists = [[number * step % 11 for number in range(1, 3 + step)] for step in range(2, 7)]
    (tmp_path / "train.numbers").write_text("".join(f"{' '.join(map(str, each))}\n" for each in lists))
    (tmp_path / "train.order").write_text("".join(
        f"{' '.join(str(1 + each.index(number)) for number in sorted(each, reverse=True))}\n" for each in lists))
    (tmp_path / "recipe.yaml").write_text(POINTER)
    recipe = load_recipe(tmp_path / "recipe.yaml")
    expected = scores(train(recipe, tmp_path / "cpu"))
    with SimulatedGPU():
        assert scores(train(recipe, tmp_path / "gpu")) == expected
    assert_same_training(tmp_path / "gpu", tmp_path / "cpu")


@pytest.mark.slow
def test_a_language_model_trains_as_on_the_cpu(tmp_path):
    (tmp_path / "train.en").write_text("".join(f"{first} {second}\n" for first, _ in WORDS for second, _ in WORDS))
    (tmp_path / "recipe.yaml").write_text(LANGUAGE_MODEL)
    recipe = load_recipe(tmp_path / "recipe.yaml")
    expected = scores(train(recipe, tmp_path / "cpu"))
    written = [text.text for text, *_ in generate(Translator.load(tmp_path / "cpu", "cpu", "fp32"), ["one", ""],
                                                  max_length=5)]
    with SimulatedGPU():
        found = scores(train(recipe, tmp_path / "gpu"))
        again = [text.text for text, *_ in generate(Translator.load(tmp_path / "gpu", "cuda", "fp32"), ["one", ""],
                                                    max_length=5)]
    assert found["same"] == pytest.approx(expected["same"], rel=1e-3)
    assert again == written
    assert_same_training(tmp_path / "gpu", tmp_path / "cpu")


@pytest.mark.slow
def test_in_half_precision_the_losses_are_close_to_fp32s(toy_recipe, tmp_path):
    train(toy_recipe(*FOUR_STEPS), tmp_path / "cpu")
    with SimulatedGPU() as gpu:
        train(toy_recipe(*FOUR_STEPS, "training.precision=bf16"), tmp_path / "gpu")
        assert gpu.record.operators["_attention_backward_of_keys"]
    losses, expected = ([record["loss"] for record in records(tmp_path / name) if record["kind"] == "training"]
                        for name in ("gpu", "cpu"))
    assert losses == pytest.approx(expected, rel=0.01)


OLDER_GPU = 7, 5
"""Compute capability of a T4, which has fp16 but no bf16."""


@pytest.mark.slow
@pytest.mark.parametrize("settings", [(), RNN, ("model.copy=true", "training.label_smoothing=0")])
def test_an_older_gpu_trains_and_translates_in_fp16_as_in_fp32(toy_recipe, tmp_path, settings):
    train(toy_recipe(*FOUR_STEPS, *settings), tmp_path / "cpu")
    lines = (tmp_path / "valid.en").read_text().splitlines()
    expected = Translator.load(tmp_path / "cpu", "cpu", "fp32").translate(lines, beam_size=2)
    with SimulatedGPU(OLDER_GPU) as gpu:
        train(toy_recipe(*FOUR_STEPS, *settings, "training.precision=auto"), tmp_path / "gpu")
        assert not gpu.record.operators["_attention_backward_of_keys"]
        translator = Translator.load(tmp_path / "cpu", "cuda", "auto")
        assert translator.precision == "fp16"
        found = translator.translate(lines, beam_size=2)
    checkpoint = newest_checkpoint(tmp_path / "gpu")
    assert (checkpoint.info["precision"], checkpoint.state["optimizer.loss_scale.value"]) == ("torch.float16", 128)
    losses, same = ([record["loss"] for record in records(tmp_path / name) if record["kind"] == "training"]
                    for name in ("gpu", "cpu"))
    assert losses == pytest.approx(same, rel=0.01)
    assert [best.log_probability for best, *_ in found] == pytest.approx(
        [best.log_probability for best, *_ in expected], rel=0.01)


@pytest.mark.slow
def test_an_overflow_in_fp16_skips_the_step_and_halves_the_loss_scale(toy_recipe, tmp_path, capsys):
    with SimulatedGPU(OLDER_GPU):
        training = start_training(toy_recipe(*FOUR_STEPS, "training.precision=fp16"), tmp_path / "run")
        scale, before = training.step.optimizer.loss_scale, [weight.cpu() for weight in training.step.weights]
        scale.value.fill_(3e38)
        steps = training.batches()
        training.update(*next(steps))
        assert all(torch.equal(weight.cpu(), same) for weight, same in zip(training.step.weights, before, strict=True))
        scale.value.fill_(128)
        training.update(*next(steps))
        assert not torch.equal(training.step.weights[0].cpu(), before[0])
        training.results.read()
        assert (scale.value.cpu(), training.state.skipped) == (128, 1)
    assert "step 1 is skipped" in " ".join(capsys.readouterr().err.split())


@pytest.mark.slow
@pytest.mark.parametrize(("precision", "capability"), [("bf16", (9, 0)), ("fp16", OLDER_GPU)])
def test_a_stopped_training_goes_on_to_the_same_weights(toy_recipe, tmp_path, precision, capability):
    with SimulatedGPU(capability):
        check_resuming(toy_recipe, tmp_path, precision)


def check_resuming(toy_recipe, tmp_path, precision):
    settings = (*FOUR_STEPS, f"training.precision={precision}", "training.ema_decay=0.9", "model.dropout=0.1",
                "training.consistency=3", "training.consistency_cutoff=0.1")
    train(toy_recipe(*settings), tmp_path / "whole")
    train(toy_recipe(*settings, "training.max_steps=2"), tmp_path / "parted")
    train(toy_recipe(*settings), tmp_path / "parted")
    weights = newest_checkpoint(tmp_path / "parted").model
    for name, weight in newest_checkpoint(tmp_path / "whole").model.items():
        assert torch.equal(weights[name], weight), name


@pytest.mark.parametrize("precision", [pytest.param("fp32", marks=pytest.mark.slow), "bf16"])
def test_a_step_without_a_finite_gradient_is_skipped(toy_recipe, tmp_path, gpu, precision, capsys):
    training = start_training(toy_recipe(*FOUR_STEPS, f"training.precision={precision}"), tmp_path / "run")
    steps = training.batches()
    training.update(*next(steps))
    before = [weight.cpu() for weight in training.step.weights]
    accumulate = training.step.accumulate

    def spoilt(*arguments):
        sums, gradient = accumulate(*arguments)
        gradient[:1] = math.nan
        return sums, gradient

    training.step.accumulate = spoilt
    training.update(*next(steps))
    training.step.accumulate = accumulate
    assert all(torch.equal(weight.cpu(), same) for weight, same in zip(training.step.weights, before, strict=True))
    training.update(*next(steps))
    assert not torch.equal(training.step.weights[0].cpu(), before[0])
    assert training.state.step == 3 and training.state.skipped == 0
    training.results.read()                                                     # as before a log line or a checkpoint
    assert (training.state.skipped, training.state.skipped_in_row, training.state.window["steps"]) == (1, 0, 2)
    assert capsys.readouterr().err.count("step 2 is skipped") == 1


@pytest.mark.parametrize(("settings", "fixed"), [
    ((), True), *(pytest.param(each, False, marks=pytest.mark.slow) for each in (
        ("training.precision=fp32",), RNN, ("model.score=additive",),
        ("model.copy=true", "training.label_smoothing=0")))])
def test_batches_are_filled_to_one_shape_only_where_nothing_is_padded(toy_recipe, tmp_path, gpu, settings, fixed):
    training = start_training(toy_recipe("training.precision=bf16", "model.d_model=32", *settings), tmp_path / "run")
    assert (training.step.shape is not None) == fixed
