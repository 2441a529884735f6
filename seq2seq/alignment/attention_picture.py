"""Attention maps as a PNG picture, drawn with matplotlib."""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Sequence

import numpy as np

from seq2seq.alignment.fonts import families_for
from seq2seq.alignment.shown_maps import COLUMNS, NAMES, ROWS, SPACE, AttentionMapSelection, Label, rows_and_columns
from seq2seq.errors import UserError
from seq2seq.translation.attention_maps import PairAttention

CELL, SMALL_CELL = 0.3, 0.12
"""Side length of a cell in inches, in a picture of one map and in a picture of several maps."""
MAX_SIDE = 60.0
"""Maximum width and height of a picture in inches: 9,000 pixels at 150 dpi."""
MIN_WEIGHT_RANGE = 1e-4
"""If the highest and the lowest weight in a picture differ by at most this number, all cells have the same colour."""


def require_matplotlib() -> None:
    """Raise UserError if matplotlib is not installed."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise UserError("a picture needs matplotlib: pip install matplotlib. A page (--output FILE.html) works "
                        "without it.") from error


def picture(pair: PairAttention, languages: tuple[str, str], model: str, selection: AttentionMapSelection) -> bytes:
    """Draw the selected attention maps, and return the picture as PNG.

    Args:
        languages: language codes of source and target. model: name of the model in the title.
    Raises:
        UserError: matplotlib is not installed, or the model has no such maps.
    """
    require_matplotlib()
    import matplotlib
    from matplotlib.figure import Figure

    rows, columns = rows_and_columns(pair, selection.kind)
    maps = selection.maps(pair)
    single = len(maps) == 1
    cell, margin, font_size = (CELL, 2.0, 11) if single else (SMALL_CELL, 0.9, 6)
    grid_columns = _grid_columns(len(maps), selection, pair)
    grid_rows = math.ceil(len(maps) / grid_columns)
    size = (min(MAX_SIDE, grid_columns * (len(columns) * cell + margin) + 1),
            min(MAX_SIDE, grid_rows * (len(rows) * cell + margin) + 0.6))
    title = f"{NAMES[selection.kind]} of {model}" + (f", {maps[0][0]}" if single else "")
    text = "".join([title, *map(_tick_text, (*rows, *columns))])
    families = families_for(text, languages)
    with matplotlib.rc_context({"font.family": families, "font.size": 11}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")                   # families_for has already warned
        figure = Figure(figsize=size, layout="constrained")
        lowest, highest, scale_label = _colour_scale([weights for _, weights in maps])
        grid = figure.subplots(grid_rows, grid_columns, squeeze=False).flatten()
        for axes, (name, weights) in zip(grid, maps, strict=False):
            image = axes.imshow(weights, cmap="Blues", vmin=lowest, vmax=highest, interpolation="nearest")
            axes.set_xticks(range(len(columns)), [*map(_tick_text, columns)], rotation=90, fontsize=font_size)
            axes.set_yticks(range(len(rows)), [*map(_tick_text, rows)], fontsize=font_size)
            axes.tick_params(length=0, labeltop=True, labelbottom=False)
            axes.spines[:].set_visible(False)
            if single:
                axes.set_xlabel(COLUMNS[selection.kind][2])
                axes.set_ylabel(ROWS[selection.kind][2])
            else:
                axes.set_xlabel(name, fontsize=9)
        for axes in grid[len(maps):]:
            axes.set_axis_off()
        figure.colorbar(image, ax=list(grid), label=scale_label, fraction=0.04, pad=0.02, aspect=30)
        figure.suptitle(title, fontsize=12)
        png = io.BytesIO()
        figure.savefig(png, dpi=150, format="png")
    return png.getvalue()


def _colour_scale(maps: Sequence[np.ndarray]) -> tuple[float, float, str]:
    """Return the weight of the lightest colour, the weight of the darkest colour, and the label of the scale.

    The scale goes from the lowest to the highest weight of the maps. If all weights are equal (see MIN_WEIGHT_RANGE),
    it goes from 0 to twice their value: all weights then get the middle colour, because the darkest colour would look
    like strong attention.
    """
    lowest, highest = min(float(weights.min()) for weights in maps), max(float(weights.max()) for weights in maps)
    if highest - lowest > MIN_WEIGHT_RANGE:
        return lowest, highest, f"weight, {lowest:.4f} to {highest:.4f}"
    return 0.0, 2 * highest or 1.0, f"weight, {highest:.4f} everywhere"


def _grid_columns(count: int, selection: AttentionMapSelection, pair: PairAttention) -> int:
    """Return the number of columns of the grid. If all layers and heads are shown, each row contains the maps of one
    layer; otherwise the grid is about square."""
    if selection.layer == "all" and selection.head == "all":
        return count // len(pair.maps[selection.kind])
    return math.ceil(math.sqrt(count))


def _tick_text(label: Label) -> str:
    return label.text.replace(SPACE, "·").replace("$", r"\$")                   # two $ would enclose a formula
