"""Detection of texts in a wrong language, by character n-grams learned from the corpus, or by the package lingua."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from unicodedata import normalize

from seq2seq.errors import UserError
from seq2seq.languages import SPACELESS_CHARACTER, main_language

if TYPE_CHECKING:
    from seq2seq.recipe import Languages

LETTERS = re.compile(r"[^\W\d_]+")
N_GRAM_LENGTH = 3
SMOOTHING = 0.5
"""Number that is added to the count of each n-gram (Jeffreys' prior)."""
# For each n-gram of a text, `SideLanguages` computes the log odds, in nats, that the n-gram is in the other side's
# language. The text is in the wrong language if the sum of these log odds is above MIN_LOG_ODDS and their mean is above
# MIN_MEAN_LOG_ODDS. Names spelled alike in both languages have log odds near 0. Five words have some 30 n-grams.
MIN_LOG_ODDS = 8.0
MIN_MEAN_LOG_ODDS = 0.35
# For `LanguageDetector`, a text is in the wrong language if lingua assigns a probability of at least
# MIN_OTHER_PROBABILITY to another language, and less than MIN_EXPECTED_PROBABILITY to the expected language. Only texts
# with at least MIN_LETTERS letters are checked. Shorter texts are mostly names and codes.
MIN_OTHER_PROBABILITY, MIN_EXPECTED_PROBABILITY, MIN_LETTERS = 0.3, 0.03, 15


class SideLanguages:
    """Naive Bayes classifier over character n-grams that distinguishes the languages of the two sides of a corpus.

    Both languages are learned from the corpus. Wrong text is not detected if it is in a third language, or if both
    sides of the whole corpus have the same language. Cavnar and Trenkle 1994 also use character n-grams, but compare
    n-gram ranks.
    """

    def __init__(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Learn from parallel text. Most of the texts must be in the language of their side."""
        counts = [Counter[str](), Counter[str]()]
        for texts in pairs:
            for count, text in zip(counts, texts, strict=True):
                count.update(_grams(_words(text)))
        grams = counts[0].keys() | counts[1].keys()
        source, target = (count.total() + SMOOTHING * len(grams) for count in counts)
        self._log_odds = {                                                      # positive for the source's language
            gram: math.log((counts[0][gram] + SMOOTHING) / source * target / (counts[1][gram] + SMOOTHING))
            for gram in grams}

    def wrong(self, source: str, target: str) -> list[str]:
        """Return the sides with text in the other side's language, some of `source` and `target`.

        A side is wrong only if both its whole text and its own words, if there are any, look like the other side's
        language. Own words are words that do not occur on the other side; words on both sides may be names. In the
        pair `Golf Cabrio (ab 2011)`, `Golf Cabrio (from 2011)`, the own words `ab` and `from` show that both are right.
        """
        sides, found = {"source": _words(source), "target": _words(target)}, []
        for side, other, sign in (("source", "target", -1), ("target", "source", 1)):
            words = sides[side]
            log_odds = self._log_odds_of(words)
            if sign * sum(log_odds) > max(MIN_LOG_ODDS, MIN_MEAN_LOG_ODDS * len(log_odds)):
                remaining = self._log_odds_of(_words_not_in(words, sides[other]))
                if not remaining or sign * sum(remaining) > 0:
                    found.append(side)
        return found

    def _log_odds_of(self, words: list[str]) -> list[float]:
        return [self._log_odds[gram] for gram in _grams(words) if gram in self._log_odds]


def _words(text: str) -> list[str]:
    return LETTERS.findall(text.lower())


def _words_not_in(words: list[str], others: list[str]) -> list[str]:
    """Return the words that do not occur in `others`."""
    excluded = set(others)
    return [word for word in words if word not in excluded]


def _grams(words: list[str]) -> list[str]:
    spaced = f" {' '.join(words)} "
    return [spaced[begin : begin + N_GRAM_LENGTH] for begin in range(len(spaced) - N_GRAM_LENGTH + 1)]


class LanguageDetector:
    """Language identification by lingua among all 75 languages that it supports. One text takes some 7 ms.

    can_check: False if lingua lacks the languages of both sides. fault: message if it lacks the language of a side,
    whose texts are then never wrong; else None.
    """

    def __init__(self, languages: Languages) -> None:
        """Load lingua's models."""
        if not is_installed():
            raise UserError("Language identification needs the package lingua, which is not installed. Install it: "
                            "pip install lingua-language-detector")
        import lingua

        self._languages = languages
        codes = lingua_languages()
        self._expected = [codes.get(main_language(code or "")) for code in (languages.source, languages.target)]
        self.can_check = any(self._expected)
        lacking = [f"the {side}, {code}," for side, code, expected in zip(
            ("source", "target"), (languages.source, languages.target), self._expected, strict=True)
            if code is not None and expected is None]
        self.fault = None if not lacking else (
            f"lingua does not support the language of {' nor that of '.join(lacking)} so it cannot find lines of it in "
            "other languages. data.cleaning.language: sides learns both languages from the text instead.")
        self._detector = lingua.LanguageDetectorBuilder.from_all_languages().build()

    def __reduce__(self) -> tuple[Any, ...]:
        return LanguageDetector, (self._languages,)                             # lingua's models cannot be pickled

    def wrong(self, source: str, target: str) -> dict[str, str]:
        """Return the language code of each side, `source` or `target`, that is certainly in a wrong language."""
        found = {}
        for side, text, other, expected in zip(("source", "target"), (source, target), (target, source),
                                               self._expected, strict=True):
            if expected is not None and (code := self._other_language(text, other, expected)):
                found[side] = code
        return found

    def _other_language(self, text: str, other: str, expected: Any) -> str:
        if not has_enough_letters(text):
            return ""
        values = self._probabilities(text)
        likely = max(values, key=lambda language: values[language])
        if values[likely] < MIN_OTHER_PROBABILITY or values[expected] >= MIN_EXPECTED_PROBABILITY:
            return ""
        # As in SideLanguages.wrong, the words that do not occur on the other side are checked, too.
        remaining = _words_not_in(_words(text), _words(other))
        if remaining and self._probabilities(" ".join(remaining))[expected] >= MIN_EXPECTED_PROBABILITY:
            return ""
        return str(likely.iso_code_639_1.name.lower())

    def _probabilities(self, text: str) -> dict[Any, float]:
        values = self._detector.compute_language_confidence_values(normalize("NFC", text))
        return {value.language: value.value for value in values}


def has_enough_letters(text: str, minimum: int = MIN_LETTERS) -> bool:
    """Return True if a text has so many letters that lingua can identify its language. A character of a script without
    spaces counts as three letters: words have some two Chinese characters, or six letters."""
    return sum(map(str.isalpha, text)) + 2 * len(SPACELESS_CHARACTER.findall(text)) >= minimum


def is_installed() -> bool:
    return find_spec("lingua") is not None


def lingua_languages() -> dict[str, Any]:
    """Return lingua's languages by code. lingua has nb and nn, but not no, which is nearly always nb."""
    import lingua

    codes = {language.iso_code_639_1.name.lower(): language for language in lingua.Language.all()}
    return {**codes, "no": codes["nb"]}
