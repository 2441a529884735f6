"""Word alignment by cross-attention: links, and weights between the units that inline markup covers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from seq2seq.alignment.shown_maps import maps_of_kind, select_map
from seq2seq.data.alignment_links import AlignmentSettings, Link, extract_links, piece_word_overlap, word_weights
from seq2seq.data.line_splitting import Span, alignment_units, word_spans
from seq2seq.tokenizers.language_token import LANGUAGE_TOKEN
from seq2seq.tokenizers.source import Source
from seq2seq.translation.attention_maps import PairAttention, compute_pair_attention
from seq2seq.translation.scoring import scorable_pairs
from seq2seq.translation.translator import ReportProgress, Translator


@dataclass(frozen=True)
class Alignment:
    """Words of a sentence pair, and the links between them.

    links: for each link, the attention weight that the target word gives to the source word.
    """

    source_words: list[str]
    target_words: list[str]
    links: dict[Link, float]


def align(translator: Translator, pairs: Sequence[tuple[str, str]], aligner: AlignmentSettings,
          progress: ReportProgress | None = None) -> list[Alignment]:
    """Link the words of each pair.

    Args:
        progress: function that is called with 1 after each pair.
    Raises:
        UserError: the model has no cross-attention, or no such layer or head.
        ValueError: the source or target of a pair has more pieces than the model has positions.
    """
    languages = translator.languages.pair
    alignments: dict[int, Alignment] = {}
    layer, aligner = _one_layer(translator, aligner)
    for index, pair in compute_pair_attention(translator, pairs, ["cross"], layer):
        alignments[index] = link_words(pair, aligner, languages)
        if progress:
            progress(1)
    return [alignments[index] for index in range(len(pairs))]


def unit_weights(translator: Translator, pairs: Sequence[tuple[str, str]], aligner: AlignmentSettings
                 ) -> list[np.ndarray | None]:
    """Return the attention between the units (see `line_splitting.alignment_units`) of each pair, with shape (target
    units, source units). For a pair that is too long for the model, return None. A language token in a source is text.
    """
    language = translator.languages.target
    texts = [(Source(source, language=language), target) for source, target in pairs]
    accepted = set(scorable_pairs(translator, texts))
    indices = [index for index, pair in enumerate(texts) if pair in accepted]
    weights: list[np.ndarray | None] = [None] * len(pairs)
    layer, aligner = _one_layer(translator, aligner)
    for index, pair in compute_pair_attention(translator, [texts[index] for index in indices], ["cross"], layer):
        units = attention_between(pair, aligner, alignment_units(pair.source.text), alignment_units(pair.target.text))
        weights[indices[index]] = units[:, :-1]
    return weights


def _one_layer(translator: Translator, aligner: AlignmentSettings) -> tuple[int | None, AlignmentSettings]:
    """Return the decoder layer that `aligner` selects, and settings for maps that contain only this layer. If
    the model has no such layer, return (None, aligner)."""
    layers = translator.engine.cross_layers
    layer = layers if aligner.layer is None else aligner.layer
    return (layer, replace(aligner, layer=1)) if 1 <= layer <= layers else (None, aligner)


def link_words(pair: PairAttention, aligner: AlignmentSettings, languages: tuple[str, str]) -> Alignment:
    """Link the words of a pair. languages: language codes of source and target. The division of the text into words
    depends on its language.

    Raises:
        UserError: the model has no cross-attention, or no such layer or head.
    """
    sides = (pair.source, pair.target)
    spans = [word_spans(side.text, language) for side, language in zip(sides, languages, strict=True)]
    weights = attention_between(pair, aligner, *spans)
    source_words, target_words = (
        [side.text[begin:end] for begin, end in words] for side, words in zip(sides, spans, strict=True))
    return Alignment(source_words, target_words, {
        (source, target): float(weights[target, source])
        for source, target in sorted(extract_links(weights, aligner.rule))})


def attention_between(pair: PairAttention, aligner: AlignmentSettings, source_words: Sequence[Span],
                      target_words: Sequence[Span]) -> np.ndarray:
    """Return the attention between words, (target words, source words + 1). The last column is the attention to
    `</s>`, and to a language token that is not in the text.

    Raises:
        UserError: the model has no cross-attention, or no such layer or head.
    """
    maps = maps_of_kind(pair, "cross")
    selected = select_map(maps, "cross", len(maps) if aligner.layer is None else aligner.layer, aligner.head)
    piece_weights = selected[1:] if aligner.step == "reads" else selected[:-1]
    overlap = piece_word_overlap(pair.source.spans, source_words)
    if pair.source.pieces and LANGUAGE_TOKEN.fullmatch(pair.source.pieces[0]) and pair.source.spans[0] == (0, 0):
        outside = piece_weights[:, -1:] + piece_weights[:, :1]
        piece_weights, overlap = np.concatenate((piece_weights[:, 1:-1], outside), axis=1), overlap[1:]
    return word_weights(piece_weights, overlap, piece_word_overlap(pair.target.spans, target_words))
