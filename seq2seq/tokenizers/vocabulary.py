"""What every vocabulary has: ids for three symbols, and the way between text and ids."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece

from seq2seq.errors import TokenizerError

UNKNOWN_ID = 0
START_ID = 1
END_ID = 2

# Line breaks and control characters, and with them the white space that splits lines in other people's software
# (U+0085, U+2028, U+2029): no piece that a translation may hold has one of them.
CONTROL_CHARACTERS = [*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029]
CONTROL_BYTES = [*range(0x20), 0x7F]


class Vocabulary(ABC):
    """Text to ids and back. Two of them that agree in their bytes encode alike.

    model: the bytes of its file.
    """

    model: bytes

    @property
    @abstractmethod
    def vocab_size(self) -> int:
        """How many ids there are, the symbols among them."""

    @property
    @abstractmethod
    def control_ids(self) -> list[int]:
        """Ids that a translation never holds: unknown, start, and every piece with a control character in it."""

    @cached_property
    @abstractmethod
    def piece_texts(self) -> list[bytes]:
        """What each id says, in UTF-8: a space where it begins a word, nothing for symbols such as `</s>`."""

    def shares_ids_with(self, other: Vocabulary) -> bool:
        """Whether every id means the same in both."""
        return self.model == other.model

    def head(self, line: str) -> str:
        """What a line begins with that belongs before each of its parts, if it is divided: a language token."""
        return ""

    @abstractmethod
    def encode(self, lines: Sequence[str], threads: int = 1) -> list[list[int]]:
        """Ids of each line; START_ID and END_ID are the caller's to add."""

    @abstractmethod
    def spans(self, lines: Sequence[str]) -> list[list[tuple[int, int]]]:
        """Which characters of its line each piece of `encode` stands for, (begin, end)."""

    @abstractmethod
    def sample(self, lines: Sequence[str], alpha: float, seed: int) -> list[list[int]]:
        """Encode with subword sampling: the same (lines, alpha, seed) give the same ids, in every process."""

    @abstractmethod
    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """Text of each line; START_ID and END_ID vanish."""

    @abstractmethod
    def pieces(self, ids: Sequence[int]) -> list[str]:
        """The text of each piece; white space, such as stands before a word, is U+2581."""

    @abstractmethod
    def decode_pieces(self, pieces: Sequence[Sequence[str]]) -> list[str]:
        """The reverse of `pieces`, line by line."""

    def encode_flat(self, lines: Sequence[str], threads: int = 1) -> tuple[np.ndarray, np.ndarray]:
        """The ids of `encode`, one line behind another.

        Returns:
            ids (tokens,) int64, and offsets (lines + 1,) int64, where each line begins.
        """
        encoded = self.encode(lines, threads)
        offsets = np.zeros(len(encoded) + 1, np.int64)
        np.cumsum([len(ids) for ids in encoded], out=offsets[1:])
        return np.fromiter(chain.from_iterable(encoded), np.int64, offsets[-1]), offsets

    def save(self, path: str | Path) -> None:
        """Write the file."""
        Path(path).write_bytes(self.model)

    @cached_property
    def fingerprint(self) -> str:
        """sha256 of the model's bytes."""
        return hashlib.sha256(self.model).hexdigest()


def processor_of(model: bytes, where: str) -> Any:
    """A sentencepiece processor. Raises TokenizerError if these are no model's bytes; `where` names them."""
    processor = sentencepiece.SentencePieceProcessor()
    try:
        processor.LoadFromSerializedProto(model)                                # its constructor takes b"" for nothing
        # All text that it can ever say: its pieces, and what stands for an unknown one.
        processor.id_to_piece(list(range(processor.vocab_size())))
        processor.decode([processor.unk_id()])
    except (RuntimeError, IndexError, UnicodeDecodeError) as error:
        raise TokenizerError(f"{where} is not a sentencepiece model, or it is damaged: copy it again.") from error
    return processor


def encoded_by(processor: Any, lines: Sequence[str], **options: Any) -> list[Any]:
    """What a sentencepiece processor makes of each line. Raises TokenizerError if one is no text."""
    try:
        if len(lines) == 1:                                                     # a list of lines starts threads
            return [processor.encode(lines[0], **options)]
        return processor.encode(list(lines), **options)
    except TypeError:
        refuse_surrogates(lines)
        raise


def refuse_surrogates(lines: Sequence[str]) -> None:
    """Raises TokenizerError if a line cannot be written in UTF-8."""
    for number, line in enumerate(lines, 1):
        if any("\ud800" <= character <= "\udfff" for character in line):
            raise TokenizerError(f"text {number} holds half a surrogate pair, which no UTF-8 file can hold: "
                                 "decode the bytes that it came from with errors='replace'.") from None
