"""Reading of files that users, other programs and strangers have written: regular files, compressed text, recognised by
its suffix, JSON and directories of zip archives."""

from __future__ import annotations

import errno
import gzip
import hashlib
import io
import json
import os
import re
import stat
import struct
import sys
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, cast

from seq2seq.errors import CorpusError

STANDARD_INPUT = Path("/dev/stdin")
"""Path that is read as standard input on Windows, too, which has no such file."""
BLOCK_BYTES = 1 << 20
"""Number of bytes that are read from a file in one call."""
ZSTD_BLOCK_BYTES = 1 << 10
"""Number of compressed bytes passed to zstandard in one call. The call returns everything that these bytes expand to.
One compressed byte can expand to 32,000 bytes: 1 KB gives at most 32 MB, but 1 MB could fill the memory."""
COMPRESSED_SUFFIXES = (".gz", ".zst")
"""Suffixes of files that are decompressed while they are read."""
SIGNATURES = {b"\x1f\x8b\x08": "gzip", b"\x28\xb5\x2f\xfd": "Zstandard", b"\xfd7zXZ\0": "xz", b"PK\3\4": "ZIP",
              **{b"BZh%d1AY&SY" % size: "bzip2" for size in range(1, 10)}}
"""First bytes of compressed files, which no text begins with."""
MAX_LINE_BYTES = 1_000_000
"""Default maximum length of a line in bytes. A sentence has hundreds of bytes. A whole document on one line has tens
of thousands of bytes. Longer lines come from files without line ends, or from small compressed files that expand
until the memory is full."""
MAX_FILE_BYTES = 50_000_000
"""Default maximum size of a file that is read as a whole. Vocabularies of 250,000 pieces have 5 to 15 MB; JSON can take
25 times its size in memory."""
MAX_DIRECTORY_BYTES = 5_000_000
"""Maximum size of the directory of a zip archive: 50,000 to 100,000 members, for each of which zipfile makes an object
of 500 bytes."""
SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")
MAX_NESTING = 64
"""Maximum nesting depth. The files that seq2seq writes have 5 levels; Python's JSON writer fails at about 300."""


@contextmanager
def opened(path: Path) -> Iterator[io.BufferedReader]:
    """Open a file for reading, decompressed if its name ends in .gz or .zst."""
    try:
        with open_decompressed(path) as file:
            # BufferedReader splits lines in C; iterating over a GzipFile runs Python code for every line.
            yield io.BufferedReader(cast(io.RawIOBase, file), BLOCK_BYTES)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise CorpusError(f"{path} is not an intact gzip file ({error}). Copy or compress it again.") from error
    except OSError as error:
        raise CorpusError(f"{path} cannot be read: {error.strerror or error}.") from error


def bounded_lines(file: Any, name: str, max_bytes: int, remedy: str) -> Iterator[bytes]:
    """Yield the lines of a binary file with their line feeds, reading at most `max_bytes` + 1 bytes at a time.

    Args:
        file: object with `readline`. name: name of the file, for the error message.
        max_bytes: maximum length of a line in bytes, not counting the line feed.
        remedy: advice to the user, at the end of the error message.
    """
    max_bytes = min(max_bytes, sys.maxsize - 1)                                     # the maximum argument of readline
    for number, line in enumerate(iter(partial(file.readline, max_bytes + 1), b""), start=1):
        if len(line) > max_bytes and not line.endswith(b"\n"):
            raise CorpusError(f"{name}:{number}: the line has more than {max_bytes:,} bytes. Lines end at \\n; "
                              f"{remedy}")
        yield line


def real_path(path: Path) -> Path:
    """Return an absolute path without links, as far as it exists. Unlike in `Path.resolve` of Python 3.11 and 3.12, a
    loop of links is no error."""
    return Path(os.path.realpath(path))


def open_regular(path: Path) -> io.BufferedReader:
    """Open a regular file for reading; links are followed.

    Opening does not wait for a writer of a pipe, and what is checked is the file that was opened.

    Raises:
        OSError: the file cannot be opened, or is a pipe, device or socket, from which reading could block for ever.
    """
    # Without O_NONBLOCK, opening a pipe would wait. Windows has no such flag, and no pipes among files.
    file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | getattr(os, "O_NONBLOCK", 0)))  # noqa: SIM115
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return file


def regular_bytes(path: Path, max_bytes: int = MAX_FILE_BYTES) -> bytes:
    """Return the contents of a regular file; links are followed.

    Raises:
        OSError: the file cannot be read, is not a regular file (see `open_regular`), or has more than `max_bytes`.
    """
    with open_regular(path) as file:
        contents = file.read(max_bytes + 1)
    if len(contents) > max_bytes:
        raise OSError(errno.EFBIG, f"it has more than {max_bytes:,} bytes", str(path))
    return contents


class NotZip(ValueError):
    """Error of `open_zip`: the file is not a zip archive, or its directory is damaged or too large."""


class _DirectoryReader(io.BufferedReader):
    """File of a zip archive that refuses reads of more than `limit` bytes."""

    limit = MAX_DIRECTORY_BYTES

    def read(self, size: int | None = -1) -> bytes:
        contents = super().read(self.limit + 1 if size is None or size < 0 else min(size, self.limit + 1))
        if len(contents) > self.limit:
            raise NotZip(f"its directory has more than {self.limit:,} bytes")
        return contents


