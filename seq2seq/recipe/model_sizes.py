"""Model sizes that come with the package, for `model.base`: the files in `configs/`, by short name."""

from __future__ import annotations

from pathlib import Path

# An installed package contains `configs/`. In a clone or an editable install, `configs/` is next to the package.
DIRECTORIES = (Path(__file__).parents[1] / "configs", Path(__file__).parents[2] / "configs")
# Prefix of file names that short names omit.
PREFIX = "transformer_"
ORDER = ("tiny", "small", "base", "big")


def model_sizes() -> dict[str, Path]:
    """Return the file of each size by its short name: `small` is transformer_small.yaml, `rnn_small` is rnn_small.yaml.

    Transformers come first, in order of size.
    """
    directory = next((directory for directory in DIRECTORIES if directory.is_dir()), DIRECTORIES[0])
    sizes = {path.stem.removeprefix(PREFIX): path for path in directory.glob("*.yaml")}
    return {name: sizes[name]
            for name in sorted(sizes, key=lambda name: (ORDER.index(name) if name in ORDER else len(ORDER), name))}
