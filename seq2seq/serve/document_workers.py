"""Worker processes that parse the documents of clients and write their translations, within limits.

A document that takes too much memory or processor time, or ends its process, is an error of its request only. A worker
keeps nothing between two calls: to write a translation, it parses the document again, which takes little beside the
translation, so that documents whose translations are awaited take no memory in a process.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
from collections.abc import Callable, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any, cast

import numpy as np

from seq2seq.documents.divided_document import DividedDocument
from seq2seq.errors import UserError
from seq2seq.formats.block import Document, DocumentError
from seq2seq.serve.threads import LARGE_THREADS
from seq2seq.translation.placement import Align

try:
    import resource
except ImportError:                                                             # Windows
    resource = None  # type: ignore[assignment]

MEMORY_BYTES = 2**30
"""Maximum memory of a worker, of which it has 50 MB before its first call."""
CPU_SECONDS = 60
"""Maximum processor time of a call."""
OUTPUT_BYTES = 64 * 2**20
"""Maximum size of a translated document."""
GRACE_SECONDS = 5
"""Time that a worker has to end after its last call."""
KEPT_BYTES = 200 * 2**20
"""Memory from which a worker ends after a call, because Python rarely returns memory to the system."""

Read = Callable[[bytes], Document]
"""Function that parses a document. Workers get it by the name of its module, which should import no PyTorch."""


@dataclass(frozen=True)
class RemoteDocument:
    """Document that workers parse: what `DividedDocument` is in this process.

    sentences, tags, content, source_languages: see `DividedDocument`.
    """

    workers: DocumentWorkers
    data: bytes
    read: Read
    known_tags: tuple[str, ...]
    sentences: list[str]
    tags: list[str]
    content: str
    source_languages: Set[str]

    def join(self, translations: Sequence[str], target_language: str, align: Align | None = None,
             report: Callable[[str, str], None] = lambda place, fault: None) -> bytes:
        """Return the translated document; see `DividedDocument.join`."""
        rendered, faults = self.workers.call(_join, self.data, self.read, self.known_tags, translations,
                                             target_language, align=align)
        for place, fault in faults:
            report(place, fault)
        return cast(bytes, rendered)


class DocumentWorkers:
    """Workers that parse documents, as many as threads for large work. They are started when they are needed first."""

    def __init__(self) -> None:
        self._idle: queue.SimpleQueue[_Worker | None] = queue.SimpleQueue()
        for _ in range(LARGE_THREADS):
            self._idle.put(None)

    def open(self, data: bytes, read: Read, tags: tuple[str, ...] = ()) -> RemoteDocument:
        """Parse a document, and divide it into sentences. tags: see `DividedDocument`.

        Raises:
            DocumentError: the document is malformed, or exceeds a limit.
        """
        return RemoteDocument(self, data, read, tags, *self.call(_open, data, read, tags))

    def call(self, function: Callable[..., Any], *arguments: Any, align: Align | None = None) -> Any:
        """Wait for a worker, and return the result of a function there. align: function that it may call here."""
        worker = self._idle.get()
        try:
            if worker is None or not worker.process.is_alive():
                worker = _Worker()
            found = worker.call(align, (function, align is not None, *arguments))
        finally:
            self._idle.put(worker if worker and worker.usable else None)
        if isinstance(found, UserError):
            raise found
        return found

    def close(self) -> None:
        """End the workers that have nothing to do. The others end with this process."""
        with suppress(queue.Empty):
            while True:
                if worker := self._idle.get_nowait():
                    worker.end()


class _Worker:
    """Worker process, as this process sees it. usable: False while it works, and after its end."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process: SpawnProcess = context.Process(target=_serve, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()
        self.usable = True

    def call(self, align: Align | None, work: tuple[Any, ...]) -> Any:
        """Return the result of a call, or its error. work: function and arguments of the call."""
        self.usable = False
        try:
            self.pipe.send(work)
            kind, content = self.pipe.recv()
            if kind == "align":
                assert align is not None
                try:
                    weights = align(content)
                except BaseException:                                           # the client has gone, for example
                    self.pipe.send(None)
                    self.pipe.recv()
                    self.usable = True
                    raise
                self.pipe.send(weights)
                kind, content = self.pipe.recv()
        except (EOFError, ConnectionError):
            self.end()
            too_long = self.process.exitcode == -getattr(signal, "SIGXCPU", 0)
            return DocumentError(f"the document takes more than {CPU_SECONDS} seconds of processor time. Divide it."
                                 if too_long else "the document cannot be read: it ended the process that read it")
        self.usable = kind == "found"
        if not self.usable:
            self.end()
        return content

    def end(self) -> None:
        """End the process."""
        self.pipe.close()
        self.process.join(GRACE_SECONDS)
        self.process.kill()
        self.process.join()


def _serve(pipe: Connection) -> None:
    """Do the work that the pipe names, until it is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)                                # Ctrl-C is for the server
    with suppress(AttributeError):                                              # Windows
        os.nice(10)                                                             # models and short requests go first
    with suppress(EOFError, ConnectionError):
        while True:
            function, aligns, *arguments = pipe.recv()
            _limit()
            found: Any
            try:
                found = function(*arguments, align=partial(_ask, pipe) if aligns else None)
            except MemoryError:
                found = DocumentError(f"the document takes more than {MEMORY_BYTES // 2**20:,} MB of memory. Divide "
                                      "it.")
            except UserError as error:
                found = type(error)(str(error))
            ends = _memory() > KEPT_BYTES
            pipe.send(("last" if ends else "found", found))
            if ends:
                return


def _ask(pipe: Connection, pairs: Sequence[tuple[str, str]]) -> Sequence[np.ndarray | None]:
    """Return the alignments of pairs, which the server computes."""
    pipe.send(("align", pairs))
    weights = pipe.recv()
    if weights is None:
        raise UserError("nobody waits for the translation any more")
    return cast(Sequence["np.ndarray | None"], weights)


def _memory() -> int:
    """Return the resident memory of this process in bytes; 0 where the system does not tell it as Linux does."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, AttributeError):
        return 0


def _limit() -> None:
    """Set the limits of this process for the next call."""
    if resource is None:
        return
    used = resource.getrusage(resource.RUSAGE_SELF)
    seconds = int(used.ru_utime + used.ru_stime) + CPU_SECONDS
    for limit, value in ((resource.RLIMIT_CPU, seconds), (resource.RLIMIT_DATA, MEMORY_BYTES)):
        _, hard = resource.getrlimit(limit)
        resource.setrlimit(limit, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))


def _open(data: bytes, read: Read, tags: tuple[str, ...], align: Align | None,
          ) -> tuple[list[str], list[str], str, frozenset[str]]:
    document = DividedDocument(read(data), tags=tags)
    return document.sentences, document.tags, document.content, frozenset(document.source_languages)


def _join(data: bytes, read: Read, tags: tuple[str, ...], translations: Sequence[str], target_language: str,
          align: Align | None) -> tuple[bytes, list[tuple[str, str]]]:
    faults: list[tuple[str, str]] = []
    document = DividedDocument(read(data), tags=tags)
    rendered = document.join(translations, target_language, align, lambda place, fault: faults.append((place, fault)))
    if len(rendered) > OUTPUT_BYTES:
        raise DocumentError(f"the translated document would have {len(rendered):,} bytes, more than {OUTPUT_BYTES:,}")
    return rendered, faults
