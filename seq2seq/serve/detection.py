"""Language identification, restricted to the languages of a server."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from seq2seq.data.language_identification import is_installed, lingua_languages
from seq2seq.languages import main_language

MAX_CHARACTERS = 2_000
"""Only the first characters of a text, up to this number, are examined. More characters would not change the result."""
# Languages by script. A letter's script is the first word of its Unicode name. All other languages use LATIN.
_SCRIPTS = {
    "CYRILLIC": "ab ba be bg ce cv kk kv ky mk mn os ru sr tg tt uk", "ARABIC": "ar ckb fa ps sd ug ur",
    "CJK": "zh ja yue", "HIRAGANA": "ja", "KATAKANA": "ja", "HANGUL": "ko", "GREEK": "el", "HEBREW": "he yi",
    "DEVANAGARI": "hi mai mr ne sa", "BENGALI": "as bn", "GURMUKHI": "pa", "GUJARATI": "gu", "ORIYA": "or",
    "TAMIL": "ta", "TELUGU": "te", "KANNADA": "kn", "MALAYALAM": "ml", "SINHALA": "si", "THAI": "th", "LAO": "lo",
    "TIBETAN": "bo dz", "MYANMAR": "my", "GEORGIAN": "ka", "ARMENIAN": "hy", "ETHIOPIC": "am ti", "KHMER": "km",
}
_OTHER_THAN_LATIN = frozenset(" ".join(_SCRIPTS.values()).split())


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

    def detect(self, text: str) -> list[Detected]:
        """Return the candidates for the language of a text, the most probable first. There is at least one."""
        text = unicodedata.normalize("NFC", text[:MAX_CHARACTERS])              # lingua knows é, but not e with a mark
        if not any(map(str.isalpha, text)):
            return [Detected(self.languages[0], 0.0)]
        shares = self._script_shares(text)
        fitting = [code for code in self.languages if shares[code] == max(shares.values())]
        if self._lingua is not None and any(code in fitting for code in self._codes.values()):
            found = [Detected(self._codes[one.language], round(100 * one.value, 1))
                     for one in self._lingua.compute_language_confidence_values(text) if one.value >= 0.005]
            if found:
                return self._with_chinese_script(found, text)
        confidence = round(100 * shares[fitting[0]] / len(fitting), 1)
        return self._with_chinese_script([Detected(code, confidence) for code in fitting], text)

    def _script_shares(self, text: str) -> dict[str, float]:
        """Return, for each language, the share of the text's letters that belong to a script of this language."""
        counts: Counter[str] = Counter(unicodedata.name(character, "").partition(" ")[0]
                                       for character in text if character.isalpha())
        shares = {}
        for code in self.languages:
            main = main_language(code)
            letters = sum(count for script, count in counts.items() if main in _SCRIPTS.get(script, "").split()
                          or script == "LATIN" and main not in _OTHER_THAN_LATIN)
            # Japanese text contains kana besides kanji. For text without kana, Chinese is more probable.
            kanji_alone = main == "ja" and not (counts["HIRAGANA"] or counts["KATAKANA"])
            shares[code] = letters / max(1, counts.total()) * (0.5 if kanji_alone else 1)
        return shares

    def _with_chinese_script(self, found: list[Detected], text: str) -> list[Detected]:
        """If both zh-Hans and zh-Hant are served, merge these two candidates into one: zh-Hant if the text has more
        traditional than simplified characters, otherwise zh-Hans."""
        both = {"zh-Hans", "zh-Hant"}
        if not both <= set(self.languages):
            return found
        script = "zh-Hant" if len(_TRADITIONAL.findall(text)) > len(_SIMPLIFIED.findall(text)) else "zh-Hans"
        merged: dict[str, Detected] = {}
        for one in found:
            language = script if one.language in both else one.language
            merged.setdefault(language, Detected(language, one.confidence))
        return list(merged.values())


# Frequent characters that differ between simplified and traditional Chinese.
_SIMPLIFIED = re.compile("[们这个国来时说对会为么过还发学后开样没经从现电长关无间"
                         "问东车见书马儿门万与业两严丰临义习乡买乱争云亚产亲亿仅]")
_TRADITIONAL = re.compile("[們這個國來時說對會為麼過還發學後開樣沒經從現電長關無間"
                          "問東車見書馬兒門萬與業兩嚴豐臨義習鄉買亂爭雲亞產親億僅]")
