"""Subword tokenizers: sentencepiece with byte fallback, which can encode every character."""

from __future__ import annotations

import io
import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import sentencepiece

from seq2seq.errors import TokenizerError
from seq2seq.files import regular_bytes
from seq2seq.recipe.directions import language_token
from seq2seq.tokenizers.canonical_text import canonical
from seq2seq.tokenizers.language_token import LANGUAGE_TOKEN
from seq2seq.tokenizers.marian_vocabulary import MarianVocabulary
from seq2seq.tokenizers.subword_sampling import SubwordSampler
from seq2seq.tokenizers.unigram_lines import MAX_LINES, MIN_LINES, additional_lines
from seq2seq.tokenizers.vocabulary import (
    CANONICAL_MARK,
    CONTROL_CHARACTERS,
    END_ID,
    START_ID,
    SYMBOLS,
    UNKNOWN_ID,
    Vocabulary,
    encode_lines,
    load_processor,
    piece_spans,
)
from seq2seq.tokenizers.vocabulary_file import VOCABULARY_FILE, read_vocabularies, vocabulary_json
from seq2seq.tokenizers.vocabulary_size import MAX_WORDS, RESERVED_PIECES, smaller_vocabulary_size, vocabulary_size
from seq2seq.tokenizers.whole_words import HEADER, Words, position_vocabulary, train_words

if TYPE_CHECKING:
    from seq2seq.recipe import TokenizerSection

__all__ = ["END_ID", "START_ID", "SYMBOLS", "UNKNOWN_ID", "Tokenizer", "Tokenizers", "Vocabulary", "Words",
           "reservoir_sample", "train_tokenizers"]

Item = TypeVar("Item")
JOINT_FILE = "tokenizer.model"
SOURCE_FILE = "source.model"
TARGET_FILE = "target.model"
SIDES = ("source", "target")

# Number of threads that train a tokenizer. The trained model depends on this number, because sentencepiece adds up one
# partial sum per thread. The number is therefore the same on all machines.
TRAINING_THREADS = 16
# Maximum length of a training line in bytes. sentencepiece silently drops longer lines, so this is the largest value of
# its option max_sentence_length. The default of the option is 4,192.
MAX_TRAINING_LINE_BYTES = 2**30
# Control characters are replaced by spaces in the training text, so that they do not become pieces. The tokenizer then
# encodes them as byte pieces. Search never generates these byte pieces.
CONTROLS_TO_SPACES = dict.fromkeys(CONTROL_CHARACTERS, " ")


class Tokenizer(Vocabulary):
    """Sentencepiece model. Unless sentencepiece normalises, decode(encode(x)) == normalized(x) for every text without
    U+2581."""

    def __init__(self, model: bytes, where: str = "the tokenizer") -> None:
        """Load a sentencepiece model from its bytes. where: name of the model in error messages."""
        self.model = self.sentencepiece = model
        self.is_canonical = model.endswith(CANONICAL_MARK)
        self._processor = load_processor(model, where)
        special = (self._processor.unk_id(), self._processor.bos_id(), self._processor.eos_id())
        if special != (UNKNOWN_ID, START_ID, END_ID):
            raise TokenizerError(
                f"{where}: the ids of <unk>, <s>, </s> are {special}, but seq2seq needs "
                f"{(UNKNOWN_ID, START_ID, END_ID)}. Train the tokenizer with seq2seq, or import the whole model."
            )

    @property
    def vocab_size(self) -> int:
        return self._processor.vocab_size()

    @property
    def _never_generated_symbols(self) -> set[int]:
        # Marian vocabularies do not exclude language tokens, because Marian can generate those of its models.
        return super()._never_generated_symbols | set(self.languages.values())

    @cached_property
    def languages(self) -> dict[str, int]:
        # Sentencepiece never segments text into control symbols.
        return {match[1]: index for index, kind in enumerate(self._is_control)
                if kind and (match := LANGUAGE_TOKEN.fullmatch(self._processor.id_to_piece(index)))}

    @property
    def _is_control(self) -> list[bool]:
        # A call with all ids takes a tenth of the time of a call for each.
        return self._processor.is_control(list(range(self.vocab_size)))

    @cached_property
    def piece_bytes(self) -> list[bytes]:
        ids = list(range(self.vocab_size))
        kinds = zip(self._processor.id_to_piece(ids), self._processor.is_byte(ids), self._is_control,
                    self._processor.is_unknown(ids), strict=True)
        return [bytes([int(piece[1:-1], 16)]) if is_byte else
                b"" if is_control or is_unknown else piece.replace("\u2581", " ").encode()
                for piece, is_byte, is_control, is_unknown in kinds]

    def _encode(self, texts: Sequence[str], threads: int) -> list[list[int]]:
        return encode_lines(self._processor, texts, num_threads=threads)

    def _sample(self, texts: Sequence[str], alpha: float, seed: int) -> list[list[int]]:
        return self._sampler.sample(texts, alpha, seed)

    def _spans(self, texts: Sequence[str]) -> list[list[tuple[int, int]]]:
        return piece_spans(self._processor, texts)

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """Return the text of each line; START_ID and END_ID are removed, and invalid UTF-8 becomes U+FFFD."""
        if len(ids) == 1:                                                       # a list of lines would start threads
            return [self._processor.decode(list(map(int, ids[0])))]
        return self._processor.decode([list(map(int, line)) for line in ids]) if len(ids) else []

    def pieces(self, ids: Sequence[int]) -> list[str]:
        return [self._processor.id_to_piece(int(index)) for index in ids]

    def with_pieces(self, names: Sequence[str], sentencepiece: bytes) -> Vocabulary:
        return Tokenizer(sentencepiece)                                         # the ids are those of sentencepiece

    def decode_pieces(self, pieces: Sequence[Sequence[str]]) -> list[str]:
        """Return the text of each line of pieces; byte pieces are combined into characters."""
        return [self._processor.decode_pieces(list(line)) for line in pieces]

    @cached_property
    def _sampler(self) -> SubwordSampler:
        return SubwordSampler(self._processor)


