"""Formats of documents, by their names, by file suffixes and by the contents of a file."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from contextlib import suppress
from importlib import import_module
from pathlib import PurePath
from xml.parsers import expat

from seq2seq.errors import UserError
from seq2seq.files import compression_of
from seq2seq.formats.block import NO_KEYS, Document, DocumentError, KeyNames, encoding_of, naming, wide_encoding
from seq2seq.formats.xml_tokens import decode_xml
from seq2seq.languages import LANGUAGES, is_language, is_same_language, main_language

# Class and file suffixes of each format. A class is imported on first use, because the help of the command line needs
# only the names. `.txt` is no suffix of `text`, because such files usually have a sentence per line. `.xml` is left
# out, because the root element tells the format.
_TABLE = {
    "html": ("seq2seq.formats.html.HtmlDocument", ".html .htm .xhtml .xht .shtml"),
    "markdown": ("seq2seq.formats.markdown.MarkdownDocument", ".md .markdown .mdown .mkd"),
    "text": ("seq2seq.formats.plain_text.PlainTextDocument", ""),
    "srt": ("seq2seq.formats.subtitles.SrtDocument", ".srt"),
    "vtt": ("seq2seq.formats.subtitles.VttDocument", ".vtt"),
    "ass": ("seq2seq.formats.subtitles.AssDocument", ".ass .ssa"),
    "po": ("seq2seq.formats.po.PoDocument", ".po .pot"),
    "xliff": ("seq2seq.formats.xliff.XliffDocument", ".xlf .xliff"),
    "ts": ("seq2seq.formats.qt_ts.TsDocument", ".ts"),
    "properties": ("seq2seq.formats.properties.PropertiesDocument", ".properties"),
    "android": ("seq2seq.formats.android.AndroidDocument", ""),
    "json": ("seq2seq.formats.json_strings.JsonDocument", ".json .arb"),
    "yaml": ("seq2seq.formats.yaml_strings.YamlDocument", ".yml .yaml"),
    "strings": ("seq2seq.formats.apple_strings.AppleStringsDocument", ".strings"),
    "stringsdict": ("seq2seq.formats.stringsdict.StringsDictDocument", ".stringsdict"),
    "xcstrings": ("seq2seq.formats.xcstrings.XcstringsDocument", ".xcstrings"),
    "resx": ("seq2seq.formats.resx.ResxDocument", ".resx .resw"),
    "csv": ("seq2seq.formats.csv_table.CsvDocument", ".csv .tsv"),
    "docx": ("seq2seq.formats.office.DocxDocument", ".docx"),
    "pptx": ("seq2seq.formats.office.PptxDocument", ".pptx"),
    "odt": ("seq2seq.formats.office.OdtDocument", ".odt .odp .ods"),
    "tmx": ("seq2seq.formats.tmx.TmxDocument", ".tmx"),
}
FORMATS = tuple(_TABLE)
"""Names of the formats."""
OFFICE = ("docx", "pptx", "odt")
"""Formats whose files are ZIP archives."""
SUFFIXES = {suffix: name for name, (_, suffixes) in _TABLE.items() for suffix in suffixes.split()}
"""Format of each file suffix. The format of .xml is that of its root element."""
_ROOTS = {"resources": "android", "xliff": "xliff", "TS": "ts", "tmx": "tmx", "root": "resx", "html": "html"}
"""Format of a file with the suffix .xml by the name of its root element."""
# Beginnings of structured files that no text has.
_BEGINNINGS = {
    "XML or HTML": r"(?i:<\?xml\b|<!doctype\b|<html\b)", "JSON": r'\{\s*+(?:"|\Z)', "PDF": "%PDF-",
    "PostScript": "%!PS", "RTF": r"\{\\rtf", "WebVTT": r"WEBVTT\s", "ASS": r"\[Script Info\]",
    "PO": r'(?:#[^\n]*+\n)*+msgid "', "SRT": r"\d++\r?\n\d{1,2}:\d\d:\d\d[,.]\d{1,3} --> ", "YAML": "%YAML ",
    "a compiled property list": "bplist0",
}
_BEGINNING = re.compile("|".join(f"({pattern})" for pattern in _BEGINNINGS.values()))
START_CHARACTERS = 1 << 20
"""Number of characters of a file that tell its format."""


def format_of(name: str, data: bytes = b"") -> str | None:
    """Return the format that a file's name tells, or None. The root element tells the format of a file named .xml; a
    file named strings.xml whose root element cannot be read has the format of Android.

    data: contents of the file.
    """
    path = PurePath(name)
    if path.suffix.lower() != ".xml":
        return SUFFIXES.get(path.suffix.lower())
    root = root_element(data)
    return "android" if not root and path.name.lower() == "strings.xml" else _ROOTS.get(root)


def root_element(data: bytes) -> str:
    """Return the name of the root element of an XML document without its prefix; "" if there is none."""
    names: list[str] = []
    parser = expat.ParserCreate("utf-8")

    def start(name: str, attributes: dict[str, str]) -> None:
        names.append(name.rpartition(":")[2])
        parser.StartElementHandler = None

    parser.StartElementHandler = start
    with suppress(expat.ExpatError, DocumentError):                             # the format reports the error
        parser.Parse(decode_xml(data)[0].removeprefix("\ufeff")[:START_CHARACTERS].encode(), False)
    return names[0] if names else ""


def names_lines(name: str, languages: Collection[str] = ()) -> bool:
    """Return True if the name of a file may be that of lines of text: its suffix is .txt, or that of a language, or
    missing. A suffix of a format, such as .ts, names no language, unless it is one of `languages`: those of a model."""
    suffix = PurePath(name).suffix.lower()
    code = suffix.removeprefix(".")
    return suffix in ("", ".txt") or code in map(str.lower, languages) or suffix not in SUFFIXES and is_language(code)


def structure_of(data: bytes) -> str | None:
    """Return the kind of structured data that begins with `data`, such as `JSON`; None if it may be text."""
    text = data[:START_CHARACTERS].decode(encoding_of(data), "ignore")
    found = _BEGINNING.match(text.removeprefix("\ufeff").lstrip())
    return [*_BEGINNINGS][found.lastindex - 1] if found and found.lastindex else None


def parse(data: bytes, format: str, name: str, source_language: str, target_language: str,
          keys: KeyNames = NO_KEYS) -> Document:
    """Parse a document as `read` does. name: name of the document, with which its errors begin."""
    with naming(name):
        return read(data, format, source_language, target_language, keys)


def read(data: bytes, format: str, source_language: str, target_language: str, keys: KeyNames = NO_KEYS) -> Document:
    """Parse a document.

    Args:
        format: one of FORMATS. source_language, target_language: codes of the languages of the translation; the first
            one is "" if it is not known yet.
        keys: keys that the user names, in JSON and YAML.
    """
    if format not in FORMATS:
        raise UserError(f"'{format}' is not a format of documents. The formats are {', '.join(FORMATS)}.")
    module, _, class_name = _TABLE[format][0].rpartition(".")
    if format not in OFFICE:
        _require_text(data)
    if keys != NO_KEYS and format not in ("json", "yaml"):
        raise UserError(f"--keys and --skip-keys are for JSON and YAML, not for {format}. Do without them.")
    document: Document = getattr(import_module(module), class_name)(data, source_language, target_language, keys)
    _require_language("texts", document.source_languages, source_language)
    _require_language("translations", document.target_languages, target_language)
    return document


def _require_text(data: bytes) -> None:
    if kind := compression_of(data):
        raise DocumentError(f"the document begins like {kind} data. Decompress it, or choose its format.")
    if (place := data.find(0)) >= 0 and not wide_encoding(data):
        line = data[:place].count(b"\n") + 1
        raise DocumentError(f"line {line}: a byte of value 0, which no text has. Remove it; in UTF-16 or UTF-32, the "
                            "document must begin with a byte order mark.")


def _require_language(texts: str, named: Iterable[str], language: str) -> None:
    """Raise DocumentError if a document names another language than that of the translation. Regions may differ.

    texts: the texts in this language, such as "translations".
    """
    for code in sorted(named):
        known = {main_language(code), main_language(language)} <= LANGUAGES.keys()
        if known and not is_same_language(code, language):
            raise DocumentError(f"the document says that it has {texts} in the language {code}, not {language}. "
                                "Correct what the document says, or choose other languages.")
