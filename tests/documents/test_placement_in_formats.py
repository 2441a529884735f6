"""Generated fragments with inline tags stay well-formed with any translation, and keep each tag exactly once."""

import re
from collections import Counter
from html.parser import HTMLParser

import numpy as np
import pytest
from hypothesis import strategies as st
from lxml import etree
from property_checks import few_and_many

from seq2seq.documents.divided_document import DividedDocument
from seq2seq.formats.registry import parse
from seq2seq.tokenizers.line_splitting import alignment_units

WORDS = st.lists(st.sampled_from(["one", "two.", "Three", "&amp; four", "5", " ", "six, ", "&lt;seven&gt;"]),
                 max_size=4).map(" ".join)
HTML_NAMES = ["b", "i", "a", "span"]
# Tags of HTML in any order: nested, empty, overlapping, or without a counterpart.
HTML = st.lists(st.one_of(
    WORDS, st.sampled_from(["<br>", "<img src='a'>", "<p>", "</p>", "<!-- c -->", "<code>x y</code>"]),
    st.sampled_from([f"<{end}{name}>" for name in HTML_NAMES for end in ("", "/")])), max_size=14).map("".join)


def nested(children):
    """XLIFF inline elements around, between and without text."""
    return st.one_of(WORDS, st.just("<x/>"), st.just("<bpt>b&lt;</bpt>"), st.just("<ept>e</ept>"), st.just("<bx/>"),
                     st.just("<ex/>"), st.lists(children, max_size=4).map(lambda inner: f"<g>{''.join(inner)}</g>"),
                     st.lists(children, max_size=3).map(lambda inner: f"<mrk mtype='x'>{''.join(inner)}</mrk>"))


XLIFF = st.lists(st.recursive(WORDS, nested, max_leaves=12), max_size=5).map("".join)
ORDERS = st.lists(st.integers(0, 20), max_size=12)


def reordered(sentence, order):
    """Return a sentence with some words dropped, and others moved or repeated."""
    words = sentence.split()
    return " ".join(words[index % len(words)] for index in order) or "und"


def translated(data, format, order):
    """Return a translated document, and the words of its translated sentences."""
    divided = DividedDocument(parse(data, format, "name", "en", "de"))
    translations = [reordered(sentence, order) for sentence in divided.sentences]
    return divided.join(translations, "de"), " ".join(translations).split(), divided.sentences


@few_and_many(10, 1000, HTML, ORDERS)
def test_each_tag_of_html_occurs_once_in_any_translation(fragment, order):
    result, words, _ = translated(fragment.encode(), "html", order)
    source_tags, tags = (Counter(re.findall(r"<[^>]*>", text)) for text in (fragment, result.decode()))
    assert tags == source_tags
    read = Text()
    read.feed(result.decode())
    read.close()
    assert are_in_order(words, "".join(read.parts))
    if is_nested(fragment):
        assert is_nested(result.decode())


def are_in_order(words, text):
    """Return True if words stand in a text in this order; tags, with spaces around them, may stand inside of words."""
    text, position = "".join(text.split()), 0
    for word in words:
        position = text.find(word, position) + len(word)
        if position < len(word):
            return False
    return True


class Text(HTMLParser):
    """Reader of the text of HTML without its code."""

    def __init__(self):
        super().__init__()
        self.parts = []
        self.is_code = False

    def handle_starttag(self, tag, attrs):
        self.is_code = tag == "code"

    def handle_endtag(self, tag):
        self.is_code = False

    def handle_data(self, data):
        self.parts += [] if self.is_code else [data]


def is_nested(fragment):
    """Return True if each inline element ends, before the element around it does."""
    stack = []
    for end, name in re.findall(r"<(/?)([abip]|span)>", fragment):
        if not end:
            stack.append(name)
        elif not stack or stack.pop() != name:
            return False
    return not stack


@few_and_many(10, 1000, XLIFF, ORDERS)
def test_each_element_of_xliff_occurs_once_in_any_translation(fragment, order):
    numbers = iter(range(1, 1_000))
    marked = re.sub(r"<(g|mrk|x|bx|ex|bpt|ept)(?=[ />])", lambda match: f"<{match[1]} id=\"{next(numbers)}\"", fragment)
    data = ('<xliff version="1.2"><file source-language="en"><body><trans-unit id="1"><source>' + marked
            + "</source></trans-unit></body></file></xliff>").encode()
    result, words, sentences = translated(data, "xliff", order)
    root = etree.fromstring(result)
    source, target = root.find(".//source"), root.find(".//target")
    if not sentences or target is None:
        assert result == data
        return
    assert Counter(map(shape, target.iter())) == Counter(map(shape, source.iter())) - Counter(["source"]) + Counter(
        ["target"])
    for code in target.iter("bpt", "ept"):
        code.text = ""
    assert are_in_order(words, "".join(target.itertext()))


