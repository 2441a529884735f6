"""Progress bars and log lines, at every width of a terminal."""

import io
import re
from types import SimpleNamespace

import pytest
from rich.console import Console

from seq2seq import console

METRICS = ["loss 5.127", "perplexity 97.27", "epoch 12", "12,345 tokens/s", "learning rate 1.23e-04", "gradient 0.71"]
WIDTHS = [60, 80, 120, 200]


class Clock:
    """Clock that tests can set."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(console.time, "monotonic", clock)
    monkeypatch.setattr(console._ProgressState.__init__, "__defaults__", (clock,))
    return clock


def shown_on_terminal(monkeypatch, width, job, **environment):
    """Return the last screen of a terminal of this width, line by line."""
    file = io.StringIO()
    monkeypatch.setattr(console, "_console", Console(file=file, force_terminal=True, width=width, soft_wrap=True,
                                                     highlight=False, color_system=None, _environ={}))
    job()
    frames = [frame for frame in re.split(r"\x1b\[2K|\x1b\[1A|\x1b\[\?25[lh]|\r", file.getvalue()) if frame.strip()]
    return [line for line in frames[-1].split("\n") if line.strip()]


def training(clock, total=100_000, done=99_900 - 50):
    with console.progress("training", total, done, "steps") as advance:
        for _ in range(50):
            clock.now += 480
            advance(1)
        advance(0, METRICS)


@pytest.mark.parametrize("width", WIDTHS)
def test_steps_rate_and_time_left_are_shown_at_any_width(monkeypatch, clock, width):
    # 100 steps of 480 s are left: 13.3 hours
    line, = shown_on_terminal(monkeypatch, width, lambda: training(clock))
    assert len(line) <= width
    for part in ("99,900/100,000", "480 s/step", "13.3 h left", *(["loss 5.127"] if width >= 80 else [])):
        assert part in line


def test_the_bar_and_other_figures_come_where_there_is_room(monkeypatch, clock):
    lines = {width: shown_on_terminal(monkeypatch, width, lambda: training(clock))[0] for width in WIDTHS}
    assert "━" not in lines[60] and all("━" * 8 in lines[width] for width in (80, 120, 200))
    assert "training" in lines[80] and "perplexity" not in lines[80]
    assert "perplexity 97.27" in lines[120] and "gradient" not in lines[120]
    assert all(figure in lines[200] for figure in METRICS)


def test_in_a_very_narrow_terminal_the_line_is_cut_at_its_end(monkeypatch, clock):
    line, = shown_on_terminal(monkeypatch, 30, lambda: training(clock))
    assert "99,900/100,000 steps" in line and len(line) <= 30


@pytest.mark.parametrize("width", WIDTHS)
def test_a_job_of_lines_shows_count_rate_and_time_left(monkeypatch, clock, width):
    def job():
        with console.progress("translating", 1_000_000) as advance:
            for _ in range(7):
                clock.now += 11
                advance(1_100)

    line, = shown_on_terminal(monkeypatch, width, job)
    assert len(line) <= width
    for part in ("transl", "7,700/1,000,000 lines", "100 lines/s", "2.8 h left"):
        assert part in line


def test_a_job_whose_length_nobody_knows_shows_count_and_rate(monkeypatch, clock):
    def job():
        with console.progress("reading a/long/path/of/a/\x1b[31m/train.de-en.\nde", None, unit="pairs") as advance:
            clock.now += 5
            advance(55_000)

    line, = shown_on_terminal(monkeypatch, 60, job)
    assert "55,000 pairs  11,000 pairs/s" in line and "left" not in line and len(line) <= 60
    assert line[2:].startswith("reading a/long") and "\x1b" not in line and "…" in line


def test_items_are_counted_as_they_pass(monkeypatch, clock):
    def job():
        for number in console.with_progress("reading", range(2_500), "pairs"):
            clock.now += number == 7

    assert logged(monkeypatch, job) == []
    line, = shown_on_terminal(monkeypatch, 80, job)
    assert "2,500 pairs" in line


def logged(monkeypatch, job):
    file = io.StringIO()
    monkeypatch.setattr(console, "_console", Console(file=file, width=80, soft_wrap=True, highlight=False))
    job()
    return file.getvalue().splitlines()


def test_a_log_has_a_whole_line_whenever_there_are_new_figures(monkeypatch, clock):
    def job():
        with console.progress("training", 100, 40, "steps") as advance:
            for _ in range(2):
                for _ in range(5):
                    clock.now += 2
                    advance(1)
                advance(0, METRICS)

    first, second = logged(monkeypatch, job)
    assert first == ("training  45/100 steps  0.5 steps/s  2 min left  loss 5.127  perplexity 97.27  epoch 12  "
                     "12,345 tokens/s  learning rate 1.23e-04  gradient 0.71")
    assert second.startswith("training  50/100 steps  0.5 steps/s  2 min left  loss 5.127")


def test_a_log_has_a_line_a_minute_of_a_job_without_figures(monkeypatch, clock):
    def job():
        with console.progress("translating", 700) as advance:
            for _ in range(7):
                clock.now += 25
                advance(100)

    assert logged(monkeypatch, job) == ["translating  300/700 lines  4 lines/s  2 min left",
                                        "translating  600/700 lines  4 lines/s  25 s left"]


def test_the_rate_is_that_of_the_last_ten_minutes(clock):
    state = console._ProgressState("training", 10_000, 0, "steps", clock)
    for _ in range(1000):
        clock.now += 1
        state.advance(1)
    for _ in range(601):
        clock.now += 1
        state.advance(3)
    assert state.rate() == pytest.approx(3) and len(state._samples) < 700


@pytest.mark.parametrize(("seconds", "text"), [(0, "0 s"), (99, "99 s"), (100, "2 min"), (5940, "99 min"),
                                               (5971, "1.7 h"), (360_000, "4.2 days")])
def test_durations_are_in_the_unit_that_fits(seconds, text):
    assert console.format_duration(seconds) == text


LONG_PATH = "/a" + "/directory" * 9 + "/file-name.txt"


@pytest.mark.parametrize("width", [40, 80])
def test_a_terminal_breaks_messages_between_words_and_a_pipe_does_not_break_them(monkeypatch, width):
    message = f"{LONG_PATH} has 1,009 lines, and {LONG_PATH}.de has 1,013. Run the step that wrote them again [bold]."
    lines = shown_on_terminal(monkeypatch, width, lambda: console.warn(message))
    assert " ".join(lines).split() == ["warning:", *message.split()], "no word is broken"
    assert all(len(line) <= width for line in lines if LONG_PATH not in line)
    file = io.StringIO()
    monkeypatch.setattr(console, "_console", Console(file=file, width=width, highlight=False))
    console.print_message(message)
    assert file.getvalue() == f"{message}\n"


# In a notebook


class Display:
    """IPython.display, which keeps all that a display has shown, the oldest first."""

    def __init__(self):
        self.shown = []

    def display(self, data, raw, display_id):
        assert raw and display_id
        self.shown.append([data])
        return SimpleNamespace(update=lambda data, raw: self.shown[-1].append(data))


@pytest.fixture
def notebook(monkeypatch):
    display = Display()
    shell = SimpleNamespace(kernel=object())
    monkeypatch.setitem(console.sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setitem(console.sys.modules, "IPython.display", display)
    return display


def test_a_notebook_has_one_line_for_a_job_and_the_jobs_inside(notebook, clock):
    with console.progress("training", 100, 40, "steps") as advance:
        for _ in range(50):
            clock.now += 0.1
            advance(1, ["loss < 5"])
        with console.progress("translating", 7) as inner:
            clock.now += 1
            inner(3)
    line, = notebook.shown
    texts = [data["text/plain"] for data in line]
    assert 7 < len(line) < 20, "0.5 s lie between two updates"
    assert "translating  3/7 lines  3 lines/s  1 s left" in texts
    assert texts[-1] == "training  90/100 steps  10 steps/s  1 s left  loss < 5"
    assert '<progress value="90" max="100">' in line[-1]["text/html"] and "loss &lt; 5" in line[-1]["text/html"]
    with console.progress("reading", None):
        pass
    assert [len(line) for line in notebook.shown[1:]] == [2] and "<progress" not in notebook.shown[1][0]["text/html"]


def test_other_ranks_and_terminals_of_ipython_show_no_bar_of_a_notebook(notebook, monkeypatch):
    console.silence()
    try:
        with console.progress("training", 7) as advance:
            advance(7)
    finally:
        console.silence(False)
    monkeypatch.setitem(console.sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: object()))
    with console.progress("training", 7) as advance:
        advance(7)
    assert notebook.shown == []


def test_a_table_of_a_notebook_is_escaped():
    table = console.html_table([["<b>", "a\x1b"]], ["x & y"], "<i>")
    assert all(text in table for text in ("&lt;b&gt;", "a\\x1b", "x &amp; y", "<caption>&lt;i&gt;</caption>"))
