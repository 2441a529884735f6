"""Attention maps of sentence pairs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from seq2seq.data.alignment_links import KINDS, Kind
from seq2seq.data.batching import EncodedCorpus, EncodedSide
from seq2seq.data.epoch_plan import batches_in_order
from seq2seq.errors import UserError
from seq2seq.tokenizers.line_splitting import OUTSIDE, Span
from seq2seq.tokenizers.source import Source, as_source
from seq2seq.tokenizers.vocabulary import as_line
from seq2seq.translation.line_search import LineSearch


@dataclass(frozen=True)
class TokenizedLine:
    """Line of text with its pieces, without `</s>`, and the character span of each piece."""

    text: str
    pieces: list[str]
    spans: list[Span]


@dataclass(frozen=True)
class PairAttention:
    """Sentence pair with its attention maps.

    source, target: the texts, with the pieces that the model reads (`pieces`) and their character spans (`spans`).
    maps: attention weights of each kind, (layers, heads, queries, keys). With softmax, the weights of a query sum to 1.
        cross: queries are the predicted target pieces and `</s>`, keys the source pieces and `</s>`. encoder: queries
        and keys are the source pieces and `</s>`. decoder: queries as in cross, keys are `<s>` and the target pieces.
        context: queries and keys as in encoder, see `AttentionMaps`.
    """

    source: TokenizedLine
    target: TokenizedLine
    maps: dict[Kind, np.ndarray]


def compute_pair_attention(translator: LineSearch, pairs: Sequence[tuple[str | Source, str]],
                           kinds: Collection[Kind] = KINDS, cross_layer: int | None = None
                           ) -> Iterator[tuple[int, PairAttention]]:
    """Run the model on the pairs with teacher forcing, and yield (index of the pair, its texts and attention maps).

    The longest pairs come first, so the indices are not in ascending order.

    Args:
        pairs: source and target text of each pair.
        kinds: kinds of attention to return.
        cross_layer: return only the cross-attention of this decoder layer, counted from 1; see `Engine.cross_layers`.
    Raises:
        ValueError: the source or target of a pair has more pieces than the model has positions.
    """
    if not pairs:
        return
    tokenizers = (translator.tokenizers.source, translator.tokenizers.target)
    sides = [[as_line(as_source(source)) for source, _ in pairs], [target for _, target in pairs]]
    sources = [translator.source(source) for source, _ in pairs]
    targets = tokenizers[1].target_lines(sides[1], sources)
    ids = [tokenizers[0].encode(sources), tokenizers[1].encode(targets)]
    spans = [tokenizers[0].spans(sources), tokenizers[1].spans(targets)]
    for index, (line, source) in enumerate(zip(sides[0], sources, strict=True)):
        # The span of an empty context that the translator adds is empty.
        added = len(as_line(source)) - len(line)
        shifted = [(begin, end) if (begin, end) == OUTSIDE else (max(0, begin - added), max(0, end - added))
                   for begin, end in spans[0][index]]
        if added < 0:                                                           # the line begins with the token
            shifted[0] = (0, len(line[:-added].rstrip()))
        spans[0][index] = shifted
    corpus = EncodedCorpus(EncodedSide.from_lists(ids[0]), EncodedSide.from_lists(ids[1]))

    def tokenized(side: int, index: int) -> TokenizedLine:
        return TokenizedLine(sides[side][index], tokenizers[side].pieces(ids[side][index]), spans[side][index])

    longest = np.maximum(corpus.source.lengths, corpus.target.lengths)
    for indices in batches_in_order(longest, translator.decoding.batch_tokens_or_default):
        if cross_layer is not None and list(kinds) == ["cross"]:
            source_ids, offsets, _ = corpus.source.gather(indices)
            of_batch: list[dict[Kind, np.ndarray]] = [
                {"cross": weights[None]} for weights in translator.engine.cross_attention(
                    source_ids, offsets.astype(np.int32), [ids[1][index] for index in indices], cross_layer)]
        else:
            of_batch = _all_maps(translator, corpus, indices, kinds)
        for index, maps in zip(indices.tolist(), of_batch, strict=True):
            yield index, PairAttention(tokenized(0, index), tokenized(1, index), maps)


def _all_maps(translator: LineSearch, corpus: EncodedCorpus, indices: np.ndarray, kinds: Collection[Kind]
              ) -> list[dict[Kind, np.ndarray]]:
    """Return the maps of each pair, as in `PairAttention`, from the model in PyTorch."""
    import torch

    from seq2seq.data.batching import gather

    batch = gather(corpus, indices).to(torch.device(translator.device))
    with torch.inference_mode():
        maps = translator.model.attention_maps(batch, kinds)
        stacked = {kind: torch.stack(layers).float().cpu().numpy() for kind in KINDS
                   if (layers := getattr(maps, kind))}                          # (layers, sentences, heads, …)
    of_pairs: list[dict[Kind, np.ndarray]] = []
    lengths = zip(corpus.source.lengths_of(indices).tolist(), corpus.target.lengths_of(indices).tolist(), strict=True)
    for row, (source, target) in enumerate(lengths):
        sizes: dict[Kind, tuple[int, int]] = {
            "cross": (target, source), "encoder": (source, source), "decoder": (target, target),
            "context": (source, source)}
        of_pairs.append({kind: stacked[kind][:, row, :, :sizes[kind][0], :sizes[kind][1]] for kind in stacked})
    return of_pairs


def maps_of_kind(pair: PairAttention, kind: Kind) -> np.ndarray:
    """Return the maps of one kind of attention, (layers, heads, queries, keys)."""
    if kind not in pair.maps:
        others = f"; it has {' and '.join(pair.maps)}" if pair.maps else ""
        raise UserError(f"this model has no {kind} attention{others}.")
    return pair.maps[kind]


def select_map(maps: np.ndarray, kind: Kind, layer: int, head: int | Literal["mean"]) -> np.ndarray:
    """Return the weights of one head of a layer, or the mean of the weights of its heads: (queries, keys)."""
    layers, heads = maps.shape[:2]
    if not 1 <= layer <= layers:
        raise UserError(f"layer {layer}: the {kind} attention of this model has {_number_range('layer', layers)}.")
    if head == "mean":
        mean: np.ndarray = maps[layer - 1].mean(0)
        return mean
    if not 1 <= head <= heads:
        raise UserError(f"head {head}: each layer of this model has {_number_range('head', heads)}. Choose one, or "
                        "mean.")
    return maps[layer - 1, head - 1]


def _number_range(noun: str, count: int) -> str:
    return f"only {noun} 1" if count == 1 else f"{noun}s 1 to {count}"
