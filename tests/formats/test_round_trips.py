"""Each format: texts are found, an identical translation keeps every byte, another one changes only the texts."""

import csv
import io
import plistlib
import time
from pathlib import Path

import polib
import pytest
from format_kit import TRANSLATORS, check_texts, check_translator
from translate.storage import aresource, properties, resx, tmx, ts2, xliff, yaml
from unchanged_documents import unchanged, upper

from seq2seq.formats.block import DocumentError
from seq2seq.formats.registry import FORMATS, format_of, parse

SAMPLES = Path(__file__).parent / "samples"
# Texts of the blocks of each sample, with their lines. `sample` returns the sample and its translation into upper case.
BLOCKS = {
    "messages.po": [
        ('Cannot open "%S".', 15), ("File", 21), (
            "A first line that is rather long, so that the message is written on several lines.\n\tA second line with "
            "a tab and a \\.", 32), ("%X file", 39), ("%X files", 40)],
    "units-1.2.xlf": [("Save & close now", 6), ("Open", 9), ("Empty", 13), ("Text", 15), ("bold, slanted", 18),
                      ("One.", 22), ("Two.", 22)],
    "units-2.0.xlf": [("Hello brave ", 6), ("A b", 9)],
    "menu.ts": [('&Open "file", it\'s\nnew', 8), ("%n file(s)", 17), ("Save", 21)],
    "memory.tmx": [("Press this &  that.", 10), ("One", 13)],
    "strings.xml": [
        ('It\'s "new"\nhere & there', 4), ("Hello brave !", 6), ("It's quoted", 7), ("More &amp; more", 8),
        ("@home ? é😀", 10), ("Two lines", 11), ("One", 18), ("%d file", 22), ("%d files", 23), ("Name:", 26),
        ("and", 27), ("and", 28), ("and", 29), ("One", 30)],
    "app.arb": [('Hello "World"', 3), ("Open", 5), ("One", 5), ("Two words", 5), ("First\nsecond", 8)],
    "messages.properties": [
        ("Hello World", 3), ("With a: colon and é", 4), ("A long value on two lines, or three", 5), ("Value", 8),
        ("One\nTwo\tThree", 14)],
    "film.srt": [("I went to the big town to buy bread.", 3), ("Hello.", 12), ("Hi you!", 12)],
    "film.vtt": [("Fish & chips are good", 10), ("Yes.", 14)],
    "film.ass": [("One two, three four\u00a0five.", 11)],
    "page.md": [("One two", 4), ("three", 6), ("five", 7), ("a", 9), ("b", 11)],
    "page.html": [("One two", 1), ("Five ", 2)],
    "letter.txt": [("One", 1), ("two", 3)],
    "window.strings": [('Hello "World"\nSay %@', 2), ("It's 'here'", 3), ("Word", 4), ("Shown as it is", 6),
                       ('It\'s "one"', 7)],
    "dogs.stringsdict": [("You see %#@dogs@ here", 8), ("%lld dog", 17), ("%lld dogs & more", 19), ("Click it", 23),
                         ("Plain text", 24)],
    "dogs.xcstrings": [("%lld dog", 9), ("%lld dogs", 9), ("Hello %@", 45), ("A title", 54)],
    "texts.yaml": [
        ('Hello "World"', 3), ("Plain text - no, on two lines", 4), ("It's here", 6), (
            "First line\n  Second line\n\nThird line", 7), ("A paragraph on two lines", 13), ("One", 16), (
            "Two words", 16), ("Three", 16), ("%{count} dog", 21), ("%{count} dogs", 22)],
    "styles.yaml": [
        ("Some dog", 2), ("it's it", 4), ("Some dog", 6), ("Someé dog", 10), ("Some dog", 13), ("A dog", 19),
        ("A cat", 22), ("One\n two\n\nthree", 24), ("One two\nthree", 32), ("One\n two\nthree", 39), ("One", 44),
        ("Yes", 49), ("One two", 59), ("Three four", 61), ("it", 65), ("One two", 67), ("x y", 67), ("z, a", 67),
        *((text, 69) for text in ("A red dog", "Red dogs", "Two cats", "A cat", "The car", "A car", "My car", "A bus",
                                  "The bus", "Go on", "It is"))],
    "form.resx": [("&Save {0} <now>", 6), ("Two\nlines", 11)],
    "table.csv": [("Hello", 2), ('Say "hi", you', 3), ("Short", 6), ("Two\nlines", 7)],
    "cells.csv": [("A dog", 2), ("A dog", 3), ("A dog", 4), ('A "dog", b', 6), ("A dog", 10), ("A dog", 11),
                  ("A 'dog'", 12), ("a;b c", 13)],
    "semicolons.csv": [("One", 2), ("Two; three", 3)],
}


