"""JSON: strings that are text are translated; keys, other strings and the layout stay."""

import json
from dataclasses import replace

import pytest
from hypothesis import strategies as st
from property_checks import few_and_many
from unchanged_documents import texts, unchanged, upper

from seq2seq.documents.divided_document import DividedDocument
from seq2seq.formats.block import Block
from seq2seq.formats.json_strings import JsonDocument


def test_line_breaks_within_a_string_keep_their_kind_where_the_translation_has_spaces():
    divided = DividedDocument(JsonDocument(br'["One two\r\nthree four\nfive"]'))
    assert divided.sentences == ["One two three four five"]
    assert divided.join(["Eins zwei drei vier fünf"], "de").decode() == r'["Eins zwei\r\ndrei vier\nfünf"]'


@pytest.mark.parametrize(("source", "expected"), [
    ('["a", "é"]', '["Ж", "é"]'), (r'["a", "\u00e9"]', r'["\u0416", "\u00e9"]'), ('["a"]', '["Ж"]')])
def test_characters_are_escaped_as_in_the_document(source, expected):
    document = JsonDocument(source.encode())
    assert document.render([Block("Ж"), *document.blocks[1:]], "ru").decode() == expected


def test_encoded_data_longer_than_a_block_is_not_text():
    assert texts(JsonDocument(b'["' + b"QUJD" * 300_000 + b'"]')) == []


VALUES = st.recursive(st.none() | st.integers() | st.text("ab {}[],:\"\\\n", max_size=20), lambda inner: st.lists(
    inner, max_size=4) | st.dictionaries(st.text("ab@\"", max_size=3), inner, max_size=4), max_leaves=20)


@few_and_many(10, 500, VALUES, st.sampled_from([None, 1]), st.booleans())
def test_exactly_the_values_change(value, indent, escaped):
    value = {"en": {"x": value}}                                                # a catalogue, whatever its values are
    text = json.dumps(value, indent=indent, ensure_ascii=escaped)
    document = JsonDocument(text.encode())
    assert unchanged(document).decode() == text
    result = json.loads(upper(document, "en"))
    assert json.dumps(result).lower() == json.dumps(value).lower()
    assert keys(result) == keys(value)


def keys(value):
    if isinstance(value, dict):
        return {key: keys(inner) for key, inner in value.items()}
    return [keys(inner) for inner in value] if isinstance(value, list) else None


def test_only_the_messages_of_a_browser_extension_are_translated():
    source = """{"count": {"message": "$COUNT$ red dogs", "description": "Number of dogs",
    "placeholders": {"count": {"content": "$1", "example": "two dogs"}}}, "name": {"message": "A dog"}}"""
    assert texts(JsonDocument(source.encode())) == ["$COUNT$ red dogs", "A dog"]
    assert texts(JsonDocument(source.replace('"name": {', '"name": {"x": 1, ').encode()))[1] == "Number of dogs"


@pytest.mark.parametrize(("key", "comment"), [
    ("defaultMessage", "description"), ("string", "developer_comment"), ("message", "description")])
def test_comments_beside_messages_are_not_translated(key, comment):
    source = f'{{"a.b": {{"{comment}": "Shown on top", "{key}": "A dog"}}, "c": {{"{key}": "Two dogs"}}}}'
    assert texts(JsonDocument(source.encode())) == ["A dog", "Two dogs"]


@pytest.mark.parametrize(("language", "expected"), [
    ("ru", '"dog_one": "{{count}} DOGS", "dog_other": "{{count}} DOGS", "dog_few": "{{count}} DOGS", '
           '"dog_many": "{{count}} DOGS"'),
    ("de", '"dog_one": "A DOG", "dog_other": "{{count}} DOGS"'),
    ("ja", '"dog_one": "A DOG", "dog_other": "{{count}} DOGS"')])
def test_plural_forms_of_i18next_become_those_of_the_target_language(language, expected):
    source = '{"dog_one": "A dog", "dog_other": "{{count}} dogs", "sign_one": "One sign", "x": ["A"]}'
    result = upper(JsonDocument(source.encode()), language).decode().replace("{{COUNT}}", "{{count}}")
    assert result == f'{{{expected}, "sign_one": "ONE SIGN", "x": ["A"]}}'


@pytest.mark.parametrize("one", ["1", '"1"'])
def test_an_entry_that_is_no_text_belongs_to_the_plural(one):
    source = f'{{"dog_zero": " no\\/dogs ", "dog_one": {one}, "dog_other": "{{{{count}}}} dogs"}}'
    document = JsonDocument(source.encode())
    zero, other = document.blocks
    result = document.render([zero, replace(other, text="{{count}} HUNDE")], "ru").decode()
    assert result == source.replace("dogs\"}", 'HUNDE", "dog_few": "{{count}} HUNDE", "dog_many": "{{count}} HUNDE"}')


def test_strings_of_a_list_have_no_key():
    assert texts(JsonDocument(b'["red", "it is", ["It is"], {"color": ["red", "a red dog"]}, "A car"]')) == [
        "red", "it is", "It is", "a red dog", "A car"]
