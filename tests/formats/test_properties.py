"""Java's properties: values are translated; escapes and the encoding are those of the file."""

import pytest
from document_translators import translated
from hypothesis import strategies as st
from property_checks import few_and_many
from unchanged_documents import texts

from seq2seq.formats.block import Block
from seq2seq.formats.properties import PropertiesDocument


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


@few_and_many(10, 500, st.text("a \n\\\t=:#!uéЖ😀", min_size=1, max_size=200), st.booleans())
def test_every_translation_is_read_as_it_was_written(text, continued):
    document = PropertiesDocument(b"a=b c \\\n  d\ne=f" if continued else b"a=b c d\ne=f")
    result = PropertiesDocument(document.render([Block(f"a dog {text}x"), document.blocks[1]], "de"))
    assert texts(result) == [f"a dog {text}x", "f"]


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
