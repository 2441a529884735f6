"""String catalogues of Xcode, .xcstrings: strings without a translation get one, in the state `needs_review`.

A translated plural has the categories of the target language. Format:
https://developer.apple.com/documentation/xcode/localizing-and-varying-text-with-a-string-catalog
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from seq2seq.files import read_any_json
from seq2seq.formats.block import IN_STRINGS, Block, DocumentError, require_count
from seq2seq.formats.data_tree import Node
from seq2seq.formats.json_tree import margin_before, parse_json_tree
from seq2seq.formats.plurals import CATEGORIES, plural_sources
from seq2seq.formats.spans import Edit
from seq2seq.formats.texts import trim
from seq2seq.formats.units import Unit, UnitDocument
from seq2seq.languages import canonical

_SYNTAX = ("dates", "printf", *IN_STRINGS)
MAX_STRINGS = 200_000
"""Maximum number of strings of a catalogue. Each takes up to 2 kB of memory."""


class XcstringsDocument(UnitDocument):
    """String catalogue."""

    def find_units(self) -> Iterator[Unit]:
        root = parse_json_tree(self.text)
        strings, source = root.find("strings"), root.text("sourceLanguage")
        if strings is None or source is None:
            raise DocumentError("line 1: the document has no sourceLanguage or no strings, as a string catalogue has. "
                                "Check the format of the file.")
        require_count(len(strings.members), MAX_STRINGS, "strings")
        self.source_languages = {source}
        self._colon = " : " if '" : ' in self.text else ": "                       # Xcode writes the first one
        self._codes = {code for node in strings.members.values() if (found := node.find("localizations"))
                       for code in found.members}
        for key, node in strings.members.items():
            translate = node.find("shouldTranslate")
            if not self.text.startswith("{", node.begin) or translate is not None and translate.value is False \
                    or self._is_translated(node):
                continue
            found = node.find("localizations", source)
            value = read_any_json(self.text[found.begin:found.end]) if found else {"stringUnit": {"value": key}}
            texts = [unit for unit in _units(value) if isinstance(unit.get("value"), str)]
            place = f"line {self.line_at((found or node).begin)}"
            blocks: list[Block] = []
            for unit in texts:
                before, block, after = trim(Block(unit["value"], place=place, keeps_lines=True, syntax=_SYNTAX,
                                                    comment=node.text("comment") or ""))
                unit["value"] = before, len(blocks), after                      # a tuple, which JSON does not have
                blocks.append(block)
            if blocks:
                yield Unit(node.begin, node.end, blocks, info=(node, value))

    def edits(self, unit: Unit, blocks: Sequence[Block], language: str) -> Iterator[Edit]:
        """Yield the edit that adds a localization to a string."""
        # That of the source language; in place of a text to translate, it has the index of the block, with white space.
        node, localization = unit.info
        yield self._edit(node, self._code(language), self._translated(localization, blocks, language))

    def _code(self, language: str) -> str:
        """Return the code of a language as the catalogue writes it."""
        return next((one for one in sorted(self._codes) if canonical(one) == canonical(language)), language)

    def _is_translated(self, node: Node) -> bool:
        found = node.find("localizations", self._code(self.languages[1]))
        return found is not None and any(unit.get("state") != "new" for unit in _units(
            read_any_json(self.text[found.begin:found.end])))

    def _translated(self, value: Any, translations: Sequence[Block], language: str) -> Any:
        """Return a part of a localization with the translations, and with the plural categories of a language."""
        if not isinstance(value, dict):
            return value
        if "stringUnit" in value and isinstance(value["stringUnit"], dict):
            unit = value["stringUnit"]
            text = unit.get("value")
            if isinstance(text, tuple):
                before, number, after = text
                text = before + translations[number].text + after
            written = dict(sorted((unit | {"state": "needs_review", "value": text}).items()))
            value = value | {"stringUnit": written}
        plural = value.get("plural")
        if isinstance(plural, dict) and "other" in plural and {*plural} <= {*CATEGORIES}:
            texts = {category: " ".join(str(unit.get("value")) for unit in _units(one))
                     for category, one in plural.items()}
            value = value | {"plural": {category: plural[one] for category, one
                                        in sorted(plural_sources(texts, language).items())}}
        return {key: inner if key == "stringUnit" else self._translated(inner, translations, language)
                for key, inner in value.items()}

    def _edit(self, string: Node, code: str, value: dict[str, Any]) -> tuple[int, int, str]:
        """Return the edit that gives a string a localization, before the first one whose code follows."""
        localizations = string.find("localizations")
        if localizations is not None and (old := localizations.find(code)):
            return old.begin, old.end, self._written(value, old.key_begin)
        parent, key, content = (string, "localizations", {code: value}) if localizations is None else (
            localizations, code, value)
        following = next((one for name, one in parent.members.items() if name > key), None)
        if following is not None:
            begin = following.key_begin
            return begin, begin, f"{self._key(key)}{self._written(content, begin)},{margin_before(self.text, begin)}"
        if parent.members:
            last = [*parent.members.values()][-1]
            margin = margin_before(self.text, last.key_begin)
            return last.end, last.end, f",{margin}{self._key(key)}{self._written(content, last.key_begin)}"
        margin = margin_before(self.text, parent.key_begin)
        inner, margin = (f"{margin}  ", margin) if "\n" in margin else ("", "")
        written = self._key(key) + self._json(content, inner)
        return parent.begin, parent.end, f"{{{inner}{written}{margin}}}"

    def _key(self, key: str) -> str:
        return json.dumps(key, ensure_ascii=False) + self._colon

    def _written(self, value: Any, place: int) -> str:
        """Return the JSON of a member of an object, whose key stands at a place."""
        return self._json(value, margin_before(self.text, place))

    def _json(self, value: Any, margin: str) -> str:
        is_indented = "\n" in margin
        written = json.dumps(value, ensure_ascii=False, indent=2 if is_indented else None,
                             separators=("," if is_indented else ", ", self._colon))
        return written.replace("\n", margin) if is_indented else written


def _units(value: Any) -> Iterator[dict[str, Any]]:
    """Yield the string units of a localization, in order."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key == "stringUnit" and isinstance(inner, dict):
                yield inner
            else:
                yield from _units(inner)
