"""Android's strings.xml: strings, arrays of strings and plurals.

A translated <plurals> has the plural categories of the target language. Format: https://developer.android.com/guide/topics/resources/string-resource
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from seq2seq.formats.block import IN_STRINGS, Block
from seq2seq.formats.inline_tags import TagKind, pair_tags
from seq2seq.formats.plurals import Plural
from seq2seq.formats.tags_in_text import VOID, element_name
from seq2seq.formats.texts import is_message, join_surrogates, trim
from seq2seq.formats.xml_tokens import XmlToken
from seq2seq.formats.xml_units import Role, XmlFile, with_attribute

_PIECE = re.compile(r"\\(u[0-9a-fA-F]{4}|.|\Z)|(\")|(\s++)|[^\\\"\s]++", re.DOTALL)
_CONTROLS = {"n": "\n", "t": "\t"}
_REFERENCE = re.compile(r"[@?]\+?(?:[\w.]++:)?\w++(?:/[\w.]++)?")
_HTML_TAG = re.compile(r"<![^<>]*+>|<(/?)([a-zA-Z][^\s<>/]*+)[^<>]*+>")
_ESCAPED_SPACE = "\\u0020"
_CDATA, _CDATA_END = "<![CDATA[", "]]>"


@dataclass(slots=True)
class _String:
    """Element with a text. quoted: True if the text is in quotes. cdata: index of a CDATA section around it, if any."""

    element: int
    quoted: bool
    cdata: int | None
    before: str = ""
    after: str = ""


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


class AndroidDocument:
    """Resources of Android, with the interface `Document`. An <xliff:g> element with its contents is one tag."""

    def __init__(self, data: bytes) -> None:
        """Raises DocumentError: the document is not well-formed, or has no <resources>."""
        self._xml = xml = XmlFile(data, "resources", _role)
        self.blocks: list[Block] = []
        self._strings: list[_String] = []
        self._plurals: list[Plural[int]] = []                                   # items of each <plurals>
        for element in xml.children(xml.root, "string", "string-array", "plurals", "item"):
            token = xml.tokens[element]
            if token.name == "item" and token.attributes.get("type") != "string":
                continue
            if token.attributes.get("translatable") != "false":
                inner = [element] if token.name in ("string", "item") else list(xml.children(element, "item"))
                plural = Plural[int]()
                for one in inner:
                    quantity = xml.tokens[one].attributes.get("quantity", "")
                    plural.entries[quantity] = one
                    if self._add(one):
                        plural.blocks[quantity] = len(self.blocks) - 1
                if token.name == "plurals" and "other" in plural.blocks:
                    self._plurals.append(plural)

    def _add(self, element: int) -> bool:
        xml = self._xml
        if xml.tokens[element].kind != "open" or xml.tokens[element].attributes.get("translatable") == "false":
            return False
        inside = range(element + 1, xml.ends[element])
        filled = [index for index in inside if xml.tokens[index].raw.strip()]
        texts = [xml.tokens[index].text for index in filled if xml.tokens[index].kind == "text"]
        cdata = filled[0] if len(filled) == 1 and xml.tokens[filled[0]].raw.startswith(_CDATA) else None
        decoder = _Decoder()
        if cdata is not None:
            block = _html(xml.tokens[cdata], decoder)
        else:
            block = xml.content(element, lambda token: decoder.decode(token.text), keeps_lines=True)
        quoted = decoder.quotes == 2 and texts[0].lstrip().startswith('"') and texts[-1].rstrip().endswith('"')
        before, block, after = trim(block)
        string = _String(element, quoted, cdata, before, after)
        if not quoted:                                              # Android shows spaces at the edges only if escaped
            first, last = (texts[0].lstrip(), texts[-1].rstrip()) if texts else ("", "")
            string.before = before if before.strip(" ") or first.startswith(_ESCAPED_SPACE) else ""
            string.after = after if after.strip(" ") or last.endswith(_ESCAPED_SPACE) else ""
        is_reference = len(filled) == 1 == len(texts) and _REFERENCE.fullmatch(texts[0].strip())
        if is_reference or not is_message(block.text):
            return False
        self.blocks.append(replace(block, syntax=("dates", "printf", *IN_STRINGS)))
        self._strings.append(string)
        return True

    def render(self, translations: Sequence[Block], target_language: str) -> bytes:
        xml = self._xml
        edits = {index: self._replaced(string, new) for index, (string, new, block)
                 in enumerate(zip(self._strings, translations, self.blocks, strict=True)) if new != block}
        added: list[tuple[int, int, str]] = []
        for plural in self._plurals:
            sources = plural.sources(self.blocks, translations, target_language)
            if not sources:
                continue
            for quantity, item in plural.entries.items():
                if quantity not in sources:                                     # the target language lacks it
                    edits.pop(plural.blocks.get(quantity, -1), None)
                    begin, end = xml.span(item, xml.ends[item])
                    added.append((begin - len(xml.margin(item)), end, ""))
            other = plural.entries["other"]
            place, end = xml.span(other, xml.ends[other])
            low, high, text = edits.get(plural.blocks["other"], (end, end, ""))
            tag = xml.tokens[other].raw
            rest = xml.text[place + len(tag):low] + text + xml.text[high:end]
            for quantity, source in sources.items():
                copy = with_attribute(tag, "quantity", quantity) + rest
                if quantity not in plural.entries:
                    added.append((place, place, copy + xml.margin(other)))
                elif source != quantity and quantity in plural.blocks:
                    item = plural.entries[quantity]
                    edits[plural.blocks[quantity]] = (*xml.span(item, xml.ends[item]), copy)
        return xml.encode([*edits.values(), *added])

    def _replaced(self, string: _String, new: Block) -> tuple[int, int, str]:
        xml = self._xml

        def escape(text: str) -> str:
            escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
            if not string.quoted:
                escaped = escaped.replace("'", "\\'").replace("  ", " \\u0020").replace("  ", " \\u0020")
            return escaped.replace(_CDATA_END, "]]]]><![CDATA[>") if string.cdata is not None else xml.escape(escaped)

        before, after = (escape(space) if space.strip(" ") or string.quoted else _ESCAPED_SPACE * len(space)
                         for space in (string.before, string.after))
        text = before + new.serialize(escape) + after
        if not string.quoted and text.startswith(("@", "?")):
            text = "\\" + text
        if string.quoted:
            text = f'"{text}"'
        if string.cdata is not None:
            begin, end = xml.span(string.cdata, string.cdata)
            raw = xml.text[begin:end]
            begin, end = begin + len(_CDATA), begin + raw.rindex(_CDATA_END)
        else:
            begin, end = xml.inside(string.element)
        raw = xml.text[begin:end]
        return begin + len(raw) - len(raw.lstrip()), begin + len(raw.rstrip()), text


def _role(token: XmlToken) -> tuple[Role, str]:
    if token.name == "br":
        return "break", ""
    return ("whole" if ":" in token.name else "element"), ""           # <xliff:g>


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
