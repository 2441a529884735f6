"""Training, translation and a server without the calls that only POSIX systems have."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from toy import RECIPE, write_corpus

# Run in a process of its own: first import the libraries, then take away what this system has and Windows lacks.
PROGRAM = """\
import asyncio, concurrent.futures, multiprocessing.connection, multiprocessing.pool, multiprocessing.spawn
import os, shutil, signal, sys, tempfile
import datasets, pydantic, pyarrow.parquet, rich.progress, ruamel.yaml, safetensors.torch, sentencepiece, torch, typer
import torch.utils.tensorboard, sacrebleu, uvicorn, starlette.applications

for module in ("fcntl", "resource", "termios", "tty", "pwd", "grp"):
    sys.modules[module] = None
for name in ("SIGHUP", "SIGALRM", "SIGKILL", "SIGUSR1", "SIGQUIT", "ITIMER_REAL", "setitimer", "pthread_sigmask"):
    delattr(signal, name)
for name in ("fork", "pread", "uname", "O_DIRECTORY", "O_NOFOLLOW", "geteuid", "getuid", "fchmod", "sched_getaffinity",
             "killpg", "mkfifo"):
    delattr(os, name)
os.supports_dir_fd = os.supports_fd = os.supports_follow_symlinks = set()
shutil._use_fd_functions = False                                  # as imported on Windows
real_open = os.open
def open_file(path, flags, mode=0o777, *, dir_fd=None):
    assert dir_fd is None, "Windows has no directory descriptors"
    if os.path.isdir(path):
        raise PermissionError(13, "Permission denied", path)
    return real_open(path, flags, mode)
os.open = open_file
sys.platform = "win32"

from seq2seq.cli import main

sys.exit(main(sys.argv[1:]))
"""


def run(directory, *arguments):
    done = subprocess.run([sys.executable, "-c", PROGRAM, *arguments], cwd=directory, capture_output=True, text=True,
                          env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.slow
def test_training_and_translating_need_no_call_that_windows_lacks(tmp_path):
    write_corpus(tmp_path)
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    run(tmp_path, "train", "recipe.yaml", "--run-dir", "run", "--set", "training.max_steps=5")
    run(tmp_path, "train", "recipe.yaml", "--run-dir", "run")                                   # resumes
    run(tmp_path, "translate", "run", "valid.en", "--output", "out")
    assert len((tmp_path / "out").read_text().splitlines()) == 7
    run(tmp_path, "evaluate", "run")
    run(tmp_path, "check", "recipe.yaml")
