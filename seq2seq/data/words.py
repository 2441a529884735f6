"""Comparison of words that ignores their inflection."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache, lru_cache

from seq2seq.languages import SPACELESS, combining_marks, main_language, spaceless_cluster
from seq2seq.tokenizers.canonical_text import INVISIBLE
from seq2seq.tokenizers.line_splitting import Span

MIN_STEM = 4
"""Minimum length of the common beginning of two forms of one word, if the language has no lemmatizer."""
MAX_ENDING = 3
"""Maximum length of an ending after the common beginning, if the language has no lemmatizer."""


def words(text: str) -> list[Span]:
    """Return the spans of the words of a text. In scripts without spaces between words, each cluster is a word (see
    `spaceless_cluster`). Combining marks belong to the letter before them. Invisible characters between letters, such
    as soft hyphens, do not end a word."""
    return [match.span() for match in _word().finditer(text)]


@cache
def _word() -> re.Pattern[str]:
    marks = combining_marks()
    letter = rf"[^\W_{SPACELESS}]"
    letters = f"{letter}+(?:[{marks}]+{letter}*|[{INVISIBLE}]+{letter}+)*"
    return re.compile(f"{spaceless_cluster()}|{letters}(?:['’]{letters})*")


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
    lower = lower_case(word, language)
    # simplemma lowers capitals by the rules of English.
    variants = {variant for variant in (word, lower, word.capitalize()) if variant.lower() == lower}
    return frozenset([lower, *(lower_case(lemmatize(variant), language) for variant in variants if lemmatize)])


def lower_case(text: str, language: str) -> str:
    """Return the text in lower case. In Turkish and Azerbaijani, `I` becomes `ı`, and `İ` becomes `i`."""
    if main_language(language) in ("tr", "az"):
        text = text.replace("I", "ı").replace("İ", "i")
    return text.lower()


def same_word(word: str, other: str, language: str) -> bool:
    """Return True if two words are forms of one word: if they have a common lemma or, without a lemmatizer for the
    language, differ only in their endings."""
    lower, other_lower = lower_case(word, language), lower_case(other, language)
    if lower == other_lower:
        return True
    if _lemmatizer(language):
        return bool(lemmas(word, language) & lemmas(other, language))
    common = 0
    for first, second in zip(lower, other_lower, strict=False):
        if first != second:
            break
        common += 1
    return common >= MIN_STEM and max(len(word), len(other)) - common <= MAX_ENDING
