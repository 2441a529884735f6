"""Language tokens: `>>de<<` at the beginning of a line selects one target language of a model that has several."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from seq2seq.tokenizers.source import Source

LANGUAGE_TOKEN = re.compile(r">>.*?<<")
"""Pattern of the language tokens."""


def split_language_token(line: str) -> tuple[str, str]:
    """Return the language token that a line begins with, or "", and the line without it. White space before the token
    is kept, unless nothing else remains."""
    text = line.lstrip()
    match = LANGUAGE_TOKEN.match(text)
    if match is None:
        return "", line
    rest = text[match.end():].lstrip()
    return match[0], rest and line[:len(line) - len(text)] + rest


def with_language(source: Source, is_piece: Callable[[str], bool], default: str = "") -> Source:
    """Return a source with its language: the given one, or the token that its text begins with, or `default`.

    is_piece: function that returns True if a token is a piece of the vocabulary. Other tokens are text.
    """
    if source.language:
        return source
    token, text = split_language_token(source.text)
    if token and is_piece(token):
        return replace(source, text=text, language=token)
    return replace(source, language=default) if default else source
