"""XLIFF 1.2 and 2: targets are written beside their sources, with the inline codes; translated units stay."""

import xml.etree.ElementTree as ElementTree

import pytest
from hypothesis import strategies as st
from property_checks import few_and_many
from test_round_trips import sample
from unchanged_documents import texts, unchanged, upper

from seq2seq.formats.tmx import TmxDocument
from seq2seq.formats.xliff import XliffDocument
from seq2seq.formats.xml_tokens import escape_xml


def test_native_codes_are_tags():
    document = XliffDocument(sample("units-1.2.xlf").encode())
    kinds = [(tag.position, tag.kind, tag.pair) for tag in document.blocks[4].tags]
    assert kinds == [(0, "open", 0), (4, "close", 0), (6, "open", 2), (13, "close", 2), (13, "alone", None)]
    assert document.blocks[4].tags[0].raw == '<bpt id="1">&lt;b&gt;</bpt>'


@pytest.mark.parametrize("code, kind", [
    ("<ph id='1'>&lt;br/&gt;</ph>", "break"), ("<x id='1' ctype='lb'/>", "break"),
    ("<x id='1' ctype='x-br'/>", "break"),
    ("<x id='1' equiv-text='&lt;br /&gt;'/>", "break"), ("<it id='1'>\\line </it>", "break"),
    ("<ph id='1'>{0}</ph>", "alone"), ("<x id='1' equiv-text='&lt;b&gt;'/>", "alone"),
    ("<mrk mtype='protected'>a\nb</mrk>", "alone")])
@pytest.mark.parametrize("form", [
    "<xliff version='1.2'><trans-unit><source>eins{}Zeile</source></trans-unit></xliff>",
    "<tmx><body><tu><tuv xml:lang='de'><seg>eins{}Zeile</seg></tuv></tu></body></tmx>"])
def test_a_native_code_that_separates_words_is_a_line_break(form, code, kind):
    is_xliff = "xliff" in form
    if is_xliff or "<ph" in code or "<it" in code:
        text = form.format(code).encode()
        block, = (XliffDocument(text) if is_xliff else TmxDocument(text, "de")).blocks
        assert [tag.kind for tag in block.tags] == [kind]


def test_a_document_with_a_prefix_gets_targets_with_the_prefix():
    text = '<x:xliff xmlns:x="urn:oasis:names:tc:xliff:document:1.2" version="1.2"><x:trans-unit id="1"><x:source>A' \
           '</x:source></x:trans-unit></x:xliff>'
    document = XliffDocument(text.replace(">A<", ">a<").encode())
    assert b'<x:target state="needs-review-translation">A</x:target></x:trans-unit>' in upper(document)


def test_a_target_keeps_the_white_space_of_its_source():
    text = '<xliff version="1.2"><trans-unit id="1"><source xml:space="preserve"> a\n</source></trans-unit></xliff>'
    assert b'<target xml:space="preserve" state="needs-review-translation"> A\n</target>' in \
        upper(XliffDocument(text.encode()))


@pytest.mark.parametrize("codes", [
    "<bx id='1'/>a<g id='2'>b<ex id='1'/>c</g>",
    "<g id='2'><bx id='1'/>a</g>b<ex id='1'/>"])
def test_codes_that_overlap_an_element_have_no_counterpart(codes):
    text = f"<xliff version='1.2'><trans-unit><source>{codes}</source></trans-unit></xliff>"
    block = XliffDocument(text.encode()).blocks[0]
    assert {tag.raw[1:3]: tag.kind for tag in block.tags} == {"bx": "alone", "ex": "alone", "g ": "open", "/g": "close"}


def fragments():
    """Generate contents of a source of XLIFF 1.2, with # in place of numbers."""
    codes = ["<x id='#'/>", "<bx id='#'/>", "<ex id='#'/>", "<ph id='#'>a &lt; b</ph>", "<!--c-->",
             "<bpt id='#'>[<sub>s</sub></bpt>", "<ept id='#'>]</ept>", "<![CDATA[<b> & ]]>"]
    leaf = st.one_of(st.text("ab &<>é\"'\n", max_size=9).map(escape_xml), st.sampled_from(codes))
    return st.recursive(leaf, lambda inner: st.lists(inner, max_size=5).map("".join).flatmap(
        lambda text: st.sampled_from([text, f"<g id='#'>{text}</g>", f"<mrk mtype='protected'>{text}</mrk>"])),
        max_leaves=15)


@few_and_many(10, 1000, fragments())
def test_every_tag_of_a_source_is_in_the_target_once(fragment):
    for number in range(fragment.count("#")):
        fragment = fragment.replace("#", str(number // 2), 1)
    text = f'<xliff version="1.2"><trans-unit id="1">\n<source>{fragment}</source></trans-unit></xliff>'
    document = XliffDocument(text.encode())
    assert unchanged(document).decode() == text
    tree = ElementTree.fromstring(upper(document))
    source, target = tree.find(".//source"), tree.find(".//target")
    if not texts(document):
        return
    block = document.blocks[0]
    for tag in block.tags:
        if tag.pair is not None:
            assert sum(other.pair == tag.pair for other in block.tags) == 2
    if block.text == "".join(one.upper() for one in block.text):
        return
    assert [(element.tag, element.attrib) for element in source.iter()][1:] == \
        [(element.tag, element.attrib) for element in target.iter()][1:]
    assert "".join(source.itertext()).upper() == "".join(target.itertext()).upper()


def test_a_target_of_empty_segments_is_not_a_translation():
    unit = ("<trans-unit id='1'><source>A.</source><seg-source><mrk mtype='seg' mid='1'>A.</mrk></seg-source>"
            "<target><mrk mtype='seg' mid='1'/></target></trans-unit>")
    document = XliffDocument(f"<xliff version='1.2'><file><body>{unit}</body></file></xliff>".encode())
    assert [block.text for block in document.blocks] == ["A."]
