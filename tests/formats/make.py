"""Store a run of this format version, so that tests can check that later versions read it.

    python tests/formats/make.py

Run once for each released format version, before the format changes. The directory must never be written again.
"""

import random
import shutil
import sys
from pathlib import Path

from seq2seq.recipe import load_recipe
from seq2seq.storage.directories import FORMAT_VERSION
from seq2seq.training.trainer import train
from seq2seq.translation.translator import Translator

RECIPE = """\
name: stored
languages: {source: en, target: de}
data:
  train: [{source: train.en, target: train.de}]
  valid: {source: valid.en, target: valid.de}
tokenizer: {vocab_size: 290}
model: {d_model: 16, encoder_layers: 1, decoder_layers: 1, num_heads: 2, feed_forward: 32, dropout: 0.1}
training: {batch_tokens: 128, learning_rate: 0.02, warmup_steps: 3, max_steps: 300, validate_every: 100, log_every: 50,
           keep_checkpoints: 1, ema_decay: 0.9, precision: fp32, threads: 1}
decoding: {beam_size: 2, max_length_offset: 3}
"""
WORDS = {"one": "eins", "two": "zwei", "three": "drei", "red": "rot", "cat": "Katze", "dog": "Hund", "sees": "sieht",
         "and": "und"}


def main() -> None:
    place = Path(__file__).parent / str(FORMAT_VERSION)
    if place.exists():
        sys.exit(f"{place} exists; a stored format must not be written again")
    place.mkdir()
    rng = random.Random(FORMAT_VERSION)
    for name, count in (("train", 60), ("valid", 7)):
        lines = [rng.choices(list(WORDS), k=rng.randint(2, 6)) for _ in range(count)]
        (place / f"{name}.en").write_text("".join(" ".join(line) + "\n" for line in lines))
        (place / f"{name}.de").write_text("".join(" ".join(WORDS[word] for word in line) + "\n" for line in lines))
    (place / "recipe.yaml").write_text(RECIPE)
    run = place / "run"
    train(load_recipe(place / "recipe.yaml"), run)
    translator = Translator.load(run, precision="fp32")
    found = translator.translate((place / "valid.en").read_text().splitlines())
    (place / "translations").write_text("".join(f"{best.text}\t{best.log_probability:.4f}\n" for best, *_ in found))
    # Missing files are created again when needed; the recipe of the run has absolute paths of this machine.
    for name in ("prepared", "tensorboard"):
        shutil.rmtree(run / name)
    for name in ("recipe.yaml", ".lock"):
        (run / name).unlink()


if __name__ == "__main__":
    main()
