"""Checksums of what a run reads back, so that a flipped bit on the disk is noticed and nothing is learnt from it.

Files of gigabytes are compared in the background: zlib's crc32 reads 3 GB/s where sha256 reads 0.9 GB/s, and a checksum
against accidents needs to be no more than that.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from seq2seq.compressed_files import regular_bytes
from seq2seq.errors import CheckpointError
from seq2seq.json_reader import parse_json
from seq2seq.storage.atomic import replace_file

SEAL = "checksum"
"""The key of a JSON object that holds the checksum of all its other keys."""

TEXT_SEAL = b"# checksum: "
"""Begins the last line of a text that has a checksum."""

BLOCK = 1 << 20
FOREGROUND_BYTES = 1 << 27
"""Up to this size files are compared at once: 40 ms from the page cache. Larger ones do not delay the start."""


def crc32_of(path: Path) -> int:
    """zlib.crc32 of a file.

    Raises:
        OSError: it cannot be read.
    """
    checksum, buffer = 0, memoryview(bytearray(BLOCK))
    with path.open("rb", buffering=0) as file:
        while size := file.readinto(buffer):
            checksum = zlib.crc32(buffer[:size], checksum)
    return checksum


def crc32_of_all(directory: Path) -> dict[str, int]:
    """zlib.crc32 of each file of a directory, by name."""
    return {path.name: crc32_of(path) for path in sorted(directory.iterdir()) if path.is_file()}


def find_damaged_file(directory: Path, checksums: Mapping[str, int]) -> Path | None:
    """The first file that is missing, cannot be read or does not have its zlib.crc32; None where there is none."""
    for name, expected in checksums.items():
        try:
            if crc32_of(directory / name) != expected:
                return directory / name
        except OSError:
            return directory / name
    return None


def digest(values: Mapping[str, Any]) -> str:
    """sha256 of a JSON object, in whatever order its keys are."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def with_checksum(values: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON object with a checksum of its contents."""
    contents = {key: value for key, value in values.items() if key != SEAL}
    return {**contents, SEAL: digest(contents)}


def has_wrong_checksum(values: Mapping[str, Any]) -> bool:
    """Return True if a JSON object has a checksum that does not match its contents."""
    return SEAL in values and values != with_checksum(values)


# A text with a checksum of its own


def sealed_text(text: bytes) -> bytes:
    """Return a text, such as YAML, followed by a comment with its sha256."""
    return text + TEXT_SEAL + hashlib.sha256(text).hexdigest().encode() + b"\n"


def unsealed_text(contents: bytes) -> bytes | None:
    """Return the text without the comment of `sealed_text`, if there is one; None if the checksum does not match."""
    text, found, checksum = contents.rpartition(TEXT_SEAL)
    if not found:
        return contents
    return text if checksum.strip() == hashlib.sha256(text).hexdigest().encode() else None


# Text that a run's models have made


def journal_of(text: Path) -> Path:
    """Return the path of a text's journal, which holds its length and checksum."""
    return text.with_name(f"{text.name}.json")


def note_text(text: Path, crc32: int) -> None:
    """Write the journal of a text.

    Args:
        crc32: zlib.crc32 of its bytes.
    """
    replace_file(journal_of(text), json.dumps({"bytes": text.stat().st_size, "crc32": crc32}).encode())


def noted_text(text: Path) -> tuple[int, int] | None:
    """Return length in bytes and zlib.crc32 from the journal of a text; None if there is none (text of an older
    version)."""
    try:
        noted = parse_json(regular_bytes(journal_of(text)))
        return int(noted["bytes"]), int(noted["crc32"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return -1, -1                                                           # matches no text


def require_intact_text(paths: Iterable[Path], directory: Path) -> None:
    """Verify the checksums of the paths that lie in `directory`, that of synthetic text.

    Raises:
        CheckpointError: a text is damaged. It is deleted, and translated again at the next start.
    """
    directory = Path(os.path.abspath(directory))
    for path in paths:
        if path.parent != directory or (noted := noted_text(path)) is None:
            continue
        if noted != (path.stat().st_size, crc32_of(path)):
            path.unlink()
            raise CheckpointError(f"{path}, which a model has translated, is damaged: it is not what was saved. Run "
                                  "the same command again: it is translated again.")


# In the background


class Check:
    """Verification of checksums; in a background thread if the files are large."""

    def __init__(self, size: int, find_damage: Callable[[], Path | None]) -> None:
        """size: bytes that `find_damage` reads. It returns a damaged file, or None."""
        self._find_damage = find_damage
        self._damage: Path | None = None
        self._error: Exception | None = None
        self._thread: threading.Thread | None = None
        if size <= FOREGROUND_BYTES:
            self._run()
        else:
            # A daemon, so that a process that ends early does not wait for it.
            self._thread = threading.Thread(target=self._run, name="checksums", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        try:
            self._damage = self._find_damage()
        except Exception as error:                                              # raised where the result is asked for
            self._error = error

    def damage(self, wait: bool) -> Path | None:
        """Return a damaged file, or None if there is none; without `wait`, None also if the check still runs."""
        if self._thread is not None:
            if not wait and self._thread.is_alive():
                return None
            self._thread.join()
            self._thread = None
        if self._error is not None:
            raise self._error
        return self._damage
