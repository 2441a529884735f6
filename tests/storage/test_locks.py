"""Only one process can lock a run, and the lock of a process is released when it ends."""

import errno
import logging
import os
import signal
import sys
import time

import pytest

from seq2seq.errors import CheckpointError
from seq2seq.storage.locks import lock_file, lock_run, require_lockable
from seq2seq.translation.text_io import writing


def hold_lock(run, then):
    """Fork a child that locks the run and then calls `then`; returns its process id when it has the lock."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            with lock_run(run):
                os.write(writing, b"!")
                then()
            os._exit(0)
        finally:
            os._exit(99)
    os.close(writing)
    assert os.read(reading, 1) == b"!"
    os.close(reading)
    return child


def test_a_second_process_is_told_which_process_holds_the_lock(tmp_path):
    child = hold_lock(tmp_path / "run", lambda: time.sleep(60))
    try:
        with pytest.raises(CheckpointError, match=rf"in use by process {child} on "), lock_run(tmp_path / "run"):
            pass
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    with lock_run(tmp_path / "run"):  # the lock died with its process
        pass


def test_a_lock_is_free_again_after_use_and_after_an_error(tmp_path):
    for _ in range(2):
        with pytest.raises(ZeroDivisionError), lock_run(tmp_path):
            raise ZeroDivisionError
    with lock_run(tmp_path), pytest.raises(CheckpointError, match=str(os.getpid())), lock_run(tmp_path):
        pass


def test_a_process_that_opened_a_removed_lock_is_refused(tmp_path, monkeypatch):
    run = tmp_path / "run"
    opened = os.open

    def open_and_lose(path, *arguments):
        descriptor = opened(path, *arguments)
        if str(path).endswith(".lock"):
            os.unlink(path)
        return descriptor

    monkeypatch.setattr(os, "open", open_and_lose)
    with pytest.raises(CheckpointError), lock_run(run):
        pass


def test_a_worker_that_outlives_its_killed_parent_does_not_keep_the_lock(tmp_path):
    started, ended = os.pipe(), os.pipe()

    def start_worker():
        if os.fork() == 0:
            os.write(started[1], b"!")
            os.read(ended[0], 1)
            os._exit(0)
        time.sleep(60)

    child = hold_lock(tmp_path, start_worker)
    os.read(started[0], 1)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    try:
        with lock_run(tmp_path):
            pass
    finally:
        os.write(ended[1], b"!")
        for end in (*started, *ended):
            os.close(end)


def test_a_file_system_without_locks_is_no_reason_not_to_train(tmp_path, monkeypatch, caplog):
    def unsupported(descriptor, operation):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr("fcntl.flock", unsupported)
    with caplog.at_level(logging.WARNING), lock_run(tmp_path):
        pass
    assert "cannot be locked (Function not implemented)" in caplog.text


def test_a_file_where_the_run_should_be_is_an_error_that_names_it(tmp_path):
    (tmp_path / "run").write_text("not a directory")
    with pytest.raises(CheckpointError), lock_run(tmp_path / "run"):
        pass


def test_a_run_is_locked_with_a_warning_where_the_system_has_no_locks(tmp_path, monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "fcntl", None)
    with lock_run(tmp_path / "run"):
        require_lockable(tmp_path / "run")
    assert "cannot be locked" in caplog.text
    with writing(tmp_path / "out.txt") as output:
        output.file.write(b"text\n")
    assert (tmp_path / "out.txt").read_bytes() == b"text\n"


def test_a_lock_excludes_other_openings_of_the_file_until_it_is_closed(tmp_path):
    with (tmp_path / "lock").open("w") as first, (tmp_path / "lock").open("w") as second:
        lock_file(first.fileno())
        for shared in (False, True):
            with pytest.raises(BlockingIOError):
                lock_file(second.fileno(), shared=shared)
        first.close()
        lock_file(second.fileno())
