"""Signals of bad pairs from their text alone: length and damaged characters. Numbers: see `numbers`.

Cleaning drops pairs by these signals, `check` counts them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

ENTITY = re.compile(r"&(?:[A-Za-z]{2,8}|#\d{1,6}|#x[0-9A-Fa-f]{1,5});")
# The bytes 0x80 to 0xBF as Windows-1252 shows them, and as Latin-1 does.
CONTINUATION = "".join(bytes([byte]).decode("cp1252", "ignore") + chr(byte) for byte in range(0x80, 0xC0))
# A full stop or comma that stands alone, and the hyphen of the Moses tokeniser. French sets ? ! ; : apart in raw text.
TOKENIZED = re.compile(r" [.,](?: |$)|@-@")
# UTF-8 that was read as one of the two: ä has become Ã¤, a quotation mark â€œ. Then U+FFFD, and control characters.
DAMAGE = re.compile(f"[ÂÃ][{re.escape(CONTINUATION)}]|â€|[\ufffd\x00-\x08\x0e-\x1f\x7f]")


def is_damaged(text: str) -> bool:
    """Return True for text with lost characters or from a wrong encoding: U+FFFD, control characters, Ã¤ for ä."""
    return DAMAGE.search(text) is not None


def is_tokenized(text: str) -> bool:
    """Return True for tokenised text, with detached punctuation: `a dog runs .`"""
    return TOKENIZED.search(text) is not None


def has_entities(text: str) -> bool:
    """Return True for text with HTML entities such as &quot;."""
    return ENTITY.search(text) is not None


@dataclass(frozen=True)
class LengthModel:
    """Model of translation lengths in a corpus (Gale and Church 1993, section 2.2, https://aclanthology.org/J93-1004).

    A text of `length` characters has a translation of mean × length characters, with a variance of variance × length.
    """

    mean: float
    variance: float

    @staticmethod
    def learn(lengths: Iterable[tuple[int, int]]) -> LengthModel:
        """lengths: of source and target, in characters; pairs with an empty side say nothing."""
        known = [(source, target) for source, target in lengths if source and target]
        mean = sum(target for _, target in known) / max(sum(source for source, _ in known), 1) or 1.0
        variance = sum((target - mean * source) ** 2 / source for source, target in known) / max(len(known), 1)
        # A corpus of copies has none, and then the smallest difference would be an endless deviation.
        return LengthModel(mean, max(variance, 0.01))

    def deviation(self, source: int, target: int) -> float:
        """Standard deviations between the target's length and the one expected; their delta, without its sign.

        source: at least 1.
        """
        return abs(target - self.mean * source) / math.sqrt(self.variance * source)
