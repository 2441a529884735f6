"""Qt Linguist: unfinished messages are filled in and stay unfinished."""

from html import escape

import pytest
from test_round_trips import sample
from unchanged_documents import upper

from seq2seq.documents.divided_document import DividedDocument
from seq2seq.formats.block import Block
from seq2seq.formats.qt_ts import TsDocument

TS = sample("menu.ts")


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
    divided = DividedDocument(document)
    assert divided.sentences == [block]
    assert f'"unfinished">{escape(expected)}</translation>' in divided.join([translation], "de").decode()
    assert b'"unfinished"/>' in divided.join([block], "de")


def test_a_message_without_numerus_forms_gets_as_many_as_the_others():
    text = TS.replace("<message>\n        <source>Save", '<message numerus="yes">\n        <source>Save')
    assert b'"unfinished"><numerusform>SAVE</numerusform><numerusform>SAVE</numerusform><' in \
        upper(TsDocument(text.encode()))


@pytest.mark.parametrize(("attributes", "forms", "language", "count"), [
    ("", "", "de", 2), ("", "", "ja", 1), ("", "", "pl", 3), (' language="fr"', "<numerusform/>" * 2, "pl", 3),
    (' language="pl"', "<numerusform/>" * 3, "pl", 3), (' language="de"', "", "de", 2)])
def test_a_plural_has_the_forms_of_the_target_language(attributes, forms, language, count):
    document = TsDocument(f'<TS{attributes}><context><message numerus="yes"><source>%n dogs</source><translation '
                          f'type="unfinished">{forms}</translation></message></context></TS>'.encode())
    assert document.render([Block("%n x")], language).count(b"<numerusform>%n x</numerusform>") == count


def test_characters_that_the_encoding_does_not_have_are_references():
    document = TsDocument(TS.replace("utf-8", "iso-8859-1").encode("iso-8859-1"))
    result = document.render([*document.blocks[:-1], Block("Öф")], "ru")
    assert '"unfinished">Ö&#1092;</translation>'.encode("iso-8859-1") in result
