"""Threads for work that would hold the event loop: whatever takes time in proportion to the size of a request."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

T = TypeVar("T")

SMALL_THREADS, LARGE_THREADS = 8, 2
"""Number of threads for small and for large work. Large work is bounded by 2, because the event loop and the model
thread wait for each thread that runs Python code whenever they need the interpreter's lock."""


class _Work(Future[T], Generic[T]):
    """Result of a function that waits for its thread. function: None once nobody waits for the result any more, so that
    the texts of a client that has gone do not stay in memory."""

    def __init__(self, function: Callable[[], T]) -> None:
        super().__init__()
        self.function: Callable[[], T] | None = function


class _Threads:
    """Threads that take work from one queue, first in, first out. They are daemon threads: asyncio and the interpreter
    wait for those of asyncio's own executor, so that one long call would delay the end of the server."""

    def __init__(self, count: int) -> None:
        self._missing, self._lock = count, threading.Lock()
        self._queue: queue.SimpleQueue[_Work[Any]] = queue.SimpleQueue()

    def submit(self, work: _Work[Any]) -> None:
        self._queue.put(work)
        with self._lock:
            if self._missing:
                self._missing -= 1
                threading.Thread(target=self._run, name="requests", daemon=True).start()

    def _run(self) -> None:
        while True:
            self._do(self._queue.get())

    def _do(self, work: _Work[Any]) -> None:
        function = work.function
        if function is None or not work.set_running_or_notify_cancel():
            return
        try:
            work.set_result(function())
        except BaseException as error:
            work.set_exception(error)


_small, _large = _Threads(SMALL_THREADS), _Threads(LARGE_THREADS)


async def in_thread(function: Callable[[], T], large: bool) -> T:
    """Call a function in another thread, and return its result or raise its error.

    Calls wait for their turn in the order of their arrival. If the awaiting task is cancelled before the function's
    turn, the function is not called.

    large: True if the call may take more than some 10 ms. Small work never waits for large work.
    """
    work = _Work(function)
    (_large if large else _small).submit(work)
    try:
        return await asyncio.wrap_future(work)
    finally:
        work.function = None
