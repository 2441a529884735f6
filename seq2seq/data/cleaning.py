"""Cleaning of training pairs; dropped pairs are counted by reason."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING

from seq2seq.data.corpus import Counts, Pair
from seq2seq.data.language_identification import LanguageDetector, SideLanguages
from seq2seq.data.number_agreement import number_agreement
from seq2seq.data.pair_quality import LengthModel, is_damaged

if TYPE_CHECKING:
    from seq2seq.recipe import Cleaning, Languages

SHORT_TEXT = 10
"""Length in characters up to which the length ratio is not checked."""
LEARNED_FROM = 10_000
"""Number of first pairs of a corpus from which filters learn their statistics."""


def clean(pairs: Iterable[Pair], cleaning: Cleaning, counts: Counts, sides: int = 2,
          languages: Languages | None = None) -> Iterator[Pair]:
    """Yield the pairs that pass the filters; counts the others by reason.

    sides: number of texts of a pair; 1 for monolingual text, whose source is empty, without comparisons of the sides.
    languages: of both sides, for `language: lingua`.
    Duplicates are found by 64-bit hashes: some 80 bytes a pair, and one wrong hit in 10^19 comparisons.

    Raises:
        UserError: lingua is not installed, or does not know one of the languages.
    """
    seen: set[bytes] = set()
    usual, pairs = _learn(pairs, cleaning, sides, languages)
    for number, source, target in pairs:
        reason = _fault((source, target)[-sides:], cleaning) or usual.fault(source, target)
        if reason is None and cleaning.remove_duplicates:
            digest = hashlib.blake2b(f"{source}\n{target}".encode(), digest_size=8).digest()
            reason = "duplicate" if digest in seen else None
            seen.add(digest)
        if reason is None:
            yield number, source, target
        else:
            counts.count_dropped(reason, number)


@dataclass(frozen=True)
class _Usual:
    """Statistics of a corpus that its filters need. most: largest length deviation, in standard deviations."""

    lengths: LengthModel | None = None
    most: float = 0.0
    languages: SideLanguages | LanguageDetector | None = None

    def fault(self, source: str, target: str) -> str | None:
        if self.lengths and self.lengths.deviation(len(source.strip()), len(target.strip())) > self.most:
            return "length_deviation"
        if self.languages and self.languages.wrong(source, target):
            return "wrong_language"
        return None


def _learn(pairs: Iterable[Pair], cleaning: Cleaning, sides: int, languages: Languages | None
           ) -> tuple[_Usual, Iterable[Pair]]:
    """Learn the statistics from the first pairs; returns them and all pairs. Reads ahead only if a filter needs it."""
    detector = LanguageDetector(languages) if cleaning.language == "lingua" and languages else None
    if sides == 1 or (cleaning.max_length_deviation is None and cleaning.language != "sides"):
        return _Usual(languages=detector), pairs
    pairs = iter(pairs)
    first = list(islice(pairs, LEARNED_FROM))
    sound = [(source, target) for _, source, target in first if _fault((source, target), cleaning) is None]
    lengths = None
    if cleaning.max_length_deviation is not None:
        lengths = LengthModel.learn((len(source.strip()), len(target.strip())) for source, target in sound)
    usual = _Usual(lengths, cleaning.max_length_deviation or 0.0,
                   SideLanguages(sound) if cleaning.language == "sides" else detector)
    return usual, chain(first, pairs)


def _fault(texts: Sequence[str], cleaning: Cleaning) -> str | None:
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
    least = cleaning.min_number_agreement
    if least is not None and len(texts) > 1 and number_agreement(*texts) < least:
        return "numbers"
    return None
