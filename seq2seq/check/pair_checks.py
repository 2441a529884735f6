"""Detection of misaligned pairs and of wrong languages, learned from the corpora themselves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

import numpy as np

from seq2seq.check.corpus_statistics import STRETCH, Stretch
from seq2seq.check.report import Finding, Judgement, Slip
from seq2seq.data.corpus import Pair
from seq2seq.data.language_identification import LanguageDetector, SideLanguages, is_installed
from seq2seq.data.misalignment import TranslationTable
from seq2seq.errors import UserError
from seq2seq.recipe import Languages

LEAST_STRETCHES = 8
"""Fewer do not show which words keep company."""
HARDLY = -5.0
"""Nats of evidence below which a pair is suspected. Of Multi30k's pairs 0.1 % lie below it, of shuffled ones 90 %."""
LEAST_APART = 3.0
"""Nats by which translations and random pairs must differ in the middle, for anything to be said of the corpus."""
MOST_JUDGED = 100_000
LEAST_OF_SLIP = 60.0
"""Nats by which the neighbours' translations must fit better, over all lines of a slip."""
RECOGNISED = 300
"""Pairs that lingua sees: some seconds."""


class Judge:
    """Judges corpora by dictionaries and n-grams that a sample of them has taught."""

    def __init__(self, stretches: Sequence[Stretch], languages: Languages) -> None:
        """Learn. Two dictionaries, of which each judges what the other has seen."""
        # A sample of many lines is cut short by TranslationTable: what is left should not be the beginning of the
        # corpus.
        self._stretches = [stretches[place] for place in np.random.default_rng(1).permutation(len(stretches))]
        self._slip_of_all = 0
        self._learn(0)
        if not self.can_tell:
            # Nothing fits if one side has slipped from its first line on; then the neighbours do.
            for by in (1, -1):
                self._learn(by)
                if self.can_tell:
                    break
            else:
                self._learn(0)
        sound = [pair[1:] for stretch in self._stretches for pair in stretch if pair[1].strip() and pair[2].strip()]
        self._sides = SideLanguages(sound[:10_000]) if len(stretches) >= LEAST_STRETCHES else None
        self._detector: LanguageDetector | None = None
        self.fault: str | None = None
        if is_installed():
            try:
                self._detector = LanguageDetector(languages)
            except UserError as error:
                self.fault = str(error)

    def _learn(self, by: int) -> None:
        folds: list[list[tuple[str, str]]] = [[], []]
        for stretch in self._stretches:
            folds[_fold(stretch[0][0])] += _moved(stretch, by)
        self._slip_of_all = by
        self._dictionaries = [TranslationTable(fold) for fold in folds]
        fitting, random = [np.zeros(0)], [np.zeros(0)]
        for stretch, other in pairwise(self._stretches[:64]):
            dictionary = self._dictionaries[1 - _fold(stretch[0][0])]
            fitting.append(dictionary.evidence(_moved(stretch, by)))
            random.append(dictionary.evidence([(first[1], second[2]) for first, second in
                                               zip(stretch, other, strict=False)]))
        self._fitting, self._random = np.concatenate(fitting), np.concatenate(random)

    @property
    def can_tell(self) -> bool:
        """True if the scores of true pairs differ enough from those of random pairs."""
        return bool(len(self._stretches) >= LEAST_STRETCHES and
                    np.median(self._fitting) > np.median(self._random) + LEAST_APART and np.median(self._fitting) > 0)

    def judge(self, pairs: Iterable[Pair], count: int) -> Judgement:
        """Judge a corpus of `count` pairs; of a long one, every so many stretches."""
        judgement = Judgement()
        if self._sides is None:
            return judgement
        every = -(-count // MOST_JUDGED)
        slips = {by: _Best() for by in (1, -1)}
        recognise_every = max(1, count // every // RECOGNISED)                  # of the judged pairs, not of all
        for number, stretch in enumerate(_stretches(pairs)):
            if number % every:
                continue
            for judged, (line, source, target) in enumerate(stretch, start=judgement.pairs + 1):
                if side := self._sides.wrong(source, target):
                    judgement.wrong_side.setdefault(side, Finding()).add(line)
                if self._detector and judged % recognise_every == 0 and judgement.recognised < RECOGNISED:
                    judgement.recognised += 1
                    if side := self._detector.wrong(source, target):
                        judgement.wrong_language.setdefault(side, Finding()).add(line)
            judgement.pairs += len(stretch)
            if self.can_tell:
                self._judge_stretch(stretch, judgement, slips)
        if self.can_tell and judgement.pairs:
            # Of random pairs not all look like it: as many more are misaligned as those that do.
            recall = max(float((self._random < HARDLY).mean()), 0.5)
            judgement.misaligned = min(judgement.suspects.count / judgement.pairs / recall, 1.0)
            by, best = max(slips.items(), key=lambda item: item[1].gain)
            if best.gain >= LEAST_OF_SLIP:
                judgement.slip = Slip(best.first, best.last, by)
        return judgement

    def _judge_stretch(self, stretch: Stretch, judgement: Judgement, slips: dict[int, _Best]) -> None:
        dictionary = self._dictionaries[1 - _fold(stretch[0][0])]
        here = dictionary.evidence([pair[1:] for pair in stretch])
        for place in np.flatnonzero(here < HARDLY).tolist():
            line, source, target = stretch[place]
            if source.strip() and target.strip():                               # an empty side is found without judging
                judgement.suspects.add(line)
        for by, best in slips.items():
            # Only where several lines in a row do not fit can their neighbours fit better.
            if best.open or (here < 0).sum() >= 3:
                moved = dictionary.evidence(_moved(stretch, by))
                first = max(0, -by)
                own = here[first : first + len(moved)]
                for place, gain in enumerate((moved - own).tolist(), start=first):
                    best.add(stretch[place][0], gain)
            else:
                best.close()


class _Best:
    """The stretch of lines with the largest sum of gains (Kadane's algorithm), in one pass."""

    def __init__(self) -> None:
        self.gain, self.first, self.last = 0.0, 0, 0
        self._sum, self._first = 0.0, 0

    @property
    def open(self) -> bool:
        """True if a stretch has begun that the next line may prolong."""
        return self._sum > 0

    def add(self, line: int, gain: float) -> None:
        if self._sum <= 0:
            self._sum, self._first = 0.0, line
        self._sum += gain
        if self._sum > self.gain:
            self.gain, self.first, self.last = self._sum, self._first, line

    def close(self) -> None:
        self._sum = 0.0


def _fold(line: int) -> int:
    return (line - 1) // STRETCH % 2


def _moved(stretch: Stretch, by: int) -> list[tuple[str, str]]:
    """Each source with the target that stands `by` lines later, as far as both are in the stretch."""
    sources, targets = stretch[max(0, -by) :], stretch[max(0, by) :]
    return [(source[1], target[2]) for source, target in zip(sources, targets, strict=False)]


def _stretches(pairs: Iterable[Pair]) -> Iterator[Stretch]:
    stretch: Stretch = []
    for pair in pairs:
        stretch.append(pair)
        if len(stretch) == STRETCH:
            yield stretch
            stretch = []
    if stretch:
        yield stretch
