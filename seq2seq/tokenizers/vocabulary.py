"""Interface of all vocabularies: text to ids and back, with fixed ids for three symbols."""

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

# Line breaks and control characters, including the white space at which other software splits lines (U+0085, U+2028,
# U+2029). Pieces with one of them are banned in search.
CONTROL_CHARACTERS = [*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029]
CONTROL_BYTES = [*range(0x20), 0x7F]


class Vocabulary(ABC):
    """Text to ids and back. Vocabularies with equal `model` bytes encode alike.

    model: the bytes of its file.
    """

    model: bytes

    @property
    @abstractmethod
    def vocab_size(self) -> int:
        """Number of ids, symbols included."""

    @property
    @abstractmethod
    def never_generated_ids(self) -> list[int]:
        """Ids banned in translations: unknown, start, and every piece with a control character."""

    @cached_property
    @abstractmethod
    def piece_bytes(self) -> list[bytes]:
        """Text of each id in UTF-8: with a space before a piece that begins a word, empty for symbols such as
        `</s>`."""

    def shares_ids_with(self, other: Vocabulary) -> bool:
        """Return True if every id means the same in both."""
        return self.model == other.model

    def language_prefix(self, line: str) -> str:
        """Return the beginning of a line that every part needs if the line is split: a language token, or ""."""
        return ""

    @abstractmethod
    def encode(self, lines: Sequence[str], threads: int = 1) -> list[list[int]]:
        """Return the ids of each line, without START_ID and END_ID."""

    @abstractmethod
    def spans(self, lines: Sequence[str]) -> list[list[tuple[int, int]]]:
        """Return the span (begin, end) of characters of its line for each piece of `encode`."""

    @abstractmethod
    def sample(self, lines: Sequence[str], alpha: float, seed: int) -> list[list[int]]:
        """Encode with subword sampling. The same (lines, alpha, seed) give the same ids in every process."""

    @abstractmethod
    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """Return the text of each line; START_ID and END_ID are removed."""

    @abstractmethod
    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Return each piece as sentencepiece writes it, with U+2581 for white space."""

    @abstractmethod
    def decode_pieces(self, pieces: Sequence[Sequence[str]]) -> list[str]:
        """Return the text of each line of pieces, the inverse of `pieces`."""

    def encode_flat(self, lines: Sequence[str], threads: int = 1) -> tuple[np.ndarray, np.ndarray]:
        """Return the ids of `encode` as one flat array.

        Returns:
            ids (tokens,) int64, and offsets (lines + 1,) int64, where line i is ids[offsets[i]:offsets[i + 1]].
        """
        encoded = self.encode(lines, threads)
        offsets = np.zeros(len(encoded) + 1, np.int64)
        np.cumsum([len(ids) for ids in encoded], out=offsets[1:])
        return np.fromiter(chain.from_iterable(encoded), np.int64, offsets[-1]), offsets

    def save(self, path: str | Path) -> None:
        """Write `model` to a file."""
        Path(path).write_bytes(self.model)

    @cached_property
    def fingerprint(self) -> str:
        """sha256 of the model's bytes."""
        return hashlib.sha256(self.model).hexdigest()


def processor_of(model: bytes, where: str) -> Any:
    """Load a sentencepiece processor. Raises TokenizerError if the bytes are no valid model; `where` names them."""
    processor = sentencepiece.SentencePieceProcessor()
    try:
        processor.LoadFromSerializedProto(model)                                # its constructor takes b"" for nothing
        # Decodes every piece and the surface of the unknown piece once, to find invalid UTF-8.
        processor.id_to_piece(list(range(processor.vocab_size())))
        processor.decode([processor.unk_id()])
    except (RuntimeError, IndexError, UnicodeDecodeError) as error:
        raise TokenizerError(f"{where} is not a sentencepiece model, or it is damaged: copy it again.") from error
    return processor


def encoded_by(processor: Any, lines: Sequence[str], **options: Any) -> list[Any]:
    """Encode each line with a sentencepiece processor. Raises TokenizerError if a line holds a lone surrogate."""
    try:
        if len(lines) == 1:                                                     # a list of lines starts threads
            return [processor.encode(lines[0], **options)]
        return processor.encode(list(lines), **options)
    except TypeError:
        refuse_surrogates(lines)
        raise


def refuse_surrogates(lines: Sequence[str]) -> None:
    """Raise TokenizerError if a line cannot be encoded in UTF-8."""
    for number, line in enumerate(lines, 1):
        if any("\ud800" <= character <= "\udfff" for character in line):
            raise TokenizerError(f"text {number} holds half a surrogate pair, which no UTF-8 file can hold: "
                                 "decode the bytes that it came from with errors='replace'.") from None
