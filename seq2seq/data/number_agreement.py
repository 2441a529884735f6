"""Numbers of a text, and their agreement between the sides of a pair.

A number is what its digits mean, not how they are written: 12.000 in German, 12,000 in English and 12 000 in French are
the same number, and so are 3 million and 3 000 000, or 3:30 pm and 15h30. Signs are not part of a number: words may
stand for them, so `changed_signs` compares them apart.
"""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from seq2seq.data.number_words import NO_UNIT, multiplier, unit
from seq2seq.languages import decimal_mark, main_language

# Bounded repetitions keep the matching time linear in the length of a line.
_NUMBER = re.compile(r"""
    (?P<date> (?<![\d.,/:-]) (?: \d{1,2}(?P<d>[./-])\ ?\d{1,2}(?P=d)\ ?(?:\d{4}|\d{2})
        | \d{4}(?P<e>[./-])\d{1,2}(?P=e)\d{1,2}
        | (?:\d{2,4}\ ?年\ ?)?\d{1,2}\ ?月\ ?\d{1,2}(?=\ ?[日号號])
        | \d{1,2}\.\ ?\d{1,2}\.(?!\ ?\d) ) (?!\d|[.,/-]\d) )
  | (?P<time> (?<![\d:.,]) (?P<hour>\d{1,2}) (?: (?::|\ ?[hH]\ ?|\.(?=\d\d\ ?(?:Uhr|h\b))) (?P<minute>\d{2})
        (?::\d{2})? (?![\d:]|\.\d) | \ ?[点點时時]\ ?(?P<spoken>\d{1,2}(?=\ ?分)|半|一刻|三刻) ) )
  | (?P<grouped> (?<!\d) (?<!\d[.,]) [1-9]\d{0,2}(?P<g>[.,'\ ])\d{3}(?:(?P=g)\d{3}){0,12}
        (?:(?!(?P=g))[.,]\d{1,30})? (?!\d|[.,']\d) )
  | (?P<lakh> (?<![\d,]) [1-9]\d?(?:,\d{2}){1,6},\d{3}(?:\.\d{1,30})? (?![\d,]\d?) )
  | (?P<chain> \d+(?:\.\d+){2,} )
  | (?P<fraction> (?<![\d/.,-]) (?:\d{1,3}\ )?\d{1,3}/\d{1,3} (?![\d/]) )
  | (?P<vulgar> (?<![^\W\d_])\d{0,9}\ ?[¼-¾⅐-⅞] )
  | (?P<decimal> \d+[.,]\d+ (?![.,]?\d) | (?<![\w.,])[.]\d+ )
  | \d+""", re.VERBOSE)
HAS_NUMBER = re.compile(r"[\d¼-¾⅐-⅞]")
# Separators of other scripts, and spaces that are not distinguished. A full-width comma is a separator only between
# full-width digits; elsewhere it is the comma of a Chinese sentence.
_SEPARATORS = str.maketrans({**dict.fromkeys("\u00a0\u202f\u2009\u2007\u2008\u200a\u3000", " "), "’": "'",
                             "\u066c": "'", "\u066b": ".", "％": "%", "﹪": "%", "٪": "%", "＄": "$", "￥": "¥",
                             "￡": "£", "：": ":",
                             "\u2011": "-", "\u2010": "-", "\u200e": None, "\u200f": None, "\u202a": None,
                             "\u202b": None, "\u202c": None, "\u2066": None, "\u2067": None, "\u2069": None})
_WIDE_SEPARATOR = re.compile(r"(?<=[０-９])[，．](?=[０-９])")
_OTHER_DIGIT = re.compile(r"(?![0-9])\d")
# A word ends where the script changes: 5 kmです.
_LETTERS = r"(?:[^\W\d_\u2e80-\uffff]+|[^\W\d_]+)"
# What may follow a number: a sign, or up to three words.
_AFTER = re.compile(r"[ -]?(?:(°\ ?[CF]?\b|[%‰°℃℉€$£¥₹₽₩₺¢]|[A-Z]{1,3}[$¥£])|"
                    rf"({_LETTERS}(?:[²³23]|[⋅·]{_LETTERS})?)(?:[ -]?({_LETTERS}))?(?:[ -]({_LETTERS}))?)")
# Marks of a time (uhr apart, for 15 and 3 Uhr), and words that may also mean a duration.
_CLOCK = re.compile(r" ?(?:(?P<time>[ap]\.? ?m\b|o['’]clock|(?P<uhr>uhr\b)|[点點时時](?![间間])|시(?!간))|"
                    r"heures?\b|horas?\b|ore\b|h\b)", re.IGNORECASE)
