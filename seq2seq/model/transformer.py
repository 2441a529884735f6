"""The encoder-decoder Transformer of "Attention Is All You Need" (Vaswani et al. 2017, arXiv:1706.03762)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seq2seq.data.batching import Batch
from seq2seq.model.attention import LAYER_GAIN, CrossAttention, SelfAttention, linear
from seq2seq.model.copy_mechanism import CopyHead
from seq2seq.model.dropout import Dropout
from seq2seq.model.embedding import Lookup, embeddings, sinusoids
from seq2seq.model.interface import Choices, Logits, Mixture
from seq2seq.model.kv_cache import LayerCache, TransformerState
from seq2seq.model.packing import Sentences

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": F.relu, "gelu": F.gelu, "silu": F.silu}


class FeedForward(nn.Module):
    """FFN(z) = W_2 activation(W_1 z + b_1) + b_2 (equation 2)."""

    def __init__(self, d_model: int, feed_forward: int, activation: str) -> None:
        super().__init__()
        self.inner = linear(d_model, feed_forward, gain=LAYER_GAIN)
        self.outer = linear(feed_forward, d_model, gain=LAYER_GAIN)
        self.activation = ACTIVATIONS[activation]

    def forward(self, hidden: Tensor) -> Tensor:
        """(rows, d_model) -> (rows, d_model)"""
        projected: Tensor = self.outer(self.activation(self.inner(hidden)))
        return projected

    def stepping(self) -> Callable[[Tensor], Tensor]:
        """Return `forward` as a plain function, whose modules and parameters are looked up only once."""
        inner, activation, outer = self.inner.forward, self.activation, self.outer.forward
        return lambda hidden: outer(activation(inner(hidden)))


class Residual(nn.Module):
    """Residual connection, dropout and layer norm around a sublayer f.

    post-norm: norm(x + dropout(f(x))), the paper's (section 3.1); pre-norm: x + dropout(f(norm(x))).
    Used as `residual.leave(x, f(residual.enter(x)))`.
    """

    def __init__(self, d_model: int, dropout: float, pre_norm: bool) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(d_model, eps=1e-5)
        self.dropout = Dropout(dropout)
        self.pre_norm = pre_norm

    def enter(self, hidden: Tensor) -> Tensor:
        """Return the input of the sublayer, (rows, d_model)."""
        return self.norm(hidden) if self.pre_norm else hidden

    def leave(self, hidden: Tensor, output: Tensor) -> Tensor:
        """Add the sublayer's output to the residual stream, (rows, d_model)."""
        summed = hidden + self.dropout(output)
        return summed if self.pre_norm else self.norm(summed)

    def stepping(self) -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor, Tensor], Tensor]]:
        """Return `enter` and `leave` for decoding: without dropout; `leave` overwrites the sublayer's output."""
        norm = partial(torch.layer_norm, normalized_shape=self.norm.normalized_shape, weight=self.norm.weight,
                       bias=self.norm.bias, eps=self.norm.eps)
        if self.pre_norm:
            return norm, lambda hidden, output: output.add_(hidden)
        return lambda hidden: hidden, lambda hidden, output: norm(output.add_(hidden))


DecoderStep = Callable[[Tensor, LayerCache, int, Tensor, Tensor], tuple[Tensor, Tensor]]
"""See `DecoderLayer.stepping`."""


class EncoderLayer(nn.Module):
    """Z = norm(H + MultiHead(H, H, H)); H' = norm(Z + FFN(Z))."""

    def __init__(self, d_model: int, num_heads: int, feed_forward: int, dropout: float, activation: str,
                 pre_norm: bool, score: str = "scaled_dot", normalize: str = "softmax",
                 window: int | None = None) -> None:
        super().__init__()
        self.self_attention = SelfAttention(d_model, num_heads, score, normalize, window)
        self.feed_forward = FeedForward(d_model, feed_forward, activation)
        self.self_residual = Residual(d_model, dropout, pre_norm)
        self.feed_forward_residual = Residual(d_model, dropout, pre_norm)

    def forward(self, hidden: Tensor, sentences: Sentences) -> Tensor:
        """(source_tokens, d_model) -> (source_tokens, d_model)"""
        attended = self.self_attention(self.self_residual.enter(hidden), sentences, causal=False)
        hidden = self.self_residual.leave(hidden, attended)
        transformed = self.feed_forward(self.feed_forward_residual.enter(hidden))
        return self.feed_forward_residual.leave(hidden, transformed)


