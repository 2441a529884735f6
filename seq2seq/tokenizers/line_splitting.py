"""Splitting of input lines: white space around the text is removed, and long text is split to fit the model.

`DividedLine.join` restores the white space in the translated line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from seq2seq.languages import (
    SPACELESS,
    TSHEG,
    combining_marks,
    has_spaceless_sentences,
    has_spaceless_words,
    spaceless_cluster,
)
from seq2seq.tokenizers.canonical_text import is_blank

# Marks that end a sentence if white space follows. The last ones are Armenian, Arabic (question mark, full stop),
# Devanagari (danda, double danda), Burmese, Ethiopic (full stop, question mark) and Khmer (two).
SENTENCE_MARKS = ".!?…\u0589\u061f\u06d4\u0964\u0965\u104b\u1362\u1367\u17d4\u17d5"
SENTENCE_END = re.compile(rf"(?<=[{SENTENCE_MARKS}])[\"'”’»)\]]*\s+|(?<=[。！？])[。！？…”’」』）]*\s*")
WHITE_SPACE = re.compile(r"\s+")
# Abbreviations of several European languages, in lower case. A period after them does not end a sentence.
_ABBREVIATION_LIST = """
abs approx art bd bspw bzw ca cf corp d.h dept dott dr e.g fig fr hr hrn i.e inc ing inkl jr ltd mlle mme mr mrs ms nr
o.ä pp prof sig sr sra st u.a vgl vs z.b zzgl
"""
_ABBREVIATIONS = frozenset(_ABBREVIATION_LIST.split())
_LAST_WORD = re.compile(r"([^\W_]+(?:\.[^\W_]+)*)\.$")
LOOK_BACK = 40
"""Number of characters before the end of a sentence in which an abbreviation is looked for."""

Span = tuple[int, int]
"""Character offsets in a line, (begin, end)."""
OUTSIDE = (-1, -1)
"""Span of a piece that is not in the line: a language token that the vocabulary adds."""


def word_spans(text: str, language: str) -> list[Span]:
    """Return the span of each word of a line. Words are separated by white space; in a language without spaces, each
    character is a word."""
    word = r"\S" if has_spaceless_words(language) else r"\S+"
    return [match.span() for match in re.finditer(word, text)]


def alignment_units(text: str) -> list[Span]:
    """Return the spans of the units between which an inline tag may stand: words, punctuation marks, and the clusters
    of `spaceless_cluster`. Unlike `word_spans`, this function separates a word from a comma after it."""
    return [match.span() for match in _unit().finditer(text)]


@cache
def _unit() -> re.Pattern[str]:
    letters = rf"[^\W{SPACELESS}]+"
    word = rf"{letters}(?:[{combining_marks()}]+(?:{letters})?)*[{TSHEG}]?"
    return re.compile(rf"{spaceless_cluster()}|{word}|[^\w\s]")


@dataclass(frozen=True)
class DividedLine:
    """Line that was split into texts that fit the model.

    before, after: white space around the text of the line. texts: parts of the text as the model sees them, usually one
    part; no part if the line is blank. gaps: white space between consecutive parts, as the model would see it.
    """

    before: str
    texts: list[str]
    gaps: list[str]
    after: str

    def join(self, translations: Sequence[str], target_language: str) -> str:
        """Return the translated line, given the translations of its parts."""
        parts = list(zip(translations, [*self.gaps, ""], strict=True)) if translations else []
        return self.before + join_translations(parts, target_language) + self.after


def divide(line: str, fits: Callable[[str], bool], normalize: Callable[[str], str] = str.strip) -> DividedLine:
    """Split a line into parts that fit the model. No part is blank or has white space around it.

    Args:
        fits: function that returns True if a text is short enough for the model. Any single character must fit.
        normalize: function that returns a text as the model sees it; see `Vocabulary.normalized`.
    """
    if is_blank(line):
        return DividedLine(line, [], [], "")
    before, text, after = split_margins(line)
    texts: list[str] = []
    gaps: list[str] = []
    for segment in split_long(text, fits):
        leading, core, trailing = split_margins(segment)
        if is_blank(core):
            if gaps:
                gaps[-1] += segment
            continue
        if gaps:
            gaps[-1] += leading
        texts.append(normalize(core))
        gaps.append(trailing)
    return DividedLine(before, texts, [normalize(f".{gap}.")[1:-1] for gap in gaps[:-1]], after)


def sentences(text: str) -> list[str]:
    """Return the sentences of a text, with the white space after each. A short abbreviation or ordinal, such as "Dr.",
    "z. B." and "4.", does not end a sentence, nor does a mark before a lower-case letter."""
    found: list[str] = []
    for segment in _split_at(SENTENCE_END, text):
        words = found[-1].split() if found else [""]
        word = words[-1].removesuffix(".")
        is_short = word != words[-1] and word.isascii() and (
            len(word) < 3 or len(word) == 3 and word[0].isupper() and len(words) == 1)
        if found and (segment[:1].islower() or is_short and word.isalnum()):
            found[-1] += segment
        else:
            found.append(segment)
    return found


def divide_sentences(line: str) -> DividedLine:
    return divide(line, lambda text: len(sentences(text)) == 1)


def split_margins(line: str) -> tuple[str, str, str]:
    """Return the white space before the text, the text, and the white space after the text."""
    text = line.strip()
    if not text:
        return line, "", ""
    begin = line.index(text)
    return line[:begin], text, line[begin + len(text):]


def split_long(text: str, fits: Callable[[str], bool]) -> list[str]:
    """Split a text into parts that fit the model: at sentence ends if possible, else at white space, else anywhere.

    Concatenating the parts gives `text`.

    Args:
        fits: function that returns True if a text is short enough for the model. Any single character must fit.
    """
    if len(text) <= 1 or fits(text):
        return [text]
    for boundary in (SENTENCE_END, WHITE_SPACE):
        segments = list(_split_at(boundary, text))
        if len(segments) > 1:
            return [part for joined in _join_segments(segments, fits) for part in split_long(joined, fits)]
    middle = len(text) // 2
    return split_long(text[:middle], fits) + split_long(text[middle:], fits)


def _split_at(boundary: re.Pattern[str], text: str) -> Iterator[str]:
    begin = 0
    for match in boundary.finditer(text):
        if begin < match.end() < len(text):
            yield text[begin:match.end()]
            begin = match.end()
    yield text[begin:]


def _join_segments(segments: list[str], fits: Callable[[str], bool]) -> Iterator[str]:
    """Join consecutive segments into the longest texts that fit. A segment that does not fit is yielded alone.
    Doubling and bisection keep the number of calls of `fits` small."""
    begin = 0
    while begin < len(segments):
        size = 1
        while begin + 2 * size <= len(segments) and fits("".join(segments[begin:begin + 2 * size])):
            size *= 2
        step = size // 2
        while step:
            if begin + size + step <= len(segments) and fits("".join(segments[begin:begin + size + step])):
                size += step
            step //= 2
        yield "".join(segments[begin:begin + size])
        begin += size


def join_translations(parts: list[tuple[str, str]], target_language: str) -> str:
    """Join the translations of the parts of a line.

    If the target language has no spaces between sentences, spaces between parts are removed. In other languages, a
    space is inserted between two parts if the source line has no white space there. Other white space is kept.

    parts: translation of each part, and the white space after the part in the source line.
    """
    spaceless = has_spaceless_sentences(target_language)
    joined = ""
    for number, (translation, gap) in enumerate(parts):
        joined += translation
        if number < len(parts) - 1:
            blank = gap.strip(" ") == ""
            joined += ("" if spaceless else gap or " ") if blank else gap
    return joined


def ends_in_abbreviation(text: str, end: int) -> bool:
    """Return True if an abbreviation or a single letter with a period ends at `end` (J. Smith, z. B.)."""
    word = _LAST_WORD.search(text[max(0, end - LOOK_BACK):end])
    last = word[1].lower() if word else ""
    return last in _ABBREVIATIONS or len(last) == 1 and last.isalpha()
