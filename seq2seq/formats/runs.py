"""Documents of markup as runs: text with its inline tags, between the tags that separate texts.

Each run with text is a block, so that inline tags do not divide sentences. All other bytes stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import Literal

from seq2seq.formats.block import Block
from seq2seq.formats.inline_tags import Tag, TagKind, pair_tags
from seq2seq.formats.units import Unit, UnitDocument
from seq2seq.tokenizers.canonical_text import is_translatable


@dataclass(slots=True)
class Token:
    """Piece of the source.

    kind: "value" is a text that is kept, such as a variable; "alone" is an element without contents, a comment, or an
    element that is kept as a whole; "other" separates runs. name: of the element. text: of the kinds "text" and
    "value", with escapes resolved. is_translated: True or False if an opening tag says that its element is translated
    or not.
    """

    kind: Literal["text", "value", "open", "close", "alone", "other"]
    raw: str
    name: str = ""
    text: str = ""
    is_translated: bool | None = None


class RunDocument(UnitDocument):
    """Document of runs. markup: tokens outside of the runs with text, with their places. The tokens of a unit are its
    `info`."""

    def tokens(self) -> Iterable[Token]:
        """Return the tokens of the whole document, without a byte order mark."""
        raise NotImplementedError

    def block(self, text: str, tags: tuple[Tag, ...], place: str) -> Block:
        """Return the block of a run."""
        return Block(text, tags, place)

    def encode(self, text: str) -> bytes:
        return text.encode(self.encoding, "xmlcharrefreplace")

    def find_units(self) -> Iterator[Unit]:
        self.markup: list[tuple[int, Token]] = []
        begin = self.begin
        for is_separator, group in groupby(self.tokens(), lambda token: token.kind == "other"):
            run = list(group)
            raw = "".join(token.raw for token in run)
            if not is_separator and any(token.kind == "text" and is_translatable(token.text) for token in run):
                text = "".join(token.text for token in run)
                block = self.block(text, _tags(run), f"line {self.line_at(begin)}")
                yield Unit(begin, begin + len(raw), (block,), info=run)
            else:
                self.markup += zip(accumulate((len(token.raw) for token in run), initial=begin), run, strict=False)
            begin += len(raw)


def _tags(run: Sequence[Token]) -> tuple[Tag, ...]:
    tags: list[tuple[int, str, TagKind, str]] = []
    position = 0
    for token in run:
        if token.kind in ("open", "close", "alone"):
            tags.append((position, token.raw, token.kind, token.name))
        position += len(token.text)
    return pair_tags(tags)
