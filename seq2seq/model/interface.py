"""Interface of every model: `Model`, and `Stepwise`, the part that search uses.

Training, validation and scoring call `Model.loss`; search and engines call `start` and `step`. A decoding state is
immutable: `step` and `select` return a new state.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

from seq2seq.data.alignment_links import KINDS, Kind
from seq2seq.data.batching import Batch
from seq2seq.model.attention import CrossAttention, SelfAttention, runs_packed
from seq2seq.model.attention_weights import AttentionMaps, recorded_maps
from seq2seq.model.loss import LossSum


class State(Protocol):
    """Decoding state of a batch of hypotheses (rows). Each sentence has the same number of consecutive rows."""

    @property
    def attention(self) -> Tensor | None:
        """Attention weights of the last step, (rows, longest_source); None if `keep_attention` of `start` is False."""

    def select(self, rows: Tensor) -> State:
        """Return the state with rows reordered, repeated or dropped.

        Args:
            rows: (sentences, beam), index of the old row that each new row continues. The old rows in `rows[i]` must
                belong to one sentence. Sentences may be dropped, but neither reordered nor repeated.
        """


class Stepwise(Protocol):
    """Model that scores a target one token at a time. Search uses this interface.

    max_positions: maximum length of a source or target sentence in tokens, `</s>` included.
    """

    max_positions: int

    def start(self, source: Tensor, source_offsets: Tensor, longest_source: int,
              keep_attention: bool = False) -> State:
        """Encode the source and return the state before the first step, with one row per sentence.

        Args:
            source: (source_tokens,) token ids; every sentence ends with `</s>`.
            source_offsets: (sentences + 1,) int32, index of each sentence's first token, then the number of tokens.
            longest_source: number of tokens of the longest sentence.
            keep_attention: True if the states that `step` returns must contain attention weights, `State.attention`.
        """

    def step(self, last_tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Score every token of the vocabulary as the continuation of each row.

        Args:
            last_tokens: (rows,), last token of each row.
            state: state that `start`, `step` or `State.select` returned.
        Returns:
            Logits, (rows, vocab_size), which the caller may overwrite; and the state after the step.
        """


class Model(nn.Module):
    """Base class of all models, those of other packages included.

    A subclass defines `forward`, `start` and `step`, and `loss` if its loss is not that of the output. A model of
    another package also defines `section` and `build`.

    section: class of the keys of the recipe's `model` section, a subclass of `recipe.ModelSection`. Its attributes say
        what the model needs and returns: sides of the data, kind of output. Models of this package have theirs in
        `recipe.model_section.MODEL_SECTIONS`.
    pads: True if training pads the sentences of a batch, whatever the device.
    max_positions: maximum length of a source or target sentence in tokens, `</s>` included.
    """

    section: ClassVar[Any]
    pads: ClassVar[bool] = True
    max_positions: int

    @classmethod
    def build(cls, section: Any, source_vocab_size: int, target_vocab_size: int) -> Model:
        """Return a model with random weights. section: `model` section of a recipe, of class `cls.section`."""
        raise NotImplementedError

    def forward(self, batch: Batch) -> Any:
        """Score every position of `batch.target_output` given the preceding target tokens (teacher forcing).

        Returns:
            `Logits`, which consistency training needs; or something else with their method `loss`, such as a subclass
            whose `with_own_terms` adds an auxiliary loss. For
            `training.consistency_cutoff`, embeddings are parameters whose names end with `embedding`.
        Raises:
            ValueError: a sentence is longer than `max_positions`.
        """
        raise NotImplementedError

    def loss(self, batch: Batch, label_smoothing: float = 0.0) -> LossSum:
        """Return the loss of a batch: to be minimised in training; without gradient and smoothing, with the exact log p
        of each target, for validation and scoring."""
        loss: LossSum = self(batch).loss(batch.target_output, batch.target_count, label_smoothing)
        return loss

    def start(self, source: Tensor, source_offsets: Tensor, longest_source: int, keep_attention: bool = False) -> Any:
        """See `Stepwise.start`."""
        raise NotImplementedError

    def step(self, last_tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        """See `Stepwise.step`."""
        raise NotImplementedError

    def make_step_function(self) -> Callable[[Tensor, Any], tuple[Tensor, Any]]:
        """Return a function that computes the same as `step`. It may be faster. It holds the weights of now."""
        return self.step

    @property
    def has_plain_decoder(self) -> bool:
        """True if `start` and `step` compute what `Transformer.start` and `Transformer.step` do, so that an engine may
        compute the layers of `decoder` itself."""
        return False

    @property
    def cross_attentions(self) -> Sequence[CrossAttention]:
        """The cross-attention of each decoder layer of a Transformer; empty for other models."""
        return ()

    @property
    def attentions(self) -> list[SelfAttention | CrossAttention]:
        """All layers of these classes. Tied layers occur once."""
        return [module for module in self.modules() if isinstance(module, SelfAttention | CrossAttention)]

    def trains_packed(self, dtype: torch.dtype, head_size: int | None = None) -> bool:
        """Return True if training in this dtype needs no padding, because all attention is by intervals.

        Without padding, the cost of a batch does not depend on the length of its longest sentence. head_size: size for
        which to answer; None: that of the model.
        """
        if self.pads:
            return False
        weight = next(self.parameters())
        return all(layer.is_scaled_dot_product and
                   runs_packed(weight.new_empty(0, layer.num_heads, head_size or layer.head_size, dtype=dtype))
                   for layer in self.attentions)

    @torch.no_grad()
    def attention_maps(self, batch: Batch, kinds: Collection[Kind] = KINDS, cross_layer: int | None = None
                       ) -> AttentionMaps:
        """Run the model once over `batch` with teacher forcing, and return its attention weights of the given kinds.

        cross_layer: return the cross-attention of this decoder layer alone, counted from 1, and do not compute the
            layers after it. Ignored for models with one attention layer.
        """
        return self.unmasked_maps(batch, kinds, cross_layer).without_padding(batch)

    def unmasked_maps(self, batch: Batch, kinds: Collection[Kind], cross_layer: int | None) -> AttentionMaps:
        """Return what `attention_maps` returns, but with any weights for queries in padding."""
        return recorded_maps(self, batch, kinds, cross_layer)