class DecoderLayer(nn.Module):
    """I = norm(H + masked MultiHead(H, H, H)); Z = norm(I + MultiHead(I, H_E, H_E)); H' = norm(Z + FFN(Z))."""

    def __init__(self, d_model: int, num_heads: int, feed_forward: int, dropout: float, activation: str,
                 pre_norm: bool, score: str = "scaled_dot", normalize: str = "softmax", window: int | None = None,
                 hard: bool = False) -> None:
        super().__init__()
        self.self_attention = SelfAttention(d_model, num_heads, score, normalize, window)
        self.cross_attention = CrossAttention(d_model, num_heads, score, normalize, hard)
        self.feed_forward = FeedForward(d_model, feed_forward, activation)
        self.self_residual = Residual(d_model, dropout, pre_norm)
        self.cross_residual = Residual(d_model, dropout, pre_norm)
        self.feed_forward_residual = Residual(d_model, dropout, pre_norm)

    def forward(self, hidden: Tensor, memory: Tensor, sentences: Sentences,
                memory_sentences: Sentences) -> tuple[Tensor, Choices | None]:
        """(target_tokens, d_model), (source_tokens, d_model) -> (target_tokens, d_model), and the positions sampled by
        hard attention."""
        attended = self.self_attention(self.self_residual.enter(hidden), sentences, causal=True)
        hidden = self.self_residual.leave(hidden, attended)
        attended, choices = self.cross_attention(self.cross_residual.enter(hidden), memory, sentences,
                                                 memory_sentences)
        return self._feed_forward(self.cross_residual.leave(hidden, attended)), choices

    def start(self, memory: Tensor, memory_sentences: Sentences) -> LayerCache:
        """Return the cache before the first step, with the projected memory and no target slot.

        memory: (source_tokens, d_model).
        """
        keys, values = self.cross_attention.start(memory, memory_sentences)
        empty = keys[:, :, :0]
        return LayerCache(empty, empty, keys, values)

    def stepping(self) -> DecoderStep:
        """Return the function that computes one position of every row.

        Modules are looked up here, once: in every step, the lookup would take a fifth of the time of one sentence.

        step(hidden, cache, slot, target_bias, source_bias):
            hidden: (rows, d_model)
            slot: first slot of the cache for this position, one slot for each row of a sentence.
            target_bias: (sentences, heads, rows of a sentence, slots), of the slots up to the last written one.
            source_bias: (sentences, heads, 1, longest_source). Both: 0 where a row may attend, -inf elsewhere.
        Returns:
            The layer's output, (rows, d_model), and the input of its cross-attention, of the same shape.
        """
        attend_to_target, attend_to_source = self.self_attention.stepping(), self.cross_attention.stepping()
        transform = self.feed_forward.stepping()
        (enter, close), (enter_source, close_source), (enter_feed_forward, close_feed_forward) = (
            residual.stepping() for residual in (self.self_residual, self.cross_residual, self.feed_forward_residual))

        def step(hidden: Tensor, cache: LayerCache, slot: int, target_bias: Tensor,
                 source_bias: Tensor) -> tuple[Tensor, Tensor]:
            taken = target_bias.shape[3]
            hidden = close(hidden, attend_to_target(enter(hidden), cache.keys[:, :, :taken],
                                                    cache.values[:, :, :taken], slot, target_bias))
            asking = enter_source(hidden)
            hidden = close_source(hidden, attend_to_source(asking, cache.memory_keys, cache.memory_values, source_bias))
            return close_feed_forward(hidden, transform(enter_feed_forward(hidden))), asking

        return step

    def _feed_forward(self, hidden: Tensor) -> Tensor:
        transformed = self.feed_forward(self.feed_forward_residual.enter(hidden))
        return self.feed_forward_residual.leave(hidden, transformed)


