"""The encoder-decoder Transformer of "Attention Is All You Need" (Vaswani et al. 2017, arXiv:1706.03762)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seq2seq.batching import Batch
from seq2seq.model.attention import CrossAttention, SelfAttention, linear
from seq2seq.model.interface import Logits
from seq2seq.model.packing import Sentences

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": F.relu, "gelu": F.gelu, "silu": F.silu}


def sinusoids(length: int, d_model: int) -> Tensor:
    """Sinusoidal positions, (length, d_model): sin(t / 10000^(2i/D)) at 2i, cos at 2i + 1 (section 3.5)."""
    angles = torch.arange(length, dtype=torch.float64)[:, None] / 10000 ** (
        torch.arange(0, d_model, 2, dtype=torch.float64) / d_model
    )
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1).float()


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, probability: float) -> Tensor:
        # Sixteen random bits decide an element: the probability is met to 1 in 65,536 at a tenth of the time that
        # PyTorch's one draw of 53 bits an element takes on a CPU.
        words = torch.empty((hidden.numel() + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
        bits = words.view(torch.int16)[: hidden.numel()].view(hidden.shape)
        dropped = round(probability * 65536)
        kept = bits >= dropped - 32768
        ctx.save_for_backward(kept)
        ctx.scale = 65536 / (65536 - dropped)
        return (hidden * kept).mul_(ctx.scale)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (kept,) = ctx.saved_tensors
        return (gradient * kept).mul_(ctx.scale), None


class Dropout(nn.Module):
    """Sets elements to zero with `probability` and scales the others, in training only."""

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability

    def forward(self, hidden: Tensor) -> Tensor:
        """Any shape, unchanged."""
        if not self.training or self.probability == 0:
            return hidden
        if hidden.is_cuda:
            return F.dropout(hidden, self.probability)
        dropped: Tensor = _Dropout.apply(hidden, self.probability)
        return dropped


class _Lookup(torch.autograd.Function):
    # The rows of frequent words receive hundreds of gradients; summed in bf16, all but the first few would be lost.
    @staticmethod
    def forward(ctx: Any, weight: Tensor, tokens: Tensor) -> Tensor:
        ctx.save_for_backward(tokens)
        ctx.vocab_size, ctx.dtype = weight.shape[0], weight.dtype
        return weight.index_select(0, tokens)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (tokens,) = ctx.saved_tensors
        precise = gradient.to(torch.promote_types(gradient.dtype, torch.float32))
        summed = torch.ops.aten.embedding_dense_backward(precise, tokens, ctx.vocab_size, -1, False)
        return summed.to(ctx.dtype), None


class FeedForward(nn.Module):
    """FFN(z) = W_2 activation(W_1 z + b_1) + b_2 (equation 2)."""

    def __init__(self, d_model: int, feed_forward: int, activation: str) -> None:
        super().__init__()
        self.inner = linear(d_model, feed_forward)
        self.outer = linear(feed_forward, d_model)
        self.activation = ACTIVATIONS[activation]

    def forward(self, hidden: Tensor) -> Tensor:
        """(rows, d_model) -> (rows, d_model)"""
        projected: Tensor = self.outer(self.activation(self.inner(hidden)))
        return projected


class Residual(nn.Module):
    """The residual connection, dropout and norm around a sublayer f.

    post-norm: norm(x + dropout(f(x))), the paper's (section 3.1); pre-norm: x + dropout(f(norm(x))).
    Used as `residual.leave(x, f(residual.enter(x)))`.
    """

    def __init__(self, d_model: int, dropout: float, pre_norm: bool) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(d_model, eps=1e-5)
        self.dropout = Dropout(dropout)
        self.pre_norm = pre_norm

    def enter(self, hidden: Tensor) -> Tensor:
        """What the sublayer reads, (rows, d_model)."""
        return self.norm(hidden) if self.pre_norm else hidden

    def leave(self, hidden: Tensor, output: Tensor) -> Tensor:
        """Join the sublayer's output to what entered, (rows, d_model)."""
        joined = hidden + self.dropout(output)
        return joined if self.pre_norm else self.norm(joined)


