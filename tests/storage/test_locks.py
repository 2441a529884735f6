"""Only one process can lock a run, and the lock of a process is released when it ends."""

import errno
import os
import signal
import sys
import time

import pytest

from seq2seq.errors import CheckpointError
from seq2seq.storage.locks import lock_if_free, lock_run, require_lockable
from seq2seq.translation.text_io import writing


def hold_lock(run):
    """Fork a child that locks the run and waits; returns its process id when it has the lock."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            with lock_run(run):
                os.write(writing, b"!")
                time.sleep(60)
        finally:
            os._exit(99)
    os.close(writing)
    assert os.read(reading, 1) == b"!"
    os.close(reading)
    return child


def test_a_second_process_is_told_which_process_holds_the_lock(tmp_path):
    child = hold_lock(tmp_path / "run")
    try:
        for refused in (lambda: lock_run(tmp_path / "run").__enter__(), lambda: require_lockable(tmp_path / "run")):
            with pytest.raises(CheckpointError, match=rf"in use by process {child} on "):
                refused()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    require_lockable(tmp_path / "run")
    with lock_run(tmp_path / "run"):                                            # the lock died with its process
        pass


def test_a_lock_is_free_again_after_use_and_after_an_error(tmp_path):
    for _ in range(2):
        with pytest.raises(ZeroDivisionError), lock_run(tmp_path):
            raise ZeroDivisionError
    with lock_run(tmp_path), pytest.raises(CheckpointError, match=str(os.getpid())), lock_run(tmp_path):
        pass


def test_a_run_that_is_renamed_while_it_is_locked_is_refused(tmp_path, monkeypatch):
    run = tmp_path / "run"
    opened = os.open

    def open_and_rename(path, *arguments, **options):
        descriptor = opened(path, *arguments, **options)
        if str(path).endswith(".lock") and not (tmp_path / "run.1").exists():
            run.rename(tmp_path / "run.1")
            run.mkdir()
        return descriptor

    monkeypatch.setattr(os, "open", open_and_rename)
    with pytest.raises(CheckpointError, match="was moved"), lock_run(run):
        pass


@pytest.mark.filterwarnings("ignore:.*lock")
def test_a_file_system_without_locks_is_no_reason_not_to_train(tmp_path, monkeypatch):
    def unsupported(descriptor, operation):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr("fcntl.flock", unsupported)
    for _ in range(2):
        with lock_run(tmp_path) as contents:
            assert str(os.getpid()) in contents


def test_a_file_where_the_run_should_be_is_an_error_that_names_it(tmp_path):
    (tmp_path / "run").write_text("not a directory")
    with pytest.raises(CheckpointError), lock_run(tmp_path / "run"):
        pass


def test_an_output_is_written_where_the_system_has_no_locks(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "fcntl", None)
    with writing(tmp_path / "out.txt") as output:
        output.file.write(b"text\n")
    assert (tmp_path / "out.txt").read_bytes() == b"text\n"


def test_a_lock_excludes_other_openings_of_the_file_until_it_is_closed(tmp_path):
    with (tmp_path / "lock").open("w") as first, (tmp_path / "lock").open("w") as second:
        assert lock_if_free(first.fileno()) and not lock_if_free(second.fileno())
        first.close()
        assert lock_if_free(second.fileno())
