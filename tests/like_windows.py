"""Imitates Windows in a process of its own: removes the calls that only POSIX systems have.

    python like_windows.py translate run valid.en       run a command of seq2seq
    import like_windows                                 every module of seq2seq has been imported without these calls
"""

import builtins
import importlib
import os
import pkgutil
import shutil
import signal
import sys

import seq2seq


def import_all():
    for module in pkgutil.walk_packages(seq2seq.__path__, "seq2seq."):
        if not module.name.endswith((".__main__", ".loss_kernel")):
            importlib.import_module(module.name)


# All packages are imported before the calls are removed, because other packages may need the calls. Then the modules of
# seq2seq are imported again.
import_all()
for name in ["asyncio", "concurrent.futures", "multiprocessing.connection", "multiprocessing.pool",
             "multiprocessing.spawn", "tempfile", "datasets", "pyarrow.parquet", "rich.progress",
             "torch.utils.tensorboard", "sacrebleu", "uvicorn", "starlette.applications"]:
    importlib.import_module(name)
for name in [name for name in sys.modules if name.startswith("seq2seq.")]:
    del sys.modules[name]
for name in ["fcntl", "resource", "termios", "tty", "pwd", "grp"]:
    sys.modules[name] = None
for module, names in ((os, "register_at_fork fork pread pwrite uname O_DIRECTORY O_NOFOLLOW sched_getaffinity geteuid "
                           "getuid fchmod killpg mkfifo"),
                      (signal, "SIGKILL SIGALRM SIGHUP SIGUSR1 SIGQUIT setitimer ITIMER_REAL pthread_sigmask")):
    for name in names.split():
        delattr(module, name)
os.supports_dir_fd = os.supports_fd = os.supports_follow_symlinks = set()
shutil._use_fd_functions = False                                                # as imported on Windows
_real_open = os.open


def _open(path, flags, mode=0o777, *, dir_fd=None):
    assert dir_fd is None, "Windows has no directory descriptors"
    if os.path.isdir(path):
        raise PermissionError(13, "Permission denied", path)
    return _real_open(path, flags, mode)


_real_builtin_open = builtins.open


def _open_file(file, *arguments, **keywords):
    assert not str(file).startswith(("/dev/", "/proc/")), f"Windows has no {file}"
    return _real_builtin_open(file, *arguments, **keywords)


os.open, builtins.open = _open, _open_file
sys.platform = "win32"
import_all()

if __name__ == "__main__":
    sys.exit(importlib.import_module("seq2seq.cli").main(sys.argv[1:]))