class EncoderLayer(nn.Module):
    """Z = norm(H + MultiHead(H, H, H)); H' = norm(Z + FFN(Z))."""

    def __init__(self, d_model: int, num_heads: int, feed_forward: int, dropout: float, activation: str,
                 pre_norm: bool) -> None:
        super().__init__()
        self.self_attention = SelfAttention(d_model, num_heads)
        self.feed_forward = FeedForward(d_model, feed_forward, activation)
        self.self_residual = Residual(d_model, dropout, pre_norm)
        self.feed_forward_residual = Residual(d_model, dropout, pre_norm)

    def forward(self, hidden: Tensor, sentences: Sentences) -> Tensor:
        """(source_tokens, d_model) -> (source_tokens, d_model)"""
        attended = self.self_attention(self.self_residual.enter(hidden), sentences, causal=False)
        hidden = self.self_residual.leave(hidden, attended)
        transformed = self.feed_forward(self.feed_forward_residual.enter(hidden))
        return self.feed_forward_residual.leave(hidden, transformed)


@dataclass(frozen=True)
class LayerCache:
    """What a decoder layer keeps between steps.

    keys, values: (rows, heads, steps, head_size), of the target so far.
    memory_keys, memory_values: (sentences, heads, longest_source, head_size), shared by a sentence's rows.
    """

    keys: Tensor
    values: Tensor
    memory_keys: Tensor
    memory_values: Tensor


class DecoderLayer(nn.Module):
    """I = norm(H + masked MultiHead(H, H, H)); Z = norm(I + MultiHead(I, H_E, H_E)); H' = norm(Z + FFN(Z))."""

    def __init__(self, d_model: int, num_heads: int, feed_forward: int, dropout: float, activation: str,
                 pre_norm: bool) -> None:
        super().__init__()
        self.self_attention = SelfAttention(d_model, num_heads)
        self.cross_attention = CrossAttention(d_model, num_heads)
        self.feed_forward = FeedForward(d_model, feed_forward, activation)
        self.self_residual = Residual(d_model, dropout, pre_norm)
        self.cross_residual = Residual(d_model, dropout, pre_norm)
        self.feed_forward_residual = Residual(d_model, dropout, pre_norm)

    def forward(self, hidden: Tensor, memory: Tensor, sentences: Sentences, memory_sentences: Sentences) -> Tensor:
        """(target_tokens, d_model), (source_tokens, d_model) -> (target_tokens, d_model)"""
        attended = self.self_attention(self.self_residual.enter(hidden), sentences, causal=True)
        hidden = self.self_residual.leave(hidden, attended)
        attended = self.cross_attention(self.cross_residual.enter(hidden), memory, sentences, memory_sentences)
        return self._feed_forward(self.cross_residual.leave(hidden, attended))

    def start(self, memory: Tensor, memory_sentences: Sentences) -> LayerCache:
        """The cache before the first step: memory (source_tokens, d_model) projected once, nothing of the target."""
        keys, values = self.cross_attention.start(memory, memory_sentences)
        empty = keys[:, :, :0]
        return LayerCache(empty, empty, keys, values)

    def step(self, hidden: Tensor, cache: LayerCache, seen: Tensor,
             keep_attention: bool) -> tuple[Tensor, LayerCache, Tensor | None]:
        """One position of every row.

        Args:
            hidden: (rows, d_model)
            seen: (sentences, 1, 1, longest_source), True = a source token.
            keep_attention: whether to return the cross-attention's weights.
        Returns:
            (rows, d_model), the cache with this position, and (rows, longest_source), the mean over heads, or None.
        """
        attended, keys, values = self.self_attention.step(self.self_residual.enter(hidden), cache.keys, cache.values)
        hidden = self.self_residual.leave(hidden, attended)
        asking = self.cross_residual.enter(hidden)
        attended = self.cross_attention.step(asking, cache.memory_keys, cache.memory_values, seen)
        weights = self.cross_attention.weights(asking, cache.memory_keys, seen).mean(1) if keep_attention else None
        hidden = self._feed_forward(self.cross_residual.leave(hidden, attended))
        return hidden, replace(cache, keys=keys, values=values), weights

    def _feed_forward(self, hidden: Tensor) -> Tensor:
        transformed = self.feed_forward(self.feed_forward_residual.enter(hidden))
        return self.feed_forward_residual.leave(hidden, transformed)


