"""Lock of a run directory, so that two processes cannot train in it at the same time."""

import contextlib
import errno
import logging
import os
import secrets
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from seq2seq.errors import CheckpointError
from seq2seq.storage.atomic import cannot_save, make_directories, open_without_links
from seq2seq.storage.links import refuse_links

LOCK = ".lock"

logger = logging.getLogger(__name__)

_held_locks: set[int] = set()
"""File descriptors of the lock files that this process has locked."""


def _drop_locks() -> None:
    for descriptor in _held_locks:
        os.close(descriptor)
    _held_locks.clear()


# A forked worker inherits the descriptors of the lock files and closes them immediately. Otherwise, if the training is
# killed and the worker survives, the worker would keep the run locked.
if sys.platform != "win32":                                                     # Windows cannot fork
    os.register_at_fork(after_in_child=_drop_locks)


def lock_file(descriptor: int, shared: bool = False) -> None:
    """Lock an open file for this process. The system releases the lock when the process ends.

    Args:
        shared: True for a shared lock, which several processes can hold at the same time; False for an exclusive lock.
    Raises:
        BlockingIOError: another process holds a conflicting lock.
        OSError: the file system or the operating system (Windows) does not support flock.
    """
    try:
        import fcntl
    except ImportError as error:                                                # Windows
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP)) from error
    fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)


def lock_if_free(descriptor: int, shared: bool = False) -> bool:
    """Lock an open file as `lock_file` does. Return False if another process holds a conflicting lock, but True if the
    file cannot be locked."""
    try:
        lock_file(descriptor, shared)
    except BlockingIOError:
        return False
    except OSError:                                                             # a file system without locks, Windows
        pass
    return True


@contextmanager
def lock_run(run: Path) -> Iterator[str]:
    """Lock a run directory during the block. If the process is killed, the system releases the lock.

    The lock file remains. Otherwise, two processes could hold a lock at the same time: one that had opened the deleted
    file, and one that creates a new file.

    Yields:
        The contents of the lock file, which are different each time: process, host and a random number.
    """
    path = run / LOCK
    try:
        make_directories(run)
        refuse_links(run)
        descriptor = open_without_links(str(path), os.O_RDWR | os.O_CREAT)
    except OSError as error:
        raise cannot_save(path, error) from error
    _held_locks.add(descriptor)
    try:
        try:
            lock_file(descriptor)
        except BlockingIOError:
            raise _in_use(run, descriptor) from None
        except OSError as error:
            # Windows and some network file systems do not support flock. Training without a lock is allowed.
            logger.warning("%s cannot be locked (%s). Do not start a second training in it.", run, error.strerror)
        if not path.exists() or not os.path.samestat(path.stat(), os.fstat(descriptor)):
            raise CheckpointError(f"{run} was moved or removed by another process just now. Run the command again.")
        contents = f"{os.getpid()} on {socket.gethostname()}\n{secrets.token_hex()}\n"
        os.ftruncate(descriptor, 0)
        os.lseek(descriptor, 0, os.SEEK_SET)
        os.write(descriptor, contents.encode())
        with contextlib.suppress(OSError):
            os.fsync(descriptor)                                # other machines can then read who holds the lock
        yield contents
    finally:
        if descriptor in _held_locks:                                           # False in a forked process
            _held_locks.remove(descriptor)
            os.close(descriptor)


def require_lockable(run: Path) -> None:
    """Raise CheckpointError if `lock_run` would. This function writes nothing."""
    existing = next(path for path in (run.absolute(), *run.absolute().parents) if path.exists())
    if not os.access(existing, os.W_OK | os.X_OK):
        raise CheckpointError(f"{run}: {existing} cannot be written to. Make it writable, or choose another "
                              "--run-dir.")
    try:
        refuse_links(run)
        descriptor = open_without_links(str(run / LOCK), os.O_RDWR)             # the mode that `lock_run` needs
    except FileNotFoundError:
        return
    except OSError as error:
        raise cannot_save(run / LOCK, error) from error
    try:
        if not lock_if_free(descriptor, shared=True):
            raise _in_use(run, descriptor)
    finally:
        os.close(descriptor)


def _in_use(run: Path, descriptor: int) -> CheckpointError:
    """Return the CheckpointError which says that another process has the lock.

    descriptor: file descriptor of the lock file, which contains the id of the other process.
    """
    os.lseek(descriptor, 0, os.SEEK_SET)
    holder, *_ = os.read(descriptor, 1000).decode(errors="replace").split("\n")
    return CheckpointError(f"{run} is in use by process {holder.strip() or 'unknown'}. Wait until it ends, stop it, or "
                           "choose another --run-dir.")
