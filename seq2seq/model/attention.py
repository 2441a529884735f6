"""Attention of packed batches, in several forms. Only this module masks by sentence.

att((K, V), q) = sum_n a_n v_n with weights a = normalise(score(k_n, q)). `Weighing` holds the scoring function and the
normalisation. softmax(q k_n / sqrt(D)) (Vaswani et al. 2017, arXiv:1706.03762, equation 1), and every form that can be
reduced to it, runs in fused kernels that do not return the weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from seq2seq.model.interface import Choices
from seq2seq.model.masks import bias_of, may_see
from seq2seq.model.packing import Sentences, pack, unpack

# Largest intermediate tensor of additive scores, in elements; more queries are computed in several chunks. Each score
# needs head_size elements.
ADDITIVE_ELEMENTS = 4_000_000
# Gain of the Glorot initialisation of Transformer layers. For query, key and value, PyTorch and fairseq use 1/sqrt(2),
# too; with a gain of 1, training was hundreds of steps behind. The output projection and the feed-forward sublayer use
# it as well: a post-norm Transformer learns still faster if its sublayers add less to the residual sum at the start
# (benchmarks/README.md, "Learning").
LAYER_GAIN = 2**-0.5
# Up to this many sentences * heads, PyTorch's fused kernel is faster in a decoding step than batched products.
FEW_SENTENCES_TIMES_HEADS = 64


class Weighing(nn.Module):
    """Attention weights: normalise(score(key, query)).

    Args:
        score: "scaled_dot", q k / sqrt(D) (Vaswani et al. 2017); "dot", q k (Luong et al. 2015, arXiv:1508.04025);
            "bilinear", q W k (ibid., "general"); "additive", v tanh(q + k) (Bahdanau et al. 2015, arXiv:1409.0473,
            section A.1.2), whose W and U are the projections of query and key. Each head has its own W or v.
        normalize: "softmax", or "relu", which sets negative scores to zero and leaves the others unscaled.
    """

    def __init__(self, num_heads: int, head_size: int, score: str = "scaled_dot", normalize: str = "softmax") -> None:
        super().__init__()
        self.num_heads, self.score, self.normalize = num_heads, score, normalize
        shape = {"bilinear": (num_heads, head_size, head_size), "additive": (num_heads, head_size)}.get(score)
        self.weight = nn.Parameter(torch.empty(shape).normal_(std=head_size**-0.5)) if shape else None

    @property
    def fast(self) -> bool:
        """True if the weights equal the softmax of a scaled dot product with the prepared query (see `prepare`)."""
        return self.score != "additive" and self.normalize == "softmax"

    def prepare(self, query: Tensor) -> Tensor:
        """Transform queries so that their scaled dot product with a key is the score; additive scores: unchanged.

        query: (…, heads, head_size).
        """
        if self.score == "bilinear":
            query = torch.einsum("...hd,hde->...he", query, cast(Tensor, self.weight))
        return query * math.sqrt(query.shape[-1]) if self.score in ("dot", "bilinear") else query

    def project(self, layer: nn.Module, hidden: Tensor) -> Tensor:
        """Apply `layer`, whose output begins with the queries, to `hidden`, (rows, d_model), and prepare the
        queries."""
        return self.projecting(layer)(hidden)

    def projecting(self, layer: nn.Module) -> Callable[[Tensor], Tensor]:
        """Return `project` as a function of `hidden`, with the layer's present parameters."""
        if self.score in ("scaled_dot", "additive"):
            return cast(Callable[[Tensor], Tensor], layer.forward)
        weight, bias = self.prepared(cast(nn.Linear, layer))
        return lambda hidden: F.linear(hidden, weight, bias)

    def prepared(self, layer: nn.Linear) -> tuple[Tensor, Tensor]:
        """Return weight and bias of a layer that computes `project(layer, hidden)` in one product."""
        if self.score in ("scaled_dot", "additive"):
            return layer.weight, layer.bias
        # Preparing is linear, so it can be applied to the columns of the query projection instead of to each query.
        columns = torch.cat([layer.weight, layer.bias[:, None]], 1)             # (outputs, d_model + 1)
        making, others = columns[: layer.in_features], columns[layer.in_features :]
        prepared = self.prepare(making.T.reshape(layer.in_features + 1, self.num_heads, -1)).flatten(1).T
        whole = torch.cat([prepared, others])
        return whole[:, :-1], whole[:, -1]

    @torch.no_grad()
    def fold_into(self, layer: nn.Linear) -> None:
        """Fold the preparation of queries into `layer`. A dot or bilinear score becomes a scaled dot product."""
        if self.score in ("dot", "bilinear"):
            weight, bias = self.prepared(layer)
            layer.weight.copy_(weight)
            layer.bias.copy_(bias)
            self.score, self.weight = "scaled_dot", None

    def forward(self, query: Tensor, keys: Tensor, bias: Tensor) -> Tensor:
        """Return the weights, (sentences, heads, queries, keys).

        Args:
            query: (sentences, heads, queries, head_size), prepared. keys: (sentences, heads, keys, head_size).
            bias: (sentences, 1 or heads, queries or 1, keys), added to the scores: 0, or a large negative number for a
                key that is masked.
        """
        if self.score == "additive":
            scores = additive(query, keys, cast(Tensor, self.weight)) + bias
            return scores.relu() if self.normalize == "relu" else scores.softmax(-1)
        bias = bias.expand(*query.shape[:3], -1).flatten(0, 1)
        scores = torch.baddbmm(bias, query.flatten(0, 1), keys.flatten(0, 1).transpose(1, 2),
                               alpha=1 / math.sqrt(query.shape[-1])).view(*query.shape[:3], -1)
        return scores.relu() if self.normalize == "relu" else scores.softmax(-1)


