"""What is told to a person: always on standard error, so that standard output carries results alone."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

_console = Console(stderr=True, highlight=False, soft_wrap=True, emoji=False)


class Advance(Protocol):
    """Called with how much more is done and, if there is news, what stands beside the bar."""

    def __call__(self, amount: int, news: str = "") -> None: ...


def printable(text: str) -> str:
    """Text for a terminal: control characters but line ends and tabs are escaped, as \\x1b, because names from files
    of strangers could otherwise command the terminal."""
    return "".join(repr(character)[1:-1] if unicodedata.category(character) in ("Cc", "Cs") and character not in "\n\t"
                   else character for character in text)


def say(message: str) -> None:
    """A line for the person, above a progress bar if one is shown."""
    _console.print(printable(message), markup=False)


def warn(message: str) -> None:
    """A line that should not be overlooked."""
    _console.print(f"warning: {printable(message)}", markup=False, style="yellow")


@contextmanager
def progress(description: str, total: int | None, done: int = 0) -> Iterator[Advance]:
    """A bar with rate and time left while the block runs; nothing where standard error is not a terminal."""
    if not _console.is_terminal:
        yield lambda amount, news="": None
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(bar_width=24),
               MofNCompleteColumn(), TextColumn("{task.fields[news]}", markup=False), TimeRemainingColumn(compact=True))
    with Progress(*columns, console=_console, transient=True) as bar:
        task = bar.add_task(printable(description), total=total, completed=done, news="")

        def advance(amount: int, news: str = "") -> None:
            bar.update(task, advance=amount)
            if news:
                bar.update(task, news=printable(news))

        yield advance


def be_silent() -> None:
    """Say nothing from here on: another process says it already."""
    _console.quiet = True


def is_silent() -> bool:
    """True where only the main rank writes to the terminal, and this is another one."""
    return _console.quiet


def is_terminal() -> bool:
    """Whether a person watches: otherwise the log is printed line by line."""
    return _console.is_terminal