def sample(name, version=""):
    """Return the text of a sample. version: ".upper" for its translation into upper case."""
    stem, _, suffix = name.rpartition(".")
    return (SAMPLES / f"{stem}{version}.{suffix}").read_bytes().decode()


def format_of_sample(name):
    return format_of(name, sample(name).encode()) or "text"


def parsed(format, text, encoding="utf-8"):
    return parse(text.encode(encoding), format, "name", "en", "de")


def reader(name, source_language="en"):
    """Return the function that opens documents in the format of a sample."""
    format = format_of_sample(name)
    return lambda data: parse(data, format, "name", source_language, "de")


def test_every_format_of_text_has_a_sample():
    assert {*map(format_of_sample, BLOCKS)} == {*FORMATS} - {"docx", "pptx", "odt"}
    assert {*BLOCKS} == {path.name for path in SAMPLES.iterdir() if ".upper." not in path.name}


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("name", BLOCKS)
def test_only_the_texts_of_a_document_change(name, line_end):
    if line_end == "\r" and format_of_sample(name) in ("po", "markdown", "xcstrings"):
        pytest.skip("in this format, a carriage return alone ends no line")
    check_texts(reader(name), sample(name), BLOCKS[name], sample(name, ".upper"), line_end)


TRANSLATED_ONCE = {"po", "xliff", "ts", "tmx", "xcstrings", "csv"}
"""Formats with a place for the translation, whose texts are not translated again."""
SUBTITLES = {"srt", "vtt", "ass"}
"""Formats that divide a translation anew."""


@pytest.mark.parametrize("translator", TRANSLATORS)
@pytest.mark.parametrize("name", BLOCKS)
def test_a_format_reads_what_it_has_written(name, translator):
    format = format_of_sample(name)
    again = reader(name, "en" if format in TRANSLATED_ONCE else "de")           # YAML and ARB name their language
    check_translator(reader(name), sample(name), TRANSLATORS[translator], again,
                     format not in TRANSLATED_ONCE | SUBTITLES)


def declared(text, encoding):
    """Return a text with a byte order mark that declares an encoding."""
    text = "\ufeff" + text.removeprefix("\ufeff")
    if encoding != "utf-8":
        return text.replace("UTF-8", "UTF-16").replace("utf-8", "utf-16")
    return text.replace("UTF-8", "ISO-8859-1", 1) if text.startswith("\ufeff<?xml") else text


@pytest.mark.parametrize("name", BLOCKS)
def test_a_byte_order_mark_is_kept_and_decides_about_the_encoding(name):
    for encoding in ("utf-8", "utf-16-le", "utf-16-be"):
        source = declared(sample(name), encoding)
        document = parsed(format_of_sample(name), source, encoding)
        assert unchanged(document) == source.encode(encoding)
        if name != "messages.properties":                                       # in which \u00e9 may become É
            assert upper(document).decode(encoding) == declared(sample(name, ".upper"), encoding)


def targets(data, name):
    """Return the translations of a sample as other programs read them."""
    format = format_of_sample(name)
    if format == "po":
        return [entry.msgstr for entry in polib.pofile(data.decode())]
    if format == "csv":
        return [row[2] for row in csv.reader(io.StringIO(data.decode(), newline="")) if len(row) > 2]
    if format == "stringsdict":
        return [value for value in plistlib.loads(data).values() if isinstance(value, str)]
    store = {"xliff": xliff.xlifffile, "ts": ts2.tsfile, "tmx": tmx.tmxfile, "properties": properties.javafile,
             "android": aresource.AndroidResourceFile, "strings": properties.stringsutf8file, "resx": resx.RESXFile,
             "yaml": yaml.RubyYAMLFile}[format](
                 **{"personality": "java"} if format == "properties" else {})
    store.parse(data)
    return [str(unit.source if format in ("properties", "strings") else unit.gettarget("de") if format == "tmx" else
                unit.target) for unit in store.units]


