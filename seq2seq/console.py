"""Messages and progress bars. They are written to standard error, so that standard output contains only results.

A notebook shows standard error as if it were an error. There, messages are written to standard output, and progress is
one line that is updated in place.
"""

from __future__ import annotations

import html
import os
import socket
import sys
import textwrap
import time
import unicodedata
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn
from rich.table import Column

Item = TypeVar("Item")

RATE_WINDOW_SECONDS = 600
"""Period over which the rate of progress is averaged. It is long, so that the estimate of the time left includes the
time for validations."""
LOG_INTERVAL_SECONDS = 60
"""Minimum time between a log line without new metrics and the line before it. `progress` explains log lines."""
FIELD_SEPARATOR = "  "
BAR_COLUMNS = 24
"""Width of the bar in columns of the terminal. It is smaller if the figures need the room."""

FIRST_RANK_SECONDS = 10
"""Time for which a rank keeps its error back; see `print_error`."""
NOTEBOOK_SECONDS = 0.5
"""Minimum time between two updates of the line in a notebook."""


def _notebook_display() -> Any:
    """Return the module IPython.display if this process runs the cells of a notebook, otherwise None."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return sys.modules.get("IPython.display") if hasattr(shell, "kernel") else None


_is_new: Callable[[str], bool] | None = None                                    # see `silence`
_console = Console(stderr=_notebook_display() is None, force_jupyter=False, highlight=False, emoji=False)


class Advance(Protocol):
    """Function that advances a progress bar by `amount`, and shows new metrics beside the bar if there are any.

    metrics: formatted metrics, the most important first. On a terminal, those at the end are shown if they fit.
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
    """Print a warning of any rank on standard error, above the progress bar if there is one."""
    _print_of_rank(f"warning: {message}", "yellow")


def print_error(message: str, once: bool = True) -> None:
    """Print the error that ends a command, of any rank, on standard error.

    A rank that is not connected to the others waits first: if the first rank of its machine has the same error,
    `torchrun` ends this rank meanwhile, and the error is printed once.

    once: False: print it at once, whether another rank has printed it or not.
    """
    if once and is_silent() and _is_new is None and os.environ.get("LOCAL_RANK", "0") != "0":
        time.sleep(FIRST_RANK_SECONDS)
    _print_of_rank(message, once=once)


def _print_of_rank(message: str, style: str = "", once: bool = True) -> None:
    """Print a message, which another rank than the main rank begins with its name. There, it is written at once, so
    that no other process can break the line, and only if no rank has printed it before."""
    new = not once or _is_new is None or _is_new(message)
    if not is_silent():
        print_text(message, style)
    elif new:
        os.write(2, f"{name_of_rank()}: {escape_control_characters(message)}\n".encode())


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
    with _bar_for_terminal(state) as advance:
        yield advance


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

    def fields(self) -> list[str]:
        """Return the texts for the most important figures: count, rate, time left, first metric."""
        rate = self.rate()
        fields = [f"{self.done:,}{'' if self.total is None else f'/{self.total:,}'} {self.unit}"]
        if rate is not None:
            fields.append(self._per_second(rate))
            if self.total is not None:
                fields.append(f"{format_duration(max(self.total - self.done, 0) / rate)} left")
        return fields + self.metrics[:1]

    def _per_second(self, rate: float) -> str:
        if rate < 0.5:
            return f"{1 / rate:.3g} s/{self.unit.removesuffix('s')}"
        return f"{rate:,.0f} {self.unit}/s" if rate >= 99.5 else f"{rate:.3g} {self.unit}/s"


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


@contextmanager
def _bar_for_terminal(state: _ProgressState) -> Iterator[Advance]:
    """Show a line on the terminal: description, bar, the `fields` of the state, and the other metrics, which are cut if
    the terminal is too narrow. Of a long description, the beginning is shown."""
    columns = [SpinnerColumn("line" if _console.options.ascii_only else "dots"),
               TextColumn("{task.description}", markup=False,
                          table_column=Column(no_wrap=True, max_width=_console.width // 4)),
               *([] if state.total is None else [BarColumn(BAR_COLUMNS)]),
               TextColumn("{task.fields[fields]}", markup=False),
               TextColumn("{task.fields[metrics]}", markup=False, table_column=Column(no_wrap=True, ratio=1))]

    def texts() -> dict[str, Any]:
        return {"fields": FIELD_SEPARATOR.join(state.fields()), "metrics": FIELD_SEPARATOR.join(state.metrics[1:])}

    with Progress(*columns, console=_console, transient=True, expand=True) as bar:
        task = bar.add_task(state.description, total=state.total, completed=state.done, **texts())

        def advance(amount: int, metrics: Sequence[str] = ()) -> None:
            state.advance(amount, metrics)
            bar.update(task, completed=state.done, **texts())

        yield advance


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


def silence(quiet: bool = True, is_new: Callable[[str], bool] | None = None) -> None:
    """Suppress all later messages of this rank but warnings and errors, because the main rank prints the same messages.
    False: print all again.

    is_new: returns False for a warning or an error that another rank has had; None: the ranks are not connected.
    """
    global _is_new
    _console.quiet, _is_new = quiet, is_new


def is_silent() -> bool:
    """Return True if `silence` was called in this process, as in all ranks except the main rank."""
    return _console.quiet


def name_of_rank() -> str:
    """Return the name of this process of `torchrun` for messages."""
    return f"process {os.environ.get('RANK', 0)} on {socket.gethostname()}"
