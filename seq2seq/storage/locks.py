"""Lock of a run directory, so that two processes cannot train in it at the same time."""

import contextlib
import logging
import os
import socket
import sys
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from seq2seq.errors import CheckpointError
from seq2seq.storage.directories import cannot_save, make_directories
from seq2seq.storage.open_files import lock_file

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


@contextmanager
def lock_run(run: Path, provisional: Collection[str] = ()) -> Iterator[None]:
    """Lock a run directory during the block. If the process is killed, the system releases the lock.

    If the run directory was missing or empty and the block raises an exception, the lock file, the `provisional` files
    and the directories that this function created are removed. If the block has written other files, nothing is
    removed.

    Args:
        provisional: names of files in the run directory that may be removed after an exception.
    Raises:
        CheckpointError: another process has the lock (the message gives the id of that process), or the directory
            cannot be written.
    """
    path = Path(run) / LOCK
    missing = [directory for directory in (path.parent, *path.parent.parents) if not directory.exists()]
    try:
        new = bool(missing) or not any(path.parent.iterdir())
        make_directories(path.parent)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise cannot_save(path, error, needed=0) from error
    _held_locks.add(descriptor)
    try:
        try:
            lock_file(descriptor)
        except BlockingIOError:
            raise _in_use(run, descriptor) from None
        except OSError as error:
            # Windows and some network file systems do not support flock. Training without a lock is allowed.
            logger.warning("%s cannot be locked (%s). Do not start a second training in it.", run, error.strerror)
        if not _is_same_file(path, descriptor):
            raise CheckpointError(f"{run} was moved or removed by another process just now. Run the command again.")
        os.ftruncate(descriptor, 0)
        os.lseek(descriptor, 0, os.SEEK_SET)
        os.write(descriptor, f"{os.getpid()} on {socket.gethostname()}\n".encode())
        with contextlib.suppress(OSError):
            os.fsync(descriptor)                                # other machines can then read who holds the lock
        try:
            yield
        except BaseException:
            if new and descriptor in _held_locks:                               # False in a forked process
                _remove_lock_file(path, missing, provisional)
            raise
    finally:
        # The lock file is not deleted here. Otherwise, two processes could hold a lock at the same time: one that had
        # opened the deleted file, and one that creates a new file.
        if descriptor in _held_locks:
            _held_locks.remove(descriptor)
            os.close(descriptor)


def _remove_lock_file(path: Path, directories: Iterable[Path], provisional: Collection[str]) -> None:
    """Remove the lock file, the provisional files and `directories`. If the run directory contains other files, nothing
    is removed. This process must hold the lock.

    Another process may have opened the lock file before its removal, and may lock the removed file afterwards. In
    that process, `lock_run` then detects with `_is_same_file` that the file was removed.

    Args:
        directories: directories that `lock_run` created, the innermost first.
    """
    with contextlib.suppress(OSError):                                          # a remaining lock file does no harm
        if {entry.name for entry in path.parent.iterdir()} <= {path.name, *provisional}:
            for name in (*provisional, path.name):
                path.with_name(name).unlink(missing_ok=True)
            for directory in directories:
                directory.rmdir()


def require_lockable(run: Path) -> None:
    """Raise CheckpointError if the run directory cannot be written or is locked. This function writes nothing."""
    existing = next(path for path in (run.absolute(), *run.absolute().parents) if path.exists())
    if not os.access(existing, os.W_OK | os.X_OK):
        raise CheckpointError(f"{run}: {existing} cannot be written to. Make it writable, or choose another "
                              "--run-dir.")
    try:
        descriptor = os.open(run / LOCK, os.O_RDWR)                          # the mode that `lock_run` needs
    except FileNotFoundError:
        return
    except OSError as error:
        raise cannot_save(run / LOCK, error, needed=0) from error
    try:
        with contextlib.suppress(OSError):                                      # a file system without locks
            try:
                lock_file(descriptor, shared=True)
            except BlockingIOError:
                raise _in_use(run, descriptor) from None
    finally:
        os.close(descriptor)


def _in_use(run: Path, descriptor: int) -> CheckpointError:
    """Return the CheckpointError which says that another process has the lock.

    descriptor: file descriptor of the lock file, which contains the id of the other process.
    """
    os.lseek(descriptor, 0, os.SEEK_SET)
    holder = os.read(descriptor, 1000).decode(errors="replace").strip() or "unknown"
    return CheckpointError(f"{run} is in use by process {holder}. Wait until it ends, stop it, or choose another "
                           "--run-dir.")


def _is_same_file(path: Path, descriptor: int) -> bool:
    """Return True if `path` still refers to the file that is open as `descriptor`."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
