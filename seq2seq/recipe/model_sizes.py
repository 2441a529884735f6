"""Model sizes that come with the package, for `model.base`: the files in `configs/`, by short name."""

from __future__ import annotations

from pathlib import Path

# An installed package contains `configs/`. In a clone or an editable install, `configs/` is next to the package.
DIRECTORIES = (Path(__file__).parents[1] / "configs", Path(__file__).parents[2] / "configs")
# Prefix of the file names. The short names do not have it.
PREFIX = "transformer_"
ORDER = ("tiny", "small", "base", "big")
# Smallest number of training pairs for each size. With 5,000 to 20,000 pairs, `small` is better than `tiny`. With 2,500
# and consistency training, it learns too late to attend to the source (recipes/little_text). Vaswani et al. 2017
# trained `base` on 4.5 million pairs.
MIN_PAIRS = {"tiny": 0, "small": 4_000, "base": 1_000_000}
MAX_CONSISTENCY_PAIRS = 50_000
"""Number of training pairs below which recipes of `seq2seq init` have consistency training. In 31 to 38 epochs, it
gains 1.2 to 2.0 BLEU on 5,000 to 29,000 pairs (recipes/little_text, recipes/multi30k), but in 21 epochs of 165,000 only
0.6, which is not significant. In few epochs, it lowers BLEU: by 1.65 in 9 epochs of 20,000 pairs."""


def model_sizes() -> dict[str, Path]:
    """Return the file of each size by its short name: `small` is transformer_small.yaml, `rnn_small` is rnn_small.yaml.

    Transformers come first, in order of size.
    """
    directory = next((directory for directory in DIRECTORIES if directory.is_dir()), DIRECTORIES[0])
    sizes = {path.stem.removeprefix(PREFIX): path for path in directory.glob("*.yaml")}
    return {name: sizes[name]
            for name in sorted(sizes, key=lambda name: (ORDER.index(name) if name in ORDER else len(ORDER), name))}


def consistency_for(pairs: int) -> float:
    """Return the value of `training.consistency` that suits this number of training pairs."""
    return 5.0 if pairs < MAX_CONSISTENCY_PAIRS else 0.0


def size_for(pairs: int) -> str:
    """Return the name of the model size that suits this number of training pairs."""
    return next(name for name in reversed(MIN_PAIRS) if pairs >= MIN_PAIRS[name])
