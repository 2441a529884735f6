"""Flat and padded layouts of the same sentences.

Everywhere but in attention (and in recurrent models) a batch is flat: the sentences stand one behind another, and no
position is computed that is not a token. `Sentences` says where each lies.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Sentences:
    """Where the sentences of a flat array lie.

    offsets: (sentences + 1,) int32, where each begins; the last one is the number of tokens.
    positions: (tokens,) int64, position of each token in its sentence, from 0.
    longest: tokens of the longest sentence, known on the host.
    """

    offsets: Tensor
    positions: Tensor
    longest: int

    @staticmethod
    def from_offsets(offsets: Tensor, longest: int) -> Sentences:
        """Sentences that begin at `offsets`, (sentences + 1,) int32."""
        begins, lengths = offsets[:-1].long(), offsets.diff().long()
        begin_of_token = torch.repeat_interleave(begins, lengths)               # (tokens,)
        return Sentences(offsets, torch.arange(len(begin_of_token), device=offsets.device) - begin_of_token, longest)

    def __len__(self) -> int:
        return self.offsets.shape[0] - 1

    # The padded layout is made on first use: the variable-length kernel never asks for it, the other body does once
    # a batch for all layers.

    @cached_property
    def real(self) -> Tensor:
        """(sentences, longest) bool, True = a real token."""
        within = torch.arange(self.longest, device=self.offsets.device)
        return within < self.offsets.diff()[:, None]

    @cached_property
    def rows(self) -> Tensor:
        """(tokens,) int64, row of each token among the (sentences * longest) padded ones."""
        numbers = (self.positions == 0).cumsum(0) - 1
        return numbers * self.longest + self.positions

    @cached_property
    def slots(self) -> Tensor:
        """(sentences * longest,) int64, token that fills each padded row; padding repeats token 0."""
        within = torch.arange(self.longest, device=self.offsets.device)
        return ((self.offsets[:-1, None] + within) * self.real).flatten().long()


class _Unpack(torch.autograd.Function):
    # Both directions are gathers: the backward of indexing would be a scatter, which is slow on CPU and adds in an
    # order that may differ between runs.
    @staticmethod
    def forward(ctx: Any, flat: Tensor, rows: Tensor, slots: Tensor) -> Tensor:
        ctx.save_for_backward(rows)
        return flat.index_select(0, slots)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (rows,) = ctx.saved_tensors
        return gradient.index_select(0, rows), None, None


class _Pack(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, padded: Tensor, rows: Tensor, slots: Tensor, real: Tensor) -> Tensor:
        ctx.save_for_backward(slots, real)
        return padded.index_select(0, rows)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        slots, real = ctx.saved_tensors
        # A padded query's gradient would reach the keys and values of its sentence: it is cleared, not a repeat.
        return gradient.index_select(0, slots).mul_(real.view(-1, 1)), None, None, None


def unpack(flat: Tensor, sentences: Sentences) -> Tensor:
    """(tokens, features) -> (sentences, longest, features).

    Padding repeats the first token: finite values, which must never be seen. Gradients that arrive there are dropped.
    """
    padded: Tensor = _Unpack.apply(flat, sentences.rows, sentences.slots)
    return padded.view(len(sentences), sentences.longest, -1)


def pack(padded: Tensor, sentences: Sentences) -> Tensor:
    """(sentences, longest, features) -> (tokens, features); what stood in padded positions is dropped."""
    rows = padded.reshape(len(sentences) * sentences.longest, -1)
    flat: Tensor = _Pack.apply(rows, sentences.rows, sentences.slots, sentences.real)
    return flat
