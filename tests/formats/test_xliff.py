"""XLIFF 1.2 and 2: targets are written beside their sources, with the inline codes; translated units stay."""

import xml.etree.ElementTree as ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from translate.storage import xliff
from unchanged_documents import texts, unchanged, upper

from seq2seq.documents.block import DocumentError
from seq2seq.documents.xml_tokens import escape_xml
from seq2seq.formats.xliff import XliffDocument

XLIFF_1 = '''<?xml version="1.0" encoding="UTF-8"?>
<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2">
  <file original="app" source-language="en" datatype="plaintext">
    <body>
      <trans-unit id="1">
        <source>Save &amp; <g id="1">close <x id="2"/></g>now</source>
        <note>A button</note>
      </trans-unit>
      <trans-unit id="2"><source>Open</source><target state="new">Open</target></trans-unit>
      <trans-unit id="3"><source>Done</source><target state="translated">Fertig</target></trans-unit>
      <trans-unit id="4" approved="yes"><source>Yes</source><target/></trans-unit>
      <trans-unit id="5"><source>Final</source><target state="final"/></trans-unit>
      <trans-unit id="6"><source>Empty</source><target/></trans-unit>
      <group translate="no"><trans-unit id="7"><source>Code</source></trans-unit>
        <trans-unit id="8" translate="yes"><source>Text</source></trans-unit></group>
      <trans-unit id="9"><source>Old</source><target>Alt</target>
        <alt-trans><source>Wrong</source></alt-trans></trans-unit>
      <trans-unit id="10"><source>  <bpt id="1">&lt;b&gt;</bpt>bold<ept id="1">&lt;/b&gt;</ept>, <bx
 id="3"/>slanted<ex id="4" rid="3"/><it id="5" pos="open">{i</it> </source></trans-unit>
      <trans-unit id="11">
        <source>One. Two.</source>
        <seg-source><mrk mid="0" mtype="seg">One.</mrk> <mrk mid="1" mtype="seg">Two.</mrk></seg-source>
      </trans-unit>
      <trans-unit id="12"><source>100 %</source></trans-unit>
    </body>
  </file>
</xliff>
'''
XLIFF_2 = '''<?xml version="1.0"?>
<xliff version="2.0" xmlns="urn:oasis:names:tc:xliff:document:2.0" srcLang="en">
 <file id="f"><unit id="1">
  <originalData><data id="d">&lt;b&gt;</data></originalData>
  <segment>
   <source>Hello <pc id="1" dataRefStart="d">brave</pc> <mrk id="m" translate="no">World</mrk><ph id="2"/></source>
  </segment>
  <ignorable><source> </source></ignorable>
  <segment state="initial"><source>A <sc id="3"/>b<ec startRef="3"/></source><target>A</target></segment>
  <segment state="final"><source>Stays</source></segment>
  <segment><source>Kept</source><target>Behalten</target></segment>
 </unit></file>
</xliff>'''


def test_the_sources_of_untranslated_units_are_blocks():
    document = XliffDocument(XLIFF_1.encode())
    assert texts(document) == ["Save & close now", "Open", "Empty", "Text", "bold, slanted", "One.", "Two."]
    assert document.blocks[0].place == "line 6"
    kinds = [(tag.position, tag.kind, tag.pair) for tag in document.blocks[4].tags]
    assert kinds == [(0, "open", 0), (4, "close", 0), (6, "open", 2), (13, "close", 2), (13, "alone", None)]
    assert document.blocks[4].tags[0].raw == '<bpt id="1">&lt;b&gt;</bpt>'
    assert texts(XliffDocument(XLIFF_2.encode())) == ["Hello brave ", "A b"]


@pytest.mark.parametrize("text", [XLIFF_1, XLIFF_2, XLIFF_1.replace("\n", "\r\n"), "\ufeff" + XLIFF_1])
def test_a_document_without_new_translations_keeps_its_bytes(text):
    assert unchanged(XliffDocument(text.encode())) == text.encode()
    data = text.replace("UTF-8", "UTF-16").removeprefix("\ufeff").encode("utf-16")
    assert unchanged(XliffDocument(data)) == data


def test_targets_of_version_1_follow_their_sources_and_ask_for_review():
    state = '<target state="needs-review-translation">'
    assert upper(XliffDocument(XLIFF_1.encode())).decode() == XLIFF_1 \
        .replace('datatype="plaintext"', 'datatype="plaintext" target-language="de"') \
        .replace("now</source>\n", f'''now</source>
        {state}SAVE &amp; <g id="1">CLOSE <x id="2"/></g>NOW</target>\n''') \
        .replace('<target state="new">Open', state + "OPEN") \
        .replace("Empty</source><target/>", f"Empty</source>{state}EMPTY</target>") \
        .replace("Text</source>", f"Text</source>{state}TEXT</target>") \
        .replace("{i</it> </source>", f'''{{i</it> </source>{state}  <bpt id="1">&lt;b&gt;</bpt>BOLD'''
                 f'''<ept id="1">&lt;/b&gt;</ept>, <bx
 id="3"/>SLANTED<ex id="4" rid="3"/><it id="5" pos="open">{{i</it> </target>''') \
        .replace("</seg-source>", f'''</seg-source>
        {state}<mrk mid="0" mtype="seg">ONE.</mrk> <mrk mid="1" mtype="seg">TWO.</mrk></target>''')