_AM, _PM = frozenset({"am"}), frozenset({"pm"})
_HALF_AFTER = re.compile(r" ?([ap])\.? ?m\b", re.IGNORECASE)
_HALF_BEFORE = re.compile(r"(上午|早上|凌晨|午前)|(?:下午|晚上|傍晚|午後)")
# A minus sign, neither a hyphen nor a dash: it stands after a space and before a digit, and not in 1939 -45.
_NEGATIVE = re.compile(r"(?<![^\s(=:：为是])(?<!\d[ \u00a0\u202f])[-\u2212\u2011](\d+)"
                       r"(?! ?[-\u2013]\d)")
_MINUS_WORD = re.compile(r"[-\u2010-\u2013\u2212\uff0d]\s?\d|minus|mínus|menos|meno\b|moins|минус|негатив|отрицат"
                         r"|マイナス|[氷冰]点|[負负減减降下跌]|negativ|négati|ujemn|"
                         r"below|under|unter|sous|sotto|baj[oó]|abaixo|ниже|poniżej|los[ste]|less|verl|wenig|"
                         r"de[cs]|drop|fall|fell|down|sink|bais|perd|ca[eíy]|сни|spad|fros|gel|мороз",
                         re.IGNORECASE)
_SIGN_BEFORE = re.compile(r"((?<![A-Za-z])(?:[A-Z]{1,3}[$¥£]|[A-Z]{3})|[%€$£¥₹₽₩₺]|百分之|摄氏|华氏|yüzde) ?$")
_SECOND_WORD = re.compile(r"\.? ([^\W\d_]+)")
_LINK = re.compile(r" ?d['’]| (?:de |of |di )?|")


@dataclass(slots=True, eq=False)
class Number:
    """Number of a text, written in digits.

    text: as in the text; a part has that of the whole number. keys: its possible values, in canonical form; two numbers
    are equal if they share one. units: the units it may have; empty if none is known. parts: numbers that it may
    consist of instead, such as 5 and 200 for "5 200", or day, month and year. kind: "clock" for hours and minutes,
    "date" for the parts of a date, "day" for those of a date without a year, which may be a time, "part" for other
    parts, else "".
    """

    text: str
    keys: tuple[str, ...]
    units: frozenset[str] = NO_UNIT
    parts: tuple[Number, ...] = ()
    kind: str = ""

    @property
    def value(self) -> float:
        """Its first possible value; infinity for dates, times and versions."""
        key = self.keys[0] if self.keys else ""
        is_number = len(key) < 30 and key.replace(".", "", 1).replace("/", "", 1).isdecimal()
        return float(Fraction(key)) if is_number else float("inf")

    @property
    def significant_digits(self) -> int:
        """Number of digits without leading and trailing zeros."""
        return len(self.keys[0].replace(".", "").strip("0")) if self.keys else 99


def numbers(text: str, language: str = "") -> list[Number]:
    """Return the numbers of a text that are written in digits, in any script.

    language: code of the language, which decides whether 3.000 is three or three thousand; "": it may be both.
    """
    if not HAS_NUMBER.search(text):
        return []
    if not text.isascii():
        text = _WIDE_SEPARATOR.sub(lambda match: "," if match[0] == "，" else ".", text).translate(_SEPARATORS)
        text = _OTHER_DIGIT.sub(lambda match: str(unicodedata.decimal(match[0])), text)
    mark, main = decimal_mark(language), main_language(language)
    found: list[Number] = []
    consumed = position = 0
    joins = False                                                               # 3亿 before 5000万
    while match := _NUMBER.search(text, position):
        number = _number(match, mark)
        for part in number.parts:
            part.text, part.kind = number.text, part.kind or "part"
        kind, start, position = match.lastgroup, match.start(), match.end()
        if kind is None and start and text[start - 1] in "-–/" and start - 1 == consumed and found \
                and len(number.text) == 2 and len(found[-1].text) == 4:
            number.keys = (*number.keys, found[-1].text[:2] + number.text)      # 1939-45
        if kind not in ("date", "time", "chain"):
            end, goes_on = _read_after(number, text, position, main)
            sums = [str(int(one) + int(other)) for one in found[-1].keys for other in number.keys
                    if (one + other).isdecimal() and len(one + other) < 60] if joins and start == consumed else []
            if sums:
                found[-1].keys = tuple(sums)
                found[-1].units, found[-1].parts = number.units, ()
            else:
                before = text[max(consumed, start - 8):start]
                number.units = _unit_before(before) or number.units
                if number.kind == "clock":
                    number.units = _half_of_day(number, before, text[end - 6:end])
                found.append(number)
            if number.parts and number.units:
                number.parts[-1].units = number.units
            position = consumed = end
            joins = goes_on
        else:
            if kind == "time":
                number.units = _half_of_day(number, text[max(consumed, start - 8):start], text[position:position + 6])
                number.parts[0].units = number.units
            found.append(number)
            joins, consumed = False, position
    return found


