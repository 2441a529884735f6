"""Hostile documents are refused with their place, or translated, in bounded time and memory."""

import io
import json
import struct
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from seq2seq.documents.divided_document import DividedDocument
from seq2seq.formats.block import DocumentError
from seq2seq.formats.registry import parse

MAX_SECONDS = 60
"""Maximum processor time: three times as much as the slowest document takes on an idle machine."""
MAX_MEGABYTES = 1_000
MAX_ADDRESS_SPACE = 2_000_000_000
BILLION_LAUGHS = ('<!DOCTYPE a [<!ENTITY l0 "lol">'
                  + "".join(f'<!ENTITY l{number} "{f"&l{number - 1};" * 10}">' for number in range(1, 10)) + "]>")
EXTERNAL = '<!DOCTYPE a [<!ENTITY l9 SYSTEM "file:///etc/passwd">]>'
XML = {
    "xliff": '<xliff version="1.2"><file source-language="en"><body><trans-unit id="1"><source>{}</source></trans-unit>'
             "</body></file></xliff>",
    "ts": '<TS version="2.1"><context><message><source>{}</source><translation type="unfinished"/></message></context>'
          "</TS>",
    "tmx": '<tmx version="1.4"><body><tu><tuv xml:lang="en"><seg>{}</seg></tuv></tu></body></tmx>',
    "android": '<resources><string name="a">{}</string></resources>',
    "resx": '<root><data name="a"><value>{}</value></data></root>',
    "stringsdict": "<plist><dict><key>a</key><string>{}</string></dict></plist>",
}
STRINGS = {"json": '["{}"]', "properties": "a = {}", "strings": '"a" = "{}";', "csv": 'en,de\n"{}",',
           "xcstrings": '{{"sourceLanguage": "en", "strings": {{"{}": {{}}}}}}'}
OFFICE = {
    "docx": ("word/document.xml", '<w:document xmlns:w="w"><w:body>{}</w:body></w:document>', "<w:p><w:r><w:t>{}</w:t>"
             "</w:r></w:p>"),
    "pptx": ("ppt/slides/slide1.xml", '<p:sld xmlns:p="p" xmlns:a="a">{}</p:sld>',
             "<a:p><a:r><a:t>{}</a:t></a:r></a:p>"),
    "odt": ("content.xml", '<office:document xmlns:office="o" xmlns:text="t">{}</office:document>',
            "<text:p>{}</text:p>"),
}
TYPES = ('<Types><Override PartName="/word/document.xml" ContentType="application/vnd.openxmlformats-officedocument.'
         'wordprocessingml.document.main+xml"/><Override PartName="/ppt/slides/slide1.xml" ContentType="application/vnd'
         '.openxmlformats-officedocument.presentationml.slide+xml"/></Types>')


def packed(members, compression=zipfile.ZIP_DEFLATED):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", compression) as file:
        for name, content in members:
            file.writestr(zipfile.ZipInfo(name), content, compression)
    return stream.getvalue()


def office(format, content, doctype="", *members):
    name, document, _ = OFFICE[format]
    return packed([("[Content_Types].xml", TYPES), (name, doctype + document.format(content)), *members])


def paragraph(format, text):
    return OFFICE[format][2].format(text)


def nested_archive(depth):
    data = b"\0" * 1_000_000
    for _ in range(depth):
        data = packed([(f"{number}.zip", data) for number in range(16)])
    return office("docx", paragraph("docx", "one two"), "", ("inner.zip", data))


def lying_archive(size):
    data = bytearray(office("docx", paragraph("docx", "one two " * size)))
    at = data.rfind(b"PK\x01\x02")
    struct.pack_into("<I", data, at + 24, 100)
    return bytes(data)


def cues(count):
    return "".join(f"{number}\n{number // 3600:02}:{number // 60 % 60:02}:{number % 60:02},000 --> {number // 3600:02}:"
                   f"{number // 60 % 60:02}:{number % 60:02},900\none two\n\n" for number in range(count)).encode()


