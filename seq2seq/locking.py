"""The lock that keeps a run to one process."""

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


# A forked worker shares the lock, and one that outlived a killed training would keep the run locked.
os.register_at_fork(after_in_child=_drop_locks)


@contextmanager
def lock_run(run: Path) -> Iterator[None]:
    """Keep a run to one process; the lock goes with the process, however that ends.

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
            holder = os.pread(descriptor, 1000, 0).decode(errors="replace").strip() or "unknown"
            raise CheckpointError(
                f"{run} is in use by process {holder}. Wait until it ends, stop it, or choose another --run-dir."
            ) from None
        except OSError as error:
            # Some network file systems know no locks; that is no reason not to train there.
            logger.warning("%s cannot be locked (%s): do not train in it twice at once.", run, error.strerror)
        if not _is_still(path, descriptor):
            raise CheckpointError(f"{run} was moved aside by another process at this moment. Run the command again.")
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        yield
    finally:
        # The file stays: deleting it would let a third process lock a file that a second one still waits with.
        if descriptor in _held_locks:
            _held_locks.remove(descriptor)
            os.close(descriptor)


def _is_still(path: Path, descriptor: int) -> bool:
    """Whether the name still leads to the open file."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
