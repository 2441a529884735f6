"""Inline tags, as formats share them: elements of HTML, the part of a text to translate, and the tags of a block in its
translation."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence

from seq2seq.formats.inline_tags import Tag


def find_core(text: str, tags: Sequence[Tag]) -> tuple[int, int, int, int]:
    """Return the core of a text, which is the part to translate: the text without white space and tags at its margins.

    A tag at a margin is not part of the core if it has no counterpart, or if its counterpart is at a margin, too. White
    space after the first tag or before the last tag of the core is part of it.

    Returns:
        begin and end of the core, first as character offsets and then as indices of tags.
    """
    begin = len(text) - len(text.lstrip())
    end = max(begin, len(text.rstrip()))
    first, last = 0, len(tags)
    while first < len(tags) and tags[first].position <= begin:
        first += 1
    while last > first and tags[last - 1].position >= end:
        last -= 1
    places: dict[int, list[int]] = defaultdict(list)
    for index, tag in enumerate(tags):
        if tag.pair is not None:
            places[tag.pair].append(index)
    counterparts = {one: other for pair in places.values() if len(pair) == 2
                    for one, other in (pair, reversed(pair))}
    for _ in range(20):                                             # nested pairs need 2 rounds
        outside = [*range(first), *range(last, len(tags))]
        crossing = [index for index in outside if first <= counterparts.get(index, -1) < last]
        if not crossing:
            positions = [tag.position for tag in tags[first:last]]
            return min([begin, *positions[:1]]), max([end, *positions[-1:]]), first, last
        first = min([first, *(index for index in crossing if index < first)])
        last = max([last, *(index + 1 for index in crossing if index >= last)])
    return begin, end, 0, len(tags)


def shift_tags(tags: Sequence[Tag], begin: int, end: int) -> tuple[Tag, ...]:
    """Return the tags with positions that are limited to `begin` to `end`, and then made relative to `begin`."""
    return tuple(Tag(min(max(tag.position, begin), end) - begin, tag.raw, tag.kind, tag.pair) for tag in tags)


def match_tags(tags: Sequence[Tag], translated: Sequence[Tag]) -> list[int]:
    """Return, for each tag of a translation, the index of this tag in `tags`, which are the tags of the block."""
    indices: dict[tuple[str, str, int | None], deque[int]] = defaultdict(deque)
    for index, tag in enumerate(tags):
        indices[tag.raw, tag.kind, tag.pair].append(index)
    return [indices[tag.raw, tag.kind, tag.pair].popleft() for tag in translated]
