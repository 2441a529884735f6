"""Logits processors of search: minimum length, target prefixes, forbidden phrases and n-gram blocking.

Each function returns an `options.LogitsProcessor`, which sets the logits of impossible tokens to -inf in place. The
other tokens keep their probability.
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

from seq2seq.search.options import Hypotheses, LogitsProcessor
from seq2seq.tokenizers.tokenizer import END_ID


def min_length(length: int) -> LogitsProcessor:
    """Forbid targets of fewer than `length` tokens, `</s>` not counted."""

    def function(hypotheses: Hypotheses, logits: Tensor) -> Tensor:
        if hypotheses.tokens.shape[2] < length:
            logits[:, END_ID] = -math.inf
        return logits

    return function


def force_prefix(prefixes: Sequence[Sequence[int]]) -> LogitsProcessor:
    """Force each target to begin with its line's prefix, a sequence of ids that may be empty."""

    def function(hypotheses: Hypotheses, logits: Tensor) -> Tensor:
        _, beam, length = hypotheses.tokens.shape
        for sentence, line in enumerate(hypotheses.lines):
            if length < len(prefixes[line]):
                rows = logits[sentence * beam : (sentence + 1) * beam]
                kept = rows[:, prefixes[line][length]].clone()
                rows.fill_(-math.inf)[:, prefixes[line][length]] = kept
        return logits

    return function


def no_repeat_ngram(size: int) -> LogitsProcessor:
    """Forbid repeated n-grams of `size` tokens (Paulus et al. 2017, arXiv:1705.04304, section 2.5)."""

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
    """Phrase of `decoding.forbid` or `decoding.require`, with the rule by which a text contains it.

    text: the phrase, without white space around it.
    whole_words: a phrase that begins or ends with a letter or digit matches only at a word boundary: "art" is neither
        in "party" nor in "arts", but in "art-house". Combining marks belong to the word of the letter before them. A
        phrase that begins or ends with another character, such as "." or "%", matches anywhere. False: any substring
        matches, as in languages written without spaces.
    ignore_case: characters are compared one by one without their case: "\u1e9e" equals "\u00df", but "SS" does not.
    """

    text: str
    whole_words: bool = True
    ignore_case: bool = False

    def is_in(self, text: str) -> bool:
        """Return True if the text contains the phrase."""
        text = self._comparable(text)
        place = text.find(self._key)
        while place >= 0:
            if self.may_begin_behind(text[:place]) and self._may_end_before(text[place + len(self._key) :]):
                return True
            place = text.find(self._key, place + 1)
        return False

    def begun_by(self, text: str) -> str:
        """Return the longest proper prefix of the phrase that the text ends in; in lower case with `ignore_case`."""
        text = self._comparable(text)
        for length in range(min(len(self._key) - 1, len(text)), 0, -1):
            if text.endswith(self._key[:length]) and self.may_begin_behind(text[: len(text) - length]):
                return self._key[:length]
        return ""

    def may_begin_behind(self, text: str) -> bool:
        """Return True if the phrase may match directly after this text."""
        return not (self.whole_words and self._key[:1].isalnum() and _ends_in_word(text))

    def _may_end_before(self, text: str) -> bool:
        return not (self.whole_words and _ends_in_word(self._key) and begins_in_word(text))

    @cached_property
    def _key(self) -> str:
        return self._comparable(self.text)

    def _comparable(self, text: str) -> str:
        return _without_case(text) if self.ignore_case else text


def decode_pieces(tokens: Sequence[int], pieces: Sequence[bytes]) -> str:
    """Return the text of tokens; bytes that are not UTF-8, such as an incomplete character, become lone surrogates.

    pieces: text of each id in UTF-8.
    """
    return b"".join([pieces[token] for token in tokens]).decode(errors="surrogateescape")


def forbid_phrases(phrases: Sequence[str], pieces: Sequence[bytes], whole_words: bool = True,
            ignore_case: bool = False) -> LogitsProcessor:
    """Forbid targets whose text contains one of the phrases, however it is segmented.

    A token that completes the phrase is banned at once, because later tokens are unknown: with "art" forbidden, "arts"
    cannot be produced as "art" + "s", only in another segmentation.

    Args:
        pieces: text of each id in UTF-8, with a space before a piece that begins a word.
        whole_words, ignore_case: see `Phrase`.
    Raises:
        ValueError: a phrase is empty.
    """
    if not all(phrases):
        raise ValueError("an empty phrase is in every text")
    forbidden = [_Forbidden(Phrase(phrase, whole_words, ignore_case), pieces) for phrase in phrases]
    # Number of last tokens to look at: a token has at least one byte, and a character at most four. They hold the
    # phrase, the character before it and an incomplete one behind it.
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
    """Tokens that would complete a phrase, depending on the prefix of it that a text ends in."""

    def __init__(self, phrase: Phrase, pieces: Sequence[bytes]) -> None:
        self.phrase, self.pieces = phrase, pieces
        self.completing = lru_cache(maxsize=None)(self._completing)

    def after(self, text: bytes) -> Tensor:
        """Return the ids that must not follow the text, (ids,)."""
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
    """Return True if the text ends with a letter or digit, followed by combining marks or not."""
    for character in reversed(text):
        if not _joins(character):
            return character.isalnum()
    return False


def begins_in_word(text: str) -> bool:
    """Return True if the text, after a word, continues it: it begins with a letter, a digit or a combining mark."""
    return text[:1].isalnum() or _joins(text[:1])


def _joins(character: str) -> bool:
    """Return True if the character belongs to the word of the letter before it: combining marks, such as the vowel
    signs of Hindi, and the joiners within Persian words."""
    return not character.isascii() and (character in "\u200c\u200d" or unicodedata.category(character)[0] == "M")


def _without_case(text: str) -> str:
    """Return the case-folded text, character by character, so that its length stays the same."""
    folded = text.casefold()
    return folded if len(folded) == len(text) else "".join(map(_character_without_case, text))


def _character_without_case(character: str) -> str:
    return next((form for form in (character.casefold(), character.lower()) if len(form) == 1), character)