def test_targets_of_version_2_set_the_state_of_their_segment():
    assert upper(XliffDocument(XLIFF_2.encode())).decode() == XLIFF_2 \
        .replace('srcLang="en"', 'srcLang="en" trgLang="de"') \
        .replace('<segment>\n   <source>', '<segment state="translated">\n   <source>') \
        .replace('<ph id="2"/></source>', '''<ph id="2"/></source>
   <target>HELLO <pc id="1" dataRefStart="d">BRAVE</pc> <mrk id="m" translate="no">World''' +
                 '</mrk><ph id="2"/></target>') \
        .replace('state="initial"', 'state="translated"') \
        .replace("<target>A</target>", '<target>A <sc id="3"/>B<ec startRef="3"/></target>')


def test_translate_toolkit_reads_the_targets():
    units = xliff.xlifffile.parsestring(upper(XliffDocument(XLIFF_1.encode()))).units
    targets = {unit.xmlelement.get("id"): str(unit.target) for unit in units}
    assert {number: targets[number] for number in ("1", "2", "3", "6", "11")} == {
        "1": "SAVE & CLOSE NOW", "2": "OPEN", "3": "Fertig", "6": "EMPTY", "11": "ONE. TWO."}
    assert units[0].xmlelement.find("{*}target").get("state") == "needs-review-translation"


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


@pytest.mark.parametrize(("text", "message"), [
    ("<xliff version='1.2'>\n<a></xliff>", "line 2, column .*mismatched"), ("<a/>", "line 1: <a> of version ''"),
    ("\n<xliff version='3'/>", "line 2: <xliff> of version '3'"), ("", "line 1"), ("<xliff version='1.2'>", "line 1")])
def test_a_malformed_document_is_an_error_with_its_line(text, message):
    with pytest.raises(DocumentError, match=message):
        XliffDocument(text.encode())


def fragments():
    """Generate contents of a source of XLIFF 1.2, with # in place of numbers."""
    codes = ["<x id='#'/>", "<bx id='#'/>", "<ex id='#'/>", "<ph id='#'>a &lt; b</ph>", "<!--c-->",
             "<bpt id='#'>[<sub>s</sub></bpt>", "<ept id='#'>]</ept>", "<![CDATA[<b> & ]]>"]
    leaf = st.one_of(st.text("ab &<>é\"'\n", max_size=9).map(escape_xml), st.sampled_from(codes))
    return st.recursive(leaf, lambda inner: st.lists(inner, max_size=5).map("".join).flatmap(
        lambda text: st.sampled_from([text, f"<g id='#'>{text}</g>", f"<mrk mtype='protected'>{text}</mrk>"])),
        max_leaves=15)


def check_fragment(fragment):
    for number in range(fragment.count("#")):
        fragment = fragment.replace("#", str(number // 2), 1)
    text = f'<xliff version="1.2"><trans-unit id="1">\n<source>{fragment}</source></trans-unit></xliff>'
    document = XliffDocument(text.encode())
    assert unchanged(document).decode() == text
    tree = ElementTree.fromstring(upper(document))
    source, target = tree.find(".//source"), tree.find(".//target")
    if not document.blocks:
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


@settings(max_examples=50, deadline=None)
@given(fragments())
def test_every_tag_of_a_source_is_in_the_target_once(fragment):
    check_fragment(fragment)


@pytest.mark.slow
@settings(max_examples=1000, deadline=None)
@given(fragments())
def test_every_tag_of_a_thousand_sources_is_in_the_target_once(fragment):
    check_fragment(fragment)


@pytest.mark.slow
@pytest.mark.parametrize("content", [
    "<bx id='1'/>" * 9_000 + "a" + "<ex id='2'/>" * 9_000, "<g id='1'>a</g>" * 9_000,
    "<g id='1'>" * 900 + "a" + "</g>" * 900, "<bx id='1'/><ex id='1'/>" * 9_000 + "a",
    "<g " + " ".join(f"a{number}=''" for number in range(20_000)) + ">a</g>"])
def test_hostile_sources_take_linear_time(content):
    text = f"<xliff version='1.2'><trans-unit id='1'><source>{content}</source></trans-unit></xliff>"
    assert upper(XliffDocument(text.encode())).count(b"<target") == 1


def test_a_target_of_empty_segments_is_not_a_translation():
    unit = ("<trans-unit id='1'><source>A.</source><seg-source><mrk mtype='seg' mid='1'>A.</mrk></seg-source>"
            "<target><mrk mtype='seg' mid='1'/></target></trans-unit>")
    document = XliffDocument(f"<xliff version='1.2'><file><body>{unit}</body></file></xliff>".encode())
    assert [block.text for block in document.blocks] == ["A."]
