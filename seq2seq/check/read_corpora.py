"""Reader that reads one corpus as training does, and collects statistics of its pairs, line lengths and pieces."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from seq2seq import console
from seq2seq.check.corpus_statistics import Sample, add_remaining, scan_corpus
from seq2seq.check.pair_checks import CorpusChecker
from seq2seq.check.results import CorpusReport, Finding, SideReport, percentiles
from seq2seq.data.batching import derived_seed
from seq2seq.data.corpus import LinePair, Pair, read_pairs
from seq2seq.data.leakage import HeldOutText
from seq2seq.data.parallel_text import blocks
from seq2seq.data.preparation import BLOCK_PAIRS, EncodedBlock, cleaned, encoded_blocks
from seq2seq.data.resampled_epochs import sampled
from seq2seq.errors import UserError
from seq2seq.languages import has_spaceless_words
from seq2seq.recipe import Corpus, Recipe
from seq2seq.tokenizers.canonical_text import canonical, is_blank
from seq2seq.tokenizers.source import Source, as_source
from seq2seq.tokenizers.tokenizer import END_ID, UNKNOWN_ID, Tokenizers, Vocabulary
from seq2seq.tokenizers.vocabulary import as_line
from seq2seq.translation.text_io import name_characters

# For each of these values of data.cleaning.max_pieces, the report counts the pairs that the value would drop.
MAX_PIECES = (64, 128, 256, 512)


class CorpusReader:
    """Reads one corpus and fills in its report.

    tokenizers: tokenizers that count pieces; if None, pieces are not counted. tokenizer_seconds: time of their
        training.
    texts: sources of a validation or test corpus by line number (for a language model, its texts).
    lengths: for each side, the line lengths in pieces, `</s>` included. There is one array for each block of pairs. In
        a training corpus, only pairs that cleaning keeps are included.
    """

    def __init__(self, role: str, spec: Corpus, recipe: Recipe) -> None:
        self.report = CorpusReport(role, spec.label, weight=spec.weight)
        self.spec, self.recipe, self.languages = spec, recipe, recipe.languages_of(spec)
        self.tokenizers: Tokenizers | None = None
        self.tokenizer_seconds = 0.0
        self.kept: bytearray | None = None                                      # by line number: 1 if cleaning keeps it
        self.lengths: dict[str, list[np.ndarray]] = {side: [] for side in spec.sides}
        self.characters: dict[str, Counter[int]] = {side: Counter() for side in spec.sides}
        self.words: dict[str, Counter[int]] = {side: Counter() for side in spec.sides}
        self.pieces: dict[str, Counter[int]] = {side: Counter() for side in spec.sides}
        self.texts: dict[int, str] = {}

    def scan(self, sample: Sample | None, seen: set[bytes] | None = None, held_out: HeldOutText | None = None) -> None:
        """Read all lines without cleaning, and count the lines of each kind, such as duplicates. If the corpus cannot
        be read, `report.error` says why.

        sample: random sample to which blocks of the pairs are added; None to draw no sample. seen: hashes of the pairs
            of earlier corpora, see `clean`; None: there are none. held_out: text that is looked for in this corpus.
        """
        try:
            read = self._texts(held_out)
            pairs = console.with_progress(f"scanning {self.report.label}", read, "pairs")
            scan_corpus(sample.draw_from(pairs) if sample else pairs, self.report, len(self.spec.sides),
                        self.languages, self.spec.tag or "", set() if seen is None else seen)
        except UserError as error:
            self.report.error = str(error)

    def check_pairs(self, checker: CorpusChecker) -> None:
        """Check the pairs for misalignment and wrong languages."""
        with contextlib.suppress(UserError):                                    # `scan` has reported the error
            self.report.judgement = checker.check(self._texts(), self.report.lines, self.kept)

    def _texts(self, held_out: HeldOutText | None = None) -> Iterator[LinePair]:
        """Yield the pairs without tags and contexts."""
        pairs = read_pairs(self.recipe, self.spec, context=0)
        if held_out is not None:
            pairs = held_out.watch(self.spec, pairs)
        return ((number, source.text, target) for number, source, target in pairs)

    def read_held_out(self) -> None:
        """Read all pairs of a validation or test corpus, without cleaning."""
        for block in self._blocks(clean=False):
            for side, lines in self._sides(block):
                texts = [(number, as_source(line).text) for (number, _, _), line in zip(block, lines, strict=True)]
                for number, text in texts:
                    if is_blank(text):
                        self.report.blank.setdefault(side, Finding()).add(number)
                if side == self.spec.sides[0]:
                    self.texts.update(texts)

    def add_unseen(self, characters: set[str], warnings: list[str]) -> None:
        """Append a warning if sources of a validation or test corpus have characters that the training sources lack.
        characters: those of the training sources."""
        side = self.spec.sides[0]
        normalized = self._tokenizer(side).normalized if self.tokenizers else canonical
        unseen = {number: found for number, text in self.texts.items() if (found := set(normalized(text)) - characters)}
        if unseen:
            named = name_characters(Counter(character for found in unseen.values() for character in sorted(found)))
            warnings.append(f"{self.report.role} {self.report.label}: of {len(self.texts):,} {side}s, {len(unseen):,} "
                            f"have characters that train never has (first: line {min(unseen):,}): {named}.")

    def read_train(self, characters: dict[str, set[str]], seen: set[bytes] | None = None) -> None:
        """Read the pairs of a training corpus after cleaning.

        characters: for each side, a set to which the characters of its text are added. seen: hashes of the pairs of
        earlier corpora, see `clean`.
        """
        self.kept = bytearray()
        remaining = None if self.recipe.data.cleaning.remove_duplicates else seen
        for block in self._blocks(clean=True, seen=seen):
            for number, _, _ in block:
                self.kept.extend(bytes(max(0, number + 1 - len(self.kept))))
                self.kept[number] = 1
            add_remaining(block, self.report, len(self.spec.sides), self.languages, remaining)
            for side, texts in self._sides(block):
                characters[side].update(*map(as_line, texts))

    def _sides(self, block: list[Pair]) -> list[tuple[str, Sequence[str | Source]]]:
        """Return (name of the side, its lines) for each side of a block."""
        return self._of_sides([source for _, source, _ in block], [target for _, _, target in block])

    def _of_sides(self, source: Any, target: Any) -> list[tuple[str, Any]]:
        """Return (name of the side, its values) for each side of the corpus, from values of source and target."""
        return list(zip(self.spec.sides, (source, target)[-len(self.spec.sides):], strict=True))

    def _blocks(self, clean: bool, seen: set[bytes] | None = None) -> Iterator[list[Pair]]:
        """Yield the pairs in blocks, and complete the report after the last block.

        clean: True to clean the pairs as for training; False to yield all pairs. seen: as in `read_train`.
        """
        try:
            pairs = (cleaned(self.spec, self.recipe, self.report.counts, seen, self.tokenizers) if clean else
                     read_pairs(self.recipe, self.spec, self.report.counts))
            with console.progress(f"reading {self.report.label}", None, unit="pairs") as advance:
                found = (blocks(pairs, BLOCK_PAIRS) if self.tokenizers is None else
                         self._counted(encoded_blocks(pairs, self.recipe, self.tokenizers), clean))
                for block in found:
                    advance(len(block))
                    for side, texts in self._sides(block):
                        lines = list(map(as_line, texts))
                        self.characters[side].update(map(len, lines))
                        if not has_spaceless_words(self._language(side)):
                            self.words[side].update(len(line.split()) for line in lines)
                    self.report.pairs += len(block)
                    yield block
        except UserError as error:
            self.report.error = str(error)
        for side in self.spec.sides:
            tokens = sum(int(lengths.sum()) for lengths in self.lengths[side])
            self.report.sides[side] = report = SideReport(percentiles(self.characters[side]),
                                                          percentiles(self.words[side]), tokens)
            if self.tokenizers and (pieces := sum(self.pieces[side].values())):
                words, characters = (sum(length * count for length, count in counts[side].items())
                                     for counts in (self.words, self.characters))
                if words:
                    report.pieces_a_word = pieces / words
                report.characters_a_piece = characters / pieces
                report.unknown = sum(self.pieces[side][piece] for piece in _unknown_ids(self._tokenizer(side))) / pieces

    def _counted(self, encoded: Iterable[EncodedBlock], clean: bool) -> Iterator[list[Pair]]:
        """Count the pieces of blocks, and yield their pairs. clean: True to leave out pairs with too many pieces."""
        limit, alpha = self.recipe.data.cleaning.max_pieces, self.recipe.tokenizer.subword_sampling
        limits = self.report.limits.setdefault("max_pieces", dict.fromkeys(map(str, MAX_PIECES), 0))
        for block in encoded:
            for each in MAX_PIECES:
                limits[str(each)] += int((block.pieces > each).sum())
            if clean:
                block = block.within_max_pieces(limit, self.report.counts)
            for side, ids in self._of_sides(*block.ids):
                self.pieces[side].update(ids[ids != END_ID].tolist())
            lengths = dict(self._of_sides(*block.lengths))
            if clean and alpha:
                seed = derived_seed(self.recipe.seed, "subwords", len(self.lengths[self.spec.sides[0]]))
                for side, texts in self._of_sides(block.sources, block.targets):
                    ids_of_lines = sampled(self._tokenizer(side), texts, alpha, seed, limit)
                    lengths[side] = np.array([len(ids) + 1 for ids in ids_of_lines], np.int64)
            for side, of_side in lengths.items():
                self.lengths[side].append(of_side)
            yield list(zip(block.numbers.tolist(), block.sources, block.targets, strict=True))

    def _tokenizer(self, side: str) -> Vocabulary:
        assert self.tokenizers is not None
        return self.tokenizers.source if side == "source" else self.tokenizers.target

    def _language(self, side: str) -> str:
        return self.languages.codes[side != "source"]


def _unknown_ids(tokenizer: Vocabulary) -> list[int]:
    """Return the ids of the unknown token and of the byte pieces, which encode characters outside the vocabulary."""
    names = tokenizer.pieces(range(tokenizer.vocab_size))
    return [token_id for token_id, name in enumerate(names)
            if token_id == UNKNOWN_ID or re.fullmatch("<0x[0-9A-F]{2}>", name)]
