"""Packed and padded layout of a batch.

Except in attention and in recurrent layers, a batch is packed: its sentences are concatenated without padding, and
`Sentences` describes where each begins.
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
    """Offsets and positions of the sentences of a packed batch.

    offsets: (sentences + 1,) int32, index of the first token of each sentence, then the number of tokens.
    positions: (tokens,) int64, position of each token in its sentence, from 0.
    longest: number of tokens of the longest sentence, known without waiting for the GPU; it may be rounded up.
    """

    offsets: Tensor
    positions: Tensor
    longest: int

    @staticmethod
    def from_offsets(offsets: Tensor, longest: int) -> Sentences:
        """Return the sentences with these offsets. Arguments: as in the class."""
        begins, lengths = offsets[:-1].long(), offsets.diff().long()
        begin_of_token = torch.repeat_interleave(begins, lengths)               # (tokens,)
        return Sentences(offsets, torch.arange(len(begin_of_token), device=offsets.device) - begin_of_token, longest)

    def __len__(self) -> int:
        return self.offsets.shape[0] - 1

    # All layers share the indices of the padded layout. They are computed on first use, because the variable-length
    # kernel never needs them.

    @cached_property
    def token_mask(self) -> Tensor:
        """(sentences, longest) bool, True = a token, False = padding."""
        positions = torch.arange(self.longest, device=self.offsets.device)
        return positions < self.offsets.diff()[:, None]

    @cached_property
    def rows(self) -> Tensor:
        """(tokens,) int64, index of each token in the padded layout, (sentences * longest,)."""
        return self.sentence * self.longest + self.positions

    @cached_property
    def padded_tokens(self) -> Tensor:
        """(sentences, longest) int64, index of the token at each position of the padded layout; 0 in padding."""
        positions = torch.arange(self.longest, device=self.offsets.device)
        return ((self.offsets[:-1, None] + positions) * self.token_mask).long()

    @cached_property
    def sentence(self) -> Tensor:
        """(tokens,) int64, index of each token's sentence."""
        return (self.positions == 0).cumsum(0) - 1

    def unpack_indices(self, parts: int, heads: int) -> Tensor:
        """Return the gather indices of `unpack`, (parts * sentences * heads * longest,) int64.

        Entry i of the padded layout, (parts, sentences, heads, longest), comes from this entry of (tokens, parts,
        heads).
        """
        return self._cached("unpack_indices", parts, heads, lambda: (
            self.padded_tokens[None, :, None] * (parts * heads) + self._arange(parts * heads).view(parts, 1, heads, 1)
        ).flatten())

    def pack_indices(self, parts: int, heads: int) -> Tensor:
        """Return the gather indices of `pack`, (tokens * parts * heads,) int64: the inverse of `unpack_indices`."""
        def indices() -> Tensor:
            sentences, positions = self.rows[:, None] // self.longest, self.rows[:, None] % self.longest
            part, head = self._arange(parts * heads) // heads, self._arange(parts * heads) % heads
            return (((part * len(self) + sentences) * heads + head) * self.longest + positions).flatten()

        return self._cached("pack_indices", parts, heads, indices)

    def token_mask_as(self, dtype: torch.dtype) -> Tensor:
        """Return `token_mask` as numbers, (sentences, 1, longest, 1)."""
        return self._cached("token_mask", dtype, None, lambda: self.token_mask[:, None, :, None].to(dtype))

    def _arange(self, count: int) -> Tensor:
        return torch.arange(count, device=self.offsets.device)

    def _cached(self, name: str, first: Any, second: Any, compute: Callable[[], Tensor]) -> Tensor:
        if (name, first, second) not in self._cache:
            self._cache[name, first, second] = compute()
        return self._cache[name, first, second]

    @cached_property
    def _cache(self) -> dict[tuple[str, Any, Any], Tensor]:
        return {}


class _Unpack(torch.autograd.Function):
    # Forward and backward pass are both gathers. PyTorch's backward pass of indexing is a scatter, which is slow on
    # CPUs and adds in an order that may differ between runs.
    @staticmethod
    def forward(ctx: Any, flat: Tensor, sentences: Sentences) -> Tensor:
        tokens, parts, heads, size = flat.shape
        ctx.sentences, ctx.shape = sentences, flat.shape
        padded = flat.reshape(-1, size).index_select(0, sentences.unpack_indices(parts, heads))
        return padded.view(parts, len(sentences), heads, sentences.longest, size)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        tokens, parts, heads, size = ctx.shape
        flat = gradient.reshape(-1, size).index_select(0, ctx.sentences.pack_indices(parts, heads))
        return flat.view(ctx.shape), None


class _Pack(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, padded: Tensor, sentences: Sentences) -> Tensor:
        _, heads, _, size = padded.shape
        ctx.sentences, ctx.shape = sentences, padded.shape
        return padded.reshape(-1, size).index_select(0, sentences.pack_indices(1, heads)).view(-1, heads, size)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        heads, size = ctx.shape[1], ctx.shape[3]
        padded = gradient.reshape(-1, size).index_select(0, ctx.sentences.unpack_indices(1, heads)).view(ctx.shape)
        # In padding, the gather copies the gradient of token 0. It must be 0 instead, because the gradient of padded
        # queries flows into keys and values.
        return padded.mul_(ctx.sentences.token_mask_as(padded.dtype)), None


def unpack(flat: Tensor, sentences: Sentences) -> Tensor:
    """Pad packed sentences: (tokens, parts, heads, features) -> (parts, sentences, heads, longest, features).

    Parts are, for example, query, key and value. Padding contains copies of the batch's first token, so that it is
    finite; the caller must mask it. Gradients of padding are ignored.
    """
    padded: Tensor = _Unpack.apply(flat, sentences)
    return padded


def pack(padded: Tensor, sentences: Sentences) -> Tensor:
    """Remove the padding: (sentences, heads, longest, features) -> (tokens, heads, features)"""
    flat: Tensor = _Pack.apply(padded, sentences)
    return flat
