"""Attention: the queries of a sentence attend only to the keys of the same sentence.

att((K, V), q) = sum_n a_n v_n with weights a = normalise(score(k_n, q)). `Weighing` computes the weights. If the
weights are softmax(q k_n / sqrt(head_size)) (Vaswani et al. 2017, arXiv:1706.03762, equation 1), PyTorch's fused
kernels can compute the attention. These kernels do not return the weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from seq2seq.model.interface import HardAttentionSample
from seq2seq.model.masks import attention_mask, mask_to_bias
from seq2seq.model.packing import Sentences, pack, unpack
from seq2seq.model.structured_attention import chain_marginals

# Maximum number of elements in the hidden layer of additive scores, (sentences, heads, queries, keys, head_size): 16 MB
# in fp32. If a batch needs more, its sentences are divided into chunks, which are computed one after another.
MAX_ADDITIVE_ELEMENTS = 4_000_000
# Gain of the Glorot initialisation of Transformer layers. PyTorch and fairseq also use 1/sqrt(2) for query, key and
# value. With a gain of 1 for them, training needed hundreds of steps more to reach the same loss. Here the output
# projection and the feed-forward sublayer also have a gain of 1/sqrt(2). At the start of training, each sublayer then
# adds less to the residual stream, and a post-norm Transformer learns faster (benchmarks/README.md, "Learning").
LAYER_GAIN = 2**-0.5
# Up to this value of sentences * heads, PyTorch's fused CPU kernel is faster than matrix products in decoding steps.
MAX_FUSED_SENTENCES_TIMES_HEADS = 64


class Weighing(nn.Module):
    """Layer that computes the attention weights of a query over keys: normalise(score(key, query)).

    Args:
        score: "scaled_dot", q k / sqrt(head_size) (Vaswani et al. 2017); "dot", q k (Luong et al. 2015,
            arXiv:1508.04025); "bilinear", q W k ("general" in Luong et al.); "additive", v tanh(q + k) (Bahdanau et al.
            2015, arXiv:1409.0473, section A.1.2; the caller projects query and key with the paper's W_a and U_a). Each
            head has its own W ("bilinear") or v ("additive").
        normalize: "softmax"; "relu", which sets negative scores to zero and does not scale positive ones; or
            "structured", the marginals of a linear chain, whose pairwise potentials each head learns
            (`structured_attention`).
    """

    def __init__(self, num_heads: int, head_size: int, score: str = "scaled_dot", normalize: str = "softmax") -> None:
        super().__init__()
        self.num_heads, self.score, self.normalize = num_heads, score, normalize
        shape = {"bilinear": (num_heads, head_size, head_size), "additive": (num_heads, head_size)}.get(score)
        self.weight = nn.Parameter(torch.empty(shape).normal_(std=head_size**-0.5)) if shape else None
        self.pairwise = nn.Parameter(torch.zeros(num_heads, 1, 2, 2)) if normalize == "structured" else None

    @property
    def is_scaled_dot_product(self) -> bool:
        """True if the weights are softmax(q k / sqrt(head_size)) for the query q that `prepare` returns."""
        return self.score != "additive" and self.normalize == "softmax"

    def prepare(self, query: Tensor) -> Tensor:
        """Transform queries, (…, heads, head_size), so that their scaled dot product with a key is the score.

        If the score is additive, return the queries unchanged.
        """
        if self.score == "bilinear":
            query = torch.einsum("...hd,hde->...he", query, cast(Tensor, self.weight))
        return query * math.sqrt(query.shape[-1]) if self.score in ("dot", "bilinear") else query

    def make_projection(self, layer: nn.Module) -> Callable[[Tensor], Tensor]:
        """Return a function (rows, d_model) -> (rows, outputs). It applies the linear layer `layer`. Then it
        transforms the first d_model outputs, which are the queries, with `prepare`."""
        if self.score in ("scaled_dot", "additive"):
            return cast(Callable[[Tensor], Tensor], layer.forward)
        weight, bias = self.prepared_parameters(cast(nn.Linear, layer))
        return lambda hidden: F.linear(hidden, weight, bias)

    def prepared_parameters(self, layer: nn.Linear) -> tuple[Tensor, Tensor]:
        """Return the weight and the bias of a linear layer that computes the same as `make_projection(layer)`."""
        if self.score in ("scaled_dot", "additive"):
            return layer.weight, layer.bias
        # `prepare` is linear, so it can be applied once to the weight and the bias, instead of to each query.
        columns = torch.cat([layer.weight, layer.bias[:, None]], 1)             # (outputs, d_model + 1)
        query_rows, other_rows = columns[: layer.in_features], columns[layer.in_features :]
        prepared = self.prepare(query_rows.T.reshape(layer.in_features + 1, self.num_heads, -1)).flatten(1).T
        columns = torch.cat([prepared, other_rows])
        return columns[:, :-1], columns[:, -1]

    def forward(self, query: Tensor, keys: Tensor, bias: Tensor) -> Tensor:
        """Return the attention weights, (sentences, heads, queries, keys).

        Args:
            query: (sentences, heads, queries, head_size), from `prepare`. keys: (sentences, heads, keys, head_size).
            bias: (sentences, 1 or heads, queries or 1, keys), added to the scores: 0 for keys that a query may attend
                to, -inf or a large negative number for others.
        """
        if self.score == "additive":
            scores = additive(query, keys, cast(Tensor, self.weight)) + bias
        else:
            added = bias.expand(*query.shape[:3], -1).flatten(0, 1)
            scores = torch.baddbmm(added, query.flatten(0, 1), keys.flatten(0, 1).transpose(1, 2),
                                   alpha=1 / math.sqrt(query.shape[-1])).view(*query.shape[:3], -1)
        if self.pairwise is not None:
            exact, is_key = torch.promote_types(scores.dtype, torch.float32), (bias == 0).expand(scores.shape)
            return chain_marginals(scores.to(exact), self.pairwise.to(exact), is_key).to(scores.dtype)
        return scores.relu() if self.normalize == "relu" else scores.softmax(-1)


def additive(query: Tensor, keys: Tensor, weight: Tensor) -> Tensor:
    """Return the additive scores v tanh(q + k), (sentences, heads, queries, keys).

    query: (sentences, heads, queries, head_size). keys: (sentences, heads, keys, head_size). weight: v, (heads,
        head_size).
    """
    def scores(chunk_queries: Tensor, chunk_keys: Tensor) -> Tensor:
        hidden = (chunk_queries[:, :, :, None] + chunk_keys[:, :, None]).tanh()
        return torch.einsum("shqkd,hd->shqk", hidden, weight)

    sentence_elements = query[0].numel() * keys.shape[2]
    chunk_size = max(1, MAX_ADDITIVE_ELEMENTS // max(1, sentence_elements))
    chunks = zip(query.split(chunk_size), keys.split(chunk_size), strict=True)
    # The hidden layer takes head_size times the memory of the scores. If it is large, the backward pass recomputes it.
    recompute = torch.is_grad_enabled() and sentence_elements * len(query) > MAX_ADDITIVE_ELEMENTS
    return torch.cat([cast(Tensor, checkpoint(scores, *chunk, use_reentrant=False)) if recompute else scores(*chunk)
                      for chunk in chunks])


def attention(projected: tuple[Tensor, ...], query_sentences: Sentences, key_sentences: Sentences, weighing: Weighing,
              causal: bool = False, window: int | None = None) -> Tensor:
    """Compute attention over packed sentences: the queries of a sentence attend only to keys of the same sentence.

    Args:
        projected: for self-attention, one tensor with query, key and value, (tokens, 3, heads, head_size); for
            cross-attention, two tensors: the query, (query_tokens, 1, heads, head_size), and key and value,
            (key_tokens, 2, heads, head_size). `Weighing.prepare` has been applied to the query.
        query_sentences, key_sentences: sentences of the queries and of the keys, in the same order.
        causal: True if the query at position i attends only to keys at positions up to i.
        window: maximum distance between a query and the keys that it attends to; None: no limit.
    Returns:
        (query_tokens, heads, head_size)
    """
    if weighing.is_scaled_dot_product and runs_packed(projected[0][:, 0]):
        from torch.nn.attention.varlen import varlen_attn

        query, key, value = (part for stack in projected for part in stack.unbind(1))
        keys_before = -1 if window is None else window                          # -1: no limit
        return cast(Tensor, varlen_attn(                                        # returns a pair only with return_aux
            query, key, value, query_sentences.offsets, key_sentences.offsets, query_sentences.longest,
            key_sentences.longest, window_size=(keys_before, 0 if causal else keys_before)))
    return _padded_attention(projected, query_sentences, key_sentences, weighing, causal, window)


def _padded_attention(projected: tuple[Tensor, ...], query_sentences: Sentences, key_sentences: Sentences,
                      weighing: Weighing, causal: bool, window: int | None) -> Tensor:
    padded = tuple(map(unpack, projected, (query_sentences, key_sentences)))
    mask = attention_mask(query_sentences, key_sentences, causal, window)
    if weighing.is_scaled_dot_product:
        return pack(scaled_dot_product(padded, mask), query_sentences)
    query, keys, values = (part for stack in padded for part in stack)
    return pack(weighing(query, keys, mask_to_bias(mask, query.dtype)) @ values, query_sentences)


def attention_weights(projected: tuple[Tensor, ...], query_sentences: Sentences, key_sentences: Sentences,
                      weighing: Weighing, causal: bool = False, window: int | None = None) -> Tensor:
    """Return the weights that `attention` computes from these arguments, (sentences, heads, queries, keys)."""
    query, keys, *_ = (part for stack in map(unpack, projected, (query_sentences, key_sentences)) for part in stack)
    mask = attention_mask(query_sentences, key_sentences, causal, window)
    return cast(Tensor, weighing(query, keys, mask_to_bias(mask, query.dtype)))


def runs_packed(query: Tensor) -> bool:
    """Return True if the variable-length kernel supports the query, (tokens, heads, head_size).

    The kernel needs CUDA, half precision, compute capability 8.0 or above, and a head size of at most 256 that is a
    multiple of 8.
    """
    return (
        query.is_cuda
        and query.dtype in (torch.bfloat16, torch.float16)
        and query.shape[-1] % 8 == 0
        and query.shape[-1] <= 256
        and torch.cuda.get_device_capability(query.device) >= (8, 0)
    )


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


def attend(query: Tensor, keys: Tensor, values: Tensor, bias: Tensor, weighing: Weighing) -> Tensor:
    """Compute attention in a decoding step. The queries of a sentence are the rows of its beam.

    Args:
        query: (sentences, heads, queries, head_size), from `Weighing.prepare`.
        keys, values: (sentences, heads, keys, head_size). bias: as in `Weighing.forward`.
    Returns:
        (sentences, heads, queries, head_size)
    """
    sentences, heads, queries, _ = query.shape
    # On a CPU in bf16 (PyTorch 2.13), the fused kernel takes 12 microseconds for one sentence, matrix products take 50.
    # For 64 sentences with a beam of 5, matrix products are 20 % faster. With one query, they do not fill AMX tiles.
    few = queries == 1 or sentences * heads <= MAX_FUSED_SENTENCES_TIMES_HEADS
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


def linear(inputs: int, outputs: int, *, fused: int = 1, gain: float = 1.0) -> nn.Linear:
    """Return a linear layer with bias 0 and Glorot-uniform weights (Glorot and Bengio 2010, equation 16).

    fused: number of matrices stacked in the weight. Each matrix is initialised like the weight of a separate layer.
    gain: factor by which the bounds of the uniform distribution are multiplied.
    """
    layer = nn.Linear(inputs, outputs)
    for matrix in layer.weight.detach().chunk(fused):
        nn.init.xavier_uniform_(matrix, gain)
    nn.init.zeros_(layer.bias)
    return layer


class SelfAttention(nn.Module):
    """Multi-head self-attention. One fused projection computes query, key and value.

    score, normalize: see `Weighing`. window: see `attention`; not used in decoding steps, whose `bias` masks the keys.
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
        attended = attention(self._project(hidden), sentences, sentences, self.weighing, causal, self.window)
        return cast(Tensor, self.output(attended.flatten(1)))

    def weights_of(self, hidden: Tensor, sentences: Sentences, causal: bool) -> Tensor:
        """Return the attention weights of `forward` for the same arguments, (sentences, heads, longest, longest)."""
        return attention_weights(self._project(hidden), sentences, sentences, self.weighing, causal, self.window)

    def _project(self, hidden: Tensor) -> tuple[Tensor]:
        projected = self.weighing.make_projection(self.query_key_value)(hidden)
        return (projected.view(hidden.shape[0], 3, self.num_heads, -1),)

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
    """Multi-head attention of target positions over the source sentence.

    score, normalize: see `Weighing`.
    selection: "soft", "structured" (see `Weighing`) or "hard". With "hard", each head attends to one source position.
        Outside of training, this is the position with the highest weight. In training, `select_position` samples
        positions, and `forward` also returns a `HardAttentionSample`, from which the loss trains the weights. A linear
        layer predicts the sample's baseline from the hidden state (Mnih and Gregor 2014, arXiv:1402.0030, section 2.3).
    """

    def __init__(self, d_model: int, num_heads: int, score: str = "scaled_dot", normalize: str = "softmax",
                 selection: str = "soft") -> None:
        super().__init__()
        self.num_heads, self.hard = num_heads, selection == "hard"
        normalize = "structured" if selection == "structured" else normalize
        self.query = linear(d_model, d_model, gain=LAYER_GAIN)
        self.key_value = linear(d_model, 2 * d_model, fused=2, gain=LAYER_GAIN)
        self.weighing = Weighing(num_heads, d_model // num_heads, score, normalize)
        self.output = linear(d_model, d_model, gain=LAYER_GAIN)
        if self.hard:
            self.baseline = nn.Linear(d_model, 1)

    def forward(self, hidden: Tensor, memory: Tensor, sentences: Sentences,
                memory_sentences: Sentences) -> tuple[Tensor, HardAttentionSample | None]:
        """(target_tokens, d_model), (source_tokens, d_model) -> (target_tokens, d_model), and the attention sample,
        which is None except in training with hard attention."""
        projected, sample = self._project(hidden, memory), None
        if self.hard:
            weights = attention_weights(projected, sentences, memory_sentences, self.weighing)
            hard_weights, log_probability = select_position(weights, self.training)
            attended = pack(hard_weights @ unpack(projected[1], memory_sentences)[1], sentences)
            if log_probability is not None:
                sample = HardAttentionSample(pack(log_probability[..., None], sentences).flatten(1).sum(1),
                                             self.baseline(hidden.detach()).squeeze(1))
        else:
            attended = attention(projected, sentences, memory_sentences, self.weighing)
        return self.output(attended.flatten(1)), sample

    def weights_of(self, hidden: Tensor, memory: Tensor, sentences: Sentences, memory_sentences: Sentences) -> Tensor:
        """Return the attention weights of `forward` for the same arguments, (sentences, heads, longest_target,
        longest_source). With hard attention, the weights are the distribution from which positions are sampled."""
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

    def make_step_function(self) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
        """Return the function that computes one position of every row, (rows, d_model) -> (rows, d_model).

        step(hidden, keys, values, bias):
            keys, values: from `start`.
            bias: (sentences, heads, 1, longest_source), 0 for source tokens, -inf for padding.
        """
        project, output, weighing = self.weighing.make_projection(self.query), self.output.forward, self.weighing
        hard = self.hard

        def step(hidden: Tensor, keys: Tensor, values: Tensor, bias: Tensor) -> Tensor:
            # The queries have the shape (sentences, heads, beam, head_size), so that all rows of a beam share the keys
            # and values of their sentence without a copy.
            sentences, heads, _, head_size = keys.shape
            query = project(hidden).view(sentences, -1, heads, head_size).transpose(1, 2)
            if hard:
                attended = select_position(weighing(query, keys, bias), sample=False)[0] @ values
            else:
                attended = attend(query, keys, values, bias, weighing)
            return output(merge_beam_and_heads(attended))

        return step

    def weights(self, hidden: Tensor, keys: Tensor, bias: Tensor) -> Tensor:
        """Return a step's attention weights, (rows, heads, longest_source). Arguments: as in `make_step_function`."""
        sentences, heads, _, head_size = keys.shape
        query = self.weighing.make_projection(self.query)(hidden).view(sentences, -1, heads, head_size).transpose(1, 2)
        return merge_beam_and_heads(self.weighing(query, keys, bias)).unflatten(1, (heads, -1))


def select_position(weights: Tensor, sample: bool) -> tuple[Tensor, Tensor | None]:
    """Select one key from each distribution over keys, `weights`, (…, keys).

    sample: False: select the most probable key. True: with probability 1/2, sample a key; in the other case, return
        the distribution unchanged (soft attention) and a log p of 0. With samples alone, attention gets hardly any
        gradient until the rest of the model uses attention's output (Xu et al. 2015, arXiv:1502.03044, section 4.1).
    Returns:
        One-hot or unchanged weights, (…, keys); and log p of the sampled keys, (…), or None if `sample` is False.
    """
    if not sample:
        return F.one_hot(weights.argmax(-1), weights.shape[-1]).to(weights.dtype), None
    # Among independent exponential variables x_i of rates weights[i], x_i is the smallest with probability weights[i].
    sampled = (torch.empty_like(weights).exponential_() / weights.detach()).argmin(-1, keepdim=True)
    log_probability = weights.gather(-1, sampled).clamp(min=torch.finfo(weights.dtype).tiny).log()
    keep_soft = torch.rand_like(log_probability) < 0.5
    selected = torch.where(keep_soft, weights, torch.zeros_like(weights).scatter_(-1, sampled, 1))
    return selected, log_probability.masked_fill(keep_soft, 0).squeeze(-1)
