"""Attention weights of a model with hierarchical context, converted to maps over all positions of a source.

Such a model encodes each sentence (segment) of a source separately, and its decoder attends only to the current one. So
the weights refer to positions in a sentence. The maps refer to positions in the whole source, context included.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from seq2seq.model.hierarchical_context import Segments
from seq2seq.model.packing import Sentences


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
    owners = sources.sentence[segments.all.offsets[:-1].long()]
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
    offsets = segments.all.offsets.long()
    begins = offsets[:-1] - sources.offsets.long()[sources.sentence[offsets[:-1]]]
    ends = begins + offsets.diff()
    if chosen is not None:
        begins, ends = begins[chosen], ends[chosen]
    yield from zip(begins.tolist(), ends.tolist(), strict=True)
