"""Attention maps and word alignments of sentence pairs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch

from seq2seq.analysis.alignment import Link, Rule, Span, Step, links_of, word_spans, word_weights, words_of_pieces
from seq2seq.analysis.attention_weights import KINDS, Kind, attention_maps
from seq2seq.data.batching import EncodedCorpus, EncodedSide, batches_in_order, gather
from seq2seq.errors import CheckpointError, UserError
from seq2seq.translation.line_translator import ReportProgress
from seq2seq.translation.translator import Translator


@dataclass(frozen=True)
class Sentence:
    """Line with its pieces and their spans of characters, without `</s>`."""

    text: str
    pieces: list[str]
    spans: list[Span]


@dataclass(frozen=True)
class SeenPair:
    """Sentence pair with its attention maps.

    maps: by kind of attention, (layers, heads, queries, keys); the weights of each query are a distribution.
        cross: queries are the predicted target pieces and `</s>`, keys the source pieces and `</s>`. encoder: both are
        source pieces and `</s>`. decoder: keys are `<s>` and the target pieces that the decoder reads.
    """

    source: Sentence
    target: Sentence
    maps: dict[Kind, np.ndarray]


@dataclass(frozen=True)
class Choice:
    """Choice of attention maps; layers and heads are counted from 1, "mean" is the mean over a layer's heads."""

    kind: Kind
    layer: int | Literal["all"]
    head: int | Literal["mean", "all"]

    def maps(self, pair: SeenPair) -> list[tuple[str, np.ndarray]]:
        """Each with its name, (queries, keys).

        Raises:
            UserError: the model has no such attention, layer or head.
        """
        maps = maps_of(pair, self.kind)
        layers, heads = maps.shape[:2]
        return [(f"layer {layer}, {'mean of the heads' if head == 'mean' else f'head {head}'}",
                 select(maps, self.kind, layer, head))
                for layer in (range(1, layers + 1) if self.layer == "all" else [self.layer])
                for head in (["mean", *range(1, heads + 1)] if self.head == "all" else [self.head])]


@dataclass(frozen=True)
class Alignment:
    """Words of a pair, and the share of attention that each target word gives to the source words linked with it."""

    source_words: list[str]
    target_words: list[str]
    links: dict[Link, float]


@dataclass(frozen=True)
class Aligner:
    """Settings for word alignment from cross-attention. A model's metadata may hold them, as `alignment`.

    layer: from 1; None: the last. head: from 1, or the mean of all.
    step: decoding step whose attention is used for a target piece: the one that writes it, or the next one, which reads
        it.
    rule: see `alignment.links_of`.
    """

    layer: int | None = None
    head: int | Literal["mean"] = "mean"
    step: Step = "writes"
    rule: Rule = "target"

    @staticmethod
    def measured(metadata: Mapping[str, Any], where: str) -> Aligner:
        """Return the best measured settings in a model's metadata; the default if there are none.

        where: name of the metadata in errors.
        Raises:
            CheckpointError: the settings are invalid.
        """
        values = metadata.get("alignment", {})
        given = values if isinstance(values, dict) else {"layer": values}
        known = {name: given.get(name, default) for name, default in asdict(Aligner()).items()}
        sound = (_is_number(known["layer"], None) and _is_number(known["head"], "mean")
                 and known["step"] in get_args(Step) and known["rule"] in get_args(Rule))
        if not sound:
            raise CheckpointError(f"{where}: alignment is {values}, which is no way to read alignments. Measure again, "
                                  "or delete the entry.")
        return Aligner(**known)

    def align(self, pair: SeenPair, languages: tuple[str, str]) -> Alignment:
        """Link the words of a pair. languages: codes of source and target, which decide how words are separated.

        Raises:
            UserError: the model has no cross-attention, or no such layer or head.
        """
        maps = maps_of(pair, "cross")
        chosen = select(maps, "cross", len(maps) if self.layer is None else self.layer, self.head)
        by_piece = chosen[1:] if self.step == "reads" else chosen[:-1]
        sides = (pair.source, pair.target)
        words = [word_spans(side.text, language) for side, language in zip(sides, languages, strict=True)]
        of_source, of_target = (words_of_pieces(side.spans, spans) for side, spans in zip(sides, words, strict=True))
        weights = word_weights(by_piece, of_source, of_target)
        source_words, target_words = (
            [side.text[begin:end] for begin, end in spans] for side, spans in zip(sides, words, strict=True))
        return Alignment(source_words, target_words, {
            (source, target): float(weights[target, source])
            for source, target in sorted(links_of(weights, self.rule))})


