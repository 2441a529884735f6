"""Learning curves of a run, or of several runs, drawn from the records of their logs: as an SVG picture, or as a figure
of matplotlib.

SVG is text, so training needs no plotting library. The colours follow the viewer's light or dark theme.
"""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import escape

from seq2seq import console
from seq2seq.console import escape_control_characters
from seq2seq.errors import CheckpointError, UserError
from seq2seq.storage.atomic import replace_file
from seq2seq.storage.checkpoints import stored_recipe
from seq2seq.storage.run_directory import LOG_FILE, log_records

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Point = tuple[int, float]
Records = Sequence[Mapping[str, Any]]

CURVES = "curves.svg"

# Sizes in pixels: width of the picture, and height of each plot; margins of each plot; heights of the title, of each
# row of the legend (for several runs), and of the footer.
WIDTH, PLOT_HEIGHT = 800, 180
LEFT, RIGHT, ABOVE, BELOW = 70, 20, 34, 12
TITLE_HEIGHT, LEGEND_HEIGHT, FOOTER_HEIGHT = 36, 20, 42
CHARACTER_WIDTH = 6.6
"""Mean width of a character in pixels, used to place the names in the legend."""
MAX_POINTS = 700
"""Approximate maximum number of points of a curve, one per pixel of width. Longer curves are downsampled."""
RATE, SPEED = "learning rate", "tokens per second"
TICKS = 6
"""Approximate number of ticks on an axis."""
SCORE_NAMES = {"bleu": "BLEU", "chrf": "chrF", "exact": "exact matches, %", "perplexity": "perplexity"}

# Colours of background, text, grid, and of the curves of training, validation and averaged checkpoints. They are used
# in plain CSS rules, because some viewers do not support CSS variables.
LIGHT = ("#ffffff", "#1f2328", "#d8dee4", "#8250df", "#0969da", "#bc4c00")
DARK = ("#0d1117", "#e6edf3", "#30363d", "#c297ff", "#58a6ff", "#ffa657")
COLOURS = """\
.paper {{ fill: {0}; }} text {{ fill: {1}; }} .grid {{ stroke: {2}; }}
.training {{ stroke: {3}; }} circle.training {{ fill: {3}; }}
.validation {{ stroke: {4}; }} circle.validation {{ fill: {4}; }}
.average {{ stroke: {5}; }} circle.average {{ fill: {5}; }}
"""
SYSTEMS = ("#2f81d6", "#d0662a", "#2f9e57", "#9a66e0", "#b8901a", "#dd4b5d", "#1b97a3", "#808a94")
"""Colours of the runs in one picture, visible on both backgrounds. Further runs repeat them with dashed lines."""
STYLE = f"""\
text {{ font: 12px system-ui, sans-serif; }} .title {{ font-size: 15px; }}
polyline {{ fill: none; stroke-width: 1.6; stroke-linejoin: round; }}
{COLOURS.format(*LIGHT)}@media (prefers-color-scheme: dark) {{
{COLOURS.format(*DARK)}}}
"""
SYSTEMS_STYLE = ".dashed { stroke-dasharray: 5 3; }\n" + "\n".join(
    f".system{number} {{ stroke: {colour}; }} circle.system{number} {{ fill: {colour}; }}"
    for number, colour in enumerate(SYSTEMS))


@dataclass(frozen=True)
class Curve:
    """Curve of a panel. kind: CSS class, which selects the colour. points: (step, value), in order of the steps.
    marked: True to draw a dot at each point."""

    name: str
    kind: str
    points: Sequence[Point]
    marked: bool = True


@dataclass(frozen=True)
class Panel:
    """Plot with several curves on the same vertical axis. legend: True to name the curves above the plot."""

    name: str
    curves: Sequence[Curve]
    legend: bool = True


def learning_curves(records: Iterable[Mapping[str, Any]], title: str, metric: str, smoothed: bool) -> str:
    """Draw a picture with panels for loss, a validation score, learning rate and speed over the optimizer steps.

    Values that are not finite numbers are omitted, and so are panels without values.

    Args:
        records: records of metrics.jsonl.
        title: title of the picture.
        metric: validation score to draw. If it is `loss`, which has its own panel, or if no record contains it, another
            score from the records is drawn.
        smoothed: True if the training loss includes label smoothing. The legend says so, because the training loss is
            then not comparable with the validation loss.
    Returns:
        The SVG document.
    """
    return _picture([panel for panel in _panels(list(records), metric, smoothed) if panel.curves], title=title)


