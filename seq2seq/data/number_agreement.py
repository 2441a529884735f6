"""Numbers of the two texts of a pair, in digits and in words, and the share of them that stands on both sides.

Digits are compared first. Where they differ, a number in digits still has a counterpart if the other text can be read
to name it: in Chinese or Japanese numerals, in English or German words, as the name of a month, as a time of the day.
Only a number in digits can lack a counterpart; a number word never does.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from fractions import Fraction

NUMBER_WORD_LANGUAGES = ("de", "en", "ja", "zh")
"""Languages whose numerals and number words are known."""
# Groups of three digits are one number whatever stands between them, 3,600 and 3.600; but spaces part numbers. A
# full-width comma parts groups of full-width digits only: elsewhere it is the comma of a Chinese sentence.
NUMBER = re.compile(r"\d{1,3}(?:[.,'’\u00a0\u202f]\d{3})+(?!\d)|[０-９]{1,3}(?:[，．][０-９]{3})+(?![０-９])|\d+")


def numbers(text: str) -> Counter[str]:
    """The numbers of a text, in digits 0 to 9, without leading zeros and without what parts groups of three."""
    return Counter(map(_plain, NUMBER.findall(text)))


def number_agreement(source: str, target: str) -> float:
    """Share of the numbers in digits, of the side with more, that have a counterpart; 1 where neither side has any.

    A counterpart is the same number in digits, or words and numerals of any of the languages known here that may name
    it: their readings are looked for on both sides whatever the languages of the pair are.
    """
    of_source, of_target = numbers(source), numbers(target)
    most = max(of_source.total(), of_target.total())
    lacking = of_source - of_target, of_target - of_source
    if not (lacking[0] or lacking[1]):
        return 1.0
    read = _Reading(source), _Reading(target)
    return 1 - max(_lacking(lacking[0], *read), _lacking(lacking[1], *read[::-1])) / most


def _plain(number: str) -> str:
    return "".join(str(int(character)) for character in number if character.isdecimal()).lstrip("0")


def _lacking(left: Counter[str], here: _Reading, there: _Reading) -> int:
    """Numbers of `left`, from the text `here`, that the text `there` cannot be read to name. A zero never lacks:
    7:00 is 7 o'clock, and 99.00 is 99."""
    named = there.named.union(*there.also.values())
    written = named | there.digits
    return sum(count for number, count in left.items() if number and number not in named
               and written.isdisjoint(here.also.get(number, ())))


class _Reading:
    """All numbers that a text may name.

    digits: those in digits. named: those in words or in digits with words, as decimal digits.
    also: for a number in digits, what it may mean where it stands: 2 in 2万5千 is part of 25000, 5 in "5 pm" is 17.
    """

    def __init__(self, text: str) -> None:
        self.digits = set(numbers(text))
        self.named: set[str] = set()
        self.also: dict[str, set[str]] = {}
        lower = text.lower()
        for value in (*_english(lower), *_german(lower), *_months(lower), *_clock(lower), *_kana(text)):
            self.named.add(str(value))
        for digits, values in (*_east_asian(text), *_tenths(text), *_scaled(lower), *_begun_hours(lower)):
            self.named |= values
            for number in digits:
                self._may_mean(number, values)
        self.named |= {str(ROMAN[numeral]) for numeral in ROMAN_NUMERAL.findall(text)}
        for fraction in FRACTION.findall(text):                                 # 1.50 is 1.5
            self._may_mean(_plain(fraction), {_plain(fraction.rstrip("0０"))})
        for decade in DECADE.findall(lower):                                    # the 1980s are the eighties
            self._may_mean(_plain(decade), {_plain(decade)[-2:]})
        for time in HOUR.findall(lower):                                        # 14:30 is half past two
            self._may_mean(_plain(time), {str(int(time) - 12)})
        for group in SPACED.findall(text):                                      # 100 000
            for number in NUMBER.findall(group):
                self._may_mean(_plain(number), {_plain(group)})
            self.named.add(_plain(group))
        if AFTERNOON.search(lower):
            for hour in map(str, range(1, 12)):
                if hour in self.digits | self.named:
                    self._may_mean(hour, {str(int(hour) + 12)})
                    self.named.add(str(int(hour) + 12))

    def _may_mean(self, number: str, values: set[str]) -> None:
        self.also.setdefault(number, set()).update(values)


