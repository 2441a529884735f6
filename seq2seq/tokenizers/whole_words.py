"""Vocabulary of whole words, for text other than natural language: numbers, positions, tags."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import chain

from seq2seq.errors import TokenizerError
from seq2seq.tokenizers.vocabulary import CONTROL_CHARACTERS, END_ID, UNKNOWN_ID, Vocabulary

SYMBOLS = ("<unk>", "<s>", "</s>")
HEADER = b"seq2seq words "


class Words(Vocabulary):
    """Words separated by white space; words without an id become the unknown token.

    decode(encode(x)) == x for known words separated by single spaces. The file has one word per line, after a header
    with their number.
    """

    def __init__(self, words: Sequence[str]) -> None:
        """words: all different, without white space; their ids follow those of the symbols."""
        self.words = list(words)
        self.model = HEADER + "".join(f"{line}\n" for line in (len(self.words), *self.words)).encode()
        self._ids = {word: index for index, word in enumerate(self.words, END_ID + 1)}

    @classmethod
    def from_bytes(cls, model: bytes, where: str = "the tokenizer") -> Words:
        """Read the bytes of `model`. Raises TokenizerError if they are damaged; `where` names them in the message."""
        try:
            count, *words = model.removeprefix(HEADER).decode().split("\n")
            known = cls(words[:-1])
            whole = known.model == model and len(set(words)) == len(words) == int(count) + 1
        except ValueError:
            whole = False
        if not whole:
            raise TokenizerError(f"{where} is no list of words, or it is damaged: copy it again.")
        return known

    @property
    def vocab_size(self) -> int:
        return END_ID + 1 + len(self.words)

    @cached_property
    def never_generated_ids(self) -> list[int]:
        controls = {chr(code) for code in CONTROL_CHARACTERS}
        return [*range(END_ID), *(index for word, index in self._ids.items() if not controls.isdisjoint(word))]

    @cached_property
    def piece_bytes(self) -> list[bytes]:
        return [b""] * (END_ID + 1) + [f" {word}".encode() for word in self.words]

    def encode(self, lines: Sequence[str], threads: int = 1) -> list[list[int]]:
        return [[self._ids.get(word, UNKNOWN_ID) for word in line.split()] for line in lines]

    def spans(self, lines: Sequence[str]) -> list[list[tuple[int, int]]]:
        return [[match.span() for match in re.finditer(r"\S+", line)] for line in lines]

    def sample(self, lines: Sequence[str], alpha: float, seed: int) -> list[list[int]]:
        """Return the ids of `encode`: words are not segmented."""
        return self.encode(lines)

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """Return the text of each line, with `<unk>` for unknown words."""
        return self.decode_pieces([self.pieces([index for index in line if index == UNKNOWN_ID or index > END_ID])
                                   for line in ids])

    def pieces(self, ids: Sequence[int]) -> list[str]:
        return [SYMBOLS[index] if index <= END_ID else f"\u2581{self.words[index - END_ID - 1]}"
                for index in map(int, ids)]

    def decode_pieces(self, pieces: Sequence[Sequence[str]]) -> list[str]:
        return [" ".join(piece.removeprefix("\u2581") for piece in line) for line in pieces]


def train_words(lines: Iterable[str], vocab_size: int) -> Words:
    """Return the vocabulary of a text's most frequent words, of at most `vocab_size` ids, symbols included.

    Of equally frequent words, the one that occurs first is preferred.

    Raises:
        TokenizerError: there are no words.
    """
    counts = Counter(chain.from_iterable(line.split() for line in lines))
    if not counts:
        raise TokenizerError("there is no text to train the tokenizer on; see what data.cleaning drops.")
    return Words([word for word, _ in counts.most_common(vocab_size - END_ID - 1)])


def positions(most: int) -> Words:
    """Return the vocabulary of the numbers from 1 to `most`; position p, counted from 1, has the id END_ID + p."""
    return Words([str(position) for position in range(1, most + 1)])


def position_fault(source: str, target: str) -> str | None:
    """Describe the fault of a target that should hold positions of source words, counted from 1; None if valid."""
    count = len(source.split())
    known = {str(position) for position in range(1, count + 1)}
    for word in target.split():
        if word not in known:
            return f"'{word}' is no position in a source of {count} words; write numbers from 1 to {count}"
    return None
