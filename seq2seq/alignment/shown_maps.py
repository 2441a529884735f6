"""Attention maps as pages and pictures show them: the selected maps, and the labels of their rows and columns."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

import numpy as np

from seq2seq.data.alignment_links import Kind
from seq2seq.errors import UserError
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


@dataclass(frozen=True)
class AttentionMapSelection:
    """Kind, layer and head of the attention maps to show. Layers and heads count from 1.

    If `layer` is "all", all layers are shown. If `head` is "mean", the map of a layer is the mean over its heads. If
    `head` is "all", both the mean and the map of each head are shown.
    """

    kind: Kind
    layer: int | Literal["all"]
    head: int | Literal["mean", "all"]

    def maps(self, pair: PairAttention) -> list[tuple[str, np.ndarray]]:
        """Return the selected maps of a pair, each as (name, weights) with weights of shape (queries, keys).

        Raises:
            UserError: the model has no such attention, layer or head.
        """
        maps = maps_of_kind(pair, self.kind)
        layers, heads = maps.shape[:2]
        return [(f"layer {layer}, {'mean of the heads' if head == 'mean' else f'head {head}'}",
                 select_map(maps, self.kind, layer, head))
                for layer in (range(1, layers + 1) if self.layer == "all" else [self.layer])
                for head in (["mean", *range(1, heads + 1)] if self.head == "all" else [self.head])]


def maps_of_kind(pair: PairAttention, kind: Kind) -> np.ndarray:
    """Return the maps of one kind of attention, (layers, heads, queries, keys).

    Raises:
        UserError: the model has no attention of this kind.
    """
    if kind not in pair.maps:
        others = f"; it has {' and '.join(pair.maps)}" if pair.maps else ""
        raise UserError(f"this model has no {kind} attention{others}.")
    return pair.maps[kind]


def select_map(maps: np.ndarray, kind: Kind, layer: int, head: int | Literal["mean"]) -> np.ndarray:
    """Return the weights of one head of a layer, or the mean of the weights of its heads: (queries, keys).

    Raises:
        UserError: there is no such layer or head.
    """
    layers, heads = maps.shape[:2]
    if not 1 <= layer <= layers:
        raise UserError(f"layer {layer}: the {kind} attention of this model has {_number_range('layer', layers)}.")
    if head == "mean":
        mean: np.ndarray = maps[layer - 1].mean(0)
        return mean
    if not 1 <= head <= heads:
        raise UserError(f"head {head}: each layer of this model has {_number_range('head', heads)}. Choose one, or "
                        "mean.")
    return maps[layer - 1, head - 1]


def _number_range(noun: str, count: int) -> str:
    return f"only {noun} 1" if count == 1 else f"{noun}s 1 to {count}"
