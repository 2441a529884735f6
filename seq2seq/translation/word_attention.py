"""Attention between the words of a sentence and those of its translation, by which tags and terms are placed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from seq2seq.data.alignment_links import AlignmentSettings, piece_word_overlap, word_weights
from seq2seq.tokenizers.line_splitting import Span, alignment_units
from seq2seq.tokenizers.source import Source
from seq2seq.translation.attention_maps import PairAttention, compute_pair_attention, maps_of_kind, select_map
from seq2seq.translation.line_search import LineSearch
from seq2seq.translation.scoring import scorable_pairs


def unit_weights(translator: LineSearch, pairs: Sequence[tuple[str, str]], aligner: AlignmentSettings
                 ) -> list[np.ndarray | None]:
    """Return the attention between the units (see `line_splitting.alignment_units`) of each pair, with shape (target
    units, source units). For a pair that is too long for the model, and for a model without cross-attention, return
    None. A language token or tag in a source is text.
    """
    language = translator.languages.target
    texts = [(Source(source, language=language, tag=""), target) for source, target in pairs]
    accepted = set(scorable_pairs(translator, texts))
    indices = [index for index, pair in enumerate(texts) if pair in accepted]
    weights: list[np.ndarray | None] = [None] * len(pairs)
    layer, aligner = one_layer(translator, aligner)
    for index, pair in compute_pair_attention(translator, [texts[index] for index in indices], ["cross"], layer):
        if "cross" not in pair.maps:
            return weights
        units = attention_between(pair, aligner, alignment_units(pair.source.text), alignment_units(pair.target.text))
        weights[indices[index]] = units[:, :-1]
    return weights


def one_layer(translator: LineSearch, aligner: AlignmentSettings) -> tuple[int | None, AlignmentSettings]:
    """Return the decoder layer that `aligner` selects, and settings for maps that contain only this layer. If
    the model has no such layer, return (None, aligner)."""
    layers = translator.engine.cross_layers
    layer = layers if aligner.layer is None else aligner.layer
    return (layer, replace(aligner, layer=1)) if 1 <= layer <= layers else (None, aligner)


def attention_between(pair: PairAttention, aligner: AlignmentSettings, source_words: Sequence[Span],
                      target_words: Sequence[Span]) -> np.ndarray:
    """Return the attention between words, (target words, source words + 1). See `word_weights`."""
    maps = maps_of_kind(pair, "cross")
    selected = select_map(maps, "cross", len(maps) if aligner.layer is None else aligner.layer, aligner.head)
    piece_weights = selected[1:] if aligner.step == "reads" else selected[:-1]
    return word_weights(piece_weights, piece_word_overlap(pair.source.spans, source_words),
                        piece_word_overlap(pair.target.spans, target_words))
