"""Reader of the translated units of XLIFF 1.2, 2.0 and 2.1 as parallel text, in constant memory.

Specifications: https://docs.oasis-open.org/xliff/v1.2/os/xliff-core.html and
https://docs.oasis-open.org/xliff/xliff-core/v2.1/xliff-core-v2.1.html
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from seq2seq.formats.tmx_pairs import MARKUP_ELEMENTS, Unit, UnitReader
from seq2seq.languages import is_same_language

Progress = Literal["untranslated", "to review", "finished"]
_UNTRANSLATED = frozenset({"new", "needs-translation", "initial"})
_FINAL = frozenset({"final", "signed-off", "reviewed"})
LANGUAGES = {"1": ("source-language", "target-language"), "2": ("srcLang", "trgLang")}
"""Attributes with the languages: of <file> in version 1, of <xliff> in version 2."""


def progress(state: str, is_approved: bool, has_target: bool) -> Progress:
    """Return how far the translation of a unit is. A document keeps what is not untranslated, and only what is finished
    is a pair of a corpus.

    A unit that is approved or in a final state is finished, also without a text. Other units without a state are
    finished if they have a text. No state has one meaning in version 1.2 and another one in 2.x.

    Args:
        state: attribute `state` of <target> (1.2) or <segment> (2.x). is_approved: True if the unit is approved (1.2).
        has_target: True if the target has a text.
    """
    if is_approved or state in _FINAL:
        return "finished"
    if not has_target or state in _UNTRANSLATED:
        return "untranslated"
    return "to review" if state.startswith("needs-") else "finished"


class XliffReader(UnitReader):
    """XML parser with its handlers. A unit is a <trans-unit> (1.2) or a <segment> (2.x)."""

    root = "xliff"
    markup = MARKUP_ELEMENTS | {"x", "bx", "ex", "sc", "ec", "sm", "em", "cp"}

    def __init__(self, languages: Sequence[str], path: str, keep_markup: bool, max_segment_bytes: int) -> None:
        """languages: codes. A target whose language the file does not name is in the one that the source is not in."""
        super().__init__(path, keep_markup, max_segment_bytes)
        self.wanted, self.named = languages, ("", "")
        self.is_approved = False
        self.state = ""

    def start(self, name: str, attributes: dict[str, str]) -> None:
        """See `UnitReader.start`. Units that the file asks not to translate are skipped."""
        for keys in LANGUAGES.values():
            if keys[0] in attributes:
                source = attributes[keys[0]]
                self.named = source, attributes.get(keys[1]) or next(
                    (code for code in self.wanted if not is_same_language(code, source)), "")
        if name in ("trans-unit", "segment") and self.translated[-1]:
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
        texts = [text for _, text in self.unit.variants if text.strip()]
        self.unit.is_finished = len(texts) == 2 and progress(self.state, self.is_approved, True) == "finished"
        return True

    def native_code(self, attributes: dict[str, str]) -> tuple[str, str]:
        is_break = attributes.get("subType") == "xlf:lb"
        return attributes.get("equiv", attributes.get("equiv-text", "")), "lb" if is_break else attributes.get("ctype",
                                                                                                               "")
