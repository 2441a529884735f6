"""Results of `check`."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

from seq2seq.data.corpus import Counts

PERCENTILES = (50, 95, 99, 100)
EXAMPLES = 5


@dataclass
class SideReport:
    """One language of a corpus. characters, words: of a line, by percentile; 100 is the longest line."""

    characters: dict[int, int] = field(default_factory=dict)
    words: dict[int, int] = field(default_factory=dict)
    tokens: int = 0
    """Pieces of all lines, and an end for each."""
    pieces_a_word: float | None = None
    """None, too, in a language without spaces between words."""
    characters_a_piece: float | None = None
    unknown: float | None = None
    """Share of the pieces that are bytes of a character without a piece of its own, or unknown words."""


@dataclass
class Finding:
    """Lines of one kind. lines: the numbers of the first few."""

    count: int = 0
    lines: list[int] = field(default_factory=list)

    def add(self, line: int) -> None:
        """Count a line."""
        self.count += 1
        if len(self.lines) < EXAMPLES:
            self.lines.append(line)

    def __str__(self) -> str:
        return f"{self.count:,} (line{'s' * (len(self.lines) > 1)} {', '.join(map(str, self.lines))}" \
               f"{', …' if self.count > len(self.lines) else ''})"


@dataclass
class Slip:
    """A stretch of lines, first to last, whose targets stand `by` lines later than their sources; earlier below 0."""

    first: int
    last: int
    by: int


@dataclass
class Judgement:
    """Misalignment and wrong languages in a corpus. pairs: number of pairs judged.

    misaligned: estimated share of all pairs. suspects: pairs that are hardly translations. wrong_side: text that looks
    like the other side's language, by side. wrong_language: text in a wrong language by lingua, among `recognised`
    pairs.
    """

    pairs: int = 0
    misaligned: float | None = None
    suspects: Finding = field(default_factory=Finding)
    slip: Slip | None = None
    wrong_side: dict[str, Finding] = field(default_factory=dict)
    recognised: int = 0
    wrong_language: dict[str, Finding] = field(default_factory=dict)


@dataclass
class CorpusReport:
    """One corpus. role: train, valid or test.<name>. pairs: left after cleaning (of train; others are taken whole).
    sides: source and target, or text alone."""

    role: str
    label: str
    pairs: int = 0
    counts: Counts = field(default_factory=Counts)
    findings: dict[str, Finding] = field(default_factory=dict)
    """By kind, of all lines as they were read; what cleaning does with them is in `counts`."""
    limits: dict[str, dict[str, int]] = field(default_factory=dict)
    """For each key of data.cleaning, and some values of it, how many pairs it alone would drop."""
    judgement: Judgement | None = None
    sides: dict[str, SideReport] = field(default_factory=dict)
    weight: float = 1.0
    in_train: int | None = None
    """Of valid and tests: lines whose source, or text, stands in train."""
    in_train_example: int | None = None
    in_train_lines: list[int] = field(default_factory=list)
    error: str | None = None
    lines: int = 0
    """Number of lines read."""
    files: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Lines and damage of each file, if text could not be read."""


@dataclass
class Report:
    """All results of `check`. errors prevent a training; warnings do not."""

    name: str
    corpora: list[CorpusReport]
    tokens_are_exact: bool = False
    vocabulary: dict[str, Any] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=dict)
    training: dict[str, Any] = field(default_factory=dict)
    machine: dict[str, Any] = field(default_factory=dict)
    disk: dict[str, Any] = field(default_factory=dict)
    measured: dict[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON values."""
        return asdict(self)


def percentiles(lengths: Counter[int]) -> dict[int, int]:
    """For each of PERCENTILES the smallest length that so many percent of the lines do not exceed."""
    total, result = sum(lengths.values()), {}
    for percent in PERCENTILES if total else ():
        left = math.ceil(total * percent / 100)
        for length in sorted(lengths):
            left -= lengths[length]
            if left <= 0:
                result[percent] = length
                break
    return result
