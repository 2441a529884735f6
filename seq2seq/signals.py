"""Stopping by signal: what is begun is finished and saved."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TypeVar

Item = TypeVar("Item")


class Stopped(Exception):
    """A signal asked to stop, and everything has been saved."""

    def __init__(self, number: int, message: str) -> None:
        super().__init__(message)
        self.exit_code = 128 + number


def signal_name(number: int) -> str:
    """SIGKILL for 9, and so on."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


class StopRequest:
    """Which signal has asked to stop, if any. message: what is to be said then, such as how to go on."""

    def __init__(self, message: str = "") -> None:
        self.number: int | None = None
        self.message = message
        self.waiting = False

    def obey(self) -> None:
        """Raises Stopped if a signal has asked for it. Call it when everything is saved."""
        if self.number is not None:
            raise Stopped(self.number, self.message)

    def while_waiting(self, items: Iterable[Item]) -> Iterator[Item]:
        """The items. A signal that comes while one is waited for, perhaps for ever, is obeyed at once."""
        iterator = iter(items)
        while True:
            self.waiting = True
            try:
                self.obey()
                item = next(iterator)
            except StopIteration:
                return
            finally:
                self.waiting = False
            yield item


@contextmanager
def stopping_by_signal(finishing: str = "this step and saving", message: str = "", at_once: bool = True,
                       ) -> Iterator[StopRequest]:
    """SIGINT and SIGTERM ask once for a stop, of which the block is to take notice; the second one ends the process at
    once.

    Args:
        finishing: what is finished before that. message: of the request.
        at_once: False where `torchrun` adds a signal of its own to that of the terminal, and ends what is too slow
            itself.
    """
    request = StopRequest(message)

    def ask(number: int, frame: FrameType | None) -> None:
        if request.number is not None and at_once:
            os._exit(128 + number)
        request.number = number
        if request.waiting:
            request.obey()
        # Not through a stream, which may be in the middle of a write.
        again = "; once more to exit at once" if at_once else ""
        os.write(2, f"\nfinishing {finishing}{again}\n".encode())

    previous = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield request
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
