"""Reranking of n-best translations with the scores of other models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from seq2seq.errors import CorpusError, require_texts
from seq2seq.recipe import DecodingSection, decoding_with
from seq2seq.translation.line_translator import Translation
from seq2seq.translation.translator import Translator


@dataclass(frozen=True)
class Rescored:
    """translation: with its new score. log_probabilities: of each model, in their order; () where nothing was chosen.
    """

    translation: Translation
    log_probabilities: tuple[float, ...]


def rescore(sources: Sequence[str], found: Sequence[Sequence[Translation]],
            models: Sequence[tuple[Translator, float]], length_penalty: float = 1.0) -> list[list[Rescored]]:
    """Rerank the translations of each line by (log p + sum of weight * log p of each model) / tokens^penalty.

    The first log p is that of the search. The models' are log p(translation | source), or log p(translation) of a
    language model. A line with a single translation is returned unchanged.

    Args:
        found: as `Translator.translate` returns them.
        models: each with its weight. Their vocabularies need not be those of the model that translated.
        length_penalty: that of the search, so that weights of 0 change nothing (if its score had no other parts).
    Raises:
        CorpusError: a translation is longer than a model can take, or lines do not match.
        OptionError: the length penalty is not one of `decoding.length_penalty`.
        TypeError: a source is no str.
    """
    require_texts(sources, "sources")
    if len(sources) != len(found):
        raise CorpusError(f"there are {len(sources):,} sources and translations of {len(found):,} lines. They must "
                          "match line by line.")
    decoding_with(DecodingSection(), {"length_penalty": length_penalty})
    chosen = [(line, place) for line, ways in enumerate(found) if len(ways) > 1 for place in range(len(ways))]
    # The model's input and output had no white space around them.
    pairs = [(sources[line].strip(), found[line][place].text.strip()) for line, place in chosen]
    columns = [_log_probabilities(translator, pairs) for translator, _ in models]
    by_place = dict(zip(chosen, zip(*columns, strict=True), strict=True))
    weights = [weight for _, weight in models]
    result = []
    for line, ways in enumerate(found):
        rescored = []
        for place, way in enumerate(ways):
            if (given := by_place.get((line, place))) is None:
                rescored.append(Rescored(way, ()))
                continue
            total = way.log_probability + sum(weight * value for weight, value in zip(weights, given, strict=True))
            rescored.append(Rescored(replace(way, score=total / way.tokens**length_penalty), given))
        result.append(sorted(rescored, key=lambda one: -one.translation.score))
    return result


def _log_probabilities(translator: Translator, pairs: Sequence[tuple[str, str]]) -> list[float]:
    alone = translator.languages.monolingual
    scored = [("" if alone else source, target) for source, target in pairs]
    kept = translator.scorable_pairs(scored)
    if len(kept) < len(scored):
        within = set(kept)
        long = next(pair for pair in scored if pair not in within)
        raise CorpusError(f"a translation, or its source, has more pieces than a model takes "
                          f"({translator.max_positions - 1}): {long[1][:60]!r}. Leave its line out.")
    return [score.log_probability for score in translator.score(scored)]