@dataclass(frozen=True)
class Tokenizers:
    """Tokenizers of source and target language.

    A joint tokenizer is the same object for both languages. An imported Marian model has two `MarianVocabulary` objects
    with separate sentencepiece models; both objects may have the same ids.
    """

    source: Vocabulary
    target: Vocabulary

    def __reduce__(self) -> tuple[Any, ...]:
        return Tokenizers.from_files, (self.files(),)                           # sentencepiece cannot be pickled

    @property
    def joint(self) -> bool:
        """True if both languages share one vocabulary."""
        return self.source.shares_ids_with(self.target)

    @property
    def sizes(self) -> str:
        """Description of the vocabulary sizes for messages."""
        if self.joint:
            return f"{self.target.vocab_size:,} pieces"
        return f"{self.source.vocab_size:,} source and {self.target.vocab_size:,} target pieces"

    def files(self) -> dict[str, bytes]:
        """Return the contents of the tokenizer files, by file name."""
        if isinstance(self.source, MarianVocabulary) and isinstance(self.target, MarianVocabulary):
            return {SOURCE_FILE: self.source.sentencepiece, TARGET_FILE: self.target.sentencepiece,
                    VOCABULARY_FILE: vocabulary_json(self.source, self.target)}
        if self.joint:
            return {JOINT_FILE: self.source.model}
        return {SOURCE_FILE: self.source.model, TARGET_FILE: self.target.model}

    @staticmethod
    def from_files(files: Mapping[str, bytes], where: str = "the model") -> Tokenizers:
        """Return the tokenizers from the contents of their files, the inverse of `Tokenizers.files`."""
        if JOINT_FILE in files:
            joint = _read(files[JOINT_FILE], f"{where}/{JOINT_FILE}")
            return Tokenizers(joint, joint)
        if SOURCE_FILE in files and TARGET_FILE in files and VOCABULARY_FILE in files:
            models = files[SOURCE_FILE], files[TARGET_FILE]
            return Tokenizers(*read_vocabularies(files[VOCABULARY_FILE], models, where))
        if SOURCE_FILE in files and TARGET_FILE in files:
            return Tokenizers(*(_read(files[name], f"{where}/{name}") for name in (SOURCE_FILE, TARGET_FILE)))
        raise TokenizerError(f"{where} has no tokenizer: expected {JOINT_FILE}, or {SOURCE_FILE} and {TARGET_FILE}.")

    def save(self, directory: str | Path) -> None:
        """Write the tokenizer files into an existing directory."""
        for name, contents in self.files().items():
            (Path(directory) / name).write_bytes(contents)

    @staticmethod
    def file_names(directory: str | Path) -> list[str]:
        """Return the names of the tokenizer files in a directory."""
        names = (JOINT_FILE, SOURCE_FILE, TARGET_FILE, VOCABULARY_FILE)
        return [name for name in names if (Path(directory) / name).exists()]

    @staticmethod
    def load(directory: str | Path) -> Tokenizers:
        """Load the tokenizers from the files in a directory."""
        try:
            files = {name: regular_bytes(Path(directory) / name) for name in Tokenizers.file_names(directory)}
        except OSError as error:
            raise TokenizerError(f"{error.filename}: the tokenizer cannot be read: {error.strerror}. Restore the file "
                                 "from a copy.") from error
        return Tokenizers.from_files(files, str(directory))


