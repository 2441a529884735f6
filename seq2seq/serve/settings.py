"""Settings of a server."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from seq2seq.errors import UserError


@dataclass(frozen=True)
class Settings:
    """Settings of the HTTP interface.

    character_limit: maximum number of characters of a request; 0: unlimited. max_request_bytes: maximum size of a
    request's body. suggestions: file to which suggestions are appended; None means that suggestions are refused.
    log_text: if True, users' texts are written to the log.

    Raises:
        UserError: the file of suggestions cannot be written.
    """

    character_limit: int = 0
    max_request_bytes: int = 8 * 2**20
    suggestions: Path | None = None
    log_text: bool = False

    def __post_init__(self) -> None:
        if self.suggestions is not None:
            try:
                self.suggestions.open("a", encoding="utf-8").close()
            except OSError as error:
                raise UserError(f"{self.suggestions} cannot be written: {error.strerror}. Choose another file for "
                                "--suggestions.") from error
