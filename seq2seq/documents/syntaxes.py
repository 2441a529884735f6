"""Syntaxes of formats: what is kept in a text, beyond the placeholders that all formats have (`placeholders`).

One table, `SYNTAXES`, has the patterns by name. A format names the syntaxes of a text in `Block.syntax`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from seq2seq.documents.block import TagKind


@dataclass(frozen=True, slots=True)
class Markup:
    """Part of a text that is kept.

    begin, end: its span. kind: "value" stands for a word, such as `%B` of strftime; the others are those of a tag.
    name: name that an opening tag and its closing tag share.
    """

    begin: int
    end: int
    kind: TagKind | Literal["value"] = "value"
    name: str = ""


def find_markup(text: str, syntax: Sequence[str]) -> list[Markup]:
    """Return what a text has of some syntaxes, in order and without overlaps. syntax: keys of SYNTAXES."""
    return []