def open_zip(file: BinaryIO, metadata_encoding: str | None = None) -> zipfile.ZipFile:
    """Open a zip archive from an untrusted source, and read its directory. Nothing is unpacked.

    Raises:
        NotZip: the file is not a zip archive, or its directory is damaged or has more than MAX_DIRECTORY_BYTES.
    """
    reader = _DirectoryReader(cast(io.RawIOBase, file))
    try:
        archive = zipfile.ZipFile(reader, metadata_encoding=metadata_encoding)
    except (zipfile.BadZipFile, ValueError, NotImplementedError, OverflowError, struct.error, EOFError) as error:
        raise NotZip(str(error)) from error
    reader.limit = sys.maxsize - 1
    return archive


def sha256_of(path: Path) -> str:
    """Return the sha256 of a regular file in hexadecimal digits. Raises OSError as `open_regular`."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def open_decompressed(path: Path) -> Any:
    """Open a binary file, decompressed if its name ends in .gz or .zst. Damage is detected only when the file is read:
    see `opened`.

    Raises:
        OSError: the file cannot be opened. CorpusError: the file is compressed, but its name does not end so.
    """
    if path == STANDARD_INPUT and sys.platform == "win32":
        return open(os.dup(0), "rb", buffering=0)
    if path.suffix == ".gz":
        return gzip.open(path, "rb")
    if path.suffix == ".zst":
        return _Blocks(_decompress_zstd(path))
    if path.is_file():                                                  # reading from a pipe would consume its data
        _require_uncompressed(path)
    return open(path, "rb", buffering=0)


def compression_of(start: bytes) -> str | None:
    """Return the kind of compression of data that begins with `start`, such as `gzip`; None if it is not compressed."""
    return next((kind for signature, kind in SIGNATURES.items() if start.startswith(signature)), None)


def is_binary(data: bytes) -> bool:
    """Return True if data is not text that a terminal can show: compressed data, as of Office documents, or data with
    zero bytes, as of UTF-16."""
    return compression_of(data) is not None or b"\0" in data


def _require_uncompressed(path: Path) -> None:
    with path.open("rb") as file:
        kind = compression_of(file.read(max(map(len, SIGNATURES))))
    if kind:
        spreadsheet = " save a spreadsheet as .tsv," * (kind == "ZIP")
        raise CorpusError(f"{path} is compressed ({kind}), but only files whose names end in .gz or .zst are "
                          f"decompressed while they are read. Extract the text from it,{spreadsheet} or rename it.")


def _decompress_zstd(path: Path) -> Iterator[bytes]:
    try:
        import zstandard
    except ImportError:
        raise CorpusError(f"{path}: to read .zst files, install zstandard: pip install zstandard") from None
    frame = None
    try:
        with open(path, "rb") as file:
            while block := file.read(ZSTD_BLOCK_BYTES):
                while block:                                                    # a block may contain several frames
                    frame = frame or zstandard.ZstdDecompressor().decompressobj()
                    yield frame.decompress(block)
                    block, frame = (frame.unused_data, None) if frame.eof else (b"", frame)
        if frame is not None:
            raise zstandard.ZstdError("the file is truncated")
    except zstandard.ZstdError as error:
        raise CorpusError(f"{path} is not an intact zstd file ({error}). Copy or compress it again.") from error


class _Blocks(io.RawIOBase):
    """Readable binary file whose contents are blocks of bytes from an iterator."""

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


class NotJson(ValueError):
    """Error of the functions below: the input is not JSON, or a value in it is not accepted. The message says why."""


def parse_json(contents: bytes | str) -> Any:
    """Parse a JSON text from an untrusted source.

    Raises:
        NotJson: the text is not JSON or not UTF-8, is nested too deeply, or contains an integer of more than 4,300
            digits (Python's limit) or a lone surrogate (which UTF-8 cannot encode).
    """
    value = read_any_json(contents)
    # Only an escape can be half of a pair.
    if SURROGATE_ESCAPE.search(contents if isinstance(contents, bytes) else contents.encode(errors="replace")):
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise NotJson("half of a surrogate pair") from None
    return value


def read_any_json(contents: bytes | str) -> Any:
    """Parse a JSON text, which may contain lone surrogates.

    Raises:
        NotJson: as for `parse_json`, but lone surrogates are no error.
    """
    try:
        # Bytes are decoded here as UTF-8, because json.loads would also accept UTF-16 and UTF-32.
        value = json.loads(contents if isinstance(contents, str) else contents.decode())
    except RecursionError:
        raise NotJson("nested too deeply") from None
    except ValueError as error:                                                 # JSONDecodeError, UnicodeDecodeError
        raise NotJson(str(error)) from None
    if _is_deeper(value, MAX_NESTING):
        raise NotJson("nested too deeply")
    return value


def _is_deeper(value: Any, levels: int) -> bool:
    """Return True if lists and objects are nested in a value more than `levels` times."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return bool(inner) and (levels == 0 or any(
        _is_deeper(one, levels - 1) for one in inner if isinstance(one, (dict, list))))
