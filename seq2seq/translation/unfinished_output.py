"""Resumption of interrupted work by counting.

An output of lines grows in parts beside it, one for each process (rank) of `torchrun`: of n processes, rank r appends
the blocks of lines r, r + n, … to the file <name>.part.r. The blocks follow from the input alone. So counting the
blocks of a part tells where to go on, and the output is the same, to the byte, as without an interruption. At the end,
rank 0 joins the parts. In a training, rank 0 writes the only part of a synthetic text.

The first line of a part is a JSON object with the inputs on which the output depends. Then come the blocks: a JSON
object with the number of lines, the length in bytes and the zlib.crc32 of the output; and the output. After a crash, a
file may end anywhere, or with zeros: what follows the last block with a right checksum is cut off.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from seq2seq import console
from seq2seq.errors import UserError
from seq2seq.files import MAX_LINE_BYTES, NotJson, parse_json
from seq2seq.storage.atomic import open_without_links, sync
from seq2seq.translation.text_io import Output, lock_output, writing

Item = TypeVar("Item")

INPUTS = "inputs of an unfinished output of seq2seq"
"""Key of the JSON object in the first line of a part, by which the file is recognised."""
POLL_SECONDS = 0.1
"""Time between two looks at the part of another rank."""


class PartReader:
    """Reader of a part, which may still grow.

    inputs: see `UnfinishedOutput.begin`; None if nothing was read yet. end: end of the last block that was read.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.end = path, 0
        self.inputs: Any = None

    def next_block(self) -> tuple[int, bytes] | None:
        """Return the number of lines and the output of the next block; None if there is no further intact block."""
        try:
            file = open(self.path, "rb", opener=open_without_links)             # noqa: SIM115
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise UserError(f"{self.path} is needed for finished blocks of lines, and cannot be opened: "
                            f"{error.strerror}. Move it to another place.") from error
        with file:
            if not self.end:
                self.inputs = _json_line(file).get(INPUTS)
            file.seek(self.end or file.tell())
            block = _json_line(file)
            length, left = block.get("bytes"), os.fstat(file.fileno()).st_size - file.tell()
            if not isinstance(length, int) or not 0 <= length <= left:
                return None
            output = file.read(length)
            if zlib.crc32(output) != block.get("crc32"):
                return None
            self.end = file.tell()
            return block.get("lines", 0), output


class UnfinishedOutput:
    """Output that is written in blocks.

    output: the output; None in a rank other than rank 0, or if the caller opens it at the end. parts: part of each
    rank; empty if the output, such as standard output, cannot be resumed, and blocks are written to it directly.
    finished: number of lines of each block in the part of this rank. skipped_lines: number of lines in blocks that were
    finished before, or that other ranks translate.
    """

    def __init__(self, output: Output | None, target: Path | None = None, rank: int = 0, world_size: int = 1) -> None:
        """target: path of an output that can be resumed."""
        self.output, self.rank, self.world_size = output, rank, world_size
        self.parts = [part_of(target, each) for each in range(world_size)] if target else []
        self.finished: list[int] = []
        self.skipped_lines = self._blocks = self._end = 0
        self._inputs: dict[str, Any] = {}
        self._file: BinaryIO | None = None
        if self.parts:
            part = PartReader(self.parts[rank])
            while block := part.next_block():
                self.finished.append(block[0])
            self._end = part.end
            if part.inputs is None and not _is_blank(part.path):
                raise UserError(f"{part.path} is needed for finished blocks of lines, and is another file, or damaged. "
                                "Move it to another place, or delete it.")

    def begin(self, inputs: dict[str, Any]) -> None:
        """Compare the inputs on which the output depends with those of the finished blocks.

        Args:
            inputs: JSON values by name: the model, the options, and checksums of all texts.
        """
        self._inputs = json.loads(json.dumps({**inputs, "processes": self.world_size}))
        for path in self.parts:
            self._require_same_inputs(path)
        if self.finished:
            console.print_message(f"resuming: {len(self.finished):,} blocks of lines are finished")

    def pending(self, blocks: Iterable[list[Item]]) -> Iterator[list[Item]]:
        """Yield the blocks that this process must translate: not those that are finished, or of another rank.

        For each yielded block, call `write`, in the order of the blocks.
        """
        before = len(self.finished)
        for block in blocks:
            index, rank = divmod(self._blocks, self.world_size)
            self._blocks += 1
            if rank == self.rank and index >= before:
                yield block
                continue
            if rank == self.rank and self.finished[index] != len(block):
                raise UserError(f"{self.parts[rank]} was written in blocks of other sizes. Delete "
                                f"{_all_parts(self.parts[rank])} to start again.")
            self.skipped_lines += len(block)

    def write(self, text: str, lines: int) -> None:
        """Write the output of the next block that `pending` has yielded. lines: number of lines of the block."""
        if not self.parts:
            assert self.output is not None
            self.output.write(text)
            return
        part, contents = self.parts[self.rank], text.encode()
        if self._file is None:
            self._file = open(part, "ab", opener=open_without_links)            # noqa: SIM115
            lock_output(self._file, part)
            self._file.truncate(self._end)
            sync(part.parent)
        header = "" if self.finished else f"{json.dumps({INPUTS: self._inputs})}\n"
        record = {"lines": lines, "bytes": len(contents), "crc32": zlib.crc32(contents)}
        try:
            Output(self._file, str(part)).write(f"{header}{json.dumps(record)}\n".encode() + contents)
            os.fsync(self._file.fileno())
        except (UserError, OSError):
            if not self.finished:                           # half of the first line would be taken for another file
                os.truncate(part, 0)
            raise
        self.finished.append(lines)
        for path in self.parts:                             # another model on another machine is noticed now
            self._require_same_inputs(path)

    def joined(self) -> Iterator[bytes]:
        """Yield the output of all blocks that were not written directly. Wait for the blocks of the other ranks."""
        parts = [PartReader(path) for path in self.parts]
        for number in range(self._blocks if parts else 0):
            part = parts[number % self.world_size]
            while (block := part.next_block()) is None:
                if part.path == self.parts[self.rank]:
                    raise UserError(f"{part.path} was changed while it was written. Translate the text again.")
                time.sleep(POLL_SECONDS)
            self._require_same_inputs(part.path)
            yield block[1]

    def delete_parts(self) -> None:
        """Delete the parts, when the output is in its place."""
        if self._file is not None:
            self._file.close()
        for path in self.parts:
            path.unlink(missing_ok=True)

    def _require_same_inputs(self, path: Path) -> None:
        """Raise UserError if the blocks in a part have other inputs."""
        part = PartReader(path)
        if part.next_block() and part.inputs != self._inputs:
            then, now = part.inputs if isinstance(part.inputs, dict) else {}, self._inputs
            raise UserError("\n".join([
                f"{path} was written with other inputs:",
                *(f"  {name}: {json.dumps(then.get(name))} there, {json.dumps(now.get(name))} here"
                  for name in sorted({*then, *now}) if then.get(name) != now.get(name)),
                f"Resume with the same inputs, or delete {_all_parts(path)} to start again."]))


