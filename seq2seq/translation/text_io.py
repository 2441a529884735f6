"""Line-by-line input and output of files and pipes, which preserves line ends byte for byte."""

from __future__ import annotations

import errno
import io
import os
import shutil
import sys
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import BinaryIO, TypeVar

from seq2seq import console
from seq2seq.compressed_files import BLOCK_BYTES, COMPRESSED_SUFFIXES, MAX_LINE_BYTES, bounded_lines, open_decompressed
from seq2seq.errors import CorpusError, UserError

Result = TypeVar("Result")
Item = TypeVar("Item")

MOST_COUNTED = 100_000
"""Limit for counting the surplus lines of the longer of two texts, because a pipe or a device may never end."""
NAMED_LINES = 3
"""Number of lines with a warning of their own; further ones are counted."""


@dataclass(frozen=True)
class Line:
    r"""Line of input. ending: "\n", "\r\n", or "" if the input ends without a newline."""

    number: int
    text: str
    ending: str


class LineWarnings:
    """Warnings of one kind about lines of a text: the first ones are shown, the others counted."""

    def __init__(self, name: str, others: str) -> None:
        """name: of the text. others: message about the counted lines, which follows their number."""
        self.name, self.others, self.count = name, others, 0

    def warn(self, line: int, message: str) -> None:
        """Warn of a line, or count it."""
        self.count += 1
        if self.count <= NAMED_LINES:
            console.warn(f"{self.name}:{line}: {message}")

    def finish(self) -> None:
        """Print the number of further lines, if any."""
        if self.count > NAMED_LINES:
            console.warn(f"{self.name}: {self.count - NAMED_LINES:,} more {self.others}")


class OutputClosed(Exception):
    """The reader of standard output has closed it, such as `head`."""


class Input:
    """Input read line by line.

    name: for messages. live: typed by the user, so that each line must be answered at once.
    """

    def __init__(self, file: BinaryIO, name: str, total: int | None = None, live: bool = False,
                 longest: int | None = None) -> None:
        """total: number of lines, if known before reading. longest: limit of a line's length in bytes; None: none."""
        self.file, self.name, self.total, self.live, self.longest = file, name, total, live, longest

    def __iter__(self) -> Iterator[Line]:
        r"""Yield the lines. Only `\n` ends a line; bytes that are not UTF-8 become U+FFFD, with a warning."""
        broken = LineWarnings(self.name, "lines are not UTF-8. Convert the file, for instance by iconv -f latin1 -t "
                                         "utf-8")
        for number, data in enumerate(self._raw_lines(), start=1):
            ending = b"\r\n" if data.endswith(b"\r\n") else b"\n" if data.endswith(b"\n") else b""
            data = data.removesuffix(ending)
            try:
                text = data.decode()
            except UnicodeDecodeError as error:
                text = data.decode(errors="replace")
                broken.warn(number, f"byte {error.start + 1} is not UTF-8; U+FFFD stands for what cannot be read")
            yield Line(number, text, ending.decode())
        broken.finish()

    def _raw_lines(self) -> Iterator[bytes]:
        try:
            remedy = "cut it into sentences" + (", or raise --max-line-bytes." if self.longest else ".")
            yield from bounded_lines(self.file, self.name, self.longest or MAX_LINE_BYTES, remedy)
        except (OSError, EOFError, zlib.error) as error:                        # EOFError: a .gz that was cut off
            raise CorpusError(f"{self.name} cannot be read to its end: {_reason(error)}.") from error


def file_or_standard(path: Path | None) -> Path | None:
    """Return the path; None for `-` and if it was not given, which both mean standard input or output."""
    return None if path is None or str(path) == "-" else path


@contextmanager
def reading(path: Path | None, longest: int | None = None) -> Iterator[Input]:
    """Open a file, decompressed if its name ends in .gz or .zst, or standard input if path is None.

    longest: limit of a line's length in bytes; None: none.

    Raises:
        CorpusError: it cannot be opened.
    """
    if path is None:
        if sys.stdin is None:
            raise CorpusError("standard input is closed; name a file.")
        yield Input(sys.stdin.buffer, "standard input", live=sys.stdin.isatty(), longest=longest)
        return
    try:
        file = io.BufferedReader(open_decompressed(path), BLOCK_BYTES)
    except OSError as error:
        raise CorpusError(f"{path} cannot be read: {_reason(error)}. {_remedy(error)}") from error
    with file:
        yield Input(file, str(path), _count_lines(path), longest=longest)


