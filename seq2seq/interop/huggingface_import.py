"""Import models in Hugging Face format: Marian, such as the 1,400 models of OPUS-MT, M2M-100, NLLB-200,
mBART-50, T5, mT5 and MADLAD-400."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from seq2seq.errors import CheckpointError, FormatError, OptionError, RecipeError, TokenizerError
from seq2seq.files import real_path
from seq2seq.interop.huggingface_files import (
    CONFIG,
    GENERATION,
    TOKENIZER,
    local_folder,
    read_licence,
    read_object,
    read_weights,
)
from seq2seq.interop.huggingface_t5 import scales_output
from seq2seq.interop.huggingface_vocabulary import fairseq_vocabularies, marian_vocabularies, t5_vocabularies
from seq2seq.interop.huggingface_weights import (
    architecture_of,
    model_section_from_config,
    weights_from_huggingface,
)
from seq2seq.interop.model_card import bundle_card
from seq2seq.interop.vocabulary_changes import VocabularyChanges
from seq2seq.recipe import Languages, ModelSection, parse_recipe
from seq2seq.recipe.data_section import file_name
from seq2seq.recipe.directions import direction_into, targets_of
from seq2seq.recipe.yaml_document import write_yaml
from seq2seq.storage.checkpoints import RECIPE, save_bundle
from seq2seq.tokenizers.tokenizer import Tokenizers
from seq2seq.tokenizers.vocabulary import UNKNOWN_ID, Vocabulary

# Exceptions that `_read` can raise if a file has unexpected contents.
UNREADABLE = (TypeError, ValueError, AttributeError, LookupError, RuntimeError, OverflowError, struct.error)
VOCABULARIES = {"marian": marian_vocabularies, "fairseq": fairseq_vocabularies, "t5": t5_vocabularies}
"""Functions that read the vocabularies, by kind (see `Architecture`)."""
UNKNOWN_TEXT = {"name": "unknown"}
"""Corpus in the recipe of an imported model."""
LANGUAGES_IN_NAME = re.compile(r"opus-mt-(?:tc-)?(?:big-|base-|tiny-)?([A-Za-z]{2,8})-([A-Za-z]{2,8})$")

HEADER = """\
# Imported from {name}, a model in Hugging Face format, whose training text is not known.
# To fine-tune the model, write a recipe with your own data and set its training.start_from to this directory.
"""


@dataclass(frozen=True)
class Imported:
    """Summary of an import.

    parameters: number of parameters. chosen: direction of lines that name no language. targets: target languages.
    names_sources: True if the model translates from several languages, too (see `tokenizers.fairseq_vocabulary`).
    size, size_before: pieces and parameters, as text; before the vocabulary was changed. licence: "" if the model's
    files state none.
    """

    parameters: int
    chosen: Languages
    targets: list[str]
    names_sources: bool
    size: str
    size_before: str
    licence: str


def import_model(name: str, output: Path, source_language: str | None = None, target_language: str | None = None,
                 changes: VocabularyChanges | None = None) -> Imported:
    """Convert a model in Hugging Face format to a bundle.

    Args:
        name: a directory, or the name of a model on the hub, such as Helsinki-NLP/opus-mt-de-en.
        output: the bundle to write.
        source_language, target_language: language codes. If None, the model's files or name decide. If the model
            translates into several languages, `target_language` is the language of lines that name none.
        changes: changes of the vocabulary; None: there are none.
    """
    folder = local_folder(name)
    try:
        imported, weights, text, files = _read(folder, name, source_language, target_language,
                                              changes or VocabularyChanges())
    except (FormatError, TokenizerError, CheckpointError) as error:
        raise FormatError(f"{name} cannot be imported: {error}") from error
    except RecipeError as error:
        reason = re.sub(rf"^{re.escape(str(folder / RECIPE))}:\d+: ", "", str(error), flags=re.MULTILINE)
        raise FormatError(f"{name} cannot be imported: {CONFIG}, {GENERATION} or {TOKENIZER} has a value that a recipe "
                          f"does not support: {reason}") from error
    except UNREADABLE as error:
        raise FormatError(f"{name} cannot be imported: its files are not those of such a model, or are damaged "
                          f"({_reason(error)}). Copy all of them again.") from error
    metadata = {"imported_from": _shown(name), "parameters": imported.parameters}
    save_bundle(output, weights, text, files, metadata, bundle_card)
    return imported


def _read(folder: Path, name: str, source_language: str | None, target_language: str | None,
          changes: VocabularyChanges) -> tuple[Imported, dict[str, Tensor], str, dict[str, bytes]]:
    """Read a model. Return a summary of the import, and the weights, recipe text and tokenizer files of the bundle."""
    config, tokenizer_config = read_object(folder / CONFIG), read_object(folder / TOKENIZER, missing={})
    architecture = architecture_of(config)
    theirs = read_weights(folder)
    section = model_section_from_config(config, theirs)
    tokenizers, ids = VOCABULARIES[architecture.vocabulary](folder, config, tokenizer_config)
    output_scale = 1.0
    if architecture.vocabulary == "t5":
        output_scale = section.d_model**-0.5 if scales_output(config) else 1.0
        if config.get("decoder_start_token_id") == ids[1][UNKNOWN_ID]:
            section = section.model_copy(update={"decoder_start": "<unk>"})
    weights = weights_from_huggingface(theirs, architecture, section, *ids, output_scale)
    size_before = _size(tokenizers, weights)
    tokenizers, weights = changes.apply(tokenizers, weights)
    source, target = _languages(name, tokenizer_config, source_language, target_language, changes)
    chosen, directions = _directions(tokenizers.source, tokenizer_config, target_language, source, target)
    directions = changes.kept(directions)
    chosen = chosen if chosen in directions else directions[0]
    licence = read_licence(folder)
    recipe = {
        "name": re.sub(r"[^A-Za-z0-9_.-]+", "_", real_path(Path(name)).name).lstrip("_.-") or "imported",
        **({"license": licence} if licence else {}),
        "languages": chosen.model_dump(),
        "data": {"train": [UNKNOWN_TEXT | ({} if each == chosen else {"languages": each.model_dump()})
                           for each in directions],
                 "valid": UNKNOWN_TEXT,
                 "cleaning": {"max_pieces": section.max_positions - 1}},
        "tokenizer": {"joint": tokenizers.joint},
        "model": section.model_dump(exclude_defaults=True) | {"type": section.type},
        "decoding": _decoding(
            folder, config, section, int(tokenizers.target.first_id(chosen.target or "") is not None)),
    }
    text = HEADER.format(name=_shown(name)) + write_yaml(recipe)
    parse_recipe(text, folder / RECIPE, alone=True)
    parameters = sum(weight.numel() for weight in weights.values())
    imported = Imported(parameters, chosen, targets_of(directions), tokenizers.source.begins_with_own_language,
                        _size(tokenizers, weights), size_before, licence or "")
    return imported, weights, text, tokenizers.files()


def _size(tokenizers: Tokenizers, weights: Mapping[str, Tensor]) -> str:
    return f"{tokenizers.sizes}, {sum(weight.numel() for weight in weights.values()):,} parameters"


def _shown(name: str) -> str:
    """Return the name of a model of the hub, or the last part of the path of a directory."""
    return file_name(str(Path(name).absolute())) if Path(name).is_dir() else name


def _reason(error: Exception) -> str:
    """Return the first line of an error's message, or its type if it has no message."""
    return next(iter(str(error).splitlines()), "") or type(error).__name__


