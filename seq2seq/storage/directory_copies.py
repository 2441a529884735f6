"""Copies of the main rank's run directory on machines that do not share its file system.

On each such machine, one rank writes the copy: the receiver. The main rank sends each file that is missing or different
on a receiver. Files are sent in blocks, so that no rank needs memory for a whole file.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
import torch.distributed as dist

from seq2seq.errors import CheckpointError
from seq2seq.storage.checksums import crc32_of
from seq2seq.storage.directories import cannot_save, delete
from seq2seq.storage.open_files import sync

BLOCK_BYTES = 64 << 20
"""Number of bytes that are sent in one operation."""

Name = tuple[int, str]
"""File to copy: (index in the argument `paths` of `DirectoryCopies.update`, key in the result of `_files`)."""


class DirectoryCopies:
    """One rank's end of the connection between the main rank and the receivers.

    group: gloo group of the main rank and all receivers. rank: this rank; 0 is the main rank.
    """

    def __init__(self, group: dist.ProcessGroup, rank: int) -> None:
        self.group, self.rank = group, rank

    def update(self, paths: Sequence[Path]) -> None:
        """Make the receivers' files and directories equal to those of the main rank. All ranks of the group call this.

        On receivers, files in `paths` that the main rank does not have are deleted.

        Args:
            paths: files and directories to copy, as paths on this machine, in the same order on all ranks.
        Raises:
            CheckpointError: a file cannot be written, or has changed while it was sent.
            RuntimeError: another rank has ended.
        """
        own = {(number, name): file for number, path in enumerate(paths) for name, file in _files(path).items()}
        states = {name: (file.stat().st_size, crc32_of(file)) for name, file in own.items()}
        sent = [states]
        dist.broadcast_object_list(sent, 0, group=self.group)
        missing = [name for name, state in sent[0].items() if states.get(name) != state]
        gathered: list[list[Name]] = [[] for _ in range(dist.get_world_size(self.group))]
        dist.all_gather_object(gathered, missing, group=self.group)
        for name in sorted({name for names in gathered for name in names}):
            path = paths[name[0]] / name[1] if name[1] else paths[name[0]]
            if self.rank == 0:
                self._send(path, states[name][0])
            else:
                self._receive(path, *sent[0][name], keep=name in missing)
        if self.rank:
            for name in own.keys() - sent[0].keys():
                own[name].unlink(missing_ok=True)                               # `_receive` may have renamed this file
            for path in paths:
                _delete_empty_directories(path)

    def _send(self, path: Path, size: int) -> None:
        with path.open("rb", buffering=0) as file:
            for block in _blocks(size):
                view = block.numpy().data
                filled = 0
                while filled < len(view) and (count := file.readinto(view[filled:])):
                    filled += count
                if filled < len(view):
                    raise CheckpointError(f"{path} has become shorter while it was sent to other machines. Run the "
                                          "same command again.")
                dist.broadcast(block, 0, group=self.group)

    def _receive(self, path: Path, size: int, expected: int, keep: bool) -> None:
        """Receive a file. expected: zlib.crc32 of the file. keep: False if this rank does not need the file."""
        temporary = path.with_name(f".{path.name}.copying")
        checksum = 0
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(temporary if keep else os.devnull, "wb") as file:
                for block in _blocks(size):
                    dist.broadcast(block, 0, group=self.group)
                    file.write(block.numpy().data)
                    checksum = zlib.crc32(block.numpy().data, checksum)
            if not keep:
                return
            if checksum != expected:
                raise CheckpointError(f"{path} has changed while it was copied from process 0. Run the same command "
                                      "again.")
            sync(temporary)
            os.replace(temporary, path)
            sync(path.parent)
        except OSError as error:
            raise cannot_save(path, error, size) from error


def _blocks(size: int) -> Iterator[torch.Tensor]:
    """Yield uint8 tensors of at most BLOCK_BYTES each and `size` bytes in total. All tensors share the same memory."""
    buffer = torch.empty(min(size, BLOCK_BYTES), dtype=torch.uint8)
    for begin in range(0, size, BLOCK_BYTES):
        yield buffer[: size - begin]


def _files(path: Path) -> dict[str, Path]:
    """Return the files in a directory and its subdirectories, by relative name. For a file, return {"": path}."""
    if path.is_file():
        return {"": path}
    return {str(file.relative_to(path)): file for file in sorted(path.rglob("*")) if file.is_file()}


def _delete_empty_directories(path: Path) -> None:
    """Delete all subdirectories of `path` that contain no file, then `path` itself if it is empty."""
    if path.is_dir():
        for directory in [*sorted((found for found in path.rglob("*") if found.is_dir()), reverse=True), path]:
            if not any(directory.iterdir()):
                delete(directory)
