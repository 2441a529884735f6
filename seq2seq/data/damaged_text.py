"""Damaged text: characters that were lost, or that come from decoding in a wrong encoding; text split into subwords.

Recognised are UTF-8 that was decoded as Windows-1252 or Latin-1 (Ã¤ for ä, Å¡ for š, â€œ for a quotation mark), and
Cyrillic in UTF-8 that was decoded as Windows-1251 (РЎР»РѕРІРѕ for Слово).
"""

from __future__ import annotations

import re


def _continuation(*encodings: str) -> str:
    """Return the characters of the bytes 0x80 to 0xBF in some encodings. In UTF-8, these bytes continue a character."""
    return "".join(bytes([byte]).decode(encoding, "ignore") for encoding in encodings for byte in range(0x80, 0xC0))


WESTERN, CYRILLIC = _continuation("cp1252", "latin-1"), _continuation("cp1251")
# Characters of WESTERN that follow a capital letter in undamaged text, too, as in AMANHÃ…, Úžasný and "À la".
PUNCTUATION, OTHERS = "…‚„‹›«»‘“”–—•·°™®©¹²³", "\xa0\xad’šžœŠŽŒŸƒ"
SIGN = f"(?![{PUNCTUATION}{OTHERS}])[{WESTERN}]"
# First bytes of characters in UTF-8, as Windows-1252: of two bytes (Latin, Greek, Cyrillic, Arabic), and of three.
TWO, THREE, LOWER = "[Ã-ÖØ-Þ]", "[à-ï]", "[a-zß-ÿ]"
# The first byte, then, after a lookahead that makes the search fast, one of the sequences that undamaged text lacks.
WRONG_ENCODING = re.compile(f"[Â-Þà-ïРС](?=[{WESTERN}{CYRILLIC}])(?:" + "|".join((
    f"(?<=Â)[{WESTERN}]", "(?<=â)€", f"(?<=Ã)(?![…‚„‹›«»‘’“”–—])[{WESTERN}]", f"(?<=Ã)(?<![A-ZÀ-Þ]Ã)[{WESTERN}]",
    f"(?<={TWO}){SIGN}", f"(?<={LOWER}{TWO})[{WESTERN}]", f"(?<={TWO})[{PUNCTUATION}](?={LOWER})",
    f"(?<={THREE})(?:{SIGN}[{WESTERN}]|[{WESTERN}]{SIGN})",
    f"(?<=×)[{WESTERN}]×[{WESTERN}]",                                           # Hebrew
    f"(?<=[РС])[{CYRILLIC}](?:[РС][{CYRILLIC}]){{2}}")) + ")")                  # Cyrillic as Windows-1251
# Marks of subwords that another program has made: `a b@@ ench` (subword-nmt), `▁a ▁b ench` (sentencepiece).
SUBWORDS = re.compile(r"\S@@(?: |$)|(?:^| )▁\S")
RESTORE_WORDS = "Restore the words: for @@, with sed -E 's/@@( |$)//g'; for ▁, with spm_decode."
LOST = re.compile("[\ufffd\x00-\x08\x0e-\x1f\x7f]")


def is_damaged(text: str) -> bool:
    """Return True for text with U+FFFD, control characters, or signs of a wrong encoding such as Ã¤ for ä."""
    return LOST.search(text) is not None or not text.isascii() and WRONG_ENCODING.search(text) is not None


def is_split_into_subwords(text: str) -> bool:
    """Return True for text that another program has split into subwords: `a b@@ ench`, or `▁a ▁b ench`."""
    return SUBWORDS.search(text) is not None
