"""Text to piece ids and back: sentencepiece with byte fallback, so that every line can be encoded and restored."""

from __future__ import annotations

import hashlib
import io
import random
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import sentencepiece

from seq2seq.errors import TokenizerError
from seq2seq.subword_sampling import SubwordSampler

if TYPE_CHECKING:
    from seq2seq.recipe import TokenizerSection

UNKNOWN_ID = 0
START_ID = 1
END_ID = 2

JOINT_FILE = "tokenizer.model"
SOURCE_FILE = "source.model"
TARGET_FILE = "target.model"

# Sums over threads are taken in the order of the threads: another number of them would be another model.
TRAINING_THREADS = 16
# Longer lines would be dropped by sentencepiece without a word; this is the largest value that it takes.
LONGEST_TRAINING_LINE = 2**31 - 1
# What the model must not learn as a piece: a line break or a control character is spelled in bytes, and those can be
# banned in search. The white space that splits lines in other people's software (U+0085, U+2028, U+2029) is with them.
CONTROL_CHARACTERS = [*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029]
CONTROLS_TO_SPACES = dict.fromkeys(CONTROL_CHARACTERS, " ")
CONTROL_BYTES = [*range(0x20), 0x7F]


class Tokenizer:
    """One sentencepiece model. decode(encode(x)) == x for every text without U+2581, where nothing is normalised."""

    def __init__(self, model: bytes, where: str = "the tokenizer") -> None:
        """Take the bytes of a sentencepiece model; `where` names them in error messages."""
        self.model = model
        try:
            self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        except RuntimeError as error:
            raise TokenizerError(f"{where} is not a sentencepiece model, or it is damaged: copy it again.") from error
        special = (self._processor.unk_id(), self._processor.bos_id(), self._processor.eos_id())
        if special != (UNKNOWN_ID, START_ID, END_ID):
            raise TokenizerError(
                f"{where} numbers <unk>, <s>, </s> as {special}, here they are {(UNKNOWN_ID, START_ID, END_ID)}. "
                "Train the tokenizer with seq2seq, or import the model that it belongs to."
            )

    @classmethod
    def from_bytes(cls, model: bytes) -> Tokenizer:
        return cls(model)

    @classmethod
    def load(cls, path: str | Path) -> Tokenizer:
        """Read a model file. Raises TokenizerError if there is none or it is damaged."""
        try:
            return cls(Path(path).read_bytes(), str(path))
        except OSError as error:
            raise TokenizerError(f"{path}: the tokenizer cannot be read: {error.strerror}.") from error

    def save(self, path: str | Path) -> None:
        Path(path).write_bytes(self.model)

    @property
    def vocab_size(self) -> int:
        return self._processor.vocab_size()

    @cached_property
    def fingerprint(self) -> str:
        """sha256 of the model's bytes: two tokenizers that agree in it encode alike."""
        return hashlib.sha256(self.model).hexdigest()

    @cached_property
    def control_ids(self) -> list[int]:
        """Ids that a translation never holds: unknown, start, and every piece with a control character in it."""
        controls = {chr(byte) for byte in CONTROL_BYTES}
        names = {f"<0x{byte:02X}>" for byte in CONTROL_BYTES}
        return [
            index
            for index in range(self.vocab_size)
            if index in (UNKNOWN_ID, START_ID)
            or (self._processor.is_byte(index) and self._processor.id_to_piece(index) in names)
            or not controls.isdisjoint(self._processor.id_to_piece(index))
        ]

    def encode(self, lines: Sequence[str], threads: int = 1) -> list[list[int]]:
        """Ids of each line; START_ID and END_ID are the caller's to add."""
        try:
            return self._processor.encode(list(lines), num_threads=threads)
        except TypeError:
            refuse_surrogates(lines)
            raise

    def encode_flat(self, lines: Sequence[str], threads: int = 1) -> tuple[np.ndarray, np.ndarray]:
        """The same ids, one line behind another.

        Returns:
            ids (tokens,), uint16 where the vocabulary allows, else uint32; and offsets (lines + 1,) int64, where each
            line begins.
        """
        try:
            encoded = self._processor.encode(list(lines), num_threads=threads, return_type="numpy")
        except TypeError:
            refuse_surrogates(lines)
            raise
        return self._flat(encoded, np.concatenate)

    def sample(self, lines: Sequence[str], alpha: float, seed: int) -> list[list[int]]:
        """Encode with subword sampling: the same (lines, alpha, seed) give the same ids, in every process.

        alpha is what `SubwordSampler` says: the smoothing of a unigram model, the dropout of a BPE model.
        """
        refuse_surrogates(lines)
        return self._sampler.sample([self._processor.normalize(line) for line in lines], alpha, random.Random(seed))

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """Text of each line; START_ID and END_ID vanish, bytes that are not UTF-8 become U+FFFD."""
        return self._processor.decode([list(map(int, line)) for line in ids]) if len(ids) else []

    def pieces(self, ids: Sequence[int]) -> list[str]:
        return [self._processor.id_to_piece(int(index)) for index in ids]

    @cached_property
    def _sampler(self) -> SubwordSampler:
        return SubwordSampler(self._processor)
