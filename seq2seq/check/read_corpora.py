"""One corpus as training would take it: what cleaning leaves of it, how long its lines are, how they are cut."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Iterator

import numpy as np

from seq2seq import console
from seq2seq.check.corpus_statistics import Sample, describe_files, survey
from seq2seq.check.pair_checks import Judge
from seq2seq.check.report import CorpusReport, SideReport, percentiles
from seq2seq.data.batching import derived_seed
from seq2seq.data.corpus import Pair, read_pairs
from seq2seq.data.line_splitting import SPACELESS, main_language
from seq2seq.data.preparation import blocks, cleaned
from seq2seq.data.subword_sampled_epochs import sampled
from seq2seq.errors import UserError
from seq2seq.recipe import Corpus, Recipe
from seq2seq.tokenizers.tokenizer import UNKNOWN_ID, Tokenizers, Vocabulary

BLOCK_PAIRS = 8192
PIECES = (64, 128, 256, 512)


class Reader:
    """Reads one corpus and fills its report.

    tokenizers: to count pieces with; None: they are not counted.
    lengths: by side, pieces of each pair that training keeps, ends included; a block in each array.
    """

    def __init__(self, role: str, spec: Corpus, recipe: Recipe) -> None:
        self.report = CorpusReport(role, spec.label, weight=spec.weight)
        self.spec, self.recipe = spec, recipe
        self.tokenizers: Tokenizers | None = None
        self.lengths: dict[str, list[np.ndarray]] = {side: [] for side in spec.sides}
        self.characters: dict[str, Counter[int]] = {side: Counter() for side in spec.sides}
        self.words: dict[str, Counter[int]] = {side: Counter() for side in spec.sides}
        self.pieces: dict[str, Counter[int]] = {side: Counter() for side in spec.sides}

    def survey(self, sample: Sample | None) -> None:
        """Look at all lines as they are. Sets the report's error if they cannot be read."""
        try:
            pairs = read_pairs(self.recipe, self.spec.untagged)
            pairs = console.with_progress(f"looking at {self.report.label}", pairs, "pairs")
            survey(sample.watch(pairs) if sample else pairs, self.report, len(self.spec.sides))
        except UserError as error:
            self.report.error = str(error)
            self.report.files = describe_files(self.spec, self.recipe.data_directory, self.recipe.languages)

    def judge(self, judge: Judge, count: int) -> None:
        """Judge whether its lines translate each other."""
        with contextlib.suppress(UserError):                                    # `survey` has reported it
            self.report.judgement = judge.judge(read_pairs(self.recipe, self.spec.untagged), count)

    def read_held_out(self) -> list[str]:
        """Validation or test pairs, as training takes them: all. Returns their sources, or texts."""
        sources: list[str] = []
        for block in self._blocks(clean_them=False):
            sources += self._sides(block)[0][1]
        return sources

    def read_train(self, wanted: set[str], found: set[str], characters: dict[str, set[str]]) -> None:
        """Training pairs after cleaning. Adds to `found` which of the wanted sources stand there."""
        for block in self._blocks(clean_them=True):
            sides = self._sides(block)
            found |= wanted.intersection(sides[0][1])
            for side, texts in sides:
                characters[side].update(*texts)

    def _sides(self, block: list[Pair]) -> list[tuple[str, list[str]]]:
        """The block's texts, side by side, each with its name."""
        columns = ([source for _, source, _ in block], [target for _, _, target in block])
        return list(zip(self.spec.sides, columns[-len(self.spec.sides):], strict=True))

    def _blocks(self, clean_them: bool) -> Iterator[list[Pair]]:
        try:
            pairs = (cleaned(self.spec, self.recipe, self.report.counts) if clean_them else
                     read_pairs(self.recipe, self.spec, self.report.counts))
            with console.progress(f"reading {self.report.label}", None, unit="pairs") as advance:
                for block in blocks(pairs, BLOCK_PAIRS):
                    advance(len(block))
                    kept = self._count(block, clean_them)
                    self.report.pairs += len(kept)
                    yield kept
        except UserError as error:
            self.report.error = str(error)
        for side in self.spec.sides:
            tokens = sum(int(lengths.sum()) for lengths in self.lengths[side])
            self.report.sides[side] = report = SideReport(percentiles(self.characters[side]),
                                                          percentiles(self.words[side]), tokens)
            if self.tokenizers and (pieces := sum(self.pieces[side].values())):
                words, characters = (sum(length * count for length, count in counted[side].items())
                                     for counted in (self.words, self.characters))
                if main_language(self._language(side)) not in SPACELESS:
                    report.pieces_a_word = pieces / max(words, 1)
                report.characters_a_piece = characters / pieces
                report.unknown = sum(self.pieces[side][piece] for piece in _strange(self._tokenizer(side))) / pieces

    def _count(self, block: list[Pair], clean_them: bool) -> list[Pair]:
        """Lengths of a block's pairs; without those that have too many pieces for training."""
        if self.tokenizers:
            ids_of = {side: self._tokenizer(side).encode(texts) for side, texts in self._sides(block)}
            pieces = {side: [len(ids) for ids in lines] for side, lines in ids_of.items()}
            self._count_limits(pieces)
            limit = self.recipe.data.cleaning.max_pieces
            long = {place for place, lengths in enumerate(zip(*pieces.values(), strict=True))
                    if clean_them and max(lengths) > limit}
            for place in sorted(long):
                self.report.counts.count_dropped("too_many_pieces", block[place][0])
            block = [pair for place, pair in enumerate(block) if place not in long]
            for side, lines in ids_of.items():
                for place, ids in enumerate(lines):
                    if place not in long:
                        self.pieces[side].update(ids)
            if clean_them and (alpha := self.recipe.tokenizer.subword_sampling):
                seed = derived_seed(self.recipe.seed, "subwords", len(self.lengths[self.spec.sides[0]]))
                pieces = {side: [len(ids) for ids in sampled(self._tokenizer(side), texts, alpha, seed, limit)]
                          for side, texts in self._sides(block)}
                long = set()
            for side, lengths in pieces.items():
                self.lengths[side].append(np.array(
                    [length + 1 for place, length in enumerate(lengths) if place not in long], np.int32))
        for side, texts in self._sides(block):
            self.characters[side].update(map(len, texts))
            self.words[side].update(len(text.split()) for text in texts)
        return block

    def _tokenizer(self, side: str) -> Vocabulary:
        assert self.tokenizers is not None
        return self.tokenizers.source if side == "source" else self.tokenizers.target

    def _language(self, side: str) -> str:
        languages = self.recipe.languages
        return languages.source or "" if side == "source" else languages.target

    def _count_limits(self, pieces: dict[str, list[int]]) -> None:
        limits = self.report.limits.setdefault("max_pieces", dict.fromkeys(map(str, PIECES), 0))
        for longest in map(max, zip(*pieces.values(), strict=True)):
            for limit in PIECES:
                limits[str(limit)] += longest > limit


def _strange(tokenizer: Vocabulary) -> list[int]:
    """Pieces that stand for what has no piece of its own: unknown words, and single bytes."""
    names = tokenizer.pieces(range(tokenizer.vocab_size))
    return [index for index, name in enumerate(names)
            if index == UNKNOWN_ID or re.fullmatch("<0x[0-9A-F]{2}>", name)]