def _read(model: bytes, where: str) -> Vocabulary:
    return Words.from_bytes(model, where) if model.startswith(HEADER) else Tokenizer(model, where)


def train_tokenizers(pairs: Iterable[tuple[str, str]], section: TokenizerSection, seed: int,
                     target_positions: int | None = None, sides: Sequence[str] = SIDES,
                     symbols: Sequence[str] = (), languages: Sequence[str] = (),
                     characters: Sequence[int] | None = None) -> Tokenizers:
    """Train tokenizers on a random sample of at most `section.sample_lines` lines of parallel text, to limit memory.

    With `vocab_size: auto`, the function `vocabulary_size` chooses the size of a subword vocabulary from the length of
    the whole text; if the sample has too few different subwords for this size, the vocabulary is smaller.

    Args:
        target_positions: if targets are positions, the largest one that a target may contain; only the source tokenizer
            is then trained. None for other models.
        sides: names of the two texts in error messages about separate vocabularies.
        symbols: texts that become pieces of a subword vocabulary even if they do not occur in the text.
        languages: codes of the languages that get a language token.
        characters: number of characters of the whole text on each side, if `pairs` are a sample of it.
    """
    tokens = list(map(language_token, languages))
    counts = [0, 0]
    normalized = canonical if section.is_canonical else str.strip
    counted = _count_characters(((normalized(source), normalized(target)) for source, target in pairs), counts)
    sample = reservoir_sample(counted, sample_pairs(section), seed)
    characters = characters or counts
    if target_positions is not None:
        return Tokenizers(_train([source for source, _ in sample], section, characters[0], symbols, tokens),
                          position_vocabulary(target_positions))
    if section.joint:
        joint = _train(list(chain.from_iterable(sample)), section, sum(characters), symbols, tokens)
        return Tokenizers(joint, joint)
    trained: list[Vocabulary] = []
    errors = []
    for side, name in enumerate(sides):
        try:
            trained.append(_train([pair[side] for pair in sample], section, characters[side], symbols, tokens,
                                  f"{name} "))
        except TokenizerError as error:
            errors.append(str(error))
    if errors:                                                                  # one vocab_size must fit both sides
        raise TokenizerError("\n".join(errors))
    return Tokenizers(*trained)


