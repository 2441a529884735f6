"""Paragraphs of office documents: runs become text with tags, and the translated text becomes runs again.

A run of Word and PowerPoint is a text with properties, such as bold. The basis of a paragraph is the properties that
most of its characters have. Text with other properties is enclosed in a pair of tags, whose opening tag is the XML of
these properties. Consecutive runs with equal properties are one text. Elements around runs, such as links, are pairs of
tags. Line breaks and tabs are tags of the kind "break". Everything else, such as an image, is a tag "alone".
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from seq2seq.formats.block import Block
from seq2seq.formats.inline import find_core, match_tags, shift_tags
from seq2seq.formats.inline_tags import Tag, TagKind
from seq2seq.formats.xml_tokens import XmlToken, escape_xml


@dataclass(frozen=True, slots=True)
class Piece:
    """Piece of a paragraph.

    properties: XML of the run's properties; None for a piece outside of runs. begin, end: range of its tokens.
    """

    properties: str | None
    begin: int
    end: int


@dataclass(slots=True)
class Item:
    """Text or element of a paragraph, in the order of the document.

    kind: "open" and "close" are the tags of an element around runs; "break" is a tab or a line break, which separates
    sentences; "atom" and "mark" are other elements. Marks never change their order. style: properties of the run,
    except those that do not change its look. field: if the item is part of a complex field, the kind of this part.
    """

    kind: Literal["text", "open", "close", "break", "atom", "mark"]
    pieces: list[Piece]
    text: str = ""
    style: str = ""
    field: str = ""


@dataclass(slots=True)
class Names:
    """Names of the elements of runs and texts. run: "" for ODT and cells of charts, which have no runs. text: "" for
    ODT. preserve: write xml:space."""

    run: str
    text: str
    preserve: bool = False


@dataclass(slots=True)
class Paragraph:
    """Paragraph with a block.

    begin, end: range of the tokens that `render` replaces; the properties of the paragraph come before it. text, tags:
    those of the whole paragraph. core: part of text and tags that is the block (`find_core`). items: item of each tag.
    """

    begin: int
    end: int
    text: str
    tags: tuple[Tag, ...]
    items: list[Item]
    basis: str
    place: str
    core: tuple[int, int, int, int] = field(init=False)
    block: Block = field(init=False)

    def __post_init__(self) -> None:
        self.core = begin, end, first, last = find_core(self.text, self.tags)
        self.block = Block(self.text[begin:end], shift_tags(self.tags[first:last], begin, end), self.place,
                           syntax=(), markup_in_text=False)

    def render(self, translation: Block, raws: Sequence[str], names: Names) -> str:
        """Return the XML of the paragraph's contents. raws: current XML of each token of the part."""
        begin, end, first, last = self.core
        writer = _Writer(self, raws, names)
        writer.write(self.text[:begin], self.tags[:first], range(first))
        order = match_tags(self.block.tags, translation.tags)
        marks = iter(sorted(index for index in order if self.items[first + index].kind == "mark"))
        order = [next(marks) if self.items[first + index].kind == "mark" else index for index in order]
        writer.write(translation.text, translation.tags, [first + index for index in order])
        writer.write(self.text[end:], shift_tags(self.tags[last:], end, len(self.text)), range(last, len(self.tags)))
        return writer.finish()


