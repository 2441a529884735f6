"""Learning curves: a well-formed SVG with every finite value of the log at its position."""

import json
import math
import re
import sys
from xml.etree import ElementTree

import pytest

import seq2seq
from seq2seq.errors import CheckpointError, UserError
from seq2seq.evaluation.learning_curves import MAX_POINTS, draw_curves, learning_curves, ticks
from seq2seq.storage.run_directory import LOG_FILE, Log

SVG = "{http://www.w3.org/2000/svg}"
RECORDS = [
    {"kind": "training", "step": 20, "loss": 8.0, "learning_rate": 1e-3},
    {"kind": "training", "step": 60, "loss": 5.0, "learning_rate": 3e-3},
    {"kind": "training", "step": 100, "loss": 2.0, "learning_rate": 2e-3},
    {"kind": "validation", "step": 60, "loss": 4.0, "perplexity": 54.6, "bleu": 11.0, "chrf": 23.0},
    {"kind": "validation", "step": 100, "loss": 3.0, "perplexity": 20.1, "bleu": 17.0, "chrf": 31.0},
    {"kind": "average", "step": 100, "loss": 2.5, "perplexity": 12.2, "bleu": 19.0, "chrf": 37.0},
]


def drawn(records=RECORDS, metric="bleu", title="run", smoothed=True):
    return ElementTree.fromstring(learning_curves(records, title, metric, smoothed))


def panels(picture):
    """Read the values of all curves from the picture by the labels of its axes: {panel: {kind: [(step, value), …]}}."""
    to_step = scale([(float(text.get("x")), number(text)) for text in picture.iter(f"{SVG}text")
                     if text.get("class") == "step"])
    found = {}
    for panel in (group for group in picture.iter(f"{SVG}g") if group.get("class") == "panel"):
        to_value = scale([(float(text.get("y")) - 4, number(text)) for text in panel.iter(f"{SVG}text")
                          if text.get("class") == "value"])
        curves = found[panel.find(f"{SVG}text").text] = {}
        for circle in panel.iter(f"{SVG}circle"):
            curves.setdefault(circle.get("class"), []).append((float(circle.get("cx")), float(circle.get("cy"))))
        for line in panel.iter(f"{SVG}polyline"):
            kind, *curve = line.get("class").split()
            if curve:
                curves[kind] = [tuple(map(float, point.split(","))) for point in line.get("points").split()]
        for kind, points in curves.items():
            curves[kind] = [(to_step(x), to_value(y)) for x, y in points]
    return found


def number(text):
    return float(text.text.replace(",", ""))


def scale(labels):
    """Return a function from pixels to values, computed from the first and last label of an axis."""
    (low, first), *_, (high, last) = labels
    return lambda pixel: first + (last - first) * (pixel - low) / (high - low)


def near(points):
    # Pixels are written with one decimal.
    return [(pytest.approx(step, abs=0.1), pytest.approx(value, rel=1e-2)) for step, value in points]


def test_curves_are_drawn_at_the_positions_of_their_values():
    found = panels(drawn())
    loss, score, rate = found.values()
    assert list(found) == ["loss: mean −log p of a target token", "BLEU", "learning rate"]
    assert loss == {"training": near([(20, 8), (60, 5), (100, 2)]), "validation": near([(60, 4), (100, 3)]),
                    "average": near([(100, 2.5)])}
    assert score == {"validation": near([(60, 11), (100, 17)]), "average": near([(100, 19)])}
    assert rate == {"training": near([(20, 1e-3), (60, 3e-3), (100, 2e-3)])}


def test_a_legend_names_the_curves_of_a_panel():
    text = "".join(drawn().itertext())
    for name in ("training (smoothed labels)", "validation", "average of checkpoints", "optimizer steps"):
        assert name in text


def test_the_loss_is_labelled_smoothed_only_with_label_smoothing():
    assert "smoothed" not in "".join(drawn(smoothed=False).itertext())


@pytest.mark.parametrize(("metric", "panel"), [
    ("chrf", "chrF"), ("perplexity", "perplexity"), ("loss", "BLEU"), ("exact", "BLEU")])
def test_the_score_panel_shows_the_best_metric_or_another_measured_one(metric, panel):
    assert panel in panels(drawn(metric=metric))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, None, "high"])
def test_values_that_are_not_finite_are_left_out(value):
    found = panels(drawn([*RECORDS, {"kind": "training", "step": 80, "loss": value, "learning_rate": 2.5e-3},
                          {"kind": "validation", "step": 80, "loss": 3.5, "bleu": value}]))
    loss, score, rate = found.values()
    assert [len(curve) for curve in (loss["training"], loss["validation"], score["validation"], rate["training"])] \
        == [3, 3, 2, 4]


def test_one_point_is_a_dot():
    found = panels(drawn(RECORDS[:1]))
    assert [list(curves) for curves in found.values()] == [["training"], ["training"]]
    (step, loss), = found["loss: mean −log p of a target token"]["training"]
    assert (step, loss) == (pytest.approx(20, abs=0.1), pytest.approx(8, abs=0.1))


def test_without_validation_there_is_no_panel_of_scores():
    assert list(panels(drawn(RECORDS[:3]))) == ["loss: mean −log p of a target token", "learning rate"]


def test_without_any_record_the_picture_says_so():
    assert "Nothing has been logged yet." in "".join(drawn([]).itertext())


def test_names_of_runs_cannot_break_the_picture():
    assert "a<b> & \\x1b" in "".join(drawn(title="a<b> & \x1b").itertext())


