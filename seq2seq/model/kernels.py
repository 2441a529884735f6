"""The operations of `kernels.cpp`, compiled for this processor on first use."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from seq2seq.continuations import Continuations, continuations
from seq2seq.machine import cpu_flags
from seq2seq.model.inference import UNSIGNED_ZERO, Int8Linear

SOURCE = Path(__file__).with_name("kernels.cpp")
FLAGS = ("-std=c++17", "-O3", "-march=native", "-ffast-math", "-fopenmp", "-fPIC")
# 512 bits where there are any; left alone, the compiler takes 256.
WIDE = ("-mprefer-vector-width=512",) if platform.machine() in ("x86_64", "AMD64") else ()
POINTER, SIZE = ctypes.c_void_p, ctypes.c_long
NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16"}
# In the order of `Activation` in the source.
ACTIVATIONS = ("relu", "gelu", "silu")
# As in the source.
PANEL, GROUP, LEAST = 64, 4, np.float32(-1e38)
# About so many tokens, of whole sentences, go through an encoder together: what they hold stays in a core's cache.
TOKENS_TOGETHER = 96


class CompilationError(Exception):
    """There is no C++ compiler, or it cannot compile the kernels; the message says which."""


def library(directory: Path | None = None) -> Path:
    """The compiled kernels, from `directory` (the user's cache) or compiled into it now.

    Raises:
        CompilationError: there is no compiler, or it fails, or what it makes cannot be kept or loaded.
    """
    compiler = next(filter(None, map(shutil.which, (os.environ.get("CXX", "c++"), "g++", "clang++"))), None)
    if compiler is None:
        raise CompilationError("there is no C++ compiler (c++, g++ or clang++)")
    # What a library depends on: the source, how it is compiled, and the processor that it is compiled for.
    made_of = (SOURCE.read_text(encoding="utf-8"), *FLAGS, *WIDE, _run(compiler, "--version"), platform.machine(),
               *sorted(cpu_flags()))
    cache = directory or _cache()
    compiled = cache / f"kernels-{hashlib.sha256(chr(0).join(made_of).encode()).hexdigest()[:16]}.so"
    with suppress(OSError):                                                     # not there, or not to be loaded
        ctypes.CDLL(str(compiled))
        return compiled
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as temporary:
            # In two steps: linked with -ffast-math, a library changes how the whole process rounds tiny numbers.
            for arguments in (("-c", str(SOURCE), "-o", "kernels.o", *FLAGS, *WIDE),
                              ("-shared", "-fopenmp", "kernels.o", "-o", "kernels.so")):
                _run(compiler, *arguments, directory=temporary)
            made = Path(temporary) / "kernels.so"
            ctypes.CDLL(str(made))
            with made.open("rb") as file:
                os.fsync(file.fileno())                                         # a file cut short would end the process
            os.replace(made, compiled)
    except OSError as error:
        raise CompilationError(f"the kernels cannot be kept in {cache} and loaded from there: {error}") from error
    return compiled


def _run(compiler: str, *arguments: str, directory: str | None = None) -> str:
    """What the compiler prints, in English."""
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


class Norm(ctypes.Structure):
    """Layer norm over the last dimension."""

    _fields_ = (("gain", POINTER), ("shift", POINTER), ("epsilon", ctypes.c_float))


class Linear(ctypes.Structure):
    """A product with `weight` in fp32; with `levels` in int8; or with `panels` of them, and inputs in int8 too."""

    _fields_ = (("weight", POINTER), ("levels", POINTER), ("panels", POINTER), ("scale", POINTER), ("offset", POINTER),
                ("bias", POINTER), ("inputs", SIZE), ("outputs", SIZE))


class Layer(ctypes.Structure):
    """A layer of the encoder or decoder: its products, and the norms that follow its sums."""

    _fields_ = (("query_key_value", Linear), ("output", Linear), ("query", Linear), ("source_output", Linear),
                ("inner", Linear), ("outer", Linear), ("norms", Norm * 3))


class Stack(ctypes.Structure):
    """Encoder or decoder. first: the norm before the first sublayer of a pre-norm model. last: what the rows enter at
    the end, the products for the memory of each decoder layer or the vocabulary."""

    _fields_ = (("layers", ctypes.POINTER(Layer)), ("number_of_layers", SIZE), ("d_model", SIZE), ("heads", SIZE),
                ("feed_forward", SIZE), ("pre_norm", SIZE), ("activation", SIZE), ("first", Norm),
                ("last", ctypes.POINTER(Linear)), ("number_of_last", SIZE))


class Pointers:
    """Addresses of tensors, which live as long as this; for the structures above."""

    def __init__(self) -> None:
        self.kept: list[Tensor] = []

    def of(self, tensor: Tensor | None, dtype: torch.dtype = torch.float32) -> int | None:
        """Where the numbers of `tensor` are, in `dtype`."""
        if tensor is None:
            return None
        self.kept.append(tensor.detach().to(dtype).contiguous())
        return self.kept[-1].data_ptr()


def linear_of_levels(pointers: Pointers, layer: Int8Linear) -> Linear:
    """The layer for inputs in int8, its weights in the order of `panel_sums` in the source."""
    outputs, inputs = layer.levels.shape
    filled = F.pad(layer.levels, (0, -inputs % GROUP, 0, -outputs % PANEL))
    panels = filled.view(-1, PANEL, filled.shape[1] // GROUP, GROUP).transpose(1, 2)
    return Linear(panels=pointers.of(panels, torch.int8), scale=pointers.of(layer.scale), bias=pointers.of(layer.bias),
                  offset=pointers.of(UNSIGNED_ZERO * layer.levels.sum(1), torch.int32), inputs=inputs, outputs=outputs)


class Kernels:
    """The operations, on tensors of one type, fp32 or bf16. Tensors are contiguous unless said otherwise."""

    def __init__(self, library: Path, dtype: torch.dtype) -> None:
        functions, name = ctypes.CDLL(str(library)), NAMES[dtype]

        def typed(function: Any, *arguments: Any) -> Any:
            function.argtypes, function.restype = arguments, None
            return function

        self._add_and_norm = typed(functions[f"add_and_norm_{name}"], POINTER, POINTER, ctypes.POINTER(Norm), POINTER,
                                   POINTER, SIZE, SIZE)
        self._attend = typed(functions[f"attend_{name}"], POINTER, SIZE, POINTER, SIZE, *(POINTER,) * 3, SIZE, POINTER,
                             SIZE, SIZE, SIZE)
        self._product = typed(functions[f"product_{name}"], ctypes.POINTER(Linear), POINTER, POINTER, SIZE)
        self._encode = typed(functions[f"encode_{name}"], ctypes.POINTER(Stack), *(POINTER,) * 5, SIZE)
        self._step = typed(functions[f"step_{name}"], ctypes.POINTER(Stack), POINTER, POINTER, ctypes.c_float, POINTER,
                           POINTER, SIZE, SIZE, POINTER, SIZE, *(POINTER,) * 4, SIZE)
        self._choose = typed(functions.choose, POINTER, POINTER, *(SIZE,) * 3, POINTER, SIZE, POINTER, ctypes.c_bool,
                             *(POINTER,) * 3, SIZE)
        self.dtype = dtype
        # Whether products of bytes are faster here than oneDNN's.
        self.multiplies_bytes = bool(functions.multiplies_bytes())

    def add_and_norm(self, hidden: Tensor, output: Tensor, norm: Norm) -> tuple[Tensor, Tensor]:
        """hidden + output, and its layer norm; all (rows, size)."""
        total, normed = torch.empty_like(hidden), torch.empty_like(hidden)
        self._add_and_norm(hidden.data_ptr(), output.data_ptr(), norm, total.data_ptr(), normed.data_ptr(),
                           *hidden.shape)
        return total, normed

    def attend(self, query: Tensor, keys_values: Tensor, heads: int, *, past: np.ndarray | None = None,
               first: np.ndarray | None = None, count: np.ndarray | None = None) -> Tensor:
        """softmax(Q K^T / sqrt(D)) V of each row, over keys of its own.

        Args:
            query: (rows, d_model, and anything behind), keys_values: (keys, 2 * d_model); rows may be strided.
            past: (rows, length) int32, the rows of keys_values that a row sees; or
            first, count: (rows,) int32, it sees `count` of them from `first` on.
        Returns:
            (rows, d_model)
        """
        rows, d_model = query.shape[0], keys_values.shape[1] // 2
        attended = query.new_empty(rows, d_model)
        self._attend(query.data_ptr(), query.stride(0), keys_values.data_ptr(), keys_values.stride(0), _where(past),
                     _where(first), _where(count), 0 if past is None else past.shape[1], attended.data_ptr(), rows,
                     heads, d_model // heads)
        return attended

    def product(self, linear: Linear, rows: Tensor) -> Tensor:
        """Rows (rows, inputs) times a weight in `panels`: (rows, outputs) fp32."""
        found = torch.empty(rows.shape[0], linear.outputs)
        self._product(linear, rows.data_ptr(), found.data_ptr(), rows.shape[0])
        return found

    def encode(self, encoder: Stack, embedded: Tensor, first: np.ndarray, count: np.ndarray,
               offsets: np.ndarray) -> Tensor:
        """Embedded tokens, (tokens, d_model) fp32 -> the memory, (decoder_layers, tokens, 2 * d_model).

        first, count: as `attend` takes them. offsets: (sentences + 1,), where each sentence begins.
        """
        tokens, d_model = embedded.shape
        # Whole sentences that go through all layers together.
        parts = offsets[1:] // TOKENS_TOGETHER
        ends = offsets[1:][np.append(parts[1:] != parts[:-1], True)].astype(np.int64)
        memory = embedded.new_empty(encoder.number_of_last, tokens, 2 * d_model, dtype=self.dtype)
        self._encode(encoder, embedded.data_ptr(), _where(first), _where(count), memory.data_ptr(), _where(ends),
                     len(ends))
        return memory

    def step(self, decoder: Stack, embedding: Tensor, position: Tensor, scale: float, tokens: Tensor, cache: Tensor,
             taken: int, past: np.ndarray, memory: ctypes.Array[Any], first: np.ndarray, count: np.ndarray) -> Tensor:
        """The logits of a position, (rows, vocab_size).

        Args:
            embedding: (vocab_size, d_model), of words, with which the position's, (d_model,), is added times `scale`.
            tokens: (rows,) int64, the last ones.
            cache: (layers, room, 2 * d_model), where the position is written from row `taken` on.
            past, first, count: as `attend` takes them, for the past and for the source.
            memory: of each layer where the keys and values of the source are.
        """
        rows = len(tokens)
        logits = torch.empty(rows, decoder.last[0].outputs)
        self._step(decoder, embedding.data_ptr(), position.data_ptr(), scale, tokens.data_ptr(), cache.data_ptr(),
                   cache.stride(0), taken, _where(past), past.shape[1], memory, _where(first), _where(count),
                   logits.data_ptr(), rows)
        return logits

    def choose(self, logits: Tensor, totals: np.ndarray, forbidden: Tensor, must_end: np.ndarray | None, count: int,
               normalised: bool) -> Continuations:
        """See `continuations.continuations`."""
        if logits.device.type != "cpu" or logits.dtype != torch.float32 or totals.dtype != np.float32:
            return continuations(logits, totals, forbidden, must_end, count, normalised)
        (groups, beam), logits, totals = totals.shape, logits.contiguous(), np.ascontiguousarray(totals)
        found = np.empty((groups, count), np.float32)
        beams, ids = np.empty((2, groups, count), np.int64)
        self._choose(logits.data_ptr(), _where(totals), groups, beam, logits.shape[1],
                     forbidden.data_ptr(), len(forbidden), _where(must_end), normalised, _where(found), _where(beams),
                     _where(ids), count)
        found[found <= LEAST] = -np.inf
        return found, beams, ids


def _where(array: np.ndarray | None) -> int | None:
    """The address of an array, which the caller keeps."""
    if array is None:
        return None
    assert array.flags.c_contiguous
    address: int = array.__array_interface__["data"][0]                         # a fifth of `ctypes.data`'s time
    return address
