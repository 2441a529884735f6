"""Directories with a metadata.json, which has the format version and the checksums of the other files.

They are written with `atomic.replace_directory`, and all checksums are verified on reading. Checkpoints, bundles and
the tokenizers of a run are such directories.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import numpy as np
from safetensors import SafetensorError

from seq2seq.errors import CheckpointError
from seq2seq.files import MAX_FILE_BYTES, NotJson, parse_json, regular_bytes, sha256_of
from seq2seq.storage.atomic import current_path
from seq2seq.storage.links import DamagedError, path_inside

if TYPE_CHECKING:
    from torch import Tensor

Read = TypeVar("Read")

FORMAT_VERSION = 1
"""Version of the file format. It is incremented when earlier versions of seq2seq cannot read the new format."""

METADATA = "metadata.json"
CHECKSUM_KEY = "checksum"
"""Key under which a JSON object contains the checksum of all its other keys and values."""
HEADER_KEYS = ("format_version", "kind", "sha256", CHECKSUM_KEY)
"""Keys of metadata.json that are not fields of the caller."""
BLOCK_BYTES = 1 << 20

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


def read_with_retry(path: Path, read: Callable[[Path], Read]) -> Read:
    """Return the result of `read` for a directory. Retry if another process has replaced the directory meanwhile.

    So the result never mixes files of the old and of the new directory.
    """
    while True:
        before = _identity(path)
        failure = None
        try:
            result = read(current_path(path))
        except CheckpointError as error:
            failure = error
        if _identity(path) == before:
            if failure:
                raise failure
            return result


def _identity(path: Path) -> tuple[Path, int, int] | None:
    """Return values that change if a directory or its metadata.json is replaced; None if there is no metadata.json."""
    metadata = current_path(path) / METADATA
    try:
        status = metadata.lstat()
    except OSError:
        return None
    return metadata, status.st_ino, status.st_mtime_ns


def read_metadata(directory: Path, kind: str, required: Iterable[str]) -> dict[str, Any]:
    """Read the metadata.json of a checkpoint, a bundle or a tokenizer directory.

    Args:
        kind: kind that the directory must have: checkpoint, bundle or tokenizer.
        required: names of files whose checksums metadata.json must contain.
    """
    if not directory.is_dir():
        raise CheckpointError(f"{directory} is not a directory. A {kind} is a directory that contains {METADATA}.")
    path = path_inside(directory, METADATA)
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
    if not isinstance(metadata.get("sha256"), dict) or any(name not in metadata["sha256"] for name in required):
        raise DamagedError(f"{path} is damaged: checksums are missing.")
    return metadata


def kind_of(path: Path) -> str | None:
    """Return the kind of a directory from its metadata.json; None if metadata.json is missing or invalid."""

    def read(directory: Path) -> str | None:
        try:
            metadata = parse_json(regular_bytes(path_inside(directory, METADATA)))
        except (OSError, NotJson, DamagedError):
            return None
        return metadata.get("kind") if isinstance(metadata, dict) else None

    return read_with_retry(path, read)


def verify(directory: Path, checksums: Mapping[str, str]) -> None:
    """Verify the checksums of files."""
    for name, expected in checksums.items():
        path = path_inside(directory, name)
        try:
            actual = sha256_of(path)
        except OSError as error:
            cannot_read(path, error)
        if actual != expected:
            raise DamagedError(f"{path} is damaged: its checksum is wrong (sha256 {actual[:12]}…).")


def read_file(path: Path, max_bytes: int = MAX_FILE_BYTES) -> bytes:
    """Return the contents of a regular file; links are followed."""
    try:
        return regular_bytes(path, max_bytes)
    except OSError as error:
        cannot_read(path, error)


def cannot_read(path: Path, error: OSError) -> NoReturn:
    """Raise CheckpointError if this user has no permission to read the file, and DamagedError after any other error."""
    if isinstance(error, FileNotFoundError):
        raise DamagedError(f"{path} is missing.") from error
    if isinstance(error, PermissionError):
        raise CheckpointError(f"{path} cannot be read: you have no permission.") from error
    raise DamagedError(f"{path} cannot be read: {error.strerror or error}.") from error