def shape(element):
    """Return what identifies an inline element."""
    return element.get("id") and (element.tag, element.get("id")) or element.tag


DOCUMENTS = [
    ("html", "<h1>One <i>two</i></h1>\n<!-- three --><p class=\"four\">Five <b>six</b>, <a href='x'>seven <code>y"
             "</code></a> &lt; eight <br> nine <img src='ten'> eleven.</p> <script>twelve()</script>"),
    ("markdown", "---\nlang: en\n---\n# One *two*\n\n- three `four` five [six `seven`](eight.md) nine, **ten** "
                 "`eleven`.\n- twelve\n\n```\none two\n```\n"),
    ("srt", "1\n00:00:01,000 --> 00:00:02,000\n<i>One two</i> three.\n\n2\n00:00:03,000 --> 00:00:04,000\n- Four\n"),
    ("json", '{"one": ["Two three", 4, "https://example.org"], "five": "Six <b>seven</b> eight"}\n'),
    ("properties", "# one\ntwo = Three four\\u00e9 {0}\nfive: six\n"),
    ("android", "<resources><string name='one'>Two <b>three</b> %1$s four</string></resources>")]
NEXT = str.maketrans("abcdefghijklmnopqrstuvwxyz", "bcdefghijklmnopqrstuvwxyza")


@pytest.mark.parametrize(("format", "text"), DOCUMENTS, ids=[format for format, _ in DOCUMENTS])
def test_if_each_letter_of_the_sentences_changes_nothing_else_does(format, text):
    document = DividedDocument(parse(text.encode(), format, "name", "en", "en"))
    result = document.join([sentence.translate(NEXT) for sentence in document.sentences], "en", lambda pairs: [
        np.eye(len(alignment_units(source))) for source, _ in pairs]).decode()
    assert document.sentences and result != text
    letters = re.compile("[a-z]")
    assert letters.sub("x", result) == letters.sub("x", text)


@pytest.mark.parametrize(("format", "text", "expected"), [
    ("po", 'msgid ""\n"Usage: %s FILE\\n"\n"  -h   show help\\n"\n"  -v   print a lot\\n"\n"of text\\n"\nmsgstr ""\n',
     '"USAGE: %S FILE\\n"\n"  -h   SHOW HELP\\n"\n"  -v   PRINT A LOT\\n"\n"OF TEXT\\n"\n'),
    ("json", '{"a": "Milk\\n- Bread\\n\\nthank you"}', '{"a": "MILK\\n- BREAD\\n\\nTHANK YOU"}'),
    ("properties", "a=Line one\\nLine two\n", "a=LINE ONE\\nLINE TWO\n"),
    ("android", "<resources><string name='a'>One\\nTwo\\n\\nthree<br/>Four</string></resources>",
     ">ONE\\nTWO\\n\\nTHREE<br/>FOUR</string>"),
    ("ts", "<TS><context><message><source>One\nTwo</source><translation type='unfinished'/></message></context></TS>",
     "ONE\nTWO</translation>"),
    ("xliff", "<xliff version='1.2'><file target-language='en'><body><trans-unit id='1' xml:space='preserve'>"
     "<source>One\nTwo<x id='2' ctype='lb'/>Three</source></trans-unit></body></file></xliff>",
     "ONE\nTWO<x id='2' ctype='lb'/>THREE</target>"),
    ("xliff", "<xliff version='2.0' trgLang='en'><file><unit id='1'><segment><source>One\n two"
     "<ph id='2' equiv='&#10;'/>Three</source></segment></unit></file></xliff>",
     "ONE TWO<ph id='2' equiv='&#10;'/>THREE</target>")])
def test_line_breaks_of_messages_stay_where_they_are(format, text, expected):
    document = DividedDocument(parse(text.encode(), format, "name", "en", "en"))
    assert expected in document.join([sentence.upper() for sentence in document.sentences], "en").decode()
