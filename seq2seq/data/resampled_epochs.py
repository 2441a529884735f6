"""Epochs whose text is encoded anew, with augmented pairs and with subword sampling."""

from __future__ import annotations

import shutil
import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

from seq2seq import console
from seq2seq.data.batching import EncodedCorpus, EncodedSide, derived_seed
from seq2seq.data.pair_augmenter import Links, PairAugmenter, words_of
from seq2seq.data.parallel_text import blocks
from seq2seq.data.preparation import (
    BLOCK_PAIRS,
    SIDES,
    Prepared,
    SideWriter,
    TrainingText,
    id_type,
    open_side,
    prepared_text,
)
from seq2seq.data.word_alignment import WordAligner
from seq2seq.tokenizers.source import Source
from seq2seq.tokenizers.tokenizer import Tokenizers, Vocabulary

Sides = tuple[Sequence[str | Source], Sequence[str | Source]]
"""Lines of both sides."""


class ResampledEpochs:
    """Training corpus that differs in each epoch: different pairs are augmented (see `PairAugmenter`), and the text is
    segmented differently (subword sampling: Kudo 2018, Provilkov et al. 2020).

    A thread encodes the next epoch during the current epoch. The random seed for augmenting a pair is derived from
    (seed, epoch, pair), and the random seed for segmenting a block of lines from (seed, side, epoch, block). So all
    runs with the same seed have the same epochs.
    """

    def __init__(self, prepared: Prepared, tokenizers: Tokenizers, text: TrainingText, is_main: bool = True,
                 links: Links | None = None) -> None:
        """Args:
            is_main: True to encode the epochs in this process; False if another process, the main rank, encodes them.
            links: word links of each training pair; None: a word aligner computes the links when they are needed.
        """
        recipe, self.is_main = text.recipe, is_main
        self.prepared, self.tokenizers, self.alpha = prepared, tokenizers, recipe.tokenizer.subword_sampling
        self.max_pieces, self.seed = recipe.data.cleaning.max_pieces, recipe.seed
        self.languages = recipe.languages.codes
        self._pairs = partial(prepared_text, text, prepared.directory)
        section = recipe.data.augmentation
        self.augmenter = PairAugmenter(section, self.languages, recipe.seed, links, self._align) if section else None
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="resampling")
        self._epochs: dict[int, Future[tuple[EncodedCorpus, Counter[str]]]] = {}
        self._closing = threading.Event()

    def corpus(self, epoch: int) -> EncodedCorpus:
        """Return the corpus of `epoch`, start to encode the next epoch, and delete the files of earlier epochs."""
        if not self.is_main:                                                    # the main rank has encoded the epoch
            return self._open(epoch)
        for number in (epoch, epoch + 1):
            if number not in self._epochs:
                self._epochs[number] = self._worker.submit(self._encode, number)
        for past in [number for number in self._epochs if number < epoch]:
            del self._epochs[past]
            shutil.rmtree(self._directory(past), ignore_errors=True)
        corpus, counts = self._epochs[epoch].result()
        if self.augmenter:
            console.print_message(self.augmenter.summary(counts, len(corpus), epoch))
        return corpus

    def close(self) -> None:
        """Stop encoding, and delete the files of all epochs."""
        self._closing.set()
        self._worker.shutdown(wait=True, cancel_futures=True)
        for epoch in self._epochs:
            shutil.rmtree(self._directory(epoch), ignore_errors=True)

    def _directory(self, epoch: int) -> Path:
        return self.prepared.directory / f"epoch-{epoch:05d}"

    def _encode(self, epoch: int) -> tuple[EncodedCorpus, Counter[str]]:
        """Encode an epoch. Return its corpus, and for each modifier the number of pairs that it has changed."""
        directory = self._directory(epoch)
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir()
        vocabularies = self.tokenizers.source, self.tokenizers.target
        writers = [SideWriter(directory, *side) for side in zip(SIDES, vocabularies, strict=True)]
        counts: Counter[str] = Counter()
        for number, block in enumerate(blocks(self._pairs(), BLOCK_PAIRS)):
            if self._closing.is_set():
                raise CancelledError
            target_lines = self.tokenizers.target.target_lines
            sources = [source for source, _ in block]
            originals: Sides = (sources, target_lines([target for _, target in block], sources))
            names = [""] * len(block)
            texts = originals
            if self.augmenter:
                first = number * BLOCK_PAIRS
                changed = [self.augmenter.augment(epoch, first + index, *pair) for index, pair in enumerate(block)]
                sources = [pair[0] for pair in changed]
                texts = (sources, target_lines([pair[1] for pair in changed], sources))
                names = [pair[2] for pair in changed]
            seeds = [derived_seed(self.seed, "subwords", side, epoch, number) for side in SIDES]
            encoded = [sampled(vocabulary, lines, self.alpha, seed, self.max_pieces)
                       for vocabulary, lines, seed in zip(vocabularies, texts, seeds, strict=True)]
            long = [index for index, name in enumerate(names) if name and (
                max(len(side[index]) for side in encoded) > self.max_pieces)]
            for side, lines, vocabulary in zip(encoded, originals, vocabularies, strict=True):
                for index, ids in zip(long, vocabulary.encode([lines[index] for index in long]), strict=True):
                    side[index] = ids
            for index in long:
                names[index] = ""
            counts.update(filter(None, names))
            for writer, ids_of_lines in zip(writers, encoded, strict=True):
                side_of_block = EncodedSide.from_lists(ids_of_lines)
                writer.append(side_of_block.ids, side_of_block.lengths)
        for writer in writers:
            writer.close()
        return self._open(epoch), counts

    def _align(self) -> WordAligner:
        """Train a word aligner on the training text."""
        console.print_message("aligning words for data.augmentation")
        return WordAligner([(words_of(source.text, self.languages[0]), words_of(target, self.languages[1]))
                            for source, target in self._pairs()])

    def _open(self, epoch: int) -> EncodedCorpus:
        source, target = (
            open_side(self._directory(epoch), name, id_type(tokenizer.vocab_size))
            for name, tokenizer in (("source", self.tokenizers.source), ("target", self.tokenizers.target)))
        return replace(self.prepared.corpus, source=source, target=target)


def sampled(tokenizer: Vocabulary, lines: Sequence[str | Source], alpha: float, seed: int, max_pieces: int
            ) -> list[list[int]]:
    """Encode lines with subword sampling. Lines with more than `max_pieces` pieces are encoded again without sampling.

    alpha: `tokenizer.subword_sampling`; 0: no sampling.
    """
    if not alpha:
        return tokenizer.encode(lines)
    encoded = tokenizer.sample(lines, alpha, seed)
    long = [index for index, ids in enumerate(encoded) if len(ids) > max_pieces]
    for index, ids in zip(long, tokenizer.encode([lines[index] for index in long]), strict=True):
        encoded[index] = ids
    return encoded
