"""Tokenizer directory of a run: writing, verification, and restoring if it is missing or damaged."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from seq2seq import console
from seq2seq.errors import CheckpointError
from seq2seq.recipe import Recipe
from seq2seq.storage.checkpoints import BEST, list_checkpoints, load_bundle, newest_checkpoint
from seq2seq.storage.checksums import digest, file_states, with_checksum
from seq2seq.storage.directories import (
    METADATA,
    DamagedError,
    cannot_save,
    current_path,
    header,
    kind_of,
    read_metadata,
    replace_directory,
    replace_json,
    verify,
    write_json,
)
from seq2seq.storage.open_files import opened_directory
from seq2seq.tokenizers.tokenizer import Tokenizers

KIND = "tokenizer"
TEXT = "text"
"""Key of metadata.json with the state of the text that the tokenizers were trained on."""


def checksums_of(tokenizers: Tokenizers) -> dict[str, str]:
    """Return the sha256 of each tokenizer file, by name. Checkpoints contain these checksums."""
    return _checksums(tokenizers.files())


def _checksums(files: Mapping[str, bytes]) -> dict[str, str]:
    return {name: hashlib.sha256(contents).hexdigest() for name, contents in sorted(files.items())}


def save_tokenizers(files: Mapping[str, bytes], directory: Path, text: str = "") -> None:
    """Write or replace a run's tokenizer directory atomically.

    text: see `tokenizers_of_run`.
    Raises:
        CheckpointError: the directory cannot be written.
    """
    with replace_directory(directory, sum(map(len, files.values()))) as new:
        for name, contents in files.items():
            (new / name).write_bytes(contents)
        write_json(new / METADATA, with_checksum(header(KIND, new) | ({TEXT: text} if text else {})))


def load_tokenizers(directory: Path) -> Tokenizers:
    """Load the tokenizers in a run's tokenizer directory or a bundle, and verify their checksums.

    Raises:
        CheckpointError: a file is damaged.
        TokenizerError: the directory contains no tokenizer, or one that seq2seq cannot use.
    """
    path = current_path(directory)
    if kind := kind_of(path):
        names = Tokenizers.file_names(path)
        checksums = read_metadata(path, kind, required=names)["sha256"]
        verify(path, {name: checksum for name, checksum in checksums.items()
                      if kind == KIND or name in names})
    elif (path / METADATA).exists():
        raise DamagedError(f"{path / METADATA} is damaged: it is not JSON, or has no key 'kind'.")
    return Tokenizers.load(path)


def text_state(recipe: Recipe) -> str:
    """Return a hash of the sizes and times of the training text's files; "" if the tokenizer is taken from a model."""
    if recipe.tokenizer_model is not None:
        return ""
    return digest({"files": [file_states(spec.paths) for spec in recipe.resolve().data.train]})


def trained_on_other_text(directory: Path, text: str) -> bool:
    """Return True if the run has no checkpoints yet, and its tokenizers were trained on another text. For the
    arguments, see `tokenizers_of_run`."""
    if not text or list_checkpoints(directory.parent) or not (current_path(directory) / METADATA).exists():
        return False
    try:
        return read_metadata(current_path(directory), KIND, required=()).get(TEXT, text) != text
    except CheckpointError:
        return False


def tokenizers_of_run(directory: Path, make: Callable[[], Tokenizers], text: str = "") -> Tokenizers:
    """Load the tokenizers from a run's tokenizer directory. If they are missing or damaged, create them first. If the
    run has no checkpoints and the training text has changed since, train them again.

    If the run has checkpoints, missing or damaged tokenizers are copied from the run's best model if possible, and
    otherwise trained again. The new files must have the checksums of the tokenizers that the run was trained with, if
    these checksums are known. If an older version of seq2seq wrote the directory without checksums, these are added.

    Args:
        directory: tokenizer directory in the run directory.
        make: function that trains the tokenizers. text: see `text_state`; "": not compared.
    Raises:
        CheckpointError: the tokenizers are missing or damaged and cannot be restored, or cannot be written.
    """
    if trained_on_other_text(directory, text):
        console.print_message("size or time of a training file has changed since the tokenizer was trained")
        damage = ""
    elif not current_path(directory).exists():
        damage = f"{directory} is missing." if list_checkpoints(directory.parent) else ""
    else:
        try:
            tokenizers = load_tokenizers(directory)
        except DamagedError as error:
            damage = str(error)
        else:
            if not (current_path(directory) / METADATA).exists():
                _write_checksums(current_path(directory))
            return tokenizers
    files = _recreate(directory, damage, make) if damage else make().files()
    save_tokenizers(files, directory, text)
    return Tokenizers.from_files(files, str(directory))


def _write_checksums(directory: Path) -> None:
    """Write metadata.json with the checksums of the tokenizer files in a directory, which has no metadata.json yet."""
    try:
        with opened_directory(directory) as opened:
            replace_json(opened, METADATA, with_checksum(header(KIND, directory, Tokenizers.file_names(directory))))
    except OSError as error:
        raise cannot_save(directory / METADATA, error, needed=0) from error


def _recreate(directory: Path, damage: str, make: Callable[[], Tokenizers]) -> dict[str, bytes]:
    """Return the files that replace missing or damaged tokenizers, from the run's best model or from `make`.

    damage: beginning of the error messages; says what is missing or damaged.
    """
    run = directory.parent
    trained = bool(list_checkpoints(run))
    expected = _expected_checksums(directory, run) if trained else None
    console.warn(f"{damage} The tokenizer is restored.")
    best = _files_of_best(run)
    if trained and best is not None and expected in (None, _checksums(best)):
        return best
    made = make().files()
    if expected in (None, _checksums(made)):
        return made
    raise CheckpointError(f"{damage} A new tokenizer, trained on the same text with the same seed, differs from the "
                          f"one that this run was trained with. Restore {directory} from a backup, or train from the "
                          "beginning with --restart.")


def _expected_checksums(directory: Path, run: Path) -> dict[str, str] | None:
    """Return the sha256 of each tokenizer file that the run was trained with; None if the checksums are unknown.

    The checksums are read from the newest checkpoint, or else from metadata.json in the tokenizer directory.
    """
    checkpoint = newest_checkpoint(run)
    checksums: Any = checkpoint.info.get("tokenizer") if checkpoint else None
    if checksums is not None:
        return dict(checksums)
    try:
        return dict(sorted(read_metadata(current_path(directory), KIND, required=())["sha256"].items()))
    except CheckpointError:
        return None


def _files_of_best(run: Path) -> dict[str, bytes] | None:
    """Return the tokenizer files of the run's best model; None if this model cannot be read or has none."""
    try:
        return load_bundle(run / BEST).tokenizer_files or None
    except CheckpointError:
        return None
