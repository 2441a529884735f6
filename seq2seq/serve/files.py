"""Translated files that wait for their download."""

from __future__ import annotations

import mimetypes
import time
import unicodedata
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from seq2seq.formats import registry
from seq2seq.languages import belongs_to_letter
from seq2seq.serve.errors import ApiError, invalid

SUFFIXES = (".txt", *registry.SUFFIXES, ".xml")
"""Endings of the names of files that can be translated. The root element of an .xml file tells its format."""
LIFETIME_SECONDS = 1800
"""Time after which a translated file is deleted if nobody has fetched it."""
MAX_BYTES = 64 * 2**20
"""Maximum size of all translated files together."""
CLIENT_SHARE = MAX_BYTES // 4
"""Size of a client's files above which its oldest files are deleted for a new one."""
FILE_BYTES = 4096
"""Size that each file counts, in addition to its contents."""


@dataclass(frozen=True)
class StoredFile:
    """Translated file, or the error of its translation. client: name of the client that sent the file. name: name under
    which browsers save it, without folders. characters: number of characters of the original. expires: time of its
    deletion, which the store sets."""

    client: str
    name: str = ""
    contents: bytes = b""
    characters: int = 0
    error: ApiError | None = None
    expires: float = 0.0

    @property
    def size(self) -> int:
        """Number of bytes that the file takes."""
        return len(self.contents) + FILE_BYTES


class FileStore:
    """Translated files in memory. Each has a random name for its download. No name from a client becomes a path.
    If there is no room for a new file, older files are deleted: those of its client, if they exceed a client's share,
    otherwise those of the client whose files are largest. All methods are called in the event loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._files: dict[str, StoredFile] = {}
        self._clock = clock

    def add(self, file: StoredFile, key: str) -> None:
        """Store a file. key: name for its download, which nobody can guess.

        Raises:
            ApiError: the file is larger than MAX_BYTES.
        """
        self._forget_expired()
        client = file.client
        if file.size > MAX_BYTES:
            raise ApiError(413, f"The translated file is larger than {MAX_BYTES - FILE_BYTES:,} bytes")
        sizes: Counter[str] = Counter({client: file.size})
        for one in self._files.values():
            sizes[one.client] += one.size
        while sizes[client] > max(CLIENT_SHARE, file.size):
            self._delete_oldest(client, sizes)
        while sizes.total() > MAX_BYTES:
            holders = {one.client for one in self._files.values()}
            self._delete_oldest(max(holders, key=lambda one: sizes[one]), sizes)
        self._files[key] = replace(file, expires=self._clock() + LIFETIME_SECONDS)

    def _delete_oldest(self, client: str, sizes: Counter[str]) -> None:
        key = next(key for key, file in self._files.items() if file.client == client)
        sizes[client] -= self._files.pop(key).size

    def get(self, key: str) -> StoredFile | None:
        """Return a file that has not expired, or None."""
        self._forget_expired()
        return self._files.get(key)

    def delete(self, key: str) -> None:
        """Delete a file, if it is still there."""
        self._files.pop(key, None)

    def _forget_expired(self) -> None:
        now = self._clock()
        for key in [key for key, file in self._files.items() if file.expires <= now]:
            del self._files[key]


def format_of_file(name: str, contents: bytes) -> str | None:
    """Return the format of a file; None if the file cannot be translated.

    Raises:
        ApiError: the contents of a file that is named .txt begin like those of a structured file.
    """
    if suffix_of(name) != ".txt":
        return registry.format_of(name.replace("\\", "/"), contents)
    if kind := registry.structure_of(contents):
        raise invalid(f"the contents of the file begin like {kind}, not like text. Give its name the "
                      "ending of its format")
    return "text"


def content_type(name: str, contents: bytes) -> str:
    """Return the media type of a file, and its encoding if it is text in UTF-8."""
    kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
    if kind.startswith("text/"):
        with suppress(UnicodeDecodeError):
            str(contents, "utf-8")
            kind += "; charset=utf-8"
    return kind


def suffix_of(name: str) -> str:
    """Return the ending of a file's name in lower case, such as .txt."""
    return PurePosixPath(name.replace("\\", "/")).suffix.lower()


def safe_name(name: str) -> str:
    """Return the name of a file without folders, with _ for all characters except letters, digits, -, _ and space.
    Letters with accents are composed, which they are not in names from macOS."""
    stem = unicodedata.normalize("NFC", PurePosixPath(name.replace("\\", "/")).stem)
    safe = "".join(one if one.isalnum() or one in "-_ " or belongs_to_letter(one) else "_" for one in stem)
    return f"{safe.strip('_ ')[:80] or 'translation'}{suffix_of(name)}"


def translated_name(name: str, target: str) -> str:
    """Return the name of the translation of a file, based on its `safe_name`: letter_en.txt for letter.txt."""
    safe = PurePosixPath(safe_name(name))
    return f"{safe.stem}_{target}{safe.suffix}"
