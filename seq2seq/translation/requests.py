"""Requests, which are lines to translate with constraints of their own; their numbers, and blocks of growing size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TypeVar

from seq2seq.errors import OptionError, require_iterable, require_text, require_texts

Item = TypeVar("Item")

FIRST_BLOCK_LINES = 1024
"""Number of lines in the first block, which is small so that the first results come soon. Each later block has 4 times
as many lines as the block before."""


@dataclass(frozen=True)
class Request:
    """Line to translate, with constraints for this line alone.

    prefix: text that the translation must begin with. required: phrases that it must contain, in addition to
    `decoding.require`. number: line number in the whole input, from 0, on which samples depend; None: index of the line
    in the call.

    Raises:
        TypeError: a field has a wrong type.
    """

    text: str
    prefix: str = ""
    required: tuple[str, ...] = ()
    number: int | None = None

    def __post_init__(self) -> None:
        require_text(self.text, "text")
        require_text(self.prefix, "prefix")
        require_texts(self.required, "required")
        if not isinstance(self.number, int | None):
            raise TypeError(f"number is of type {type(self.number).__name__}; expected int or None")


def number_requests(lines: Iterable[str | Request], begin: int = 0) -> Iterator[Request]:
    """Yield each line as a request with a number; requests without a number get their index, counted from `begin`.

    Raises:
        TypeError: `lines` is a single line (raised at once), or a line is neither a str nor a `Request` (raised when it
            is read).
    """
    require_iterable(lines, "lines")

    def numbered(index: int, line: str | Request) -> Request:
        require_text(line, f"lines[{index}]", Request)
        request = Request(line) if isinstance(line, str) else line
        return replace(request, number=begin + index) if request.number is None else request

    return (numbered(index, line) for index, line in enumerate(lines))


def equal_shares(requests: Sequence[Request], count: int) -> list[list[int]]:
    """Return `count` lists of indices of requests, with about equal work: every `count`-th one in order of length."""
    order = sorted(range(len(requests)), key=lambda index: len(requests[index].text))
    return [order[first::count] for first in range(count)]


def growing_blocks(lines: Iterable[Item], max_lines: int, begin: int = 0) -> Iterator[list[Item]]:
    """Yield the lines in blocks; see `FIRST_BLOCK_LINES` for their size, which is at most `max_lines`.

    begin: number of lines of the whole input that come before `lines`. Blocks end at the same lines of the whole input,
        whatever `begin` is.

    Raises:
        OptionError: `max_lines` is below 1; raised at once.
    """
    if max_lines < 1:
        raise OptionError(f"a block of {max_lines} lines is empty; set the number of lines to 1 or more")
    return _growing_blocks(lines, max_lines, begin)


def _growing_blocks(lines: Iterable[Item], max_lines: int, begin: int) -> Iterator[list[Item]]:
    remaining = iter(lines)
    size = min(FIRST_BLOCK_LINES, max_lines)
    end = size
    while True:
        if end > begin:
            if not (block := list(islice(remaining, end - begin))):
                return
            yield block
            begin = end
        size = min(4 * size, max_lines)
        end += size
