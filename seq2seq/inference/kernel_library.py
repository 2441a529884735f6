"""Libraries of kernels: `kernels.cpp`, compiled by setup.py for each precision and instruction set when the package is
built, and the signatures of their functions for ctypes.

setup.py runs this file, so the file imports only the standard library.
"""

from __future__ import annotations

import ctypes
import hashlib
import platform
from collections.abc import Mapping, Set
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).with_name("kernels.cpp")
# -ffast-math is not used, because NaN and infinity must keep their meaning. With -fno-math-errno, `sqrt` is a single
# instruction.
COMPILER_FLAGS = ("-std=c++17", "-O3", "-fno-math-errno", "-fPIC", "-shared")
# Additional flags of MinGW's g++. Windows aligns the stack to 16 bytes only, and g++ may move vectors of 32 and 64
# bytes there by instructions that need more (GCC bug 54412). With the second flag, no move needs alignment.
MINGW_FLAGS = ("-static", "-Wa,-muse-unaligned-vector-move")

_AVX2 = {"avx2": "-mavx2", "fma": "-mfma"}
# By default, compilers use 256-bit vectors also if there are 512-bit vectors.
_AVX512 = _AVX2 | {"avx512f": "-mavx512f -mprefer-vector-width=512", "avx512bw": "-mavx512bw", "avx512dq": "-mavx512dq",
                   "avx512vl": "-mavx512vl"}
_VNNI = _AVX512 | {"avx512_vnni": "-mavx512vnni"}
_DOTPROD = {"asimddp": "-march=armv8.2-a+dotprod"}
# Instruction sets of each kind of processor, named as in `platform.machine()`; the fastest first. Each maps the
# processor flags of Linux that the library needs to the compiler flags that enable these instructions. If Linux does
# not let a process use AMX, the library for AMX uses AVX-512. Of two -march, compilers use the second.
PROCESSORS = {
    "x86_64": {
        "amx": _VNNI | {"amx_tile": "-mamx-tile", "amx_int8": "-mamx-int8"},
        "avx512": _VNNI,
        "avxvnni": _AVX2 | {"avx_vnni": "-mavxvnni"},
        "avx2": _AVX2,
    },
    "aarch64": {
        "i8mm": _DOTPROD | {"i8mm": "-march=armv8.2-a+dotprod+i8mm"},
        "dotprod": _DOTPROD,
    },
}
# In fp32, the other instruction sets would give the same code as one of these.
FP32_PROCESSORS = {"x86_64": {"avx512-fp32": _AVX512, "avx2-fp32": _AVX2}}


def instruction_sets(machine: str) -> dict[str, dict[str, dict[str, str]]]:
    """Return the instruction sets of a kind of processor by precision, the fastest first. "portable" is what the
    compiler assumes of the processor: on macOS, whose name for aarch64 is arm64, with dot products, which all of
    Apple's processors for it have.

    machine: as in `platform.machine()`, which is AMD64 for x86_64 on Windows.
    """
    machine = "x86_64" if machine.lower() == "amd64" else machine
    return {"int8": {**PROCESSORS.get(machine, {}), "portable": {}},
            "fp32": {**FP32_PROCESSORS.get(machine, {}), "portable-fp32": {}}}


INSTRUCTION_SETS = instruction_sets(platform.machine())
"""Instruction sets of this machine."""


def library_path(instruction_set: str) -> Path:
    """Return the path of the library for an instruction set. Whether it exists depends on the compiler."""
    return SOURCE.with_name(f"kernels.{instruction_set}.so")


def checksum_path(library: Path) -> Path:
    """Return the path of the file with the sha256 of a library. setup.py writes it when it has built the library."""
    return library.with_name(f"{library.name}.sha256")


class DamagedLibrary(OSError):
    """A library that differs from the one that was built. Calling it could crash the process, or translate wrongly."""


