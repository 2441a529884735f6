"""Texts that match line by line, and blocks of lines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, zip_longest
from typing import Any, TypeVar

from seq2seq.errors import CorpusError

Item = TypeVar("Item")

MAX_COUNTED = 100_000
"""Maximum number of surplus lines that are counted if one text is longer than another. Without a maximum, counting the
lines of a pipe or a device may never end."""
MISSING: Any = object()


class NotParallelError(CorpusError):
    """Two texts have different numbers of lines. shorter: number of lines of the shorter text."""

    def __init__(self, names: Sequence[str], lines: Sequence[int], at_least: bool = False) -> None:
        """names, lines: names and numbers of lines of the two texts. at_least: True if not all lines of the longer text
        were counted; the message then says `at least`."""
        counts = [f"{'at least ' * (at_least and count == max(lines))}{count:,} line{'s' * (count != 1)}"
                  for count in lines]
        super().__init__(f"{names[0]}: {counts[0]}; {names[1]}: {counts[1]}. They must match line by line. Run "
                         "again the step that wrote them, and check that no tool drops blank lines.")
        self.shorter = min(lines)


def zip_parallel(names: Sequence[str], *texts: Iterable[Item], max_counted: int | None = MAX_COUNTED
                 ) -> Iterator[tuple[Item, ...]]:
    """Yield, for each line number, a tuple with the item of every text at this line.

    names: names of the texts in the error message. max_counted: maximum number of surplus lines that are counted for
        the error message; None: all.
    """
    iterators = [iter(text) for text in texts]
    for number, items in enumerate(zip_longest(*iterators, fillvalue=MISSING)):
        if any(item is MISSING for item in items):
            ended = next(index for index, item in enumerate(items) if item is MISSING)
            longer = next(index for index, item in enumerate(items) if item is not MISSING)
            rest = sum(1 for _ in islice(iterators[longer], max_counted))
            first, second = sorted((ended, longer))
            raise NotParallelError((names[first], names[second]),
                                   [number if index == ended else number + 1 + rest for index in (first, second)],
                                   at_least=rest == max_counted)
        yield items


def require_as_many_lines(names: Sequence[str], *counts: int | None) -> None:
    """Raise NotParallelError if two texts have different numbers of lines.

    names: names of the texts in the error message. counts: number of lines of each text; None: not known.
    """
    known = [(name, count) for name, count in zip(names, counts, strict=True) if count is not None]
    for name, count in known[1:]:
        if count != known[0][1]:
            raise NotParallelError((known[0][0], name), (known[0][1], count))


def blocks(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Yield lists of `size` consecutive items. The last list may be shorter."""
    iterator = iter(items)
    while block := list(islice(iterator, size)):
        yield block
