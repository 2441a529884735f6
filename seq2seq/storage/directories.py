"""Atomic writing of directories, and verified reading of their files.

A directory is written under a temporary name, synced to disk and renamed, so that a process killed at any moment leaves
either the old directory or the new one. Its metadata.json holds the format version and the checksum of every other
file.
"""

import ctypes
import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from seq2seq.compressed_files import regular_bytes
from seq2seq.errors import CheckpointError
from seq2seq.json_reader import NotJson, parse_json
from seq2seq.storage.atomic import sync
from seq2seq.storage.checksums import SEAL, has_wrong_checksum

Read = TypeVar("Read")

FORMAT_VERSION = 1
"""Incremented when older versions can no longer read what this one writes."""

METADATA = "metadata.json"
RESERVED = ("format_version", "kind", "sha256", SEAL)
"""Keys of metadata.json that this module sets."""


AT_FDCWD, RENAME_EXCHANGE = -100, 2
"""Linux constants: paths are relative to the working directory; exchange two names."""


class Damaged(CheckpointError):
    """A file is missing or differs from what was saved. An older checkpoint may still be intact."""


# Writing


@contextmanager
def replace_directory(place: Path, needed: int | None) -> Iterator[Path]:
    """Yield a temporary directory, which replaces `place` at the end of the block, or is deleted after an exception.

    Args:
        needed: bytes to be written, for the message if the disk is full; None: unknown.
    Raises:
        CheckpointError: it cannot be written.
    """
    aside = aside_of(place)
    try:
        make_directories(place.parent)
        delete(aside)
        aside.mkdir()
        yield aside
        for path in aside.rglob("*"):
            if path.is_file() and not path.is_symlink():
                sync(path)
        sync(aside)
        _swap(aside, place)
    except BaseException as error:
        with suppress(OSError):
            recover(place)
        shutil.rmtree(aside, ignore_errors=True)
        if isinstance(error, OSError):
            raise cannot_save(place, error, needed) from error
        raise


def _swap(new: Path, place: Path) -> None:
    """Rename `new` to `place`, and delete the old directory.

    If the system can exchange two names in one operation, `place` exists at every moment. Otherwise the old directory
    is renamed first, because a directory cannot be renamed onto one that is not empty.
    """
    replaced = old_path(place)
    if place.exists() and exchange(new, place):
        sync(place.parent)
        old = new
    else:
        if place.exists():
            delete(replaced)
            os.rename(place, replaced)
        os.rename(new, place)
        sync(place.parent)
        old = replaced
    with suppress(OSError):  # the new directory is saved; the next save tries again to delete the old one
        delete(old)
        delete(replaced)


def exchange(first: Path, second: Path) -> bool:
    """Exchange the names of two directories in one operation (Linux: renameat2 with RENAME_EXCHANGE).

    Returns:
        False if the system or the file system does not support it; nothing has changed.
    Raises:
        OSError: they cannot be renamed.
    """
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError, TypeError):  # another C library, or none of that name
        return False
    if renameat2(AT_FDCWD, os.fsencode(first), AT_FDCWD, os.fsencode(second), RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP):
        return False
    raise OSError(number, os.strerror(number), str(second))


def recover(place: Path) -> None:
    """Restore the name of a directory after a replacement that was interrupted between its two renames."""
    if not os.path.lexists(place) and old_path(place).exists():
        os.rename(old_path(place), place)


def aside_of(place: Path) -> Path:
    """Return the hidden temporary name under which `place` is written."""
    return place.with_name(f".{place.name}.saving")


def old_path(place: Path) -> Path:
    """Return the hidden temporary name of the old directory during a replacement."""
    return place.with_name(f".{place.name}.replaced")


def where(place: Path) -> Path:
    """Return the present path of the directory: after an interrupted replacement, its temporary name."""
    return old_path(place) if not place.exists() and old_path(place).exists() else place


def delete(path: Path) -> None:
    """Delete a file, a link, or a directory with its contents, if it exists."""
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.exists():
        shutil.rmtree(path)


def make_directories(path: Path) -> None:
    """Create a directory and its parents, and sync them to disk."""
    if not path.is_dir():
        make_directories(path.parent)
        path.mkdir(exist_ok=True)
        sync(path.parent)


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a safetensors file. Tied weights must be given once: safetensors refuses tensors that share memory.

    Raises:
        OSError: it cannot be written.
    """
    try:
        save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, path)
    except SafetensorError as error:
        if cause := re.search(r"os error (\d+)", str(error)):
            raise OSError(int(cause[1]), os.strerror(int(cause[1])), str(path)) from error
        raise
    # safetensors creates files that only their owner can read; this gives them the permissions of the directory.
    path.chmod(path.parent.stat().st_mode & 0o666)


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Write indented JSON."""
    path.write_bytes(as_json(values))


