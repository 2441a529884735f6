"""Significance tests for the difference between two systems on a test set.

Both tests are sacreBLEU's: paired bootstrap resampling (Koehn 2004, "Statistical Significance Tests for Machine
Translation Evaluation") and paired approximate randomisation (Riezler and Maxwell 2005, "On Some Pitfalls in Automatic
Evaluation and Significance Testing for MT").
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sacrebleu.significance import PairedTest

from seq2seq.evaluation.scores import METRICS, TITLES, require_parallel, sacrebleu_metric

TESTS = {"bootstrap": "bs", "randomization": "ar"}
SIGNIFICANT = 0.05
LEAST_LINES = 6
"""Lines in which two systems must differ for a test. Of the 2^n ways to exchange the translations of n lines, one and
its opposite give a difference as large as it can be, so that a two-sided test finds no p below 2 / 2^n: 0.0625 of 5
lines, 0.031 of 6. The bootstrap gives less, 0.001 of 3 lines that are all better, because it draws from these lines
alone."""


@dataclass(frozen=True)
class Estimate:
    """A system's score on the whole test set; mean, and half the width of the 95 % interval, of the scores of test sets
    drawn from it. precision: of the model that has translated; None of a file of translations."""

    value: float
    mean: float
    interval: float
    precision: str | None = None


@dataclass(frozen=True)
class Comparison:
    """One metric of two systems. p_value: how often a difference as large comes about where there is none; None where
    the systems differ in too few lines for a test. lines_that_differ: in the translations of both."""

    system: Estimate
    baseline: Estimate
    p_value: float | None
    signature: str
    lines_that_differ: int

    @property
    def difference(self) -> float:
        return self.system.value - self.baseline.value


def compare(system: Sequence[str], baseline: Sequence[str], references: Sequence[Sequence[str]], language: str,
            metrics: Sequence[str] = METRICS, test: str = "bootstrap", samples: int = 0,
            names: Sequence[str] | None = None,
            precisions: Sequence[str | None] = (None, None)) -> dict[str, Comparison]:
    """Compare the translations of two systems.

    Args:
        references: one stream or more, each with a line for every translation.
        metrics: some of bleu, chrf, ter.
        test: "bootstrap" or "randomization".
        samples: test sets that are drawn, or trials; 0 is sacreBLEU's default, 1,000 or 10,000. Seeded, as there, by
            the environment variable SACREBLEU_SEED.
        names: what errors call the two systems and each stream of references.
        precisions: of the models that have made the translations of the two systems, where models have.
    Raises:
        CorpusError: lines do not match.
        UserError: the language needs an optional package.
    """
    names = names or ["the system", "the baseline", *("the reference" for _ in references)]
    require_parallel(system, [baseline, *references], names)
    compared = {}
    differ = sum(one != other for one, other in zip(system, baseline, strict=True))
    for metric in metrics:
        tested = PairedTest([(names[1], baseline), (names[0], system)],
                            {metric: sacrebleu_metric(metric, language)}, references, TESTS[test], samples,
                            n_ar_confidence=0 if test == "randomization" else -1)
        signatures, scores = tested()
        (title, signature), = signatures.items()
        of_baseline, of_system = scores[title]
        compared[metric] = Comparison(_estimate(of_system, precisions[0]), _estimate(of_baseline, precisions[1]),
                                      float(of_system.p_value) if differ >= LEAST_LINES else None, str(signature),
                                      differ)
    return compared


def _estimate(found: Any, precision: str | None) -> Estimate:
    return Estimate(float(found.score), float(found.mean), float(found.ci), precision)


def format_comparison(compared: Mapping[str, Comparison], system: str, baseline: str) -> str:
    """A table: both systems, the difference and its p-value for each metric."""
    width = max(len(system), len(baseline), len("difference"))
    lines = []
    for metric, found in compared.items():
        if found.p_value is None:
            count = found.lines_that_differ
            verdict = (f"no test: the translations differ in {count:,} line{'s' * (count != 1)}, a test needs "
                       f"{LEAST_LINES} to reach p < {SIGNIFICANT}")
        else:
            # Where both scores are the same, sacreBLEU's bootstrap can give the smallest p there is.
            significant = found.difference and found.p_value < SIGNIFICANT
            verdict = f"p = {found.p_value:.4f}, {'' if significant else 'not '}significant at {SIGNIFICANT}"
        lines += [f"{TITLES[metric]}  {found.signature}"]
        lines += [f"  {name:<{width}}  {score.value:6.2f}  (95 %: {score.mean:.2f} ± {score.interval:.2f})"
                  f"{f'  precision:{score.precision}' if score.precision else ''}"
                  for name, score in ((system, found.system), (baseline, found.baseline))]
        lines += [f"  {'difference':<{width}}  {found.difference:+6.2f}  ({verdict})"]
    return "\n".join(lines)


def comparison_to_dict(compared: Mapping[str, Comparison]) -> dict[str, dict[str, Any]]:
    """The comparison as JSON values, with nothing rounded."""
    return {metric: {**asdict(found), "difference": found.difference} for metric, found in compared.items()}
