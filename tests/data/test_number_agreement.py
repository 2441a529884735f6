"""Agreement of the numbers in digits between the sides of a pair."""

import time
from collections import Counter

import pytest

from seq2seq.data.number_agreement import number_agreement, numbers


@pytest.mark.parametrize("text, expected", [
    ("no number", []),
    ("3,600 years and 3.600 years", ["3600", "3600"]),
    ("22.03.2016", ["22", "3", "2016"]),
    ("in 2012 100 people", ["2012", "100"]),
    ("1.234.567,89", ["1234567", "89"]),
    ("12345,678", ["12345", "678"]),                                            # no group has five digits
    ("٣٦٠٠", ["3600"]), ("0", [""]), ("x²", []), ("7" * 5000, ["7" * 5000]),
])
def test_numbers_are_read_as_they_are_meant(text, expected):
    assert numbers(text) == Counter(expected)


@pytest.mark.parametrize("one, other, share", [
    ("a", "b", 1), ("twenty dogs", "viele Hunde", 1),
    ("2 of 3 on 07.05.", "3 von 2 am 7.5.", 1), ("7:00", "7 Uhr", 1), ("99,00", "99", 1), ("1,50", "1.5", 1),
    ("100 000", "100,000", 1), ("３０人", "30 people", 1), ("３，６００年", "3,600 years", 1),
    ("３.５メートル", "3.5 metres", 1),
    ("It costs 1,500 rials", "قیمت آن ۱٬۵۰۰ ریال است", 1), ("Population: 1,000,000", "السكان: ١٬٠٠٠٬٠٠٠", 1),
    ("पुरस्कार 1,00,000 रुपये", "The prize is 100,000 rupees", 1), ("12,34,56,789", "123,456,789", 1),
    ("20x lamp 60 cm", "9x Lampe 60 cm", 1 / 2), ("1 1 1 2", "1 2", 2 / 4), ("3 dogs, 20 cats", "3, 21", 1 / 2),
    ("100 000", "200,000", 1 / 2), ("1.50", "1.4", 1 / 2), ("30", "三十", 0), ("7 dogs", "seven dogs", 0),
])
def test_agreement_is_the_share_of_numbers_on_both_sides(one, other, share):
    assert number_agreement(one, other) == number_agreement(other, one) == share


@pytest.mark.parametrize("unit", ["1 ", "12,", "9", "1.5", "'123", "1 000 ", "２"])
def test_the_time_for_a_long_line_is_linear(unit):
    """A line of 12 times 9,000 characters took minutes with patterns that could match from every digit."""
    began = time.process_time()
    number_agreement((unit * 30_000)[:30_000], "7")
    assert time.process_time() - began < 3


def test_the_time_for_many_numbers_on_both_sides_is_linear():
    """30,000 numbers took minutes when a set of all numbers of the other side was built for each of them."""
    one, other = (" ".join(map(str, range(begin, begin + 12_000))) for begin in (100_000, 200_000))
    began = time.process_time()
    assert number_agreement(one, other) == 0
    assert time.process_time() - began < 3
