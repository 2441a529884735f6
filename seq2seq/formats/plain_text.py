"""Plain text and e-mails: each line is a block. Line ends, and `>` and white space around its text, do not change."""

from __future__ import annotations

import re
from collections.abc import Iterator

from seq2seq.formats.block import Block
from seq2seq.formats.units import Unit, UnitDocument
from seq2seq.tokenizers.canonical_text import is_translatable

_LINE = re.compile(r"([^\r\n]*+)(\r\n|\r|\n|\Z)")
_MARGIN = re.compile(r"(?:[ \t]*+>)*+\s*+")


def one_line(text: str) -> str:
    """Replace each line end, with the white space around it, by one space."""
    return re.sub(r"\s+", lambda match: " " if len(f"{match[0]}.".splitlines()) > 1 else match[0], text)


class PlainTextDocument(UnitDocument):
    """Plain text or e-mail."""

    def find_units(self) -> Iterator[Unit]:
        for number, match in enumerate(_LINE.finditer(self.text, self.begin), 1):
            margin = _MARGIN.match(self.text, *match.span(1))
            begin = margin.end() if margin else match.start()
            end = max(begin, match.start() + len(match[1].rstrip()))
            if is_translatable(self.text[begin:end]):
                yield Unit(begin, end, (Block(self.text[begin:end], place=f"line {number}", may_be_data=False),))

    def write(self, unit: Unit, block: Block) -> str:
        return one_line(block.text)
