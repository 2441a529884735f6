"""Language tokens: `>>de<<` at the beginning of a line selects one target language of a model that has several."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from seq2seq.recipe.data_section import Languages
from seq2seq.recipe.directions import direction_into, language_token, targets_of
from seq2seq.tokenizers.canonical_text import MARGIN
from seq2seq.tokenizers.source import Source, as_source

LANGUAGE_TOKEN = re.compile(r">>([A-Za-z]{2,8}(?:[_-][A-Za-z0-9]{1,8})*)<<")
"""Pattern of the language tokens. The group is the language code."""


def split_language_token(line: str) -> tuple[str, str]:
    """Return the code of the language token that a line begins with, or "", and the line without the token. White space
    and invisible characters before the token are kept, unless nothing else remains."""
    text = line.lstrip(MARGIN)
    match = LANGUAGE_TOKEN.match(text)
    if match is None:
        return "", line
    rest = text[match.end():].lstrip(MARGIN)
    return match[1], rest and line[:len(line) - len(text)] + rest


@dataclass(frozen=True)
class Directions:
    """Directions of a model, which decide about the language of each source.

    chosen: direction of sources that name no language. all: all directions. codes: target languages that the vocabulary
    has tokens for. A line may begin with one of these tokens; a token of another language is text. names_sources: True
    if the vocabulary reads `Source.source_language`.
    """

    chosen: Languages
    all: tuple[Languages, ...]
    codes: tuple[str, ...]
    names_sources: bool = False

    @property
    def tokens(self) -> list[str]:
        """Language tokens that a line may begin with."""
        return list(map(language_token, self.codes))

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """Codes of source and target of all directions. A model that reads the language of the source translates from
        each of its source languages into each of its target languages."""
        listed = [each.pair for each in self.all]
        if not self.names_sources:
            return listed
        sources, targets = (dict.fromkeys(codes) for codes in zip(*listed, strict=True))
        return [(source, target) for source in sources for target in targets if source != target]

    def into(self, target: str, source: str = "") -> Directions:
        """Return the directions with another target language. If there is only one, it is kept, whatever its name. If
        the vocabulary reads the language of the source, this language becomes `source`, or stays if that is ""."""
        if source and self.names_sources:
            return replace(self, chosen=direction_into(target, self.all, source))
        if target == self.chosen.target or len(targets_of(self.all)) == 1:
            return self
        found = direction_into(target, self.all)
        if self.names_sources and self.chosen.source != found.target:
            found = direction_into(target, self.all, self.chosen.source)
        return replace(self, chosen=found)

    def source(self, line: str | Source) -> Source:
        """Return a line with its target language (see `_with_target`), and with its own language if the vocabulary
        needs it."""
        source = self._with_target(line)
        if not self.names_sources or source.source_language:
            return source
        return replace(source, source_language=self.into(source.language).chosen.source or "")

    def _with_target(self, line: str | Source) -> Source:
        """Return a line with its target language: the given one, or that of the language token at the beginning of its
        text, which is removed, or that of the chosen direction. Without tokens, no line has a language.
        """
        source, target = as_source(line), self.chosen.target
        if not self.codes:
            return replace(source, language="") if source.language else source
        if source.language:
            target = self.into(source.language).chosen.target
        elif source.text.lstrip(MARGIN).startswith(">>"):
            code, text = split_language_token(source.text)
            if code in self.codes:
                return replace(source, text=text, language=code)
        return source if target == source.language else replace(source, language=target)
