"""Decoder-only Transformer language model.

It is the decoder of Vaswani et al. 2017 (arXiv:1706.03762) without cross-attention, as in Liu et al. 2018
(arXiv:1801.10198, section 4.2.3): log p(text) = sum_t log p(y_t | y_0, …, y_{t-1}), where y_0 is `<s>` and the last
token is `</s>`. The language model has the same interface as the translation models and ignores the source.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from seq2seq.data.batching import Batch
from seq2seq.model.attention import MakeWeighing, ScaledDotProduct
from seq2seq.model.interface import Model
from seq2seq.model.kv_cache import LayerCache, TransformerState
from seq2seq.model.layers import POSITION_TABLES, Dropout, embeddings
from seq2seq.model.loss import Logits
from seq2seq.model.packing import Sentences, check_length
from seq2seq.model.relative_positions import RelativePositions
from seq2seq.model.transformer import EncoderLayer, StepFunction, embed


class LanguageModel(Model):
    """Decoder-only Transformer with embedding and output layer. `build_model` builds it from a recipe.

    Args:
        tied_embeddings: True if the input embedding and the output layer share one matrix.
        window: maximum number of earlier positions that a position attends to; None: no limit.
        Other arguments: as in `Transformer`.
    """

    pads = False

    def __init__(
        self, *, vocab_size: int, d_model: int, layers: int, num_heads: int, feed_forward: int, dropout: float = 0.0,
        activation: str = "relu", pre_norm: bool = False, positions: str = "sinusoidal", max_positions: int = 1024,
        tied_embeddings: bool = True, scale_embedding: bool = True, output_bias: bool = False,
        weighing: MakeWeighing = ScaledDotProduct, window: int | None = None,
    ) -> None:
        super().__init__()
        self.d_model, self.num_heads, self.max_positions = d_model, num_heads, max_positions
        self.scale = math.sqrt(d_model) if scale_embedding else 1.0
        self.embedding, _, self.output_weight = embeddings(
            "all" if tied_embeddings else "none", vocab_size, vocab_size, d_model)
        self.output_bias = nn.Parameter(torch.zeros(vocab_size)) if output_bias else None
        if positions == "learned":
            self.positions: Tensor = nn.Parameter(torch.empty(max_positions, d_model).normal_(std=d_model**-0.5))
        else:
            self.register_buffer("positions", POSITION_TABLES[positions](max_positions, d_model), persistent=False)
        self.relative = RelativePositions(num_heads, causal=True) if positions == "relative" else None
        self.dropout = Dropout(dropout)
        self.window = window
        layer = (d_model, num_heads, feed_forward, dropout, activation, pre_norm, weighing, window)
        self.layers = nn.ModuleList(EncoderLayer(*layer, causal=True, relative=self.relative) for _ in range(layers))
        self.norm = nn.LayerNorm(d_model, eps=1e-5) if pre_norm else nn.Identity()

    def forward(self, batch: Batch) -> Logits:
        """Return the logits, (target_tokens, vocab_size). See `Model.forward`."""
        check_length(batch.longest_target, self.max_positions)
        sentences = Sentences.of_batch(batch, batch.target_offsets, batch.target_positions, batch.longest_target)
        stream = embed(self.embedding, self.positions, batch.target_input, sentences.positions, self.scale,
                       self.dropout)
        for layer in self.layers:
            stream = layer(stream, sentences)
        return Logits(stream.add(self.norm).inputs, self.output_weight, self.output_bias)

    @torch.no_grad()
    def start(self, source: Tensor, source_offsets: Tensor, longest_source: int,
              keep_attention: bool = False) -> TransformerState:
        """See `interface.Stepwise.start`. Only the number of source sentences is used. States have no attention."""
        sentences, heads = len(source_offsets) - 1, self.num_heads
        empty = self.embedding.new_zeros(sentences, heads, 0, self.d_model // heads)
        caches = tuple(LayerCache(empty, empty, empty, empty) for _ in self.layers)
        return TransformerState(caches, visible=empty.view(sentences, 1, 0),
                                source_bias=empty.view(sentences, heads, 1, 0))

    def make_step_function(self) -> Callable[[Tensor, Any], tuple[Tensor, Any]]:
        return partial(self.step, steps=[cast(EncoderLayer, layer).make_step_function() for layer in self.layers])

    @torch.no_grad()
    def step(self, last_tokens: Tensor, state: TransformerState,
             steps: Sequence[StepFunction] | None = None) -> tuple[Tensor, TransformerState]:
        """See `interface.Stepwise.step`. steps: the step function of each layer; None: make them in this call."""
        after = state.with_next_position()
        hidden = self.embedding[last_tokens] * self.scale + self.positions[state.position]
        bias = after.target_bias(self.num_heads, self.window)
        if self.relative is not None:
            bias += self.relative.of_step(after)
        steps = steps or [cast(EncoderLayer, layer).make_step_function() for layer in self.layers]
        for step, cache in zip(steps, after.caches, strict=True):
            hidden = step(hidden, cache, slice(state.slots, after.slots), bias)
        return Logits(self.norm(hidden), self.output_weight, self.output_bias).dense(), after
