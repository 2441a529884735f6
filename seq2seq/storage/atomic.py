"""Atomic replacement of files and directories.

After a crash or a power cut, a file or a directory has either its old contents or the new ones. New contents are
written beside the old ones, under a name that nobody can foresee. So no link that another person has put into a
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
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from seq2seq.errors import CheckpointError

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
def replace_directory(path: Path) -> Iterator[Path]:
    """Yield a temporary directory, which replaces `path` at the end of the block, or is deleted after an exception.

    A directory that is not empty cannot be replaced in one operation. So the old directory is renamed to
    `old_path(path)`, and then the new one to `path`. If the process is killed in between, `recover` completes or undoes
    the replacement, and until then `current_path` finds the old directory.
    """
    temporary = temporary_path(path)
    try:
        make_directories(path.parent)
        recover(path)
        temporary.mkdir()
        yield temporary
        for file in temporary.rglob("*"):
            if file.is_file() and not file.is_symlink():
                sync(file)
        sync(temporary)
        if os.path.lexists(path):
            os.rename(path, old_path(path))
        os.rename(temporary, path)
        sync(path.parent)
        with suppress(OSError):                                 # the new directory is in place
            recover(path)
    except BaseException as error:
        with suppress(OSError):
            recover(path)
        if isinstance(error, OSError):
            raise cannot_save(path, error) from error
        raise


def recover(path: Path) -> None:
    """Remove what an interrupted replacement of `path` has left. If `path` is missing, restore the old directory."""
    old = old_path(path)
    if os.path.lexists(old) and not os.path.lexists(path):
        os.rename(old, path)
    delete(old)
    delete_temporary(path.parent, path.name)


def delete_temporary(directory: Path, name: str | None = None) -> None:
    """Delete what interrupted replacements have left in a directory. name: of the file or directory; None: of all."""
    prefix = "*" if name is None else glob.escape(name)
    for leftover in directory.glob(f".{prefix}.{'[0-9a-f]' * RANDOM_DIGITS}.tmp"):
        delete(leftover)


def temporary_path(path: Path) -> Path:
    """Return a hidden path beside `path`, with a random name that `delete_temporary` recognises."""
    return path.with_name(f".{path.name}.{secrets.token_hex(RANDOM_DIGITS // 2)}.tmp")


def old_path(path: Path) -> Path:
    """Return the hidden path to which `replace_directory` renames the old directory."""
    return path.with_name(f".{path.name}.replaced")


def current_path(path: Path) -> Path:
    """Return the current path of a directory: `path`, or `old_path(path)` after an interrupted replacement."""
    return old_path(path) if not path.exists() and old_path(path).exists() else path


def link_or_copy(path: str | Path, new: str | Path) -> None:
    """Give a file or a link a second name, or copy it if the file system has no hard links. A hard link takes no space,
    however large the file is."""
    try:
        os.link(path, new, follow_symlinks=False)
    except (OSError, NotImplementedError):
        shutil.copy2(path, new, follow_symlinks=False)


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
        remedy = "A directory in use, such as a mount point, cannot be replaced: choose a directory inside it"
    else:
        remedy = "Check the path and the disk"
    return CheckpointError(
        f"{path} cannot be written: {error.strerror or error}. {remedy}, and start again. "
        "Everything saved before is intact."
    )
