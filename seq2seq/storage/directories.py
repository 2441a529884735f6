"""Atomic writing of directories, and reading of their files with verification.

A directory is written under a temporary name, synced to disk and renamed. If the process is killed at any moment,
either the old directory or the new one exists. metadata.json in the directory contains the format version and the
checksums of the other files that seq2seq wrote.
"""

import ctypes
import errno
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

from seq2seq.errors import CheckpointError
from seq2seq.files.compressed_files import regular_bytes
from seq2seq.files.json_reader import NotJson, parse_json
from seq2seq.storage.atomic import replace_file
from seq2seq.storage.checksums import CHECKSUM_KEY, has_wrong_checksum, sha256_of
from seq2seq.storage.open_files import sync

Read = TypeVar("Read")

FORMAT_VERSION = 1
"""Version of the file format. It is incremented when older versions of seq2seq cannot read the new format."""

METADATA = "metadata.json"
CARD_KEY = "model_card"
"""Key of the checksums of the model cards that seq2seq has written; see bundle_readme.py."""
RESERVED = ("format_version", "kind", "sha256", CHECKSUM_KEY, CARD_KEY)
"""Keys of metadata.json that callers of `save_bundle` and `update_bundle_metadata` must not set."""

AT_FDCWD, RENAME_EXCHANGE = -100, 2
"""Constants of the Linux call renameat2. AT_FDCWD: paths are relative to the working directory. RENAME_EXCHANGE:
exchange the names of the two paths."""


class DamagedError(CheckpointError):
    """A file is missing or damaged. If it belongs to a checkpoint, older checkpoints may still be intact."""


# Writing


@contextmanager
def replace_directory(path: Path, needed: int | None) -> Iterator[Path]:
    """Yield a temporary directory, which replaces `path` at the end of the block, or is deleted after an exception.

    Args:
        needed: number of bytes to write, for the error message if the disk is full; None: unknown.
    Raises:
        CheckpointError: the directory cannot be written; the old one is unchanged.
    """
    temporary = temporary_path(path)
    try:
        make_directories(path.parent)
        delete(temporary)
        temporary.mkdir()
        yield temporary
        for file in temporary.rglob("*"):
            if file.is_file() and not file.is_symlink():
                sync(file)
        sync(temporary)
        _swap(temporary, path)
    except BaseException as error:
        with suppress(OSError):
            recover(path)
        shutil.rmtree(temporary, ignore_errors=True)
        if isinstance(error, OSError):
            raise cannot_save(path, error, needed) from error
        raise


def _swap(new: Path, path: Path) -> None:
    """Rename the directory `new` to `path`, and delete the old directory.

    If the system can exchange two names in one operation, `path` exists at every moment. Otherwise, the old directory
    is renamed first, because `new` cannot be renamed to the name of a directory that is not empty.
    """
    replaced = old_path(path)
    if path.exists() and exchange(new, path):
        sync(path.parent)
        old = new
    else:
        if path.exists():
            delete(replaced)
            os.rename(path, replaced)
        os.rename(new, path)
        sync(path.parent)
        old = replaced
    with suppress(OSError):  # the new directory is in place; the next save deletes what remains of the old one
        delete(old)
        delete(replaced)


def exchange(first: Path, second: Path) -> bool:
    """Exchange the names of two directories in one operation (Linux: renameat2 with RENAME_EXCHANGE).

    Returns:
        True if the names were exchanged; False if the operating system or the file system does not support this.
    Raises:
        OSError: the directories cannot be renamed.
    """
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError, TypeError):  # the C library is not glibc, or is too old
        return False
    if renameat2(AT_FDCWD, os.fsencode(first), AT_FDCWD, os.fsencode(second), RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP):
        return False
    raise OSError(number, os.strerror(number), str(second))


def recover(path: Path) -> None:
    """Rename the old directory back to `path` if `replace_directory` was interrupted between its two renames."""
    if not os.path.lexists(path) and old_path(path).exists():
        os.rename(old_path(path), path)


def temporary_path(path: Path) -> Path:
    """Return the hidden path under which the new contents of `path` are written."""
    return path.with_name(f".{path.name}.saving")


def old_path(path: Path) -> Path:
    """Return the hidden path to which `_swap` renames the old directory if it cannot exchange the two names."""
    return path.with_name(f".{path.name}.replaced")


def current_path(path: Path) -> Path:
    """Return the current path of a directory: `path`, or `old_path(path)` after an interrupted replacement."""
    return old_path(path) if not path.exists() and old_path(path).exists() else path


def delete(path: Path) -> None:
    """Delete a file, a link, or a directory with its contents. Do nothing if `path` does not exist."""
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.exists():
        shutil.rmtree(path)


