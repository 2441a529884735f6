"""Hierarchical attention over the sentences before the current one (Miculicich et al. 2018, arXiv:1809.01576).

The encoder reads each sentence alone. Then each position t of the current sentence, with hidden state h_t, attends
first to the words of each context sentence j, with hidden states h_i^j, and then to the context sentences:

    s^j = MultiHead(q = f_w(h_t), keys and values h_i^j)        d_t = FFN(MultiHead(q = f_s(h_t), keys and values s^j))
    lambda_t = sigmoid(W_h h_t + W_d d_t)                       h~_t = lambda_t h_t + (1 - lambda_t) d_t
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from seq2seq.data.alignment_links import Kind
from seq2seq.data.batching import Batch
from seq2seq.model.attention_weights import AttentionMaps
from seq2seq.model.layers import LAYER_GAIN, Dropout, linear
from seq2seq.model.packing import Sentences, pack_rows, unpack_rows
from seq2seq.model.transformer import Transformer
from seq2seq.tokenizers.context import SEPARATOR_ID


@dataclass(frozen=True)
class Segments:
    """Sources of a batch, divided at the separators into segments: the context sentences and the current sentence.

    all: the segments of all sources, in the order of their tokens. current: (sources,) int64, index of each source's
    current sentence, its last segment. context: (sources, sentences) int64, indices of each source's context sentences,
    nearest first. has_context: (sources, sentences) bool, False for padding of `context`.
    """

    all: Sentences
    current: Tensor
    context: Tensor
    has_context: Tensor

    @staticmethod
    def of(source: Tensor, sentences: Sentences) -> Segments:
        """Divide the sources at the separators. Each separator ends its segment. source: (tokens,), the tokens of all
        sources, and a tail. Empty sources are at the end."""
        begins = sentences.positions == 0
        begins[1:] |= source[:-1] == SEPARATOR_ID
        starts = (begins & ~sentences.in_tail).nonzero().flatten()
        offsets = torch.cat([starts, sentences.lengths.sum()[None]]).int()
        counts = torch.bincount(sentences.sentence[starts], minlength=len(sentences))
        current = counts.cumsum(0) - 1
        distance = 1 + torch.arange(int(counts.max()) - 1, device=source.device)
        has_context = distance < counts[:, None]
        segments = Sentences.from_offsets(offsets, int(offsets.diff().max()), len(source), sentences.filled)
        return Segments(segments, current, (current[:, None] - distance).clamp(min=0), has_context)

    @property
    def current_sentences(self) -> Sentences:
        """The current sentences without their contexts."""
        lengths = self.all.lengths[self.current]
        return Sentences.from_offsets(torch.cat([lengths.new_zeros(1), lengths.cumsum(0)]).int(), int(lengths.max()))


class HierarchicalContext(nn.Module):
    """Encoder layer that adds the context to the states of the current sentence. Equations: see the module docstring.

    f_w and f_s are parts of the query projections of the two multi-head attentions.
    """

    def __init__(self, d_model: int, num_heads: int, feed_forward: nn.Module, dropout: float) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.word_query = linear(d_model, d_model, gain=LAYER_GAIN)
        self.word_key_value = linear(d_model, 2 * d_model, fused=2, gain=LAYER_GAIN)
        self.word_output = linear(d_model, d_model, gain=LAYER_GAIN)
        self.sentence_query = linear(d_model, d_model, gain=LAYER_GAIN)
        self.sentence_key_value = linear(d_model, 2 * d_model, fused=2, gain=LAYER_GAIN)
        self.sentence_output = linear(d_model, d_model, gain=LAYER_GAIN)
        self.feed_forward = feed_forward
        self.gate_of_hidden = linear(d_model, d_model)
        self.gate_of_context = linear(d_model, d_model)
        self.dropout = Dropout(dropout)

    def forward(self, hidden: Tensor, segments: Segments) -> tuple[Tensor, Sentences]:
        """Return the states of the current sentences, (current tokens, d_model), and the offsets of these sentences.

        hidden: encoder states of all segments, (tokens, d_model).
        """
        current, context, _, _ = self._attend(hidden, segments)
        context = self.dropout(self.feed_forward(context).dense())
        gate = (self.gate_of_hidden(current) + self.gate_of_context(context)).sigmoid()
        mixed = torch.where(segments.has_context.any(1)[:, None, None], gate * current + (1 - gate) * context, current)
        sentences = segments.current_sentences
        return pack_rows(mixed[:, :sentences.longest], sentences), sentences

    def weights(self, hidden: Tensor, segments: Segments) -> tuple[Tensor, Tensor]:
        """Return the attention weights over words, (sources, sentences, queries, keys), and over sentences, (sources,
        queries, sentences), averaged over the heads. The weights of a query sum to 1 over the last dimension."""
        _, _, words, sentences = self._attend(hidden, segments)
        return words.mean(2), sentences.mean(2)

    def _attend(self, hidden: Tensor, segments: Segments) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the states of the current sentences and the output of the attention over sentences, both padded,
        (sources, longest, d_model). Also return the attention weights over words, (sources, sentences, heads, queries,
        keys), and over sentences, (sources, queries, heads, sentences)."""
        padded = unpack_rows(hidden, segments.all)                              # (segments, longest, d_model)
        current = padded.index_select(0, segments.current)
        sources, sentences = segments.context.shape
        context = padded.index_select(0, segments.context.flatten()).unflatten(0, (sources, sentences))
        is_word = segments.all.token_mask[segments.context]                     # (sources, sentences, longest)

        query = self._heads(self.word_query(current))                           # (sources, longest, heads, head_size)
        keys, values = map(self._heads, self.word_key_value(context).chunk(2, -1))
        scores = torch.einsum("sthd,sjwhd->sjhtw", query, keys) / math.sqrt(query.shape[-1])
        words = _masked(scores, is_word[:, :, None, None]).softmax(-1)
        read = self.word_output(torch.einsum("sjhtw,sjwhd->sjthd", words, values).flatten(3))

        query = self._heads(self.sentence_query(current))
        keys, values = map(self._heads, self.sentence_key_value(read).chunk(2, -1))
        scores = torch.einsum("sthd,sjthd->sthj", query, keys) / math.sqrt(query.shape[-1])
        chosen = _masked(scores, segments.has_context[:, None, None]).softmax(-1)
        attended = self.sentence_output(torch.einsum("sthj,sjthd->sthd", chosen, values).flatten(2))
        return current, attended, words, chosen

    def _heads(self, states: Tensor) -> Tensor:
        return states.unflatten(-1, (self.num_heads, -1))


