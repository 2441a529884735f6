"""Attention maps as pages and pictures show them: the selected maps, and the labels of their rows and columns."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

import numpy as np

from seq2seq.data.alignment_links import Kind
from seq2seq.errors import CorpusError, UserError
from seq2seq.translation.attention_maps import (
    PairAttention,
    TokenizedLine,
    compute_pair_attention,
    maps_of_kind,
    select_map,
)
from seq2seq.translation.translator import Translator

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


def attention_weights(translator: Translator, source: str, target: str | None = None) -> PairAttention:
    """Return the attention weights of a sentence and its translation as arrays.

    >>> pair = seq2seq.attention_weights(translator, "Ein Hund läuft.")
    >>> mean_of_heads = pair.maps["cross"][-1].mean(0)      # of the last layer: rows pair.target.pieces and </s>

    Args:
        source: the sentence; for a language model, its text.
        target: its translation; None: that of the model.
    """
    if not translator.task.has_source:
        if target:
            raise UserError(f"{translator.directory} is a language model, which reads one text; leave the target out.")
        texts = "", source
    else:
        texts = source, target or translator.translate([source])[0][0].text.strip()
    try:
        ((_, pair),) = compute_pair_attention(translator, [texts])
    except ValueError as error:
        raise CorpusError(f"{error}. Give a shorter sentence.") from error
    return pair


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
        """Return the selected maps of a pair, each as (name, weights) with weights of shape (queries, keys)."""
        maps = maps_of_kind(pair, self.kind)
        layers, heads = maps.shape[:2]
        return [(f"layer {layer}, {'mean of the heads' if head == 'mean' else f'head {head}'}",
                 select_map(maps, self.kind, layer, head))
                for layer in (range(1, layers + 1) if self.layer == "all" else [self.layer])
                for head in (["mean", *range(1, heads + 1)] if self.head == "all" else [self.head])]