FRACTION = re.compile(r"(?<=\d[.,．])\d{1,2}(?!\d)")
AFTERNOON = re.compile(r"\d ?p\.?m\b|afternoon|evening|night|nachmittag|abend|nacht|下午|午後|傍晚|晚上|夜")
DECADE = re.compile(r"(?<!\d)1\d\d0(?='?s\b|er|年代)")
HOUR = re.compile(r"(?<!\d)(?:1[3-9]|2[0-3])(?=[:.]\d\d(?!\d)| uhr|[點点時时])")
SPACED = re.compile(r"(?<!\d)\d{1,3}(?:[ \u2009]\d{3}){1,5}(?!\d)")
ROMAN = {numeral: number for number, numeral in enumerate(
    [tens + ones for tens in ("", "X") for ones in ("I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX", "X")] +
    ["XXI"], start=1) if numeral != "I"}
ROMAN_NUMERAL = re.compile(rf"\b(?:{'|'.join(sorted(ROMAN, key=len, reverse=True))})\b")


# Chinese and Japanese

# Traditional, simplified and Japanese forms, and those that are written where nothing may be forged.
ONES = {character: value for value, characters in enumerate(
    ("〇零○", "一壹壱弌", "二两兩両贰貳弐俩倆", "三叁參参仨", "四肆", "五伍", "六陆陸", "七柒漆", "八捌", "九玖"))
    for character in characters}
TENS = {"十": 10, "拾": 10, "廿": 20, "卅": 30, "百": 100, "佰": 100, "陌": 100, "千": 1000, "仟": 1000}
MYRIADS = {"万": 10**4, "萬": 10**4, "亿": 10**8, "億": 10**8, "兆": 10**12}
NUMERAL = "".join([*ONES, *TENS, *MYRIADS])
# Repetitions of digits are bounded here and below, so that the time stays linear in the length of any text.
_DIGITS = r"(?<!\d)\d{1,15}(?:[.,．，]\d{1,9}){0,5}"
EAST_ASIAN = re.compile(rf"(?:{_DIGITS}(?=[{NUMERAL}])|[{NUMERAL}]|(?<=[{NUMERAL}])\d{{1,15}}(?!\d))+")
EAST_ASIAN_ITEM = re.compile(rf"{_DIGITS}|[{NUMERAL}]")
MOST_ITEMS = 24
"""Characters of a Chinese or Japanese numeral; a longer run of them is none."""
# 三点半 is half past three, 两个半 two and a half; 一刻 a quarter.
PARTS = {"半": (30, 5), "刻": (15, 45)}
KANA = {word: value for value, words in {
    1: "ひとつ ひとり ついたち", 2: "ふたつ ふたり ふつか", 3: "みっつ みっか", 4: "よっつ よっか", 5: "いつつ いつか",
    6: "むっつ むいか", 7: "ななつ なのか", 8: "やっつ ようか", 9: "ここのつ ここのか", 10: "とお", 20: "はたち はつか",
}.items() for word in words.split()}
KANA_NUMERAL = re.compile("|".join(KANA))


def _kana(text: str) -> Iterator[int]:
    yield from (KANA[word] for word in KANA_NUMERAL.findall(text))
    for part, values in PARTS.items():
        if part in text:
            yield from values


# 七折 is seven tenths of the price, 30 % off; 七五折 25 % off, 对折 half. 3割引 is 30 % off, 三成 30 %.
TENTHS = re.compile(rf"((?<![\d.])\d{{1,2}}(?:\.\d)?|[{''.join(ONES)}]{{1,2}}|(?:[对對半](?=折)))([折割成])")


def _tenths(text: str) -> Iterator[tuple[list[str], set[str]]]:
    """Shares in tenths as percentages, as `_east_asian` gives numerals."""
    for number, unit in TENTHS.findall(text):
        tenths = "".join(str(ONES.get(character, character)) for character in number if character != ".")
        share = 50 if number in "对對半" else int(f"{tenths}0"[:2])
        off = [] if unit == "成" else [str(100 - share)]
        yield [_plain(part) for part in NUMBER.findall(number)], {str(share), *off}


