"""Detection of misaligned pairs and wrong languages, with lingua and with models trained on a sample of the corpora."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np

from seq2seq.check.corpus_statistics import BLOCK_LINES, Block
from seq2seq.check.misalignment import TranslationTable
from seq2seq.check.results import Finding, LineShift, PairReport
from seq2seq.data.corpus import LinePair
from seq2seq.data.language_identification import LanguageDetector, SideLanguages, has_enough_letters, is_installed
from seq2seq.data.parallel_text import blocks
from seq2seq.languages import main_language
from seq2seq.recipe import Languages
from seq2seq.tokenizers.canonical_text import is_blank

MIN_BLOCKS = 8
"""Minimum number of sampled blocks. If there are fewer, alignment is not checked: the sample is too small."""
MIN_LANGUAGE_PAIRS = 100
"""Minimum number of sampled pairs. If there are fewer, no pair is checked."""
JOINED_LETTERS, MAX_TEXTS = 40, 100
"""Minimum number of letters of a text from which the languages of a corpus are judged, and maximum number of texts."""
MIN_OTHER_SHARE, MIN_OTHER_LINES = 0.5, 5
"""A side is in another language if more than this share of its lines, and more than this number, are in it."""
SUSPECT_THRESHOLD = -5.0
"""A pair is reported as suspect if its score, in nats, is below this number. In Multi30k, 0.01 % of the pairs are
suspect, and 85 % of random pairs."""
MIN_MEDIAN_DIFFERENCE = 3.0
"""Alignment is checked only if the median score of the sampled pairs exceeds the median score of random pairs (a source
with the target of another pair) by more than this number of nats."""
MAX_CHECKED_PAIRS = 100_000
"""Approximate maximum number of pairs to check in a corpus."""
MIN_RELATED_DIFFERENCE, MAX_RANDOM_MEDIAN = 4.0, -0.5
"""If random pairs score less than MAX_RANDOM_MEDIAN, the tables know the words. Text whose alignment cannot be checked
is then unrelated if its median score exceeds that of random pairs by less than MIN_RELATED_DIFFERENCE. For 300 to 2,000
pairs of Tatoeba and Multi30k, it exceeds it by 5 to 19 nats, by 1.3 to 3 if half of the targets are shuffled (more in
Multi30k, of which alignment can then be checked), and by 0.1 to 0.8 if all are. In lists of words that all differ, both
are -0.3."""
MIN_SHIFT_GAIN = 60.0
"""A shift of one side by a line is reported only if it raises the sum of the scores of consecutive lines by at least
this number of nats."""
MAX_LANGUAGE_ID_PAIRS = 300
"""Maximum number of pairs per corpus whose languages lingua identifies. For this many, it needs a few seconds."""


class LanguageChecker:
    """Checks the languages of pairs with character n-grams that are learned from pairs in the right languages and, if
    lingua is installed, by its language identification.

    fault: error message if lingua lacks the language of a side, which it then does not identify; else None.
    """

    def __init__(self, texts: Iterable[tuple[str, str]], languages: Languages) -> None:
        known = [pair for pair in texts if not any(map(is_blank, pair))]
        self._sides = SideLanguages(known[:10_000]) if len(known) >= MIN_LANGUAGE_PAIRS else None
        self._codes = [main_language(code) for code in languages.codes]
        self._detector = LanguageDetector(languages) if is_installed() else None
        self.fault = self._detector.fault if self._detector else None

    @property
    def can_check(self) -> bool:
        """True if there were enough pairs to learn the languages. If False, no pair is checked."""
        return self._sides is not None

    def is_like_source(self, target: str) -> bool:
        """Return True if a text of the target side looks like the language of the source."""
        return self._sides is not None and "target" in self._sides.wrong("", target)

    def report(self, pairs: Iterable[LinePair]) -> PairReport:
        """Return a report on a corpus as a whole: on at most MAX_TEXTS texts of at least JOINED_LETTERS, to which
        its lines are joined, from all its parts."""
        report, texts, first, joined = PairReport(), list[LinePair](), 0, ["", ""]
        for line, *pair in pairs:
            if not any(map(is_blank, pair)):
                first = first or line
                joined = [f"{before} {text}" for before, text in zip(joined, pair, strict=True)]
            if all(has_enough_letters(text, JOINED_LETTERS) for text in joined):
                texts.append((first, joined[0], joined[1]))
                first, joined = 0, ["", ""]
        self.add(texts[::-(-len(texts) // MAX_TEXTS) or 1], report, 1)
        self.conclude(report)
        return report

    def add(self, pairs: Sequence[LinePair], report: PairReport, interval: int) -> None:
        """Check pairs, and add the results to the report of their corpus. interval: lingua identifies the languages of
        each pair whose number is a multiple of it, until these are MAX_LANGUAGE_ID_PAIRS."""
        assert self._sides is not None, "callers ask can_check"
        for line, source, target in pairs:
            report.pairs += 1
            for side in self._sides.wrong(source, target):
                report.wrong_side.setdefault(side, Finding()).add(line)
            if (self._detector and report.pairs % interval == 0 and report.recognised < MAX_LANGUAGE_ID_PAIRS
                    and any(map(has_enough_letters, (source, target)))):
                report.recognised += 1
                for side, code in self._detector.wrong(source, target).items():
                    report.wrong_language.setdefault(side, Finding()).add(line)
                    codes = report.identified.setdefault(side, {})
                    codes[code] = codes.get(code, 0) + 1

    def conclude(self, report: PairReport) -> None:
        """Add to a report which sides are in another language. Call this after all pairs of the corpus."""
        for side, other in zip(("source", "target"), reversed(self._codes), strict=True):
            like_other_side = report.wrong_side.get(side, Finding()).count
            of_lingua = [(code, count, report.recognised) for code, count in report.identified.get(side, {}).items()]
            for code, count, checked in [*of_lingua, (other, like_other_side, report.pairs)]:
                if count > max(MIN_OTHER_SHARE * checked, MIN_OTHER_LINES):
                    report.other_languages.setdefault(side, code)
        found = report.other_languages
        report.exchanged = [found.get("target"), found.get("source")] == self._codes


class CorpusChecker:
    """Checks pairs of corpora with translation tables and character n-grams that are learned from sampled pairs, and
    their languages with a `LanguageChecker`."""

    def __init__(self, sample: Sequence[Block], languages: Languages) -> None:
        """Train two translation tables, each on one half of the sampled blocks. Each table scores the other half."""
        # TranslationTable uses only the first pairs of a large sample. The blocks are shuffled, so that these pairs do
        # not all come from the beginning of the corpus.
        self._blocks = [sample[index] for index in np.random.default_rng(1).permutation(len(sample))]
        self._train(shift=0)
        if not self.is_discriminative:
            # One side of the whole corpus may be shifted by a line. Then the tables must be trained on pairs that are
            # formed by shifting this side back.
            for shift in (1, -1):
                self._train(shift)
                if self.is_discriminative:
                    break
            else:
                self._train(shift=0)
        self._languages = LanguageChecker((pair[1:] for block in self._blocks for pair in block), languages)

    @property
    def fault(self) -> str | None:
        """Error message if lingua lacks a language."""
        return self._languages.fault

    def _train(self, shift: int) -> None:
        """Train a table on each fold of the pairs, and score sampled pairs and random pairs. shift: see `_shift`."""
        folds: list[list[tuple[str, str]]] = [[], []]
        for block in self._blocks:
            folds[_fold(block[0][0])] += _shift(block, shift)
        self._tables = [TranslationTable(fold) for fold in folds]
        pair_scores, random_scores = [np.zeros(0)], [np.zeros(0)]
        for block, other in pairwise(self._blocks[:64]):
            table = self._tables[1 - _fold(block[0][0])]
            pair_scores.append(table.evidence(_shift(block, shift)))
            random_scores.append(table.evidence([(first[1], second[2]) for first, second in
                                                      zip(block, other, strict=False)]))
        self._pair_scores, self._random_scores = np.concatenate(pair_scores), np.concatenate(random_scores)

    @property
    def is_discriminative(self) -> bool:
        """True if the sampled pairs score clearly higher than random pairs. If False, alignment is not checked."""
        if len(self._blocks) < MIN_BLOCKS:
            return False
        median, random_median = np.median(self._pair_scores), np.median(self._random_scores)
        return bool(median > random_median + MIN_MEDIAN_DIFFERENCE and median > 0)

    @property
    def is_unrelated(self) -> bool:
        """True if the sampled pairs score hardly higher than random pairs, although the words are known."""
        if self.is_discriminative or len(self._blocks) < MIN_BLOCKS:
            return False
        median, random_median = np.median(self._pair_scores), np.median(self._random_scores)
        return bool(random_median < MAX_RANDOM_MEDIAN and median < random_median + MIN_RELATED_DIFFERENCE)

    def check(self, pairs: Iterable[LinePair], count: int, kept: bytearray | None = None) -> PairReport:
        """Check a corpus of `count` pairs. If `count` exceeds MAX_CHECKED_PAIRS, only some blocks are checked.

        kept: by line number, 1 for the pairs that cleaning keeps. Other pairs are used only to find shifted lines.
            None: cleaning keeps all pairs.
        """
        report = PairReport()
        if not self._languages.can_check or not count:
            return report
        block_interval = -(-count // MAX_CHECKED_PAIRS)
        runs = {shift: _BestRun() for shift in (1, -1)}
        identified_interval = max(1, count // block_interval // MAX_LANGUAGE_ID_PAIRS)      # unit: checked pairs
        for index, block in enumerate(blocks(pairs, BLOCK_LINES)):
            if index % block_interval:
                continue
            known = [pair for pair in block if _is_kept(pair[0], kept)]
            self._languages.add(known, report, identified_interval)
            if self.is_discriminative:
                self._check_alignment(block, report, runs, kept)
        self._languages.conclude(report)
        report.unrelated = self.is_unrelated
        if self.is_discriminative and report.pairs:
            # Not all misaligned pairs are suspects. Misaligned pairs score like random pairs, so the share of random
            # pairs below the threshold estimates the recall.
            recall = max(float((self._random_scores < SUSPECT_THRESHOLD).mean()), 0.5)
            report.misaligned = min(report.suspects.count / report.pairs / recall, 1.0)
            shift, run = max(runs.items(), key=lambda item: item[1].gain)
            if run.gain >= MIN_SHIFT_GAIN:
                report.slip = LineShift(run.first, run.last, shift)
        return report

    def _check_alignment(self, block: Block, report: PairReport, runs: dict[int, _BestRun], kept: bytearray | None
                         ) -> None:
        """Add the suspect pairs of a block to the report.

        Also add the gain of each line to `runs`: the line's score with one side shifted minus its score without shift.
        """
        table = self._tables[1 - _fold(block[0][0])]
        scores = table.evidence([pair[1:] for pair in block])
        for index in np.flatnonzero(scores < SUSPECT_THRESHOLD).tolist():
            line, source, target = block[index]
            if not any(map(is_blank, (source, target))) and _is_kept(line, kept):  # `scanned` counts empty sides
                report.suspects.add(line)
        for shift, run in runs.items():
            # To save time, shifted pairs are scored only if the run is open or at least 3 scores are negative.
            if run.is_open or (scores < 0).sum() >= 3:
                shifted_scores = table.evidence(_shift(block, shift))
                first = max(0, -shift)
                gains = shifted_scores - scores[first : first + len(shifted_scores)]
                for index, gain in enumerate(gains.tolist(), start=first):
                    run.add(block[index][0], gain)
            else:
                run.close()


class _BestRun:
    """Run of lines with the largest sum of gains, found in one pass (Kadane's algorithm)."""

    def __init__(self) -> None:
        self.gain, self.first, self.last = 0.0, 0, 0
        self._sum, self._first = 0.0, 0

    @property
    def is_open(self) -> bool:
        """True if the next line can extend the current run."""
        return self._sum > 0

    def add(self, line: int, gain: float) -> None:
        """Add a line to the current run, or to a new run if the gains of the current run sum to 0 or less."""
        if self._sum <= 0:
            self._sum, self._first = 0.0, line
        self._sum += gain
        if self._sum > self.gain:
            self.gain, self.first, self.last = self._sum, self._first, line

    def close(self) -> None:
        """End the current run."""
        self._sum = 0.0


def _is_kept(line: int, kept: bytearray | None) -> bool:
    return kept is None or line < len(kept) and kept[line] == 1


def _fold(line: int) -> int:
    """Return the fold, 0 or 1, of the block that contains this line number."""
    return (line - 1) // BLOCK_LINES % 2


def _shift(block: Block, shift: int) -> list[tuple[str, str]]:
    """Pair each source with the target `shift` lines below it (above it, if negative), if the block contains both."""
    sources, targets = block[max(0, -shift) :], block[max(0, shift) :]
    return [(source[1], target[2]) for source, target in zip(sources, targets, strict=False)]
