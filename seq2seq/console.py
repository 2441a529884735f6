"""Messages and progress bars. They are written to standard error, so that standard output contains only results.

A notebook shows standard error as if it were an error. There, messages are written to standard output, and progress is
one line that is updated in place.
"""

from __future__ import annotations

import html
import sys
import textwrap
import time
import unicodedata
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.segment import Segment
from rich.spinner import Spinner
from rich.text import Text

Item = TypeVar("Item")

RATE_WINDOW_SECONDS = 600
"""Period over which the rate of progress is averaged. It is long, so that the estimate of the time left includes the
time for validations."""
LOG_INTERVAL_SECONDS = 60
"""Minimum time between a log line without new metrics and the line before it. `progress` explains log lines."""
FIELD_SEPARATOR = "  "
BAR_COLUMNS = (8, 24)
"""Minimum and maximum width of the bar in columns of the terminal."""
MIN_DESCRIPTION_COLUMNS = 8
"""The description is shown only if more than this number of columns is free for it and its separator."""

NOTEBOOK_SECONDS = 0.5
"""Minimum time between two updates of the line in a notebook."""


def _notebook_display() -> Any:
    """Return the module IPython.display if this process runs the cells of a notebook, otherwise None."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return sys.modules.get("IPython.display") if hasattr(shell, "kernel") else None


_console = Console(stderr=_notebook_display() is None, force_jupyter=False, highlight=False, emoji=False)


class Advance(Protocol):
    """Function that advances a progress bar by `amount`, and shows new metrics beside the bar if there are any.

    metrics: formatted metrics, the most important first. The first one is always shown, the others if they fit.
    """

    def __call__(self, amount: int, metrics: Sequence[str] = ()) -> None: ...


def escape_control_characters(text: str) -> str:
    """Replace lone surrogates and control characters, except newlines and tabs, by escape sequences such as \\x1b.
    Untrusted text, such as file names, then cannot control the terminal."""
    return "".join(repr(character)[1:-1] if unicodedata.category(character) in ("Cc", "Cs") and character not in "\n\t"
                   else character for character in text)


def wrapped(text: str, columns: int) -> str:
    """Break lines that are too long for a terminal between words, never inside a word or a path."""
    return "\n".join(textwrap.fill(line, columns, expand_tabs=False, replace_whitespace=False, break_long_words=False,
                                   break_on_hyphens=False) for line in text.split("\n"))


def print_text(text: str, style: str = "", console: Console | None = None) -> None:
    """Print text. On a terminal, long lines are `wrapped`; a file or a pipe gets the lines as they are.

    console: console to print on; None: standard error.
    """
    out, escaped = console or _console, escape_control_characters(text)
    out.print(wrapped(escaped, out.width) if out.is_terminal else escaped, style=style, markup=False, soft_wrap=True)


def print_message(message: str) -> None:
    """Print a message on standard error, above the progress bar if there is one."""
    print_text(message)


def warn(message: str) -> None:
    """Print a warning on standard error, above the progress bar if there is one."""
    print_text(f"warning: {message}", "yellow")


@contextmanager
def progress(description: str, total: int | None, done: int = 0, unit: str = "lines") -> Iterator[Advance]:
    """Show a progress bar during the `with` block: count, rate, time left and the metrics of the last `advance`.

    In a notebook, the bar remains as it was at the end of the block. If standard error is not a terminal, log lines are
    printed instead: one for each call of `advance` with metrics, and at most one a minute for calls without metrics.

    Args:
        total: number of units of the whole job, including `done`; None: unknown.
        done: number of units that were processed before this call.
        unit: name of the units, in the plural.
    """
    description = escape_control_characters(description).replace("\n", r"\n").replace("\t", r"\t")
    state = _ProgressState(description, total, done, unit)
    if (display := _notebook_display()) and not is_silent():
        with _notebook_line.show(state, display) as advance:
            yield advance
        return
    if not _console.is_terminal:
        yield _advance_with_log_lines(state)
        return
    with Live(_ProgressLine(state), console=_console, transient=True, refresh_per_second=10):
        yield state.advance


def with_progress(description: str, items: Iterable[Item], unit: str) -> Iterator[Item]:
    """Yield the items unchanged, and count them in a progress bar."""
    with progress(description, None, unit=unit) as advance:
        count = 0
        for count, item in enumerate(items, start=1):
            yield item
            if count % 1000 == 0:                                               # a call for each item is slow
                advance(1000)
        advance(count % 1000)


def format_duration(seconds: float) -> str:
    """Format a duration in a suitable unit: 45 s, 12 min, 3.4 h, 2.5 days."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    if seconds < 99.5 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 99.5 * 3600 else f"{seconds / 86400:.1f} days"


