"""What a target must not hold, must begin with, must be as long as: functions of scores for search.

Each makes a `search.ScoreFunction`, which may overwrite the logits that it is given and sets those of impossible words
to -inf. As `constraints` of a search they leave the others their probability.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from seq2seq.search import Hypotheses, ScoreFunction
from seq2seq.tokenizer import END_ID


def at_least(length: int) -> ScoreFunction:
    """No target of fewer than `length` words, `</s>` not counted."""

    def function(hypotheses: Hypotheses, logits: Tensor) -> Tensor:
        if hypotheses.tokens.shape[2] < length:
            logits[:, END_ID] = -math.inf
        return logits

    return function


def beginning_with(prefixes: Sequence[Sequence[int]]) -> ScoreFunction:
    """Each target begins with its line's prefix, which may be empty."""

    def function(hypotheses: Hypotheses, logits: Tensor) -> Tensor:
        _, beam, length = hypotheses.tokens.shape
        for sentence, line in enumerate(hypotheses.lines):
            if length < len(prefixes[line]):
                rows = logits[sentence * beam : (sentence + 1) * beam]
                kept = rows[:, prefixes[line][length]].clone()
                rows.fill_(-math.inf)[:, prefixes[line][length]] = kept
        return logits

    return function


def no_repeat_ngram(size: int) -> ScoreFunction:
    """No `size` words in a row stand in a target twice (Paulus et al. 2017, arXiv:1705.04304, section 2.5)."""

    def function(hypotheses: Hypotheses, logits: Tensor) -> Tensor:
        tokens = hypotheses.tokens.flatten(0, 1)                                # (rows, length)
        if tokens.shape[1] >= size:
            ngrams = tokens.unfold(1, size, 1)                                  # (rows, places, size)
            latest = tokens[:, tokens.shape[1] - size + 1 :]
            rows, places = (ngrams[:, :, :-1] == latest[:, None]).all(2).nonzero(as_tuple=True)
            logits[rows, ngrams[rows, places, -1]] = -math.inf
        return logits

    return function


def without(phrases: Sequence[str], pieces: Sequence[bytes], whole_words: bool = True) -> ScoreFunction:
    """No target's text holds one of the phrases, in whatever pieces.

    Args:
        pieces: the text of each id in UTF-8, a space where it begins a word.
        whole_words: a phrase that begins or ends with a letter or digit begins or ends where a word does: "art" forbids
            neither "party" nor "arts" where that is a piece. (After the piece "art" it is too late to say whether "s"
            will follow: the word "art" is forbidden.)
            Otherwise it is forbidden anywhere.
    Raises:
        ValueError: a phrase is empty.
    """
    if not all(phrases):
        raise ValueError("an empty phrase is in every text")
    forbidden = [_Forbidden(phrase.encode(), pieces, whole_words) for phrase in phrases]
    # Pieces enough to hold what may go before the end of a phrase.
    reach = max((len(each.phrase) for each in forbidden), default=0) + 4

    def function(hypotheses: Hypotheses, logits: Tensor) -> Tensor:
        for row, tokens in enumerate(hypotheses.tokens.flatten(0, 1)[:, -reach:].tolist()):
            text = b"".join(pieces[token] for token in tokens)
            for each in forbidden:
                if len(ids := each.after(text)):
                    logits[row, ids.to(logits.device)] = -math.inf
        return logits

    return function


class _Forbidden:
    """The pieces that would complete a phrase, by how much of it a text ends in."""

    def __init__(self, phrase: bytes, pieces: Sequence[bytes], whole_words: bool) -> None:
        self.phrase, self.pieces = phrase, pieces
        # A mark such as "." or "%" is no word: it is forbidden behind letters, too.
        self.begins_word = whole_words and _begins_in_word(phrase)
        self.ends_word = whole_words and _ends_in_word(phrase)
        self.completing = lru_cache(maxsize=None)(self._completing)

    def after(self, text: bytes) -> Tensor:
        """Ids that must not follow the text, (ids,)."""
        for length in range(min(len(self.phrase) - 1, len(text)), 0, -1):
            if text.endswith(self.phrase[:length]) and self._may_begin(text[: len(text) - length]):
                return self.completing(self.phrase[:length])
        return self.completing(b"" if self._may_begin(text) else b"x")          # "x": within a word

    def _completing(self, beginning: bytes) -> Tensor:
        return torch.tensor([index for index, piece in enumerate(self.pieces) if self._holds(beginning + piece)],
                            dtype=torch.int64)

    def _holds(self, text: bytes) -> bool:
        place = text.find(self.phrase)
        while place >= 0:
            if self._may_begin(text[:place]) and not (self.ends_word
                                                      and _begins_in_word(text[place + len(self.phrase) :])):
                return True
            place = text.find(self.phrase, place + 1)
        return False

    def _may_begin(self, before: bytes) -> bool:
        return not (self.begins_word and _ends_in_word(before))


def _ends_in_word(text: bytes) -> bool:
    """Whether a letter or digit stands at the end."""
    return text[-4:].decode(errors="ignore")[-1:].isalnum()


def _begins_in_word(text: bytes) -> bool:
    return text[:4].decode(errors="ignore")[:1].isalnum()
