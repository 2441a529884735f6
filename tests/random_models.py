"""Bundles of models with reproducible random weights."""

import shutil
from collections.abc import Iterable
from pathlib import Path

import torch

from seq2seq.inference.load_model import stored_weights
from seq2seq.model import Model, build_model
from seq2seq.recipe import Recipe, parse_recipe
from seq2seq.storage.checkpoints import save_bundle
from seq2seq.tokenizers.tokenizer import Tokenizers, train_tokenizers

GERMAN = ["ein Hund läuft", "eine Katze schläft", "der Hund schläft", "die Katze läuft im Haus"]
ENGLISH = ["a dog runs", "a cat sleeps", "the dog sleeps", "the cat runs in the house"]
PAIRS = tuple(zip(GERMAN, ENGLISH, strict=True))


def recipe_text(vocab_size: int, model: str, decoding: str, max_pieces: int = 29, target: str = "en") -> str:
    """Return a recipe that translates from German. model, decoding: contents of these sections."""
    return f"""\
name: tiny
languages: {{source: de, target: {target}}}
data:
  train: [{{source: train.de, target: train.{target}}}]
  valid: {{source: test.de, target: test.{target}}}
  cleaning: {{max_pieces: {max_pieces}}}
tokenizer: {{vocab_size: {vocab_size}}}
model: {{{model}}}
decoding: {{{decoding}}}
"""


def parsed(text: str) -> Recipe:
    return parse_recipe(text, "recipe.yaml", check_files=False)


def trained_tokenizers(text: str, pairs: Iterable[tuple[str, str]] = PAIRS) -> Tokenizers:
    return train_tokenizers(pairs, parsed(text).tokenizer, seed=1)


def random_model(text: str, tokenizers: Tokenizers, seed: int, noise: float = 0.0) -> Model:
    """Return a model with random weights. noise: standard deviation of noise that is added to all parameters, because
    biases are initialised with 0 and gains with 1."""
    torch.manual_seed(seed)
    model = build_model(parsed(text).model, tokenizers.source.vocab_size, tokenizers.target.vocab_size)
    with torch.no_grad():
        for parameter in model.parameters() if noise else ():
            parameter.add_(torch.randn_like(parameter), alpha=noise)
    return model


def save_random_model(place: Path, text: str, tokenizers: Tokenizers, seed: int, noise: float = 0.0) -> Path:
    """Save a random model as a bundle, in place of what is there, and return its path. For the arguments see
    `random_model`."""
    shutil.rmtree(place, ignore_errors=True)
    return save_bundle(place, stored_weights(random_model(text, tokenizers, seed, noise)), text, tokenizers.files(), {})