def _count_lines(path: Path) -> int | None:
    """Return the number of lines of a file that can be read twice; None otherwise."""
    if path.suffix in COMPRESSED_SUFFIXES or not path.is_file():
        return None
    with suppress(OSError), path.open("rb") as file:                            # reading will report the error
        count, last = 0, b""
        while block := file.read(1 << 20):
            count += block.count(b"\n")
            last = block
        return count + (not last.endswith(b"\n") and last != b"")
    return None


class Output:
    """Output whose text is flushed at once.

    name: for messages. terminal: shown to the user. part: path until the output is complete; None: written in place.
    """

    def __init__(self, file: BinaryIO, name: str, terminal: bool = False, part: Path | None = None) -> None:
        self.file, self.name, self.terminal, self.part = file, name, terminal, part

    def write(self, text: str) -> None:
        """Write and flush.

        Raises:
            OutputClosed: its reader has closed it.
            UserError: it cannot be written, for instance because the disk is full.
        """
        try:
            self.file.write(text.encode())
            self.file.flush()
        except OSError as error:
            # Otherwise Python would try to write the rest again when it closes the file.
            with suppress(OSError):
                self.file.close()
            if isinstance(error, BrokenPipeError):
                raise OutputClosed from None
            raise UserError(f"{self.name} cannot be written: {_reason(error)}. {_remedy(error)}") from error


@contextmanager
def writing(path: Path | None, resume: bool = False, resumable: bool = False) -> Iterator[Output]:
    """Open a file for writing, or standard output if path is None.

    The file is called <name>.part until the block has ended without an exception; it keeps that name if the block
    fails. An existing <name>.part is never overwritten.

    Args:
        resume: append to an existing <name>.part. resumable: the command can resume; mentioned in the error.
    Raises:
        UserError: it cannot be opened, another process writes it, or an earlier run has left a part of it.
    """
    if path is None:
        if sys.stdout is None:
            raise UserError("standard output is closed, and the result would go there. Open it, or name a file.")
        yield Output(sys.stdout.buffer, "standard output", sys.stdout.isatty())
        return
    place = Path(os.path.realpath(path))                                        # a link stays a link
    special = place.exists() and not place.is_file() and not place.is_dir()     # a pipe or a device has no other name
    part = place if special else place.with_name(f"{place.name}.part")
    try:
        if place.is_dir():
            raise IsADirectoryError(0, "it is a directory")
        file = part.open("wb" if special else "ab")
    except OSError as error:
        if place.parent.is_dir() or isinstance(error, PermissionError):
            raise UserError(f"{path} cannot be written: {_reason(error)}. {_remedy(error)}") from error
        missing = (f"{path.parent} is a file. Name" if place.parent.exists() else
                   f"there is no directory {path.parent}. Make it (mkdir -p {path.parent}), or name")
        raise UserError(f"{path} cannot be written: {missing} another file.") from error
    with file:
        if not special:
            _claim(file, part)
            if part.stat().st_size and not resume:
                raise UserError(f"{part} holds what an earlier run has done of {path}. "
                                f"{'Go on there with --resume, or delete' if resumable else 'Delete'} it to begin "
                                "anew.")
        try:
            yield Output(file, str(path), part=None if special else part)
            file.close()                                                        # a full disk may show only now
            if not special:
                if place.exists():
                    shutil.copymode(place, part)
                os.replace(part, place)
        except BaseException:
            if not special and part.exists():
                if part.stat().st_size:
                    console.warn(f"{path} is not complete; what was done stands in {part}")
                else:
                    part.unlink()
            raise


def _claim(file: BinaryIO, part: Path) -> None:
    """Lock a file for this process. Raises UserError if another one holds the lock."""
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UserError(f"another process is writing {part}. Wait until it ends, or choose another --output.") from None
    except OSError:
        pass                                                                    # a network file system without locks


