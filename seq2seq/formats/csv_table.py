"""CSV and TSV with a header: the column of the target language is filled. Cells with a text in it do not change.

Quotes and separators are those of RFC 4180 (https://www.rfc-editor.org/rfc/rfc4180); semicolons and tabs are accepted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from seq2seq.formats.block import Block, DocumentError
from seq2seq.formats.texts import is_message
from seq2seq.formats.units import Unit, UnitDocument, unit_of
from seq2seq.languages import canonical, code_for, main_language

_SOURCE = {"source", "sourcetext", "sourcestring", "original", "originaltext", "msgid"}
_TARGET = {"target", "targettext", "targetstring", "translation", "translated", "translatedtext", "msgstr"}
_SEPARATORS = ",;\t|"
_LANGUAGE = re.compile(r"[A-Za-z]{2,3}(?:[-_][A-Za-z0-9]{2,4}){0,2}")
_REMEDY = "Name the columns in the first line: source and target, or the codes of the languages, such as en and de."

Cell = tuple[int, int]
"""Span of a cell in the document, with its quotes."""


class CsvDocument(UnitDocument):
    """Table with a header, which names the columns: source and target (or translation), or the code or the name of each
    language."""

    def find_units(self) -> Iterator[Unit]:
        begin = self.begin
        declared = re.compile(r"sep=([^\r\n])\r?\n").match(self.text, begin)        # Excel writes it
        if declared:
            begin = declared.end()
        header = re.sub(r'"[^"]*+"', "", self.text[begin:].partition("\n")[0])
        self._separator = declared[1] if declared else max(_SEPARATORS, key=header.count)
        rows = self._rows(begin)
        names = [self._value(cell).strip() for cell in next(rows, [])]
        place, (of_source, of_target) = f"line {self.line_at(begin)}", self.languages
        source = _column(names, _SOURCE, of_source)
        if source is None:
            raise DocumentError(f"{place}: no column is named source or after the source language "
                                f"{of_source or '(not given)'}; the columns are {', '.join(names)[:200]!r}. {_REMEDY}")
        target = _column(names, _TARGET, of_target)
        if target is None or target == source:
            raise DocumentError(f"{place}: no column is named target or after the target language {of_target}; the "
                                f"columns are {', '.join(names)[:200]!r}. {_REMEDY}")
        for cells in rows:
            text = self._value(cells[source]) if source < len(cells) else ""
            is_filled = target < len(cells) and self._value(cells[target]).strip()
            if is_message(text) and not text.startswith("=") and not is_filled:
                missing = max(0, target - len(cells) + 1)
                cell = cells[target] if not missing else (cells[-1][1], cells[-1][1])
                block = Block(text, place=f"line {self.line_at(cells[0][0])}", keeps_lines=True)
                yield unit_of(*cell, block, info=missing)

    def _rows(self, begin: int) -> Iterator[list[Cell]]:
        """Yield the cells of each row that is not empty."""
        separator = re.escape(self._separator)
        pattern = re.compile(rf'(?:"(?:[^"]|"")*+"|(?!")[^{separator}\r\n]*+)(?P<end>{separator}|\r\n|\n|\r|\Z)')
        cells: list[Cell] = []
        while begin < len(self.text) or cells:
            match = pattern.match(self.text, begin)
            if match is None:
                raise DocumentError(f"line {self.line_at(begin)}: a quote in a cell is not closed, or text follows it: "
                                    f"{self.text[begin:begin + 40]!r}. Write \"\" for a quote in a cell in quotes.")
            cells.append((begin, match.start("end")))
            begin = match.end()
            if match["end"] != self._separator:
                if len(cells) > 1 or cells[0][0] < cells[0][1]:
                    yield cells
                cells = []

    def _value(self, cell: Cell) -> str:
        raw = self.text[slice(*cell)]
        return raw[1:-1].replace('""', '"') if raw.startswith('"') else raw

    def write(self, unit: Unit, block: Block) -> str:
        """Return a new cell, after the cells that the row lacks. It has quotes if the old cell has them, or if the text
        needs them."""
        text = unit.before + block.text + unit.after
        if self.text.startswith('"', unit.begin, unit.end) or any(one in text for one in f'"\r\n{self._separator}'):
            text = '"' + text.replace('"', '""') + '"'
        return self._separator * unit.info + text


def _column(header: Sequence[str], names: set[str], language: str) -> int | None:
    """Return the column with one of these names, or else the only column named after a language."""
    plain = [re.sub(r"[\W_]", "", name.lower()) for name in header]
    if found := [index for index, name in enumerate(plain) if name in names]:
        return found[0]
    codes = [canonical(name) if _LANGUAGE.fullmatch(name) else code_for(name) for name in header]
    for same in (canonical, main_language):
        found = [index for index, code in enumerate(codes) if code and language and same(code) == same(language)]
        if len(found) == 1:
            return found[0]
    return None
