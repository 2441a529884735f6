"""Vocabulary of whole words, for text other than natural language: numbers, positions, tags."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import chain

from seq2seq.errors import TokenizerError
from seq2seq.tokenizers.language_token import LANGUAGE_TOKEN
from seq2seq.tokenizers.vocabulary import END_ID, UNKNOWN_ID, Vocabulary, require_size

SYMBOLS = ("<unk>", "<s>", "</s>")
TOKEN_MARK = " "
"""Space before each language token in the list of words. No word of a text contains it."""
HEADER = b"seq2seq words "
CANONICAL = " canonical"


class Words(Vocabulary):
    """Vocabulary of words separated by white space. A word that is not in the vocabulary becomes `<unk>`.

    decode(encode(x)) == x if all words of x are in the vocabulary and separated by single spaces. The vocabulary file
    has a header with the number of words and, if text is made canonical, a mark; then one word per line.
    """

    def __init__(self, words: Sequence[str], is_canonical: bool = False) -> None:
        """words: words without white space or duplicates, and language tokens, each after TOKEN_MARK. Their ids follow
        the ids of the symbols."""
        self.words, self.is_canonical = list(words), is_canonical
        first = f"{len(self.words)}{CANONICAL * is_canonical}"
        self.model = HEADER + "".join(f"{line}\n" for line in (first, *self.words)).encode()
        self._ids = {word: index for index, word in enumerate(self.words, END_ID + 1)}

    @classmethod
    def from_bytes(cls, model: bytes, where: str = "the tokenizer") -> Words:
        """Return the vocabulary in the contents of a vocabulary file. where: name of the file in error messages."""
        require_size(model.count(b"\n"), where)
        try:
            first, *words = model.removeprefix(HEADER).decode().split("\n")
            vocabulary = cls(words[:-1], first.endswith(CANONICAL))
            count = int(first.removesuffix(CANONICAL))
            is_intact = vocabulary.model == model and len(set(words)) == len(words) == count + 1
        except ValueError:
            is_intact = False
        if not is_intact:
            raise TokenizerError(f"{where} is not a list of words, or it is damaged. Copy it again.")
        return vocabulary

    @property
    def vocab_size(self) -> int:
        return END_ID + 1 + len(self.words)

    @cached_property
    def languages(self) -> dict[str, int]:
        return {match[1]: index for word, index in self._ids.items()
                if word.startswith(TOKEN_MARK) and (match := LANGUAGE_TOKEN.fullmatch(word.removeprefix(TOKEN_MARK)))}

    @property
    def _never_generated_symbols(self) -> set[int]:
        return super()._never_generated_symbols | set(self.languages.values())

    @cached_property
    def piece_bytes(self) -> list[bytes]:
        return [b""] * (END_ID + 1) + [b"" if word.startswith(TOKEN_MARK) else f" {word}".encode()
                                       for word in self.words]

    def _encode(self, texts: Sequence[str], threads: int) -> list[list[int]]:
        return [[self._ids.get(word, UNKNOWN_ID) for word in text.split()] for text in texts]

    def _sample(self, texts: Sequence[str], alpha: float, seed: int) -> list[list[int]]:
        return self._encode(texts, 1)                                           # words are not segmented

    def _spans(self, texts: Sequence[str]) -> list[list[tuple[int, int]]]:
        return [[match.span() for match in re.finditer(r"\S+", text)] for text in texts]

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """Return the text of each line, with `<unk>` for unknown words, and without language tokens."""
        symbols = {*range(END_ID + 1), *self.languages.values()} - {UNKNOWN_ID}
        return self.decode_pieces([self.pieces([index for index in line if int(index) not in symbols])
                                   for line in ids])

    def pieces(self, ids: Sequence[int]) -> list[str]:
        return [SYMBOLS[index] if index <= END_ID else
                f"\u2581{self.words[index - END_ID - 1]}".removeprefix(f"\u2581{TOKEN_MARK}")
                for index in map(int, ids)]

    def decode_pieces(self, pieces: Sequence[Sequence[str]]) -> list[str]:
        return [" ".join(piece.removeprefix("\u2581") for piece in line) for line in pieces]


def train_words(lines: Iterable[str], vocab_size: int, tokens: Sequence[str] = (), is_canonical: bool = False) -> Words:
    """Return the vocabulary of the most frequent words of a text, with at most `vocab_size` ids, including symbols and
    language tokens.

    Of equally frequent words, the words that occur first in the text are kept. is_canonical: see `Vocabulary`; the
    lines are then canonical.
    """
    counts = Counter(chain.from_iterable(line.split() for line in lines))
    if not counts:
        raise TokenizerError("there is no text to train the tokenizer on. Check data.train and data.cleaning.")
    words = [word for word, _ in counts.most_common(max(0, vocab_size - END_ID - 1 - len(tokens)))]
    return Words([*(f"{TOKEN_MARK}{token}" for token in tokens), *words], is_canonical)


def position_vocabulary(max_position: int) -> Words:
    """Return the vocabulary of the numbers from 1 to `max_position`. Position p has the id END_ID + p."""
    return Words([str(position) for position in range(1, max_position + 1)])


def position_fault(source: str, target: str) -> str | None:
    """Return an error message if a target word is not the position of a source word, counted from 1; else None."""
    count = len(source.split())
    valid = {str(position) for position in range(1, count + 1)}
    for word in target.split():
        if word not in valid:
            return f"'{word}' is not a position in a source of {count} words; write numbers from 1 to {count}"
    return None
