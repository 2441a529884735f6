"""Qt Linguist's .ts: unfinished messages without a translation get one, and remain marked as unfinished.

Format: https://doc.qt.io/qt-6/linguist-ts-file-format.html
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from seq2seq.formats.block import Block
from seq2seq.formats.plurals import gettext_rule
from seq2seq.formats.texts import is_text, trim
from seq2seq.formats.xml_units import XmlFile, with_attribute
from seq2seq.languages import is_same_language


class TsDocument:
    """Catalogue of Qt Linguist, with the interfaces `Document` and `NamesLanguages`. All numerus forms get the same
    translation."""

    def __init__(self, data: bytes) -> None:
        """Raises DocumentError: the document is not well-formed, or not a catalogue of Qt."""
        self._xml = XmlFile(data, "TS")
        named = self._xml.tokens[self._xml.root].attributes
        self.source_languages, self.target_languages = {named.get("sourcelanguage", "")}, set[str]()
        self.blocks: list[Block] = []
        self._messages: list[tuple[int, int, bool]] = []                        # source, translation, numerus
        self._forms = 0                                                         # largest number of forms of a message
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
            if any(is_text(self._xml.content(form).text) for form in forms or [translation]):
                self.target_languages.add(self._xml.tokens[self._xml.root].attributes.get("language", ""))
            return
        _, block, _ = trim(self._xml.content(found["source"], keeps_lines=True))
        if is_text(block.text):
            self.blocks.append(replace(block, access_keys="&"))
            self._messages.append((found["source"], translation, numerus))

    def render(self, translations: Sequence[Block], target_language: str) -> bytes:
        """See `Document.render`. `target_language` is filled in if the document names no or another target language."""
        xml = self._xml
        token = xml.tokens[xml.root]
        named = token.attributes.get("language")
        is_target = bool(named) and is_same_language(named or "", target_language)
        count = self._forms if is_target and self._forms else int(
            gettext_rule(target_language).partition(";")[0].removeprefix("nplurals="))
        edits: list[tuple[int, int, str]] = []
        for (source, translation, numerus), new, block in zip(self._messages, translations, self.blocks,
                                                                   strict=True):
            if new == block:
                continue
            text = xml.translated(source, new, self._escape)
            forms = list(xml.children(translation))
            if forms and len(forms) == count:
                edits += [xml.filled(form, text) for form in forms]
            else:
                one = f"<numerusform>{text}</numerusform>"
                edits.append(xml.filled(translation, one * count if numerus else text))
        if edits and not is_target:
            raw = with_attribute(token.raw, "language", target_language.replace("-", "_"))
            edits.append((*xml.span(xml.root, xml.root), raw))
        return xml.encode(edits)

    def _escape(self, text: str) -> str:
        """Escape a text as Qt's lupdate does."""
        return self._xml.escape(text).replace('"', "&quot;").replace("'", "&apos;")
