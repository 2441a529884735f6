"""Documents of markup as runs: text with its inline tags, between the tags that separate texts.

Each run with text is a block, so that inline tags do not divide sentences. All other bytes stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

from seq2seq.formats.block import Block
from seq2seq.formats.inline_tags import Tag, TagKind, pair_tags
from seq2seq.tokenizers.canonical_text import is_translatable


@dataclass(slots=True)
class Token:
    """Piece of the source.

    kind: "value" is a text that is kept, such as a variable; "alone" is an element without contents, a comment, or an
    element that is kept as a whole; "other" separates runs. name: of the element. text: of the kinds "text" and
    "value", with escapes resolved.
    """

    kind: Literal["text", "value", "open", "close", "alone", "other"]
    raw: str
    name: str = ""
    text: str = ""


class RunDocument:
    """Document of runs, with the interface of `block.Document`."""

    def __init__(self, tokens: Iterable[Token], encoding: str, make_block: Callable[..., Block] = Block) -> None:
        """tokens: whole source. make_block: constructor of `Block` with the fields that all blocks share."""
        self._encoding = encoding
        self._pieces: list[str | list[Token]] = []
        self.blocks: list[Block] = []
        line = 1
        for is_separator, group in groupby(tokens, lambda token: token.kind == "other"):
            run = list(group)
            raw = "".join(token.raw for token in run)
            if not is_separator and any(token.kind == "text" and is_translatable(token.text) for token in run):
                text = "".join(token.text for token in run)
                self.blocks.append(make_block(text, _tags(run), f"line {line}"))
                self._pieces.append(run)
            else:
                self._pieces.append(raw)
            line += raw.count("\n")

    def render(self, translations: Sequence[Block], target_language: str) -> bytes:
        pairs = iter(zip(self.blocks, translations, strict=True))
        parts = []
        is_translated = any(new != old for new, old in zip(translations, self.blocks, strict=True))
        for piece in self._pieces:
            if isinstance(piece, str):
                parts.append(self._in_language(piece, target_language) if is_translated else piece)
                continue
            original, translation = next(pairs)
            parts.append("".join(token.raw for token in piece) if translation == original
                         else self._serialize(translation, piece))
        return "".join(parts).encode(self._encoding, "xmlcharrefreplace")

    def _in_language(self, markup: str, language: str) -> str:
        """Return markup outside of the runs of a translated document. language: target language."""
        return markup

    def _serialize(self, block: Block, run: Sequence[Token]) -> str:
        """Return the source of a translated block. run: tokens of the original block."""
        raise NotImplementedError


def _tags(run: Sequence[Token]) -> tuple[Tag, ...]:
    tags: list[tuple[int, str, TagKind, str]] = []
    position = 0
    for token in run:
        if token.kind in ("open", "close", "alone"):
            tags.append((position, token.raw, token.kind, token.name))
        position += len(token.text)
    return pair_tags(tags)
