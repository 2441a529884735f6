"""Agreement of the numbers in digits between the sides of a pair."""

import time

import pytest

from seq2seq.data.number_agreement import number_agreement, numbers


@pytest.mark.parametrize("text, language, expected", [
    ("no number", "", []),
    ("3,600 years and 3.600 years", "", [{"3600", "3.6"}, {"3600", "3.6"}]),
    ("3,600 years and 3.600 years", "en", [{"3600"}, {"3.6"}]), ("3,600 and 3.600", "de-DE", [{"3.6"}, {"3600"}]),
    ("3.600", "es", [{"3600", "3.6"}]), ("3.600", "de-CH", [{"3600", "3.6"}]),
    ("in 2012 100 people", "en", [{"2012"}, {"100"}]),
    ("1.234.567,89", "", [{"1234567.89"}]), ("1,234,567.89", "de", [{"1234567.89"}]),
    ("12345,678", "de", [{"12345.678"}]),                                       # no group has five digits
    ("0.500", "de", [{"0.5"}]), ("0,500", "en", [{"0.5"}]), (".5", "en", [{"0.5"}]), ("05.0", "en", [{"5"}]),
    ("1.2.3", "en", [{"1.2.3"}]), ("192.168.0.1", "de", [{"192.168.0.1"}]),
    ("٣٦٠٠", "", [{"3600"}]), ("१२", "hi", [{"12"}]), ("๑๒", "th", [{"12"}]), ("１２", "ja", [{"12"}]),
    ("0", "", [{"0"}]), ("x²", "", []), ("½ and 2½ and 1/2 and 2 1/3", "en", [{"0.5"}, {"2.5"}, {"0.5"}, {"7/3"}]),
    ("3 million, 1.5 bn and 2k", "en", [{"3000000"}, {"1500000000"}, {"2", "2000"}]),
    ("1,5 Mrd. und 2 Billionen", "de", [{"1500000000"}, {"2000000000000"}]),
    ("3亿5000万人和300万", "zh", [{"350000000"}, {"3000000"}]), ("5 mil millones", "es", [{"5000000000"}]),
    ("7" * 5000, "", [{"7" * 5000}]),
])
def test_numbers_are_read_as_they_are_meant(text, language, expected):
    assert [set(number.keys) for number in numbers(text, language)] == expected


@pytest.mark.parametrize("one, other, share", [
    ("a", "b", 1), ("twenty dogs", "viele Hunde", 1),
    ("2 of 3 on 07.05.", "3 von 2 am 7.5.", 1), ("7:00", "7 Uhr", 1), ("99,00", "99", 1), ("1,50", "1.5", 1),
    ("100 000", "100,000", 1), ("３０人", "30 people", 1), ("３，６００年", "3,600 years", 1),
    ("３.５メートル", "3.5 metres", 1),
    ("It costs 1,500 rials", "قیمت آن ۱٬۵۰۰ ریال است", 1), ("Population: 1,000,000", "السكان: ١٬٠٠٠٬٠٠٠", 1),
    ("पुरस्कार 1,00,000 रुपये", "The prize is 100,000 rupees", 1), ("12,34,56,789", "123,456,789", 1),
    ("20x lamp 60 cm", "9x Lampe 60 cm", 1 / 2), ("1 1 1 2", "1 2", 2 / 4), ("3 dogs, 20 cats", "3, 21", 1 / 2),
    ("100 000", "200,000", 0), ("1.50", "1.4", 0), ("30", "三十", 0), ("7 dogs", "seven dogs", 0),
])
def test_agreement_is_the_share_of_numbers_on_both_sides(one, other, share):
    assert number_agreement(one, other) == number_agreement(other, one) == share


@pytest.mark.parametrize("one, other", [
    ("3 millions d'euros", "€3 million"), ("2 milliards d’années", "2 billion years"),
    ("12.000", "12 000"), ("12.000", "12’000"), ("12.000", "12\u202f000"), ("12.000", "12\u2009000"), ("12.000",
        "12\u00a0000"),
    ("22.03.2016", "2016-03-22"), ("4.3.24", "2024/3/4"), ("3:30 pm", "15h30"), ("15.30 Uhr", "3:30 p.m."),
        ("15 Uhr", "3 pm"),
    ("下午3点半", "15:30"), ("40 mg", "40 Milligramm"), ("50 %", "50 percent"), ("50 %", "百分之50"), 
    ("$10", "10 Dollar"),
    ("USD 10", "10 $"), ("80 km/h", "80 kilometres per hour"), ("20 °C", "20 degrees"), ("300万美元", "$3 million"),
    ("10 MiB", "10 Mebibyte"), ("5-km-Lauf", "5 km run"), ("3 Milliarden Euro", "€3 billion"), ("50 m2",
        "50 Quadratmeter"),
    ("3 quilowatts", "3千瓦"), ("3 мегабайта", "3 メガバイト"), ("7 гПа", "7 hektopaskali"),
    ("5 kmです", "5 kilometrów"),
    ("8 metri quadrati", "8 平方米"), ("21 stopni Celsjusza", "21 градус Цельсия"), ("9 Mo", "9兆字节"),
    ("€100 a day", "100 Euro pro Tag"), ("费用CHF100", "100 Franken"), ("¥100", "100元"), ("¥100", "100円"),
    ("A$10", "10 AUD"), ("A$10", "10 Dollar"), ("12:30 am", "0:30 Uhr"), ("下午3点半", "3:30 pm"),
])
def test_a_number_is_the_same_however_it_is_written(one, other):
    assert number_agreement(one, other) == number_agreement(other, one) == 1


@pytest.mark.parametrize("one, other", [
    ("3000", "30"), ("12.000", "1200"), ("0,5", "5"), ("40 mg", "400 mg"), ("40 mg", "40 g"), ("10 MiB", "10 MB"),
    ("160 px", "16 px"), ("50 %", "5 %"), ("1.2.3", "1.2.30"), ("3:30 pm", "3:40 pm"), ("$10", "€10"), ("20 °C",
        "20 °F"),
    ("4.3.2024", "2024-04-13"), ("3 million", "3 billion"), ("12 000 km", "12 km"),
    ("55,6 W", "55,6 ч"), ("2 g", "2 mです"), ("56 godzin", "56 GB"), ("3 quilowatts", "3兆瓦"), ("8 m²", "8 м³"),
    ("费用CHF100", "€100"), ("100元", "100円"), ("A$10", "US$10"), ("3:30 am", "15:30"), ("下午3点", "3 am"),
    ("Es waren 15,83.", "They were 15.23."),
])
def test_another_magnitude_or_unit_is_another_number(one, other):
    assert number_agreement(one, other) == number_agreement(other, one) < 1


def test_the_languages_decide_what_a_separator_means():
    assert number_agreement("3.000", "3", "en", "en") == number_agreement("3.000", "3,000", "de", "en") == 1
    assert number_agreement("3.000", "3.000", "de", "en") == number_agreement("3.000", "3", "de", "en") == 0


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