@pytest.mark.parametrize(("name", "expected"), [
    ("units-1.2.xlf", ["SAVE & CLOSE NOW", "OPEN", "Fertig", "EMPTY", "ONE. TWO."]), ("memory.tmx", ["ONE"]),
    ("menu.ts", ["Schließen", "%N FILE(S)", "SAVE"]),
    ("strings.xml", ['IT\'S "NEW"\nHERE & THERE', "  IT'S QUOTED  ", "TWO LINES"]),
    ("window.strings", ['HELLO "WORLD"\nSAY %@', "IT'S 'HERE'", "WORD"]), ("dogs.stringsdict", ["PLAIN TEXT"]),
    ("form.resx", ["&SAVE {0} <NOW>", "  TWO\nLINES "]),
    ("table.csv", ["HELLO", 'SAY "HI", YOU', "TWO\nLINES", "Fertig"]),
    ("texts.yaml", ['HELLO "WORLD"', "IT'S HERE", "FIRST LINE\n  SECOND LINE\n\nTHIRD LINE\n",
                    "A PARAGRAPH ON TWO LINES"]),
    ("messages.properties", ["HELLO WORLD", "WITH A: COLON AND É", "A LONG VALUE ON TWO LINES, OR THREE"]),
    ("messages.po", ['CANNOT OPEN "%S".\n', "FILE", "Öfnen",
                     "A FIRST LINE THAT IS RATHER LONG, SO THAT THE MESSAGE IS WRITTEN ON SEVERAL LINES.\n"
                     "\tA SECOND LINE WITH A TAB AND A \\.\n"])])
def test_other_programs_read_the_translations(name, expected):
    assert {*expected} <= {*targets(upper(parsed(format_of_sample(name), sample(name))), name)}


@pytest.mark.parametrize(("format", "text"), [
    ("po", sample("messages.po").rstrip("\n")), ("po", ""), ("po", "# only a comment"), ("json", '"a"'), ("json", "1"),
    ("json", "[]"), ("properties", sample("messages.properties").replace("\n", "\r")), ("properties", ""),
    ("properties", "a=b\\"), ("srt", ""), ("srt", "\ufeff\n \n"),
    ("srt", "1\n00:00:01,000 --> 00:00:02,000\n10:30:15 - the end, 10,5 - 11:30\n"),
    ("vtt", "WEBVTT"), ("vtt", "\ufeffWEBVTT"), ("ass", ""), ("ass", "[Events]\n"), ("markdown", ""), ("html", ""),
    ("html", "  "), ("text", ""), ("tmx", "<tmx><body/></tmx>"), ("yaml", ""), ("yaml", "# a"), ("yaml", "a b"),
    ("yaml", "a:\n...\n---\nb: 1"), ("strings", ""), ("strings", "// a"), ("resx", "<root/>"), ("csv", "en,de"),
    ("stringsdict", "<plist/>"), ("xcstrings", '{"sourceLanguage":"en","strings":{}}')])
def test_small_documents_keep_their_bytes(format, text):
    assert unchanged(parsed(format, text)) == text.encode()


def test_units_of_a_memory_are_found_by_any_code_of_their_languages():
    data = sample("memory.tmx").encode()
    assert parse(data, "tmx", "name", "eng", "deu").blocks == parse(data, "tmx", "name", "en", "de").blocks
    assert [tag.pair for tag in parse(data, "tmx", "name", "en", "de").blocks[0].tags] == [0, 0, None, 3, 3]


