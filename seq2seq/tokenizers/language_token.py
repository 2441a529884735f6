"""Vocabulary that selects one target language of a model with several target languages."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from seq2seq.tokenizers.vocabulary import Vocabulary


class WithLanguageToken(Vocabulary):
    """Vocabulary that adds a language token, such as `>>de<<`, before each text that does not begin with one."""

    def __init__(self, vocabulary: Vocabulary, token: str) -> None:
        self.vocabulary, self.token = vocabulary, token
        self.model = vocabulary.model

    @property
    def vocab_size(self) -> int:
        return self.vocabulary.vocab_size

    @property
    def never_generated_ids(self) -> list[int]:
        return self.vocabulary.never_generated_ids

    @cached_property
    def piece_bytes(self) -> list[bytes]:
        return self.vocabulary.piece_bytes

    def shares_ids_with(self, other: Vocabulary) -> bool:
        return self.vocabulary.shares_ids_with(other)

    def has_piece(self, text: str) -> bool:
        return self.vocabulary.has_piece(text)

    def encode(self, lines: Sequence[str], threads: int = 1) -> list[list[int]]:
        return self.vocabulary.encode([self._added(line) + line for line in lines], threads)

    def spans(self, lines: Sequence[str]) -> list[list[tuple[int, int]]]:
        """See `Vocabulary.spans`. The spans of an added token are empty."""
        added = [self._added(line) for line in lines]
        spans = self.vocabulary.spans([token + line for token, line in zip(added, lines, strict=True)])
        return [[(max(0, begin - len(token)), max(0, end - len(token))) for begin, end in of_line]
                for token, of_line in zip(added, spans, strict=True)]

    def sample(self, lines: Sequence[str], alpha: float, seed: int) -> list[list[int]]:
        return self.vocabulary.sample([self._added(line) + line for line in lines], alpha, seed)

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        return self.vocabulary.decode(ids)

    def pieces(self, ids: Sequence[int]) -> list[str]:
        return self.vocabulary.pieces(ids)

    def decode_pieces(self, pieces: Sequence[Sequence[str]]) -> list[str]:
        return self.vocabulary.decode_pieces(pieces)

    def _added(self, line: str) -> str:
        return "" if self.language_prefix(line) else f"{self.token} "
