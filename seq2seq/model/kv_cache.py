"""What a Transformer decoder keeps between the steps of a search."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from torch import Tensor

from seq2seq.model.copying import CopiedSource

# The target caches grow by so many steps at a time; their slots, and those that a step reads, are a multiple of 16.
STEPS_OF_ROOM, ROUND_SLOTS = 16, 16


@dataclass(frozen=True)
class LayerCache:
    """What a decoder layer keeps between steps.

    keys, values: (sentences, heads, slots, head_size), of every target position that any row of a sentence ever had.
    memory_keys, memory_values: (sentences, heads, longest_source, head_size), shared by a sentence's rows.
    """

    keys: Tensor
    values: Tensor
    memory_keys: Tensor
    memory_values: Tensor


class _Written:
    """How many slots of some caches hold a position; shared by the states that share the caches."""

    def __init__(self, slots: int) -> None:
        self.slots = slots


@dataclass(frozen=True)
class TransformerState:
    """Decoding state: every layer's cache, and what each row may see of it.

    A position is written once and never moves, whichever row goes on from it: `visible` says which slots hold a row's
    own past. So a change in the order of a beam costs no copy, and the rows of a sentence read its keys together.

    position: of the next token. slots: how many are taken. begins: the first slot of each position before.
    visible: (sentences, rows of a sentence, all slots), what is added to attention's scores: 0 where a row sees a slot,
        -inf elsewhere.
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
        """Before the first step. seen: (sentences, 1, source slots), 0 for a source token and -inf elsewhere."""
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
        """The same state with a free slot for each row, in caches that no other state writes to from here on."""
        sentences, beam, room = self.visible.shape
        if self.slots + beam <= room and self.written.slots == self.slots:
            return self
        # Whole steps more than needed: each size of the caches is a kernel of its own.
        size = -(-(self.slots + STEPS_OF_ROOM * beam) // ROUND_SLOTS) * ROUND_SLOTS

        def grown(old: Tensor) -> Tensor:                                       # slots that nobody sees must be finite
            larger = old.new_zeros(*old.shape[:2], size, old.shape[3])
            larger[:, :, : self.slots] = old[:, :, : self.slots]
            return larger

        visible = self.visible.new_full((sentences, beam, size), -math.inf)
        visible[:, :, : self.slots] = self.visible[:, :, : self.slots]
        caches = tuple(replace(cache, keys=grown(cache.keys), values=grown(cache.values)) for cache in self.caches)
        return replace(self, visible=visible, caches=caches, written=_Written(self.slots))

    def extended(self) -> TransformerState:
        """Each row sees one slot more, its own of the position that is about to be written."""
        beam = self.visible.shape[1]
        visible = self.visible.clone()
        visible[:, :, self.slots : self.slots + beam].diagonal(dim1=1, dim2=2).zero_()
        self.written.slots = self.slots + beam
        return replace(self, visible=visible, slots=self.slots + beam, position=self.position + 1,
                       begins=(*self.begins, self.slots))

    def target_bias(self, num_heads: int, window: int | None) -> Tensor:
        """(sentences, heads, rows of a sentence, slots), 0 where the last position of a row looks and -inf elsewhere.

        window: it sees so many positions before its own; None sees all.
        """
        # Of the slots those that may be taken; each number of them is a kernel of its own.
        taken = -(-self.slots // ROUND_SLOTS) * ROUND_SLOTS
        bias = self.visible[:, None, :, :taken].repeat(1, num_heads, 1, 1)
        if window is not None:
            bias[:, :, :, : self.begins[max(0, self.position - 1 - window)]] = -math.inf
        return bias
