"""Faults of translations that can be detected without knowledge of the languages.

The checks prefer precision to recall: they report a fault for fewer than one in a thousand reference translations of
Multi30k and Tatoeba (English, German, Chinese).
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from seq2seq.data.line_splitting import sentences
from seq2seq.data.number_agreement import (
    HAS_NUMBER,
    Number,
    changed_signs,
    numbers,
    unmatched_parts,
    unmatched_wholes,
)
from seq2seq.data.number_words import (
    dated_months,
    has_months,
    has_number_words,
    identifiers,
    spelled_months,
    spelled_numbers,
    unit,
)
from seq2seq.languages import SPACELESS, main_language

FAULTS = ("empty", "loop", "too_short", "too_long", "copied", "lost_url", "lost_number")
"""Names of all faults, in the order in which `faults` returns them."""
LOST_PLACEHOLDER = "lost_placeholder"
"""Name of the fault that `protected_translation` adds: a placeholder of the source, such as a variable or a
tag, is missing in the translation, changed, or there too often."""
NOT_TRANSLATED = "not_translated"
"""Name of the fault that `documents.divided_document` reports: a message with branches that cannot be read stays as it
is."""

# With rare Han characters outside of the Basic Multilingual Plane: a copied line may consist of them.
_ONE_CHARACTER_WORDS = f"{SPACELESS}\U00020000-\U0003ffff"
_PUNCTUATION = "\\s\x00-/:-@\\[-^`{-\u00bf\u2000-\u206f\u0f0b-\u0f14\u3000-\u303f\uff00-\uff0f\uff1a-\uff20\ufffd"
ONE_CHARACTER_WORD = re.compile(f"[{_ONE_CHARACTER_WORDS}]")
WORD = re.compile(f"[{_ONE_CHARACTER_WORDS}]|[^{_ONE_CHARACTER_WORDS}{_PUNCTUATION}]+")
# Bounded repetitions keep the matching time linear in the length of a line.
URL = re.compile(r"(?:https?|ftp)://[!-~]+|\bwww\.[!-~]+|[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,8}", re.ASCII)
TAG = re.compile("</?[a-z][^<>]{0,200}>", re.IGNORECASE)

VARIANCE, WIDE = 6.8, 3
"""VARIANCE: variance of the difference in letters between a text and its translation, divided by the number of letters
of the shorter one (Gale and Church 1993, A Program for Aligning Sentences in Bilingual Corpora, section 3.3). The
expected difference is 0. WIDE: a Chinese, Japanese or Korean character counts as this number of letters."""
MAX_DEVIATIONS = 4.0
"""Maximum difference between actual and expected length of a translation, in standard deviations."""
MIN_SENTENCES, MIN_DEVIATIONS_OF_SENTENCES = 3, 1.5
"""A translation is also too short if the source has at least MIN_SENTENCES sentences, at least half of them are
missing, and the translation is shorter than expected by MIN_DEVIATIONS_OF_SENTENCES standard deviations."""
NGRAM_WORDS, NGRAM_CHARACTERS = 4, 8
"""Length of n-grams: in words, or in characters for text without spaces between words. It rarely happens by chance that
such an n-gram occurs in a source and in its translation, or twice in a line, so this indicates a copy or a loop."""
MAX_SPELLED_NUMBER, MAX_SPELLED_CLOCK = 24, 60
"""MAX_SPELLED_NUMBER: numbers up to this limit may be missing in a translation, because the translation may express
them in other words ("in 24 Stunden", "within a day"). MAX_SPELLED_CLOCK: the same limit for minutes and for the numbers
in a time such as 17:45 ("a quarter to 6")."""
MAX_PERIOD = 32
"""Maximum length of the repeated sequence in a loop, in words."""
# Sequences of up to 8 characters that occur 10 times, or 5 times, in a row.
REPEATED_10_TIMES, REPEATED_5_TIMES = (
    re.compile(rf"(\S.{{0,7}}?)\1{{{times - 1}}}", re.DOTALL) for times in (10, 5))


def faults(source: str, translation: str, source_language: str = "", target_language: str = "") -> tuple[str, ...]:
    """Return the names of a translation's faults, from `FAULTS`; an empty tuple if there are none.

    empty: the translation has no visible character. loop: the translation repeats words or characters, but the source
    does not. too_short, too_long: the length of the translation is implausible for a source of this length and number
    of sentences. copied: parts of the source are untranslated. lost_url: a URL or e-mail address of the source is
    missing in the translation. lost_number: a number of the source is missing or changed in the translation, or the
    translation has a number that the source has not.

    Args:
        source, translation: a line, or a part of a line that was translated separately.
        source_language, target_language: language codes. If both are the same language, `copied` is not checked.
    """
    if not _has_visible_text(source):
        return ()
    if not _has_visible_text(translation):
        return ("empty",)
    deviations = _deviations(_length(source), _length(translation))
    lost_sentences = deviations < -MIN_DEVIATIONS_OF_SENTENCES and _lost_sentences(source, translation)
    same_language = source_language and main_language(source_language) == main_language(target_language)
    checks = {
        "loop": _loops(source, translation),
        "too_short": deviations < -MAX_DEVIATIONS or lost_sentences,
        "too_long": deviations > MAX_DEVIATIONS,
        "copied": not same_language and _copied(source, translation),
        "lost_url": bool(lost_urls(source, translation)),
        "lost_number": any(changed_numbers(source, translation, source_language, target_language)),
    }
    return tuple(name for name, found in checks.items() if found)


def lost_urls(source: str, translation: str) -> list[str]:
    """Return the URLs and e-mail addresses of the source that are missing in the translation."""
    urls = (match.rstrip(".,;:!?)]}>'\"") for match in URL.findall(source))
    return [url for url in dict.fromkeys(urls) if url not in translation]


def changed_numbers(source: str, translation: str, source_language: str = "", target_language: str = "",
                    ) -> tuple[list[str], list[str]]:
    """Return the numbers of the source that are missing in the translation, and the numbers of the translation that are
    not in the source; each written as in its text.

    Numbers are compared by value and unit (`data/number_agreement.py`). The other side may spell a number in words. If
    its number words are not known, small and round numbers may be missing. Numbers up to `MAX_SPELLED_NUMBER` may
    always be missing, but not if there is another number instead.
    """
    if not HAS_NUMBER.search(source) and not HAS_NUMBER.search(translation):
        return _changed_names(source, translation, source_language, target_language)
    source, translation = URL.sub(" ", source), URL.sub(" ", translation)
    lost, invented = unmatched_wholes(numbers(source, source_language), numbers(translation, target_language))
    if not lost and not invented:
        return _changed_names(source, translation, source_language, target_language)
    # Two times: the words elsewhere in the line do not spell the parts of one of them.
    times = [[number.text for number in side if number.keys and number.keys[0][0] == "t"] for side in (lost, invented)]
    if all(times):
        return times[0], times[1]
    in_translation, in_source = _Spelled(translation, target_language), _Spelled(source, source_language)
    for _ in range(2):
        lost, invented = unmatched_parts(in_translation.remove_from(lost), in_source.remove_from(invented))
    # A time may be written with other numbers: a quarter to 6.
    if not (any(map(_is_time, lost)) and any(map(_is_time, invented))):
        lost, invented = ([number for number in side if not _is_time(number) or number.value > MAX_SPELLED_CLOCK]
                          for side in (lost, invented))
    if not (lost and invented):
        replaced = any(count and value not in ("0", "1", "2", "0.5")
                       for value, count in in_translation.numbers.items())
        lost = [number for number in lost
                if replaced and not _is_time(number) or not _may_be_missing(number, target_language)]
        invented = [number for number in invented if not _may_be_missing(number, source_language)]
    if not lost and not invented:
        return _changed_names(source, translation, source_language, target_language)
    return [*dict.fromkeys(number.text for number in lost)], [*dict.fromkeys(number.text for number in invented)]


def _changed_names(source: str, translation: str, source_language: str, target_language: str
                   ) -> tuple[list[str], list[str]]:
    """Return what differs beside equal digits: months, letters of names such as A380, Roman numbers, minus signs.

    Months and letters differ if both texts have some, but not one of them is the same.
    """
    ours, theirs = (dated_months(text, language) if language else {}
                    for text, language in ((source, source_language), (translation, target_language)))
    if ours and theirs and not set(ours.values()) & set(theirs.values()):
        return list(ours), list(theirs)
    names, other_names = identifiers(source), identifiers(translation)
    for digits in names.keys() & other_names.keys():
        if names[digits].isdisjoint(other_names[digits]):
            return ([letters + digits for letters in sorted(names[digits])],
                    [letters + digits for letters in sorted(other_names[digits])])
    return changed_signs(source, translation)


class _Spelled:
    """Number words and months of a text. Each may be the counterpart of one number in digits."""

    def __init__(self, text: str, language: str) -> None:
        self.numbers, self.months = spelled_numbers(text, language), spelled_months(text, language)

    def remove_from(self, found: list[Number]) -> list[Number]:
        """Return the numbers that this text does not spell."""
        return [number for number in found if not self._has(number)]

    def _has(self, number: Number) -> bool:
        for counts in (self.numbers, self.months) if number.kind in ("date", "day") else (self.numbers,):
            for key in number.keys:
                if counts[key]:
                    counts[key] -= 1
                    return True
        return False


def _is_time(number: Number) -> bool:
    return number.kind in ("clock", "day")


def _may_be_missing(number: Number, language: str) -> bool:
    """Return True if a text in this language may express a number without a counterpart that is recognised."""
    if number.kind == "part" or number.kind == "date" and has_months(language):
        return False
    is_clock = _is_time(number) or not number.units.isdisjoint(unit("min"))
    return number.value <= (MAX_SPELLED_CLOCK if is_clock else MAX_SPELLED_NUMBER) or (
        number.significant_digits <= 2 and not has_number_words(language))


def _has_visible_text(text: str) -> bool:
    return any(character.isprintable() and not character.isspace() for character in text)


def _length(text: str) -> int:
    """Return the length of a text in letters. White space does not count. A wide character counts as `WIDE` letters."""
    if text.isascii():
        return sum(map(len, text.split()))
    return sum(WIDE if unicodedata.east_asian_width(character) in "WF" else 1
               for character in text if not character.isspace())


def _deviations(source: int, translation: int) -> float:
    """Return the difference between actual and expected length of a translation, in standard deviations."""
    return (translation - source) / math.sqrt(VARIANCE * max(1, min(source, translation)))


def _lost_sentences(source: str, translation: str) -> bool:
    count = len(sentences(source))
    return count >= MIN_SENTENCES and 2 * len(sentences(translation)) <= count


def _loops(source: str, translation: str) -> bool:
    """Return True if the translation has a loop: it repeats words or characters, but the source does not."""
    if REPEATED_10_TIMES.search(translation) and not REPEATED_5_TIMES.search(source):
        return True
    words, source_words = _words(translation), _words(source)
    if not _repeats_bigram(words):                                              # saves time for most lines
        return False
    ngrams = _ngrams(translation)
    if len(set(ngrams)) < len(ngrams) and not _repeats_bigram(source_words):
        return True
    copies_in_source = max((copies for copies, _ in _repetitions(source_words)), default=1)
    # The shorter the repeated sequence, the more copies are necessary for a loop.
    return any(copies >= max(2 * copies_in_source, 2 if letters >= 15 else 3 if letters >= 8 else 4)
               for copies, letters in _repetitions(words))


def _repeats_bigram(words: Sequence[str]) -> bool:
    bigrams = list(pairwise(words))
    return len(set(bigrams)) < len(bigrams)


def _repetitions(words: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Find sequences of words that occur several times in a row; yield (number of copies, letters in a copy).

    For each length of the sequence in words, only the longest repetition is yielded.
    """
    index_of = {word: index for index, word in enumerate(dict.fromkeys(words))}
    ids = np.array([index_of[word] for word in words])
    for period in range(1, min(MAX_PERIOD, len(words) // 2) + 1):
        # Boundaries of all runs. In a run, each word occurs again `period` words later.
        boundaries = np.flatnonzero(np.concatenate([[True], ids[period:] != ids[:-period], [True]]))
        longest = int(np.diff(boundaries).argmax())
        begin, length = int(boundaries[longest]), int(boundaries[longest + 1] - boundaries[longest]) - 1
        if length >= period:
            yield length // period + 1, sum(map(_length, words[begin : begin + period]))


def _copied(source: str, translation: str) -> bool:
    """Return True if at least a third of the translation's n-grams occur in the source."""
    ngrams, source_ngrams = _ngrams(translation), set(_ngrams(source))
    return bool(ngrams) and 3 * sum(ngram in source_ngrams for ngram in ngrams) >= len(ngrams)


def _ngrams(text: str) -> list[tuple[str, ...]]:
    """Return all n-grams of the words that contain a letter. For n, see `NGRAM_WORDS` and `NGRAM_CHARACTERS`."""
    words = [word for word in _words(text) if any(map(str.isalpha, word))]
    size = NGRAM_CHARACTERS if any(map(ONE_CHARACTER_WORD.match, words)) else NGRAM_WORDS
    return [tuple(words[begin : begin + size]) for begin in range(len(words) - size + 1)]


def _words(text: str) -> list[str]:
    """Return the words of a text, case-folded, without tags. In scripts without spaces, each character is a word."""
    return WORD.findall(TAG.sub(" ", text).casefold())
