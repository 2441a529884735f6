"""Plain text and e-mails: each line is a block. Line ends, and `>` and white space around its text, do not change."""

from __future__ import annotations

import re
from collections.abc import Sequence

from seq2seq.formats.block import Block
from seq2seq.formats.texts import decode_text
from seq2seq.tokenizers.canonical_text import is_translatable

_LINE = re.compile(r"([^\r\n]*+)(\r\n|\r|\n|\Z)")
_MARGIN = re.compile(r"(?:[ \t]*+>)*+\s*+")


def one_line(text: str) -> str:
    """Replace each line end, with the white space around it, by one space."""
    return re.sub(r"\s+", lambda match: " " if len(f"{match[0]}.".splitlines()) > 1 else match[0], text)


class PlainTextDocument:
    """Plain text or e-mail, with the interface of `block.Document`."""

    def __init__(self, data: bytes) -> None:
        """Raises DocumentError: see `decode_text`."""
        text, self._encoding = decode_text(data)
        self._pieces: list[str | None] = []                             # None: the text of the next block
        self.blocks: list[Block] = []
        for number, match in enumerate(_LINE.finditer(text), 1):
            line = match[1]
            margin = _MARGIN.match(line.removeprefix("\ufeff"))
            begin = len(line) - len(line.removeprefix("\ufeff")) + (margin.end() if margin else 0)
            end = max(begin, len(line.rstrip()))
            if is_translatable(line[begin:end]):
                self.blocks.append(Block(line[begin:end], place=f"line {number}"))
                self._pieces += [line[:begin], None, line[end:] + match[2]]
            else:
                self._pieces.append(match[0])

    def render(self, translations: Sequence[Block], target_language: str) -> bytes:
        texts = (new.text if new.text == old.text else one_line(new.text)
                 for new, old in zip(translations, self.blocks, strict=True))
        return "".join(next(texts) if piece is None else piece for piece in self._pieces).encode(self._encoding)
