"""CSV: columns of source and target, cells that are filled, and cells that stay."""

import csv
import io

import pytest
from hypothesis import strategies as st
from property_checks import few_and_many
from unchanged_documents import texts, unchanged, upper

from seq2seq.formats.block import DocumentError
from seq2seq.formats.registry import parse


def parsed(text, source="en", target="de"):
    return parse(text.encode(), "csv", "name", source, target)


@pytest.mark.parametrize("header", [
    "source,target,x", "Source Text,Translation,x", "en,de,x", "en-US,de_DE,x", "English,German,x", "EN,DE,x",
    '"en","de",x', "original,translated,en", "msgid,msgstr,x", "\ufeffsource,target,fr"])
def test_columns_are_found_by_their_names(header):
    document = parsed(f"{header}\nA dog,,A cat\n")
    assert texts(document) == ["A dog"]
    assert upper(document).decode() == f"{header}\nA dog,A DOG,A cat\n"


@pytest.mark.parametrize(("text", "message"), [
    ("A dog,A cat\nA bird,\n", "name:1: no column is named source or after the source language en"),
    ("key,en\na,A dog\n", "name:1: no column is named target or after the target language de"),
    ("A dog\n", "no column is named source"), ("", "no column"), ("text\nA dog\n", "no column is named source"),
    ("en,en-US,de\na,b,c\n", "") , ("en-US,en-GB,de\na,b,c\n", "no column is named source"),
    ('en,de\n"A dog,\n', "name:2: column 1: a quote"), ('en,de\n"A" dog,\n', "name:2: column 1: a quote"),
    ("fr,de\na,b\n", "no column")])
def test_tables_whose_columns_are_not_known_are_refused(text, message):
    if not message:
        assert texts(parsed(text)) == []
        return
    with pytest.raises(DocumentError) as error:
        parsed(text)
    assert message in str(error.value)


def test_a_carriage_return_alone_ends_a_line():
    assert upper(parsed("en,de\rA dog,\r")).decode() == "en,de\rA dog,A DOG\r"


@pytest.mark.parametrize("separator", ",;\t|")
def test_the_separator_is_that_of_the_header(separator):
    data = separator.join(["key", "en", "de"]) + f'\na{separator}"A {separator} b"{separator}\n'
    document = parsed(data)
    expected = data[:-1] + f'"A {separator} B"\n'
    assert upper(document).decode() == expected
    assert upper(parsed(f"sep={separator}\n{data}")).decode() == f"sep={separator}\n{expected}"


def test_the_target_language_chooses_the_column():
    table = "source,de,fr\nA dog,,\nA cat,Katze,\n"
    assert upper(parsed(table, "", "de")).decode() == "source,de,fr\nA dog,A DOG,\nA cat,Katze,\n"
    assert upper(parsed(table, "", "fr")).decode() == "source,de,fr\nA dog,,A DOG\nA cat,Katze,A CAT\n"


@few_and_many(10, 500, st.lists(st.lists(st.text("qx ,;\"\n'=", max_size=8), min_size=3, max_size=3), max_size=5),
              st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]), st.sampled_from(",;\t"))
def test_exactly_the_empty_cells_of_the_target_change(rows, quoting, separator):
    stream = io.StringIO(newline="")
    csv.writer(stream, delimiter=separator, quoting=quoting).writerows([["key", "en", "de"], *rows])
    document = parsed(stream.getvalue())
    assert unchanged(document).decode() == stream.getvalue()
    result = list(csv.reader(io.StringIO(upper(document).decode(), newline=""), delimiter=separator))
    for before, after in zip(rows, result[1:], strict=True):
        assert after[:2] == before[:2]
        filled = any(map(str.isalpha, before[1])) and not before[1].startswith("=") and not before[2].strip()
        assert after[2] == (before[1].upper() if filled else before[2])
