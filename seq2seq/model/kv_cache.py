"""KV caches and decoding state of a Transformer decoder."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from torch import Tensor

from seq2seq.model.copy_mechanism import CopiedSource

# Steps that the target caches grow by at a time, and the number that their slots, and the slots read in a step, are
# rounded up to a multiple of.
STEPS_OF_ROOM, ROUND_SLOTS = 16, 16


@dataclass(frozen=True)
class LayerCache:
    """KV cache of a decoder layer.

    keys, values: (sentences, heads, slots, head_size), of every target position of every hypothesis so far, those that
    left the beam included. memory_keys, memory_values: (sentences, heads, longest_source, head_size), of
    cross-attention, shared by a sentence's rows.
    """

    keys: Tensor
    values: Tensor
    memory_keys: Tensor
    memory_values: Tensor


class _Written:
    """Number of slots already written in some caches; shared by all states that share the caches."""

    def __init__(self, slots: int) -> None:
        self.slots = slots


@dataclass(frozen=True)
class TransformerState:
    """Decoding state: the KV cache of every layer, and the slots that each row may attend to.

    Keys and values are written once and never move: `visible` marks the slots of each row's own past. So reordering
    the beam copies no cache, and all rows of a sentence read the same keys in one product.

    position: of the next token. slots: number of written slots. begins: first slot of each earlier position.
    visible: (sentences, rows of a sentence, all slots), added to the attention scores: 0 for the slots that a row may
        attend to, -inf elsewhere.
    source_bias: (sentences, heads, 1, source slots), 0 for a source token and -inf elsewhere.
    """

    position: int
    slots: int
    begins: tuple[int, ...]
    visible: Tensor
    caches: tuple[LayerCache, ...]
    source_bias: Tensor
    written: _Written
    keep_attention: bool
    attention: Tensor | None = None     # (rows, longest_source), mean over the heads of the last layer
    copied: CopiedSource | None = None  # where pieces of the source can be copied

    @staticmethod
    def begin(caches: tuple[LayerCache, ...], seen: Tensor, num_heads: int, keep_attention: bool) -> TransformerState:
        """Return the state before the first step. seen: (sentences, 1, source slots), 0 for a source token and -inf
        elsewhere."""
        return TransformerState(0, 0, (), seen[:, :, :0], caches, seen[:, None].repeat(1, num_heads, 1, 1), _Written(0),
                                keep_attention)

    def select(self, rows: Tensor) -> TransformerState:
        """See `interface.State.select`."""
        old_sentences, beam, room = self.visible.shape
        flat = rows.flatten()
        visible = self.visible.flatten(0, 1).index_select(0, flat).view(*rows.shape, room)
        attention = None if self.attention is None else self.attention.index_select(0, flat)
        if len(rows) == old_sentences:
            return replace(self, visible=visible, attention=attention)
        sentences = rows[:, 0] // beam
        caches = tuple(
            LayerCache(*(part.index_select(0, sentences)
                         for part in (cache.keys, cache.values, cache.memory_keys, cache.memory_values)))
            for cache in self.caches
        )
        return replace(self, visible=visible, attention=attention, caches=caches, written=_Written(self.slots),
                       source_bias=self.source_bias.index_select(0, sentences),
                       copied=self.copied and self.copied.select(sentences))

    def with_room(self) -> TransformerState:
        """Return the state with a free slot for each row, in caches that no other state will write to."""
        sentences, beam, room = self.visible.shape
        if self.slots + beam <= room and self.written.slots == self.slots:
            return self
        # Grows by several steps at once: oneDNN generates a kernel for each size of the caches.
        size = -(-(self.slots + STEPS_OF_ROOM * beam) // ROUND_SLOTS) * ROUND_SLOTS

        def grown(old: Tensor) -> Tensor:                                       # masked slots must be finite too
            larger = old.new_zeros(*old.shape[:2], size, old.shape[3])
            larger[:, :, : self.slots] = old[:, :, : self.slots]
            return larger

        visible = self.visible.new_full((sentences, beam, size), -math.inf)
        visible[:, :, : self.slots] = self.visible[:, :, : self.slots]
        caches = tuple(replace(cache, keys=grown(cache.keys), values=grown(cache.values)) for cache in self.caches)
        return replace(self, visible=visible, caches=caches, written=_Written(self.slots))

    def extended(self) -> TransformerState:
        """Return the state in which each row sees one more slot: its own, for the position about to be written."""
        beam = self.visible.shape[1]
        visible = self.visible.clone()
        visible[:, :, self.slots : self.slots + beam].diagonal(dim1=1, dim2=2).zero_()
        self.written.slots = self.slots + beam
        return replace(self, visible=visible, slots=self.slots + beam, position=self.position + 1,
                       begins=(*self.begins, self.slots))

    def target_bias(self, num_heads: int, window: int | None) -> Tensor:
        """Bias of self-attention, (sentences, heads, rows of a sentence, slots): 0 for a slot that a row's last
        position may attend to, -inf elsewhere.

        window: number of earlier positions that it may attend to; None: all.
        """
        # Rounded up, because oneDNN generates a kernel for each number of slots.
        taken = -(-self.slots // ROUND_SLOTS) * ROUND_SLOTS
        bias = self.visible[:, None, :, :taken].repeat(1, num_heads, 1, 1)
        if window is not None:
            bias[:, :, :, : self.begins[max(0, self.position - 1 - window)]] = -math.inf
        return bias
