"""Language identification, restricted to the languages of a server."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from seq2seq.data.language_identification import is_installed, lingua_languages
from seq2seq.languages import is_traditional_chinese, main_language, script_shares
from seq2seq.serve.errors import invalid

MAX_CHARACTERS = 2_000
"""Only the first characters of a text, up to this number, are examined. More characters would not change the result."""


@dataclass(frozen=True)
class Detected:
    """Candidate for the language of a text. confidence: from 0 to 100."""

    language: str
    confidence: float

    def as_json(self) -> dict[str, Any]:
        """Return the JSON object that clients expect."""
        return {"confidence": self.confidence, "language": self.language}


class Detector:
    """Language identification among given languages by lingua. If lingua is not installed, or knows fewer
    than two of the languages, the script of the text alone decides."""

    def __init__(self, languages: Sequence[str]) -> None:
        """languages: canonical codes. For a text without letters, the first code is returned."""
        self.languages = list(languages)
        self._lingua: Any = None
        self._codes: dict[Any, str] = {}
        known = lingua_languages() if is_installed() else {}
        for code in self.languages:
            if language := known.get(main_language(code)):
                self._codes.setdefault(language, code)
        if len(self._codes) >= 2:
            import lingua

            self._lingua = lingua.LanguageDetectorBuilder.from_languages(*self._codes).build()

    def decide(self, text: str) -> list[Detected]:
        """Return the result of `detect`.

        Raises:
            ApiError: the text's script is that of several languages, and there is nothing else to decide by.
        """
        found = self.detect(text)
        if self._lingua is None and len(found) > 1:
            candidates = ", ".join(one.language for one in found)
            reason = ("the package lingua does not know them" if is_installed() else
                      "this server identifies languages by script alone. Its operator can install the extra `language`")
            raise invalid(f"the text can be in several languages ({candidates}). Name its language, because {reason}")
        return found

    def detect(self, text: str) -> list[Detected]:
        """Return the candidates for the language of a text, the most probable first. There is at least one."""
        text = unicodedata.normalize("NFC", text[:MAX_CHARACTERS])              # lingua knows é, but not e with a mark
        if not any(map(str.isalpha, text)):
            return [Detected(self.languages[0], 0.0)]
        shares = script_shares(text, self.languages)
        fitting = [code for code in self.languages if shares[code] == max(shares.values())]
        if self._lingua is not None and any(code in fitting for code in self._codes.values()):
            found = [Detected(self._codes[one.language], round(100 * one.value, 1))
                     for one in self._lingua.compute_language_confidence_values(text) if one.value >= 0.005]
            if found:
                return self._with_chinese_script(found, text)
        confidence = round(100 * shares[fitting[0]] / len(fitting), 1)
        return self._with_chinese_script([Detected(code, confidence) for code in fitting], text)

    def _with_chinese_script(self, found: list[Detected], text: str) -> list[Detected]:
        """If both zh-Hans and zh-Hant are served, merge these two candidates into one: zh-Hant if the text has more
        traditional than simplified characters, otherwise zh-Hans."""
        both = {"zh-Hans", "zh-Hant"}
        if not both <= set(self.languages):
            return found
        script = "zh-Hant" if is_traditional_chinese(text) else "zh-Hans"
        merged: dict[str, Detected] = {}
        for one in found:
            language = script if one.language in both else one.language
            merged.setdefault(language, Detected(language, one.confidence))
        return list(merged.values())
