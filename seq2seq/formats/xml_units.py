"""XML documents of XLIFF, TMX, Qt and Android: find elements, turn their contents into blocks, and edit the source."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import accumulate
from typing import Any, Literal

from seq2seq.formats.block import Block, DocumentError, require_block_size
from seq2seq.formats.inline_tags import Tag, TagKind
from seq2seq.formats.spans import replace_spans
from seq2seq.formats.texts import line_end_of, trim
from seq2seq.formats.tmx_pairs import MARKUP_ELEMENTS, separates_words
from seq2seq.formats.units import Unit, UnitDocument, unit_of
from seq2seq.formats.xml_tokens import XmlToken, decode_xml, escape_xml, xml_tokens

Role = Literal["element", "whole", "open", "close", "break"]
"""Treatment of an inline element. "element": its start and end tag become a pair of tags. "whole": it becomes one tag.
"open", "close": the element becomes the first or second tag of a pair. "break": it becomes a line break."""
Roles = Callable[[XmlToken], tuple[Role, str]]
"""Function that returns the role of an inline element, and the name that an "open" and its "close" share."""
_ATTRIBUTE = re.compile(r"([^\s=/>\"']++)\s*+=\s*+(\"[^\"]*+\"|'[^']*+')")


class XmlFile:
    """XML document as tokens. An element is identified by the index of its first token.

    ends: index of the last token of each element.
    """

    def __init__(self, data: bytes, root: str = "", roles: Roles = lambda token: ("whole", "")) -> None:
        """roles: roles of the inline elements in `content`."""
        self._roles = roles
        self.text, self.encoding = decode_xml(data)
        self.tokens = xml_tokens(self.text)
        self._begins = list(accumulate((len(token.raw) for token in self.tokens), initial=0))
        self._line_end = line_end_of(self.text)
        self.ends: dict[int, int] = {}
        stack: list[int] = []
        for index, token in enumerate(self.tokens):
            if token.kind == "open":
                stack.append(index)
            elif token.kind == "alone":
                self.ends[index] = index
            elif token.kind == "close":
                self.ends[stack.pop()] = index
        self.root = next(iter(index for index, token in enumerate(self.tokens) if token.kind in ("open", "alone")))
        found = self.tokens[self.root]
        if root and found.local_name != root:
            raise DocumentError(f"line {found.line}: the root element is <{found.name}>, not <{root}>. Check the "
                                "format of the file.")

    def children(self, parent: int, *names: str) -> Iterator[int]:
        """Yield the child elements of an element. If names are given, only children with these local names count."""
        index = parent + 1
        while index < self.ends[parent]:
            if index in self.ends:
                if not names or self.tokens[index].local_name in names:
                    yield index
                index = self.ends[index]
            index += 1

    def text_of(self, parent: int, *names: str) -> str:
        """Return the text of the child elements with these names."""
        return "\n".join(self.content(child).text for child in self.children(parent, *names))

    def span(self, first: int, last: int) -> tuple[int, int]:
        """Return the span of characters from the token `first` up to and including the token `last`."""
        return self._begins[first], self._begins[last + 1]

    def inside(self, element: int) -> tuple[int, int]:
        """Return the span of the contents of an element that is not empty."""
        return self.span(element + 1, self.ends[element] - 1)

    def raw(self, first: int, last: int) -> str:
        """Return the text of the tokens from `first` up to and including `last`."""
        begin, end = self.span(first, last)
        return self.text[begin:end]

    def is_empty(self, element: int) -> bool:
        """Return True if an element has no text other than white space."""
        return not any(token.kind == "text" and token.text.strip()
                       for token in self.tokens[element:self.ends[element]])

    def margin(self, index: int) -> str:
        """Return the raw text of the preceding token if it is white space, such as an indentation; else ""."""
        token = self.tokens[index - 1]
        return token.raw if token.kind == "text" and token.raw.isspace() else ""

    def comment_before(self, element: int) -> str:
        """Return the text of the comment before an element; "" if there is none."""
        token = self.tokens[element - 1 - bool(self.margin(element))]
        return token.raw.removeprefix("<!--").removesuffix("-->") if token.kind == "comment" else ""

    def content(self, element: int, decode: Callable[[XmlToken], str] = lambda token: token.text,
                keeps_lines: bool = False) -> Block:
        """Return the contents of an element as a block. decode: function that returns the text of a token.
        keeps_lines: see `Block`."""
        parts: list[str] = []
        tags: list[tuple[int, str, TagKind, str]] = []
        pairs: dict[int, int] = {}
        stack: list[tuple[int, str]] = []
        length = 0
        index = element + 1
        while index < self.ends[element]:
            token = self.tokens[index]
            if token.kind == "text":
                require_block_size(length + len(token.text), f"line {self.tokens[element].line}")
                parts.append(decode(token))
                length += len(parts[-1])
                index += 1
                continue
            kind: Role = "element" if token.kind in ("open", "close") else "whole"
            name, last = "", index
            if index in self.ends:
                kind, name = self._roles(token)
                last = self.ends[index] if kind != "element" else index
                if kind == "whole" and token.local_name in MARKUP_ELEMENTS and separates_words(
                        "".join(one.text for one in self.tokens[index:last]), token.attributes.get("type", "")):
                    kind = "break"
            if token.kind == "close" or kind == "close":
                name = "" if token.kind == "close" else f"={name}"      # the stack has "" for elements
                while token.kind == "close" and stack[-1][1]:           # markers that the element does not close
                    stack.pop()
                if stack and stack[-1][1] == name:
                    pairs[len(tags)] = stack[-1][0]
                    pairs[stack.pop()[0]] = pairs[len(tags)]
                tags.append((length, self.raw(index, last), "close", name))
            elif kind == "open" or (kind == "element" and token.kind == "open"):
                stack.append((len(tags), f"={name}" if kind == "open" else ""))
                tags.append((length, self.raw(index, last), "open", name))
            else:
                tags.append((length, self.raw(index, last), "break" if kind == "break" else "alone", name))
            index = last + 1
        return Block("".join(parts), tuple(
            Tag(position, raw, kind if number in pairs or kind == "break" else "alone", pairs.get(number))
            for number, (position, raw, kind, _) in enumerate(tags)),
            place=f"line {self.tokens[element].line}", keeps_lines=keeps_lines)

    def translated(self, element: int, new: Block, escape: Callable[[str], str] | None = None) -> str:
        """Return the source of a translated block, with the white space around the contents of its element, which
        `trim` removed. escape: function that escapes a text; None: the method `escape`."""
        escape = escape or self.escape
        before, _, after = trim(self.content(element))
        return escape(before) + new.serialize(escape) + escape(after)

    def escape(self, text: str) -> str:
        """Escape a text. Line feeds become the line ends of the document."""
        return escape_xml(text, self._line_end)

    def filled(self, element: int, content: str, **attributes: str) -> tuple[int, int, str]:
        """Return the edit (see `replace_spans`) that gives an element new contents and attributes."""
        token = self.tokens[element]
        begin, end = self.span(element, self.ends[element])
        opening = token.raw[:-2].rstrip() + ">" if token.kind == "alone" else token.raw
        for name, value in attributes.items():
            opening = with_attribute(opening, name, value)
        return begin, end, f"{opening}{content}</{token.name}>"

    def encode(self, edits: Iterable[tuple[int, int, str]]) -> bytes:
        """Apply edits and encode the document. Characters that its encoding lacks become character references."""
        return replace_spans(self.text, edits).encode(self.encoding, "xmlcharrefreplace")


class XmlDocument(UnitDocument):
    """Document in XML. Its contents are `xml`, with their `tokens`. root: name of its root element."""

    root = ""

    def decode(self, data: bytes) -> tuple[str, str]:
        self.xml = XmlFile(data, self.root, self.role)
        self.tokens = self.xml.tokens
        return self.xml.text, self.xml.encoding

    def encode(self, text: str) -> bytes:
        return text.encode(self.encoding, "xmlcharrefreplace")

    def role(self, token: XmlToken) -> tuple[Role, str]:
        """Return the role of an inline element, and the name that an "open" and its "close" share."""
        return "whole", ""

    def element_unit(self, element: int, **fields: Any) -> Unit | None:
        """Return the unit of the contents of an element; None if it has none. fields: of the `Block`."""
        if self.tokens[element].kind != "open":
            return None
        return unit_of(*self.xml.inside(element), replace(self.xml.content(element, keeps_lines=True), **fields))

    def write(self, unit: Unit, block: Block) -> str:
        return self.xml.escape(unit.before) + block.serialize(self.xml.escape) + self.xml.escape(unit.after)


def with_attribute(tag: str, name: str, value: str) -> str:
    """Return a start tag with an attribute. If the tag already has this attribute, its value is replaced."""
    quoted = '"' + escape_xml(value).replace('"', "&quot;") + '"'
    first = re.match(r"<[^\s/>]++", tag)
    for match in _ATTRIBUTE.finditer(tag, first.end() if first else 0):
        if match[1] == name:
            return tag[:match.start(2)] + quoted + tag[match.end(2):]
    end = tag.rindex(">")
    end -= tag[end - 1] == "/"
    end = len(tag[:end].rstrip())
    return f"{tag[:end]} {name}={quoted}{tag[end:]}"
