"""Attention maps and word alignments of sentence pairs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, cast, get_args

import numpy as np
import torch
from torch import nn

from seq2seq.data.alignment import (
    Link,
    Rule,
    Step,
    extract_links,
    piece_word_overlap,
    word_weights,
)
from seq2seq.data.batching import EncodedCorpus, EncodedSide, gather
from seq2seq.data.epoch_plan import batches_in_order
from seq2seq.data.line_splitting import Span, alignment_units, word_spans
from seq2seq.errors import CheckpointError, UserError
from seq2seq.model.attention import CrossAttention
from seq2seq.model.attention_weights import KINDS, Kind, attention_maps
from seq2seq.tokenizers.language_token import LANGUAGE_TOKEN
from seq2seq.tokenizers.source import Source
from seq2seq.tokenizers.vocabulary import as_line
from seq2seq.translation.scoring import scorable_pairs
from seq2seq.translation.translator import ReportProgress, Translator


@dataclass(frozen=True)
class TokenizedLine:
    """Line of text with its pieces, without `</s>`, and the character span of each piece."""

    text: str
    pieces: list[str]
    spans: list[Span]


@dataclass(frozen=True)
class PairAttention:
    """Sentence pair with its attention maps.

    maps: attention weights of each kind, (layers, heads, queries, keys). With softmax, the weights of a query sum to 1.
        cross: queries are the predicted target pieces and `</s>`, keys the source pieces and `</s>`. encoder: queries
        and keys are the source pieces and `</s>`. decoder: queries as in cross, keys are `<s>` and the target pieces.
        context: queries and keys as in encoder, see `hierarchical_weights.context_weights`.
    """

    source: TokenizedLine
    target: TokenizedLine
    maps: dict[Kind, np.ndarray]


@dataclass(frozen=True)
class AttentionMapSelection:
    """Kind, layer and head of the attention maps to show. Layers and heads count from 1.

    If `layer` is "all", all layers are shown. If `head` is "mean", the map of a layer is the mean over its heads. If
    `head` is "all", both the mean and the map of each head are shown.
    """

    kind: Kind
    layer: int | Literal["all"]
    head: int | Literal["mean", "all"]

    def maps(self, pair: PairAttention) -> list[tuple[str, np.ndarray]]:
        """Return the selected maps of a pair, each as (name, weights) with weights of shape (queries, keys).

        Raises:
            UserError: the model has no such attention, layer or head.
        """
        maps = maps_of_kind(pair, self.kind)
        layers, heads = maps.shape[:2]
        return [(f"layer {layer}, {'mean of the heads' if head == 'mean' else f'head {head}'}",
                 select_map(maps, self.kind, layer, head))
                for layer in (range(1, layers + 1) if self.layer == "all" else [self.layer])
                for head in (["mean", *range(1, heads + 1)] if self.head == "all" else [self.head])]


@dataclass(frozen=True)
class Alignment:
    """Words of a sentence pair, and the links between them.

    links: for each link, the attention weight that the target word gives to the source word.
    """

    source_words: list[str]
    target_words: list[str]
    links: dict[Link, float]


@dataclass(frozen=True)
class Aligner:
    """Settings for word alignment from cross-attention. A model's metadata may contain them under `alignment`.

    layer: counted from 1; None: the last layer. head: counted from 1, or "mean" over all heads of the layer.
    step: decoding step whose attention is used for a target piece. "writes": the step that predicts the piece. "reads":
        the next step, which has the piece as its input.
    rule: see `alignment.extract_links`.
    """

    layer: int | None = None
    head: int | Literal["mean"] = "mean"
    step: Step = "writes"
    rule: Rule = "target"

    @staticmethod
    def from_metadata(metadata: Mapping[str, Any], where: str) -> Aligner:
        """Return the alignment settings in a model's metadata, or the default settings if it contains none.

        If the value of `alignment` is not a mapping, it is the layer. where: name of the metadata in error messages.
        Raises:
            CheckpointError: the settings are invalid.
        """
        entry = metadata.get("alignment", {})
        values = entry if isinstance(entry, dict) else {"layer": entry}
        settings = {name: values.get(name, default) for name, default in asdict(Aligner()).items()}
        valid = (_is_positive_int_or(settings["layer"], None) and _is_positive_int_or(settings["head"], "mean")
                 and settings["step"] in get_args(Step) and settings["rule"] in get_args(Rule))
        if not valid:
            raise CheckpointError(f"{where}: alignment is {entry}, which is not a valid setting. Delete the entry to "
                                  "use the default settings.")
        return Aligner(**settings)

    def weights(self, pair: PairAttention, source_words: Sequence[Span], target_words: Sequence[Span]) -> np.ndarray:
        """Return the attention between words, (target words, source words + 1). The last column is the attention to
        `</s>`, and to a language token that is not in the text.

        Raises:
            UserError: the model has no cross-attention, or no such layer or head.
        """
        maps = maps_of_kind(pair, "cross")
        selected = select_map(maps, "cross", len(maps) if self.layer is None else self.layer, self.head)
        piece_weights = selected[1:] if self.step == "reads" else selected[:-1]
        overlap = piece_word_overlap(pair.source.spans, source_words)
        if pair.source.pieces and LANGUAGE_TOKEN.fullmatch(pair.source.pieces[0]) and pair.source.spans[0] == (0, 0):
            outside = piece_weights[:, -1:] + piece_weights[:, :1]
            piece_weights, overlap = np.concatenate((piece_weights[:, 1:-1], outside), axis=1), overlap[1:]
        return word_weights(piece_weights, overlap, piece_word_overlap(pair.target.spans, target_words))

    def align(self, pair: PairAttention, languages: tuple[str, str]) -> Alignment:
        """Link the words of a pair. languages: language codes of source and target. The division of the text into words
        depends on its language.

        Raises:
            UserError: the model has no cross-attention, or no such layer or head.
        """
        sides = (pair.source, pair.target)
        spans = [word_spans(side.text, language) for side, language in zip(sides, languages, strict=True)]
        weights = self.weights(pair, *spans)
        source_words, target_words = (
            [side.text[begin:end] for begin, end in words] for side, words in zip(sides, spans, strict=True))
        return Alignment(source_words, target_words, {
            (source, target): float(weights[target, source])
            for source, target in sorted(extract_links(weights, self.rule))})


def maps_of_kind(pair: PairAttention, kind: Kind) -> np.ndarray:
    """Return the maps of one kind of attention, (layers, heads, queries, keys).

    Raises:
        UserError: the model has no attention of this kind.
    """
    if kind not in pair.maps:
        others = f"; it has {' and '.join(pair.maps)}" if pair.maps else ""
        raise UserError(f"this model has no {kind} attention{others}.")
    return pair.maps[kind]


def select_map(maps: np.ndarray, kind: Kind, layer: int, head: int | Literal["mean"]) -> np.ndarray:
    """Return the weights of one head of a layer, or the mean of the weights of its heads: (queries, keys).

    Raises:
        UserError: there is no such layer or head.
    """
    layers, heads = maps.shape[:2]
    if not 1 <= layer <= layers:
        raise UserError(f"--layer {layer}: the {kind} attention of this model has {_number_range('layer', layers)}.")
    if head == "mean":
        mean: np.ndarray = maps[layer - 1].mean(0)
        return mean
    if not 1 <= head <= heads:
        raise UserError(f"--head {head}: each layer of this model has {_number_range('head', heads)}. Choose one, or "
                        "mean.")
    return maps[layer - 1, head - 1]


def _is_positive_int_or(value: Any, alternative: str | None) -> bool:
    return value == alternative or isinstance(value, int) and value > 0


def _number_range(noun: str, count: int) -> str:
    return f"only {noun} 1" if count == 1 else f"{noun}s 1 to {count}"


@torch.inference_mode()
def compute_pair_attention(translator: Translator, pairs: Sequence[tuple[str | Source, str]],
                           kinds: Collection[Kind] = KINDS, cross_layer: int | None = None
                           ) -> Iterator[tuple[int, PairAttention]]:
    """Run the model on the pairs with teacher forcing, and yield (index of the pair, its texts and attention maps).

    The longest pairs come first, so the indices are not in ascending order.

    Args:
        pairs: source and target text of each pair.
        kinds: kinds of attention to return.
        cross_layer: see `attention_maps`.
    Raises:
        ValueError: the source or target of a pair has more pieces than the model has positions.
    """
    if not pairs:
        return
    tokenizers = (translator.tokenizers.source, translator.tokenizers.target)
    sides = [[as_line(source) for source, _ in pairs], [target for _, target in pairs]]
    sources = [translator.source(source) for source, _ in pairs]
    ids = [tokenizers[0].encode(sources), tokenizers[1].encode(sides[1])]
    spans = [tokenizers[0].spans(sources), tokenizers[1].spans(sides[1])]
    for index, (line, source) in enumerate(zip(sides[0], sources, strict=True)):
        # The spans of a language token or an empty context that the translator adds are empty.
        added = len(as_line(source)) - len(line)
        spans[0][index] = [(max(0, begin - added), max(0, end - added)) for begin, end in spans[0][index]]
    corpus = EncodedCorpus(EncodedSide.from_lists(ids[0]), EncodedSide.from_lists(ids[1]))

    def tokenized(side: int, index: int) -> TokenizedLine:
        return TokenizedLine(sides[side][index], tokenizers[side].pieces(ids[side][index]), spans[side][index])

    longest = np.maximum(corpus.source.lengths, corpus.target.lengths)
    for indices in batches_in_order(longest, translator.decoding.batch_tokens):
        batch = gather(corpus, indices).to(translator.device)
        batch_maps = attention_maps(translator.model, batch, kinds, cross_layer)
        stacked = {kind: torch.stack(layers).float().cpu().numpy() for kind in KINDS
                   if (layers := getattr(batch_maps, kind))}                    # (layers, sentences, heads, …)
        lengths = zip(corpus.source.lengths_of(indices).tolist(), corpus.target.lengths_of(indices).tolist(),
                      strict=True)
        for row, (index, (source, target)) in enumerate(zip(indices, lengths, strict=True)):
            sizes: dict[Kind, tuple[int, int]] = {
                "cross": (target, source), "encoder": (source, source), "decoder": (target, target),
                "context": (source, source)}
            maps = {kind: stacked[kind][:, row, :, :sizes[kind][0], :sizes[kind][1]] for kind in stacked}
            yield int(index), PairAttention(tokenized(0, index), tokenized(1, index), maps)


def align(translator: Translator, pairs: Sequence[tuple[str, str]], aligner: Aligner,
          progress: ReportProgress | None = None) -> list[Alignment]:
    """Link the words of each pair.

    Args:
        progress: function that is called with 1 after each pair.
    Raises:
        UserError: the model has no cross-attention, or no such layer or head.
        ValueError: the source or target of a pair has more pieces than the model has positions.
    """
    languages = translator.languages.pair
    alignments: dict[int, Alignment] = {}
    layer, aligner = _one_layer(translator, aligner)
    for index, pair in compute_pair_attention(translator, pairs, ["cross"], layer):
        alignments[index] = aligner.align(pair, languages)
        if progress:
            progress(1)
    return [alignments[index] for index in range(len(pairs))]


def unit_weights(translator: Translator, pairs: Sequence[tuple[str, str]], aligner: Aligner
                 ) -> list[np.ndarray | None]:
    """Return the attention between the units (see `line_splitting.alignment_units`) of each pair, with shape (target
    units, source units). For a pair that is too long for the model, return None."""
    accepted = set(scorable_pairs(translator, pairs))
    indices = [index for index, pair in enumerate(pairs) if tuple(pair) in accepted]
    weights: list[np.ndarray | None] = [None] * len(pairs)
    layer, aligner = _one_layer(translator, aligner)
    for index, pair in compute_pair_attention(translator, [pairs[index] for index in indices], ["cross"], layer):
        units = aligner.weights(pair, alignment_units(pair.source.text), alignment_units(pair.target.text))
        weights[indices[index]] = units[:, :-1]
    return weights


def _one_layer(translator: Translator, aligner: Aligner) -> tuple[int | None, Aligner]:
    """Return the decoder layer that `aligner` selects, and settings for maps that contain only this layer. If
    the model has no such layer, return (None, aligner)."""
    modules = cast(nn.Module, translator.model).named_modules(remove_duplicate=False)       # tied layers count, too
    layers = sum(isinstance(module, CrossAttention) for _, module in modules)
    layer = layers if aligner.layer is None else aligner.layer
    return (layer, replace(aligner, layer=1)) if 1 <= layer <= layers else (None, aligner)
