"""Compile `kernels.cpp` for this processor, check the library in a separate process, and cache the library."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, NamedTuple

from seq2seq import console
from seq2seq.devices import cpu_flags
from seq2seq.inference import kernel_check, kernel_reference
from seq2seq.signals import SIGKILL, signal_name
from seq2seq.storage.locks import lock_file

SOURCE = Path(__file__).with_name("kernels.cpp")
# -ffast-math is not used, because NaN and infinity must keep their meaning. With -fno-math-errno, `sqrt` is a single
# instruction.
FLAGS = ("-std=c++17", "-O3", "-march=native", "-fno-math-errno", "-fopenmp", "-fPIC")
# Use 512-bit vectors if the processor has them. Without this flag, compilers use 256-bit vectors.
WIDE = ("-mprefer-vector-width=512",) if platform.machine() in ("x86_64", "AMD64") else ()
# Time limit of the self-check in seconds. On an idle core, the self-check takes two seconds.
CHECK_SECONDS = 120


class CompilationError(Exception):
    """The kernels cannot be compiled or used. The message contains the reason."""


def library(directory: Path | None = None) -> Path:
    """Return the path of the compiled and checked kernels; compile them if they are not in the cache.

    A library that fails its self-check is deleted. If the fault is reproducible, it is saved in a file with the suffix
    `.refused`, and later processes raise CompilationError with the saved text instead of compiling again. If several
    processes start at the same time, one of them compiles the kernels, and the others wait.

    Args:
        directory: directory of the cache; None: the user's cache directory.
    Raises:
        CompilationError: the system is Windows, there is no compiler, the compiler fails, or the library fails the
            self-check or cannot be saved or loaded.
    """
    if sys.platform == "win32":
        raise CompilationError("the kernels are compiled on Linux and macOS only")
    compiler = next(filter(None, map(shutil.which, (os.environ.get("CXX", "c++"), "g++", "clang++"))), None)
    if compiler is None:
        raise CompilationError("there is no C++ compiler (c++, g++ or clang++)")
    version = _run(compiler, "--version")
    # The file name contains a hash of the sources, the compiler flags, the compiler's version and the processor.
    sources = (SOURCE, Path(kernel_check.__file__), Path(kernel_reference.__file__))
    inputs = (*(path.read_text(encoding="utf-8") for path in sources), *FLAGS, *WIDE, version, platform.machine(),
              *sorted(cpu_flags()))
    cache = directory or _cache_directory()
    compiled = cache / f"kernels-{hashlib.sha256(chr(0).join(inputs).encode()).hexdigest()[:16]}.so"
    if _loads(compiled):
        return compiled
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with _locked(compiled.with_suffix(".lock")):
            if _loads(compiled):                                                # another process has compiled it
                return compiled
            refused = compiled.with_suffix(".refused")
            if refused.exists():
                raise CompilationError(refused.read_text(encoding="utf-8"))
            with tempfile.TemporaryDirectory(dir=cache) as temporary:
                unchecked = Path(temporary) / "kernels.so"
                steps = kernel_check.SHAPES + COMPILATION_STEPS
                with console.progress("compiling and checking kernels", steps) as advance:
                    _run(compiler, str(SOURCE), "-shared", "-o", str(unchecked), *FLAGS, *WIDE, directory=temporary)
                    advance(COMPILATION_STEPS)
                    if fault := self_check(unchecked, advance):
                        message = (f"the kernels compiled by {Path(compiler).name} ({version.partition(chr(10))[0]}) "
                                   f"fail their self-check: {fault.text}. To use another compiler, set the environment "
                                   "variable CXX.")
                        if fault.reproducible:
                            refused.write_text(message, encoding="utf-8")
                        raise CompilationError(message)
                with unchecked.open("rb") as file:
                    os.fsync(file.fileno())                                     # loading a truncated library crashes
                os.replace(unchecked, compiled)
    except OSError as error:
        raise CompilationError(f"the kernels cannot be saved in {cache} or loaded from there: {error}") from error
    return compiled


# Number of steps of the progress bar for the compilation. The check of each shape is one step.
COMPILATION_STEPS = 120


class CheckFault(NamedTuple):
    """Result of a failed self-check.

    text: the fault. reproducible: False = a busy machine may have caused the fault; the library may be correct.
    """

    text: str
    reproducible: bool = True


def self_check(library: Path, advance: console.Advance = lambda amount, news="": None) -> CheckFault | None:
    """Check a library in a child process, because the check may crash or hang. Return None if the library passes."""
    root = str(Path(__file__).parents[2])
    path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    # With two threads, the self-check also runs the parallel loops.
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "2"}
    with tempfile.TemporaryFile() as output:
        child = subprocess.Popen([sys.executable, "-m", "seq2seq.inference.kernel_check", str(library)], stdout=output,
                                 stderr=output, env=environment)
        deadline, checked = time.monotonic() + CHECK_SECONDS, 0
        try:
            while child.poll() is None and time.monotonic() < deadline:
                time.sleep(0.02)
                lines = _read_lines(output)
                advance(len(lines) - checked)
                checked = len(lines)
            if child.poll() is None:
                return CheckFault(f"the check did not end within {CHECK_SECONDS} seconds", reproducible=False)
        finally:
            child.kill()
            child.wait()
        lines = _read_lines(output)
    if child.returncode == 0:
        return None
    if child.returncode < 0:
        return CheckFault(f"the check was ended by {signal_name(-child.returncode)}",
                          reproducible=child.returncode != -SIGKILL)
    return CheckFault(lines[-1] if lines else f"exit code {child.returncode}", reproducible=bool(lines))


def _read_lines(output: IO[bytes]) -> list[str]:
    return os.pread(output.fileno(), 1 << 20, 0).decode(errors="replace").splitlines()


def _loads(library: Path) -> bool:
    """Return True if the library exists and can be loaded."""
    with suppress(OSError):
        ctypes.CDLL(str(library))
        return True
    return False


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Lock a file; if another process holds the lock, wait until it is free.

    On a file system without locks, processes that start together all compile the library; the last result is kept.
    """
    with path.open("w") as file:
        with suppress(OSError):
            lock_file(file.fileno(), wait=True)
        yield


def _run(compiler: str, *arguments: str, directory: str | None = None) -> str:
    """Run the compiler and return its standard output. LC_ALL=C makes its messages English, so "error" can be found."""
    try:
        return subprocess.run([compiler, *arguments], cwd=directory, capture_output=True, text=True, errors="replace",
                              env={**os.environ, "LC_ALL": "C"}, check=True).stdout
    except subprocess.CalledProcessError as error:
        message = next((line for line in error.stderr.splitlines() if "error" in line), error.stderr.strip())
        raise CompilationError(f"{compiler} cannot compile the kernels: {message}") from error
    except OSError as error:
        raise CompilationError(f"{compiler} cannot be run: {error.strerror}") from error


def _cache_directory() -> Path:
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "seq2seq"
    except RuntimeError as error:
        raise CompilationError("there is no home directory in which to save the kernels; set XDG_CACHE_HOME") from error
