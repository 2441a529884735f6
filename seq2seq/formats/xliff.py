"""XLIFF 1.2, 2.0 and 2.1: units without a translation get a target, with a state that calls for a review.

Specifications: https://docs.oasis-open.org/xliff/v1.2/os/xliff-core.html and
https://docs.oasis-open.org/xliff/xliff-core/v2.1/xliff-core-v2.1.html
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from seq2seq.formats.block import Block, DocumentError
from seq2seq.formats.spans import replace_spans
from seq2seq.formats.texts import is_text, trim
from seq2seq.formats.tmx_pairs import separates_words
from seq2seq.formats.xliff_pairs import LANGUAGES, UNTRANSLATED_STATES
from seq2seq.formats.xml_tokens import XmlToken
from seq2seq.formats.xml_units import Role, XmlFile, with_attribute
from seq2seq.languages import is_same_language

_FINAL = {"final", "signed-off", "reviewed"}


@dataclass(slots=True)
class _Unit:
    """Source with its target. Elements are identified by the index of their first token, as in `XmlFile`.

    copied: element that the target copies: <seg-source>, or <source> if there is none. holder: <trans-unit> (1.2) or
    <segment> (2.x). pieces: elements whose contents are blocks, each with the block's index in Document.blocks.
    """

    copied: int
    target: int | None
    holder: int
    pieces: list[tuple[int, int]] = field(default_factory=list)


class XliffDocument:
    """XLIFF, with the interfaces `Document` and `NamesLanguages`. Native code in <bpt>, <ept>, <ph> and <it> is part
    of the tag."""

    def __init__(self, data: bytes) -> None:
        """Raises DocumentError: the document is not well-formed, or not XLIFF 1 or 2."""
        self._xml = XmlFile(data, "xliff", self._role)
        version = self._xml.tokens[self._xml.root].attributes.get("version", "")
        self._version = version[:1]
        if self._version not in UNTRANSLATED_STATES:
            raise DocumentError(f"the document is XLIFF '{version}', not 1.2, 2.0 or 2.1.")
        self.blocks: list[Block] = []
        self.source_languages: set[str] = set()
        self.target_languages: set[str] = set()
        self._units: list[_Unit] = []
        translated, preserved = [True], [False]
        file = self._xml.root                                                   # element that names the languages
        for index, token in enumerate(self._xml.tokens):
            if token.kind == "open":
                preserved.append({"default": False, "preserve": True}.get(
                    token.attributes.get("xml:space", ""), preserved[-1]))
                translated.append({"no": False, "yes": True}.get(token.attributes.get("translate", ""), translated[-1]))
                file = index if self._version == "1" and token.local_name == "file" else file
                if translated[-1] and token.local_name == ("trans-unit" if self._version == "1" else "unit"):
                    holders = [index] if self._version == "1" else self._xml.children(index, "segment")
                    for holder in holders:
                        self._add(holder, file, preserved[-1])
            elif token.kind == "close":
                translated.pop()
                preserved.pop()

    def _add(self, holder: int, file: int, preserved: bool) -> None:
        """Add a <trans-unit> (XLIFF 1.2) or <segment> (2.x), unless it is translated already.

        file: element that names the languages, <file> (1.2) or <xliff> (2.x). preserved: True if `xml:space` is
        "preserve", so that line feeds are kept.
        """
        found = {self._xml.tokens[child].local_name: child for child in self._xml.children(holder)}
        if "source" not in found:
            return
        unit = _Unit(found.get("seg-source", found["source"]), found.get("target"), holder)
        keeper = unit.target if self._version == "1" else holder
        state = self._xml.tokens[keeper].attributes.get("state", "") if keeper is not None else ""
        has_target = unit.target is not None and not self._xml.is_empty(unit.target)
        if state in _FINAL or self._xml.tokens[holder].attributes.get("approved") == "yes" or (
                has_target and state not in UNTRANSLATED_STATES[self._version]):
            if unit.target is not None and is_text(self._xml.content(unit.target).text):
                self.target_languages.add(self._language(unit.target, file, target=True))
            return
        end = self._xml.ends[unit.copied]
        segments = []
        index = unit.copied + 1
        while index < end:
            token = self._xml.tokens[index]
            if index in self._xml.ends and token.local_name == "mrk" and token.attributes.get("mtype") == "seg":
                segments.append(index)
                index = self._xml.ends[index]
            index += 1
        keeps_lines = "preserve" in (self._xml.tokens[one].attributes.get("xml:space", preserved and "preserve")
                                     for one in (holder, found["source"]))
        for element in segments or [unit.copied]:
            _, block, _ = trim(self._xml.content(element, keeps_lines=keeps_lines))
            if is_text(block.text):
                unit.pieces.append((element, len(self.blocks)))
                self.blocks.append(replace(block, access_keys="&_~"))
                self.source_languages.add(self._language(found["source"], file, target=False))
        self._units.append(unit)

    def _language(self, element: int, file: int, target: bool) -> str:
        """Return the language that the document names for an element, <source> or <target>; "" if it names none."""
        return self._xml.tokens[element].attributes.get("xml:lang") or self._xml.tokens[file].attributes.get(
            LANGUAGES[self._version][target], "")

    def _role(self, token: XmlToken) -> tuple[Role, str]:
        name, attributes = token.local_name, token.attributes
        if self._version == "1":
            roles: dict[str, Role] = {"bx": "open", "bpt": "open", "ex": "close", "ept": "close", "x": "whole",
                                      "ph": "whole", "it": "whole"}
            key = attributes.get("rid", attributes.get("id", ""))
        else:
            roles = {"sc": "open", "sm": "open", "ec": "close", "em": "close", "ph": "whole", "cp": "whole"}
            key = attributes.get("startRef", attributes.get("id", ""))
        if name == "mrk" and (attributes.get("mtype") == "protected" or attributes.get("translate") == "no"):
            return "whole", ""
        code = attributes.get("equiv", attributes.get("equiv-text", ""))
        if roles.get(name) == "whole" and (attributes.get("subType") == "xlf:lb" or
                                           separates_words(code, attributes.get("ctype", ""))):
            return "break", ""
        return roles.get(name, "element"), f"{name[1:]} {key}"

    def render(self, translations: Sequence[Block], target_language: str) -> bytes:
        """See `Document.render`. `target_language` is filled in if the document names no or another target language."""
        edits: list[tuple[int, int, str]] = []
        for unit in self._units:
            if any(translations[index] != self.blocks[index] for _, index in unit.pieces):
                edits += self._fill(unit, translations, target_language)
        if edits:
            root, name = self._xml.root, LANGUAGES[self._version][True]
            for element in self._xml.children(root, "file") if self._version == "1" else [root]:
                token = self._xml.tokens[element]
                named = token.attributes.get(name)
                if not named or not is_same_language(named, target_language):
                    edits.append((*self._xml.span(element, element), with_attribute(token.raw, name, target_language)))
        return self._xml.encode(edits)

    def _fill(self, unit: _Unit, translations: Sequence[Block], language: str) -> list[tuple[int, int, str]]:
        """Return the edits that write the target of a unit, and its state."""
        xml = self._xml
        begin, end = xml.inside(unit.copied)
        inner = []
        for element, index in unit.pieces:
            first, last = xml.inside(element)
            inner.append((first - begin, last - begin, xml.translated(element, translations[index])))
        content = replace_spans(xml.text[begin:end], inner)
        edits = []
        if self._version == "2":
            token = xml.tokens[unit.holder]
            raw = with_attribute(token.raw, "state", "translated")
            edits.append((*xml.span(unit.holder, unit.holder), raw))
        state = {"state": "needs-review-translation"} if self._version == "1" else {}
        if unit.target is not None:
            named = xml.tokens[unit.target].attributes.get("xml:lang")
            if named and not is_same_language(named, language):
                state["xml:lang"] = language
            return [*edits, xml.filled(unit.target, content, **state)]
        source = xml.tokens[unit.copied]
        name = source.name.removesuffix(source.local_name) + "target"
        opening = f"<{name}>"
        for attribute, value in ({"xml:space": source.attributes.get("xml:space", "")} | state).items():
            opening = with_attribute(opening, attribute, value) if value else opening
        place = xml.span(unit.copied, xml.ends[unit.copied])[1]
        return [*edits, (place, place, f"{xml.margin(unit.copied)}{opening}{content}</{name}>")]
