"""Translation by several workers: threads or processes of this machine.

On many cores, several workers with one thread each are faster than one worker with many threads.
"""

from __future__ import annotations

import copy
import multiprocessing
import signal
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Any, Unpack

import numpy as np

from seq2seq.data.glossary import Glossary
from seq2seq.devices import count_gpus, kind, use_threads
from seq2seq.errors import OptionError, UserError
from seq2seq.formats.placeholders import Placeholders
from seq2seq.inference.int8 import NativeEngine
from seq2seq.recipe import DecodingOptions, DecodingSection, Languages, decoding_with
from seq2seq.signals import signal_name
from seq2seq.tokenizers.line_reader import LineReader
from seq2seq.tokenizers.source import Source
from seq2seq.translation.sources import equal_shares
from seq2seq.translation.translation import ReportProgress, Translation
from seq2seq.translation.translator import Translator, translate_blocks


class TranslatorPool:
    """Pool of workers that translate with the same model. It returns the results in the order of the lines.

    With a `NativeEngine` the workers are threads that share the weights, because the kernels release the global
    interpreter lock. In other engines a step consists of many calls from Python, so the workers are processes, each
    with a copy of the model.

    >>> with TranslatorPool("runs/multi30k_de_en", workers=4) as pool:
    ...     for best, *_ in pool.translate_stream(lines):
    ...         print(best.text)
    """

    decoding: DecodingSection
    precision: str
    device: str
    reader: LineReader
    placeholders: Placeholders | None = None
    glossary: Glossary | None = None

    def __init__(self, path: str | Path, workers: int, device: str = "auto", precision: str = "auto",
                 threads: int | None = 1, ensemble: Sequence[str | Path] = (), fusion: str | Path | None = None,
                 target_language: str | None = None, source_language: str | None = None) -> None:
        """Start the workers and wait until all of them have loaded the model.

        Args:
            workers: number of workers. threads: number of CPU threads of each worker. Other arguments: as in
                `Translator.load`.
        """
        if workers < 1:
            raise OptionError(f"workers is {workers}; set it to 1 or more")
        models: dict[str, Any] = {"ensemble": list(ensemble), "fusion": fusion, "target_language": target_language,
                                  "source_language": source_language}
        self.workers, self.directory = workers, Path(path)
        self.shared: Translator | None = None
        # Only the workers use a GPU. If this process used one, it would take memory there, too.
        if kind(device_of_worker(0, device)) in ("auto", "cpu"):
            loaded = Translator.load(path, device, precision, threads, **models)
            if isinstance(loaded.engine, NativeEngine):
                self.shared = loaded
                self.executor = ThreadPoolExecutor(workers, "translator", partial(use_threads, threads or 1))
                self.decoding, self.precision, self.device = loaded.decoding, loaded.precision, loaded.device
                self.reader = loaded.reader
                return
            precision = loaded.precision                                        # int8 or not: `load` has told
        self.processes: dict[Connection, SpawnProcess] = {}
        context = multiprocessing.get_context("spawn")
        try:
            for worker in range(workers):
                pipe, child_pipe = context.Pipe()
                options = {"path": path, "device": device_of_worker(worker, device), "precision": precision,
                           "threads": threads, **models}
                process = context.Process(target=_serve, daemon=True, args=(child_pipe, options))
                process.start()
                child_pipe.close()
                self.processes[pipe] = process
            ready = [self._receive(pipe, "while it loaded the model")[1] for pipe in self.processes]
        except BaseException:
            self.close()
            raise
        self.decoding, self.precision, self.device, self.reader = ready[0]

    @property
    def languages(self) -> Languages:
        """Direction of lines that name no language."""
        return self.reader.directions.chosen

    def protecting(self, placeholders: Placeholders | None = None, glossary: Glossary | None = None) -> TranslatorPool:
        """Return a pool of the same workers whose translations keep placeholders and terms; see
        `Translator.protecting`."""
        pool = copy.copy(self)
        pool.placeholders, pool.glossary = placeholders or self.placeholders, glossary or self.glossary
        return pool

    def translate_stream(self, lines: Iterable[str | Source], block_lines: int = 8192, *, tag: str | None = None,
                         progress: ReportProgress | None = None, **decoding: Unpack[DecodingOptions]
                         ) -> Iterator[list[Translation]]:
        decoding_with(self.decoding, decoding)
        reader = self.reader.tagged(tag)
        return translate_blocks(partial(self.translate, progress=progress, **decoding), reader, lines, block_lines)

    def translate(self, lines: Sequence[str | Source], *, tag: str | None = None,
                  progress: ReportProgress | None = None, **decoding: Unpack[DecodingOptions]
                  ) -> list[list[Translation]]:
        """See `Translator.translate`. The workers share the lines."""
        sources = list(self.reader.tagged(tag).number(lines))
        shares = [share for share in equal_shares(sources, self.workers) if share]
        work = [[sources[index] for index in share] for share in shares]
        found = self._in_processes(work, progress, decoding) if self.shared is None else self._in_threads(
            self.shared.protecting(self.placeholders, self.glossary), work, progress, decoding)
        translations: list[list[Translation]] = [[] for _ in sources]
        for share, results in zip(shares, found, strict=True):
            for index, n_best in zip(share, results, strict=True):
                translations[index] = n_best
        return translations

    def align(self, pairs: Sequence[tuple[str, str]]) -> Sequence[np.ndarray | None]:
        """See `Translator.align`. One worker aligns the pairs."""
        if self.shared is not None:
            return self.shared.align(pairs)
        pipe = next(iter(self.processes))
        try:
            pipe.send((list(pairs),))
        except (BrokenPipeError, ConnectionResetError):
            raise self._process_ended(pipe, "while it aligned sentences") from None
        kind, content = self._receive(pipe, "while it aligned sentences")
        if kind == "refused":
            raise content
        return content

    def _in_threads(self, translator: Translator, work: Sequence[Sequence[Source]], progress: ReportProgress | None,
                    decoding: DecodingOptions) -> list[list[list[Translation]]]:
        lock = Lock()

        def advance(amount: int) -> None:
            with lock:
                if progress:
                    progress(amount)

        futures = [self.executor.submit(translator.translate, sources, progress=advance, **decoding)
                   for sources in work]
        wait_for(futures)
        return [future.result() for future in futures]

    def _in_processes(self, work: Sequence[Sequence[Source]], progress: ReportProgress | None,
                      decoding: DecodingOptions) -> list[list[list[Translation]]]:
        pipes = list(self.processes)[:len(work)]
        at = {}
        for pipe, sources in zip(pipes, work, strict=True):
            numbers = [source.number + 1 for source in sources if source.number is not None]
            at[pipe] = f"at lines {min(numbers):,} to {max(numbers):,}"
            try:
                pipe.send((sources, self.placeholders, self.glossary, decoding))
            except (BrokenPipeError, ConnectionResetError):
                raise self._process_ended(pipe, at[pipe]) from None
        answers: dict[Connection, list[list[Translation]]] = {}
        refused: Exception | None = None
        waiting = set(pipes)
        while waiting:
            for pipe in [pipe for pipe in wait(list(waiting)) if isinstance(pipe, Connection)]:
                kind, content = self._receive(pipe, at[pipe])
                if kind == "progress":
                    if progress:
                        progress(content)
                    continue
                waiting.remove(pipe)
                if kind == "refused":
                    refused = refused or content
                else:
                    answers[pipe] = content
        if refused:                                         # after all answers, so that the pool can still be used
            raise refused
        return [answers[pipe] for pipe in pipes]

    def _receive(self, pipe: Connection, at: str) -> tuple[str, Any]:
        try:
            kind, content = pipe.recv()
        except (EOFError, ConnectionResetError):
            raise self._process_ended(pipe, at) from None
        if kind == "error":
            raise content
        return kind, content

    def _process_ended(self, pipe: Connection, at: str) -> UserError:
        """Return the error for a process that has ended. at: what it was doing."""
        process = self.processes[pipe]
        process.join()
        code = process.exitcode or 0
        cause = f"was ended by {signal_name(-code)}" if code < 0 else f"ended with exit code {code}"
        return UserError(f"a worker {cause} {at}. Translate these lines with one worker to see the cause. If the "
                         "machine lacks memory, use fewer workers or a smaller decoding.batch_tokens.")

    def close(self) -> None:
        """End the workers. Processes are killed immediately."""
        if self.shared is not None:
            self.executor.shutdown(cancel_futures=True)
            return
        for pipe, process in self.processes.items():
            pipe.close()
            process.kill()
            process.join()

    def __enter__(self) -> TranslatorPool:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()


