"""Labels for the rows and columns of attention maps, and their names for screen readers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from seq2seq.model.attention_weights import Kind
from seq2seq.translation.attention_maps import PairAttention, TokenizedLine

BYTE = re.compile(r"<0x([0-9A-F]{2})>")                                         # sentencepiece's byte-fallback pieces
SPACE = "▁"


@dataclass(frozen=True)
class Label:
    """Label of one row or column.

    text: text that is shown. name: text for screen readers. kind: type of token, which decides the style.
    """

    text: str
    name: str
    kind: Literal["piece", "byte", "special"] = "piece"


START = Label("<s>", "start of the sentence", "special")
END = Label("</s>", "end of the sentence", "special")

# Rows and columns of each kind of map: side of the pair that the pieces come from, role of each piece, and axis label.
ROWS: dict[Kind, tuple[str, str, str]] = {
    "cross": ("target", "predicted", "predicted target piece"),
    "encoder": ("source", "attending", "attending source piece"),
    "decoder": ("target", "predicted", "predicted target piece"),
    "context": ("source", "attending", "attending source piece")}
COLUMNS: dict[Kind, tuple[str, str, str]] = {
    "cross": ("source", "attended to", "source piece attended to"),
    "encoder": ("source", "attended to", "source piece attended to"),
    "decoder": ("target", "attended to", "target piece attended to"),
    "context": ("source", "attended to", "context piece attended to")}
NAMES: dict[Kind, str] = {
    "cross": "Cross-attention", "encoder": "Encoder self-attention", "decoder": "Decoder self-attention",
    "context": "Attention to the context"}


def labels(line: TokenizedLine) -> list[Label]:
    """Return a label for each piece of a line, without `</s>`.

    The label of a byte piece is the character if it is visible and ASCII, else the hexadecimal value of the byte.
    """
    result = []
    for index, piece in enumerate(line.pieces):
        byte = BYTE.fullmatch(piece)
        if byte:
            # The last byte piece of a character has the span of the character; the others have empty spans.
            spans = (span for span in line.spans[index:] if span[0] < span[1])
            character = line.text[slice(*next(spans, (0, 0)))]
            visible = character.isprintable() and bool(character.strip())
            name = f"byte {byte[1]}{f' of {character}' if visible else ''}"
            result.append(Label(character if visible and character.isascii() else byte[1], name, "byte"))
        else:
            result.append(Label(piece, piece.replace(SPACE, " ").strip() or "space"))
    return result


def rows_and_columns(pair: PairAttention, kind: Kind) -> tuple[list[Label], list[Label]]:
    """Return the labels of a map's rows (queries) and columns (keys)."""
    source, target = labels(pair.source), labels(pair.target)
    rows = [*(source if ROWS[kind][0] == "source" else target), END]
    columns = [START, *target] if kind == "decoder" else [*source, END]
    return rows, columns
