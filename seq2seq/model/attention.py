"""Attention: the one place that knows where sentences end.

att((K, V), q) = sum_n softmax(q k_n / sqrt(D)) v_n (Vaswani et al. 2017, arXiv:1706.03762, equation 1).
"""

from __future__ import annotations

import math
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seq2seq.model.packing import Sentences, pack, unpack

# Below so many, the fused kernel of a decoding step is faster than batched products.
FEW_SENTENCES_TIMES_HEADS = 64


def attention(
    projected: tuple[Tensor, ...], query_sentences: Sentences, key_sentences: Sentences, causal: bool
) -> Tensor:
    """Scaled dot-product attention of packed sentences, each over its own keys.

    Args:
        projected: of self-attention, (tokens, 3, heads, head_size): query, key and value of each token. Otherwise
            (query_tokens, 1, heads, head_size) and (key_tokens, 2, heads, head_size).
        query_sentences, key_sentences: the same number of sentences in both.
        causal: a query at position i sees the keys at positions 0 to i only.
    Returns:
        (query_tokens, heads, head_size)
    """
    if runs_packed(projected[0][:, 0]):
        query, key, value = (part for stack in projected for part in stack.unbind(1))
        return _packed_attention(query, key, value, query_sentences, key_sentences, causal)
    return _padded_attention(projected, query_sentences, key_sentences, causal)


def runs_packed(query: Tensor) -> bool:
    """Whether the variable-length kernel can serve: CUDA, half precision, compute capability 8.0 and above, and a head
    size that it takes. query: (tokens, heads, head_size)."""
    return (
        query.is_cuda
        and query.dtype in (torch.bfloat16, torch.float16)
        and query.shape[-1] % 8 == 0
        and query.shape[-1] <= 256
        and torch.cuda.get_device_capability(query.device) >= (8, 0)
    )


def _packed_attention(
    query: Tensor, key: Tensor, value: Tensor, query_sentences: Sentences, key_sentences: Sentences, causal: bool
) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn

    attended = varlen_attn(
        query, key, value, query_sentences.offsets, key_sentences.offsets,
        query_sentences.longest, key_sentences.longest, window_size=(-1, 0) if causal else (-1, -1),
    )
    return cast(Tensor, attended)                                               # a pair only where lse is asked for


def _padded_attention(
    projected: tuple[Tensor, ...], query_sentences: Sentences, key_sentences: Sentences, causal: bool
) -> Tensor:
    seen = key_sentences.real[:, None, None, :]                                 # True = may be seen
    if causal:
        seen = seen & torch.ones(query_sentences.longest, key_sentences.longest, dtype=torch.bool,
                                 device=seen.device).tril()
    padded = tuple(unpack(stack, sentences) for stack, sentences in
                   zip(projected, (query_sentences, key_sentences), strict=False))
    return pack(scaled_dot_product(padded, seen), query_sentences)


def scaled_dot_product(stacks: tuple[Tensor, ...], seen: Tensor | None) -> Tensor:
    """softmax(Q K^T / sqrt(D)) V over padded tensors.

    Args:
        stacks: (3, batch, heads, length, head_size), or (1, …) of the query and (2, …) of key and value.
        seen: (batch, 1 or heads, queries or 1, keys), True = may be seen. Each query must see at least one key.
    Returns:
        (batch, heads, queries, head_size)
    """
    if stacks[0].is_cuda:
        query, key, value = (part for stack in stacks for part in stack)
        return F.scaled_dot_product_attention(query, key, value, attn_mask=seen)
    # The CPU's fused kernel is slower than plain products at the length of sentences, and its backward in bf16 up to
    # 15 times (PyTorch 2.13, 2 cores with AMX).
    attended: Tensor = _PlainAttention.apply(seen, *stacks)
    return attended


