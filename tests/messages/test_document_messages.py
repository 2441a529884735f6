"""Messages about malformed documents and glossaries, in document.txt."""

import gzip
import io
import zipfile

from catalogue import Catalogue

from seq2seq.cli.translate import input_format
from seq2seq.data.glossary import Glossary
from seq2seq.documents.messages import parse_message
from seq2seq.formats.placeholders import Placeholders
from seq2seq.formats.registry import parse

catalogue = Catalogue("document")

TIMES = "00:00:01,000 --> 00:00:02,000"
HEADER = 'msgid ""\nmsgstr "Content-Type: text/plain; charset={}\\n"\n'
# Name of a case: format and contents.
MALFORMED = {
    "unknown format": ("doc", b""), "gzip data": ("markdown", gzip.compress(b"# Title", mtime=0)),
    "zip archive as text": ("text", b"PK\3\4rest"), "bytes of another encoding": ("text", b"a\n\xff"),
    "too many characters of markup": ("markdown", b"[" * 400_001), "text of a million characters": (
        "text", b"a b" * 333_334), "too many lines": ("text", b"\n" * 500_001),
    "malformed XML": ("xliff", b"<xliff version='1.2'>\n<a></xliff>"), "empty XML": ("ts", b""),
    "XML with entities": ("xliff", b"\n<!DOCTYPE a [<!ENTITY b 'c'>]><xliff version='1.2'>&b;</xliff>"),
    "XML that is nested too deeply": ("android", b"<resources>" * 1001),
    "XML in an unknown encoding": ("xliff", b"<?xml version='1.0' encoding='klingon'?><xliff/>"),
    "XLIFF of another version": ("xliff", b"\n<xliff version='3'/>"), "XLIFF without XLIFF": ("xliff", b"<a/>"),
    "ts without TS": ("ts", b"\n<ts/>"), "tmx without TMX": ("tmx", b"\n<a/>"),
    "tmx in other languages": ("tmx", b"<tmx><tu><tuv xml:lang='ru'><seg>a</seg></tuv></tu></tmx>"),
    "android without resources": ("android", b"\n<a/>"),
    "malformed JSON": ("json", b'{\n "a": b}'), "empty JSON": ("json", b""), "JSON with a long number": (
        "json", b"1" * 5000), "JSON that is nested too deeply": ("json", b"[" * 100_000),
    "properties with a malformed escape": ("properties", b"a=b\nc=d\\\n  \\u12\n"),
    "srt with times of another form": ("srt", f"1\n{TIMES}\none\n\n2\n00:00:03,000 -> 00:00:04,000\ntwo\n".encode()),
    "vtt with times of another form": ("vtt", "WEBVTT\n\n00:03.000 –> 00:04.000\ntwo\n".encode()),
    "srt without times": ("srt", b"one\ntwo\n"), "vtt without its first line": ("vtt", f"{TIMES}\none\n".encode()),
    "ass without events": ("ass", b"one\n"), "ass without a format": ("ass", b"[Events]\nDialogue: 0,0:00:01.00,one\n"),
    "ass with too few fields": ("ass", b"[Events]\nFormat: Layer, Start, End, Text\nDialogue: 0:00:01.00\n"),
    "po with another line": ("po", b'msgid "a"\n\nfoo\n'), "po with an open quote": ("po", b'msgid "a\nmsgstr ""\n'),
    "po without a translation": ("po", b'msgid "a"\n'), "po with two ids": ("po", b'msgid "a"\nmsgid "b"\n'),
    "po with a translation alone": ("po", b'msgstr "a"\n'), "po with a string alone": ("po", b'"a"\n'),
    "po with an unknown escape": ("po", b'msgid "a\\q"\nmsgstr ""\n'),
    "po with a number but no plural": ("po", b'msgid "a"\nmsgstr[0] ""\n'),
    "po with a wrong number": ("po", b'msgid "a"\nmsgid_plural "b"\nmsgstr[1] ""\n'),
    "po in an unknown encoding": ("po", HEADER.format("klingon").encode()),
    "po in an encoding of bytes": ("po", HEADER.format("base64").encode()),
    "office document of another format": ("docx", b"{\\rtf1"),
}


