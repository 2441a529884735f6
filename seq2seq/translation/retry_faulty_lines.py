"""Retry of faulty translations: loops, empty translations, copies, lost numbers and addresses.

Faults are detected in the text alone (faults.py). A line with faults is searched again with options that its faults
suggest. The new translation replaces the old one if it has fewer faults and is about as probable. Each line is checked
and retried independently of the others, like the search itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from seq2seq.errors import RequestError
from seq2seq.recipe import DecodingSection, Languages
from seq2seq.translation.output_faults import faults, lost_numbers, lost_urls
from seq2seq.translation.search_setup import Decoding, Found, Part

Search = Callable[[Sequence[Part], Decoding], list[list[Found]]]

RETRIES: dict[str, dict[str, Any]] = {
    "loop": {"no_repeat_ngram": 3},
    "too_long": {"no_repeat_ngram": 3},
    "empty": {"min_length": 1},
}
"""Options of the retry, by fault. Lost numbers and addresses become required phrases. For other faults the retry only
has more hypotheses to choose from."""
WIDEST, MOST_PATIENT = 5, 2.0
"""Least beam size and patience of the retry."""
MOST_REQUIRED = 5
"""Largest number of lost addresses and numbers that the retry requires. A line that has lost more is a table, for which
a beam divided among that many phrases finds nothing, slowly."""
MOST_LOST, MOST_LOST_OF_COPY = 1.0, 0.2
"""Largest loss of mean log p, in nats per token, when a faulty translation is replaced. It is smaller for copies: if
the model is sure of a copy, it may be right, such as for titles, or the model has learned to copy."""


def retry_faulty(parts: Sequence[Part], found: Sequence[list[Found]], asked: Decoding, languages: Languages,
                 search: Search) -> list[list[Found]]:
    """Check the translations of each part for faults, and retry the search of faulty ones.

    Samples and MBR translations are only checked, because a retry would not be the sample or the MBR choice that was
    requested.

    Args:
        found: translations of each part, best first. asked: their decoding options.
        search: as `Translator.search_parts`.
    Returns:
        The translations with their faults; a translation of the retry comes first if it has fewer.
    """
    judged = [_judged(part, ways, languages) for part, ways in zip(parts, found, strict=True)]
    if asked.options.sampling or asked.options.mbr:
        return judged
    alike = defaultdict(list)
    for number, (best, *_) in enumerate(judged):
        if best.faults:
            alike[_differing(asked.options, best.faults)].append(number)
    for differing, numbers in alike.items():
        second = Decoding(_second(asked.options, dict(differing)), asked.tokenizer, languages.target)
        plain = [parts[number] for number in numbers]
        again = [_requiring(part, judged[number][0].text, second) for number, part in zip(numbers, plain, strict=True)]
        for number, ways in zip(numbers, _as_far_as_possible(again, plain, second, search), strict=True):
            others = _judged(parts[number], ways, languages)
            judged[number] = _best_first(judged[number], [replace(other, retried=True) for other in others])
    return judged


def _judged(part: Part, ways: list[Found], languages: Languages) -> list[Found]:
    return [replace(way, faults=faults(part.text, way.text, languages.source or "", languages.target)) for way in ways]


def _differing(options: DecodingSection, found: Sequence[str]) -> tuple[tuple[str, Any], ...]:
    """Return the `decoding` keys and values to change in the retry of a translation with these faults, without those
    that are set already."""
    chosen = {key: value for fault in found for key, value in RETRIES.get(fault, {}).items()}
    return tuple((key, value) for key, value in chosen.items() if not getattr(options, key))


def _second(options: DecodingSection, differing: dict[str, Any]) -> DecodingSection:
    beam = max(WIDEST, options.beam_size)
    return DecodingSection.model_validate({**options.model_dump(), "diverse_groups": 1, "beam_size": beam,
                                           "n_best": beam, "patience": max(MOST_PATIENT, options.patience),
                                           **differing})


def _requiring(part: Part, translation: str, second: Decoding) -> Part:
    """Return the part with the addresses and integers that its translation lost as required phrases.

    They may match within a word ("1980s"). Numbers with separators are skipped, because languages write them
    differently.
    """
    lacking = [*lost_urls(part.text, translation), *filter(str.isdecimal, lost_numbers(part.text, translation))]
    if len(lacking) > MOST_REQUIRED:
        return part
    required = list(part.required)
    for phrase in lacking:
        with suppress(RequestError):                                            # the vocabulary does not know it
            required.append(second.required_phrase(phrase, whole_words=False))
    return replace(part, required=tuple(dict.fromkeys(required)))


def _as_far_as_possible(parts: Sequence[Part], plain: Sequence[Part], second: Decoding,
                        search: Search) -> list[list[Found]]:
    """Retry the search with the constraints; a part without a hypothesis that satisfies them is searched without
    (`plain`), and has no result if that fails, too."""
    try:
        return search(parts, second)
    except RequestError:
        if len(parts) == 1:
            return [[]] if parts == plain else _as_far_as_possible(plain, plain, second, search)
    middle = len(parts) // 2
    return [*_as_far_as_possible(parts[:middle], plain[:middle], second, search),
            *_as_far_as_possible(parts[middle:], plain[middle:], second, search)]


def _best_first(first: list[Found], others: list[Found]) -> list[Found]:
    """Return the translations of the first search, preceded by one of the retry if it has fewer faults than the best
    and is not much less probable."""
    best = first[0]
    most = MOST_LOST_OF_COPY if "copied" in best.faults else MOST_LOST
    probable = [other for other in others if _mean(other) >= _mean(best) - most]
    chosen = min([best, *probable], key=lambda way: len(way.faults))            # the first of equally good ones
    rest = [way for way in first if way.hypothesis.tokens != chosen.hypothesis.tokens]
    return [chosen, *rest][: len(first)]


def _mean(way: Found) -> float:
    """Return the mean log p per token."""
    return way.hypothesis.log_probability / (len(way.hypothesis.tokens) + 1)
