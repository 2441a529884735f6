"""Messages and progress bars, always on standard error, so that standard output only carries results."""

from __future__ import annotations

import time
import unicodedata
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, TypeVar

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.segment import Segment
from rich.spinner import Spinner
from rich.text import Text

Item = TypeVar("Item")

RATE_SECONDS = 600
"""Window of the mean rate, long enough for the time left to include validations."""
LOG_SECONDS = 60
"""Longest interval between log lines if standard error is not a terminal."""
GAP = "  "
BAR_COLUMNS = (8, 24)
"""Narrowest and widest bar."""
SHORTEST_DESCRIPTION = 8

_console = Console(stderr=True, highlight=False, soft_wrap=True, emoji=False)


class Advance(Protocol):
    """Function that advances a progress bar by `amount`, with new figures to show beside it, most important first.

    The first figure is always shown, the others if there is room.
    """

    def __call__(self, amount: int, figures: Sequence[str] = ()) -> None: ...


def escape_control_characters(text: str) -> str:
    """Escape control characters except line ends and tabs, as \\x1b, because untrusted file names could otherwise
    control the terminal."""
    return "".join(repr(character)[1:-1] if unicodedata.category(character) in ("Cc", "Cs") and character not in "\n\t"
                   else character for character in text)


def say(message: str) -> None:
    """Print a message, above the progress bar if one is shown."""
    _console.print(escape_control_characters(message), markup=False)


def warn(message: str) -> None:
    """Print a warning."""
    _console.print(f"warning: {escape_control_characters(message)}", markup=False, style="yellow")


@contextmanager
def progress(description: str, total: int | None, done: int = 0, unit: str = "lines") -> Iterator[Advance]:
    """Show a progress bar during the block, with count, rate, time left and the figures of the last `advance`.

    If standard error is not a terminal, prints log lines instead: with all figures when there are new ones, otherwise
    once a minute.

    Args:
        total: in `unit`; None: unknown.
        done: number already done before.
    """
    state = _State(escape_control_characters(description).replace("\n", r"\n").replace("\t", r"\t"), total, done, unit)
    if not _console.is_terminal:
        yield _log_lines(state)
        return
    with Live(_Line(state), console=_console, transient=True, refresh_per_second=10):
        yield state.advance


def with_progress(description: str, items: Iterable[Item], unit: str) -> Iterator[Item]:
    """The items as they are, with a progress bar while they are taken."""
    with progress(description, None, unit=unit) as advance:
        count = 0
        for count, item in enumerate(items, start=1):
            yield item
            if count % 1000 == 0:                                               # a call for each would take as long
                advance(1000)
        advance(count % 1000)