@dataclass(frozen=True)
class TransformerState:
    """Decoding state: position of the next token, every layer's cache, and which source positions are real."""

    position: int
    caches: tuple[LayerCache, ...]
    seen: Tensor                        # (sentences, 1, 1, longest_source)
    keep_attention: bool
    attention: Tensor | None = None     # (rows, longest_source), mean over the heads of the last layer

    def select(self, rows: Tensor) -> TransformerState:
        """See `interface.State.select`."""
        old_rows, old_sentences = self.caches[0].keys.shape[0], self.seen.shape[0]
        flat = rows.flatten()
        sentences = rows[:, 0] // (old_rows // old_sentences)
        same_sentences = len(sentences) == old_sentences

        def keep(memory: Tensor) -> Tensor:
            return memory if same_sentences else memory.index_select(0, sentences)

        caches = tuple(
            LayerCache(cache.keys.index_select(0, flat), cache.values.index_select(0, flat),
                       keep(cache.memory_keys), keep(cache.memory_values))
            for cache in self.caches
        )
        attention = None if self.attention is None else self.attention.index_select(0, flat)
        return replace(self, caches=caches, seen=keep(self.seen), attention=attention)


class Transformer(nn.Module):
    """Encoder, decoder, embeddings and output layer. `build_model` makes one from a recipe.

    Args:
        source_vocab_size, target_vocab_size: equal where all embeddings are tied.
        tied_embeddings: "all" (source, target and output are one matrix), "decoder" (target and output), "none".
        scale_embedding: e = sqrt(d_model) E[index] (section 3.4).
        positions: "sinusoidal" or "learned", counted from 0.
        max_positions: tokens of the longest sentence.
    Raises:
        ValueError: vocabularies of different size cannot share one matrix.
    """

    def __init__(
        self, *, source_vocab_size: int, target_vocab_size: int, d_model: int, encoder_layers: int,
        decoder_layers: int, num_heads: int, feed_forward: int, dropout: float = 0.0, activation: str = "relu",
        pre_norm: bool = False, positions: str = "sinusoidal", max_positions: int = 1024,
        tied_embeddings: str = "all", scale_embedding: bool = True, output_bias: bool = False,
    ) -> None:
        super().__init__()
        if tied_embeddings == "all" and source_vocab_size != target_vocab_size:
            raise ValueError(f"cannot tie embeddings of {source_vocab_size} source and {target_vocab_size} target ids")
        self.d_model, self.max_positions = d_model, max_positions
        self.scale = math.sqrt(d_model) if scale_embedding else 1.0
        self.target_embedding = nn.Parameter(torch.empty(target_vocab_size, d_model))
        self.source_embedding = (
            self.target_embedding if tied_embeddings == "all"
            else nn.Parameter(torch.empty(source_vocab_size, d_model))
        )
        self.output_weight = (
            nn.Parameter(torch.empty(target_vocab_size, d_model)) if tied_embeddings == "none"
            else self.target_embedding
        )
        self.output_bias = nn.Parameter(torch.zeros(target_vocab_size)) if output_bias else None
        if positions == "learned":
            self.source_positions: Tensor = nn.Parameter(torch.empty(max_positions, d_model))
            self.target_positions: Tensor = nn.Parameter(torch.empty(max_positions, d_model))
        else:
            self.register_buffer("source_positions", sinusoids(max_positions, d_model), persistent=False)
            self.register_buffer("target_positions", self.source_positions, persistent=False)
        self.dropout = Dropout(dropout)
        layer = (d_model, num_heads, feed_forward, dropout, activation, pre_norm)
        self.encoder = nn.ModuleList(EncoderLayer(*layer) for _ in range(encoder_layers))
        self.decoder = nn.ModuleList(DecoderLayer(*layer) for _ in range(decoder_layers))
        self.encoder_norm = nn.LayerNorm(d_model, eps=1e-5) if pre_norm else nn.Identity()
        self.decoder_norm = nn.LayerNorm(d_model, eps=1e-5) if pre_norm else nn.Identity()
        self._initialise()

    def _initialise(self) -> None:
        # The projections draw themselves (attention.linear); embeddings have deviation 1/sqrt(d_model), so that
        # scaled inputs have unit variance and tied outputs small logits.
        for embedding in (self.target_embedding, self.source_embedding, self.output_weight,
                          self.source_positions, self.target_positions):
            if isinstance(embedding, nn.Parameter):
                nn.init.normal_(embedding, std=self.d_model**-0.5)

    def _embed(self, embedding: Tensor, positions: Tensor, tokens: Tensor, at: Tensor) -> Tensor:
        embedded: Tensor = _Lookup.apply(embedding, tokens) * self.scale + _Lookup.apply(positions, at)
        return self.dropout(embedded)

    def encode(self, source: Tensor, sentences: Sentences) -> Tensor:
        """(source_tokens,) -> (source_tokens, d_model)

        Raises:
            ValueError: a sentence is longer than `max_positions`.
        """
        self._check_length(sentences.longest)
        hidden = self._embed(self.source_embedding, self.source_positions, source, sentences.positions)
        for layer in self.encoder:
            hidden = layer(hidden, sentences)
        output: Tensor = self.encoder_norm(hidden)
        return output

    def forward(self, batch: Batch) -> Logits:
        """Scores of every target position, (target_tokens, vocab_size) as the product that makes them.

        Raises:
            ValueError: a sentence is longer than `max_positions`.
        """
        self._check_length(batch.longest_target)
        source_sentences = Sentences(batch.source_offsets, batch.source_positions, batch.longest_source)
        target_sentences = Sentences(batch.target_offsets, batch.target_positions, batch.longest_target)
        memory = self.encode(batch.source, source_sentences)
        hidden = self._embed(self.target_embedding, self.target_positions, batch.target_input,
                             target_sentences.positions)
        for layer in self.decoder:
            hidden = layer(hidden, memory, target_sentences, source_sentences)
        return self._logits(hidden)

    def start(self, source: Tensor, source_offsets: Tensor, longest_source: int,
              keep_attention: bool = False) -> TransformerState:
        """See `interface.Seq2Seq.start`."""
        sentences = Sentences.from_offsets(source_offsets, longest_source)
        memory = self.encode(source, sentences)
        caches = tuple(cast(DecoderLayer, layer).start(memory, sentences) for layer in self.decoder)
        return TransformerState(0, caches, sentences.real[:, None, None, :], keep_attention)

    def step(self, last_tokens: Tensor, state: TransformerState) -> tuple[Tensor, TransformerState]:
        """See `interface.Seq2Seq.step`."""
        self._check_length(state.position + 1)
        hidden = self._embed(self.target_embedding, self.target_positions, last_tokens,
                             torch.full_like(last_tokens, state.position))
        caches, weights = [], None
        for layer, cache in zip(self.decoder, state.caches, strict=True):
            last = layer is self.decoder[-1]
            hidden, cache, weights = cast(DecoderLayer, layer).step(hidden, cache, state.seen,
                                                                    state.keep_attention and last)
            caches.append(cache)
        after = replace(state, position=state.position + 1, caches=tuple(caches), attention=weights)
        return self._logits(hidden).dense(), after

    def _logits(self, hidden: Tensor) -> Logits:
        return Logits(self.decoder_norm(hidden), self.output_weight, self.output_bias)

    def _check_length(self, length: int) -> None:
        if length > self.max_positions:
            raise ValueError(f"a sentence of {length} tokens; this model has {self.max_positions} positions")

