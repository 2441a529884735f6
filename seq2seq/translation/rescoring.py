"""Reranking of n-best translations with the scores of other models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import mul

from seq2seq.errors import CorpusError, require_texts
from seq2seq.recipe import DecodingSection, decoding_with
from seq2seq.translation.line_translator import Translation
from seq2seq.translation.translator import Translator


@dataclass(frozen=True)
class Rescored:
    """Translation with its new score.

    log_probabilities: log p of each model, in their order; empty if the line has a single translation.
    """

    translation: Translation
    log_probabilities: tuple[float, ...]


def rescore(sources: Sequence[str], found: Sequence[Sequence[Translation]],
            models: Sequence[tuple[Translator, float]], length_penalty: float = 1.0) -> list[list[Rescored]]:
    """Rerank the translations of each line by (log p + sum of weight * log p of each model) / tokens^penalty.

    The first log p is the one of the search. The log p of a model is log p(translation | source), or log p(translation)
    if it is a language model. A line with a single translation is returned unchanged.

    Args:
        found: n-best lists as `Translator.translate` returns them.
        models: models with their weights. Their vocabularies may differ from the one of the model that translated.
        length_penalty: exponent of the number of tokens. With the value of the search, weights of 0 do not change the
            order (if the score of the search had no other terms).
    Raises:
        CorpusError: a translation is longer than a model accepts, or the numbers of lines differ.
        OptionError: the length penalty is not a valid value of `decoding.length_penalty`.
        TypeError: a source is not a str.
    """
    require_texts(sources, "sources")
    if len(sources) != len(found):
        raise CorpusError(f"there are {len(sources):,} sources and translations of {len(found):,} lines. They must "
                          "match line by line.")
    decoding_with(DecodingSection(), {"length_penalty": length_penalty})
    scored = [(line, rank) for line, n_best in enumerate(found) if len(n_best) > 1
              for rank in range(len(n_best))]
    # The model's input and output had no white space around them.
    pairs = [(sources[line].strip(), found[line][rank].text.strip()) for line, rank in scored]
    columns = [_log_probabilities(translator, pairs) for translator, _ in models]
    log_probabilities = dict(zip(scored, zip(*columns, strict=True), strict=True))
    weights = [weight for _, weight in models]
    result = []
    for line, n_best in enumerate(found):
        rescored = []
        for rank, translation in enumerate(n_best):
            values = log_probabilities.get((line, rank), ())
            if values:
                total = translation.log_probability + sum(map(mul, weights, values))
                translation = replace(translation, score=total / translation.tokens**length_penalty)
            rescored.append(Rescored(translation, values))
        result.append(sorted(rescored, key=lambda one: -one.translation.score))
    return result


def _log_probabilities(translator: Translator, pairs: Sequence[tuple[str, str]]) -> list[float]:
    if not translator.task.has_source:
        pairs = [("", target) for _, target in pairs]
    scorable = set(translator.scorable_pairs(pairs))
    for pair in pairs:
        if pair not in scorable:
            raise CorpusError(f"the translation {pair[1][:60]!r}, or its source, has more pieces than a model accepts "
                              f"({translator.max_positions - 1}). Remove its line.")
    return [score.log_probability for score in translator.score(pairs)]
