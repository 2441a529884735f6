"""Filters that drop bad training pairs, and count them by reason."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import TYPE_CHECKING

from seq2seq.data.corpus import Counts, Pair
from seq2seq.data.damaged_text import is_damaged
from seq2seq.data.language_identification import LanguageDetector, SideLanguages
from seq2seq.data.numbers import number_agreement
from seq2seq.data.pair_quality import LengthModel
from seq2seq.errors import UserError
from seq2seq.tokenizers.canonical_text import canonical, is_blank
from seq2seq.tokenizers.source import Source

if TYPE_CHECKING:
    from seq2seq.recipe import Cleaning, Languages

SHORT_TEXT = 10
"""The length ratio is checked only if both texts have more than this number of characters."""
STATISTICS_PAIRS = 10_000
"""Number of pairs at the beginning of a corpus from which the filters compute the statistics of the corpus."""


Normalize = Callable[[str], str]
"""Function that returns a text as the model sees it; see `Vocabulary.normalized`."""


def clean(pairs: Iterable[Pair], cleaning: Cleaning, counts: Counts, sides: int = 2,
          languages: Languages | None = None, normalize: Sequence[Normalize] = (canonical, canonical),
          seen: dict[bytes, bool] | None = None) -> Iterator[Pair]:
    """Yield the pairs that pass all filters, with their texts as the model sees them. The other pairs are counted in
    `counts`, by the reason to drop them. Of a source, the filters examine only the text.

    Duplicates are found by 64-bit hashes, which take some 80 bytes per pair. Two different pairs have the same hash
    with a probability of 2^-64. Pairs with different languages or tags are no duplicates.

    Args:
        sides: number of texts of a pair; 1 for monolingual text, whose source is empty. For monolingual text, the
            filters that compare the two sides are skipped.
        languages: language codes of both sides, for the filter `language: lingua`.
        normalize: functions for source and target. Only the filter of damaged text examines the text before.
        seen: hashes of the pairs of earlier corpora, to which those of this corpus are added; None: there are none.
            Only a pair whose hash has the value True has duplicates.
    """
    seen = {} if seen is None else seen
    filters, pairs = PairFilters.for_corpus(pairs, cleaning, sides, languages, normalize)
    for number, source, target in filters.passing(pairs, counts):
        if cleaning.remove_duplicates:
            digest = pair_digest(languages, source, target)
            repeated = seen.get(digest)
            seen[digest] = True
            if repeated:
                counts.count_dropped("duplicate", number)
                continue
        yield number, source, target


def pair_digest(languages: Languages | None, source: Source, target: str) -> bytes:
    """Return a 64-bit hash of a pair without its context. Equal pairs are duplicates."""
    codes = languages.codes if languages else ()
    text = "\n".join((*codes, source.language, source.tag or "", source.text, target))
    return hashlib.blake2b(text.encode(), digest_size=8).digest()


@dataclass(frozen=True)
class _Statistics:
    """Statistics for two filters. `lengths` is None without the length filter, `languages` without the language filter.

    max_deviation: pairs with a larger `LengthModel.deviation` are dropped.
    """

    lengths: LengthModel | None = None
    max_deviation: float = 0.0
    languages: SideLanguages | LanguageDetector | None = None

    def drop_reason(self, source: str, target: str) -> str | None:
        """Apply the filters that need statistics to a pair. Return the reason to drop the pair; None to keep it."""
        if self.lengths and self.lengths.deviation(len(source), len(target)) > self.max_deviation:
            return "length_deviation"
        if self.languages and self.languages.wrong(source, target):
            return "wrong_language"
        return None


@dataclass(frozen=True)
class PairFilters:
    """Filters of a corpus, except that of duplicates. Each pair is judged for itself, so processes can share a corpus.

    statistics: of the first STATISTICS_PAIRS pairs. Other fields: see `clean`.
    """

    cleaning: Cleaning
    sides: int
    normalize: Sequence[Normalize]
    statistics: _Statistics

    @staticmethod
    def for_corpus(pairs: Iterable[Pair], cleaning: Cleaning, sides: int, languages: Languages | None,
                   normalize: Sequence[Normalize]) -> tuple[PairFilters, Iterable[Pair]]:
        """Return (the filters of a corpus, all its pairs). Statistics that are not needed are None."""
        detector = LanguageDetector(languages) if cleaning.language == "lingua" and languages else None
        if detector is not None and not detector.can_check:
            raise UserError(str(detector.fault))
        filters = PairFilters(cleaning, sides, normalize, _Statistics())
        if sides == 1 or (cleaning.max_length_deviation is None and cleaning.language != "sides"):
            return replace(filters, statistics=_Statistics(languages=detector)), pairs
        iterator = iter(pairs)
        first = list(islice(iterator, STATISTICS_PAIRS))
        kept = [(source.text, target) for _, source, target in filters.passing(first, Counts())]
        lengths = None
        if cleaning.max_length_deviation is not None:
            lengths = LengthModel.learn((len(source), len(target)) for source, target in kept)
        statistics = _Statistics(lengths, cleaning.max_length_deviation or 0.0,
                                 SideLanguages(kept) if cleaning.language == "sides" else detector)
        return replace(filters, statistics=statistics), chain(first, iterator)

    def passing(self, pairs: Iterable[Pair], counts: Counts) -> Iterator[Pair]:
        """Yield the pairs that pass, as the model sees them. The others are counted in `counts`."""
        cleaning = self.cleaning
        for number, source, target in pairs:
            damaged = cleaning.remove_damaged and (is_damaged(source.text) or is_damaged(target))
            source, target = normalized_pair(source, target, self.normalize)
            reason = (_drop_reason((source.text, target)[-self.sides:], cleaning, damaged)
                      or self.statistics.drop_reason(source.text, target))
            if reason is None:
                yield number, source, target
            else:
                counts.count_dropped(reason, number)


def normalized_pair(source: Source, target: str, normalize: Sequence[Normalize]) -> tuple[Source, str]:
    """Return a pair as the model sees it."""
    text = normalize[0](source.text)
    return source if text == source.text else replace(source, text=text), normalize[1](target)


def _drop_reason(texts: Sequence[str], cleaning: Cleaning, damaged: bool) -> str | None:
    """Apply the filters that need no statistics to a pair. Return the reason to drop the pair; None to keep it."""
    if any(map(is_blank, texts)):
        return "empty"
    lengths = list(map(len, texts))
    if max(lengths) > cleaning.max_characters:
        return "too_long"
    ratio = cleaning.max_length_ratio
    if ratio is not None and min(lengths) > SHORT_TEXT and max(lengths) > ratio * min(lengths):
        return "length_ratio"
    if cleaning.remove_identical and len(set(texts)) < len(texts):
        return "identical"
    if damaged:
        return "damaged"
    minimum = cleaning.min_number_agreement
    if minimum is not None and len(texts) > 1 and number_agreement(texts[0], texts[1]) < minimum:
        return "numbers"
    return None
