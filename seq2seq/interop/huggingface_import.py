"""Marian models in Hugging Face form: the 1,400 of OPUS-MT, and ours for those who use `transformers`."""

from __future__ import annotations

import json
import pickle
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from seq2seq import console
from seq2seq.errors import FormatError, RecipeError, TokenizerError
from seq2seq.interop.marian import BIAS, section_from, weights_from
from seq2seq.json_reader import NotJson, parse_json
from seq2seq.recipe import ModelSection, parse_recipe
from seq2seq.recipe.yaml_document import write_yaml
from seq2seq.storage.checkpoints import RECIPE, save_bundle
from seq2seq.tokenizers.marian_vocabulary import LANGUAGE_TOKEN, MarianVocabulary
from seq2seq.tokenizers.tokenizer import Tokenizer, Tokenizers
from seq2seq.tokenizers.vocabulary import Vocabulary

CONFIG, GENERATION, TOKENIZER = "config.json", "generation_config.json", "tokenizer_config.json"
SAFETENSORS, PICKLED = "model.safetensors", "pytorch_model.bin"
SOURCE_MODEL, TARGET_MODEL = "source.spm", "target.spm"
VOCABULARY, TARGET_VOCABULARY = "vocab.json", "target_vocab.json"
DOWNLOADED = ["*.json", SAFETENSORS, PICKLED, SOURCE_MODEL, TARGET_MODEL]
# What reading a file raises that holds anything but what it should.
UNREADABLE = (TypeError, ValueError, AttributeError, LookupError, RuntimeError, OverflowError, struct.error)
LANGUAGES_IN_NAME = re.compile(r"opus-mt-(?:tc-)?(?:big-|base-|tiny-)?([A-Za-z]{2,8})-([A-Za-z]{2,8})$")

HEADER = """\
# Imported from {name}, a Marian model in Hugging Face form. It was trained elsewhere: there is no data here to train it
# on. To go on with it, name this directory in a recipe of your own as training.start_from.
"""


@dataclass(frozen=True)
class Imported:
    """Summary of an import. languages: language tokens of a multilingual model; token: the chosen one."""

    parameters: int
    source: str
    target: str
    languages: list[str]
    token: str | None


def import_model(name: str, output: Path, source_language: str | None = None,
                 target_language: str | None = None) -> Imported:
    """Write the bundle of a Marian model in Hugging Face form.

    Args:
        name: a directory, or the name of a model on the hub, such as Helsinki-NLP/opus-mt-de-en.
        source_language, target_language: codes, where the model does not say them. Of a model that translates into
            several languages, `target_language` is the one of them: every source then begins with its token.
    Raises:
        FormatError: it is no such model, or one that there is no equal of here.
    """
    folder = local_folder(name)
    try:
        imported, weights, text, files = _read(folder, name, source_language, target_language)
    except (FormatError, TokenizerError) as error:
        raise FormatError(f"{name} cannot be imported: {error}") from error
    except RecipeError as error:
        reason = re.sub(rf"^{re.escape(str(folder / RECIPE))}:\d+: ", "", str(error), flags=re.MULTILINE)
        raise FormatError(f"{name} cannot be imported: {CONFIG}, {GENERATION} or {TOKENIZER} says what no recipe can "
                          f"say: {reason}") from error
    except UNREADABLE as error:
        raise FormatError(f"{name} cannot be imported: its files are not as those of Marian models are "
                          f"({_reason(error)}). Copy all of them again.") from error
    save_bundle(output, weights, text, files, {"imported_from": name, "parameters": imported.parameters})
    return imported


def _read(folder: Path, name: str, source_language: str | None, target_language: str | None
          ) -> tuple[Imported, dict[str, Tensor], str, dict[str, bytes]]:
    """Read a model folder; returns a summary, and weights, recipe and tokenizer files of the bundle."""
    config, about = _read_object(folder / CONFIG), _read_object(folder / TOKENIZER, missing={})
    theirs = _read_weights(folder)
    section = section_from(config, bool(theirs.get(BIAS, torch.zeros(1)).any()))
    tokenizers, ids = _vocabularies(folder, config, about, target_language)
    weights = weights_from(theirs, section, *ids)
    source, target = _languages(name, about, source_language, target_language)
    token = tokenizers.source.language if isinstance(tokenizers.source, MarianVocabulary) else None
    recipe = {
        "name": re.sub(r"[^A-Za-z0-9_.-]+", "_", Path(name).resolve().name).lstrip("_.-") or "imported",
        "languages": {"source": source, "target": target},
        "data": {"train": [{"source": f"train.{source}", "target": f"train.{target}"}],
                 "valid": {"source": f"valid.{source}", "target": f"valid.{target}"},
                 "cleaning": {"max_pieces": section.max_positions - 1}},
        "tokenizer": {"taken_from": ".", "joint": tokenizers.joint},
        "model": section.model_dump(exclude_defaults=True) | {"type": section.type},
        "decoding": _decoding(folder, config, section),
    }
    text = HEADER.format(name=name) + write_yaml(recipe)
    parse_recipe(text, folder / RECIPE, alone=True)
    parameters = sum(weight.numel() for weight in weights.values())
    languages = tokenizers.source.languages if isinstance(tokenizers.source, MarianVocabulary) else []
    return Imported(parameters, source, target, languages, token), weights, text, tokenizers.files()