class Transformer(nn.Module):
    """Transformer encoder and decoder with embeddings and output layer. `build_model` builds it from a recipe.

    Args:
        source_vocab_size, target_vocab_size: must be equal if all embeddings are tied.
        tied_embeddings: "all" (source, target and output share one matrix), "decoder" (target and output), "none".
        scale_embedding: e = sqrt(d_model) E[index] (section 3.4).
        positions: "sinusoidal" or "learned", counted from 0.
        max_positions: tokens of the longest sentence.
        score, normalize: of every attention, see `attention.Weighing`.
        window: largest distance between positions in self-attention; None: no limit.
        hard: hard cross-attention in the last layer, see `attention.CrossAttention`.
        copy: copy mechanism, see `copying.CopyHead`.
    Raises:
        ValueError: all embeddings are tied, but the vocabularies differ in size.
    """

    def __init__(
        self, *, source_vocab_size: int, target_vocab_size: int, d_model: int, encoder_layers: int,
        decoder_layers: int, num_heads: int, feed_forward: int, dropout: float = 0.0, activation: str = "relu",
        pre_norm: bool = False, positions: str = "sinusoidal", max_positions: int = 1024,
        tied_embeddings: str = "all", scale_embedding: bool = True, output_bias: bool = False,
        score: str = "scaled_dot", normalize: str = "softmax", window: int | None = None, hard: bool = False,
        copy: bool = False,
    ) -> None:
        super().__init__()
        self.d_model, self.num_heads, self.max_positions = d_model, num_heads, max_positions
        self.scale = math.sqrt(d_model) if scale_embedding else 1.0
        self.target_embedding, self.source_embedding, self.output_weight = embeddings(
            tied_embeddings, source_vocab_size, target_vocab_size, d_model)
        self.output_bias = nn.Parameter(torch.zeros(target_vocab_size)) if output_bias else None
        self.vocabulary: nn.Module | None = None                                # set by inference/eager.py
        if positions == "learned":
            self.source_positions: Tensor = nn.Parameter(torch.empty(max_positions, d_model).normal_(std=d_model**-0.5))
            self.target_positions: Tensor = nn.Parameter(torch.empty(max_positions, d_model).normal_(std=d_model**-0.5))
        else:
            self.register_buffer("source_positions", sinusoids(max_positions, d_model), persistent=False)
            self.register_buffer("target_positions", self.source_positions, persistent=False)
        self.dropout = Dropout(dropout)
        self.window = window
        layer = (d_model, num_heads, feed_forward, dropout, activation, pre_norm, score, normalize, window)
        self.encoder = nn.ModuleList(EncoderLayer(*layer) for _ in range(encoder_layers))
        self.decoder = nn.ModuleList(DecoderLayer(*layer, hard=hard and number == decoder_layers - 1)
                                     for number in range(decoder_layers))
        self.encoder_norm = nn.LayerNorm(d_model, eps=1e-5) if pre_norm else nn.Identity()
        self.decoder_norm = nn.LayerNorm(d_model, eps=1e-5) if pre_norm else nn.Identity()
        self.copying = CopyHead(d_model) if copy else None

    def _embed(self, embedding: Tensor, positions: Tensor, tokens: Tensor, at: Tensor) -> Tensor:
        embedded: Tensor = Lookup.apply(embedding, tokens) * self.scale + Lookup.apply(positions, at)
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

    def forward(self, batch: Batch) -> Logits | Mixture:
        """Score every target position: (target_tokens, vocab_size), as an unevaluated product (see `Logits`).

        Raises:
            ValueError: a sentence is longer than `max_positions`.
        """
        self._check_length(batch.longest_target)
        source_sentences = Sentences(batch.source_offsets, batch.source_positions, batch.longest_source)
        target_sentences = Sentences(batch.target_offsets, batch.target_positions, batch.longest_target)
        memory = self.encode(batch.source, source_sentences)
        hidden = self._embed(self.target_embedding, self.target_positions, batch.target_input,
                             target_sentences.positions)
        choices = None                                                          # of the last layer, with hard attention
        for layer in self.decoder:
            hidden, choices = layer(hidden, memory, target_sentences, source_sentences)
        logits = replace(self._logits(hidden), choices=choices)
        if self.copying is None:
            return logits
        return self.copying(logits, memory, batch.source, target_sentences, source_sentences)

    @torch.no_grad()
    def start(self, source: Tensor, source_offsets: Tensor, longest_source: int,
              keep_attention: bool = False) -> TransformerState:
        """See `interface.Seq2Seq.start`."""
        self._check_length(longest_source)
        sentences = Sentences.from_offsets(source_offsets, longest_source)
        memory = self.encode(source, sentences)
        caches = tuple(cast(DecoderLayer, layer).start(memory, sentences) for layer in self.decoder)
        seen = torch.zeros_like(sentences.token_mask, dtype=memory.dtype).masked_fill_(~sentences.token_mask, -math.inf)[:, None]
        state = TransformerState.begin(caches, seen, self.num_heads, keep_attention)
        return replace(state, copied=self.copying.start(memory, source, sentences)) if self.copying else state

    @torch.no_grad()
    def step(self, last_tokens: Tensor, state: TransformerState,
             steps: Sequence[DecoderStep] | None = None) -> tuple[Tensor, TransformerState]:
        """See `interface.Seq2Seq.step`. steps: results of each layer's `stepping`, to avoid calling it again."""
        self._check_length(state.position + 1)
        before = state.with_room()
        after = before.extended()
        embedded = self.target_embedding.index_select(0, last_tokens)
        hidden = embedded.mul_(self.scale).add_(self.target_positions[before.position])
        target_bias = after.target_bias(self.num_heads, self.window)
        steps = steps or [cast(DecoderLayer, layer).stepping() for layer in self.decoder]
        for step, cache in zip(steps, after.caches, strict=True):
            hidden, asking = step(hidden, cache, before.slots, target_bias, after.source_bias)
        attention = None
        if state.keep_attention:
            last = cast(DecoderLayer, self.decoder[-1]).cross_attention
            attention = last.weights(asking, after.caches[-1].memory_keys, after.source_bias).mean(1)
        logits = self.vocabulary(self.decoder_norm(hidden)) if self.vocabulary else self._logits(hidden).dense()
        if self.copying is not None and state.copied is not None:
            logits = self.copying.step(self.decoder_norm(hidden), logits, state.copied)
        return logits, replace(after, attention=attention)

    def _logits(self, hidden: Tensor) -> Logits:
        return Logits(self.decoder_norm(hidden), self.output_weight, self.output_bias)

    def _check_length(self, length: int) -> None:
        if length > self.max_positions:
            raise ValueError(f"a sentence of {length} tokens; this model has {self.max_positions} positions")

