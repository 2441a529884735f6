"""Decoder-only Transformer language model.

The decoder of Vaswani et al. 2017 (arXiv:1706.03762) without cross-attention, as in Liu et al. 2018
(arXiv:1801.10198, section 4.2.3): log p(text) = sum_t log p(y_t | y_0, …, y_{t-1}), with `</s>` as the last token.
It has the same interface as the translation models and ignores the source.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from seq2seq.data.batching import Batch
from seq2seq.model.attention import SelfAttention
from seq2seq.model.dropout import Dropout
from seq2seq.model.embedding import Lookup, embeddings, sinusoids
from seq2seq.model.interface import Logits
from seq2seq.model.kv_cache import LayerCache, TransformerState
from seq2seq.model.packing import Sentences
from seq2seq.model.transformer import FeedForward, Residual

CausalStep = Callable[[Tensor, LayerCache, int, Tensor], Tensor]
"""See `CausalLayer.make_step_function`."""


class CausalLayer(nn.Module):
    """Z = norm(H + masked MultiHead(H, H, H)); H' = norm(Z + FFN(Z))."""

    def __init__(self, d_model: int, num_heads: int, feed_forward: int, dropout: float, activation: str,
                 pre_norm: bool, score: str = "scaled_dot", normalize: str = "softmax",
                 window: int | None = None) -> None:
        super().__init__()
        self.self_attention = SelfAttention(d_model, num_heads, score, normalize, window)
        self.feed_forward = FeedForward(d_model, feed_forward, activation)
        self.self_residual = Residual(d_model, dropout, pre_norm)
        self.feed_forward_residual = Residual(d_model, dropout, pre_norm)

    def forward(self, hidden: Tensor, sentences: Sentences) -> Tensor:
        """(tokens, d_model) -> (tokens, d_model)"""
        attended = self.self_attention(self.self_residual.sublayer_input(hidden), sentences, causal=True)
        return self._feed_forward(self.self_residual.add(hidden, attended))

    def make_step_function(self) -> CausalStep:
        """Return the function that computes one position of every row. See `SelfAttention.make_step_function`."""
        attend, transform = self.self_attention.make_step_function(), self.feed_forward.make_step_function()
        (enter, close), (enter_feed_forward, close_feed_forward) = (
            residual.make_step_function() for residual in (self.self_residual, self.feed_forward_residual))

        def step(hidden: Tensor, cache: LayerCache, slot: int, bias: Tensor) -> Tensor:
            taken = bias.shape[3]
            hidden = close(hidden, attend(enter(hidden), cache.keys[:, :, :taken], cache.values[:, :, :taken], slot,
                                          bias))
            return close_feed_forward(hidden, transform(enter_feed_forward(hidden)))

        return step

    def _feed_forward(self, hidden: Tensor) -> Tensor:
        transformed = self.feed_forward(self.feed_forward_residual.sublayer_input(hidden))
        return self.feed_forward_residual.add(hidden, transformed)


class LanguageModel(nn.Module):
    """Decoder-only Transformer with embedding and output layer. `build_model` builds it from a recipe.

    Args:
        tied_embeddings: the input embedding and the output layer share one matrix.
        window: maximum number of earlier positions that a position attends to; None: no limit.
        Other arguments: as in `Transformer`.
    """

    def __init__(
        self, *, vocab_size: int, d_model: int, layers: int, num_heads: int, feed_forward: int, dropout: float = 0.0,
        activation: str = "relu", pre_norm: bool = False, positions: str = "sinusoidal", max_positions: int = 1024,
        tied_embeddings: bool = True, scale_embedding: bool = True, output_bias: bool = False,
        score: str = "scaled_dot", normalize: str = "softmax", window: int | None = None,
    ) -> None:
        super().__init__()
        self.d_model, self.num_heads, self.max_positions = d_model, num_heads, max_positions
        self.scale = math.sqrt(d_model) if scale_embedding else 1.0
        self.embedding, _, self.output_weight = embeddings(
            "all" if tied_embeddings else "none", vocab_size, vocab_size, d_model)
        self.output_bias = nn.Parameter(torch.zeros(vocab_size)) if output_bias else None
        self.output_projection: nn.Module | None = None                         # set by inference/eager.py
        if positions == "learned":
            self.positions: Tensor = nn.Parameter(torch.empty(max_positions, d_model).normal_(std=d_model**-0.5))
        else:
            self.register_buffer("positions", sinusoids(max_positions, d_model), persistent=False)
        self.dropout = Dropout(dropout)
        self.window = window
        layer = (d_model, num_heads, feed_forward, dropout, activation, pre_norm, score, normalize, window)
        self.layers = nn.ModuleList(CausalLayer(*layer) for _ in range(layers))
        self.norm = nn.LayerNorm(d_model, eps=1e-5) if pre_norm else nn.Identity()

    def forward(self, batch: Batch) -> Logits:
        """Score every target position: (target_tokens, vocab_size), as an unevaluated product (see `Logits`).

        Raises:
            ValueError: a sentence is longer than `max_positions`.
        """
        self._check_length(batch.longest_target)
        sentences = Sentences(batch.target_offsets, batch.target_positions, batch.longest_target)
        hidden = self.dropout(Lookup.apply(self.embedding, batch.target_input) * self.scale
                              + Lookup.apply(self.positions, sentences.positions))
        for layer in self.layers:
            hidden = layer(hidden, sentences)
        return self._logits(hidden)

    @torch.no_grad()
    def start(self, source: Tensor, source_offsets: Tensor, longest_source: int,
              keep_attention: bool = False) -> TransformerState:
        """See `interface.Stepwise.start`. Only the number of sentences of the source is used.

        Raises:
            ValueError: `keep_attention` is true, but there is no attention over a source.
        """
        if keep_attention:
            raise ValueError("a language model has no attention over a source")
        sentences, heads = len(source_offsets) - 1, self.num_heads
        empty = self.embedding.new_zeros(sentences, heads, 0, self.d_model // heads)
        caches = tuple(LayerCache(empty, empty, empty, empty) for _ in self.layers)
        return TransformerState.initial(caches, self.embedding.new_zeros(sentences, 1, 0), heads, keep_attention)

    @torch.no_grad()
    def step(self, last_tokens: Tensor, state: TransformerState,
             steps: Sequence[CausalStep] | None = None) -> tuple[Tensor, TransformerState]:
        """See `interface.Stepwise.step`. steps: the step function of each layer; None: they are made in this call."""
        self._check_length(state.position + 1)
        before = state.with_reserved_slots()
        after = before.with_next_position()
        hidden = self.embedding[last_tokens] * self.scale + self.positions[before.position]
        bias = after.target_bias(self.num_heads, self.window)
        steps = steps or [cast(CausalLayer, layer).make_step_function() for layer in self.layers]
        for step, cache in zip(steps, after.caches, strict=True):
            hidden = step(hidden, cache, before.slots, bias)
        if self.output_projection:
            return self.output_projection(self.norm(hidden)), after
        return self._logits(hidden).dense(), after

    def _logits(self, hidden: Tensor) -> Logits:
        return Logits(self.norm(hidden), self.output_weight, self.output_bias)

    def _check_length(self, length: int) -> None:
        if length > self.max_positions:
            raise ValueError(f"a text of {length} tokens; this model has {self.max_positions} positions")