def _is_blank(path: Path) -> bool:
    """Return True if a file is missing, or has nothing but zeros, which a power cut leaves in place of the first block.
    """
    try:
        with open(path, "rb", opener=open_without_links) as file:
            return not file.read(MAX_LINE_BYTES).strip(b"\0")
    except FileNotFoundError:
        return True


def part_of(target: Path, rank: int = 0) -> Path:
    """Return the path of a part of an output."""
    return target.with_name(f"{target.name}.part.{rank}")


def _all_parts(part: Path) -> str:
    """Return a pattern that the parts of all processes match."""
    return f"{part.with_suffix('')}.*"


def _json_line(file: BinaryIO) -> dict[str, Any]:
    """Read a line with a JSON object; return {} for another line, or at the end of the file."""
    line = file.readline(MAX_LINE_BYTES)
    try:
        found = parse_json(line) if line.endswith(b"\n") else None
    except NotJson:
        found = None
    return found if isinstance(found, dict) else {}


@contextmanager
def resumable(inputs: Sequence[Path | None], path: Path | None, resume: bool, rank: int = 0, world_size: int = 1,
              ) -> Iterator[UnfinishedOutput]:
    """Open an output of lines, which is written in blocks. At the end, delete its parts.

    Args:
        inputs: paths of the texts that are read; None: standard input. If the texts or the output are no regular files,
            an interrupted command cannot be resumed.
        path: path of the output; None: standard output. resume: use the finished blocks of an interrupted command.
        rank, world_size: number of this process, and number of processes.
    """
    if any(each is None or each.exists() and not each.is_file() for each in (*inputs, path)):
        if resume or world_size > 1:
            missing = [name for name, paths in (("the input", inputs), ("the output (--output FILE)", (path,)))
                       if any(each is None or each.exists() and not each.is_file() for each in paths)]
            raise UserError(f"--resume and torchrun need regular files. Name a file for {' and '.join(missing)}.")
        with writing(path, inputs) as output:
            yield UnfinishedOutput(output)
        return
    assert path is not None
    unfinished = UnfinishedOutput(None, Path(os.path.realpath(path)), rank, world_size)
    # If there are blocks, <name>.part is what an earlier command joined from them.
    overwrite = resume and bool(unfinished.finished)
    with nullcontext() if rank else writing(path, inputs, overwrite) as unfinished.output:
        # A command that still runs has the lock of `writing`.
        if unfinished.finished and not resume:
            raise UserError(f"{unfinished.parts[rank]} contains the finished blocks of an earlier run. Continue it "
                            f"with --resume, or delete {_all_parts(unfinished.parts[rank])} to start again.")
        try:
            yield unfinished
        except BaseException:
            if unfinished.finished:
                console.warn(f"{path} is not complete; its finished blocks are in {unfinished.parts[rank]}")
            raise
    if not rank:
        unfinished.delete_parts()


def how_to_resume(unfinished: UnfinishedOutput) -> str:
    """Return the message for an interruption: the command that resumes the output. "" in a rank other than rank 0."""
    if unfinished.rank or not unfinished.parts:
        return ""
    command = [Path(sys.argv[0]).name.replace("__main__.py", "seq2seq"), *sys.argv[1:]]
    if "--resume" not in command:
        command.append("--resume")
    torchrun = "torchrun [same options] -m " if unfinished.world_size > 1 else ""
    parts = " ".join(map(str, unfinished.parts))
    return f"The finished blocks of lines are in {parts}. To resume:\n  {torchrun}{shlex.join(command)}"
