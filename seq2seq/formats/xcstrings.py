"""String catalogues of Xcode, .xcstrings: strings without a translation get one, in the state `needs_review`.

A translated plural has the categories of the target language. Format:
https://developer.apple.com/documentation/xcode/localizing-and-varying-text-with-a-string-catalog
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from seq2seq.files import read_any_json
from seq2seq.formats.block import IN_STRINGS, Block, DocumentError, require_count
from seq2seq.formats.json_tree import JsonNode, margin_before, parse_json_tree
from seq2seq.formats.plurals import CATEGORIES, plural_sources
from seq2seq.formats.spans import replace_spans
from seq2seq.formats.texts import decode_text, is_message, trim, with_margins
from seq2seq.languages import canonical

MAX_STRINGS = 200_000
"""Maximum number of strings of a catalogue. Each takes up to 2 kB of memory."""


@dataclass(slots=True)
class _String:
    """String of the catalogue. localization: that of the source language. In place of each text to translate, it has
    the index of the block, and the text. blocks: indices of its blocks."""

    node: JsonNode
    localization: dict[str, Any]
    blocks: list[int] = field(default_factory=list)


class XcstringsDocument:
    """String catalogue, with the interfaces `Document` and `NamesLanguages`."""

    def __init__(self, data: bytes, source_language: str = "", target_language: str = "") -> None:
        """Raises DocumentError: the document is not a string catalogue."""
        self._text, self._encoding = decode_text(data)
        root = parse_json_tree(self._text)
        strings, source = root.find("strings"), root.text("sourceLanguage")
        if strings is None or source is None:
            raise DocumentError("line 1: the document has no sourceLanguage or no strings, as a string catalogue has. "
                                "Check the format of the file.")
        require_count(len(strings.members), MAX_STRINGS, "strings")
        self.source_languages, self.target_languages = {source}, set[str]()
        self._colon = " : " if '" : ' in self._text else ": "                      # Xcode writes the first one
        self.blocks: list[Block] = []
        self._strings: list[_String] = []
        self._codes = {code for node in strings.members.values() if (found := node.find("localizations"))
                       for code in found.members}
        for key, node in strings.members.items():
            if not self._text.startswith("{", node.begin):
                continue
            translate = node.find("shouldTranslate")
            if translate is not None and translate.value is False or self._is_translated(node, target_language):
                continue
            found = node.find("localizations", source)
            value = read_any_json(self._text[found.begin:found.end]) if found else {"stringUnit": {"value": key}}
            string = _String(node, value)
            for unit in _units(value):
                text = unit.get("value")
                if isinstance(text, str) and is_message(text):
                    string.blocks.append(len(self.blocks))
                    unit["value"] = len(self.blocks), text                      # a tuple, which JSON does not have
                    self.blocks.append(trim(Block(text, place=f"line {(found or node).line}", keeps_lines=True,
                                                  syntax=("dates", "printf", *IN_STRINGS)))[1])
            if string.blocks:
                self._strings.append(string)

    def _code(self, language: str) -> str:
        """Return the code of a language as the catalogue writes it."""
        return next((one for one in sorted(self._codes) if canonical(one) == canonical(language)), language)

    def _is_translated(self, node: JsonNode, language: str) -> bool:
        found = node.find("localizations", self._code(language)) if language else None
        if found is None:
            return False
        states = [unit.get("state") for unit in _units(read_any_json(self._text[found.begin:found.end]))]
        return any(state != "new" for state in states)

    def render(self, translations: Sequence[Block], target_language: str) -> bytes:
        edits = []
        code = self._code(target_language)
        for string in self._strings:
            if any(translations[index] != self.blocks[index] for index in string.blocks) \
                    and not self._is_translated(string.node, target_language):
                value = self._translated(string.localization, translations, target_language)
                edits.append(self._edit(string.node, code, value))
        return replace_spans(self._text, edits).encode(self._encoding)

    def _translated(self, value: Any, translations: Sequence[Block], language: str) -> Any:
        """Return a part of a localization with the translations, and with the plural categories of a language."""
        if not isinstance(value, dict):
            return value
        if "stringUnit" in value and isinstance(value["stringUnit"], dict):
            unit = value["stringUnit"]
            text = unit.get("value")
            if isinstance(text, tuple):
                text = with_margins(text[1], translations[text[0]].text)
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

    def _edit(self, string: JsonNode, code: str, value: dict[str, Any]) -> tuple[int, int, str]:
        """Return the edit that gives a string a localization, before the first one whose code follows."""
        localizations = string.find("localizations")
        if localizations is not None and (old := localizations.find(code)):
            return old.begin, old.end, self._written(value, old.key_begin)
        parent, key, content = (string, "localizations", {code: value}) if localizations is None else (
            localizations, code, value)
        following = next((one for name, one in parent.members.items() if name > key), None)
        if following is not None:
            begin = following.key_begin
            return begin, begin, f"{self._key(key)}{self._written(content, begin)},{margin_before(self._text, begin)}"
        if parent.members:
            last = [*parent.members.values()][-1]
            margin = margin_before(self._text, last.key_begin)
            return last.end, last.end, f",{margin}{self._key(key)}{self._written(content, last.key_begin)}"
        margin = margin_before(self._text, parent.key_begin)
        inner, margin = (f"{margin}  ", margin) if "\n" in margin else ("", "")
        written = self._key(key) + self._json(content, inner)
        return parent.begin, parent.end, f"{{{inner}{written}{margin}}}"

    def _key(self, key: str) -> str:
        return json.dumps(key, ensure_ascii=False) + self._colon

    def _written(self, value: Any, place: int) -> str:
        """Return the JSON of a member of an object, whose key stands at a place."""
        return self._json(value, margin_before(self._text, place))

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
