"""Formats of documents, by their names and by file suffixes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import PurePath

from seq2seq.documents.block import Document, DocumentError
from seq2seq.documents.formats.android import AndroidDocument
from seq2seq.documents.formats.html import HtmlDocument
from seq2seq.documents.formats.json_strings import JsonDocument
from seq2seq.documents.formats.markdown import MarkdownDocument
from seq2seq.documents.formats.office import DocxDocument, OdtDocument, PptxDocument
from seq2seq.documents.formats.plain_text import PlainTextDocument
from seq2seq.documents.formats.po import PoDocument
from seq2seq.documents.formats.properties import PropertiesDocument
from seq2seq.documents.formats.qt_ts import TsDocument
from seq2seq.documents.formats.subtitles import AssDocument, SrtDocument, VttDocument
from seq2seq.documents.formats.tmx import TmxDocument
from seq2seq.documents.formats.xliff import XliffDocument
from seq2seq.errors import UserError
from seq2seq.files import compression_of

FORMATS: dict[str, Callable[[bytes], Document]] = {
    "html": HtmlDocument, "markdown": MarkdownDocument, "text": PlainTextDocument, "srt": SrtDocument,
    "vtt": VttDocument, "ass": AssDocument, "po": PoDocument, "xliff": XliffDocument, "ts": TsDocument,
    "properties": PropertiesDocument, "android": AndroidDocument, "json": JsonDocument, "docx": DocxDocument,
    "pptx": PptxDocument, "odt": OdtDocument,
}
OFFICE = ("docx", "pptx", "odt")
"""Formats whose files are ZIP archives."""
SUFFIXES = {
    ".html": "html", ".htm": "html", ".xhtml": "html", ".md": "markdown", ".markdown": "markdown", ".srt": "srt",
    ".vtt": "vtt", ".ass": "ass", ".ssa": "ass", ".po": "po", ".pot": "po", ".xlf": "xliff", ".xliff": "xliff",
    ".ts": "ts", ".properties": "properties", ".json": "json", ".arb": "json", ".docx": "docx", ".pptx": "pptx",
    ".odt": "odt", ".odp": "odt", ".ods": "odt", ".tmx": "tmx",
}
"""Format of each file suffix. `.txt` is left out, because such files usually have a sentence per line. `.xml` is left
out, because it does not tell the format of the contents."""


def format_of(name: str) -> str | None:
    """Return the format that a file's name tells, or None. A file named strings.xml has the format of Android."""
    path = PurePath(name)
    return "android" if path.name.lower() == "strings.xml" else SUFFIXES.get(path.suffix.lower())


def parse(data: bytes, format: str, name: str, source_language: str, target_language: str) -> Document:
    """Parse a document.

    Args:
        format: one of FORMATS, or tmx. name: name of the document, for messages.
    Raises:
        DocumentError: the document is malformed, compressed or too large; the message begins with its name and the
            place.
        UserError: there is no such format.
    """
    formats = {**FORMATS, "tmx": lambda data: TmxDocument(data, source_language, target_language)}
    if format not in formats:
        raise UserError(f"'{format}' is not a format of documents. The formats are {', '.join(formats)}.")
    if format not in OFFICE and (kind := compression_of(data)):
        raise DocumentError(f"{name}: the document begins like {kind} data. Decompress it, or name its format.")
    try:
        return formats[format](data)
    except DocumentError as error:
        separator = ":" if str(error).startswith("line ") else ": "
        raise DocumentError(f"{name}{separator}{str(error).removeprefix('line ')}") from error
