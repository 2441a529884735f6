"""Import Marian models in Hugging Face format, such as the 1,400 models of OPUS-MT."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from seq2seq import console
from seq2seq.data.hub import hub_fault
from seq2seq.errors import CheckpointError, FormatError, OptionError, RecipeError, TokenizerError
from seq2seq.files import NotJson, open_regular, parse_json, real_path, regular_bytes
from seq2seq.inference.load_model import as_tensors
from seq2seq.interop.marian import BIAS, model_section_from_config, weights_from_marian
from seq2seq.interop.model_card import bundle_card
from seq2seq.recipe import Languages, ModelSection, parse_recipe
from seq2seq.recipe.data_section import file_name
from seq2seq.recipe.directions import direction_into, targets_of
from seq2seq.recipe.yaml_document import write_yaml
from seq2seq.storage.checkpoints import RECIPE, save_bundle
from seq2seq.storage.tensor_files import read_weights, require_finite
from seq2seq.tokenizers.marian_vocabulary import MarianVocabulary
from seq2seq.tokenizers.tokenizer import Tokenizer, Tokenizers
from seq2seq.tokenizers.vocabulary import Vocabulary, require_size

CONFIG, GENERATION, TOKENIZER = "config.json", "generation_config.json", "tokenizer_config.json"
SAFETENSORS, PICKLED = "model.safetensors", "pytorch_model.bin"
SOURCE_MODEL, TARGET_MODEL = "source.spm", "target.spm"
VOCABULARY, TARGET_VOCABULARY = "vocab.json", "target_vocab.json"
DOWNLOADED = ["*.json", SAFETENSORS, PICKLED, SOURCE_MODEL, TARGET_MODEL]
# Exceptions that `_read` can raise if a file has unexpected contents.
UNREADABLE = (TypeError, ValueError, AttributeError, LookupError, RuntimeError, OverflowError, struct.error)
UNKNOWN_TEXT = {"name": "unknown"}
"""Corpus in the recipe of an imported model."""
LANGUAGES_IN_NAME = re.compile(r"opus-mt-(?:tc-)?(?:big-|base-|tiny-)?([A-Za-z]{2,8})-([A-Za-z]{2,8})$")

HEADER = """\
# Imported from {name}, a Marian model in Hugging Face format, whose training text is not known.
# To fine-tune the model, write a recipe with your own data and set its training.start_from to this directory.
"""


@dataclass(frozen=True)
class Imported:
    """Summary of an import.

    parameters: number of parameters. chosen: direction of lines that name no language. targets: target languages.
    """

    parameters: int
    chosen: Languages
    targets: list[str]


def import_model(name: str, output: Path, source_language: str | None = None,
                 target_language: str | None = None) -> Imported:
    """Convert a Marian model in Hugging Face format to a bundle.

    Args:
        name: a directory, or the name of a model on the hub, such as Helsinki-NLP/opus-mt-de-en.
        output: the bundle to write.
        source_language, target_language: language codes. If None, the model's files or name decide. If the model
            translates into several languages, `target_language` is the language of lines that name none.
    """
    folder = local_folder(name)
    try:
        imported, weights, text, files = _read(folder, name, source_language, target_language)
    except (FormatError, TokenizerError, CheckpointError) as error:
        raise FormatError(f"{name} cannot be imported: {error}") from error
    except RecipeError as error:
        reason = re.sub(rf"^{re.escape(str(folder / RECIPE))}:\d+: ", "", str(error), flags=re.MULTILINE)
        raise FormatError(f"{name} cannot be imported: {CONFIG}, {GENERATION} or {TOKENIZER} has a value that a recipe "
                          f"does not support: {reason}") from error
    except UNREADABLE as error:
        raise FormatError(f"{name} cannot be imported: its files are not those of a Marian model, or are damaged "
                          f"({_reason(error)}). Copy all of them again.") from error
    metadata = {"imported_from": _shown(name), "parameters": imported.parameters}
    save_bundle(output, weights, text, files, metadata, bundle_card)
    return imported


def _read(folder: Path, name: str, source_language: str | None, target_language: str | None
          ) -> tuple[Imported, dict[str, Tensor], str, dict[str, bytes]]:
    """Read a model. Return a summary of the import, and the weights, recipe text and tokenizer files of the bundle."""
    config, tokenizer_config = _read_object(folder / CONFIG), _read_object(folder / TOKENIZER, missing={})
    theirs = _read_weights(folder)
    section = model_section_from_config(config, BIAS in theirs and bool(theirs[BIAS].any()))
    tokenizers, ids = _vocabularies(folder, config, tokenizer_config)
    weights = weights_from_marian(theirs, section, *ids)
    chosen, directions = _directions(tokenizers.source, tokenizer_config, target_language,
                                     *_languages(name, tokenizer_config, source_language, target_language))
    recipe = {
        "name": re.sub(r"[^A-Za-z0-9_.-]+", "_", real_path(Path(name)).name).lstrip("_.-") or "imported",
        "languages": chosen.model_dump(),
        "data": {"train": [UNKNOWN_TEXT | ({} if each == chosen else {"languages": each.model_dump()})
                           for each in directions],
                 "valid": UNKNOWN_TEXT,
                 "cleaning": {"max_pieces": section.max_positions - 1}},
        "tokenizer": {"joint": tokenizers.joint},
        "model": section.model_dump(exclude_defaults=True) | {"type": section.type},
        "decoding": _decoding(folder, config, section),
    }
    text = HEADER.format(name=_shown(name)) + write_yaml(recipe)
    parse_recipe(text, folder / RECIPE, alone=True)
    parameters = sum(weight.numel() for weight in weights.values())
    return Imported(parameters, chosen, targets_of(directions)), weights, text, tokenizers.files()


def _shown(name: str) -> str:
    """Return the name of a model of the hub, or the last part of the path of a directory."""
    return file_name(str(Path(name).absolute())) if Path(name).is_dir() else name


def local_folder(name: str) -> Path:
    """Return the directory with this name, or download the model with this name from the hub."""
    if Path(name).is_dir():
        return Path(name)
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?", name):
        raise FormatError(f"there is no directory {name}. Name a directory that contains a {CONFIG}, or a model on the "
                          "Hugging Face hub, such as Helsinki-NLP/opus-mt-de-en.")
    try:
        import huggingface_hub
    except ImportError as error:
        raise FormatError("downloading from the Hugging Face hub needs huggingface_hub: "
                          "pip install huggingface_hub") from error
    if fault := hub_fault(f"models/{name}"):
        raise FormatError(f"there is no directory {name}, and the model {name} of the Hugging Face hub cannot be "
                          f"downloaded: {fault}")
    console.print_message(f"there is no directory {name}: downloading the model {name} from the Hugging Face hub")
    try:
        return Path(huggingface_hub.snapshot_download(name, allow_patterns=DOWNLOADED))
    except (OSError, ValueError, huggingface_hub.errors.HfHubHTTPError) as error:
        raise FormatError(f"there is no directory {name}, and no such model can be downloaded from the Hugging Face "
                          "hub: "
                          f"{str(error).strip().splitlines()[0]}") from error


def _read_object(path: Path, missing: dict[str, Any] | None = None) -> dict[str, Any]:
    """Read a JSON object. missing: value to return if there is no such file. If None, the file must exist."""
    if missing is not None and not path.exists():
        return missing
    try:
        value = parse_json(regular_bytes(path))
    except OSError as error:
        raise FormatError(f"{path} cannot be read: {error.strerror}. A model in Hugging Face format has {CONFIG}, "
                          f"{SAFETENSORS} (or {PICKLED}), {VOCABULARY}, {SOURCE_MODEL} and {TARGET_MODEL}.") from error
    except NotJson as error:
        raise FormatError(f"{path} is not valid JSON: {error}. Copy it again.") from error
    if not isinstance(value, dict):
        raise FormatError(f"{path} must contain a JSON object. Copy it again.")
    return value


def _read_weights(folder: Path) -> dict[str, Tensor]:
    """Return the weights by name, in float32. The files of a downloaded model are links to others."""
    if (folder / SAFETENSORS).exists():
        return as_tensors(read_weights(real_path(folder / SAFETENSORS)))
    if (folder / PICKLED).exists():
        return _read_pickled(folder / PICKLED)
    raise FormatError(f"{folder} has neither {SAFETENSORS} nor {PICKLED}.")


def _read_pickled(path: Path) -> dict[str, Tensor]:
    """Return the weights that `torch.save` has written. Only tensors are unpickled, so no code in the file is executed.
    """
    try:
        with open_regular(path) as file:
            loaded = torch.load(file, map_location="cpu", weights_only=True)
        weights = {str(name): torch.as_tensor(tensor).detach().float().contiguous() for name, tensor in loaded.items()}
    except Exception as error:                  # torch's unpickler raises errors of any type for unexpected contents
        # torch's message advises to set weights_only=False, which would execute code in the file.
        raise FormatError(f"{path} contains something other than weights, or is damaged. Such a file can execute code, "
                          "so it was not loaded. Ask for the model as model.safetensors, or copy it again.") from error
    for name, weight in weights.items():
        require_finite(name, weight.numpy(), path)
    return weights


def _reason(error: Exception) -> str:
    """Return the first line of an error's message, or its type if it has no message."""
    return next(iter(str(error).splitlines()), "") or type(error).__name__


