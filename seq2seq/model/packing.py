"""Packed and padded layout of a batch.

Most layers process a packed batch: its sentences are concatenated without padding, and `Sentences` contains the index
at which each sentence begins. Only attention and recurrent layers may need padding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, cast

import torch
from torch import Tensor

from seq2seq.data.batching import Batch


@dataclass(frozen=True)
class Sentences:
    """Offsets and positions of the sentences of a packed batch, some of which may be empty.

    offsets: (sentences + 1,) int32, index of the first token of each sentence, then the number of tokens.
    positions: (tokens,) int64, position of each token in its sentence, from 0.
    longest: at least the number of tokens of the longest sentence. As an int, it is read without waiting for the GPU.
    """

    offsets: Tensor
    positions: Tensor
    longest: int
    _cache: dict[tuple[Any, ...], Tensor] = field(default_factory=dict, init=False, repr=False, compare=False)

    @staticmethod
    def from_offsets(offsets: Tensor, longest: int, tokens: int | None = None) -> Sentences:
        """Return the sentences with these offsets. tokens: number of tokens; None: read it from the offsets."""
        begins, lengths = offsets[:-1].long(), offsets.diff().long()
        begin_of_token = torch.repeat_interleave(begins, lengths, output_size=tokens)
        return Sentences(offsets, torch.arange(len(begin_of_token), device=offsets.device) - begin_of_token, longest)

    def __len__(self) -> int:
        return self.offsets.shape[0] - 1

    # All layers share the following masks and indices. They are computed on first use, because the variable-length
    # kernel never needs them.

    @cached_property
    def token_mask(self) -> Tensor:
        """(sentences, longest) bool, True = a token, False = padding."""
        return self._arange(self.longest) < self.offsets.diff()[:, None]

    @cached_property
    def padded_tokens(self) -> Tensor:
        """(sentences, longest) int64, index of the token at each position of the padded layout; 0 in padding."""
        return ((self.offsets[:-1, None] + self._arange(self.longest)) * self.token_mask).long()

    @cached_property
    def sentence(self) -> Tensor:
        """(tokens,) int64, index of each token's sentence."""
        return torch.repeat_interleave(self._arange(len(self)), self.offsets.diff(), output_size=len(self.positions))

    def unpack_indices(self, parts: int, heads: int) -> Tensor:
        """Return the gather indices of `unpack`, (parts * sentences * heads * longest,) int64.

        For the returned `indices`, element i of the flattened padded layout (parts, sentences, heads, longest) is
        element `indices[i]` of the flattened packed layout (tokens, parts, heads).
        """
        return self._cached(("unpack", parts, heads), lambda: (
            self.padded_tokens[None, :, None] * (parts * heads) + self._arange(parts * heads).view(parts, 1, heads, 1)
        ).flatten())

    def pack_indices(self, parts: int, heads: int) -> Tensor:
        """Return the gather indices of `pack`, (tokens * parts * heads,) int64. They invert `unpack_indices`."""
        def indices() -> Tensor:
            part, head = self._arange(parts * heads) // heads, self._arange(parts * heads) % heads
            rows = (part * len(self) + self.sentence[:, None]) * heads + head   # (tokens, parts * heads)
            return (rows * self.longest + self.positions[:, None]).flatten()

        return self._cached(("pack", parts, heads), indices)

    def token_mask_as(self, dtype: torch.dtype) -> Tensor:
        """Return `token_mask` as numbers, (sentences, 1, longest, 1)."""
        return self._cached(("token_mask", dtype), lambda: self.token_mask[:, None, :, None].to(dtype))

    def _arange(self, count: int) -> Tensor:
        return torch.arange(count, device=self.offsets.device)

    def _cached(self, key: tuple[Any, ...], compute: Callable[[], Tensor]) -> Tensor:
        if key not in self._cache:
            self._cache[key] = compute()
        return self._cache[key]


def source_and_target(batch: Batch, max_positions: int) -> tuple[Sentences, Sentences]:
    """Return the source and the target sentences of a batch.

    Raises:
        ValueError: a sentence is longer than `max_positions`.
    """
    check_length(max(batch.longest_source, batch.longest_target), max_positions)
    return (Sentences(batch.source_offsets, batch.source_positions, batch.longest_source),
            Sentences(batch.target_offsets, batch.target_positions, batch.longest_target))


def check_length(length: int, max_positions: int) -> None:
    """Raise ValueError if a sentence of `length` tokens is longer than `max_positions`."""
    if length > max_positions:
        raise ValueError(f"a sentence has {length} tokens; this model supports at most {max_positions}")


# Packing, unpacking and their backward passes are gather operations here. PyTorch's own backward pass of indexing is a
# scatter operation, which is slow on CPUs and may add numbers in a different order in each run.


def _gather_padded(flat: Tensor, sentences: Sentences) -> Tensor:
    _, parts, heads, size = flat.shape
    padded = flat.reshape(-1, size).index_select(0, sentences.unpack_indices(parts, heads))
    return padded.view(parts, len(sentences), heads, sentences.longest, size)


def _gather_tokens(padded: Tensor, sentences: Sentences) -> Tensor:
    parts, _, heads, _, size = padded.shape
    return padded.reshape(-1, size).index_select(0, sentences.pack_indices(parts, heads)).view(-1, parts, heads, size)


class _Unpack(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, flat: Tensor, sentences: Sentences) -> Tensor:
        ctx.sentences = sentences
        return _gather_padded(flat, sentences)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _gather_tokens(gradient, ctx.sentences), None


class _Pack(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, padded: Tensor, sentences: Sentences) -> Tensor:
        ctx.sentences = sentences
        return _gather_tokens(padded[None], sentences)[:, 0]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        padded = _gather_padded(gradient[:, None], ctx.sentences)[0]
        # The gather fills padding with the gradient of token 0. Padding must have a gradient of 0 instead, because
        # gradients of queries in padding would flow into keys and values.
        return padded.mul_(ctx.sentences.token_mask_as(padded.dtype)), None


def unpack(flat: Tensor, sentences: Sentences) -> Tensor:
    """Pad packed sentences: (tokens, parts, heads, features) -> (parts, sentences, heads, longest, features).

    Parts are, for example, query, key and value. Padding contains copies of the batch's first token, so that all
    numbers are finite. The caller must mask the padding. Gradients of padding are ignored.
    """
    return cast(Tensor, _Unpack.apply(flat, sentences))


def pack(padded: Tensor, sentences: Sentences) -> Tensor:
    """Remove the padding: (sentences, heads, longest, features) -> (tokens, heads, features)"""
    return cast(Tensor, _Pack.apply(padded, sentences))


def unpack_rows(flat: Tensor, sentences: Sentences) -> Tensor:
    """Pad packed sentences: (tokens, features) -> (sentences, longest, features)"""
    return unpack(flat[:, None, None], sentences).squeeze(2).squeeze(0)


def pack_rows(padded: Tensor, sentences: Sentences) -> Tensor:
    """Remove the padding: (sentences, longest, features) -> (tokens, features)"""
    return pack(padded[:, None], sentences).squeeze(1)