def replace_json(directory: int, name: str, values: Mapping[str, Any]) -> None:
    """Replace a JSON file atomically in a directory given by its descriptor.

    Raises:
        OSError: it cannot be written; the old file is untouched.
    """
    aside = f".{name}.saving"
    try:
        descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666, dir_fd=directory)
        with os.fdopen(descriptor, "wb") as file:
            file.write(as_json(values))
            file.flush()
            os.fsync(descriptor)
        os.replace(aside, name, src_dir_fd=directory, dst_dir_fd=directory)
        os.fsync(directory)
    except BaseException:
        with suppress(OSError):
            os.unlink(aside, dir_fd=directory)
        raise


def as_json(values: Mapping[str, Any]) -> bytes:
    """JSON that people can read too, closed by a newline."""
    return (json.dumps(values, indent=2, ensure_ascii=False) + "\n").encode()


def header(kind: str, directory: Path, names: Iterable[str] | None = None) -> dict[str, Any]:
    """Return the reserved keys of metadata.json, after all other files are written. names: its files; None: all."""
    files = sorted(directory.iterdir()) if names is None else [directory / name for name in sorted(names)]
    return {"format_version": FORMAT_VERSION, "kind": kind, "sha256": {file.name: _sha256(file) for file in files}}


def cannot_save(place: Path, error: OSError, needed: int | None) -> CheckpointError:
    """Return the error to raise, with the path and a remedy.

    Args:
        needed: bytes to be written; None: unknown.
    """
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        existing = next(path for path in (place, *place.absolute().parents) if path.exists())
        free = shutil.disk_usage(existing).free
        remedy = f"{free / 1e6:,.1f} MB are free: make room" if needed is None else (
            f"About {needed / 1e6:,.1f} MB are needed and {free / 1e6:,.1f} MB are free: "
            "make room, or lower training.keep_checkpoints"
        )
    elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        remedy = "Make the directory writable, or choose another"
    elif error.errno == errno.EBUSY:
        remedy = "It may be a mount point, which cannot be replaced: choose a directory inside it"
    else:
        remedy = "Check the path and the disk"
    return CheckpointError(
        f"{place} cannot be written: {error.strerror or error}. {remedy}, and start again. "
        "What was saved before is unharmed."
    )


# Reading


def read_steadily(place: Path, read: Callable[[Path], Read]) -> Read:
    """Return the result of `read`; repeat it if another process has replaced the directory in the meantime."""
    while True:
        directory = where(place)
        with _held(directory) as before:
            failure = None
            try:
                result = read(directory)
            except CheckpointError as error:
                failure = error
            if where(place) == directory and _identity(directory) == before:
                if failure:
                    raise failure
                return result


@contextmanager
def _held(directory: Path) -> Iterator[tuple[int, int] | None]:
    """Yield the directory's device and inode; keeps it open, so that a new directory cannot reuse the inode."""
    descriptor = None
    with suppress(OSError):
        # Opening a named pipe would wait for a writer.
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield _identity(directory if descriptor is None else descriptor)
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _identity(directory: Path | int) -> tuple[int, int] | None:
    try:
        status = os.stat(directory)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def read_metadata(directory: Path, kind: str, required: Iterable[str]) -> dict[str, Any]:
    """Read metadata.json of a directory of this kind; it must have checksums of the required files.

    Raises:
        CheckpointError: there is no such directory, it is of another kind, or from a newer version.
        Damaged: metadata.json is missing or invalid.
    """
    if not directory.is_dir():
        raise CheckpointError(f"{directory} is no directory; a {kind} is one, with {METADATA} and the files it names.")
    path = inside(directory, METADATA)
    try:
        metadata = parse_json(path.read_bytes())
    except OSError as error:
        cannot_read(path, error)
    except NotJson as error:
        raise Damaged(f"{path} is damaged: it is no JSON ({error}).") from None
    if not isinstance(metadata, dict) or not isinstance(metadata.get("format_version"), int):
        raise Damaged(f"{path} is damaged, or seq2seq did not write it: it has no format_version.")
    if metadata["format_version"] > FORMAT_VERSION:
        raise CheckpointError(
            f"{directory} was written by a newer seq2seq (format {metadata['format_version']}; this one reads up to "
            f"{FORMAT_VERSION}). Upgrade: pip install --upgrade seq2seq-mt"
        )
    if has_wrong_checksum(metadata):
        raise Damaged(f"{path} is damaged: its contents do not match its checksum.")
    if metadata.get("kind") != kind:
        raise CheckpointError(f"{directory} is a {metadata.get('kind')}, not a {kind}.")
    if not isinstance(metadata.get("sha256"), dict) or any(name not in metadata["sha256"] for name in required):
        raise Damaged(f"{path} is damaged: checksums are missing.")
    return metadata