def _east_asian(text: str) -> Iterator[tuple[list[str], set[str]]]:
    """For each numeral, those of its numbers that are written in digits, and what all of it may mean."""
    for run in EAST_ASIAN.findall(text):
        items = EAST_ASIAN_ITEM.findall(run)
        digits = [_plain(number) for item in items if item not in NUMERAL for number in NUMBER.findall(item)]
        yield digits, set(_east_asian_readings(items)) if len(items) <= MOST_ITEMS else set()


def _east_asian_readings(items: list[str]) -> Iterator[str]:
    ones = [str(ONES[item]) for item in items if item in ONES]
    yield from ones                                                             # 三四 is three or four, too
    if len(ones) == len(items):
        yield "".join(ones).lstrip("0")                                         # 一九九八: a year, digit by digit
    for decimal in (False, True):
        total, section, unit, largest = Fraction(0), Fraction(0), 1, 10**16
        current: Fraction | None = None
        for item in items:
            if item in TENS:
                section += (1 if current is None else current) * TENS[item]
                current, unit = None, TENS[item]
            elif item in MYRIADS:
                unit = MYRIADS[item]
                section += current or 0
                total = (total + section) * unit if unit > largest else total + (section or 1) * unit   # 一万亿
                section, current, largest = Fraction(0), None, unit
            elif current:
                yield from _whole(total + section + current)                    # two numbers side by side
                total, section, current, unit, largest = Fraction(0), Fraction(0), _value(item, decimal), 1, 10**16
            else:
                current = _value(item, decimal)
        yield from _whole(total + section + (current or 0))
        if current and unit > 10:
            yield from _whole(total + section + current * unit / 10)            # 三万五: 35,000


def _value(item: str, decimal: bool) -> Fraction:
    """A numeral of one character, or digits, whose only separator is a decimal point or parts groups of three."""
    if item in ONES:
        return Fraction(ONES[item])
    parts = re.split(r"\D", item)
    if decimal and len(parts) == 2:
        return int(parts[0][-18:]) + Fraction(int(parts[1][:18]), 10 ** len(parts[1][:18]))
    return Fraction(int("".join(parts)[-18:]))


def _whole(value: Fraction) -> Iterator[str]:
    if value.denominator == 1 and value:
        yield str(value.numerator)


# English

ENGLISH = {word: value for value, words in {
    **dict(enumerate(("one first", "two second", "three third", "four", "five fifth", "six", "seven", "eight eighth",
                      "nine ninth", "ten", "eleven", "twelve twelfth", "thirteen", "fourteen", "fifteen", "sixteen",
                      "seventeen", "eighteen", "nineteen"), start=1)),
    **{10 * tens: f"{stem}y {stem}ieth {stem}ies" for tens, stem in enumerate(
        ("twent", "thirt", "fort", "fift", "sixt", "sevent", "eight", "ninet"), start=2)},
    12: "twelve twelfth dozen dozens", 100: "hundred hundreds", 1000: "thousand thousands", 10**6: "million millions",
    10**9: "billion billions", 10**12: "trillion trillions",
}.items() for word in words.split()}
ENGLISH |= {f"{word}th": value for word, value in ENGLISH.items() if not word.endswith(("th", "s", "t", "d", "y"))}
ENGLISH |= {"hundredth": 100, "thousandth": 1000}
_ENGLISH_WORD = "(?:" + "|".join(sorted(ENGLISH, key=len, reverse=True)) + ")"
ENGLISH_RUN = re.compile(rf"\b{_ENGLISH_WORD}(?:(?: | ?- ?| and |-and-){_ENGLISH_WORD})*(?:fold|some)?\b")
ENGLISH_ITEM = re.compile(_ENGLISH_WORD)
ARTICLE = re.compile(r"\ban?\b")


