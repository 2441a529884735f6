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
from collections.abc import Sequence
from dataclasses import dataclass, field

from seq2seq.documents.block import IN_STRINGS, MAX_DEPTH, Block, DocumentError
from seq2seq.documents.json_tree import read_json
from seq2seq.documents.plurals import plural_sources
from seq2seq.documents.spans import decode_text, is_message, replace_spans, trim, with_margins
from seq2seq.files import read_any_json

_TEXT_KEYS = {"message": "chrome", "defaultMessage": "vue", "string": "vue"}
"""Keys of the texts in objects that describe a message each, and a syntax of these texts."""
_OTHER_KEYS = {"description", "placeholders", "hash", "developer_comment", "context", "id", "file", "start", "end"}
_MAX_KEY = 100
"""Maximum length of the beginning of a key that can tell what its values are."""
_PLURAL = re.compile(r'("[^"]{1,200}_)(zero|one|two|few|many|other)"')
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*+"|[{}\[\],:]')


@dataclass
class _Level:
    """Object or array. kept: True if its strings must not change. key_follows: True if the next string is a key.
    value_kept: True if the value of the last key must not change. key: span of the last key, or of the key of an array.
    plurals: index of the block of each plural category, by the beginning of its key."""

    is_object: bool
    kept: bool
    key_follows: bool
    value_kept: bool
    key: tuple[int, int] = (0, 0)
    plurals: dict[str, dict[str, int]] = field(default_factory=dict)


class JsonDocument:
    """JSON, with the interface `Document`."""

    def __init__(self, data: bytes) -> None:
        """Raises DocumentError: the document is not JSON, or is nested too deeply."""
        self._text, self._encoding = decode_text(data)
        value = read_json(self._text)
        content = self._text.removeprefix("\ufeff")
        self._ensure_ascii = "\\u" in content and content.isascii()
        self._text_key = next((key for key in _TEXT_KEYS if isinstance(value, dict) and value and all(
            isinstance(one, dict) and key in one and one.keys() <= {key, *_OTHER_KEYS} for one in value.values())), "")
        locale = value.get("@@locale") if isinstance(value, dict) else None
        self.source_languages, self.target_languages = {locale} if isinstance(locale, str) else set[str](), set[str]()
        self._locale: tuple[int, int] | None = None                             # span of the locale of ARB
        self.blocks: list[Block] = []
        self._strings: list[tuple[int, int]] = []                               # span of each block
        self._plurals: list[dict[str, int]] = []                                # index of the block of each category
        self._keys: dict[int, tuple[int, int]] = {}                             # spans of their keys
        self._scan()

    def _scan(self) -> None:
        """Find the strings that are text for people, in JSON that is known to be valid."""
        levels = [_Level(False, False, False, False)]
        line, counted = 1, 0
        for match in _TOKEN.finditer(self._text):
            token, level = match[0], levels[-1]
            if token in "{[":
                levels.append(_Level(token == "{", level.value_kept, token == "{", level.value_kept, level.key))
                if len(levels) > MAX_DEPTH:
                    raise DocumentError(f"line {line}: values are nested more than {MAX_DEPTH:,} deep. Simplify it.")
            elif token in "}]":
                self._plurals += [one for one in levels.pop().plurals.values() if len(one) > 1 and "other" in one]
            elif token == ",":
                level.key_follows = level.is_object
            elif token != ":" and level.key_follows:
                level.key_follows, level.key = False, match.span()
                level.value_kept = level.kept or token.startswith('"@') or (
                    bool(self._text_key) and len(levels) == 3 and token != f'"{self._text_key}"')
            elif token != ":" and level.value_kept:
                if len(levels) == 2 and self._text[slice(*level.key)] == '"@@locale"':
                    self._locale = match.span()
            elif token != ":":
                line += self._text.count("\n", counted, match.start())
                counted = match.start()
                key = self._text[level.key[0] + 1:level.key[1] - 1][:_MAX_KEY] if level.key[1] else ""
                if is_message(text := read_any_json(token), key):
                    self.blocks.append(trim(Block(
                        text, place=f"line {line}", keeps_lines=True, access_keys="&",
                        syntax=(_TEXT_KEYS.get(self._text_key, "vue"), *IN_STRINGS)))[1])
                    self._strings.append(match.span())
                    if level.is_object and (plural := _PLURAL.fullmatch(self._text[slice(*level.key)])):
                        level.plurals.setdefault(plural[1], {})[plural[2]] = len(self.blocks) - 1
                        self._keys[len(self.blocks) - 1] = level.key

    def render(self, translations: Sequence[Block], target_language: str) -> bytes:
        """See `Document.render`. New non-ASCII characters are escaped if the document has only escaped ones."""
        texts: dict[int, str] = {}                                              # those that change
        added: dict[int, list[tuple[str, str]]] = {}                            # keys and texts after a block
        for index, (span, new, block) in enumerate(zip(self._strings, translations, self.blocks, strict=True)):
            if new != block:
                texts[index] = with_margins(read_any_json(self._text[slice(*span)]), new.text)
        for forms in self._plurals:
            if texts.keys().isdisjoint(forms.values()):
                continue
            new_texts = {category: texts.get(index, self.blocks[index].text) for category, index in forms.items()}
            for category, source in plural_sources(
                    {name: self.blocks[index].text for name, index in forms.items()}, target_language).items():
                if category in forms:
                    texts[forms[category]] = new_texts[source]
                else:
                    key = self._text[slice(*self._keys[forms["other"]])]
                    added.setdefault(forms["other"], []).append(
                        (key.removesuffix('other"') + category + '"', new_texts[source]))
        edits = [(*self._locale, self._string(target_language.replace("-", "_")))] if self._locale and texts else []
        for index, text in texts.items():
            begin, end = self._strings[index]
            edits.append((begin, end, self._string(text)))
            for key, text in added.get(index, ()):
                first, last = self._keys[index]
                margin = self._text[len(self._text[:first].rstrip()):first]
                edits.append((end, end, f",{margin}{key}{self._text[last:begin]}{self._string(text)}"))
        return replace_spans(self._text, edits).encode(self._encoding)

    def _string(self, text: str) -> str:
        return json.dumps(text, ensure_ascii=self._ensure_ascii)
