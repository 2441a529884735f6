"""Qt Linguist: unfinished messages are filled in and stay unfinished."""

from dataclasses import replace
from html import escape

import pytest
from translate.storage import ts2
from unchanged_documents import texts, unchanged, upper

from seq2seq.documents.block import Block, DocumentError
from seq2seq.formats.qt_ts import TsDocument

TS = '''<?xml version="1.0" encoding="utf-8"?>
<!DOCTYPE TS>
<TS version="2.1" sourcelanguage="en">
<context>
    <name>MainWindow</name>
    <message>
        <location filename="../main.cpp" line="12"/>
        <source>&amp;Open &quot;file&quot;, it&apos;s
new<byte value="x1b"/></source>
        <translation type="unfinished"></translation>
    </message>
    <message>
        <source>Close</source>
        <translation>Schließen</translation>
    </message>
    <message numerus="yes">
        <source>%n file(s)</source>
        <translation type="unfinished"><numerusform></numerusform><numerusform/></translation>
    </message>
    <message>
        <source>Save</source>
        <translation type="unfinished"/>
    </message>
    <message><source>Begun</source><translation type="unfinished">Begonnen</translation></message>
    <message><source>Gone</source><translation type="vanished"></translation></message>
    <message><source>Older</source><translation type="obsolete"></translation></message>
</context>
</TS>
'''


def test_unfinished_messages_without_a_translation_are_blocks():
    assert texts(TsDocument(TS.encode())) == ['Open "file", it\'s\nnew', "%n file(s)", "Save"]


@pytest.mark.parametrize("text", [TS, TS.replace("\n", "\r\n")])
def test_a_catalogue_without_new_translations_keeps_its_bytes(text):
    assert unchanged(TsDocument(text.encode())) == text.encode()


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_translations_stay_unfinished(line_end):
    data = TS.replace("\n", line_end).encode()
    expected = TS.replace('"en">', '"en" language="de_AT">').replace(
        '"unfinished"></translation>',
        '"unfinished">&amp;OPEN &quot;FILE&quot;, IT&apos;S\nNEW<byte value="x1b"/></translation>') \
        .replace("<numerusform></numerusform><numerusform/>", "<numerusform>%N FILE(S)</numerusform>" * 2) \
        .replace('"unfinished"/>', '"unfinished">SAVE</translation>')
    assert upper(TsDocument(data), "de-AT").decode() == expected.replace("\n", line_end)


@pytest.mark.parametrize(("source", "block", "translation", "expected"), [
    ("E&xit", "Exit", "Beenden", "&Beenden"), ("E&xit", "Exit", "Exit now", "E&xit now"),
    ("Save &as...", "Save as...", "Das alles speichern als...", "Das &alles speichern als..."),
    ("&Open…", "Open…", "打开…", "打开(&O)…"), ("&USB", "USB", "USB 设备", "&USB 设备"),
    ("R&D and Q&A", "R&D and Q&A", "F&E", "F&E"), ("AT&T", "AT&T", "A T", "A T"), ("a && b", "a && b", "c", "c"),
    ("&Undo %1", "Undo %1", "%1 umkehren", "%1 &umkehren"), ("&Show %s", "Show %s", "%s anzeigen", "%s &anzeigen"),
    ("Copy &to {target}", "Copy to {target}", "Nach {target} kopieren", "&Nach {target} kopieren"),
    ("see https://x.com/?a=1&id=2", "see https://x.com/?a=1&id=2", "siehe", "siehe"),
    ("Drag&Drop here", "Drag&Drop here", "hierher", "hierher"), ("&Go", "Go", "%1", "%1"),
    ("a&nbsp;b", "a&nbsp;b", "c", "c"), ("&1 file", "1 file", "1 Datei", "&1 Datei"), ("&a", "a", "…", "…")])
def test_the_key_of_a_menu_entry_is_marked_in_the_translation(source, block, translation, expected):
    document = TsDocument(f'<TS><context><message><source>{escape(source)}</source><translation type="unfinished"/>'
                          "</message></context></TS>".encode())
    assert texts(document) == [block]
    found = document.render([replace(document.blocks[0], text=translation)], "de").decode()
    assert f'"unfinished">{escape(expected)}</translation>' in found
    assert b'"unfinished"/>' in document.render(document.blocks, "de")


def test_translate_toolkit_reads_the_translations():
    units = ts2.tsfile.parsestring(upper(TsDocument(TS.encode()))).units
    assert [str(unit.target) for unit in units[1:4]] == ["Schließen", "%N FILE(S)", "SAVE"]
    assert units[3].isfuzzy() and list(units[2].target.strings) == ["%N FILE(S)"] * 2


def test_a_message_without_numerus_forms_gets_as_many_as_the_others():
    text = TS.replace("<message>\n        <source>Save", '<message numerus="yes">\n        <source>Save')
    assert b'"unfinished"><numerusform>SAVE</numerusform><numerusform>SAVE</numerusform><' in \
        upper(TsDocument(text.encode()))


def test_characters_that_the_encoding_does_not_have_are_references():
    document = TsDocument(TS.replace("utf-8", "iso-8859-1").encode("iso-8859-1"))
    result = document.render([*document.blocks[:-1], Block("Öф")], "ru")
    assert '"unfinished">Ö&#1092;</translation>'.encode("iso-8859-1") in result


@pytest.mark.parametrize(("text", "message"), [("<TS>\n<a></TS>", "line 2"), ("\n<ts/>", "line 2: <ts> is not <TS>")])
def test_a_malformed_catalogue_is_an_error_with_its_line(text, message):
    with pytest.raises(DocumentError, match=message):
        TsDocument(text.encode())
