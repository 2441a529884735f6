"""Steps that formats share: margins of a block, and tags of a translation found again in the document."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence

from seq2seq.documents.block import Tag


def find_core(text: str, tags: Sequence[Tag]) -> tuple[int, int, int, int]:
    """Return the part of a text that is translated: without white space and tags at its margins.

    Tags at a margin are left out if they are alone, or if their counterpart is left out as well.

    Returns:
        begin and end of the characters, and of the tags.
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
            return begin, end, first, last
        first = min([first, *(index for index in crossing if index < first)])
        last = max([last, *(index + 1 for index in crossing if index >= last)])
    return begin, end, 0, len(tags)


def shift_tags(tags: Sequence[Tag], begin: int, end: int) -> tuple[Tag, ...]:
    """Return tags with their positions in the part `begin` to `end` of the text."""
    return tuple(Tag(min(max(tag.position, begin), end) - begin, tag.raw, tag.kind, tag.pair) for tag in tags)


def match_tags(tags: Sequence[Tag], translated: Sequence[Tag]) -> list[int]:
    """Return the index in `tags` of each tag of a translation.

    Raises:
        ValueError: the translation has other tags than the block. This is a mistake of the caller.
    """
    indices: dict[tuple[str, str, int | None], deque[int]] = defaultdict(deque)
    for index, tag in enumerate(tags):
        indices[tag.raw, tag.kind, tag.pair].append(index)
    if len(tags) != len(translated):
        raise ValueError(f"the translation has {len(translated)} tags, but the block has {len(tags)}")
    try:
        return [indices[tag.raw, tag.kind, tag.pair].popleft() for tag in translated]
    except IndexError:
        raise ValueError("the tags of the translation differ from those of the block") from None
