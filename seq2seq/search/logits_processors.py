"""What a target must not hold, must begin with, must be as long as: functions of scores for search.

Each makes a `beam.ScoreFunction`, which may overwrite the logits that it is given and sets those of impossible words
to -inf. As `constraints` of a search they leave the others their probability.
"""

from __future__ import annotations

import codecs
import math
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from seq2seq.search.beam import Hypotheses, ScoreFunction
from seq2seq.tokenizers.tokenizer import END_ID


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


@dataclass(frozen=True)
class Phrase:
    """A phrase and the rule by which a text contains it: that of `decoding.forbid` and of `decoding.require`.

    text: the phrase, without white space around it.
    whole_words: a phrase that begins or ends with a letter or digit begins or ends where a word does: "art" is neither
        in "party" nor in "arts", but in "art-house". Combining marks belong to the word of the letter before them. A
        phrase that begins or ends with another character, such as "." or "%", may do so anywhere. If not set, every
        substring counts, as in languages written without spaces.
    ignore_case: characters are compared without their case, one with one: "\u1e9e" equals "\u00df", but "SS" does not.
    """

    text: str
    whole_words: bool = True
    ignore_case: bool = False

    def is_in(self, text: str) -> bool:
        """Whether a text contains the phrase."""
        text = self._comparable(text)
        place = text.find(self._key)
        while place >= 0:
            if self.may_begin_behind(text[:place]) and self._may_end_before(text[place + len(self._key) :]):
                return True
            place = text.find(self._key, place + 1)
        return False

    def begun_by(self, text: str) -> str:
        """The longest beginning of the phrase, but not all of it, that a text ends in; in lower case if case is
        ignored."""
        text = self._comparable(text)
        for length in range(min(len(self._key) - 1, len(text)), 0, -1):
            if text.endswith(self._key[:length]) and self.may_begin_behind(text[: len(text) - length]):
                return self._key[:length]
        return ""

    def may_begin_behind(self, text: str) -> bool:
        """Whether the phrase may follow a text at once."""
        return not (self.whole_words and self._key[:1].isalnum() and _ends_in_word(text))

    def _may_end_before(self, text: str) -> bool:
        return not (self.whole_words and _ends_in_word(self._key) and begins_in_word(text))

    @cached_property
    def _key(self) -> str:
        return self._comparable(self.text)

    def _comparable(self, text: str) -> str:
        return _without_case(text) if self.ignore_case else text


def text_of(tokens: Sequence[int], pieces: Sequence[bytes]) -> str:
    """The text of subwords; bytes that are not UTF-8, such as those of a character that is not complete, become lone
    surrogates. pieces: the text of each id in UTF-8."""
    return b"".join([pieces[token] for token in tokens]).decode(errors="surrogateescape")


def without(phrases: Sequence[str], pieces: Sequence[bytes], whole_words: bool = True,
            ignore_case: bool = False) -> ScoreFunction:
    """No target's text contains one of the phrases, in whatever subwords.

    After the subword "art" it is too late to say whether "s" will follow: the word "art" is forbidden there, and so is
    "arts" unless it begins with another subword.

    Args:
        pieces: the text of each id in UTF-8, a space where it begins a word.
        whole_words, ignore_case: see `Phrase`.
    Raises:
        ValueError: a phrase is empty.
    """
    if not all(phrases):
        raise ValueError("an empty phrase is in every text")
    forbidden = [_Forbidden(Phrase(phrase, whole_words, ignore_case), pieces) for phrase in phrases]
    # A subword is a byte at least, and a character four bytes at most: enough of them to hold the phrase, the character
    # before it and an incomplete one behind it.
    reach = 4 * max(map(len, phrases), default=0) + 8

    def function(hypotheses: Hypotheses, logits: Tensor) -> Tensor:
        for row, tokens in enumerate(hypotheses.tokens.flatten(0, 1)[:, -reach:].tolist()):
            text = b"".join(pieces[token] for token in tokens)
            for each in forbidden:
                if len(ids := each.after(text)):
                    logits[row, ids.to(logits.device)] = -math.inf
        return logits

    return function


class _Forbidden:
    """The subwords that would complete a phrase, by how much of it a text ends in."""

    def __init__(self, phrase: Phrase, pieces: Sequence[bytes]) -> None:
        self.phrase, self.pieces = phrase, pieces
        self.completing = lru_cache(maxsize=None)(self._completing)

    def after(self, text: bytes) -> Tensor:
        """Ids that must not follow the text, (ids,)."""
        decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        characters, incomplete = decoder.decode(text), decoder.getstate()[0]
        beginning = self.phrase.begun_by(characters)
        if not beginning and not self.phrase.may_begin_behind(characters):
            beginning = "x"                                                     # within a word
        return self.completing(beginning.encode(errors="surrogateescape") + incomplete)

    def _completing(self, beginning: bytes) -> Tensor:
        return torch.tensor([index for index, piece in enumerate(self.pieces)
                             if self.phrase.is_in((beginning + piece).decode(errors="surrogateescape"))],
                            dtype=torch.int64)


def _ends_in_word(text: str) -> bool:
    """Whether a letter or digit stands at the end, with or without combining marks."""
    for character in reversed(text):
        if not _joins(character):
            return character.isalnum()
    return False


def begins_in_word(text: str) -> bool:
    """Whether a text that follows a word continues it: it begins with a letter, a digit or a combining mark."""
    return text[:1].isalnum() or _joins(text[:1])


def _joins(character: str) -> bool:
    """Whether a character belongs to the word of the letter before it: combining marks, such as the vowel signs of
    Hindi, and the joiners within Persian words."""
    return not character.isascii() and (character in "\u200c\u200d" or unicodedata.category(character)[0] == "M")


def _without_case(text: str) -> str:
    """The text in one case, character by character, so that its length stays."""
    folded = text.casefold()
    return folded if len(folded) == len(text) else "".join(map(_character_without_case, text))


def _character_without_case(character: str) -> str:
    return next((form for form in (character.casefold(), character.lower()) if len(form) == 1), character)
