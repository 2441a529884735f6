"""Estimation of a shortlist of output words from the cross-attention of a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain

import numpy as np

from seq2seq.data.batching import EncodedSide
from seq2seq.data.epoch_plan import batches_in_order
from seq2seq.errors import UserError
from seq2seq.inference.shortlist import Shortlist
from seq2seq.tokenizers.tokenizer import END_ID
from seq2seq.translation.translator import Translator

MAX_TARGETS = 400
"""Maximum number of target pieces for each source piece."""
FREQUENT = 500
"""Number of most frequent target pieces, which every translation may contain: function words and word endings, which
often have no source piece of their own."""


class ShortlistCounts:
    """Counts of the links between source and target pieces, and of target pieces.

    A target piece is linked to the source piece with the highest weight, `</s>` excluded, in the mean over the heads of
    each decoder layer.
    """

    def __init__(self, translator: Translator) -> None:
        """Raises UserError: the model has no cross-attention."""
        if not translator.engine.cross_layers:
            raise UserError("this model has no cross-attention, from which a shortlist is made.")
        self.translator = translator
        self.sizes = translator.tokenizers.source.vocab_size, translator.tokenizers.target.vocab_size
        self.frequency = np.zeros(self.sizes[1], np.int64)
        self.links, self.counts = np.empty(0, np.int64), np.empty(0, np.int64)  # source * target size + target
        self.too_long = 0

    def add(self, pairs: Sequence[tuple[str, str]], progress: Callable[[int], None] = lambda pairs: None) -> None:
        """Count the links of sentence pairs. Pairs that are too long for the model are counted in `too_long`.

        progress: function that is called with the numbers of finished pairs.
        """
        translator, engine = self.translator, self.translator.engine
        sources, targets = translator.encode_pairs(pairs)
        side, lengths = EncodedSide.from_lists(sources), np.array([len(target) + 1 for target in targets])
        longest = np.maximum(side.lengths, lengths)
        accepted = np.flatnonzero((longest <= engine.max_positions) & (side.lengths > 1) & (lengths > 1))
        self.too_long += int((longest > engine.max_positions).sum())
        links = []
        for batch in batches_in_order(longest[accepted], translator.decoding.batch_tokens_or_default):
            indices = accepted[batch]
            source, offsets, _ = side.gather(indices)
            of_batch = [targets[index] for index in indices]
            for layer in range(1, engine.cross_layers + 1):
                attention = engine.cross_attention(source, offsets.astype(np.int32), of_batch, layer)
                for begin, target, weights in zip(offsets, of_batch, attention, strict=False):
                    linked = weights[:, :-1, :-1].mean(0).argmax(1)             # without `</s>` on both sides
                    links.append(source[begin + linked] * self.sizes[1] + np.array(target))
            progress(len(indices))
        progress(len(pairs) - len(accepted))
        self.frequency += np.bincount(np.fromiter(chain.from_iterable(targets), np.int64), minlength=self.sizes[1])
        new, counts = np.unique(np.concatenate([np.empty(0, np.int64), *links]), return_counts=True)
        self.links, inverse = np.unique(np.concatenate([self.links, new]), return_inverse=True)
        self.counts = np.bincount(inverse, np.concatenate([self.counts, counts]), len(self.links)).astype(np.int64)

    def shortlist(self) -> Shortlist:
        """Return the target pieces of each source piece: the one with the same text, then those that were linked to it
        most often. The most frequent target pieces are listed only for `</s>`."""
        frequent = np.argsort(-self.frequency, kind="stable")[:FREQUENT]
        frequent = frequent[self.frequency[frequent] > 0]
        source, target = np.divmod(self.links, self.sizes[1])
        order = np.lexsort((target, -self.counts, source))
        order = order[~np.isin(target[order], frequent)]
        source, target = source[order], target[order]
        begins = np.searchsorted(source, np.arange(self.sizes[0] + 1))
        sources, targets = (side.pieces(list(range(size))) for side, size in zip(
            (self.translator.tokenizers.source, self.translator.tokenizers.target), self.sizes, strict=True))
        with_text = {text: piece for piece, text in enumerate(targets)}
        lists = []
        for piece, text in enumerate(sources):
            same = [with_text[text]] if text in with_text else []
            linked = target[begins[piece] : begins[piece + 1]]
            lists.append(np.array([*same, *linked[~np.isin(linked, same)]], np.int32)[:MAX_TARGETS])
        lists[END_ID] = frequent.astype(np.int32)
        return Shortlist.from_lists(lists)
