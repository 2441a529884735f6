"""Length penalties: numbers by which search divides log-probabilities, to compare hypotheses of different length."""

from __future__ import annotations

from collections.abc import Callable

LengthPenalty = Callable[[int], float]
"""Function that maps the length of a target in tokens, `</s>` included, to the divisor of its log-probability."""


def power_length_penalty(alpha: float) -> LengthPenalty:
    """Return the penalty length ** alpha.

    If alpha is 0, hypotheses are ranked by log p. If alpha is 1, they are ranked by their mean log p per token.
    """
    return lambda length: float(length**alpha)


def wu_length_penalty(alpha: float) -> LengthPenalty:
    """Return the penalty ((5 + length) / 6) ** alpha of Wu et al. 2016 (arXiv:1609.08144), section 7."""
    return lambda length: ((5 + length) / 6) ** alpha


LENGTH_PENALTIES = {"power": power_length_penalty, "wu": wu_length_penalty}
"""For each value of `decoding.length_penalty_form`, the function that makes the length penalty from alpha."""
