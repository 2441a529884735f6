"""Synthetic pairs from monolingual text: back-translation and knowledge distillation.

Back-translation (Sennrich et al. 2016, arXiv:1511.06709) translates targets to sources, by sampling (Edunov et al.
2018, arXiv:1808.09381) and with a tag before each source (Caswell et al. 2019, arXiv:1906.06442). Sequence-level
knowledge distillation (Kim and Rush 2016, arXiv:1606.07947) translates sources by beam search with a larger teacher
model.
"""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from seq2seq import console
from seq2seq.data.corpus import Counts, read_corpus
from seq2seq.errors import CorpusError, RecipeError
from seq2seq.recipe import Corpus, DecodingSection, Languages, Recipe, parse_recipe
from seq2seq.recipe.decoding_section import DRAWN, SAMPLING_KEYS
from seq2seq.recipe.language_codes import same_code
from seq2seq.storage.atomic import sync
from seq2seq.storage.checkpoints import RECIPE, load_bundle, resolve_model_path
from seq2seq.storage.checksums import journal_of, note_text, noted_text
from seq2seq.storage.directories import read_metadata
from seq2seq.translation.requests import Request
from seq2seq.translation.translator import Translator

BLOCK_LINES = 8192


def with_synthetic_text(recipe: Recipe, directory: Path) -> Recipe:
    """Translate the corpora with one side into `directory`, and return the recipe in which all corpora have two sides.

    After an interruption it resumes, with the same result, because a sample depends on its line alone.

    Raises:
        CheckpointError: there is no such model.
        RecipeError: the model translates between other languages.
        CorpusError: the text cannot be read.
    """
    if not any(spec.translated_by for spec in recipe.data.train):
        return recipe
    train = tuple(_completed(spec, recipe, directory) if spec.translated_by else spec for spec in recipe.data.train)
    return recipe.model_copy(update={"data": recipe.data.model_copy(update={"train": train})})


def without_synthetic_text(recipe: Recipe, directory: Path) -> tuple[Recipe, list[str]]:
    """Return the recipe of `with_synthetic_text` without the corpora that are not translated yet, and their names.

    Raises:
        CheckpointError, RecipeError, CorpusError: as `with_synthetic_text`.
    """
    kept, lacking = [], []
    for spec in recipe.data.train:
        if spec.translated_by is None:
            kept.append(spec)
            continue
        model, _, made = _place(spec, recipe, directory)
        if made.exists():
            kept.append(_filled(spec, made))
        else:
            text = load_bundle(model).recipe_text
            _require_direction(spec, recipe, model, parse_recipe(text, model / RECIPE, alone=True).languages)
            lacking.append(spec.label)
    return recipe.model_copy(update={"data": recipe.data.model_copy(update={"train": tuple(kept)})}), lacking


def _completed(spec: Corpus, recipe: Recipe, directory: Path) -> Corpus:
    """The corpus with a file for the side that it lacks."""
    model, given, made = _place(spec, recipe, directory)
    if not made.exists():
        _make(spec, recipe, model, given, made)
    return _filled(spec, made)


def _place(spec: Corpus, recipe: Recipe, directory: Path) -> tuple[Path, Path, Path]:
    """The model, the text that is there, and where its translation belongs."""
    model = resolve_model_path(recipe.directory / str(spec.translated_by))
    given = recipe.data_directory / str(spec.source if spec.target is None else spec.target)
    return model, given, directory.absolute() / f"{_key(spec, model, given)}.txt"


def _filled(spec: Corpus, made: Path) -> Corpus:
    missing = {"target": str(made)} if spec.target is None else {"source": str(made)}
    return spec.model_copy(update={**missing, "translated_by": None, "sampling": None, "name": spec.label})


def _key(spec: Corpus, model: Path, given: Path) -> str:
    """Return a hash of everything that the synthetic text depends on."""
    try:
        state = given.stat()
    except OSError as error:
        raise CorpusError(f"{given} cannot be read: {error.strerror or error}.") from error
    described = [str(given), state.st_size, state.st_mtime_ns, spec.limit, spec.samples,
                 read_metadata(model, "bundle", required=())["sha256"]]       # not its scores, which may be new
    return hashlib.sha256(json.dumps(described).encode()).hexdigest()[:16]


def _make(spec: Corpus, recipe: Recipe, model: Path, given: Path, made: Path) -> None:
    translator = Translator.load(model)
    _require_direction(spec, recipe, model, translator.languages)
    options = _options(translator.decoding, spec.samples)
    made.parent.mkdir(parents=True, exist_ok=True)
    part = made.with_suffix(".part")
    journal = journal_of(part)
    done, crc32 = _whole_lines(part)
    total = sum(1 for _ in _texts(spec, given))
    console.say(f"translating {total - done:,} lines of {spec.label} with {model} in {translator.precision} "
                f"({'sampling' if spec.samples else 'searching'})")
    with part.open("ab") as file, console.progress("translating", total, done) as advance:
        requests = (Request(text, number=number) for number, text in enumerate(_texts(spec, given)))
        # Blocks end at the same lines as without the interruption, because in bf16 rounding depends on the batch.
        for block in translator.translate_blocks(islice(requests, done, None), BLOCK_LINES, begin=done,
                                                 progress=advance, **options):
            lines = b"".join(best.text.replace("\n", " ").encode() + b"\n" for best, *_ in block)
            file.write(lines)
            file.flush()
            crc32 = zlib.crc32(lines, crc32)
            note_text(part, crc32)
        note_text(part, crc32)
    sync(part)
    os.replace(journal, journal_of(made))                                         # before the text has its name
    os.replace(part, made)


def _require_direction(spec: Corpus, recipe: Recipe, model: Path, of_model: Languages) -> None:
    languages = recipe.languages.source, recipe.languages.target
    wanted = languages if spec.target is None else languages[::-1]
    found = of_model.source, of_model.target
    if not all(same_code(one or "", other or "") for one, other in zip(found, wanted, strict=True)):
        raise RecipeError(f"{model} translates from {found[0]} to {found[1]}; the corpus {spec.label} needs a model "
                          f"from {wanted[0]} to {wanted[1]}.")


def _options(own: DecodingSection, samples: bool) -> dict[str, Any]:
    """Return the overrides of the model's `decoding` that make it sample, or search for, a single translation."""
    if samples:
        return DRAWN
    of_samples = {key: DecodingSection.model_fields[key].default for key in SAMPLING_KEYS}
    return {"n_best": 1, **({"sampling": False, "mbr": 0, **of_samples} if own.sampling else {})}


def _texts(spec: Corpus, given: Path) -> Iterator[str]:
    alone = Corpus(text=str(given), limit=spec.limit, max_line_bytes=spec.max_line_bytes)
    for _, _, text in read_corpus(alone, Path(), Counts()):
        yield text


def _whole_lines(part: Path) -> tuple[int, int]:
    """Lines of a file that was not finished, and their zlib.crc32. What stands behind the last whole block is cut off;
    a file that is damaged is begun anew."""
    if not part.exists():
        return 0, 0
    contents = part.read_bytes()
    whole = contents[: contents.rfind(b"\n") + 1]
    if (noted := noted_text(part)) is not None:
        whole = contents[: noted[0]]
        if (len(whole), zlib.crc32(whole)) != noted:
            console.warn(f"{part} is damaged: it is not what was translated. It is translated again.")
            whole = b""
    with part.open("r+b") as file:
        file.truncate(len(whole))
    return whole.count(b"\n"), zlib.crc32(whole)
