"""Imitates Windows in a process of its own: removes the calls that only POSIX systems have, and refuses to move or
delete files in use.

    python like_windows.py translate run valid.en       run a command of seq2seq
    import like_windows                                 every module of seq2seq has been imported without these calls
"""

import builtins
import contextlib
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


def _in_use():
    """Yield the paths of the files that this process has opened or mapped into its memory."""
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            yield os.readlink(f"/proc/self/fd/{descriptor}")
    with _real_builtin_open("/proc/self/maps") as maps:
        yield from (line.split(maxsplit=5)[5].rstrip("\n") for line in maps if "/" in line)


def _without_open_files(function):
    """Return a function that moves or deletes a path, but refuses files in use, and directories with such files."""
    def checked(path, *others, **keywords):
        for moved in [path, *others]:
            real = os.path.realpath(moved)
            for used in _in_use():
                if used == real or used.startswith(f"{real}/"):
                    raise PermissionError(13, "The file is in use by this process", str(path), None, used)
        if function is _real_rename and os.path.lexists(others[0]):
            raise FileExistsError(17, "File exists", str(path), None, str(others[0]))
        return function(path, *others, **keywords)
    return checked


_real_rename = os.rename
for name in ("rename", "replace", "unlink", "remove", "rmdir"):
    setattr(os, name, _without_open_files(getattr(os, name)))
os.open, builtins.open = _open, _open_file
sys.platform = "win32"
import_all()

if __name__ == "__main__":
    sys.exit(importlib.import_module("seq2seq.cli").main(sys.argv[1:]))
