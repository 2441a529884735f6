"""Files that grow by blocks, so that a killed job goes on with the next block."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from seq2seq.errors import CheckpointError
from seq2seq.files import parse_json
from seq2seq.storage.atomic import cannot_save, delete, delete_temporary, make_directories, replace_file
from seq2seq.storage.directories import as_json, read_file, with_checksum

STATE = "state.json"
COMMIT_SECONDS = 10.0
"""Minimum time between two commits, each of which waits for the disk. A kill loses the work since the last one."""


class GrowingFiles:
    """Files of a directory to which a job appends, and the state of the job, which belongs to their lengths.

    state: state at the last commit; {} at the beginning. files: the files, by name, open for appending.
    """

    def __init__(self, directory: Path, names: Sequence[str]) -> None:
        """Open the files, and cut off what was written after the last commit. A directory that is damaged is emptied.
        """
        self.directory, self._committed = directory, time.monotonic()
        recorded: dict[str, Any] = {}
        with suppress(CheckpointError, OSError, ValueError, KeyError, TypeError, AttributeError):
            found = parse_json(read_file(directory / STATE))
            if found == with_checksum(found) and all(
                    (directory / name).stat().st_size >= found["sizes"][name] for name in names):
                recorded = found
        try:
            if not recorded:
                delete(directory)
            make_directories(directory)
            delete_temporary(directory)                                         # of a process that was killed
            self.state: dict[str, Any] = recorded.get("state", {})
            self.files: dict[str, BinaryIO] = {}
            for name in names:
                self.files[name] = open(directory / name, "ab")                 # noqa: SIM115, closed by `__exit__`
                self.files[name].truncate(recorded.get("sizes", {}).get(name, 0))
                self.files[name].seek(0, os.SEEK_END)
        except OSError as error:
            raise cannot_save(directory, error) from error

    def __enter__(self) -> GrowingFiles:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        for file in self.files.values():
            with suppress(OSError):
                file.close()
        if isinstance(error, OSError):
            raise cannot_save(self.directory, error) from error

    def commit(self, state: dict[str, Any], now: bool = False) -> None:
        """Store the state, and everything appended so far, if the last commit is COMMIT_SECONDS old, or `now`."""
        if not now and time.monotonic() - self._committed < COMMIT_SECONDS:
            return
        for file in self.files.values():
            file.flush()
            os.fsync(file.fileno())
        sizes = {name: file.tell() for name, file in self.files.items()}
        replace_file(self.directory / STATE, as_json(with_checksum({"state": state, "sizes": sizes})))
        self.state, self._committed = state, time.monotonic()
