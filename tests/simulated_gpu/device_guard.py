"""The device guard that lets a CPU build of PyTorch have tensors on `cuda:0`: compiled once, loaded before torch.

As a pytest plugin (`-p device_guard`) it loads the library that the environment variable LIBRARY names.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).with_suffix(".cpp")
LIBRARY = "SIMULATED_GPU_LIBRARY"


def compiler() -> str | None:
    """Return the path of a C++ compiler; None if there is none."""
    return shutil.which("g++") or shutil.which("c++")


def compile_guard(library: Path) -> None:
    """Compile the device guard in some two seconds. Raises CalledProcessError with the compiler's message."""
    torch = _torch()
    command = [compiler(), "-std=c++20", "-O0", "-shared", "-fPIC", f"-I{torch / 'include'}", SOURCE, "-o", library,
               f"-L{torch / 'lib'}", "-ltorch_cpu", "-lc10"]
    subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True)


def load_guard(library: str | Path) -> None:
    """Load the device guard, which must happen before torch asks for CUDA for the first time."""
    assert "torch" not in sys.modules, "the device guard is loaded before torch"
    ctypes.CDLL(str(_torch() / "lib" / "libtorch_cpu.so"), mode=ctypes.RTLD_GLOBAL)
    ctypes.CDLL(str(library))


def _torch() -> Path:
    """Return the directory of torch, without importing it."""
    found = importlib.util.find_spec("torch")
    assert found is not None and found.origin is not None
    return Path(found.origin).parent


if LIBRARY in os.environ:
    load_guard(os.environ[LIBRARY])
