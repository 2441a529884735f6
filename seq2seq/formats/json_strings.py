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
from collections.abc import Iterator

from seq2seq.formats.block import IN_STRINGS, Block
from seq2seq.formats.data_tree import Node, TreeDocument
from seq2seq.formats.json_tree import margin_before, parse_json_tree
from seq2seq.formats.spans import Edit
from seq2seq.formats.units import Plural, Unit, unit_of

_TEXT_KEYS = {"message": "chrome", "defaultMessage": "vue", "string": "vue"}
"""Keys of the texts in objects that describe a message each, and a syntax of these texts."""
_OTHER_KEYS = {"description", "placeholders", "hash", "developer_comment", "context", "id", "file", "start", "end"}
_PLURAL = re.compile(r"(.{0,200}_)(zero|one|two|few|many|other)", re.DOTALL)


class JsonDocument(TreeDocument):
    """JSON. New non-ASCII characters are escaped if the document has only escaped ones."""

    def roots(self) -> list[Node]:
        root = parse_json_tree(self.text)
        self._begin = root.begin
        content = self.text.removeprefix("\ufeff")
        self._ensure_ascii = "\\u" in content and content.isascii()
        self._text_key = next((key for key in _TEXT_KEYS if root.members and not root.is_array and all(
            key in one.members and not one.is_array and one.members.keys() <= {key, *_OTHER_KEYS}
            for one in root.members.values())), "")
        locale = root.text("@@locale")
        self._locale = root.find("@@locale")
        self.source_languages = {locale} if locale is not None else set()
        self.is_catalogue = bool(self._text_key or locale)
        self._plurals: dict[tuple[int, str], Plural] = {}                       # by the place of the object, and key
        return [root]

    def is_kept(self, parent: Node, key: str) -> bool:
        is_message = bool(self._text_key) and parent.begin != self._begin
        return key.startswith("@") or is_message and key != self._text_key

    def units_of(self, node: Node, key: str, parent: Node) -> Iterator[Unit]:
        if not isinstance(node.value, str):
            return
        comment = parent.text("description") if self._text_key else parent.text(f"@{key}", "description")
        unit = unit_of(node.begin, node.end, Block(
            node.value, place=f"line {self.line_at(node.begin)}", keeps_lines=True, access_keys="&",
            syntax=(_TEXT_KEYS.get(self._text_key, "vue"), *IN_STRINGS), key=key, comment=comment or ""))
        if not parent.is_array and (named := _PLURAL.fullmatch(key)):
            place = parent.begin, named[1]
            if place not in self._plurals:
                categories = [other[2] for one in parent.members
                              if (other := _PLURAL.fullmatch(one)) and other[1] == named[1]]
                self._plurals[place] = Plural(dict.fromkeys(categories), least=2)
            unit.plural, unit.category, unit.info = self._plurals[place], named[2], node
        yield unit

    def write(self, unit: Unit, block: Block) -> str:
        return self._string(unit.before + block.text + unit.after)

    def added(self, other: Unit, category: str, block: Block) -> Edit:
        begin, end = other.info.key_begin, other.info.key_end
        key = self.text[begin:end].removesuffix('other"') + f'{category}"'
        written = f"{key}{self.text[end:other.begin]}{self.write(other, block)}"
        return other.end, other.end, f",{margin_before(self.text, begin)}{written}"

    def written_key(self, key: str, old: str) -> str:
        return json.dumps(key)

    def added_entry(self, sibling: Node, entry: str) -> str:
        return f",{margin_before(self.text, sibling.key_begin) or ' '}{entry}"

    def other_edits(self, language: str) -> Iterator[Edit]:
        if self._locale:
            yield self._locale.begin, self._locale.end, self._string(language.replace("-", "_"))
        yield from super().other_edits(language)

    def _string(self, text: str) -> str:
        return json.dumps(text, ensure_ascii=self._ensure_ascii)
