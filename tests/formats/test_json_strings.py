"""JSON: strings that are text are translated; keys, other strings and the layout stay."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unchanged_documents import texts, unchanged, upper

from seq2seq.documents.block import Block, DocumentError
from seq2seq.documents.translation import DividedDocument
from seq2seq.formats.json_strings import JsonDocument

ARB = r'''{
  "@@locale": "en",
  "title" : "Hello \"World\"",
  "@title": {"description": "Title of the page", "placeholders": {"n": {"example": "Some text"}}},
  "menu": {"open": "Open", "items": ["One", 2, null, true, ["Two words"], {"a": ""}]},
  "language": "en_US", "color": "#ff0000", "url": "https://example.org/a", "mail": "me@example.org",
  "name": "fileName", "css": "rgb(1, 2, 3)", "class": "a.b.C", "number": "12 %", "half": "\ud800 a",
  "lines": " First\nsecond "
}
'''


def test_strings_that_are_text_are_blocks():
    document = JsonDocument(ARB.encode())
    assert texts(document) == ['Hello "World"', "Open", "One", "Two words", "First\nsecond"]
    assert [block.place for block in document.blocks] == ["line 3", "line 5", "line 5", "line 5", "line 8"]


@pytest.mark.parametrize("text", [ARB, "\ufeff" + ARB, ARB.replace("\n", "\r\n"), '"a"', "1", "[]"])
def test_a_document_without_new_translations_keeps_its_bytes(text):
    assert unchanged(JsonDocument(text.encode())) == text.encode()


def test_only_text_changes():
    assert upper(JsonDocument(ARB.encode())).decode() == ARB.replace(r'Hello \"World\"', r'HELLO \"WORLD\"') \
        .replace('"Open"', '"OPEN"').replace("One", "ONE").replace("Two words", "TWO WORDS") \
        .replace(r"First\nsecond", r"FIRST\nSECOND")


def test_line_breaks_within_a_string_keep_their_kind_where_the_translation_has_spaces():
    divided = DividedDocument(JsonDocument(br'["One two\r\nthree four\nfive"]'))
    assert divided.sentences == ["One two  three four five"]
    assert divided.join(["Eins zwei drei vier fünf"], "de").decode() == r'["Eins zwei\r\ndrei vier\nfünf"]'


@pytest.mark.parametrize(("source", "expected"), [
    ('["a", "é"]', '["Ж", "é"]'), (r'["a", "\u00e9"]', r'["\u0416", "\u00e9"]'), ('["a"]', '["Ж"]')])
def test_characters_are_escaped_as_in_the_document(source, expected):
    document = JsonDocument(source.encode())
    assert document.render([Block("Ж"), *document.blocks[1:]], "ru").decode() == expected


@pytest.mark.parametrize(("data", "message"), [
    (b'{\n "a": b}', "line 2, column 7: Expecting value"), (b"[" * 100_000, "nested too deeply"),
    (b"", "line 1, column 1"), (b'["\xff"]', "line 1: byte 3 is not utf-8"), (b"1" * 5000, "the document: ")])
def test_a_malformed_document_is_an_error_with_its_place(data, message):
    with pytest.raises(DocumentError, match=message):
        JsonDocument(data)


def test_encoded_data_longer_than_a_block_is_not_text():
    assert JsonDocument(b'["' + b"QUJD" * 300_000 + b'"]').blocks == []


VALUES = st.recursive(st.none() | st.integers() | st.text("ab {}[],:\"\\\n", max_size=20), lambda inner: st.lists(
    inner, max_size=4) | st.dictionaries(st.text("ab@\"", max_size=3), inner, max_size=4), max_leaves=20)


@settings(max_examples=50, deadline=None)
@given(VALUES, st.sampled_from([None, 1]), st.booleans())
def test_exactly_the_values_change(value, indent, escaped):
    text = json.dumps(value, indent=indent, ensure_ascii=escaped)
    document = JsonDocument(text.encode())
    assert unchanged(document).decode() == text
    result = json.loads(upper(document))
    assert json.dumps(result).lower() == json.dumps(value).lower()
    assert keys(result) == keys(value)


def keys(value):
    if isinstance(value, dict):
        return {key: keys(inner) for key, inner in value.items()}
    return [keys(inner) for inner in value] if isinstance(value, list) else None
