"""New pieces of a vocabulary: language tokens, and the characters and words of a script that it does not have.

New ids follow the old ones, so that text without new characters is segmented as before. A new character is a piece of
its own. Words that only have new characters also get longer pieces, which a tokenizer of the same kind finds in them.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

from seq2seq.errors import TokenizerError
from seq2seq.languages import is_same_language
from seq2seq.recipe import TokenizerSection
from seq2seq.recipe.directions import language_token
from seq2seq.tokenizers.marian_vocabulary import MarianVocabulary
from seq2seq.tokenizers.subword_sampling import WORD_BOUNDARY
from seq2seq.tokenizers.tokenizer import Tokenizers, reservoir_sample, train_tokenizers
from seq2seq.tokenizers.trimming import read_model, written
from seq2seq.tokenizers.vocabulary import Vocabulary, load_processor

MIN_COUNT = 2
"""A new character that occurs less often in the text remains unknown."""
SEED = 1


@dataclass(frozen=True)
class Extended:
    """Tokenizers with more pieces. source_starts, target_starts: for each new id, the ids from the mean of whose rows
    its row starts; () if the old pieces say nothing about it, as for a character that was unknown."""

    tokenizers: Tokenizers
    source_starts: list[tuple[int, ...]]
    target_starts: list[tuple[int, ...]]


@dataclass(frozen=True)
class _Piece:
    text: str
    score: float


def extend(tokenizers: Tokenizers, lines: Iterable[str], languages: Mapping[str, str | None]) -> Extended:
    """Return tokenizers with the tokens of new languages, and with pieces for new characters of a text.

    Args:
        languages: codes of the new languages, each with the code of the language from whose token theirs starts; None:
            from the mean of all language tokens.
    """
    sides = (tokenizers.source, tokenizers.target)
    if languages and not any(side.languages for side in sides):
        raise TokenizerError("the model has no language tokens, so it cannot get one for a new language. Fine-tune it "
                             "with text of this language instead (training.start_from).")
    texts = list(lines)
    new = {side.sentencepiece: _new_pieces(side, texts) for side in sides}
    if tokenizers.joint:
        both = {piece.text: piece for pieces in new.values() for piece in pieces}
        new = dict.fromkeys(new, list(both.values()))
    extended, starts = [], []
    for side in sides:
        side_languages = languages if side.languages else {}
        changed, rows = _extended(side, new[side.sentencepiece], side_languages)
        extended.append(changed)
        starts.append(rows)
    if tokenizers.source is tokenizers.target:
        extended[1] = extended[0]
    return Extended(Tokenizers(*extended), *starts)


def _extended(vocabulary: Vocabulary, new: Sequence[_Piece], languages: Mapping[str, str | None]
              ) -> tuple[Vocabulary, list[tuple[int, ...]]]:
    names = vocabulary.pieces(range(vocabulary.vocab_size))
    ids = {name: index for index, name in enumerate(names)}
    starts: list[tuple[int, ...]] = []

    def add(name: str, start: Iterable[int]) -> None:
        if name not in ids:
            ids[name] = len(ids)
            starts.append(tuple(start))

    for piece in new:
        spelled = piece.text if len(piece.text) > 1 else [f"<0x{byte:02X}>" for byte in piece.text.encode()]
        add(piece.text, [ids[part] for part in spelled if part in ids])
    for code, like in languages.items():
        if existing := [one for one in vocabulary.languages if is_same_language(code, one)]:
            raise TokenizerError(f"the model has a token of the language {code} already: {existing[0]}.")
        add(language_token(code), vocabulary.languages.values() if like is None else
            [vocabulary.languages[vocabulary.own_code(like)]])
    tokens = [] if isinstance(vocabulary, MarianVocabulary) else list(map(language_token, languages))
    model = _with_pieces(vocabulary.sentencepiece, new, tokens)
    return vocabulary.with_pieces(list(ids), model), starts


def _with_pieces(model: bytes, new: Sequence[_Piece], tokens: Sequence[str]) -> bytes:
    """Return a sentencepiece model with new pieces behind the others. tokens: pieces that text is never segmented
    into."""
    message = read_model(model)
    known = {piece.piece for piece in message.pieces}
    for piece in new:
        if piece.text not in known:
            message.pieces.add(piece=piece.text, score=piece.score)
    for token in tokens:
        message.pieces.add(piece=token, score=0, type=message.SentencePiece.CONTROL)
    return written(message, model)


# Pieces of a new script


def _new_pieces(vocabulary: Vocabulary, lines: Iterable[str]) -> list[_Piece]:
    """Return the pieces that a text adds to a sentencepiece model: first its new characters, then longer pieces."""
    if not vocabulary.sentencepiece:
        raise TokenizerError("only vocabularies of sentencepiece can get new pieces, and this model reads whole words.")
    processor = load_processor(vocabulary.sentencepiece, "the tokenizer")
    message = read_model(vocabulary.sentencepiece)
    known = {piece.piece for piece in message.pieces if len(piece.piece) == 1}
    scores = [piece.score for piece in message.pieces if piece.type == piece.NORMAL]
    counts: Counter[str] = Counter()

    def new_words() -> Iterator[tuple[str, str]]:
        for line in lines:
            text = processor.normalize(vocabulary.normalized(line))
            new = {character for character in set(text) - known if unicodedata.category(character)[0] not in "CZ"}
            if new:
                counts.update(character for character in text if character in new)
                yield " ".join(_words_of(text, new)), ""

    is_bpe = message.trainer_spec.model_type == message.trainer_spec.BPE
    section = TokenizerSection(type="bpe" if is_bpe else "unigram", normalization="identity")
    words = reservoir_sample(new_words(), section.sample_lines, SEED)
    characters = [character for character, count in counts.items() if count >= MIN_COUNT]
    lowest = min(scores)
    trained: dict[str, float] = {}
    if any(text for text, _ in words):
        of_words = read_model(train_tokenizers(words, section, SEED).source.sentencepiece)
        trained = {piece.piece: piece.score for piece in of_words.pieces if piece.type == piece.NORMAL
                   and set(piece.piece) <= {*characters, WORD_BOUNDARY}}
    longer = [piece for piece in trained if len(piece) > 1]
    if is_bpe:                                      # scores are ranks: the new pairs are merged after all old ones
        return [*(_Piece(character, lowest) for character in characters),
                *(_Piece(piece, lowest - rank) for rank, piece in enumerate(longer, 1))]
    return [_Piece(piece, trained.get(piece, lowest)) for piece in (*characters, *longer)]


def _words_of(text: str, new: Set[str]) -> Iterator[str]:
    """Yield the words of a text that only have new characters. Other characters at their ends are no part of them."""
    for word in text.split(WORD_BOUNDARY):
        core = word.strip("".join(set(word) - new))
        if core and set(core) <= new:
            yield core
