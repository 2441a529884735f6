"""Requests (lines to translate, with their own constraints), and their division into shares and blocks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TypeVar

from seq2seq.errors import OptionError, require_iterable, require_text, require_texts

Item = TypeVar("Item")

FIRST_BLOCK_LINES = 1024
"""Number of lines in the first block. It is small, so that the first results come soon. Each later block has 4 times as
many lines as the block before it, up to the maximum."""


@dataclass(frozen=True)
class Request:
    """Line to translate, with constraints for this line alone.

    prefix: text with which the translation must begin. required: phrases that the translation must contain, in addition
    to those of `decoding.require`. number: number of the line in the whole input, from 0; None: index of the line in
    the call. With sampling, the translation depends on this number.

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
    """Yield each line as a numbered request. A request without a number gets `begin` + the index of the line.

    Raises:
        TypeError: `lines` is a single line (raised at once), or a line is neither a str nor a `Request` (raised when
            the line is read).
    """
    require_iterable(lines, "lines")

    def numbered(index: int, line: str | Request) -> Request:
        require_text(line, f"lines[{index}]", Request)
        request = Request(line) if isinstance(line, str) else line
        return replace(request, number=begin + index) if request.number is None else request

    return (numbered(index, line) for index, line in enumerate(lines))


def equal_shares(requests: Sequence[Request], count: int) -> list[list[int]]:
    """Divide the requests into `count` shares of about equal work; return the indices of the requests in each share.

    The requests are sorted by length; each share gets every `count`-th request.
    """
    order = sorted(range(len(requests)), key=lambda index: len(requests[index].text))
    return [order[first::count] for first in range(count)]


def growing_blocks(lines: Iterable[Item], max_lines: int, begin: int = 0) -> Iterator[list[Item]]:
    """Yield the lines in blocks of growing size (see `FIRST_BLOCK_LINES`), of at most `max_lines` lines.

    begin: number of lines of the whole input that come before `lines`. The ends of the blocks in the whole input do not
        depend on `begin`.

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