def _number(match: re.Match[str], mark: str) -> Number:
    """Return the number that `_NUMBER` matched. mark: decimal mark of the language; "": unknown."""
    text, kind = match[0], match.lastgroup
    if kind is None:
        return Number(text, (_plain(text),))
    if kind == "date":
        kind_of_part = "day" if text.endswith(".") else "date"
        parts = tuple(Number(part, _year(part) if index == 2 else (_plain(part),), kind=kind_of_part)
                      for index, part in enumerate(re.findall(r"\d+", text)))
        day, month = (int(part.keys[0]) for part in parts[:2])
        if kind_of_part == "day" and (mark == "." or not (0 < day < 32 and 0 < month < 13)):
            return _decimal(text[:-1].replace(" ", ""), mark)                   # 15.23 at the end of a sentence
        if len(parts) < 3:
            return Number(text, (_plain(text.rstrip(".")),) if kind_of_part == "day" else (), parts=parts)
        year = parts[0 if len(parts[0].keys[0]) == 4 else 2]
        others = sorted(part.keys[0] for part in parts if part is not year)
        return Number(text, tuple(f"{one}-{'-'.join(others)}" for one in year.keys), parts=parts)
    if kind == "time":
        minute = match["minute"] or {"半": "30", "一刻": "15", "三刻": "45"}.get(match["spoken"], match["spoken"])
        return _clock(text, match["hour"], minute)
    if kind == "chain":
        return Number(text, (text,))
    if kind == "fraction":
        parts = tuple(Number(part, (_plain(part),)) for part in re.findall(r"\d+", text))
        *wholes, above, below = (int(part.text) for part in parts)
        return Number(text, (_exact(sum(wholes) + Fraction(above, below)),) if below else ("#" + text,), parts=parts)
    if kind == "vulgar":
        whole = text[:-1].strip()
        return Number(text, (_exact(int(whole or 0) + Fraction(unicodedata.numeric(text[-1])).limit_denominator(10)),))
    if kind == "decimal":
        return _decimal(text, mark)
    separator = match["g"] or ","                                               # lakh: a comma
    grouped = _plain(text.replace(separator, "").replace(",", "."))
    if separator == " ":
        return Number(text, (grouped,), parts=tuple(_parts(text, " ", mark)))
    if separator == "'" or text.count(separator) > 1 or len(text.strip("0123456789" + separator)):
        return Number(text, (grouped,))
    decimal = _plain(text.replace(",", "."))
    return Number(text, (grouped, decimal) if not mark else (decimal,) if separator == mark else (grouped,))


def _decimal(text: str, mark: str) -> Number:
    """Return a number with a decimal mark. Hours and minutes may be written in the same way: 15.30. Where a comma is
    not a decimal mark, it may separate two numbers."""
    keys = [_plain(text.replace(",", "."))]
    whole, _, fraction = text.partition(".")
    if len(fraction) == 2 and len(whole) in (1, 2) and int(whole) < 25 and int(fraction) < 60:
        keys.append(f"d{int(whole) % 12}:{fraction}")
    return Number(text, tuple(keys), parts=tuple(_parts(text, ",", mark)) if "," in text and mark != "," else ())


def _parts(text: str, separator: str, mark: str) -> Iterable[Number]:
    return (_decimal(part, mark) if "." in part or "," in part else Number(part, (_plain(part),))
            for part in text.split(separator))


def _clock(text: str, hour: str, minute: str) -> Number:
    """Return a time. On the other side, it may be written with a 12-hour clock, or its parts may stand alone."""
    hours = int(hour)
    of_hour = (_plain(hour), str((hours - 12) % 24)) if hours < 25 else (_plain(hour),)
    parts = [Number(hour, of_hour, kind="clock"), Number(minute, (_plain(minute),), kind="clock")]
    if hours > 24 or int(minute) > 59:
        return Number(text, (), parts=tuple(parts))
    time = f"{hours % 12}:{int(minute):02}"
    return Number(text, (f"t{time}", f"d{time}"), parts=tuple(parts))


