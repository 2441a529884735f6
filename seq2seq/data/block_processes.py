"""Work on the blocks of a text, shared by processes of this machine.

The processes are new ones (not forks, which CUDA and threads forbid) that import nothing of the caller's program, so a
script needs no `if __name__ == "__main__"`. They end with the process that started them, also if it is killed, because
their standard input then ends.
"""

from __future__ import annotations

import os
import pickle
import queue
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from itertools import chain, islice
from typing import Any, TypeVar

from seq2seq import console
from seq2seq.devices import available_cores
from seq2seq.errors import UserError
from seq2seq.signals import signal_name

Item = TypeVar("Item")
Result = TypeVar("Result")

MIN_BLOCKS = 3
"""Number of blocks from which processes are started. They need a second to start, as long as a block takes."""
PROGRAM = "from seq2seq.data.block_processes import serve; serve()"


class BlockProcesses:
    """Processes that compute a function of each block. They are started when they are needed first.

    >>> with BlockProcesses(4) as processes:
    ...     for result in processes.map(function, blocks):
    ...         print(result)
    """

    def __init__(self, count: int | None = None) -> None:
        """count: number of processes; None: one for each core that this process may use."""
        self.count = available_cores() if count is None else count
        self._processes: list[_BlockProcess] = []
        self._idle: queue.SimpleQueue[_BlockProcess] = queue.SimpleQueue()

    def __enter__(self) -> BlockProcesses:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.end()

    def map(self, function: Callable[[Item], Result], blocks: Iterable[Item]) -> Iterator[Result]:
        """Yield the function of each block, in the order of the blocks. Up to two blocks a process are read ahead.

        function: must be picklable, as must blocks and results. It is sent to each process once.
        """
        iterator = iter(blocks)
        first = list(islice(iterator, MIN_BLOCKS))
        if len(first) < MIN_BLOCKS or self.count == 1:
            yield from map(function, chain(first, iterator))
            return
        for _ in range(self.count - len(self._processes)):
            self._processes.append(_BlockProcess())
            self._idle.put(self._processes[-1])
        pickled = pickle.dumps(function, pickle.HIGHEST_PROTOCOL)
        pending: deque[Future[Any]] = deque()
        with ThreadPoolExecutor(self.count) as threads:
            try:
                for block in chain(first, iterator):
                    pending.append(threads.submit(self._call, pickled, block))
                    if len(pending) >= 2 * self.count:
                        yield pending.popleft().result()
                while pending:
                    yield pending.popleft().result()
            except BaseException:
                threads.shutdown(wait=False, cancel_futures=True)
                self.__exit__()                             # the threads wait for processes that work
                raise

    def _call(self, function: bytes, block: Any) -> Any:
        process = self._idle.get()
        try:
            return process.call(function, block)
        finally:
            self._idle.put(process)


class _BlockProcess:
    """A process, as the one that started it sees it."""

    def __init__(self) -> None:
        # Each process is one thread: sentencepiece and NumPy would otherwise start some of their own.
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen([sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                         env=environment)
        self._function = b""

    def call(self, function: bytes, block: Any) -> Any:
        """Return the result of a pickled function of a block."""
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            pickle.dump((None if function == self._function else function, block), self._process.stdin,
                        pickle.HIGHEST_PROTOCOL)
            self._process.stdin.flush()
            self._function = function
            error, found = pickle.load(self._process.stdout)
        except (EOFError, OSError, pickle.UnpicklingError) as lost:
            code = self._process.wait()
            ended = f"was ended by {signal_name(-code)}" if code < 0 else f"ended with exit code {code}"
            raise UserError(f"a process that prepares text {ended}. If memory did not suffice, use fewer processes "
                            "(--threads).") from lost
        if error is not None:
            raise error
        return found

    def end(self) -> None:
        self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(OSError):
                if pipe is not None:
                    pipe.close()
        self._process.wait()


def serve() -> None:
    """Compute what standard input asks for, until it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)                                # Ctrl-C is for the first process
    # Text that is printed by mistake must not mix with the results.
    results = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    console.silence()
    function: Callable[[Any], Any] | None = None
    with suppress(EOFError, BrokenPipeError, pickle.UnpicklingError):           # the first process was killed
        while True:
            pickled, block = pickle.load(sys.stdin.buffer)
            error, found = None, None
            try:
                if pickled is not None:
                    function = pickle.loads(pickled)
                assert function is not None
                found = function(block)
            except Exception as raised:
                error = type(raised)(str(raised)) if isinstance(raised, UserError) else raised
            pickle.dump((error, found), results, pickle.HIGHEST_PROTOCOL)
            results.flush()
