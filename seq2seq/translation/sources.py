"""Sources of the lines to translate with their constraints, and their division into shares and blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice, tee
from typing import TypeVar

import numpy as np

from seq2seq.data.parallel_text import zip_parallel
from seq2seq.errors import OptionError
from seq2seq.tokenizers.line_reader import LineReader
from seq2seq.tokenizers.source import Source
from seq2seq.translation.text_io import Input, Line

Item = TypeVar("Item")

FIRST_BLOCK_LINES = 1024
"""Number of lines in the first block. It is small, so that the first results come soon. Each later block has 4 times as
many lines as the block before it, up to the maximum."""


def constrained_sources(lines: Input, prefixes: Input | None, phrases: Input | None, reader: LineReader,
                        language: str = "", tag: str | None = None) -> Iterator[tuple[Line, Source]]:
    """Yield each of `lines` with its source, as `reader` reads it. The prefix and the required phrases (separated by
    tabs) of the source come from the lines with the same number in `prefixes` and `phrases`. language, tag: see
    `Source`."""
    inputs = [text for text in (lines, prefixes, phrases) if text is not None]

    def pairs() -> Iterator[tuple[Line, Source]]:
        for line, *others in zip_parallel([text.name for text in inputs], *inputs):
            prefix = "" if prefixes is None else others[0].text
            required = "" if phrases is None else others[-1].text
            yield line, Source(line.text, language=language, tag=tag, prefix=prefix,
                               required=tuple(phrase for phrase in required.split("\t") if phrase.strip()))

    with_line, with_source = tee(pairs())
    numbered = reader.number(source for _, source in with_source)
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


def equal_shares(sources: Sequence[Source], count: int) -> list[list[int]]:
    """Divide the sources into `count` shares of about equal work; return the indices of the sources in each share.

    Each share gets every `count`-th source in the order of their lengths. Within a share, the sources keep their
    order. A single share thus has the same batches as the whole text, and the same rounding in bf16.
    """
    order = sorted(range(len(sources)), key=lambda index: len(sources[index].text))
    return [sorted(order[first::count]) for first in range(count)]


def growing_blocks(lines: Iterable[Item], max_lines: int) -> Iterator[list[Item]]:
    """Yield the lines in blocks of growing size (see `FIRST_BLOCK_LINES`), of at most `max_lines` lines."""
    if max_lines < 1:
        raise OptionError(f"a block of {max_lines} lines is empty; set the number of lines to 1 or more")
    return _growing_blocks(lines, max_lines)


def _growing_blocks(lines: Iterable[Item], max_lines: int) -> Iterator[list[Item]]:
    remaining = iter(lines)
    size = min(FIRST_BLOCK_LINES, max_lines)
    while block := list(islice(remaining, size)):
        yield block
        size = min(4 * size, max_lines)
