"""Faults of translations that can be detected without knowledge of the languages.

The tests prefer precision to recall: in the reference translations of Multi30k and Tatoeba (English, German, Chinese),
fewer than one line in a thousand has a fault.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterator, Sequence

import numpy as np

from seq2seq.data.line_splitting import main_language

FAULTS = ("empty", "loop", "too_short", "too_long", "copied", "lost_url", "lost_number")
"""Names of all faults, in the order of `faults`."""

# Scripts without spaces between words: Thai, Lao, Burmese, Khmer, kana, Han.
_SPACELESS = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3041-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_PUNCTUATION = "\\s\x00-/:-@\\[-^`{-\u00bf\u2000-\u206f\u3000-\u303f\uff00-\uff0f\uff1a-\uff20\ufffd"
SPACELESS_CHARACTER = re.compile(f"[{_SPACELESS}]")
WORD = re.compile(f"[{_SPACELESS}]|[^{_SPACELESS}{_PUNCTUATION}]+")
# The bounds keep the time linear in the length of a line.
URL = re.compile(r"(?:https?|ftp)://[!-~]+|\bwww\.[!-~]+|[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,8}", re.ASCII)
TAG = re.compile("</?[a-z][^<>]{0,200}>", re.IGNORECASE)
RUN = re.compile(r"\d+")
NUMBER = re.compile(r"\d+(?:[.,:/'’\u00a0\u202f-]\d+)*")
CHINESE_NUMERALS = re.compile("[〇零二三四五六七八九十百千万萬亿億两兩]")

# Model of translation lengths of Gale and Church 1993 (A Program for Aligning Sentences in Bilingual Corpora), section
# 3.3: variance 6.8 per character, mean ratio 1. The ratio holds for alphabets; a Chinese, Japanese or Korean character
# counts as WIDE letters.
VARIANCE, WIDE = 6.8, 3
MOST_DEVIATIONS = 4.0
# Length of n-grams that two languages, or two places of a line, do not share by chance: words, or characters in text
# without spaces.
RUN_OF_WORDS, RUN_OF_CHARACTERS = 4, 8
# Numbers up to this one may be translated as words, and hours may change (17 Uhr, 5 o'clock).
SMALL_NUMBER = 24
MINUTES = 60
# Longest loop to look for, in words.
LONGEST_PERIOD = 32
LETTERS_AGAIN, HALF_AS_OFTEN = (re.compile(rf"(\S.{{0,7}}?)\1{{{times - 1}}}", re.DOTALL) for times in (10, 5))


def faults(source: str, translation: str, source_language: str = "", target_language: str = "") -> tuple[str, ...]:
    """Return the names of a translation's faults, from `FAULTS`; usually none.

    empty: nothing was translated. loop: words or characters are repeated, and not so in the source. too_short,
    too_long: compared with the source. copied: untranslated. lost_url, lost_number: an address or a number of the
    source is missing in the translation.

    Args:
        source, translation: a line, or a part of a line that was translated separately.
        source_language, target_language: codes; if both are the same language, `copied` is not checked.
    """
    if not _visible(source):
        return ()
    if not _visible(translation):
        return ("empty",)
    deviations = _deviations(_weight(source), _weight(translation))
    translates = not source_language or main_language(source_language) != main_language(target_language)
    found = {
        "loop": _loops(source, translation),
        "too_short": deviations < -MOST_DEVIATIONS,
        "too_long": deviations > MOST_DEVIATIONS,
        "copied": translates and _copied(source, translation),
        "lost_url": bool(lost_urls(source, translation)),
        "lost_number": bool(lost_numbers(source, translation)),
    }
    return tuple(name for name in FAULTS if found.get(name))


def lost_urls(source: str, translation: str) -> list[str]:
    """Return URLs and e-mail addresses of the source that are missing in the translation, as written."""
    found = (match.rstrip(".,;:!?)]}>'\"") for match in URL.findall(source))
    return [url for url in dict.fromkeys(found) if url not in translation]


def lost_numbers(source: str, translation: str) -> list[str]:
    """Return numbers in digits of the source that are missing in the translation, as written.

    Small and round numbers may become words, thousands separators differ, and dates change their order. So only numbers
    with three or more significant digits must reappear digit by digit; one with two counts as lost only if the
    translation also has a number that is not in the source.
    """
    if not any(map(str.isdecimal, source)):
        return []
    source, translation = URL.sub(" ", source), URL.sub(" ", translation)
    if CHINESE_NUMERALS.search(translation):
        return []
    held, known = _held(translation), _held(source)
    invented = any(len(digits) > 1 and digits not in known for digits in map(_significant, RUN.findall(translation)))
    return [number for number in dict.fromkeys(NUMBER.findall(source))
            if _significant(number) not in held
            and any(_is_lost(run, held, invented, ":" in number) for run in RUN.findall(number))]


def _is_lost(run: str, held: set[str], invented: bool, of_clock: bool) -> bool:
    digits = _significant(run)
    value = int(_digits(run)) if len(run) < 4 else math.inf
    if digits in held or value <= (MINUTES if of_clock else SMALL_NUMBER):
        return False
    return len(digits) > 2 or invented


def _held(text: str) -> set[str]:
    """Return the significant digits of all numbers in a text, including joined groups: 1 000 000 gives 1, 1000, …"""
    runs = RUN.findall(text)
    return {_significant("".join(runs[begin : begin + size])) for begin in range(len(runs)) for size in range(1, 5)}


def _digits(text: str) -> str:
    """Return all digits of a text, those of any script as 0 to 9."""
    found = "".join(filter(str.isdecimal, text))
    return found if found.isascii() else "".join(str(unicodedata.decimal(digit)) for digit in found)


def _significant(number: str) -> str:
    return _digits(number).strip("0")


def _visible(text: str) -> bool:
    return any(character.isprintable() and not character.isspace() for character in text)


def _weight(text: str) -> int:
    """Return the length of a text in letters, without white space; a wide character counts as `WIDE`."""
    if text.isascii():
        return sum(map(len, text.split()))
    return sum(WIDE if unicodedata.east_asian_width(character) in "WF" else 1
               for character in text if not character.isspace())


def _deviations(source: int, translation: int) -> float:
    """Return the difference between actual and expected length of a translation, in standard deviations."""
    return (translation - source) / math.sqrt(VARIANCE * max(1, min(source, translation)))


def _loops(source: str, translation: str) -> bool:
    """Return True if the translation repeats something that the source does not."""
    if LETTERS_AGAIN.search(translation) and not HALF_AS_OFTEN.search(source):
        return True
    words, of_source = _words(translation), _words(source)
    if not _twice(words, 2):                                                    # most lines; saves the rest
        return False
    runs = _runs(translation)
    if len(set(runs)) < len(runs) and not _twice(of_source, 2):
        return True
    known = max((copies for copies, _ in _repetitions(of_source)), default=1)
    return any(copies >= max(2 * known, 2 if letters >= 15 else 3 if letters >= 8 else 4)
               for copies, letters in _repetitions(words))


def _twice(words: Sequence[str], size: int) -> bool:
    """Return True if an n-gram of `size` words occurs twice."""
    runs = list(zip(*(words[begin:] for begin in range(size)), strict=False))
    return len(set(runs)) < len(runs)


def _repetitions(words: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Yield the immediate repetitions of word sequences as (number of copies, letters of one copy), longest per
    period."""
    numbers = {word: number for number, word in enumerate(dict.fromkeys(words))}
    ids = np.array([numbers[word] for word in words])
    for period in range(1, min(LONGEST_PERIOD, len(words) // 2) + 1):
        differs = np.flatnonzero(np.concatenate([[True], ids[period:] != ids[:-period], [True]]))
        longest = int(np.diff(differs).argmax())
        begin, length = int(differs[longest]), int(differs[longest + 1] - differs[longest]) - 1
        if length >= period:
            yield length // period + 1, sum(map(_weight, words[begin : begin + period]))


def _copied(source: str, translation: str) -> bool:
    """Return True if at least a third of the translation's n-grams (see `_runs`) occur in the source."""
    runs, known = _runs(translation), set(_runs(source))
    return bool(runs) and 3 * sum(run in known for run in runs) >= len(runs)


def _runs(text: str) -> list[tuple[str, ...]]:
    """Return all n-grams of the words with letters, of a size that two languages do not share by chance."""
    words = [word for word in _words(text) if any(map(str.isalpha, word))]
    size = RUN_OF_CHARACTERS if any(map(SPACELESS_CHARACTER.match, words)) else RUN_OF_WORDS
    return [tuple(words[begin : begin + size]) for begin in range(len(words) - size + 1)]


def _words(text: str) -> list[str]:
    return WORD.findall(TAG.sub(" ", text).casefold())