class _Writer:
    """Writer of runs. A run is closed when the properties change, or before an element that is outside of runs."""

    def __init__(self, paragraph: Paragraph, raws: Sequence[str], names: Names) -> None:
        self._paragraph, self._raws, self._names = paragraph, raws, names
        self._parts: list[str] = []
        self._styles = [(-1, paragraph.basis)]                          # index of the opening tag, properties
        self._run: str | None = None                                    # properties of the open run
        self._after_break = False

    def write(self, text: str, tags: Sequence[Tag], indices: Sequence[int]) -> None:
        """Write text with tags. indices: index of each tag in the paragraph."""
        last = 0
        for tag, index in zip(tags, indices, strict=True):
            item = self._paragraph.items[index]
            piece = text[last:tag.position]
            self._text(piece.rstrip(" ") if item.kind == "break" else piece)
            last = tag.position
            self._tag(index, item, tag)
        self._text(text[last:])

    def finish(self) -> str:
        """Close the last run and return the XML."""
        self._switch(None)
        return "".join(self._parts)

    def _tag(self, index: int, item: Item, tag: Tag) -> None:
        for piece in item.pieces:
            self._switch(piece.properties)
            self._parts += self._raws[piece.begin:piece.end]
        if tag.kind == "open":
            self._styles.append((index if tag.pair is None else tag.pair, item.style))
        elif tag.kind == "close":
            remaining = [style for style in self._styles if style[0] != tag.pair]
            self._styles = remaining or self._styles[:1]
        self._after_break = item.kind == "break" or self._after_break and tag.kind != "alone"

    def _text(self, text: str) -> None:
        if self._after_break:
            text = text.lstrip(" ")
        if not text:
            return
        self._after_break = False
        if not self._names.run:
            self._parts.append(escape_xml(text) if self._names.text else _escape_spaces(text, not self._parts))
            return
        self._switch(self._styles[-1][1])
        preserve = ' xml:space="preserve"' if self._names.preserve and text != text.strip() else ""
        name = self._names.text
        if self._parts[-1].endswith(f"</{name}>") and not self._names.preserve:     # PowerPoint: one text in a run
            self._parts[-1] = self._parts[-1].removesuffix(f"</{name}>") + f"{escape_xml(text)}</{name}>"
        else:
            self._parts.append(f"<{name}{preserve}>{escape_xml(text)}</{name}>")

    def _switch(self, properties: str | None) -> None:
        if properties == self._run or not self._names.run:
            return
        if self._run is not None:
            self._parts.append(f"</{self._names.run}>")
        if properties is not None:
            self._parts.append(f"<{self._names.run}>{properties}")
        self._run = properties


def _escape_spaces(text: str, first: bool) -> str:
    """Escape text and spaces. ODT ignores spaces that begin a paragraph, and all but the first space in a row."""
    def spaces(match: re.Match[str]) -> str:
        keep = "" if first and match.start() == 0 else " "
        count = len(match[0]) - len(keep)
        return keep + (f'<text:s text:c="{count}"/>' if count else "")

    return re.sub(" {2,}|^ ", spaces, escape_xml(text))


def make_paragraph(begin: int, end: int, items: list[Item], tokens: Sequence[XmlToken], place: str) -> Paragraph | None:
    """Return the paragraph that has these items; None if the text has no letters. place: place for messages."""
    if not any(character.isalpha() for item in items if item.kind == "text" for character in item.text):
        return None
    items = _with_fields_joined(items, tokens)
    bases = _bases(items)
    builder = _Builder(tokens, bases[-1])
    for index, item in enumerate(items):
        builder.add(item, bases.get(index, ""))
    builder.end_style()
    builder.flush()
    return Paragraph(begin, end, builder.text, tuple(builder.tags), builder.items, bases[-1], place)


def _bases(items: list[Item]) -> dict[int, str]:
    """Return the basis of the paragraph, with the key -1, and of each element around runs, with the index of the item
    that opens the element as the key."""
    counts: dict[int, Counter[str]] = {-1: Counter()}
    parents: dict[int, int] = {}
    stack = [-1]
    for index, item in enumerate(items):
        if item.kind == "open":
            parents[index] = stack[-1]
            counts[index] = Counter()
            stack.append(index)
        elif item.kind == "close":
            stack.pop()
        elif item.kind == "text":
            counts[stack[-1]][item.style] += len(item.text.strip())
    bases: dict[int, str] = {}
    for index, counter in counts.items():                               # parents come before their children
        bases[index] = counter.most_common(1)[0][0] if counter else bases[parents[index]] if index >= 0 else ""
    return bases


