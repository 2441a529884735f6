"""Attention maps as a figure of matplotlib, or as a PNG picture."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from seq2seq.alignment.shown_maps import (
    COLUMNS,
    NAMES,
    ROWS,
    AttentionMapSelection,
    Label,
    attention_weights,
    rows_and_columns,
)
from seq2seq.data.alignment_links import KINDS, AlignmentSettings, Kind
from seq2seq.evaluation.learning_curves import as_png, new_figure
from seq2seq.files import real_path
from seq2seq.translation.attention_maps import PairAttention, maps_of_kind
from seq2seq.translation.translator import Translator

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CELL, SMALL_CELL = 0.3, 0.12
"""Side length of a cell in inches, in a picture of one map and in a picture of several maps."""
MAX_SIDE = 60.0
"""Maximum width and height of a picture in inches: 9,000 pixels at 150 dpi."""
MIN_WEIGHT_RANGE = 1e-4
"""If the highest and the lowest weight in a picture differ by at most this number, all cells have the same colour."""
FONTS = ["DejaVu Sans", "Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans Devanagari", "Noto Sans Bengali",
         "Noto Sans Thai", "Arial Unicode MS", "Microsoft YaHei", "Malgun Gothic", "Nirmala UI", "Leelawadee UI"]
"""Fonts of a picture: that of matplotlib, then those for other scripts that Linux (Noto), macOS and Windows have. A
character is drawn with the first one that is installed and has it."""


def attention_map(model: Translator | str | Path, source: str, target: str | None = None, *, kind: Kind | None = None,
                  layer: int | Literal["all"] | None = None, head: int | Literal["mean", "all"] | None = None
                  ) -> Figure:
    """Draw the attention maps of a sentence and its translation as a figure of matplotlib.

    Each row shows the weights with which one piece attends to the pieces in the columns.

    >>> seq2seq.attention_map("runs/multi30k_de_en", "Ein Hund läuft.").savefig("dog.png")

    Args:
        model: a translator, or the path of a model, which is then loaded in fp32. source, target, kind, layer, head:
            see `map_of_sentence`.
    """
    new_figure()                                                    # an error comes before the model is loaded
    translator = model if isinstance(model, Translator) else Translator.load(model, precision="fp32")
    pair, selection = map_of_sentence(translator, source, target, kind, layer, head)
    return draw(pair, name_of(translator), selection)


def map_of_sentence(translator: Translator, source: str, target: str | None = None, kind: Kind | None = None,
                    layer: int | Literal["all"] | None = None, head: int | Literal["mean", "all"] | None = None
                    ) -> tuple[PairAttention, AttentionMapSelection]:
    """Compute the attention maps of a sentence, and select those that are shown.

    Args:
        source: the sentence; for a language model, its text. target: its translation; None: that of the model.
        kind: see `PairAttention`; None: cross if the model has it. layer: index from 1, or all; None: the layer that
            was measured to align words best, else the last. head: index from 1, mean or all; None: the head that was
            measured to align words best, else mean.
    """
    pair = attention_weights(translator, source, target)
    in_model: list[Kind] = [name for name in KINDS if name in pair.maps]
    shown = kind or (in_model or [KINDS[0]])[0]
    best = translator.aligner if shown == "cross" else AlignmentSettings()
    selection = AttentionMapSelection(shown, layer or best.layer or len(maps_of_kind(pair, shown)), head or best.head)
    selection.maps(pair)                                            # raises UserError for an invalid selection
    return pair, selection


def name_of(translator: Translator) -> str:
    return real_path(translator.directory).name if translator.directory else "the model"


def picture(pair: PairAttention, model: str, selection: AttentionMapSelection) -> bytes:
    """Return the figure of `draw` as a PNG picture."""
    return as_png(draw(pair, model, selection), 150)


def draw(pair: PairAttention, model: str, selection: AttentionMapSelection) -> Figure:
    """Draw the selected attention maps.

    Args:
        model: name of the model in the title.
    """
    figure = new_figure(layout="constrained")
    import matplotlib

    rows, columns = rows_and_columns(pair, selection.kind)
    maps = selection.maps(pair)
    single = len(maps) == 1
    cell, margin, font_size = (CELL, 2.0, 11) if single else (SMALL_CELL, 0.9, 6)
    grid_columns = _grid_columns(len(maps), selection, pair)
    grid_rows = math.ceil(len(maps) / grid_columns)
    size = (min(MAX_SIDE, grid_columns * (len(columns) * cell + margin) + 1),
            min(MAX_SIDE, grid_rows * (len(rows) * cell + margin) + 0.6))
    title = f"{NAMES[selection.kind]} of {model}" + (f", {maps[0][0]}" if single else "")
    logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)    # it reports each font that is not installed
    with matplotlib.rc_context({"font.family": FONTS, "font.size": 11}):
        figure.set_size_inches(size)
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
    return figure


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
    return label.text.replace("$", r"\$")                                       # two $ would enclose a formula