def attention_weights(query: Tensor, keys: Tensor, bias: Tensor) -> Tensor:
    """softmax(Q K^T / sqrt(D) + bias), (sentences, heads, queries, keys). Arguments: as `attend`."""
    weights = torch.baddbmm(bias.expand(*query.shape[:3], -1).flatten(0, 1), query.flatten(0, 1),
                            keys.flatten(0, 1).transpose(1, 2), alpha=1 / math.sqrt(query.shape[-1])).softmax(-1)
    return weights.view(*query.shape[:3], -1)


def attend(query: Tensor, keys: Tensor, values: Tensor, bias: Tensor) -> Tensor:
    """Attention of a decoding step, whose queries are few.

    Args:
        query: (sentences, heads, queries, head_size). keys, values: (sentences, heads, keys, head_size).
        bias: (sentences, heads, queries or 1, keys), added to the scores.
    Returns:
        (sentences, heads, queries, head_size)
    """
    sentences, heads, queries, _ = query.shape
    # One batched product needs many sentences to be worth its start, and more than one query to fill its tiles
    # (bf16, PyTorch 2.13, AMX: 50 instead of 12 microseconds for a sentence, 20 % less time for 64 with a beam of 5).
    if query.is_cuda or queries == 1 or sentences * heads <= FEW_SENTENCES_TIMES_HEADS:
        return F.scaled_dot_product_attention(query, keys, values, attn_mask=bias)
    return (attention_weights(query, keys, bias).flatten(0, 1) @ values.flatten(0, 1)).view(query.shape)


def by_row(attended: Tensor) -> Tensor:
    """(sentences, heads, beam, features) -> (sentences * beam, heads * features)"""
    sentences, heads, beam, features = attended.shape
    return attended.transpose(1, 2).reshape(sentences * beam, heads * features)


class _PlainAttention(torch.autograd.Function):
    """Three batched products forward, four backward, and only the weights kept between."""

    @staticmethod
    def forward(ctx: Any, seen: Tensor | None, *stacks: Tensor) -> Tensor:
        query, key, value = (part.flatten(0, 1) for stack in stacks for part in stack)
        scores = torch.bmm(query, key.transpose(1, 2)).mul_(1 / math.sqrt(query.shape[-1]))
        scores = scores.view(*stacks[0].shape[1:3], *scores.shape[1:])          # (batch, heads, queries, keys)
        if seen is not None:
            scores = scores.masked_fill_(~seen, -math.inf)
        weights = scores.softmax(-1)
        ctx.save_for_backward(weights, *stacks)
        return torch.bmm(weights.flatten(0, 1), value).view(stacks[0].shape[1:])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        weights, *stacks = ctx.saved_tensors
        query, key, value = (part.flatten(0, 1) for stack in stacks for part in stack)
        weights, gradient = weights.flatten(0, 1), gradient.flatten(0, 1)
        scores_gradient = torch._softmax_backward_data(gradient @ value.transpose(1, 2), weights, -1, weights.dtype)
        scores_gradient.mul_(1 / math.sqrt(query.shape[-1]))
        gradients = [torch.empty_like(stack) for stack in stacks]
        of_query, of_key, of_value = (part.flatten(0, 1) for stack in gradients for part in stack)
        torch.bmm(scores_gradient, key, out=of_query)
        torch.bmm(scores_gradient.transpose(1, 2), query, out=of_key)
        torch.bmm(weights.transpose(1, 2), gradient, out=of_value)
        return None, *gradients


def linear(inputs: int, outputs: int, parts: int = 1) -> nn.Linear:
    """A projection with bias 0 and Glorot-uniform weights (Glorot and Bengio 2010).

    parts: matrices fused into one; each is drawn with its own fan-out, else their range would shrink.
    """
    layer = nn.Linear(inputs, outputs)
    for matrix in layer.weight.detach().chunk(parts):
        nn.init.xavier_uniform_(matrix)
    nn.init.zeros_(layer.bias)
    return layer


