"""Qt Linguist's .ts: unfinished messages without a translation get one, and remain marked as unfinished.

Format: https://doc.qt.io/qt-6/linguist-ts-file-format.html
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from seq2seq.formats.block import Block
from seq2seq.formats.plurals import gettext_rule
from seq2seq.formats.spans import Edit
from seq2seq.formats.texts import is_text
from seq2seq.formats.units import Unit, unit_of
from seq2seq.formats.xml_units import XmlDocument, with_attribute
from seq2seq.languages import is_same_language


class TsDocument(XmlDocument):
    """Catalogue of Qt Linguist. All numerus forms get the same translation."""

    root = "TS"

    def find_units(self) -> Iterator[Unit]:
        self.source_languages = {self._attribute("sourcelanguage")}
        self._forms = 0                                                         # largest number of forms of a message
        for message, token in enumerate(self.tokens):
            if token.kind == "open" and token.local_name == "message":
                found = {self.tokens[child].local_name: child for child in self.xml.children(message)}
                if "source" in found and "translation" in found:
                    is_numerus = token.attributes.get("numerus") == "yes"
                    yield from self._message(found["source"], found["translation"], is_numerus,
                                             self.xml.text_of(message, "extracomment"))

    def _attribute(self, name: str) -> str:
        """Return an attribute of the root element."""
        return self.tokens[self.xml.root].attributes.get(name, "")

    def _message(self, source: int, translation: int, is_numerus: bool, comment: str) -> Iterator[Unit]:
        """Yield the unit of a message, unless it is translated already."""
        xml = self.xml
        forms = list(xml.children(translation))
        self._forms = max(self._forms, len(forms))
        if self.tokens[translation].attributes.get("type") != "unfinished" \
                or not all(map(xml.is_empty, forms or [translation])) \
                or any(not is_numerus or self.tokens[form].local_name != "numerusform" for form in forms):
            if any(is_text(xml.content(form).text) for form in forms or [translation]):
                self.target_languages.add(self._attribute("language"))
            return
        yield unit_of(*xml.span(translation, xml.ends[translation]), replace(
            xml.content(source, keeps_lines=True), access_keys="&", comment=comment), info=(translation, is_numerus))

    def edits(self, unit: Unit, blocks: Sequence[Block], language: str) -> Iterator[Edit]:
        translation, is_numerus = unit.info
        text = self._escape(unit.before) + blocks[0].serialize(self._escape) + self._escape(unit.after)
        forms = list(self.xml.children(translation))
        count = self._form_count(language)
        if forms and len(forms) == count:
            yield from (self.xml.filled(form, text) for form in forms)
        else:
            yield self.xml.filled(translation, f"<numerusform>{text}</numerusform>" * count if is_numerus else text)

    def _form_count(self, language: str) -> int:
        """Return the number of numerus forms of a translation."""
        if self._forms and self._is_in(language):
            return self._forms
        return int(gettext_rule(language).partition(";")[0].removeprefix("nplurals="))

    def _is_in(self, language: str) -> bool:
        named = self._attribute("language")
        return bool(named) and is_same_language(named, language)

    def other_edits(self, language: str) -> Iterable[Edit]:
        """Fill in the target language if the document names no or another one."""
        if self._is_in(language):
            return ()
        root = self.tokens[self.xml.root]
        raw = with_attribute(root.raw, "language", language.replace("-", "_"))
        return [(*self.xml.span(self.xml.root, self.xml.root), raw)]

    def _escape(self, text: str) -> str:
        """Escape a text as Qt's lupdate does."""
        return self.xml.escape(text).replace('"', "&quot;").replace("'", "&apos;")
