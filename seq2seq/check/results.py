"""Data classes of the results of `check`. Their field names are the keys of the JSON report."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from seq2seq.data.corpus import Counts
from seq2seq.data.leakage import Shared
from seq2seq.errors import UserError

PERCENTILES = (50, 95, 99, 100)
EXAMPLES = 5
"""Maximum number of line numbers in a finding."""


@dataclass
class SideReport:
    """Line lengths of one side of a corpus.

    characters, words: percentiles of the line length in characters or words; percentile 100 is the maximum. `words`
    is empty in a language without spaces between words.
    """

    characters: dict[int, int] = field(default_factory=dict)
    words: dict[int, int] = field(default_factory=dict)
    tokens: int = 0
    """Number of pieces in all lines, plus one `</s>` per line."""
    pieces_a_word: float | None = None
    """Mean number of pieces per word; None without a tokenizer, or in a language without spaces between words."""
    characters_a_piece: float | None = None
    """Mean number of characters per piece; None without a tokenizer."""
    unknown: float | None = None
    """Share of the pieces that are unknown words or byte pieces; None without a tokenizer."""


@dataclass
class Finding:
    """Lines of one kind. count: number of these lines. lines: line numbers of the first EXAMPLES of them."""

    count: int = 0
    lines: list[int] = field(default_factory=list)

    def add(self, line: int) -> None:
        self.count += 1
        if len(self.lines) < EXAMPLES:
            self.lines.append(line)

    def __str__(self) -> str:
        return f"{self.count:,} (line{'s' * (len(self.lines) > 1)} {', '.join(map(str, self.lines))}" \
               f"{', …' if self.count > len(self.lines) else ''})"


@dataclass
class LineShift:
    """Run of lines whose targets stand `by` lines below their sources (above, if `by` is negative).

    first, last: numbers of the first and the last line.
    """

    first: int
    last: int
    by: int


@dataclass
class PairReport:
    """Misaligned pairs and wrong languages in a corpus. pairs: number of pairs that were checked. In a training corpus,
    these are pairs that cleaning keeps.

    misaligned: estimated share of misaligned pairs; None if alignment was not checked. unrelated: True if it was not,
    because the pairs of the training text score hardly higher than random pairs. suspects: pairs that are
    probably not translations. slip: run of lines in which one side is shifted; None if there is none. wrong_side: for
    each side, lines that look like the language of the other side. recognised: number of pairs whose languages
    lingua identified. wrong_language: for each side, lines whose language, according to lingua, is not the recipe's.
    identified: for each side, the number of these lines by their language code.
    other_languages: code of the language of each side on which most lines are in one language that is not the recipe's.
    exchanged: True if most lines of each side are in the language of the other side.
    """

    pairs: int = 0
    misaligned: float | None = None
    unrelated: bool = False
    suspects: Finding = field(default_factory=Finding)
    slip: LineShift | None = None
    wrong_side: dict[str, Finding] = field(default_factory=dict)
    recognised: int = 0
    wrong_language: dict[str, Finding] = field(default_factory=dict)
    identified: dict[str, dict[str, int]] = field(default_factory=dict)
    other_languages: dict[str, str] = field(default_factory=dict)
    exchanged: bool = False


@dataclass
class CorpusReport:
    """Results for one corpus. role: train, valid or test.<name>. pairs: number of pairs; in training corpora, after
    cleaning. sides: reports of source and target, or of a language model's text."""

    role: str
    label: str
    pairs: int = 0
    counts: Counts = field(default_factory=Counts)
    findings: dict[str, Finding] = field(default_factory=dict)
    """Lines of each kind before cleaning; `counts` contains the numbers of pairs that cleaning dropped."""
    remaining: dict[str, Finding] = field(default_factory=dict)
    """For a training corpus, lines of each kind that cleaning keeps."""
    limits: dict[str, dict[str, int]] = field(default_factory=dict)
    """Number of pairs that each limit of data.cleaning alone would drop, by key and value of the limit."""
    judgement: PairReport | None = None
    sides: dict[str, SideReport] = field(default_factory=dict)
    weight: float = 1.0
    in_train: dict[str, Shared] = field(default_factory=dict)
    """For validation and test corpora, lines that also occur in the training text; see `HeldOutText.shared`."""
    blank: dict[str, Finding] = field(default_factory=dict)
    """For validation and test corpora, blank lines of each side."""
    error: str | None = None
    lines: int = 0
    """Number of lines read."""


@dataclass
class Report:
    """All results of `check`. errors: problems that would stop a training. warnings: other problems."""

    name: str
    corpora: list[CorpusReport]
    tokens_are_exact: bool = False
    vocabulary: dict[str, Any] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=dict)
    training: dict[str, Any] = field(default_factory=dict)
    memory: dict[str, int] = field(default_factory=dict)
    """Predicted peak memory of the steps in bytes, in all (`total`) and by part (see `training.memory`); `free`: free
    memory, if it is less."""
    machine: dict[str, Any] = field(default_factory=dict)
    disk: dict[str, Any] = field(default_factory=dict)
    measured: dict[str, Any] = field(default_factory=dict)
    estimated: dict[str, Any] = field(default_factory=dict)
    """Time of the training on GPUs that this machine does not have."""
    warnings: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Turn a UserError in the block, which would stop a training, into an error of the report."""
        try:
            yield
        except UserError as error:
            self.errors.append(str(error))

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return asdict(self)


def percentiles(lengths: Counter[int]) -> dict[int, int]:
    """Return, for each p in PERCENTILES, the smallest length that at least p % of the lines do not exceed.

    lengths: number of lines by length.
    """
    total, result = sum(lengths.values()), {}
    for percent in PERCENTILES if total else ():
        remaining = math.ceil(total * percent / 100)
        for length in sorted(lengths):
            remaining -= lengths[length]
            if remaining <= 0:
                result[percent] = length
                break
    return result


@dataclass(frozen=True)
class RecipeCost:
    """Estimated cost of a recipe.

    pairs: number of training pairs, with those that will be generated. steps_hours: time of the training steps.
    sentences: number of sentences that are translated: text for back-translation, validations and test.
    sentences_hours: time for them. A time is None if it was not measured. peak_bytes: peak memory of some steps, None
    if unknown. report: see `check_recipe`.
    """

    name: str
    pairs: int
    steps: int
    steps_hours: float | None
    sentences: int
    sentences_hours: float | None
    peak_bytes: int | None
    report: Report

    @property
    def hours(self) -> float | None:
        """Time for steps and translations."""
        return None if self.steps_hours is None or self.sentences_hours is None else (
            self.steps_hours + self.sentences_hours)

    def to_dict(self) -> dict[str, Any]:
        """Return the cost for JSON, with the report."""
        return {**vars(self), "hours": self.hours, "report": self.report.to_dict()}
