"""Modifiers that change letters, or the beginning or end of a sentence: case, typos, final stop, noise.

They follow the modifiers of OpusTrainer (Bogoychev et al. 2023, arXiv:2311.14838) and the synthetic noise of Karpukhin
et al. 2019 (arXiv:1902.01509). Each modifier returns the changed source and target, or both texts unchanged if the
modifier does not apply to the pair.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from random import Random

from seq2seq.data.alignment_links import Link
from seq2seq.data.batching import derived_seed
from seq2seq.languages import combining_marks, main_language

Texts = tuple[str, str]
"""Source and target text."""

FINAL_STOPS = ".。"
# Text that gets no typos: words with digits or certain symbols, as in URLs, e-mail addresses, placeholders and tags.
PROTECTED = re.compile(r"[^\s]*[\d@{}<>%$\\_/|#=][^\s]*|www\.\S+|:\w\S*")
LETTERS = re.compile(r"[^\W\d_]+")
SPACELESS_WORD = 2
"""Approximate number of characters of a word in text without spaces."""
KEYBOARD_ROWS = ("qwertyuiop", "asdfghjkl", "zxcvbnm", "йцукенгшщзхъ", "фывапролджэ", "ячсмитьбю")
NEIGHBOURS = {letter: (row[max(index - 1, 0):index] + row[index + 1:index + 2])
              for row in KEYBOARD_ROWS for index, letter in enumerate(row)}
EMOJI = "😀😂🙂😍😎🤔😢😡👍👎🙏💪🎉🔥✨❤⭐✅❌⚠📧📞🚀🏠🐱🐶🍕☕🌍🌞"
SYMBOLS = "!?#$%&*+-/=@^_~|§©®™°±×÷→←↑↓•…†‡№€£¥✓★☆■□▲▼◆♪"
NOISE_CHARACTERS = EMOJI + SYMBOLS + "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"


@dataclass(frozen=True)
class SentencePair:
    """A training pair.

    languages: codes of source and target. links: function that returns the word alignment of the pair.
    """

    source: str
    target: str
    languages: tuple[str, str]
    links: Callable[[], list[Link]]

    @property
    def texts(self) -> Texts:
        return self.source, self.target

    def each(self, change: Callable[[str, str], str]) -> Texts:
        """Return both sides, each changed by `change(text, language)`."""
        return change(self.source, self.languages[0]), change(self.target, self.languages[1])


def in_upper_case(text: str, language: str) -> str:
    """Return the text in upper case. In Turkish and Azerbaijani, `i` becomes `İ`."""
    return (text.replace("i", "İ") if main_language(language) in ("tr", "az") else text).upper()


def in_title_case(text: str, language: str) -> str:
    """Return the text with the first letter of each word in title case. Other letters do not change."""
    return _word_begin().sub(
        lambda match: in_upper_case("i", language) if match[0] == "i" else match[0].title(), text)


@cache
def _word_begin() -> re.Pattern[str]:
    return re.compile(rf"(?<![\w'’{combining_marks()}])[^\W\d_]")


def without_final_stop(text: str, language: str = "") -> str:
    """Return the text without `.` or `。` at its end. Several stops, as in an ellipsis, are kept."""
    stripped = text.rstrip()
    if len(stripped) > 1 and stripped[-1] in FINAL_STOPS and stripped[-2] not in FINAL_STOPS:
        return stripped[:-1].rstrip()
    return text


def upper_case(pair: SentencePair, random: Random) -> Texts:
    return pair.each(in_upper_case)


def title_case(pair: SentencePair, random: Random) -> Texts:
    return pair.each(in_title_case)


def no_final_stop(pair: SentencePair, random: Random) -> Texts:
    """Remove the final stop of both sides if both sides have a final stop."""
    changed = pair.each(without_final_stop)
    return changed if changed[0] != pair.source and changed[1] != pair.target else pair.texts


def typos(pair: SentencePair, random: Random) -> Texts:
    return with_typos(pair.source, random), pair.target


def with_typos(text: str, random: Random) -> str:
    """Return the text with one or two typos per ten words, but at least one typo.

    A typo swaps two adjacent letters, or drops, doubles or replaces a letter. The first letter of a word never changes,
    nor do numbers, URLs, placeholders and tags. If no letter may change, the text is unchanged.
    """
    protected = [match.span() for match in PROTECTED.finditer(text)]
    places: list[int] = []
    for match in LETTERS.finditer(text):
        while protected and protected[0][1] <= match.start():
            protected.pop(0)
        if not protected or match.end() <= protected[0][0]:
            places += range(match.start() + 1, match.end() - 1)
    if not places:
        return text
    spaces = text.count(" ")
    words = spaces + 1 if spaces * 16 > len(text) else len(text) / SPACELESS_WORD
    count = min(max(1, round(random.uniform(0.1, 0.2) * words)), len(places))
    for place in sorted(random.sample(places, count), reverse=True):
        text = text[:place] + _mistyped(text[place:place + 2], random) + text[place + 2:]
    return text


def _mistyped(letters: str, random: Random) -> str:
    """Return `letters`, two adjacent letters, with a typo."""
    first, second = letters[0], letters[1]
    neighbours = NEIGHBOURS.get(first.lower(), "")
    kind = random.choice(("swap", "drop", "double", "replace"))
    if kind == "swap" and first != second:
        return second + first
    if kind == "drop":
        return second
    if kind == "replace" and neighbours:
        other = random.choice(neighbours)
        return (other.upper() if first.isupper() else other) + second
    return first + first + second


def noise(pair: SentencePair, random: Random) -> Texts:
    """Add the same random characters at the beginning or end of both sides, or replace both sides by the characters."""
    words = ["".join(random.choices(random.choice((EMOJI, SYMBOLS, NOISE_CHARACTERS)), k=random.randint(1, 8)))
             for _ in range(random.randint(1, 3))]
    text = " ".join(words)
    form = random.choice(("{noise}", "{noise} {text}", "{text} {noise}"))
    return form.format(noise=text, text=pair.source), form.format(noise=text, text=pair.target)


# Robustness slices: changed copies of a test set, which measure the robustness of a model


SLICES: dict[str, Callable[[SentencePair, Random], Texts]] = {
    "clean": lambda pair, random: pair.texts, "upper_case": upper_case, "title_case": title_case,
    "no_final_stop": no_final_stop, "typos": typos}


def robustness_slices(sources: Sequence[str], references: Sequence[str], languages: tuple[str, str], seed: int = 1
                      ) -> dict[str, tuple[list[str], list[str]]]:
    """Return the sources and references of each slice: clean, upper_case, title_case, no_final_stop, typos.

    The reference is changed like the source: to upper case for upper_case, to title case for title_case, without the
    final stop for no_final_stop. For typos, only the source is changed. Every slice contains all lines.

    Args:
        languages: codes of source and target.
        seed: seed of the typos; the same seed always gives the same typos.
    """
    pairs = [SentencePair(*texts, languages, list) for texts in zip(sources, references, strict=True)]
    slices = {}
    for name, modifier in SLICES.items():
        changed = [modifier(pair, Random(derived_seed(seed, name, index))) for index, pair in enumerate(pairs)]
        slices[name] = [source for source, _ in changed], [target for _, target in changed]
    return slices
