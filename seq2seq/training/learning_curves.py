"""The learning curves of a run as SVG, from the records of its log.

The picture is text, so training needs no plotting library, and its colours follow the viewer's light or dark theme.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from seq2seq import console
from seq2seq.console import escape_control_characters
from seq2seq.errors import CheckpointError
from seq2seq.storage.atomic import replace_file
from seq2seq.storage.run_directory import LOG_FILE, log_records

Point = tuple[int, float]

CURVES = "curves.svg"

# Pixels: of the picture, of one panel's plot, and around it.
WIDTH, PLOT_HEIGHT = 800, 180
LEFT, RIGHT, ABOVE, BELOW, TITLE, FOOT = 70, 20, 34, 12, 36, 42
CHARACTER = 6.6
"""Mean width of a character of the labels; for placing the legend."""
MOST_POINTS = 700
"""A line of more points than the plot has pixels is thinned."""
LARGEST = 1e300
"""Numbers beyond it, infinity and NaN are left out."""
SMALLEST = 1e-300
"""A smaller difference is none: fractions of it are 0, which has no logarithm."""
TICKS = 6
"""Ticks of an axis, about."""
SCORE_NAMES = {"bleu": "BLEU", "chrf": "chrF", "exact": "exact matches, %", "perplexity": "perplexity"}

# Colours of paper, text, grid and the three kinds of curves. Plain rules, because not every viewer knows CSS variables.
LIGHT = ("#ffffff", "#1f2328", "#d8dee4", "#8250df", "#0969da", "#bc4c00")
DARK = ("#0d1117", "#e6edf3", "#30363d", "#c297ff", "#58a6ff", "#ffa657")
COLOURS = """\
.paper {{ fill: {0}; }} text {{ fill: {1}; }} .grid {{ stroke: {2}; }}
.training {{ stroke: {3}; }} circle.training {{ fill: {3}; }}
.validation {{ stroke: {4}; }} circle.validation {{ fill: {4}; }}
.average {{ stroke: {5}; }} circle.average {{ fill: {5}; }}
"""
STYLE = f"""\
text {{ font: 12px system-ui, sans-serif; }} .title {{ font-size: 15px; }}
polyline {{ fill: none; stroke-width: 1.6; stroke-linejoin: round; }}
{COLOURS.format(*LIGHT)}@media (prefers-color-scheme: dark) {{
{COLOURS.format(*DARK)}}}
"""


@dataclass(frozen=True)
class Curve:
    """One line of a panel. kind: kind of the records, which decides the colour. points: (step, value), by step."""

    name: str
    kind: str
    points: Sequence[Point]


@dataclass(frozen=True)
class Panel:
    """Curves that share a vertical axis."""

    name: str
    curves: Sequence[Curve]


def learning_curves(records: Iterable[Mapping[str, Any]], title: str, metric: str, smoothed: bool) -> str:
    """Draw loss, score and learning rate over the steps.

    Values that are not finite numbers are left out, and so is a panel without any.

    Args:
        records: of metrics.jsonl.
        metric: the score to draw; where the records lack it, and for `loss`, which is drawn anyway, the first that
            they have.
        smoothed: the training loss is of smoothed labels, so its curve is not comparable with that of the validation.
    Returns:
        The picture, an XML document.
    """
    panels = [panel for panel in _panels(list(records), metric, smoothed) if panel.curves]
    last = max((step for panel in panels for curve in panel.curves for step, _ in curve.points), default=0)
    height = TITLE + len(panels) * (ABOVE + PLOT_HEIGHT + BELOW) + FOOT
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
             f'height="{height}" role="img">', f"<title>{_text(title)}</title>", f"<style>{STYLE}</style>",
             f'<rect class="paper" width="{WIDTH}" height="{height}"/>',
             f'<text class="title" x="{LEFT}" y="24">{_text(title)}</text>']
    for number, panel in enumerate(panels):
        parts += _drawn(panel, TITLE + number * (ABOVE + PLOT_HEIGHT + BELOW) + ABOVE, last)
    if panels:
        bottom = height - FOOT - BELOW
        parts += [f'<text class="step" x="{_x(tick, last):.1f}" y="{bottom + 18}" text-anchor="middle">'
                  f"{_number(tick)}</text>" for tick in ticks(0, last) if tick <= max(last, 1)]
        parts.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{bottom + 38}" text-anchor="middle">optimizer steps'
                     "</text>")
    else:
        parts.append(f'<text x="{LEFT}" y="52">Nothing has been logged yet.</text>')
    return "\n".join([*parts, "</svg>\n"])


def draw_curves(run: Path, metric: str, smoothed: bool) -> None:
    """Write the learning curves of a run's whole log into its curves.svg; warn where that cannot be done.

    Arguments: as `learning_curves`.
    """
    path = run / CURVES
    try:
        records = [record for _, record in log_records(run / LOG_FILE)]
        replace_file(path, learning_curves(records, run.absolute().name, metric, smoothed).encode())
    except OSError as error:
        console.warn(f"{path} cannot be written: {error.strerror}. The training goes on; its figures are in "
                     f"{LOG_FILE}, and the next validation draws the curves again.")
    except CheckpointError as error:
        console.warn(f"{path} cannot be drawn: {error} The training goes on; it reads nothing from that file.")


def ticks(low: float, high: float) -> list[float]:
    """Round numbers (1, 2 or 5 times a power of ten) at equal distances, the first at most `low`, the last at least
    `high`. Where both are equal, a tenth of them is left free on both sides; where both are 0, they are 0 to 1."""
    largest = max(abs(low), abs(high))
    if high - low <= max(1e-9 * largest, SMALLEST):
        room = largest / 10 if largest > SMALLEST else 1.0
        low, high = (low - room if low < 0 or low > room else 0.0), high + room
    rough = (high - low) / TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    distance = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))
    first, last = math.floor(low / distance + 1e-9), math.ceil(high / distance - 1e-9)
    return [float(f"{number * distance:.12g}") for number in range(first, last + 1)]


def _panels(records: list[Mapping[str, Any]], metric: str, smoothed: bool) -> list[Panel]:
    scores = [metric, "bleu", "chrf", "exact", "perplexity"] if metric != "loss" else ["bleu", "chrf", "exact"]
    validations = [record for record in records if record.get("kind") == "validation"]
    shown = next((score for score in scores if any(_finite(record.get(score)) for record in validations)), scores[0])
    return [
        Panel("loss: mean −log p of a target token",
              _curves(records, "loss", training="training (smoothed labels)" if smoothed else "training",
                      validation="validation", average="average of checkpoints")),
        Panel(SCORE_NAMES.get(shown, shown),
              _curves(records, shown, validation="validation", average="average of checkpoints")),
        Panel("learning rate", _curves(records, "learning_rate", training="training")),
    ]


def _curves(records: list[Mapping[str, Any]], value: str, **names: str) -> list[Curve]:
    """A curve for each kind of record that has the value; names: of the curves, by kind."""
    curves = []
    for kind, name in names.items():
        points = sorted((record["step"], float(record[value])) for record in records
                        if record.get("kind") == kind and _finite(record.get("step")) and _finite(record.get(value)))
        if points:
            curves.append(Curve(name, kind, _thinned(points)))
    return curves


def _finite(value: Any) -> bool:
    return isinstance(value, int | float) and abs(value) < LARGEST


def _thinned(points: list[Point]) -> list[Point]:
    """Of each group of neighbours the lowest and the highest point, so that no peak is lost; the ends stay."""
    if len(points) <= MOST_POINTS:
        return points
    size = math.ceil(2 * len(points) / MOST_POINTS)
    groups = [points[begin:begin + size] for begin in range(0, len(points), size)]
    kept = {extreme(group, key=lambda point: point[1]) for group in groups for extreme in (min, max)}
    return sorted({points[0], points[-1], *kept})


def _drawn(panel: Panel, top: int, last: int) -> list[str]:
    """The elements of a panel whose plot begins at `top`; last: step at the right edge."""
    values = [value for curve in panel.curves for _, value in curve.points]
    marks = ticks(min(values), max(values))
    low, high = marks[0], marks[-1]

    def y(value: float) -> float:
        return top + PLOT_HEIGHT * (high - value) / (high - low)

    parts = [f'<g class="panel"><text x="{LEFT}" y="{top - 12}">{_text(panel.name)}</text>']
    for mark in marks:
        parts.append(f'<path class="grid" d="M{LEFT} {y(mark):.1f}H{WIDTH - RIGHT}"/><text class="value" '
                     f'x="{LEFT - 8}" y="{y(mark) + 4:.1f}" text-anchor="end">{_number(mark)}</text>')
    parts += [f'<path class="grid" d="M{_x(tick, last):.1f} {top}V{top + PLOT_HEIGHT}"/>'
              for tick in ticks(0, last) if tick <= max(last, 1)]
    left = float(WIDTH - RIGHT)
    for curve in reversed(panel.curves):                                        # the legend
        left -= CHARACTER * len(curve.name)
        parts.append(f'<text x="{left:.1f}" y="{top - 12}">{_text(curve.name)}</text>'
                     f'<polyline class="{curve.kind}" points="{left - 24:.1f},{top - 16} {left - 6:.1f},{top - 16}"/>')
        left -= 40
    for curve in panel.curves:
        places = [(_x(step, last), y(value)) for step, value in curve.points]
        if len(places) > 1:
            parts.append(f'<polyline class="{curve.kind} curve" points="'
                         + " ".join(f"{across:.1f},{down:.1f}" for across, down in places) + '"/>')
        if curve.kind != "training" or len(places) == 1:                        # validations are few
            parts += [f'<circle class="{curve.kind}" cx="{across:.1f}" cy="{down:.1f}" r="3"><title>step {step:,}: '
                      f"{value:.5g}</title></circle>"
                      for (across, down), (step, value) in zip(places, curve.points, strict=True)]
    return [*parts, "</g>"]


def _x(step: float, last: int) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * step / max(last, 1)


def _number(value: float) -> str:
    return f"{value:,.10g}"


def _text(text: str) -> str:
    return escape(escape_control_characters(text))
