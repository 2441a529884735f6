"""Line-by-line input and output of files and pipes, with line ends preserved byte for byte."""

from __future__ import annotations

import errno
import io
import os
import shutil
import sys
import unicodedata
import zlib
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeVar

from seq2seq import console
from seq2seq.errors import CorpusError, UserError
from seq2seq.files import (
    BLOCK_BYTES,
    COMPRESSED_SUFFIXES,
    MAX_LINE_BYTES,
    bounded_lines,
    compression_of,
    open_decompressed,
)
from seq2seq.formats.block import wide_encoding
from seq2seq.storage.atomic import open_without_links
from seq2seq.storage.locks import lock_if_free

Result = TypeVar("Result")

MAX_CHARACTERS = 5
"""Maximum number of characters that a message names."""
MAX_WARNINGS = 3
"""Maximum number of printed warnings of one kind. Further ones are only counted."""


@dataclass(frozen=True)
class Line:
    r"""Line of input. ending: "\n", "\r\n", or "" if the input ends without a newline."""

    number: int
    text: str
    ending: str

    @property
    def place(self) -> str:
        return f"line {self.number}"


class LineWarnings:
    """Warnings of one kind about lines of a text. The first ones are printed, the others are only counted."""

    def __init__(self, name: str, summary: str, limit: float = MAX_WARNINGS) -> None:
        """name: name of the text in messages. summary: end of the message "N more …", where N is the number of lines
        that were only counted. limit: maximum number of warnings that are printed."""
        self.name, self.summary, self.limit, self.count = name, summary, limit, 0

    def warn(self, place: str, message: str) -> None:
        """Print a warning about a line, or only count the line. place: place in the text, such as `line 12`."""
        self.count += 1
        if self.count <= self.limit:
            separator = ":" if place.startswith("line ") else ": "
            console.warn(f"{self.name}{separator}{place.removeprefix('line ')}: {message}")

    def finish(self) -> None:
        """Print the number of lines that were only counted, if any."""
        if self.count > self.limit:
            console.warn(f"{self.name}: {self.count - self.limit:,} more {self.summary}")


class UnseenCharacters:
    """Lines with characters that the training text of the model never had, for one warning."""

    def __init__(self, name: str) -> None:
        """name: name of the text in messages."""
        self.name, self.lines, self.first, self.counts = name, 0, "", Counter[str]()

    def add(self, place: str, characters: str) -> None:
        """Count a line with these characters; "" is not counted. place: place in the text, such as `line 12`."""
        if characters:
            self.first = self.first or place
            self.lines += 1
            self.counts.update(characters)

    def finish(self) -> None:
        """Print the number of lines, and the most frequent characters, if there are any."""
        if self.lines:
            lines = f"{self.lines:,} line{'s have' if self.lines > 1 else ' has'}"
            console.warn(f"{self.name}: {lines} characters that the training text of the model never had (first: "
                         f"{self.first}): {name_characters(self.counts)}")


def name_characters(counts: Counter[str]) -> str:
    """Return the most frequent characters with code point, name and number of lines, for messages."""
    named = [f"U+{ord(character):04X} {unicodedata.name(character, 'without name')} ({count:,})"
             for character, count in counts.most_common(MAX_CHARACTERS)]
    others = len(counts) - len(named)
    return ", ".join([*named, *([f"{others:,} others"] if others else [])])


class OutputClosed(Exception):
    """The reader of the output, such as `head`, has closed it."""


