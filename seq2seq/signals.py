"""Graceful stopping by signal, after the current work is finished and saved."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TypeVar

Item = TypeVar("Item")


class Stopped(Exception):
    """Stopped by a signal, after everything has been saved."""

    def __init__(self, number: int, message: str) -> None:
        super().__init__(message)
        self.exit_code = 128 + number


def signal_name(number: int) -> str:
    """Return the name of a signal: SIGKILL for 9."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


class StopRequest:
    """Request to stop. number: the signal, or None so far. message: for the user, such as how to resume."""

    def __init__(self, message: str = "") -> None:
        self.number: int | None = None
        self.message = message
        self.waiting = False

    def raise_if_requested(self) -> None:
        """Raise Stopped if a signal has come. Call it when everything is saved."""
        if self.number is not None:
            raise Stopped(self.number, self.message)

    def interruptible(self, items: Iterable[Item]) -> Iterator[Item]:
        """Yield the items; raises Stopped at once if a signal comes while waiting for the next one."""
        iterator = iter(items)
        while True:
            self.waiting = True
            try:
                self.raise_if_requested()
                item = next(iterator)
            except StopIteration:
                return
            finally:
                self.waiting = False
            yield item


@contextmanager
def stopping_by_signal(finishing: str = "this step and saving", message: str = "", at_once: bool = True,
                       ) -> Iterator[StopRequest]:
    """Turn the first SIGINT or SIGTERM into a stop request, which the block must obey; a second one exits at once.

    Args:
        finishing: work that is finished first, in words. message: of the request.
        at_once: False: a second signal does not exit. For `torchrun`, which sends a signal of its own in addition to
            the terminal's, and kills slow processes itself.
    """
    request = StopRequest(message)

    def ask(number: int, frame: FrameType | None) -> None:
        if request.number is not None and at_once:
            os._exit(128 + number)
        request.number = number
        if request.waiting:
            request.raise_if_requested()
        # Written to the descriptor, because the stream may be in the middle of a write.
        again = "; once more to exit at once" if at_once else ""
        os.write(2, f"\nfinishing {finishing}{again}\n".encode())

    previous = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield request
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
