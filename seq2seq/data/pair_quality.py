"""Signs of bad training data in the text of a pair: lengths, damaged characters, tokenised text, HTML entities.

Cleaning can drop pairs with unusual lengths or damaged characters. `seq2seq check` counts damaged lines, tokenised
lines and lines with HTML entities. `number_agreement` compares the numbers of a pair.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

ENTITY = re.compile(r"&(?:[A-Za-z]{2,8}|#\d{1,6}|#x[0-9A-Fa-f]{1,5});")


def _continuation(*encodings: str) -> str:
    """Return the characters of the bytes 0x80 to 0xBF in some encodings. In UTF-8, these bytes continue a character."""
    return "".join(bytes([byte]).decode(encoding, "ignore") for encoding in encodings for byte in range(0x80, 0xC0))


# A full stop or comma that stands alone, or @-@, the hyphen of the Moses tokeniser. ? ! ; : are not included: they have
# a space before them in ordinary French text.
TOKENIZED = re.compile(r" [.,](?: |$)|@-@")
WESTERN, CYRILLIC = _continuation("cp1252", "latin-1"), _continuation("cp1251")
# Characters of WESTERN that follow a capital letter in undamaged text, too, as in AMANHÃ…, Úžasný and "À la".
PUNCTUATION, SPACES, LETTERS = "…‚„‹›«»‘“”–—•·°™®©¹²³", "\xa0\xad’", "šžœŠŽŒŸƒ"
SIGN = f"(?![{PUNCTUATION}{SPACES}{LETTERS}])[{WESTERN}]"
# UTF-8 that was decoded as Windows-1252 or Latin-1 (Ã¤ for ä, Å¡ for š, â€œ for a quotation mark) or as Windows-1251
# (РЎР»РѕРІРѕ for Слово). In UTF-8, letters of Latin, Greek, Cyrillic, Arabic and Hebrew have two bytes, of which the
# first is a capital letter or × in Windows-1252. Most others have three, of which the first is one of the letters à to
# ï. The lookahead makes the search fast.
WRONG_ENCODING = re.compile(f"[Â-Þà-ïРС](?=[{WESTERN}{CYRILLIC}])(?:" + "|".join((
    f"(?<=Â)[{WESTERN}]", f"(?<=Ã)[{LETTERS}\xa0\xad]", f"(?<=Ã)(?<![A-ZÀ-Þ]Ã)[{WESTERN}]",
    f"(?<=[Ã-ÖØ-Þ]){SIGN}", f"(?<=[Ã-ÖØ-Þ])[{PUNCTUATION}](?=[a-zß-ÿ])", f"(?<=[a-zß-ÿ][Ã-ÖØ-Þ])[{WESTERN}]",
    f"(?<=×)[{WESTERN}]×[{WESTERN}]", "(?<=â)€", f"(?<=[à-ï])(?:{SIGN}[{WESTERN}]|[{WESTERN}]{SIGN})",
    f"(?<=[РС])[{CYRILLIC}](?:[РС][{CYRILLIC}]){{2}}")) + ")")
LOST = re.compile("[\ufffd\x00-\x08\x0e-\x1f\x7f]")


def is_damaged(text: str) -> bool:
    """Return True for text with U+FFFD, control characters, or signs of a wrong encoding such as Ã¤ for ä."""
    return LOST.search(text) is not None or not text.isascii() and WRONG_ENCODING.search(text) is not None


def is_tokenized(text: str) -> bool:
    """Return True for tokenised text, with spaces before punctuation: `a dog runs .`"""
    return TOKENIZED.search(text) is not None


def has_entities(text: str) -> bool:
    """Return True for text with HTML entities such as `&quot;`."""
    return ENTITY.search(text) is not None


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
