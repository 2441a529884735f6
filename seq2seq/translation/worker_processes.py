"""Translation by several workers with one thread each, which on many cores is faster than many threads for one batch.
"""

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
from typing import Any, Unpack

import torch

from seq2seq.errors import OptionError, UserError, require_iterable
from seq2seq.recipe import DecodingOptions, DecodingSection, decoding_with
from seq2seq.signals import signal_name
from seq2seq.translation.line_translator import ReportProgress, Translation
from seq2seq.translation.requests import Request, equal_shares, growing_blocks, number_requests
from seq2seq.translation.translator import Translator, refuse_compile


class TranslatorPool:
    """Pool of workers that translate with one model. Results are returned in order, as by one `Translator`.

    In int8 the workers are threads that share the weights, because the kernels release the global interpreter lock. In
    other precisions a step consists of many calls from Python, so the workers are processes, each with a copy of the
    model.

    >>> with TranslatorPool("runs/multi30k_de_en", workers=4) as pool:
    ...     for best, *_ in pool.translate_stream(lines):
    ...         print(best.text)
    """

    decoding: DecodingSection
    precision: str
    device: str

    def __init__(self, path: str | Path, workers: int, device: str = "auto", precision: str = "auto",
                 threads: int = 1, ensemble: Sequence[str | Path] = (), fusion: str | Path | None = None,
                 compile: bool = False) -> None:
        """Start the workers and wait until the model is loaded.

        Args:
            workers: number of workers. threads: number of CPU threads of each worker. Other arguments: as in
                `Translator.load`.
        Raises:
            UserError: as `Translator.load`, or a worker process ended, or `workers` is below 1.
        """
        require_iterable(ensemble, "ensemble")
        refuse_compile(compile)
        if workers < 1:
            raise OptionError(f"workers is {workers}; set it to 1 or more")
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
            precision = loaded.precision                                        # without int8; `load` has said why
        context = multiprocessing.get_context("spawn")
        self.pipes: list[Connection] = []
        self.processes = []
        # First and last number, from 1, of the lines that each process is translating.
        self.lines: dict[Connection, tuple[int, int]] = {}
        for worker in range(workers):
            pipe, child_pipe = context.Pipe()
            process = context.Process(target=_serve, daemon=True, args=(
                child_pipe, str(path), _device_of_worker(worker, device), precision, threads, models))
            process.start()
            child_pipe.close()
            self.pipes.append(pipe)
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
        """See `Translator.translate_stream`. block_lines: maximum number of lines of a block, shared by all workers."""
        return chain.from_iterable(self.translate_blocks(lines, block_lines, progress=progress, **decoding))

    def translate_blocks(self, lines: Iterable[str | Request], block_lines: int = 8192, *, begin: int = 0,
                         progress: ReportProgress | None = None, **decoding: Unpack[DecodingOptions]
                         ) -> Iterator[list[list[Translation]]]:
        """See `Translator.translate_blocks`. block_lines: maximum number of lines of a block, shared by all workers."""
        decoding_with(self.decoding, decoding)
        blocks = growing_blocks(number_requests(lines, begin), block_lines, begin)
        return (self._translate(block, progress, decoding) for block in blocks)

    def _translate(self, lines: Sequence[Request], progress: ReportProgress | None,
                   decoding: DecodingOptions) -> list[list[Translation]]:
        if self.shared is not None:
            return self._translate_in_threads(lines, progress, decoding)
        shares = dict(zip(self.pipes, equal_shares(lines, len(self.pipes)), strict=True))
        waiting = [pipe for pipe, share in shares.items() if share]
        for pipe in waiting:
            numbers = [number + 1 for index in shares[pipe] if (number := lines[index].number) is not None]
            self.lines[pipe] = min(numbers), max(numbers)
            try:
                pipe.send(([lines[index] for index in shares[pipe]], decoding))
            except BrokenPipeError:
                raise self._process_ended(pipe) from None
        translations: list[list[Translation]] = [[] for _ in lines]
        refused: Exception | None = None
        while waiting:
            for pipe in [pipe for pipe in wait(waiting) if isinstance(pipe, Connection)]:
                kind, content = self._receive(pipe)
                if kind == "progress":
                    if progress:
                        progress(content)
                    continue
                waiting.remove(pipe)
                if kind == "refused":
                    refused = refused or content
                    continue
                for index, n_best in zip(shares[pipe], content, strict=True):
                    translations[index] = n_best
        if refused:                                                             # once all processes have answered
            raise refused
        return translations

    def _translate_in_threads(self, lines: Sequence[Request], progress: ReportProgress | None,
                              decoding: DecodingOptions) -> list[list[Translation]]:
        assert self.shared is not None
        lock = Lock()

        def advance(amount: int) -> None:
            with lock:
                if progress:
                    progress(amount)

        shares = equal_shares(lines, self.workers)
        futures = [self.executor.submit(self.shared.translate, [lines[index] for index in share], progress=advance,
                                        **decoding) for share in shares]
        wait_for(futures)
        translations: list[list[Translation]] = [[] for _ in lines]
        for share, future in zip(shares, futures, strict=True):
            for index, n_best in zip(share, future.result(), strict=True):
                translations[index] = n_best
        return translations

    def _receive(self, pipe: Connection) -> tuple[str, Any]:
        try:
            kind, content = pipe.recv()
        except (EOFError, ConnectionResetError):
            raise self._process_ended(pipe) from None
        if kind == "error":
            raise content
        return kind, content

    def _process_ended(self, pipe: Connection) -> UserError:
        """Return the error for a process that has ended. The message says why, at which lines, and what to do."""
        process = self.processes[self.pipes.index(pipe)]
        process.join()
        code = process.exitcode or 0
        at = "while it loaded the model" if pipe not in self.lines else \
            "at lines {:,} to {:,}".format(*self.lines[pipe])
        if code == -signal.SIGKILL:
            cause, remedy = "was killed (SIGKILL)", (
                "This usually means that memory ran out: use fewer --workers, or smaller batches "
                "(--set decoding.batch_tokens=N).")
        elif code < 0:
            cause = f"was ended by {signal_name(-code)}"
            remedy = "Translate these lines with one worker to find the cause, and report this as a bug."
        else:
            cause, remedy = f"ended with exit code {code}", "Translate these lines with one worker to find the cause."
        resume = (" With --output FILE, the earlier translations are in FILE.part, and the same command with --resume "
                  "continues there.") if pipe in self.lines else ""
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


def _device_of_worker(worker: int, device: str) -> str:
    """Return the device of a worker. Several GPUs are used in turn, unless `device` names one of them."""
    if device in ("auto", "cuda") and torch.cuda.is_available():
        return f"cuda:{worker % torch.cuda.device_count()}"
    return device


def _serve(pipe: Connection, path: str, device: str, precision: str, threads: int, models: dict[str, Any]) -> None:
    # Ctrl-C sends SIGINT to every process of the terminal. The parent process handles it and ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        translator = Translator.load(path, device, precision, threads, **models)
        pipe.send(("ready", (translator.decoding, translator.precision, str(translator.device))))
        while True:
            lines, decoding = pipe.recv()
            try:
                translations = translator.translate(
                    lines, progress=lambda amount: pipe.send(("progress", amount)), **decoding)
            except (UserError, ValueError) as error:                            # these lines fail; others may not
                pipe.send(("refused", error))
                continue
            pipe.send(("done", translations))
    except (EOFError, BrokenPipeError):
        return                                                                  # the parent process has closed the pipe
    except Exception as error:
        pipe.send(("error", error))
