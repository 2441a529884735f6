"""Sizes of models that come with the package, for `model.base`: the files of `configs/`, by short names."""

from __future__ import annotations

from pathlib import Path

# In an installed package beside its modules; in a clone (and an editable install) beside the package.
DIRECTORIES = (Path(__file__).parents[1] / "configs", Path(__file__).parents[2] / "configs")
# The usual architecture needs no naming.
PREFIX = "transformer_"
ORDER = ("tiny", "small", "base", "big")


def model_sizes() -> dict[str, Path]:
    """Each size's file by its name: `small` is transformer_small.yaml, other architectures keep theirs (`rnn_small`).
    Transformers come first, the smallest of them at the top."""
    directory = next((directory for directory in DIRECTORIES if directory.is_dir()), DIRECTORIES[0])
    sizes = {path.stem.removeprefix(PREFIX): path for path in directory.glob("*.yaml")}
    return {name: sizes[name]
            for name in sorted(sizes, key=lambda name: (ORDER.index(name) if name in ORDER else len(ORDER), name))}
