"""Models learn as well as plain PyTorch ones: with equal initial weights losses are equal, with random ones not higher.

The reference models are in benchmarks/reference.py: `torch.nn.Transformer`, and `torch.nn.GRU` with attention.
"""

import itertools
import random
from pathlib import Path

import pytest
import torch

from benchmarks.learning import epoch_steps, ours, reference
from benchmarks.reference import PlainTransformer, plain_model, train_steps
from seq2seq.errors import UserError
from seq2seq.model.variants.rnn import Cell
from seq2seq.recipe import load_recipe
from seq2seq.training.run import start_training

RECIPE = """
name: learning
languages: {source: en, target: de}
data:
  train: [{source: train.en, target: train.de}]
  valid: {source: valid.en, target: valid.de}
tokenizer: {type: words, vocab_size: 800}
model: {d_model: 48, encoder_layers: 3, decoder_layers: 3, num_heads: 3, feed_forward: 96, dropout: 0.1}
training:
  batch_tokens: 256
  learning_rate: 3.0e-3
  warmup_steps: 100
  max_steps: 300
  precision: fp32
  threads: 1
"""
RNN = ["model={type: rnn, d_model: 48, encoder_layers: 1, decoder_layers: 1, num_heads: 1, dropout: 0.1}"]
# Settings, seeds, and maximum difference of the mean loss to that of the reference. Post-norm, seeds 1 and 2: seq2seq
# 3.845 and 3.799, the reference 3.980 and 3.950; with Glorot initialisation of gain 1, which this test must detect,
# 4.099 and 4.095. Pre-norm, three seeds: seq2seq 3.961, 3.875, 3.982, the reference 3.880, 3.916, 4.005.
MODELS = {"post-norm": (["model.norm=post"], [1], 0.0), "pre-norm": (["model.norm=pre"], [1, 2, 3], 0.05),
          "rnn": (RNN, [1, 2, 3], 0.05)}


@pytest.fixture(autouse=True)
def one_thread():
    """A single thread, so that sums have the same order, and so the same rounding, on every machine."""
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    """Directory with 4,000 pairs of 4 to 14 words out of 300; in the target, a word is moved to the end, neighbours are
    swapped and particles added."""
    folder = tmp_path_factory.mktemp("learning")
    draw = random.Random(7)
    frequencies = [1 / (rank + 3) for rank in range(300)]
    for name, pairs in (("train", 4000), ("valid", 20)):
        sources, targets = [], []
        for _ in range(pairs):
            source = draw.choices(range(300), frequencies, k=draw.randint(4, 14))
            target = [source[0], *source[2:], source[1]]
            index = 0
            while index + 1 < len(target):
                if target[index] % 2:
                    target[index : index + 2] = target[index + 1], target[index]
                    index += 1
                index += 1
            sources.append(" ".join(f"w{word}" for word in source))
            targets.append(" ".join(f"v{word}" if word % 5 else f"v{word} u" for word in target))
        for language, lines in (("en", sources), ("de", targets)):
            (folder / f"{name}.{language}").write_text("".join(f"{line}\n" for line in lines))
    (folder / "recipe.yaml").write_text(RECIPE)
    return folder


@pytest.mark.parametrize("norm", ["post", pytest.param("pre", marks=pytest.mark.slow)])
def test_with_equal_weights_and_no_dropout_every_step_has_the_loss_of_torch_nn_transformer(corpus, norm):
    recipe = load_recipe(corpus / "recipe.yaml", ["model.dropout=0", f"model.norm={norm}"])
    training = start_training(recipe, corpus / "run")
    model = plain_model(recipe, training.tokenizers.target.vocab_size)
    assert isinstance(model, PlainTransformer)
    model.copy_weights(training.step.model)
    text = training.prepared.corpus
    steps = list(epoch_steps(text, recipe, 16))
    expected = [total / tokens for total, tokens in train_steps(model, text, steps, recipe.training)]
    losses = [total / tokens for total, tokens in itertools.islice(ours(recipe, corpus / "run", 16, "fp32"), 16)]
    assert losses[-1] < losses[0] - 0.5
    assert losses == pytest.approx(expected, abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("kind", MODELS)
def test_with_random_weights_the_loss_after_300_steps_is_not_above_that_of_the_reference(corpus, kind):
    settings, seeds, tolerance = MODELS[kind]
    losses = {ours: 0.0, reference: 0.0}
    for train, seed in itertools.product(losses, seeds):
        recipe = load_recipe(corpus / "recipe.yaml", [*settings, f"seed={seed}"])
        last = list(itertools.islice(train(recipe, corpus / "run", 300, "fp32"), 250, 300))
        losses[train] += sum(total for total, _ in last) / sum(tokens for _, tokens in last) / len(seeds)
    assert losses[ours] <= losses[reference] + tolerance


@pytest.mark.parametrize("settings", [
    ["model.tied_embeddings=none"], ["model.positions=learned"], ["model.activation=gelu"], ["model.window=3"],
    ["model.score=dot"], ["model.scale_embedding=false"], ["training.optimizer=muon"], ["training.accumulation=2"],
    [*RNN, "model.cell=lstm"], [*RNN, "model.encoder_layers=2"]])
def test_recipes_that_the_reference_does_not_support_are_refused(corpus, settings):
    key = settings[-1].partition("=")[0]
    with pytest.raises(UserError, match=f"{key}: the plain reference supports only"):
        plain_model(load_recipe(corpus / "recipe.yaml", settings), 29)


def test_gates_are_initialised_with_the_bound_of_the_matrix_that_stores_all_of_them():
    torch.manual_seed(1)
    for kind, gates in (("gru", 3), ("lstm", 4)):
        bound = (6 / (41 + gates * 41)) ** 0.5
        assert 0.98 * bound < Cell(kind, 41).recurrent.weight.abs().max() <= bound


def test_steps_continue_with_the_next_epoch(make_corpus):
    recipe = load_recipe(Path(__file__).parents[2] / "recipes" / "multi30k" / "de_en.yaml",
                         ["training.batch_tokens=11"], check_files=False)
    corpus = make_corpus()
    steps = list(epoch_steps(corpus, recipe, 7))
    assert len(steps) == 7
    pairs = [index for (indices,) in steps for index in indices.tolist()]
    assert sorted(pairs[:4]) == [0, 1, 2, 3] and torch.tensor(pairs).bincount().min() >= 1
