"""A picture of what a model attends to, through matplotlib."""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Sequence

import numpy as np

from seq2seq.analysis.attention_maps import Choice, SeenPair
from seq2seq.analysis.fonts import families_for
from seq2seq.analysis.token_labels import COLUMNS, NAMES, ROWS, SPACE, Label, rows_and_columns
from seq2seq.errors import UserError

# Inches: a cell of a map that stands alone, of one among several, and the largest side of a picture.
CELL, SMALL_CELL, LARGEST = 0.3, 0.12, 60.0
SAME = 1e-4
"""Weights that differ by less are drawn as equal."""


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
    across = _maps_in_a_row(len(maps), choice, pair)
    down = math.ceil(len(maps) / across)
    size = (min(LARGEST, across * (len(columns) * cell + margin) + 1),
            min(LARGEST, down * (len(rows) * cell + margin) + 0.6))
    title = f"{NAMES[choice.kind]} of {model}" + (f", {maps[0][0]}" if alone else "")
    text = "".join([title, *map(_shown, (*rows, *columns))])
    families = families_for(text, languages)
    with matplotlib.rc_context({"font.family": families, "font.size": 11}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")                   # families_for has said it
        figure = Figure(figsize=size, layout="constrained")
        least, most, told = _scale([weights for _, weights in maps])
        grid = figure.subplots(down, across, squeeze=False).flatten()
        for axes, (name, weights) in zip(grid, maps, strict=False):
            image = axes.imshow(weights, cmap="Blues", vmin=least, vmax=most, interpolation="nearest")
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
        figure.colorbar(image, ax=list(grid), label=told, fraction=0.04, pad=0.02, aspect=30)
        figure.suptitle(title, fontsize=12)
        written = io.BytesIO()
        figure.savefig(written, dpi=150, format="png")
    return written.getvalue()


def _scale(maps: Sequence[np.ndarray]) -> tuple[float, float, str]:
    """Weights of the lightest and the darkest colour, the least and the largest of the maps; the same in words.

    Maps of equal weights get a range with those in the middle, because a single dark colour would look like attention.
    """
    least, most = min(float(weights.min()) for weights in maps), max(float(weights.max()) for weights in maps)
    if most - least > SAME:
        return least, most, f"weight, {least:.4f} to {most:.4f}"
    return 0.0, 2 * most or 1.0, f"weight, {most:.4f} everywhere"


def _maps_in_a_row(count: int, choice: Choice, pair: SeenPair) -> int:
    """A row has all maps of one layer where there are several layers and heads; else the maps make about a square."""
    if choice.layer == "all" and choice.head == "all":
        return count // len(pair.maps[choice.kind])
    return math.ceil(math.sqrt(count))


def _shown(label: Label) -> str:
    return label.text.replace(SPACE, "·")