# Format: texts that take quadratic time if a pattern goes back, or memory if anything is nested or counted.
HOSTILE = {
    "android": ["<resources><string name='a'>" + content + "</string></resources>" for content in (
        "<![CDATA[" + "<a " * 300_000 + "]]>", "<![CDATA[" + "<!--" * 200_000 + " a]]>", "\\\\" * 300_000 + "a b",
        '"' * 300_000 + "a", "a" + " " * 900_000 + "b")],
    "properties": ["\\" * 1_000_001, "a=" + "\\\n" * 500_000, " \\\n" * 300_000, "a=b\\\n" * 200_000 + "c",
                   "a" * 1_000_000, ":" * 900_000, "a=b \\\n\n" * 100_000, "a=" + "\\\\" * 400_000 + "b c"],
    "xliff": [f"<xliff version='1.2'><trans-unit id='1'><source>{codes}</source></trans-unit></xliff>" for codes in (
        "<bx id='1'/>" * 9_000 + "a" + "<ex id='2'/>" * 9_000, "<g id='1'>a</g>" * 9_000,
        "<g id='1'>" * 900 + "a" + "</g>" * 900, "<bx id='1'/><ex id='1'/>" * 9_000 + "a",
        "<g " + " ".join(f"a{number}=''" for number in range(20_000)) + ">a</g>")],
    "strings": ["\"" * 1_000_001, "/*" * 500_000, "/* *" * 250_000, '"a"' * 300_000, '"' + "\\" * 1_000_000,
                "a=" * 500_000, "a " * 500_000, "//\n" * 300_000 + "a"],
    "yaml": ["[" * 100_000, "{a: " * 100_000, "- " * 100_000, "a: &a [" + "*a, " * 100_000 + "]", "a: 'b\n" * 50_000,
             "&a " * 300_000, "a: |\n" + "  b\n" * 200_000, "? " * 100_000, "a:\n" + "  one: b c\n" * 50_000],
    "csv": ["en,de\n" + '"' * 1_000_001, "en,de\n" + '"a' * 300_000, "," * 900_000, "en,de\n" + "a b," * 200_000,
            "en,de\n" + "a b\n" * 200_000],
    "xcstrings": ['{"sourceLanguage":"en","strings":' + '{"a":' * 100_000,
                  '{"sourceLanguage":"en","strings":{' + ",".join(
                      f'"a {number}":{{}}' for number in range(100_000)) + "}}"],
    "stringsdict": ["<plist>" + "<dict>" * 900 + "</dict>" * 900 + "</plist>",
                    "<plist><dict>" + "<key>a</key><string>a b</string>" * 100_000
                    + "</dict></plist>", "<plist><dict>" + "<key>a</key>" * 200_000
                    + "</dict></plist>"],
    "resx": ["<root>" + '<data name="&gt;&gt;a"><value>a b</value></data>' * 100_000 + "</root>",
             '<root><data name="' + ".Size" * 200_000 + '"><value>a b</value></data></root>'],
    "markdown": [piece * (40_000 // len(piece)) for piece in (
        "[", "![](", "*a ", "*a_ ", "<a ", "`a``", "> ", "- a\n", "a  \n", "|a", "[a](b", "&", "]", "\\")],
    "srt": [f"1\n00:00:01,000 --> 00:00:02,000\n{text}\n" for text in (
        "<" * 100_000, "{\\" * 50_000, "<i>" * 30_000, "a\n" * 50_000, "-" * 100_000, "\\N-" * 9_999)],
    "ass": [sample("film.ass").replace("four", text) for text in ("{\\" * 50_000, "a " * 50_000, "\\N-" * 9_999)],
    "po": ['msgid "a"\n' + '"b"\n' * 100_000 + 'msgstr ""\n', 'msgid "a"\nmsgstr ""\n\n' * 33_000,
           '"' + "a" * 1_000_000, '"' * 1_000_001, "msgid " + '"a" ' * 200_000 + "x", " " * 1_000_000 + "x",
           "domain " + '"" ' * 200_000 + "x", '"' + "Content-Type:" * 8_000],
}


@pytest.mark.slow
@pytest.mark.parametrize(("format", "number"), [(format, number) for format in HOSTILE
                                                for number in range(len(HOSTILE[format]))])
def test_hostile_texts_are_translated_or_refused_in_linear_time(format, number):
    text = HOSTILE[format][number]
    begin = time.process_time()
    try:
        document = parsed(format, text)
        assert unchanged(document) == text.encode()
        upper(document)
    except DocumentError as error:
        assert str(error).startswith("name:")
    assert time.process_time() - begin < 20
