"""Choose fonts for matplotlib so that every character of a text is in one of them.

matplotlib searches for installed fonts once, and stores their list in a cache file. Fonts that were installed later are
missing from this list, and fonts that were deleted later are still in it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from seq2seq import console

DEFAULT_FONT = "DejaVu Sans"
"""The font that comes with matplotlib."""
# Chinese, Japanese and Korean share characters but draw them differently. The name of a font for one of these languages
# contains a code, such as JP in Noto Sans CJK JP. These are the codes of each language.
COUNTRY_CODES = {"zh": ("SC", "CN", "TC", "TW", "HK"), "ja": ("JP",), "ko": ("KR",)}


def families_for(text: str, languages: Iterable[str]) -> list[str]:
    """Return font families that together have all characters of a text, matplotlib's default font first.

    If the fonts in matplotlib's list lack a character, fonts that are missing from the list are searched for. Print a
    warning about characters that no installed font has.

    Args:
        languages: codes of the languages of the text. Fonts for these languages are preferred.
    """
    countries = [country for language in languages for country in COUNTRY_CODES.get(language[:2], ())]
    families: list[str] = []
    missing = {ord(character) for character in text if not character.isspace()}
    logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)        # the warning below is better
    missing = _cover(missing, [DEFAULT_FONT], families)
    if missing:
        missing = _cover(missing, _listed_families(countries), families)
    if missing:
        _add_new_fonts()
        missing = _cover(missing, _listed_families(countries), families)
    if missing:
        console.warn(f"no installed font has {' '.join(map(chr, sorted(missing)))}: the picture shows frames instead. "
                     "Install a font with these characters, such as fonts-noto-cjk for Chinese, Japanese and Korean.")
    return families or [DEFAULT_FONT]


def _cover(missing: set[int], candidates: Iterable[str], families: list[str]) -> set[int]:
    """Append to `families` the candidates with some of the missing characters; return the characters still missing."""
    for family in candidates:
        if not missing:
            break
        covered = missing & _characters(family)
        if covered:
            families.append(family)
            missing = missing - covered
    return missing


def _characters(family: str) -> set[int]:
    """Return the code points in the font file that matplotlib chooses for a family; none if the file cannot be read."""
    from matplotlib import font_manager

    try:
        path = font_manager.findfont(font_manager.FontProperties(family=[family]), fallback_to_default=False,
                                     rebuild_if_missing=False)
        return set(font_manager.get_font(path).get_charmap())
    except (ValueError, OSError, RuntimeError):                                 # deleted, damaged or not a font file
        return set()


def _listed_families(countries: list[str]) -> list[str]:
    """Return the families in matplotlib's list, sorted by four keys: upright and of normal weight first, sans-serif
    first, order of `countries`, name."""
    from matplotlib import font_manager

    def order(font: Any) -> tuple[bool, bool, int, str]:
        rank = next((rank for rank, code in enumerate(countries) if code in font.name.split()), len(countries))
        return font.style != "normal" or font.weight not in (400, "normal", "regular"), "Sans" not in font.name, \
            rank, font.name

    # The Last Resort font draws a frame for every character. In this list, it would hide that a character is missing.
    fonts = [font for font in font_manager.fontManager.ttflist if not font.name.startswith("Last Resort")]
    return list(dict.fromkeys(font.name for font in sorted(fonts, key=order)))


def _add_new_fonts() -> None:
    """Add installed fonts to matplotlib's list that are missing from it."""
    from matplotlib import font_manager

    manager = font_manager.fontManager
    for path in {*font_manager.findSystemFonts()} - {str(font.fname) for font in manager.ttflist}:
        with suppress(OSError, RuntimeError, ValueError):                       # damaged, or a bitmap font
            manager.addfont(path)