class _Builder:
    """Builder of the text and tags of a paragraph from its items."""

    def __init__(self, tokens: Sequence[XmlToken], basis: str) -> None:
        self.text = ""
        self.tags: list[Tag] = []
        self.items: list[Item] = []
        self._tokens = tokens
        self._bases = [basis]
        self._pairs: list[int] = []                 # numbers of the pairs of the open elements
        self._waiting: list[Item] = []              # elements that may become tags inside or after the open style
        self._style: int | None = None              # number of the pair of the open style
        self._style_text = ""
        self._texts: list[str] = []
        self._length = 0
        self._ends_in_space = True

    def add(self, item: Item, basis: str) -> None:
        """Add an item. basis: basis of the element that the item opens."""
        if item.kind == "text":
            self._add_text(item)
        elif item.kind in ("open", "close"):
            self.end_style()
            self._flush_waiting()
            if item.kind == "open":
                self._bases.append(basis)
                self._pairs.append(len(self.tags))
                item.style = basis
                self._tag(item, "open", self._pairs[-1])
            else:
                self._bases.pop()
                self._tag(item, "close", self._pairs.pop())
        else:
            last = self._waiting[-1] if self._waiting else None
            if last is not None and last.kind == item.kind:
                last.pieces += item.pieces
            else:
                self._waiting.append(Item(item.kind, list(item.pieces)))

    def _add_text(self, item: Item) -> None:
        style = item.style if item.text.strip() else self._style_text if self._style is not None else self._bases[-1]
        if self._style is not None and style != self._style_text:
            self.end_style()
        self._flush_waiting()
        if self._style is None and style != self._bases[-1]:
            self._style, self._style_text = len(self.tags), style
            self._tag(Item("open", [], style=style), "open", self._style)
        self._append(item.text)

    def end_style(self) -> None:
        """Close the open style after its last text."""
        if self._style is not None:
            self._tag(Item("close", []), "close", self._style)
            self._style = None

    def flush(self) -> None:
        """Add the waiting elements, and complete the text."""
        self._flush_waiting()
        self.text = "".join(self._texts)

    def _flush_waiting(self) -> None:
        for item in self._waiting:
            self._tag(item, "break" if item.kind == "break" else "alone", None)
            if item.kind == "break" and not self._ends_in_space:
                self._append(" ")
        self._waiting = []

    def _append(self, text: str) -> None:
        self._texts.append(text)
        self._length += len(text)
        self._ends_in_space = text[-1:].isspace() if text else self._ends_in_space

    def _tag(self, item: Item, kind: TagKind, pair: int | None) -> None:
        raw = "".join(token.raw for piece in item.pieces for token in self._tokens[piece.begin:piece.end])
        if not item.pieces:
            raw = item.style or "<properties/>" if kind == "open" else "</properties>"
        self.tags.append(Tag(self._length, raw, kind, pair))
        self.items.append(item)


def _with_fields_joined(items: list[Item], tokens: Sequence[XmlToken]) -> list[Item]:
    """Replace each complex field that lies within the paragraph by one item or, if the field is a link, by an element
    around its text. The parts of other fields, such as a table of contents of several paragraphs, become marks."""
    ends: dict[int, tuple[int, int]] = {}                               # (separator, end), by begin
    stack: list[tuple[int, int, int]] = []                              # begin, separator, container
    containers = [-1]
    for index, item in enumerate(items):
        if item.kind == "open":
            containers.append(index)
        elif item.kind == "close":
            containers.pop()
        elif item.field == "begin":
            stack.append((index, -1, containers[-1]))
        elif item.field == "separate" and stack:
            stack[-1] = (stack[-1][0], index, stack[-1][2])
        elif item.field == "end" and stack:
            begin, separator, container = stack.pop()
            if container == containers[-1]:
                ends[begin] = separator, index
    result: list[Item] = []
    index = 0
    closing: dict[int, Item] = {}                                       # ends of links
    while index < len(items):
        item = items[index]
        if index in closing:
            result.append(closing[index])
        elif index in ends:
            separator, end = ends[index]
            pieces = [piece for one in items[index:(separator if separator >= 0 else end) + 1] for piece in one.pieces]
            instruction = "".join(token.text for piece in pieces for token in tokens[piece.begin:piece.end])
            if separator >= 0 and instruction.split()[:1] == ["HYPERLINK"]:
                result.append(Item("open", pieces))
                closing[end] = Item("close", items[end].pieces)
                index = separator
            else:
                result.append(Item("atom", [piece for one in items[index:end + 1] for piece in one.pieces]))
                index = end
        elif item.field:
            result.append(Item("mark", item.pieces))
        else:
            result.append(item)
        index += 1
    return result
