"""Epochs whose text is encoded anew, with augmented pairs and with subword sampling."""

from __future__ import annotations

import shutil
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np

from seq2seq import console
from seq2seq.data.batching import EncodedCorpus, EncodedSide, derived_seed
from seq2seq.data.block_processes import BlockProcesses
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
from seq2seq.storage.directories import digest
from seq2seq.storage.growing_files import GrowingFiles
from seq2seq.tokenizers.source import Source
from seq2seq.tokenizers.tokenizer import Tokenizers, Vocabulary

Sides = tuple[Sequence[str | Source], Sequence[str | Source]]
"""Lines of both sides."""


class ResampledEpochs:
    """Training corpus that differs in each epoch: different pairs are augmented (see `PairAugmenter`), and the text is
    segmented differently (subword sampling: Kudo 2018, Provilkov et al. 2020).

    A thread encodes the next epoch during the current epoch, with processes that share its blocks. The random seed for
    augmenting a pair is derived from (seed, epoch, pair), and the random seed for segmenting a block of lines from
    (seed, side, epoch, block). So all runs with the same seed have the same epochs. An epoch that a killed training has
    begun to encode is continued.
    """

    def __init__(self, prepared: Prepared, tokenizers: Tokenizers, text: TrainingText, is_main: bool = True,
                 links: Links | None = None, processes: int | None = 1, ahead: bool = True) -> None:
        """Args:
            is_main: True to encode the epochs in this process; False if another process, the main rank, encodes them.
            links: word links of each training pair; None: a word aligner computes the links when they are needed.
            processes: number of processes; None: one for each core. ahead: True to encode the next epoch, too.
        """
        recipe, self.is_main = text.recipe, is_main
        self.prepared, self.tokenizers, self.alpha = prepared, tokenizers, recipe.tokenizer.subword_sampling
        self.max_pieces, self.seed = recipe.data.cleaning.max_pieces, recipe.seed
        self.processes, self.ahead = processes, ahead
        self.languages = recipe.languages.codes
        self._pairs = partial(prepared_text, text, prepared.directory)
        section = recipe.data.augmentation
        self.augmenter = PairAugmenter(section, self.languages, recipe.seed, links, self._align) if section else None
        settings = [self.alpha, self.seed, section.model_dump() if section else None, BLOCK_PAIRS]
        self._key = digest({"settings": settings})[:8]
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="resampling")
        self._epochs: dict[int, Future[tuple[EncodedCorpus, Counter[str]]]] = {}
        self._closing = threading.Event()
        self._encoded = 0                                                       # pairs of the epoch that is encoded

    def corpus(self, epoch: int) -> EncodedCorpus:
        """Return the corpus of `epoch`, start to encode the next epoch, and delete the files of earlier epochs."""
        if not self.is_main:                                                    # the main rank has encoded the epoch
            return self._open(epoch)
        for number in (epoch, epoch + 1) if self.ahead else (epoch,):
            if number not in self._epochs:
                self._epochs[number] = self._worker.submit(self._encode, number)
        self._epochs = {number: future for number, future in self._epochs.items() if number >= epoch}
        self._delete_all_but(epoch, epoch + 1)
        corpus, counts = self._wait_for(epoch)
        if self.augmenter:
            console.print_message(self.augmenter.summary(counts, len(corpus), epoch))
        return corpus

    def _wait_for(self, epoch: int) -> tuple[EncodedCorpus, Counter[str]]:
        """Return the result of `_encode`. While it is awaited, a message a minute gives the rate and the time left."""
        before, began, pairs = self._encoded, time.monotonic(), len(self.prepared.corpus)
        while True:
            try:
                return self._epochs[epoch].result(timeout=console.LOG_INTERVAL_SECONDS)
            except TimeoutError:
                rate = (self._encoded - before) / (time.monotonic() - began)
                left = console.format_duration((pairs - self._encoded) / rate) if rate > 0 else "?"
                console.print_message(f"encoding epoch {epoch + 1}: {self._encoded:,}/{pairs:,} pairs, {rate:,.0f} "
                                      f"pairs/s, {left} left")

    def close(self) -> None:
        """Stop encoding, and delete the files of all epochs."""
        self._closing.set()
        self._worker.shutdown(wait=True, cancel_futures=True)
        if self.is_main:
            self._delete_all_but()

    def _delete_all_but(self, *epochs: int) -> None:
        """Delete the files of other epochs, also those that a killed training has left."""
        kept = [self._directory(epoch) for epoch in epochs]
        for directory in self.prepared.directory.glob("epoch-*"):
            if directory not in kept:
                shutil.rmtree(directory, ignore_errors=True)

    def _directory(self, epoch: int) -> Path:
        return self.prepared.directory / f"epoch-{epoch:05d}-{self._key}"

    def _encode(self, epoch: int) -> tuple[EncodedCorpus, Counter[str]]:
        """Encode an epoch. Return its corpus, and for each modifier the number of pairs that it has changed."""
        directory, vocabularies = self._directory(epoch), (self.tokenizers.source, self.tokenizers.target)
        names = [f"{side}.{kind}" for side in SIDES for kind in ("ids", "offsets")]
        with GrowingFiles(directory, names) as files, BlockProcesses(self.processes) as processes:
            done, counts = files.state.get("blocks", 0), Counter[str](files.state.get("changed", {}))
            if not files.state.get("complete"):
                writers = [SideWriter(files.files[f"{side}.ids"], files.files[f"{side}.offsets"], vocabulary.vocab_size)
                           for side, vocabulary in zip(SIDES, vocabularies, strict=True)]
                if self.augmenter:
                    self.augmenter.align(directory, processes)
                encode = partial(_encoded_block, self.tokenizers, self.alpha, self.max_pieces, self.seed, epoch,
                                 self.augmenter)
                unencoded = islice(enumerate(blocks(self._pairs(), BLOCK_PAIRS)), done, None)
                self._encoded = done * BLOCK_PAIRS
                for sides, changed in processes.map(encode, unencoded):
                    if self._closing.is_set():
                        raise CancelledError
                    for writer, (ids, lengths) in zip(writers, sides, strict=True):
                        writer.append(ids, lengths)
                    done, self._encoded = done + 1, self._encoded + len(sides[0][1])
                    counts.update(changed)
                    files.commit({"blocks": done, "changed": counts})
                files.commit({"blocks": done, "changed": counts, "complete": True}, now=True)
        return self._open(epoch), counts

    def _align(self, directory: Path, processes: BlockProcesses) -> WordAligner:
        """Train a word aligner on the training text."""
        console.print_message("aligning words for data.augmentation")
        aligner = WordAligner.of_text(lambda: ((source.text, target) for source, target in self._pairs()),
                                      partial(_words_of_pair, self.languages), processes)
        return aligner.shared(directory)

    def _open(self, epoch: int) -> EncodedCorpus:
        source, target = (
            open_side(self._directory(epoch), name, id_type(tokenizer.vocab_size))
            for name, tokenizer in (("source", self.tokenizers.source), ("target", self.tokenizers.target)))
        return replace(self.prepared.corpus, source=source, target=target)


