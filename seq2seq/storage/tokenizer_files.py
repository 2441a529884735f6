"""Tokenizer directory of a run: writing and verification."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path

from seq2seq import console
from seq2seq.errors import CheckpointError
from seq2seq.storage.atomic import delete, new_directory
from seq2seq.storage.checkpoints import BUNDLES, TOKENIZER_FILES, list_checkpoints
from seq2seq.storage.directories import METADATA, as_json, header, kind_of, read_metadata, verify
from seq2seq.tokenizers.tokenizer import Tokenizers

KIND = "tokenizer"
TEXT = "text"
"""Key of metadata.json with the checksum of what the tokenizers were made from; see `tokenizers_of_run`."""


def checksums_of(tokenizers: Tokenizers) -> dict[str, str]:
    """Return the sha256 of each tokenizer file, by name. Checkpoints contain these checksums."""
    return {name: hashlib.sha256(contents).hexdigest() for name, contents in sorted(tokenizers.files().items())}


def save_tokenizers(files: Mapping[str, bytes], directory: Path, text: str = "") -> None:
    """Write a run's tokenizer directory. An old one, which no checkpoint belongs to, is deleted before.

    text: see `tokenizers_of_run`.
    """
    delete(directory)
    with new_directory(directory) as new:
        for name, contents in files.items():
            (new / name).write_bytes(contents)
        (new / METADATA).write_bytes(as_json(header(KIND, new) | {TEXT: text}))


def tokenizers_of_model(model: Path) -> Tokenizers:
    """Load the tokenizers of a run, in its subdirectory `tokenizer`, or of a bundle. Raises as `load_tokenizers`."""
    directory = model / "tokenizer"
    return load_tokenizers(directory if directory.is_dir() else model)


def load_tokenizers(directory: Path) -> Tokenizers:
    """Load the tokenizers in a run's tokenizer directory or a bundle, and verify their checksums."""
    if (directory / METADATA).exists() or Tokenizers.file_names(directory):
        kind = "bundle" if kind_of(directory) == "bundle" else KIND
        checksums = read_metadata(directory, kind, required=Tokenizers.file_names(directory))["sha256"]
        verify(directory, {name: checksum for name, checksum in checksums.items() if name in TOKENIZER_FILES})
    return Tokenizers.load(directory)


def made_from_other_text(directory: Path, text: str) -> bool:
    """Return True if the run has no checkpoints yet, and its tokenizers were made from another text or model. For the
    arguments, see `tokenizers_of_run`."""
    if not text or list_checkpoints(directory.parent) or not directory.exists():
        return False
    try:
        return read_metadata(directory, KIND, required=()).get(TEXT, "") not in ("", text)
    except CheckpointError:                                                     # `load_tokenizers` reports it
        return False


def tokenizers_of_run(directory: Path, make: Callable[[], Tokenizers], text: str = "", save: bool = True) -> Tokenizers:
    """Load the tokenizers from a run's tokenizer directory.

    If the run has no checkpoints, and the tokenizers are missing or the training text has changed since, create them.

    Args:
        directory: tokenizer directory in the run directory.
        make: function that makes the tokenizers. text: checksum of the text or the model that it makes them from; "":
            not compared. save: False to write no files.
    """
    run = directory.parent
    changed = made_from_other_text(directory, text)
    if list_checkpoints(run) and not directory.exists():
        raise CheckpointError(f"{directory} is missing. Restore it from a backup, or train from the beginning with "
                              "--restart.")
    if directory.exists() and not changed:
        try:
            return load_tokenizers(directory)
        except CheckpointError as error:
            raise CheckpointError(f"{error} Copy the file from a bundle in {run / BUNDLES} or a backup, or train from "
                                  "the beginning with --restart.") from error
    if changed:
        console.print_message("the text or the model that the tokenizer was made from has changed since")
    tokenizers = make()
    if save:
        save_tokenizers(tokenizers.files(), directory, text)
    return tokenizers
