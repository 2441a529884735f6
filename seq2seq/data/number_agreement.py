"""Agreement of the numbers of a sentence pair: the share of its numbers in digits that occur on both sides."""

from __future__ import annotations

import re
from collections import Counter

# Digits in groups of three are one number if a separator joins the groups: 3,600 or 3.600. A no-break space is a
# separator, too, but an ordinary space is not. In India, only the last group has three digits: 1,00,000. A full-width
# comma is a separator between full-width digits only; elsewhere it is the comma of a Chinese sentence.
NUMBER = re.compile(r"\d{1,3}(?:[.,'’\u00a0\u202f\u066c]\d{3})+(?!\d)|"
                    r"(?<![\d,\u066c])\d{1,2}(?:[,\u066c]\d{2}){1,6}[,\u066c]\d{3}(?![,\u066c]?\d)|[０-９]{1,3}(?:[，．][０-９]{3})+(?![０-９])|\d+")
DECIMAL_PLACES = re.compile(r"(?<=\d[.,．])\d{1,2}(?!\d)")
SPACED_GROUPS = re.compile(r"(?<!\d)\d{1,3}(?:[ \u2009]\d{3}){1,5}(?!\d)")


def numbers(text: str) -> Counter[str]:
    """Count the numbers of a text that are written in digits.

    Keys: digits 0-9, without leading zeros and separators; '' for 0.
    """
    return Counter(map(_decimal_digits, NUMBER.findall(text)))


def number_agreement(source: str, target: str) -> float:
    """Return the share of the numbers in digits that have a counterpart on the other side; 1 if there are no numbers.

    The share is 1 - unmatched / total. `total` is the larger of the two sides' counts of numbers. `unmatched` is the
    larger of their counts of numbers without a counterpart. A counterpart has the same digits; number words and
    numerals such as XIV and 三 are none.
    """
    source_numbers, target_numbers = numbers(source), numbers(target)
    source_only, target_only = source_numbers - target_numbers, target_numbers - source_numbers
    if not (source_only or target_only):
        return 1.0
    of_source, of_target = _other_readings(source), _other_readings(target)
    unmatched = max(_count_unmatched(source_only, of_source, target_numbers, of_target),
                    _count_unmatched(target_only, of_target, source_numbers, of_source))
    return 1 - unmatched / max(source_numbers.total(), target_numbers.total())


def _decimal_digits(number: str) -> str:
    return "".join(str(int(character)) for character in number if character.isdecimal()).lstrip("0")


def _other_readings(text: str) -> dict[str, set[str]]:
    """Return other numbers that a number of the text may mean: 5 for the 50 in 1.50, 100000 for the 100 in 100 000."""
    readings: dict[str, set[str]] = {}
    for decimals in DECIMAL_PLACES.findall(text):
        readings.setdefault(_decimal_digits(decimals), set()).add(_decimal_digits(decimals.rstrip("0０")))
    for groups in SPACED_GROUPS.findall(text):
        for number in NUMBER.findall(groups):
            readings.setdefault(_decimal_digits(number), set()).add(_decimal_digits(groups))
    return readings


def _count_unmatched(candidates: Counter[str], own: dict[str, set[str]], others: Counter[str],
                     of_other: dict[str, set[str]]) -> int:
    """Count the numbers in `candidates` that have no counterpart in the other text.

    Zeros need no counterpart, because 99.00 is 99.

    own: `_other_readings` of the candidates' text. others, of_other: numbers and `_other_readings` of the other text.
    """
    meant = set().union(*of_other.values())
    written = meant.union(others)
    return sum(count for number, count in candidates.items()
               if number and number not in meant and written.isdisjoint(own.get(number, ())))