def archive(*members):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as file:
        for name, content in members:
            file.writestr(zipfile.ZipInfo(name), content)
    return stream.getvalue()


TYPES = ('<Types><Override PartName="/word/document.xml" ContentType="wordprocessingml.document.main+xml"/></Types>')
MALFORMED |= {
    "docx without a part": ("docx", archive(("a", "b"))), "docx without text": (
        "docx", archive(("[Content_Types].xml", "<Types/>"))),
    "docx with malformed XML": ("docx", archive(("[Content_Types].xml", TYPES), ("word/document.xml", "<a>\n<b></a>"))),
    "docx with another prefix": ("docx", archive(("[Content_Types].xml", TYPES), (
        "word/document.xml", "<a:document xmlns:a='http://schemas.openxmlformats.org/wordprocessingml/2006/main'/>"))),
    "docx with a damaged member": ("docx", archive(("[Content_Types].xml", TYPES)).replace(b"Override", b"Overrode")),
    "odt with a password": ("odt", archive(("META-INF/manifest.xml", "<encryption-data/>"))),
}
for name, (format, data) in MALFORMED.items():
    catalogue.add(name, lambda folder, format=format, data=data: parse(data, format, "name", "en", "de"))


# Messages with branches

BRANCHED = {
    "without branches": "{n, plural,", "without its end": "{n, plural, one {a} other {b}",
    "with an open branch": "{n, plural, one {a", "with another closing brace": "{n, plural, one {a}} x } y",
    "with another opening brace": "{n, plural, other {a}} {x", "with an unknown category": "{n, plural, foo {a}}",
    "with two equal branches": "{n, plural, one {a} one {b}}", "with an open quotation": "{n, plural, other {'{x}}",
    "with a choice without a limit": "{0,choice,0#a|b}",
    "with an offset that is moved": "{n, plural, offset:1 other {# {m, plural, other {#}}}}",
    "of MessageFormat 2": ".input {$n :number} .match $n one {{a}} * {{b}}",
    "with nested arguments": "{a, select, other {" * 20 + "}}" * 20,
    "with many combinations": "".join(f"{{n{index}, plural, one {{a}} other {{b}}}}" for index in range(8)),
}
for name, text in BRANCHED.items():
    catalogue.add(f"message {name}", lambda folder, text=text: parse_message(text))

# Documents by name

for name in ("a.pdf", "a.html.gz"):
    catalogue.add(f"document {name}", lambda folder, name=name: input_format(folder / name, None))

# Glossaries

for name, text in {"empty": "", "four columns": "a\tb\tc\td", "term without letters": "x\ty\n...\tz",
                   "semicolons": "a;b\nc;d", "spaces": "x\ty\nPaket   parcel",
                   "note in column 2": "x\tdo not translate"}.items():
    catalogue.add(f"glossary {name}", lambda folder, text=text: Glossary.parse(text, "terms.tsv", "en", "de"))


@catalogue
def glossary_csv_with_semicolons(folder):
    Glossary.parse("a;b\nc;d", "terms.csv", "en", "de")


@catalogue
def glossary_in_another_encoding(folder):
    (folder / "terms.tsv").write_bytes(b"caf\xe9\tKaffee\n")
    Glossary.read(folder / "terms.tsv", "en", "de")


@catalogue
def glossary_that_does_not_exist(folder):
    Glossary.read(folder / "terms.tsv", "en", "de")


for pattern in ("(", "a*"):
    catalogue.add(f"placeholder {pattern}", lambda folder, pattern=pattern: Placeholders([pattern]))

test_message, test_every_message_belongs_to_a_case = catalogue.tests()