def require_intact(library: Path) -> None:
    """Raise DamagedLibrary if a library does not have the checksum that was written when it was built."""
    checksum = checksum_path(library)
    try:
        if hashlib.sha256(library.read_bytes()).hexdigest() == checksum.read_text(encoding="ascii").strip():
            return
    except (OSError, UnicodeDecodeError) as error:
        raise DamagedLibrary(f"{library} cannot be compared with its checksum {checksum.name}: {error}.") from error
    raise DamagedLibrary(f"{library} is damaged: its checksum is not the one in {checksum.name}.")


def compiler_flags(precision: str, needed: Mapping[str, str]) -> list[str]:
    """Return the flags that compile a library. needed: its entry in INSTRUCTION_SETS."""
    return [*COMPILER_FLAGS, *["-DFLOAT32"] * (precision == "fp32"), *" ".join(needed.values()).split()]


def usable_libraries(cpu_flags: Set[str], precision: str = "int8") -> list[Path]:
    """Return the libraries in this package that a processor with these flags can run, the fastest first."""
    return [path for name, needed in INSTRUCTION_SETS[precision].items()
            if needed.keys() <= cpu_flags and (path := library_path(name)).exists()]


def processor_flags() -> set[str]:
    """Return the processor's flags that the portable library finds, named as by Linux: for systems without
    /proc/cpuinfo. If the library is missing or damaged, return an empty set."""
    library = library_path("portable")
    try:
        require_intact(library)
    except DamagedLibrary:
        return set()
    function = ctypes.CDLL(str(library)).processor_flags
    function.restype = ctypes.c_char_p
    return set(function().decode().split())


POINTER, SIZE = ctypes.c_void_p, ctypes.c_ssize_t
# Names in the order of the enumeration `Activation` in kernels.cpp.
ACTIVATIONS = ("relu", "gelu", "silu", "gelu_tanh")
# Number of outputs in a panel of weights, as in kernels.cpp, where the layout is described.
PANEL = 64
# Log-probability of an impossible continuation, as in kernels.cpp.
LOG_ZERO = -1e38
# Number of padding elements after the keys and values of cross-attention. Kernels load whole vectors, so they may read
# the padding, but they do not use it. The longest vectors in kernels.cpp have 16 elements.
KEY_PADDING = 16


class Norm(ctypes.Structure):
    """Layer norm over the last dimension: (x - mean) / sqrt(variance + epsilon) * gain + shift. Without a shift, the
    root-mean-square norm: x / sqrt(mean of x^2 + epsilon) * gain."""

    _fields_ = (("gain", POINTER), ("shift", POINTER), ("epsilon", ctypes.c_float))


class Linear(ctypes.Structure):
    """Linear layer with weights in panels. scale, offset: null in fp32."""

    _fields_ = (("panels", POINTER), ("scale", POINTER), ("offset", POINTER), ("bias", POINTER), ("inputs", SIZE),
                ("outputs", SIZE))


class Layer(ctypes.Structure):
    """Layer of the encoder or decoder.

    norms: the norm after each residual sum. The other fields are linear layers. In a gated feed-forward sublayer, the
    first half of the outputs of `inner` are the gates.
    """

    _fields_ = (("query_key_value", Linear), ("output", Linear), ("query", Linear), ("source_output", Linear),
                ("inner", Linear), ("outer", Linear), ("norms", Norm * 3))


class Relative(ctypes.Structure):
    """Bias of the scores of self-attention by distance, the position of the key minus that of the query.

    here: bias of the first head at distance 0; null: there is no bias. stride: number of distances of a head. The heads
    follow one another.
    """

    _fields_ = (("here", POINTER), ("stride", SIZE))


