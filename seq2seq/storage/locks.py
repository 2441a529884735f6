"""Lock of a run directory."""

import contextlib
import logging
import os
import socket
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from seq2seq.errors import CheckpointError
from seq2seq.storage.directories import cannot_save, make_directories

LOCK = ".lock"

logger = logging.getLogger(__name__)

_held_locks: set[int] = set()


def _drop_locks() -> None:
    for descriptor in _held_locks:
        os.close(descriptor)
    _held_locks.clear()


# A forked worker inherits the lock; one that outlives a killed training would keep the run locked.
os.register_at_fork(after_in_child=_drop_locks)


@contextmanager
def lock_run(run: Path, provisional: Collection[str] = ()) -> Iterator[None]:
    """Lock a run for this process. The lock is released when the process ends, however it ends.

    Where the block raises an exception and the run was new, the lock's file and the directories made for it are
    removed, unless the block has left more there than `provisional` files, which are removed too.

    Raises:
        CheckpointError: another process has it (the message names its id), or the directory cannot be written.
    """
    import fcntl

    path = Path(run) / LOCK
    missing = [place for place in (path.parent, *path.parent.parents) if not place.exists()]
    try:
        new = bool(missing) or not any(path.parent.iterdir())
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
            raise CheckpointError(f"{run} was moved or removed by another process at this moment. Run the command "
                                  "again.")
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        try:
            yield
        except BaseException:
            if new and descriptor in _held_locks:                               # not in a forked process
                _take_back(path, missing, provisional)
            raise
    finally:
        # The file is not deleted: a second process may have opened it, and a third would lock a new one.
        if descriptor in _held_locks:
            _held_locks.remove(descriptor)
            os.close(descriptor)


def _take_back(path: Path, directories: Iterable[Path], provisional: Collection[str]) -> None:
    """Remove a lock's file, which is still locked, and what goes with it; nothing where there is more in the run.

    A process that has opened the file meanwhile finds that it is gone as soon as it has locked it.

    Args:
        directories: that were made for it, the innermost first.
    """
    with contextlib.suppress(OSError):                                          # it does no harm if it stays
        if {entry.name for entry in path.parent.iterdir()} <= {path.name, *provisional}:
            for name in (*provisional, path.name):
                path.with_name(name).unlink(missing_ok=True)
            for directory in directories:
                directory.rmdir()


def require_lockable(run: Path) -> None:
    """Raise CheckpointError if `lock_run` would, as far as this can be found out without writing."""
    import fcntl

    place = next(path for path in (run.absolute(), *run.absolute().parents) if path.exists())
    if not os.access(place, os.W_OK | os.X_OK):
        raise CheckpointError(f"{run}: {place} cannot be written to. Make it writable, or choose another --run-dir.")
    try:
        descriptor = os.open(run / LOCK, os.O_RDWR)                          # as `lock_run` opens it
    except FileNotFoundError:
        return
    except OSError as error:
        raise cannot_save(run / LOCK, error, needed=0) from error
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
