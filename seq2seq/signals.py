"""Graceful stopping by signal, after the current work is finished and saved."""

from __future__ import annotations

import math
import os
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TypeVar

Item = TypeVar("Item")

SIGKILL: signal.Signals = getattr(signal, "SIGKILL", signal.SIGTERM)
"""Signal that ends a process immediately. On Windows, which has no SIGKILL, this is SIGTERM."""


TICK_SECONDS = 0.5
"""Interval after a stop signal at which it is checked again whether the process waits."""


class Stopped(Exception):
    """Exception that ends the process after a stop signal. Finished work is saved. number: number of this signal."""

    def __init__(self, number: int, message: str) -> None:
        super().__init__(message)
        self.exit_code = 128 + number


def signal_name(number: int) -> str:
    """Return the name of a signal, such as SIGKILL for 9."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


class StopRequest:
    """Request to stop.

    number: number of the signal; None until a signal arrives. message: text of the exception Stopped.
    waits: True if `interruptible` is used. waiting: True while it waits for the next item. A signal then raises Stopped
        immediately.
    """

    def __init__(self, message: str = "") -> None:
        self.number: int | None = None
        self.message = message
        self.waits = self.waiting = False

    def raise_if_requested(self) -> None:
        """Raise Stopped if a signal has arrived. Call this only after saving."""
        if self.number is not None:
            raise Stopped(self.number, self.message)

    def interruptible(self, items: Iterable[Item]) -> Iterator[Item]:
        """Yield the items. A signal that arrives during the wait for the next item raises Stopped immediately."""
        iterator, self.waits = iter(items), True
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
def stopping_by_signal(finishing: str = "this step and saving", message: str = "", exit_on_second: bool = True,
                       max_seconds: float = 0) -> Iterator[StopRequest]:
    """Turn SIGINT and SIGTERM into a stop request, which the `with` block must check.

    Args:
        finishing: description of the work that is finished before stopping, for the message on standard error; "": no
            message.
        message: text of the exception Stopped. The `with` block can change it: `request.message`.
        exit_on_second: True: a second signal ends the process immediately. False: a second signal does not end the
            process. `torchrun` needs False: after Ctrl-C, every process gets a signal from the terminal and a second
            one from `torchrun`, which later kills slow processes itself.
        max_seconds: number of seconds from the first signal until Stopped is raised, wherever the `with` block then is.
            So saved files must be intact at any time. 0: no limit. On Windows, there is never a limit.
    """
    request = StopRequest(message)
    ends = math.inf

    def on_signal(number: int, frame: FrameType | None) -> None:
        if request.number is not None and exit_on_second:
            os._exit(128 + number)
        nonlocal ends
        if request.number is None:
            ends = time.monotonic() + (max_seconds or math.inf)
            # Not in a training, whose libraries might not bear interrupted system calls.
            _set_timer(TICK_SECONDS if request.waits or max_seconds else 0)
        request.number = number
        if request.waiting:
            request.raise_if_requested()
        # sys.stderr is not used, because the signal may have interrupted a write to this buffered stream.
        hint = "; press Ctrl-C again to exit at once" if exit_on_second else ""
        if finishing:
            os.write(2, f"\nfinishing {finishing}{hint}\n".encode())

    def on_timer(number: int, frame: FrameType | None) -> None:
        # A signal that arrives just before the process begins to wait for the next item does not end this wait.
        if request.waiting or time.monotonic() >= ends:
            request.raise_if_requested()

    previous = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    if sys.platform != "win32":
        previous[signal.SIGALRM] = signal.signal(signal.SIGALRM, on_timer)
    try:
        yield request
    finally:
        _set_timer(0)
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextmanager
def stopping_by_ctrl_c() -> Iterator[None]:
    """Turn Ctrl-C outside `stopping_by_signal` into the exception Stopped. The same command must resume the work."""
    try:
        yield
    except KeyboardInterrupt:
        raise Stopped(signal.SIGINT, "stopped; run the same command again to resume") from None


def _set_timer(seconds: float) -> None:
    """Send SIGALRM to this process every few seconds; 0: never. On Windows, which has no such timer, do nothing."""
    if sys.platform != "win32":
        signal.setitimer(signal.ITIMER_REAL, seconds, seconds)
