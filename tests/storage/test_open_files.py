"""File operations on systems that lack a call of Linux. The tests imitate the lack, because they run on Linux."""

import errno
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from seq2seq.storage import open_files
from seq2seq.storage.atomic import replace_file
from seq2seq.storage.directories import read_with_retry, replace_directory, replace_json
from seq2seq.storage.locks import lock_run, require_lockable
from seq2seq.storage.open_files import lock_file, opened_directory, sync
from seq2seq.translation.text_io import writing

TESTS = Path(__file__).parents[1]
IMITATION = """\
import signal
import like_windows
from seq2seq.check.measure import _peak_of_process
from seq2seq.signals import SIGKILL, stopping_by_signal
assert SIGKILL == signal.SIGTERM and _peak_of_process() is None
with stopping_by_signal(max_seconds=5) as request:
    signal.raise_signal(signal.SIGINT)
assert request.number == signal.SIGINT
"""


@pytest.fixture
def without_fcntl(monkeypatch):
    monkeypatch.setitem(sys.modules, "fcntl", None)


def windows_calls(monkeypatch):
    """Let `os` refuse what Windows refuses: opening a directory, and syncing a file that is open for reading only."""
    real_open, real_sync = os.open, os.fsync
    read_only = set()

    def open_file(path, flags, *arguments, **keywords):
        assert "dir_fd" not in keywords, "Windows has no dir_fd"
        if os.path.isdir(path):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        descriptor = real_open(path, flags, *arguments, **keywords)
        (read_only.discard if flags & os.O_RDWR else read_only.add)(descriptor)
        return descriptor

    def sync_file(descriptor):
        if descriptor in read_only:
            raise OSError(errno.EBADF, "Bad file descriptor")
        real_sync(descriptor)

    monkeypatch.setattr(os, "open", open_file)
    monkeypatch.setattr(os, "fsync", sync_file)
    monkeypatch.setattr(os, "supports_dir_fd", set())
    monkeypatch.setattr("shutil._use_fd_functions", False)
    monkeypatch.setattr("seq2seq.storage.directories.exchange", lambda new, path: False)
    monkeypatch.setattr(open_files, "sys", SimpleNamespace(platform="win32"))


def test_a_run_is_locked_with_a_warning_where_there_are_no_locks(tmp_path, without_fcntl, caplog):
    with lock_run(tmp_path / "run"):
        require_lockable(tmp_path / "run")
    assert "cannot be locked" in caplog.text and "second training" in caplog.text


def test_an_output_is_written_where_there_are_no_locks(tmp_path, without_fcntl):
    with writing(tmp_path / "out.txt") as output:
        output.file.write(b"text\n")
    assert (tmp_path / "out.txt").read_bytes() == b"text\n"


def test_a_lock_excludes_other_openings_of_the_file_until_it_is_closed(tmp_path):
    with (tmp_path / "lock").open("w") as first, (tmp_path / "lock").open("w") as second:
        lock_file(first.fileno())
        with pytest.raises(BlockingIOError):
            lock_file(second.fileno())
        with pytest.raises(BlockingIOError):
            lock_file(second.fileno(), shared=True)
        first.close()
        lock_file(second.fileno())


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP])
def test_a_file_is_replaced_although_its_directory_cannot_be_synced(tmp_path, monkeypatch, number):
    real = os.fsync

    def fail_for_directories(descriptor):
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):
            raise OSError(number, os.strerror(number))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fail_for_directories)
    sync(tmp_path)
    with replace_directory(tmp_path / "new", None) as directory:
        replace_file(directory / "a", b"1")
    assert (tmp_path / "new/a").read_bytes() == b"1"


def test_a_full_disk_is_reported_also_for_directories(tmp_path, monkeypatch):
    def fail(descriptor):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="Input/output error"):
        sync(tmp_path)


def test_files_and_directories_are_replaced_with_the_calls_that_windows_has(tmp_path, monkeypatch):
    windows_calls(monkeypatch)
    for text in (b"1", b"2"):
        with replace_directory(tmp_path / "new", None) as directory:
            replace_file(directory / "a", text)
    with opened_directory(tmp_path / "new") as opened:
        replace_json(opened, "b.json", {"c": 3})
    assert read_with_retry(tmp_path / "new", lambda path: sorted(file.name for file in path.iterdir())) == [
        "a", "b.json"]
    assert (tmp_path / "new/a").read_bytes() == b"2" and (tmp_path / "new/b.json").read_bytes() == b'{\n  "c": 3\n}\n'


@pytest.mark.slow
def test_every_module_is_imported_without_the_calls_of_linux():
    result = subprocess.run([sys.executable, "-c", IMITATION], capture_output=True, text=True, timeout=120,
                            env=os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS.parent)])})
    assert result.returncode == 0, result.stderr[-2000:]
