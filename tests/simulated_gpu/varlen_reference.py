"""Reference of PyTorch's variable-length attention kernel, on the CPU.

It checks the constraints of the flash kernel, and leaves rows that no offset covers NaN: a kernel leaves them
uninitialised, and a model that reads them must not pass a test by luck.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

HALF = (torch.bfloat16, torch.float16)
LARGEST_HEAD, HEAD_MULTIPLE = 256, 8


@dataclass(frozen=True)
class Packed:
    """Arguments of a call. query, key, value: (tokens, heads, head_size). Offsets: (sentences + 1,) int32.

    window: largest distance to a key before and after the query's position; -1: any.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    query_offsets: Tensor
    key_offsets: Tensor
    longest_query: int
    longest_key: int
    window: tuple[int, int]
    scale: float

    @staticmethod
    def of(query: Tensor, key: Tensor, value: Tensor, query_offsets: Tensor, key_offsets: Tensor, longest_query: int,
           longest_key: int, causal: bool, scale: float | None, window: Sequence[int] | None) -> Packed:
        """Return the arguments of `torch_attn::_varlen_attn`, checked."""
        before, after = window or (-1, -1)
        assert causal == ((before, after) == (-1, 0)), f"varlen_attn: causal is {causal}, the window {window}"
        packed = Packed(query, key, value, query_offsets, key_offsets, longest_query, longest_key, (before, after),
                        query.shape[-1] ** -0.5 if scale is None else scale)
        packed.check()
        return packed

    def check(self) -> None:
        """Raise AssertionError if the kernel would refuse the arguments, or read or write outside of them."""
        for name, part in (("query", self.query), ("key", self.key), ("value", self.value)):
            assert part.dtype in HALF, f"varlen_attn: {name} is {part.dtype}; the kernel needs half precision"
            assert part.dim() == 3 and part.stride(-1) == 1, \
                f"varlen_attn: {name} of shape {tuple(part.shape)} and strides {part.stride()}"
            size = part.shape[-1]
            assert size <= LARGEST_HEAD and size % HEAD_MULTIPLE == 0, f"varlen_attn: heads of {size}"
        assert len(self.query_offsets) == len(self.key_offsets), "varlen_attn: other sentences on the other side"
        assert len(self.key) == len(self.value), "varlen_attn: keys without values"
        for name, offsets, longest, rows in (
                ("query", self.query_offsets, self.longest_query, len(self.query)),
                ("key", self.key_offsets, self.longest_key, len(self.key))):
            assert offsets.dtype == torch.int32 and offsets.is_contiguous(), f"varlen_attn: {name} offsets"
            lengths = offsets.diff()
            assert offsets[0] == 0 and offsets[-1] <= rows and (lengths >= 0).all(), \
                f"varlen_attn: {name} offsets {offsets.tolist()} of {rows} rows"
            assert lengths.max() <= longest, f"varlen_attn: a {name} of {int(lengths.max())} where {longest} is longest"

    def sentences(self) -> Iterator[tuple[slice, slice, Tensor]]:
        """Yield the rows of the queries and keys of each sentence, and its scores, (heads, queries, keys)."""
        queries, keys = self.query_offsets.tolist(), self.key_offsets.tolist()
        for number in range(len(queries) - 1):
            rows, sources = slice(*queries[number : number + 2]), slice(*keys[number : number + 2])
            if rows.stop == rows.start:
                continue
            scores = torch.einsum("qhd,khd->hqk", self.query[rows].float(), self.key[sources].float()) * self.scale
            yield rows, sources, scores.masked_fill(~self._seen(scores.shape[1], scores.shape[2]), -math.inf)

    def _seen(self, queries: int, keys: int) -> Tensor:
        """(queries, keys) bool, True = may be attended to. The kernel aligns the last query with the last key."""
        before, after = self.window
        ahead = torch.arange(keys) - torch.arange(queries)[:, None] - (keys - queries)
        seen = torch.ones(queries, keys, dtype=torch.bool)
        return seen & (ahead >= -before if before >= 0 else seen) & (ahead <= after if after >= 0 else seen)


def forward(packed: Packed) -> tuple[Tensor, Tensor, Tensor]:
    """Return the attended values, the log of the sum of exponentials (heads, tokens), and a state of random numbers."""
    attended = _unwritten(packed.query)
    log_sums = torch.full((packed.query.shape[1], len(packed.query)), math.nan)
    for rows, keys, scores in packed.sentences():
        values = packed.value[keys].float()
        attended[rows] = torch.einsum("hqk,khd->qhd", scores.softmax(-1), values).to(attended.dtype)
        log_sums[:, rows] = scores.logsumexp(-1)
    return attended, log_sums, torch.zeros(2, dtype=torch.uint64)


def backward(gradient: Tensor, packed: Packed) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of query, key and value."""
    of_query, of_key, of_value = (_unwritten(part) for part in (packed.query, packed.key, packed.value))
    for rows, keys, scores in packed.sentences():
        weights, given = scores.softmax(-1), gradient[rows].float()
        of_value[keys] = torch.einsum("hqk,qhd->khd", weights, given).to(of_value.dtype)
        of_weights = torch.einsum("qhd,khd->hqk", given, packed.value[keys].float())
        of_scores = packed.scale * weights * (of_weights - (weights * of_weights).sum(-1, keepdim=True))
        of_query[rows] = torch.einsum("hqk,khd->qhd", of_scores, packed.key[keys].float()).to(of_query.dtype)
        of_key[keys] = torch.einsum("hqk,qhd->khd", of_scores, packed.query[rows].float()).to(of_key.dtype)
    return of_query, of_key, of_value


def _unwritten(like: Tensor) -> Tensor:
    return torch.full_like(like, math.nan, memory_format=torch.contiguous_format)
