"""CSV and TSV with a header: the column of the target language is filled. Cells with a text in it do not change.

Quotes and separators are those of RFC 4180 (https://www.rfc-editor.org/rfc/rfc4180); semicolons and tabs are accepted.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from seq2seq.formats.block import Block, DocumentError
from seq2seq.formats.spans import replace_spans
from seq2seq.formats.texts import decode_text, is_message, trim, with_margins
from seq2seq.languages import canonical, code_for, main_language

_SOURCE = {"source", "sourcetext", "sourcestring", "original", "originaltext", "msgid"}
_TARGET = {"target", "targettext", "targetstring", "translation", "translated", "translatedtext", "msgstr"}
_SEPARATORS = ",;\t|"
_LANGUAGE = re.compile(r"[A-Za-z]{2,3}(?:[-_][A-Za-z0-9]{2,4}){0,2}")
_REMEDY = "Name the columns in the first line: source and target, or the codes of the languages, such as en and de."

Cell = tuple[int, int]
"""Span of a cell in the document, with its quotes."""


class CsvDocument:
    """Table with a header, with the interface `Document`.

    The header names the columns: source and target (or translation), or the code or the name of each language.
    """

    def __init__(self, data: bytes, source_language: str = "", target_language: str = "") -> None:
        """Raises DocumentError: the table is malformed, or its header names no column of source or target."""
        self._text, self._encoding = decode_text(data)
        begin = int(self._text.startswith("\ufeff"))
        header_line = 1
        declared = re.compile(r"sep=([^\r\n])\r?\n").match(self._text, begin)       # Excel writes it
        if declared:
            begin, header_line = declared.end(), 2
        first = re.sub(r'"[^"]*+"', "", self._text[begin:].partition("\n")[0])
        self._separator = declared[1] if declared else max(_SEPARATORS, key=first.count)
        self._rows = self._read(begin, header_line)
        names = [self._value(cell) for cell in self._rows[0][1]] if self._rows else []
        self._names = [name.strip() for name in names]
        self._source = self._column(_SOURCE, source_language)
        if self._source is None:
            shown = ", ".join(self._names)[:200]
            raise DocumentError(f"line {header_line}: no column is named source or after the source language "
                                f"{source_language or '(not given)'}; the columns are {shown!r}. {_REMEDY}")
        target = self._target(target_language) if target_language else None
        self.blocks: list[Block] = []
        self._cells: list[list[Cell]] = []                                      # row of each block
        for line, cells in self._rows[1:]:
            text = self._text_of(cells, self._source)
            if is_message(text) and not text.startswith("=") and (target is None or not self._text_of(cells, target)):
                self.blocks.append(trim(Block(text, place=f"line {line}", keeps_lines=True))[1])
                self._cells.append(cells)

    def _read(self, begin: int, line: int) -> list[tuple[int, list[Cell]]]:
        """Return the line and the cells of each row that is not empty."""
        separator = re.escape(self._separator)
        cell = re.compile(rf'(?:"(?:[^"]|"")*+"|(?!")[^{separator}\r\n]*+)(?P<end>{separator}|\r\n|\n|\r|\Z)')
        rows: list[tuple[int, list[Cell]]] = []
        cells: list[Cell] = []
        first = line
        while begin < len(self._text) or cells:
            match = cell.match(self._text, begin)
            if match is None:
                raise DocumentError(f"line {line}: a quote in a cell is not closed, or text follows it: "
                                    f"{self._text[begin:begin + 40]!r}. Write \"\" for a quote in a cell in quotes.")
            cells.append((begin, match.start("end")))
            line += len(re.findall(r"\r\n|\n|\r", match[0]))
            begin = match.end()
            if match["end"] != self._separator:
                if len(cells) > 1 or cells[0][0] < cells[0][1]:
                    rows.append((first, cells))
                cells, first = [], line
        return rows

    def _value(self, cell: Cell) -> str:
        raw = self._text[slice(*cell)]
        return raw[1:-1].replace('""', '"') if raw.startswith('"') else raw

    def _column(self, names: set[str], language: str) -> int | None:
        """Return the column with one of these names, or else the only column named after a language."""
        plain = [re.sub(r"[\W_]", "", name.lower()) for name in self._names]
        if found := [index for index, name in enumerate(plain) if name in names]:
            return found[0]
        codes = [canonical(name) if _LANGUAGE.fullmatch(name) else code_for(name) for name in self._names]
        for same in (canonical, main_language):
            found = [index for index, code in enumerate(codes) if code and language and same(code) == same(language)]
            if len(found) == 1:
                return found[0]
        return None

    def _target(self, language: str) -> int:
        """Return the column of the translations."""
        column = self._column(_TARGET, language)
        if column is None or column == self._source:
            raise DocumentError(f"line {self._rows[0][0]}: no column is named target or after the target language "
                                f"{language}; the columns are {', '.join(self._names)[:200]!r}. {_REMEDY}")
        return column

    def _text_of(self, cells: list[Cell], column: int) -> str:
        """Return the text of a cell; "" if it is empty or the row has no such cell."""
        text = self._value(cells[column]) if column < len(cells) else ""
        return text if text.strip() else ""

    def render(self, translations: Sequence[Block], target_language: str) -> bytes:
        """See `Document.render`. A new cell has quotes if the cell had them, or if its text needs them."""
        column, edits = self._target(target_language), []
        assert self._source is not None
        for cells, new, block in zip(self._cells, translations, self.blocks, strict=True):
            if new == block or self._text_of(cells, column):
                continue
            text = with_margins(self._value(cells[self._source]), new.text)
            begin, end = cells[column] if column < len(cells) else (cells[-1][1], cells[-1][1])
            if self._text[begin:end].startswith('"') or any(one in text for one in f'"\r\n{self._separator}'):
                text = '"' + text.replace('"', '""') + '"'
            edits.append((begin, end, self._separator * max(0, column - len(cells) + 1) + text))
        return replace_spans(self._text, edits).encode(self._encoding)