def local_folder(name: str) -> Path:
    """The directory of that name, or the model of that name on the hub, downloaded.

    Raises:
        FormatError: there is neither.
    """
    if Path(name).is_dir():
        return Path(name)
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?", name):
        raise FormatError(f"there is no directory {name}. Name one with a {CONFIG} in it, or a model of the Hugging "
                          "Face hub, such as Helsinki-NLP/opus-mt-de-en.")
    try:
        import huggingface_hub
    except ImportError as error:
        raise FormatError("downloading from the Hugging Face hub needs huggingface_hub: "
                          "pip install huggingface_hub") from error
    console.print_message(f"there is no directory {name}: downloading it from the Hugging Face hub")
    try:
        return Path(huggingface_hub.snapshot_download(name, allow_patterns=DOWNLOADED))
    except (OSError, ValueError, huggingface_hub.errors.HfHubHTTPError) as error:
        raise FormatError(f"{name} is no directory, and the Hugging Face hub does not give it: "
                          f"{str(error).strip().splitlines()[0]}") from error


def _read_json(path: Path, missing: Any = None) -> Any:
    if missing is not None and not path.exists():
        return missing
    try:
        return parse_json(path.read_bytes())
    except OSError as error:
        raise FormatError(f"{path} cannot be read: {error.strerror}. A model in Hugging Face form has {CONFIG}, "
                          f"{SAFETENSORS} (or {PICKLED}), {VOCABULARY}, {SOURCE_MODEL} and {TARGET_MODEL}.") from error
    except NotJson as error:
        raise FormatError(f"{path} is no JSON: {error}. Copy it again.") from error


def _read_object(path: Path, missing: dict[str, Any] | None = None) -> dict[str, Any]:
    found = _read_json(path, missing)
    if not isinstance(found, dict):
        raise FormatError(f"{path} holds no object, with names and values. Copy it again.")
    return found


def _read_weights(folder: Path) -> dict[str, Tensor]:
    """Tensors by name. Nothing is unpickled but tensors."""
    try:
        if (folder / SAFETENSORS).exists():
            return load_file(folder / SAFETENSORS)
        if (folder / PICKLED).exists():
            found = torch.load(folder / PICKLED, map_location="cpu", weights_only=True)
            if not isinstance(found, dict) or not all(isinstance(weight, Tensor) for weight in found.values()):
                raise FormatError(f"{folder / PICKLED} holds something other than weights by name.")
            return found
    except (SafetensorError, OSError, EOFError, pickle.UnpicklingError, *UNREADABLE) as error:
        # torch advises to switch the protection off, which would run the code of strangers.
        if isinstance(error, pickle.UnpicklingError) or "weights_only" in str(error):
            found = re.search(r"GLOBAL (\S+)", str(error))
            raise FormatError(f"the weights in {folder} cannot be read: {PICKLED} holds something other than weights"
                              f"{f' ({found[1]})' if found else ''}, or is damaged. Such a file can run the code of "
                              f"whoever made it, so that it is not opened. Ask for the model as {SAFETENSORS}, or copy "
                              "it again.") from error
        raise FormatError(f"the weights in {folder} cannot be read: {_reason(error)}") from error
    raise FormatError(f"{folder} has neither {SAFETENSORS} nor {PICKLED}.")


def _reason(error: Exception) -> str:
    """The first line of what an error says; some say nothing but their name."""
    return next(iter(str(error).splitlines()), "") or type(error).__name__


# Vocabulary


