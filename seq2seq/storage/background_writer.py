"""Writing of files beside other work."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any


class BackgroundWriter:
    """Thread that writes one thing after another. Use it as a context manager: the end of the block waits for it.

    An error of the thread is raised by the next call of any method, and at the end of the block.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="writing")
        self._writing: Future[None] | None = None

    def start(self, write: Callable[[], None]) -> None:
        """Wait until the last thing is written, and call `write` in the thread."""
        self.wait()
        self._writing = self._thread.submit(write)

    def is_writing(self) -> bool:
        if self._writing is not None and self._writing.done():
            self.wait()
        return self._writing is not None

    def wait(self) -> None:
        """Wait until everything is written."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def __enter__(self) -> BackgroundWriter:
        return self

    def __exit__(self, *error: Any) -> None:
        self.wait()
