"""Word alignment by cross-attention: links between words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from seq2seq.data.alignment_links import AlignmentSettings, Link, extract_links
from seq2seq.tokenizers.line_splitting import word_spans
from seq2seq.translation.attention_maps import PairAttention, compute_pair_attention
from seq2seq.translation.translation import ReportProgress
from seq2seq.translation.translator import Translator
from seq2seq.translation.word_attention import attention_between, one_layer


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
        ValueError: the source or target of a pair has more pieces than the model has positions.
    """
    languages = translator.languages.pair
    alignments: dict[int, Alignment] = {}
    layer, aligner = one_layer(translator, aligner)
    for index, pair in compute_pair_attention(translator, pairs, ["cross"], layer):
        alignments[index] = link_words(pair, aligner, languages)
        if progress:
            progress(1)
    return [alignments[index] for index in range(len(pairs))]


def link_words(pair: PairAttention, aligner: AlignmentSettings, languages: tuple[str, str]) -> Alignment:
    """Link the words of a pair. languages: language codes of source and target. The division of the text into words
    depends on its language.
    """
    sides = (pair.source, pair.target)
    spans = [word_spans(side.text, language) for side, language in zip(sides, languages, strict=True)]
    weights = attention_between(pair, aligner, *spans)
    source_words, target_words = (
        [side.text[begin:end] for begin, end in words] for side, words in zip(sides, spans, strict=True))
    return Alignment(source_words, target_words, {
        (source, target): float(weights[target, source])
        for source, target in sorted(extract_links(weights, aligner.rule))})
