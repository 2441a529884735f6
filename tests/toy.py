"""A toy corpus of eleven words in two languages, and a recipe that trains on it in a second."""

from pathlib import Path

import torch

WORDS = [("one", "eins"), ("two", "zwei"), ("three", "drei"), ("red", "rot"), ("blue", "blau"), ("cat", "Katze"),
         ("dog", "Hund"), ("sees", "sieht"), ("hears", "hört"), ("and", "und"), ("not", "nicht")]

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
