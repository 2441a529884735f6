"""Model sizes that come with the package, for `model.base`: the files in `configs/`, by short name."""

from __future__ import annotations

from pathlib import Path

# An installed package contains `configs/`. In a clone or an editable install, `configs/` is next to the package.
DIRECTORIES = (Path(__file__).parents[1] / "configs", Path(__file__).parents[2] / "configs")
# Prefix of file names that short names omit.
PREFIX = "transformer_"
ORDER = ("tiny", "small", "base", "big")
# Smallest number of training pairs for each size. The recipes with `small` have 24,000 and 29,000 pairs, the paper's
# base model was trained on 4.5 million pairs.
MIN_PAIRS = {"tiny": 0, "small": 5_000, "base": 1_000_000}


def model_sizes() -> dict[str, Path]:
    """Return the file of each size by its short name: `small` is transformer_small.yaml, `rnn_small` is rnn_small.yaml.

    Transformers come first, in order of size.
    """
    directory = next((directory for directory in DIRECTORIES if directory.is_dir()), DIRECTORIES[0])
    sizes = {path.stem.removeprefix(PREFIX): path for path in directory.glob("*.yaml")}
    return {name: sizes[name]
            for name in sorted(sizes, key=lambda name: (ORDER.index(name) if name in ORDER else len(ORDER), name))}


def size_for(pairs: int) -> str:
    """Return the name of the model size that suits this number of training pairs."""
    return next(name for name in reversed(MIN_PAIRS) if pairs >= MIN_PAIRS[name])
