"""Documents of units. A format finds its units and writes them; this module reads the file and puts them in place.

A format is a subclass of `UnitDocument`. Its generator `find_units` names the texts with their places, and `write`
returns the source of a translated text. Whatever is not in a unit, and each unit that does not change, keeps its bytes.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from seq2seq.formats.block import NO_KEYS, Block, KeyNames
from seq2seq.formats.plurals import plural_sources
from seq2seq.formats.spans import Edit, replace_spans
from seq2seq.formats.texts import decode_text, is_text, line_end_of, trim


@dataclass(slots=True, eq=False)
class Unit:
    """Text of a document, or several texts that are written together, such as the sentences of a message.

    begin, end: span in the document that a translation replaces. blocks: what is translated. before, after: white space
    around the text, which is not translated. info: what the format needs to write the unit. plural, category: plural
    that the unit is an entry of, and its category of CLDR, such as "few".

    It has values, and no functions: a large document has 100,000 units, and the garbage collector visits every object.
    """

    begin: int
    end: int
    blocks: Sequence[Block]
    before: str = ""
    after: str = ""
    info: Any = None
    plural: Plural | None = None
    category: str = ""


@dataclass(slots=True, eq=False)
class Plural:
    """Message with an entry for each plural category of the language. A translation gets those of its own language.

    entries: categories of all entries, also of those without a text, each with the span that is removed if the language
    of the translation lacks the category; None: the entry stays. least: number of units; fewer are no plural. units:
    unit of each category, which `UnitDocument` fills in.
    """

    entries: dict[str, tuple[int, int] | None] = field(default_factory=dict)
    least: int = 1
    units: dict[str, Unit] = field(default_factory=dict)


def unit_of(begin: int, end: int, block: Block, info: Any = None) -> Unit:
    """Return the unit of one text, without the white space at its edges. See `Unit`."""
    before, block, after = trim(block)
    return Unit(begin, end, (block,), before, after, info)


class UnitDocument:
    """Document of units, with the interface of `block.Document`.

    languages: languages of the texts and of the translation; "" for a language that is not known. keys: those that the
    user names, in JSON and YAML. text, encoding: decoded document. line_end: its line end. units: units with texts, in
    order. unread: places of texts that `find_units` could not find in the document, and that stay. left: places of
    texts that stay because it is not known if they are text, and the reason.
    """

    def __init__(self, data: bytes, source_language: str = "", target_language: str = "", keys: KeyNames = NO_KEYS
                 ) -> None:
        self.languages = source_language, target_language
        self.keys = keys
        self.source_languages: set[str] = set()
        self.target_languages: set[str] = set()
        self.unread: list[str] = []
        self.left: list[tuple[str, str]] = []
        self.left_out: list[str] = []
        self.text, self.encoding = self.decode(data)
        self.line_end = line_end_of(self.text)
        self.units = [unit for unit in self.find_units() if any(is_text(block.text) for block in unit.blocks)]
        self.blocks = [block for unit in self.units for block in unit.blocks]
        for unit in self.units:
            if unit.plural:
                earlier = unit.plural.units.get(unit.category)
                if earlier:                                                     # a category twice: the last one counts
                    earlier.plural = None
                unit.plural.units[unit.category] = unit

    # Methods of a format. It must define the first two, and `added` if it has plurals.

    def find_units(self) -> Iterator[Unit]:
        """Yield the units of the document in order. Those without letters are left out afterwards."""
        raise NotImplementedError

    def write(self, unit: Unit, block: Block) -> str:
        """Return the source of a unit of one text with a translated block."""
        raise NotImplementedError

    def edits(self, unit: Unit, blocks: Sequence[Block], language: str) -> Iterable[Edit]:
        """Return the edits of a unit that `write` cannot make: of several texts, or in several places.

        blocks: translation of each block. language: target language.
        """
        return [(unit.begin, unit.end, self.write(unit, blocks[0]))]

    def added(self, other: Unit, category: str, block: Block) -> Edit:
        """Return the edit that adds an entry to a plural. other: its unit of the category "other"."""
        raise NotImplementedError

    def decode(self, data: bytes) -> tuple[str, str]:
        """Return the text of the document, and its encoding."""
        return decode_text(data)

    def encode(self, text: str) -> bytes:
        """Return the bytes of the translated document."""
        return text.encode(self.encoding)

    def other_edits(self, language: str) -> Iterable[Edit]:
        """Return the edits of a translated document outside of its units, such as the code of its language."""
        return ()

    # Methods of the base class

    @property
    def begin(self) -> int:
        """Place in the text after the byte order mark."""
        return int(self.text.startswith("\ufeff"))

    def line_at(self, position: int) -> int:
        """Return the number of the line, from 1, in which a position of the text lies."""
        return bisect_right(self._line_begins, position)

    @cached_property
    def _line_begins(self) -> list[int]:
        return [0, *(match.end() for match in re.finditer(r"\r\n|\r|\n", self.text))]

    def render(self, translations: Sequence[Block], target_language: str) -> bytes:
        self.left_out = list(self.unread)
        edits: list[Edit] = []
        plurals: dict[int, tuple[Plural, dict[str, Block]]] = {}                # with their translations by category
        position = 0
        for unit in self.units:
            blocks = translations[position:position + len(unit.blocks)]
            position += len(unit.blocks)
            if unit.plural:
                plurals.setdefault(id(unit.plural), (unit.plural, {}))[1][unit.category] = blocks[0]
            elif _differ(unit.blocks, blocks):
                edits += self.edits(unit, blocks, target_language)
        if position != len(translations):
            raise ValueError(f"{len(translations)} translations of {position} blocks")
        for plural, new in plurals.values():
            edits += self._plural_edits(plural, new, target_language)
        return self.finish(edits, target_language)

    def finish(self, edits: list[Edit], language: str) -> bytes:
        """Return the document with its edits; none: the document as it is."""
        if edits:
            edits = [*edits, *self.other_edits(language)]
        return self.encode(replace_spans(self.text, edits))

    def _plural_edits(self, plural: Plural, new: Mapping[str, Block], language: str) -> Iterator[Edit]:
        """Yield the edits that give a plural its translations by category, and the categories of the language."""
        units = plural.units
        changed = {category for category, unit in units.items() if _differ(unit.blocks, [new[category]])}
        if not changed:
            return
        sources, removed = {category: category for category in units}, {}
        if "other" in units and len(units) >= plural.least:
            texts = {category: unit.blocks[0].serialize(str) for category, unit in units.items()}
            sources = plural_sources(texts, language)
            removed = {category: span for category, span in plural.entries.items() if category not in sources and span}
        for category, unit in units.items():
            source = sources.get(category, category)
            if category not in removed and (category in changed or source != category):
                yield from self.edits(unit, [new[source]], language)
        for begin, end in removed.values():
            yield begin, end, ""
        for category in [one for one in sources if one not in plural.entries]:
            yield self.added(units["other"], category, new[sources[category]])


def _differ(old: Sequence[Block], new: Sequence[Block]) -> bool:
    return any(one.text != other.text or one.tags != other.tags for one, other in zip(old, new, strict=True))