# Vocabulary


def _vocabularies(folder: Path, config: Mapping[str, Any], tokenizer_config: Mapping[str, Any]
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
    ids = _read_object(path)
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


# The recipe


def _languages(name: str, tokenizer_config: Mapping[str, Any], source: str | None, target: str | None
               ) -> tuple[str, str]:
    """Return `source` and `target`. If one is None, it is read from tokenizer_config.json or from the model's name."""
    in_name = LANGUAGES_IN_NAME.search(Path(name).name)
    codes = [requested or tokenizer_config.get(key) or (in_name[group] if in_name else None)
             for group, (requested, key) in enumerate([(source, "source_lang"), (target, "target_lang")], start=1)]
    for code, option in zip(codes, ("--source-language", "--target-language"), strict=True):
        if code is None:
            raise FormatError(f"neither its files nor its name contain its languages. Add {option}, such as {option} "
                              "de.")
    return str(codes[0]), str(codes[1])


def _directions(vocabulary: Vocabulary, tokenizer_config: Mapping[str, Any], requested: str | None, source: str,
                target: str) -> tuple[Languages, list[Languages]]:
    """Return the direction of lines that name no language, and all directions. Without language tokens, there is one.

    Exports of this package list the directions. Other models translate from `source` into each language that has a
    token. requested: value of --target-language. source, target: see `_languages`.
    """
    if not vocabulary.languages:
        only = Languages.model_construct(source=source, target=target)          # `parse_recipe` checks the codes
        return only, [only]
    listed = tokenizer_config.get("directions") or [(source, code) for code in vocabulary.languages]
    directions = [Languages.model_construct(source=str(each), target=str(code)) for each, code in listed]
    try:
        return direction_into(target, directions), directions
    except OptionError:                                                         # such as `roa`, a group of languages
        if requested is None:
            return directions[0], directions
        raise FormatError(f"it does not translate into '{requested}'. Its target languages are "
                          f"{', '.join(sorted(targets_of(directions)))}.") from None


def _decoding(folder: Path, config: Mapping[str, Any], section: ModelSection) -> dict[str, Any]:
    """Return the `decoding` section with the values of generation_config.json or, for missing keys, of config.json.

    `early_stopping` is not imported, because the search of this package always stops when beam_size hypotheses have
    finished, as with `early_stopping=True`.
    """
    settings = {**config, **{key: value for key, value in _read_object(folder / GENERATION, missing={}).items()
                             if value is not None}}
    for key in ("max_length", "max_new_tokens", "length_penalty", "num_beams", "no_repeat_ngram_size"):
        if not isinstance(settings.get(key), int | float | None):
            raise FormatError(f"{GENERATION} or {CONFIG} has {key}: {json.dumps(settings[key])}, which is not a "
                              "number.")
    # In transformers, max_length includes <s> and </s>, and max_new_tokens includes </s>.
    max_length = max(1, min(settings.get("max_length") or section.max_positions, section.max_positions) - 2)
    if settings.get("max_new_tokens"):
        max_length = max(1, min(settings["max_new_tokens"], section.max_positions) - 1)
    penalty = settings.get("length_penalty")
    return {"beam_size": settings.get("num_beams") or 1, "length_penalty": 1.0 if penalty is None else float(penalty),
            "max_length": max_length, "max_length_offset": max_length,
            "no_repeat_ngram": settings.get("no_repeat_ngram_size") or 0}