# The recipe


def _languages(name: str, tokenizer_config: Mapping[str, Any], source: str | None, target: str | None,
               changes: VocabularyChanges) -> tuple[str, str]:
    """Return `source` and `target`. If one is None, it is the first language that is kept, or read from
    tokenizer_config.json or from the model's name."""
    source = source or next((code for code in changes.languages if code != target), None)
    target = target or next((code for code in changes.languages if code != source), None)
    in_name = LANGUAGES_IN_NAME.search(Path(name).name)
    sides = [(source, "source_lang", "src_lang"), (target, "target_lang", "tgt_lang")]
    codes = [requested or tokenizer_config.get(long) or str(tokenizer_config.get(short) or "").strip("_") or (
                 in_name[group] if in_name else None) for group, (requested, long, short) in enumerate(sides, start=1)]
    for code, option in zip(codes, ("--source-language", "--target-language"), strict=True):
        if code is None:
            raise FormatError(f"neither its files nor its name contain its languages. Add {option}, such as {option} "
                              "de.")
    return str(codes[0]), str(codes[1])


def _directions(vocabulary: Vocabulary, tokenizer_config: Mapping[str, Any], requested: str | None, source: str,
                target: str) -> tuple[Languages, list[Languages]]:
    """Return the direction of lines that name no language, and all directions. Without language tokens, there is one.

    Exports of this package list the directions. Other models translate from `source` into each language that has a
    token. If the sources have tokens, too, they also translate from each language into `source`, and so between all.
    requested: value of --target-language. source, target: see `_languages`.
    """
    if not vocabulary.languages:
        only = Languages.model_construct(source=source, target=target)          # `parse_recipe` checks the codes
        return only, [only]
    if vocabulary.begins_with_own_language:
        source, target = map(vocabulary.own_code, (source, target))
    others = [code for code in vocabulary.languages if code != source]
    back = [(code, source) for code in others] if vocabulary.begins_with_own_language else []
    listed = tokenizer_config.get("directions") or [*((source, code) for code in others), *back]
    directions = [Languages.model_construct(source=str(each), target=str(code)) for each, code in listed]
    try:
        return direction_into(target, directions), directions
    except OptionError:                                                         # such as `roa`, a group of languages
        if requested is None:
            return directions[0], directions
        raise FormatError(f"it does not translate into '{requested}'. Its target languages are "
                          f"{', '.join(sorted(targets_of(directions)))}.") from None


def _decoding(folder: Path, config: Mapping[str, Any], section: ModelSection, given: int) -> dict[str, Any]:
    """Return the `decoding` section with the values of generation_config.json or, for missing keys, of config.json.

    `early_stopping` is not imported, because the search of this package always stops when beam_size hypotheses have
    finished, as with `early_stopping=True`.

    given: number of tokens with which each target begins, which transformers counts in its lengths.
    """
    settings = {**config, **{key: value for key, value in read_object(folder / GENERATION, missing={}).items()
                             if value is not None}}
    for key in ("max_length", "max_new_tokens", "length_penalty", "num_beams", "no_repeat_ngram_size"):
        if not isinstance(settings.get(key), int | float | None):
            raise FormatError(f"{GENERATION} or {CONFIG} has {key}: {json.dumps(settings[key])}, which is not a "
                              "number.")
    # In transformers, max_length includes <s> and </s>, and max_new_tokens includes </s>.
    max_length = max(1, min(settings.get("max_length") or section.max_positions, section.max_positions) - 2 - given)
    if settings.get("max_new_tokens"):
        max_length = max(1, min(settings["max_new_tokens"], section.max_positions) - 1 - given)
    penalty = settings.get("length_penalty")
    return {"beam_size": settings.get("num_beams") or 1, "length_penalty": 1.0 if penalty is None else float(penalty),
            "max_length": max_length, "max_length_offset": max_length,
            "no_repeat_ngram": settings.get("no_repeat_ngram_size") or 0}
