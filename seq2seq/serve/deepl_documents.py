"""Documents that are translated in the background, for DeepL's interface."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable

from seq2seq.serve.errors import ApiError, SlowdownError, traceback_of
from seq2seq.serve.files import CLIENT_SHARE, MAX_BYTES, FileStore, StoredFile
from seq2seq.serve.quotas import Held

logger = logging.getLogger("seq2seq.serve")

CLIENT_JOBS, MAX_JOBS = 100, 10_000
"""Maximum number of documents of a client that are being translated, and of those of all clients. Together, they are at
most as large as the translated files of a client, and of all clients."""


class DocumentJobs:
    """Translations of documents. Once a document is translated, the store of translated files has the translation, or
    the error, under the document's id and secret key. All methods are called in the event loop."""

    def __init__(self, files: FileStore, log_text: bool = False) -> None:
        """log_text: see `traceback_of`."""
        self._files, self._log_text = files, log_text
        self._running: dict[str, asyncio.Task[None]] = {}
        self._documents, self._bytes = Held(CLIENT_JOBS, MAX_JOBS), Held(CLIENT_SHARE, MAX_BYTES)

    def start(self, client: str, size: int, work: Callable[[], Awaitable[StoredFile]]) -> tuple[str, str]:
        """Start a translation, and return the document's id, and the key that its client must send.

        Args:
            size: number of bytes of the document. work: function that translates it.
        Raises:
            SlowdownError: too many documents are being translated.
        """
        has_room = self._documents.take(client, 1)
        if has_room and not self._bytes.take(client, size):
            self._documents.give_back(client, 1)
            has_room = False
        if not has_room:
            raise SlowdownError("too many documents are being translated. Try again later", 5)
        id, key = secrets.token_hex(16).upper(), secrets.token_hex(32).upper()
        self._running[id + key] = asyncio.create_task(self._run(id + key, client, size, work))
        return id, key

    async def _run(self, name: str, client: str, size: int, work: Callable[[], Awaitable[StoredFile]]) -> None:
        try:
            self._files.add(await work(), name)
        except ApiError as error:
            self._files.add(StoredFile(client, error=error), name)
        except Exception as error:
            logger.error("%s", traceback_of(error, self._log_text))
            self._files.add(StoredFile(client, error=ApiError(500, "internal error")), name)
        finally:
            del self._running[name]
            self._documents.give_back(client, 1)
            self._bytes.give_back(client, size)

    def get(self, id: str, key: str) -> StoredFile | None:
        """Return a translated document, or the error of its translation; None while it is being translated. Raises
        ApiError if there is no document with this id and key."""
        file = self._files.get(id + key)
        if file is None and id + key not in self._running:
            raise ApiError(404, "There is no such document")
        return file

    def delete(self, id: str, key: str) -> None:
        """Delete a translated document, if it is still there."""
        self._files.delete(id + key)
