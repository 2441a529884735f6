"""XML in a text: elements are inline, splitting or ignored as the parameters of DeepL say; all markup is kept."""

import re
from collections import Counter

import pytest
from hypothesis import strategies as st
from lxml import etree
from property_checks import few_and_many

from seq2seq.documents.divided_document import DividedDocument
from seq2seq.formats.block import DocumentError
from seq2seq.formats.xml_text import XmlOptions, XmlTextDocument

DOCUMENT = """<?xml version="1.0"?>
<document>
  <meta>
    <title>A document's title</title>
  </meta>
  <content>
    <par>This is the first sentence. Followed by a second one.</par>
    <par>This is the <b>third</b> sentence.</par>
  </content>
</document>
"""
SENTENCES = ["A document's title", "This is the first sentence.", "Followed by a second one.",
             "This is the third sentence."]


def translated(source, translate=str.upper, **options):
    """Return the sentences of a text, and the text with its sentences translated."""
    names = {name: value if name in ("outline", "split_sentences") else frozenset(value.split(","))
             for name, value in options.items()}
    document = XmlTextDocument(source.encode(), XmlOptions(**names))
    assert document.render(document.blocks, "en") == source.encode()
    divided = DividedDocument(document)
    return divided.sentences, divided.join(list(map(translate, divided.sentences)), "en").decode()


# The first examples are those of https://developers.deepl.com/docs/xml-and-html-handling.
@pytest.mark.parametrize(("source", "options", "sentences", "expected"), [
    ("Press <i>Continue</i> to advance.", {}, ["Press Continue to advance."], "PRESS <i>CONTINUE</i> TO ADVANCE."),
    ("Please open the page <x>Settings</x> now.", {"ignored": "x"}, ["Please open the page now."],
     "PLEASE OPEN THE PAGE <x>Settings</x> NOW."),
    ("<par><span>One</span><span> two.</span></par>", {}, ["One", "two."],
     "<par><span>ONE</span><span> TWO.</span></par>"),
    ("<par><span>One</span><span> two.</span></par>", {"non_splitting": "span"}, ["One two."],
     "<par><span>ONE</span> <span>TWO.</span></par>"),
    ("<par>She bought oat\nbiscuits.</par>", {"split_sentences": "nonewlines"}, ["She bought oat biscuits."],
     "<par>SHE BOUGHT OAT BISCUITS.</par>"),
    # Weblate's placeholders
    ('Two <x id="4"></x> young dogs', {"ignored": "x"}, ["Two young dogs"], 'TWO <x id="4"></x> YOUNG DOGS'),
    ('<x id="1"></x>Two dogs<x id="2"></x>', {"ignored": "x"}, ["Two dogs"],
     '<x id="1"></x>TWO DOGS<x id="2"></x>'),
    ('<x id="1"></x> <x id="2"></x>', {"ignored": "x"}, [], '<x id="1"></x> <x id="2"></x>'),
    # Fragments
    ("", {}, [], ""), (" \n", {}, [], " \n"), ("1 &lt; 2", {}, [], "1 &lt; 2"),
    ("One <b>two</b> three <b/>four", {}, ["One two three four"], "ONE <b>TWO</b> THREE <b/>FOUR"),
    ("<p>One</p> <p>two</p>", {}, ["One", "two"], "<p>ONE</p> <p>TWO</p>"),
    ("One <p>two <b>three</b></p> four", {"splitting": "p"}, ["One", "two three", "four"],
     "ONE <p>TWO <b>THREE</b></p> FOUR"),
    ("<b>One <p>two</p> three</b>", {"splitting": "p", "outline": False}, ["One", "two", "three"],
     "<b>ONE <p>TWO</p> THREE</b>"),
    ("One<br/>two", {"splitting": "br"}, ["One", "two"], "ONE<br/>TWO"),
    ("<p>One</p> <p>two</p>", {"outline": False}, ["One two"], "<p>ONE</p> <p>TWO</p>"),
    ("<p>One</p> <p>two</p>", {"splitting": "p", "non_splitting": "p"}, ["One two"], "<p>ONE</p> <p>TWO</p>"),
    ("<p><x>One <y>two</y></x></p>", {"ignored": "x"}, [], "<p><x>One <y>two</y></x></p>"),
    ("<p><x>a <x>b</x> c</x> One</p>", {"ignored": "x"}, ["One"], "<p><x>a <x>b</x> c</x> ONE</p>"),
    ("One <x>two</x>", {"ignored": "x", "splitting": "x"}, ["One"], "ONE <x>two</x>"),
    ('<p>One <y translate="no">two</y> <z its:translate="no">two</z></p>', {}, ["One"],
     '<p>ONE <y translate="no">two</y> <z its:translate="no">two</z></p>'),
    ("<a:b>One <c:d e='>'>two</c:d></a:b>", {}, ["One two"], "<a:b>ONE <c:d e='>'>TWO</c:d></a:b>"),
    # Sentences
    ("<p>One. Two.\nThree</p>", {"split_sentences": "0"}, ["One. Two. Three"], "<p>ONE. TWO. THREE</p>"),
    ("<p>One. Two\nThree</p>", {"split_sentences": "1"}, ["One.", "Two", "Three"], "<p>ONE. TWO\nTHREE</p>"),
    ("<p>One. Two\r\nThree</p>", {"split_sentences": "1"}, ["One.", "Two", "Three"], "<p>ONE. TWO\r\nTHREE</p>"),
    ("<p>One. Two\nThree</p>", {"split_sentences": "nonewlines"}, ["One.", "Two Three"], "<p>ONE. TWO THREE</p>"),
    # What is no text
    ("One <!-- <b> --><?two three?> &amp; &#x41;&quot;", {}, ['One & A"'], 'ONE <!-- <b> --><?two three?> &amp; A"'),
    ("<a><![CDATA[<b> & one]]></a>", {}, ["<b> & one"], "<a><![CDATA[<B> & ONE]]></a>"),
    ("one <![CDATA[& two]]>", {}, ["one & two"], "ONE &amp; TWO"),
    ('\ufeff<?xml version="1.0"?>\n<!DOCTYPE a>\n<a>one</a>\n', {}, ["one"],
     '\ufeff<?xml version="1.0"?>\n<!DOCTYPE a>\n<a>ONE</a>\n'),
])
def test_elements_are_treated_as_asked(source, options, sentences, expected):
    assert translated(source, **options) == (sentences, expected)


