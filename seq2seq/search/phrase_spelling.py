"""Spelling of required and forbidden phrases in the pieces of the target vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from string import capwords
from unicodedata import normalize

from seq2seq.errors import RequestError
from seq2seq.languages import has_spaceless_words
from seq2seq.search.candidate_selection import RequiredPhrase
from seq2seq.search.logits_processors import Phrase, decode_pieces, forbid_phrases
from seq2seq.search.options import LogitsProcessor
from seq2seq.tokenizers.tokenizer import UNKNOWN_ID, Vocabulary

MID_LINE_MARK = "\ue000"
"""Private-use character. The tokenizer does not treat text after this character as the beginning of a line or word."""


class PhraseSpeller:
    """Converts required and forbidden phrases to constraints of a search.

    In languages with spaces, a phrase matches only whole words. In languages without spaces, it matches any substring.
    """

    def __init__(self, tokenizer: Vocabulary, language: str, ignore_case: bool) -> None:
        """tokenizer: tokenizer of the target. language: code of the target language."""
        self.tokenizer, self.ignore_case = tokenizer, ignore_case
        self.spaceless = has_spaceless_words(language)

    def required_phrase(self, phrase: str, line: int | None = None, whole_words: bool = True) -> RequiredPhrase:
        """Return the constraint for a required phrase.

        If `ignore_case` is True, a translation may contain the phrase in any casing. The search can add five casings:
        as written, lower case, first letter in upper case, first letter of each word in upper case, and upper case.
        Casings that the vocabulary cannot spell are left out.

        Args:
            line: line number, from 0, for the error message; None: unknown.
            whole_words: False: any substring satisfies the constraint.
        """
        written = phrase.strip()
        casings = [written, written.lower(), written.capitalize(), capwords(written, " "), written.upper()]
        spellings: list[tuple[int, ...]] = []
        first_error = None
        for casing in dict.fromkeys(casings if self.ignore_case else [written]):
            try:
                spellings += self._spellings(casing, line)
            except RequestError as error:
                first_error = first_error or error
        if first_error and not spellings:
            raise first_error
        # The tokenizer may normalise the text, so the constraint is the normalised phrase. Spellings that do not
        # satisfy the constraint are dropped. For example, the upper case of "ß" is "SS", which does not match "ß".
        normalised = decode_pieces(spellings[0], self.tokenizer.piece_bytes).strip()
        required = Phrase(normalised, whole_words and not self.spaceless, self.ignore_case)
        return RequiredPhrase(required, tuple(dict.fromkeys(
            spelling for spelling in spellings
            if required.is_in(decode_pieces(spelling, self.tokenizer.piece_bytes)))))

    def forbid(self, phrases: Sequence[str]) -> LogitsProcessor:
        """Return a logits processor that forbids the phrases.

        Each phrase is forbidden as written, in both normal forms of Unicode, because the training text may have the
        other one, and as normalised by the tokenizer, because translations are normalised.
        """
        return _forbid(self.tokenizer, tuple(phrases), not self.spaceless, self.ignore_case)

    def encode(self, text: str, line: int | None, name: str) -> tuple[int, ...]:
        """Return the ids of a text.

        line: line number, from 0, for the error message; None: unknown. name: name of the text in the error message,
        for example "prefix".
        """
        ids = tuple(self.tokenizer.encode([text])[0])
        if banned := set(ids).intersection(self.tokenizer.never_generated_ids):
            raise RequestError(f"{_line_label(line)}the {name} {text!r} contains "
                               f"{self.tokenizer.pieces(sorted(banned))[0]}, a control character or an unknown token, "
                               "which no translation can contain. Remove it.")
        return ids

    def _spellings(self, phrase: str, line: int | None) -> list[tuple[int, ...]]:
        """Return the spellings of a phrase, as ids.

        In a language without spaces, return only the spelling in the middle of a line. In a language with spaces,
        return the spelling at the beginning of a line and, if it may differ, also the spelling after a space.
        """
        at_beginning = self.encode(phrase, line, "required phrase")
        if not at_beginning:
            raise RequestError(f"{_line_label(line)}the tokenizer drops all characters of the required phrase "
                               f"{phrase!r}. Remove the phrase.")
        if self.spaceless:
            return [self._encode_mid_line(phrase) or at_beginning]
        if self.tokenizer.piece_bytes[at_beginning[0]].startswith(b" "):
            return [at_beginning]
        mid_line = self._encode_mid_line(f" {phrase}")
        return [at_beginning] if mid_line is None else [at_beginning, mid_line]

    def _encode_mid_line(self, text: str) -> tuple[int, ...] | None:
        """Return the ids of a text in the middle of a line.

        Return None if the tokenizer drops the text, joins it with `MID_LINE_MARK` in one piece, which hides the ids, or
        has an unknown token for a part of it. The mark may be an unknown token, as in vocabularies without byte pieces.
        """
        mark, ids = (tuple(each) for each in self.tokenizer.encode([MID_LINE_MARK, MID_LINE_MARK + text]))
        rest = ids[len(mark) :]
        hidden = ids[: len(mark)] != mark or not set(rest).isdisjoint(self.tokenizer.never_generated_ids)
        return None if hidden or not rest else rest


@lru_cache(maxsize=16)
def _forbid(tokenizer: Vocabulary, phrases: tuple[str, ...], whole_words: bool, ignore_case: bool) -> LogitsProcessor:
    """See `PhraseSpeller.forbid`. It takes milliseconds, and the phrases of many calls are the same."""
    forms = [form for phrase in map(str.strip, phrases)
             for form in dict.fromkeys((phrase, normalize("NFC", phrase), normalize("NFD", phrase)))]
    for pieces in tokenizer.encode(list(forms)):
        normalised = "" if UNKNOWN_ID in pieces else decode_pieces(pieces, tokenizer.piece_bytes).strip()
        if normalised:
            forms.append(normalised)
    return forbid_phrases(list(dict.fromkeys(forms)), tokenizer.piece_bytes, whole_words, ignore_case)


def _line_label(number: int | None) -> str:
    """Return the beginning of an error message about a line. number: line number, from 0; None: unknown."""
    return "" if number is None else f"line {number + 1}: "
