"""Apple's .stringsdict and other property lists of strings in XML: plural rules and other variants.

A translated plural rule has the categories of the target language. Format:
https://developer.apple.com/documentation/xcode/localizing-strings-that-contain-plurals
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from seq2seq.formats.block import IN_STRINGS, Block
from seq2seq.formats.plurals import CATEGORIES, Plural
from seq2seq.formats.texts import is_message, trim
from seq2seq.formats.xml_units import XmlFile

_RULE_TYPE, _VALUE_TYPE, _PLURAL = "NSStringFormatSpecTypeKey", "NSStringFormatValueTypeKey", "NSStringPluralRuleType"


class StringsDictDocument:
    """Dictionary of strings, with the interface `Document`."""

    def __init__(self, data: bytes) -> None:
        """Raises DocumentError: the document is not well-formed, or not a property list."""
        self._xml = XmlFile(data, "plist")
        self.blocks: list[Block] = []
        self._strings: list[int] = []                                           # index of the <string> of each block
        self._rules: list[Plural[tuple[int, int]]] = []                         # <key> and <string> of each entry
        todo = list(self._xml.children(self._xml.root))[::-1]
        while todo:
            element = todo.pop()
            name = self._xml.tokens[element].local_name
            if name == "dict":
                todo += self._read_dict(element)[::-1]
            elif name == "array":
                todo += list(self._xml.children(element))[::-1]
            elif name == "string":
                self._add(element)

    def _read_dict(self, element: int) -> list[int]:
        """Return the values of a dictionary that may have texts. The texts of a plural rule are added."""
        entries: dict[str, tuple[int, int]] = {}
        key: int | None = None
        for child in self._xml.children(element):
            if self._xml.tokens[child].local_name == "key":
                key = child
            elif key is not None:
                entries[self._text(key)] = key, child
        if _RULE_TYPE not in entries or self._text(entries[_RULE_TYPE][1]) != _PLURAL:
            return [value for name, (_, value) in entries.items() if name not in (_RULE_TYPE, _VALUE_TYPE)]
        rule = Plural({name: entries[name] for name in entries if name in CATEGORIES})
        for category, (_, value) in rule.entries.items():
            if self._add(value):
                rule.blocks[category] = len(self.blocks) - 1
        if "other" in rule.blocks:
            self._rules.append(rule)
        return []

    def _text(self, element: int) -> str:
        return self._xml.content(element).text.strip()

    def _add(self, element: int) -> bool:
        block = trim(self._xml.content(element, keeps_lines=True))[1]
        if not is_message(block.text):
            return False
        self.blocks.append(replace(block, syntax=("dates", "printf", *IN_STRINGS)))
        self._strings.append(element)
        return True

    def render(self, translations: Sequence[Block], target_language: str) -> bytes:
        xml = self._xml
        edits: dict[int, tuple[int, int, str]] = {}
        for index, (element, new, block) in enumerate(zip(self._strings, translations, self.blocks, strict=True)):
            if new != block:
                edits[index] = (*xml.inside(element), xml.translated(element, new))
        inserted: list[tuple[int, int, str]] = []
        for rule in self._rules:
            sources = rule.sources(self.blocks, translations, target_language)
            if not sources:
                continue
            for category, (key, value) in rule.entries.items():
                if category not in sources:                                     # the target language lacks it
                    edits.pop(rule.blocks.get(category, -1), None)
                    begin, end = xml.span(key, xml.ends[value])
                    inserted.append((begin - len(xml.margin(key)), end, ""))
            key, other = rule.entries["other"]
            place = xml.span(key, key)[0]
            for category, source in sources.items():
                index = rule.blocks[source]
                content = xml.translated(self._strings[index], translations[index])
                if category not in rule.entries:
                    inserted.append((place, place, f"<key>{category}</key>{xml.margin(other)}<string>{content}</string>"
                                     f"{xml.margin(key)}"))
                elif source != category and category in rule.blocks:
                    edits[rule.blocks[category]] = (*xml.inside(rule.entries[category][1]), content)
        return xml.encode([*edits.values(), *inserted])
