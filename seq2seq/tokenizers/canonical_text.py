"""Canonical form of text: texts that look the same to a reader become the same text before the model reads them.

- Canonically equivalent characters get one spelling, Unicode's NFC: `u` with a combining diaeresis becomes `ü`.
- Spaces of other widths, no-break spaces, tabs and line separators become ordinary spaces. A sequence of spaces becomes
  one space, and white space at both ends is removed. U+3000, the full-width space, is visibly different and stays.
- Invisible characters that only control line breaks, hyphenation or the order of display are removed.

Other invisible characters stay, because they change words or how they look: the zero-width joiner and non-joiner
(Persian, Indic scripts, emoji), variation selectors, and U+180E, a part of Mongolian spelling.
"""

from __future__ import annotations

import re
from unicodedata import combining, is_normalized, normalize

SPACES = "\t\n\v\f\r\x85\xa0\u2000-\u200a\u2028\u2029\u202f\u205f"
"""Characters that become a space, as the inside of a regular expression's brackets."""
INVISIBLE = "\xad\u061c\u200b\u200e\u200f\u202a-\u202e\u2060-\u2064\u2066-\u206f\ufeff"
"""Characters that are removed: soft hyphen, zero-width space, word joiner, byte order mark, invisible operators, and
controls of the direction of writing."""
INVISIBLE_CHARACTER, SPECIAL_SPACE = re.compile(f"[{INVISIBLE}]"), re.compile(f"[{SPACES}]")
MARGIN = "".join(character for character in map(chr, (*range(0x3001), 0xFEFF))
                 if character.isspace() or INVISIBLE_CHARACTER.match(character))
"""All characters that may be removed at the ends of a text."""
CODE = (f'unicodedata.normalize("NFC", re.sub("[ {SPACES}]+", " ", re.sub("[{INVISIBLE}]", "", text))).strip()'
        .encode("unicode_escape").decode())
"""Python expression for canonical(text), for programs without seq2seq."""
_CHANGED = re.compile(f"[{SPACES}{INVISIBLE}]|  ")
_VISIBLE = re.compile(rf"[^\s{INVISIBLE}]")
_WHITE_SPACE = re.compile(f"[ {SPACES}]+")


def canonical(text: str) -> str:
    """Return the canonical form of a text. canonical(canonical(text)) == canonical(text)."""
    if _CHANGED.search(text):
        text = _WHITE_SPACE.sub(" ", INVISIBLE_CHARACTER.sub("", text))
    return (text if is_normalized("NFC", text) else normalize("NFC", text)).strip()


def is_blank(text: str) -> bool:
    """Return True for a text without visible characters, which no model reads: its canonical form is empty."""
    return _VISIBLE.search(text) is None


def is_translatable(text: str) -> bool:
    """Return True if a text has letters. Digits, punctuation and symbols alone are the same in all languages."""
    return any(map(str.isalpha, text))


def looks_different(text: str) -> bool:
    """Return True if a text contains invisible characters or is not in NFC, so that an equal-looking text differs."""
    return not text.isascii() and (INVISIBLE_CHARACTER.search(text) is not None or not is_normalized("NFC", text))


def canonical_origins(text: str) -> list[tuple[int, int]]:
    """Return, for each character of canonical(text), the span (begin, end) of the characters that it replaces."""
    characters: list[str] = []
    origins: list[tuple[int, int]] = []

    def add(cluster: str, places: list[int]) -> None:
        """Add a character with its combining marks. places: offset of each of them in the text."""
        composed = normalize("NFC", cluster)
        for index, character in enumerate(composed):
            if character == " " == (characters or " ")[-1]:
                continue
            characters.append(character)
            begin, last = (places[index],) * 2 if len(composed) == len(cluster) else (places[0], places[-1])
            origins.append((begin, last + 1))

    cluster, places = "", list[int]()
    for place, character in enumerate(text):
        if INVISIBLE_CHARACTER.match(character):
            continue
        character = _WHITE_SPACE.sub(" ", character)
        begins = not combining(character) and (
            normalize("NFC", cluster + character) == normalize("NFC", cluster) + normalize("NFC", character))
        if begins:
            add(cluster, places)
            cluster, places = "", []
        cluster, places = cluster + character, [*places, place]
    add(cluster, places)
    whole = "".join(characters)
    first = len(whole) - len(whole.lstrip())
    return origins[first:len(whole.rstrip())]
