"""Models with random weights, and the text and recipes that commands of the command line are tested with."""

import io
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import torch

from seq2seq.cli import main
from seq2seq.inference.load_model import stored_weights
from seq2seq.model import build_model
from seq2seq.recipe import Recipe, parse_recipe
from seq2seq.storage.checkpoints import BEST, BUNDLES, VALIDATED, save_bundle, save_checkpoint
from seq2seq.storage.tokenizer_files import save_tokenizers
from seq2seq.tokenizers.tokenizer import Tokenizers, train_tokenizers

# The models are random: they say nothing, but say it reproducibly, and never end before their longest translation.
# (Their faults are the matter of test_safety_net.py.)
RECIPE = """\
name: tiny
languages: {source: de, target: en}
data:
  root: data
  train: [{source: train.de, target: train.en}]
  valid: {source: test.de, target: test.en}
  test: {first: {source: test.de, target: test.en}}
  cleaning: {max_pieces: 29}
tokenizer: {vocab_size: 283}
model: {d_model: 12, encoder_layers: 1, decoder_layers: 1, num_heads: 2, feed_forward: 7, max_positions: 31}
decoding: {beam_size: 2, max_length_ratio: 1.0, max_length_offset: 3, safety_net: false}
expected: {first: {bleu: [90, 100]}}
"""
LANGUAGE_MODEL = """\
name: speaker
languages: {target: en}
data: {train: [{text: train.en}], valid: {text: test.en}, cleaning: {max_pieces: 29}}
tokenizer: {vocab_size: 283}
model: {type: language_model, d_model: 12, decoder_layers: 1, num_heads: 2, feed_forward: 7, max_positions: 31}
training: {best_metric: loss}
"""
GERMAN = ["ein Hund läuft", "eine Katze schläft", "der Hund schläft", "die Katze läuft im Haus"]
ENGLISH = ["a dog runs", "a cat sleeps", "the dog sleeps", "the cat runs in the house"]


class Result(NamedTuple):
    """Exit code, standard output and standard error of a command."""

    code: int
    out: bytes
    err: str


def run_command(*arguments: object, stdin: bytes = b"") -> Result:
    """Run a command in this process."""
    out, err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline=""), io.StringIO()
    with (patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin))), redirect_stdout(out), redirect_stderr(err)):
        code = main([str(argument) for argument in arguments])
        out.flush()
        return Result(code, out.buffer.getvalue(), err.getvalue())


def parsed(text: str = RECIPE) -> Recipe:
    return parse_recipe(text, "recipe.yaml")


@cache
def tokenizers(*more: tuple[str, str]) -> Tokenizers:
    """Train the tokenizer of the models. more: further sentence pairs, which change the vocabulary."""
    return train_tokenizers([*more, *zip(GERMAN, ENGLISH, strict=True)], parsed().tokenizer, seed=1)


def random_weights(seed: int, text: str = RECIPE) -> dict[str, torch.Tensor]:
    torch.manual_seed(seed)
    recipe = parsed(text)
    return stored_weights(build_model(recipe.model, recipe.tokenizer.vocab_size, recipe.tokenizer.vocab_size))


def save_model(place: Path, seed: int = 1, text: str = RECIPE, vocabulary: Tokenizers | None = None,
               metadata: dict | None = None) -> Path:
    """Save a random model as a bundle. If it is in the directory `bundles` of a run, it becomes the best of the run."""
    run = place.parent.parent
    if place.parent.name == BUNDLES:
        run.mkdir(parents=True, exist_ok=True)
        (run / "recipe.yaml").write_text(text, encoding="utf-8")
        (run / BEST).write_text(place.name)
    return save_bundle(place, random_weights(seed, text), text, (vocabulary or tokenizers()).files(),
                       metadata or {})


def save_run(place: Path, steps: list[int], between: Sequence[int] = ()) -> None:
    """Save a run that has only checkpoints: those of `steps` at a validation, those of `between` by the clock."""
    for step in (*steps, *between):
        save_checkpoint(place, step, random_weights(step), {"average.x": torch.ones(1)} if step == 0 else {},
                        {VALIDATED: step in steps})
    (place / "recipe.yaml").write_text(parsed().to_yaml(), encoding="utf-8")
    save_tokenizers(tokenizers().files(), place / "tokenizer")


def write_lines(path: Path, lines: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(as_file(lines))


def as_file(lines: list[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


def write_tests(folder: Path) -> None:
    """Write the test set that the recipe names."""
    write_lines(folder / "data" / "test.de", GERMAN)
    write_lines(folder / "data" / "test.en", ENGLISH)


def write_recipe(folder: Path) -> None:
    """Write a recipe that can be trained, and its text."""
    write_tests(folder)
    (folder / "recipe.yaml").write_text(RECIPE.replace("train.", "test."))
