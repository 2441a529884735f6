"""Interface of all vocabularies: text to ids and back. Three symbols (<unk>, <s>, </s>) have fixed ids."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
import sentencepiece

from seq2seq.errors import TokenizerError
from seq2seq.languages import is_same_language, same_code
from seq2seq.tokenizers.canonical_text import canonical, canonical_origins
from seq2seq.tokenizers.context import as_text
from seq2seq.tokenizers.line_splitting import OUTSIDE
from seq2seq.tokenizers.source import Source

UNKNOWN_ID = 0
START_ID = 1
END_ID = 2
SYMBOLS = {"<unk>": UNKNOWN_ID, "<s>": START_ID, "</s>": END_ID}

MAX_PIECES = 500_000
"""Maximum size of a vocabulary that is read: twice the largest of published translation models (256,000). Loading
this many pieces takes 1 to 2 seconds."""

# Code points of line breaks and control characters, including those at which other software splits lines (U+0085,
# U+2028, U+2029). Search never generates a piece that contains one of them.
CONTROL_CHARACTERS = [*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029]
_CONTROLS = frozenset(map(chr, CONTROL_CHARACTERS))
CANONICAL_MARK = b"\xc2\x0c\x09canonical"
"""End of a sentencepiece model whose text is made canonical before: an extension field of its message (number 200),
which sentencepiece ignores."""


def as_line(line: str | Source) -> str:
    """Return a source as a line of text, the form that vocabularies encode: context, tag, text without white space at
    its ends."""
    if isinstance(line, str):
        return line
    context = "" if line.context is None else as_text(line.context)
    tag = f"{line.tag} " if line.tag else ""
    return f"{context}{tag}{line.text.strip()}"


class Vocabulary(ABC):
    """Mapping from text to ids and back.

    The ids of a source begin with the language token of its language, if the vocabulary has one. No text yields this
    id: `>>de<<` in the text becomes the pieces of its characters.

    model: bytes that determine the vocabulary. Vocabularies with the same bytes encode every text in the same way.
    sentencepiece: bytes of the sentencepiece model; b"" for whole words.
    is_canonical: True if text is made canonical before it is encoded (see `canonical_text`).
    """

    model: bytes
    sentencepiece: bytes = b""
    is_canonical: bool = False
    begins_with_own_language: bool = False
    """True if a token before each text names the language of this text (see `fairseq_vocabulary`). False if a token
    before a source names the language to translate into."""

    @property
    @abstractmethod
    def vocab_size(self) -> int:
        """Number of ids, including the symbols."""

    @cached_property
    def languages(self) -> dict[str, int]:
        """Id of the language token of each language that has one, by the language's code."""
        return {}

    def language_id(self, code: str) -> int | None:
        """Return the id of the token of a language; None if the vocabulary has no token for it."""
        if code not in self._language_ids:
            self._language_ids[code] = next((self.languages[one] for one in self.languages if same_code(one, code)),
                                            None)
        return self._language_ids[code]

    def own_code(self, code: str) -> str:
        """Return the code that the vocabulary has for a language, given a code of any form: `deu_Latn` for `de`."""
        same = [one for one in self.languages if same_code(one, code)][:1]
        matching = same or [one for one in self.languages if is_same_language(one, code)]
        if len(matching) != 1:
            raise TokenizerError(f"the vocabulary has {'several tokens' if matching else 'no token'} for the language "
                                 f"'{code}'. Its languages are {', '.join(matching or self.languages)}.")
        return matching[0]

    def language_token(self, code: str) -> str:
        """Return the token of a language, such as `>>de<<`; "" if the vocabulary has none for it."""
        token = self.language_id(code)
        return "" if token is None else self.pieces([token])[0]

    def token_ids(self, token: int) -> list[int]:
        """Return the ids with which a line begins that has this language token."""
        return [token]

    def token_language(self, line: Source) -> str:
        """Return the code of the language that the token before a line names."""
        return line.language

    def first_id(self, language: str) -> int | None:
        """Return the id with which each target in a language begins; None if the model predicts all ids."""
        return None

    def target_lines(self, targets: Sequence[str], sources: Sequence[str | Source]) -> Sequence[str | Source]:
        """Return targets in the form that `encode`, `sample` and `spans` take, given their sources."""
        return targets

    @cached_property
    def _language_ids(self) -> dict[str, int | None]:
        """Results of `language_id`, also for other forms of a code."""
        return {"": None, **self.languages}

    @cached_property
    def never_generated_ids(self) -> list[int]:
        """Ids that search never generates: <unk>, <s>, and pieces that contain a control character, byte pieces of
        control characters included."""
        # The bytes of other characters than control characters are no UTF-8 on their own.
        symbols = self._never_generated_symbols
        return [index for index, text in enumerate(self.piece_bytes)
                if index in symbols or not _CONTROLS.isdisjoint(text.decode(errors="ignore"))]

    @property
    def _never_generated_symbols(self) -> set[int]:
        return {UNKNOWN_ID, START_ID}

    @cached_property
    @abstractmethod
    def piece_bytes(self) -> list[bytes]:
        """UTF-8 text of each id. The text of a piece that begins a word starts with a space; the text of a symbol such
        as `</s>` is empty."""

    def shares_ids_with(self, other: Vocabulary) -> bool:
        """Return True if both vocabularies assign the same ids to the same pieces."""
        return self.model == other.model

    def normalized(self, text: str) -> str:
        """Return a text as the model sees it, before the normalisation in sentencepiece: without white space at its
        ends, and in canonical form if the vocabulary was trained on such text."""
        return canonical(text) if self.is_canonical else text.strip()

    def encode(self, lines: Sequence[str | Source], threads: int = 1) -> list[list[int]]:
        """Return the ids of each line, without START_ID and END_ID."""
        tokens, texts = self._split(lines)
        return [token + ids for token, ids in zip(tokens, self._encode(texts, threads), strict=True)]

    def sample(self, lines: Sequence[str | Source], alpha: float, seed: int) -> list[list[int]]:
        """Encode with subword sampling. The same arguments give the same ids in every process.

        Args:
            alpha: for a unigram model, the exponent of the segmentations' probabilities (Kudo 2018, arXiv:1804.10959);
                for a BPE model, the probability of dropping a merge (Provilkov et al. 2020, arXiv:1910.13267).
        """
        tokens, texts = self._split(lines)
        return [token + ids for token, ids in zip(tokens, self._sample(texts, alpha, seed), strict=True)]

    def spans(self, lines: Sequence[str | Source]) -> list[list[tuple[int, int]]]:
        """Return, for each piece that `encode` returns, the span (begin, end) of its characters in the line.

        Two kinds of pieces have an empty span: a piece that is only the space which sentencepiece adds to a line, and
        all byte pieces of a character except the last one. The language token, which is not in the line, has OUTSIDE.
        """
        tokens, texts = self._split(lines)
        found = []
        for line, token, spans in zip(lines, tokens, self._spans(texts), strict=True):
            if token and not self.begins_with_own_language:                     # the text begins with a space
                spans = [(max(0, begin - 1), max(0, end - 1)) for begin, end in spans]
            found.append([OUTSIDE] * len(token) + self._spans_in(as_line(line), spans))
        return found

    def _spans_in(self, line: str, spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Return spans in a line, given the spans in its normalised text."""
        text = self.normalized(line)
        if text == line:
            return spans
        margin = len(line) - len(line.lstrip())
        origins = canonical_origins(line) if self.is_canonical else [
            (place, place + 1) for place in range(margin, margin + len(text))]
        begins = [first for first, _ in origins] + [len(line)]
        return [(begins[first], origins[last - 1][1]) if first < last else (begins[first] if first else 0,) * 2
                for first, last in spans]

    def _split(self, lines: Sequence[str | Source]) -> tuple[list[list[int]], list[str]]:
        """Return two lists: the language token of each line, as [id] or [], and the normalised texts of the lines.
        After a token, the text begins with a space, because transformers so encodes `>>de<< text` with an export of
        this package."""
        tokens = [[] if isinstance(line, str) or (token := self.language_id(self.token_language(line))) is None
                  else self.token_ids(token) for line in lines]
        texts = [self.normalized(as_line(line)) for line in lines]
        if self.begins_with_own_language:
            return tokens, texts
        return tokens, [f" {text}" if token else text for token, text in zip(tokens, texts, strict=True)]

    @abstractmethod
    def _encode(self, texts: Sequence[str], threads: int) -> list[list[int]]:
        """Return the ids of each text."""

    @abstractmethod
    def _sample(self, texts: Sequence[str], alpha: float, seed: int) -> list[list[int]]:
        """Return sampled ids of each text."""

    @abstractmethod
    def _spans(self, texts: Sequence[str]) -> list[list[tuple[int, int]]]:
        """Return the spans of the pieces of each text."""

    @abstractmethod
    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """Return the text of each line; START_ID and END_ID are removed."""

    @abstractmethod
    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Return the pieces of these ids as sentencepiece writes them, with U+2581 for white space."""

    def with_pieces(self, names: Sequence[str], sentencepiece: bytes) -> Vocabulary:
        """Return a vocabulary of the same kind with another sentencepiece model.

        Args:
            names: piece of each id, as `pieces` returns them. sentencepiece: the model that segments text into them.
        """
        raise NotImplementedError

    @abstractmethod
    def decode_pieces(self, pieces: Sequence[Sequence[str]]) -> list[str]:
        """Return the text of each line of pieces: decode_pieces([pieces(ids)]) == decode([ids]) without <s>, </s>."""

    def encode_flat(self, lines: Sequence[str | Source], threads: int = 1) -> tuple[np.ndarray, np.ndarray]:
        """Return the ids of `encode` as one flat array.

        Returns:
            ids (tokens,) int64, and offsets (lines + 1,) int64, where line i is ids[offsets[i]:offsets[i + 1]].
        """
        encoded = self.encode(lines, threads)
        offsets = np.zeros(len(encoded) + 1, np.int64)
        np.cumsum([len(ids) for ids in encoded], out=offsets[1:])
        return np.fromiter(chain.from_iterable(encoded), np.int64, offsets[-1]), offsets

    @cached_property
    def fingerprint(self) -> str:
        return hashlib.sha256(self.model).hexdigest()


def require_size(count: int, where: str) -> None:
    """Raise TokenizerError if a vocabulary has more than MAX_PIECES. where: name of the vocabulary in the message."""
    if count > MAX_PIECES:
        raise TokenizerError(f"{where} has {count:,} pieces; at most {MAX_PIECES:,} are read. Train a "
                             "smaller vocabulary.")


def load_processor(model: bytes, where: str) -> Any:
    """Return the sentencepiece processor for the bytes of a model. where: name of the model in error messages."""
    processor = sentencepiece.SentencePieceProcessor()
    try:
        processor.LoadFromSerializedProto(model)                                # the constructor ignores b""
        require_size(processor.vocab_size(), where)
        # Convert every piece and the text of the unknown piece to str once. Invalid UTF-8 in the model raises an error.
        processor.id_to_piece(list(range(processor.vocab_size())))
        processor.decode([processor.unk_id()])
    except (RuntimeError, IndexError, UnicodeDecodeError) as error:
        raise TokenizerError(f"{where} is not a sentencepiece model, or it is damaged: copy it again.") from error
    return processor


def encode_lines(processor: Any, lines: Sequence[str], **options: Any) -> list[Any]:
    """Encode each line with a sentencepiece processor."""
    try:
        if len(lines) == 1:                                                     # a list of lines would start threads
            return [processor.encode(lines[0], **options)]
        return processor.encode(list(lines), **options)
    except TypeError:
        reject_surrogates(lines)
        raise


def piece_spans(processor: Any, texts: Sequence[str]) -> list[list[tuple[int, int]]]:
    """Return the spans of the pieces of each text."""
    return [encoded["offsets"] for encoded in encode_lines(processor, texts, return_type="offset_mapping")]


def reject_surrogates(lines: Sequence[str]) -> None:
    """Raise TokenizerError if a line cannot be encoded in UTF-8."""
    for number, line in enumerate(lines, 1):
        if any("\ud800" <= character <= "\udfff" for character in line):
            raise TokenizerError(f"text {number} contains half a surrogate pair, which UTF-8 cannot encode. Decode "
                                 "the bytes of the text with errors='replace'.") from None
