"""Locks, so that two processes cannot write the same run or the same output at the same time."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from seq2seq.errors import CheckpointError
from seq2seq.storage.atomic import cannot_save, make_directories, replace_file

if TYPE_CHECKING:
    from filelock import FileLock

LOCK = ".lock"
HOLDER = ".holder"
"""File of a run with the process that locked it last."""

UNWRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.ELOOP, errno.EISDIR,
              errno.ENOTDIR, errno.ENOENT)
"""Errors after which a lock file cannot be made. Any other means that the file system has no locks."""

logger = logging.getLogger(__name__)


def lock_if_free(descriptor: int) -> bool:
    """Lock an open file until it is closed or this process ends. Return False if another process has locked it, but
    True if the file cannot be locked, as on Windows and on some network file systems."""
    try:
        import fcntl
    except ImportError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


@contextmanager
def lock_run(run: Path) -> Iterator[str]:
    """Lock a run directory during the block. If the process is killed, the system releases the lock.

    Yields:
        The contents of the file HOLDER, which are different each time: process, host and a random number.
    """
    try:
        make_directories(run)
        before = os.stat(run)
        lock = _acquired(run)
    except OSError as error:
        raise cannot_save(run / LOCK, error) from error
    try:
        if not run.exists() or not os.path.samestat(run.stat(), before):
            raise CheckpointError(f"{run} was moved or removed by another process just now. Run the command again.")
        contents = f"{os.getpid()} on {socket.gethostname()}\n{secrets.token_hex()}\n"
        try:
            replace_file(run / HOLDER, contents.encode())
        except OSError as error:
            raise cannot_save(run / HOLDER, error) from error
        yield contents
    finally:
        lock.release()


def require_lockable(run: Path) -> None:
    """Raise CheckpointError if `lock_run` would. This function writes nothing."""
    existing = next(path for path in (run.absolute(), *run.absolute().parents) if path.exists())
    if not os.access(existing, os.W_OK | os.X_OK):
        raise CheckpointError(f"{run}: {existing} cannot be written to. Make it writable, or choose another "
                              "--run-dir.")
    try:
        if (run / LOCK).exists():
            _acquired(run).release()
    except OSError as error:
        raise cannot_save(run / LOCK, error) from error


def _acquired(run: Path) -> FileLock:
    """Return the lock of a run, which this process holds now."""
    from filelock import FileLock, Timeout  # translation does not need it

    lock = FileLock(run / LOCK, fallback_to_soft=False)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        holder = ""
        with contextlib.suppress(OSError):
            holder, *_ = (run / HOLDER).read_text(encoding="utf-8", errors="replace").split("\n")
        raise CheckpointError(f"{run} is in use by process {holder or 'unknown'}. Wait until it ends, stop it, or "
                              "choose another --run-dir.") from None
    except (NotImplementedError, OSError) as error:
        if isinstance(error, OSError) and error.errno in UNWRITABLE:
            raise
        # Some network file systems have no locks. Training without a lock is allowed.
        logger.warning("%s cannot be locked (%s). Do not start a second training in it.", run, error)
    return lock
