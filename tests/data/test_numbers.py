"""Agreement of the numbers in digits between the sides of a pair."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seq2seq.data.numbers import number_agreement, numbers, unmatched

SCRIPTS = ["0123456789", "٠١٢٣٤٥٦٧٨٩", "۰۱۲۳۴۵۶۷۸۹", "०१२३४५६७८९", "๐๑๒๓๔๕๖๗๘๙", "０１２３４５６７８９"]
SEPARATORS = ["", ".", ",", "'", "’", " ", "\u00a0", "\u202f", "\u2009", "٬", "，"]
INTEGERS = st.integers(0, 10**15)
random_examples = settings(deadline=None, derandomize=True, max_examples=100)


def written(number, separator="", script=SCRIPTS[0], mark="."):
    """Write a number with groups of thousands and with its decimal mark."""
    whole, _, fraction = str(number).partition(".")
    text = f"{int(whole):,}".replace(",", separator) + (mark + fraction if fraction else "")
    return text.translate(str.maketrans(SCRIPTS[0], script))


@pytest.mark.parametrize(("text", "values"), [
    ("no number, x², ½ or 三", []), ("0 and 007", ["0", "7"]), ("in 2012 100 people", ["2012", "100"]),
    ("1.234.567,89 and 12345,678", ["1234567.89", "12345678"]), ("0,500 and 05.0", ["0.5", "5"]),
    ("1,00,000", ["100000"]), ("3-5, 7:30, 1/2", ["3", "5", "7", "30", "1", "2"]), ("A380", ["380"]),
    ("٣٫٥ and १२", ["3.5", "12"]), ("３，６００年", ["3600"]), ("7" * 5000, ["7" * 5000]),
])
def test_numbers_are_read_by_value(text, values):
    assert [number.value for number in numbers(text)] == values


@pytest.mark.parametrize(("one", "other", "share"), [
    ("a", "b", 1), ("twenty dogs", "viele Hunde", 1), ("2 of 3", "3 von 2", 1), ("1,50", "1.5", 1),
    ("$10.00", "10 $", 1), ("07.05.2016", "2016-5-7", 1), ("31.12.2020", "12/31/2020", 1), ("15.30 Uhr", "15:30", 1),
    ("15:30", "3:30 p.m.", 1), ("Es ist 17 Uhr.", "It is 5:00 p.m.", 1), ("5 200", "5 bis 200", 1),
    ("1,5 Millionen", "1,500,000", 1), ("3,5 Mrd.", "35亿", 1), ("300万", "3 million", 1), ("40 mil", "40 000", 1),
    ("4,000", "40,000", 0), ("7 dogs", "7000 dogs", 0), ("1.5", "15", 0), ("2,5 Millionen", "2.6 million", 0),
    ("OAuth 2.0", "OAuth 2.6", 0), ("300 miles", "3000 Meilen", 0), ("1 1 1 2", "1 2", 2 / 4),
    ("3 dogs, 20 cats", "3, 21", 1 / 2), ("30", "三十", 0), ("7 dogs", "seven dogs", 0),
])
def test_agreement_is_the_share_of_numbers_on_both_sides(one, other, share):
    assert number_agreement(one, other) == number_agreement(other, one) == share


@random_examples
@given(INTEGERS, *[st.sampled_from(SEPARATORS)] * 2, *[st.sampled_from(SCRIPTS)] * 2)
def test_a_number_agrees_with_itself_in_any_script_with_any_separator(number, separator, other, script, other_script):
    one, two = written(number, separator, script), written(number, other, other_script)
    assert number_agreement(one, two) == number_agreement(f"it has {one} dogs", f"有{two}只狗") == 1


@random_examples
@given(INTEGERS, st.text("0123456789", min_size=1, max_size=7).filter(lambda digits: len(digits) != 3),
       *[st.sampled_from(SCRIPTS)] * 2)
def test_decimal_point_and_comma_agree(whole, fraction, script, other_script):
    number = f"{whole}.{fraction}"
    assert number_agreement(written(number, ",", script), written(number, ".", other_script, mark=",")) == 1


@random_examples
@given(st.lists(INTEGERS, max_size=7).flatmap(lambda some: st.tuples(st.just(some), st.permutations(some))))
def test_the_order_of_numbers_does_not_matter(orders):
    assert number_agreement(*(" and ".join(map(str, order)) for order in orders)) == 1


@random_examples
@given(st.lists(INTEGERS, min_size=1, max_size=7), st.data())
def test_one_changed_digit_is_found(some, data):
    index = data.draw(st.integers(0, len(some) - 1))
    digits = str(some[index])
    place = data.draw(st.integers(0, len(digits) - 1))
    other = data.draw(st.sampled_from([digit for digit in "123456789" if digit != digits[place]]))
    changed = [*map(str, some)]
    changed[index] = digits[:place] + other + digits[place + 1:]
    left, right = unmatched(numbers("; ".join(map(str, some))), numbers("; ".join(changed)))
    assert left and right and changed[index] in [number.text for number in right]


def test_time_is_linear():
    for unit in ("1", "1 ", "1,", "1.", "123 ", "1,234 ", "1. ", "12:34 ", "7 million ", "①", "१"):
        began = time.process_time()
        text = (unit * 30_000)[:30_000]
        number_agreement(text, text[:20_000] + "7")
        assert time.process_time() - began < 3
