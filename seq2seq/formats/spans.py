"""Spans of a text: replacement, blanking and overlaps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from seq2seq.tokenizers.line_splitting import Span


def replace_spans(text: str, edits: Iterable[tuple[int, int, str]]) -> str:
    """Return the text with spans replaced. edits: (begin, end, new text) of spans without overlaps, in any order."""
    parts, last = [], 0
    for begin, end, new in sorted(edits, key=lambda edit: edit[:2]):
        parts += [text[last:begin], new]
        last = end
    return "".join([*parts, text[last:]])


def blanked(text: str, spans: Iterable[Span]) -> str:
    """Return a text with spaces in place of spans without overlaps. Positions stay the same."""
    return replace_spans(text, [(begin, end, " " * (end - begin)) for begin, end in spans])


def overlapping(spans: Sequence[Span], begin: int, end: int) -> list[int]:
    """Return the indices of the spans that overlap with the span from `begin` to `end`."""
    return [index for index, (low, high) in enumerate(spans) if low < end and begin < high]
