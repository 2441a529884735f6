"""Documents that are translated in the background, for DeepL's interface."""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from seq2seq.serve.errors import ApiError, SlowdownError, traceback_of
from seq2seq.serve.files import CLIENT_SHARE, LIFETIME_SECONDS, MAX_BYTES

logger = logging.getLogger("seq2seq.serve")

CLIENT_JOBS, MAX_JOBS = 100, 10_000
"""Maximum number of a client's jobs, and of all jobs, including those that have ended. For a new job, the oldest one
that has ended is forgotten."""
CLIENT_BYTES, TOTAL_BYTES = CLIENT_SHARE, MAX_BYTES
"""Maximum size of the documents of a client that are being translated, and of those of all clients."""


@dataclass
class Job:
    """Translation of a document.

    key: secret that its client must send. size: number of bytes of the document. file: name of the translation in the
    store of translated files; "" if there is none. characters: number of characters of the document's text. error: why
    the document was not translated. ended: time of the end; None while it is being translated.
    """

    client: str
    size: int
    id: str = field(default_factory=lambda: secrets.token_hex(16).upper())
    key: str = field(default_factory=lambda: secrets.token_hex(32).upper())
    file: str = ""
    characters: int = 0
    error: ApiError | None = None
    ended: float | None = None
    task: asyncio.Task[None] | None = None

    @property
    def status(self) -> str:
        """Name of the state in DeepL's interface."""
        return "translating" if self.ended is None else "error" if self.error else "done"


class DocumentJobs:
    """Translations of documents. All methods are called in the event loop."""

    def __init__(self, log_text: bool = False, clock: Callable[[], float] = time.monotonic) -> None:
        """log_text: see `traceback_of`."""
        self._jobs: dict[str, Job] = {}
        self._log_text, self._clock = log_text, clock

    def start(self, client: str, size: int, work: Callable[[Job], Coroutine[Any, Any, None]]) -> Job:
        """Start a job. work: function that translates the document, and sets `file` and `characters` of the job.

        Raises:
            SlowdownError: too many documents are being translated.
        """
        self._forget_expired()
        every = list(self._jobs.values())
        own = [job for job in every if job.client == client]
        for jobs, count, limit in ((own, CLIENT_JOBS, CLIENT_BYTES), (every, MAX_JOBS, TOTAL_BYTES)):
            waiting = [job.size for job in jobs if job.ended is None]
            if len(waiting) >= count or waiting and sum(waiting) + size > limit:
                raise SlowdownError("too many documents are being translated. Try again later", 5)
            if len(jobs) >= count:
                del self._jobs[next(job.id for job in jobs if job.ended is not None)]
        job = Job(client, size)
        self._jobs[job.id] = job
        job.task = asyncio.create_task(self._run(job, work))
        return job

    async def _run(self, job: Job, work: Callable[[Job], Coroutine[Any, Any, None]]) -> None:
        try:
            await work(job)
        except ApiError as error:
            job.error = error
        except Exception as error:
            logger.error("%s", traceback_of(error, self._log_text))
            job.error = ApiError(500, "internal error")
        finally:
            job.ended, job.task = self._clock(), None

    def get(self, id: str, key: str) -> Job:
        """Return a job. Raises ApiError if there is no job with this id and key."""
        self._forget_expired()
        job = self._jobs.get(id)
        if job is None or not hmac.compare_digest(job.key.encode(), key.encode()):
            raise ApiError(404, "There is no such document")
        return job

    def _forget_expired(self) -> None:
        earliest = self._clock() - LIFETIME_SECONDS
        for job in [job for job in self._jobs.values() if job.ended is not None and job.ended <= earliest]:
            del self._jobs[job.id]
