"""Office documents: DOCX of Word, PPTX of PowerPoint, and ODT, ODS and ODP of LibreOffice.

Only parts with changed text are written again; all other members of the archive keep their contents.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field

from seq2seq.formats.block import MAX_TAGS, NO_KEYS, Block, DocumentError, KeyNames, require_count
from seq2seq.formats.office_archive import Archive
from seq2seq.formats.office_languages import with_language
from seq2seq.formats.office_paragraphs import Item, Names, Paragraph, Piece, make_paragraph
from seq2seq.formats.xml_tokens import XmlToken
from seq2seq.formats.xml_units import XmlFile

MAX_NESTED_PARAGRAPHS = 8
"""Maximum depth at which paragraphs inside of paragraphs, such as those of text boxes, are translated."""
_CACHED = "c:v"
"""Element of a chart with a text of its table, such as the name of a series."""
_LOOKS = re.compile(r'\s(?:lang|altLang|dirty|err|smtClean|noProof|bmk|kumimoji|w:hint)="[^"]*"')
"""Attributes of run properties that do not change the look of text."""
_HIDDEN = re.compile(r"<w:vanish\b(?![^<>]*w:val=[\"'](?:0|false|off))")
"""Property of a run of Word that is hidden."""
_DRAWINGS = r"|drawingml\.(?:chart|chartshapes|diagramData|diagramDrawing)\+xml|ms-office\.chartex\+xml"
"""Content types of charts and SmartArt, of which the latter has its text twice, as data and as a drawing."""
_SPACES = re.compile(r"[ \t\r\n]+")


@dataclass
class _Part:
    """XML member of the archive. tokens, ends: see `XmlFile`."""

    name: str
    xml: XmlFile
    paragraphs: list[Paragraph] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tokens, self.ends = self.xml.tokens, self.xml.ends


class _OfficeDocument:
    """Office document, with the interface of `block.Document`."""

    _names = Names("", "")
    _prefix = ""
    _namespace = ""
    """End of the namespace that `_prefix` stands for."""
    _paragraph_names: frozenset[str] = frozenset()
    _skipped: frozenset[str] = frozenset()
    """Elements whose paragraphs are not translated."""
    _style_parts: tuple[str, ...] = ()
    """Parts with styles, which name the language of text without one of its own, such as translated runs."""
    source_languages: Set[str] = frozenset()
    target_languages: Set[str] = frozenset()
    left_out: Sequence[str] = ()
    left: Sequence[tuple[str, str]] = ()

    def __init__(self, data: bytes | Archive, source_language: str = "", target_language: str = "",
                 keys: KeyNames = NO_KEYS) -> None:
        """Raises DocumentError: the document is malformed, hostile, too large, encrypted, or of another format."""
        self._archive = data if isinstance(data, Archive) else Archive(data)
        self._language = source_language
        self._tags = 0
        self._parts = [self._read(name) for name in self._part_names()]
        self.blocks = [paragraph.block for part in self._parts for paragraph in part.paragraphs]

    def render(self, translations: Sequence[Block], target_language: str) -> bytes:
        changed = self._changed(iter(translations))
        for name in self._style_parts if changed else ():
            if name in self._archive.contents:
                xml = self._parse(name)
                text = changed[name].decode(xml.encoding) if name in changed else xml.text
                styles = with_language(text, self._language, target_language)
                if styles != xml.text:
                    changed[name] = xml.encode([(0, len(xml.text), styles)])
        return self._archive.replace(changed)

    def _changed(self, remaining: Iterator[Block]) -> dict[str, bytes]:
        """Return the changed members of the archive. remaining: translations of the blocks that follow."""
        changed: dict[str, bytes] = {}
        for part in self._parts:
            raws = [token.raw for token in part.tokens]
            is_changed = False
            pairs = list(zip(part.paragraphs, remaining, strict=False))
            # Inner paragraphs are rendered first, because the XML of the paragraph around them contains their XML.
            for paragraph, translation in sorted(pairs, key=lambda pair: pair[0].end):
                if (translation.text, translation.tags) == (paragraph.block.text, paragraph.block.tags):
                    continue
                is_cached = part.tokens[paragraph.begin - 1].name == _CACHED
                text = paragraph.render(translation, raws, Names("", _CACHED) if is_cached else self._names)
                raws[paragraph.begin:paragraph.end] = [text] + [""] * (paragraph.end - paragraph.begin - 1)
                is_changed = True
            if is_changed:
                changed[part.name] = part.xml.encode([(0, len(part.xml.text), "".join(raws))])
        return changed

    def _part_names(self) -> list[str]:
        raise NotImplementedError

    def _items(self, part: _Part, begin: int, end: int) -> tuple[int, int, list[Item]]:
        """Return the range of the tokens to replace, and their items. begin, end: range of the paragraph's contents."""
        raise NotImplementedError

    def _is_skipped(self, token: XmlToken) -> bool:
        return token.name in self._skipped

    def _read(self, name: str) -> _Part:
        part = _Part(name, self._parse(name))
        tokens, ends = part.tokens, part.ends
        self._tags += part.xml.text.count("<")
        require_count(self._tags, MAX_TAGS, "tags")
        self._require_prefix(name, tokens)
        index = 0
        opened: list[int] = []                                          # ends of the enclosing paragraphs
        while index < len(tokens):
            token = tokens[index]
            while opened and opened[-1] <= index:
                opened.pop()
            if token.kind == "open" and self._is_skipped(token):
                index = ends[index]
            elif (token.kind == "open" and token.name in self._paragraph_names
                    and len(opened) < MAX_NESTED_PARAGRAPHS):
                opened.append(ends[index])
                begin, end, items = self._items(part, index + 1, ends[index])
                paragraph = make_paragraph(begin, end, items, tokens, f"{name}, line {token.line}")
                if paragraph is not None:
                    part.paragraphs.append(paragraph)
            index += 1
        return part

    def _parse(self, name: str) -> XmlFile:
        data = self._archive.read(name)
        try:
            return XmlFile(data)
        except DocumentError as error:
            raise DocumentError(f"{name}, {error}") from error

    def _require_prefix(self, part: str, tokens: Sequence[XmlToken]) -> None:
        """Raise DocumentError if a part has another prefix for the namespace of the text, as Python's ElementTree
        writes it: no text would be found."""
        usual = f"xmlns:{self._prefix}".removesuffix(":")
        if any(token.name.startswith(self._prefix) for token in tokens):
            return
        for token in tokens:
            for key, namespace in token.attributes.items():
                if key.startswith("xmlns") and key != usual and re.search(f"{self._namespace}$", namespace):
                    raise DocumentError(f"{part}, line {token.line}: the namespace of the text is declared as {key}, "
                                        f"not {usual}. Save the document with an office program.")


