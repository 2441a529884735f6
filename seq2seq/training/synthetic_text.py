"""Synthetic pairs from monolingual text: back-translation and knowledge distillation.

Back-translation (Sennrich et al. 2016, arXiv:1511.06709) translates target text to the source language, by default by
sampling (Edunov et al. 2018, arXiv:1808.09381). A tag can mark the synthetic sources (Caswell et al. 2019,
arXiv:1906.06442). Sequence-level knowledge distillation (Kim and Rush 2016, arXiv:1606.07947) translates source text by
beam search with a larger teacher model.

Line N of a generated text is the translation of line N. Translations with faults (see UNUSABLE) stay in the file, but
are no training pairs: cleaning drops and counts them.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import zlib
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

from seq2seq import console
from seq2seq.data.corpus import Counts, Pair, read_corpus
from seq2seq.data.preparation import TrainingText
from seq2seq.errors import CheckpointError, CorpusError, RecipeError, UserError
from seq2seq.files import parse_json, regular_bytes
from seq2seq.languages import canonical
from seq2seq.recipe import Corpus, DecodingSection, Recipe
from seq2seq.recipe.combinations import SAMPLING_KEYS
from seq2seq.recipe.decoding_section import SINGLE_SAMPLE
from seq2seq.recipe.directions import has_direction
from seq2seq.storage.atomic import delete, make_directories, replace_file, replacing
from seq2seq.storage.checkpoints import RECIPE, list_checkpoints, resolve_model_path, stored_recipe
from seq2seq.storage.directories import crc32_of, read_metadata
from seq2seq.tokenizers.source import Source
from seq2seq.training.distributed import SINGLE_PROCESS, ProcessGroup, translate_whole_blocks
from seq2seq.translation.output_faults import LOST_PLACEHOLDER
from seq2seq.translation.sources import growing_blocks
from seq2seq.translation.translator import Translator
from seq2seq.translation.unfinished_output import UnfinishedOutput, part_of

SYNTHETIC = "synthetic"
"""Directory of the translations in the run directory. A run has all its text, so that it can be moved alone."""
BLOCK_LINES = 8192
"""Maximum number of lines of a block. Finished blocks are kept if a run is interrupted."""
UNUSABLE = ("empty", "loop", "too_short", "too_long", "copied", "lost_number", LOST_PLACEHOLDER)
"""Faults (see `output_faults`) with which a translation is no training pair: the student would learn them."""
MAX_FAULTY_SHARE = 0.1
"""Share of translations with faults above which a warning is given. A model of 5,000 pairs had 0.6 %."""
COUNTED_LINES, MIN_DIFFERENT_SHARE = 10_000, 0.5
"""A warning is given if fewer of the first lines of a translation than this share are different: a model that has
learned little translates most lines in the same way."""


def training_text(recipe: Recipe, run: Path, group: ProcessGroup = SINGLE_PROCESS) -> TrainingText:
    """Translate the monolingual corpora. Return the text of the training, in which each translation is the missing side
    of its corpus. Ranks other than the main rank return the corpora without translations, because they do not read the
    training text.

    The result does not depend on interruptions, because the sample drawn for a line does not depend on other lines. It
    does not depend on the number of ranks either, because each rank translates whole blocks of lines.

    Args:
        run: run directory. group: ranks that translate. Only the main rank writes the files.
    """
    return TrainingText(recipe, tuple(_complete(spec, recipe, run / SYNTHETIC, group) if spec.translated_by else spec
                                      for spec in recipe.data.train))


def existing_text(recipe: Recipe, run: Path) -> tuple[TrainingText, list[str]]:
    """Return the text of a training with the translations that exist already, without the corpora that have no
    translation yet; and the labels of these corpora.
    """
    kept, missing = [], []
    for spec in recipe.data.train:
        if spec.translated_by is None:
            kept.append(spec)
            continue
        models, text, translation = _paths(spec, recipe, run / SYNTHETIC)
        faulty = _finished(translation)
        if faulty is not None:
            kept.append(_with_translation(spec, translation, faulty))
        else:
            _require_direction(spec, recipe, models)
            _require_text(spec, text)
            missing.append(spec.label)
    return TrainingText(recipe, tuple(kept)), missing


def _complete(spec: Corpus, recipe: Recipe, directory: Path, group: ProcessGroup) -> Corpus:
    """Return a monolingual corpus with its translation as the missing side. Translate it first if not done yet.

    Ranks other than the main rank return the corpus unchanged.
    """
    models, text, translation, finished = group.from_main_rank(partial(_find, spec, recipe, directory))
    if not finished:
        _translate(spec, models, text, translation, _load(spec, recipe, models, group), group)
    return _with_translation(spec, translation, _finished(translation) or {}) if group.is_main else spec


def _find(spec: Corpus, recipe: Recipe, directory: Path) -> tuple[list[Path], Path, Path, bool]:
    """Return the result of `_paths`, and True if the translation is finished."""
    models, text, translation = _paths(spec, recipe, directory)
    finished = _finished(translation) is not None or _taken_from_another_run(translation)
    other = next(translation.parent.glob(translation.name.replace(_key_in(translation), "*")), None)
    if not finished and other is not None and list_checkpoints(directory.parent):
        raise CheckpointError(f"{directory.parent} was trained on another translation of {text}: {other.name}. Since "
                              "then, the text, its part of the recipe or the model that translates it has changed. "
                              "Undo the change, or train from the beginning with --restart.")
    if finished:
        delete(part_of(translation))                                    # of a run that was killed before deleting it
    else:
        _require_direction(spec, recipe, models)
        _require_text(spec, text)
    return models, text, translation, finished


def _taken_from_another_run(translation: Path) -> bool:
    """Copy a finished translation with the same inputs from a run in the same directory; return True if there is one. A
    translation is known by the key at the end of its name."""
    runs = translation.parent.parent.parent
    for other in sorted(runs.glob(f"*/{SYNTHETIC}/*.{_key_in(translation)}.txt")):
        try:
            if other == translation or _finished(other) is None:
                continue
        except CheckpointError:                                                 # damaged
            continue
        make_directories(translation.parent)
        replace_file(_description_file(translation), regular_bytes(_description_file(other)))
        with replacing(translation) as file, other.open("rb") as contents:
            shutil.copyfileobj(contents, file)
        console.print_message(f"{translation.name} was generated before, in {other.parent.parent}")
        return True
    return False


def _load(spec: Corpus, recipe: Recipe, models: Sequence[Path], group: ProcessGroup) -> Translator:
    """Load the models on all ranks."""
    source, target = _direction(spec, recipe)
    translator = Translator.load(models[0], recipe.training.device, precision="reference", ensemble=models[1:],
                                 target_language=target, source_language=source)
    loaded = [translator.precision, *(read_metadata(model, "bundle", required=())["sha256"] for model in models)]
    for rank, found in enumerate(group.gather([loaded])):
        if found != loaded:
            raise UserError(f"processes {group.rank} and {rank} translate with different models or precisions. Copy "
                            f"{' and '.join(map(str, models))} to all machines, and use the same kind of device.")
    return translator


def _description_file(translation: Path) -> Path:
    """Return the path of the file with the length and checksum of a finished translation, and the numbers of its lines
    that are no training pairs, by fault."""
    return translation.with_name(f"{translation.name}.json")


def _finished(translation: Path) -> dict[int, str] | None:
    """Return the fault of each line of a translation that is no training pair; None if it is not complete."""
    if not translation.exists():
        return None
    try:
        recorded = parse_json(regular_bytes(_description_file(translation)))
        faulty = {int(line): str(fault) for fault, lines in recorded["faulty"].items() for line in lines}
        same = (recorded["bytes"], recorded["crc32"]) == (translation.stat().st_size, crc32_of(translation))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        same, faulty = False, {}
    if not same:
        raise CheckpointError(f"{translation}, a text translated by a model, is damaged: its checksum is wrong. Delete "
                              "the file, and run the same command again to translate the text again.")
    return faulty


def _paths(spec: Corpus, recipe: Recipe, directory: Path) -> tuple[list[Path], Path, Path]:
    """Return the paths of the models, of the monolingual text, and of its translation."""
    models = [resolve_model_path(recipe.directory / model) for model in spec.translated_by or ()]
    text = _text(spec, recipe)
    source, target = map(canonical, _direction(spec, recipe))
    name = re.sub(r"[^\w-]+", "_", text.name.partition(".")[0])[:60]
    return models, text, directory.absolute() / f"{name}.{source}-{target}.{_key(spec, recipe, models, text)}.txt"


def _key_in(translation: Path) -> str:
    """Return the result of `_key` from the name of a translation."""
    return translation.stem.rpartition(".")[2]


def _with_translation(spec: Corpus, translation: Path, faulty: Mapping[int, str]) -> Corpus:
    """Return a monolingual corpus with its translation as the missing side. faulty: see `Corpus.faulty`."""
    side = {"target": str(translation)} if spec.target is None else {"source": str(translation)}
    return spec.model_copy(update={**side, "translated_by": None, "sampling": None, "name": spec.label}
                           ).with_faulty(faulty)


def _key(spec: Corpus, recipe: Recipe, models: Sequence[Path], text: Path) -> str:
    """Return the end of the file name of a translation: a hash of everything that the translation depends on."""
    try:
        inputs: list[Any] = [crc32_of(text), text.stat().st_size, spec.limit, spec.samples, UNUSABLE]
    except OSError as error:
        raise CorpusError(f"{text} cannot be read: {error.strerror or error}.") from error
    inputs += map(canonical, _direction(spec, recipe))
    for model in models:
        checksums = read_metadata(model, "bundle", required=())["sha256"]
        decoding = stored_recipe(model).decoding.model_dump(mode="json")
        inputs.append([{name: checksum for name, checksum in checksums.items() if name != RECIPE}, decoding])
    return hashlib.sha256(json.dumps(inputs).encode()).hexdigest()[:16]


def _translate(spec: Corpus, models: Sequence[Path], text: Path, translation: Path, translator: Translator,
               group: ProcessGroup = SINGLE_PROCESS) -> None:
    """Write the translation of a monolingual text. All ranks call this function; only the main rank reads and writes.

    Blocks that were finished before are not translated again.
    """
    options = _options(translator.decoding, spec.samples)
    if not group.is_main:
        for _ in translate_whole_blocks(translator, group, iter(()), **options):
            pass
        return
    make_directories(translation.parent)
    unfinished = UnfinishedOutput(None, translation)
    unfinished.begin({"translation": _key_in(translation)})                 # it depends on all inputs
    total = sum(1 for _ in _lines(spec, text))
    # The context of a line and the lines of a block, which affect rounding, are the same whether resumed or not.
    language = translator.languages.target                                  # language tokens in the text are text
    requests = translator.reader.number(Source(line, language=language) for line in _lines(spec, text))
    pending = unfinished.pending(growing_blocks(requests, BLOCK_LINES))
    first = list(islice(pending, 1))                    # skips finished blocks, which would distort the rate
    skipped, blocks = unfinished.skipped_lines, chain(first, pending)
    names = " and ".join(map(str, models))
    console.print_message(f"translating {total - skipped:,} lines of {spec.label} with {names} in "
                          f"{translator.precision} ({'sampling' if spec.samples else 'searching'})")
    with console.progress("translating", total, skipped) as advance:
        for number, block in enumerate(translate_whole_blocks(translator, group, blocks, progress=advance,
                                                              **options)):
            unfinished.write("".join(f"{json.dumps([line, _unusable(faults)])}\n" for line, faults in block),
                             len(block))
            advance(len(block) if number % group.world_size else 0)         # the main rank has counted its own
    _join_blocks(unfinished, translation, spec.label)


def _unusable(faults: Sequence[str]) -> str:
    """Return the first of a translation's faults with which it is no training pair; "" if there is none."""
    return next((fault for fault in faults if fault in UNUSABLE), "")