def kind_of(place: Path) -> str | None:
    """Return the kind of a directory in its metadata.json; None if that cannot be read."""

    def read(directory: Path) -> str | None:
        path = directory / METADATA
        try:
            metadata = parse_json(path.read_bytes()) if path.is_file() else None
        except (OSError, NotJson):
            return None
        return metadata.get("kind") if isinstance(metadata, dict) else None

    return read_steadily(place, read)


def verify(directory: Path, checksums: Mapping[str, str]) -> None:
    """Verify the checksums of files.

    Raises:
        Damaged: a file is missing or differs; the message names it.
        CheckpointError: a name leads out of the directory.
    """
    for name, expected in checksums.items():
        path = inside(directory, name)
        try:
            actual = _sha256(path)
        except OSError as error:
            cannot_read(path, error)
        if actual != expected:
            raise Damaged(f"{path} is damaged: it is not what was saved (its sha256 is {actual[:12]}…).")


def inside(directory: Path, name: str) -> Path:
    """Return the path of a file in the directory.

    The name comes from metadata that may be hostile, so nothing outside the directory is read, and nothing but regular
    files: reading a named pipe could block for ever, reading a device never end.

    Raises:
        CheckpointError: the name, or a symbolic link, leads out of the directory, or is not a valid name.
        Damaged: it is not a regular file, or a link to itself.
    """
    path = directory / name
    try:
        leads_out = Path(name).name != name or not path.resolve().is_relative_to(directory.resolve())
    except ValueError as error:                                                 # NUL, half of a surrogate pair
        raise CheckpointError(f"{directory} names a file {name!r}, which cannot be one: {error}.") from error
    except (RuntimeError, OSError) as error:                                    # RuntimeError: a loop
        raise Damaged(f"{path} cannot be read: {error}.") from error
    if leads_out:
        raise CheckpointError(f"{path} leads out of {directory}; the files of a model lie in its directory. Copy what "
                              "is meant there.")
    if os.path.lexists(path) and not os.path.isfile(path):
        raise Damaged(f"{path} is no regular file.")
    return path


def read_file(path: Path) -> bytes:
    """Return the contents of a regular file, or of the one that a link leads to.

    Raises:
        CheckpointError: the permission is missing.
        Damaged: it is missing, cannot be read, or is not a regular file.
    """
    try:
        return regular_bytes(path)
    except OSError as error:
        cannot_read(path, error)


def cannot_read(path: Path, error: OSError) -> NoReturn:
    """Raise Damaged, or a CheckpointError if only the permission is missing."""
    if isinstance(error, FileNotFoundError):
        raise Damaged(f"{path} is missing.") from error
    if isinstance(error, PermissionError):
        raise CheckpointError(f"{path} cannot be read: you lack the permission.") from error
    raise Damaged(f"{path} cannot be read: {error.strerror or error}.") from error


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read the tensors of a safetensors file to the CPU.

    Raises:
        Damaged: it is missing or not a safetensors file.
    """
    try:
        mapped = load_file(path)
    except OSError as error:
        cannot_read(path, error)
    except (SafetensorError, RuntimeError) as error:  # RuntimeError: torch could not map the file
        raise Damaged(f"{path} is damaged: {error}.") from error
    # Copied, because reading a memory-mapped file that was truncated later kills the process.
    return {name: tensor.clone() for name, tensor in mapped.items()}


def read_shapes(path: Path) -> dict[str, tuple[tuple[int, ...], str]]:
    """Read shape and dtype (such as F32) of each tensor in the header of a safetensors file.

    Raises:
        Damaged: it is missing or not a safetensors file.
    """
    try:
        with safe_open(path, "pt") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118, no mapping
            return {name: (tuple(one.get_shape()), str(one.get_dtype())) for name, one in slices.items()}
    except OSError as error:
        cannot_read(path, error)
    except (SafetensorError, RuntimeError) as error:
        raise Damaged(f"{path} is damaged: {error}.") from error


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def bytes_of(tensors: Mapping[str, Tensor]) -> int:
    """Return the memory of the tensors in bytes, which is nearly the size of their file."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
