"""Retry of faulty translations: loops, empty translations, copies, lost numbers and addresses.

output_faults.py detects faults in the text. If the translation of a part has faults, the part is searched again with
options that depend on the faults. If the new translation has fewer faults and is not much less probable, it replaces
the old one. Each part is checked and retried independently of the other parts.
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
from seq2seq.translation.search_setup import Part, PartTranslation, SearchSetup

Search = Callable[[Sequence[Part], SearchSetup], list[list[PartTranslation]]]
"""See `Translator.search_parts`."""

RETRIES: dict[str, dict[str, Any]] = {
    "loop": {"no_repeat_ngram": 3},
    "too_long": {"no_repeat_ngram": 3},
    "empty": {"min_length": 1},
}
"""`decoding` keys that the retry sets for each fault. Lost numbers and addresses become required phrases. Every retry
also sets diverse_groups to 1, and raises smaller beam sizes and patiences to MIN_BEAM_SIZE and MIN_PATIENCE."""
MIN_BEAM_SIZE, MIN_PATIENCE = 5, 2.0
"""Minimum beam size and patience of the retry."""
MAX_REQUIRED = 5
"""Maximum number of lost addresses and numbers that the retry requires. If a translation lost more, the line is usually
from a table. With so many required phrases, the search would be slow and usually fail."""
MAX_LOSS, MAX_LOSS_OF_COPY = 1.0, 0.2
"""MAX_LOSS: a translation of the retry may replace a faulty one if its mean log p is lower by at most this number of
nats per token. MAX_LOSS_OF_COPY: a smaller limit, used if the faulty translation is a copy, because some
copies are right, for example copies of titles."""


def retry_faulty(parts: Sequence[Part], translations: Sequence[list[PartTranslation]], setup: SearchSetup,
                 languages: Languages, search: Search) -> list[list[PartTranslation]]:
    """Check the translations of each part for faults. If the best translation of a part has faults, retry.

    Samples and MBR translations are checked but not retried, because a retry would return neither the requested sample
    nor the MBR choice.

    Args:
        translations: translations of each part, best first. setup: setup of the search that produced the translations.
    Returns:
        The translations of each part, with their faults. If a translation of the retry has fewer faults and is probable
        enough, it comes first.
    """
    checked = [_with_faults(part, n_best, languages) for part, n_best in zip(parts, translations, strict=True)]
    if setup.decoding.sampling or setup.decoding.mbr:
        return checked
    by_changes = defaultdict(list)                                              # parts to retry, by changed options
    for index, (best, *_) in enumerate(checked):
        if best.faults:
            by_changes[_changed_keys(setup.decoding, best.faults)].append(index)
    for changes, indices in by_changes.items():
        retry = SearchSetup(_retry_section(setup.decoding, dict(changes)), setup.tokenizer, languages.target)
        plain = [parts[index] for index in indices]
        constrained = [_with_lost_phrases(parts[index], checked[index][0].text, retry) for index in indices]
        for index, n_best in zip(indices, _search_with_fallback(constrained, plain, retry, search), strict=True):
            others = [replace(other, retried=True) for other in _with_faults(parts[index], n_best, languages)]
            checked[index] = _with_better_first(checked[index], others)
    return checked


def _with_faults(part: Part, n_best: list[PartTranslation], languages: Languages) -> list[PartTranslation]:
    source = part.source.text
    return [replace(translation, faults=faults(source, translation.text, languages.source or "", languages.target))
            for translation in n_best]


def _changed_keys(decoding: DecodingSection, fault_names: Sequence[str]) -> tuple[tuple[str, Any], ...]:
    """Return (key, value) for each `decoding` key that the retry sets because of these faults. Keys that `decoding`
    already sets are left out."""
    changes = {key: value for fault in fault_names for key, value in RETRIES.get(fault, {}).items()}
    return tuple((key, value) for key, value in changes.items() if not getattr(decoding, key))


def _retry_section(decoding: DecodingSection, changes: dict[str, Any]) -> DecodingSection:
    beam_size = max(MIN_BEAM_SIZE, decoding.beam_size)
    return DecodingSection.model_validate({**decoding.model_dump(), "diverse_groups": 1, "beam_size": beam_size,
                                           "n_best": beam_size, "patience": max(MIN_PATIENCE, decoding.patience),
                                           **changes})


def _with_lost_phrases(part: Part, translation: str, retry: SearchSetup) -> Part:
    """Return a copy of the part that also requires the addresses and integers that its translation lost.

    The added phrases may match within a word: 1980 matches in "1980s". Numbers with separators are not added, because
    languages write them differently. If more than `MAX_REQUIRED` phrases were lost, none is added.
    """
    source = part.source.text
    lost = [*lost_urls(source, translation), *filter(str.isdecimal, lost_numbers(source, translation))]
    if len(lost) > MAX_REQUIRED:
        return part
    required = list(part.required)
    for phrase in lost:
        with suppress(RequestError):                                            # the vocabulary cannot spell it
            required.append(retry.phrases.required_phrase(phrase, whole_words=False))
    return replace(part, required=tuple(dict.fromkeys(required)))


def _search_with_fallback(constrained: Sequence[Part], plain: Sequence[Part], retry: SearchSetup,
                          search: Search) -> list[list[PartTranslation]]:
    """Search the parts `constrained`, which require the lost phrases; return the translations of each part.

    If the search of a part fails, search the same part in `plain`, without the lost phrases. If this search fails, too,
    the part gets no translations. The error of a search does not say which part failed, so the parts are bisected.
    """
    try:
        return search(constrained, retry)
    except RequestError:
        if len(plain) == 1:
            return [[]] if constrained == plain else _search_with_fallback(plain, plain, retry, search)
    middle = len(plain) // 2
    return [*_search_with_fallback(constrained[:middle], plain[:middle], retry, search),
            *_search_with_fallback(constrained[middle:], plain[middle:], retry, search)]


def _with_better_first(first: list[PartTranslation], others: list[PartTranslation]) -> list[PartTranslation]:
    """Return the translations of the first search. If the retry found a better translation, put it first.

    A better translation has fewer faults than the best of the first search and is not much less probable. The list
    keeps its length, so the last translation may be dropped.
    """
    best = first[0]
    max_loss = MAX_LOSS_OF_COPY if "copied" in best.faults else MAX_LOSS
    probable = [other for other in others if _mean_log_probability(other) >= _mean_log_probability(best) - max_loss]
    chosen = min([best, *probable], key=lambda translation: len(translation.faults))    # the first one in case of a tie
    rest = [translation for translation in first if translation.hypothesis.tokens != chosen.hypothesis.tokens]
    return [chosen, *rest][: len(first)]


def _mean_log_probability(translation: PartTranslation) -> float:
    """Return the mean log p per token."""
    return translation.hypothesis.log_probability / (len(translation.hypothesis.tokens) + 1)