def _join_blocks(unfinished: UnfinishedOutput, translation: Path, label: str) -> None:
    """Write the finished blocks as the translation with its description. label: name of the text."""
    length, crc32, lines, different = 0, 0, 0, set[str]()
    faulty: dict[str, list[int]] = {}
    with replacing(translation) as file:
        for block in unfinished.joined():
            for row in block.splitlines():
                line, fault = parse_json(row)
                lines += 1
                if lines <= COUNTED_LINES:
                    different.add(line)
                if fault:
                    faulty.setdefault(fault, []).append(lines)
                contents = f"{line}\n".encode()
                file.write(contents)
                length, crc32 = length + len(contents), zlib.crc32(contents, crc32)
        description = {"bytes": length, "crc32": crc32, "faulty": faulty}
        replace_file(_description_file(translation), json.dumps(description).encode())
    unfinished.delete_parts()
    if len(different) < MIN_DIFFERENT_SHARE * (counted := min(lines, COUNTED_LINES)):
        console.warn(f"{label}: only {len(different):,} of {counted:,} translations are different. Read some lines of "
                     f"{translation}; if they have little to do with the text, leave it out of data.train")
    if faulty:
        listed = ", ".join(f"{len(numbers):,} {fault.replace('_', ' ')}" for fault, numbers in faulty.items())
        count = sum(map(len, faulty.values()))
        tell = console.warn if count > MAX_FAULTY_SHARE * lines else console.print_message
        tell(f"{label}: {count:,} of {lines:,} translations have faults and are no training pairs ({listed})")