def compared_curves(runs: Mapping[str, Sequence[Records]], title: str, metric: str, smoothed: bool) -> str:
    """Draw the curves of several runs in the same panels, one colour for each name.

    Args:
        runs: records of metrics.jsonl by the name of the run; for a name of several runs, those of each of them.
        title, metric, smoothed: see `learning_curves`.
    Returns:
        The SVG document.
    """
    return _picture(*_compared_panels(runs, metric, smoothed), title=title)


def plot_curves(*runs: str | Path) -> Figure:
    """Draw the learning curves of a run, or of several runs in the same panels, as a figure of matplotlib.

    This shows the same curves as the run's curves.svg. Values of a training in progress are those so far.

    Args:
        runs: run directories. The first one decides which validation score is drawn.
    """
    figure = new_figure(layout="constrained")
    paths = [Path(run).absolute() for run in runs]
    sections = [stored_recipe(path).training for path in paths]
    records = [[record for _, record in log_records(path / LOG_FILE)] for path in paths]
    names = [path.name if len({other.name for other in paths}) == len(paths) else str(run)
             for path, run in zip(paths, runs, strict=True)]
    metric, smoothed = sections[0].best_metric, any(section.label_smoothing > 0 for section in sections)
    panels = [panel for panel in _panels(records[0], metric, smoothed) if panel.curves] if len(runs) == 1 else \
        _compared_panels({name: [log] for name, log in zip(names, records, strict=True)}, metric, smoothed)[0]
    if not panels:
        raise CheckpointError(f"{runs[0]}: nothing has been logged yet. Try again after training.log_every steps.")
    colours = dict(zip(("training", "validation", "average"), LIGHT[3:], strict=True)) | {
        f"system{number}": colour for number, colour in enumerate(SYSTEMS)}
    figure.set_size_inches(8, 0.5 + 2.3 * len(panels))
    grid = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    for axes, panel in zip(grid, panels, strict=True):
        for curve in panel.curves:
            colour, _, dashed = curve.kind.partition(" ")
            axes.plot(*zip(*curve.points, strict=True), color=colours[colour], linestyle="--" if dashed else "-",
                      marker="o" if curve.marked or len(curve.points) == 1 else "", markersize=3.5, linewidth=1.4,
                      label=curve.name)
        axes.set_title(panel.name, loc="left", fontsize="medium")
        axes.grid(alpha=0.3)
        if panel.legend or panel is panels[0]:
            axes.legend(fontsize="small", frameon=False)
    grid[-1].set_xlim(left=0)
    grid[-1].set_xlabel("optimizer steps")
    figure.suptitle(names[0] if len(runs) == 1 else f"{len(runs)} runs", fontsize="large")
    return figure


