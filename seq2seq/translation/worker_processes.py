"""Translation by several workers: threads or processes of this machine, or the processes (ranks) of `torchrun`.

On many cores, several workers with one thread each are faster than one worker with many threads.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, chain, islice, pairwise
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from threading import Lock, Thread
from types import TracebackType
from typing import Any, Unpack

import torch

from seq2seq.errors import OptionError, UserError
from seq2seq.recipe import DecodingOptions, DecodingSection, decoding_with
from seq2seq.signals import SIGKILL, signal_name
from seq2seq.storage.checkpoints import resolve_model_path
from seq2seq.storage.directories import read_metadata
from seq2seq.translation.line_translator import ReportProgress, Translation
from seq2seq.translation.requests import Request, equal_shares, growing_blocks, number_requests
from seq2seq.translation.translator import Translator

LOST = (EOFError, BrokenPipeError, ConnectionResetError, TimeoutError)
"""Errors that a connection raises if the process at its other end has ended, or its machine is lost."""


THREAD_ENDING_SECONDS = 10
"""Maximum time that `TranslatorPool.close` waits for a thread."""


@dataclass(frozen=True)
class Rank:
    """Another rank of `torchrun` that translates (see `torchrun_ranks`). name: its number and machine, for messages."""

    connection: Connection
    name: str


class TranslatorPool:
    """Pool of workers that translate with the same model. It returns the results in the order of the lines.

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
    context: int

    def __init__(self, path: str | Path, workers: int, device: str = "auto", precision: str = "auto",
                 threads: int | None = 1, ensemble: Sequence[str | Path] = (), fusion: str | Path | None = None,
                 ranks: Sequence[Rank] = (), target_language: str | None = None) -> None:
        """Start the workers and wait until all of them have loaded the model.

        Args:
            workers: number of workers that this process starts. threads: number of CPU threads of each worker. Other
                arguments: as in `Translator.load`.
            ranks: the other ranks of `torchrun`. They are workers in addition to the worker that this process starts.
                With `ranks`, `workers` must be 1. On a machine with GPUs, each rank's local rank determines its GPU.
        Raises:
            UserError: the model cannot be loaded (see `Translator.load`), a worker process ends, `workers` is below 1,
                or the models or the precisions of the ranks differ.
        """
        if workers < 1:
            raise OptionError(f"workers is {workers}; set it to 1 or more")
        models: dict[str, Any] = {"ensemble": list(ensemble), "fusion": fusion, "target_language": target_language}
        self.workers = workers + len(ranks)
        self.ranks = {rank.connection: rank.name for rank in ranks}
        self.shared: Translator | None = None
        if ranks and workers > 1:
            raise OptionError("each process of torchrun is one worker. Remove workers, or start more processes.")
        if ranks and ":" in device:
            raise UserError(f"device {device} is one device, and {self.workers} processes translate together. Use cuda "
                            "(each process then uses its own GPU), cpu or auto.")
        if precision == "int8" and not ranks:
            loaded = Translator.load(path, device, precision, threads, **models)
            if loaded.precision == "int8":
                self.shared = loaded
                self.executor = ThreadPoolExecutor(workers, "translator", partial(torch.set_num_threads, threads or 1))
                self.decoding, self.precision, self.device = loaded.decoding, loaded.precision, str(loaded.device)
                self.context = loaded.context
                return
            precision = loaded.precision                                        # no int8; `load` has printed why
        self.pipes: list[Connection] = []
        self.processes: list[SpawnProcess] = []
        self.threads: list[Thread] = []
        # First and last number, from 1, of the lines that each worker is translating.
        self.lines: dict[Connection, tuple[int, int]] = {}
        if ranks:
            pipe, child_pipe = multiprocessing.Pipe()
            thread = Thread(target=serve, args=(child_pipe, int(os.environ.get("LOCAL_RANK", 0))), daemon=True)
            thread.start()
            self.pipes.append(pipe)
            self.threads.append(thread)
        else:
            self._start_processes(workers)
        self.pipes += self.ranks
        try:
            for pipe in self.pipes:
                self._send(pipe, "load", {"path": path, "device": device, "precision": precision, "threads": threads,
                                          **models})
            ready = [self._receive(pipe)[1] for pipe in self.pipes]
            self.decoding, self.precision, checksums, self.device, self.context = ready[0]
            for name, (decoding, chosen, sha256, *_) in zip(self.ranks.values(), ready[1:] if ranks else (),
                                                            strict=True):
                if (decoding, sha256) != (self.decoding, checksums):
                    raise UserError(f"{name} and process 0 have different models under the same path. Copy the models "
                                    "of process 0 to all machines.")
                if chosen != self.precision:
                    raise UserError(f"{name} would translate in {chosen}, and process 0 in {self.precision}. Choose a "
                                    "precision that all machines have, such as fp32.")
        except BaseException:
            self.close()
            raise

    def _start_processes(self, workers: int) -> None:
        context = multiprocessing.get_context("spawn")
        for worker in range(workers):
            pipe, child_pipe = context.Pipe()
            process = context.Process(target=_serve_in_process, daemon=True, args=(child_pipe, worker))
            process.start()
            child_pipe.close()
            self.pipes.append(pipe)
            self.processes.append(process)

    def translate_stream(self, lines: Iterable[str | Request], block_lines: int = 8192, *,
                         progress: ReportProgress | None = None, **decoding: Unpack[DecodingOptions]
                         ) -> Iterator[list[Translation]]:
        """See `Translator.translate_stream`. block_lines: see `translate_blocks`."""
        return chain.from_iterable(self.translate_blocks(lines, block_lines, progress=progress, **decoding))

    def translate_blocks(self, lines: Iterable[str | Request], block_lines: int = 8192, *, begin: int = 0,
                         progress: ReportProgress | None = None, **decoding: Unpack[DecodingOptions]
                         ) -> Iterator[list[list[Translation]]]:
        """See `Translator.translate_blocks`. block_lines: maximum number of lines of a block.

        Without ranks, the workers share the lines of a block. With ranks, each rank translates a whole block, so that
        the results are bit-identical to those of a single `Translator`: rounding depends on the lines of a block. The
        blocks that the ranks translate at the same time are yielded as one block.
        """
        decoding_with(self.decoding, decoding)
        blocks = growing_blocks(number_requests(lines, begin, self.context), block_lines, begin)
        if self.ranks:
            count = self.workers if block_lines > 1 else 1              # answer a line from the keyboard immediately
            return (self._translate(list(chain.from_iterable(group)), _contiguous_shares(group, self.workers), progress,
                                    decoding) for group in iter(lambda: list(islice(blocks, count)), []))
        return (self._translate(block, equal_shares(block, self.workers), progress, decoding) for block in blocks)

    def _translate(self, lines: Sequence[Request], indices: Sequence[Sequence[int]], progress: ReportProgress | None,
                   decoding: DecodingOptions) -> list[list[Translation]]:
        """Translate a block. indices: for each worker, indices of the lines that it translates."""
        if self.shared is not None:
            return self._translate_in_threads(lines, indices, progress, decoding)
        shares = dict(zip(self.pipes, indices, strict=True))
        waiting = [pipe for pipe, share in shares.items() if share]
        for pipe in waiting:
            numbers = [number + 1 for index in shares[pipe] if (number := lines[index].number) is not None]
            self.lines[pipe] = min(numbers), max(numbers)
            self._send(pipe, "translate", ([lines[index] for index in shares[pipe]], decoding))
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

    def _translate_in_threads(self, lines: Sequence[Request], shares: Sequence[Sequence[int]],
                              progress: ReportProgress | None, decoding: DecodingOptions) -> list[list[Translation]]:
        assert self.shared is not None
        lock = Lock()

        def advance(amount: int) -> None:
            with lock:
                if progress:
                    progress(amount)

        futures = [self.executor.submit(self.shared.translate, [lines[index] for index in share], progress=advance,
                                        **decoding) for share in shares]
        wait_for(futures)
        translations: list[list[Translation]] = [[] for _ in lines]
        for share, future in zip(shares, futures, strict=True):
            for index, n_best in zip(share, future.result(), strict=True):
                translations[index] = n_best
        return translations

    def _send(self, pipe: Connection, kind: str, content: Any) -> None:
        try:
            pipe.send((kind, content))
        except LOST:
            raise self._process_ended(pipe) from None

    def _receive(self, pipe: Connection) -> tuple[str, Any]:
        try:
            kind, content = pipe.recv()
        except LOST:
            raise self._process_ended(pipe) from None
        if kind == "error":
            if pipe in self.ranks and isinstance(content, UserError):
                raise UserError(f"{self.ranks[pipe]}: {content}")
            raise content
        return kind, content

    def _process_ended(self, pipe: Connection) -> UserError:
        """Return the error for a process that has ended. The message says why, at which lines, and what to do."""
        at = "while it loaded the model" if pipe not in self.lines else \
            "at lines {:,} to {:,}".format(*self.lines[pipe])
        if pipe in self.ranks:
            return UserError(f"{self.ranks[pipe]} was lost {at}. The report of torchrun has its exit code. Run"
                             " the the same command again; seq2seq translate needs --resume "
                             "to keep the finished lines.")
        process = self.processes[self.pipes.index(pipe)]
        process.join()
        code = process.exitcode or 0
        if code == -SIGKILL:
            cause, remedy = "was killed (SIGKILL)", (
                "The kernel's log (dmesg) tells whether memory ran out; fewer --workers and smaller batches "
                "(--set decoding.batch_tokens=N) need less.")
        elif code < 0:
            cause = f"was ended by {signal_name(-code)}"
            remedy = "Translate these lines with one worker to find the cause, and report this as a bug."
        else:
            cause, remedy = f"ended with exit code {code}", "Translate these lines with one worker to find the cause."
        resume = (" With --output FILE, the earlier translations are in FILE.part, and the same command with --resume "
                  "continues there.") if pipe in self.lines else ""
        return UserError(f"a worker {cause} {at}. {remedy}{resume}")

    def close(self) -> None:
        """End the workers. Processes are killed immediately. The other ranks remain connected."""
        if self.shared is not None:
            self.executor.shutdown(cancel_futures=True)
            return
        for pipe in self.pipes:
            if pipe not in self.ranks:
                pipe.close()
        for process in self.processes:
            process.kill()
            process.join()
        for thread in self.threads:                                             # a thread ends after its current batch
            thread.join(THREAD_ENDING_SECONDS)

    def __enter__(self) -> TranslatorPool:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()