def duration(seconds: float) -> str:
    """Seconds in the largest unit that leaves a number above 1: 45 s, 12 min, 3.4 h, 2.5 days."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    if seconds < 99.5 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 99.5 * 3600 else f"{seconds / 86400:.1f} days"


class _State:
    """Progress of a job, with its formatted fields."""

    def __init__(self, description: str, total: int | None, done: int, unit: str,
                 clock: Callable[[], float] = time.monotonic) -> None:
        self.description, self.total, self.done, self.unit, self.clock = description, total, done, unit, clock
        self.figures: list[str] = []
        self._samples = deque([(clock(), done)])                                # (second, done), one a second at most

    def advance(self, amount: int, figures: Sequence[str] = ()) -> None:
        """Count what is done; take over new figures."""
        self.done += amount
        self.figures = [escape_control_characters(figure) for figure in figures] or self.figures
        now = self.clock()
        if len(self._samples) > 1 and now - self._samples[-2][0] < 1:
            self._samples.pop()
        self._samples.append((now, self.done))
        while len(self._samples) > 2 and now - self._samples[1][0] > RATE_SECONDS:
            self._samples.popleft()

    def rate(self) -> float | None:
        """Of units a second, lately; None as long as nothing has been done."""
        (began, before), (now, done) = self._samples[0], self._samples[-1]
        return (done - before) / (now - began) if now > began and done > before else None

    def fields(self, short: bool = False) -> list[str]:
        """Return the fields that are shown at any width: count, rate, time left, first figure. short: without units."""
        rate = self.rate()
        fields = [f"{self.done:,}{'' if self.total is None else f'/{self.total:,}'}{'' if short else f' {self.unit}'}"]
        if rate is not None:
            fields.append(self._per_second(rate, short))
            if self.total is not None:
                fields.append(f"{duration(max(self.total - self.done, 0) / rate)} left")
        return fields + self.figures[:1]

    def _per_second(self, rate: float, short: bool) -> str:
        if rate < 0.5:
            return f"{1 / rate:.3g} s/{self.unit.removesuffix('s')}"
        figure = f"{rate:,.0f}" if rate >= 99.5 else f"{rate:.3g}"
        return f"{figure}/s" if short else f"{figure} {self.unit}/s"


def _log_lines(state: _State) -> Advance:
    """Print what a bar would show as a line, with all figures if there are new ones, else once a minute."""
    said = state.clock()

    def advance(amount: int, figures: Sequence[str] = ()) -> None:
        nonlocal said
        state.advance(amount, figures)
        if figures or state.clock() - said >= LOG_SECONDS:
            said = state.clock()
            say(GAP.join([state.description, *state.fields(), *state.figures[1:]]))

    return advance


class _Line:
    """A state in the width of the terminal: what must be there first, then description, bar and figures as they fit.

    rich's own columns shrink all alike where there is little room, so that none of them can be read.
    """

    def __init__(self, state: _State) -> None:
        self.state, self._spinner = state, Spinner("dots")

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        state, width = self.state, options.max_width
        spinner = Text(" ") if options.ascii_only else self._spinner.render(console.get_time())
        assert isinstance(spinner, Text)
        room = width - 2
        fields = state.fields()
        if _columns(fields) > room:
            fields = state.fields(short=True)
        if _columns(fields) > room:                                              # on more than one line, then
            yield from _wrapped(fields, width)
            return
        room -= _columns(fields)
        description = Text(state.description)
        if room > SHORTEST_DESCRIPTION:
            description.truncate(room - len(GAP), overflow="ellipsis")
            room -= description.cell_len + len(GAP)
        else:
            description = Text()
        bar = 0
        if state.total is not None and room >= BAR_COLUMNS[0] + len(GAP):
            bar = min(room - len(GAP), BAR_COLUMNS[1])
            room -= bar + len(GAP)
        for figure in state.figures[1:]:
            if _columns([figure]) + len(GAP) > room:
                break
            room -= _columns([figure]) + len(GAP)
            fields.append(figure)
        shown = [description] if description else []
        if bar:
            shown.append(_drawn(state, bar, console, options))
        yield Text.assemble(spinner, " ", Text(GAP).join([*shown, *map(Text, fields)]))


def _columns(fields: Sequence[str]) -> int:
    """Width of a terminal that the fields take side by side."""
    return Text(GAP.join(fields)).cell_len


def _wrapped(fields: Sequence[str], width: int) -> Iterator[Text]:
    line: list[str] = []
    for field in fields:
        if line and _columns([*line, field]) > width:
            yield Text(GAP.join(line))
            line = []
        line.append(field)
    yield Text(GAP.join(line))


def _drawn(state: _State, columns: int, console: Console, options: ConsoleOptions) -> Text:
    bar = ProgressBar(total=state.total, completed=min(state.done, state.total or 0), width=columns)
    segments: list[Segment] = list(console.render(bar, options.update(width=columns)))
    drawn = Text.assemble(*((segment.text, segment.style or "") for segment in segments))
    drawn.pad_right(columns - drawn.cell_len)
    return drawn


def be_silent() -> None:
    """Say nothing from here on: another process says it already."""
    _console.quiet = True


def is_silent() -> bool:
    """True where only the main rank writes to the terminal, and this is another one."""
    return _console.quiet
