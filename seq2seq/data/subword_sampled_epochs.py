"""Subword sampling of a whole corpus: each epoch is cut into pieces anew and mapped into memory."""

from __future__ import annotations

import shutil
import threading
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from seq2seq.data.batching import EncodedCorpus, EncodedSide, derived_seed
from seq2seq.data.preparation import BLOCK_PAIRS, Prepared, SideWriter, blocks, id_type, open_side
from seq2seq.recipe import Recipe
from seq2seq.tokenizers.tokenizer import Tokenizers, Vocabulary


class SampledEpochs:
    """Subword sampling: the corpus encoded again for each epoch (Kudo 2018, Provilkov et al. 2020), one epoch ahead.

    The random state is derived from (seed, epoch, block), so that an epoch is always the same.
    """

    def __init__(self, prepared: Prepared, tokenizers: Tokenizers, recipe: Recipe, makes: bool = True) -> None:
        """makes: this process encodes the epochs; False: another one does."""
        self.makes = makes
        self.prepared, self.tokenizers, self.alpha = prepared, tokenizers, recipe.tokenizer.subword_sampling
        self.max_pieces, self.seed = recipe.data.cleaning.max_pieces, recipe.seed
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="subword-sampling")
        self._coming: dict[int, Future[EncodedCorpus]] = {}
        self._closing = threading.Event()

    def corpus(self, epoch: int) -> EncodedCorpus:
        """Return the corpus of `epoch`, and start to encode the next one."""
        if not self.makes:
            return self._open(epoch)
        for number in (epoch, epoch + 1):
            if number not in self._coming:
                self._coming[number] = self._worker.submit(self._make, number)
        for past in [number for number in self._coming if number < epoch]:
            del self._coming[past]
            shutil.rmtree(self._directory(past), ignore_errors=True)
        return self._coming[epoch].result()

    def close(self) -> None:
        """Stop encoding, and delete the files of all epochs."""
        self._closing.set()
        self._worker.shutdown(wait=True, cancel_futures=True)
        for epoch in self._coming:
            shutil.rmtree(self._directory(epoch), ignore_errors=True)

    def _directory(self, epoch: int) -> Path:
        return self.prepared.directory / f"epoch-{epoch:05d}"

    def _make(self, epoch: int) -> EncodedCorpus:
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
    """Encode lines with subword sampling. A line that becomes longer than `max_pieces` is encoded as usual."""
    found = tokenizer.sample(lines, alpha, seed)
    long = [place for place, ids in enumerate(found) if len(ids) > max_pieces]
    for place, shortest in zip(long, tokenizer.encode([lines[place] for place in long]), strict=True):
        found[place] = shortest
    return found
