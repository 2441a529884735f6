"""Significance tests for the difference between two systems on a test set.

Both tests are sacreBLEU's: paired bootstrap resampling (Koehn 2004, "Statistical Significance Tests for Machine
Translation Evaluation") and paired approximate randomisation (Riezler and Maxwell 2005, "On Some Pitfalls in Automatic
Evaluation and Significance Testing for MT").
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sacrebleu.significance import PairedTest

from seq2seq.console import html_table
from seq2seq.evaluation.scores import METRICS, TITLES, require_parallel, sacrebleu_metric
from seq2seq.languages import has_spaceless_words

TESTS = {"bootstrap": "bs", "randomization": "ar"}
"""sacreBLEU's name of each test."""
SIGNIFICANCE_LEVEL = 0.05
MIN_DIFFERING_LINES = 6
"""Minimum number of lines in which two systems must differ for a test. If they differ in n lines, there are 2^n ways to
swap their translations, and 2 of these ways give the largest difference. The p-value of a two-sided randomisation test
is therefore at least 2 / 2^n: 0.0625 for 5 lines, 0.031 for 6 lines. On few lines, the p-values of the bootstrap test
are too small, for example 0.001 if all 3 lines are better."""

INTERVAL_FACTOR = 165.0
"""Half of the 95 % interval of BLEU times the square root of the number of reference words. sacreBLEU's bootstrap gives
± 1.5 for 1,000 captions with 11,900 words (34 BLEU), and ± 2.3, 4.6 and 9.3 for 400, 100 and 25 of them (means of 20
samples); ± 1.3 for 2,000 sentences of Tatoeba with 12,800 words (29 BLEU; recipes/little_text)."""


def expected_interval(references: Sequence[str], language: str) -> float:
    """Return half of the 95 % confidence interval of BLEU on a test set, estimated from its number of words (characters
    in languages without spaces). language: language of the references."""
    words = sum(len(line.replace(" ", "")) if has_spaceless_words(language) else len(line.split())
                for line in references)
    return min(INTERVAL_FACTOR / math.sqrt(max(words, 1)), 50.0)


@dataclass(frozen=True)
class Estimate:
    """Score of a system.

    value: score on the whole test set. mean: mean score of the resampled test sets.
    interval: half the width of the 95 % confidence interval of the score.
    precision: number format of the model; None for translations from a file.
    """

    value: float
    mean: float
    interval: float
    precision: str | None = None


@dataclass(frozen=True)
class Comparison:
    """Comparison of two systems by one metric.

    p_value: probability of a difference of at least this size between equally good systems; None if fewer than
        MIN_DIFFERING_LINES lines differ. It is 1 if the scores are equal, for which sacreBLEU's bootstrap can yield the
        smallest possible p-value.
    lines_that_differ: number of lines that the systems translate differently.
    """

    system: Estimate
    baseline: Estimate
    p_value: float | None
    signature: str
    lines_that_differ: int

    @property
    def difference(self) -> float:
        """Score of the system minus score of the baseline."""
        return self.system.value - self.baseline.value

    @property
    def significant(self) -> bool:
        """True if the scores differ significantly."""
        return self.p_value is not None and self.p_value < SIGNIFICANCE_LEVEL


class Comparisons(dict[str, Comparison]):
    """Comparisons of two systems by metric. A notebook shows them as a table."""

    def _repr_html_(self) -> str:
        def estimated(estimate: Estimate) -> str:
            return f"{estimate.value:.2f} ± {estimate.interval:.2f}"

        return html_table(([TITLES[metric], estimated(one.system), estimated(one.baseline), signed(one.difference),
                            verdict(one), one.signature] for metric, one in self.items()),
                          ["metric", "system (95 %)", "baseline (95 %)", "difference", "test", "signature"])


def compare(system: Sequence[str], baseline: Sequence[str], references: Sequence[Sequence[str]], language: str,
            metrics: Sequence[str] = METRICS, test: str = "bootstrap", samples: int = 0,
            names: Sequence[str] | None = None,
            precisions: Sequence[str | None] = (None, None)) -> Comparisons:
    """Compare the translations of two systems by each metric.

    Args:
        references: one or more streams, each with a line for every translation.
        metrics: some of bleu, chrf, ter.
        test: "bootstrap" or "randomization".
        samples: number of resampled test sets, or of randomisation trials. 0: sacreBLEU's default, 1,000 test sets or
            10,000 trials. The seed is the environment variable SACREBLEU_SEED, as in sacreBLEU.
        names: names of the two systems and of each reference stream in error messages.
        precisions: number formats of the models that produced the translations; None for translations from a file.
    """
    names = names or ["the system", "the baseline", *("the reference" for _ in references)]
    require_parallel(system, [baseline, *references], names)
    comparisons = Comparisons()
    differing = sum(one != other for one, other in zip(system, baseline, strict=True))
    for metric in metrics:
        tested = PairedTest([(names[1], baseline), (names[0], system)],
                            {metric: sacrebleu_metric(metric, language)}, references, TESTS[test], samples,
                            n_ar_confidence=0 if test == "randomization" else -1)
        signatures, scores = tested()
        (title, signature), = signatures.items()
        baseline_result, system_result = scores[title]
        p_value = float(system_result.p_value) if system_result.score != baseline_result.score else 1.0
        comparisons[metric] = Comparison(
            _estimate(system_result, precisions[0]), _estimate(baseline_result, precisions[1]),
            p_value if differing >= MIN_DIFFERING_LINES else None, str(signature), differing)
    return comparisons


def _estimate(result: Any, precision: str | None) -> Estimate:
    return Estimate(float(result.score), float(result.mean), float(result.ci), precision)


def signed(difference: float) -> str:
    """Return a difference with its sign and two decimals, +0.00 if it is rounded to 0."""
    return f"{difference:+z.2f}"


def format_comparison(comparisons: Mapping[str, Comparison], system: str, baseline: str) -> str:
    """Return a table with the scores of baseline and system, their difference and its p-value for each metric.

    system, baseline: names of the two systems.
    """
    width = max(len(system), len(baseline), len("difference"))
    lines = []
    for metric, comparison in comparisons.items():
        lines += [f"{TITLES[metric]}  {comparison.signature}"]
        lines += [f"  {name:<{width}}  {score.value:6.2f}  (95 %: {score.mean:.2f} ± {score.interval:.2f})"
                  f"{f'  precision:{score.precision}' if score.precision else ''}"
                  for name, score in ((baseline, comparison.baseline), (system, comparison.system))]
        lines += [f"  {'difference':<{width}}  {signed(comparison.difference):>6}  ({verdict(comparison)})"]
    return "\n".join(lines)


def verdict(comparison: Comparison) -> str:
    if comparison.p_value is None:
        count = comparison.lines_that_differ
        return (f"not tested: the translations differ in {count:,} line{'s' * (count != 1)}; a test needs "
                f"{MIN_DIFFERING_LINES} to reach p < {SIGNIFICANCE_LEVEL}")
    return (f"p = {comparison.p_value:.4f}, {'' if comparison.significant else 'not '}significant at "
            f"{SIGNIFICANCE_LEVEL}")


def comparison_to_dict(comparisons: Mapping[str, Comparison]) -> dict[str, dict[str, Any]]:
    """Return the comparisons as JSON values, not rounded."""
    return {metric: {**asdict(comparison), "difference": comparison.difference}
            for metric, comparison in comparisons.items()}
