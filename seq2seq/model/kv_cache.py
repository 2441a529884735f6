"""KV caches and decoding state of a Transformer decoder."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from torch import Tensor

# A full cache is enlarged by the slots that this number of steps needs.
GROWTH_STEPS = 16


class LayerCache(NamedTuple):
    """KV cache of a decoder layer.

    keys, values: (sentences, heads, slots, head_size), keys and values of self-attention. A slot contains the key and
        the value of one target position of one hypothesis. The slots of hypotheses that left the beam are not reused.
    memory_keys, memory_values: (sentences, heads, longest_source, head_size), keys and values of cross-attention. All
        rows of a sentence share them.
    """

    keys: Tensor
    values: Tensor
    memory_keys: Tensor
    memory_values: Tensor


@dataclass
class _Written:
    """Number of written slots in the caches. All states with the same caches share one `_Written`."""

    slots: int = 0


@dataclass(frozen=True)
class TransformerState:
    """Decoding state: the KV cache of every layer, and the slots that each row may attend to.

    When a hypothesis moves to another row, its keys and values stay in their slots, and `visible` lets the new row
    attend to these slots. So reordering the beam copies no cache. All rows of a sentence share the slots, so one matrix
    product computes their attention scores.

    position: position of the next token. begins: index of the first slot of each earlier position.
    slots: number of slots that the steps up to this state have written.
    written: number of slots that are written in `caches`. It exceeds `slots` if a step has continued this state.
    visible: (sentences, beam, all slots), added to the attention scores: 0 for slots that a row may attend to, -inf for
        others.
    source_bias: (sentences, heads, 1, longest_source), 0 for source tokens, -inf for padding.
    attention: (rows, longest_source), attention weights of the last step in the last layer, averaged over the heads.
    """

    caches: tuple[LayerCache, ...]
    visible: Tensor
    source_bias: Tensor
    keep_attention: bool = False
    attention: Tensor | None = None
    position: int = 0
    slots: int = 0
    begins: tuple[int, ...] = ()
    written: _Written = field(default_factory=_Written)

    def select(self, rows: Tensor) -> TransformerState:
        old_sentences, beam, capacity = self.visible.shape
        flat = rows.flatten()
        visible = self.visible.flatten(0, 1).index_select(0, flat).view(*rows.shape, capacity)
        attention = None if self.attention is None else self.attention.index_select(0, flat)
        if len(rows) == old_sentences:
            return replace(self, visible=visible, attention=attention)
        sentences = rows[:, 0] // beam
        caches = tuple(LayerCache(*(part.index_select(0, sentences) for part in cache)) for cache in self.caches)
        return replace(self, visible=visible, attention=attention, caches=caches, written=_Written(self.slots),
                       source_bias=self.source_bias.index_select(0, sentences))

    def with_next_position(self) -> TransformerState:
        """Return the state after the next step. Each row of that state has one new slot, to which the row may attend.

        The new slots begin at index `self.slots`. The caller must write keys and values to the new slots.
        """
        state = self._with_reserved_slots()
        beam = state.visible.shape[1]
        visible = state.visible.clone()
        visible[:, :, self.slots : self.slots + beam].diagonal(dim1=1, dim2=2).zero_()
        state.written.slots = self.slots + beam
        return replace(state, visible=visible, slots=self.slots + beam, position=self.position + 1,
                       begins=(*self.begins, self.slots))

    def _with_reserved_slots(self) -> TransformerState:
        """Return this state if the next step's slots exist and are unwritten, or else a copy with larger caches."""
        sentences, beam, capacity = self.visible.shape
        if self.slots + beam <= capacity and self.written.slots == self.slots:
            return self
        size = self.slots + GROWTH_STEPS * beam

        def enlarge(old: Tensor) -> Tensor:
            larger = old.new_empty(*old.shape[:2], size, old.shape[3])
            larger[:, :, : self.slots] = old[:, :, : self.slots]
            return larger

        visible = self.visible.new_full((sentences, beam, size), -math.inf)
        visible[:, :, : self.slots] = self.visible[:, :, : self.slots]
        caches = tuple(cache._replace(keys=enlarge(cache.keys), values=enlarge(cache.values)) for cache in self.caches)
        return replace(self, visible=visible, caches=caches, written=_Written(self.slots))

    def target_bias(self, num_heads: int, window: int | None) -> Tensor:
        """Return the bias of self-attention, (sentences, heads, beam, slots): 0 for the slots that the newest position
        of a row may attend to, -inf for others.

        window: maximum number of earlier positions to attend to; None: no limit.
        """
        bias = self.visible[:, None, :, : self.slots].repeat(1, num_heads, 1, 1)
        if window is not None:
            bias[:, :, :, : self.begins[max(0, self.position - 1 - window)]] = -math.inf
        return bias
