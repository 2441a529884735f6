"""Advice to change keys of a recipe. Proposals that are in force already are left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from seq2seq.recipe.schema import Recipe


@dataclass(frozen=True)
class Proposal:
    """Proposal to change a key of a recipe. text: the proposal in words. key: such as training.precision. value: value
    of the key with which the proposal would change nothing: that to set, or the lowest one if it says to lower it."""

    text: str
    key: str
    value: Any


def advice(recipe: Recipe, proposals: Sequence[Proposal | str]) -> str:
    """Return the proposals that would change the recipe, in words: `lower a, lower b, or raise c`. Proposals without a
    key, as plain text, are always possible."""
    texts = [each if isinstance(each, str) else each.text for each in proposals
             if isinstance(each, str) or reduce(getattr, each.key.split("."), recipe) != each.value]
    if len(texts) < 3:
        return " or ".join(texts)
    return f"{', '.join(texts[:-1])}, or {texts[-1]}"
