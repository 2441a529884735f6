"""Agreement of numbers between the sides of a pair, in digits and in words."""

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
    ("٣٦٠٠", ["3600"]), ("0", [""]), ("x²", []),
])
def test_numbers_are_read_as_they_are_meant(text, expected):
    assert numbers(text) == Counter(expected)


def test_a_number_of_any_length_is_read():
    assert numbers("7" * 5000) == Counter(["7" * 5000])


def test_agreement_is_the_share_of_numbers_on_both_sides():
    assert number_agreement("a", "b") == 1
    assert number_agreement("2 of 3 on 07.05.", "3 von 2 am 7.5.") == 1
    assert number_agreement("20x lamp 60 cm", "9x Lampe 60 cm") == 1 / 2
    assert number_agreement("1 1 1 2", "1 2") == 2 / 4


@pytest.mark.parametrize(("source", "target"), [
    ("It costs 1,500 rials", "قیمت آن ۱٬۵۰۰ ریال است"), ("Population: 1,000,000", "السكان: ١٬٠٠٠٬٠٠٠"),
    ("पुरस्कार 1,00,000 रुपये", "The prize is 100,000 rupees"), ("12,34,56,789", "123,456,789")])
def test_separators_of_other_scripts_and_indian_groups_are_read(source, target):
    assert number_agreement(source, target) == 1


JAPANESE_AND_CHINESE = [
    ("３０人", "thirty people"), ("２人の男", "two men"), ("３，６００年", "3,600 years"),
    ("３.５メートル", "3.5 metres"), ("二人の男", "2 men"), ("一つ", "1 piece"), ("りんごをみっつ", "3 apples"),
    ("ふたりで", "2 of us"), ("はたち", "20 years old"), ("三個", "3 pieces"), ("十二個", "12 pieces"),
    ("二十一歳", "21 years old"), ("百五十年", "150 years"), ("一百零五", "105"), ("两百元", "$200"),
    ("兩百元", "$200"), ("俩人", "2 people"), ("廿五日", "the 25th"), ("貳佰", "200"), ("弐万", "20,000"),
    ("２万５千", "25,000"), ("2万5千円", "25,000 yen"), ("１.５万", "15,000"), ("三万五", "35,000"),
    ("100万日元", "one million yen"), ("10亿日元", "one billion yen"), ("12億", "1.2 billion"),
    ("一万亿", "1 trillion"), ("一万亿", "1,000,000,000,000"), ("1.2兆円", "1.2 trillion yen"),
    ("一九四一年十二月七日", "December 7, 1941"), ("二〇〇八年", "2008"), ("平成三十年", "the year 30"),
    ("2月", "February"), ("第三", "3rd"), ("第3章", "the third chapter"), ("第十課", "Lesson 10"),
    ("十二世紀", "12th century"), ("三四个", "3 or 4"), ("8点半", "8:30"), ("三點半", "3:30"), ("六點鐘", "6:00"),
    ("下午5点", "17:00"), ("午後3時", "15 o'clock"), ("正午", "12 o'clock"), ("百分之三十", "30 %"),
    ("七折", "30 % off"), ("7折", "70 %"), ("打七五折", "25%"), ("7.5折", "25%"), ("85折", "15% off"), ("对折", "50%"),
    ("3割引", "30% off"), ("10割引", "100 % off"), ("三割", "30 %"), ("三成", "30%"), ("差一刻八点", "7:45"),
    ("8点差一刻", "7:45"), ("6的4倍", "four times six"), ("一百六十五年", "165 years"), ("20世紀", "twentieth century"),
]
ENGLISH_AND_GERMAN = [
    ("twenty-one", "21"), ("twenty one", "21"), ("one hundred and five", "105"),
    ("two hundred twenty-one thousand", "221000"), ("nineteen eighty-four", "1984"), ("nineteen-ninety-seven", "1997"),
    ("two thousand and eleven", "2011"), ("a dozen", "12"), ("two dozen", "24"), ("a hundred", "100"),
    ("half past eight", "8:30"), ("half an hour", "30 minutes"), ("noon", "12 o'clock"), ("twelfth", "12."),
    ("thirty-first", "31"), ("five million", "5.000.000"), ("1.5 million", "1,500,000"),
    ("80 million", "achtzig Millionen"), ("1,5 Mio. Euro", "1,500,000"), ("2 Mrd. Euro", "two billion euros"),
    ("zwei Milliarden", "2 billion"), ("eine Million", "1,000,000"), ("hundertzwanzig Millionen", "120,000,000"),
    ("fünfunddreißig", "35"), ("dreissig", "30"), ("zweitausendelf", "2011"), ("neunzehnhundertvierundachtzig", "1984"),
    ("einundzwanzig", "21"), ("zehnsekündig", "10 second"), ("Dreibettzimmer", "3 beds"),
    ("dreieinhalbtausend", "3,500"), ("zweieinhalb", "2.5"), ("halb drei", "2:30"), ("halb eins", "12:30"),
    ("quarter to eight", "7:45"), ("a quarter to 8", "7:45"), ("quarter to one", "12:45"), ("Viertel vor acht", "7:45"),
    ("dreiviertel acht", "7:45"), ("drei Viertel 8", "7:45"), ("halb 8", "7:30"), ("Viertel vor 20 Uhr", "19:45"),
    ("quarter to eight in the evening", "19:45"), ("eine Viertelstunde", "15 minutes"),
    ("zwei Uhr dreißig", "2:30"), ("im dritten Stock", "3rd floor"),
    ("am siebten Tag", "day 7"), ("zum ersten Mal", "for the 1st time"), ("ein Mann", "1 man"), ("a man", "1 Mann"),
    ("7:00", "7 Uhr"), ("99,00", "99"), ("1,50", "1.5"), ("2:30 p.m.", "14:30"), ("at 2:30", "um 14:30 Uhr"),
    ("nine in the evening", "21 Uhr"), ("Apr. 01, 2001", "01.04.2001"), ("22. März", "22.03."), ("100 000", "100,000"),
    ("the 1980s", "die 80er"), ("World War II", "2. Weltkrieg"), ("Ludwig XIV.", "Louis 14"),
]