def through(lines: Iterable[Line], function: Callable[[Iterator[str]], Iterator[Result]],
            ) -> Iterator[tuple[Line, Result]]:
    """Yield each line with the result of `function` for its text; `function` yields one result per text, in order."""
    def one_by_one(lines: Iterator[Line]) -> Iterator[list[Result]]:
        return ([result] for result in function(line.text for line in lines))

    for block in blocks_through(lines, one_by_one):
        yield from block


def blocks_through(items: Iterable[Item], function: Callable[[Iterator[Item]], Iterator[list[Result]]],
                   ) -> Iterator[list[tuple[Item, Result]]]:
    """Yield each item with its result; `function` yields blocks of results, one result per item, in order."""
    waiting: deque[Item] = deque()

    def entering() -> Iterator[Item]:
        for item in items:
            waiting.append(item)
            yield item

    for results in function(entering()):
        yield [(waiting.popleft(), result) for result in results]
    assert not waiting, "an item went in and nothing came out"


def beside(items: Iterator[Item], name: str, other: Input | None) -> Iterator[tuple[Item, str]]:
    """Yield each item, which belongs to a line of the input `name`, with the same line of `other`; "" without `other`.

    Raises:
        CorpusError: one has more lines than the other; seen at the end of the shorter one.
    """
    if other is None:
        yield from ((item, "") for item in items)
        return
    lines, count = iter(other), 0
    for item in items:
        line = next(lines, None)
        if line is None:
            rest = 1 + _count_rest(items)
            raise not_parallel(name, count + rest, other.name, count, at_least=rest > MOST_COUNTED)
        yield item, line.text
        count += 1
    if rest := _count_rest(lines):
        raise not_parallel(name, count, other.name, count + rest, at_least=rest == MOST_COUNTED)


def blocks_of_pairs(sources: Input, targets: Input, size: int) -> Iterator[list[tuple[Line, Line]]]:
    """Yield blocks of `size` pairs of lines of two inputs.

    Raises:
        CorpusError: one has more lines than the other; seen at the end of the shorter one.
    """
    block: list[tuple[Line, Line]] = []
    count = 0
    remaining = iter(targets)
    others = iter(sources)
    for source in others:
        target = next(remaining, None)
        if target is None:
            rest = 1 + _count_rest(others)
            raise not_parallel(sources.name, count + rest, targets.name, count, at_least=rest > MOST_COUNTED)
        block.append((source, target))
        count += 1
        if len(block) == size:
            yield block
            block = []
    if rest := _count_rest(remaining):
        raise not_parallel(sources.name, count, targets.name, count + rest, at_least=rest == MOST_COUNTED)
    if block:
        yield block


def require_as_many_lines(sources: Input, targets: Input) -> None:
    """Raise CorpusError before the work if the numbers of lines are known and differ."""
    if sources.total is not None and targets.total is not None and sources.total != targets.total:
        raise not_parallel(sources.name, sources.total, targets.name, targets.total)


def _count_rest(lines: Iterator[object]) -> int:
    """Return the number of remaining lines, at most MOST_COUNTED."""
    return sum(1 for _ in islice(lines, MOST_COUNTED))


def not_parallel(source: str, source_lines: int, target: str, target_lines: int, at_least: bool = False) -> CorpusError:
    """Return the error about two texts whose numbers of lines differ. at_least: the longer one may have more."""
    of_source, of_target = ("at least " * (at_least and lines == max(source_lines, target_lines))
                            for lines in (source_lines, target_lines))
    return CorpusError(f"{source} has {of_source}{source_lines:,} lines, {target} has {of_target}{target_lines:,}. "
                       "They must match line by line; run again the step that wrote them.")


def _reason(error: Exception) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)


def _remedy(error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        return f"Check its name; names are looked up in {Path.cwd()}."
    if isinstance(error, (IsADirectoryError, NotADirectoryError)):
        return "Name a file."
    if isinstance(error, PermissionError) or error.errno == errno.EROFS:
        return "Check the permissions, or name another file."
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "Make room, or name a file on another disk."
    return "Check the disk, or name another file."