def test_text_is_readable_on_a_dark_background():
    style = next(drawn().iter(f"{SVG}style")).text
    light, dark = style.split("@media (prefers-color-scheme: dark)")
    ink = r"text \{ fill: (#\w+); \}"
    assert re.search(ink, light)[1] != re.search(ink, dark)[1]


def test_the_curve_of_a_long_training_is_downsampled_and_keeps_its_peaks():
    records = [{"kind": "training", "step": step, "loss": 90.0 if step == 14_321 else 3.0, "learning_rate": 1.0}
               for step in range(1, 20_001)]
    points = next(iter(panels(drawn(records)).values()))["training"]
    assert len(points) <= MAX_POINTS + 2 and max(value for _, value in points) == pytest.approx(90, abs=1)
    assert (points[0][0], points[-1][0]) == (pytest.approx(1, abs=20), pytest.approx(20_000, abs=20))


@pytest.mark.parametrize(("low", "high", "expected"), [
    (0, 7200, [0, 2000, 4000, 6000, 8000]), (32.9, 43.1, [32, 34, 36, 38, 40, 42, 44]),
    (0, 0, [0, 0.2, 0.4, 0.6, 0.8, 1]), (3.0, 3.0, [2.7, 2.8, 2.9, 3.0, 3.1, 3.2, 3.3]), (-1, 1, [-1, -0.5, 0, 0.5, 1]),
    (1e-7, 3e-7, [1e-7, 1.5e-7, 2e-7, 2.5e-7, 3e-7])])
def test_ticks_are_round_and_enclose_the_values(low, high, expected):
    assert ticks(low, high) == pytest.approx(expected)


# Of a run


def test_the_curve_of_a_resumed_run_is_whole_and_has_no_step_twice(tmp_path):
    log = Log(tmp_path, 0, 0)
    for step in (20, 60, 80):
        log.write("training", step, {"loss": 160 / step})
    log.close()
    log = Log(tmp_path, 60, 2)                                                  # the checkpoint is of step 60
    log.write("training", 80, {"loss": 3.0})
    log.close()
    draw_curves(tmp_path, "bleu", True)
    (loss,) = panels(ElementTree.parse(tmp_path / "curves.svg")).values()
    assert loss["training"] == near([(20, 8), (60, 8 / 3), (80, 3)])
    assert not list(tmp_path.glob("curves.svg.*"))


def test_training_continues_with_a_warning_if_curves_cannot_be_drawn(tmp_path, capsys):
    Log(tmp_path, 0, 0).close()
    (tmp_path / "curves.svg" / "in the way").mkdir(parents=True)
    draw_curves(tmp_path, "bleu", True)
    (tmp_path / "metrics.jsonl").unlink()
    draw_curves(tmp_path, "bleu", True)
    assert capsys.readouterr().err.count(f"warning: {tmp_path}/curves.svg") == 2


# As a figure


@pytest.fixture
def make_run(tmp_path):
    """Function that writes the log and the recipe of a run, and returns its directory."""
    def make(name, records=RECORDS, smoothing=0.1):
        run = tmp_path / name
        run.mkdir(parents=True)
        (run / LOG_FILE).write_text("".join(json.dumps(record) + "\n" for record in records))
        (run / "recipe.yaml").write_text(
            "name: a\nlanguages: {source: de, target: en}\n"
            "data: {train: [{source: a, target: b}], valid: {source: a, target: b}}\n"
            f"training: {{best_metric: chrf, label_smoothing: {smoothing}}}\n")
        return run

    return make


def plotted(figure):
    """Return the points of all curves of a figure: {panel: {name: [(step, value), …]}}."""
    return {axes.get_title(loc="left"): {line.get_label(): list(zip(*line.get_data(), strict=True))
                                         for line in axes.lines} for axes in figure.axes}


def test_the_figure_has_the_curves_of_the_picture(make_run):
    figure = seq2seq.plot_curves(make_run("mine"))
    found = plotted(figure)
    assert list(found) == ["loss: mean −log p of a target token", "chrF", "learning rate"]
    assert found["loss: mean −log p of a target token"] == {
        "training (smoothed labels)": [(20, 8), (60, 5), (100, 2)], "validation": [(60, 4), (100, 3)],
        "average of checkpoints": [(100, 2.5)]}
    assert found["chrF"]["validation"] == [(60, 23), (100, 31)]
    assert figure.get_suptitle() == "mine" and figure.axes[-1].get_xlabel() == "optimizer steps"
    assert figure._repr_png_().startswith(b"\x89PNG")


def test_the_figure_of_several_runs_has_a_colour_for_each(make_run):
    runs = [make_run("one/run"), make_run("other/run", RECORDS[:4], smoothing=0)]
    figure = seq2seq.plot_curves(*runs)
    found = plotted(figure)
    assert found["chrF, validation"] == {str(runs[0]): [(60, 23), (100, 31)], str(runs[1]): [(60, 23)]}
    of_run = [{line.get_color() for axes in figure.axes for line in axes.lines if line.get_label() == str(run)}
              for run in runs]
    assert [len(colours) for colours in of_run] == [1, 1] and of_run[0] != of_run[1]


def test_a_run_without_log_lines_and_a_missing_matplotlib_are_named(make_run, monkeypatch):
    with pytest.raises(CheckpointError, match="nothing has been logged yet"):
        seq2seq.plot_curves(make_run("new", []))
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UserError, match="pip install matplotlib"):
        seq2seq.plot_curves(make_run("mine"))
