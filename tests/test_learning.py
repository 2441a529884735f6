"""Our models learn as well as plain PyTorch ones: equal losses from equal weights, no worse ones from fresh weights.

The references are benchmarks/reference.py: `torch.nn.Transformer` and `torch.nn.GRU` with attention in a plain loop.
"""

import itertools
import random
from pathlib import Path

import pytest
import torch

from benchmarks.learning import ours, reference, steps_of
from benchmarks.reference import PlainTransformer, plain_model, train_steps
from seq2seq.recipe import load_recipe
from seq2seq.trainer import Training

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
RNN = ["model.type=rnn", "model.encoder_layers=1", "model.decoder_layers=1", "model.num_heads=1",
       "model.feed_forward=2048"]
# Models whose reference is `torch.nn`, and by how much their loss may lie above it: the spread between seeds.
MODELS = {"post-norm": (["model.norm=post"], 0.0), "pre-norm": (["model.norm=pre"], 0.05), "rnn": (RNN, 0.05)}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    """4,000 pairs of 4 to 14 words of 300: the target moves a word to the end, swaps neighbours and adds particles."""
    folder = tmp_path_factory.mktemp("learning")
    draw = random.Random(7)
    frequencies = [1 / (rank + 3) for rank in range(300)]
    for name, pairs in (("train", 4000), ("valid", 20)):
        sources, targets = [], []
        for _ in range(pairs):
            source = draw.choices(range(300), frequencies, k=draw.randint(4, 14))
            target = [source[0], *source[2:], source[1]]
            place = 0
            while place + 1 < len(target):
                if target[place] % 2:
                    target[place : place + 2] = target[place + 1], target[place]
                    place += 1
                place += 1
            sources.append(" ".join(f"w{word}" for word in source))
            targets.append(" ".join(f"v{word}" if word % 5 else f"v{word} u" for word in target))
        for language, lines in (("en", sources), ("de", targets)):
            (folder / f"{name}.{language}").write_text("".join(f"{line}\n" for line in lines))
    (folder / "recipe.yaml").write_text(RECIPE)
    return folder


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_from_the_same_weights_without_dropout_every_step_has_the_loss_of_torch_nn_transformer(corpus, norm):
    recipe = load_recipe(corpus / "recipe.yaml", ["model.dropout=0", f"model.norm={norm}"])
    training = Training(recipe, corpus / "run")
    model = plain_model(recipe.model, training.tokenizers.target.vocab_size)
    assert isinstance(model, PlainTransformer)
    model.copy_weights(training.model)
    steps = list(steps_of(training.corpus, recipe, 20))
    theirs = [total / tokens for total, tokens in train_steps(model, training.corpus, steps, recipe.training)]
    found = [total / tokens for total, tokens in itertools.islice(ours(recipe, corpus / "run", 20, "fp32"), 20)]
    assert found[-1] < found[0] - 1
    assert found == pytest.approx(theirs, abs=1e-4)


@pytest.mark.parametrize("kind", ["post-norm", *(pytest.param(kind, marks=pytest.mark.slow)
                                                 for kind in ("pre-norm", "rnn"))])
def test_from_fresh_weights_300_steps_end_at_a_loss_no_worse_than_the_plain_reference(corpus, kind):
    settings, spread = MODELS[kind]
    recipe = load_recipe(corpus / "recipe.yaml", settings)
    losses = []
    for train in (ours, reference):
        last = list(itertools.islice(train(recipe, corpus / "run", 300, "fp32"), 250, 300))
        losses.append(sum(total for total, _ in last) / sum(tokens for _, tokens in last))
    assert losses[0] <= losses[1] + spread


@pytest.mark.parametrize("section", [["model.tied_embeddings=none"], ["model.positions=learned"]])
def test_models_without_a_plain_reference_are_refused(corpus, section):
    with pytest.raises(ValueError, match="tied embeddings and sinusoidal positions"):
        plain_model(load_recipe(corpus / "recipe.yaml", section).model, 29)


def test_steps_run_on_from_one_epoch_into_the_next(make_corpus):
    recipe = load_recipe(Path(__file__).parents[1] / "recipes" / "multi30k" / "de_en.yaml",
                         ["training.batch_tokens=11"], check_files=False)
    corpus = make_corpus()
    steps = list(steps_of(corpus, recipe, 7))
    assert len(steps) == 7
    pairs = [index for (indices,) in steps for index in indices.tolist()]
    assert sorted(pairs[:4]) == [0, 1, 2, 3] and torch.tensor(pairs).bincount().min() >= 1
