"""A picture of what a model attends to, through matplotlib."""

from __future__ import annotations

import io
import math
from typing import Any

from seq2seq import console
from seq2seq.errors import UserError
from seq2seq.inspection import Choice, SeenPair
from seq2seq.views.labels import COLUMNS, NAMES, ROWS, SPACE, Label, rows_and_columns

# Inches: a cell of a map that stands alone, of one among several, and the largest side of a picture.
CELL, SMALL_CELL, LARGEST = 0.3, 0.12, 60.0
# Which of several faces that have the same characters in the forms of different countries.
FACES = {"zh": ("SC", "CN", "TC", "TW", "HK"), "ja": ("JP",), "ko": ("KR",)}


def require_matplotlib() -> None:
    """Raises UserError where it is not installed."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise UserError("a picture needs matplotlib: pip install matplotlib. A page (--output FILE.html) needs "
                        "nothing more.") from error


def picture(pair: SeenPair, languages: tuple[str, str], model: str, choice: Choice) -> bytes:
    """The chosen maps as PNG.

    Args:
        languages: codes of source and target. model: what the picture calls the model.
    Raises:
        UserError: matplotlib is not installed, or the model has no such maps.
    """
    require_matplotlib()
    import matplotlib
    from matplotlib.figure import Figure

    rows, columns = rows_and_columns(pair, choice.kind)
    maps = choice.maps(pair)
    alone = len(maps) == 1
    cell, margin, font_size = (CELL, 2.0, 11) if alone else (SMALL_CELL, 0.9, 6)
    across = math.ceil(math.sqrt(len(maps)))
    down = math.ceil(len(maps) / across)
    size = (min(LARGEST, across * (len(columns) * cell + margin) + 1),
            min(LARGEST, down * (len(rows) * cell + margin) + 0.6))
    title = f"{NAMES[choice.kind]} of {model}" + (f", {maps[0][0]}" if alone else "")
    text = "".join([title, *map(_shown, (*rows, *columns))])
    with matplotlib.rc_context({"font.family": _families(text, languages), "font.size": 11}):
        figure = Figure(figsize=size, layout="constrained")
        most = max(float(weights.max()) for _, weights in maps) or 1.0
        grid = figure.subplots(down, across, squeeze=False).flatten()
        for axes, (name, weights) in zip(grid, maps, strict=False):
            image = axes.imshow(weights, cmap="Blues", vmin=0, vmax=most, interpolation="nearest")
            axes.set_xticks(range(len(columns)), [_shown(label) for label in columns], rotation=90, fontsize=font_size)
            axes.set_yticks(range(len(rows)), [_shown(label) for label in rows], fontsize=font_size)
            axes.tick_params(length=0, labeltop=True, labelbottom=False)
            axes.spines[:].set_visible(False)
            if alone:
                axes.set_xlabel(", the piece ".join(COLUMNS[choice.kind]))
                axes.set_ylabel(", the piece ".join(ROWS[choice.kind]))
            else:
                axes.set_xlabel(name, fontsize=9)
        for axes in grid[len(maps):]:
            axes.set_axis_off()
        figure.colorbar(image, ax=list(grid), label="weight", fraction=0.04, pad=0.02, aspect=30)
        figure.suptitle(title, fontsize=12)
        written = io.BytesIO()
        figure.savefig(written, dpi=150, format="png")
    return written.getvalue()


def _shown(label: Label) -> str:
    return label.text.replace(SPACE, "·")


def _families(text: str, languages: tuple[str, str]) -> list[str]:
    """Fonts that have all characters of a text between them, matplotlib's own first; warns of what none has."""
    from matplotlib import font_manager, ft2font

    own = "DejaVu Sans"
    families = [own]
    lacking = {ord(character) for character in text if not character.isspace()}
    lacking -= set(ft2font.FT2Font(font_manager.findfont(own)).get_charmap())
    wanted = [face for language in languages for face in FACES.get(language[:2], ())]

    def order(font: Any) -> tuple[bool, bool, int, str]:
        face = next((number for number, face in enumerate(wanted) if face in font.name.split()), len(wanted))
        return font.style != "normal" or font.weight not in (400, "normal", "regular"), "Sans" not in font.name, \
            face, font.name

    # matplotlib's last resort has a frame for every character.
    fonts = [font for font in font_manager.fontManager.ttflist if not font.name.startswith("Last Resort")]
    for font in sorted(fonts, key=order):
        if not lacking:
            break
        found = lacking & set(ft2font.FT2Font(font.fname).get_charmap())
        if found and font.name not in families:
            families.append(font.name)
            lacking -= found
    if lacking:
        console.warn(f"no installed font has {' '.join(map(chr, sorted(lacking)))}: the picture shows frames instead. "
                     "Install a font that has them, such as fonts-noto-cjk for Chinese, Japanese and Korean.")
    return families