@pytest.mark.parametrize("options", [{}, {"outline": False, "splitting": "par,title"}])
def test_a_document_is_divided_by_its_structure_or_by_the_elements_that_are_named(options):
    sentences, result = translated(DOCUMENT, split_sentences="nonewlines", **options)
    assert sentences == SENTENCES
    assert result == re.sub(r"(<(?:title|par)>)(.*)(</)", lambda match: match[1] + re.sub(
        "[^<>]+(?=<|$)", lambda text: text[0].upper(), match[2]).replace("<B>", "<b>") + match[3], DOCUMENT)


@pytest.mark.parametrize(("source", "message"), [
    ("one\n<b>two", "line 2, column 7: start tag without end tag"), ("one</b>", "line 1, column 4: end tag without"),
    ("<a><b></a></b>", "line 1, column 9: mismatched tag"), ("one & two", "line 1, column 6: not well-formed"),
    ("one&nbsp;two", "line 1, column 4: undefined entity"), ("<a b=c/>", "line 1, column 6: not well-formed"),
    ("one <", "line 1, column 5: "), ("<?xml version='1.0'?><a/><b/>", "line 1, column 26: junk after document"),
    ("<!DOCTYPE a [<!ENTITY b 'c'>]><a>&b;</a>", "line 1: the document declares entities"),
    ("a\x01", "line 1, column 2: not well-formed"),
])
def test_malformed_xml_is_refused_with_its_place(source, message):
    with pytest.raises(DocumentError, match=message):
        XmlTextDocument(source.encode())


def elements(children):
    """Elements of several treatments around, between and without text."""
    inside = st.lists(children, max_size=3).map("".join)
    return st.one_of([inside.map(lambda text, name=name: f"<{name}>{text}</{name}>") for name in "bipsx"]
                     + [st.sampled_from(["<b/>", "<x/>", "<!-- c -->", "<?d e?>", "<![CDATA[f <g>]]>"])])


WORDS = st.lists(st.sampled_from(["one", "two.", "Three", "four &amp;", "5", "\n", "&lt;six&gt;"]), max_size=4).map(
    " ".join)
FRAGMENTS = st.lists(st.recursive(WORDS, elements, max_leaves=12), max_size=5).map("".join)
OPTIONS = st.fixed_dictionaries({"splitting": st.sampled_from(["p", "p,s", "none"]), "ignored": st.just("x"),
                                 "non_splitting": st.sampled_from(["s", "i,s", "none"]), "outline": st.booleans(),
                                 "split_sentences": st.sampled_from(["0", "1", "nonewlines"])})


@few_and_many(10, 3000, FRAGMENTS, OPTIONS, st.lists(st.integers(0, 20), max_size=12))
def test_each_tag_occurs_once_in_any_translation(fragment, options, order):
    numbers = iter(range(1, 1000))
    source = re.sub(r"<([bipsx])(?=[/>])", lambda match: f'<{match[1]} id="{next(numbers)}"', fragment)

    def reordered(sentence):
        words = sentence.split()
        return " ".join(words[index % len(words)] for index in order) or "und"

    before, after = (etree.fromstring(f"<root>{text}</root>") for text in (source, translated(
        source, reordered, **options)[1]))
    assert Counter(map(shape, after.iter())) == Counter(map(shape, before.iter()))


def shape(node):
    """Return what identifies an element, and all of an ignored element, a comment or an instruction."""
    return (node.tag, node.get("id")) if node.tag in [*"bips", "root"] else etree.tostring(node, with_tail=False)