def _vocabularies(folder: Path, config: Mapping[str, Any], about: Mapping[str, Any], target_language: str | None
                  ) -> tuple[Tokenizers, tuple[list[int], list[int]]]:
    """The tokenizers, and for each language Marian's ids in the order of ours."""
    separate = bool(about.get("separate_vocabs", False))
    if separate and config.get("share_encoder_decoder_embeddings", True):
        raise FormatError("it says that its languages share embeddings, but not their vocabulary.")
    files = (VOCABULARY, TARGET_VOCABULARY if separate else VOCABULARY)
    source, target = (_read_ids(folder / file) for file in files)
    models = []
    for file in (SOURCE_MODEL, TARGET_MODEL):
        try:
            models.append((folder / file).read_bytes())
        except OSError as error:
            raise FormatError(f"{folder / file} cannot be read: {error.strerror}.") from error
    start: Any = config.get("decoder_start_token_id", config.get("pad_token_id"))
    end: Any = config.get("eos_token_id")
    names = {id: name for name, id in target.items()}
    unknown = _symbol(about, "unk_token", "<unk>")
    if unknown not in target or not all(isinstance(id, int) and id in names for id in (start, end)):
        raise FormatError(f"{files[1]} has no {unknown}, or not the ids of the start and the end of a sentence that "
                          f"config.json names ({start} and {end}).")
    # Sources have no start symbol, but theirs is filled up by one.
    symbols = {"target": [target[unknown], start, end], "source": []}
    pad = _symbol(about, "pad_token", "<pad>")
    for name in (unknown, pad if separate else names[start], names[end]):
        if name not in source:
            raise FormatError(f"{files[0]} has no {name}.")
        symbols["source"].append(source[name])
    ids = tuple(symbols[side] + sorted(set(pieces.values()) - set(symbols[side]))
                for side, pieces in (("source", source), ("target", target)))
    places = ({id: place for place, id in enumerate(order)} for order in ids)
    renumbered = [{name: of_id[id] for name, id in pieces.items()}
                  for pieces, of_id in zip((source, target), places, strict=True)]
    language = _token_of(target_language, source)
    tokenizers = Tokenizers(*(_vocabulary(model, pieces, token, file) for model, pieces, token, file in
                              zip(models, renumbered, (language, None), (SOURCE_MODEL, TARGET_MODEL), strict=True)))
    if models[0] == models[1] and isinstance(tokenizers.source, Tokenizer) and not separate:
        tokenizers = Tokenizers(tokenizers.source, tokenizers.source)
    return tokenizers, (ids[0], ids[1])


def _read_ids(path: Path) -> dict[str, int]:
    ids = _read_json(path)
    if not isinstance(ids, dict) or sorted(map(repr, ids.values())) != sorted(map(repr, range(len(ids)))):
        raise FormatError(f"{path} does not number its pieces from 0 without a gap.")
    return ids


def _vocabulary(model: bytes, ids: Mapping[str, int], language: str | None, where: str) -> Vocabulary:
    """A sentencepiece model with these ids; where they are its own, as in what we export, nothing but the model."""
    numbered = MarianVocabulary(model, ids, language, where)
    try:
        own = Tokenizer(model, where)
    except TokenizerError:
        return numbered
    return own if own.pieces(range(own.vocab_size)) == numbered.pieces(range(numbered.vocab_size)) else numbered


def _symbol(about: Mapping[str, Any], key: str, usual: str) -> str:
    found = about.get(key, usual)
    piece = found.get("content") if isinstance(found, dict) else found
    if not isinstance(piece, str):
        raise FormatError(f"{TOKENIZER} says {key}: {json.dumps(found)}, which is no piece.")
    return piece


def _token_of(language: str | None, source: Mapping[str, int]) -> str | None:
    """The token of a language in a vocabulary that has any."""
    tokens = [name for name in source if LANGUAGE_TOKEN.fullmatch(name)]
    if language is None or not tokens:
        return None
    token = f">>{language}<<"
    if token not in tokens:
        raise FormatError(f"it does not translate into '{language}'. Its languages: "
                          f"{', '.join(sorted(name[2:-2] for name in tokens))}.")
    return token


# The recipe


def _languages(name: str, about: Mapping[str, Any], source: str | None, target: str | None) -> tuple[str, str]:
    in_name = LANGUAGES_IN_NAME.search(Path(name).name)
    found = [given or about.get(key) or (in_name[place] if in_name else None)
             for place, (given, key) in enumerate([(source, "source_lang"), (target, "target_lang")], start=1)]
    for code, option in zip(found, ("--source-language", "--target-language"), strict=True):
        if code is None:
            raise FormatError(f"it does not say its languages. Add {option}, such as {option} de.")
    return str(found[0]), str(found[1])


def _decoding(folder: Path, config: Mapping[str, Any], section: ModelSection) -> dict[str, Any]:
    """Return the defaults of `generate` for this model, except that search stops as always here when beam_size
    hypotheses have finished (`early_stopping=True`)."""
    said = {**config, **{key: value for key, value in _read_object(folder / GENERATION, missing={}).items()
                         if value is not None}}
    for key in ("max_length", "max_new_tokens", "length_penalty", "num_beams", "no_repeat_ngram_size"):
        if not isinstance(said.get(key), int | float | None):
            raise FormatError(f"{GENERATION} or {CONFIG} says {key}: {json.dumps(said[key])}, which is no number.")
    # Their length counts the start symbol and </s>.
    longest = max(1, min(said.get("max_length") or section.max_positions, section.max_positions) - 2)
    if said.get("max_new_tokens"):
        longest = max(1, min(said["max_new_tokens"], section.max_positions) - 1)
    penalty = said.get("length_penalty")
    return {"beam_size": said.get("num_beams") or 1, "length_penalty": 1.0 if penalty is None else float(penalty),
            "max_length": longest, "max_length_offset": longest,
            "no_repeat_ngram": said.get("no_repeat_ngram_size") or 0}
