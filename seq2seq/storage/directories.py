"""Directories with a metadata.json, which has the format version and the checksums of the other files.

They are written with `atomic.new_directory`, and all checksums are verified on reading. Checkpoints, bundles and the
tokenizers of a run are such directories. Somebody else may have made them: `open_file` opens all their files.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from safetensors import SafetensorError

from seq2seq.errors import CheckpointError
from seq2seq.files import MAX_FILE_BYTES, NotJson, open_regular, parse_json, sha256_of

if TYPE_CHECKING:
    from torch import Tensor

FORMAT_VERSION = 1
"""Version of the file format. It is incremented when earlier versions of seq2seq cannot read the new format."""

METADATA = "metadata.json"
CHECKSUM_KEY = "checksum"
"""Key under which a JSON object contains the checksum of all its other keys and values."""
HEADER_KEYS = ("format_version", "kind", "sha256", CHECKSUM_KEY)
"""Keys of metadata.json that are not fields of the caller."""
BLOCK_BYTES = 1 << 20


class DamagedError(CheckpointError):
    """A file is missing or damaged. If it belongs to a checkpoint, earlier checkpoints may still be intact."""


# Checksums


def crc32_of(path: Path) -> int:
    """Return the zlib.crc32 of a file, for large files: 3 GB/s, where sha256 has 0.9 GB/s.

    It protects against accidents, not against attacks.

    Raises:
        OSError: the file cannot be read.
    """
    checksum, buffer = 0, memoryview(bytearray(BLOCK_BYTES))
    with path.open("rb", buffering=0) as file:
        while size := file.readinto(buffer):
            checksum = zlib.crc32(buffer[:size], checksum)
    return checksum


def digest(values: Mapping[str, Any]) -> str:
    """Return the sha256 of a JSON object; the order of its keys does not matter."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def with_checksum(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a JSON object with the checksum of its contents. An old checksum is replaced."""
    contents = {key: value for key, value in values.items() if key != CHECKSUM_KEY}
    return {**contents, CHECKSUM_KEY: digest(contents)}


# Writing


def write_tensors(path: Path, tensors: Mapping[str, Tensor] | Mapping[str, np.ndarray]) -> None:
    """Write a safetensors file of tensors or of arrays. Tied weights must be included only once: safetensors refuses
    tensors that share memory.

    Raises:
        OSError: the file cannot be written.
    """
    import torch
    from safetensors.torch import save_file

    try:
        save_file({name: torch.as_tensor(tensor).detach().cpu().contiguous() for name, tensor in tensors.items()}, path)
    except SafetensorError as error:
        if cause := re.search(r"os error (\d+)", str(error)):
            raise OSError(int(cause[1]), os.strerror(int(cause[1])), str(path)) from error
        raise
    # safetensors creates files that only their owner can read. The file gets the directory's permissions instead.
    path.chmod(path.parent.stat().st_mode & 0o666)


def as_json(values: Mapping[str, Any]) -> bytes:
    """Format a JSON object with its checksum, indented, in UTF-8, with a newline at the end."""
    return (json.dumps(with_checksum(values), indent=2, ensure_ascii=False) + "\n").encode()


def header(kind: str, directory: Path) -> dict[str, Any]:
    """Return three keys for a directory's metadata.json: format version, kind of the directory, checksums of its files.

    Call this function after all files except metadata.json have been written.
    """
    checksums = {file.name: sha256_of(file) for file in sorted(directory.iterdir())}
    return {"format_version": FORMAT_VERSION, "kind": kind, "sha256": checksums}


# Reading


def open_file(path: Path) -> io.BufferedReader:
    """Open a file of a model for reading. It must be a regular file: a link could lead to any file of this machine, and
    reading from a pipe or a device could last for ever."""
    try:
        if path.is_symlink():
            raise DamagedError(f"{path} is a link. All files of a model must be in its directory: copy the file there.")
        return open_regular(path)
    except OSError as error:
        cannot_read(path, error)


def read_metadata(directory: Path, kind: str, required: Iterable[str]) -> dict[str, Any]:
    """Read the metadata.json of a checkpoint, a bundle or a tokenizer directory.

    Args:
        kind: kind that the directory must have: checkpoint, bundle or tokenizer.
        required: names of files whose checksums metadata.json must contain.
    """
    if not directory.is_dir():
        raise CheckpointError(f"{directory} is not a directory. A {kind} is a directory that contains {METADATA}.")
    path = directory / METADATA
    try:
        metadata = parse_json(read_file(path))
    except NotJson as error:
        raise DamagedError(f"{path} is damaged: it is not JSON ({error}).") from None
    if not isinstance(metadata, dict) or not isinstance(metadata.get("format_version"), int):
        raise DamagedError(f"{path} is damaged, or seq2seq did not write it: it has no format_version.")
    if metadata["format_version"] > FORMAT_VERSION:
        raise CheckpointError(
            f"{directory} was written by a newer seq2seq (format {metadata['format_version']}; this version reads "
            f"formats up to {FORMAT_VERSION}). Upgrade: pip install --upgrade seq2seq-mt"
        )
    if metadata != with_checksum(metadata):
        raise DamagedError(f"{path} is damaged: its contents do not match its checksum.")
    if metadata.get("kind") != kind:
        raise CheckpointError(f"{directory} is a {metadata.get('kind')}, not a {kind}.")
    checksums = metadata.get("sha256")
    if not isinstance(checksums, dict) or any(name not in checksums for name in required):
        raise DamagedError(f"{path} is damaged: checksums are missing.")
    for name in checksums:
        if name in ("", ".", "..") or any(character in name for character in "/\\:\0"):
            raise DamagedError(f"{path} is damaged: {name!r} is not the name of a file in its directory.")
    return metadata


def kind_of(path: Path) -> str | None:
    """Return the kind of a directory from its metadata.json; None if metadata.json is missing or invalid."""
    try:
        metadata = parse_json(read_file(path / METADATA))
    except (CheckpointError, NotJson):
        return None
    return metadata.get("kind") if isinstance(metadata, dict) else None


def verify(directory: Path, checksums: Mapping[str, str]) -> None:
    """Verify the checksums of files."""
    for name, expected in checksums.items():
        path = directory / name
        with open_file(path) as file:
            try:
                actual = hashlib.file_digest(file, "sha256").hexdigest()
            except OSError as error:
                cannot_read(path, error)
        if actual != expected:
            raise DamagedError(f"{path} is damaged: its checksum is wrong (sha256 {actual[:12]}…).")


def read_file(path: Path, max_bytes: int = MAX_FILE_BYTES) -> bytes:
    """Return the contents of a file of a model; see `open_file`."""
    with open_file(path) as file:
        try:
            contents = file.read(max_bytes + 1)
        except OSError as error:
            cannot_read(path, error)
    if len(contents) > max_bytes:
        raise DamagedError(f"{path} cannot be read: it has more than {max_bytes:,} bytes.")
    return contents


def cannot_read(path: Path, error: OSError) -> NoReturn:
    """Raise CheckpointError if this user has no permission to read the file, and DamagedError after any other error."""
    if isinstance(error, FileNotFoundError):
        raise DamagedError(f"{path} is missing.") from error
    if isinstance(error, PermissionError):
        raise CheckpointError(f"{path} cannot be read: you have no permission.") from error
    raise DamagedError(f"{path} cannot be read: {error.strerror or error}.") from error