class _ProgressState:
    """Number of finished units of a job, and the text fields of its progress bar."""

    def __init__(self, description: str, total: int | None, done: int, unit: str,
                 clock: Callable[[], float] = time.monotonic) -> None:
        self.description, self.total, self.done, self.unit, self.clock = description, total, done, unit, clock
        self.metrics: list[str] = []
        self._samples = deque([(clock(), done)])                               # (time, units done)

    def advance(self, amount: int, metrics: Sequence[str] = ()) -> None:
        """Add `amount` to the number of units done. If there are new metrics, replace the old ones."""
        self.done += amount
        self.metrics = [escape_control_characters(metric) for metric in metrics] or self.metrics
        now = self.clock()
        if len(self._samples) > 1 and now - self._samples[-2][0] < 1:
            self._samples.pop()
        self._samples.append((now, self.done))
        while len(self._samples) > 2 and now - self._samples[1][0] > RATE_WINDOW_SECONDS:
            self._samples.popleft()

    def rate(self) -> float | None:
        """Return the units per second in the last RATE_WINDOW_SECONDS; None if no unit was done in this time."""
        (began, before), (now, done) = self._samples[0], self._samples[-1]
        return (done - before) / (now - began) if now > began and done > before else None

    def fields(self, short: bool = False) -> list[str]:
        """Return the fields that are shown at any width: count, rate, time left, first metric. short: omit units."""
        rate = self.rate()
        fields = [f"{self.done:,}{'' if self.total is None else f'/{self.total:,}'}{'' if short else f' {self.unit}'}"]
        if rate is not None:
            fields.append(self._per_second(rate, short))
            if self.total is not None:
                fields.append(f"{format_duration(max(self.total - self.done, 0) / rate)} left")
        return fields + self.metrics[:1]

    def _per_second(self, rate: float, short: bool) -> str:
        if rate < 0.5:
            return f"{1 / rate:.3g} s/{self.unit.removesuffix('s')}"
        number = f"{rate:,.0f}" if rate >= 99.5 else f"{rate:.3g}"
        return f"{number}/s" if short else f"{number} {self.unit}/s"


def _advance_with_log_lines(state: _ProgressState) -> Advance:
    """Return a function that advances `state`. It prints a log line for new metrics, or if the last is a minute old."""
    last_printed = state.clock()

    def advance(amount: int, metrics: Sequence[str] = ()) -> None:
        nonlocal last_printed
        state.advance(amount, metrics)
        if metrics or state.clock() - last_printed >= LOG_INTERVAL_SECONDS:
            last_printed = state.clock()
            print_message(FIELD_SEPARATOR.join([state.description, *state.fields(), *state.metrics[1:]]))

    return advance


class _ProgressLine:
    """Progress bar that fits the terminal. It always shows the `fields` of the state. If the description, the bar or
    the other metrics do not fit, they are omitted.

    rich's own progress bar is not used, because it makes all fields too short to read in a narrow terminal.
    """

    def __init__(self, state: _ProgressState) -> None:
        self.state, self._spinner = state, Spinner("dots")

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        state, width = self.state, options.max_width
        spinner = Text(" ") if options.ascii_only else self._spinner.render(console.get_time())
        assert isinstance(spinner, Text)
        columns_left = width - 2
        fields = state.fields()
        if _columns(fields) > columns_left:
            fields = state.fields(short=True)
        if _columns(fields) > columns_left:                                       # wraps over several lines
            yield from _wrap(fields, width)
            return
        columns_left -= _columns(fields)
        description = Text(state.description)
        if columns_left > MIN_DESCRIPTION_COLUMNS:
            description.truncate(columns_left - len(FIELD_SEPARATOR), overflow="ellipsis")
            columns_left -= description.cell_len + len(FIELD_SEPARATOR)
        else:
            description = Text()
        bar = 0
        if state.total is not None and columns_left >= BAR_COLUMNS[0] + len(FIELD_SEPARATOR):
            bar = min(columns_left - len(FIELD_SEPARATOR), BAR_COLUMNS[1])
            columns_left -= bar + len(FIELD_SEPARATOR)
        for metric in state.metrics[1:]:
            if _columns([metric]) + len(FIELD_SEPARATOR) > columns_left:
                break
            columns_left -= _columns([metric]) + len(FIELD_SEPARATOR)
            fields.append(metric)
        parts = [description] if description else []
        if bar:
            parts.append(_render_bar(state, bar, console, options))
        yield Text.assemble(spinner, " ", Text(FIELD_SEPARATOR).join([*parts, *map(Text, fields)]))


