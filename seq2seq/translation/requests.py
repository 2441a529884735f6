"""Requests (lines to translate, with their own constraints), and their division into shares and blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, tee
from typing import TypeVar

import numpy as np

from seq2seq.data.parallel_text import zip_parallel
from seq2seq.errors import OptionError, require_iterable, require_text, require_texts
from seq2seq.tokenizers.context import PreviousSentences, context_sentences, split_context
from seq2seq.translation.text_io import Input, Line

Item = TypeVar("Item")

FIRST_BLOCK_LINES = 1024
"""Number of lines in the first block. It is small, so that the first results come soon. Each later block has 4 times as
many lines as the block before it, up to the maximum."""


@dataclass(frozen=True)
class Request:
    """Line to translate, with constraints for this line alone.

    prefix: text with which the translation must begin. required: phrases that the translation must contain, in addition
    to those of `decoding.require`. number: number of the line in the whole input, from 0; None: index of the line in
    the call. With sampling, the translation depends on this number. context: sentences before this line in the same
    document, for a model with `data.context`; None: use the lines before this line, back to a blank line.

    Raises:
        TypeError: a field has a wrong type.
    """

    text: str
    prefix: str = ""
    required: tuple[str, ...] = ()
    number: int | None = None
    context: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        require_text(self.text, "text")
        require_text(self.prefix, "prefix")
        require_texts(self.required, "required")
        if not isinstance(self.number, int | None):
            raise TypeError(f"number is of type {type(self.number).__name__}; expected int or None")


def number_requests(lines: Iterable[str | Request], begin: int = 0, context: int = 0) -> Iterator[Request]:
    """Yield each line as a numbered request. A request without a number gets `begin` + the index of the line.

    context: number of previous lines of the document that a request without a context gets as its context. If the text
        of such a request contains `context.CONTEXT_SEPARATOR`, its context is the text before the last separator.
    Raises:
        TypeError: `lines` is a single line (raised when this function is called), or a line is neither a str nor a
            `Request` (raised when the line is read).
    """
    require_iterable(lines, "lines")
    previous = PreviousSentences(context)

    def numbered(index: int, line: str | Request) -> Request:
        require_text(line, f"lines[{index}]", Request)
        request = Request(line) if isinstance(line, str) else line
        if context and request.context is None:
            given, text = split_context(request.text)
            before = previous.add(text)
            request = replace(request, text=text, context=context_sentences(given) if given else before)
        return replace(request, number=begin + index) if request.number is None else request

    return (numbered(index, line) for index, line in enumerate(lines))


def requests_of(lines: Input, prefixes: Input | None, phrases: Input | None, context: int = 0
                ) -> Iterator[tuple[Line, Request]]:
    """Yield each of `lines` with its request. The prefix and the required phrases (separated by tabs) of the request
    come from the lines with the same number in `prefixes` and `phrases`. context: see `number_requests`."""
    inputs = [text for text in (lines, prefixes, phrases) if text is not None]

    def pairs() -> Iterator[tuple[Line, Request]]:
        for line, *others in zip_parallel([text.name for text in inputs], *inputs):
            prefix = "" if prefixes is None else others[0].text
            required = "" if phrases is None else others[-1].text
            yield line, Request(line.text, prefix, tuple(phrase for phrase in required.split("\t") if phrase.strip()))

    with_line, with_request = tee(pairs())
    numbered = number_requests((request for _, request in with_request), 0, context)
    return zip((line for line, _ in with_line), numbered, strict=True)


def line_progress(parts_per_line: list[int], progress: Callable[[int], None] | None) -> Callable[[np.ndarray], None]:
    """Return a callback that takes the indices of finished parts and reports the number of finished lines."""
    if progress is None:
        return lambda indices: None
    line_of_part = np.repeat(np.arange(len(parts_per_line)), parts_per_line)
    unfinished = np.array(parts_per_line)                                       # number of unfinished parts by line
    progress(int((unfinished == 0).sum()))

    def finish(indices: np.ndarray) -> None:
        lines = line_of_part[indices]
        np.subtract.at(unfinished, lines, 1)
        progress(int((unfinished[np.unique(lines)] == 0).sum()))

    return finish


def equal_shares(requests: Sequence[Request], count: int) -> list[list[int]]:
    """Divide the requests into `count` shares of about equal work; return the indices of the requests in each share.

    Each share gets every `count`-th request in the order of their lengths. Within a share, the requests keep their
    order. A single share thus has the same batches as the whole text, and the same rounding in bf16.
    """
    order = sorted(range(len(requests)), key=lambda index: len(requests[index].text))
    return [sorted(order[first::count]) for first in range(count)]


def growing_blocks(lines: Iterable[Item], max_lines: int, begin: int = 0) -> Iterator[list[Item]]:
    """Yield the lines in blocks of growing size (see `FIRST_BLOCK_LINES`), of at most `max_lines` lines.

    begin: number of lines of the whole input that come before `lines`. The blocks end at the same lines of the whole
        input, whatever `begin` is.

    Raises:
        OptionError: `max_lines` is below 1 (raised when this function is called).
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
