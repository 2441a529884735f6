"""Spans of a text: replacement, blanking and overlaps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import itemgetter

from seq2seq.tokenizers.line_splitting import Span

Edit = tuple[int, int, str]
"""Span of a text, (begin, end), and its new text."""


def replace_spans(text: str, edits: Iterable[Edit], begin: int = 0, end: int | None = None) -> str:
    """Return the text with spans replaced. The spans have no overlaps, and are in any order.

    begin, end: part of the text to return, in which all spans lie. Default: the whole text.
    """
    parts, last = [], begin
    for low, high, new in sorted(edits, key=itemgetter(0, 1)):
        parts += [text[last:low], new]
        last = high
    return "".join([*parts, text[last:end]])


def blanked(text: str, spans: Iterable[Span]) -> str:
    """Return a text with spaces in place of spans without overlaps. Positions stay the same."""
    return replace_spans(text, [(begin, end, " " * (end - begin)) for begin, end in spans])


def overlapping(spans: Sequence[Span], begin: int, end: int) -> list[int]:
    """Return the indices of the spans that overlap with the span from `begin` to `end`."""
    return [index for index, (low, high) in enumerate(spans) if low < end and begin < high]
