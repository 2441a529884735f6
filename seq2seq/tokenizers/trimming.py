"""Trimming of vocabularies: only the pieces remain that the segmentation of a given text needs.

The text is segmented as before. A unigram model takes the best path: it remains the best when other pieces are missing.
A BPE model merges the best pair again and again: pairs that were never merged in this text can be missing, if those
remain that were. Any other text can still be segmented, into smaller pieces: single characters remain, except letters
of scripts in which the text has none, and so do byte pieces.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Iterable, Set
from dataclasses import dataclass
from itertools import islice
from typing import Any

from seq2seq.errors import TokenizerError
from seq2seq.tokenizers.subword_sampling import SubwordSampler
from seq2seq.tokenizers.tokenizer import Tokenizers
from seq2seq.tokenizers.vocabulary import CANONICAL_MARK, Vocabulary, encode_lines, load_processor

BLOCK_LINES = 10_000


@dataclass(frozen=True)
class Trimmed:
    """Tokenizers with fewer pieces. source_ids, target_ids: old id of each id."""

    tokenizers: Tokenizers
    source_ids: list[int]
    target_ids: list[int]


def trim(tokenizers: Tokenizers, lines: Iterable[str], languages: Set[str]) -> Trimmed:
    """Return tokenizers that keep the pieces which a text in all their languages needs, and all symbols.

    Args:
        languages: codes of the language tokens to keep, as the vocabularies have them.
    """
    sides = (tokenizers.source, tokenizers.target)
    pieces = {side.sentencepiece: _Pieces(side) for side in sides}
    remaining = iter(lines)
    while block := list(islice(remaining, BLOCK_LINES)):
        for each in pieces.values():
            each.add(block)
    for side in sides:
        for code in languages & side.languages.keys():                          # tokens of T5 are pieces
            pieces[side.sentencepiece].needed.update(side.pieces(side.token_ids(side.languages[code])))
    for each in pieces.values():
        each.complete()
    models = [pieces[side.sentencepiece] for side in sides]
    if tokenizers.joint:                                                  # each side may read what the other needs
        for each in models:
            each.needed = models[0].needed | models[1].needed
    trimmed, ids = [], []
    for side, each in zip(sides, models, strict=True):
        tokens = {index for code, index in side.languages.items() if code not in languages}
        removed = (set().union(*(one.normal for one in models)) if tokenizers.joint else each.normal) - each.needed
        names = side.pieces(range(side.vocab_size))
        kept = [index for index, name in enumerate(names) if index not in tokens and name not in removed]
        model = without_pieces(side.sentencepiece, removed | {names[index] for index in tokens})
        trimmed.append(side.with_pieces([names[index] for index in kept], model))
        ids.append(kept)
    if tokenizers.source is tokenizers.target:
        trimmed[1] = trimmed[0]
    return Trimmed(Tokenizers(*trimmed), *ids)


class _Pieces:
    """Pieces of a sentencepiece model that a text needs.

    needed: pieces of the text, as they are added. normal: all pieces that text is segmented into, except pieces of
    bytes and those that the trainer was given.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        if not vocabulary.sentencepiece:
            raise TokenizerError("only vocabularies of sentencepiece can be trimmed, and this model reads whole words.")
        self._vocabulary = vocabulary
        self._processor = load_processor(vocabulary.sentencepiece, "the tokenizer")
        self._scores = {piece.piece: piece.score for piece in read_model(vocabulary.sentencepiece).pieces
                        if piece.type == piece.NORMAL}
        self.normal = set(self._scores)
        self.needed: set[str] = set()
        self._has_text = False

    def add(self, lines: Iterable[str]) -> None:
        texts = list(map(self._vocabulary.normalized, lines))
        if self._vocabulary.languages and not self._vocabulary.begins_with_own_language:
            texts += [f" {text}" for text in texts]                             # the form behind a language token
        for encoded in encode_lines(self._processor, texts, out_type=str):
            self.needed.update(encoded)
            self._has_text |= bool(encoded)

    def complete(self) -> None:
        """Add what the pieces of the text are merged from, and single characters."""
        if not self._has_text:
            raise TokenizerError("the text for the vocabulary is empty.")
        sampler = SubwordSampler(self._processor)
        self.needed = set().union(*map(sampler.merged_pieces, self.needed))
        scripts = {_script(character) for piece in self.needed for character in piece}
        self.needed.update(piece for piece in self.normal if len(piece) == 1 and _script(piece) in {*scripts, ""})
        # The score of unknown characters depends on the lowest score, that of the trainer's symbols on the highest.
        self.needed.update(choose(self._scores, key=self._scores.__getitem__) for choose in (min, max))


def _script(character: str) -> str:
    """Return the first word of a letter's name, such as LATIN; "" for other characters."""
    return unicodedata.name(character, "").partition(" ")[0] if unicodedata.category(character)[0] == "L" else ""


def read_model(model: bytes) -> Any:
    """Return the message (ModelProto) of a sentencepiece model."""
    from sentencepiece import sentencepiece_model_pb2

    message = sentencepiece_model_pb2.ModelProto()
    message.ParseFromString(model.removesuffix(CANONICAL_MARK))
    return message


def without_pieces(model: bytes, removed: Collection[str]) -> bytes:
    """Return a sentencepiece model without some pieces. The others keep their order and scores."""
    message = read_model(model)
    kept = [piece for piece in message.pieces if piece.piece not in removed]
    del message.pieces[:]
    message.pieces.extend(kept)
    return written(message, model)


def written(message: Any, model: bytes) -> bytes:
    """Return the bytes of a changed message. model: bytes of the message before."""
    message.DiscardUnknownFields()                                              # tests of the trainer's segmentation
    return message.SerializeToString() + CANONICAL_MARK * model.endswith(CANONICAL_MARK)