class _RunDocument(_OfficeDocument):
    """Document whose text is in runs: DOCX and PPTX."""

    _format = ""
    _types = ""
    """Regular expression of the content types of the parts with text."""
    _empty = ""
    """Substring of a content type that every document of the format has. By it, documents without text are accepted."""
    _containers: frozenset[str] = frozenset()
    """Elements around runs. These runs are part of the paragraph's text."""
    _dropped: frozenset[str] = frozenset()
    """Elements without meaning for a translation, such as marks of the spelling checker."""

    def _part_names(self) -> list[str]:
        name = "[Content_Types].xml"
        tokens = self._parse(name).tokens
        overrides, defaults = (
            {token.attributes.get(key, "").lstrip("/").lower(): token.attributes.get("ContentType", "")
             for token in tokens if token.local_name == kind}
            for kind, key in (("Override", "PartName"), ("Default", "Extension")))
        types = {part: overrides.get(part.lower(), defaults.get(part.lower().rpartition(".")[2], ""))
                 for part in self._archive.contents if part != name}
        names = [part for part, kind in types.items() if re.search(self._types, kind)]
        if not names and not any(self._empty and self._empty in kind for kind in types.values()):
            raise DocumentError(f"{name}: the document has no part with the text of {self._format}. It is of another "
                                "format.")
        return sorted(names, key=_order)

    def _items(self, part: _Part, begin: int, end: int) -> tuple[int, int, list[Item]]:
        tokens, ends, prefix = part.tokens, part.ends, self._prefix
        items: list[Item] = []
        containers: list[tuple[int, int]] = []                          # end tag, first token after the contents
        index, stop = begin, end
        while index < end:
            token = tokens[index]
            after = ends.get(index, index) + 1
            if containers and containers[-1][1] == index:
                last = containers.pop()[0]
                items.append(Item("close", [Piece(None, index, last + 1)]))
                index = last + 1
                continue
            name = token.name.removeprefix(prefix)
            if token.kind == "text" and tokens[begin - 1].name == _CACHED:
                items.append(Item("text", [Piece(None, index, after)], token.text))
            elif token.kind not in ("open", "alone") or token.name in self._dropped:
                pass
            elif name == "pPr":
                begin = after
            elif name == "endParaRPr":
                stop = index
            elif name == "r":
                if token.kind == "open":
                    items += self._run_items(part, index + 1, ends[index])
            elif token.kind == "open" and name in self._containers:
                first, close = self._inside(part, index)
                if first < close:
                    items.append(Item("open", [Piece(None, index, first)]))
                    containers.append((ends[index], close))
                    after = first
                else:
                    items.append(Item("mark", [Piece(None, index, after)]))
            else:
                items.append(Item("break" if name == "br" else "mark", [Piece(None, index, after)]))
            index = after
        return begin, stop, items

    def _inside(self, part: _Part, index: int) -> tuple[int, int]:
        """Return the range of the contents of an element around runs; an empty range if the contents are not text."""
        tokens, ends = part.tokens, part.ends
        if tokens[index].local_name == "fldSimple" and not re.match(
                r"\s*HYPERLINK\b", tokens[index].attributes.get(f"{self._prefix}instr", "")):
            return index, index
        first, close = index + 1, ends[index]
        while first < close:                                            # properties come first
            token = tokens[first]
            if token.kind == "open" and token.local_name == "sdtContent":
                return first + 1, ends[first]
            if token.kind in ("open", "alone") and not token.local_name.endswith("Pr"):
                break
            first = ends.get(first, first) + 1
        return (first, close) if tokens[index].local_name != "sdt" else (index, index)

    def _run_items(self, part: _Part, begin: int, end: int) -> list[Item]:
        """Return the items of a run. begin, end: range of the tokens inside of the run."""
        tokens, ends = part.tokens, part.ends
        items: list[Item] = []
        properties = style = ""
        is_hidden = False
        index = begin
        while index < end:
            token = tokens[index]
            after = ends.get(index, index) + 1
            name = token.name.removeprefix(self._prefix)
            pieces = [Piece(properties, index, after)]
            if token.kind not in ("open", "alone") or token.name in self._dropped:
                pass
            elif name == "rPr":
                properties = "".join(one.raw for one in tokens[index:after])
                style = self._style(part, index, after)
                is_hidden = _HIDDEN.search(properties) is not None
            elif is_hidden and name not in ("fldChar", "instrText"):
                items.append(Item("atom", pieces))
            elif name == "t":
                text = "".join(one.text for one in tokens[index:after])
                items.append(Item("text", pieces, text, style))
            elif name == "noBreakHyphen":
                items.append(Item("text", pieces, "\u2011", style))
            elif name in ("tab", "br", "cr"):
                items.append(Item("break", pieces))
            elif name == "fldChar":
                items.append(Item("atom", pieces, field=token.attributes.get(f"{self._prefix}fldCharType", "begin")))
            else:
                items.append(Item("atom", pieces, field="instruction" if name == "instrText" else ""))
            index = after
        return items

    def _style(self, part: _Part, begin: int, end: int) -> str:
        """Return the XML of the run properties that change the look of text."""
        kept: list[str] = []
        index = begin
        while index < end:
            token = part.tokens[index]
            if token.name in (f"{self._prefix}lang", f"{self._prefix}noProof"):
                index = part.ends.get(index, index) + 1
                continue
            kept.append(token.raw if token.kind == "text" else _LOOKS.sub("", token.raw))
            index += 1
        raw = "".join(kept)
        return "" if re.fullmatch(r"<[\w:]+\s*(?:/>|>\s*</[\w:]+>)", raw) else raw


