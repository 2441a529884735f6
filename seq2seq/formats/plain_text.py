"""Plain text and e-mails: each line is a block. Line ends, and `>` and white space around its text, do not change."""

from __future__ import annotations

import codecs
import re
from collections.abc import Sequence

from seq2seq.documents.block import MAX_BYTES, MAX_LINES, Block, DocumentError, count_lines, require_count

_LINE = re.compile(r"([^\r\n]*+)(\r\n|\r|\n|\Z)")
_MARGIN = re.compile(r"(?:[ \t]*+>)*+\s*+")


def decode_text(data: bytes) -> tuple[str, str]:
    """Return a text and its encoding, with which it must be encoded again. A byte order mark stays in the text.

    Raises:
        DocumentError: the document is too large, has too many lines, or is neither UTF-8 nor UTF-16 with a byte order
            mark.
    """
    if len(data) > MAX_BYTES:
        raise DocumentError(f"the document has {len(data):,} bytes, but {MAX_BYTES:,} are the maximum. Divide it.")
    encoding = "utf-8"
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        encoding = "utf-16-le" if data.startswith(codecs.BOM_UTF16_LE) else "utf-16-be"
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        line = data[:error.start].count(b"\n") + 1
        raise DocumentError(f"line {line}: byte {error.start + 1} is not {encoding.upper()}. The document must be in "
                            "UTF-8, or in UTF-16 with a byte order mark. Convert it, for example by: iconv -f "
                            "WINDOWS-1252 -t UTF-8") from error
    require_count(count_lines(text), MAX_LINES, "lines")
    return text, encoding


def encode_text(text: str, encoding: str) -> bytes:
    """Encode a text. Halves of surrogate pairs, which cannot be encoded, become question marks."""
    return text.encode(encoding, "replace")


def one_line(text: str) -> str:
    """Replace each line end, with the white space around it, by one space."""
    return re.sub(r"\s+", lambda match: " " if len(f"{match[0]}.".splitlines()) > 1 else match[0], text)


def has_letters(text: str) -> bool:
    """Return True if a text has letters. A text without letters is not translated."""
    return any(character.isalpha() for character in text)


class PlainTextDocument:
    """Plain text or e-mail, with the interface of `block.Document`."""

    def __init__(self, data: bytes) -> None:
        """Read a text.

        Raises:
            DocumentError: see `decode_text`.
        """
        self._data = data
        text, self._encoding = decode_text(data)
        self._pieces: list[str | None] = []                             # None: the text of the next block
        self.blocks: list[Block] = []
        for number, match in enumerate(_LINE.finditer(text), 1):
            line = match[1]
            margin = _MARGIN.match(line.removeprefix("\ufeff"))
            begin = len(line) - len(line.removeprefix("\ufeff")) + (margin.end() if margin else 0)
            end = max(begin, len(line.rstrip()))
            if has_letters(line[begin:end]):
                self.blocks.append(Block(line[begin:end], place=f"line {number}"))
                self._pieces += [line[:begin], None, line[end:] + match[2]]
            else:
                self._pieces.append(match[0])

    def render(self, translations: Sequence[Block], target_language: str) -> bytes:
        """See `block.Document.render`."""
        if len(translations) != len(self.blocks):
            raise ValueError(f"{len(translations)} translations for {len(self.blocks)} blocks")
        if all(new.text == old.text for new, old in zip(translations, self.blocks, strict=True)):
            return self._data
        texts = (new.text if new.text == old.text else one_line(new.text)
                 for new, old in zip(translations, self.blocks, strict=True))
        return encode_text("".join(next(texts) if piece is None else piece for piece in self._pieces), self._encoding)
