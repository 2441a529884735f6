"""Guided alignment: one attention head learns to align words (Garg et al. 2019, arXiv:1909.02074).

The labels are word alignments of the training text by two statistical models, one for each direction (`WordAligner`).
The label of a target piece applies to the decoder step that reads this piece, so that the head knows the piece (Chen et
al. 2020, arXiv:2004.14837). The loss is the cross-entropy of labels and attention weights (Garg et al., equation 7).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seq2seq import console
from seq2seq.data.alignment_links import piece_word_overlap
from seq2seq.data.batching import Batch, EncodedCorpus
from seq2seq.data.block_processes import BlockProcesses
from seq2seq.data.parallel_text import blocks
from seq2seq.data.preparation import SIDES, Prepared
from seq2seq.data.word_alignment import WordAligner
from seq2seq.files import parse_json
from seq2seq.model import Model
from seq2seq.model.attention import CrossAttention
from seq2seq.model.packing import Sentences, unpack
from seq2seq.recipe import Recipe
from seq2seq.storage.atomic import delete, replace_file
from seq2seq.storage.directories import crc32_of
from seq2seq.storage.growing_files import GrowingFiles
from seq2seq.tokenizers.line_splitting import alignment_units
from seq2seq.tokenizers.source import Source
from seq2seq.tokenizers.tokenizer import Tokenizers

DIRECTORY, FILES = "alignment", ("links", "offsets")
"""Directory beside the prepared text, and files in it with the labels: float32 and int64, see `AlignmentLabels`."""
CHECKSUMS = "alignment.json"
"""File with the zlib.crc32 of each file in `FILES`. It is written last."""
MIN_WEIGHT = 0.05
"""Links with a smaller weight are left out."""
BLOCK_PAIRS = 2048


class AlignmentLabels:
    """Labels of every training pair: links from target to source pieces. The weights of a target piece sum to 1.

    Labels belong to the pieces of the prepared corpus. A pair has no labels in an epoch in which its pieces differ.
    """

    def __init__(self, corpus: EncodedCorpus, links: np.ndarray, offsets: np.ndarray) -> None:
        """links: (links, 3) float32: target and source piece, weight. offsets: (pairs + 1,), first link of a pair."""
        self.corpus, self.links, self.offsets = corpus, links, offsets

    @staticmethod
    def load_or_make(prepared: Prepared, tokenizers: Tokenizers, languages: Source, processes: int | None = None
                     ) -> AlignmentLabels:
        """Return the labels of a prepared text. The first call computes them and stores them beside the text. Damaged
        labels are computed again. An interrupted call is continued.

        languages: source with the languages of all pairs, see `languages_of_pairs`. processes: number of processes;
        None: one for each core. The labels do not depend on it.
        """
        directory, checksums = prepared.directory / DIRECTORY, prepared.directory / CHECKSUMS
        paths, intact = [directory / name for name in FILES], False
        with suppress(OSError, ValueError):
            intact = parse_json(checksums.read_bytes()) == {path.name: crc32_of(path) for path in paths}
        if not intact:
            if checksums.exists():                                              # damaged; else not finished
                delete(directory)
            with GrowingFiles(directory, FILES) as files, BlockProcesses(processes) as pool:
                _make(prepared, tokenizers, languages, files, pool)
            replace_file(checksums, json.dumps({path.name: crc32_of(path) for path in paths}).encode())
        links = np.memmap(paths[0], np.float32, "r").reshape(-1, 3) if paths[0].stat().st_size else np.zeros((0, 3))
        return AlignmentLabels(prepared.corpus, links, np.memmap(paths[1], np.int64, "r"))

    def gather(self, corpus: EncodedCorpus, pairs: np.ndarray, batch: Batch) -> np.ndarray:
        """Return the labels of a batch, (sentences, longest target, longest source) float32. Row i + 1 has the label of
        target piece i, because decoder step i + 1 reads this piece.

        corpus: corpus of the epoch. pairs: indices of the batch's pairs in `corpus`; other sentences of the batch,
        which fill it up, have no labels.
        """
        labels = np.zeros((len(batch.target_offsets) - 1, batch.longest_target, batch.longest_source), np.float32)
        same = np.ones(len(pairs), bool) if corpus is self.corpus else self._unchanged(corpus, pairs)
        for row, pair in enumerate(pairs):
            if same[row]:
                links = self.links[self.offsets[pair]:self.offsets[pair + 1]]
                labels[row, links[:, 0].astype(np.int64) + 1, links[:, 1].astype(np.int64)] = links[:, 2]
        return labels

    def _unchanged(self, corpus: EncodedCorpus, pairs: np.ndarray) -> np.ndarray:
        def ids(side: Any, pair: int) -> np.ndarray:
            return np.asarray(side.ids[side.offsets[pair]:side.offsets[pair + 1]])

        return np.array([all(np.array_equal(ids(getattr(corpus, side), pair), ids(getattr(self.corpus, side), pair))
                             for side in SIDES) for pair in pairs], bool)


def _texts(directory: Path) -> Iterator[tuple[str, str]]:
    with open(directory / "source.txt", encoding="utf-8", newline="\n") as source, \
            open(directory / "target.txt", encoding="utf-8", newline="\n") as target:
        for pair in zip(source, target, strict=True):
            yield pair[0].removesuffix("\n"), pair[1].removesuffix("\n")


def languages_of_pairs(recipe: Recipe) -> Source:
    """Return a source without text, with the languages of the pairs. Guided alignment trains one direction only."""
    corpus = recipe.data.train[0]
    return Source("", language=recipe.language_of(corpus), source_language=recipe.languages_of(corpus).source or "")


def _make(prepared: Prepared, tokenizers: Tokenizers, languages: Source, files: GrowingFiles,
          processes: BlockProcesses) -> None:
    """Write the links of all pairs and their offsets; see `AlignmentLabels`. State of the files: `pairs`, number of
    pairs whose links are written; `links`, number of links."""
    done, end, total = files.state.get("pairs", 0), files.state.get("links", 0), len(prepared.corpus)
    if done == total:
        return
    console.print_message("aligning words for training.guided_alignment")
    aligner = WordAligner.of_text(partial(_texts, prepared.directory), _words, processes).shared(files.directory)
    if not done:
        files.files["offsets"].write(np.zeros(1, np.int64).tobytes())
    unlinked = blocks(islice(_texts(prepared.directory), done, None), BLOCK_PAIRS)
    with console.progress("alignment labels", total, done, unit="pairs") as advance:
        for links, counts in processes.map(partial(_links_of_block, aligner, tokenizers, languages), unlinked):
            files.files["links"].write(links.tobytes())
            files.files["offsets"].write((end + np.cumsum(counts)).tobytes())
            done, end = done + len(counts), end + len(links)
            files.commit({"pairs": done, "links": end}, now=done == total)
            advance(len(counts))
    for table in files.directory.glob("*.npy"):                                 # of the aligner
        table.unlink()


def _words(source: str, target: str) -> tuple[list[str], list[str]]:
    return ([source[begin:end] for begin, end in alignment_units(source)],
            [target[begin:end] for begin, end in alignment_units(target)])


def _links_of_block(aligner: WordAligner, tokenizers: Tokenizers, languages: Source, block: list[tuple[str, str]]
                    ) -> tuple[np.ndarray, np.ndarray]:
    """Return the links of a block of pairs, (links, 3) float32, and the number of links of each pair, (pairs,)."""
    links = []
    texts = [list(side) for side in zip(*block, strict=True)]
    sources = [replace(languages, text=text) for text in texts[0]]
    targets = tokenizers.target.target_lines(texts[1], sources)
    spans = [tokenizers.source.spans(sources), tokenizers.target.spans(targets)]
    for source, target, source_pieces, target_pieces in zip(*texts, *spans, strict=True):
        weights = aligner.weights(*_words(source, target))
        links.append(piece_links(weights, piece_word_overlap(source_pieces, alignment_units(source)),
                                 piece_word_overlap(target_pieces, alignment_units(target))))
    return np.concatenate(links), np.array(list(map(len, links)), np.int64)


def piece_links(weights: np.ndarray, source_overlap: np.ndarray, target_overlap: np.ndarray) -> np.ndarray:
    """Return the links of a pair, (links, 3) float32: target piece, source piece, weight.

    The weights of a target piece sum to 1. If its weights for source pieces sum to less, the rest is the weight of
    `</s>`, the piece after the last source piece. `extract_links` does not link words that attend most to `</s>`.

    Args:
        weights: (target units, source units), see `WordAligner.weights`. source_overlap, target_overlap: (pieces,
            units) bool, see `alignment_links.piece_word_overlap`.
    """
    shares = source_overlap / np.maximum(source_overlap.sum(0), 1)              # a unit's weight, divided among pieces
    units = target_overlap / np.maximum(target_overlap.sum(1, keepdims=True), 1)
    table = (units @ weights @ shares.T).astype(np.float32)
    table[table < MIN_WEIGHT] = 0
    table = np.concatenate([table, np.maximum(0, 1 - table.sum(1, keepdims=True))], axis=1)
    table /= table.sum(1, keepdims=True)
    rows, columns = table.nonzero()
    return np.stack([rows, columns, table[rows, columns]], 1).astype(np.float32)


def guided_layer(layers: int) -> int:
    """Return the decoder layer, from 0, whose first head is trained: the last but one (Garg et al., section 4.2)."""
    return max(0, layers - 2)


class GuidedAlignment:
    """Loss of the alignment head."""

    def __init__(self, labels: AlignmentLabels, weight: float) -> None:
        """weight: weight of the loss relative to the training loss (`training.guided_alignment`)."""
        self.labels, self.weight = labels, weight
        self._inputs: list[tuple[CrossAttention, tuple[Any, ...]]] = []

    @staticmethod
    def for_training(prepared: Prepared, tokenizers: Tokenizers, recipe: Recipe,
                     main_rank_first: Callable[..., AlignmentLabels]) -> GuidedAlignment | None:
        """Return the loss with the labels of a prepared text; None if its weight is 0. main_rank_first: function that
        calls its first argument on the main rank, then on the others (`ProcessGroup.main_rank_first`)."""
        weight = recipe.training.guided_alignment
        if not weight:
            return None
        load = partial(AlignmentLabels.load_or_make, prepared, tokenizers, languages_of_pairs(recipe),
                       recipe.training.threads)
        return GuidedAlignment(main_rank_first(load), weight)

    @contextmanager
    def recording(self, model: Model) -> Iterator[None]:
        """Record the inputs of the alignment head's layer in each forward pass during the block."""
        module = model.cross_attentions[guided_layer(len(model.cross_attentions))]
        self._inputs = []
        handle = module.register_forward_pre_hook(lambda module, inputs: self._inputs.append((module, inputs)))
        try:
            yield
        finally:
            handle.remove()

    def loss(self, labels: np.ndarray) -> Tensor:
        """Return the weighted loss, a scalar: summed over target pieces, and averaged over the recorded forward passes.
        labels: from `AlignmentLabels.gather`."""
        passes = [head_log_weights(attention, *inputs) for attention, inputs in self._inputs]
        self._inputs = []
        log_weights = torch.stack(passes).mean(0)
        return -self.weight * (torch.from_numpy(labels).to(log_weights.device) * log_weights).sum()


def head_log_weights(attention: CrossAttention, hidden: Tensor, memory: Tensor, targets: Sentences, sources: Sentences,
                     ) -> Tensor:
    """Return the logarithms of the first head's weights, (sentences, longest target, longest source) in fp32; 0 for
    padding of the source."""
    size = attention.head_size

    def projected(layer: nn.Linear, inputs: Tensor, sentences: Sentences) -> Tensor:
        bias = None if layer.bias is None else layer.bias[:size]
        rows = F.linear(inputs, layer.weight[:size], bias)                      # keys are the first rows of key_value
        return unpack(rows.view(-1, 1, 1, size), sentences)[0].squeeze(1).float()

    query, key = projected(attention.query, hidden, targets), projected(attention.key_value, memory, sources)
    scores = query @ key.transpose(1, 2) * size**-0.5
    scores = scores.masked_fill(~sources.token_mask[:, None], -1e4)
    return scores.log_softmax(-1).masked_fill(~sources.token_mask[:, None], 0.0)