def _half_of_day(number: Number, before: str, after: str) -> frozenset[str]:
    """Return the half of the day of a time, as a unit: before or after noon."""
    hour = int("".join(filter(str.isdigit, number.text[:2])))
    if hour > 12 or not hour:
        return _PM if hour else _AM
    if match := _HALF_AFTER.search(after):
        return _AM if match[1] in "aA" else _PM
    match = _HALF_BEFORE.search(before) if hour < 12 else None
    return NO_UNIT if not match else _AM if match[1] else _PM


def _year(text: str) -> tuple[str, ...]:
    return (_plain(text), "20" + text, "19" + text) if len(text) == 2 else (_plain(text),)


def _plain(text: str) -> str:
    """Return digits with an optional decimal point in canonical form: 1.5 for 01.50, 0 for 0.0."""
    whole, point, fraction = text.partition(".")
    fraction = fraction.rstrip("0") if point else ""
    return (whole.lstrip("0") or "0") + ("." + fraction if fraction else "")


def _exact(value: Fraction) -> str:
    """Return a fraction in canonical form: as a decimal number if it has at most three places, else as a/b."""
    thousandths = value * 1000
    if thousandths.denominator > 1:
        return str(value)
    return _plain(f"{int(thousandths) // 1000}.{int(thousandths) % 1000:03}")


def _all_scaled(keys: Iterable[str], powers: Iterable[int]) -> tuple[str, ...]:
    scaled = (_scaled(key, power) for key in keys for power in powers if "/" not in key and key[0].isdigit())
    return tuple(scaled) or tuple(keys)


def _scaled(key: str, power: int) -> str:
    """Return a canonical number times 10 ** power."""
    whole, _, fraction = key.partition(".")
    return _plain(whole + fraction[:power].ljust(power, "0") + "." + fraction[power:])


def _read_after(number: Number, text: str, position: int, language: str) -> tuple[int, bool]:
    """Add to a number what follows it: a multiplier such as million, a unit, or the mark of a time.

    Returns:
        (end of what was read, True if a part of the same number may follow, as after 亿).
    """
    character = text[position:position + 1]
    if not character or character in ".,;:!?)":
        return position, False
    if number.text.isdigit() and len(number.text) < 3 and (clock := _CLOCK.match(text, position)):
        hour = _clock(number.text, number.text, "00")
        if hour.keys:
            number.keys = (*number.keys, *hour.keys, *(hour.parts[0].keys if clock["uhr"] else ()))
            if clock["time"]:
                number.kind = "clock"
                return clock.end(), False
    match = _AFTER.match(text, position)
    word = match[2] or "" if match else ""
    if word in ("s", "er", "ern") and text[position] == word[0] and number.keys[0][-1] == "0":    # the 1980s
        number.keys = (number.keys[0], number.keys[0][-2:])
        return position + len(word), False
    if match and word < "\u2e80" and (powers := multiplier(word, language)):
        if len(word) == 1:                                                      # metres or millions; 4K
            if text[position] == word or word == "M":
                number.keys = (*number.keys, *_all_scaled(number.keys, powers))
        else:
            number.keys = _all_scaled(number.keys, powers)
            number.parts = ()
            position = match.end(2)
            second = _SECOND_WORD.match(text, position)
            if second and (more := multiplier(second[1], language)) and len(second[1]) > 2:     # mil millones
                number.keys = _all_scaled(number.keys, more)
                position = second.end()
            if text.startswith(".", position) and len(word) < 5:                # Mio.
                position += 1
            link = _LINK.match(text, position)
            match = _AFTER.match(text, link.end() if link and link[0] != " " else position)
    if not match:
        return position, False
    if match[1]:
        number.units = unit(match[1].replace(" ", ""))
        return match.end(1), False
    if match[2] >= "\u2e80":
        return _read_after_spaceless(number, text, match.start(2), language)
    for last in (4, 3, 2):
        if match[last]:
            number.units = unit(" ".join(match.groups()[1:last]))
            if number.units:
                return match.end(last), False
    return position, False