def make_directories(path: Path) -> None:
    """Create a directory and its missing parents, and sync their entries to disk."""
    if not path.is_dir():
        make_directories(path.parent)
        path.mkdir(exist_ok=True)
        sync(path.parent)


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a safetensors file. Tied weights must be included only once: safetensors refuses tensors that share memory.

    Raises:
        OSError: the file cannot be written.
    """
    try:
        save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, path)
    except SafetensorError as error:
        if cause := re.search(r"os error (\d+)", str(error)):
            raise OSError(int(cause[1]), os.strerror(int(cause[1])), str(path)) from error
        raise
    # safetensors creates files that only their owner can read. The file gets the directory's permissions instead.
    path.chmod(path.parent.stat().st_mode & 0o666)


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Write a JSON object, formatted by `as_json`, to a file."""
    path.write_bytes(as_json(values))


def replace_json(directory: int | Path, name: str, values: Mapping[str, Any]) -> None:
    """Replace a JSON file atomically; see `replace_in`."""
    replace_in(directory, name, as_json(values))


def replace_in(directory: int | Path, name: str, contents: bytes) -> None:
    """Replace a file atomically. directory: descriptor (`open_files.opened_directory`) or path of its directory.

    Raises:
        OSError: the file cannot be written; the old one is unchanged.
    """
    if isinstance(directory, Path):
        return replace_file(directory / name, contents)
    temporary = f".{name}.saving"
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666, dir_fd=directory)
        with os.fdopen(descriptor, "wb") as file:
            file.write(contents)
            file.flush()
            os.fsync(descriptor)
        os.replace(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
        os.fsync(directory)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary, dir_fd=directory)
        raise


def as_json(values: Mapping[str, Any]) -> bytes:
    """Format JSON with indentation, in UTF-8, with a newline at the end."""
    return (json.dumps(values, indent=2, ensure_ascii=False) + "\n").encode()


def header(kind: str, directory: Path, names: Iterable[str] | None = None) -> dict[str, Any]:
    """Return three keys for a directory's metadata.json: format version, kind of the directory, checksums of its files.

    Call this function after all files except metadata.json have been written.

    names: files whose checksums are included; None: all files in the directory.
    """
    files = sorted(directory.iterdir()) if names is None else [directory / name for name in sorted(names)]
    return {"format_version": FORMAT_VERSION, "kind": kind, "sha256": {file.name: sha256_of(file) for file in files}}


def cannot_save(path: Path, error: OSError, needed: int | None) -> CheckpointError:
    """Return the CheckpointError which says that `path` cannot be written, and what the user can do.

    Args:
        needed: number of bytes to write, for the message if the disk is full; None: unknown.
    """
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        existing = next(parent for parent in (path, *path.absolute().parents) if parent.exists())
        free = shutil.disk_usage(existing).free
        remedy = f"{free / 1e6:,.1f} MB are free: make room" if needed is None else (
            f"About {needed / 1e6:,.1f} MB are needed and {free / 1e6:,.1f} MB are free: "
            "make room, or lower training.keep_checkpoints"
        )
    elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        remedy = "Make the directory writable, or choose another"
    elif error.errno == errno.EBUSY:
        remedy = "A directory in use, such as a mount point, cannot be replaced: choose a directory inside it"
    else:
        remedy = "Check the path and the disk"
    return CheckpointError(
        f"{path} cannot be written: {error.strerror or error}. {remedy}, and start again. "
        "Everything saved before is intact."
    )


# Reading


def read_with_retry(path: Path, read: Callable[[Path], Read]) -> Read:
    """Return the result of `read` for a directory. Retry if another process has replaced the directory meanwhile."""
    while True:
        directory = current_path(path)
        with _keep_open(directory) as before:
            failure = None
            try:
                result = read(directory)
            except CheckpointError as error:
                failure = error
            if current_path(path) == directory and _identity(directory) == before:
                if failure:
                    raise failure
                return result


