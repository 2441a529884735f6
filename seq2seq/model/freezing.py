"""Weights that a training leaves as they are: `training.freeze`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import chain

from torch import nn

from seq2seq.errors import RecipeError

EMBEDDINGS = re.compile(r"(\w+\.)*(\w*embedding(_norm\.\w+)?|output_weight|(\w+_)?positions)")
"""Pattern of the names of embeddings, their norms, learned positions, and the matrix of the output layer."""


def freeze(model: nn.Module, parts: Sequence[str]) -> None:
    """Let a training change no weight of some parts of a model: their `requires_grad` becomes False.

    A frozen weight needs no gradient and no optimizer state, and what only leads to frozen weights no backward pass.

    parts: entries of `training.freeze`. A weight of several names, such as tied embeddings, has all of them.
    """
    names = [(name, weight) for name, weight in model.named_parameters(remove_duplicate=False)]
    for part in chain.from_iterable(map(single_parts, parts)):
        chosen = [weight for name, weight in names if is_of_part(name, part)]
        if not chosen:
            known = dict.fromkeys(".".join(name.split(".")[:2 if "." in name else 0]) for name, _ in names)
            raise RecipeError(f"training.freeze: the model has no weights of '{part}'. Name embeddings, or some of "
                              f"{', '.join(filter(None, known))}.")
        for weight in chosen:
            weight.requires_grad_(False)
    if not any(weight.requires_grad for weight in model.parameters()):
        raise RecipeError("training.freeze: no weight is left to train. Leave out a part.")


def single_parts(part: str) -> list[str]:
    """Return the layers of a part such as `encoder.0-5`, or else the part itself."""
    stack, _, layers = part.partition(".")
    first, _, last = layers.partition("-")
    return [f"{stack}.{layer}" for layer in range(int(first or 0), int(last or -1) + 1)] or [part]


def is_of_part(name: str, part: str) -> bool:
    """Return True if the weight with this name is of a part such as `embeddings`, `encoder` or `encoder.5`."""
    if part == "embeddings":
        return EMBEDDINGS.fullmatch(name) is not None
    return name.startswith((f"{part}.", f"{part}_norm."))
