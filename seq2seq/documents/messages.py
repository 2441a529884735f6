"""Messages with branches: ICU plural and select, choice formats, plural forms between pipes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class BranchedMessage:
    """Message whose branches are translated one by one. branches: texts to translate, in order."""

    branches: tuple[str, ...]

    def assemble(self, translations: Sequence[str], target_language: str) -> str:
        """Return the message with translated branches, and with the plural categories of the target language.

        translations: one for each of `branches`.
        """
        raise NotImplementedError


def parse_message(text: str, syntax: Sequence[str] = ()) -> BranchedMessage | None:
    """Return a message with branches; None if the text has none. syntax: see `Block.syntax`.

    Raises:
        DocumentError: the text has branches whose structure cannot be read.
    """
    return None