@pytest.mark.parametrize("one, other", JAPANESE_AND_CHINESE + ENGLISH_AND_GERMAN)
def test_a_number_in_another_form_is_no_disagreement(one, other):
    assert number_agreement(one, other) == number_agreement(other, one) == 1


@pytest.mark.parametrize("one, other", [
    ("３０人", "forty people"), ("三十人", "40 people"), ("2万5千", "26,000"), ("二〇〇八年", "2009"), ("両方", "5"),
    ("第三", "4th"), ("twenty-one", "22"), ("twenty-one", "20"), ("two hundred", "202"), ("fünfunddreißig", "53"),
    ("dreieinhalb", "4"), ("einfach", "1"), ("den Anfang", "10"), ("eine Million", "2,000,000"), ("halb drei", "3:15"),
    ("may 5", "5. Juni 7"), ("a man", "2 Männer"), ("1.5 million", "15,000"), ("die 70er", "the 1980s"),
    ("11 p.m.", "21 Uhr"), ("I see", "7"), ("often", "10"), ("someone", "1 person"), ("phone", "1"), ("weight", "8"),
    ("the height", "8"), ("quarter past eight", "7:15"), ("quarter to eight", "7:30"),
    ("七折", "40%"), ("三成", "70 %"), ("12折", "20%"), ("ten miles", "16 km"), ("50 °F", "10 °C"),
])
def test_a_number_that_certainly_lacks_a_counterpart_is_a_disagreement(one, other):
    assert number_agreement(one, other) < 1 and number_agreement(other, one) < 1


def test_a_number_word_alone_lacks_no_counterpart():
    assert number_agreement("twenty dogs", "viele Hunde") == number_agreement("三十人", "人") == 1


def test_number_words_count_only_for_missing_digits():
    assert number_agreement("3 dogs, 20 cats", "drei Hunde, 21 Katzen") == 1 / 2
    assert number_agreement("5 of 7 or 11", "fünf von 7 oder elf") == 1


@pytest.mark.parametrize("unit", ["1 ", "12,", "一",
                                  "万亿", "9", "1.5", "十", "2万", "zwei", "ein und ", "one hundred ",
                                  "'123", "1 000 ", "eighteenth-",
                                  "7折", "七", "quarter to 8", "差一刻", "1970er", "２",
                                  "2 million "])
def test_the_time_for_a_long_line_is_linear(unit):
    """A line of 12 times 9,000 characters took minutes with patterns that could match from every digit."""
    began = time.process_time()
    number_agreement((unit * 30_000)[:30_000], "7")
    assert time.process_time() - began < 3


@pytest.mark.parametrize("form", ["{}", "{}万", "{} million"])
def test_the_time_for_many_numbers_on_both_sides_is_linear(form):
    """30,000 numbers took minutes when a set of all numbers of the other side was built for each of them."""
    one, other = (" ".join(form.format(number) for number in range(begin, begin + 12_000))
                  for begin in (100_000, 200_000))
    began = time.process_time()
    assert number_agreement(one, other) == 0
    assert time.process_time() - began < 3
