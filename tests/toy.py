"""A toy corpus of eleven words in two languages, a recipe that trains on it in a second, and its finished run."""

import functools
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import redirect_stderr
from pathlib import Path

import torch

from seq2seq.recipe import load_recipe
from seq2seq.training.run import train

WORDS = [("one", "eins"), ("two", "zwei"), ("three", "drei"), ("red", "rot"), ("blue", "blau"), ("cat", "Katze"),
         ("dog", "Hund"), ("sees", "sieht"), ("hears", "hört"), ("and", "und"), ("not", "nicht")]

FOUR_STEPS = ["training.max_steps=4", "training.validate_every=2"]
RECIPE = """
name: tiny
languages: {source: en, target: de}
data:
  train: [{source: train.en, target: train.de}]
  valid: {source: valid.en, target: valid.de}
  test: {small: {source: valid.en, target: valid.de}}
tokenizer: {vocab_size: 300}
model: {d_model: 16, encoder_layers: 1, decoder_layers: 1, num_heads: 2, feed_forward: 32, dropout: 0.1}
training:
  batch_tokens: 64
  learning_rate: 0.01
  warmup_steps: 3
  max_steps: 11
  validate_every: 5
  log_every: 2
  ema_decay: 0.9
  precision: fp32
  threads: 1
decoding: {beam_size: 2, max_length_offset: 3}
"""


def write_corpus(folder: Path) -> None:
    """Write 60 training and 7 validation pairs of 3 to 7 words, translated word by word."""
    generator = torch.Generator().manual_seed(5)
    for name, count in (("train", 60), ("valid", 7)):
        pairs = []
        for _ in range(count):
            length = int(torch.randint(3, 8, (1,), generator=generator))
            chosen = [WORDS[index] for index in torch.randint(len(WORDS), (length,), generator=generator)]
            pairs.append([" ".join(word[side] for word in chosen) for side in (0, 1)])
        for side, language in enumerate(("en", "de")):
            (folder / f"{name}.{language}").write_text("".join(pair[side] + "\n" for pair in pairs))


def train_toy(folder: Path, settings: Sequence[str] = (), recipe: str = RECIPE) -> None:
    """Write the corpus and recipe.yaml, and train the directory `run`."""
    write_corpus(folder)
    (folder / "recipe.yaml").write_text(recipe)
    train(load_recipe(folder / "recipe.yaml", settings), folder / "run")


@functools.cache
def _finished() -> tempfile.TemporaryDirectory:
    """Train the recipe once per process. The directory is deleted at the end of the process."""
    directory = tempfile.TemporaryDirectory()
    folder = Path(directory.name)
    with (folder / "messages").open("w") as messages, redirect_stderr(messages):
        train_toy(folder)
    return directory


def copy_finished_run(folder: Path) -> Path:
    """Write the corpus, recipe.yaml, its finished run with all checkpoints (steps 5, 10 and 11), and the messages of
    the training. Return the path of the run."""
    shutil.copytree(_finished().name, folder, dirs_exist_ok=True)
    return folder / "run"
