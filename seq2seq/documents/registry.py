"""Formats of documents, by their names and by file suffixes."""

from __future__ import annotations

from importlib import import_module
from pathlib import PurePath

from seq2seq.documents.block import Document, DocumentError
from seq2seq.errors import UserError
from seq2seq.files import compression_of

# Class and file suffixes of each format. A class is imported on first use, because the help of the command line needs
# only the names. `.txt` is no suffix of `text`, because such files usually have a sentence per line. `.xml` is left
# out, because it does not tell the format of the contents.
_TABLE = {
    "html": ("seq2seq.documents.formats.html.HtmlDocument", ".html .htm .xhtml"),
    "markdown": ("seq2seq.documents.formats.markdown.MarkdownDocument", ".md .markdown"),
    "text": ("seq2seq.documents.formats.plain_text.PlainTextDocument", ""),
    "srt": ("seq2seq.documents.formats.subtitles.SrtDocument", ".srt"),
    "vtt": ("seq2seq.documents.formats.subtitles.VttDocument", ".vtt"),
    "ass": ("seq2seq.documents.formats.subtitles.AssDocument", ".ass .ssa"),
    "po": ("seq2seq.documents.formats.po.PoDocument", ".po .pot"),
    "xliff": ("seq2seq.documents.formats.xliff.XliffDocument", ".xlf .xliff"),
    "ts": ("seq2seq.documents.formats.qt_ts.TsDocument", ".ts"),
    "properties": ("seq2seq.documents.formats.properties.PropertiesDocument", ".properties"),
    "android": ("seq2seq.documents.formats.android.AndroidDocument", ""),
    "json": ("seq2seq.documents.formats.json_strings.JsonDocument", ".json .arb"),
    "docx": ("seq2seq.documents.formats.office.DocxDocument", ".docx"),
    "pptx": ("seq2seq.documents.formats.office.PptxDocument", ".pptx"),
    "odt": ("seq2seq.documents.formats.office.OdtDocument", ".odt .odp .ods"),
    "tmx": ("seq2seq.documents.formats.tmx.TmxDocument", ".tmx"),
}
FORMATS = tuple(_TABLE)
"""Names of the formats."""
OFFICE = ("docx", "pptx", "odt")
"""Formats whose files are ZIP archives."""
SUFFIXES = {suffix: name for name, (_, suffixes) in _TABLE.items() for suffix in suffixes.split()}
"""Format of each file suffix."""


def format_of(name: str) -> str | None:
    """Return the format that a file's name tells, or None. A file named strings.xml has the format of Android."""
    path = PurePath(name)
    return "android" if path.name.lower() == "strings.xml" else SUFFIXES.get(path.suffix.lower())


def parse(data: bytes, format: str, name: str, source_language: str, target_language: str) -> Document:
    """Parse a document.

    Args:
        format: one of FORMATS. name: name of the document, for messages.
    Raises:
        DocumentError: the document is malformed, compressed or too large; the message begins with its name and the
            place.
        UserError: there is no such format.
    """
    if format not in FORMATS:
        raise UserError(f"'{format}' is not a format of documents. The formats are {', '.join(FORMATS)}.")
    if format not in OFFICE and (kind := compression_of(data)):
        raise DocumentError(f"{name}: the document begins like {kind} data. Decompress it, or name its format.")
    module, _, class_name = _TABLE[format][0].rpartition(".")
    read = getattr(import_module(module), class_name)
    try:
        document: Document = read(data, source_language, target_language) if format == "tmx" else read(data)
    except DocumentError as error:
        separator = ":" if str(error).startswith("line ") else ": "
        raise DocumentError(f"{name}{separator}{str(error).removeprefix('line ')}") from error
    return document