def require_matplotlib(remedy: str = "") -> None:
    """Raise UserError if matplotlib is not installed. remedy: another way to get the picture."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise UserError(f"a picture needs matplotlib: pip install matplotlib.{remedy}") from error


def new_figure(**arguments: Any) -> Figure:
    """Return an empty figure of matplotlib. A notebook shows it as a picture, also without `%matplotlib inline`."""
    require_matplotlib()
    from matplotlib.figure import Figure

    figure = Figure(**arguments)
    # A method of this figure only: a subclass would be another type than the one that users know.
    vars(figure)["_repr_png_"] = partial(as_png, figure, 72)
    return figure


def as_png(figure: Figure, dpi: int) -> bytes:
    """Return a figure as a PNG picture. Print one warning about all characters that no font of the picture has."""
    png = io.BytesIO()
    with warnings.catch_warnings(record=True) as caught:
        warnings.filterwarnings("always", "Glyph .* missing")
        figure.savefig(png, format="png", dpi=dpi, bbox_inches="tight")
    missing = set()
    for one in caught:
        if glyph := re.match(r"Glyph (\d+) .* missing from font", str(one.message)):
            missing.add(chr(int(glyph[1])))
        else:
            warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)
    if missing:
        console.warn(f"no installed font has {' '.join(sorted(missing))}: the picture shows frames instead. "
                     "Install a font with these characters, such as fonts-noto-cjk for Chinese, Japanese and Korean.")
    return png.getvalue()


def _compared_panels(runs: Mapping[str, Sequence[Records]], metric: str, smoothed: bool
                     ) -> tuple[list[Panel], list[tuple[str, str]]]:
    """Return the panels that compare several runs, and the name and the kind of their curves."""
    panels: dict[str, list[Curve]] = {}
    kinds = [f"system{number % len(SYSTEMS)}{' dashed' if number >= len(SYSTEMS) else ''}"
             for number in range(len(runs))]
    for kind, (run, logs) in zip(kinds, runs.items(), strict=True):
        for panel in (panel for records in logs for panel in _panels(list(records), metric, smoothed)):
            for curve in panel.curves:
                # Loss and score have several curves for each run. Each kind of curve gets a panel that all runs share.
                name = panel.name if panel.name in (RATE, SPEED) else f"{panel.name.split(':')[0]}, {curve.name}"
                panels.setdefault(name, []).append(Curve(run, kind, curve.points, curve.marked))
    return [Panel(name, curves, legend=False) for name, curves in panels.items()], list(zip(runs, kinds, strict=True))


def _picture(panels: Sequence[Panel], legend: Sequence[tuple[str, str]] = (), *, title: str) -> str:
    """Return the SVG document. legend: (name, class) of the curves, if all panels share a legend."""
    rows = _legend_rows(legend)
    top = TITLE_HEIGHT + LEGEND_HEIGHT * len(rows)
    last = max((step for panel in panels for curve in panel.curves for step, _ in curve.points), default=0)
    height = top + len(panels) * (ABOVE + PLOT_HEIGHT + BELOW) + FOOTER_HEIGHT
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
             f'height="{height}" role="img">', f"<title>{_text(title)}</title>",
             f"<style>{STYLE}{SYSTEMS_STYLE if legend else ''}</style>",
             f'<rect class="paper" width="{WIDTH}" height="{height}"/>',
             f'<text class="title" x="{LEFT}" y="24">{_text(title)}</text>']
    for number, row in enumerate(rows):
        y = TITLE_HEIGHT + LEGEND_HEIGHT * number + 12
        parts += [element for left, name, kind in row for element in _legend_entry(left, y, name, kind)]
    for number, panel in enumerate(panels):
        parts += _render_panel(panel, top + number * (ABOVE + PLOT_HEIGHT + BELOW) + ABOVE, last)
    if panels:
        bottom = height - FOOTER_HEIGHT - BELOW
        parts += [f'<text class="step" x="{_x(tick, last):.1f}" y="{bottom + 18}" text-anchor="middle">'
                  f"{_number(tick)}</text>" for tick in ticks(0, last) if tick <= max(last, 1)]
        parts.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{bottom + 38}" text-anchor="middle">optimizer steps'
                     "</text>")
    else:
        parts.append(f'<text x="{LEFT}" y="52">Nothing has been logged yet.</text>')
    return "\n".join([*parts, "</svg>\n"])


def draw_curves(run: Path, metric: str, smoothed: bool) -> None:
    """Draw the curves of a run's whole log into its curves.svg. If this fails, print a warning.

    Args:
        metric, smoothed: see `learning_curves`.
    """
    path = run / CURVES
    try:
        records = [record for _, record in log_records(run / LOG_FILE)]
        replace_file(path, learning_curves(records, run.absolute().name, metric, smoothed).encode())
    except (OSError, CheckpointError) as error:
        console.warn(f"{path} cannot be drawn, but the training continues: {error}")


def ticks(low: float, high: float) -> list[float]:
    """Return the ticks of an axis from `low` to `high`: multiples of 1, 2 or 5 times a power of ten.

    The first tick is at most `low`, the last at least `high`. If `low` and `high` are equal, the axis gets a margin of
    a tenth of their value on both sides; if they are 0, the axis reaches from 0 to 1.
    """
    largest = max(abs(low), abs(high))
    if high - low <= 1e-9 * largest:
        margin = largest / 10 or 1.0
        low, high = (low - margin if low < 0 or low > margin else 0.0), high + margin
    min_distance = (high - low) / TICKS
    power = 10.0 ** math.floor(math.log10(min_distance))
    distance = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= min_distance * (1 - 1e-9))
    first, last = math.floor(low / distance + 1e-9), math.ceil(high / distance - 1e-9)
    return [float(f"{number * distance:.12g}") for number in range(first, last + 1)]


def _panels(records: Sequence[Mapping[str, Any]], metric: str, smoothed: bool) -> list[Panel]:
    scores = [metric, "bleu", "chrf", "exact", "perplexity"] if metric != "loss" else ["bleu", "chrf", "exact"]
    validations = [record for record in records if record.get("kind") == "validation"]
    drawn = next((score for score in scores if any(_finite(record.get(score)) for record in validations)), scores[0])
    return [
        Panel("loss: mean −log p of a target token",
              _curves(records, "loss", training="training (smoothed labels)" if smoothed else "training",
                      validation="validation", average="average of checkpoints")),
        Panel(SCORE_NAMES.get(drawn, drawn),
              _curves(records, drawn, validation="validation", average="average of checkpoints")),
        Panel(RATE, _curves(records, "learning_rate", training="training")),
        Panel(SPEED, _curves(records, "tokens_per_second", training="training")),
    ]


def _curves(records: Sequence[Mapping[str, Any]], value: str, **names: str) -> list[Curve]:
    """Return a curve of `value` for each kind of log records that contain `value`. names: curve name by kind."""
    curves = []
    for kind, name in names.items():
        points = sorted((record["step"], float(record[value])) for record in records
                        if record.get("kind") == kind and _finite(record.get("step")) and _finite(record.get(value)))
        if points:
            curves.append(Curve(name, kind, _downsample(points), marked=kind != "training"))
    return curves


def _finite(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _downsample(points: list[Point]) -> list[Point]:
    """Keep only the lowest and the highest point of each group of consecutive points, and the two ends of the curve."""
    if len(points) <= MAX_POINTS:
        return points
    size = math.ceil(2 * len(points) / MAX_POINTS)
    groups = [points[begin:begin + size] for begin in range(0, len(points), size)]
    kept = {extreme(group, key=lambda point: point[1]) for group in groups for extreme in (min, max)}
    return sorted({points[0], points[-1], *kept})


def _render_panel(panel: Panel, top: int, last: int) -> list[str]:
    """Return the SVG elements of a panel. top: y of the upper edge of its plot. last: step at the right edge."""
    values = [value for curve in panel.curves for _, value in curve.points]
    value_ticks = ticks(min(values), max(values))
    low, high = value_ticks[0], value_ticks[-1]

    def y(value: float) -> float:
        return top + PLOT_HEIGHT * (high - value) / (high - low)

    parts = [f'<g class="panel"><text x="{LEFT}" y="{top - 12}">{_text(panel.name)}</text>']
    for tick in value_ticks:
        parts.append(f'<path class="grid" d="M{LEFT} {y(tick):.1f}H{WIDTH - RIGHT}"/><text class="value" '
                     f'x="{LEFT - 8}" y="{y(tick) + 4:.1f}" text-anchor="end">{_number(tick)}</text>')
    parts += [f'<path class="grid" d="M{_x(tick, last):.1f} {top}V{top + PLOT_HEIGHT}"/>'
              for tick in ticks(0, last) if tick <= max(last, 1)]
    left = float(WIDTH - RIGHT)
    for curve in reversed(panel.curves if panel.legend else []):
        left -= CHARACTER_WIDTH * len(curve.name)
        parts += _legend_entry(left, top - 12, curve.name, curve.kind)
        left -= 40
    for curve in panel.curves:
        pixels = [(_x(step, last), y(value)) for step, value in curve.points]
        if len(pixels) > 1:
            parts.append(f'<polyline class="{curve.kind} curve" points="'
                         + " ".join(f"{across:.1f},{down:.1f}" for across, down in pixels) + '"/>')
        if curve.marked or len(pixels) == 1:
            parts += [f'<circle class="{curve.kind}" cx="{across:.1f}" cy="{down:.1f}" r="3"><title>step {step:,}: '
                      f"{value:.5g}</title></circle>"
                      for (across, down), (step, value) in zip(pixels, curve.points, strict=True)]
    return [*parts, "</g>"]


def _legend_entry(left: float, y: float, name: str, kind: str) -> list[str]:
    """Return an entry of the legend: a name at `left`, and a sample of the curve's line before the name."""
    return [f'<text x="{left:.1f}" y="{y}">{_text(name)}</text>',
            f'<polyline class="{kind}" points="{left - 24:.1f},{y - 4} {left - 6:.1f},{y - 4}"/>']


def _legend_rows(legend: Sequence[tuple[str, str]]) -> list[list[tuple[float, str, str]]]:
    """Divide names and classes into rows that fit the width of the picture: (left, name, class)."""
    rows: list[list[tuple[float, str, str]]] = []
    left = float(WIDTH)
    for name, kind in legend:
        width = CHARACTER_WIDTH * len(name) + 40
        if left + width > WIDTH - RIGHT or not rows:
            rows.append([])
            left = LEFT + 24.0
        rows[-1].append((left, name, kind))
        left += width
    return rows


def _x(step: float, last: int) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * step / max(last, 1)


def _number(value: float) -> str:
    return f"{value:,.10g}"


def _text(text: str) -> str:
    return escape(escape_control_characters(text))
