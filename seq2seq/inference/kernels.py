"""The functions of `kernels.cpp` on tensors."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from seq2seq.continuations import Continuations, continuations
from seq2seq.inference.eager import UNSIGNED_ZERO, Int8Linear
from seq2seq.inference.kernel_interface import GROUP, LEAST, PANEL, Functions, Linear, Norm, Stack

NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16"}
# About so many tokens, of whole sentences, go through an encoder together: what they hold stays in a core's cache.
TOKENS_TOGETHER = 96


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
        self.functions, self.dtype = Functions(library, NAMES[dtype]), dtype
        # Whether products of bytes are faster here than oneDNN's.
        self.multiplies_bytes = self.functions.multiplies_bytes

    def add_and_norm(self, hidden: Tensor, output: Tensor, norm: Norm) -> tuple[Tensor, Tensor]:
        """hidden + output, and its layer norm; all (rows, size)."""
        total, normed = torch.empty_like(hidden), torch.empty_like(hidden)
        self.functions.add_and_norm(hidden.data_ptr(), output.data_ptr(), norm, total.data_ptr(), normed.data_ptr(),
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
        self.functions.attend(query.data_ptr(), query.stride(0), keys_values.data_ptr(), keys_values.stride(0),
                              _where(past), _where(first), _where(count), 0 if past is None else past.shape[1],
                              attended.data_ptr(), rows, heads, d_model // heads)
        return attended

    def product(self, linear: Linear, rows: Tensor) -> Tensor:
        """Rows (rows, inputs) times a weight in `panels`: (rows, outputs) fp32."""
        found = torch.empty(rows.shape[0], linear.outputs)
        self.functions.product(linear, rows.data_ptr(), found.data_ptr(), rows.shape[0])
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
        self.functions.encode(encoder, embedded.data_ptr(), _where(first), _where(count), memory.data_ptr(),
                              _where(ends), len(ends))
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
        self.functions.step(decoder, embedding.data_ptr(), position.data_ptr(), scale, tokens.data_ptr(),
                            cache.data_ptr(), cache.stride(0), taken, _where(past), past.shape[1], memory,
                            _where(first), _where(count), logits.data_ptr(), rows)
        return logits

    def choose(self, logits: Tensor, totals: np.ndarray, forbidden: Tensor, must_end: np.ndarray | None, count: int,
               normalised: bool) -> Continuations:
        """See `continuations.continuations`."""
        if logits.device.type != "cpu" or logits.dtype != torch.float32 or totals.dtype != np.float32:
            return continuations(logits, totals, forbidden, must_end, count, normalised)
        (groups, beam), logits, totals = totals.shape, logits.contiguous(), np.ascontiguousarray(totals)
        found = np.empty((groups, count), np.float32)
        beams, ids = np.empty((2, groups, count), np.int64)
        self.functions.choose(logits.data_ptr(), _where(totals), groups, beam, logits.shape[1],
                     forbidden.data_ptr(), len(forbidden), _where(must_end), normalised, _where(found), _where(beams),
                     _where(ids), count)
        found[found <= np.float32(LEAST)] = -np.inf
        return found, beams, ids


def _where(array: np.ndarray | None) -> int | None:
    """The address of an array, which the caller keeps."""
    if array is None:
        return None
    assert array.flags.c_contiguous
    address: int = array.__array_interface__["data"][0]                         # a fifth of `ctypes.data`'s time
    return address
