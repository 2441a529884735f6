"""Numbers in digits, and their agreement between the sides of a pair.

Numbers are compared by value, without the grammar of any language: digits of all scripts are the same, and 12.000,
12,000 and 12 000 are one number. Where languages write one quantity with other digits (dates, hours, millions), numbers
agree if one way of reading them makes them equal. Number words, units and signs are not read.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

_DIGIT_OF_OTHER_SCRIPT = re.compile(r"(?![0-9])\d")
# Digits with marks or spaces between them. A space stands only before three digits, and not after four: 2012 100.
_NUMBER = re.compile(r"\d+(?:[.,'’٫٬．，]\d+|(?<!\d{4})[ \u00a0\u2009\u202f]\d{3}(?!\d))*")
# Beginnings of words for a power of ten, as in 3 million (not in 3 miles), 40 mil, 15 billion and 300万. The list is
# short because most texts write such a number in the same way on both sides: of 230,000 pairs of Multi30k, Tatoeba and
# the web, 7 depend on it, and none on Mio., Mrd. or тыс.
_SCALE = re.compile(r"[\s-]?(?:mil(?!es)|bil|thousand|tausend|[千万萬亿億])", re.IGNORECASE)


class Number(NamedTuple):
    """Number of a text, written in digits.

    text: as in the text, but with the digits 0 to 9. value: canonical form, such as 1.5 for 01,50. is_scaled: True if a
    word for a power of ten may follow.
    """

    text: str
    value: str
    is_scaled: bool = False

    @property
    def significant_digits(self) -> str:
        """Digits without leading and trailing zeros."""
        return self.value.replace(".", "").strip("0")

    @property
    def parts(self) -> list[Number]:
        """The digits between its marks as numbers, as in a date, an hour such as 15.30, or two numbers with a space;
        the number itself if its marks are those of thousands."""
        digits = re.findall(r"\d+", self.text)
        if "".join(digits).lstrip("0") == self.value and " " not in self.text:
            return [self]
        return [Number(self.text, _value(part)) for part in digits]


def numbers(text: str) -> list[Number]:
    """Return the numbers of a text that are written in digits, in any script."""
    text = _DIGIT_OF_OTHER_SCRIPT.sub(lambda match: str(unicodedata.decimal(match[0])), text)
    return [Number(match[0], _value(match[0]), _SCALE.match(text, match.end()) is not None)
            for match in _NUMBER.finditer(text)]


def _value(text: str) -> str:
    """Return a number in canonical form. If three digits follow its last mark, it has groups of thousands; else this
    mark is the decimal mark."""
    *groups, last = re.findall(r"\d+", text)
    fraction = ""
    if groups and (len(last) != 3 or not groups[0].strip("0")):
        fraction, last = last.rstrip("0"), ""
    whole = "".join([*groups, last]).lstrip("0") or "0"
    return f"{whole}.{fraction}" if fraction else whole


def unmatched(source: Sequence[Number], target: Sequence[Number]) -> tuple[list[Number], list[Number]]:
    """Return the numbers of each side, or parts of them, that have no counterpart on the other side.

    Each number is the counterpart of at most one, in any order. Numbers without an equal one are compared by their
    significant digits if one of them is scaled (3.5 million, 3 500 000, 350万), then in parts (31.12.2020, 12/31/2020),
    and at last as hours (15:30, 3.30 pm).
    """
    left, right = _without_equals(source, target, lambda number: number.value)
    if any(number.is_scaled for number in (*left, *right)):
        left, right = _without_equals(left, right, lambda number: number.significant_digits)
    if left and right:
        left, right = ([part for number in side for part in number.parts] for side in (left, right))
        left, right = _without_equals(left, right, lambda number: number.value)
        left, right = _without_equals(left, right, _hour)
    return left, right


def _without_equals(source: Iterable[Number], target: Iterable[Number], key: Callable[[Number], str],
                    ) -> tuple[list[Number], list[Number]]:
    """Return the numbers of each side without those that have a counterpart with the same key."""
    counts = Counter(map(key, target))
    left, right = [], []
    for number in source:
        if counts[key(number)]:
            counts[key(number)] -= 1
        else:
            left.append(number)
    for number in target:
        if counts[key(number)]:
            counts[key(number)] -= 1
            right.append(number)
    return left, right


def _hour(number: Number) -> str:
    """Return an hour as on a clock of 12 hours; other numbers as they are."""
    is_hour = len(number.value) < 3 and int(number.value) <= 24
    return str(int(number.value) % 12) if is_hour else number.value


def number_agreement(source: str, target: str) -> float:
    """Return the share of the numbers in digits that have a counterpart on the other side; 1 if there are no numbers.

    The share is 1 - unmatched / total. `total` is the larger of the two sides' counts of numbers. `unmatched` is the
    larger of their counts of numbers without a counterpart; zeros are not counted, because 8 and 8:00 are the same
    hour. Number words and numerals such as XIV and 三 are no counterparts.
    """
    of_source, of_target = numbers(source), numbers(target)
    missing = max(sum(number.value != "0" for number in side) for side in unmatched(of_source, of_target))
    return 1 - missing / max(len(of_source), len(of_target), missing) if missing else 1.0
