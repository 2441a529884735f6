"""The memory of a training is predicted before its first step."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from toy import RECIPE, write_corpus

from seq2seq.data.batching import gather
from seq2seq.model.variants.rnn import RecurrentModel
from seq2seq.recipe import load_recipe
from seq2seq.training.memory import (
    kept_by_forward,
    largest_micro_batch,
    memory_warning,
    predict_memory,
    warn_if_memory_is_short,
)


@pytest.mark.parametrize("options", [
    {"dropout": 0.1}, {"pre_norm": True, "activation": "gelu", "tied_embeddings": "none"}, {"score": "additive"},
    {"positions": "relative"}], ids=str)
def test_the_bytes_that_a_forward_pass_keeps_are_known_without_computing_it(make_model, make_corpus, options):
    model, corpus = make_model(torch.float32, **options).train(), make_corpus()
    batch = replace(gather(corpus, np.arange(4)), filled=False)
    weights = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    kept = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        output = model(batch)
    found, _ = kept_by_forward(model.to("meta"), batch)
    assert found == pytest.approx(sum(storage.nbytes() for storage in kept.values()), rel=0.05)
    assert output is not None and found > 10_000


def test_the_activations_of_a_model_that_reads_its_tensors_are_not_known(make_model, make_corpus):
    model = make_model(torch.float32, kind=RecurrentModel).to("meta")
    assert kept_by_forward(model, gather(make_corpus(), np.arange(4))) == (0, None)


@pytest.fixture
def load(tmp_path):
    """Function that loads the toy recipe with settings, as a model to fine-tune."""
    write_corpus(tmp_path)
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    return lambda *settings: load_recipe(tmp_path / "recipe.yaml", settings)


def frozen(recipe, *parts):
    return recipe.model_copy(update={"training": recipe.training.model_copy(
        update={"start_from": "model", "freeze": parts})})


def test_each_part_has_the_bytes_of_its_tensors(load, make_corpus):
    recipe, batch = load("training.ema_decay=0", "model.d_model=14"), gather(make_corpus(), np.arange(4))
    whole = predict_memory(recipe, (300, 300), "cpu", "fp32", batch)
    assert whole.optimizer == 2 * whole.weights == 2 * whole.gradients
    fixed = predict_memory(frozen(recipe, "embeddings"), (300, 300), "cpu", "fp32", batch)
    assert whole.gradients - fixed.gradients == 4 * 300 * 14 == (whole.loss - fixed.loss) / 2
    assert fixed.weights == whole.weights and fixed.activations < whole.activations
    half = predict_memory(recipe, (300, 300), "cpu", "bf16", batch)
    assert half.weights == 1.5 * whole.weights and half.activations < 0.7 * whole.activations
    twice = predict_memory(load("training.ema_decay=0", "model.d_model=14", "training.consistency=5"), (300, 300),
                           "cpu", "fp32", batch)
    assert twice.activations == 2 * whole.activations


def test_a_training_that_needs_more_memory_than_is_free_is_told_what_to_do(load, make_corpus, monkeypatch, capsys):
    recipe, corpus = load(), make_corpus((5, 2, 7, 3, 11), (3, 11, 2, 5, 7))
    batch = largest_micro_batch(corpus, [[np.arange(2), np.arange(2, 5)]], 19)
    assert batch.target_count == 14                                             # and 21 source tokens
    arguments = (300, 300), "cpu", "fp32", batch
    needed = predict_memory(recipe, *arguments)
    assert memory_warning(recipe, *arguments, free=needed.total) is None
    short = memory_warning(recipe, *arguments, free=needed.total - needed.activations // 3)
    assert short.endswith("--set training.accumulation=2.")
    without = needed.total - needed.activations
    assert "training." not in memory_warning(recipe, *arguments, free=without - 1)
    assert "--set training.freeze=[embeddings] --set training.accumulation=" in memory_warning(
        frozen(recipe), *arguments, free=without - 1)
    for free, warned in ((needed.total // 2, True), (10**12, False)):
        monkeypatch.setattr("seq2seq.training.memory.free_memory", lambda device, free=free: free)
        warn_if_memory_is_short(recipe, *arguments[:3], corpus)
        assert ("the steps of this training need about" in capsys.readouterr().err) == warned


MEASURED = """
import sys
from pathlib import Path
from seq2seq.data.epoch_plan import plan_epoch
from seq2seq.devices import process_memory
from seq2seq.recipe import load_recipe
from seq2seq.training.memory import largest_micro_batch, predict_memory
from seq2seq.training.run import start_training
recipe = load_recipe(Path(sys.argv[1]), sys.argv[2:])
training = start_training(recipe, Path(sys.argv[1]).parent / "run")
steps = training.batches()
for _ in range(3):
    training.update(*next(steps))
    training.results.read()
peak = process_memory().peak
section, corpus = recipe.training, training.prepared.corpus
plan = plan_epoch(corpus, section.batch_tokens, section.accumulation, recipe.seed, 0)
batch = largest_micro_batch(corpus, plan, recipe.data.cleaning.max_pieces + 1)
sizes = training.tokenizers.source.vocab_size, training.tokenizers.target.vocab_size
print(predict_memory(recipe, sizes, "cpu", section.precision, batch).total / peak)
"""


@pytest.mark.slow
@pytest.mark.parametrize("settings", [
    ["model.d_model=256", "model.feed_forward=1024", "training.batch_tokens=1000"],
    ["model.d_model=768", "model.feed_forward=3072", "model.encoder_layers=6", "training.accumulation=2"]], ids=str)
def test_the_prediction_is_within_15_percent_of_the_peak_of_three_steps(load, tmp_path, settings):
    load()
    found = subprocess.run([sys.executable, "-c", MEASURED, str(tmp_path / "recipe.yaml"), *settings], check=True,
                           capture_output=True, text=True)
    assert 0.85 <= float(found.stdout.split()[-1]) <= 1.15
