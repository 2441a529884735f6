"""Logits processors of search: minimum length, target prefixes, forbidden phrases and n-gram blocking.

`min_length`, `force_prefix`, `no_repeat_ngram` and `forbid_phrases` return an `options.LogitsProcessor`, which sets the
logits of forbidden tokens to -inf and leaves the other logits unchanged.
"""

from __future__ import annotations

import codecs
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from seq2seq.languages import belongs_to_letter
from seq2seq.search.interface import Scores
from seq2seq.search.options import Hypotheses, LogitsProcessor
from seq2seq.tokenizers.tokenizer import END_ID

# Maximum number of contexts for which a processor keeps the ids that its phrases forbid.
MAX_CONTEXTS = 4096


def min_length(length: int) -> LogitsProcessor:
    """Forbid targets of fewer than `length` tokens, not counting `</s>`."""

    def processor(hypotheses: Hypotheses, scores: Scores) -> None:
        if hypotheses.tokens.shape[2] < length:
            scores.assign(np.arange(len(hypotheses.rows)), END_ID, -math.inf)

    return processor


def force_prefix(prefixes: Sequence[Sequence[int]]) -> LogitsProcessor:
    """Force each target to begin with the prefix of its sentence. prefixes: ids of each sentence's prefix, or []."""

    def processor(hypotheses: Hypotheses, scores: Scores) -> None:
        _, beam, length = hypotheses.tokens.shape
        forced = {sentence * beam + hypothesis: prefixes[line][length]
                  for sentence, line in enumerate(hypotheses.lines) if length < len(prefixes[line])
                  for hypothesis in range(beam)}
        if forced:
            rows, ids = np.array(list(forced)), np.array(list(forced.values()))
            kept = scores.values(rows, ids)
            scores.assign(rows, slice(None), -math.inf)
            scores.assign(rows, ids, kept)

    return processor


def no_repeat_ngram(size: int, prefixes: Sequence[Sequence[int]] = ()) -> LogitsProcessor:
    """Forbid repeated n-grams of `size` tokens in a target (Paulus et al. 2017, arXiv:1705.04304, section 2.5).

    prefixes: see `force_prefix`; an n-gram that is repeated inside the prefix is allowed there.
    """
    def processor(hypotheses: Hypotheses, scores: Scores) -> None:
        tokens = hypotheses.rows
        beam, length = hypotheses.tokens.shape[1:]
        if length >= size:
            ngrams = np.lib.stride_tricks.sliding_window_view(tokens, size, 1)  # (rows, starts, size)
            repeated = (ngrams[:, :, :-1] == tokens[:, length - size + 1 :][:, None]).all(2)
            for sentence, line in enumerate(hypotheses.lines if prefixes else ()):
                if length < len(prefixes[line]):
                    repeated[sentence * beam : (sentence + 1) * beam] = False
            rows, starts = repeated.nonzero()
            if len(rows):
                scores.assign(rows, ngrams[rows, starts, -1], -math.inf)

    return processor


@dataclass(frozen=True)
class Phrase:
    """Phrase of `decoding.forbid` or `decoding.require`, with the rules that decide if a text contains it.

    text: the phrase, without white space around it.
    whole_words: if True, the phrase matches only whole words: "art" matches in "art-house", not in "party" or "arts".
        Combining marks belong to the word of the letter before them. If the first or last character of the phrase is
        neither a letter nor a digit, such as "." or "%", any character may stand next to it. If `whole_words`
        is False, any substring matches. Languages written without spaces need False.
    ignore_case: compare characters one by one without their case. "\u1e9e" equals "\u00df", but "SS" differs from both.
    """

    text: str
    whole_words: bool = True
    ignore_case: bool = False

    def is_in(self, text: str, begin: int = 0) -> bool:
        """Return True if the text contains the phrase. begin: index from which the phrase may begin."""
        text = self._comparable(text)
        start = text.find(self._key, begin)
        while start >= 0:
            if self.may_begin_after(text[:start]) and self._may_end_before(text[start + len(self._key) :]):
                return True
            start = text.find(self._key, start + 1)
        return False

    def matched_prefix(self, text: str) -> str:
        """Return the longest proper prefix of the phrase with which the text ends, or "".

        If `ignore_case` is True, the prefix is in the form that `_without_case` returns.
        """
        text = self._comparable(text)
        if not text.endswith(self._prefixes):
            return ""
        for length in range(min(len(self._key) - 1, len(text)), 0, -1):
            if text.endswith(self._key[:length]) and self.may_begin_after(text[: len(text) - length]):
                return self._key[:length]
        return ""

    def may_begin_after(self, text: str) -> bool:
        """Return True if the phrase may match directly after this text."""
        return not (self.whole_words and self._key[:1].isalnum() and _ends_in_word(text))

    def _may_end_before(self, text: str) -> bool:
        return not (self.whole_words and _ends_in_word(self._key) and begins_in_word(text))

    @cached_property
    def _key(self) -> str:
        return self._comparable(self.text)

    @cached_property
    def _prefixes(self) -> tuple[str, ...]:
        """Proper prefixes of the phrase."""
        return tuple(self._key[:length] for length in range(1, len(self._key)))

    def may_end_in(self, text: str) -> bool:
        """Return False if the phrase cannot end inside this text, whatever is before and after it."""
        text = self._comparable(text)
        return self._key in text or text.startswith(self._suffixes)

    @cached_property
    def _suffixes(self) -> tuple[str, ...]:
        """Proper suffixes of the phrase."""
        return tuple(self._key[begin:] for begin in range(1, len(self._key)))

    def _comparable(self, text: str) -> str:
        return _without_case(text) if self.ignore_case else text