class Input:
    """Input read line by line.

    name: name of the input in messages. live: True if the user types the input, so that each line must be answered
    immediately. check: function that gets the bytes of the first line, and may refuse the input.
    """

    check: Callable[[bytes], None] | None = None

    def __init__(self, file: BinaryIO, name: str, total: int | None = None, live: bool = False,
                 max_line_bytes: int | None = None) -> None:
        """total: number of lines, if known before reading. max_line_bytes: maximum length of a line in bytes; None: the
        default limit."""
        self.file, self.name, self.total, self.live, self.max_line_bytes = file, name, total, live, max_line_bytes

    def __iter__(self) -> Iterator[Line]:
        r"""Yield the lines. Only `\n` ends a line; bytes that are not UTF-8 become U+FFFD, with a warning. A byte order
        mark before the first line is left out."""
        not_utf8 = LineWarnings(self.name, "lines are not UTF-8. Convert the file, for example with iconv -f latin1 -t "
                                           "utf-8")
        for number, data in enumerate(self._raw_lines(), start=1):
            if number == 1 and self.check:
                self.check(data)
            ending = b"\r\n" if data.endswith(b"\r\n") else b"\n" if data.endswith(b"\n") else b""
            data = data.removesuffix(ending)
            try:
                text = data.decode()
            except UnicodeDecodeError as error:
                text = data.decode(errors="replace")
                found = f"byte {error.start + 1} is not UTF-8"
                if number == 1 and (encoding := wide_encoding(data)):
                    found = f"the text begins with the mark of {encoding}; convert it with iconv -f {encoding} -t UTF-8"
                elif number == 1 and (kind := compression_of(data)):
                    found = f"the input begins like {kind} data, which must be decompressed first"
                not_utf8.warn(f"line {number}", f"{found}; invalid bytes are replaced by U+FFFD")
            yield Line(number, text.removeprefix("\ufeff") if number == 1 else text, ending.decode())
        not_utf8.finish()

    def _raw_lines(self) -> Iterator[bytes]:
        try:
            remedy = "cut it into sentences" + (", or raise --max-line-bytes." if self.max_line_bytes else ".")
            yield from bounded_lines(self.file, self.name, self.max_line_bytes or MAX_LINE_BYTES, remedy)
        except (OSError, EOFError, zlib.error) as error:                        # EOFError: a truncated .gz
            raise CorpusError(f"{self.name} cannot be read to its end: {_reason(error)}.") from error


class GivenLines(Input):
    """Texts without line ends as an input of lines."""

    def __init__(self, texts: Sequence[str], name: str) -> None:
        super().__init__(io.BytesIO(), name, len(texts))
        self.texts = texts

    def __iter__(self) -> Iterator[Line]:
        return (Line(number, text, "\n") for number, text in enumerate(self.texts, start=1))


def file_or_standard(path: Path | None) -> Path | None:
    """Return the path; None if it is `-` or None, which both mean standard input or output."""
    return None if path is None or str(path) == "-" else path


@contextmanager
def reading(path: Path | None, max_line_bytes: int | None = None) -> Iterator[Input]:
    """Open a file, or standard input if path is None. A file whose name ends in .gz or .zst is decompressed.

    max_line_bytes: maximum length of a line in bytes; None: the default limit.
    """
    if path is None:
        if sys.stdin is None:
            raise CorpusError("standard input is closed; name a file.")
        yield Input(sys.stdin.buffer, "standard input", live=sys.stdin.isatty(), max_line_bytes=max_line_bytes)
        return
    try:
        file = io.BufferedReader(open_decompressed(path), BLOCK_BYTES)
    except OSError as error:
        raise CorpusError(f"{path} cannot be read: {_reason(error)}. {_remedy(error)}") from error
    with file:
        yield Input(file, str(path), _count_lines(path), max_line_bytes=max_line_bytes)


def _count_lines(path: Path) -> int | None:
    """Return the number of lines of an uncompressed regular file; None for other files."""
    if path.suffix in COMPRESSED_SUFFIXES or not path.is_file():
        return None
    with suppress(OSError), path.open("rb") as file:                            # the error is reported on reading
        count, last = 0, b""
        while block := file.read(1 << 20):
            count += block.count(b"\n")
            last = block
        return count + (not last.endswith(b"\n") and last != b"")
    return None


class Output:
    """Output that is flushed after each write.

    name: name of the output in messages. terminal: True if the output appears in a terminal.
    """

    def __init__(self, file: BinaryIO, name: str, terminal: bool = False) -> None:
        self.file, self.name, self.terminal = file, name, terminal

    def write(self, text: str | bytes) -> None:
        """Write and flush.

        Raises:
            OutputClosed: the reader has closed the output.
        """
        try:
            self.file.write(text.encode() if isinstance(text, str) else text)
            self.file.flush()
        except OSError as error:
            # Close the file now. Otherwise, a later close() would try to write the buffered data again.
            with suppress(OSError):
                self.file.close()
            if isinstance(error, BrokenPipeError):
                raise OutputClosed from None
            raise UserError(f"{self.name} cannot be written: {_reason(error)}. {_remedy(error)}") from error