def _require_direction(spec: Corpus, recipe: Recipe, models: Sequence[Path]) -> None:
    """Raise RecipeError if one of the models does not translate in the direction that `spec` needs."""
    source, target = _direction(spec, recipe)
    for model in models:
        directions = stored_recipe(model).directions
        if not has_direction(directions, source, target):
            pairs = " and ".join(f"from {each.source} to {each.target}" for each in directions)
            found = f"translates {pairs}" if directions[0].source else "is a language model"
            key = f"data.train.{recipe.data.train.index(spec)}: " if spec in recipe.data.train else ""
            raise RecipeError(f"{key}{model} {found}; the corpus {spec.label} needs a model from {source} to {target}. "
                              "Name such a model in `translated_by`, or correct the side of the text: "
                              f"`{'source' if spec.target is None else 'target'}` is text in {source}.")


def require_monolingual_text(recipe: Recipe) -> None:
    """Raise CorpusError if a text that will be translated is empty."""
    for spec in recipe.data.train:
        if spec.translated_by:
            _require_text(spec, _text(spec, recipe))


def _text(spec: Corpus, recipe: Recipe) -> Path:
    """Return the path of a monolingual text."""
    return recipe.data_directory / str(spec.source if spec.target is None else spec.target)


def _require_text(spec: Corpus, text: Path) -> None:
    """Raise CorpusError if a monolingual text is empty."""
    if not any(map(str.strip, _lines(spec, text))):
        raise CorpusError(f"{text} has no text to translate. Correct the file, or leave this corpus out of data.train.")


