"""Run code in child processes that are killed at a chosen file system operation."""

import os
import shutil
import signal
from pathlib import Path

import pytest
from safetensors import torch


def in_child(action):
    """Run action in a forked process; returns its exit code, 99 after an exception, or minus the signal."""
    child = os.fork()
    if child == 0:
        try:
            action()
            os._exit(0)
        finally:
            os._exit(99)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def die_at_operation(number, patch, death):
    """Call death instead of the number-th operation that changes the file system, before it or half-way through it."""
    remaining = number

    def watched(operation, do_half):
        def run(*arguments, **keywords):
            nonlocal remaining
            remaining -= 1
            if remaining == 0:
                if do_half:
                    do_half(*arguments)
                death()
            return operation(*arguments, **keywords)

        return run

    def half_written(tensors, path):
        Path(path).write_bytes(b"\x40\0\0\0\0\0\0\0{")

    def half_deleted(path, **_):
        if path.is_dir():
            next(path.iterdir()).unlink()

    patch.setattr(os, "fsync", watched(os.fsync, None))
    patch.setattr(os, "rename", watched(os.rename, None))
    patch.setattr(os, "replace", watched(os.replace, None))
    patch.setattr(Path, "mkdir", watched(Path.mkdir, None))
    patch.setattr(Path, "write_bytes", watched(Path.write_bytes, lambda path, data: path.touch()))
    patch.setattr(Path, "write_text", watched(Path.write_text, None))
    patch.setattr(shutil, "rmtree", watched(shutil.rmtree, half_deleted))
    patch.setattr(torch, "save_file", watched(torch.save_file, half_written))


def killed_at_operation(number, action):
    """Run action in a child process that is killed at this operation; returns False if it ended before."""

    def run():
        with pytest.MonkeyPatch.context() as patch:
            die_at_operation(number, patch, lambda: os.kill(os.getpid(), signal.SIGKILL))
            action()

    status = in_child(run)
    assert status in (0, -signal.SIGKILL)
    return status != 0
