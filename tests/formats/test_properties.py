"""Java's properties: values are translated; escapes and the encoding are those of the file."""

import pytest
from document_translators import translated
from hypothesis import given, settings
from hypothesis import strategies as st
from translate.storage import properties
from unchanged_documents import texts, unchanged, upper

from seq2seq.documents.block import Block, DocumentError
from seq2seq.formats.properties import PropertiesDocument

PROPERTIES = r'''# Comment = not text
! another \
title=Hello World
  spaced.key : With a\: colon and \u00e9
long = A long value \
       on two lines, \
       or three
key\ with\ space Value
empty=
empty.too
name=java.util.logging.Handler
number=12
path=/usr/share
lines=One\nTwo\tThree \
'''


def read(data):
    """Return the values as translate-toolkit reads them."""
    store = properties.javafile(personality="java")
    store.parse(data)
    return {unit.name: unit.source for unit in store.units if unit.name}


def test_values_that_are_text_are_blocks():
    document = PropertiesDocument(PROPERTIES.encode())
    assert texts(document) == ["Hello World", "With a: colon and é", "A long value on two lines, or three", "Value",
                               "One\nTwo\tThree"]
    assert [block.place for block in document.blocks] == ["line 3", "line 4", "line 5", "line 8", "line 14"]


@pytest.mark.parametrize("data", [
    PROPERTIES.encode(), PROPERTIES.replace("\n", "\r\n").encode(), PROPERTIES.replace("\n", "\r").encode(),
    "\ufeffa=Grüße".encode(), "a=Grüße".encode("iso-8859-1"), b"", b"a=b\\"])
def test_properties_without_new_translations_keep_their_bytes(data):
    assert unchanged(PropertiesDocument(data)) == data


def test_translations_keep_the_layout():
    assert upper(PropertiesDocument(PROPERTIES.encode())).decode() == PROPERTIES \
        .replace("Hello World", "HELLO WORLD").replace(r"With a\: colon and \u00e9", r"WITH A: COLON AND \u00c9") \
        .replace("""A long value \\
       on two lines, \\
       or three""", "A LONG VALUE ON TWO LINES, OR THREE").replace("Value", "VALUE") \
        .replace("One\\nTwo\\tThree \\\n", "ONE\\n\\\nTWO\\tTHREE ")


@pytest.mark.parametrize(("data", "expected"), [
    (b"a=b", rb"a=\u0424\u00e9 \ud83d\ude00"), ("b=é\na=b".encode(), "b=é\na=Фé 😀".encode()),
    (b"b=\xe9\na=b", b"b=\xe9\na=\\u0424\xe9 \\ud83d\\ude00")])
def test_characters_are_written_in_the_encoding_of_the_file(data, expected):
    document = PropertiesDocument(data)
    assert document.render([*document.blocks[:-1], Block("Фé 😀")], "ru") == expected


def test_a_long_translation_of_a_continued_value_is_wrapped():
    document = PropertiesDocument(b"a=b \\\r\n   c\r\nd=e\r\n")
    result = document.render([Block("word " * 30 + "\n end"), document.blocks[1]], "de")
    assert result.count(b" \\\r\n   word") == 1 and b"\\n\\\r\n   \\ end\r\nd=e\r\n" in result
    assert texts(PropertiesDocument(result))[0] == "word " * 30 + "\n end"


def test_translate_toolkit_reads_the_translations():
    values = read(upper(PropertiesDocument(PROPERTIES.encode())))
    assert values["title"] == "HELLO WORLD" and values["spaced.key"] == "WITH A: COLON AND É"
    assert values["long"] == "A LONG VALUE ON TWO LINES, OR THREE"


def test_a_malformed_escape_is_an_error_with_its_line():
    with pytest.raises(DocumentError, match=r"line 3: \\u is not followed by four"):
        PropertiesDocument(b"a=b\nc=d\\\n  \\u12\n")


@settings(max_examples=50, deadline=None)
@given(st.text("a \n\\\t=:#!uéЖ😀", min_size=1, max_size=200), st.booleans())
def test_every_translation_is_read_as_it_was_written(text, continued):
    document = PropertiesDocument(b"a=b c \\\n  d\ne=f" if continued else b"a=b c d\ne=f")
    result = PropertiesDocument(document.render([Block(f"x{text}x"), document.blocks[1]], "de"))
    assert texts(result) == [f"x{text}x", "f"]


@pytest.mark.slow
@pytest.mark.parametrize("text", [
    "\\" * 1_000_001, "a=" + "\\\n" * 500_000, " \\\n" * 300_000, "a=b\\\n" * 200_000 + "c", "a" * 1_000_000,
    ":" * 900_000, "a=b \\\n\n" * 100_000, "a=" + "\\\\" * 400_000 + "b c"])
def test_hostile_properties_take_linear_time(text):
    document = PropertiesDocument(text.encode())
    upper(document)
    assert unchanged(document) == text.encode()


@pytest.mark.parametrize(("value", "sentence", "translation", "written"), [
    ("User {0} doesn''t exist", "User {0} doesn't exist", "L'utilisateur {0} n'existe pas",
     "L''utilisateur {0} n''existe pas"),
    ("User {0} exists", "User {0} exists", "L'utilisateur {0} existe", "L''utilisateur {0} existe"),
    ("It doesn't exist", "It doesn't exist", "Il n'existe pas", "Il n'existe pas"),
    ("It's '{0}'", "It's '{0}'", "C'est '{0}'", "C'est '{0}'")])
def test_apostrophes_of_messages_with_arguments_are_doubled(value, sentence, translation, written):
    document = PropertiesDocument(f"a={value}\n".encode())
    assert [block.text for block in document.blocks] == [sentence]
    assert translated(document, lambda _: translation).decode() == f"a={written}\n"
