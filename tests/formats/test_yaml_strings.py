"""YAML: texts in every style of YAML, plurals of Rails, and the key of the language."""

import pytest
from hypothesis import strategies as st
from property_checks import few_and_many
from ruamel.yaml import YAML
from unchanged_documents import texts, unchanged, upper

from seq2seq.formats.block import Block, DocumentError
from seq2seq.formats.registry import parse
from seq2seq.formats.yaml_strings import YamlDocument


def load(data):
    return YAML(typ="safe", pure=True).load(data.decode())


@pytest.mark.parametrize("source", ["a: {}", "a: {{b: {}}}", "a: [{}]", "- {}"])
@pytest.mark.parametrize("quotes", ["{}", "'{}'", '"{}"'])
@pytest.mark.parametrize("text", [
    "Ein Hund", "Hund: er bellt", "Hund #1", "Hund, Katze", "[Hund]", "{Hund}", "- Hund", "'Hund'", '"Hund"', "Ja",
    "No", "null", "12 Hunde", "1.5", "2020-01-01", "~", "Hund:", "*Hund", "&Hund", "!Hund", "%Hund", "@Hund", "`Hund",
    "?", "|", "zwei\nZeilen", "a\\b", "é\u00a0é", "\u2028 x", "Hund\t", "😀 Hund", "<<", "= x"])
def test_a_translation_is_read_as_the_text_that_it_is(source, quotes, text):
    data = source.format(quotes.format("Some dog")).encode()
    document = YamlDocument(data)
    assert unchanged(document) == data
    result = load(document.render([Block(text)], "de"))
    while not isinstance(result, str):
        result = next(iter(result.values())) if isinstance(result, dict) else result[0]
    assert result == text


DOGS = "'%{count} DOGS'"


@pytest.mark.parametrize(("source", "language", "expected"), [
    ("en:\n  dogs:\n    one: '%{count} dog'\n    other: '%{count} dogs'\n", "ru", 
     f"ru:\n  dogs:\n    one: '%{{count}} DOG'\n    few: {DOGS}\n    many: {DOGS}\n    other: {DOGS}\n"),
    ("en:\n  dogs:\n    one: '%{count} dog'\n    other: '%{count} dogs'\n  a: A b\n", "ja",
     "ja:\n  dogs:\n    other: '%{count} DOGS'\n  a: A B\n"),
    ("en:\n  dogs: {one: 1 dog, other: Dogs}\n", "cs",
     'cs:\n  dogs: {one: "1 DOG", few: DOGS, many: DOGS, other: DOGS}\n'),
    ("en:\n  dogs:\n    zero: No dogs\n    one: A dog\n    other: '%{count} dogs'\n", "fr",
     f"fr:\n  dogs:\n    zero: NO DOGS\n    one: \"%{{count}} DOGS\"\n    many: {DOGS}\n    other: {DOGS}\n"),
    ("ja:\n  dogs:\n    other: 犬 x %{count}\n", "en",
     "en:\n  dogs:\n    one: 犬 X %{count}\n    other: 犬 X %{count}\n"),
    # These are no plurals.
    ("en:\n  sex: {male: Man, other: Other}\n", "ru", "ru:\n  sex: {male: MAN, other: OTHER}\n"),
    ("en:\n  x: {other: Other}\n", "ru", "ru:\n  x: {other: OTHER}\n"), ("x: {one: One, two: Two}\n", "ru",
                                                                       "x: {one: ONE, two: TWO}\n")])
def test_a_plural_gets_the_categories_of_the_target_language(source, language, expected):
    document = YamlDocument(source.encode())
    assert upper(document, language).decode().replace("%{COUNT}", "%{count}") == expected


@pytest.mark.parametrize(("source", "language", "expected"), [
    ("en:\n  a: A b\n", "de", "de:\n  a: A B\n"), ('"en":\n  a: A b\n', "pt-BR", '"pt-BR":\n  a: A B\n'),
    ("en-GB:\n  a: A b\n", "de", "de:\n  a: A B\n"), ("en:\n  a: A b\n", "no", '"no":\n  a: A B\n'),
    ("en: A b\n", "de", "en: A B\n"), ("en: {}\n", "de", "en: {}\n"), ("app:\n  a: A b\n", "de", "app:\n  a: A B\n"),
    ("en:\n  a: 1\n", "de", "en:\n  a: 1\n")])
def test_the_key_of_all_texts_becomes_the_target_language(source, language, expected):
    assert upper(YamlDocument(source.encode()), language).decode() == expected


@pytest.mark.parametrize(("source", "message"), [
    ("fr:\n  a: A b\nde:\n  a: C d\n", "name:1: the document has texts in several languages"),
    ("fr:\n  a: A b\n", "language fr, not en"), ("a: [b\nc", "name:2, column 2"), ("a: *b\n", "name:1, column 4"),
    ("a: 'b\n", "name:2"), ("a:\tb: c\n\t- d\n", "name:"), ("a: \x07\n", "name: "), ("[" * 10_000, "nested")])
def test_other_documents_are_refused(source, message):
    with pytest.raises(DocumentError) as error:
        parse(source.encode(), "yaml", "name", "en", "de")
    assert message in str(error.value)


WORDS = st.text("ab :#-'\"{}[],\\\n", max_size=12)


@few_and_many(10, 500, st.recursive(WORDS | st.integers(), lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
    st.text("ab'", min_size=1, max_size=3), inner, max_size=3), max_leaves=10), st.sampled_from("'\"|>"))
def test_exactly_the_values_change(value, style):
    from io import StringIO

    stream = StringIO()
    yaml = YAML(typ="safe", pure=True)
    yaml.default_style = style
    yaml.dump({"en": {"x": value}}, stream)                                     # a catalogue, whatever its values are
    data = stream.getvalue().encode()
    document = YamlDocument(data)
    assert unchanged(document) == data
    assert str(load(upper(document, "en"))).lower() == str(load(data)).lower()


def test_empty_lines_of_a_folded_text_stay():
    source = "x: >-\n  one\n\n\n  two\n\n  three\n"
    assert load(upper(YamlDocument(source.encode()))) == {"x": "ONE\n\nTWO\nTHREE"}


def test_a_document_without_plurals_or_texts_stays():
    assert texts(YamlDocument(b"- 1\n- [true, x.y, en_US]\n")) == []
