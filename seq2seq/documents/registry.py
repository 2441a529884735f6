"""Formats of documents, by their names and by file suffixes."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import PurePath
from typing import Protocol, runtime_checkable

from seq2seq.documents.block import Document, DocumentError
from seq2seq.errors import UserError
from seq2seq.files import UTF16_MARKS, compression_of
from seq2seq.languages import LANGUAGE_NAMES, is_same_language, main_language

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


@runtime_checkable
class NamesLanguages(Protocol):
    """Document that names its languages.

    source_languages: codes of the languages of the texts to translate. target_languages: codes of the languages of the
    translations that the document already has and keeps.
    """

    source_languages: set[str]
    target_languages: set[str]


def parse(data: bytes, format: str, name: str, source_language: str, target_language: str) -> Document:
    """Parse a document.

    Args:
        format: one of FORMATS. name: name of the document, for messages. source_language, target_language: codes of the
            languages of the translation; "" means that the language is not known yet.
    Raises:
        DocumentError: the document is malformed, compressed or too large, or names other languages; the message begins
            with its name and the place.
        UserError: there is no such format.
    """
    if format not in FORMATS:
        raise UserError(f"'{format}' is not a format of documents. The formats are {', '.join(FORMATS)}.")
    module, _, class_name = _TABLE[format][0].rpartition(".")
    read = getattr(import_module(module), class_name)
    with naming(name):
        if format not in OFFICE:
            _require_text(data)
        document: Document = read(data, source_language, target_language) if format == "tmx" else read(data)
        if isinstance(document, NamesLanguages):
            _require_language("texts", document.source_languages, source_language)
            _require_language("translations", document.target_languages, target_language)
    return document


@contextmanager
def naming(name: str) -> Iterator[None]:
    """Put the name of a document before the place in the messages of DocumentErrors that the block raises."""
    try:
        yield
    except DocumentError as error:
        separator = ":" if str(error).startswith("line ") else ": "
        raise DocumentError(f"{name}{separator}{str(error).removeprefix('line ')}") from error


def _require_text(data: bytes) -> None:
    if kind := compression_of(data):
        raise DocumentError(f"the document begins like {kind} data. Decompress it, or choose its format.")
    marks = (*UTF16_MARKS, codecs.BOM_UTF32_BE)                     # that of UTF-32 LE begins with that of UTF-16
    if (place := data.find(0)) >= 0 and not data.startswith(marks):
        line = data[:place].count(b"\n") + 1
        raise DocumentError(f"line {line}: a byte of value 0, which no text has. Remove it; in UTF-16 or UTF-32, the "
                            "document must begin with a byte order mark.")


def _require_language(texts: str, named: Iterable[str], language: str) -> None:
    """Raise DocumentError if a document names another language than that of the translation. Regions may differ.

    texts: the texts in this language, such as "translations".
    """
    for code in sorted(named):
        known = {main_language(code), main_language(language)} <= LANGUAGE_NAMES.keys()
        if known and not is_same_language(code, language):
            raise DocumentError(f"the document says that it has {texts} in the language {code}, not {language}. "
                                "Correct what the document says, or choose other languages.")
