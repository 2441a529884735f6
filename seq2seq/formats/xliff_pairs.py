"""Reader of the translated units of XLIFF 1.2, 2.0 and 2.1 as parallel text, in constant memory.

Specifications: https://docs.oasis-open.org/xliff/v1.2/os/xliff-core.html and
https://docs.oasis-open.org/xliff/xliff-core/v2.1/xliff-core-v2.1.html
"""

from __future__ import annotations

from collections.abc import Sequence

from seq2seq.formats.tmx_pairs import MARKUP_ELEMENTS, Unit, UnitReader
from seq2seq.languages import is_same_language

UNTRANSLATED_STATES = {"1": ("new", "needs-translation"), "2": ("initial",)}
"""States of targets that are not translations yet, by version. Units without a state are translated if they have a
target."""
LANGUAGES = {"1": ("source-language", "target-language"), "2": ("srcLang", "trgLang")}
"""Attributes with the languages: of <file> in version 1, of <xliff> in version 2."""


class XliffReader(UnitReader):
    """XML parser with its handlers. A unit is a <trans-unit> (1.2) or a <segment> (2.x). Its translation is not
    finished if it has no text or its state calls for work."""

    root = "xliff"
    markup = MARKUP_ELEMENTS | {"x", "bx", "ex", "sc", "ec", "sm", "em", "cp"}

    def __init__(self, languages: Sequence[str], path: str, keep_markup: bool, max_segment_bytes: int) -> None:
        """languages: codes. A target whose language the file does not name is in the one that the source is not in."""
        super().__init__(path, keep_markup, max_segment_bytes)
        self.wanted, self.named = languages, ("", "")
        self.is_skipped = self.is_approved = False
        self.state = ""

    def start(self, name: str, attributes: dict[str, str]) -> None:
        """See `UnitReader.start`. Units that the file asks not to translate are skipped."""
        for keys in LANGUAGES.values():
            if keys[0] in attributes:
                source = attributes[keys[0]]
                self.named = source, attributes.get(keys[1]) or next(
                    (code for code in self.wanted if not is_same_language(code, source)), "")
        if name in ("unit", "trans-unit"):
            self.is_skipped = attributes.get("translate") == "no"
        if name in ("trans-unit", "segment") and not self.is_skipped:
            self.unit, self.state = Unit(), attributes.get("state", "")
            self.is_approved = attributes.get("approved") == "yes"
        elif self.unit and name in ("source", "target") and self.open[-2] in ("trans-unit", "segment"):
            self.unit.language = attributes.get("xml:lang", self.named[name == "target"])
            self.state = attributes.get("state", self.state)
            self.begin_text()

    def ends_text(self, name: str) -> bool:
        return name in ("source", "target")

    def ends_unit(self, name: str) -> bool:
        if name not in ("trans-unit", "segment"):
            return False
        assert self.unit is not None
        is_open = self.state.startswith("needs-") or self.state in ("new", *UNTRANSLATED_STATES["2"])
        texts = [text for _, text in self.unit.variants if text.strip()]
        self.unit.is_finished = len(texts) == 2 and (self.is_approved or not is_open)
        return True

    def native_code(self, attributes: dict[str, str]) -> tuple[str, str]:
        is_break = attributes.get("subType") == "xlf:lb"
        return attributes.get("equiv", attributes.get("equiv-text", "")), "lb" if is_break else attributes.get("ctype",
                                                                                                               "")
