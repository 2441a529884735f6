"""Packed and padded layout of a batch.

Most layers process a packed batch: its sentences are concatenated without padding, and `Sentences` contains the index
at which each sentence begins. Recurrent layers need padding, and so does attention other than by intervals.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from seq2seq.data.batching import Batch

Cached = TypeVar("Cached")


@dataclass(frozen=True, eq=False)
class Sentences:
    """Places of the sentences in a packed batch. Some sentences may be empty, and some tokens in no sentence.

    A batch that is filled up to a fixed number of tokens has a tail behind its last sentence: tokens that are in no
    sentence. They attend to nothing, nothing attends to them, and their gradients are 0.

    begins, lengths: (sentences,) int32, index of the first token and number of tokens of each sentence.
    positions: (tokens,) int64, position of each token in its sentence, from 0; 0 in the tail.
    longest: at least the number of tokens of the longest sentence. As an int, it is read without waiting for the GPU.
    filled: False if there is certainly no tail.
    """

    begins: Tensor
    lengths: Tensor
    positions: Tensor
    longest: int
    filled: bool
    _cache: dict[Any, Any] = field(default_factory=dict, init=False, repr=False)

    @staticmethod
    def of_batch(batch: Batch, offsets: Tensor, positions: Tensor, longest: int) -> Sentences:
        """Return the sentences of the side of a batch that has these offsets and positions."""
        begins, lengths = offsets[:-1], offsets.diff()
        if batch.copies > 1:
            tokens = len(positions) // batch.copies                             # of each copy, its tail included
            begins = torch.cat([begins + number * tokens for number in range(batch.copies)])
            lengths = lengths.repeat(batch.copies)
        return Sentences(begins, lengths, positions, longest, batch.filled)

    @staticmethod
    def from_offsets(offsets: Tensor, longest: int, tokens: int | None = None, filled: bool = False) -> Sentences:
        """Return the sentences with these offsets, (sentences + 1,) int32. tokens: number of tokens, the tail included;
        None: read it from the offsets. filled: True if there may be a tail."""
        tokens = int(offsets[-1]) if tokens is None else tokens
        sentences = Sentences(offsets[:-1], offsets.diff(), offsets.new_empty(tokens), longest, filled)
        positions = sentences._arange(tokens) - sentences.begins.index_select(0, sentences.sentence)
        positions = positions.masked_fill(sentences.in_tail, 0) if filled else positions
        object.__setattr__(sentences, "positions", positions)                   # the only change of a new object
        return sentences

    def __len__(self) -> int:
        return len(self.begins)

    # All layers share the following masks and indices. They are computed on first use, because attention by intervals
    # does not need them.

    @cached_property
    def token_mask(self) -> Tensor:
        """(sentences, longest) bool, True = a token, False = padding."""
        return self._arange(self.longest) < self.lengths[:, None]

    @cached_property
    def padded_tokens(self) -> Tensor:
        """(sentences, longest) int64, index of the token at each position of the padded layout; 0 in padding."""
        return ((self.begins[:, None] + self._arange(self.longest)) * self.token_mask).long()

    @cached_property
    def sentence(self) -> Tensor:
        """(tokens,) int64, index of each token's sentence; in the tail, of the last sentence that begins before it."""
        tokens = torch.arange(len(self.positions), dtype=self.begins.dtype, device=self.begins.device)
        return torch.searchsorted(self.begins, tokens, right=True) - 1

    @cached_property
    def in_tail(self) -> Tensor:
        """(tokens,) bool, True for tokens that are in no sentence."""
        ends = self.begins + self.lengths
        return self._arange(len(self.positions)) >= ends.index_select(0, self.sentence)

    @cached_property
    def tail(self) -> Tensor:
        """(tail,) int64, indices of the tokens that are in no sentence. The host waits for their number."""
        return self.in_tail.nonzero().flatten()

    def unpack_indices(self, parts: int, heads: int) -> Tensor:
        """Return the gather indices of `unpack`, (parts * sentences * heads * longest,) int64.

        For the returned `indices`, element i of the flattened padded layout (parts, sentences, heads, longest) is
        element `indices[i]` of the flattened packed layout (tokens, parts, heads).
        """
        return self.cached(("unpack", parts, heads), lambda: (
            self.padded_tokens[None, :, None] * (parts * heads) + self._arange(parts * heads).view(parts, 1, heads, 1)
        ).flatten())

    def pack_indices(self, parts: int, heads: int) -> Tensor:
        """Return the gather indices of `pack`, (tokens * parts * heads,) int64.

        They invert `unpack_indices`. Those of the tail are the first position of some sentence.
        """
        def indices() -> Tensor:
            part, head = self._arange(parts * heads) // heads, self._arange(parts * heads) % heads
            rows = (part * len(self) + self.sentence[:, None]) * heads + head   # (tokens, parts * heads)
            return (rows * self.longest + self.positions[:, None]).flatten()

        return self.cached(("pack", parts, heads), indices)

    def token_mask_as(self, dtype: torch.dtype) -> Tensor:
        """Return `token_mask` as numbers, (sentences, 1, longest, 1)."""
        return self.cached(("token_mask", dtype), lambda: self.token_mask[:, None, :, None].to(dtype))

    def _arange(self, count: int) -> Tensor:
        return torch.arange(count, device=self.begins.device)

    def cached(self, key: tuple[Any, ...], compute: Callable[[], Cached]) -> Cached:
        """Return the result of the first call of `compute` for this key."""
        if key not in self._cache:
            self._cache[key] = compute()
        return cast(Cached, self._cache[key])


def source_and_target(batch: Batch, max_positions: int) -> tuple[Sentences, Sentences]:
    """Return the source and the target sentences of a batch.

    Raises:
        ValueError: a sentence is longer than `max_positions`.
    """
    check_length(max(batch.longest_source, batch.longest_target), max_positions)
    return (Sentences.of_batch(batch, batch.source_offsets, batch.source_positions, batch.longest_source),
            Sentences.of_batch(batch, batch.target_offsets, batch.target_positions, batch.longest_target))


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
    flat = padded.reshape(-1, size).index_select(0, sentences.pack_indices(parts, heads)).view(-1, parts, heads, size)
    if not sentences.filled:
        return flat
    # The gather has filled the tail with rows of another sentence.
    if flat.is_cuda:
        return flat.masked_fill_(sentences.in_tail[:, None, None, None], 0)     # does not wait for the size of the tail
    return flat.index_fill_(0, sentences.tail, 0)                               # the mask takes as long as the gather


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
    numbers are finite. The caller must mask the padding. Gradients of padding are ignored, and those of the tail are 0.
    """
    return cast(Tensor, _Unpack.apply(flat, sentences))


def pack(padded: Tensor, sentences: Sentences) -> Tensor:
    """Remove the padding: (sentences, heads, longest, features) -> (tokens, heads, features); 0 in the tail"""
    return cast(Tensor, _Pack.apply(padded, sentences))


def unpack_rows(flat: Tensor, sentences: Sentences) -> Tensor:
    """Pad packed sentences: (tokens, features) -> (sentences, longest, features)"""
    return unpack(flat[:, None, None], sentences).squeeze(2).squeeze(0)


def pack_rows(padded: Tensor, sentences: Sentences) -> Tensor:
    """Remove the padding: (sentences, longest, features) -> (tokens, features); 0 in the tail"""
    return pack(padded[:, None], sentences).squeeze(1)
