"""Marian vocabularies: sentencepiece models with a separate mapping from pieces to ids, for imported models.

Marian segments text with one sentencepiece model per language, and maps the pieces to ids with a separate vocabulary.
That vocabulary contains the pieces of both models, and language tokens such as `>>fra<<`, which neither model contains.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import groupby

import numpy as np

from seq2seq.errors import TokenizerError
from seq2seq.tokenizers.language_token import LANGUAGE_TOKEN
from seq2seq.tokenizers.subword_sampling import WORD_BOUNDARY, SubwordSampler
from seq2seq.tokenizers.vocabulary import (
    CANONICAL_MARK,
    END_ID,
    START_ID,
    UNKNOWN_ID,
    Vocabulary,
    encode_lines,
    load_processor,
    piece_spans,
    require_size,
)

UNUSED = "<unused "
"""Beginning of the names of ids that have an embedding, but no piece: two in NLLB-200, eight in M2M-100, 128 in T5."""
MADLAD_TOKEN = re.compile(r"<2([a-z]{2,3}(?:_[A-Za-z]{2,8})*)>")
"""Language tokens of MADLAD-400, such as `<2de>`, which are pieces of sentencepiece. The group is the code."""


class MarianVocabulary(Vocabulary):
    """Sentencepiece model with a separate mapping from its pieces to ids.

    sentencepiece: bytes of the sentencepiece model. ids: id of each piece, without gaps; <unk>, <s> and </s> have the
    ids 0, 1 and 2.
    """

    def __init__(self, model: bytes, ids: Mapping[str, int], where: str = "the tokenizer") -> None:
        """Load the sentencepiece model from its bytes. where: name of the model in error messages."""
        require_size(len(ids), where)
        self._processor = load_processor(model, where)
        self._names = sorted(ids, key=lambda piece: ids[piece])
        if [ids[name] for name in self._names] != list(range(len(ids))) or len(ids) <= END_ID:
            raise TokenizerError(f"{where}: the ids of the pieces are not the numbers from 0 to {len(ids) - 1:,}. "
                                 "Import the model again.")
        self.sentencepiece, self.is_canonical = model, model.endswith(CANONICAL_MARK)
        self.ids = {name: index for index, name in enumerate(self._names)}
        self.model = json.dumps(self._names).encode() + model
        self._unknown = self._processor.unk_id()
        pieces = self._processor.id_to_piece(list(range(self._processor.vocab_size())))
        self._id_of = np.array([ids.get(piece, UNKNOWN_ID) for piece in pieces], np.int64)  # by sentencepiece's id

    @property
    def vocab_size(self) -> int:
        return len(self._names)

    @cached_property
    def languages(self) -> dict[str, int]:
        return {match[1]: index for name, index in self.ids.items()
                if (match := LANGUAGE_TOKEN.fullmatch(name) or MADLAD_TOKEN.fullmatch(name))}

    def token_ids(self, token: int) -> list[int]:
        # MADLAD-400 was trained on text that begins with the token; sentencepiece puts a space before each text.
        name = self._names[token]
        return self._look_up_pieces(name) if MADLAD_TOKEN.fullmatch(name) else [token]

    @property
    def _never_generated_symbols(self) -> set[int]:
        return super()._never_generated_symbols | {index for name, index in self.ids.items() if name.startswith(UNUSED)}

    def shares_ids_with(self, other: Vocabulary) -> bool:
        return isinstance(other, MarianVocabulary) and self.ids == other.ids

    @cached_property
    def piece_bytes(self) -> list[bytes]:
        return [b"" if index <= END_ID else bytes([int(name[1:-1], 16)]) if self._is_byte(name)
                else name.replace(WORD_BOUNDARY, " ").encode() for index, name in enumerate(self._names)]

    def _encode(self, texts: Sequence[str], threads: int) -> list[list[int]]:
        # A character that is unknown to this sentencepiece model may be a piece of the other language's model.
        return [self._look_up_pieces(text) if self._unknown in ids else self._id_of[ids].tolist()
                for text, ids in zip(texts, encode_lines(self._processor, texts, num_threads=threads), strict=True)]

    def _sample(self, texts: Sequence[str], alpha: float, seed: int) -> list[list[int]]:
        """See `Vocabulary.sample`. Consecutive unknown characters become one unknown piece."""
        return [[index for piece, run in groupby(ids) for index in
                 ([UNKNOWN_ID] if piece == self._unknown else self._id_of[list(run)].tolist())]
                for ids in self._sampler.sample(texts, alpha, seed)]

    def _spans(self, texts: Sequence[str]) -> list[list[tuple[int, int]]]:
        return piece_spans(self._processor, texts)

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """Return the text of each line; START_ID and END_ID are removed."""
        return self.decode_pieces([
            [self._names[index] for index in map(int, line) if index not in (START_ID, END_ID)] for line in ids])

    def pieces(self, ids: Sequence[int]) -> list[str]:
        return [self._names[int(index)] for index in ids]

    def with_pieces(self, names: Sequence[str], sentencepiece: bytes) -> Vocabulary:
        return type(self)(sentencepiece, {name: index for index, name in enumerate(names)})

    def decode_pieces(self, pieces: Sequence[Sequence[str]]) -> list[str]:
        # In a piece that only the other language's model contains, sentencepiece does not convert U+2581 to a space.
        texts = (self._processor.decode_pieces(list(line)) for line in pieces)
        return [text.replace(WORD_BOUNDARY, " ").removeprefix(" ") for text in texts]

    def _look_up_pieces(self, text: str) -> list[int]:
        return [self.ids.get(piece, UNKNOWN_ID) for piece in self._processor.encode(text, out_type=str)]

    def _is_byte(self, name: str) -> bool:
        return self._processor.is_byte(self._processor.piece_to_id(name))

    @cached_property
    def _sampler(self) -> SubwordSampler:
        return SubwordSampler(self._processor)