def maps_of(pair: SeenPair, kind: Kind) -> np.ndarray:
    """(layers, heads, queries, keys). Raises UserError where the model has no attention of this kind."""
    if kind not in pair.maps:
        others = f"; it has {' and '.join(pair.maps)}" if pair.maps else ""
        raise UserError(f"this model has no {kind} attention{others}.")
    return pair.maps[kind]


def select(maps: np.ndarray, kind: Kind, layer: int, head: int | Literal["mean"]) -> np.ndarray:
    """One head of one layer, or the mean of its heads: (queries, keys).

    Raises:
        UserError: there is no such layer or head.
    """
    layers, heads = maps.shape[:2]
    if not 1 <= layer <= layers:
        raise UserError(f"--layer {layer}: the {kind} attention of this model has {_numbered('layer', layers)}.")
    if head == "mean":
        mean: np.ndarray = maps[layer - 1].mean(0)
        return mean
    if not 1 <= head <= heads:
        raise UserError(f"--head {head}: a layer of this model has {_numbered('head', heads)}; or say mean.")
    return maps[layer - 1, head - 1]


def _is_number(value: Any, otherwise: str | None) -> bool:
    return value == otherwise or isinstance(value, int) and value > 0


def _numbered(what: str, count: int) -> str:
    return f"only {what} 1" if count == 1 else f"the {what}s 1 to {count}"


@torch.inference_mode()
def see(translator: Translator, pairs: Sequence[tuple[str, str]],
        kinds: Collection[Kind] = KINDS) -> Iterator[tuple[int, SeenPair]]:
    """Yield the attention maps of each pair, by teacher forcing, with the index of the pair, not in order.

    Args:
        kinds: kinds of attention to return.
    Raises:
        ValueError: a side has more pieces than the model has positions.
    """
    if not pairs:
        return
    encoders = (translator.tokenizers.source, translator.tokenizers.target)
    sides = [[text for text, _ in pairs], [text for _, text in pairs]]
    ids = [encoder.encode(texts) for encoder, texts in zip(encoders, sides, strict=True)]
    spans = [encoder.spans(texts) for encoder, texts in zip(encoders, sides, strict=True)]
    corpus = EncodedCorpus(EncodedSide.from_lists(ids[0]), EncodedSide.from_lists(ids[1]))

    def sentence(side: int, index: int) -> Sentence:
        tokenizer = encoders[side]
        return Sentence(sides[side][index], tokenizer.pieces(ids[side][index]), spans[side][index])

    longest = np.maximum(corpus.source.lengths, corpus.target.lengths)
    for indices in batches_in_order(longest, translator.decoding.batch_tokens):
        batch = gather(corpus, indices).to(translator.device)
        found = attention_maps(translator.model, batch, kinds)
        stacked = {kind: torch.stack(layers).float().cpu().numpy() for kind in KINDS
                   if (layers := getattr(found, kind))}                         # (layers, sentences, heads, …)
        lengths = zip(corpus.source.lengths_of(indices).tolist(), corpus.target.lengths_of(indices).tolist(),
                      strict=True)
        for place, (index, (source, target)) in enumerate(zip(indices, lengths, strict=True)):
            sizes: dict[Kind, tuple[int, int]] = {
                "cross": (target, source), "encoder": (source, source), "decoder": (target, target)}
            maps = {kind: stacked[kind][:, place, :, :sizes[kind][0], :sizes[kind][1]] for kind in stacked}
            yield int(index), SeenPair(sentence(0, index), sentence(1, index), maps)


def align(translator: Translator, pairs: Sequence[tuple[str, str]], aligner: Aligner,
          progress: ReportProgress | None = None) -> list[Alignment]:
    """Link the words of each pair.

    Args:
        progress: called from time to time with the number of pairs done since the last call.
    Raises:
        UserError: as `Aligner.align` does.
        ValueError: a side has more pieces than the model has positions.
    """
    languages = translator.languages.pair
    found: dict[int, Alignment] = {}
    for index, pair in see(translator, pairs, kinds=["cross"]):
        found[index] = aligner.align(pair, languages)
        if progress:
            progress(1)
    return [found[index] for index in range(len(pairs))]
