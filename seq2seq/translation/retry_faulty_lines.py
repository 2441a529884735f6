"""Retry of faulty translations: loops, empty translations, copies, lost numbers and addresses.

output_faults.py detects faults in the text. If the translation of a part has faults, the part is searched again with
options that depend on the faults. If the new translation has fewer faults and is not much less probable, it replaces
the old one. Each part is checked and retried independently of the other parts. If faults remain in a part of several
sentences, each sentence is translated alone (`retry_sentences`).

`retry` is the mechanism. It also serves lines with placeholders and terms (`protected_translation.py`), whose
faults are lost placeholders and terms.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any, TypeVar

from seq2seq.errors import RequestError
from seq2seq.recipe import DecodingSection, Languages
from seq2seq.tokenizers.line_splitting import DividedLine, divide_sentences
from seq2seq.translation.output_faults import changed_numbers, faults, lost_urls
from seq2seq.translation.search_setup import Part, PartTranslation, SearchSetup, distinct

Search = Callable[[Sequence[Part], SearchSetup], list[list[PartTranslation]]]
"""See `Translator.search_parts`."""
Item = TypeVar("Item")
Input = TypeVar("Input")
Found = TypeVar("Found", bound=Any)

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


def retry(sources: Sequence[Item], n_best: Sequence[list[Found]], faulty: Iterable[int],
          inputs: Sequence[Callable[[Item, Found], Input]], search: Callable[[Sequence[Input]], list[list[Found]]],
          choose: Callable[[Sequence[Item], Sequence[list[Found]], Sequence[list[Found]]], Sequence[list[Found]]],
          ) -> list[list[Found]]:
    """Search faulty sources again, and return the n-best lists of all sources.

    Args:
        sources, n_best: each source with its translations, best first.
        faulty: indices of the sources to search again.
        inputs: functions that return the input of the second search for a source and its best translation, with
            requirements that depend on the faults. If the requirements of one cannot be met, the next one is used.
        search: second search.
        choose: function that takes the faulty sources, their translations and those of the second search (none if no
            requirements could be met), and returns the n-best lists to use.
    """
    faulty, results = list(faulty), list(n_best)
    if not faulty:
        return results
    chosen, before = [sources[index] for index in faulty], [results[index] for index in faulty]
    attempts = [[make(source, best) for source, (best, *_) in zip(chosen, before, strict=True)] for make in inputs]
    found = [[replace(one, retried=True) for one in again] for again in _search_each(attempts, search)]
    for index, new in zip(faulty, choose(chosen, before, found), strict=True):
        results[index] = new
    return results


def _search_each(attempts: Sequence[Sequence[Input]], search: Callable[[Sequence[Input]], list[list[Found]]],
                 ) -> list[list[Found]]:
    """Search the inputs of the first attempt, and return the translations of each. If the search of an input fails, the
    same input of the next attempt is searched. If the last one fails, too, the input gets no translations. The error of
    a search does not say which input failed, so the inputs are bisected."""
    if not attempts:
        return [[]]
    try:
        return search(attempts[0])
    except RequestError:
        if len(attempts[0]) == 1:
            return _search_each([other for other in attempts[1:] if other != attempts[0]], search)
    middle = len(attempts[0]) // 2
    return [*_search_each([inputs[:middle] for inputs in attempts], search),
            *_search_each([inputs[middle:] for inputs in attempts], search)]


def retry_faulty(parts: Sequence[Part], translations: Sequence[list[PartTranslation]], setup: SearchSetup,
                 languages: Languages, search: Search | None) -> list[list[PartTranslation]]:
    """Check the translations of each part for faults. If the best translation of a part has faults, retry.

    Samples and MBR translations are checked but not retried, because a retry would return neither the requested sample
    nor the MBR choice.

    Args:
        translations: translations of each part, best first. setup: setup of the search that produced the translations.
        search: search of the retry; None: translations are only checked.
    Returns:
        The translations of each part, with their faults. If a translation of the retry has fewer faults and is probable
        enough, it comes first.
    """
    checked = _with_faults(languages, parts, translations)
    if search is None or setup.decoding.sampling or setup.decoding.mbr:
        return checked

    def choose(parts: Sequence[Part], before: Sequence[list[PartTranslation]], found: Sequence[list[PartTranslation]],
               ) -> list[list[PartTranslation]]:
        return list(map(_with_better_first, before, _with_faults(languages, parts, found)))

    by_changes = defaultdict(list)                                              # parts to retry, by changed options
    for index, (best, *_) in enumerate(checked):
        if best.faults:
            by_changes[_changed_keys(setup.decoding, best.faults)].append(index)
    for changes, indices in by_changes.items():
        again = SearchSetup(_retry_section(setup.decoding, dict(changes)), setup.tokenizer, languages.target)
        with_lost = partial(_with_lost_phrases, again)
        checked = retry(parts, checked, indices, [with_lost, lambda part, best: part],
                        partial(_search_with, search, again), choose)
    return checked


def _search_with(search: Search, setup: SearchSetup, parts: Sequence[Part]) -> list[list[PartTranslation]]:
    return search(parts, setup)


def retry_sentences(lines: Sequence[DividedLine], parts: Sequence[Part], translations: Sequence[list[PartTranslation]],
                    languages: Languages, translate: Callable[[Sequence[Part]], list[list[PartTranslation]]],
                    ) -> tuple[list[DividedLine], list[list[PartTranslation]]]:
    """Translate each sentence of a faulty part alone. If the joined translation is better, the sentences replace the
    part: a model that was trained on single sentences loses most sentences of a long part.

    A joined translation is better if it is not too short and the translation of the part is, or else if it has fewer
    faults. A part with a prefix or required phrases is not divided, because it is not clear which sentence gets them.

    Args:
        lines: lines to which the parts belong, in the same order. translations: translations of each part, best first,
            with their faults. translate: function that searches parts, and checks and retries them.
    Returns:
        The lines, some of them divided into more parts, and the translations of their parts.
    """
    divided = {index: divide_sentences(part.source.text)
               for index, (part, (best, *_)) in enumerate(zip(parts, translations, strict=True))
               if best.faults and not part.prefix and not part.required}
    divided = {index: division for index, division in divided.items() if len(division.texts) > 1}
    found = iter(translate([replace(parts[index], source=replace(parts[index].source, text=text))
                            for index, division in divided.items() for text in division.texts]) if divided else ())
    chosen: dict[int, list[list[PartTranslation]]] = {}
    for index, division in divided.items():
        n_best = list(islice(found, len(division.texts)))
        joined = division.join([best.text for best, *_ in n_best], languages.target)
        before = translations[index][0].faults
        after = faults(parts[index].source.text, joined, languages.source or "", languages.target)
        if "too_short" not in after if "too_short" in before else len(after) < len(before):
            chosen[index] = [[replace(one, retried=True) for one in each] for each in n_best]
    if not chosen:
        return list(lines), list(translations)
    indices, new_lines = iter(range(len(parts))), []
    for line in lines:
        pieces = [divided[index] if index in chosen else DividedLine("", [text], [], "")
                  for index, text in zip(islice(indices, len(line.texts)), line.texts, strict=True)]
        gaps = [gap for piece, after_piece in zip(pieces, [*line.gaps, ""], strict=False)
                for gap in (*piece.gaps, after_piece)]
        new_lines.append(replace(line, texts=[text for piece in pieces for text in piece.texts], gaps=gaps[:-1]))
    return new_lines, [each for index, n_best in enumerate(translations) for each in chosen.get(index, [n_best])]


def _with_faults(languages: Languages, parts: Sequence[Part], translations: Sequence[list[PartTranslation]]
                 ) -> list[list[PartTranslation]]:
    """Return the translations of each part with their faults."""
    source, target = languages.source or "", languages.target
    return [[replace(one, faults=faults(part.source.text, one.text, source, target)) for one in n_best]
            for part, n_best in zip(parts, translations, strict=True)]


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


def _with_lost_phrases(setup: SearchSetup, part: Part, best: PartTranslation) -> Part:
    """Return a copy of the part that also requires the addresses and integers that its translation lost.

    The added phrases may match within a word: 1980 matches in "1980s". Numbers with separators are not added, because
    languages write them differently. If more than `MAX_REQUIRED` phrases were lost, none is added.
    """
    source = part.source.text
    lost, _ = changed_numbers(source, best.text)
    lost = [*lost_urls(source, best.text), *filter(str.isdecimal, lost)]
    if len(lost) > MAX_REQUIRED:
        return part
    required = list(part.required)
    for phrase in lost:
        with suppress(RequestError):                                            # the vocabulary cannot spell it
            required.append(setup.phrases.required_phrase(phrase, whole_words=False))
    return replace(part, required=tuple(dict.fromkeys(required)))


def _with_better_first(first: list[PartTranslation], others: list[PartTranslation]) -> list[PartTranslation]:
    """Return the translations of the first search. If the retry found a better translation, put it first.

    A better translation has fewer faults than the best of the first search and is not much less probable. The list
    keeps its length, so the last translation may be dropped.
    """
    best = first[0]
    max_loss = MAX_LOSS_OF_COPY if "copied" in best.faults else MAX_LOSS
    probable = [other for other in others if _mean_log_probability(other) >= _mean_log_probability(best) - max_loss]
    chosen = min([best, *probable], key=lambda translation: len(translation.faults))    # the first one in case of a tie
    return distinct([chosen, *first])[: len(first)]


def _mean_log_probability(translation: PartTranslation) -> float:
    """Return the mean log p per token."""
    return translation.hypothesis.log_probability / (len(translation.hypothesis.tokens) + 1)
