"""Libraries of kernels: `kernels.cpp`, compiled by setup.py for each instruction set when the package is built.

setup.py runs this file, so the file imports only the standard library.
"""

from __future__ import annotations

from collections.abc import Set
from pathlib import Path

SOURCE = Path(__file__).with_name("kernels.cpp")
# -ffast-math is not used, because NaN and infinity must keep their meaning. With -fno-math-errno, `sqrt` is a single
# instruction.
COMPILER_FLAGS = ("-std=c++17", "-O3", "-fno-math-errno", "-fPIC", "-shared")

_AVX2 = {"avx2": "-mavx2", "fma": "-mfma"}
# By default, compilers use 256-bit vectors also if there are 512-bit vectors.
_AVX512 = _AVX2 | {"avx512f": "-mavx512f -mprefer-vector-width=512", "avx512bw": "-mavx512bw", "avx512dq": "-mavx512dq",
                   "avx512vl": "-mavx512vl", "avx512_vnni": "-mavx512vnni"}
# Instruction sets, the fastest first. Each maps the processor flags of Linux that the library needs to the compiler
# flags that enable these instructions. If Linux does not let a process use AMX, the library for AMX uses AVX-512.
INSTRUCTION_SETS = {
    "amx": _AVX512 | {"amx_tile": "-mamx-tile", "amx_int8": "-mamx-int8"},
    "avx512": _AVX512,
    "avxvnni": _AVX2 | {"avx_vnni": "-mavxvnni"},
    "avx2": _AVX2,
    "portable": {},
}


def library_path(instruction_set: str) -> Path:
    """Return the path of the library for an instruction set. Whether it exists depends on the compiler."""
    return SOURCE.with_name(f"kernels.{instruction_set}.so")


def usable_libraries(cpu_flags: Set[str]) -> list[Path]:
    """Return the libraries in this package that a processor with these flags can run, the fastest first."""
    return [path for name, needed in INSTRUCTION_SETS.items()
            if needed.keys() <= cpu_flags and (path := library_path(name)).exists()]
