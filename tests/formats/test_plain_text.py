"""Plain text: each line is a block; quote marks, white space and line ends stay."""

import pytest
from document_translators import translated
from hypothesis import strategies as st
from property_checks import few_and_many

from seq2seq.formats.plain_text import PlainTextDocument, one_line


@pytest.mark.parametrize(("source", "expected"), [
    ("", ""), ("a", "A"), ("a\r\nb\rc\n\nd", "A\r\nB\rC\n\nD"), (" > >> a  \n", " > >> A  \n"),
    ("\ufeffa\n", "\ufeffA\n"),
    ("-- \n12\n\ta\tb\n", "-- \n12\n\tA\tB\n"), (">\n> \n", ">\n> \n"), ("\ufeff> a", "\ufeff> A"),
])


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16-le"])
def test_lines_are_translated(source, expected, encoding):
    if encoding == "utf-16-le":
        source, expected = (f"\ufeff{text.removeprefix(chr(0xfeff))}" for text in (source, expected))
    document = PlainTextDocument(source.encode(encoding))
    assert translated(document) == expected.encode(encoding)
    assert document.render(document.blocks, "en") == source.encode(encoding)


def test_a_translation_never_has_more_lines():
    assert translated(PlainTextDocument(b"> a\nb"), lambda text: f"{text}\r\n \x0b{text}") == b"> a a\nb b"
    assert one_line("a  b\n\n c\u2028\td \t e") == "a  b c d \t e"


@few_and_many(10, 500, st.text("a >\r\n\t\ufeffä"))
def test_unchanged_text_keeps_its_bytes_and_lines_their_number(source):
    document = PlainTextDocument(source.encode())
    assert document.render(document.blocks, "en") == source.encode()
    assert translated(document).decode() == source.upper()