def _read_after_spaceless(number: Number, text: str, position: int, language: str) -> tuple[int, bool]:
    goes_on = False
    while text[position:position + 1] and text[position] in "多余餘来來":
        position += 1
    for size in range(9, 1, -1):                                                # 千瓦 is a unit, 千 alone a multiplier
        if units := unit(text[position:position + size]):
            number.units = units
            return position + size, False
    for size in (2, 1):
        if len(word := text[position:position + size]) == size and (powers := multiplier(word, language or "zh")):
            number.keys = _all_scaled(number.keys, powers[:1])
            number.parts = ()
            position, goes_on = position + size, True
            break
    while text[position:position + 1] and text[position] in "多余餘来來个個":
        position += 1
    for size in range(6, 0, -1):
        if len(word := text[position:position + size]) == size and (units := unit(word)):
            number.units = units
            return position + size, False
    return position, goes_on


def _unit_before(text: str) -> frozenset[str]:
    match = _SIGN_BEFORE.search(text)
    if not match:
        return NO_UNIT
    sign = match[1]
    return unit(sign) or unit(sign[-1] if sign[-1] in "$¥£" else "")


def unmatched(source: Sequence[Number], target: Sequence[Number]) -> tuple[list[Number], list[Number]]:
    """Return the numbers of each side, or parts of them, that have no counterpart on the other side.

    A counterpart shares a value, and no other unit is known for it. Each number is the counterpart of at most one. If a
    number has no counterpart, its parts may have some.
    """
    return unmatched_parts(*unmatched_wholes(source, target))


def unmatched_parts(source: list[Number], target: list[Number]) -> tuple[list[Number], list[Number]]:
    """Compare the parts of the numbers that `unmatched_wholes` has returned."""
    if not any(number.parts for number in (*source, *target)):
        return source, target
    return unmatched_wholes(*([part for number in side for part in number.parts or (number,)]
                              for side in (source, target)))


def unmatched_wholes(source: Sequence[Number], target: Sequence[Number]) -> tuple[list[Number], list[Number]]:
    """Like `unmatched`, but parts of numbers are not compared."""
    if not source or not target:
        return list(source), list(target)
    by_key: dict[str, dict[frozenset[str], list[int]]] = defaultdict(lambda: defaultdict(list))
    for index, number in reversed(list(enumerate(target))):
        for key in number.keys:
            by_key[key][number.units].append(index)
    taken: set[int] = set()
    left: list[Number] = []
    # Numbers with units choose first.
    for number in sorted(source, key=lambda number: not number.units):
        counterpart = _counterpart(number, by_key, taken)
        if counterpart is None:
            left.append(number)
        else:
            taken.add(counterpart)
    return left, [number for index, number in enumerate(target) if index not in taken]


def _counterpart(number: Number, by_key: dict[str, dict[frozenset[str], list[int]]], taken: set[int]) -> int | None:
    for key in number.keys:
        if key not in by_key:
            continue
        units = by_key[key]
        for one in (number.units, *(one for one in units if one & number.units), NO_UNIT,
                    *(() if number.units else units)):
            indices = units.get(one, ())
            while indices and indices[-1] in taken:
                indices.pop()
            if indices:
                return indices.pop()
    return None


def changed_signs(source: str, target: str) -> tuple[list[str], list[str]]:
    """Return the numbers with a minus sign on one side whose digits stand on the other side without one.

    Nothing is returned if one of the sides has a word for the sign, such as "below zero" or "drop".
    """
    ours, theirs = set(_NEGATIVE.findall(source)), set(_NEGATIVE.findall(target))
    if bool(ours) == bool(theirs) or _MINUS_WORD.search(target if ours else source):
        return [], []
    other = set(re.findall(r"\d+", target if ours else source))
    signed = sorted("-" + digits for digits in (ours or theirs) if digits in other)
    bare = [digits[1:] for digits in signed]
    return (signed, bare) if ours else (bare, signed)


def number_agreement(source: str, target: str, source_language: str = "", target_language: str = "") -> float:
    """Return the share of the numbers in digits that have a counterpart on the other side; 1 if there are no numbers.

    The share is 1 - unmatched / total. `total` is the larger of the two sides' counts of numbers. `unmatched` is the
    larger of their counts of numbers without a counterpart. Number words and numerals such as XIV and 三 are no
    counterparts.

    source_language, target_language: see `numbers`.
    """
    if not HAS_NUMBER.search(source) and not HAS_NUMBER.search(target):
        return 1.0
    of_source, of_target = numbers(source, source_language), numbers(target, target_language)
    left, right = unmatched(of_source, of_target)
    missing = max(len(left), len(right))
    return 1 - missing / max(len(of_source), len(of_target), missing) if missing else 1.0
