"""Rows of CSV and TSV: cells with their places and lines, as Python's csv module writes them."""

import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seq2seq.formats.block import DocumentError
from seq2seq.formats.tables import read_rows, row_of_line

ROWS = st.lists(st.lists(st.text("qx ,;\"\n\t'\u2028\x85", max_size=8), min_size=2, max_size=5), max_size=5)


@given(ROWS, st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]), st.sampled_from(",;\t"),
       st.sampled_from(["\n", "\r\n"]))
def test_rows_are_those_that_the_csv_module_writes(rows, quoting, separator, line_end):
    text = io.StringIO(newline="")
    csv.writer(text, delimiter=separator, quoting=quoting, lineterminator=line_end).writerows(rows)
    written = text.getvalue()
    found = list(read_rows(written, separator))
    assert [[cell.text for cell in cells] for _, cells in found] == rows
    for line, cells in found:
        before = written[:cells[0].begin].replace("\r\n", "\n").replace("\r", "\n")
        assert line == before.count("\n") + 1
        for cell in cells:
            raw = written[cell.begin:cell.end]
            assert raw.strip('"').replace('""', '"') == cell.text.strip('"')


def test_without_quotes_a_quote_is_text_and_empty_lines_are_left_out():
    rows = read_rows('"a\tb"\r\n\n\tc', "\t", has_quotes=False)
    assert [(line, [cell.text for cell in cells]) for line, cells in rows] == [(1, ['"a', 'b"']), (3, ["", "c"])]


def test_a_quote_in_a_cell_without_quotes_is_text_unless_the_row_is_a_line():
    assert [cell.text for cell in next(read_rows('8" x,y', ","))[1]] == ['8" x', "y"]
    with pytest.raises(DocumentError, match="line 7: column 1:"):
        row_of_line('8" x,y', 7, ",", True)


@pytest.mark.parametrize("text, place", [
    ('a,"b', "line 1: column 2"), ('a\n"b\n\nc",d\n"e"f', "line 5: column 1"),
    ('"a\n",x"y",\r"b" ', "line 3: column 1")])
def test_a_quote_that_is_not_closed_is_refused_with_its_line(text, place):
    with pytest.raises(DocumentError, match=f"^{place}: a quote"):
        list(read_rows(text, ","))