def _device_of_worker(worker: int, device: str) -> str:
    """Return the device of a worker. The workers are distributed over all GPUs, unless `device` names one GPU."""
    if device in ("auto", "cuda") and torch.cuda.is_available():
        return f"cuda:{worker % torch.cuda.device_count()}"
    return device


def _contiguous_shares(blocks: Sequence[Sequence[Request]], workers: int) -> list[Sequence[int]]:
    """Return the indices of the requests of each worker, counted through all blocks. Workers without a block get ()."""
    ends = accumulate(map(len, blocks), initial=0)
    return [*(range(first, end) for first, end in pairwise(ends)), *([()] * (workers - len(blocks)))]


class _Interrupted(Exception):
    """A message has arrived during a translation, or the other process has ended."""


def serve(pipe: Connection, worker: int) -> int | None:
    """Receive messages from another process. Depending on the message, load a model, translate lines or return.

    Messages are ("load", arguments of `Translator.load`), ("translate", (lines, decoding options)) and ("end", exit
    code). The answer to "load" is ("ready", (decoding options, precision, checksums of the models, device, context)).
    The answer to "translate" is ("done", translations), or ("refused", error) if these lines are the cause. After any
    other failure, the answer is ("error", error). During a translation, messages ("progress", number of lines) are
    sent, and a new message from the other process interrupts the translation.

    worker: number of the worker on this machine, which determines its GPU.
    Returns:
        The exit code; None if the other process has ended without sending one.
    """
    translator: Translator | None = None

    def progress(amount: int) -> None:
        try:
            pipe.send(("progress", amount))
            interrupted = pipe.poll()
        except LOST:
            interrupted = True
        if interrupted:
            raise _Interrupted

    try:
        while True:
            kind, content = pipe.recv()
            if kind == "end":
                return int(content)
            try:
                if kind == "load":
                    translator = None                                           # free the memory of the previous model
                    device = _device_of_worker(worker, content["device"])
                    translator = Translator.load(**{**content, "device": device})
                    models = [content["path"], *content["ensemble"], *filter(None, [content["fusion"]])]
                    checksums = [read_metadata(resolve_model_path(Path(path)), "bundle", ())["sha256"]
                                 for path in models]
                    answer: tuple[str, Any] = "ready", (translator.decoding, translator.precision, checksums,
                                                        str(translator.device), translator.context)
                else:
                    lines, decoding = content
                    assert translator is not None
                    answer = "done", translator.translate(lines, progress=progress, **decoding)
            except _Interrupted:
                continue
            except Exception as error:
                # After these errors, the worker can still translate other lines.
                refused = kind == "translate" and isinstance(error, (UserError, ValueError))
                answer = "refused" if refused else "error", error
            pipe.send(answer)
    except LOST:
        return None


def _serve_in_process(pipe: Connection, worker: int) -> None:
    # Ctrl-C sends SIGINT to every process of the terminal. The parent process handles the signal and ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    serve(pipe, worker)
