"""Resumption of an interrupted output. A journal records the inputs and the number of finished lines."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from seq2seq import console
from seq2seq.errors import UserError
from seq2seq.files.compressed_files import regular_bytes
from seq2seq.files.json_reader import parse_json
from seq2seq.storage.atomic import delete_temporary, replace_file
from seq2seq.translation.text_io import Output, writing

Item = TypeVar("Item")

FORMAT = 1
"""Version of the format of the journal."""


class Journal:
    """Journal of an unfinished output: its inputs, and the number of finished lines.

    The journal of <name>.part is <name>.part.json in the same directory. It is updated after each block of lines. A
    process that ends in the middle of a block, for any reason, loses only that block: on resume, the output is
    truncated after the last block in the journal. An output without a .part, such as standard output, has no journal.

    lines: number of lines of the input that were read, in the finished blocks and in the current block.
    """

    def __init__(self, output: Output, resume: bool) -> None:
        """resume: continue an existing output.

        Raises:
            UserError: the output to resume has no journal, or a damaged one.
        """
        self.output, self.lines = output, 0
        self._digest = hashlib.sha256()                                         # digest of the lines read so far
        self._inputs: dict[str, Any] = {}
        self._record = self._read(output.part) if resume and output.part and output.part.stat().st_size else None

    def begin(self, inputs: dict[str, Any]) -> None:
        """Record the inputs on which the output depends. When resuming, compare them with the recorded inputs.

        Args:
            inputs: JSON values by name: the model, the options, and all other inputs except the lines of text.
        Raises:
            UserError: the output to resume has other inputs.
        """
        self._inputs = json.loads(json.dumps(inputs))
        if self._record is None:
            self.commit()
            return
        then, now = self._record["made_from"], self._inputs
        if changes := [f"  {name}: {json.dumps(then.get(name))} then, {json.dumps(now.get(name))} now"
                       for name in sorted({*then, *now}) if then.get(name) != now.get(name)]:
            raise UserError("\n".join([f"{self.output.part} was written with other inputs:", *changes,
                                       f"Resume with the same inputs, or delete {self.output.part} to start again."]))

    def skip_finished(self, items: Iterable[Item], name: str) -> Iterator[Item]:
        """Skip the finished items, remove unfinished output, and yield the other items. name: name of the input.

        Raises:
            UserError: the finished items have changed.
        """
        remaining = iter(items)
        if self._record is not None:
            for item in islice(remaining, self._record["lines"]):
                self._note(item)
            if (self.lines, self._digest.hexdigest()) != (self._record["lines"], self._record["seen"]):
                raise UserError(f"{name} has changed since {self.output.part} was written: some of its first "
                                f"{self._record['lines']:,} lines, or of the corresponding lines of --prefix or "
                                f"--require, are different. Resume with the same texts, or delete {self.output.part} "
                                "to start again.")
            self.output.file.truncate(self._record["bytes"])
            console.print_message(f"resuming after line {self.lines:,}")
        return map(self._note, remaining)

    def finished_lines(self) -> list[str]:
        """Return the lines of the unfinished output, one for each finished item. Call `skip_finished` first.

        Raises:
            UserError: the number of lines differs from the number of finished items.
        """
        if self.output.part is None:
            return []
        finished = self.output.part.read_bytes().decode().split("\n")[:-1]
        if len(finished) != self.lines:
            raise UserError(f"{self.output.part} is damaged. Delete it to start again.")
        return finished

    def commit(self) -> None:
        """Record that all lines read so far are finished and that their output is written."""
        if self.output.part is None:
            return
        os.fsync(self.output.file.fileno())
        record = {"format_version": FORMAT, "made_from": self._inputs, "lines": self.lines,
                  "bytes": self.output.part.stat().st_size, "seen": self._digest.hexdigest()}
        replace_file(journal_of(self.output.part), json.dumps(record, indent=2, ensure_ascii=False).encode())

    def _note(self, item: Item) -> Item:
        self._digest.update(f"{item!r}\n".encode(errors="surrogatepass"))
        self.lines += 1
        return item

    def _read(self, part: Path) -> dict[str, Any]:
        path = journal_of(part)
        try:
            record = parse_json(regular_bytes(path))
            kinds = {"made_from": dict, "lines": int, "bytes": int, "seen": str}
            valid = record["format_version"] == FORMAT and all(
                isinstance(record[key], kind) for key, kind in kinds.items()) and (
                record["lines"] >= 0 and 0 <= record["bytes"] <= part.stat().st_size)
        except FileNotFoundError:
            raise UserError(f"{part} cannot be resumed: its journal {path.name} is missing. Delete {part} to start "
                            "again.") from None
        except (OSError, ValueError, KeyError, TypeError):
            valid = False
        if not valid:
            raise UserError(f"{path} does not belong to {part}, or is damaged. Delete both to start again.")
        return record


def journal_of(part: Path) -> Path:
    """Return the path of the journal of an unfinished output."""
    return part.with_name(f"{part.name}.json")


@contextmanager
def resumable(path: Path | None, resume: bool) -> Iterator[Journal]:
    """Open an output with `text_io.writing`, and yield its journal. When the output is complete, delete the journal.

    Raises:
        UserError: the output cannot be opened (see `writing`) or resumed.
    """
    if resume and path is None:
        raise UserError("--resume continues an unfinished file. Name the file with --output FILE.")
    part = None
    try:
        with writing(path, resume, resumable=True) as output:
            part = output.part
            if resume and part is None:
                raise UserError(f"{path} is not a regular file and cannot be resumed. Remove --resume.")
            yield Journal(output, resume)
    finally:
        if part is not None and not part.exists():
            journal_of(part).unlink(missing_ok=True)
            delete_temporary(part.parent, journal_of(part).name)


def how_to_resume(journal: Journal) -> str:
    """Return the message for an interruption: number of finished lines, and command that resumes the output."""
    command = [Path(sys.argv[0]).name.replace("__main__.py", "seq2seq"), *sys.argv[1:]]
    if "--resume" not in command:
        command.append("--resume")
    torchrun = "torchrun [same options] -m " if int(os.environ.get("WORLD_SIZE", 1)) > 1 else ""
    return f"{journal.lines:,} lines are finished. To resume:\n  {torchrun}{shlex.join(command)}"
