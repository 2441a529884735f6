"""XLIFF 1.2, 2.0 and 2.1: units without a translation get a target, with a state that calls for a review.

Specifications: https://docs.oasis-open.org/xliff/v1.2/os/xliff-core.html and
https://docs.oasis-open.org/xliff/xliff-core/v2.1/xliff-core-v2.1.html
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from seq2seq.formats.block import Block, DocumentError
from seq2seq.formats.spans import Edit, replace_spans
from seq2seq.formats.texts import is_text, trim
from seq2seq.formats.tmx_pairs import separates_words
from seq2seq.formats.units import Unit
from seq2seq.formats.xliff_pairs import LANGUAGES, progress
from seq2seq.formats.xml_tokens import XmlToken
from seq2seq.formats.xml_units import Role, XmlDocument, with_attribute
from seq2seq.languages import is_same_language


class _Form(NamedTuple):
    """Elements of a unit, by the indices of their first tokens.

    holder: <trans-unit> (XLIFF 1.2) or <segment> (2.x). copied: element that the target copies: <seg-source>, or
    <source> if there is none. target: <target>, if there is one. texts: elements whose contents are the blocks.
    """

    holder: int
    copied: int
    target: int | None
    texts: list[int]


class XliffDocument(XmlDocument):
    """XLIFF. Native code in <bpt>, <ept>, <ph> and <it> is part of the tag."""

    root = "xliff"

    def find_units(self) -> Iterator[Unit]:
        version = self.tokens[self.xml.root].attributes.get("version", "")
        self._version = version[:1]
        if self._version not in LANGUAGES:
            raise DocumentError(f"the document is XLIFF '{version}', not 1.2, 2.0 or 2.1.")
        translated, preserved = [True], [False]
        file = self.xml.root                                                    # element that names the languages
        for index, token in enumerate(self.tokens):
            if token.kind == "open":
                preserved.append({"default": False, "preserve": True}.get(
                    token.attributes.get("xml:space", ""), preserved[-1]))
                translated.append({"no": False, "yes": True}.get(token.attributes.get("translate", ""), translated[-1]))
                file = index if self._version == "1" and token.local_name == "file" else file
                if translated[-1] and token.local_name == ("trans-unit" if self._version == "1" else "unit"):
                    holders = [index] if self._version == "1" else self.xml.children(index, "segment")
                    comment = "\n".join(self.xml.text_of(parent, "note")
                                        for parent in [index, *self.xml.children(index, "notes")])
                    for holder in holders:
                        yield from self._unit(holder, file, preserved[-1], comment)
            elif token.kind == "close":
                translated.pop()
                preserved.pop()

    def _unit(self, holder: int, file: int, preserved: bool, comment: str) -> Iterator[Unit]:
        """Yield the unit of a <trans-unit> (XLIFF 1.2) or <segment> (2.x), unless it is translated already.

        file: element that names the languages, <file> (1.2) or <xliff> (2.x). preserved: True if `xml:space` is
        "preserve", so that line feeds are kept. comment: notes of the developer.
        """
        xml = self.xml
        found = {self.tokens[child].local_name: child for child in xml.children(holder)}
        if "source" not in found:
            return
        target = found.get("target")
        keeper = target if self._version == "1" else holder
        state = self.tokens[keeper].attributes.get("state", "") if keeper is not None else ""
        has_target = target is not None and not xml.is_empty(target)
        is_approved = self.tokens[holder].attributes.get("approved") == "yes"
        if progress(state, is_approved, has_target) != "untranslated":
            if target is not None and is_text(xml.content(target).text):
                self.target_languages.add(self._language(target, file, target=True))
            return
        copied = found.get("seg-source", found["source"])
        keeps_lines = "preserve" in (self.tokens[one].attributes.get("xml:space", preserved and "preserve")
                                     for one in (holder, found["source"]))
        blocks, texts = [], []
        for element in self._segments(copied) or [copied]:
            block = trim(xml.content(element, keeps_lines=keeps_lines))[1]
            if is_text(block.text):
                blocks.append(replace(block, access_keys="&_~", comment=comment))
                texts.append(element)
        if blocks:
            self.source_languages.add(self._language(found["source"], file, target=False))
            begin, end = xml.span(holder, xml.ends[holder])
            yield Unit(begin, end, blocks, info=_Form(holder, copied, target, texts))

    def _segments(self, element: int) -> list[int]:
        """Return the <mrk> elements of an element that mark its sentences."""
        segments = []
        index = element + 1
        while index < self.xml.ends[element]:
            token = self.tokens[index]
            if index in self.xml.ends and token.local_name == "mrk" and token.attributes.get("mtype") == "seg":
                segments.append(index)
                index = self.xml.ends[index]
            index += 1
        return segments

    def _language(self, element: int, file: int, target: bool) -> str:
        """Return the language that the document names for an element, <source> or <target>; "" if it names none."""
        return self.tokens[element].attributes.get("xml:lang") or self.tokens[file].attributes.get(
            LANGUAGES[self._version][target], "")

    def role(self, token: XmlToken) -> tuple[Role, str]:
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

    def other_edits(self, language: str) -> Iterator[Edit]:
        """Fill in the target language where the document names no or another one."""
        name = LANGUAGES[self._version][True]
        root = self.xml.root
        for element in self.xml.children(root, "file") if self._version == "1" else [root]:
            token = self.tokens[element]
            named = token.attributes.get(name)
            if not named or not is_same_language(named, language):
                yield *self.xml.span(element, element), with_attribute(token.raw, name, language)

    def edits(self, unit: Unit, blocks: Sequence[Block], language: str) -> Iterator[Edit]:
        """Yield the edits that write the target of a unit, and its state."""
        xml = self.xml
        holder, copied, target, texts = unit.info
        content = replace_spans(self.text, [(*xml.inside(text), xml.translated(text, block))
                                            for text, block in zip(texts, blocks, strict=True)], *xml.inside(copied))
        if self._version == "2":
            yield *xml.span(holder, holder), with_attribute(self.tokens[holder].raw, "state", "translated")
        state = {"state": "needs-review-translation"} if self._version == "1" else {}
        if target is not None:
            named = self.tokens[target].attributes.get("xml:lang")
            if named and not is_same_language(named, language):
                state["xml:lang"] = language
            yield xml.filled(target, content, **state)
            return
        source = self.tokens[copied]
        name = source.name.removesuffix(source.local_name) + "target"
        opening = f"<{name}>"
        for attribute, value in ({"xml:space": source.attributes.get("xml:space", "")} | state).items():
            opening = with_attribute(opening, attribute, value) if value else opening
        place = xml.span(copied, xml.ends[copied])[1]
        yield place, place, f"{xml.margin(copied)}{opening}{content}</{name}>"
