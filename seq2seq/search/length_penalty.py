"""Length penalties: divisors of a hypothesis' log-probability, so that hypotheses of different length compete."""

from __future__ import annotations

from collections.abc import Callable

LengthPenalty = Callable[[int], float]
"""Function from the length of a target in tokens, `</s>` included, to the divisor of its log-probability."""


def power_length_penalty(alpha: float) -> LengthPenalty:
    """Return the penalty length ** alpha. With 0, hypotheses are ranked by log p; with 1, by mean log p per token."""
    return lambda length: float(length**alpha)


def wu_length_penalty(alpha: float) -> LengthPenalty:
    """Return the penalty ((5 + length) / 6) ** alpha of Wu et al. 2016 (arXiv:1609.08144), section 7."""
    return lambda length: ((5 + length) / 6) ** alpha


LENGTH_PENALTIES = {"power": power_length_penalty, "wu": wu_length_penalty}
"""Functions from the exponent to the length penalty, by value of `decoding.length_penalty_form`."""
