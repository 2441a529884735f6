"""Flat (packed) and padded layouts of a batch.

Everywhere except in attention and in recurrent models a batch is flat: sentences are concatenated, and no padding is
computed. `Sentences` holds their offsets.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Sentences:
    """Offsets and positions of the sentences in a flat array.

    offsets: (sentences + 1,) int32, first token of each sentence; the last entry is the number of tokens.
    positions: (tokens,) int64, position of each token in its sentence, from 0.
    longest: tokens of the longest sentence, known on the host.
    """

    offsets: Tensor
    positions: Tensor
    longest: int

    @staticmethod
    def from_offsets(offsets: Tensor, longest: int) -> Sentences:
        """Return the sentences with these offsets, (sentences + 1,) int32. longest: tokens of the longest one."""
        begins, lengths = offsets[:-1].long(), offsets.diff().long()
        begin_of_token = torch.repeat_interleave(begins, lengths)               # (tokens,)
        return Sentences(offsets, torch.arange(len(begin_of_token), device=offsets.device) - begin_of_token, longest)

    def __len__(self) -> int:
        return self.offsets.shape[0] - 1

    # The indices of the padded layout are computed on first use: the variable-length kernel never needs them, padded
    # attention computes them once per batch and shares them between all layers.

    @cached_property
    def token_mask(self) -> Tensor:
        """(sentences, longest) bool, True = a real token."""
        within = torch.arange(self.longest, device=self.offsets.device)
        return within < self.offsets.diff()[:, None]

    @cached_property
    def rows(self) -> Tensor:
        """(tokens,) int64, index of each token in the padded layout, (sentences * longest,)."""
        return self.sentence * self.longest + self.positions

    @cached_property
    def slots(self) -> Tensor:
        """(sentences, longest) int64, index of the token at each padded position; padding repeats token 0."""
        within = torch.arange(self.longest, device=self.offsets.device)
        return ((self.offsets[:-1, None] + within) * self.token_mask).long()

    @cached_property
    def sentence(self) -> Tensor:
        """(tokens,) int64, index of each token's sentence."""
        return (self.positions == 0).cumsum(0) - 1

    def unpacking(self, parts: int, heads: int) -> Tensor:
        """Gather indices from flat to padded, (parts * sentences * heads * longest,) int64.

        Entry i is the row of (tokens, parts, heads), flattened, that goes to place i of (parts, sentences, heads,
        longest).
        """
        return self._remembered("unpacking", parts, heads, lambda: (
            self.slots[None, :, None] * (parts * heads) + self._numbers(parts * heads).view(parts, 1, heads, 1)
        ).flatten())

    def packing(self, parts: int, heads: int) -> Tensor:
        """Gather indices from padded to flat, (tokens * parts * heads,) int64: the inverse of `unpacking`."""
        def places() -> Tensor:
            sentences, positions = self.rows[:, None] // self.longest, self.rows[:, None] % self.longest
            part, head = self._numbers(parts * heads) // heads, self._numbers(parts * heads) % heads
            return (((part * len(self) + sentences) * heads + head) * self.longest + positions).flatten()

        return self._remembered("packing", parts, heads, places)

    def real_as(self, dtype: torch.dtype) -> Tensor:
        """`token_mask` as numbers, (sentences, 1, longest, 1)."""
        return self._remembered("real", dtype, None, lambda: self.token_mask[:, None, :, None].to(dtype))

    def _numbers(self, count: int) -> Tensor:
        return torch.arange(count, device=self.offsets.device)

    def _remembered(self, name: str, first: Any, second: Any, make: Callable[[], Tensor]) -> Tensor:
        if (name, first, second) not in self._memory:
            self._memory[name, first, second] = make()
        return self._memory[name, first, second]

    @cached_property
    def _memory(self) -> dict[tuple[str, Any, Any], Tensor]:
        return {}


class _Unpack(torch.autograd.Function):
    # Forward and backward are both gathers. PyTorch's backward of indexing is a scatter, which is slow on CPUs and
    # adds in an order that may differ between runs.
    @staticmethod
    def forward(ctx: Any, flat: Tensor, sentences: Sentences) -> Tensor:
        tokens, parts, heads, size = flat.shape
        ctx.sentences, ctx.shape = sentences, flat.shape
        padded = flat.reshape(-1, size).index_select(0, sentences.unpacking(parts, heads))
        return padded.view(parts, len(sentences), heads, sentences.longest, size)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        tokens, parts, heads, size = ctx.shape
        flat = gradient.reshape(-1, size).index_select(0, ctx.sentences.packing(parts, heads))
        return flat.view(ctx.shape), None


class _Pack(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, padded: Tensor, sentences: Sentences) -> Tensor:
        _, heads, _, size = padded.shape
        ctx.sentences, ctx.shape = sentences, padded.shape
        return padded.reshape(-1, size).index_select(0, sentences.packing(1, heads)).view(-1, heads, size)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        heads, size = ctx.shape[1], ctx.shape[3]
        padded = gradient.reshape(-1, size).index_select(0, ctx.sentences.unpacking(1, heads)).view(ctx.shape)
        # The gradient of padded queries must be 0, not a copy of token 0's: it would flow into the keys and values.
        return padded.mul_(ctx.sentences.real_as(padded.dtype)), None


def unpack(flat: Tensor, sentences: Sentences) -> Tensor:
    """(tokens, parts, heads, features) -> (parts, sentences, heads, longest, features), in one copy.

    parts: such as query, key and value. Padding holds copies of the first token, so that it is finite; it must be
    masked. Gradients of padding are dropped.
    """
    padded: Tensor = _Unpack.apply(flat, sentences)
    return padded


def pack(padded: Tensor, sentences: Sentences) -> Tensor:
    """(sentences, heads, longest, features) -> (tokens, heads, features); padding is dropped."""
    flat: Tensor = _Pack.apply(padded, sentences)
    return flat
