"""Subword sampling of a whole corpus: for each epoch, the text is segmented again and written to disk."""

from __future__ import annotations

import shutil
import threading
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from seq2seq.data.batching import EncodedCorpus, EncodedSide, derived_seed
from seq2seq.data.parallel_text import blocks
from seq2seq.data.preparation import BLOCK_PAIRS, Prepared, SideWriter, id_type, open_side
from seq2seq.recipe import Recipe
from seq2seq.tokenizers.tokenizer import Tokenizers, Vocabulary


class SampledEpochs:
    """Training corpus with a new sample of segmentations in each epoch (Kudo 2018, Provilkov et al. 2020).

    A thread encodes the next epoch during the current one. The random seed of a block of lines is derived from (seed,
    side, epoch, block), so that every run with this seed has the same epochs.
    """

    def __init__(self, prepared: Prepared, tokenizers: Tokenizers, recipe: Recipe, is_main: bool = True) -> None:
        """is_main: True to encode the epochs in this process; False if another process, the main rank, encodes them."""
        self.is_main = is_main
        self.prepared, self.tokenizers, self.alpha = prepared, tokenizers, recipe.tokenizer.subword_sampling
        self.max_pieces, self.seed = recipe.data.cleaning.max_pieces, recipe.seed
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="subword-sampling")
        self._epochs: dict[int, Future[EncodedCorpus]] = {}
        self._closing = threading.Event()

    def corpus(self, epoch: int) -> EncodedCorpus:
        """Return the corpus of `epoch`, start to encode the next epoch, and delete the files of earlier epochs."""
        if not self.is_main:                                                    # the main rank has encoded it already
            return self._open(epoch)
        for number in (epoch, epoch + 1):
            if number not in self._epochs:
                self._epochs[number] = self._worker.submit(self._encode, number)
        for past in [number for number in self._epochs if number < epoch]:
            del self._epochs[past]
            shutil.rmtree(self._directory(past), ignore_errors=True)
        return self._epochs[epoch].result()

    def close(self) -> None:
        """Stop encoding, and delete the files of all epochs."""
        self._closing.set()
        self._worker.shutdown(wait=True, cancel_futures=True)
        for epoch in self._epochs:
            shutil.rmtree(self._directory(epoch), ignore_errors=True)

    def _directory(self, epoch: int) -> Path:
        return self.prepared.directory / f"epoch-{epoch:05d}"

    def _encode(self, epoch: int) -> EncodedCorpus:
        directory = self._directory(epoch)
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir()
        for name, tokenizer in (("source", self.tokenizers.source), ("target", self.tokenizers.target)):
            writer = SideWriter(directory, name, tokenizer)
            with open(self.prepared.directory / f"{name}.txt", encoding="utf-8", newline="\n") as text:
                lines = (line.removesuffix("\n") for line in text)
                for number, block in enumerate(blocks(lines, BLOCK_PAIRS)):
                    if self._closing.is_set():
                        raise CancelledError
                    seed = derived_seed(self.seed, "subwords", name, epoch, number)
                    side = EncodedSide.from_lists(sampled(tokenizer, block, self.alpha, seed, self.max_pieces))
                    writer.append(side.ids, side.lengths)
            writer.close()
        return self._open(epoch)

    def _open(self, epoch: int) -> EncodedCorpus:
        source, target = (
            open_side(self._directory(epoch), name, id_type(tokenizer.vocab_size))
            for name, tokenizer in (("source", self.tokenizers.source), ("target", self.tokenizers.target)))
        return replace(self.prepared.corpus, source=source, target=target)


def sampled(tokenizer: Vocabulary, lines: list[str], alpha: float, seed: int, max_pieces: int) -> list[list[int]]:
    """Encode lines with subword sampling. Lines with more than `max_pieces` pieces are encoded again without it."""
    encoded = tokenizer.sample(lines, alpha, seed)
    long = [index for index, ids in enumerate(encoded) if len(ids) > max_pieces]
    for index, ids in zip(long, tokenizer.encode([lines[index] for index in long]), strict=True):
        encoded[index] = ids
    return encoded
