"""TMX: units without the target language get a translation; the others stay."""

import pytest
from translate.storage import tmx
from unchanged_documents import texts, unchanged, upper

from seq2seq.documents.block import DocumentError
from seq2seq.formats.tmx import TmxDocument

TMX = '''<?xml version="1.0" encoding="utf-8"?>
<!DOCTYPE tmx SYSTEM "tmx14.dtd">
<tmx version="1.4">
  <header creationtool="x" creationtoolversion="1" segtype="sentence" o-tmf="x" adminlang="en" srclang="en"
          datatype="plaintext"/>
  <body>
    <tu tuid="1">
      <tuv xml:lang="en-GB">
        <prop type="x">a</prop>
        <seg>Press <bpt i="1">&lt;b&gt;</bpt>this<ept i="1">&lt;/b&gt;</ept> &amp; <ph>{1}</ph> <hi>that</hi>.</seg>
      </tuv>
    </tu>
    <tu tuid="2"><tuv xml:lang="EN"><seg>One</seg></tuv><tuv xml:lang="fr"><seg>Un</seg></tuv></tu>
    <tu tuid="3"><tuv lang="en"><seg>Two</seg></tuv><tuv lang="de-AT"><seg>Zwei</seg></tuv></tu>
    <tu tuid="4"><tuv xml:lang="fr"><seg>Trois</seg></tuv></tu>
  </body>
</tmx>
'''
EXPECTED = TMX.replace('''</seg>
      </tuv>''', '''</seg>
      </tuv>
      <tuv xml:lang="de">
        <seg>PRESS <bpt i="1">&lt;b&gt;</bpt>THIS<ept i="1">&lt;/b&gt;</ept> &amp; <ph>{1}</ph> <hi>THAT</hi>.</seg>
      </tuv>''').replace("<seg>One</seg></tuv>", '<seg>One</seg></tuv><tuv xml:lang="de"><seg>ONE</seg></tuv>')


def test_units_without_the_target_language_get_it_after_the_source():
    document = TmxDocument(TMX.encode(), "en", "de")
    assert texts(document) == ["Press this &  that.", "One"]
    assert [tag.pair for tag in document.blocks[0].tags] == [0, 0, None, 3, 3]
    assert upper(document).decode() == EXPECTED


def test_a_unit_with_the_target_language_stays_if_it_is_only_known_at_the_end():
    document = TmxDocument(TMX.encode(), "en")
    assert texts(document) == ["Press this &  that.", "One", "Two"]
    assert upper(document).decode() == EXPECTED


def test_a_memory_without_new_translations_keeps_its_bytes():
    data = TMX.replace("\n", "\r\n").encode()
    assert unchanged(TmxDocument(data, "en", "de")) == data
    assert TmxDocument(data, "eng", "deu").blocks == TmxDocument(data, "en", "de").blocks != []
    with pytest.raises(DocumentError, match="no unit has a text in the source language ru; the languages are EN, de"):
        TmxDocument(data, "ru")
    assert TmxDocument(b"<tmx><body/></tmx>", "ru").blocks == []


def test_translate_toolkit_reads_the_translations():
    units = tmx.tmxfile.parsestring(upper(TmxDocument(TMX.encode(), "en", "de"))).units
    assert [unit.gettarget("de") for unit in units[1:2]] == ["ONE"]


@pytest.mark.parametrize(("text", "message"), [("<tmx>\n<tu></tmx>", "line 2"), ("\n<a/>", "line 2: <a> is not TMX")])
def test_a_malformed_memory_is_an_error_with_its_line(text, message):
    with pytest.raises(DocumentError, match=message):
        TmxDocument(text.encode(), "en")