def _words_of_pair(languages: tuple[str, str], source: str, target: str) -> tuple[Sequence[str], Sequence[str]]:
    return words_of(source, languages[0]), words_of(target, languages[1])


EncodedLines = tuple[np.ndarray, np.ndarray]
"""Ids of lines, (tokens,), each line with `</s>`, and the lengths of the lines in tokens, (lines,)."""


def _encoded_block(tokenizers: Tokenizers, alpha: float, max_pieces: int, seed: int, epoch: int,
                   augmenter: PairAugmenter | None, numbered: tuple[int, list[tuple[Source, str]]]
                   ) -> tuple[list[EncodedLines], Counter[str]]:
    """Return both sides of a block in an epoch, and for each modifier the number of pairs that it has changed.

    numbered: number of the block, and its pairs.
    """
    number, block = numbered
    vocabularies = tokenizers.source, tokenizers.target
    target_lines = tokenizers.target.target_lines
    sources = [source for source, _ in block]
    originals: Sides = (sources, target_lines([target for _, target in block], sources))
    names = [""] * len(block)
    texts = originals
    if augmenter:
        first = number * BLOCK_PAIRS
        changed = [augmenter.augment(epoch, first + index, *pair) for index, pair in enumerate(block)]
        sources = [pair[0] for pair in changed]
        texts = (sources, target_lines([pair[1] for pair in changed], sources))
        names = [pair[2] for pair in changed]
    seeds = [derived_seed(seed, "subwords", side, epoch, number) for side in SIDES]
    encoded = [sampled(vocabulary, lines, alpha, seed_of_side, max_pieces)
               for vocabulary, lines, seed_of_side in zip(vocabularies, texts, seeds, strict=True)]
    long = [index for index, name in enumerate(names)
            if name and max(len(side[index]) for side in encoded) > max_pieces]
    for side, lines, vocabulary in zip(encoded, originals, vocabularies, strict=True):
        for index, ids in zip(long, vocabulary.encode([lines[index] for index in long]), strict=True):
            side[index] = ids
    for index in long:
        names[index] = ""
    sides = [EncodedSide.from_lists(ids_of_lines) for ids_of_lines in encoded]
    return ([(side.ids.astype(id_type(vocabulary.vocab_size)), side.lengths)
             for side, vocabulary in zip(sides, vocabularies, strict=True)], Counter(filter(None, names)))


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