def device_of_worker(worker: int, device: str) -> str:
    """Return the device of a worker. The workers are distributed over all GPUs, unless `device` names one GPU."""
    if device in ("auto", "cuda") and (gpus := count_gpus()):
        return f"cuda:{worker % gpus}"
    return device


def _serve(pipe: Connection, options: dict[str, Any]) -> None:
    """Load a model in a worker process, and translate the lines that arrive, until the parent process closes the pipe.

    The first answer is ("ready", (decoding options, precision, device, line reader)). Each message (lines,
    placeholders, glossary, decoding options) is answered by ("done", translations), or ("refused", error) if these
    lines are the cause of the error. During a translation, messages ("progress", number of lines) are sent. A message
    (pairs,) is answered by ("done", alignments). After any other failure, the answer is ("error", error).

    options: arguments of `Translator.load`.
    """
    # Ctrl-C sends SIGINT to every process of the terminal. The parent process handles the signal and ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        translator = Translator.load(**options)
        pipe.send(("ready", (translator.decoding, translator.precision, translator.device, translator.reader)))
        while True:
            work, *options_of_work = pipe.recv()
            try:
                pipe.send(("done", _done(translator, pipe, work, *options_of_work)))
            except (UserError, ValueError) as error:
                pipe.send(("refused", error))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass                                                                    # the parent process has ended
    except Exception as error:
        pipe.send(("error", error))


def _done(translator: Translator, pipe: Connection, work: list[Any], *options: Any) -> Any:
    """Return the answer of a worker process to a message; see `_serve`."""
    if not options:
        return translator.align(work)
    placeholders, glossary, decoding = options
    return translator.protecting(placeholders, glossary).translate(
        work, progress=lambda amount: pipe.send(("progress", amount)), **decoding)
