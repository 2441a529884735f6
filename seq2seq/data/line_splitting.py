"""Splitting of lines for the model: white space around the text, which is restored later, and overlong lines."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from seq2seq.recipe.language_codes import subtags

# Languages written without spaces between words (and so between sentences).
SPACELESS = {"zh", "ja", "th", "lo", "km", "my"}
# Codes of Chinese languages in ISO 639-3, which ISO 639-1 does not have.
CHINESE = {"cmn", "yue", "wuu", "lzh"}

SENTENCE_END = re.compile(r"(?<=[.!?…])[\"'”’»)\]]*\s+|(?<=[。！？])[”’」』）]*\s*")
SPACE = re.compile(r"\s+")


def main_language(code: str) -> str:
    """Return the two-letter code of a language: zh for zh, zh-CN, zh_Hant, zho_Hans, cmn, …; else the main subtag."""
    main = subtags(code)[0]
    return "zh" if main in CHINESE else main


@dataclass(frozen=True)
class DividedLine:
    """Line split for the model.

    before, after: white space around it. texts: its parts, usually one; none if the line is white space. gaps: white
    space after each part but the last.
    """

    before: str
    texts: list[str]
    gaps: list[str]
    after: str

    def join(self, translations: Sequence[str], target_language: str) -> str:
        """Return the translated line from the translations of its parts."""
        parts = list(zip(translations, [*self.gaps, ""], strict=True)) if translations else []
        return self.before + join_translations(parts, target_language) + self.after


def divide(line: str, fits: Callable[[str], bool], head: str = "") -> DividedLine:
    """Split a line into parts that fit; no part is empty or has white space around it.

    Args:
        fits: returns True if a text is short enough for the model. Must hold for a single character.
        head: beginning of the line's text that each part needs, such as a language token.
    """
    before, text, after = split_margins(line)
    if head and not fits(text):
        parts = divide(text.removeprefix(head), lambda part: fits(f"{head} {part}"))
        return DividedLine(before, [f"{head} {part}" for part in parts.texts], parts.gaps, parts.after + after)
    texts: list[str] = []
    gaps: list[str] = []
    for segment in split_long(text, fits) if text else []:
        leading, core, trailing = split_margins(segment)
        if not core:
            gaps[-1] += segment
            continue
        if gaps:
            gaps[-1] += leading
        texts.append(core)
        gaps.append(trailing)
    return DividedLine(before, texts, gaps[:-1], after)


def split_margins(line: str) -> tuple[str, str, str]:
    """Return white space before, text, white space after."""
    text = line.strip()
    if not text:
        return line, "", ""
    begin = line.index(text)
    return line[:begin], text, line[begin + len(text):]


def split_long(text: str, fits: Callable[[str], bool]) -> list[str]:
    """Split a text into parts that fit: at sentence ends, else at spaces, else anywhere. Concatenated, they are the
    text.

    Args:
        fits: returns True if a text is short enough for the model. Must hold for a single character.
    """
    if len(text) <= 1 or fits(text):
        return [text]
    for boundary in (SENTENCE_END, SPACE):
        units = list(_units(text, boundary))
        if len(units) > 1:
            return [part for joined in _join(units, fits) for part in split_long(joined, fits)]
    middle = len(text) // 2
    return split_long(text[:middle], fits) + split_long(text[middle:], fits)


def _units(text: str, boundary: re.Pattern[str]) -> Iterator[str]:
    begin = 0
    for match in boundary.finditer(text):
        if begin < match.end() < len(text):
            yield text[begin:match.end()]
            begin = match.end()
    yield text[begin:]


def _join(units: list[str], fits: Callable[[str], bool]) -> Iterator[str]:
    """Join units into the longest runs that fit, by doubling and bisection, so that a long line needs few trials."""
    begin = 0
    while begin < len(units):
        size = 1
        while begin + 2 * size <= len(units) and fits("".join(units[begin:begin + 2 * size])):
            size *= 2
        step = size // 2
        while step:
            if begin + size + step <= len(units) and fits("".join(units[begin:begin + size + step])):
                size += step
            step //= 2
        yield "".join(units[begin:begin + size])
        begin += size


def join_translations(parts: list[tuple[str, str]], target_language: str) -> str:
    """Join the translations of a line's parts, each with the white space that followed its source.

    Spaces between parts are removed if the target language is written without spaces, and added otherwise.
    """
    spaceless = main_language(target_language) in SPACELESS
    joined = ""
    for number, (translation, gap) in enumerate(parts):
        joined += translation
        if number < len(parts) - 1:
            blank = gap.strip(" ") == ""
            joined += ("" if spaceless else gap or " ") if blank else gap
    return joined
