"""Fonts for matplotlib that have every character of a text.

matplotlib knows fonts by the list in its cache, which it makes once: fonts installed later are not in it, and deleted
ones still are.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from seq2seq import console

OWN = "DejaVu Sans"
"""The font that comes with matplotlib."""
# Which of several fonts that have the same characters in the forms of different countries.
FACES = {"zh": ("SC", "CN", "TC", "TW", "HK"), "ja": ("JP",), "ko": ("KR",)}


def families_for(text: str, languages: Iterable[str]) -> list[str]:
    """Font families that have all characters of a text between them, matplotlib's own first.

    Where the fonts of matplotlib's cache lack characters, fonts that are installed but not in the cache are added to
    it. Warns of characters that no font has.

    Args:
        languages: codes; where fonts differ by country, those of these languages come first.
    """
    wanted = [face for language in languages for face in FACES.get(language[:2], ())]
    families: list[str] = []
    lacking = {ord(character) for character in text if not character.isspace()}
    with _quiet():
        lacking = _cover(lacking, [OWN], families)
        if lacking:
            lacking = _cover(lacking, _known_families(wanted), families)
        if lacking and _add_new_fonts():
            lacking = _cover(lacking, _known_families(wanted), families)
    if lacking:
        console.warn(f"no installed font has {' '.join(map(chr, sorted(lacking)))}: the picture shows frames instead. "
                     "Install a font that has them, such as fonts-noto-cjk for Chinese, Japanese and Korean.")
    return families or [OWN]


def _cover(lacking: set[int], candidates: Iterable[str], families: list[str]) -> set[int]:
    """Append to `families` the candidates that have characters of `lacking`; return the characters left."""
    for family in candidates:
        if not lacking:
            break
        found = lacking & _characters(family)
        if found:
            families.append(family)
            lacking = lacking - found
    return lacking


def _characters(family: str) -> set[int]:
    """Characters of the file that matplotlib draws a family with: a family may have several, and a file may be gone."""
    from matplotlib import font_manager

    try:
        path = font_manager.findfont(font_manager.FontProperties(family=[family]), fallback_to_default=False,
                                     rebuild_if_missing=False)
        return set(font_manager.get_font(path).get_charmap())
    except (ValueError, OSError, RuntimeError):                                 # deleted, damaged, of another kind
        return set()


def _known_families(wanted: list[str]) -> list[str]:
    """Families of matplotlib's list, the most fitting first; wanted: words of their names, such as JP."""
    from matplotlib import font_manager

    def order(font: Any) -> tuple[bool, bool, int, str]:
        face = next((number for number, face in enumerate(wanted) if face in font.name.split()), len(wanted))
        return font.style != "normal" or font.weight not in (400, "normal", "regular"), "Sans" not in font.name, \
            face, font.name

    # matplotlib's last resort has a frame for every character.
    fonts = [font for font in font_manager.fontManager.ttflist if not font.name.startswith("Last Resort")]
    return list(dict.fromkeys(font.name for font in sorted(fonts, key=order)))


def _add_new_fonts() -> bool:
    """Add installed fonts that matplotlib's list lacks, to the list and to its cache on disk; True if there are any."""
    import matplotlib
    from matplotlib import font_manager

    manager = font_manager.fontManager
    manager.ttflist = [font for font in manager.ttflist if Path(font.fname).exists()]
    known = {str(font.fname) for font in manager.ttflist}
    new = [path for path in font_manager.findSystemFonts() if path not in known]
    for path in new:
        try:
            manager.addfont(path)
        except (OSError, RuntimeError, ValueError):                             # damaged, or not scalable
            continue
    if added := len({str(font.fname) for font in manager.ttflist} - known):
        cache = Path(matplotlib.get_cachedir(), f"fontlist-v{manager.__version__}.json")
        font_manager.json_dump(manager, cache)
        console.print_message(f"matplotlib's list of fonts was out of date; new in it: {added:,}")
    return bool(added)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep matplotlib's notes on fonts out of the terminal while the block runs; what matters is said here."""
    logger = logging.getLogger("matplotlib.font_manager")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
