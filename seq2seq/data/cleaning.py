"""Filters that drop bad training pairs, and count them by reason."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING

from seq2seq.data.corpus import Counts, Pair
from seq2seq.data.damaged_text import is_damaged
from seq2seq.data.language_identification import LanguageDetector, SideLanguages
from seq2seq.data.number_agreement import number_agreement
from seq2seq.data.pair_quality import LengthModel

if TYPE_CHECKING:
    from seq2seq.recipe import Cleaning, Languages

SHORT_TEXT = 10
"""The length ratio is checked only if both texts have more than this number of characters."""
STATISTICS_PAIRS = 10_000
"""Number of pairs at the beginning of a corpus from which the filters compute the statistics of the corpus."""


def clean(pairs: Iterable[Pair], cleaning: Cleaning, counts: Counts, sides: int = 2,
          languages: Languages | None = None) -> Iterator[Pair]:
    """Yield the pairs that pass all filters. The other pairs are counted in `counts`, by the reason to drop them. Of a
    source, the filters examine only the text.

    Duplicates are found by 64-bit hashes, which take some 80 bytes per pair. Two different pairs have the same hash
    with a probability of 2^-64.

    Args:
        sides: number of texts of a pair; 1 for monolingual text, whose source is empty. For monolingual text, the
            filters that compare the two sides are skipped.
        languages: language codes of both sides, for the filters `language: lingua` and `min_number_agreement`.
    Raises:
        UserError: lingua is not installed, or does not know one of the languages.
    """
    seen: set[bytes] = set()
    codes = (languages.source or "", languages.target) if languages else ("", "")
    statistics, pairs = _compute_statistics(pairs, cleaning, sides, languages)
    for number, source, target in pairs:
        reason = (_drop_reason((source.text, target)[-sides:], cleaning, codes)
                  or statistics.drop_reason(source.text, target))
        if reason is None and cleaning.remove_duplicates:
            digest = hashlib.blake2b(f"{source.text}\n{target}".encode(), digest_size=8).digest()
            reason = "duplicate" if digest in seen else None
            seen.add(digest)
        if reason is None:
            yield number, source, target
        else:
            counts.count_dropped(reason, number)


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
        if self.lengths and self.lengths.deviation(len(source.strip()), len(target.strip())) > self.max_deviation:
            return "length_deviation"
        if self.languages and self.languages.wrong(source, target):
            return "wrong_language"
        return None


def _compute_statistics(pairs: Iterable[Pair], cleaning: Cleaning, sides: int, languages: Languages | None
                        ) -> tuple[_Statistics, Iterable[Pair]]:
    """Return (statistics of the first STATISTICS_PAIRS pairs, all pairs). Unneeded statistics are None."""
    detector = LanguageDetector(languages) if cleaning.language == "lingua" and languages else None
    if sides == 1 or (cleaning.max_length_deviation is None and cleaning.language != "sides"):
        return _Statistics(languages=detector), pairs
    pairs = iter(pairs)
    first = list(islice(pairs, STATISTICS_PAIRS))
    texts = [(source.text, target) for _, source, target in first]
    codes = (languages.source or "", languages.target) if languages else ("", "")
    kept = [pair for pair in texts if _drop_reason(pair, cleaning, codes) is None]
    lengths = None
    if cleaning.max_length_deviation is not None:
        lengths = LengthModel.learn((len(source.strip()), len(target.strip())) for source, target in kept)
    statistics = _Statistics(lengths, cleaning.max_length_deviation or 0.0,
                             SideLanguages(kept) if cleaning.language == "sides" else detector)
    return statistics, chain(first, pairs)


def _drop_reason(texts: Sequence[str], cleaning: Cleaning, languages: tuple[str, str]) -> str | None:
    """Apply the filters that need no statistics to a pair. Return the reason to drop the pair; None to keep it.
    languages: language codes of both sides; "" if unknown."""
    lengths = [len(text.strip()) for text in texts]
    if not min(lengths):
        return "empty"
    if max(lengths) > cleaning.max_characters:
        return "too_long"
    ratio = cleaning.max_length_ratio
    if ratio is not None and min(lengths) > SHORT_TEXT and max(lengths) > ratio * min(lengths):
        return "length_ratio"
    if cleaning.remove_identical and len(set(texts)) < len(texts):
        return "identical"
    if cleaning.remove_damaged and any(map(is_damaged, texts)):
        return "damaged"
    minimum = cleaning.min_number_agreement
    if minimum is not None and len(texts) > 1 and number_agreement(texts[0], texts[1], *languages) < minimum:
        return "numbers"
    return None
