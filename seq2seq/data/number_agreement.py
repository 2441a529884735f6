"""Agreement of the numbers of a sentence pair: the share of its numbers in digits that occur on both sides.

Numbers in digits are compared first. If they differ, a number in digits may have another form in the other text:
Chinese, Japanese or Roman numerals, English or German words, the name of a month, or a time of the day. Number words
need no counterpart.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from fractions import Fraction

NUMBER_WORD_LANGUAGES = ("de", "en", "ja", "zh")
"""Languages whose numerals and number words are recognised."""
# Digits in groups of three are one number if a separator joins the groups: 3,600 or 3.600. A no-break space is a
# separator, too, but an ordinary space is not. In India, only the last group has three digits: 1,00,000. A full-width
# comma is a separator between full-width digits only; elsewhere it is the comma of a Chinese sentence.
NUMBER = re.compile(r"\d{1,3}(?:[.,'’\u00a0\u202f\u066c]\d{3})+(?!\d)|"
                    r"(?<![\d,\u066c])\d{1,2}(?:[,\u066c]\d{2}){1,6}[,\u066c]\d{3}(?![,\u066c]?\d)|[０-９]{1,3}(?:[，．][０-９]{3})+(?![０-９])|\d+")


def numbers(text: str) -> Counter[str]:
    """Count the numbers of a text that are written in digits.

    Keys: digits 0-9, without leading zeros and separators; '' for 0.
    """
    return Counter(map(_decimal_digits, NUMBER.findall(text)))


def number_agreement(source: str, target: str) -> float:
    """Return the share of the numbers in digits that have a counterpart on the other side; 1 if there are no numbers.

    The share is 1 - unmatched / total. `total` is the larger of the two sides' counts of numbers in digits. `unmatched`
    is the larger of their counts of numbers without a counterpart. A counterpart has the same value: a number in
    digits, a Chinese or Japanese numeral, or a number word of one of NUMBER_WORD_LANGUAGES.
    """
    source_numbers, target_numbers = numbers(source), numbers(target)
    total = max(source_numbers.total(), target_numbers.total())
    source_only, target_only = source_numbers - target_numbers, target_numbers - source_numbers
    if not (source_only or target_only):
        return 1.0
    of_source, of_target = _Readings(source), _Readings(target)
    return 1 - max(_count_unmatched(source_only, of_source, of_target),
                   _count_unmatched(target_only, of_target, of_source)) / total


def _decimal_digits(number: str) -> str:
    return "".join(str(int(character)) for character in number if character.isdecimal()).lstrip("0")


def _count_unmatched(candidates: Counter[str], own: _Readings, other: _Readings) -> int:
    """Count the numbers in `candidates` that have no counterpart in the other text.

    Zeros need no counterpart, because 7:00 is 7 o'clock, and 99.00 is 99.

    own: readings of the text that contains the candidates. other: readings of the other text.
    """
    named = other.named.union(*other.alternatives.values())
    written = named | other.digits
    return sum(count for number, count in candidates.items() if number and number not in named
               and written.isdisjoint(own.alternatives.get(number, ())))


Numeral = tuple[list[str], set[str]]
"""The numbers in digits that a numeral contains, and the values that the whole numeral may have. For 2万5千, the
numbers are 2 and 5, and the only value is 25000."""


class _Readings:
    """All numbers that a text may contain, as decimal digits.

    digits: numbers in digits. named: numbers in other forms, such as words. alternatives: for a number in digits, the
    other numbers that it may mean in its context: 25000 for 2 in 2万5千, 17 for 5 in "5 pm".
    """

    def __init__(self, text: str) -> None:
        self.digits = set(numbers(text))
        self.named: set[str] = set()
        self.alternatives: dict[str, set[str]] = {}
        lower = text.lower()
        for value in (*_english_numbers(lower), *_german_numbers(lower), *_clock_words(lower),
                      *map(MONTH_VALUES.__getitem__, MONTH.findall(lower)), *_kana_halves_and_quarters(text)):
            self.named.add(str(value))
        for digits, values in (*_cjk_numerals(text), *_tenths_as_percentages(text), *_scaled_numbers(lower),
                               *_hours_before(lower)):
            self.named |= values
            for number in digits:
                self._add_alternatives(number, values)
        self.named |= {str(ROMAN_VALUES[numeral]) for numeral in ROMAN_NUMERAL.findall(text)}
        for fraction in DECIMAL_PLACES.findall(text):                           # 1.50 is 1.5, so 50 may mean 5
            self._add_alternatives(_decimal_digits(fraction), {_decimal_digits(fraction.rstrip("0０"))})
        for decade in DECADE.findall(lower):                                    # 1980s may be written 80s
            self._add_alternatives(_decimal_digits(decade), {_decimal_digits(decade)[-2:]})
        for time in HOUR_AFTER_12.findall(lower):                               # 14 may mean 2: 14:30 is 2:30
            self._add_alternatives(_decimal_digits(time), {str(int(time) - 12)})
        for group in SPACED_GROUPS.findall(text):                               # 100 000 may mean 100000
            for number in NUMBER.findall(group):
                self._add_alternatives(_decimal_digits(number), {_decimal_digits(group)})
            self.named.add(_decimal_digits(group))
        if AFTERNOON.search(lower):
            for hour in map(str, range(1, 12)):
                if hour in self.digits | self.named:
                    self._add_alternatives(hour, {str(int(hour) + 12)})
                    self.named.add(str(int(hour) + 12))

    def _add_alternatives(self, number: str, values: set[str]) -> None:
        self.alternatives.setdefault(number, set()).update(values)


DECIMAL_PLACES = re.compile(r"(?<=\d[.,．])\d{1,2}(?!\d)")
AFTERNOON = re.compile(r"\d ?p\.?m\b|afternoon|evening|night|nachmittag|abend|nacht|下午|午後|傍晚|晚上|夜")
DECADE = re.compile(r"(?<!\d)1\d\d0(?='?s\b|er|年代)")
HOUR_AFTER_12 = re.compile(r"(?<!\d)(?:1[3-9]|2[0-3])(?=[:.]\d\d(?!\d)| uhr|[點点時时])")
SPACED_GROUPS = re.compile(r"(?<!\d)\d{1,3}(?:[ \u2009]\d{3}){1,5}(?!\d)")
ROMAN_VALUES = {numeral: number for number, numeral in enumerate(
    [tens + ones for tens in ("", "X") for ones in ("I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX", "X")] +
    ["XXI"], start=1) if numeral != "I"}
ROMAN_NUMERAL = re.compile(rf"\b(?:{'|'.join(sorted(ROMAN_VALUES, key=len, reverse=True))})\b")


# Chinese and Japanese

# Traditional, simplified and Japanese characters, and the complex forms that are used for amounts of money because
# they are hard to forge.
DIGIT_VALUES = {character: value for value, characters in enumerate(
    ("〇零○", "一壹壱弌", "二两兩両贰貳弐俩倆", "三叁參参仨", "四肆", "五伍", "六陆陸", "七柒漆", "八捌", "九玖"))
    for character in characters}
SMALL_MULTIPLIERS = {"十": 10, "拾": 10, "廿": 20, "卅": 30, "百": 100, "佰": 100, "陌": 100, "千": 1000, "仟": 1000}
LARGE_MULTIPLIERS = {"万": 10**4, "萬": 10**4, "亿": 10**8, "億": 10**8, "兆": 10**12}
CJK_CHARACTERS = "".join([*DIGIT_VALUES, *SMALL_MULTIPLIERS, *LARGE_MULTIPLIERS])
# The regular expressions here and below limit the number of digits, so that the search takes linear time.
_DIGITS = r"(?<!\d)\d{1,15}(?:[.,．，]\d{1,9}){0,5}"
CJK_NUMERAL = re.compile(
    rf"(?:{_DIGITS}(?=[{CJK_CHARACTERS}])|[{CJK_CHARACTERS}]|(?<=[{CJK_CHARACTERS}])\d{{1,15}}(?!\d))+")
CJK_ITEM = re.compile(rf"{_DIGITS}|[{CJK_CHARACTERS}]")
MAX_NUMERAL_ITEMS = 24
"""Maximum length of a Chinese or Japanese numeral, in matches of CJK_ITEM. Longer runs are not read as numerals."""
# 半 means half: in 三点半 (3:30) it stands for 30, in 两个半 (2.5) for 5. 刻 means a quarter-hour: 一刻 is 15, 三刻 45.
HALF_AND_QUARTER_READINGS = {"半": (30, 5), "刻": (15, 45)}
KANA_VALUES = {word: value for value, words in {
    1: "ひとつ ひとり ついたち", 2: "ふたつ ふたり ふつか", 3: "みっつ みっか", 4: "よっつ よっか", 5: "いつつ いつか",
    6: "むっつ むいか", 7: "ななつ なのか", 8: "やっつ ようか", 9: "ここのつ ここのか", 10: "とお", 20: "はたち はつか",
}.items() for word in words.split()}
KANA_NUMERAL = re.compile("|".join(KANA_VALUES))


def _kana_halves_and_quarters(text: str) -> Iterator[int]:
    """Yield the values of Japanese number words in kana, and of Chinese or Japanese halves and quarters."""
    yield from (KANA_VALUES[word] for word in KANA_NUMERAL.findall(text))
    for part, values in HALF_AND_QUARTER_READINGS.items():
        if part in text:
            yield from values


# 七折 is seven tenths of the price, or 30 % off; 七五折 is 25 % off, 对折 half price, 3割引 30 % off, 三成 30 %.
TENTHS = re.compile(rf"((?<![\d.])\d{{1,2}}(?:\.\d)?|[{''.join(DIGIT_VALUES)}]{{1,2}}|(?:[对對半](?=折)))([折割成])")


def _tenths_as_percentages(text: str) -> Iterator[Numeral]:
    """Yield each share or discount that is given in tenths, with its values in per cent: 70 and 30 for 七折."""
    for number, unit in TENTHS.findall(text):
        tenths = "".join(str(DIGIT_VALUES.get(character, character)) for character in number if character != ".")
        share = 50 if number in "对對半" else 100 if number == "10" else int(f"{tenths}0"[:2])
        off = [] if unit == "成" else [str(100 - share)]
        yield [_decimal_digits(part) for part in NUMBER.findall(number)], {str(share), *off}


def _cjk_numerals(text: str) -> Iterator[Numeral]:
    """Yield the Chinese and Japanese numerals of a text."""
    for run in CJK_NUMERAL.findall(text):
        items = CJK_ITEM.findall(run)
        parts = [item for item in items if item not in CJK_CHARACTERS]
        digits = [_decimal_digits(number) for part in parts for number in NUMBER.findall(part)]
        yield digits, set(_cjk_values(items)) if len(items) <= MAX_NUMERAL_ITEMS else set()


def _cjk_values(items: list[str]) -> Iterator[str]:
    """Yield the values that a numeral may have.

    A large multiplier ends a section of the numeral. Local variables: total: sum of the sections that have ended.
    section: value of the current section so far. current: last number, until it is added to a section. unit: last
    multiplier. largest: last large multiplier, at first 10^16.
    """
    digits = [str(DIGIT_VALUES[item]) for item in items if item in DIGIT_VALUES]
    yield from digits                                                           # 三四 may mean three or four
    if len(digits) == len(items):
        yield "".join(digits).lstrip("0")                                       # 一九九八: a year, digit by digit
    for decimal in (False, True):
        total, section, unit, largest = Fraction(0), Fraction(0), 1, 10**16
        current: Fraction | None = None
        for item in items:
            if item in SMALL_MULTIPLIERS:
                section += (1 if current is None else current) * SMALL_MULTIPLIERS[item]
                current, unit = None, SMALL_MULTIPLIERS[item]
            elif item in LARGE_MULTIPLIERS:
                unit = LARGE_MULTIPLIERS[item]
                section += current or 0
                total = (total + section) * unit if unit > largest else total + (section or 1) * unit   # 一万亿
                section, current, largest = Fraction(0), None, unit
            elif current:
                yield from _integer(total + section + current)                  # the next number begins
                total, section, current, unit, largest = Fraction(0), Fraction(0), _item_value(item, decimal), 1, 10**16
            else:
                current = _item_value(item, decimal)
        yield from _integer(total + section + (current or 0))
        if current and unit > 10:
            yield from _integer(total + section + current * unit / 10)          # 三万五 may mean 35,000


def _item_value(item: str, decimal: bool) -> Fraction:
    """Return the value of a character or of digits. decimal: read a single separator as a decimal point."""
    if item in DIGIT_VALUES:
        return Fraction(DIGIT_VALUES[item])
    parts = re.split(r"\D", item)
    if decimal and len(parts) == 2:
        return int(parts[0][-18:]) + Fraction(int(parts[1][:18]), 10 ** len(parts[1][:18]))
    return Fraction(int("".join(parts)[-18:]))


def _integer(value: Fraction) -> Iterator[str]:
    """Yield the value if it is a positive integer."""
    if value.denominator == 1 and value:
        yield str(value.numerator)


# English

ENGLISH_VALUES = {word: value for value, words in {
    **dict(enumerate(("one first", "two second", "three third", "four", "five fifth", "six", "seven", "eight eighth",
                      "nine ninth", "ten", "eleven", "twelve twelfth", "thirteen", "fourteen", "fifteen", "sixteen",
                      "seventeen", "eighteen", "nineteen"), start=1)),
    **{10 * tens: f"{stem}y {stem}ieth {stem}ies" for tens, stem in enumerate(
        ("twent", "thirt", "fort", "fift", "sixt", "sevent", "eight", "ninet"), start=2)},
    12: "twelve twelfth dozen dozens", 100: "hundred hundreds", 1000: "thousand thousands", 10**6: "million millions",
    10**9: "billion billions", 10**12: "trillion trillions",
}.items() for word in words.split()}
ENGLISH_VALUES |= {f"{word}th": value for word, value in ENGLISH_VALUES.items()
                   if not word.endswith(("th", "s", "t", "d", "y"))} | {"hundredth": 100, "thousandth": 1000}
_ANY_ENGLISH_WORD = "(?:" + "|".join(sorted(ENGLISH_VALUES, key=len, reverse=True)) + ")"
ENGLISH_NUMERAL = re.compile(rf"\b{_ANY_ENGLISH_WORD}(?:(?: | ?- ?| and |-and-){_ANY_ENGLISH_WORD})*(?:fold|some)?\b")
ENGLISH_WORD = re.compile(_ANY_ENGLISH_WORD)
ARTICLE = re.compile(r"\ban?\b")


def _english_numbers(text: str) -> Iterator[int]:
    """Yield the values of the English number words of a text in lower case. The articles a and an may mean 1."""
    if ARTICLE.search(text):
        yield 1
    for run in ENGLISH_NUMERAL.findall(text):
        yield from _combine_number_words(ENGLISH_VALUES[word] for word in ENGLISH_WORD.findall(run))


def _combine_number_words(values: Iterable[int]) -> list[int]:
    """Return the numbers that consecutive number words mean: [221] for 2, 100, 21, and [19, 84, 1984] for 19, 84."""
    combined: list[int] = []
    total = current = 0
    largest = 10**15

    def finish() -> None:
        nonlocal total, current, largest
        if total + current:
            combined.append(total + current)
        total, current, largest = 0, 0, 10**15

    for value in values:
        if value >= 1000:
            if value >= largest or not current and total:
                finish()
            total, current, largest = total + (current or 1) * value, 0, value
        elif value == 100 and current < 100 or value == 12 and current in range(1, 10):         # two dozen
            current = (current or 1) * value
        elif current == 0 or current % 100 == 0 or value < 10 and current % 100 >= 20 and current % 10 == 0:
            current += value
        else:
            finish()
            current = value
    finish()
    return combined + [100 * first + second for first, second in zip(combined, combined[1:], strict=False)
                       if 10 <= first < 100 and 10 <= second < 100]


# German

GERMAN_ONES = {"ein": 1, "eins": 1, "zwei": 2, "zwo": 2, "drei": 3, "vier": 4, "fünf": 5, "fuenf": 5, "sechs": 6,
               "sieben": 7, "acht": 8, "neun": 9}
GERMAN_BELOW_20 = GERMAN_ONES | {
    "zehn": 10, "elf": 11, "zwölf": 12, "zwoelf": 12, "dreizehn": 13, "vierzehn": 14, "fünfzehn": 15, "fuenfzehn": 15,
    "sechzehn": 16, "siebzehn": 17, "achtzehn": 18, "neunzehn": 19}
GERMAN_TENS = {"zwanzig": 20, "dreißig": 30, "dreissig": 30, "vierzig": 40, "fünfzig": 50, "fuenfzig": 50,
               "sechzig": 60, "siebzig": 70, "achtzig": 80, "neunzig": 90}


def _any_of(words: Iterable[str]) -> str:
    return "(?:" + "|".join(sorted(words, key=len, reverse=True)) + ")"


_BELOW_100 = rf"(?:{_any_of(GERMAN_ONES)}und{_any_of(GERMAN_TENS)}|{_any_of(GERMAN_TENS)}|{_any_of(GERMAN_BELOW_20)})"
_BELOW_1000 = rf"(?:{_BELOW_100}?hundert(?:und)?{_BELOW_100}?|{_BELOW_100})"
# A number may begin a longer word (zweite, Dreibettzimmer, zehnsekündig), but ein may not (einfach, einige).
GERMAN_NUMERAL = re.compile(r"\b(?=[adefhnstvz])(?!ein(?!und|hundert|tausend))"
                            rf"(?:(?P<thousands>{_BELOW_1000})?(?P<thousand>tausend)(?:und)?)?"
                            rf"(?P<rest>{_BELOW_1000})?(?P<half>einhalb(?P<of_thousand>tausend)?)?"
                            r"(?: (?P<scale>million|milliarde|billion))?")
GERMAN_SCALE_VALUES = {"million": 10**6, "milliarde": 10**9, "billion": 10**12}
GERMAN_SINGLE_WORD = re.compile(r"\b(?:(?P<one>(?:ein(?:e[rnsm]?|s)?|erste[rnsm]?|erstmals|einmal)\b)|(?P<three>dritt)|"
                                r"(?P<seven>siebt)|(?P<twelve>dutzend)|(?P<million>million)|(?P<milliarde>milliarde))")
GERMAN_SINGLE_WORD_VALUES = {"one": 1, "three": 3, "seven": 7, "twelve": 12, "million": 10**6, "milliarde": 10**9}
GERMAN_ONES_AND_TENS = re.compile(rf"({_any_of(GERMAN_ONES)})und({_any_of(GERMAN_TENS)})")
HUNDRED = re.compile("hundert(?:und)?")


def _german_numbers(text: str) -> Iterator[int]:
    """Yield the values of the German number words of a text in lower case."""
    for match in GERMAN_SINGLE_WORD.finditer(text):
        yield GERMAN_SINGLE_WORD_VALUES[match.lastgroup or ""]
    for match in GERMAN_NUMERAL.finditer(text):
        value = _below_1000(match["rest"] or "")
        if match["thousand"]:
            value += 1000 * (_below_1000(match["thousands"] or "") or 1)
        if value and match["half"]:                                             # 3½ thousand: 3500; else 3.5 or 3:30
            yield from (1000 * value + 500,) if match["of_thousand"] else (value, 5, 30)
        elif value:
            yield value * GERMAN_SCALE_VALUES.get(match["scale"], 1)


def _below_1000(word: str) -> int:
    before, hundred, after = word, "", ""
    if match := HUNDRED.search(word):
        before, hundred, after = word[:match.start()], match[0], word[match.end():]
    return (_below_100(before) or 1) * 100 + _below_100(after) if hundred else _below_100(before)


def _below_100(word: str) -> int:
    if match := GERMAN_ONES_AND_TENS.fullmatch(word):
        return GERMAN_ONES[match[1]] + GERMAN_TENS[match[2]]
    return GERMAN_TENS.get(word) or GERMAN_BELOW_20.get(word, 0)


# English and German

MONTH_VALUES = {name: number for number, names in enumerate((
    "january januar jan jänner", "february februar feb", "march märz maerz mar mär", "april apr", "may mai",
    "june juni jun", "july juli jul", "august aug", "september sept sep", "october oktober oct okt", "november nov",
    "december dezember dec dez"), start=1) for name in names.split()}
MONTH = re.compile(rf"\b{_any_of(MONTH_VALUES)}\b")
# Half past two and halb drei are 2:30; a quarter of an hour is 15 minutes, and half an hour is 30.
HOUR_WORDS = ENGLISH_VALUES | GERMAN_BELOW_20
_ANY_HOUR = rf"(?P<hour>{_any_of(HOUR_WORDS)}|\d{{1,2}})\b"
HALF_PAST = re.compile(rf"\bhalf (?:past|an hour)\b|\bhalbe[rn]? stunde|\bhalb {_ANY_HOUR}")
# Phrases that name the next full hour: a quarter to eight and dreiviertel acht are 7:45, halb acht is 7:30.
NEXT_HOUR = re.compile(rf"\b(?:quarter (?:to|till|before)|viertel vor|(?:drei ?)?viertel|halb) {_ANY_HOUR}")
NEXT_HOUR_IN_CHINESE = re.compile(r"差一刻([一二三四五六七八九十]{1,2}|\d{1,2})[点點]|"
                                  r"([一二三四五六七八九十]{1,2}|(?<!\d)\d{1,2})[点點]差一刻")
NOON = re.compile(r"\bnoon\b|\bmidnight\b|\bmittags?\b|\bmitternachts?\b|[中正]午|午夜|半夜|真夜中")
QUARTER = re.compile(r"\bquarter|viertel")
SCALE_VALUES = {"hundred": 100, "thousand": 1000, "tausend": 1000, "tsd": 1000, "million": 10**6, "mio": 10**6,
                "mill": 10**6, "billion": 10**9, "milliarde": 10**9, "mrd": 10**9, "bn": 10**9}
SCALED_NUMBER = re.compile(rf"({_DIGITS})[ \u00a0-]?({_any_of(SCALE_VALUES)})")


def _clock_words(text: str) -> Iterator[int]:
    """Yield the minutes or the hour that words such as half past, quarter and noon mean."""
    if HALF_PAST.search(text):
        yield 30
    if QUARTER.search(text):
        yield from (15, 45)
    if NOON.search(text):
        yield 12


def _hours_before(text: str) -> Iterator[Numeral]:
    """Yield the hour of each time that is given relative to the next full hour: 7 for `a quarter to eight`."""
    named = [match["hour"] for match in NEXT_HOUR.finditer(text)]
    named += [first or second for first, second in NEXT_HOUR_IN_CHINESE.findall(text)]
    for hour in named:
        if hour.isdecimal() or hour in HOUR_WORDS:
            values = [HOUR_WORDS.get(hour) or int(hour)]
        else:
            values = [int(value) for value in _cjk_values(list(hour))]
        yield [_decimal_digits(hour)] if hour.isdecimal() else [], {str((value - 2) % 12 + 1) for value in values}


def _scaled_numbers(text: str) -> Iterator[Numeral]:
    """Yield the numbers that consist of digits and a word for a power of ten, such as 1.5 million."""
    for number, scale in SCALED_NUMBER.findall(text):
        values = {value for decimal in (False, True)
                  for value in _integer(_item_value(number, decimal) * SCALE_VALUES[scale])}
        if scale == "billion":                                                  # a German billion is 10^12
            values |= {f"{value}000" for value in values}
        yield [_decimal_digits(part) for part in NUMBER.findall(number)], values
