"""Attention: the queries of a sentence attend only to the keys of the same sentence.

att((K, V), q) = sum_n a_n v_n with weights a = softmax(q k_n / sqrt(head_size)) (Vaswani et al. 2017, arXiv:1706.03762,
equation 1). Fused kernels compute it without returning the weights. Other weights: `attention_scores`, `variants`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seq2seq.model.kernels import multiplies_in_loops, usable_in_16_bits
from seq2seq.model.layers import LAYER_GAIN, Projected, TokenLinear, linear
from seq2seq.model.packing import Sentences, pack, unpack
from seq2seq.model.relative_positions import RelativePositions

# Up to this value of sentences * heads, PyTorch's fused CPU kernel is faster than matrix products in decoding steps.
MAX_FUSED_SENTENCES_TIMES_HEADS = 64
PACKED_HEAD_SIZES = 16, 32, 64, 128                                             # of attention by intervals


class ScaledDotProduct(nn.Module):
    """Attention weights of a query over keys: softmax(q k / sqrt(head_size)).

    is_scaled_dot_product: True if a fused kernel can compute the attention with the projections of this class.
    """

    def __init__(self, num_heads: int, head_size: int) -> None:
        super().__init__()
        self.num_heads, self.head_size, self.scale = num_heads, head_size, 1 / math.sqrt(head_size)

    @property
    def is_scaled_dot_product(self) -> bool:
        return True

    def prepare(self, query: Tensor) -> Tensor:
        """Transform queries, (…, heads, head_size), for `forward`; here, they stay."""
        return query

    def make_projection(self, layer: nn.Module) -> Callable[[Tensor], Tensor]:
        """Return the function of the linear layer `layer`, (rows, d_model) -> (rows, outputs). Its first
        outputs, heads * head_size, are the queries."""
        return cast(Callable[[Tensor], Tensor], layer.forward)

    def fold_into(self, layer: nn.Linear) -> None:
        """Change a layer so that its plain output is what `make_projection(layer)` returns; here, it already is."""

    def forward(self, query: Tensor, keys: Tensor, bias: Tensor) -> Tensor:
        """Return the attention weights, (sentences, heads, queries, keys).

        Args:
            query: (sentences, heads, queries, head_size), projected by the function that `make_projection` returns.
            keys: (sentences, heads, keys, head_size).
            bias: (sentences, 1 or heads, queries or 1, keys), added to the scores: 0 for keys that a query may attend
                to, -inf or a large negative number for others.
        """
        return self.scores(query, keys, bias).softmax(-1)

    def scores(self, query: Tensor, keys: Tensor, bias: Tensor) -> Tensor:
        """Return q k / sqrt(head_size) + bias, (sentences, heads, queries, keys). Arguments: as in `forward`."""
        added = bias.expand(*query.shape[:3], -1).flatten(0, 1)
        return torch.baddbmm(added, query.flatten(0, 1), keys.flatten(0, 1).transpose(1, 2),
                             alpha=self.scale).view(*query.shape[:3], -1)


MakeWeighing = Callable[[int, int], ScaledDotProduct]
"""Function that makes the layer that computes attention weights, from the number of heads and their size."""


def attention_mask(query_sentences: Sentences, key_sentences: Sentences, causal: bool,
                   window: int | None = None) -> Tensor:
    """Return the attention mask, (sentences, 1, queries or 1, keys) bool, True = may be attended to.

    Arguments: as in `attention`.
    """
    is_token = key_sentences.token_mask[:, None, None, :]
    if not causal and window is None:
        return is_token
    device = is_token.device
    distance = (torch.arange(query_sentences.longest, device=device)[:, None]
                - torch.arange(key_sentences.longest, device=device))           # (queries, keys)
    allowed = is_token & (distance >= (0 if causal else -cast(int, window)))
    # With a window, a query in padding could have no key. Its weights, and the gradients of all keys of its sentence,
    # would then be NaN. Therefore each query may attend to its own position.
    return allowed if window is None else (allowed & (distance <= window)) | (distance == 0)


def mask_to_bias(mask: Tensor, dtype: torch.dtype, masked: float | None = None) -> Tensor:
    """Return the mask as a bias to add to attention scores: 0 where `mask` is True, `masked` elsewhere.

    masked: bias of masked keys; None: a large negative number. With -inf, a query without keys would have NaN weights.
    """
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(
        ~mask, torch.finfo(dtype).min / 2 if masked is None else masked)


def attention(projected: tuple[Tensor, ...], query_sentences: Sentences, key_sentences: Sentences,
              weighing: ScaledDotProduct, causal: bool = False, window: int | None = None,
              position_bias: Tensor | None = None) -> Tensor:
    """Compute attention over packed sentences: the queries of a sentence attend only to keys of the same sentence.

    Args:
        projected: for self-attention, one tensor with query, key and value, (tokens, 3, heads, head_size); for
            cross-attention, two tensors: the query, (query_tokens, 1, heads, head_size), and key and value,
            (key_tokens, 2, heads, head_size).
        query_sentences, key_sentences: sentences of the queries and of the keys, in the same order.
        causal: True if the query at position i attends only to keys at positions up to i.
        window: maximum distance between a query and the keys that it attends to; None: no limit.
        position_bias: (heads, queries, keys), added to the scores in each sentence; None: nothing is added.
    Returns:
        (query_tokens, heads, head_size); 0 for tokens that are in no sentence.
    """
    if position_bias is None and weighing.is_scaled_dot_product and runs_packed(projected[0][:, 0]):
        from seq2seq.model.kernels.interval_attention import attend as attend_by_intervals

        return attend_by_intervals(projected, *intervals_of(query_sentences, key_sentences, causal, window))
    return _padded_attention(projected, query_sentences, key_sentences, weighing, causal, window, position_bias)


def intervals_of(query_sentences: Sentences, key_sentences: Sentences, causal: bool, window: int | None
                 ) -> tuple[Tensor, Tensor]:
    """Return the intervals of keys of the queries, (2, query_tokens), and of queries of the keys, (2, key_tokens).

    See `kernels.interval_attention`. All layers share them.
    """
    from seq2seq.model.kernels.interval_attention import find_intervals

    def compute() -> tuple[Tensor, Tensor]:
        before, after = window, 0 if causal else window
        queries, keys = ((side.begins, side.lengths) for side in (query_sentences, key_sentences))
        return (find_intervals(queries, keys, len(query_sentences.positions), before, after),
                find_intervals(keys, queries, len(key_sentences.positions), after, before))

    # Not the sentences themselves as a key of their own cache: the cycle would keep it until a garbage collection.
    others = None if key_sentences is query_sentences else key_sentences
    return query_sentences.cached(("intervals", others, causal, window), compute)


def _padded_attention(projected: tuple[Tensor, ...], query_sentences: Sentences, key_sentences: Sentences,
                      weighing: ScaledDotProduct, causal: bool, window: int | None, position_bias: Tensor | None
                      ) -> Tensor:
    padded = tuple(map(unpack, projected, (query_sentences, key_sentences)))
    mask = attention_mask(query_sentences, key_sentences, causal, window)
    if position_bias is None and weighing.is_scaled_dot_product:
        return pack(scaled_dot_product(padded, mask), query_sentences)
    query, keys, values = (part for stack in padded for part in stack)
    return pack(weighing(query, keys, score_bias(mask, query.dtype, position_bias)) @ values, query_sentences)


def score_bias(mask: Tensor, dtype: torch.dtype, position_bias: Tensor | None) -> Tensor:
    """Return the sum of `mask_to_bias(mask, dtype)` and `position_bias` (see `attention`)."""
    bias = mask_to_bias(mask, dtype)
    return bias if position_bias is None else bias + position_bias.to(dtype)


def attention_weights(projected: tuple[Tensor, ...], query_sentences: Sentences, key_sentences: Sentences,
                      weighing: ScaledDotProduct, causal: bool = False, window: int | None = None,
                      position_bias: Tensor | None = None) -> Tensor:
    """Return the weights that `attention` computes from these arguments, (sentences, heads, queries, keys)."""
    query, keys, *_ = (part for stack in map(unpack, projected, (query_sentences, key_sentences)) for part in stack)
    mask = attention_mask(query_sentences, key_sentences, causal, window)
    return cast(Tensor, weighing(query, keys, score_bias(mask, query.dtype, position_bias)))


def runs_packed(query: Tensor) -> bool:
    """Return True if attention by intervals supports the query, (tokens, heads, head_size)."""
    return (query.shape[-1] in PACKED_HEAD_SIZES and usable_in_16_bits(query)
            and multiplies_in_loops(query.device))


def scaled_dot_product(stacks: tuple[Tensor, ...], mask: Tensor) -> Tensor:
    """Compute softmax(Q K^T / sqrt(D)) V over padded tensors.

    Args:
        stacks: one tensor with query, key and value, (3, batch, heads, length, head_size); or two tensors: the query,
            (1, …), and key and value, (2, …).
        mask: (batch, 1 or heads, queries or 1, keys), True = may be attended to (at least one key per query).
    Returns:
        (batch, heads, queries, head_size)
    """
    if stacks[0].is_cuda:
        query, key, value = (part for stack in stacks for part in stack)
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    # For sequences as short as sentences, PyTorch's fused CPU kernel is slower than matrix products. In bf16, its
    # backward pass takes up to 15 times as long (PyTorch 2.13, 2 cores with AMX).
    return cast(Tensor, _PlainAttention.apply(mask, *stacks))


def attend(query: Tensor, keys: Tensor, values: Tensor, bias: Tensor, weighing: ScaledDotProduct) -> Tensor:
    """Compute attention in a decoding step. The queries of a sentence are the rows of its beam.

    Args:
        query: (sentences, heads, queries, head_size), from `ScaledDotProduct.make_projection`.
        keys, values: (sentences, heads, keys, head_size). bias: as in `ScaledDotProduct.forward`.
    Returns:
        (sentences, heads, queries, head_size)
    """
    sentences, heads, _, _ = query.shape
    # On a CPU (PyTorch 2.13, fp32, 4 heads, one query and 64 keys), the fused kernel takes 30 microseconds for one
    # sentence, matrix products take 113. For 64 sentences, matrix products take less than a fifth of the time.
    few = sentences * heads <= MAX_FUSED_SENTENCES_TIMES_HEADS
    if weighing.is_scaled_dot_product and (query.is_cuda or few):
        return F.scaled_dot_product_attention(query, keys, values, attn_mask=bias)
    return (weighing(query, keys, bias).flatten(0, 1) @ values.flatten(0, 1)).view(query.shape)


def merge_beam_and_heads(attended: Tensor) -> Tensor:
    """Reshape (sentences, heads, beam, features) to (sentences * beam, heads * features)."""
    sentences, heads, beam, features = attended.shape
    return attended.transpose(1, 2).reshape(sentences * beam, heads * features)


class _PlainAttention(torch.autograd.Function):
    """Scaled dot-product attention by matrix products. It saves inputs and attention weights for the backward pass.

    Arguments: as in `scaled_dot_product`.
    """

    @staticmethod
    def forward(ctx: Any, mask: Tensor, *stacks: Tensor) -> Tensor:
        query, key, value = (part.flatten(0, 1) for stack in stacks for part in stack)
        scores = torch.bmm(query, key.transpose(1, 2)).mul_(1 / math.sqrt(query.shape[-1]))
        scores = scores.view(*stacks[0].shape[1:3], *scores.shape[1:])          # (batch, heads, queries, keys)
        weights = scores.masked_fill_(~mask, -math.inf).softmax(-1)
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
        query_gradient, key_gradient, value_gradient = (part.flatten(0, 1) for stack in gradients for part in stack)
        torch.bmm(scores_gradient, key, out=query_gradient)
        torch.bmm(scores_gradient.transpose(1, 2), query, out=key_gradient)
        torch.bmm(weights.transpose(1, 2), gradient, out=value_gradient)
        return None, *gradients


class SelfAttention(nn.Module):
    """Multi-head self-attention. One fused projection computes query, key and value.

    window: see `attention`. relative: relative positions; None: there are none. Both are not used in decoding steps,
        whose `bias` contains them. head_size: None: d_model / num_heads. bias: False for linear layers without biases.
    """

    def __init__(self, d_model: int, num_heads: int, weighing: MakeWeighing = ScaledDotProduct,
                 window: int | None = None, relative: RelativePositions | None = None, head_size: int | None = None,
                 bias: bool = True) -> None:
        super().__init__()
        self.num_heads, self.head_size, self.window = num_heads, head_size or d_model // num_heads, window
        width = num_heads * self.head_size
        self.query_key_value = linear(d_model, 3 * width, fused=3, gain=LAYER_GAIN, kind=TokenLinear, bias=bias)
        self.weighing = weighing(num_heads, self.head_size)
        self.output = linear(width, d_model, gain=LAYER_GAIN, bias=bias)
        self.relative = relative

    @property
    def is_scaled_dot_product(self) -> bool:
        """True if a fused kernel without a bias of the scores can compute the attention."""
        return self.relative is None and self.weighing.is_scaled_dot_product

    def forward(self, hidden: Tensor, sentences: Sentences, causal: bool) -> Projected:
        """(tokens, d_model) -> (tokens, d_model)"""
        attended = attention(self._project(hidden), sentences, sentences, self.weighing, causal, self.window,
                             self._position_bias(sentences))
        return Projected.of(self.output, attended.flatten(1))

    def weights_of(self, hidden: Tensor, sentences: Sentences, causal: bool) -> Tensor:
        """Return the attention weights of `forward` for the same arguments, (sentences, heads, longest, longest)."""
        return attention_weights(self._project(hidden), sentences, sentences, self.weighing, causal, self.window,
                                 self._position_bias(sentences))

    def _position_bias(self, sentences: Sentences) -> Tensor | None:
        return None if self.relative is None else self.relative.of_sentences(sentences)

    def _project(self, hidden: Tensor) -> tuple[Tensor]:
        projected = self.weighing.make_projection(self.query_key_value)(hidden)
        return (projected.view(hidden.shape[0], 3, self.num_heads, -1),)

    def fold_query_preparation(self) -> None:
        """Make the transformation of the queries by the score a part of their projection, for decoding."""
        self.weighing.fold_into(self.query_key_value)

    def make_step_function(self) -> Callable[[Tensor, Tensor, Tensor, slice | Tensor, Tensor], Tensor]:
        """Return the function that computes one position of every row, (rows, d_model) -> (rows, d_model).

        step(hidden, keys, values, new_slots, bias):
            hidden: (rows, d_model)
            keys, values: (sentences, heads, slots, head_size), the KV cache (see `kv_cache.LayerCache`).
            new_slots: slots to which the step writes the keys and values of this position, as a slice or as indices,
                (beam,) int64. Each row of a sentence writes to one of these slots.
            bias: (sentences, heads, beam, slots), 0 for a slot that a row may attend to, -inf for others.
        """
        project, output = self.weighing.make_projection(self.query_key_value), self.output.forward
        weighing = self.weighing

        def step(hidden: Tensor, keys: Tensor, values: Tensor, new_slots: slice | Tensor, bias: Tensor) -> Tensor:
            sentences, heads, _, head_size = keys.shape
            projected = project(hidden).view(sentences, -1, 3, heads, head_size)
            query, key, value = projected.permute(2, 0, 3, 1, 4).unbind(0)     # (sentences, heads, beam, head_size)
            keys[:, :, new_slots] = key
            values[:, :, new_slots] = value
            return output(merge_beam_and_heads(attend(query, keys, values, bias, weighing)))

        return step


class CrossAttention(nn.Module):
    """Multi-head attention of target positions over the source sentence. Arguments: see `SelfAttention`."""

    def __init__(self, d_model: int, num_heads: int, weighing: MakeWeighing = ScaledDotProduct,
                 head_size: int | None = None, bias: bool = True) -> None:
        super().__init__()
        self.num_heads, self.head_size = num_heads, head_size or d_model // num_heads
        width = num_heads * self.head_size
        self.query = linear(d_model, width, gain=LAYER_GAIN, kind=TokenLinear, bias=bias)
        self.key_value = linear(d_model, 2 * width, fused=2, gain=LAYER_GAIN, kind=TokenLinear, bias=bias)
        self.weighing = weighing(num_heads, self.head_size)
        self.output = linear(width, d_model, gain=LAYER_GAIN, bias=bias)

    @property
    def is_scaled_dot_product(self) -> bool:
        """See `SelfAttention.is_scaled_dot_product`."""
        return self.weighing.is_scaled_dot_product

    def forward(self, hidden: Tensor, memory: Tensor, sentences: Sentences, memory_sentences: Sentences) -> Projected:
        """(target_tokens, d_model), (source_tokens, d_model) -> (target_tokens, d_model)"""
        attended = attention(self._project(hidden, memory), sentences, memory_sentences, self.weighing)
        return Projected.of(self.output, attended.flatten(1))

    def weights_of(self, hidden: Tensor, memory: Tensor, sentences: Sentences, memory_sentences: Sentences) -> Tensor:
        """Return the attention weights of `forward` for the same arguments, (sentences, heads, longest_target,
        longest_source)."""
        return attention_weights(self._project(hidden, memory), sentences, memory_sentences, self.weighing)

    def _project(self, hidden: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        query = self.weighing.make_projection(self.query)(hidden)
        return query.view(hidden.shape[0], 1, self.num_heads, -1), self._project_memory(memory)

    def start(self, memory: Tensor, memory_sentences: Sentences) -> tuple[Tensor, Tensor]:
        """Compute the keys and the values that all decoding steps use: (source_tokens, d_model) -> two tensors of
        (sentences, heads, longest_source, head_size)."""
        keys, values = unpack(self._project_memory(memory), memory_sentences)
        return keys, values

    def _project_memory(self, memory: Tensor) -> Tensor:
        return cast(Tensor, self.key_value(memory).view(memory.shape[0], 2, self.num_heads, -1))

    def fold_query_preparation(self) -> None:
        """See `SelfAttention.fold_query_preparation`."""
        self.weighing.fold_into(self.query)

    def make_step_function(self) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
        """Return the function that computes one position of every row, (rows, d_model) -> (rows, d_model).

        step(hidden, keys, values, bias):
            keys, values: from `start`.
            bias: (sentences, heads, 1, longest_source), 0 for source tokens, -inf for padding.
        """
        project, output = self.weighing.make_projection(self.query), self.output.forward
        attend_to_source = self._attend_to_source

        def step(hidden: Tensor, keys: Tensor, values: Tensor, bias: Tensor) -> Tensor:
            # The queries have the shape (sentences, heads, beam, head_size), so that all rows of a beam share the keys
            # and values of their sentence without a copy.
            sentences, heads, _, head_size = keys.shape
            query = project(hidden).view(sentences, -1, heads, head_size).transpose(1, 2)
            return output(merge_beam_and_heads(attend_to_source(query, keys, values, bias)))

        return step

    def _attend_to_source(self, query: Tensor, keys: Tensor, values: Tensor, bias: Tensor) -> Tensor:
        return attend(query, keys, values, bias, self.weighing)

    def weights(self, hidden: Tensor, keys: Tensor, bias: Tensor) -> Tensor:
        """Return a step's attention weights, (rows, heads, longest_source). Arguments: as in `make_step_function`."""
        sentences, heads, _, head_size = keys.shape
        query = self.weighing.make_projection(self.query)(hidden).view(sentences, -1, heads, head_size).transpose(1, 2)
        return merge_beam_and_heads(self.weighing(query, keys, bias)).unflatten(1, (heads, -1))
