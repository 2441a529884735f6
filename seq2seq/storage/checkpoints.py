"""Checkpoints and bundles: training resumes from a checkpoint, and translation loads a bundle.

Both are directories that are written atomically (atomic.py). Tensors are stored in safetensors files, not pickled.
"""

from __future__ import annotations

import logging
import os
import re
import shlex
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from seq2seq.errors import CheckpointError, RecipeError
from seq2seq.recipe import Readable, Recipe, load_recipe
from seq2seq.storage.atomic import (
    cannot_save,
    current_path,
    delete,
    delete_temporary,
    link_or_copy,
    old_path,
    recover,
    replace_directory,
    replace_file,
    temporary_path,
)
from seq2seq.storage.directories import (
    HEADER_KEYS,
    METADATA,
    as_json,
    header,
    kind_of,
    read_file,
    read_metadata,
    read_with_retry,
    verify,
    write_tensors,
)
from seq2seq.storage.foreign_models import foreign_model
from seq2seq.storage.links import RUN_DIRECTORIES, DamagedError, path_inside
from seq2seq.storage.tensor_files import read_shapes, read_tensors, read_weights

if TYPE_CHECKING:
    from torch import Tensor

logger = logging.getLogger(__name__)

BEST = "best"
CHECKPOINTS = "checkpoints"
MODEL = "model.safetensors"
STATE = "state.safetensors"
RECIPE = "recipe.yaml"
README = "README.md"
RECIPE_DIRECTORY = "recipe_directory"
"""Field of a bundle's metadata: directory of the recipe file of its training, which finds the corpora of a bundle that
is not in its run. Another machine ignores it."""
HELD_OUT = "held_out"
"""Field of a bundle's metadata: number of pairs of each validation and test corpus, by its key in the recipe's section
`data`."""
CARD_MARK = "---\n# Written by seq2seq, and replaced with the model. Remove this line to keep your changes.\n"
"""Beginning of each model card. A README.md without it belongs to the user and is never overwritten."""
TEXT_CHECKSUMS = "text_sha256"
"""Field of a bundle's metadata: checksums of the training, validation and test text; see `Recipe.readable`."""
VALIDATED = "validated"
"""Field of a checkpoint's `info`: True if the checkpoint was saved at a validation, False if it was saved by the clock
or because of a signal."""
SHORTLIST = "shortlist.safetensors"
TOKENIZER_FILES = ("tokenizer.model", "source.model", "target.model", "vocabulary.json", SHORTLIST)
"""Names of the files that belong to the vocabularies of a bundle."""
MAX_SHORTLIST_BYTES = 500_000_000
"""Maximum size of a shortlist: 500 target pieces for each of 250,000 source pieces."""
RENAME_SECONDS = 1
"""Maximum time between the two renames with which a running training replaces its best model."""


# Checkpoints


@dataclass(frozen=True)
class Checkpoint:
    """Contents of a checkpoint after `step`: weights (`model`), other tensors (`state`), and other values (`info`)."""

    path: Path
    step: int
    model: dict[str, Tensor]
    state: dict[str, Tensor]
    info: dict[str, Any]


def save_checkpoint(
    run: Path, step: int, model: Mapping[str, Tensor], state: Mapping[str, Tensor], info: dict[str, Any]
) -> Path:
    """Write <run>/checkpoints/step-<step>, replacing an older checkpoint of the same step.

    Args:
        run: the run's directory, created if it does not exist.
        model: the weights by name; tied weights are included once.
        state: other tensors, such as optimizer moments and averaged weights.
        info: other JSON values, such as train state and checksums.
    Returns:
        The checkpoint's directory.
    """
    path = Path(run) / CHECKPOINTS / f"step-{step:08d}"
    with replace_directory(path) as directory:
        write_tensors(directory / MODEL, model)
        write_tensors(directory / STATE, state)
        metadata = {"step": step, "info": info, **header("checkpoint", directory)}
        (directory / METADATA).write_bytes(as_json(metadata))
    return path


def load_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint and verify all its checksums. The tensors are on the CPU, bit-identical to the saved ones."""
    path = Path(path)
    metadata = read_metadata(path, "checkpoint", required=(MODEL, STATE))
    verify(path, metadata["sha256"])
    model, state = read_tensors(path / MODEL), read_tensors(path / STATE)
    return Checkpoint(path, metadata["step"], model, state, metadata["info"])


def list_checkpoints(run: Path) -> list[Path]:
    """Return the paths of all checkpoints of a run, the oldest first. Damaged checkpoints are included."""
    directory = Path(run) / CHECKPOINTS
    if not directory.is_dir():
        return []
    return sorted((path for path in directory.iterdir() if re.fullmatch(r"step-\d{8,}", path.name)), key=step_of)


def validated_checkpoints(run: Path) -> list[Path]:
    """Return the paths of the checkpoints of a run that were saved at a validation, the oldest first."""
    return [path for path in list_checkpoints(run)
            if read_metadata(path, "checkpoint", required=(MODEL, STATE))["info"].get(VALIDATED)]


def step_of(checkpoint: Path) -> int:
    """Return the step in a checkpoint's name."""
    return int(checkpoint.name.removeprefix("step-"))


