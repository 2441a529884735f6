"""Inline tags of a text, such as `<b>`, and their pairs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

TagKind = Literal["open", "close", "alone", "break"]


@dataclass(frozen=True, slots=True)
class Tag:
    """Inline tag.

    position: index of the character of the block's text before which the tag stands. raw: the tag as it stands in the
    document. kind: "alone" is an element without contents, such as an image; "break" is a line break, at which a
    sentence ends. pair: number shared by an opening tag and its counterpart, the closing tag; None if it has none.
    in_text: True if the tag is part of the block's text for the format, as `<b>` in a string of JSON.
    """

    position: int
    raw: str
    kind: TagKind = "alone"
    pair: int | None = None
    in_text: bool = False


def pair_tags(tags: Sequence[tuple[int, str, TagKind, str]]) -> tuple[Tag, ...]:
    """Return the tags with the number of the pair that each tag belongs to (`Tag.pair`).

    Args:
        tags: position, raw text, kind and name of each tag, in order. A closing tag is paired with the last unpaired
            opening tag of the same name. Unpaired opening tags between these two tags stay without a counterpart.
    """
    ends = element_ends((kind, name) for _, _, kind, name in tags)
    pairs = {index: begin for begin, end in ends.items() for index in (begin, end)}
    return tuple(Tag(position, raw, kind, pairs.get(index)) for index, (position, raw, kind, _) in enumerate(tags))


def element_ends(tags: Iterable[tuple[str, str]]) -> dict[int, int]:
    """Return the index of the closing tag of each opening tag that has one, as in `pair_tags`. tags: kind and name."""
    ends: dict[int, int] = {}
    stack: list[tuple[int, str]] = []
    open_names: Counter[str] = Counter()
    for index, (kind, name) in enumerate(tags):
        if kind == "open":
            stack.append((index, name))
            open_names[name] += 1
        elif kind == "close" and open_names[name]:
            opened = ""
            while opened != name:
                begin, opened = stack.pop()
                open_names[opened] -= 1
            ends[begin] = index
    return ends


def with_tags(text: str, tags: Sequence[Tag], escape: Callable[[str], str] = str) -> str:
    """Return a text with its tags in it. escape: function that escapes the text between the tags."""
    parts, last = [], 0
    for tag in tags:
        parts += [escape(text[last:tag.position]), tag.raw]
        last = tag.position
    return "".join([*parts, escape(text[last:])])
