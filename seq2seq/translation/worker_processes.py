"""Translation by several workers with one thread each, on many cores faster than many threads for one batch."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from functools import partial
from itertools import chain
from multiprocessing.connection import Connection, wait
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Any, Unpack, cast

import torch

from seq2seq.errors import OptionError, UserError, require_iterable
from seq2seq.recipe import DecodingOptions, DecodingSection, decoding_with
from seq2seq.signals import signal_name
from seq2seq.translation.search_setup import Request
from seq2seq.translation.translator import (
    ReportProgress,
    Translation,
    Translator,
    growing_blocks,
    numbered,
    refuse_compile,
)


class TranslatorPool:
    """Pool of workers that translate with one model; results are in order, as from one `Translator`.

    In int8 the workers are threads that share the weights, because the kernels release the global interpreter lock. In
    other precisions, whose steps are many calls from Python, they are processes with a copy of the model each.

    >>> with TranslatorPool("runs/multi30k_de_en", workers=4) as pool:
    ...     for found in pool.translate_stream(lines):
    ...         print(found[0].text)
    """

    decoding: DecodingSection
    precision: str
    device: str

    def __init__(self, path: str | Path, workers: int, device: str = "auto", precision: str = "auto",
                 threads: int = 1, ensemble: Sequence[str | Path] = (), fusion: str | Path | None = None,
                 compile: bool = False) -> None:
        """Start the workers and wait until the model is loaded. Arguments: as in `Translator.load`.

        Raises:
            UserError: as `Translator.load`, or a worker process ended, or `workers` is below 1.
        """
        require_iterable(ensemble, "ensemble")
        refuse_compile(compile)
        if workers < 1:
            raise OptionError(f"{workers} workers translate nothing; make it 1 or more")
        models: dict[str, Any] = {"ensemble": list(ensemble), "fusion": fusion}
        self.workers = workers
        self.shared: Translator | None = None
        if precision == "int8":
            loaded = Translator.load(path, device, precision, threads, **models)
            if loaded.precision == "int8":
                self.shared = loaded
                self.executor = ThreadPoolExecutor(workers, "translator", partial(torch.set_num_threads, threads))
                self.decoding, self.precision, self.device = loaded.decoding, loaded.precision, str(loaded.device)
                return
            precision = loaded.precision                                        # int8 is not available; see the message
        context = multiprocessing.get_context("spawn")
        self.pipes: list[Connection] = []
        self.processes = []
        # First and last line, from 1, that each process is translating.
        self.lines: dict[Connection, tuple[int, int]] = {}
        for _ in range(workers):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, str(path), device, precision, threads, models),
                                      daemon=True)
            process.start()
            theirs.close()
            self.pipes.append(ours)
            self.processes.append(process)
        try:
            ready = [self._receive(pipe)[1] for pipe in self.pipes]
        except BaseException:
            self.close()
            raise
        self.decoding, self.precision, self.device = ready[0]

    def translate_stream(self, lines: Iterable[str | Request], block_lines: int = 8192, *,
                         progress: ReportProgress | None = None, **decoding: Unpack[DecodingOptions]
                         ) -> Iterator[list[Translation]]:
        """See `Translator.translate_stream`; `block_lines` are those of all processes together."""
        return chain.from_iterable(self.translate_blocks(lines, block_lines, progress=progress, **decoding))

    def translate_blocks(self, lines: Iterable[str | Request], block_lines: int = 8192, *, begin: int = 0,
                         progress: ReportProgress | None = None, **decoding: Unpack[DecodingOptions]
                         ) -> Iterator[list[list[Translation]]]:
        """See `Translator.translate_blocks`; `block_lines` are those of all processes together."""
        decoding_with(self.decoding, decoding)
        blocks = growing_blocks(numbered(lines, begin), block_lines, begin)
        return (self._translate(block, progress, decoding) for block in blocks)

    def _translate(self, lines: Sequence[Request], progress: ReportProgress | None,
                   decoding: DecodingOptions) -> list[list[Translation]]:
        # Each worker gets every n-th line by length, so that all have equal work.
        order = sorted(range(len(lines)), key=lambda number: len(lines[number].text))
        if self.shared is not None:
            return self._translate_in_threads(lines, order, progress, decoding)
        shares = {pipe: order[first :: len(self.pipes)] for first, pipe in enumerate(self.pipes)}
        waiting = [pipe for pipe, share in shares.items() if share]
        for pipe in waiting:
            numbers = [line.number + 1 for line in (lines[place] for place in shares[pipe]) if line.number is not None]
            self.lines[pipe] = min(numbers), max(numbers)
            try:
                pipe.send(([lines[number] for number in shares[pipe]], decoding))
            except BrokenPipeError:
                raise self._death(pipe) from None
        found: list[list[Translation]] = [[] for _ in lines]
        refused: Exception | None = None
        while waiting:
            for pipe in cast(list[Connection], wait(waiting)):
                kind, content = self._receive(pipe)
                if kind == "progress":
                    if progress:
                        progress(content)
                    continue
                waiting.remove(pipe)
                if kind == "refused":
                    refused = refused or content
                    continue
                for number, translations in zip(shares[pipe], content, strict=True):
                    found[number] = translations
        if refused:                                                             # after all answers have been read
            raise refused
        return found

    def _translate_in_threads(self, lines: Sequence[Request], order: list[int], progress: ReportProgress | None,
                              decoding: DecodingOptions) -> list[list[Translation]]:
        assert self.shared is not None
        lock = Lock()

        def advance(amount: int) -> None:
            with lock:
                if progress:
                    progress(amount)

        shares = [order[first :: self.workers] for first in range(self.workers)]
        waiting = [self.executor.submit(self.shared.translate, [lines[number] for number in share], progress=advance,
                                        **decoding) for share in shares]
        wait_for(waiting)
        found: list[list[Translation]] = [[] for _ in lines]
        for share, done in zip(shares, waiting, strict=True):
            for number, translations in zip(share, done.result(), strict=True):
                found[number] = translations
        return found

    def _receive(self, pipe: Connection) -> tuple[str, Any]:
        try:
            kind, content = pipe.recv()
        except (EOFError, ConnectionResetError):
            raise self._death(pipe) from None
        if kind == "error":
            raise content
        return kind, content

    def _death(self, pipe: Connection) -> UserError:
        """Return the error for a process that has ended: the cause, the lines, and what to do."""
        process = self.processes[self.pipes.index(pipe)]
        process.join()
        code = process.exitcode or 0
        at = "while it loaded the model" if pipe not in self.lines else \
            "at lines {:,} to {:,}".format(*self.lines[pipe])
        if code == -signal.SIGKILL:
            cause, remedy = "was killed (SIGKILL)", ("This is how the system ends processes when memory runs out: use "
                                                     "fewer --workers or a smaller --batch-tokens.")
        elif code < 0:
            cause = f"was ended by {signal_name(-code)}"
            remedy = "Translate these lines with one worker to see more, and report it."
        else:
            cause, remedy = f"ended with exit code {code}", "Translate these lines with one worker to see more."
        resume = (" With --output FILE, what was translated before is in FILE.part, and the same command with --resume "
                  "goes on from there.") if pipe in self.lines else ""
        return UserError(f"a worker {cause} {at}. {remedy}{resume}")

    def close(self) -> None:
        """End the workers; processes are terminated at once."""
        if self.shared is not None:
            self.executor.shutdown(cancel_futures=True)
            return
        for pipe in self.pipes:
            pipe.close()
        for process in self.processes:
            process.terminate()
            process.join()

    def __enter__(self) -> TranslatorPool:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()


def _serve(pipe: Connection, path: str, device: str, precision: str, threads: int, models: dict[str, Any]) -> None:
    # Ctrl-C reaches every process of the terminal; the parent process ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        translator = Translator.load(path, device, precision, threads, **models)
        pipe.send(("ready", (translator.decoding, translator.precision, str(translator.device))))
        while True:
            lines, decoding = pipe.recv()
            try:
                found = translator.translate(lines, progress=lambda amount: pipe.send(("progress", amount)), **decoding)
            except (UserError, ValueError) as error:                            # of these lines; others can be had
                pipe.send(("refused", error))
                continue
            pipe.send(("done", found))
    except (EOFError, BrokenPipeError):
        return                                                                  # the parent has closed the pipe
    except Exception as error:
        pipe.send(("error", error))
