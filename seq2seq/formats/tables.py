"""Rows of CSV and TSV, for corpora, glossaries and documents.

CSV is that of RFC 4180 (https://www.rfc-editor.org/rfc/rfc4180), also with other separators than commas. TSV that has
no quotes is that of IANA (https://www.iana.org/assignments/media-types/text/tab-separated-values).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from seq2seq.formats.block import DocumentError

_LINE_END = re.compile(r"\r\n|\n|\r")


class Cell(NamedTuple):
    """Cell of a row. begin, end: its span in the text, with its quotes. text: its text, without them."""

    begin: int
    end: int
    text: str


def read_rows(text: str, separator: str, has_quotes: bool = True, begin: int = 0, line: int = 1, one_line: bool = False
              ) -> Iterator[tuple[int, list[Cell]]]:
    """Yield each row that is not an empty line: number of the line on which it begins, and its cells.

    Args:
        separator: character between cells.
        has_quotes: True if a cell in double quotes can have separators, line ends and, written twice, quotes; False if
            a quote is a character of the text.
        begin: place of the first row in the text. line: number of its line.
        one_line: True if the text is one row, whose carriage returns are text, and which has no quote in a cell without
            quotes, as RFC 4180 says. Otherwise such a quote is text, as for most programs.
    Raises:
        DocumentError: a quote is not closed, or has no place in its cell.
    """
    pattern = _cell_pattern(separator, has_quotes, one_line)
    cells: list[Cell] = []
    first = begin
    while begin < len(text) or cells:
        match = pattern.match(text, begin)
        if match is None:
            line += len(_LINE_END.findall(text, first, begin))
            place = "in double quotes and on one line" if one_line else "in double quotes"
            raise DocumentError(f"line {line}: column {len(cells) + 1}: a quote is not closed, or is in the middle of "
                                f"the text: {text[begin:begin + 40]!r}. Write the text {place}, and each quote in it "
                                'twice: "he said ""yes""".')
        end = match.start("end")
        is_quoted = has_quotes and text.startswith('"', begin, end)
        cells.append(Cell(begin, end, text[begin + 1:end - 1].replace('""', '"') if is_quoted else text[begin:end]))
        begin = match.end()
        if match["end"] != separator:
            if len(cells) > 1 or cells[0].begin < cells[0].end:
                yield line, cells
            line += len(_LINE_END.findall(text, first, begin))
            cells, first = [], begin


def row_of_line(line: str, number: int, separator: str, has_quotes: bool) -> list[str]:
    r"""Return the texts of the cells of a row that is a line; see `read_rows`. number: number of the line, for errors.

    A byte order mark is kept at the beginning of the first text, and a `\r` at the end of the last one, even if the
    texts have quotes.
    """
    if not has_quotes or '"' not in line:
        return line.split(separator)
    mark, ending = "\ufeff" * line.startswith("\ufeff"), "\r" * line.endswith("\r")
    _, cells = next(read_rows(line.removesuffix("\r"), separator, True, len(mark), number, one_line=True))
    texts = [cell.text for cell in cells]
    texts[0], texts[-1] = mark + texts[0], texts[-1] + ending
    return texts


@cache
def _cell_pattern(separator: str, has_quotes: bool, one_line: bool) -> re.Pattern[str]:
    """Return the pattern of a cell and, as the group `end`, of what ends it: the separator, a line end or ""."""
    separator = re.escape(separator)
    if one_line:
        plain, end = rf'[^{separator}"]*+', rf"{separator}|\Z"
    else:
        plain, end = rf"[^{separator}\r\n]*+", rf"{separator}|\r\n|\n|\r|\Z"
    quoted = r'"[^"]*+(?:""[^"]*+)*+"|(?!")' if has_quotes else ""
    return re.compile(f"(?:{quoted}{plain})(?P<end>{end})")
