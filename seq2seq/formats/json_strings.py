"""JSON and ARB: strings that are text for people are translated. Keys, layout and numbers do not change.

The metadata of ARB, which has keys that begin with @, does not change either, except the locale:
https://github.com/google/app-resource-bundle/wiki/ApplicationResourceBundleSpecification
Nor do the descriptions and placeholders of the messages of browser extensions and of FormatJS:
https://developer.chrome.com/docs/extensions/reference/api/i18n
https://formatjs.github.io/docs/getting-started/message-extraction
The plural forms of i18next, such as `dog_one` and `dog_other`, become those of the target language:
https://www.i18next.com/translation-function/plurals
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from seq2seq.files import read_any_json
from seq2seq.formats.block import IN_STRINGS, Block
from seq2seq.formats.json_tree import json_parts, margin_before, read_json
from seq2seq.formats.spans import Edit
from seq2seq.formats.units import Plural, Unit, UnitDocument, unit_of

_TEXT_KEYS = {"message": "chrome", "defaultMessage": "vue", "string": "vue"}
"""Keys of the texts in objects that describe a message each, and a syntax of these texts."""
_OTHER_KEYS = {"description", "placeholders", "hash", "developer_comment", "context", "id", "file", "start", "end"}
_MAX_KEY = 100
"""Maximum length of the beginning of a key that can tell what its values are."""
_PLURAL = re.compile(r'("[^"]{1,200}_)(zero|one|two|few|many|other)"')


@dataclass
class _Level:
    """Object or array. kept: True if its strings must not change. value_kept: True if the value of the last key must
    not change. key: span of the last key, or of the key of an array. plurals: plurals by the beginning of their keys.
    """

    is_object: bool
    kept: bool
    value_kept: bool
    key: tuple[int, int] = (0, 0)
    plurals: dict[str, Plural] = field(default_factory=dict)


class JsonDocument(UnitDocument):
    """JSON. New non-ASCII characters are escaped if the document has only escaped ones."""

    def find_units(self) -> Iterator[Unit]:
        value = read_json(self.text)
        content = self.text.removeprefix("\ufeff")
        self._ensure_ascii = "\\u" in content and content.isascii()
        text_key = next((key for key in _TEXT_KEYS if isinstance(value, dict) and value and all(
            isinstance(one, dict) and key in one and one.keys() <= {key, *_OTHER_KEYS} for one in value.values())), "")
        locale = value.get("@@locale") if isinstance(value, dict) else None
        self.source_languages = {locale} if isinstance(locale, str) else set()
        self._locale: tuple[int, int] | None = None                             # span of the locale of ARB
        syntax = (_TEXT_KEYS.get(text_key, "vue"), *IN_STRINGS)
        levels = [_Level(False, False, False)]
        for kind, begin, end in json_parts(self.text):
            level = levels[-1]
            if kind in "{[":
                levels.append(_Level(kind == "{", level.value_kept, level.value_kept, level.key))
            elif kind in "}]":
                levels.pop()
            elif kind == "key":
                token, level.key = self.text[begin:end], (begin, end)
                if named := _PLURAL.fullmatch(token):
                    level.plurals.setdefault(named[1], Plural(least=2)).entries[named[2]] = None
                level.value_kept = level.kept or token.startswith('"@') or (
                    bool(text_key) and len(levels) == 3 and token != f'"{text_key}"')
            elif not self.text.startswith('"', begin):                          # a number, a boolean or null
                continue
            elif level.value_kept:
                if len(levels) == 2 and self.text[slice(*level.key)] == '"@@locale"':
                    self._locale = begin, end
            else:
                key = self.text[level.key[0] + 1:level.key[1] - 1][:_MAX_KEY] if level.key[1] else ""
                unit = unit_of(begin, end, Block(
                    read_any_json(self.text[begin:end]), place=f"line {self.line_at(begin)}", keeps_lines=True,
                    access_keys="&", syntax=syntax, key=key), info=level.key)
                if level.is_object and (named := _PLURAL.fullmatch(self.text, *level.key)):
                    unit.plural, unit.category = level.plurals[named[1]], named[2]
                yield unit

    def write(self, unit: Unit, block: Block) -> str:
        return self._string(unit.before + block.text + unit.after)

    def added(self, other: Unit, category: str, block: Block) -> Edit:
        begin, end = other.info                                                 # span of its key
        key = self.text[begin:end].removesuffix('other"') + f'{category}"'
        written = f"{key}{self.text[end:other.begin]}{self.write(other, block)}"
        return other.end, other.end, f",{margin_before(self.text, begin)}{written}"

    def other_edits(self, language: str) -> Iterable[Edit]:
        return [(*self._locale, self._string(language.replace("-", "_")))] if self._locale else ()

    def _string(self, text: str) -> str:
        return json.dumps(text, ensure_ascii=self._ensure_ascii)