class Stack(ctypes.Structure):
    """Encoder or decoder.

    first: norm before the first sublayer of a pre-norm model. last: linear layers that follow `layers`: in an encoder,
    the projections to keys and values of cross-attention, one for each decoder layer; in a decoder, the output layer.
    window: maximum distance between a query and its keys in self-attention; negative: no limit. embedding_norm: norm of
    the embedded tokens; if its gain is null, there is none.
    """

    _fields_ = (("layers", ctypes.POINTER(Layer)), ("number_of_layers", SIZE), ("d_model", SIZE), ("heads", SIZE),
                ("head_size", SIZE), ("feed_forward", SIZE), ("gated", SIZE), ("pre_norm", SIZE), ("activation", SIZE),
                ("first", Norm), ("last", ctypes.POINTER(Linear)), ("number_of_last", SIZE), ("embedding", POINTER),
                ("positions", POINTER), ("embedding_scale", ctypes.c_float), ("window", SIZE), ("embedding_norm", Norm),
                ("relative", Relative))


class Functions:
    """Functions of a compiled library. While they run, Python's global interpreter lock is released.

    The last argument of functions that may use several threads is the number of threads.

    instruction_set: its name in INSTRUCTION_SETS. precision: "int8" or "fp32". group: number of inputs in a group of
        weights (see PANEL in kernels.cpp). weight_dtype, stored_dtype: NumPy's names of the types of weights, and of
        keys and values; "uint16" stands for bf16.
    """

    def __init__(self, library: Path) -> None:
        loaded = ctypes.CDLL(str(library))
        self.instruction_set = library.name.split(".")[1]
        self.group: int = loaded.group_size()
        self.precision = "fp32" if loaded.weight_bytes() == 4 else "int8"
        self.weight_dtype, self.stored_dtype = {"fp32": ("float32", "float32"), "int8": ("int8", "uint16")}[
            self.precision]

        def typed(function: Any, *arguments: Any) -> Any:
            function.argtypes, function.restype = arguments, None
            return function

        stack, threads = ctypes.POINTER(Stack), ctypes.c_int
        self.add_and_norm = typed(loaded.add_and_norm, POINTER, POINTER, ctypes.POINTER(Norm), POINTER, POINTER, SIZE,
                                  SIZE)
        self.attend_past = typed(loaded.attend_past, POINTER, SIZE, POINTER, POINTER, SIZE, *(POINTER,) * 2,
                                 *(SIZE,) * 3)
        self.attend_source = typed(loaded.attend_source, POINTER, SIZE, *(POINTER,) * 4, *(SIZE,) * 3)
        self.product = typed(loaded.product, ctypes.POINTER(Linear), POINTER, POINTER, SIZE, ctypes.c_bool, threads)
        self.packed_size = typed(loaded.packed_size, SIZE, SIZE)
        self.packed_size.restype = SIZE
        self.pack = typed(loaded.pack, POINTER, SIZE, SIZE, *(POINTER,) * 3)
        self.encode = typed(loaded.encode, stack, POINTER, POINTER, SIZE, POINTER, SIZE, threads)
        self.step = typed(loaded.step, stack, POINTER, POINTER, SIZE, POINTER, SIZE, POINTER, POINTER, SIZE,
                          *(POINTER,) * 4, SIZE, SIZE, threads)
        self.cross_attention = typed(loaded.cross_attention, stack, POINTER, POINTER, SIZE, POINTER, SIZE, POINTER,
                                     SIZE, POINTER, POINTER, threads)
        self.search = typed(loaded.search, stack, POINTER, SIZE, *(POINTER,) * 3, *(SIZE,) * 3, POINTER, *(SIZE,) * 3,
                            *(POINTER,) * 7, SIZE, *(ctypes.c_int64,) * 2, threads)
        self.topk = typed(loaded.topk, POINTER, POINTER, *(SIZE,) * 3, POINTER, SIZE, POINTER, ctypes.c_bool,
                          *(POINTER,) * 3, SIZE, threads)
        self.log_sum_exp = typed(loaded.log_sum_exp, POINTER, POINTER, SIZE, SIZE, threads)
        self.sample = typed(loaded.sample, *(POINTER,) * 3, SIZE, SIZE, ctypes.c_float, SIZE, ctypes.c_double,
                            ctypes.c_double, threads)
