"""Tokenizer directory of a run: its checksums, and replacement of a damaged one."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from seq2seq import console
from seq2seq.errors import CheckpointError
from seq2seq.storage.checkpoints import BEST, list_checkpoints, load_bundle, newest_checkpoint
from seq2seq.storage.checksums import with_checksum
from seq2seq.storage.directories import (
    METADATA,
    Damaged,
    cannot_save,
    header,
    kind_of,
    read_metadata,
    replace_directory,
    replace_json,
    verify,
    where,
    write_json,
)
from seq2seq.tokenizers.tokenizer import Tokenizers

KIND = "tokenizer"


def checksums_of(tokenizers: Tokenizers) -> dict[str, str]:
    """Return the sha256 of each file of the tokenizers, by name, as stored in checkpoints."""
    return _checksums(tokenizers.files())


def _checksums(files: Mapping[str, bytes]) -> dict[str, str]:
    return {name: hashlib.sha256(contents).hexdigest() for name, contents in sorted(files.items())}


def save_tokenizers(files: Mapping[str, bytes], directory: Path) -> None:
    """Write or replace a run's tokenizer directory atomically.

    Raises:
        CheckpointError: it cannot be written.
    """
    with replace_directory(directory, sum(map(len, files.values()))) as aside:
        for name, contents in files.items():
            (aside / name).write_bytes(contents)
        write_json(aside / METADATA, with_checksum(header(KIND, aside)))


def load_tokenizers(directory: Path) -> Tokenizers:
    """Load the tokenizers of a run's directory or of a bundle, and verify their checksums.

    Raises:
        CheckpointError: a file is damaged.
        TokenizerError: there are none.
    """
    place = where(directory)
    if kind := kind_of(place):
        names = Tokenizers.file_names(place)
        checksums = read_metadata(place, kind, required=names)["sha256"]
        verify(place, {name: checksum for name, checksum in checksums.items()
                       if kind == KIND or name in names})
    elif (place / METADATA).exists():
        raise Damaged(f"{place / METADATA} is damaged: it is no JSON, or does not say of what.")
    return Tokenizers.load(place)


def tokenizers_of_run(directory: Path, make: Callable[[], Tokenizers]) -> Tokenizers:
    """The tokenizers in a run's directory; `make` makes those that are missing or damaged.

    A run with checkpoints goes on with none but the tokenizer that it was trained with: that of its best model, or one
    that `make` makes, where they have the checksums that were recorded. A run of before, which has no checksums, gets
    them.

    Raises:
        CheckpointError: it is damaged and cannot be made again.
    """
    if not where(directory).exists():
        damage = f"{directory} is missing." if list_checkpoints(directory.parent) else ""
    else:
        try:
            found = load_tokenizers(directory)
        except Damaged as error:
            damage = str(error)
        else:
            if not (where(directory) / METADATA).exists():
                _record(where(directory))
            return found
    files = _again(directory, damage, make) if damage else make().files()
    save_tokenizers(files, directory)
    return Tokenizers.from_files(files, str(directory))


def _record(directory: Path) -> None:
    """Write the checksums of a directory that has none."""
    try:
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            replace_json(descriptor, METADATA, with_checksum(header(KIND, directory, Tokenizers.file_names(directory))))
        finally:
            os.close(descriptor)
    except OSError as error:
        raise cannot_save(directory / METADATA, error, needed=0) from error


def _again(directory: Path, damage: str, make: Callable[[], Tokenizers]) -> dict[str, bytes]:
    """The files of a damaged tokenizer: of the run's best model, or made again."""
    run = directory.parent
    trained = bool(list_checkpoints(run))
    expected = _recorded(directory, run) if trained else None
    console.warn(f"{damage} It is made again.")
    best = _of_best(run)
    if trained and best is not None and expected in (None, _checksums(best)):
        return best
    made = make().files()
    if expected in (None, _checksums(made)):
        return made
    raise CheckpointError(f"{damage} The same text and seed do not give the tokenizer that this run was trained with. "
                          f"Restore {directory} from a copy, or start anew with --restart.")


def _recorded(directory: Path, run: Path) -> dict[str, str] | None:
    """sha256 of the files that the run was trained with, as a checkpoint or the directory says; None: neither does."""
    checkpoint = newest_checkpoint(run)
    found: Any = checkpoint.info.get("tokenizer") if checkpoint else None
    if found is not None:
        return dict(found)
    try:
        return dict(sorted(read_metadata(where(directory), KIND, required=())["sha256"].items()))
    except CheckpointError:
        return None


def _of_best(run: Path) -> dict[str, bytes] | None:
    try:
        return load_bundle(run / BEST).tokenizer_files or None
    except CheckpointError:
        return None
