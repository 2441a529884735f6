"""Compressed files: gzip and Zstandard, recognised by their names."""

from __future__ import annotations

import errno
import gzip
import io
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

from seq2seq.errors import CorpusError

BLOCK_BYTES = 1 << 20
# zstandard decompresses a whole block at once, up to 32,000 bytes from each byte, so that 1 MB could fill the memory.
ZST_BYTES = 1 << 10
COMPRESSED_SUFFIXES = (".gz", ".zst")
"""Suffixes of files that are decompressed while they are read."""
MAX_LINE_BYTES = 1_000_000
"""Default limit of a line's length in bytes. Sentences have some hundreds, documents on one line some ten thousands.
Longer lines come from files without line ends, or from small compressed files that would fill the memory."""


@contextmanager
def opened(path: Path) -> Iterator[io.BufferedReader]:
    """Open a file for reading, decompressed if its name ends in .gz or .zst.

    Raises:
        CorpusError: it cannot be read, while it is opened or later.
    """
    try:
        with open_decompressed(path) as file:
            # Buffered, because iterating over a GzipFile runs Python code for every line.
            yield io.BufferedReader(cast(io.RawIOBase, file), BLOCK_BYTES)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise CorpusError(f"{path} is no intact gzip file ({error}). Copy or compress it again.") from error
    except OSError as error:
        raise CorpusError(f"{path} cannot be read: {error.strerror or error}.") from error


def bounded_lines(file: Any, name: str, longest: int, remedy: str) -> Iterator[bytes]:
    """Yield the lines of a binary file, with their line feeds. Holds at most one line of `longest` bytes in memory.

    Args:
        file: has `readline`. name: for errors.
        longest: limit of a line's length in bytes, without line feed. remedy: end of the message about a longer line.
    Raises:
        CorpusError: a line is longer; with its number.
    """
    longest = min(longest, sys.maxsize - 1)                                     # readline takes no larger number
    for number, line in enumerate(iter(partial(file.readline, longest + 1), b""), start=1):
        if len(line) > longest and not line.endswith(b"\n"):
            raise CorpusError(f"{name}:{number}: the line has more than {longest:,} bytes. Lines end at \\n; {remedy}")
        yield line


def regular_bytes(path: Path) -> bytes:
    """Return the contents of a regular file, or of the one that a link leads to.

    Raises:
        OSError: it cannot be read, or is a pipe, a device or a socket, reading which could block for ever.
    """
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    return path.read_bytes()


def open_decompressed(path: Path) -> Any:
    """Open a binary file for iteration and reading. Errors of compressed data are raised later; see `opened`."""
    if path.suffix == ".gz":
        return gzip.open(path, "rb")
    if path.suffix != ".zst":
        return open(path, "rb", buffering=0)
    return _Blocks(_unpacked_zst(path))


def _unpacked_zst(path: Path) -> Iterator[bytes]:
    try:
        import zstandard
    except ImportError:
        raise CorpusError(f"{path}: to read .zst files, install zstandard: pip install zstandard") from None
    frame = None
    try:
        with open(path, "rb") as file:
            while block := file.read(ZST_BYTES):
                while block:                                                    # which can hold the end of a frame
                    frame = frame or zstandard.ZstdDecompressor().decompressobj()
                    yield frame.decompress(block)
                    block, frame = (frame.unused_data, None) if frame.eof else (b"", frame)
        if frame is not None:
            raise zstandard.ZstdError("it ends in the middle")
    except zstandard.ZstdError as error:
        raise CorpusError(f"{path} is no intact zstd file ({error}). Copy or compress it again.") from error


class _Blocks(io.RawIOBase):
    """Blocks of bytes as a file."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self.blocks, self.rest = blocks, memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self.rest and (block := next(self.blocks, None)) is not None:
            self.rest = memoryview(block)
        size = min(len(self.rest), len(buffer))
        buffer[:size], self.rest = self.rest[:size], self.rest[size:]
        return size
