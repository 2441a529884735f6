"""Lock of a run directory."""

import contextlib
import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from seq2seq.errors import CheckpointError
from seq2seq.storage import cannot_save, make_directories

logger = logging.getLogger(__name__)

_held_locks: set[int] = set()


def _drop_locks() -> None:
    for descriptor in _held_locks:
        os.close(descriptor)
    _held_locks.clear()


# A forked worker inherits the lock; one that outlives a killed training would keep the run locked.
os.register_at_fork(after_in_child=_drop_locks)


@contextmanager
def lock_run(run: Path) -> Iterator[None]:
    """Lock a run for this process. The lock is released when the process ends, however it ends.

    Raises:
        CheckpointError: another process has it (the message names its id), or the directory cannot be written.
    """
    import fcntl

    path = Path(run) / ".lock"
    try:
        make_directories(path.parent)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise cannot_save(path, error, needed=0) from error
    _held_locks.add(descriptor)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _in_use(run, descriptor) from None
        except OSError as error:
            # Some network file systems have no locks; training there is allowed, with a warning.
            logger.warning("%s cannot be locked (%s): do not train in it twice at once.", run, error.strerror)
        if not _is_still(path, descriptor):
            raise CheckpointError(f"{run} was moved aside by another process at this moment. Run the command again.")
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        yield
    finally:
        # The file is not deleted: a second process may have opened it, and a third would lock a new one.
        if descriptor in _held_locks:
            _held_locks.remove(descriptor)
            os.close(descriptor)


def require_lockable(run: Path) -> None:
    """Raise CheckpointError if `lock_run` would, as far as this can be found out without writing."""
    import fcntl

    place = next(path for path in (run.absolute(), *run.absolute().parents) if path.exists())
    if not os.access(place, os.W_OK | os.X_OK):
        raise CheckpointError(f"{run}: {place} cannot be written to. Make it writable, or choose another --run-dir.")
    try:
        descriptor = os.open(run / ".lock", os.O_RDONLY)
    except FileNotFoundError:
        return
    except OSError as error:
        raise cannot_save(run / ".lock", error, needed=0) from error
    try:
        with contextlib.suppress(OSError):                                      # of a file system without locks
            try:
                fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                raise _in_use(run, descriptor) from None
    finally:
        os.close(descriptor)


def _in_use(run: Path, descriptor: int) -> CheckpointError:
    """The error that another process has the lock; descriptor: of its file, which names the process."""
    holder = os.pread(descriptor, 1000, 0).decode(errors="replace").strip() or "unknown"
    return CheckpointError(f"{run} is in use by process {holder}. Wait until it ends, stop it, or choose another "
                           "--run-dir.")


def _is_still(path: Path, descriptor: int) -> bool:
    """Return True if the path still refers to the open file."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