def newest_checkpoint(run: Path) -> Checkpoint | None:
    """Load the newest intact checkpoint, and log a warning for each damaged checkpoint that is newer.

    Returns None if the run has no checkpoints.
    """
    error_messages = []
    for path in reversed(list_checkpoints(run)):
        try:
            checkpoint = load_checkpoint(path)
        except DamagedError as error:
            error_messages.append(str(error))
            continue
        for message in error_messages:
            logger.warning("%s Resuming from %s instead.", message, path.name)
        return checkpoint
    if error_messages:
        raise CheckpointError(
            "\n".join([f"All checkpoints of {run} are damaged. To train from the beginning, use --restart.",
                       *error_messages])
        )
    return None


def prune_checkpoints(run: Path, keep: Iterable[int]) -> None:
    """Delete the checkpoints whose step is not in `keep`."""
    steps = set(keep)
    try:
        for path in list_checkpoints(run):
            if step_of(path) not in steps:
                # The directory is renamed before it is deleted. Otherwise, an interrupted deletion would leave files
                # that look like a damaged checkpoint.
                temporary = temporary_path(path)
                os.rename(path, temporary)
                delete(temporary)
    except OSError as error:
        raise CheckpointError(f"Old checkpoints in {Path(run) / CHECKPOINTS} cannot be deleted: "
                              f"{error.strerror or error}. Check its permissions.") from error


def recover_run(run: Path) -> None:
    """Complete or undo what a killed process has left in a run: replacements of directories, and temporary files.

    The caller holds the run's lock.
    """
    for directory in (run, *(run / name for name in RUN_DIRECTORIES), *(run / "prepared").glob("*")):
        for old in directory.glob(old_path(Path("*")).name):
            recover(directory / old.name.removeprefix(".").removesuffix(".replaced"))
        delete_temporary(directory)


# Bundles


@dataclass(frozen=True)
class Bundle:
    """A model with everything that translation needs: weights, recipe, tokenizers and metadata."""

    directory: Path
    weights: dict[str, np.ndarray]
    recipe_text: str
    tokenizer_files: dict[str, bytes]
    metadata: dict[str, Any]


Shapes = Mapping[str, tuple[tuple[int, ...], str]]
"""Mapping from a tensor's name to its shape and its safetensors dtype, such as F32."""
Card = Callable[[str, Mapping[str, Any], Shapes], str]
"""Function that returns the text of a model card from the text of the recipe, the metadata and the shapes of the
weights. Commands that write a bundle to publish give the one of `interop`, which this chapter cannot import."""


def save_bundle(
    directory: Path,
    weights: Mapping[str, Tensor] | Mapping[str, np.ndarray],
    recipe_text: str,
    tokenizer_files: Mapping[str, bytes],
    metadata: Mapping[str, Any],
    card: Card | None = None,
) -> Path:
    """Write a bundle. An old bundle is replaced atomically; files that users put into it are kept.

    Args:
        weights: tensors or arrays by name; tied weights are included once.
        tokenizer_files: contents by file name. The names must be in TOKENIZER_FILES.
        metadata: further fields of metadata.json, such as test scores and corpus counts.
        card: function that makes the model card; None: the bundle gets none.
    """
    path = Path(os.path.realpath(directory))                                    # a link to the bundle stays a link
    with suppress(OSError):                                                     # `replace_directory` reports it
        recover(path)
    user_files = _user_files(path)
    with replace_directory(path) as new:
        write_tensors(new / MODEL, weights)
        (new / RECIPE).write_bytes(recipe_text.encode())
        for name, contents in tokenizer_files.items():
            (new / name).write_bytes(contents)
        metadata = {**header("bundle", new), **metadata}
        for file in user_files:
            if file.is_dir():
                shutil.copytree(file, new / file.name, symlinks=True, copy_function=link_or_copy)
            else:
                link_or_copy(file, new / file.name)
        (new / METADATA).write_bytes(as_json(metadata))
        if card is not None and not os.path.lexists(new / README):
            (new / README).write_text(card(recipe_text, metadata, read_shapes(new / MODEL)), encoding="utf-8")
    return Path(directory)