def mixed(size):
    """Every kind of bracket and mark in turn."""
    return (b"[![*_`<~(> " * (size // 11 + 1))[:size]


MESSAGE = 'msgid ""\nmsgstr ""\n\nmsgid "{}"\nmsgstr ""\n'
# Name: format, function that makes the document of a size, small size, real size, part of the error ("": translated;
# None: either).
CASES = {
    **{f"{format} with {name}": (format, lambda size, text=text, doctype=doctype: (doctype + text.format("one &l9;"))
                                 .encode(), 1, 1, "name:1: the document declares entities")
       for format, text in XML.items() for name, doctype in (("nested entities", BILLION_LAUGHS),
                                                             ("an external entity", EXTERNAL))},
    **{f"{format} with {name}": (format, lambda size, format=format, doctype=doctype: office(
        format, paragraph(format, "one &l9;"), doctype), 1, 1, f"{OFFICE[format][0]}, line 1: the document declares")
       for format in OFFICE for name, doctype in (("nested entities", BILLION_LAUGHS),
                                                  ("an external entity", EXTERNAL))},
    "docx with nested archives": ("docx", nested_archive, 1, 3, None),
    "docx with a high ratio": ("docx", lambda size: office("docx", paragraph("docx", "one"), "", ("a", b"\0" * size)),
                               1_000_000, 90_000_000, ""),
    "docx with a large member": ("docx", lambda size: office("docx", "", "", ("a", b"\0" * size)), 1_000_000,
                                 1_000_000_000, "bytes unpacked"),
    "docx with many members": ("docx", lambda size: office("docx", "", "", *((str(one), "") for one in range(size))),
                               100, 65_000, "members"),
    "docx with a lying size": ("docx", lying_archive, 1_000, 12_000_000,
                              "not an intact zip archive"),
    "html nested": ("html", lambda size: b"<b>one <div>" * size, 500, 10_000, ""),
    "html nested and closed": ("html", lambda size: b"<i>one " * size + b"</i>" * size, 500, 10_000, ""),
    "html overlapping": ("html", lambda size: b"<b>one <i>two </b>three </i>" * size, 100, 10_000, None),
    "markdown of nested quotes": ("markdown", lambda size: b">" * size + b" one two", 500, 10_000, None),
    "markdown of nested lists": ("markdown", lambda size: b"- " * size + b"one two", 500, 10_000, None),
    "markdown of nested brackets": ("markdown", lambda size: b"[" * size + b"one" + b"](a)" * size, 500, 10_000, None),
    "markdown of nested emphasis": ("markdown", lambda size: b"*one _two " * size + b"_*" * size, 100, 10_000, None),
    "xliff nested": ("xliff", lambda size: XML["xliff"].format('<g id="1">one ' * size + "</g>" * size).encode(), 1_000,
                     10_000, "nested more than"),
    "docx nested": ("docx", lambda size: office("docx", "<w:p>" * size + "</w:p>" * size), 1_000, 10_000,
                    "nested more than"),
    "docx of text boxes": ("docx", lambda size: office("docx", "<w:p><w:r><w:t>one</w:t></w:r><w:r>" * size
                                                       + "</w:r></w:p>" * size), 100, 400, ""),
    "json nested": ("json", lambda size: b"[" * size + b"]" * size, 1_001, 100_000, "nested"),
    "json nested open": ("json", lambda size: b'{"a":' * size, 1_001, 100_000, "name:"),  # 3.13 may reach its end
    **{f"{format} of a large paragraph": (format, lambda size, text=text: text.format("one two " * (size // 8))
                                          .encode(), 1_100_000, 200_000_000, None)
       for format, text in (("text", "{}"), ("html", "<p>{}</p>"), ("markdown", "{}"), ("po", MESSAGE),
                            *STRINGS.items(), *XML.items())},
    **{f"{format} of a paragraph of 90 MB": (format, lambda size, text=text: text.format("one two " * (size // 8))
                                             .encode(), 1_100_000, 90_000_000, "characters")
       for format, text in (("text", "{}"), ("html", "<p>{}</p>"), ("markdown", "{}"), ("po", MESSAGE),
                            *STRINGS.items(), *XML.items())},
    "docx of a large paragraph": ("docx", lambda size: office("docx", paragraph("docx", "one two " * (size // 8))),
                                  1_100_000, 200_000_000, None),
    "docx of a paragraph of 90 MB": ("docx", lambda size: office("docx", paragraph(
        "docx", "".join(f"one {number} " for number in range(size // 11)))), 1_200_000, 90_000_000, "characters"),
    "html of many tags": ("html", lambda size: b"<p><b>a</b><br></p>" * (size // 4), 1_000, 19_000_000, None),
    "html of many inline tags": ("html", lambda size: b"<b>a</b><br>" * (size // 3), 999, 20_000_000, None),
    "xliff of many tags": ("xliff", lambda size: XML["xliff"].format("a <x id='1'/>" * size).encode(), 1_000, 5_000_000,
                           None),
    "android of many tags": ("android", lambda size: XML["android"].replace(
        '<string name="a">{}</string>', '<string name="a">a</string>' * size).encode(), 1_000, 3_200_000, None),
    "tmx of many tags": ("tmx", lambda size: XML["tmx"].format("a<a/>" * size).encode(), 1_000, 15_000_000, None),
    "docx of many tags": ("docx", lambda size: office("docx", "<w:p/>" * size), 1_000, 5_000_000, None),
    "docx of many runs": ("docx", lambda size: office("docx", paragraph("docx", "a") * size), 1_000, 1_000_000, None),
    "odt of many tags": ("odt", lambda size: office("odt", "<text:p>a<text:s/></text:p>" * size), 1_000, 2_500_000,
                         None),
    "srt of many cues": ("srt", cues, 1_000, 2_000_000, None),
    "po of many lines": ("po", lambda size: ('msgid ""\nmsgstr ""\n\nmsgid ""\n' + '"a "\n' * size + 'msgstr ""\n')
                         .encode(), 1_000, 900_000, None),
    "yaml of a large paragraph": ("yaml", lambda size: b"a: " + b"one two " * (size // 8), 1_100_000, 90_000_000,
                                  "characters"),
    "yaml of many strings": ("yaml", lambda size: b"- one\n" * size, 1_000, 400_000, None),
    "csv of many rows": ("csv", lambda size: b"en,de\n" + b"one,\n" * size, 1_000, 5_000_000, None),
    "strings of many entries": ("strings", lambda size: b'"a" = "one";\n' * size, 1_000, 5_000_000, None),
    "xcstrings of many strings": ("xcstrings", lambda size: ('{"sourceLanguage": "en", "strings": {' + ",".join(
        f'"one {number}": {{}}' for number in range(size)) + "}}").encode(), 1_000, 5_000_000, None),
    "json of many strings": ("json", lambda size: b'["one"' + b',"one"' * size + b"]", 1_000, 10_000_000, None),
    "text of many lines": ("text", lambda size: b"a\n" * size, 1_000, 45_000_000, None),
    "text of many sentences": ("text", lambda size: (b"Ab. " * 200_000 + b"\n") * (size // 200_000) + b"Ab. " * (
        size % 200_000), 1_000, 20_000_000, None),
    "markdown of many paragraphs": ("markdown", lambda size: b"a\n\n" * size, 1_000, 1_000_000, None),
    **{f"{format} of {marks.decode()}": (format, lambda size, marks=marks: marks * (size // len(marks)), 3_000,
                                         50_000_000, None)
       for format, all_marks in (("markdown", (b"[", b"*", b"`", b"> ", b"![", b"**a", b"_", b"<a ", b"|", b"\\", b"&#",
                                               b"~~", b"- ", b"    ", b"* a\n", b"`a``", b"[a](", b"a|b\n-|-\n",
                                               b"$", b"$$a\n",
                                               b"{", b"{{", b"{%\n", b":::", b":::{note}\n", b"(", b"\\(", b"\\[\n",
                                               b"[^a", b"[^a]: a\n", b"a\na\n: a\n", b"a. b\nb. c\n", b":a: b\n",
                                               b"==a ", b"^", b"^[a](b)", b"~a",
                                               b"!!! a\n    ", b'=== "a"\n', b"{ref}`a", b"<A\n", b"[a]{.b}")),
                                 ("html", (b"<", b"<a ", b"<!--", b"</", b"<script>", b"<a b='", b"&", b"&#", b"<p>",
                                           b"{{", b"{% if %}", b"<?php ", b"{{#a}}", b"@if(a){", b"<rt>", b"<x-y>")),
                                 ("srt", (b"<i>", b"{\\", b"-->", b"1\n", b"- a\n")))
       for marks in all_marks},
    **{f"{format} of {marks.decode()} in a cue": (format, lambda size, head=head, marks=marks: head + marks * (
        size // len(marks)), 3_000, 50_000_000, None)
       for format, head, all_marks in (
           ("vtt", b"WEBVTT\n\n00:01.000 --> 00:04.000\n", (
               b"<v a>b", b"<rt>a", b"<00:02.000>a ", b"a</v>", b"<", b"- a\n", b"&gt;", b"<i>a</i> ", b" \n")),
           ("srt", b"1\n00:00:01,000 --> 00:00:04,000\n", (
               b"\r", b"{\\an8}a ", b"{", b"{y:", b"<b>", b"# ", b"a\n\n")),
           ("ass", b"[Events]\nFormat: Start, End, Text\nDialogue: 0:00:01.00,0:00:04.00,", (
               b"{\\p1", b"{\\p1}a{", b"{\\i1}{\\u0}", b"{\\i1\\b1}a{\\r}", b"a\\N", b"{\\k1}a ", b"\\h")))
       for marks in all_marks},
    **{f"{format} of mixed marks": (format, mixed, 3_000, 50_000_000, None) for format in ("markdown", "html")},
}


# Documents at the limits of their size, which are translated.
LARGEST = {
    **{name: size for name, size in (
        ("html of many tags", 470_000), ("html of many inline tags", 19_000), ("android of many tags", 299_000),
        ("tmx of many tags", 19_000), ("docx of many runs", 99_000), ("odt of many tags", 199_000),
        ("srt of many cues", 120_000), ("json of many strings", 399_000),
        ("yaml of many strings", 160_000), ("csv of many rows", 390_000), ("strings of many entries", 390_000),
        ("xcstrings of many strings", 199_000), ("text of many lines", 399_000),
        ("text of many sentences", 399_000),
        ("markdown of many paragraphs", 249_000), ("markdown of mixed marks", 490_000),
        ("html of a paragraph of 90 MB", 999_000), ("html of <", 599_000), ("html of <p>", 1_790_000),
        ("html of <!--", 2_390_000), ("html of mixed marks", 6_500_000))},
    **{name: 390_000 for name, case in CASES.items() if name.startswith("markdown of ") and case[3] == 50_000_000},
}


def translate(format, data):
    """Return the error of a document, or "" if it is translated."""
    try:
        divided = DividedDocument(parse(data, format, "name", "en", "de"))
        divided.join([sentence.upper() for sentence in divided.sentences], "de")
    except DocumentError as error:
        return str(error)
    return ""


def check_error(error, expected):
    if expected is not None:
        assert expected in error if expected else not error, error
    assert not error or error.startswith(("name:", "line "))


@pytest.mark.parametrize("name", CASES)
def test_small_hostile_documents_are_refused_or_translated_at_once(name):
    format, make, small, _, expected = CASES[name]
    data = make(small)
    begin = time.process_time()
    error = translate(format, data)
    assert time.process_time() - begin < 2
    check_error(error, None if "large" in name or "many" in name else expected)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is measured by Linux")
@pytest.mark.parametrize(("name", "size"), [*((name, case[3]) for name, case in CASES.items()), *LARGEST.items()])
def test_large_hostile_documents_take_bounded_time_and_memory(name, size, tmp_path):
    format, make, _, large, expected = CASES[name]
    path = tmp_path / "document"
    path.write_bytes(make(size))
    command = [sys.executable, __file__, format, str(path)]
    process = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert process.returncode == 0, process.stderr[-2_000:]
    error, seconds, megabytes = json.loads(process.stdout)                      # the process ends at MAX_SECONDS
    print(f"{name}, {size}: {seconds:.1f} s, {megabytes:.0f} MB: {error[:160]}")
    check_error(error, expected if size == large else None)
    assert megabytes < MAX_MEGABYTES


def main(format, path):
    """Print the error of a document, processor seconds and the maximum of the memory in MB."""
    import resource  # there is none on Windows

    resource.setrlimit(resource.RLIMIT_AS, (MAX_ADDRESS_SPACE, MAX_ADDRESS_SPACE))
    resource.setrlimit(resource.RLIMIT_CPU, (MAX_SECONDS, MAX_SECONDS))
    data = Path(path).read_bytes()
    begin = time.process_time()
    error = translate(format, data)
    seconds = time.process_time() - begin
    # Unlike the resource usage, this does not begin with the memory of the parent process.
    peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    print(json.dumps([error, seconds, int(peak.split()[1]) / 1024]))


if __name__ == "__main__":
    main(*sys.argv[1:])
