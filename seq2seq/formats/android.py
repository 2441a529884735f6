"""Android's strings.xml: strings, arrays of strings and plurals.

A translated <plurals> has the plural categories of the target language. Format: https://developer.android.com/guide/topics/resources/string-resource
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from seq2seq.formats.block import IN_STRINGS, Block
from seq2seq.formats.inline_tags import TagKind, pair_tags
from seq2seq.formats.spans import Edit
from seq2seq.formats.tags_in_text import VOID, element_name
from seq2seq.formats.texts import join_surrogates, trim
from seq2seq.formats.units import Plural, Unit
from seq2seq.formats.xml_tokens import XmlToken
from seq2seq.formats.xml_units import Role, XmlDocument, with_attribute

_PIECE = re.compile(r"\\(u[0-9a-fA-F]{4}|.|\Z)|(\")|(\s++)|[^\\\"\s]++", re.DOTALL)
_CONTROLS = {"n": "\n", "t": "\t"}
_REFERENCE = re.compile(r"[@?]\+?(?:[\w.]++:)?\w++(?:/[\w.]++)?")
_HTML_TAG = re.compile(r"<![^<>]*+>|<(/?)([a-zA-Z][^\s<>/]*+)[^<>]*+>")
_ESCAPED_SPACE = "\\u0020"
_CDATA, _CDATA_END = "<![CDATA[", "]]>"

_SYNTAX = ("dates", "printf", *IN_STRINGS)


class _Form(NamedTuple):
    """Form of a string: its element; True if it is in quotes, or in a CDATA section."""

    element: int
    quoted: bool
    is_cdata: bool


class _Decoder:
    """Decoder of the escapes of one string. Outside of double quotes, consecutive white space becomes one space."""

    def __init__(self) -> None:
        self.quotes = 0

    def decode(self, text: str) -> str:
        return join_surrogates(_PIECE.sub(self._piece, text))

    def _piece(self, match: re.Match[str]) -> str:
        escape, quote, space = match.groups()
        if quote:
            self.quotes += 1
            return ""
        if escape is not None:
            return chr(int(escape[1:], 16)) if len(escape) == 5 else _CONTROLS.get(escape, escape)
        return " " if space and self.quotes % 2 == 0 else match[0]


class AndroidDocument(XmlDocument):
    """Resources of Android. An <xliff:g> element with its contents is one tag."""

    root = "resources"

    def role(self, token: XmlToken) -> tuple[Role, str]:
        if token.name == "br":
            return "break", ""
        return ("whole" if ":" in token.name else "element"), ""       # <xliff:g>

    def find_units(self) -> Iterator[Unit]:
        for element in self.xml.children(self.xml.root, "string", "string-array", "plurals", "item"):
            token = self.tokens[element]
            if token.name == "item" and token.attributes.get("type") != "string" or (
                    token.attributes.get("translatable") == "false"):
                continue
            if token.name == "plurals":
                yield from self._plural(element)
                continue
            for string in [element] if token.name in ("string", "item") else self.xml.children(element, "item"):
                if unit := self._unit(string):
                    yield unit

    def _plural(self, element: int) -> Iterator[Unit]:
        plural = Plural()
        for item in self.xml.children(element, "item"):
            category = self.tokens[item].attributes.get("quantity", "")
            begin, end = self.xml.span(item, self.xml.ends[item])
            plural.entries[category] = begin - len(self.xml.margin(item)), end
            if unit := self._unit(item):
                unit.plural, unit.category = plural, category
                yield unit

    def added(self, other: Unit, category: str, block: Block) -> Edit:
        item = other.info.element
        begin, end = self.xml.span(item, self.xml.ends[item])
        opening = self.tokens[item].raw
        inside = self.text[begin + len(opening):other.begin] + self.write(other, block) + self.text[other.end:end]
        return begin, begin, with_attribute(opening, "quantity", category) + inside + self.xml.margin(item)

    def _unit(self, element: int) -> Unit | None:
        xml = self.xml
        if self.tokens[element].kind != "open" or self.tokens[element].attributes.get("translatable") == "false":
            return None
        filled = [index for index in range(element + 1, xml.ends[element]) if self.tokens[index].raw.strip()]
        texts = [self.tokens[index].text for index in filled if self.tokens[index].kind == "text"]
        is_cdata = len(filled) == 1 and self.tokens[filled[0]].raw.startswith(_CDATA)
        decoder = _Decoder()
        if is_cdata:
            block = _html(self.tokens[filled[0]], decoder)
        else:
            block = xml.content(element, lambda token: decoder.decode(token.text), keeps_lines=True)
        first, last = (texts[0].strip(), texts[-1].strip()) if texts else ("", "")
        quoted = decoder.quotes == 2 and first.startswith('"') and last.endswith('"')
        before, block, after = trim(block)
        if len(filled) == 1 == len(texts) and _REFERENCE.fullmatch(first):
            return None
        if not quoted:                                              # Android shows spaces at the edges only if escaped
            before = before if before.strip(" ") or first.startswith(_ESCAPED_SPACE) else ""
            after = after if after.strip(" ") or last.endswith(_ESCAPED_SPACE) else ""
        begin, end = xml.span(filled[0], filled[0]) if is_cdata else xml.inside(element)
        if is_cdata:
            begin, end = begin + len(_CDATA), self.text.rindex(_CDATA_END, begin, end)
        raw = self.text[begin:end]
        block = replace(block, syntax=_SYNTAX, key=self.tokens[element].attributes.get("name", ""),
                        comment=xml.comment_before(element))
        return Unit(begin + len(raw) - len(raw.lstrip()), begin + len(raw.rstrip()), (block,), before, after,
                    _Form(element, quoted, is_cdata))

    def write(self, unit: Unit, block: Block) -> str:
        quoted = unit.info.quoted

        def escape(text: str) -> str:
            escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
            if not quoted:
                escaped = escaped.replace("'", "\\'").replace("  ", " \\u0020").replace("  ", " \\u0020")
            return escaped.replace(_CDATA_END, "]]]]><![CDATA[>") if unit.info.is_cdata else self.xml.escape(escaped)

        before, after = (escape(space) if space.strip(" ") or quoted else _ESCAPED_SPACE * len(space)
                         for space in (unit.before, unit.after))
        text = before + block.serialize(escape) + after
        if quoted:
            return f'"{text}"'
        return "\\" + text if text.startswith(("@", "?")) else text


def _html(token: XmlToken, decoder: _Decoder) -> Block:
    """Return a CDATA section as a block. Its HTML tags are the tags of the block."""
    parts: list[str] = []
    tags: list[tuple[int, str, TagKind, str]] = []
    last = length = 0
    for match in _HTML_TAG.finditer(token.text):
        parts.append(decoder.decode(token.text[last:match.start()]))
        length += len(parts[-1])
        last = match.end()
        name = element_name(match[2] or "")
        alone = not name or name in VOID or match[0].endswith("/>")
        kind: TagKind = "break" if name == "br" else "close" if match[1] else "alone" if alone else "open"
        tags.append((length, match[0], kind, name))
    parts.append(decoder.decode(token.text[last:]))
    return Block("".join(parts), pair_tags(tags), place=f"line {token.line}", keeps_lines=True)
