"""Apple's .stringsdict and other property lists of strings in XML: plural rules and other variants.

A translated plural rule has the categories of the target language. Format:
https://developer.apple.com/documentation/xcode/localizing-strings-that-contain-plurals
"""

from __future__ import annotations

from collections.abc import Iterator

from seq2seq.formats.block import IN_STRINGS, Block
from seq2seq.formats.plurals import CATEGORIES
from seq2seq.formats.spans import Edit
from seq2seq.formats.units import Plural, Unit
from seq2seq.formats.xml_units import XmlDocument

_RULE_TYPE, _VALUE_TYPE, _PLURAL = "NSStringFormatSpecTypeKey", "NSStringFormatValueTypeKey", "NSStringPluralRuleType"


class StringsDictDocument(XmlDocument):
    """Dictionary of strings."""

    root = "plist"

    def find_units(self) -> Iterator[Unit]:
        todo = list(self.xml.children(self.xml.root))[::-1]
        while todo:
            element = todo.pop()
            name = self.tokens[element].local_name
            if name == "array":
                todo += list(self.xml.children(element))[::-1]
            elif name == "dict":
                entries = self._entries(element)
                if _RULE_TYPE in entries and self._name(entries[_RULE_TYPE][1]) == _PLURAL:
                    yield from self._rule(entries)
                else:
                    todo += [value for key, (_, value) in entries.items() if key not in (_RULE_TYPE, _VALUE_TYPE)][::-1]
            elif name == "string" and (unit := self._string(element)):
                yield unit

    def _entries(self, dictionary: int) -> dict[str, tuple[int, int]]:
        """Return the elements of each key of a dictionary and its value, by the text of the key."""
        entries: dict[str, tuple[int, int]] = {}
        key: int | None = None
        for child in self.xml.children(dictionary):
            if self.tokens[child].local_name == "key":
                key = child
            elif key is not None:
                entries[self._name(key)] = key, child
        return entries

    def _name(self, element: int) -> str:
        return self.xml.content(element).text.strip()

    def _string(self, element: int) -> Unit | None:
        return self.element_unit(element, syntax=("dates", "printf", *IN_STRINGS))

    def _rule(self, entries: dict[str, tuple[int, int]]) -> Iterator[Unit]:
        """Yield the units of a plural rule."""
        plural = Plural()
        for category in [name for name in entries if name in CATEGORIES]:
            key, value = entries[category]
            begin, end = self.xml.span(key, self.xml.ends[value])
            plural.entries[category] = begin - len(self.xml.margin(key)), end
            if unit := self._string(value):
                unit.plural, unit.category, unit.info = plural, category, (key, value)
                yield unit

    def added(self, other: Unit, category: str, block: Block) -> Edit:
        key, value = other.info
        place = self.xml.span(key, key)[0]
        return place, place, (f"<key>{category}</key>{self.xml.margin(value)}<string>{self.write(other, block)}"
                              f"</string>{self.xml.margin(key)}")
