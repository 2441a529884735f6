"""TMX 1.4, translation memories: units without a text in the target language get a translation.

Specification: https://www.gala-global.org/tmx-14b
"""

from __future__ import annotations

from collections.abc import Sequence

from seq2seq.formats.block import Block, DocumentError
from seq2seq.formats.texts import is_text, trim
from seq2seq.formats.xml_tokens import XmlToken
from seq2seq.formats.xml_units import Role, XmlFile, with_attribute
from seq2seq.languages import subtags

_ROLES: dict[str, Role] = {"bpt": "open", "ept": "close", "ph": "whole", "it": "whole", "ut": "whole"}


class TmxDocument:
    """Translation memory, with the interface `Document`."""

    def __init__(self, data: bytes, source_language: str, target_language: str = "") -> None:
        """Parse a translation memory.

        Args:
            source_language: language of the texts to translate, such as "en", which includes "en-GB".
            target_language: language to translate into. Units that have a text in this language already are not in
                `blocks`. If it is "", all units are in `blocks`, and `render` skips units that are already translated.
        """
        self._xml = XmlFile(data, "tmx", _role)
        self.blocks: list[Block] = []
        self._units: list[tuple[int, int, int]] = []                            # tu, tuv, seg of each block
        languages = sorted({_language(token) for token in self._xml.tokens if token.local_name == "tuv"
                            and token.kind == "open"})
        if source_language and languages and not any(_same_language(one, source_language) for one in languages):
            raise DocumentError(f"no unit has a text in the source language {source_language}; the languages are "
                                f"{', '.join(languages[:20])}.")
        for unit, token in enumerate(self._xml.tokens):
            if token.kind != "open" or token.local_name != "tu" or self._variant(unit, target_language) is not None:
                continue
            variant = self._variant(unit, source_language)
            segment = next(self._xml.children(variant, "seg"), None) if variant is not None else None
            if variant is None or segment is None:
                continue
            _, block, _ = trim(self._xml.content(segment))
            if is_text(block.text):
                self.blocks.append(block)
                self._units.append((unit, variant, segment))

    def _variant(self, unit: int, language: str) -> int | None:
        """Return the first <tuv> element in a language; None if there is none."""
        return next((one for one in self._xml.children(unit, "tuv")
                     if language and _same_language(_language(self._xml.tokens[one]), language)), None)

    def render(self, translations: Sequence[Block], target_language: str) -> bytes:
        edits = []
        xml = self._xml
        for (unit, variant, segment), new, block in zip(self._units, translations, self.blocks, strict=True):
            if new == block or self._variant(unit, target_language) is not None:
                continue
            end = xml.ends[variant]
            attribute = "xml:lang" if "xml:lang" in xml.tokens[variant].attributes else "lang"
            name = xml.tokens[variant].name
            opening = with_attribute(f"<{name}>", attribute, target_language)
            place = xml.span(variant, end)[1]
            edits.append((place, place, f"{xml.margin(variant)}{opening}{xml.margin(segment)}{xml.tokens[segment].raw}"
                          f"{xml.translated(segment, new)}{xml.tokens[xml.ends[segment]].raw}{xml.margin(end)}"
                          f"</{name}>"))
        return xml.encode(edits)


def _role(token: XmlToken) -> tuple[Role, str]:
    return _ROLES.get(token.local_name, "element"), token.attributes.get("i", "")


def _language(token: XmlToken) -> str:
    return token.attributes.get("xml:lang", token.attributes.get("lang", ""))


def _same_language(one: str, other: str) -> bool:
    """Return True if two language codes agree in the subtags that both have: en, eng and en-GB agree."""
    return all(first == second for first, second in zip(subtags(one), subtags(other), strict=False))
