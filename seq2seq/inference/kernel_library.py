"""Compile `kernels.cpp` for this processor, check the library in a separate process, and cache it."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import signal
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
from seq2seq.signals import signal_name

SOURCE = Path(__file__).with_name("kernels.cpp")
# No -ffast-math, so that NaN and infinity keep their meaning; but `sqrt` need not set errno.
FLAGS = ("-std=c++17", "-O3", "-march=native", "-fno-math-errno", "-fopenmp", "-fPIC")
# Use 512-bit vectors if the processor has them; the compiler's default is 256.
WIDE = ("-mprefer-vector-width=512",) if platform.machine() in ("x86_64", "AMD64") else ()
# Seconds after which a self-check counts as hung; it takes two on an idle core.
CHECK_SECONDS = 120


class CompilationError(Exception):
    """The kernels cannot be compiled or used; the message gives the reason."""


def library(directory: Path | None = None) -> Path:
    """Return the path of the compiled and checked kernels; compile them if they are not in the cache.

    A library that fails its check is not kept; a `.refused` file with the reason saves the next process the attempt.
    Of several processes that start together, one compiles and the others wait.

    Args:
        directory: the cache; None: the user's.
    Raises:
        CompilationError: there is no compiler, it fails, or the library fails the self-check or cannot be saved.
    """
    compiler = next(filter(None, map(shutil.which, (os.environ.get("CXX", "c++"), "g++", "clang++"))), None)
    if compiler is None:
        raise CompilationError("there is no C++ compiler (c++, g++ or clang++)")
    version = _run(compiler, "--version")
    # Everything that the library depends on: source, self-check, flags, compiler and processor.
    texts = (SOURCE, Path(kernel_check.__file__), Path(kernel_reference.__file__))
    made_of = (*(path.read_text(encoding="utf-8") for path in texts), *FLAGS, *WIDE, version, platform.machine(),
               *sorted(cpu_flags()))
    cache = directory or _cache()
    compiled = cache / f"kernels-{hashlib.sha256(chr(0).join(made_of).encode()).hexdigest()[:16]}.so"
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
                made = Path(temporary) / "kernels.so"
                with console.progress("compiling and checking kernels", kernel_check.SHAPES + COMPILING) as advance:
                    _run(compiler, str(SOURCE), "-shared", "-o", str(made), *FLAGS, *WIDE, directory=temporary)
                    advance(COMPILING)
                    if fault := self_check(made, advance):
                        message = (f"{Path(compiler).name} ({version.partition(chr(10))[0]}) made kernels that fail "
                                   f"their self-check: {fault.text}. Another compiler can be named in CXX.")
                        if fault.lasting:
                            refused.write_text(message, encoding="utf-8")
                        raise CompilationError(message)
                with made.open("rb") as file:
                    os.fsync(file.fileno())                                     # loading a truncated file crashes
                os.replace(made, compiled)
    except OSError as error:
        raise CompilationError(f"the kernels cannot be kept in {cache} and loaded from there: {error}") from error
    return compiled


# Length of compiling in the progress bar, in checked shapes.
COMPILING = 120


class CheckFault(NamedTuple):
    """Result of a failed self-check. lasting: certainly a fault of the library, not of a busy machine."""

    text: str
    lasting: bool = True


def self_check(made: Path, advance: console.Advance = lambda amount, news="": None) -> CheckFault | None:
    """Check a library in a child process, which may crash or hang. Returns None if it passes."""
    root = str(Path(__file__).parents[2])
    path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    # With many rows the functions use threads; two of them are checked.
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "2"}
    with tempfile.TemporaryFile() as output:
        child = subprocess.Popen([sys.executable, "-m", "seq2seq.inference.kernel_check", str(made)], stdout=output,
                                 stderr=output, env=environment)
        deadline, shown = time.monotonic() + CHECK_SECONDS, 0
        try:
            while child.poll() is None and time.monotonic() < deadline:
                time.sleep(0.02)
                lines = _lines_of(output)
                advance(len(lines) - shown)
                shown = len(lines)
            if child.poll() is None:
                return CheckFault(f"it did not end within {CHECK_SECONDS} seconds", lasting=False)
        finally:
            child.kill()
            child.wait()
        lines = _lines_of(output)
    if child.returncode == 0:
        return None
    if child.returncode < 0:
        return CheckFault(f"it was ended by {signal_name(-child.returncode)}",
                          lasting=child.returncode != -signal.SIGKILL)
    return CheckFault(lines[-1] if lines else f"exit code {child.returncode}", lasting=bool(lines))


def _lines_of(output: IO[bytes]) -> list[str]:
    return os.pread(output.fileno(), 1 << 20, 0).decode(errors="replace").splitlines()


def _loads(library: Path) -> bool:
    """Return True if the library exists and can be loaded."""
    with suppress(OSError):
        ctypes.CDLL(str(library))
        return True
    return False


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock against other processes; on file systems without locks, none waits and the last one wins."""
    import fcntl

    with path.open("w") as file:
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _run(compiler: str, *arguments: str, directory: str | None = None) -> str:
    """Run the compiler and return its standard output, in English."""
    try:
        return subprocess.run([compiler, *arguments], cwd=directory, capture_output=True, text=True, errors="replace",
                              env={**os.environ, "LC_ALL": "C"}, check=True).stdout
    except subprocess.CalledProcessError as error:
        complaint = next((line for line in error.stderr.splitlines() if "error" in line), error.stderr.strip())
        raise CompilationError(f"{compiler} cannot compile the kernels: {complaint}") from error
    except OSError as error:
        raise CompilationError(f"{compiler} cannot be run: {error.strerror}") from error


def _cache() -> Path:
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "seq2seq"
    except RuntimeError as error:
        raise CompilationError("there is no home directory to keep the kernels in; set XDG_CACHE_HOME") from error
