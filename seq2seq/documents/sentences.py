"""Division of text into sentences."""

from __future__ import annotations

import re

from seq2seq.data.line_splitting import SENTENCE_END, DividedLine, divide

# Abbreviations of several European languages, in lower case. A period after them does not end a sentence.
_ABBREVIATION_LIST = """
abs approx art bd bspw bzw ca cf corp d.h dept dott dr e.g fig fr hr hrn i.e inc ing inkl jr ltd mlle mme mr mrs ms nr
o.ä pp prof sig sr sra st u.a vgl vs z.b zzgl
"""
_ABBREVIATIONS = frozenset(_ABBREVIATION_LIST.split())
_LAST_WORD = re.compile(r"([^\W_]+(?:\.[^\W_]+)*)\.$")
_LOOK_BACK = 40


def is_translatable(text: str) -> bool:
    """Return True if a text has letters. Digits, punctuation and symbols alone are the same in all languages."""
    return any(map(str.isalpha, text))


def ends_sentence(text: str, end: int, begin_of_next: int) -> bool:
    """Return True if a sentence ends before `end` and another one begins at `begin_of_next`.

    No sentence ends after an abbreviation or a single letter (J. Smith, z. B.), or before a lower-case letter.
    """
    if begin_of_next >= len(text) or text[begin_of_next].islower():
        return False
    word = _LAST_WORD.search(text[max(0, end - _LOOK_BACK):end])
    if word is None:
        return True
    last = word[1].lower()
    return not (last in _ABBREVIATIONS or len(last) == 1 and last.isalpha())


def split_sentences(line: str) -> DividedLine:
    """Split a line into sentences at the matches of `SENTENCE_END` that `ends_sentence` accepts."""

    def is_one_sentence(text: str) -> bool:
        # A match includes the white space after a sentence. If the text ends with a match, no second sentence follows.
        return not any(match.end() > 0 and ends_sentence(text, match.start(), match.end())
                       for match in SENTENCE_END.finditer(text))

    return divide(line, is_one_sentence)
