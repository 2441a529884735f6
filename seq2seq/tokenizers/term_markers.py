"""Terminology in source text: target words stand in place of the source term (Dinu et al. 2019, arXiv:1906.01105)."""

from __future__ import annotations

from collections.abc import Iterable

from seq2seq.languages import SPACELESS_CHARACTER
from seq2seq.tokenizers.vocabulary import Vocabulary

TERM_TARGET = "⦅"
"""Character U+2985, before the target words of a term."""
TERM_END = "⦆"
"""Character U+2986, after the target words."""
TERM_MARKERS = (TERM_TARGET, TERM_END)

PARENTHESES = {ord(TERM_TARGET): "(", ord(TERM_END): ")"}


def annotate(text: str, terms: Iterable[tuple[int, int, str]]) -> str:
    """Return source text in which each term is replaced by its target words: `a ⦅ Katze⦆ sees`.

    Training and translation use this function, so that their texts have the same form. The source words are left
    out, because a model that sees them translates them and ignores the target words. Except in scripts without spaces,
    a space precedes the target words, so that they get the same pieces as in ordinary text. Markers in the text itself
    become parentheses.

    Args:
        terms: (begin, end, target words) of each term; begin and end are character offsets in `text`. A term that is
            empty or overlaps an earlier one is left out.
    """
    parts, position = [], 0
    for begin, end, target in sorted(terms, key=lambda term: term[:2]):
        target = " ".join(target.translate(PARENTHESES).split())
        if not position <= begin < end <= len(text) or not target:
            continue
        space = "" if SPACELESS_CHARACTER.match(target) else " "
        parts += [text[position:begin].translate(PARENTHESES), TERM_TARGET, space, target, TERM_END]
        position = end
    return "".join([*parts, text[position:].translate(PARENTHESES)])


def has_term_markers(tokenizer: Vocabulary) -> bool:
    """Return True if each marker is a piece of the vocabulary."""
    return all(tokenizer.pieces(ids)[-1:] == [marker]
               for marker, ids in zip(TERM_MARKERS, tokenizer.encode(TERM_MARKERS), strict=True))