class PptxDocument(_RunDocument):
    """Presentation of PowerPoint: slides and their notes, charts and SmartArt."""

    _format = "PowerPoint"
    _names = Names("a:r", "a:t")
    _types = rf"presentationml\.(?:slide|notesSlide)\+xml{_DRAWINGS}"
    _empty = "presentationml."
    _style_parts = ("ppt/presentation.xml",)
    _prefix = "a:"
    _namespace = "drawingml(?:/2006)?/main"
    _paragraph_names = frozenset({"a:p", _CACHED})
    _skipped = frozenset({"mc:Fallback"})


class _Drawings(PptxDocument):
    """Charts and SmartArt of a document of Word."""

    _types = _DRAWINGS.removeprefix("|")
    _empty = "xml"


class DocxDocument(_RunDocument):
    """Document of Word: text, headers, footers, notes and comments, charts and SmartArt. Hidden text stays."""

    _format = "Word"
    _names = Names("w:r", "w:t", preserve=True)
    _types = (r"(?:wordprocessingml\.(?:document|template)|ms-word\.\w+\.macroEnabled\w*)\.main\+xml"
              r"|wordprocessingml\.(?:header|footer|footnotes|endnotes|comments)\+xml")
    _style_parts = ("word/styles.xml",)
    _prefix = "w:"
    _namespace = "wordprocessingml(?:/2006)?/main"
    _paragraph_names = frozenset({"w:p"})
    _skipped = frozenset({"mc:Fallback", "w:del", "w:moveFrom"})
    _containers = frozenset({"hyperlink", "ins", "moveTo", "smartTag", "sdt", "customXml", "dir", "bdo", "fldSimple"})
    _dropped = frozenset({"w:proofErr", "w:lastRenderedPageBreak", "w:softHyphen"})

    def __init__(self, data: bytes | Archive, source_language: str = "", target_language: str = "",
                 keys: KeyNames = NO_KEYS) -> None:
        super().__init__(data, source_language)
        self._drawings = _Drawings(self._archive)
        self.blocks += self._drawings.blocks

    def _changed(self, remaining: Iterator[Block]) -> dict[str, bytes]:
        return super()._changed(remaining) | self._drawings._changed(remaining)


