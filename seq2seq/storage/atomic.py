"""Files and directories that survive a crash.

After a crash or a power cut, a file has its old contents or the new ones, and a new directory is complete or missing.
New contents are written under a temporary name that nobody can foresee, so no link that another person has put into a
directory can direct the writing to another file.
"""

from __future__ import annotations

import errno
import glob
import os
import secrets
import shutil
import stat
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import chain, count
from pathlib import Path
from typing import BinaryIO

from seq2seq.errors import CheckpointError, OptionError

RANDOM_DIGITS = 16
"""Number of random hexadecimal digits in a temporary name."""


# Files


def replace_file(path: Path, contents: bytes) -> None:
    """Replace the contents of a file, or create the file; see `replacing`."""
    with replacing(path) as file:
        file.write(contents)


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Yield a new file, which replaces `path` at the end of the block, or is deleted after an exception.

    If `path` is a link, the link is replaced, not its target.

    Raises:
        OSError: writing failed. If there was an old file, it is unchanged.
    """
    temporary = temporary_path(path)
    try:
        with open(temporary, "xb") as file:                                     # x: never follows a link
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    sync(path.parent)


def open_without_links(path: str, flags: int) -> int:
    """Open a file for writing (`opener` of the built-in function `open`), but not if the path leads to another file.

    Raises:
        OSError: the last part of the path is a link, or the file has another name, too (a hard link), or is not a
            regular file.
    """
    # Windows has neither flag. Without O_NONBLOCK, opening a named pipe would wait for a reader.
    flags |= getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    descriptor = os.open(path, flags, 0o666)
    status = os.fstat(descriptor)
    if stat.S_ISREG(status.st_mode) and status.st_nlink <= 1:
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EMLINK, "it is not a regular file, or has a second name (a hard link)", path)


# Directories


@contextmanager
def new_directory(path: Path) -> Iterator[Path]:
    """Yield a temporary directory, which is renamed to `path` at the end of the block, or deleted after an exception.

    A directory is written once and never changed: after a crash, it is complete or missing. If `path` is a link, the
    directory is written where it leads.
    """
    path = Path(os.path.realpath(path))
    require_new(path)
    temporary = temporary_path(path)
    try:
        make_directories(path.parent)
        delete_temporary(path.parent, path.name)                                # of a process that was killed
        temporary.mkdir()
        yield temporary
        for entry in temporary.rglob("*"):
            sync(entry)
        sync(temporary)
        if path.exists():                                                       # empty, see `require_new`
            path.rmdir()
        os.rename(temporary, path)
        sync(path.parent)
    except BaseException as error:
        with suppress(OSError):
            delete(temporary)
        if isinstance(error, OSError):
            raise cannot_save(path, error) from error
        raise


def finish_directory(unfinished: Path, path: Path, files: Mapping[str, bytes]) -> None:
    """Write the last files of a directory that was written under another name, sync it to disk, and rename it."""
    try:
        for name, contents in files.items():
            (unfinished / name).write_bytes(contents)
        for entry in unfinished.iterdir():
            sync(entry)
        sync(unfinished)
        os.rename(unfinished, path)
        sync(path.parent)
    except OSError as error:
        raise cannot_save(path, error) from error


def require_new(path: Path) -> None:
    """Check that nothing exists at `path`, or an empty directory."""
    try:
        is_free = not path.exists() or path.is_dir() and not any(path.iterdir())
    except OSError as error:
        raise cannot_save(path, error) from error
    if not is_free:
        raise OptionError(f"{path} exists already. Name a new directory.")


def free_path(path: Path) -> Path:
    """Return `path`, or the first of <path>-2, <path>-3, … if it exists."""
    paths = (path.with_name(f"{path.name}-{number}") for number in count(2))
    return next(each for each in chain([path], paths) if not os.path.lexists(each))


def delete_temporary(directory: Path, name: str | None = None) -> None:
    """Delete what killed processes have left in a directory. name: of the file or directory; None: of all."""
    prefix = "*" if name is None else glob.escape(name)
    for leftover in directory.glob(f".{prefix}.{'[0-9a-f]' * RANDOM_DIGITS}.tmp"):
        delete(leftover)


def temporary_path(path: Path) -> Path:
    """Return a hidden path beside `path`, with a random name that `delete_temporary` recognises."""
    return path.with_name(f".{path.name}.{secrets.token_hex(RANDOM_DIGITS // 2)}.tmp")


def delete(path: Path) -> None:
    """Delete a file, a link, or a directory with its contents. Do nothing if `path` does not exist."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def make_directories(path: Path) -> None:
    """Create a directory and its missing parents, and sync their entries to disk."""
    if not path.is_dir():
        make_directories(path.parent)
        path.mkdir(exist_ok=True)
        sync(path.parent)


def sync(path: Path) -> None:
    """Sync a file's contents, or a directory's entries, to disk.

    Directories are not synced on Windows and on some network file systems, where this is impossible. Windows can sync a
    file only if it is open for writing.
    """
    is_directory = path.is_dir()
    if is_directory and sys.platform == "win32":
        return
    descriptor = os.open(path, os.O_RDWR if sys.platform == "win32" else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if not is_directory or error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def cannot_save(path: Path, error: OSError) -> CheckpointError:
    """Return the CheckpointError which says that `path` cannot be written, and what the user can do."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        existing = next(parent for parent in (path, *path.absolute().parents) if parent.exists())
        free = shutil.disk_usage(existing).free
        remedy = f"{free / 1e6:,.1f} MB are free: make room, or lower training.keep_checkpoints"
    elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        remedy = "Make the directory writable, or choose another"
    elif error.errno == errno.EMLINK:                                           # of `open_without_links`
        remedy = "Replace it with a copy of itself, or delete it"
    elif error.errno == errno.EBUSY:
        remedy = "It is in use, such as a mount point: choose a directory inside it"
    else:
        remedy = "Check the path and the disk"
    return CheckpointError(
        f"{path} cannot be written: {error.strerror or error}. {remedy}, and start again. "
        "Everything saved before is intact."
    )
