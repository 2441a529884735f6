"""Resumption of interrupted work. Each finished block of lines of an output is a file in the directory <name>.parts.

A block is written whole or not at all. The name of its file has the number of the block, a checksum of its lines and of
all other inputs, so that a block is only used for the same inputs, and the zlib.crc32 of its contents. When all blocks
are there, they are joined. In `seq2seq translate`, the processes (ranks) of `torchrun` share the directory; each
translates every n-th block, and rank 0 joins them. In a training, rank 0 writes the blocks of the synthetic text.
`seq2seq adapt`, whose training resumes from its checkpoints, only compares the inputs.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import sys
import time
import zlib
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from seq2seq import console
from seq2seq.errors import UserError
from seq2seq.files import parse_json, regular_bytes
from seq2seq.storage.atomic import replace_file
from seq2seq.translation.text_io import Output, writing

Item = TypeVar("Item")

INPUTS = "inputs.json"
"""File in the directory of the blocks with the inputs of the output, except the lines."""
BLOCK_NAME = re.compile(r"(\d{8}-[0-9a-f]{32})-([0-9a-f]{8})\.txt")
"""Name of a block's file: its key (number, checksum of its inputs), and the zlib.crc32 of its contents."""
BEGINNING_SECONDS = 300
"""Maximum time that another rank, after loading the model, waits for rank 0 to begin the same output."""
POLL_SECONDS = 0.1
"""Time between two looks for a file that another rank writes."""


class UnfinishedOutput:
    """Output that is written in blocks.

    output: the output; None in a rank other than rank 0, or if the caller opens it at the end. directory: directory of
    the finished blocks; None: the output, such as standard output, cannot be resumed, and blocks are written to it
    directly. skipped_lines: number of lines in blocks that were finished before, or that other ranks translate.
    """

    def __init__(self, output: Output | None, directory: Path | None, rank: int = 0, world_size: int = 1,
                 whole: bool = False) -> None:
        """whole: True if the output is made of all blocks together, so that a block must not be written directly."""
        self.output, self.directory, self.rank, self.world_size = output, directory, rank, world_size
        self.skipped_lines = 0
        self._whole = whole
        self._inputs: dict[str, Any] = {}
        self._keys: list[str] = []
        self._pending: deque[str] = deque()                                     # keys of yielded blocks
        # Blocks that were finished before. Rank 0 may join and delete all blocks while another rank loads its model.
        self._finished = set(_intact_blocks(directory)) if directory is not None else set()
        self._kept: list[bytes] = []                                            # without a directory, if `whole`

    def begin(self, inputs: dict[str, Any]) -> None:
        """Record the inputs on which the output depends, or compare them with those of the finished blocks.

        Args:
            inputs: JSON values by name: the model, the options, and all other inputs except the lines of text.
        """
        self._inputs = json.loads(json.dumps(inputs))
        if self.directory is None or self.rank:
            return
        if self._finished:
            if (recorded := recorded_inputs(self.directory)) is not None and recorded != self._inputs:
                raise UserError("\n".join([f"{self.directory} was written with other inputs:",
                                           *_differences(recorded, self._inputs),
                                           f"Resume with the same inputs, or delete {self.directory} to start again."]))
            console.print_message(f"resuming: {len(self._finished):,} blocks of lines are finished")
        self.directory.mkdir(exist_ok=True)
        replace_file(self.directory / INPUTS, json.dumps(self._inputs, indent=2, ensure_ascii=False).encode())

    def pending(self, blocks: Iterable[list[Item]]) -> Iterator[list[Item]]:
        """Yield the blocks that this process must translate: not those that are finished, or of another rank.

        For each yielded block, call `write`, in the order of the blocks.
        """
        is_begun = self.directory is None or not self.rank
        for number, block in enumerate(blocks):
            if self.directory is not None:
                inputs = f"{json.dumps(self._inputs)}\n{block!r}"
                checksum = hashlib.sha256(inputs.encode(errors="surrogatepass")).hexdigest()
                self._keys.append(f"{number:08}-{checksum[:32]}")
                if number % self.world_size != self.rank or self._keys[-1] in self._finished:
                    self.skipped_lines += len(block)
                    continue
                self._pending.append(self._keys[-1])
            if not is_begun:
                self._wait_for_main_rank()
                is_begun = True
            yield block
        if changed := self._finished - set(self._keys):
            console.warn(f"{len(changed):,} finished blocks were made of other lines, and are not used")

    def write(self, text: str) -> None:
        """Write the output of the next block that `pending` has yielded."""
        if self.directory is not None:
            contents = text.encode()
            replace_file(self.directory / f"{self._pending.popleft()}-{zlib.crc32(contents):08x}.txt", contents)
        elif self._whole:
            self._kept.append(text.encode())
        else:
            assert self.output is not None
            self.output.write(text)

    def blocks(self) -> Iterator[bytes]:
        """Yield the output of all blocks that were not written directly. Wait for the blocks of the other ranks."""
        yield from self._kept
        for key in self._keys:
            assert self.directory is not None
            while not (found := _intact_blocks(self.directory, key)):
                time.sleep(POLL_SECONDS)
            yield found[key].read_bytes()

    def _wait_for_main_rank(self) -> None:
        """Wait until rank 0 has recorded the same inputs. Other inputs may be those of an earlier command."""
        assert self.directory is not None
        deadline = time.monotonic() + BEGINNING_SECONDS
        while (recorded := recorded_inputs(self.directory)) != self._inputs:
            if time.monotonic() > deadline:
                raise UserError(f"{self.directory}: process 0 has written no {INPUTS} within {BEGINNING_SECONDS} "
                                "seconds. All processes need the same directory for the output." if recorded is None
                                else "\n".join([f"the inputs in {self.directory} differ from those of this process:",
                                                *_differences(recorded, self._inputs)]))
            time.sleep(POLL_SECONDS)