def load_bundle(directory: Path, require: Callable[[Bundle, Shapes], None] = lambda bundle, shapes: None) -> Bundle:
    """Read a bundle and verify the checksums of its files. The weights are finite, in float32.

    Args:
        require: function that checks the bundle before its weights are read. It gets the bundle without weights, and
            the shapes of the weights. It raises a CheckpointError to refuse the bundle.
    """

    def read(current: Path) -> Bundle:
        metadata = read_metadata(current, "bundle", required=(MODEL, RECIPE))
        verify(current, metadata["sha256"])
        names = [name for name in TOKENIZER_FILES if name in metadata["sha256"]]
        try:
            recipe_text = read_file(current / RECIPE).decode()
        except UnicodeDecodeError as error:
            raise DamagedError(f"{current / RECIPE} is damaged: {error}.") from error
        tokenizer_files = {name: read_file(current / name, *[MAX_SHORTLIST_BYTES] * (name == SHORTLIST))
                           for name in names}
        fields = {key: value for key, value in metadata.items() if key not in HEADER_KEYS}
        bundle = Bundle(Path(directory), {}, recipe_text, tokenizer_files, fields)
        require(bundle, read_shapes(current / MODEL))
        return replace(bundle, weights=read_weights(current / MODEL))

    return read_with_retry(Path(directory), read)


def bundle_metadata(directory: Path) -> dict[str, Any]:
    """Return a bundle's metadata (scores, corpus counts, …). Only metadata.json is read."""

    def read(current: Path) -> dict[str, Any]:
        metadata = read_metadata(current, "bundle", required=())
        return {key: value for key, value in metadata.items() if key not in HEADER_KEYS}

    return read_with_retry(Path(directory), read)


def stored_characters(metadata: Mapping[str, Any], side: str) -> str:
    """Return the characters of a model's training text on one side, from the metadata of its bundle; "" if they are not
    known. side: source or target."""
    found = metadata.get("characters")
    text = found.get(side) if isinstance(found, dict) else None
    return text if isinstance(text, str) else ""


def stored_tags(metadata: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the tags (`data.train[].tag`) of the training corpora of a model and of the models that it was trained
    from, from the metadata of its bundle; () if they are not known."""
    found = metadata.get("tags")
    return tuple(tag for tag in found if isinstance(tag, str) and tag.strip()) if isinstance(found, list) else ()


def weights_checksum(directory: Path) -> str:
    """Return the checksum of a bundle's weights. Raises CheckpointError as `bundle_metadata`."""
    def read(current: Path) -> str:
        checksum: str = read_metadata(current, "bundle", required=(MODEL,))["sha256"][MODEL]
        return checksum

    return read_with_retry(Path(directory), read)


def update_bundle_metadata(directory: Path, weights: str | None = None, **fields: Any) -> None:
    """Add or replace fields of the metadata.json of a run's bundle, such as test scores.

    The caller holds the lock of the run, so that no other process replaces the bundle meanwhile.

    weights: checksum of the weights that the fields are for; None: they are for any weights.
    """
    directory = current_path(directory)
    metadata = read_metadata(directory, "bundle", required=(MODEL,)) | fields
    if weights not in (None, metadata["sha256"][MODEL]):
        raise CheckpointError(f"{directory} has other weights now.")
    try:
        delete_temporary(directory)
        replace_file(directory / METADATA, as_json(metadata))
    except OSError as error:
        raise cannot_save(directory / METADATA, error) from error


def is_own_card(path: Path) -> bool:
    """Return True if a file is a model card that seq2seq may replace."""
    if path.is_symlink() or not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(CARD_MARK)) == CARD_MARK.encode()


def stored_recipe(directory: Path) -> Recipe:
    """Load the recipe that is stored in a bundle or a run, which may come from an untrusted source."""
    return load_recipe(path_inside(directory, RECIPE), check_files=False, alone=True)


def recipes_with_corpora(bundle: Path) -> list[Recipe]:
    """Return the recipe of a bundle, once for each directory that the paths of its corpora may be relative to; first
    the recipe with the largest number of corpus files that exist.

    The paths in the recipe of a bundle are as the user wrote them. They are relative to the directory of the original
    recipe file, which the metadata of the bundle names, or to the bundle. For the best bundle of a run, the recipe of
    the run is used instead of the latter: its paths are relative to the run, so that it finds text that has moved
    together with the run.

    Outside the bundle or the run, only text with a checksum in the metadata may be read (`Recipe.readable`).
    """
    bundle = bundle.absolute()
    metadata = bundle_metadata(bundle)
    recipe = stored_recipe(bundle.parent if is_best_of_run(bundle) else bundle)
    checksums = metadata.get(TEXT_CHECKSUMS)
    readable = Readable(recipe.directory, frozenset(map(str, checksums if isinstance(checksums, list) else ())))
    recipes = [recipe]
    if isinstance(directory := metadata.get(RECIPE_DIRECTORY), str):
        recipes.append(stored_recipe(bundle).with_directory(Path(directory)))
    return sorted((recipe.with_readable(readable) for recipe in recipes), key=lambda recipe: -sum(
        path.is_file() for corpus in recipe.data.corpora() for path in corpus.resolve(recipe.data_directory).paths))


