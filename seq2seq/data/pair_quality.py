"""Signs of bad training data in the text of a pair: lengths, tokenised text, HTML entities, quotes of CSV.

Cleaning can drop pairs with unusual lengths. `seq2seq check` counts tokenised lines and lines with HTML entities or
with the quotes of CSV. See also `damaged_text` and `numbers`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

CSV_FIELD = re.compile(r'"(?:[^"]|"")*"')
ENTITY = re.compile(r"&(?:[A-Za-z]{2,8}|#\d{1,6}|#x[0-9A-Fa-f]{1,5});")
# A full stop or comma that stands alone, or @-@, the hyphen of the Moses tokeniser. ? ! ; : are not included: they have
# a space before them in ordinary French text.
TOKENIZED = re.compile(r" [.,](?: |$)|@-@")


def is_tokenized(text: str) -> bool:
    """Return True for tokenised text, with spaces before punctuation: `a dog runs .`"""
    return TOKENIZED.search(text) is not None


def has_entities(text: str) -> bool:
    """Return True for text with HTML entities such as `&quot;`."""
    return ENTITY.search(text) is not None


def has_csv_quotes(text: str) -> bool:
    """Return True for a field as programs write it into a .csv, or into a .tsv with the quotes of a .csv: in double
    quotes, and with its own ones doubled (RFC 4180). Ordinary text has no doubled ones."""
    return '""' in text[1:-1] and CSV_FIELD.fullmatch(text) is not None


@dataclass(frozen=True)
class LengthModel:
    """Model of the lengths of translations (Gale and Church 1993, section 2.2, https://aclanthology.org/J93-1004).

    The model assumes that the translation of a text of n characters has a normally distributed length in characters,
    with the mean `mean` × n and the variance `variance` × n.
    """

    mean: float
    variance: float

    @staticmethod
    def learn(lengths: Iterable[tuple[int, int]]) -> LengthModel:
        """Estimate mean and variance from the lengths of source and target. Pairs with an empty side are ignored."""
        known = [(source, target) for source, target in lengths if source and target]
        mean = sum(target for _, target in known) / max(sum(source for source, _ in known), 1) or 1.0
        variance = sum((target - mean * source) ** 2 / source for source, target in known) / max(len(known), 1)
        # If all pairs have the same length ratio, the variance is 0, and `deviation` would divide by 0.
        return LengthModel(mean, max(variance, 0.01))

    def deviation(self, source: int, target: int) -> float:
        """Return the distance of the target's length from its mean `mean` × source, in standard deviations.

        The paper calls the signed distance delta. source, target: lengths in characters, source at least 1.
        """
        return abs(target - self.mean * source) / math.sqrt(self.variance * source)
