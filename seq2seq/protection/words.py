"""Comparison of words that ignores their inflection."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

from seq2seq.data.line_splitting import Span
from seq2seq.recipe.language_codes import main_language

# A word, or a single character of a script without spaces between words.
_SPACELESS = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3041-\u30ff\u3400-\u9fff\uf900-\ufaff"
_WORD = re.compile(f"[{_SPACELESS}]|[^\\W_{_SPACELESS}]+(?:['’][^\\W_{_SPACELESS}]+)*")
SPACELESS_CHARACTER = re.compile(f"[{_SPACELESS}]")
MIN_STEM = 4
"""Minimum length of the common beginning of two forms of one word, if the language has no lemmatizer."""
MAX_ENDING = 3
"""Maximum length of an ending after the common beginning, if the language has no lemmatizer."""


def words(text: str) -> list[Span]:
    """Return the spans of the words of a text. In scripts without spaces between words, each character is a word."""
    return [match.span() for match in _WORD.finditer(text)]


@lru_cache(maxsize=32)
def _lemmatizer(language: str) -> Callable[[str], str] | None:
    """Return simplemma's lemmatizer of a language; None if it is not installed or does not know the language."""
    try:
        import simplemma

        simplemma.lemmatize("a", lang=main_language(language))
    except (ImportError, ValueError):
        return None
    return lambda word: str(simplemma.lemmatize(word, lang=main_language(language)))


@lru_cache(maxsize=200_000)
def lemmas(word: str, language: str) -> frozenset[str]:
    """Return the possible lemmas of a word in lower case, and the word itself in lower case.

    The word is looked up as it is, in lower case and capitalized: lemmatizers know German nouns only with a capital.
    """
    lemmatize = _lemmatizer(language)
    variants = {word, word.lower(), word.capitalize()} if lemmatize else set()
    return frozenset([word.lower(), *(lemmatize(variant).lower() for variant in variants if lemmatize)])


def same_word(word: str, other: str, language: str) -> bool:
    """Return True if two words are forms of one word: if they have a common lemma or, without a lemmatizer for the
    language, differ only in their endings."""
    if word.lower() == other.lower():
        return True
    if _lemmatizer(language):
        return bool(lemmas(word, language) & lemmas(other, language))
    common = 0
    for first, second in zip(word.lower(), other.lower(), strict=False):
        if first != second:
            break
        common += 1
    return common >= MIN_STEM and max(len(word), len(other)) - common <= MAX_ENDING