def _direction(spec: Corpus, recipe: Recipe) -> tuple[str, str]:
    """Return the languages that the text of `spec` is translated from and to."""
    source, target = recipe.languages_of(spec).pair
    return (source, target) if spec.target is None else (target, source)


def _options(decoding: DecodingSection, samples: bool) -> dict[str, Any]:
    """Return the decoding options for one translation per line, by sampling or by search. Faults are always found.

    decoding: options in the model's recipe, which apply unless the returned options override them.
    """
    if samples:
        return {**SINGLE_SAMPLE, "safety_net": True}
    sampling_defaults = {key: DecodingSection.model_fields[key].default for key in SAMPLING_KEYS}
    return {"n_best": 1, "safety_net": True,
            **({"sampling": False, "mbr": 0, **sampling_defaults} if decoding.sampling else {})}


def monolingual_pairs(spec: Corpus, recipe: Recipe) -> Iterator[Pair]:
    """Yield the lines of a monolingual corpus as pairs of which the side that will be translated is empty."""
    _, text, _ = _paths(spec, recipe, Path())
    for number, line in enumerate(_lines(spec, text), 1):
        yield (number, Source(line), "") if spec.target is None else (number, Source(""), line)


def _lines(spec: Corpus, text: Path) -> Iterator[str]:
    """Yield the lines of the monolingual text, at most `spec.limit`."""
    corpus = Corpus(text=str(text), limit=spec.limit, max_line_bytes=spec.max_line_bytes)
    for _, _, line in read_corpus(corpus, Path(), Counts()):
        yield line
