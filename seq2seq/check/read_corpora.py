"""Reader of one corpus: it observes the preparation of a training, and counts pairs, lengths and pieces."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from seq2seq import console
from seq2seq.check.corpus_statistics import Sample, add_remaining, scanned
from seq2seq.check.pair_checks import CorpusChecker
from seq2seq.check.results import CorpusReport, Finding, SideReport, percentiles
from seq2seq.data.batching import derived_seed
from seq2seq.data.corpus import LinePair, Pair, read_pairs
from seq2seq.data.preparation import EncodedBlock, Observer, encoded_blocks, prepared_blocks
from seq2seq.data.resampled_epochs import sampled
from seq2seq.errors import CorpusError, UserError
from seq2seq.languages import has_spaceless_words
from seq2seq.recipe import Corpus, Recipe
from seq2seq.tokenizers.canonical_text import canonical, is_blank
from seq2seq.tokenizers.source import Source
from seq2seq.tokenizers.tokenizer import END_ID, UNKNOWN_ID, Tokenizers, Vocabulary
from seq2seq.tokenizers.vocabulary import as_line
from seq2seq.translation.text_io import name_characters

# For each of these values of data.cleaning.max_pieces, the report counts the pairs that the value would drop.
MAX_PIECES = (64, 128, 256, 512)


class CorpusReader(Observer):
    """Reads one corpus, each pair once, and fills in its report.

    tokenizer_seconds: time of the training of the tokenizers.
    texts: sources of a validation or test corpus by line number (for a language model, its texts).
    alphabet: for each side of a training corpus, all characters of its text.
    lengths: for each side, the line lengths in pieces, `</s>` included. There is one array for each block of pairs. In
        a training corpus, only pairs that cleaning keeps are included.
    """

    def __init__(self, role: str, spec: Corpus, recipe: Recipe, tokenizers: Tokenizers | None,
                 *watchers: Callable[[Iterator[Pair]], Iterator[Pair]], seen: dict[bytes, bool] | None = None) -> None:
        """Args:
            tokenizers: tokenizers that count pieces; if None, pieces are not counted.
            watchers: functions that yield the pairs of the corpus unchanged, as they are before cleaning.
            seen: see `scanned`; None: there are no earlier corpora.
        """
        self.report = CorpusReport(role, spec.label, weight=spec.weight)
        self.spec, self.recipe, self.languages = spec, recipe, recipe.languages_of(spec)
        self.tokenizers, self.tokenizer_seconds = tokenizers, 0.0
        self._vocabularies: dict[str, Vocabulary] = (                           # by side
            {} if tokenizers is None else dict(self._of_sides(tokenizers.source, tokenizers.target)))
        self.kept: bytearray | None = None                                      # by line number: 1 if cleaning keeps it
        self.lengths: dict[str, list[np.ndarray]] = {side: [] for side in spec.sides}
        self.characters: dict[str, Counter[int]] = {side: Counter() for side in spec.sides}
        self.words: dict[str, Counter[int]] = {side: Counter() for side in spec.sides}
        self.pieces: dict[str, Counter[int]] = {side: Counter() for side in spec.sides}
        self.alphabet: dict[str, set[str]] = {side: set() for side in spec.sides}
        self.texts: dict[int, str] = {}
        self._watchers, self._seen = watchers, {} if seen is None else seen
        if tokenizers is not None:
            self.report.limits["max_pieces"] = dict.fromkeys(map(str, MAX_PIECES), 0)

    def read(self, pairs: Iterator[Pair]) -> Iterator[Pair]:
        for watch in self._watchers:
            pairs = watch(pairs)
        return scanned(pairs, self.report, len(self.spec.sides), self.languages, self._seen)

    def encoded(self, block: EncodedBlock) -> None:
        for limit, pairs in self.report.limits.get("max_pieces", {}).items():
            self.report.limits["max_pieces"][limit] = pairs + int((block.pieces > int(limit)).sum())

    def read_held_out(self) -> None:
        """Read all pairs of a validation or test corpus, without cleaning. If the corpus cannot be read, `report.error`
        says why."""
        pairs = self.read(read_pairs(self.recipe, self.spec, self.report.counts))
        for block in self._counted(encoded_blocks(pairs, self.recipe, self.tokenizers)):
            self.encoded(block)
            for side, texts in self._of_sides(*block.texts):
                for number, text in zip(block.numbers.tolist(), texts, strict=True):
                    if is_blank(text):
                        self.report.blank.setdefault(side, Finding()).add(number)
                    if side == self.spec.sides[0]:
                        self.texts[number] = text

    def read_train(self) -> None:
        """Read the pairs of a training corpus as a training does. If this cannot be done, `report.error` says why."""
        self.kept = bytearray()
        remaining = None if self.recipe.data.cleaning.remove_duplicates else self._seen
        for block in self._counted(prepared_blocks(self.spec, self.recipe, self.tokenizers, self.report.counts,
                                                   self._seen, observer=self)):
            for number in block.numbers.tolist():
                self.kept.extend(bytes(max(0, number + 1 - len(self.kept))))
                self.kept[number] = 1
            pairs = zip(block.numbers.tolist(), block.sources, block.targets, strict=True)
            add_remaining(pairs, self.report, len(self.spec.sides), self.languages, remaining)
            for side, texts in self._of_sides(*block.texts):
                self.alphabet[side].update(*texts)

    def check_pairs(self, checker: CorpusChecker) -> None:
        """Check the pairs for misalignment and wrong languages."""
        pairs: Iterator[LinePair] = ((number, source.text, target) for number, source, target in
                                     read_pairs(self.recipe, self.spec, context=0))
        with contextlib.suppress(UserError):                                    # it is in the report
            self.report.judgement = checker.check(pairs, self.report.lines, self.kept)

    def add_unseen(self, characters: set[str], warnings: list[str]) -> None:
        """Append a warning if sources of a validation or test corpus have characters that the model never sees in its
        training. characters: those that it sees in sources."""
        side = self.spec.sides[0]
        normalized = self._vocabularies[side].normalized if self.tokenizers else canonical
        unseen = {number: found for number, text in self.texts.items() if (found := set(normalized(text)) - characters)}
        if unseen:
            named = name_characters(Counter(character for found in unseen.values() for character in sorted(found)))
            warnings.append(f"{self.report.role} {self.report.label}: of {len(self.texts):,} {side}s, {len(unseen):,} "
                            f"have characters that train never has (first: line {min(unseen):,}): {named}.")

    def _of_sides(self, source: Any, target: Any) -> list[tuple[str, Any]]:
        """Return (name of the side, its values) for each side of the corpus, from values of source and target."""
        return list(zip(self.spec.sides, (source, target)[-len(self.spec.sides):], strict=True))

    def _counted(self, blocks: Iterable[EncodedBlock]) -> Iterator[EncodedBlock]:
        """Yield the blocks, count their pairs, lengths and pieces, and complete the report after the last block."""
        try:
            with console.progress(f"reading {self.report.label}", None, unit="pairs") as advance:
                for block in blocks:
                    advance(len(block.numbers))
                    self._count(block)
                    yield block
        except UserError as error:
            self.report.error = str(error)
        for side in self.spec.sides:
            tokens = sum(int(lengths.sum()) for lengths in self.lengths[side])
            self.report.sides[side] = report = SideReport(percentiles(self.characters[side]),
                                                          percentiles(self.words[side]), tokens)
            if pieces := sum(self.pieces[side].values()):
                words, characters = (sum(length * count for length, count in counts[side].items())
                                     for counts in (self.words, self.characters))
                if words:
                    report.pieces_a_word = pieces / words
                report.characters_a_piece = characters / pieces
                unknown = set(_unknown_ids(self._vocabularies[side]))
                tag = as_line(Source("", tag=self.spec.tag)) if self.spec.tag and side == "source" else ""
                in_tag = sum(piece in unknown for piece in self._vocabularies[side].encode([tag])[0])
                in_text = sum(self.pieces[side][piece] for piece in unknown) - in_tag * self.report.pairs
                report.unknown = in_text / pieces

    def _count(self, block: EncodedBlock) -> None:
        """Count the pairs, lengths and pieces of a block. With subword sampling, the lengths of training text are those
        of a sample."""
        self.report.pairs += len(block.numbers)
        alpha = self.recipe.tokenizer.subword_sampling if self.report.role == "train" else 0
        seed = derived_seed(self.recipe.seed, "subwords", len(self.lengths[self.spec.sides[0]]))
        values = zip((block.sources, block.targets), block.ids, block.lengths, strict=True)
        for side, (lines, ids, lengths) in self._of_sides(*values):
            texts = list(map(as_line, lines))
            self.characters[side].update(map(len, texts))
            if not has_spaceless_words(self.languages.codes[side != "source"]):
                self.words[side].update(len(text.split()) for text in texts)
            if self.tokenizers is None:
                continue
            self.pieces[side].update(ids[ids != END_ID].tolist())
            if alpha:
                max_pieces = self.recipe.data.cleaning.max_pieces
                ids_of_lines = sampled(self._vocabularies[side], lines, alpha, seed, max_pieces)
                lengths = np.array([len(of_line) + 1 for of_line in ids_of_lines], np.int64)
            self.lengths[side].append(lengths)


def read_and_check(spec: Corpus, recipe: Recipe, tokenizers: Tokenizers) -> tuple[CorpusReader, CorpusChecker]:
    """Read and check a training corpus. Raise CorpusError if it cannot be read. The checker knows its languages, and
    which words are translations of each other."""
    sample = Sample(recipe.seed)
    reader = CorpusReader("train", spec, recipe, tokenizers, sample.draw_from)
    reader.read_train()
    if reader.report.error:
        raise CorpusError(reader.report.error)
    checker = CorpusChecker(sample.blocks, reader.languages)
    reader.check_pairs(checker)
    return reader, checker


def _unknown_ids(tokenizer: Vocabulary) -> list[int]:
    """Return the ids of the unknown token and of the byte pieces, which encode characters outside the vocabulary."""
    names = tokenizer.pieces(range(tokenizer.vocab_size))
    return [token_id for token_id, name in enumerate(names)
            if token_id == UNKNOWN_ID or re.fullmatch("<0x[0-9A-F]{2}>", name)]