@contextmanager
def _keep_open(directory: Path) -> Iterator[tuple[int, int] | None]:
    """Yield the directory's device and inode numbers; None if there is no directory.

    The directory stays open during the block. Otherwise, a new directory could get the inode of a deleted one.
    """
    descriptor = None
    with suppress(OSError):
        # Without O_DIRECTORY, opening a named pipe would wait for a writer. Windows has no O_DIRECTORY.
        descriptor = os.open(directory, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
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
    """Read the metadata.json of a checkpoint, a bundle or a tokenizer directory.

    Args:
        kind: kind that the directory must have: checkpoint, bundle or tokenizer.
        required: names of files whose checksums metadata.json must contain.
    Raises:
        CheckpointError: the directory is missing, has another kind, or is from a newer version of seq2seq.
        DamagedError: metadata.json is missing or invalid.
    """
    if not directory.is_dir():
        raise CheckpointError(f"{directory} is not a directory. A {kind} is a directory that contains {METADATA}.")
    path = path_inside(directory, METADATA)
    try:
        metadata = parse_json(path.read_bytes())
    except OSError as error:
        cannot_read(path, error)
    except NotJson as error:
        raise DamagedError(f"{path} is damaged: it is not JSON ({error}).") from None
    if not isinstance(metadata, dict) or not isinstance(metadata.get("format_version"), int):
        raise DamagedError(f"{path} is damaged, or seq2seq did not write it: it has no format_version.")
    if metadata["format_version"] > FORMAT_VERSION:
        raise CheckpointError(
            f"{directory} was written by a newer seq2seq (format {metadata['format_version']}; this version reads "
            f"formats up to {FORMAT_VERSION}). Upgrade: pip install --upgrade seq2seq-mt"
        )
    if has_wrong_checksum(metadata):
        raise DamagedError(f"{path} is damaged: its contents do not match its checksum.")
    if metadata.get("kind") != kind:
        raise CheckpointError(f"{directory} is a {metadata.get('kind')}, not a {kind}.")
    if not isinstance(metadata.get("sha256"), dict) or any(name not in metadata["sha256"] for name in required):
        raise DamagedError(f"{path} is damaged: checksums are missing.")
    return metadata


def kind_of(path: Path) -> str | None:
    """Return the kind of a directory from its metadata.json; None if metadata.json is missing or invalid."""

    def read(directory: Path) -> str | None:
        path = directory / METADATA
        try:
            metadata = parse_json(path.read_bytes()) if path.is_file() else None
        except (OSError, NotJson):
            return None
        return metadata.get("kind") if isinstance(metadata, dict) else None

    return read_with_retry(path, read)


def verify(directory: Path, checksums: Mapping[str, str]) -> None:
    """Verify the checksums of files.

    Raises:
        DamagedError: a file is missing or has a wrong checksum; the message names the file.
        CheckpointError: a name refers to a file outside the directory.
    """
    for name, expected in checksums.items():
        path = path_inside(directory, name)
        try:
            actual = sha256_of(path)
        except OSError as error:
            cannot_read(path, error)
        if actual != expected:
            raise DamagedError(f"{path} is damaged: its checksum is wrong (sha256 {actual[:12]}…).")


def path_inside(directory: Path, name: str) -> Path:
    """Return the path of the file `name` in the directory, after checks against malicious metadata.

    The name comes from metadata.json, which anybody may have written. Paths outside the directory are refused, and so
    are named pipes and devices, because reading from them could block forever. The file may be missing.

    Raises:
        CheckpointError: the name or a symbolic link leads out of the directory, or no file can have this name.
        DamagedError: the path is not a regular file, or is part of a loop of links.
    """
    path = directory / name
    try:
        leads_out = Path(name).name != name or not path.resolve().is_relative_to(directory.resolve())
    except ValueError as error:                                                 # a null character or a lone surrogate
        raise CheckpointError(f"{directory / METADATA} names a file {name!r}, which is not a valid name: "
                              f"{error}.") from error
    except (RuntimeError, OSError) as error:                                    # RuntimeError: a loop of links
        raise DamagedError(f"{path} cannot be read: {error}.") from error
    if leads_out:
        raise CheckpointError(f"{path} leads out of {directory}. All files of a model must be in its directory: copy "
                              "the file there.")
    if os.path.lexists(path) and not os.path.isfile(path):
        raise DamagedError(f"{path} is not a regular file.")
    return path


def read_file(path: Path) -> bytes:
    """Return the contents of a regular file; links are followed.

    Raises:
        CheckpointError: this user has no permission to read the file.
        DamagedError: the file is missing, cannot be read, or is not a regular file.
    """
    try:
        return regular_bytes(path)
    except OSError as error:
        cannot_read(path, error)


def cannot_read(path: Path, error: OSError) -> NoReturn:
    """Raise CheckpointError if this user has no permission to read the file, and DamagedError after any other error."""
    if isinstance(error, FileNotFoundError):
        raise DamagedError(f"{path} is missing.") from error
    if isinstance(error, PermissionError):
        raise CheckpointError(f"{path} cannot be read: you have no permission.") from error
    raise DamagedError(f"{path} cannot be read: {error.strerror or error}.") from error


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read the tensors of a safetensors file to the CPU.

    Raises:
        DamagedError: the file is missing or not a safetensors file.
    """
    try:
        mapped = load_file(path)
    except OSError as error:
        cannot_read(path, error)
    except (SafetensorError, RuntimeError) as error:  # RuntimeError: torch cannot map the file into memory
        raise DamagedError(f"{path} is damaged: {error}.") from error
    # The tensors are copied to memory. If another process truncated the mapped file later, reading from the map would
    # kill this process.
    return {name: tensor.clone() for name, tensor in mapped.items()}


def read_shapes(path: Path) -> dict[str, tuple[tuple[int, ...], str]]:
    """Return shape and dtype (such as F32) of each tensor, by name, from the header of a safetensors file.

    Raises:
        DamagedError: the file is missing or not a safetensors file.
    """
    try:
        with safe_open(path, "pt") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118, not a mapping
            return {name: (tuple(tensor.get_shape()), str(tensor.get_dtype())) for name, tensor in slices.items()}
    except OSError as error:
        cannot_read(path, error)
    except (SafetensorError, RuntimeError) as error:
        raise DamagedError(f"{path} is damaged: {error}.") from error


def bytes_of(tensors: Mapping[str, Tensor]) -> int:
    """Return the size of the tensors in bytes. The file of the tensors is only slightly larger."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
