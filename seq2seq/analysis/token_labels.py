"""Labels of pieces beside a heat map, and their names for screen readers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from seq2seq.analysis.attention_maps import SeenPair, Sentence
from seq2seq.analysis.attention_weights import Kind

BYTE = re.compile(r"<0x([0-9A-F]{2})>")
SPACE = "▁"


@dataclass(frozen=True)
class Label:
    """One row or column of a map. text: as it is shown. name: in words. kind: how it is set."""

    text: str
    name: str
    kind: Literal["piece", "byte", "special"] = "piece"


START = Label("<s>", "start of the sentence", "special")
END = Label("</s>", "end of the sentence", "special")

# What the rows and the columns of a map are: the side that they come from, and the part that they play.
ROWS: dict[Kind, tuple[str, str]] = {
    "cross": ("target", "written"), "encoder": ("source", "asking"), "decoder": ("target", "written")}
COLUMNS: dict[Kind, tuple[str, str]] = {
    "cross": ("source", "attended to"), "encoder": ("source", "attended to"), "decoder": ("target", "read before")}
NAMES: dict[Kind, str] = {
    "cross": "Cross-attention", "encoder": "Encoder self-attention", "decoder": "Decoder self-attention"}


def labels(sentence: Sentence) -> list[Label]:
    """A label for each piece of a sentence; `</s>` is not among them.

    A byte is shown by its number, or as the character that it is alone.
    """
    found = []
    for number, piece in enumerate(sentence.pieces):
        byte = BYTE.fullmatch(piece)
        if byte:
            # Only the last byte of a character knows where it stands.
            ends = (span for span in sentence.spans[number:] if span[0] < span[1])
            character = sentence.text[slice(*next(ends, (0, 0)))]
            seen = character.isprintable() and bool(character.strip())
            name = f"byte {byte[1]}{f' of {character}' if seen else ''}"
            found.append(Label(character if seen and character.isascii() else byte[1], name, "byte"))
        else:
            spoken = piece.replace(SPACE, " ").strip()
            found.append(Label(piece, spoken or "space"))
    return found


def rows_and_columns(pair: SeenPair, kind: Kind) -> tuple[list[Label], list[Label]]:
    """The labels of a map's queries and of its keys."""
    source, target = labels(pair.source), labels(pair.target)
    rows = [*(source if ROWS[kind][0] == "source" else target), END]
    columns = [START, *target] if kind == "decoder" else [*source, END]
    return rows, columns