def _english(text: str) -> Iterator[int]:
    """text: in lower case."""
    if ARTICLE.search(text):
        yield 1
    for run in ENGLISH_RUN.findall(text):
        yield from _combined(ENGLISH[word] for word in ENGLISH_ITEM.findall(run))


def _combined(values: Iterable[int]) -> list[int]:
    """The numbers that values of number words one after another make: 2, 100, 21 are 221; 19 and 84 are 1984, too."""
    found: list[int] = []
    total = current = 0
    largest = 10**15

    def finish() -> None:
        nonlocal total, current, largest
        if total + current:
            found.append(total + current)
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
    return found + [100 * first + second for first, second in zip(found, found[1:], strict=False)
                    if 10 <= first < 100 and 10 <= second < 100]


# German

GERMAN_ONES = {"ein": 1, "eins": 1, "zwei": 2, "zwo": 2, "drei": 3, "vier": 4, "fünf": 5, "fuenf": 5, "sechs": 6,
               "sieben": 7, "acht": 8, "neun": 9}
GERMAN_SMALL = GERMAN_ONES | {
    "zehn": 10, "elf": 11, "zwölf": 12, "zwoelf": 12, "dreizehn": 13, "vierzehn": 14, "fünfzehn": 15, "fuenfzehn": 15,
    "sechzehn": 16, "siebzehn": 17, "achtzehn": 18, "neunzehn": 19}
GERMAN_TENS = {"zwanzig": 20, "dreißig": 30, "dreissig": 30, "vierzig": 40, "fünfzig": 50, "fuenfzig": 50,
               "sechzig": 60, "siebzig": 70, "achtzig": 80, "neunzig": 90}


def _any_of(words: Iterable[str]) -> str:
    return "(?:" + "|".join(sorted(words, key=len, reverse=True)) + ")"


_BELOW_100 = rf"(?:{_any_of(GERMAN_ONES)}und{_any_of(GERMAN_TENS)}|{_any_of(GERMAN_TENS)}|{_any_of(GERMAN_SMALL)})"
_BELOW_1000 = rf"(?:{_BELOW_100}?hundert(?:und)?{_BELOW_100}?|{_BELOW_100})"
# The number may begin a longer word: zweite, Dreibettzimmer, zehnsekündig. But ein does not: einfach, einige.
GERMAN = re.compile(r"\b(?=[adefhnstvz])(?!ein(?!und|hundert|tausend))"
                    rf"(?:(?P<thousands>{_BELOW_1000})?(?P<thousand>tausend)(?:und)?)?"
                    rf"(?P<rest>{_BELOW_1000})?(?P<half>einhalb(?P<of_thousand>tausend)?)?"
                    r"(?: (?P<scale>million|milliarde|billion))?")
GERMAN_SCALES = {"million": 10**6, "milliarde": 10**9, "billion": 10**12}
GERMAN_LONE = re.compile(r"\b(?:(?P<one>(?:ein(?:e[rnsm]?|s)?|erste[rnsm]?|erstmals|einmal)\b)|(?P<three>dritt)|"
                         r"(?P<seven>siebt)|(?P<twelve>dutzend)|(?P<million>million)|(?P<milliarde>milliarde))")
GERMAN_LONE_VALUES = {"one": 1, "three": 3, "seven": 7, "twelve": 12, "million": 10**6, "milliarde": 10**9}
GERMAN_BELOW_100 = re.compile(rf"({_any_of(GERMAN_ONES)})und({_any_of(GERMAN_TENS)})")
HUNDRED = re.compile("hundert(?:und)?")


def _german(text: str) -> Iterator[int]:
    """text: in lower case."""
    for match in GERMAN_LONE.finditer(text):
        yield GERMAN_LONE_VALUES[match.lastgroup or ""]
    for match in GERMAN.finditer(text):
        value = _below_1000(match["rest"] or "")
        if match["thousand"]:
            value += 1000 * (_below_1000(match["thousands"] or "") or 1)
        if value and match["half"]:                                             # dreieinhalbtausend, or dreieinhalb
            yield from (1000 * value + 500,) if match["of_thousand"] else (value, 5, 30)
        elif value:
            yield value * GERMAN_SCALES.get(match["scale"], 1)