def lock_output(file: BinaryIO, path: Path) -> None:
    """Lock an open file for this process, as far as the file system can. path: name of the file in the message."""
    if not lock_if_free(file.fileno()):
        raise UserError(f"another process is writing {path}. Wait until it ends, or choose another --output.")


@contextmanager
def writing(path: Path | None, inputs: Sequence[Path | None] = (), overwrite: bool = False) -> Iterator[Output]:
    """Open a file for writing, or standard output if path is None.

    The file is called <name>.part until the `with` block ends without an exception. After an exception, <name>.part is
    kept, unless it is empty.

    inputs: paths of the texts that are read, which the output must not replace. overwrite: overwrite an existing
    <name>.part.
    """
    if path is None:
        if sys.stdout is None:
            raise UserError("standard output is closed, so the result cannot be written. Open it, or name a file.")
        yield Output(sys.stdout.buffer, "standard output", sys.stdout.isatty())
        return
    target = Path(os.path.realpath(path))                                       # a symbolic link is not replaced
    # Pipes and devices are written in place. The real path of /dev/stdout, if it is a pipe, cannot be opened.
    special = path.exists() and not path.is_file() and not path.is_dir()
    part = path if special else target.with_name(f"{target.name}.part")
    if target.is_file() and any(text and text.exists() and target.samefile(text) for text in inputs):
        raise UserError(f"{path} is also an input, and the output would replace it. Name another file.")
    if target.suffix in COMPRESSED_SUFFIXES and not special:
        raise UserError(f"{path}: the output is not compressed. Name a file without {target.suffix}, and compress it "
                        "afterwards, or write to standard output and a pipe.")
    try:
        if target.is_dir():
            raise IsADirectoryError(0, "it is a directory")
        file = path.open("wb") if special else open(part, "ab", opener=open_without_links)      # noqa: SIM115
    except OSError as error:
        if target.parent.is_dir() or isinstance(error, PermissionError):
            raise UserError(f"{path} cannot be written: {_reason(error)}. {_remedy(error)}") from error
        missing = (f"{path.parent} is a file. Name" if target.parent.exists() else
                   f"there is no directory {path.parent}. Create it (mkdir -p {path.parent}), or name")
        raise UserError(f"{path} cannot be written: {missing} another file.") from error
    with file:
        if not special:
            lock_output(file, part)
            if part.stat().st_size and not overwrite:
                raise UserError(f"{part} contains the unfinished output of an earlier run. Delete it to start again.")
            file.truncate(0)
        try:
            yield Output(file, str(path), special and file.isatty())
            if not special:
                os.fsync(file.fileno())
            file.close()                                                        # may report a full disk
            if not special:
                if target.exists():
                    shutil.copymode(target, part)
                os.replace(part, target)
        except BaseException:
            if not special and part.exists():
                if part.stat().st_size:
                    console.warn(f"{path} is not complete; the finished part is in {part}")
                else:
                    part.unlink()
            raise


def map_lines(lines: Iterable[Line], function: Callable[[Iterator[str]], Iterator[Result]],
              ) -> Iterator[tuple[Line, Result]]:
    """Yield each line with the result of `function` for its text; `function` yields one result per text, in order."""
    waiting: deque[Line] = deque()

    def texts() -> Iterator[str]:
        for line in lines:
            waiting.append(line)
            yield line.text

    for result in function(texts()):
        yield waiting.popleft(), result
    assert not waiting, "the function yielded fewer results than it got lines"


def _reason(error: Exception) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)


def _remedy(error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        return f"Check its name; relative paths start at {Path.cwd()}."
    if isinstance(error, (IsADirectoryError, NotADirectoryError)):
        return "Name a file."
    if isinstance(error, PermissionError) or error.errno == errno.EROFS:
        return "Check the permissions, or name another file."
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "Free some space, or name a file on another disk."
    return "Check the disk, or name another file."