class OdtDocument(_OfficeDocument):
    """OpenDocument text, table or presentation (ODT, ODS, ODP)."""

    _style_parts = ("styles.xml", "content.xml")
    _prefix = "text:"
    _namespace = "opendocument:xmlns:text:1.0"
    _paragraph_names = frozenset({"text:p", "text:h"})
    _skipped = frozenset({"text:tracked-changes", "office:automatic-styles", "office:styles"})

    def _part_names(self) -> list[str]:
        names = set(self._archive.contents)
        if "META-INF/manifest.xml" in names and b"encryption-data" in self._archive.read("META-INF/manifest.xml"):
            raise DocumentError("the document is encrypted. Save it without a password.")
        charts = sorted(name for name in names if re.fullmatch(r"Object[^/]*+/content\.xml", name))
        return ["content.xml", *names & {"styles.xml"}, *charts]

    def _is_skipped(self, token: XmlToken) -> bool:
        # The text in cells of numbers, dates and formulas is only a copy of their value.
        cell = token.name == "table:table-cell" and (
            token.attributes.get("office:value-type", "string") != "string" or "table:formula" in token.attributes)
        return cell or super()._is_skipped(token)

    def _items(self, part: _Part, begin: int, end: int) -> tuple[int, int, list[Item]]:
        tokens, ends = part.tokens, part.ends
        items: list[Item] = []
        in_space = True
        index = begin
        while index < end:
            token = tokens[index]
            after = ends.get(index, index) + 1
            pieces = [Piece("", index, after)]
            if token.kind == "text":
                text = _SPACES.sub(" ", token.text)
                text = text.removeprefix(" ") if in_space else text
                in_space = text.endswith(" ") if text else in_space
                items.append(Item("text", pieces, text))
            elif token.name == "text:s":
                count = token.attributes.get("text:c", "1")
                in_space = False
                items.append(Item("text", pieces, " " * min(1000, int(count) if count.isdecimal() else 1)))
            elif token.kind == "close":
                items.append(Item("close", [Piece("", index, index + 1)]))
            elif token.kind == "open" and token.name in ("text:span", "text:a"):
                items.append(Item("open", [Piece("", index, index + 1)]))
                after = index + 1
            elif token.kind in ("open", "alone") and token.name != "text:soft-page-break":
                in_space = False
                items.append(Item("break" if token.name in ("text:tab", "text:line-break") else "mark", pieces))
            index = after
        return begin, end, items


def _order(name: str) -> tuple[bool, str, int]:
    """Return the sort key of a part. The main text comes first, and slides are in the order of their numbers."""
    match = re.fullmatch(r"(.*?)(\d{0,9})\.xml", name)
    kind, number = (match[1], int(match[2] or 0)) if match else (name, 0)
    return not kind.endswith(("word/document", "/slides/slide")), kind, number