class _NotebookLine:
    """Line of a notebook that shows a job, or the innermost of nested jobs, such as a validation in a training."""

    def __init__(self) -> None:
        self._jobs: list[_ProgressState] = []
        self._handle: Any = None
        self._drawn = 0.0

    @contextmanager
    def show(self, job: _ProgressState, display: Any) -> Iterator[Advance]:
        """Show the job during the `with` block. display: the module IPython.display."""

        def advance(amount: int, metrics: Sequence[str] = ()) -> None:
            job.advance(amount, metrics)
            if job.clock() - self._drawn >= NOTEBOOK_SECONDS:
                self._draw(job)

        self._jobs.append(job)
        if self._handle is None:
            self._handle = display.display(_bar_for_notebook(job), raw=True, display_id=True)
        try:
            yield advance
        finally:
            self._jobs.pop()
            self._draw(self._jobs[-1] if self._jobs else job)
            if not self._jobs:
                self._handle = None

    def _draw(self, job: _ProgressState) -> None:
        self._drawn = job.clock()
        self._handle.update(_bar_for_notebook(job), raw=True)


_notebook_line = _NotebookLine()


def _bar_for_notebook(job: _ProgressState) -> dict[str, str]:
    """Return a progress bar as text and as HTML, by MIME type."""
    text = FIELD_SEPARATOR.join([job.description, *job.fields(), *job.metrics[1:]])
    bar = "" if job.total is None else f'<progress value="{min(job.done, job.total)}" max="{job.total}"></progress> '
    return {"text/plain": text, "text/html": f"<div>{bar}{html.escape(text).replace(FIELD_SEPARATOR, ' &ensp;')}</div>"}


def html_table(rows: Iterable[Sequence[str]], head: Sequence[str] = (), caption: str = "") -> str:
    """Return a table for a notebook. It has no colours of its own, so that it can be read in light and dark themes.

    rows: texts of the cells, which are escaped. head: headings of the columns. caption: heading of the table.
    """
    def row(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f'<{tag} dir="auto" style="text-align: start">{_escaped(cell)}</{tag}>'
                                for cell in cells) + "</tr>"

    return ("<table>" + (f"<caption>{_escaped(caption)}</caption>" if caption else "")
            + (f"<thead>{row(head, 'th')}</thead>" if head else "")
            + f"<tbody>{''.join(row(cells, 'td') for cells in rows)}</tbody></table>")


def _escaped(text: str) -> str:
    return html.escape(escape_control_characters(text))


def _columns(fields: Sequence[str]) -> int:
    """Return the number of columns that the fields occupy side by side."""
    return Text(FIELD_SEPARATOR.join(fields)).cell_len


def _wrap(fields: Sequence[str], width: int) -> Iterator[Text]:
    line: list[str] = []
    for field in fields:
        if line and _columns([*line, field]) > width:
            yield Text(FIELD_SEPARATOR.join(line))
            line = []
        line.append(field)
    yield Text(FIELD_SEPARATOR.join(line))


def _render_bar(state: _ProgressState, columns: int, console: Console, options: ConsoleOptions) -> Text:
    bar = ProgressBar(total=state.total, completed=min(state.done, state.total or 0), width=columns)
    segments: list[Segment] = list(console.render(bar, options.update(width=columns)))
    text = Text.assemble(*((segment.text, segment.style or "") for segment in segments))
    text.pad_right(columns - text.cell_len)
    return text


def silence(quiet: bool = True) -> None:
    """Suppress all later messages of this rank, because the main rank prints the same messages. False: print again."""
    _console.quiet = quiet


def is_silent() -> bool:
    """Return True if `silence` was called in this process, as in all ranks except the main rank."""
    return _console.quiet