def _masked(scores: Tensor, is_key: Tensor) -> Tensor:
    """Return attention scores in which masked keys have a finite minimum. The weights of a query without keys are not
    NaN."""
    return scores.masked_fill(~is_key, torch.finfo(scores.dtype).min / 2)


class HierarchicalContextTransformer(Transformer):
    """Transformer whose decoder attends to the current sentences alone. `build_transformer` adds `hierarchy`."""

    pads = True
    hierarchy: HierarchicalContext

    def encode(self, source: Tensor, sentences: Sentences) -> tuple[Tensor, Sentences]:
        """Return the states of the current sentences, (current tokens, d_model), and the offsets of these sentences."""
        segments = Segments.of(source, sentences)
        hidden, _ = super().encode(source, segments.all)
        memory: tuple[Tensor, Sentences] = self.hierarchy(hidden, segments)
        return memory

    def unmasked_maps(self, batch: Batch, kinds: Collection[Kind], cross_layer: int | None) -> AttentionMaps:
        """See `Model.unmasked_maps`. The maps refer to positions in the whole source, and `context` is filled."""
        calls: list[tuple[Tensor, Segments]] = []
        hook = self.hierarchy.register_forward_pre_hook(lambda module, arguments: calls.append(arguments))
        try:
            maps = super().unmasked_maps(batch, kinds, cross_layer)
        finally:
            hook.remove()
        (hidden, segments), = calls
        sources = Sentences.from_offsets(batch.source_offsets, batch.longest_source)
        context = []
        if "context" in kinds:
            words, sentences = self.hierarchy.weights(hidden, segments)
            context.append(context_weights(words, sentences, segments, sources))
        return replace(maps, encoder=[within_sources(weights, segments, sources) for weights in maps.encoder],
                       cross=[over_sources(weights, segments, sources) for weights in maps.cross], context=context)


# Attention weights, converted to maps over all positions of a source. The model encodes each sentence (segment) of a
# source separately, and its decoder attends only to the current one. So the weights refer to positions in a sentence.
# The maps refer to positions in the whole source, context included.


def over_sources(weights: Tensor, segments: Segments, sources: Sentences) -> Tensor:
    """Convert weights over the current sentences to weights over the whole sources, which are 0 for the context.

    (sources, heads, queries, longest current sentence) -> (sources, heads, queries, longest source)
    """
    spread = weights.new_zeros(*weights.shape[:3], sources.longest)
    for row, (begin, end) in enumerate(_places(segments, sources, segments.current)):
        spread[row, :, :, begin:end] = weights[row, :, :, :end - begin]
    return spread


def within_sources(weights: Tensor, segments: Segments, sources: Sentences) -> Tensor:
    """Convert weights within segments to weights within the whole sources, which are 0 between different segments.

    (segments, heads, longest segment, longest segment) -> (sources, heads, longest source, longest source)
    """
    spread = weights.new_zeros(len(sources), weights.shape[1], sources.longest, sources.longest)
    owners = sources.sentence[segments.all.begins]
    for segment, (begin, end) in enumerate(_places(segments, sources, None)):
        spread[owners[segment], :, begin:end, begin:end] = weights[segment, :, :end - begin, :end - begin]
    return spread


def context_weights(words: Tensor, sentences: Tensor, segments: Segments, sources: Sentences) -> Tensor:
    """Return the weight of each word of the context for each position of the current sentence.

    It is the weight of the word in its sentence times the weight of the sentence. So the weights of the words of a
    sentence sum to the weight of the sentence.

    words, sentences: see `HierarchicalContext.weights`. Returns: (sources, 1, longest source, longest source)
    """
    spread = words.new_zeros(len(sources), 1, sources.longest, sources.longest)
    places = list(_places(segments, sources, None))
    for row, current in enumerate(segments.current.tolist()):
        first, last = places[current]
        for number, segment in enumerate(segments.context[row].tolist()):
            if segments.has_context[row, number]:
                begin, end = places[segment]
                weights = words[row, number, :last - first, :end - begin] * sentences[row, :last - first, number, None]
                spread[row, 0, first:last, begin:end] = weights
    return spread


def _places(segments: Segments, sources: Sentences, chosen: Tensor | None) -> Iterator[tuple[int, int]]:
    """Yield the positions of begin and end of each segment in its source. chosen: indices of segments; None: all."""
    begins = segments.all.begins - sources.begins[sources.sentence[segments.all.begins]]
    ends = begins + segments.all.lengths
    if chosen is not None:
        begins, ends = begins[chosen], ends[chosen]
    yield from zip(begins.tolist(), ends.tolist(), strict=True)
