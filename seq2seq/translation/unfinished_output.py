"""Resuming of an interrupted output, by a journal of its inputs and its progress."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from seq2seq import console
from seq2seq.compressed_files import regular_bytes
from seq2seq.errors import UserError
from seq2seq.json_reader import parse_json
from seq2seq.storage.atomic import replace_file
from seq2seq.translation.text_io import Output, writing

Item = TypeVar("Item")

FORMAT = 1


class Journal:
    """Journal of an unfinished output, <name>.part.json beside its <name>.part: its inputs, and the number of lines
    done.

    It is updated after each block of lines. A process that ends in between, for whatever reason, loses only that block:
    the output is truncated to the last block in the journal. Without a .part, as for standard output, there is no
    journal.

    lines: number of lines of the input that are done or in work.
    """

    def __init__(self, output: Output, resume: bool) -> None:
        """resume: continue an existing output. Raises UserError if it has no journal."""
        self.output, self.lines = output, 0
        self._seen = hashlib.sha256()
        self._made_from: dict[str, Any] = {}
        self._record = self._read(output.part) if resume and output.part and output.part.stat().st_size else None

    def begin(self, made_from: dict[str, Any]) -> None:
        """Record the inputs of the output, before anything is written.

        Args:
            made_from: model, options and the like, by name; JSON values.
        Raises:
            UserError: the output to resume had other inputs.
        """
        self._made_from = json.loads(json.dumps(made_from))
        if self._record is None:
            self.commit()
            return
        then, now = self._record["made_from"], self._made_from
        if changes := [f"  {name}: {json.dumps(then.get(name))} then, {json.dumps(now.get(name))} now"
                       for name in sorted({*then, *now}) if then.get(name) != now.get(name)]:
            raise UserError("\n".join([f"{self.output.part} was made in another way:", *changes,
                                       "Go on as it was begun, or delete it to begin anew."]))

    def behind(self, items: Iterable[Item], name: str) -> Iterator[Item]:
        """Skip the items that are already done and yield the others. Each item belongs to a line of the input `name`.

        Raises:
            UserError: the items already done have changed since.
        """
        remaining = iter(items)
        if self._record is not None:
            for item in islice(remaining, self._record["lines"]):
                self._note(item)
            if (self.lines, self._seen.hexdigest()) != (self._record["lines"], self._record["seen"]):
                raise UserError(f"{name} is not what {self.output.part} was made from: of its first "
                                f"{self._record['lines']:,} lines some have changed, or what stands beside them in "
                                "other files. Go on with the same text, or delete it to begin anew.")
            self.output.file.truncate(self._record["bytes"])
            console.print_message(f"going on behind line {self.lines:,}")
        return map(self._note, remaining)

    def commit(self) -> None:
        """Record that all lines read so far are done and their output is written."""
        if self.output.part is None:
            return
        os.fsync(self.output.file.fileno())
        record = {"format_version": FORMAT, "made_from": self._made_from, "lines": self.lines,
                  "bytes": self.output.part.stat().st_size, "seen": self._seen.hexdigest()}
        replace_file(journal_of(self.output.part), json.dumps(record, indent=2, ensure_ascii=False).encode())

    def _note(self, item: Item) -> Item:
        self._seen.update(f"{item!r}\n".encode(errors="surrogatepass"))
        self.lines += 1
        return item

    def _read(self, part: Path) -> dict[str, Any]:
        path = journal_of(part)
        try:
            record = parse_json(regular_bytes(path))
            whole = record["format_version"] == FORMAT and 0 <= record["bytes"] <= part.stat().st_size
        except FileNotFoundError:
            raise UserError(f"nothing says what {part} was made from: there is no {path.name} beside it. Delete it to "
                            "begin anew.") from None
        except (OSError, ValueError, KeyError, TypeError):
            whole = False
        if not whole:
            raise UserError(f"{path} does not belong to {part}, or is damaged. Delete both to begin anew.")
        return record


def journal_of(part: Path) -> Path:
    """Return the path of the journal of an unfinished output."""
    return part.with_name(f"{part.name}.json")


@contextmanager
def resumable(path: Path | None, resume: bool) -> Iterator[Journal]:
    """`text_io.writing` with a journal, which is deleted when the output is complete.

    Raises:
        UserError: as `writing`; or the output cannot be resumed.
    """
    if resume and path is None:
        raise UserError("--resume goes on with a file. Name it by --output FILE.")
    part = None
    try:
        with writing(path, resume, resumable=True) as output:
            part = output.part
            if resume and part is None:
                raise UserError(f"{path} is no file, so that nothing stands there to go on with. Leave out --resume.")
            yield Journal(output, resume)
    finally:
        if part is not None and not part.exists():
            journal_of(part).unlink(missing_ok=True)
