"""Files are replaced atomically and directories are written once, also on systems that lack a call of Linux."""

import errno
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from dying import die_at_operation, killed_at_operation

from seq2seq.errors import CheckpointError, OptionError
from seq2seq.storage import atomic
from seq2seq.storage.atomic import delete_temporary, free_path, new_directory, replace_file, sync, temporary_path

TESTS = Path(__file__).parents[1]
IMITATION = """\
import signal
import like_windows
from seq2seq.devices import process_memory
from seq2seq.signals import SIGKILL, stopping_by_signal
assert SIGKILL == signal.SIGTERM and process_memory() is None
with stopping_by_signal(max_seconds=5) as request:
    signal.raise_signal(signal.SIGINT)
assert request.number == signal.SIGINT
"""


def names_in(directory):
    return sorted(path.name for path in directory.iterdir())


def write(path, text):
    with new_directory(path) as directory:
        (directory / "a").write_text(text)


def test_a_file_has_its_old_contents_or_its_new_ones_wherever_the_process_is_killed(tmp_path):
    path, found = tmp_path / "recipe.yaml", []
    while True:
        path.write_bytes(b"old")
        if not killed_at_operation(len(found) + 1, lambda: replace_file(path, b"new")):
            break
        found.append(path.read_bytes())
    assert {*found} == {b"old", b"new"}
    delete_temporary(tmp_path)
    assert names_in(tmp_path) == ["recipe.yaml"]


def test_a_directory_is_complete_or_missing_wherever_the_process_is_killed(tmp_path):
    path, found = tmp_path / "new", []
    while killed_at_operation(len(found) + 1, lambda: write(path, "new")):
        found.append((path / "a").read_text() if path.exists() else "missing")
        delete_temporary(tmp_path)
        assert names_in(tmp_path) == (["new"] if path.exists() else [])
        atomic.delete(path)
    assert {*found} == {"missing", "new"}


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()], ids=repr)
def test_after_an_error_a_directory_is_complete_or_missing(tmp_path, error):
    def fail():
        raise error

    failures = 0
    while True:
        with pytest.MonkeyPatch.context() as patch:
            die_at_operation(failures + 1, patch, fail)
            try:
                write(tmp_path / "new", "new")
                break
            except (CheckpointError, KeyboardInterrupt):
                failures += 1
        assert names_in(tmp_path) in ([], ["new"])
        atomic.delete(tmp_path / "new")
    assert failures >= 5 and (tmp_path / "new" / "a").read_text() == "new"


def test_what_exists_is_never_replaced(tmp_path):
    (tmp_path / "empty").mkdir()
    write(tmp_path / "empty", "1")
    (tmp_path / "file").write_text("mine")
    (tmp_path / "pipe").mkdir()
    os.mkfifo(tmp_path / "pipe" / "x")
    for name in ("empty", "file", "pipe"):
        with pytest.raises(OptionError):
            write(tmp_path / name, "2")
    assert (tmp_path / "empty" / "a").read_text() == "1" and (tmp_path / "file").read_text() == "mine"
    assert names_in(tmp_path) == ["empty", "file", "pipe"]


def test_a_directory_that_appears_while_it_is_written_is_not_replaced(tmp_path):
    with pytest.raises(CheckpointError), new_directory(tmp_path / "new") as directory:
        (directory / "a").write_text("ours")
        (tmp_path / "new").mkdir()
        (tmp_path / "new" / "b").write_text("theirs")
    assert names_in(tmp_path) == ["new"] and names_in(tmp_path / "new") == ["b"]


def test_a_path_that_is_taken_gets_a_number(tmp_path):
    assert free_path(tmp_path / "a") == tmp_path / "a"
    for name in ("a", "a-2"):
        (tmp_path / name).mkdir()
    (tmp_path / "a-3").symlink_to("nowhere")
    assert free_path(tmp_path / "a") == tmp_path / "a-4"


def test_a_link_is_replaced_and_its_target_is_not_changed(tmp_path):
    (tmp_path / "target").write_text("mine")
    (tmp_path / "link").symlink_to("target")
    replace_file(tmp_path / "link", b"new")
    assert (tmp_path / "link").read_bytes() == b"new" and not (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_text() == "mine"


@pytest.mark.parametrize("exists", [True, False])
def test_a_directory_is_written_where_a_link_leads(tmp_path, exists):
    if exists:
        (tmp_path / "elsewhere").mkdir()
    (tmp_path / "place").symlink_to("elsewhere")
    write(tmp_path / "place", "new")
    assert (tmp_path / "place").is_symlink() and (tmp_path / "elsewhere" / "a").read_text() == "new"


def test_temporary_names_are_different_each_time_and_only_they_are_deleted(tmp_path):
    path = tmp_path / "a[1].txt"
    assert temporary_path(path) != temporary_path(path)
    for own in (path, tmp_path / "other"):
        temporary_path(own).symlink_to(tmp_path / "mine")
    for name in ("mine", ".a[1].txt.tmp", ".a[1].txt.notes.tmp"):
        (tmp_path / name).touch()
    delete_temporary(tmp_path, path.name)
    assert len(names_in(tmp_path)) == 4
    delete_temporary(tmp_path)
    assert names_in(tmp_path) == [".a[1].txt.notes.tmp", ".a[1].txt.tmp", "mine"]


def test_an_error_leaves_the_old_contents_and_nothing_else(tmp_path):
    def fail(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    replace_file(tmp_path / "file", b"old")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(OSError):
            replace_file(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"old" and names_in(tmp_path) == ["file"]


# Systems that lack a call of Linux


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP])
def test_files_are_replaced_although_their_directory_cannot_be_synced(tmp_path, monkeypatch, number):
    real = os.fsync

    def fail_for_directories(descriptor):
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):
            raise OSError(number, os.strerror(number))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fail_for_directories)
    write(tmp_path / "new", "1")
    replace_file(tmp_path / "new" / "b", b"2")
    assert names_in(tmp_path / "new") == ["a", "b"]


def test_an_error_of_the_disk_is_reported_also_for_directories(tmp_path, monkeypatch):
    def fail(descriptor):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError):
        sync(tmp_path)


def test_files_and_directories_are_replaced_with_the_calls_that_windows_has(tmp_path, monkeypatch):
    real_open, real_sync, read_only = os.open, os.fsync, set()

    def open_file(path, flags, *arguments):
        if os.path.isdir(path):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        descriptor = real_open(path, flags, *arguments)
        (read_only.discard if flags & os.O_RDWR else read_only.add)(descriptor)
        return descriptor

    def sync_file(descriptor):
        if descriptor in read_only:
            raise OSError(errno.EBADF, "Bad file descriptor")
        real_sync(descriptor)

    monkeypatch.setattr(os, "open", open_file)
    monkeypatch.setattr(os, "fsync", sync_file)
    monkeypatch.setattr("shutil._use_fd_functions", False)
    monkeypatch.setattr(atomic, "sys", SimpleNamespace(platform="win32"))
    write(tmp_path / "new", "1")
    for contents in (b"2", b"3"):
        replace_file(tmp_path / "new" / "b", contents)
    assert (tmp_path / "new/b").read_text() == "3" and names_in(tmp_path / "new") == ["a", "b"]


@pytest.mark.slow
def test_every_module_is_imported_without_the_calls_of_linux():
    result = subprocess.run([sys.executable, "-c", IMITATION], capture_output=True, text=True, timeout=120,
                            env=os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS), os.environ["PYTHONPATH"]])})
    assert result.returncode == 0, result.stderr[-2000:]
