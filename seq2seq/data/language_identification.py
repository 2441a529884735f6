"""Detection of lines in a wrong language, by character n-grams learned from the corpus, or by lingua (75 languages)."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from seq2seq.errors import UserError
from seq2seq.recipe.language_codes import subtags

if TYPE_CHECKING:
    from seq2seq.recipe import Languages

LETTERS = re.compile(r"[^\W\d_]+")
GRAM = 3
SMOOTHING = 0.5
"""Added to each count (Jeffreys' prior)."""
# Least evidence that a text belongs to the other side, in nats: in total, and per n-gram. Names with the same spelling
# in both languages give almost none; a sentence of five words has some 30 n-grams.
LEAST_EVIDENCE = 8.0
LEAST_EVIDENCE_A_GRAM = 0.35
# Thresholds of lingua's probabilities: a text is in another language if that one has at least the first, and the
# expected one less than the second.
OTHER_LIKELY, OWN_UNLIKELY = 0.3, 0.03
# Shorter texts are not judged: names and codes.
LEAST_LETTERS = 15


class SideLanguages:
    """Naive Bayes classifier of the sides of a corpus over character n-grams.

    Cavnar and Trenkle 1994 rank the same n-grams. It needs no knowledge of the languages. It finds nothing if both
    sides are in the same language, and cannot recognise a third one.
    """

    def __init__(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Learn from parallel text, most of which must be on the right side."""
        counts = [Counter[str](), Counter[str]()]
        for texts in pairs:
            for count, text in zip(counts, texts, strict=True):
                count.update(_grams(_words(text)))
        every = counts[0].keys() | counts[1].keys()
        source, target = (count.total() + SMOOTHING * len(every) for count in counts)
        self._odds = {gram: math.log((counts[0][gram] + SMOOTHING) / source * target / (counts[1][gram] + SMOOTHING))
                      for gram in every}

    def wrong(self, source: str, target: str) -> str | None:
        """Return the side whose text looks like the other language, `source` or `target`; None if both are right.

        Words on both sides may be names. So the words of one side only, if there are any, must look like the other
        language, too: in `Golf Cabrio (ab 2011)` beside `Golf Cabrio (from 2011)` they do not.
        """
        sides = {"source": _words(source), "target": _words(target)}
        for side, other, sign in (("source", "target", -1), ("target", "source", 1)):
            words = sides[side]
            odds = self._odds_of(words)
            evidence = sign * sum(odds)
            if evidence > max(LEAST_EVIDENCE, LEAST_EVIDENCE_A_GRAM * len(odds)):
                own = self._odds_of(_own_words(words, sides[other]))
                if not own or sign * sum(own) > 0:
                    return side
        return None

    def _odds_of(self, words: list[str]) -> list[float]:
        return [self._odds[gram] for gram in _grams(words) if gram in self._odds]


def _words(text: str) -> list[str]:
    return LETTERS.findall(text.lower())


def _own_words(words: list[str], others: list[str]) -> list[str]:
    """Return the words that are not among the others."""
    known = set(others)
    return [word for word in words if word not in known]


def _share(language: Any, values: Any) -> float:
    """Return lingua's probability of a language."""
    return next(value.value for value in values if value.language == language)


def _grams(words: list[str]) -> list[str]:
    spaced = f" {' '.join(words)} "
    return [spaced[place : place + GRAM] for place in range(len(spaced) - GRAM + 1)]


class LanguageDetector:
    """Language identification by lingua, among all its languages; takes some 7 ms per text."""

    def __init__(self, languages: Languages) -> None:
        """
        Raises:
            UserError: lingua is not installed, or does not know one of the two.
        """
        try:
            import lingua
        except ImportError:
            raise UserError("lingua is not installed, which recognises languages: pip install lingua-language-detector."
                            ) from None
        codes = {language.iso_code_639_1.name.lower(): language for language in lingua.Language.all()}
        self._own: list[Any] = []
        for code in (languages.source, languages.target):
            short = subtags(code or "")[0]
            short = {"no": "nb"}.get(short, short)                              # lingua knows only its two forms
            if code is not None and short not in codes:
                raise UserError(f"lingua does not know the language '{code}'; it knows {', '.join(sorted(codes))}.")
            self._own.append(codes.get(short))
        self._detector = lingua.LanguageDetectorBuilder.from_all_languages().build()

    def wrong(self, source: str, target: str) -> str | None:
        """Return the side that is in another language, `source` or `target`; None if none is, or it is uncertain."""
        for side, text, beside, own in zip(("source", "target"), (source, target), (target, source), self._own,
                                           strict=True):
            if own is not None and self._is_other(text, beside, own):
                return side
        return None

    def _is_other(self, text: str, beside: str, own: Any) -> bool:
        if sum(map(str.isalpha, text)) < LEAST_LETTERS:
            return False
        values = self._detector.compute_language_confidence_values(text)
        likeliest = values[0]
        if likeliest.language == own or likeliest.value < OTHER_LIKELY or _share(own, values) >= OWN_UNLIKELY:
            return False
        # As in SideLanguages.wrong, words on both sides may be names, so the words of this side only are tested, too.
        rest = _own_words(_words(text), _words(beside))
        return not rest or _share(own, self._detector.compute_language_confidence_values(" ".join(rest))) < OWN_UNLIKELY


def is_installed() -> bool:
    """Return True if lingua is installed."""
    from importlib.util import find_spec

    return find_spec("lingua") is not None