def sample_pairs(section: TokenizerSection) -> int:
    """Return the maximum number of pairs that a tokenizer is trained on."""
    return max(1, section.sample_lines // 2)


def _count_characters(pairs: Iterable[tuple[str, str]], characters: list[int]) -> Iterator[tuple[str, str]]:
    """Yield the pairs unchanged, and add the number of characters on each side to `characters`."""
    for source, target in pairs:
        characters[0] += len(source)
        characters[1] += len(target)
        yield source, target


def reservoir_sample(items: Iterable[Item], size: int, seed: int) -> list[Item]:
    """Return a uniform sample of the items in their original order, drawn in one pass (Vitter 1985, algorithm R)."""
    rng = random.Random(seed)
    sampled: list[tuple[int, Item]] = []
    for number, item in enumerate(items):
        if number < size:
            sampled.append((number, item))
        elif (index := rng.randrange(number + 1)) < size:
            sampled[index] = (number, item)
    return [item for _, item in sorted(sampled, key=itemgetter(0))]


class _ImpossibleSize(TokenizerError):
    """Error: no vocabulary of the requested size can be trained on the text.

    smallest, largest: smallest and largest possible size; None if sentencepiece's message does not contain it.
    """

    def __init__(self, message: str, smallest: int | None = None, largest: int | None = None) -> None:
        super().__init__(message)
        self.smallest, self.largest = smallest, largest


def _train(lines: Sequence[str], section: TokenizerSection, characters: int, symbols: Sequence[str],
           tokens: Sequence[str], side: str = "") -> Vocabulary:
    """Train a vocabulary on sampled lines.

    Args:
        characters: number of characters in the whole text.
        symbols: as in `train_tokenizers`. tokens: language tokens.
        side: name of the text in error messages with a space after it, such as "source "; "" for a joint vocabulary.
    """
    if section.type == "words":
        size = MAX_WORDS if section.vocab_size == "auto" else section.vocab_size
        return train_words(lines, size, tokens, section.is_canonical)
    if section.vocab_size != "auto":
        return _train_subwords(lines, section, section.vocab_size, symbols, tokens, side)
    # Training may fail because normalisation adds characters to the alphabet, or because a small text has too few
    # subwords. The loop then takes the smallest or largest possible size from sentencepiece's message and tries again.
    alphabet, largest = _alphabet(lines, section.character_coverage) + len(symbols) + len(tokens), None
    while True:
        size = vocabulary_size(characters, alphabet)
        if largest is not None and size > largest:
            size = smaller_vocabulary_size(largest, alphabet)
        try:
            return _train_subwords(lines, section, size, symbols, tokens, side)
        except _ImpossibleSize as error:
            if error.smallest is not None and error.smallest > RESERVED_PIECES + alphabet:
                alphabet = error.smallest - RESERVED_PIECES
            elif error.largest is not None and (largest is None or error.largest < largest):
                largest = error.largest
            else:                                                               # the message names no new bound
                raise


def _alphabet(lines: Iterable[str], coverage: float) -> int:
    """Return the smallest number of different characters that together make up the share `coverage` of the text."""
    counts: Counter[str] = Counter()
    for line in lines:
        counts.update(line)
    remaining = coverage * counts.total()
    for number, (_, count) in enumerate(counts.most_common()):
        if remaining <= 0:
            return number
        remaining -= count
    return len(counts)


def _train_subwords(lines: Sequence[str], section: TokenizerSection, size: int, symbols: Sequence[str],
                    tokens: Sequence[str], side: str) -> Tokenizer:
    writer = io.BytesIO()
    if section.type == "unigram" and MIN_LINES <= len(lines) <= MAX_LINES:
        lines = [*lines, *additional_lines(lines)]
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=(line.translate(CONTROLS_TO_SPACES) for line in lines),
            model_writer=writer,
            model_type=section.type,
            vocab_size=size,
            character_coverage=section.character_coverage,
            normalization_rule_name="nmt_nfkc" if section.normalization == "nmt_nfkc" else "identity",
            remove_extra_whitespaces=section.normalization == "nmt_nfkc",
            byte_fallback=True,
            user_defined_symbols=list(symbols),
            control_symbols=list(tokens),
            split_digits=True,
            max_sentence_length=MAX_TRAINING_LINE_BYTES,
            unk_id=UNKNOWN_ID,
            bos_id=START_ID,
            eos_id=END_ID,
            pad_id=-1,
            input_sentence_size=0,
            shuffle_input_sentence=False,
            num_threads=TRAINING_THREADS,
            minloglevel=2,
        )
    except RuntimeError as error:
        raise _training_error(size, side, str(error)) from error
    return Tokenizer(writer.getvalue() + (CANONICAL_MARK if section.is_canonical else b""))


def _training_error(size: int, side: str, message: str) -> TokenizerError:
    """Convert an error message of sentencepiece's trainer to an exception. side: as in `_train`."""
    requested = f"tokenizer.vocab_size: {size:,} pieces"
    if largest := re.search(r"value <= (\d+)", message):
        return _ImpossibleSize(f"{requested} are more than the {side}training text contains; the largest possible "
                               f"vocabulary has {int(largest[1]):,}. Set this number or less, or auto.",
                               largest=int(largest[1]))
    if smallest := re.search(r"required_chars\. \d+ vs (\d+)", message):
        return _ImpossibleSize(f"{requested} are too few for all characters{f' of the {side}text' if side else ''}, "
                               f"bytes and symbols: {int(smallest[1]):,} are needed. Raise vocab_size, set auto, or "
                               "lower tokenizer.character_coverage.", smallest=int(smallest[1]))
    if "sentences_.empty()" in message or "(all_chars_count) > (0)" in message:     # no text, or only white space
        return TokenizerError(f"there is no {side}text to train the tokenizer on. Check data.train and "
                              "data.cleaning.")
    return TokenizerError(f"sentencepiece cannot train a tokenizer{f' of the {side}text' if side else ''}: {message}")
