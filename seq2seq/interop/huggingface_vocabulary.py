"""Vocabularies of models in Hugging Face format."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Any

from seq2seq.errors import FormatError, TokenizerError
from seq2seq.files import regular_bytes
from seq2seq.interop.huggingface_files import (
    CONFIG,
    SENTENCEPIECE,
    SENTENCEPIECE_OF_T5,
    SOURCE_MODEL,
    TARGET_MODEL,
    TARGET_VOCABULARY,
    TOKENIZER,
    VOCABULARY,
    read_object,
)
from seq2seq.recipe.directions import language_token
from seq2seq.tokenizers.fairseq_vocabulary import FairseqVocabulary
from seq2seq.tokenizers.marian_vocabulary import UNUSED, MarianVocabulary
from seq2seq.tokenizers.tokenizer import Tokenizer, Tokenizers
from seq2seq.tokenizers.vocabulary import Vocabulary, load_processor, require_size

SPECIAL_TOKENS = "special_tokens_map.json"
TOKENIZER_CLASSES = ("M2M100Tokenizer", "NllbTokenizer", "NllbTokenizerFast", "MBart50Tokenizer",
                     "MBart50TokenizerFast", "SMALL100Tokenizer")
T5_TOKENIZER_CLASSES = ("T5Tokenizer", "T5TokenizerFast", "MT5Tokenizer", "MT5TokenizerFast")
LANGUAGE_NAME = re.compile(r"__([A-Za-z]{2,8}(?:-[A-Za-z0-9]{1,8})*)__|([a-z]{3}_[A-Z][a-z]{3}|[a-z]{2}_[A-Z]{2})")
"""Language tokens of M2M-100 (`__en__`), NLLB-200 (`eng_Latn`) and mBART-50 (`en_XX`)."""
M2M100_LANGUAGES = """
af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl gu ha he hi hr ht hu hy id ig
ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml mn mr ms my ne nl no ns oc or pa pl ps pt ro ru sd si sk sl so
sq sr ss su sv sw ta th tl tn tr uk ur uz vi wo xh yi yo zh zu
"""
"""Languages of M2M-100 in the order of their tokens, which files written by transformers 5 do not contain."""

def marian_vocabularies(folder: Path, config: Mapping[str, Any], tokenizer_config: Mapping[str, Any]
                  ) -> tuple[Tokenizers, tuple[list[int], list[int]]]:
    """Return the tokenizers, and two lists of Marian ids, for source and target.

    Element i of a list is the Marian id of the piece that has id i in this package.
    """
    separate = bool(tokenizer_config.get("separate_vocabs", False))
    if separate and config.get("share_encoder_decoder_embeddings", True):
        raise FormatError(f"{CONFIG} says that source and target share embeddings, but {TOKENIZER} says that they have "
                          "separate vocabularies.")
    files = (VOCABULARY, TARGET_VOCABULARY if separate else VOCABULARY)
    target = _read_ids(folder / files[1])
    source = _read_ids(folder / files[0]) if separate else target
    models = []
    for file in (SOURCE_MODEL, TARGET_MODEL):
        try:
            models.append(regular_bytes(folder / file))
        except OSError as error:
            raise FormatError(f"{folder / file} cannot be read: {error.strerror}.") from error
    start: Any = config.get("decoder_start_token_id", config.get("pad_token_id"))
    end: Any = config.get("eos_token_id")
    names = {id: name for name, id in target.items()}
    unknown = _symbol(tokenizer_config, "unk_token", "<unk>")
    if unknown not in target or not all(isinstance(id, int) and id in names for id in (start, end)):
        raise FormatError(f"{files[1]} lacks {unknown}, or the ids that {CONFIG} gives to the start and the end of a "
                          f"sentence ({start} and {end}).")
    # A source never contains <s>. In a separate source vocabulary, the padding symbol therefore gets the id of <s>.
    symbols = {"target": [target[unknown], start, end], "source": []}
    pad = _symbol(tokenizer_config, "pad_token", "<pad>")
    for name in (unknown, pad if separate else names[start], names[end]):
        if name not in source:
            raise FormatError(f"{files[0]} has no {name}.")
        symbols["source"].append(source[name])
    ids = tuple(symbols[side] + sorted(set(pieces.values()) - set(symbols[side]))
                for side, pieces in (("source", source), ("target", target)))
    new_ids = ({id: new_id for new_id, id in enumerate(order)} for order in ids)
    renumbered = [{name: new_id[id] for name, id in pieces.items()}
                  for pieces, new_id in zip((source, target), new_ids, strict=True)]
    tokenizers = Tokenizers(*(_vocabulary(model, pieces, file) for model, pieces, file in
                              zip(models, renumbered, (SOURCE_MODEL, TARGET_MODEL), strict=True)))
    if models[0] == models[1] and isinstance(tokenizers.source, Tokenizer) and not separate:
        tokenizers = Tokenizers(tokenizers.source, tokenizers.source)
    return tokenizers, (ids[0], ids[1])


def _read_ids(path: Path) -> dict[str, int]:
    ids = read_object(path)
    require_size(len(ids), str(path))
    if not all(type(index) is int for index in ids.values()) or sorted(ids.values()) != list(range(len(ids))):
        raise FormatError(f"the ids in {path} must be consecutive integers from 0, without a gap.")
    return ids


def _vocabulary(model: bytes, ids: Mapping[str, int], where: str) -> Vocabulary:
    """Return a `MarianVocabulary`. If `ids` equal the ids in the sentencepiece model, as in exports of this package,
    return a plain `Tokenizer` instead."""
    vocabulary = MarianVocabulary(model, ids, where)
    try:
        tokenizer = Tokenizer(model, where)
    except TokenizerError:
        return vocabulary
    same = tokenizer.pieces(range(tokenizer.vocab_size)) == vocabulary.pieces(range(vocabulary.vocab_size))
    return tokenizer if same else vocabulary


def _symbol(tokenizer_config: Mapping[str, Any], key: str, default: str) -> str:
    """Return the piece of a special symbol, such as unk_token."""
    value = tokenizer_config.get(key, default)
    piece = value.get("content") if isinstance(value, dict) else value
    if not isinstance(piece, str):
        raise FormatError(f"{TOKENIZER} has {key}: {json.dumps(value)}, which is not a piece.")
    return piece


# T5, mT5 and MADLAD-400


def t5_vocabularies(folder: Path, config: Mapping[str, Any], tokenizer_config: Mapping[str, Any]
                    ) -> tuple[Tokenizers, tuple[list[int], list[int]]]:
    """Return the tokenizers of a T5 model, and the lists of ids as `marian_vocabularies`.

    The ids are those of sentencepiece. Ids behind them have an embedding, but are never used: the 100 of T5 that mark
    gaps in its training text, and padding of the matrix.
    """
    processor, model = _sentencepiece(folder / SENTENCEPIECE_OF_T5, tokenizer_config, T5_TOKENIZER_CLASSES)
    size = _vocab_size(config)
    pieces = processor.id_to_piece(list(range(processor.vocab_size())))
    names = pieces + [f"{UNUSED}{index}>" for index in range(len(pieces), size)]
    unknown, end = processor.unk_id(), processor.eos_id()
    pad: Any = config.get("pad_token_id", 0)
    start: Any = config.get("decoder_start_token_id", pad)
    if len(pieces) > size or config.get("eos_token_id", 1) != end or start not in (pad, unknown) or not (
            type(pad) is int and 0 <= pad < len(pieces) and len({unknown, pad, end}) == 3):
        raise FormatError(f"the ids of <pad>, </s> and the start of the decoder in its {CONFIG} are not those of "
                          f"{SENTENCEPIECE_OF_T5}, or vocab_size ({size:,}) is smaller than the tokenizer "
                          f"({len(pieces):,}). Copy all files of the model again.")
    order = [unknown, pad, end]
    order += [index for index in range(size) if index not in order]
    ids = {names[index]: number for number, index in enumerate(order)}
    vocabulary = MarianVocabulary(model, ids, SENTENCEPIECE_OF_T5)
    return Tokenizers(vocabulary, vocabulary), (order, order)


# M2M-100, NLLB-200 and mBART-50


def fairseq_vocabularies(folder: Path, config: Mapping[str, Any], tokenizer_config: Mapping[str, Any]
                         ) -> tuple[Tokenizers, tuple[list[int], list[int]]]:
    """Return the tokenizers of an M2M-100, NLLB-200 or mBART-50 model, and the lists of ids as `marian_vocabularies`.

    The tokenizer of M2M-100 has the ids of its pieces in vocab.json, those of the others in tokenizer.json; without
    this file, they are the ids of sentencepiece, shifted by one. Language tokens follow the pieces. The option
    legacy_behaviour of NLLB-200, which puts the token of the source behind the text, is ignored: the models were
    trained with the token before it.

    In SMaLL-100 (Mohammadshahi et al. 2022, arXiv:2210.11621), the token before a source names the target language, as
    in Marian models, and targets have none. Its vocabulary is otherwise that of M2M-100.
    """
    processor, model = _sentencepiece(folder / SENTENCEPIECE, tokenizer_config, TOKENIZER_CLASSES)
    pieces = processor.id_to_piece(list(range(processor.vocab_size())))
    if (folder / VOCABULARY).exists():
        ids = _read_ids(folder / VOCABULARY)
    elif numbered := _ids_of_pieces(folder, {"<s>", "<pad>", "</s>", "<unk>", *pieces}):
        ids = numbered
    elif pieces[:3] == ["<unk>", "<s>", "</s>"]:
        ids = {piece: index for index, piece in enumerate(["<s>", "<pad>", "</s>", "<unk>", *pieces[3:]])}
    else:
        raise FormatError(f"{SENTENCEPIECE} begins with the pieces {', '.join(pieces[:3])} instead of <unk>, <s> and "
                          "</s>.")
    names = _names_by_id(ids, _added_tokens(folder, tokenizer_config, len(ids)), config)
    special: Any = config.get("bos_token_id", 0), config.get("eos_token_id", 2)
    if special != (names.index("<s>"), names.index("</s>")) or config.get("decoder_start_token_id") != special[1]:
        raise FormatError(f"the ids of <s> and </s> in its {CONFIG} are not those of its tokenizer, or the decoder "
                          "does not start with </s>.")
    order = [names.index(symbol) for symbol in ("<unk>", "<s>", "</s>")]
    order += sorted(set(range(len(names))) - set(order))
    is_small100 = tokenizer_config.get("tokenizer_class") == "SMALL100Tokenizer"
    if is_small100:
        pad = names.index("<pad>")
        names[pad] = f"{UNUSED}{pad}>"
    renumbered = {names[index]: number for number, index in enumerate(order)}
    if is_small100:
        vocabulary = MarianVocabulary(model, renumbered, SENTENCEPIECE)
        return Tokenizers(vocabulary, vocabulary), (order, order)
    sides = [FairseqVocabulary(model, renumbered, SENTENCEPIECE, is_target) for is_target in (False, True)]
    return Tokenizers(*sides), (order, order)


def _ids_of_pieces(folder: Path, pieces: Set[str]) -> dict[str, int]:
    """Return the ids of pieces in tokenizer.json. They differ from those of sentencepiece if pieces were added behind
    the language tokens. Return {} without this file."""
    vocab = read_object(folder / "tokenizer.json", missing={}).get("model", {}).get("vocab", {})
    numbered = {piece: index for index, (piece, _) in enumerate(vocab)} if isinstance(vocab, list) else dict(vocab)
    return {piece: index for piece, index in numbered.items() if piece in pieces}


def _sentencepiece(path: Path, tokenizer_config: Mapping[str, Any], classes: Sequence[str]) -> tuple[Any, bytes]:
    """Return the sentencepiece processor of a tokenizer and the bytes of its model. classes: classes of tokenizers that
    the model may have."""
    kind = tokenizer_config.get("tokenizer_class")
    if "auto_map" in tokenizer_config or kind not in (None, *classes):
        raise FormatError(f"its tokenizer is {kind}. Supported are {' and '.join(classes)}; Python code of a model is "
                          "not executed.")
    try:
        model = regular_bytes(path)
    except OSError as error:
        raise FormatError(f"{path} cannot be read: {error.strerror}. Copy this file, too; tokenizer.json is not enough."
                          ) from error
    return load_processor(model, path.name), model


def _vocab_size(config: Mapping[str, Any]) -> int:
    size: Any = config.get("vocab_size")
    if type(size) is not int:
        raise FormatError(f"its {CONFIG} has no vocab_size.")
    require_size(size, CONFIG)
    return size


def _added_tokens(folder: Path, tokenizer_config: Mapping[str, Any], first: int) -> dict[str, int]:
    """Return the ids of the tokens that are no pieces: language tokens and `<mask>`. first: the first id behind the
    pieces, from which language tokens are numbered if no file has their ids."""
    numbered: dict[str, Any] = {token["content"]: token["id"] for token in
                                read_object(folder / "tokenizer.json", missing={}).get("added_tokens", [])}
    numbered |= {token["content"]: int(index) for index, token in
                 tokenizer_config.get("added_tokens_decoder", {}).items()}
    listed = [token["content"] if isinstance(token, dict) else token
              for settings in (read_object(folder / SPECIAL_TOKENS, missing={}), tokenizer_config)
              for key in ("additional_special_tokens", "extra_special_tokens") for token in settings.get(key) or []]
    of_m2m100 = tokenizer_config.get("tokenizer_class") in ("M2M100Tokenizer", "SMALL100Tokenizer")
    if of_m2m100 and not any(map(LANGUAGE_NAME.fullmatch, listed)):
        listed = [f"__{code}__" for code in M2M100_LANGUAGES.split()]
    languages = dict.fromkeys(filter(LANGUAGE_NAME.fullmatch, listed))
    return {name: first + number for number, name in enumerate(languages)} | numbered


def _names_by_id(ids: Mapping[str, int], added: Mapping[str, Any], config: Mapping[str, Any]) -> list[str]:
    """Return the name of each id of a model: its piece, `>>code<<` for a language token, or a name of an unused id."""
    size = _vocab_size(config)
    names: dict[Any, str] = {}
    for name, index in [*ids.items(), *((name, index) for name, index in added.items() if name not in ids)]:
        match = LANGUAGE_NAME.fullmatch(name) if name in added else None
        if type(index) is not int or index in names or not 0 <= index < size:
            raise FormatError(f"the id of {name} is {index}, which is another token's, or is not below vocab_size "
                              f"({size:,}). The tokenizer is not that of the model: copy all its files again.")
        names[index] = language_token(next(filter(None, match.groups()))) if match else name
    for name, index in added.items():
        if ids.get(name, index) != index:
            raise FormatError(f"the id of {name} is {index} in one file of the tokenizer and {ids[name]} in another. "
                              "Copy all files of the model again.")
    if not any(map(LANGUAGE_NAME.fullmatch, added)):
        raise FormatError(f"none of its files tokenizer.json, {TOKENIZER} and {SPECIAL_TOKENS} has language tokens "
                          "such as eng_Latn, __en__ or en_XX. Copy all files of the model.")
    return [names.get(index, f"{UNUSED}{index}>") for index in range(size)]
