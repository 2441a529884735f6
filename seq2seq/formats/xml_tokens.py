"""XML as a list of tokens. Joining their raw texts gives the document.

Python's XML parser, Expat, checks the document and reports where each token begins. No tree is built, so that deep and
large documents cost little, and unchanged tokens are written byte for byte.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal
from xml.parsers import expat

from seq2seq.formats.block import MAX_DEPTH, MAX_TAGS, DocumentError, decode, encoding_of, require_count

XmlKind = Literal["open", "close", "alone", "text", "comment", "other"]
_DECLARED = re.compile(rb"""<\?xml[^>]*?encoding\s*=\s*["']([A-Za-z0-9._-]+)["']""")
DECLARATION_BYTES = 200
"""Number of bytes at the beginning of a file in which its encoding is declared."""
FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML does not allow."""
_NO_ATTRIBUTES: Mapping[str, str] = {}
_ESCAPES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "\r": "&#13;"}


@dataclass(frozen=True, slots=True)
class XmlToken:
    """Piece of an XML document.

    raw: text in the document. kind: "alone" is an empty element such as `<br/>`; "other" is a declaration, a processing
    instruction or a document type. name: name of the element, with its prefix. text: character data with escapes
    resolved. line: number of the line on which the token begins, from 1.
    """

    kind: XmlKind
    raw: str
    line: int
    name: str = ""
    attributes: Mapping[str, str] = field(default_factory=dict)
    text: str = ""

    @property
    def local_name(self) -> str:
        """Name of the element without its prefix."""
        return self.name.rpartition(":")[2]


def decode_xml(data: bytes) -> tuple[str, str]:
    """Decode an XML document; see `decode` and `xml_encoding`."""
    return decode(data, xml_encoding(data[:DECLARATION_BYTES]))


def xml_encoding(start: bytes) -> str:
    """Return the encoding of an XML file: by its byte order mark, else as declared, else UTF-8.

    start: its beginning, of at least DECLARATION_BYTES if the file has as many.
    """
    if start[:2] in (b"<\0", b"\0<"):
        return "utf-16-le" if start[:1] == b"<" else "utf-16-be"
    declared = _DECLARED.match(start)
    encoding = declared[1].decode().lower() if declared else "utf-8"
    # A declaration that can be read as ASCII is not UTF-16, whatever it says; programs copy it from text in memory.
    is_wrong = encoding.replace("_", "-").startswith(("utf-16", "utf-32", "utf16", "utf32", "ucs"))
    return encoding_of(start, "utf-8" if is_wrong else encoding)


def xml_tokens(text: str, is_fragment: bool = False) -> list[XmlToken]:
    """Return the tokens of an XML document. Joining their `raw` gives `text`.

    is_fragment: True if `text` is what can stand inside of an element: elements and texts side by side.

    White space outside of the root element is part of the preceding token. A CDATA section is a token of kind "text".
    """
    require_count(text.count("<"), MAX_TAGS, "tags")
    data = text.removeprefix("\ufeff").encode("utf-8", "surrogatepass")
    bom = text[: len(text) - len(text.removeprefix("\ufeff"))]
    # (begin, line, kind, name, attributes, text) of each token
    events: list[tuple[int, int, XmlKind, str, Mapping[str, str], str]] = []
    parser = expat.ParserCreate("utf-8")
    if is_fragment:
        parser = parser.ExternalEntityParserCreate("")
    parser.buffer_text = False
    depth = 0
    text_is_complete = False                                        # True after the end of a CDATA section

    def add(kind: XmlKind, name: str = "", attributes: Mapping[str, str] | None = None, content: str = "") -> None:
        events.append((parser.CurrentByteIndex, parser.CurrentLineNumber, kind, name, attributes or _NO_ATTRIBUTES,
                       content))

    def start(name: str, attributes: dict[str, str]) -> None:
        nonlocal depth
        depth += 1
        if depth > MAX_DEPTH:
            raise DocumentError(f"line {parser.CurrentLineNumber}: elements are nested more than {MAX_DEPTH:,} deep.")
        add("open", name, attributes)

    def end(name: str) -> None:
        nonlocal depth
        depth -= 1
        begin, line, kind, opened, attributes, _ = events[-1]
        if kind == "open" and data[parser.CurrentByteIndex - 2:parser.CurrentByteIndex] == b"/>":
            events[-1] = (begin, line, "alone", opened, attributes, "")
        else:
            add("close", name)

    def cdata(begins: bool) -> None:
        nonlocal text_is_complete
        if begins:
            add("text")
        text_is_complete = not begins

    def characters(content: str) -> None:
        nonlocal text_is_complete
        last = events[-1] if events else None
        if last and last[2] == "text" and not text_is_complete:
            events[-1] = (*last[:5], last[5] + content)
        else:
            add("text", content=content)
            text_is_complete = False

    def refuse_entities(*_: object) -> int:
        raise DocumentError(f"line {parser.CurrentLineNumber}: the document declares entities, which are not accepted. "
                            "Remove the declarations.")

    parser.StartElementHandler, parser.EndElementHandler, parser.CharacterDataHandler = start, end, characters
    parser.StartCdataSectionHandler, parser.EndCdataSectionHandler = lambda: cdata(True), lambda: cdata(False)
    parser.CommentHandler = lambda content: add("comment")
    parser.ProcessingInstructionHandler = lambda target, content: add("other")
    parser.XmlDeclHandler = lambda *_: add("other")
    parser.StartDoctypeDeclHandler = lambda *_: add("other")
    parser.EntityDeclHandler = parser.ExternalEntityRefHandler = refuse_entities
    parser.SkippedEntityHandler = refuse_entities
    try:
        parser.Parse(data, True)
    except expat.ExpatError as error:
        reason = expat.ErrorString(error.code)
        if reason == expat.errors.XML_ERROR_ASYNC_ENTITY:
            reason = "start tag without end tag" if depth else "end tag without start tag"
        raise DocumentError(f"line {error.lineno}, column {error.offset + 1}: {reason}. The document is not "
                            "well-formed XML.") from error
    ends = [*(event[0] for event in events), len(data)][1:]
    tokens = [XmlToken(kind, data[begin:end].decode("utf-8", "surrogatepass"), line, name, attributes, content)
              for (begin, line, kind, name, attributes, content), end in zip(events, ends, strict=True)]
    if bom:
        tokens.insert(0, XmlToken("other", bom, 1))
    if events and events[0][0] > 0:
        tokens.insert(len(bom), XmlToken("other", data[:events[0][0]].decode(), 1))
    return tokens


def escape_xml(text: str, line_end: str = "\n") -> str:
    """Escape &, <, > and carriage returns. Line feeds become `line_end`. Characters that XML forbids are removed."""
    return re.sub("[&<>\r]", lambda match: _ESCAPES[match[0]], FORBIDDEN.sub("", text)).replace("\n", line_end)
