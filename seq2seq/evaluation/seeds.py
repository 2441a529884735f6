"""Comparison of recipes, each trained with several seeds: the significance of their differences over the chance of
training and over the choice of sentences.

A test over sentences alone says that two trained models differ, not that two recipes do (Clark, Dyer, Lavie and Smith
2011, "Better Hypothesis Testing for Statistical Machine Translation: Controlling for Optimizer Instability"). Here, the
difference of the means over seeds has two variances: that of the scores of the seeds, with few degrees of freedom, and
that of the test sentences, from paired bootstrap samples. The sum of both is Welch's test (1947) with a further
variance that is known well. A part of the chance of training is also in the samples of sentences and counts twice,
which makes the test careful. It is hasty where the seeds of one recipe differ much more than those of the other: with
three times the standard deviation, three seeds of equal recipes differ significantly in 6 to 8 of 100 cases, and two
seeds in some 10 (2,000 simulated cases).
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from seq2seq.evaluation.scores import require_parallel, sacrebleu_metric
from seq2seq.evaluation.significance import MIN_DIFFERING_LINES, SIGNIFICANCE_LEVEL

SAMPLES = 1_000
"""Default number of resampled test sets, as sacreBLEU's."""
T_DRAWS = 1_000_000
"""Number of draws from Student's t distribution, from which its tail and its quantile are read to about 0.0005."""


@dataclass(frozen=True)
class GroupScore:
    """Scores of models that differ only in the seed, and the difference of their mean from that of the first group.

    Attributes:
        values: score of each model.
        deviation: standard deviation of `values` with n - 1 in the denominator; None for one value.
        difference: mean minus the mean of the first group; None for the first group.
        interval: half the width of the 95 % confidence interval of the difference.
        p_value: probability of a difference of at least this size between recipes that are equally good; None for the
            first group, or if fewer than MIN_DIFFERING_LINES lines differ.
        otherwise: indices of seeds whose own test, over sentences alone, says something else than `p_value`.
    """

    values: list[float]
    deviation: float | None
    difference: float | None = None
    interval: float | None = None
    p_value: float | None = None
    otherwise: list[int] = field(default_factory=list)

    @property
    def mean(self) -> float:
        return sum(self.values) / len(self.values)

    @property
    def significant(self) -> bool:
        return self.p_value is not None and self.p_value < SIGNIFICANCE_LEVEL


def compare_groups(groups: Mapping[str, Sequence[Sequence[str]]], references: Sequence[Sequence[str]], language: str,
                   metric: str, samples: int = 0) -> dict[str, GroupScore]:
    """Compare the first group of systems with each of the others by a metric.

    If a group has one system, nothing is known about the chance of its training, and the test is over sentences alone.

    Args:
        groups: by name, the translations of each system.
        references: one or more streams, each with a line for every translation.
        metric: bleu, chrf or ter.
        samples: number of resampled test sets; 0: SAMPLES. The seed is that of sacreBLEU, SACREBLEU_SEED.
    """
    for name, systems in groups.items():
        for translations in systems:
            require_parallel(translations, references, [name, *("the reference" for _ in references)])
    drawn = {name: [_resampled(translations, references, language, metric, samples or SAMPLES)
                    for translations in systems] for name, systems in groups.items()}
    first = next(iter(groups))
    found = {}
    for name, systems in groups.items():
        values = [value for value, _ in drawn[name]]
        deviation = float(np.std(values, ddof=1)) if len(values) > 1 else None
        if name == first:
            found[name] = GroupScore(values, deviation)
            continue
        p_value: float | None
        difference, interval, p_value = _test([value for value, _ in drawn[first]], values,
                                              _mean_of_samples(drawn[name]) - _mean_of_samples(drawn[first]))
        if _differing_lines([*groups[first], *systems]) < MIN_DIFFERING_LINES:
            p_value = None
        overall = _verdict(difference, p_value)
        alone = [_verdict(other[0] - one[0], _of_one_seed(other[0] - one[0], other[1] - one[1]))
                 if _differing_lines(pair) >= MIN_DIFFERING_LINES else 0
                 for one, other, *pair in zip(drawn[first], drawn[name], groups[first], systems, strict=False)]
        otherwise = [index for index, verdict in enumerate(alone) if len(systems) > 1 and verdict != overall]
        found[name] = GroupScore(values, deviation, difference, interval, p_value, otherwise)
    return found


def _resampled(translations: Sequence[str], references: Sequence[Sequence[str]], language: str, metric: str,
               samples: int) -> tuple[float, np.ndarray]:
    """Return the score of a system, and its scores on resampled test sets, (samples,), the same for each system."""
    scorer: Any = sacrebleu_metric(metric, language)
    statistics = scorer._extract_corpus_statistics(translations, references)
    seed = os.environ.get("SACREBLEU_SEED", "12345")
    draw = np.random.default_rng(int(seed) if seed.isdecimal() else 12345)
    # float64 holds the counts of a test set exactly, which float32 does not from 2^24 on.
    of_lines = np.array(statistics, dtype=np.float64)
    chosen = (draw.choice(len(of_lines), size=len(of_lines), replace=True) for _ in range(samples))
    return (float(scorer._aggregate_and_compute(statistics).score),
            np.array([scorer._compute_score_from_stats(of_lines[lines].sum(0).tolist()).score for lines in chosen]))


def _mean_of_samples(systems: Sequence[tuple[float, np.ndarray]]) -> np.ndarray:
    return np.mean([scores for _, scores in systems], axis=0)


def _test(first: Sequence[float], other: Sequence[float], sampled: np.ndarray) -> tuple[float, float, float]:
    """Return the difference of the means, half its 95 % interval, and its p-value.

    first, other: scores of the seeds. sampled: difference of the means on each resampled test set.
    """
    difference = float(np.mean(other) - np.mean(first))
    of_seeds = [(float(np.var(values, ddof=1)) / len(values), len(values) - 1) for values in (first, other)
                if min(len(first), len(other)) > 1]
    variance = float(np.var(sampled, ddof=1)) + sum(part for part, _ in of_seeds)
    if variance == 0:
        return difference, 0.0, 1.0                                             # equal translations
    uncertain = sum(part ** 2 / freedom for part, freedom in of_seeds)
    freedom = min(variance ** 2 / uncertain, 1e6) if uncertain else 1e6         # Welch and Satterthwaite
    draws = np.abs(np.random.default_rng(1).standard_t(freedom, T_DRAWS))
    error = math.sqrt(variance)
    p_value = (1 + int(np.count_nonzero(draws >= abs(difference) / error))) / (1 + T_DRAWS)
    return difference, float(np.quantile(draws, 1 - SIGNIFICANCE_LEVEL)) * error, p_value


def _of_one_seed(difference: float, sampled: np.ndarray) -> float:
    """Return the p-value of `compare` for two models: that of sacreBLEU's paired bootstrap test."""
    sizes = np.abs(sampled)
    return (1 + int(np.count_nonzero(sizes - sizes.mean() > abs(difference)))) / (1 + len(sizes))


def _verdict(difference: float, p_value: float | None) -> int:
    """Return 1 or -1 for a significant difference, by its sign, and 0 for another one."""
    if difference == 0 or p_value is None or p_value >= SIGNIFICANCE_LEVEL:
        return 0
    return int(math.copysign(1, difference))


def _differing_lines(systems: Sequence[Sequence[str]]) -> int:
    return sum(len(set(lines)) > 1 for lines in zip(*systems, strict=True))
