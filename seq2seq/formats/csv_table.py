"""CSV and TSV with a header: the column of the target language is filled. Cells with a text in it do not change.

Separators are commas, semicolons, tabs or vertical bars.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from seq2seq.formats.block import Block, DocumentError
from seq2seq.formats.tables import read_rows
from seq2seq.formats.units import Unit, UnitDocument, unit_of
from seq2seq.languages import canonical, code_for, main_language

_SOURCE = {"source", "sourcetext", "sourcestring", "original", "originaltext", "msgid"}
_TARGET = {"target", "targettext", "targetstring", "translation", "translated", "translatedtext", "msgstr"}
_SEPARATORS = ",;\t|"
_LANGUAGE = re.compile(r"[A-Za-z]{2,3}(?:[-_][A-Za-z0-9]{2,4}){0,2}")
_REMEDY = "Name the columns in the first line: source and target, or the codes of the languages, such as en and de."


class CsvDocument(UnitDocument):
    """Table with a header, which names the columns: source and target (or translation), or the code or the name of each
    language."""

    def find_units(self) -> Iterator[Unit]:
        begin, line = self.begin, 1
        declared = re.compile(r"sep=([^\r\n])\r?\n").match(self.text, begin)        # Excel writes it
        if declared:
            begin, line = declared.end(), 2
        header = re.sub(r'"[^"]*+"', "", self.text[begin:].partition("\n")[0])
        self._separator = declared[1] if declared else max(_SEPARATORS, key=header.count)
        rows = read_rows(self.text, self._separator, begin=begin, line=line)
        names = [cell.text.strip() for cell in next(rows, (line, []))[1]]
        place, (of_source, of_target) = f"line {line}", self.languages
        source, target = columns_of(names, self.languages)
        if source is None:
            raise DocumentError(f"{place}: no column is named source or after the source language "
                                f"{of_source or '(not given)'}; the columns are {', '.join(names)[:200]!r}. {_REMEDY}")
        if target is None or target == source:
            raise DocumentError(f"{place}: no column is named target or after the target language {of_target}; the "
                                f"columns are {', '.join(names)[:200]!r}. {_REMEDY}")
        for line, cells in rows:
            text = cells[source].text if source < len(cells) else ""
            is_filled = target < len(cells) and cells[target].text.strip()
            if not text.startswith("=") and not is_filled:
                missing = max(0, target - len(cells) + 1)
                begin, end = cells[target][:2] if not missing else (cells[-1].end, cells[-1].end)
                yield unit_of(begin, end, Block(text, place=f"line {line}", keeps_lines=True), info=missing)

    def write(self, unit: Unit, block: Block) -> str:
        """Return a new cell, after the cells that the row lacks. It has quotes if the old cell has them, or if the text
        needs them."""
        text = unit.before + block.text + unit.after
        if self.text.startswith('"', unit.begin, unit.end) or any(one in text for one in f'"\r\n{self._separator}'):
            text = '"' + text.replace('"', '""') + '"'
        return self._separator * unit.info + text


def columns_of(header: Sequence[str], languages: Sequence[str]) -> tuple[int | None, int | None]:
    """Return the columns of source and target. languages: their codes."""
    source, target = (_column(header, names, language)
                      for names, language in zip((_SOURCE, _TARGET), languages, strict=True))
    return source, target


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
