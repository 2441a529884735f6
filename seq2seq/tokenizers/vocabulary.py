"""Interface of all vocabularies: text to ids and back. Three symbols (<unk>, <s>, </s>) have fixed ids."""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
import sentencepiece

from seq2seq.errors import TokenizerError

UNKNOWN_ID = 0
START_ID = 1
END_ID = 2

# Code points of line breaks and control characters, including those at which other software splits lines (U+0085,
# U+2028, U+2029). Search never generates a piece that contains one of them.
CONTROL_CHARACTERS = [*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029]
# Control characters that are a single byte in UTF-8. Search never generates byte pieces with these values.
CONTROL_BYTES = [*range(0x20), 0x7F]


LANGUAGE_TOKEN = re.compile(r">>.*?<<")
"""Pattern of the language tokens (`>>fra<<`) that begin the sources of a model with several target languages."""


class Vocabulary(ABC):
    """Mapping from text to ids and back.

    model: bytes that determine the vocabulary. Vocabularies with the same bytes encode every text in the same way.
    """

    model: bytes

    @property
    @abstractmethod
    def vocab_size(self) -> int:
        """Number of ids, including the symbols."""

    @property
    @abstractmethod
    def never_generated_ids(self) -> list[int]:
        """Ids that search never generates: <unk>, <s>, pieces that contain a control character, the byte pieces of
        `CONTROL_BYTES` and, in a `Tokenizer`, language tokens."""

    @cached_property
    @abstractmethod
    def piece_bytes(self) -> list[bytes]:
        """UTF-8 text of each id. The text of a piece that begins a word starts with a space; the text of a symbol such
        as `</s>` is empty."""

    def shares_ids_with(self, other: Vocabulary) -> bool:
        """Return True if both vocabularies assign the same ids to the same pieces."""
        return self.model == other.model

    def language_prefix(self, line: str) -> str:
        """Return the language token at the beginning of a line, such as `>>fra<<`, or "". If the line is split, this
        token must be added to the other parts."""
        match = LANGUAGE_TOKEN.match(line)
        return match[0] if match and self.has_piece(match[0]) else ""

    @abstractmethod
    def has_piece(self, text: str) -> bool:
        """Return True if the text is a piece of the vocabulary."""

    @abstractmethod
    def encode(self, lines: Sequence[str], threads: int = 1) -> list[list[int]]:
        """Return the ids of each line, without START_ID and END_ID."""

    @abstractmethod
    def spans(self, lines: Sequence[str]) -> list[list[tuple[int, int]]]:
        """Return, for each piece that `encode` returns, the span (begin, end) of its characters in the line."""

    @abstractmethod
    def sample(self, lines: Sequence[str], alpha: float, seed: int) -> list[list[int]]:
        """Encode with subword sampling. The same arguments give the same ids in every process."""

    @abstractmethod
    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """Return the text of each line; START_ID and END_ID are removed."""

    @abstractmethod
    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Return the pieces of these ids as sentencepiece writes them, with U+2581 for white space."""

    @abstractmethod
    def decode_pieces(self, pieces: Sequence[Sequence[str]]) -> list[str]:
        """Return the text of each line of pieces: decode_pieces([pieces(ids)]) == decode([ids]) without <s>, </s>."""

    def encode_flat(self, lines: Sequence[str], threads: int = 1) -> tuple[np.ndarray, np.ndarray]:
        """Return the ids of `encode` as one flat array.

        Returns:
            ids (tokens,) int64, and offsets (lines + 1,) int64, where line i is ids[offsets[i]:offsets[i + 1]].
        """
        encoded = self.encode(lines, threads)
        offsets = np.zeros(len(encoded) + 1, np.int64)
        np.cumsum([len(ids) for ids in encoded], out=offsets[1:])
        return np.fromiter(chain.from_iterable(encoded), np.int64, offsets[-1]), offsets

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of `model`."""
        return hashlib.sha256(self.model).hexdigest()


def load_processor(model: bytes, where: str) -> Any:
    """Return the sentencepiece processor for the bytes of a model. where: name of the model in error messages.

    Raises:
        TokenizerError: the bytes are not a valid model.
    """
    processor = sentencepiece.SentencePieceProcessor()
    try:
        processor.LoadFromSerializedProto(model)                                # the constructor ignores b""
        # Convert every piece and the text of the unknown piece to str once. Invalid UTF-8 in the model raises an error.
        processor.id_to_piece(list(range(processor.vocab_size())))
        processor.decode([processor.unk_id()])
    except (RuntimeError, IndexError, UnicodeDecodeError) as error:
        raise TokenizerError(f"{where} is not a sentencepiece model, or it is damaged: copy it again.") from error
    return processor


def encode_lines(processor: Any, lines: Sequence[str], **options: Any) -> list[Any]:
    """Encode each line with a sentencepiece processor.

    Raises:
        TokenizerError: a line contains half a surrogate pair, which UTF-8 cannot encode.
    """
    try:
        if len(lines) == 1:                                                     # a list of lines would start threads
            return [processor.encode(lines[0], **options)]
        return processor.encode(list(lines), **options)
    except TypeError:
        reject_surrogates(lines)
        raise


def spans_in_lines(processor: Any, lines: Sequence[str], tokens: Sequence[list[int]], texts: Sequence[str]
                   ) -> list[list[tuple[int, int]]]:
    """Return the spans of `Vocabulary.spans`.

    texts: lines without the language tokens that they begin with. tokens: language token of each line, as [id] or [].
    """
    begins = [len(line) - len(text) for line, text in zip(lines, texts, strict=True)]
    encoded = encode_lines(processor, texts, return_type="offset_mapping")
    return [[(0, begin)] * len(token) + [(begin + first, begin + last) for first, last in of_line["offsets"]]
            for begin, token, of_line in zip(begins, tokens, encoded, strict=True)]


def reject_surrogates(lines: Sequence[str]) -> None:
    """Raise TokenizerError if a line cannot be encoded in UTF-8."""
    for number, line in enumerate(lines, 1):
        if any("\ud800" <= character <= "\udfff" for character in line):
            raise TokenizerError(f"text {number} contains half a surrogate pair, which UTF-8 cannot encode. Decode "
                                 "the bytes of the text with errors='replace'.") from None
