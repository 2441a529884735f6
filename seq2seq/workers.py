"""Several processes that translate with one thread each: on many cores faster than many threads in one process."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import TracebackType
from typing import Any, Unpack, cast

from seq2seq.decoding import Request
from seq2seq.errors import OptionError, UserError, require_several
from seq2seq.recipe import DecodingOptions, DecodingSection, decoding_with
from seq2seq.stopping import signal_name
from seq2seq.translator import Progress, Translation, Translator, growing_blocks, kernels_ready, numbered


class TranslatorPool:
    """Translators of one model in processes of their own. Lines come back in their order, as from one `Translator`.

    >>> with TranslatorPool("runs/multi30k_de_en", workers=4) as pool:
    ...     for found in pool.translate_stream(lines):
    ...         print(found[0].text)
    """

    def __init__(self, path: str | Path, workers: int, device: str = "auto", precision: str = "auto",
                 threads: int = 1, ensemble: Sequence[str | Path] = (), fusion: str | Path | None = None,
                 compile: bool = False) -> None:
        """Start the processes and wait until each has loaded the model. Arguments: as `Translator.load` takes them.

        Raises:
            UserError: as `Translator.load`, or a process ended, or there are to be none.
        """
        require_several(ensemble, "ensemble")
        if workers < 1:
            raise OptionError(f"{workers} workers translate nothing; make it 1 or more")
        models: dict[str, Any] = {"ensemble": list(ensemble), "fusion": fusion,
                                  "compile": compile and kernels_ready() is not None}   # once, not in each process
        context = multiprocessing.get_context("spawn")
        self.pipes: list[Connection] = []
        self.processes = []
        self.compile = bool(models["compile"])
        # First and last line, from 1, that each process translates at the moment.
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
        self.decoding: DecodingSection = ready[0][0]
        self.precision: str = ready[0][1]
        self.device: str = ready[0][2]

    def translate_stream(self, lines: Iterable[str | Request], block_lines: int = 8192, *,
                         progress: Progress | None = None, **decoding: Unpack[DecodingOptions]
                         ) -> Iterator[list[Translation]]:
        """See `Translator.translate_stream`; `block_lines` are those of all processes together."""
        return chain.from_iterable(self.translate_blocks(lines, block_lines, progress=progress, **decoding))

    def translate_blocks(self, lines: Iterable[str | Request], block_lines: int = 8192, *, begin: int = 0,
                         progress: Progress | None = None, **decoding: Unpack[DecodingOptions]
                         ) -> Iterator[list[list[Translation]]]:
        """See `Translator.translate_blocks`; `block_lines` are those of all processes together."""
        decoding_with(self.decoding, decoding)
        blocks = growing_blocks(numbered(lines, begin), block_lines, begin)
        return (self._translate(block, progress, decoding) for block in blocks)

    def _translate(self, lines: Sequence[Request], progress: Progress | None,
                   decoding: DecodingOptions) -> list[list[Translation]]:
        # Each gets every n-th line by length: as many, and as long, as the others.
        order = sorted(range(len(lines)), key=lambda number: len(lines[number].text))
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
        if refused:                                                             # when no answer is left in a pipe
            raise refused
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
        """The error for a process that has ended: by what, at which lines, and what to do."""
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
            remedy = "Leave out --compile: the compiled kernels may be at fault." if self.compile else \
                "Translate these lines with one worker to see more, and report it."
        else:
            cause, remedy = f"ended with exit code {code}", "Translate these lines with one worker to see more."
        resume = (" With --output FILE, what was translated before is in FILE.part, and the same command with --resume "
                  "goes on from there.") if pipe in self.lines else ""
        return UserError(f"a worker {cause} {at}. {remedy}{resume}")

    def close(self) -> None:
        """End the processes, at once."""
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
    # Ctrl-C reaches every process of the terminal; the one that started us ends us.
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
        return                                                                  # nobody listens any more
    except Exception as error:
        pipe.send(("error", error))
