"""Android's strings: escapes, quotes, CDATA and inline tags are kept."""

import pytest
from document_translators import translated
from translate.storage import aresource
from unchanged_documents import texts, unchanged, upper

from seq2seq.documents.block import Block, DocumentError
from seq2seq.formats.android import AndroidDocument

STRINGS = r'''<?xml version="1.0" encoding="utf-8"?>
<resources xmlns:xliff="urn:oasis:names:tc:xliff:document:1.2">
    <!-- Title -->
    <string name="a">It\'s \"new\"\nhere &amp; there</string>
    <string name="b" translatable="false">Fixed</string>
    <string name="c">Hello <b>brave <xliff:g id="n" example="World">%1$s</xliff:g></b>!</string>
    <string name="d">"  It's quoted  "</string>
    <string name="e"><![CDATA[<a href=\"x\">More &amp; more</a><br>]]></string>
    <string name="f">@string/a</string>
    <string name="g">\@home \? \u00e9\ud83d\ude00</string>
    <string name="h">
        Two
        lines
    </string>
    <string name="i">en_US</string>
    <string name="empty"/>
    <string-array name="j">
        <item>One</item>
        <item>@string/a</item>
    </string-array>
    <plurals name="k">
        <item quantity="one">%d file</item>
        <item quantity="other">%d files</item>
    </plurals>
    <color name="l">red</color>
</resources>
'''


def document(content):
    return AndroidDocument(f'<resources><string name="a">{content}</string></resources>'.encode())


def written(content, translation):
    result = document(content).render([Block(translation, document(content).blocks[0].tags)], "de").decode()
    return result.removeprefix('<resources><string name="a">').removesuffix("</string></resources>")


def test_strings_arrays_and_plurals_are_blocks():
    assert texts(AndroidDocument(STRINGS.encode())) == [
        'It\'s "new"\nhere & there', "Hello brave !", "It's quoted", "More &amp; more", "@home ? é😀", "Two lines",
        "One", "%d file", "%d files"]


@pytest.mark.parametrize("text", [STRINGS, STRINGS.replace("\n", "\r\n")])
def test_strings_without_new_translations_keep_their_bytes(text):
    assert unchanged(AndroidDocument(text.encode())) == text.encode()


def test_translations_are_escaped_as_the_originals():
    assert upper(AndroidDocument(STRINGS.encode())).decode() == STRINGS \
        .replace(r"It\'s \"new\"\nhere &amp; there", r"IT\'S \"NEW\"\nHERE &amp; THERE") \
        .replace("Hello <b>brave ", "HELLO <b>BRAVE ").replace("It's quoted", "IT'S QUOTED") \
        .replace("More &amp; more", "MORE &AMP; MORE").replace(r"\@home \? \u00e9\ud83d\ude00", r"\@HOME ? É😀") \
        .replace("Two\n        lines", "TWO LINES").replace("One", "ONE").replace("%d file", "%D FILE") \
        .replace("FILEs", "FILES")


def test_translate_toolkit_reads_the_translations():
    units = aresource.AndroidResourceFile.parsestring(upper(AndroidDocument(STRINGS.encode()))).units
    found = {unit.getid(): unit.target for unit in units}
    assert found["a"] == 'IT\'S "NEW"\nHERE & THERE'
    assert found["d"] == "  IT'S QUOTED  "
    assert found["h"] == "TWO LINES"


@pytest.mark.parametrize(("content", "translation", "expected"), [
    ("abc", "?a  b", r"\?a \u0020b"), ("abc", "<a>\\\t", r"&lt;a&gt;\\\t"),
    ('"a b"', "c 'd' \"e\"", '"c \'d\' \\"e\\""'),
    ("<![CDATA[abc]]>", "a]]>b<", "<![CDATA[a]]]]><![CDATA[>b<]]>"), 
    (r"\nabc\n", "d", r"\nd\n"), (r"\u0022a\u0022", '"b"', r"\"b\"")])
def test_special_characters_of_a_translation_are_escaped(content, translation, expected):
    assert written(content, translation) == expected


def test_tags_inside_of_cdata_are_tags():
    tags = document("<![CDATA[<b>bold</b><br><i>]]>").blocks[0].tags
    assert [(tag.raw, tag.kind, tag.pair) for tag in tags] == [
        ("<b>", "open", 0), ("</b>", "close", 0), ("<br>", "break", None), ("<i>", "open", None)]


def test_items_with_the_type_string_are_strings():
    text = ('<resources><item name="a" type="string">One</item><item name="b" type="id">Two</item>'
            '<item name="c">Three</item></resources>')
    assert translated(AndroidDocument(text.encode())) == text.replace("One", "ONE").encode()


@pytest.mark.parametrize(("text", "message"), [
    ("<resources>\n<a></resources>", "line 2"), ("\n<a/>", "line 2: <a> is not <resources>")])
def test_malformed_strings_are_an_error_with_their_line(text, message):
    with pytest.raises(DocumentError, match=message):
        AndroidDocument(text.encode())


@pytest.mark.slow
@pytest.mark.parametrize("content", ["<![CDATA[" + "<a " * 300_000 + "]]>", "<![CDATA[" + "<!--" * 200_000 + " a]]>",
                                     "\\\\" * 300_000 + "a b", '"' * 300_000 + "a", "a" + " " * 900_000 + "b"])
def test_hostile_strings_take_linear_time(content):
    assert unchanged(document(content)) == f'<resources><string name="a">{content}</string></resources>'.encode()
    upper(document(content))


@pytest.mark.parametrize(("string", "expected"), [
    ("Name:\\u0020", "NAME:\\u0020"), ("\\u0020and", "\\u0020AND"), (" and ", " AND "), ('" and "', '" AND "')])
def test_only_escaped_spaces_at_the_edges_stay(string, expected):
    source = f"<resources><string name='a'>{string}</string></resources>"
    assert translated(AndroidDocument(source.encode())).decode() == source.replace(string, expected)