class SelfAttention(nn.Module):
    """Multi-head attention of each sentence over itself; one fused projection makes query, key and value."""

    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.query_key_value = linear(d_model, 3 * d_model, parts=3)
        self.output = linear(d_model, d_model)

    def forward(self, hidden: Tensor, sentences: Sentences, causal: bool) -> Tensor:
        """(tokens, d_model) -> (tokens, d_model)"""
        projected = self.query_key_value(hidden).view(hidden.shape[0], 3, self.num_heads, -1)
        attended = attention((projected,), sentences, sentences, causal)
        output: Tensor = self.output(attended.flatten(1))
        return output

    def step(self, hidden: Tensor, keys: Tensor, values: Tensor, slot: int, bias: Tensor) -> Tensor:
        """One position of every row, (rows, d_model), over what its own hypothesis produced before.

        Args:
            keys, values: (sentences, heads, slots, head_size), of all rows that a sentence ever had; this position is
                written into them from `slot` on, one slot a row.
            bias: (sentences, heads, rows of a sentence, slots), 0 where a row may look and -inf elsewhere.
        """
        sentences, heads, _, head_size = keys.shape
        projected = self.query_key_value(hidden).view(sentences, -1, 3, heads, head_size)
        query, key, value = projected.permute(2, 0, 3, 1, 4).unbind(0)         # (sentences, heads, beam, head_size)
        keys[:, :, slot : slot + key.shape[2]] = key
        values[:, :, slot : slot + key.shape[2]] = value
        attended = attend(query, keys, values, bias)
        return self.output(by_row(attended))


class CrossAttention(nn.Module):
    """Multi-head attention of target positions over the source sentence."""

    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.query = linear(d_model, d_model)
        self.key_value = linear(d_model, 2 * d_model, parts=2)
        self.output = linear(d_model, d_model)

    def forward(self, hidden: Tensor, memory: Tensor, sentences: Sentences, memory_sentences: Sentences) -> Tensor:
        """(target_tokens, d_model), (source_tokens, d_model) -> (target_tokens, d_model)"""
        query = self.query(hidden).view(hidden.shape[0], 1, self.num_heads, -1)
        attended = attention((query, self._project_memory(memory)), sentences, memory_sentences, causal=False)
        output: Tensor = self.output(attended.flatten(1))
        return output

    def start(self, memory: Tensor, memory_sentences: Sentences) -> tuple[Tensor, Tensor]:
        """(source_tokens, d_model) -> keys, values: (sentences, heads, longest_source, head_size), once a sentence."""
        keys, values = unpack(self._project_memory(memory), memory_sentences)
        return keys, values

    def _project_memory(self, memory: Tensor) -> Tensor:
        projected: Tensor = self.key_value(memory).view(memory.shape[0], 2, self.num_heads, -1)
        return projected

    def step(self, hidden: Tensor, keys: Tensor, values: Tensor, bias: Tensor) -> Tensor:
        """One position of every row, (rows, d_model), over its sentence's memory as `start` made it.

        bias: (sentences, heads, 1, longest_source), 0 for a source token and -inf elsewhere.
        """
        attended = attend(self._queries(hidden, keys), keys, values, bias)
        projected: Tensor = self.output(by_row(attended))
        return projected

    def weights(self, hidden: Tensor, keys: Tensor, bias: Tensor) -> Tensor:
        """What `step` attends to: (rows, heads, longest_source), each row of it a distribution."""
        weights = attention_weights(self._queries(hidden, keys), keys, bias)
        return by_row(weights).unflatten(1, (self.num_heads, -1))

    def _queries(self, hidden: Tensor, keys: Tensor) -> Tensor:
        # A sentence's rows are its queries, (sentences, heads, beam, head_size): its memory is read once for all of
        # them and never copied.
        sentences, heads, _, head_size = keys.shape
        queries: Tensor = self.query(hidden).view(sentences, -1, heads, head_size)
        return queries.transpose(1, 2)