def recipe_with_corpora(bundle: Path) -> Recipe:
    """Return the first of `recipes_with_corpora`."""
    return recipes_with_corpora(bundle)[0]


def is_best_of_run(bundle: Path) -> bool:
    bundle = bundle.absolute()
    return bundle.name in (BEST, old_path(Path(BEST)).name) and (bundle.parent / RECIPE).is_file()


def resolve_model_path(path: Path) -> Path:
    """Return the path of a bundle: `path` itself, or its `best` directory if `path` is a run."""
    path = Path(path)
    if kind_of(path) == "bundle":
        return _settled(path)
    path_inside(path, old_path(path / BEST).name)
    if kind_of(path_inside(path, BEST)) == "bundle":
        return _settled(path / BEST)
    expected = f"A model is a bundle (a directory with {MODEL}, {RECIPE} and {METADATA}) or a run with a {BEST}/ in it."
    if not current_path(path).exists():
        raise CheckpointError(f"{path} does not exist. {expected}")
    if path.exists() and not path.is_dir():
        raise _no_model(path, expected)
    if (found := foreign_model(path)) is not None:
        raise CheckpointError(f"{path} is {found}")
    if kind_of(path) == "checkpoint":
        raise CheckpointError(
            f"{path} is a checkpoint, from which training resumes. Name the run, {path.parent.parent}, "
            "or make a bundle of checkpoints with `seq2seq average`."
        )
    if current_path(path / BEST).is_dir() or (path / MODEL).exists():
        bundle = path / BEST if current_path(path / BEST).is_dir() else path
        raise CheckpointError(f"{bundle} is not a bundle: its {METADATA} is missing or damaged. {expected}")
    if (path / CHECKPOINTS).is_dir():
        raise CheckpointError(
            f"{path} is a run without {BEST}/, which is written at the first validation. Continue the training, "
            "or make a bundle of one of its checkpoints with `seq2seq average CHECKPOINT`."
        )
    names = sorted(entry.name for entry in current_path(path).iterdir())
    contents = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "") if names else "nothing"
    raise CheckpointError(f"{path} contains {contents}. {expected}")


def _settled(path: Path) -> Path:
    """Return `path`, or the old directory if a kill between the two renames of `replace_directory` has left only that.

    A training that runs renames the new directory within microseconds.
    """
    deadline = time.monotonic() + RENAME_SECONDS
    while not path.exists():
        if time.monotonic() >= deadline:
            return current_path(path)
        time.sleep(0.01)
    return path


def is_model(path: Path) -> bool:
    """Return True if `path` is a bundle, or a run with a best bundle."""
    return "bundle" in (kind_of(path), kind_of(path / BEST))


def _no_model(path: Path, expected: str) -> CheckpointError:
    """Return the error for a path that is a file, not a model. expected: end of the message; says what a model is."""
    if is_model(path.parent):
        return CheckpointError(f"{path} is a file. Name its directory, {path.parent}. {expected}")
    if path.suffix in (".yaml", ".yml"):
        with suppress(RecipeError):
            run = Path("runs") / load_recipe(path, check_files=False).name
            if is_model(run):
                return CheckpointError(f"{path} is a recipe. Name the model that was trained with it: {run}")
            return CheckpointError(f"{path} is a recipe, and its run, {run}, contains no model yet. Train the model "
                                   f"first (seq2seq train {shlex.quote(str(path))}). If you trained it with --run-dir, "
                                   "name that directory.")
    if path.is_file() and (found := foreign_model(path)) is not None:
        return CheckpointError(f"{path} is {found} {expected}")
    return CheckpointError(f"{path} is a file. {expected}")


def _user_files(path: Path) -> list[Path]:
    """Return the files that users have put into a bundle; an empty list if there is no bundle yet."""
    current = current_path(path)
    if not current.exists():
        return []
    if not current.is_dir():
        raise CheckpointError(f"{path} is a file. Name a new directory for the bundle.")
    is_bundle = kind_of(path) == "bundle"
    if not is_bundle and not (current / MODEL).exists():                        # with MODEL: a damaged bundle
        bundle_files: set[str] = set()
    else:
        delete_temporary(current)
        bundle_files = {MODEL, RECIPE, METADATA, *TOKENIZER_FILES, *([README] if is_own_card(current / README) else [])}
    user_files = [file for file in current.iterdir() if file.name not in bundle_files]
    if user_files and not is_bundle:
        raise CheckpointError(
            f"{path} contains {user_files[0].name} and is not a bundle. Nothing was changed; name a new directory."
        )
    return user_files
