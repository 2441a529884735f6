"""Properties of scripts: scripts without spaces between words, and characters that belong to the letter before them."""

from __future__ import annotations

import re
import unicodedata
from functools import cache

SPACELESS = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
"""Scripts without spaces between words, for a character class of a regular expression: Thai, Lao, Burmese, Khmer, kana
and Han."""
SPACELESS_CHARACTER = re.compile(f"[{SPACELESS}\u0f00-\u0fff]")
"""Character of SPACELESS or of Tibetan, which has no spaces between words, either. In Tibetan, the units of a text are
not letters but syllables, because a TSHEG ends each syllable."""
TSHEG = "\u0f0b\u0f0c"


@cache
def spaceless_cluster() -> str:
    """Return a regular expression of a character of SPACELESS with the characters that are written around it.

    These are combining marks, the letters that a virama stacks in Khmer and Burmese (ឆ្កែ), the vowels of Thai and Lao
    that precede their consonant (เด็ก), and their vowel am (น้ำ). A line break or a tag must not divide a cluster.
    """
    return (f"[\u0e40-\u0e44\u0ec0-\u0ec4]*[{SPACELESS}]"
            f"(?:[{combining_marks()}\u0e33\u0eb3]|(?<=[\u1039\u17d2])[{SPACELESS}])*")


@cache
def combining_marks() -> str:
    """Return the characters of `belongs_to_letter`, for a character class of a regular expression."""
    return "".join(filter(belongs_to_letter, map(chr, range(0x300, 0x20000))))


def belongs_to_letter(character: str) -> bool:
    """Return True if the character belongs to the letter before it.

    These characters are combining marks, for example the vowel signs of Hindi, and the zero-width joiner and
    non-joiner, which occur in Persian words. For Python's `\\w`, they are not part of a word.
    """
    return not character.isascii() and (character in "\u200c\u200d" or unicodedata.category(character)[0] == "M")