def recorded_inputs(directory: Path) -> dict[str, Any] | None:
    """Return the inputs that are recorded in a directory; None if there are none, or if their file was damaged."""
    path = directory / INPUTS
    try:
        recorded = None if path.is_symlink() else parse_json(regular_bytes(path))
    except (OSError, ValueError):
        return None
    return recorded if isinstance(recorded, dict) else None


def _differences(then: dict[str, Any], now: dict[str, Any]) -> list[str]:
    return [f"  {name}: {json.dumps(then.get(name))} there, {json.dumps(now.get(name))} here"
            for name in sorted({*then, *now}) if then.get(name) != now.get(name)]


def _intact_blocks(directory: Path, key: str = "*") -> dict[str, Path]:
    """Return the files of the finished blocks by key. A block with a wrong checksum, or that is a link or a named pipe,
    is left out: it is made again.

    key: key of a single block.
    """
    files = [(match, path) for path in directory.glob(f"{key}-*.txt") if (match := BLOCK_NAME.fullmatch(path.name))
             and path.is_file() and not path.is_symlink()]
    return {match[1]: path for match, path in files if zlib.crc32(path.read_bytes()) == int(match[2], 16)}


def _has_blocks(directory: Path) -> bool:
    return any(BLOCK_NAME.fullmatch(path.name) for path in directory.glob("*.txt"))


def _is_own(path: Path) -> bool:
    return bool(BLOCK_NAME.fullmatch(path.name)) or path.name.endswith(".tmp") or path.name == INPUTS


def require_own(directory: Path) -> None:
    """Raise UserError if the directory of the blocks is a link or a file, or contains other files."""
    if directory.is_symlink() or os.path.lexists(directory) and not directory.is_dir():
        raise UserError(f"{directory} is not a directory, and is needed for the finished blocks. Remove it.")
    for path in directory.iterdir() if directory.exists() else ():
        if not _is_own(path):
            raise UserError(f"{directory} is needed for the finished blocks, but contains {path.name}. Move the "
                            "directory to another place.")


def _delete(directory: Path) -> None:
    """Delete the blocks, and the directory if it is empty then."""
    if directory.is_dir():
        for path in filter(_is_own, directory.iterdir()):
            path.unlink(missing_ok=True)
        with suppress(OSError):                                                 # another file is in it
            directory.rmdir()


@contextmanager
def resumable(path: Path | None, resume: bool, rank: int = 0, world_size: int = 1, whole: bool = False
              ) -> Iterator[UnfinishedOutput]:
    """Open an output that is written in blocks. At the end, delete the directory of the blocks.

    Args:
        path: path of the output; None: standard output. resume: use the finished blocks of an interrupted command.
        rank, world_size: number of this process, and number of processes. whole: see `UnfinishedOutput`.
    """
    if path is None:
        if resume:
            raise UserError("--resume continues an unfinished file. Name the file with --output FILE.")
        with writing(None) as output:
            yield UnfinishedOutput(output, None, whole=whole)
        return
    target = Path(os.path.realpath(path))
    directory = target.with_name(f"{target.name}.parts")
    if rank:
        yield UnfinishedOutput(None, directory, rank, world_size)
        return
    require_own(directory)
    # If there are blocks, <name>.part is what an earlier command joined from them.
    with writing(path, overwrite=resume and _has_blocks(directory)) as output:
        if output.part is None:
            if resume or world_size > 1:
                raise UserError(f"{path} is not a regular file, so it cannot be written in blocks. Remove --resume, "
                                "and do not use torchrun.")
            yield UnfinishedOutput(output, None, whole=whole)
            return
        # A command that still runs has the lock of `writing`.
        if not resume and _has_blocks(directory):
            raise UserError(f"{directory} contains the finished blocks of an earlier run. Continue it with --resume, "
                            "or delete it to start again.")
        try:
            yield UnfinishedOutput(output, directory, rank, world_size)
        except BaseException:
            if _has_blocks(directory):
                console.warn(f"{path} is not complete; its finished blocks are in {directory}")
            elif world_size == 1:
                _delete(directory)
            raise
        os.fsync(output.file.fileno())
    _delete(directory)


def how_to_resume(unfinished: UnfinishedOutput) -> str:
    """Return the message for an interruption: the command that resumes the output. "" in a rank other than rank 0."""
    if unfinished.rank or unfinished.directory is None:
        return ""
    command = [Path(sys.argv[0]).name.replace("__main__.py", "seq2seq"), *sys.argv[1:]]
    if "--resume" not in command:
        command.append("--resume")
    torchrun = "torchrun [same options] -m " if unfinished.world_size > 1 else ""
    return f"The finished blocks of lines are in {unfinished.directory}. To resume:\n  {torchrun}{shlex.join(command)}"
