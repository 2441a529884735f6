"""Files as they are, or packed by gzip or Zstandard: their names say which."""

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
# zstandard unpacks all that it is given at once, up to 32,000 bytes of each: a block of 1 MB could fill the memory.
ZST_BYTES = 1 << 10
PACKED = (".gz", ".zst")
"""Endings of what is unpacked while it is read."""
LONGEST_LINE = 1_000_000
"""Bytes, unless a recipe or an option says otherwise. Sentences have some hundreds, documents on one line some ten
thousands. Beyond a million a line is a file without line ends, or a small packed one that would fill the memory."""


@contextmanager
def opened(path: Path) -> Iterator[io.BufferedReader]:
    """A file for reading, unpacked where its name ends in .gz or .zst.

    Raises:
        CorpusError: it cannot be read, while it is opened or later.
    """
    try:
        with unpacked(path) as file:
            # Iterating a GzipFile itself is Python code for every line.
            yield io.BufferedReader(cast(io.RawIOBase, file), BLOCK_BYTES)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise CorpusError(f"{path} is no intact gzip file ({error}). Copy or compress it again.") from error
    except OSError as error:
        raise CorpusError(f"{path} cannot be read: {error.strerror or error}.") from error


def bounded_lines(file: Any, name: str, longest: int, remedy: str) -> Iterator[bytes]:
    """The lines of a file of bytes, with their line feeds. No more than one of the longest is held in memory.

    Args:
        file: has `readline`. name: what errors call it.
        longest: bytes of the longest line, its line feed aside. remedy: the end of the message about a longer one.
    Raises:
        CorpusError: a line is longer; with its number.
    """
    longest = min(longest, sys.maxsize - 1)                                     # readline takes no larger number
    for number, line in enumerate(iter(partial(file.readline, longest + 1), b""), start=1):
        if len(line) > longest and not line.endswith(b"\n"):
            raise CorpusError(f"{name}:{number}: the line has more than {longest:,} bytes. Lines end at \\n; {remedy}")
        yield line


def regular_bytes(path: Path) -> bytes:
    """The contents of a regular file, or of what a link leads to.

    Raises:
        OSError: it cannot be read, or is a pipe, a device or a socket, which could be waited for without end.
    """
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    return path.read_bytes()


def unpacked(path: Path) -> Any:
    """A file of bytes, for iteration and reading. What is wrong with it shows while it is read; see `opened`."""
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
