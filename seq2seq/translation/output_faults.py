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

from seq2seq.data.numbers import Number, numbers, unmatched
from seq2seq.formats.placeholders import TAG, addresses
from seq2seq.formats.spans import blanked
from seq2seq.languages import SPACELESS, main_language
from seq2seq.tokenizers.line_splitting import sentences

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
MAX_SPELLED_NUMBER = 24
"""Numbers up to this limit, and numbers with one significant digit, may be missing in a translation, because it may
express them in words ("in 24 Stunden", "within a day", "five hundred")."""
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
        "lost_number": any(changed_numbers(source, translation)),
    }
    return tuple(name for name, found in checks.items() if found)


def lost_urls(source: str, translation: str) -> list[str]:
    """Return the URLs and e-mail addresses of the source that are missing in the translation."""
    urls = dict.fromkeys(source[begin:end] for begin, end in addresses(source))
    return [url for url in urls if url not in translation]


def changed_numbers(source: str, translation: str) -> tuple[list[str], list[str]]:
    """Return the numbers of the source that are missing in the translation, and the numbers of the translation that are
    not in the source; each written as in its text.

    See `data/numbers.py` for the comparison. Numbers that the other side may spell (`MAX_SPELLED_NUMBER`) may be
    missing, but not if there is another number instead.
    """
    lost, invented = unmatched(*(numbers(blanked(text, addresses(text))) for text in (source, translation)))
    if not (lost and invented):
        lost, invented = ([number for number in side if not _may_be_spelled(number)] for side in (lost, invented))
    return [*dict.fromkeys(number.text for number in lost)], [*dict.fromkeys(number.text for number in invented)]


def _may_be_spelled(number: Number) -> bool:
    parts = number.parts if "." in number.value else [number]                   # one and a half, half past ten
    return all(len(part.value) < 3 and int(part.value) <= MAX_SPELLED_NUMBER or len(part.significant_digits) < 2
               for part in parts)


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