def additive(query: Tensor, keys: Tensor, weight: Tensor) -> Tensor:
    """Return additive scores v tanh(q + k), (sentences, heads, queries, keys).

    query: (sentences, heads, queries, head_size). keys: (sentences, heads, keys, head_size). weight: v, (heads,
        head_size).
    """
    def scores(some_queries: Tensor, some_keys: Tensor) -> Tensor:
        hidden = (some_queries[:, :, :, None] + some_keys[:, :, None]).tanh()
        return torch.einsum("shqkd,hd->shqk", hidden, weight)

    a_sentence = query[0].numel() * keys.shape[2]
    parts = zip(*(side.split(max(1, ADDITIVE_ELEMENTS // max(1, a_sentence))) for side in (query, keys)), strict=True)
    # The hidden layer is recomputed in the backward pass: saving it would take head_size times the memory of the
    # scores.
    again = torch.is_grad_enabled() and a_sentence * len(query) > ADDITIVE_ELEMENTS
    return torch.cat([cast(Tensor, checkpoint(scores, *part, use_reentrant=False)) if again else scores(*part)
                      for part in parts])


def attention(
    projected: tuple[Tensor, ...], query_sentences: Sentences, key_sentences: Sentences, causal: bool,
    window: int | None = None, weighing: Weighing | None = None,
) -> Tensor:
    """Attention of packed sentences, each over its own keys.

    Args:
        projected: for self-attention, (tokens, 3, heads, head_size): query, key and value of each token. Otherwise
            (query_tokens, 1, heads, head_size) and (key_tokens, 2, heads, head_size). Queries are prepared.
        query_sentences, key_sentences: the same number of sentences in both.
        causal: the query at position i attends to keys at positions 0 to i only.
        window: the query at position i attends to keys at positions i - window to i + window only; None: to all.
        weighing: None: softmax of the scaled dot product.
    Returns:
        (query_tokens, heads, head_size)
    """
    if (weighing is None or weighing.fast) and runs_packed(projected[0][:, 0]):
        query, key, value = (part for stack in projected for part in stack.unbind(1))
        return _packed_attention(query, key, value, query_sentences, key_sentences, causal, window)
    return _padded_attention(projected, query_sentences, key_sentences, causal, window, weighing)


def _padded_attention(projected: tuple[Tensor, ...], query_sentences: Sentences, key_sentences: Sentences, causal: bool,
                      window: int | None = None, weighing: Weighing | None = None) -> Tensor:
    padded = tuple(unpack(stack, sentences) for stack, sentences in
                   zip(projected, (query_sentences, key_sentences), strict=False))
    seen = may_see(query_sentences, key_sentences, causal, window)
    if weighing is None or weighing.fast:
        return pack(scaled_dot_product(padded, seen), query_sentences)
    query, keys, values = (part for stack in padded for part in stack)
    return pack(weighing(query, keys, bias_of(seen, query.dtype)) @ values, query_sentences)


def runs_packed(query: Tensor) -> bool:
    """Return True if the variable-length kernel supports the query, (tokens, heads, head_size).

    It needs CUDA, half precision, compute capability 8.0 or above, and a head size up to 256 that 8 divides.
    """
    return (
        query.is_cuda
        and query.dtype in (torch.bfloat16, torch.float16)
        and query.shape[-1] % 8 == 0
        and query.shape[-1] <= 256
        and torch.cuda.get_device_capability(query.device) >= (8, 0)
    )


def _packed_attention(query: Tensor, key: Tensor, value: Tensor, query_sentences: Sentences, key_sentences: Sentences,
                      causal: bool, window: int | None) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn

    before = -1 if window is None else window
    attended = varlen_attn(
        query, key, value, query_sentences.offsets, key_sentences.offsets,
        query_sentences.longest, key_sentences.longest, window_size=(before, 0 if causal else before),
    )
    return cast(Tensor, attended)                                               # it returns a pair only with lse


def scaled_dot_product(stacks: tuple[Tensor, ...], seen: Tensor | None) -> Tensor:
    """softmax(Q K^T / sqrt(D)) V over padded tensors.

    Args:
        stacks: (3, batch, heads, length, head_size), or (1, …) of the query and (2, …) of key and value.
        seen: (batch, 1 or heads, queries or 1, keys), True = may be attended to; at least one key for each query.
    Returns:
        (batch, heads, queries, head_size)
    """
    if stacks[0].is_cuda:
        query, key, value = (part for stack in stacks for part in stack)
        return F.scaled_dot_product_attention(query, key, value, attn_mask=seen)
    # At sentence lengths, PyTorch's fused CPU kernel is slower than plain products; its backward in bf16 up to 15
    # times (PyTorch 2.13, 2 cores with AMX).
    attended: Tensor = _PlainAttention.apply(seen, *stacks)
    return attended


def attend(query: Tensor, keys: Tensor, values: Tensor, bias: Tensor, weighing: Weighing) -> Tensor:
    """Attention of a decoding step, with one query per row.

    Args:
        query: (sentences, heads, queries, head_size), prepared. keys, values: (sentences, heads, keys, head_size).
        bias: (sentences, heads, queries or 1, keys), added to the scores.
    Returns:
        (sentences, heads, queries, head_size)
    """
    sentences, heads, queries, _ = query.shape
    # Batched products pay off only with many sentences, which outweigh their start-up cost, and with more than one
    # query, which fills the tiles (bf16, PyTorch 2.13, AMX: 50 instead of 12 microseconds for one sentence, 20 % less
    # time for 64 sentences with a beam of 5).
    if weighing.fast and (query.is_cuda or queries == 1 or sentences * heads <= FEW_SENTENCES_TIMES_HEADS):
        return F.scaled_dot_product_attention(query, keys, values, attn_mask=bias)
    return (weighing(query, keys, bias).flatten(0, 1) @ values.flatten(0, 1)).view(query.shape)


def by_row(attended: Tensor) -> Tensor:
    """(sentences, heads, beam, features) -> (sentences * beam, heads * features)"""
    sentences, heads, beam, features = attended.shape
    return attended.transpose(1, 2).reshape(sentences * beam, heads * features)


class _PlainAttention(torch.autograd.Function):
    """Attention in three batched products forward and four backward; saves only its input and the weights."""

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


def linear(inputs: int, outputs: int, *, fused: int = 1, gain: float = 1.0) -> nn.Linear:
    """Return a linear layer with bias 0 and Glorot-uniform weights (Glorot and Bengio 2010, equation 16).

    fused: number of matrices concatenated in its weight; each is initialised with its own fan-out.
    gain: factor of the range of the uniform distribution.
    """
    layer = nn.Linear(inputs, outputs)
    for matrix in layer.weight.detach().chunk(fused):
        nn.init.xavier_uniform_(matrix, gain)
    nn.init.zeros_(layer.bias)
    return layer


class SelfAttention(nn.Module):
    """Multi-head self-attention; one fused projection computes query, key and value.

    score, normalize: see `Weighing`. window: see `attention`; a step gets it as part of its bias.
    """

    def __init__(self, d_model: int, num_heads: int, score: str = "scaled_dot", normalize: str = "softmax",
                 window: int | None = None) -> None:
        super().__init__()
        self.num_heads, self.window = num_heads, window
        self.query_key_value = linear(d_model, 3 * d_model, fused=3, gain=LAYER_GAIN)
        self.weighing = Weighing(num_heads, d_model // num_heads, score, normalize)
        self.output = linear(d_model, d_model, gain=LAYER_GAIN)

    def forward(self, hidden: Tensor, sentences: Sentences, causal: bool) -> Tensor:
        """(tokens, d_model) -> (tokens, d_model)"""
        attended = attention(self._project(hidden), sentences, sentences, causal, self.window, self.weighing)
        output: Tensor = self.output(attended.flatten(1))
        return output

    def _project(self, hidden: Tensor) -> tuple[Tensor]:
        return (self.weighing.project(self.query_key_value, hidden).view(hidden.shape[0], 3, self.num_heads, -1),)

    def weights_of(self, hidden: Tensor, sentences: Sentences, causal: bool) -> Tensor:
        """Return the weights of `forward` with the same arguments, (sentences, heads, longest, longest)."""
        return _weights(self._project(hidden), sentences, sentences, causal, self.window, self.weighing)

    def stepping(self) -> Callable[[Tensor, Tensor, Tensor, int, Tensor], Tensor]:
        """Return the function that computes one position of every row, (rows, d_model) -> (rows, d_model).

        step(hidden, keys, values, slot, bias):
            hidden: (rows, d_model)
            keys, values: (sentences, heads, slots, head_size), the cache (see `caches.LayerCache`). The step writes
                its own position into the slots from `slot` on, one slot for each row of a sentence.
            bias: (sentences, heads, rows of a sentence, slots), 0 for a slot that a row may attend to, -inf elsewhere.
        """
        project, output, weighing = self.weighing.projecting(self.query_key_value), self.output.forward, self.weighing

        def step(hidden: Tensor, keys: Tensor, values: Tensor, slot: int, bias: Tensor) -> Tensor:
            sentences, heads, _, head_size = keys.shape
            projected = project(hidden).view(sentences, -1, 3, heads, head_size)
            query, key, value = projected.permute(2, 0, 3, 1, 4).unbind(0)     # (sentences, heads, beam, head_size)
            keys[:, :, slot : slot + key.shape[2]] = key
            values[:, :, slot : slot + key.shape[2]] = value
            return output(by_row(attend(query, keys, values, bias, weighing)))

        return step


class CrossAttention(nn.Module):
    """Multi-head attention of target positions over the source sentence.

    score, normalize: see `Weighing`.
    hard: each head attends to a single source position. In training the position is sampled from the weights, and
        `forward` returns the `Choices` that the loss needs to train them; otherwise it is the one of highest weight.
        A linear layer over the query predicts the estimator's baseline (Mnih and Gregor 2014, arXiv:1402.0030, section
        2.3).
    """

    def __init__(self, d_model: int, num_heads: int, score: str = "scaled_dot", normalize: str = "softmax",
                 hard: bool = False) -> None:
        super().__init__()
        self.num_heads, self.hard = num_heads, hard
        self.query = linear(d_model, d_model, gain=LAYER_GAIN)
        self.key_value = linear(d_model, 2 * d_model, fused=2, gain=LAYER_GAIN)
        self.weighing = Weighing(num_heads, d_model // num_heads, score, normalize)
        self.output = linear(d_model, d_model, gain=LAYER_GAIN)
        if hard:
            self.baseline = nn.Linear(d_model, 1)

    def forward(self, hidden: Tensor, memory: Tensor, sentences: Sentences,
                memory_sentences: Sentences) -> tuple[Tensor, Choices | None]:
        """(target_tokens, d_model), (source_tokens, d_model) -> (target_tokens, d_model), and the sampled positions.

        The positions are None except in training with hard attention.
        """
        projected, choices = self._project(hidden, memory), None
        if self.hard:
            attended, choices = self._attend_hard(hidden, projected, sentences, memory_sentences)
        else:
            attended = attention(projected, sentences, memory_sentences, causal=False, weighing=self.weighing)
        return self.output(attended.flatten(1)), choices

    def _attend_hard(self, hidden: Tensor, projected: tuple[Tensor, Tensor], sentences: Sentences,
                     memory_sentences: Sentences) -> tuple[Tensor, Choices | None]:
        weights = _weights(projected, sentences, memory_sentences, False, None, self.weighing)
        chosen, log_probability = select_position(weights, self.training)
        attended = pack(chosen @ unpack(projected[1], memory_sentences)[1], sentences)
        if log_probability is None:
            return attended, None
        by_token = pack(log_probability[..., None], sentences).flatten(1).sum(1)
        return attended, Choices(by_token, self.baseline(hidden.detach()).squeeze(1))

    def weights_of(self, hidden: Tensor, memory: Tensor, sentences: Sentences, memory_sentences: Sentences) -> Tensor:
        """Return the weights of `forward` with the same arguments, (sentences, heads, longest_target, longest_source).

        For hard attention, the distribution that positions are sampled from.
        """
        return _weights(self._project(hidden, memory), sentences, memory_sentences, False, None, self.weighing)

    def _project(self, hidden: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        query = self.weighing.project(self.query, hidden).view(hidden.shape[0], 1, self.num_heads, -1)
        return query, self._project_memory(memory)

    def start(self, memory: Tensor, memory_sentences: Sentences) -> tuple[Tensor, Tensor]:
        """(source_tokens, d_model) -> keys, values: (sentences, heads, longest_source, head_size), once per
        sentence."""
        keys, values = unpack(self._project_memory(memory), memory_sentences)
        return keys, values

    def _project_memory(self, memory: Tensor) -> Tensor:
        projected: Tensor = self.key_value(memory).view(memory.shape[0], 2, self.num_heads, -1)
        return projected

    def stepping(self) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
        """Return the function that computes one position of every row, (rows, d_model) -> (rows, d_model).

        step(hidden, keys, values, bias):
            keys, values: from `start`.
            bias: (sentences, heads, 1, longest_source), 0 for a source token and -inf elsewhere.
        """
        project, output, weighing = self.weighing.projecting(self.query), self.output.forward, self.weighing
        hard = self.hard

        def step(hidden: Tensor, keys: Tensor, values: Tensor, bias: Tensor) -> Tensor:
            # The rows of a sentence are its queries, (sentences, heads, beam, head_size), so that its keys and values
            # are read once for the whole beam and never copied.
            sentences, heads, _, head_size = keys.shape
            query = project(hidden).view(sentences, -1, heads, head_size).transpose(1, 2)
            attended = select_position(weighing(query, keys, bias), draw=False)[0] @ values if hard else attend(
                query, keys, values, bias, weighing)
            return output(by_row(attended))

        return step

    def weights(self, hidden: Tensor, keys: Tensor, bias: Tensor) -> Tensor:
        """Return the weights of a step, (rows, heads, longest_source). Arguments: as in `stepping`."""
        sentences, heads, _, head_size = keys.shape
        query = self.weighing.project(self.query, hidden).view(sentences, -1, heads, head_size).transpose(1, 2)
        return by_row(self.weighing(query, keys, bias)).unflatten(1, (heads, -1))


def _weights(projected: tuple[Tensor, ...], query_sentences: Sentences, key_sentences: Sentences, causal: bool,
             window: int | None, weighing: Weighing) -> Tensor:
    """Return the weights of `attention` with the same arguments, (sentences, heads, queries, keys)."""
    query, keys, *_ = (part for stack, sentences in zip(projected, (query_sentences, key_sentences), strict=False)
                       for part in unpack(stack, sentences))
    return cast(Tensor, weighing(query, keys, bias_of(may_see(query_sentences, key_sentences, causal, window),
                                                      query.dtype)))


def select_position(weights: Tensor, draw: bool) -> tuple[Tensor, Tensor | None]:
    """Choose one position of each distribution: (…, keys) -> one-hot of the same shape, and log p of the choice, (…).

    draw: sample the position; otherwise take the most probable one, without log p. When sampling, a random half of the
        distributions are returned unchanged (soft attention) with a log p of 0, because with samples alone attention
        gets hardly any signal until the rest of the model uses it (Xu et al. 2015, arXiv:1502.03044, section 4.1).
    """
    if not draw:
        return F.one_hot(weights.argmax(-1), weights.shape[-1]).to(weights.dtype), None
    # The index of the smallest of exponential variables with these rates is a sample of the distribution.
    drawn = (torch.empty_like(weights).exponential_() / weights.detach()).argmin(-1, keepdim=True)
    log_probability = weights.gather(-1, drawn).clamp(min=torch.finfo(weights.dtype).tiny).log()
    left = torch.rand_like(log_probability) < 0.5
    chosen = torch.where(left, weights, torch.zeros_like(weights).scatter_(-1, drawn, 1))
    return chosen, log_probability.masked_fill(left, 0).squeeze(-1)
