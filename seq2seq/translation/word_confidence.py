"""Word-level confidence of translations."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from seq2seq.languages import has_spaceless_words
from seq2seq.search.interface import Stepwise
from seq2seq.tokenizers.tokenizer import END_ID, START_ID, Vocabulary


@dataclass(frozen=True)
class Word:
    """Word of a translation.

    confidence: geometric mean of the probabilities of the word's pieces, from 0 to 1.
    """

    text: str
    confidence: float


def log_probabilities(model: Stepwise, source: np.ndarray, source_offsets: np.ndarray,
                      targets: Sequence[Sequence[Sequence[int]]]) -> list[list[list[float]]]:
    """Compute log p of each token of given targets, `</s>` included, by calling `Stepwise.step` token by token.

    Args:
        source, source_offsets: as in `Stepwise.start`.
        targets: for each sentence, one or more targets, as ids without `</s>`.
    Returns:
        For each sentence and each of its targets, log p of the target's tokens.
    """
    beam, length = max(map(len, targets)), 1 + max(len(target) for n_best in targets for target in n_best)
    # (sentences * beam, length), padded with </s>. If a sentence has fewer than `beam` targets, empty ones are added.
    tokens = np.array([[*target, *[END_ID] * (length - len(target))] for n_best in targets
                       for target in [*n_best, *[[]] * (beam - len(n_best))]])
    state = model.start(source, source_offsets)
    if beam > 1:
        state = state.select(np.arange(len(targets)).repeat(beam).reshape(-1, beam))
    last_tokens, rows = np.full(len(tokens), START_ID), np.arange(len(tokens))
    steps = []
    for next_tokens in tokens.T:
        scores, state = model.step(last_tokens, state)
        steps.append(scores.values(rows, next_tokens) - scores.log_sum_exp())
        last_tokens = next_tokens
    values = np.stack(steps, 1).reshape(len(targets), beam, length).tolist()
    return [[row[: len(target) + 1] for row, target in zip(rows, n_best, strict=False)]
            for rows, n_best in zip(values, targets, strict=True)]


def words_of(target: Sequence[int], log_probabilities: Sequence[float], tokenizer: Vocabulary,
             language: str) -> tuple[Word, ...]:
    """Return the words of a target with their confidence.

    In a language without spaces between words, each piece counts as a word.

    Args:
        target: ids without `</s>`. log_probabilities: log p of each id. Values after the last id, such as log p of
            `</s>`, are ignored.
        language: code of the target language.
    """
    words = []
    for begin, end in _spans(tokenizer.pieces(target), has_spaceless_words(language)):
        text = tokenizer.decode([target[begin:end]])[0].strip()
        if text:
            words.append(Word(text, math.exp(sum(log_probabilities[begin:end]) / (end - begin))))
    return tuple(words)


def _spans(pieces: Sequence[str], spaceless: bool) -> Iterator[tuple[int, int]]:
    """Yield the span (begin, end) of each word: index of its first piece, and index after its last piece."""
    begins = [index for index, piece in enumerate(pieces)
              if index == 0 or piece.startswith("\u2581") or (spaceless and not _continues_character(piece))]
    yield from zip(begins, [*begins[1:], len(pieces)], strict=True)


def _continues_character(piece: str) -> bool:
    """Return True if the piece is a byte piece, such as <0x9F>, and its byte does not begin a UTF-8 character."""
    return len(piece) == 6 and piece.startswith("<0x") and 0x80 <= int(piece[3:5], 16) < 0xC0
