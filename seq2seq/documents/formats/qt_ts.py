"""Qt Linguist's .ts: unfinished messages without a translation get one, and remain marked as unfinished.

Format: https://doc.qt.io/qt-6/linguist-ts-file-format.html
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from seq2seq.documents.block import Block
from seq2seq.documents.placeholders import Placeholders
from seq2seq.documents.spans import is_text, trim
from seq2seq.documents.xml_tokens import XmlToken
from seq2seq.documents.xml_units import Role, XmlFile, with_attribute
from seq2seq.languages import SPACELESS_CHARACTER, is_same_language

_KEY = re.compile(r"(?<!&)&(?=[^\W_])(?!\w{1,31};)(?!(?<=\w&)[A-Z])")


class TsDocument:
    """Catalogue of Qt Linguist, with the interfaces `Document` and `NamesLanguages`. All numerus forms get the same
    translation.

    The key of a menu entry, such as x in `E&xit`, is not in the blocks. Its mark is put into the translation.
    """

    def __init__(self, data: bytes) -> None:
        """Raises DocumentError: the document is not well-formed, or not a catalogue of Qt."""
        self._xml = XmlFile(data, "TS")
        named = self._xml.tokens[self._xml.root].attributes
        self.source_languages, self.target_languages = {named.get("sourcelanguage", "")}, set[str]()
        self.blocks: list[Block] = []
        self._messages: list[tuple[int, int, bool, str]] = []                   # source, translation, numerus, key
        self._forms = 1                                                         # largest number of forms of a message
        for message, token in enumerate(self._xml.tokens):
            if token.kind == "open" and token.local_name == "message":
                self._add(message)

    def _add(self, message: int) -> None:
        found = {self._xml.tokens[child].local_name: child for child in self._xml.children(message)}
        if "source" not in found or "translation" not in found:
            return
        translation = found["translation"]
        forms = list(self._xml.children(translation))
        numerus = self._xml.tokens[message].attributes.get("numerus") == "yes"
        self._forms = max(self._forms, len(forms))
        if self._xml.tokens[translation].attributes.get("type") != "unfinished" \
                or not all(map(self._xml.is_empty, forms or [translation])) \
                or any(not numerus or self._xml.tokens[form].local_name != "numerusform" for form in forms):
            if any(is_text(self._xml.content(form, _role).text) for form in forms or [translation]):
                self.target_languages.add(self._xml.tokens[self._xml.root].attributes.get("language", ""))
            return
        _, block, _ = trim(self._xml.content(found["source"], _role, keeps_lines=True))
        if is_text(block.text):
            block, key = _without_key(block)
            self.blocks.append(block)
            self._messages.append((found["source"], translation, numerus, key))

    def render(self, translations: Sequence[Block], target_language: str) -> bytes:
        """See `Document.render`. `target_language` is filled in if the document names no or another target language."""
        xml = self._xml
        edits: list[tuple[int, int, str]] = []
        for (source, translation, numerus, key), new, block in zip(self._messages, translations, self.blocks,
                                                                   strict=True):
            if new == block:
                continue
            new = _with_key(new, key)
            before, _, after = trim(xml.content(source, _role))
            text = self._escape(before) + new.serialize(self._escape) + self._escape(after)
            if forms := list(xml.children(translation)):
                edits += [xml.filled(form, text) for form in forms]
            else:
                one = f"<numerusform>{text}</numerusform>"
                edits.append(xml.filled(translation, one * self._forms if numerus else text))
        token = xml.tokens[xml.root]
        named = token.attributes.get("language")
        if edits and (not named or not is_same_language(named, target_language)):
            raw = with_attribute(token.raw, "language", target_language.replace("-", "_"))
            edits.append((*xml.span(xml.root, xml.root), raw))
        return xml.encode(edits)

    def _escape(self, text: str) -> str:
        """Escape a text as Qt's lupdate does."""
        return self._xml.escape(text).replace('"', "&quot;").replace("'", "&apos;")


def _without_key(block: Block) -> tuple[Block, str]:
    """Return a block without the mark `&` of a key, and the key; "" if there is no key or several. `Q&A` has no key."""
    places = [match.start() for match in _KEY.finditer(_without_placeholders(block.text))]
    if len(places) != 1:
        return block, ""
    place = places[0]
    tags = tuple(replace(tag, position=tag.position - (tag.position > place)) for tag in block.tags)
    return replace(block, text=block.text[:place] + block.text[place + 1:], tags=tags), block.text[place + 1]


def _with_key(block: Block, key: str) -> Block:
    """Return a translated block with the mark of its key: before this letter, at the beginning of a word if possible,
    or else before the first letter. A text in Chinese characters or kana without this letter gets the ending (&X)."""
    text, words, letter = block.text, _without_placeholders(block.text), re.escape(key)
    if not key or not is_text(words):
        return block
    found = re.search(rf"(?i)\b{letter}", words) or re.search(f"(?i){letter}", words)
    if found is None and SPACELESS_CHARACTER.search(words) is None:
        found = re.search(r"[^\W_]", words)
    place = found.start() if found else len(text.rstrip(".…:：\n "))
    mark = "&" if found else f"(&{key.upper()})"
    tags = tuple(replace(tag, position=tag.position + len(mark) * (tag.position > place)) for tag in block.tags)
    return replace(block, text=text[:place] + mark + text[place:], tags=tags)


def _without_placeholders(text: str) -> str:
    """Return a text with spaces in place of its placeholders, which stay as they are."""
    for begin, end in Placeholders().spans(text):
        text = text[:begin] + " " * (end - begin) + text[end:]
    return text


def _role(token: XmlToken) -> tuple[Role, str]:
    return "whole", ""                                                          # <byte value="x1b"/>
