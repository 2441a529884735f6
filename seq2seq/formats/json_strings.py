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

from seq2seq.files import read_any_json
from seq2seq.formats.block import IN_STRINGS, MAX_DEPTH, Block, DocumentError
from seq2seq.formats.json_tree import margin_before, read_json
from seq2seq.formats.plurals import Plural
from seq2seq.formats.spans import replace_spans
from seq2seq.formats.texts import decode_text, is_message, trim, with_margins

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
    plurals: plurals by the beginning of their keys."""

    is_object: bool
    kept: bool
    key_follows: bool
    value_kept: bool
    key: tuple[int, int] = (0, 0)
    plurals: dict[str, Plural[tuple[int, int]]] = field(default_factory=dict)


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
        self._plurals: list[Plural[tuple[int, int]]] = []                       # span of the key of each entry
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
                self._plurals += [one for one in levels.pop().plurals.values()
                                  if len(one.blocks) > 1 and "other" in one.blocks]
            elif token == ",":
                level.key_follows = level.is_object
            elif token != ":" and level.key_follows:
                level.key_follows, level.key = False, match.span()
                if plural := _PLURAL.fullmatch(token):
                    level.plurals.setdefault(plural[1], Plural()).entries[plural[2]] = level.key
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
                    if level.is_object and (found := _PLURAL.fullmatch(self._text, *level.key)):
                        level.plurals[found[1]].blocks[found[2]] = len(self.blocks) - 1

    def render(self, translations: Sequence[Block], target_language: str) -> bytes:
        """See `Document.render`. New non-ASCII characters are escaped if the document has only escaped ones."""
        edits = {index: (*span, self._translated(index, new)) for index, (span, new, block) in enumerate(zip(
            self._strings, translations, self.blocks, strict=True)) if new != block}
        added = [(*self._locale, self._string(target_language.replace("-", "_")))] if self._locale and edits else []
        for plural in self._plurals:
            for category, source in plural.sources(self.blocks, translations, target_language).items():
                text = self._translated(plural.blocks[source], translations[plural.blocks[source]])
                if category not in plural.entries:
                    (first, last), (begin, end) = plural.entries["other"], self._strings[plural.blocks["other"]]
                    key = self._text[first:last].removesuffix('other"') + f'{category}"'
                    added.append((end, end, f",{margin_before(self._text, first)}{key}{self._text[last:begin]}{text}"))
                elif source != category and category in plural.blocks:
                    edits[plural.blocks[category]] = (*self._strings[plural.blocks[category]], text)
        return replace_spans(self._text, [*edits.values(), *added]).encode(self._encoding)

    def _translated(self, index: int, new: Block) -> str:
        """Return the string of a translated block, with the white space around the text. index: of the block."""
        return self._string(with_margins(read_any_json(self._text[slice(*self._strings[index])]), new.text))

    def _string(self, text: str) -> str:
        return json.dumps(text, ensure_ascii=self._ensure_ascii)