def _below_1000(word: str) -> int:
    before, hundred, after = word, "", ""
    if match := HUNDRED.search(word):
        before, hundred, after = word[:match.start()], match[0], word[match.end():]
    return (_below_100(before) or 1) * 100 + _below_100(after) if hundred else _below_100(before)


def _below_100(word: str) -> int:
    if match := GERMAN_BELOW_100.fullmatch(word):
        return GERMAN_ONES[match[1]] + GERMAN_TENS[match[2]]
    return GERMAN_TENS.get(word) or GERMAN_SMALL.get(word, 0)


# Both

MONTHS = {name: number for number, names in enumerate((
    "january januar jan jänner", "february februar feb", "march märz maerz mar mär", "april apr", "may mai",
    "june juni jun", "july juli jul", "august aug", "september sept sep", "october oktober oct okt", "november nov",
    "december dezember dec dez"), start=1) for name in names.split()}
MONTH = re.compile(rf"\b{_any_of(MONTHS)}\b")
# Half past two is 2:30, and so is halb drei; a quarter of an hour is 15 minutes, half an hour 30.
HOURS = ENGLISH | GERMAN_SMALL
_HOUR = rf"(?P<hour>{_any_of(HOURS)}|\d{{1,2}})\b"
HALF_PAST = re.compile(rf"\bhalf (?:past|an hour)\b|\bhalbe[rn]? stunde|\bhalb {_HOUR}")
# The hour that has begun is the one before that which is named: quarter to eight is 7:45, as is dreiviertel acht.
BEGUN_HOUR = re.compile(rf"\b(?:quarter (?:to|till|before)|viertel vor|(?:drei ?)?viertel|halb) {_HOUR}")
BEGUN_HOUR_IN_CHINESE = re.compile(r"差一刻([一二三四五六七八九十]{1,2}|\d{1,2})[点點]|"
                                   r"([一二三四五六七八九十]{1,2}|(?<!\d)\d{1,2})[点點]差一刻")
NOON = re.compile(r"\bnoon\b|\bmidnight\b|\bmittags?\b|\bmitternachts?\b|[中正]午|午夜|半夜|真夜中")
QUARTER = re.compile(r"\bquarter|viertel")
SCALES = {"hundred": 100, "thousand": 1000, "tausend": 1000, "tsd": 1000, "million": 10**6, "mio": 10**6, "mill": 10**6,
          "billion": 10**9, "milliarde": 10**9, "mrd": 10**9, "bn": 10**9}
SCALED = re.compile(rf"({_DIGITS})[ \u00a0-]?({_any_of(SCALES)})")


def _months(text: str) -> Iterator[int]:
    yield from (MONTHS[name] for name in MONTH.findall(text))


def _clock(text: str) -> Iterator[int]:
    if HALF_PAST.search(text):
        yield 30
    if QUARTER.search(text):
        yield from (15, 45)
    if NOON.search(text):
        yield 12


def _begun_hours(text: str) -> Iterator[tuple[list[str], set[str]]]:
    """Hours that have begun where the next one is named, as `_east_asian` gives numerals."""
    named = [match["hour"] for match in BEGUN_HOUR.finditer(text)]
    named += [first or second for first, second in BEGUN_HOUR_IN_CHINESE.findall(text)]
    for hour in named:
        if hour.isdecimal() or hour in HOURS:
            values = [HOURS.get(hour) or int(hour)]
        else:
            values = [int(reading) for reading in _east_asian_readings(list(hour))]
        yield [_plain(hour)] if hour.isdecimal() else [], {str((value - 2) % 12 + 1) for value in values}


def _scaled(text: str) -> Iterator[tuple[list[str], set[str]]]:
    """Numbers in digits before a word for a power of ten, as `_east_asian` gives them: 1.5 million."""
    for number, scale in SCALED.findall(text):
        values = {reading for decimal in (False, True) for reading in _whole(_value(number, decimal) * SCALES[scale])}
        if scale == "billion":                                                  # 10^12 in German
            values |= {f"{value}000" for value in values}
        yield [_plain(part) for part in NUMBER.findall(number)], values