def decode_pieces(tokens: Sequence[int], pieces: Sequence[bytes]) -> str:
    """Return the text of tokens. Bytes that are not valid UTF-8 become lone surrogates.

    pieces: text of each id in UTF-8; may be an incomplete character.
    """
    return b"".join([pieces[token] for token in tokens]).decode(errors="surrogateescape")


def forbid_phrases(phrases: Sequence[str], pieces: Sequence[bytes], whole_words: bool = True,
                   ignore_case: bool = False) -> LogitsProcessor:
    """Forbid targets whose text contains one of the phrases, in any segmentation.

    A token that completes a phrase is banned even if the next token could continue the last word of the phrase. For
    example, if "art" is forbidden, "arts" cannot be produced as "art" + "s", only in another segmentation.

    Args:
        pieces: text of each id in UTF-8, with a space before a piece that begins a word.
        whole_words, ignore_case: see `Phrase`.
    """
    texts = [piece.decode(errors="surrogateescape") for piece in pieces]
    forbidden = [_ForbiddenPhrase(Phrase(phrase, whole_words, ignore_case), pieces, texts) for phrase in phrases]
    # Number of tokens at the end of a target that can affect which ids are banned. They spell the character before the
    # phrase, the beginning of the phrase, and possibly an incomplete character. A character has at most four bytes, and
    # a token has at least one.
    context = 4 * max(map(len, phrases), default=0) + 8

    def processor(hypotheses: Hypotheses, scores: Scores) -> None:
        banned = [banned_after(b"".join([pieces[token] for token in tokens]))
                  for tokens in hypotheses.rows[:, -context:].tolist()]
        if any(map(len, banned)):
            scores.assign(np.arange(len(banned)).repeat(list(map(len, banned))), np.concatenate(banned), -math.inf)

    def banned_after(text: bytes) -> np.ndarray:
        """Return the ids that must not follow the text, (ids,)."""
        decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        characters, incomplete = decoder.decode(text), decoder.getstate()[0]
        in_word = _ends_in_word(characters)
        return banned_by_all(tuple(phrase.prefix(characters, in_word) for phrase in forbidden), incomplete)

    @lru_cache(maxsize=MAX_CONTEXTS)
    def banned_by_all(prefixes: tuple[str, ...], incomplete: bytes) -> np.ndarray:
        return np.unique(np.concatenate([np.zeros(0, np.int64), *(
            phrase.completing_ids(prefix.encode(errors="surrogateescape") + incomplete)
            for phrase, prefix in zip(forbidden, prefixes, strict=True))]))

    return processor


class _ForbiddenPhrase:
    """Forbidden phrase, and the tokens that would complete it after a text."""

    def __init__(self, phrase: Phrase, pieces: Sequence[bytes], texts: Sequence[str]) -> None:
        """texts: text of each piece; bytes of an incomplete character are lone surrogates."""
        self.phrase, self.pieces = phrase, pieces
        # The phrase can end in these pieces. A piece that begins with a surrogate may continue an incomplete character.
        self.ends = [index for index, text in enumerate(texts)
                     if phrase.may_end_in(text) or "\udc80" <= text[:1] <= "\udcff"]
        self.completing_ids = lru_cache(maxsize=MAX_CONTEXTS)(self._completing_ids)

    def prefix(self, text: str, in_word: bool) -> str:
        """Return the part of the phrase with which the text ends, or a letter after which the phrase must not begin, or
        "". in_word: True = the text ends in a word."""
        prefix = self.phrase.matched_prefix(text)
        if not prefix and in_word and not self.phrase.may_begin_after(text):
            # Stands for any letter. The letter is not that of the phrase.
            return "y" if self.phrase._key[:1] == "x" else "x"
        return prefix

    def _completing_ids(self, prefix: bytes) -> np.ndarray:
        texts = ((prefix + self.pieces[index]).decode(errors="surrogateescape") for index in self.ends)
        return np.array([index for index, text in zip(self.ends, texts, strict=True) if self.phrase.is_in(text)],
                        np.int64)


def _ends_in_word(text: str) -> bool:
    """Return True if the text ends with a letter or digit. Combining marks at the end are ignored."""
    for character in reversed(text):
        if not belongs_to_letter(character):
            return character.isalnum()
    return False


def begins_in_word(text: str) -> bool:
    """Return True if the text begins with a letter, a digit or a combining mark, so that it would continue a word."""
    return text[:1].isalnum() or belongs_to_letter(text[:1])


def _without_case(text: str) -> str:
    """Return the text without case. Each character is replaced by one character, so the length stays the same."""
    folded = text.casefold()
    return folded if len(folded) == len(text) else "".join(map(_character_without_case, text))


def _character_without_case(character: str) -> str:
    return next((form for form in (character.casefold(), character.lower()) if len(form) == 1), character)
