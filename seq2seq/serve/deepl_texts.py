"""Reading of texts of DeepL's interface if its parameter `split_sentences` is not 1."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from seq2seq.formats.block import Block, Document
from seq2seq.formats.html import HtmlDocument
from seq2seq.formats.units import Unit, UnitDocument, unit_of


def read_unsplit_html(data: bytes) -> Document:
    document = HtmlDocument(data)
    document.blocks = [replace(block, split=False) for block in document.blocks]
    return document


class WholeText(UnitDocument):
    """Plain text in which line ends do not end sentences."""

    def __init__(self, data: bytes, split: bool) -> None:
        """split: False if the text is one sentence."""
        self._split = split
        super().__init__(data)

    def find_units(self) -> Iterator[Unit]:
        yield unit_of(0, len(self.text), Block(self.text, place="text", split=self._split, may_be_data=False))

    def write(self, unit: Unit, block: Block) -> str:
        return unit.before + block.text + unit.after
