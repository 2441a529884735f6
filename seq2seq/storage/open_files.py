"""Operations that differ between operating systems: locking files, syncing to disk, and opening directories."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def lock_file(descriptor: int, shared: bool = False) -> None:
    """Lock an open file for this process. The system releases the lock when the process ends.

    Args:
        shared: True for a shared lock, which several processes can hold at the same time; False for an exclusive lock.
    Raises:
        BlockingIOError: another process holds a conflicting lock.
        OSError: the file system or the operating system (Windows) does not support flock.
    """
    if sys.platform != "win32":
        try:
            import fcntl
        except ImportError:
            pass
        else:
            fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
            return
    raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))


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


@contextmanager
def opened_directory(path: Path) -> Iterator[int | Path]:
    """Yield a file descriptor of a directory. The descriptor stays valid if the directory is renamed.

    Where files cannot be opened relative to the descriptor of a directory (Windows), the path is yielded instead.
    """
    if os.open not in os.supports_dir_fd:
        yield path
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
