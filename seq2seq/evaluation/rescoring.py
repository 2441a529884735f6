"""Reranking of n-best translations with the scores of other models."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import mul
from pathlib import Path
from typing import Any

from seq2seq.errors import CorpusError, OptionError
from seq2seq.files import parse_json
from seq2seq.recipe import DecodingSection, decoding_with
from seq2seq.tokenizers.canonical_text import is_blank
from seq2seq.tokenizers.context import in_context
from seq2seq.tokenizers.source import Source, as_source
from seq2seq.translation.scoring import pair_scores, scorable_pairs
from seq2seq.translation.translation import TERM_REPORTS, Translation
from seq2seq.translation.translator import Translator


@dataclass(frozen=True)
class Rescored:
    """Translation with its new score.

    log_probabilities: log p of the translation according to each model, in the order of the models. Empty if the line
    has only one translation.
    """

    translation: Translation
    log_probabilities: tuple[float, ...]


def rescore(sources: Sequence[str | Source], found: Sequence[Sequence[Translation]],
            models: Sequence[tuple[Translator, float]], length_penalty: float = 1.0) -> list[list[Rescored]]:
    """Rerank the translations of each line by (log p + sum of weight * log p_model) / tokens^length_penalty.

    Translations with fewer faults come first, as in the search (see `translation/retry_faulty_lines.py`).
    log p is the log-probability from the search. log p_model is log p(translation | source), or log p(translation) if
    the model is a language model. A line with a single translation is returned unchanged.

    Args:
        sources: lines in order; for models with `data.context`, a blank line ends a document, and a source may have its
            own context.
        found: n-best lists as `Translator.translate` returns them.
        models: at least one model, with weights. The vocabulary of a model may differ from that of the model that
            translated.
        length_penalty: exponent of the number of tokens. Weights of 0 keep the order of a search with the same length
            penalty (form `power`) if the search used no coverage penalty and no `mbr`, and retried no line.
    """
    if len(sources) != len(found):
        raise CorpusError(f"there are {len(sources):,} sources, but translations of {len(found):,} lines. They "
                          "must match line by line.")
    if not models:
        raise OptionError("models is empty; name at least one model, with its weight")
    for _, weight in models:
        if not math.isfinite(weight):
            raise OptionError(f"the weight {weight} of a model is not a finite number")
    decoding_with(DecodingSection(), {"length_penalty": length_penalty})
    scored = [(line, rank) for line, n_best in enumerate(found) if len(n_best) > 1
              for rank in range(len(n_best))]
    lines = in_context(list(map(as_source, sources)), max(translator.context for translator, _ in models))
    columns = []
    for translator, _ in models:
        count = translator.context
        read = [replace(line, context=line.context[-count:] if line.context and count else None) for line in lines]
        pairs = [(read[line], found[line][rank].text) for line, rank in scored]
        columns.append(_log_probabilities(translator, pairs))
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
        result.append(sorted(rescored, key=lambda one: (len(one.translation.faults), -one.translation.score)))
    return result


def _log_probabilities(translator: Translator, pairs: Sequence[tuple[Source, str]]) -> list[float]:
    if not translator.task.has_source:
        pairs = [(Source(""), target) for _, target in pairs]
    scorable = set(scorable_pairs(translator, pairs))
    for pair in pairs:
        if pair not in scorable:
            raise CorpusError(f"the translation {pair[1][:60]!r}, or its source, has more pieces than a model accepts "
                              f"({translator.max_positions - 1}). Remove this line.")
    return [score.log_probability for score in pair_scores(translator, pairs)]


def read_n_best(text: str, where: str) -> tuple[dict[str, Any], list[Translation]]:
    """Return the JSON object of a line with its n-best translations. where: file and line number, for messages."""
    try:
        record = parse_json(text)
        n_best = [Translation(entry["translation"], float(entry["score"]), float(entry["log_probability"]),
                              int(entry["tokens"]), int(record.get("parts", 1)), faults=_faults(entry))
                  for entry in record["n_best"]]
        if not n_best or not isinstance(record["source"], str) or not all(map(_is_valid, n_best)):
            raise ValueError("not an n-best list of lines")
    except (ValueError, KeyError, TypeError, OverflowError):
        raise CorpusError(f"{where}: expected an object with the keys source and n_best, as "
                          "`seq2seq translate --n-best 5 --format jsonl` writes it.") from None
    return record, n_best


def _faults(entry: dict[str, Any]) -> tuple[str, ...]:
    faults = entry.get("faults", [])
    if not isinstance(faults, list) or not all(isinstance(fault, str) for fault in faults):
        raise ValueError("not a list of faults")
    return tuple(faults)


def _is_valid(translation: Translation) -> bool:
    text = translation.text
    return isinstance(text, str) and "\n" not in text and (translation.tokens > 0 or is_blank(text))


def rescored_record(record: dict[str, Any], rescored: Sequence[Rescored], models: Sequence[Path]) -> dict[str, Any]:
    """Return a JSON object of `read_n_best` with the translations in their new order."""
    def entry(one: Rescored) -> dict[str, Any]:
        translation = one.translation
        return {"translation": translation.text, "score": translation.score,
                "log_probability": translation.log_probability, "tokens": translation.tokens,
                **({"faults": list(translation.faults)} if "faults" in record["n_best"][0] else {}),
                "log_probabilities": dict(zip(map(str, models), one.log_probabilities, strict=False))}

    n_best = [entry(one) for one in rescored]
    best = {key: value for key, value in n_best[0].items() if key != "log_probabilities"}
    # These keys describe the best translation of the input, which need not be the best one now.
    of_best = ("faults", "retried", *TERM_REPORTS, "words")
    kept = {key: value for key, value in record.items() if key not in of_best}
    return {**kept, **best, "n_best": n_best}
