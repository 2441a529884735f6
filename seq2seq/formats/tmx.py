"""TMX 1.4, translation memories: units without a text in the target language get a translation.

Specification: https://www.gala-global.org/tmx-14b
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from seq2seq.formats.block import Block, DocumentError
from seq2seq.formats.spans import Edit
from seq2seq.formats.tmx_pairs import variant_language
from seq2seq.formats.units import Unit, unit_of
from seq2seq.formats.xml_tokens import XmlToken
from seq2seq.formats.xml_units import Role, XmlDocument, with_attribute
from seq2seq.languages import subtags

_ROLES: dict[str, Role] = {"bpt": "open", "ept": "close", "ph": "whole", "it": "whole", "ut": "whole"}


class TmxDocument(XmlDocument):
    """Translation memory. A source language such as "en" includes "en-GB"."""

    root = "tmx"

    def role(self, token: XmlToken) -> tuple[Role, str]:
        return _ROLES.get(token.local_name, "element"), token.attributes.get("i", "")

    def find_units(self) -> Iterator[Unit]:
        source, target = self.languages
        languages = sorted({variant_language(token.attributes) for token in self.tokens if token.local_name == "tuv"
                            and token.kind == "open"})
        if source and languages and not any(_same_language(one, source) for one in languages):
            raise DocumentError(f"no unit has a text in the source language {source}; the languages are "
                                f"{', '.join(languages[:20])}.")
        for unit, token in enumerate(self.tokens):
            if token.kind != "open" or token.local_name != "tu" or self._variant(unit, target) is not None:
                continue
            variant = self._variant(unit, source)
            segment = next(self.xml.children(variant, "seg"), None) if variant is not None else None
            if variant is None or segment is None:
                continue
            place = self.xml.span(variant, self.xml.ends[variant])[1]
            yield unit_of(place, place, self.xml.content(segment), info=(variant, segment))

    def _variant(self, unit: int, language: str) -> int | None:
        """Return the first <tuv> element in a language; None if there is none."""
        return next((one for one in self.xml.children(unit, "tuv")
                     if language and _same_language(variant_language(self.tokens[one].attributes), language)), None)

    def edits(self, unit: Unit, blocks: Sequence[Block], language: str) -> Iterator[Edit]:
        """Yield the edit that adds a <tuv> element after the one of the source language."""
        xml, (variant, segment) = self.xml, unit.info
        name, end = self.tokens[variant].name, xml.ends[variant]
        attribute = "xml:lang" if "xml:lang" in self.tokens[variant].attributes else "lang"
        opening = with_attribute(f"<{name}>", attribute, language)
        yield unit.begin, unit.end, (
            f"{xml.margin(variant)}{opening}{xml.margin(segment)}{self.tokens[segment].raw}"
            f"{self.write(unit, blocks[0])}{self.tokens[xml.ends[segment]].raw}{xml.margin(end)}</{name}>")


def _same_language(one: str, other: str) -> bool:
    """Return True if two language codes agree in the subtags that both have: en, eng and en-GB agree."""
    return all(first == second for first, second in zip(subtags(one), subtags(other), strict=False))
