"""Checkpoints and bundles: training resumes from a checkpoint, and translation loads a bundle.

Both are directories that are written atomically (directories.py). Tensors are stored in safetensors files, not pickled.
"""

import logging
import os
import re
import shlex
import shutil
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from seq2seq.errors import CheckpointError, RecipeError
from seq2seq.storage.bundle_readme import README, has_own_card, with_card, write_card
from seq2seq.storage.checksums import CHECKSUM_KEY, with_checksum
from seq2seq.storage.directories import (
    METADATA,
    RESERVED,
    DamagedError,
    bytes_of,
    cannot_read,
    cannot_save,
    current_path,
    delete,
    header,
    kind_of,
    old_path,
    read_metadata,
    read_shapes,
    read_tensors,
    read_with_retry,
    replace_directory,
    replace_json,
    temporary_path,
    verify,
    write_json,
    write_tensors,
)
from seq2seq.storage.open_files import opened_directory

logger = logging.getLogger(__name__)

BEST = "best"
CHECKPOINTS = "checkpoints"
MODEL = "model.safetensors"
STATE = "state.safetensors"
RECIPE = "recipe.yaml"
TOKENIZER_FILES = ("tokenizer.model", "source.model", "target.model", "vocabulary.json")


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
        info: other values, such as train state and checksums. JSON must be able to restore them exactly.
    Returns:
        The checkpoint's directory.
    Raises:
        CheckpointError: the checkpoint cannot be written. Earlier checkpoints are unchanged.
        TypeError: JSON would not restore a value of `info` exactly.
    """
    _require_json(info, "info")
    path = Path(run) / CHECKPOINTS / f"step-{step:08d}"
    with replace_directory(path, bytes_of(model) + bytes_of(state)) as directory:
        write_tensors(directory / MODEL, model)
        write_tensors(directory / STATE, state)
        metadata = {"step": step, "info": info, **header("checkpoint", directory)}
        write_json(directory / METADATA, with_checksum(metadata))
    return path


def load_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint and verify all its checksums. The tensors are on the CPU, bit-identical to the saved ones.

    Raises:
        CheckpointError: the checkpoint is missing, damaged, or from a newer version of seq2seq.
    """

    def read(directory: Path) -> Checkpoint:
        metadata = read_metadata(directory, "checkpoint", required=(MODEL, STATE))
        # metadata.json contains the train state, so it needs a checksum, too.
        if CHECKSUM_KEY not in metadata:
            raise DamagedError(f"{directory / METADATA} is damaged: the checksum of its contents is missing.")
        verify(directory, metadata["sha256"])
        model, state = read_tensors(directory / MODEL), read_tensors(directory / STATE)
        return Checkpoint(Path(path), metadata["step"], model, state, metadata["info"])

    return read_with_retry(Path(path), read)


def list_checkpoints(run: Path) -> list[Path]:
    """Return the paths of all checkpoints of a run, the oldest first. Damaged checkpoints are included."""
    directory = Path(run) / CHECKPOINTS
    if not directory.is_dir():
        return []
    # A checkpoint whose replacement was interrupted may exist only under the hidden name from `old_path`.
    matches = (re.fullmatch(r"(step-\d{8,})|\.(step-\d{8,})\.replaced", path.name) for path in directory.iterdir())
    names = {match[1] or match[2] for match in matches if match}
    return sorted((directory / name for name in names), key=step_of)


def step_of(checkpoint: Path) -> int:
    """Return the step in a checkpoint's name."""
    return int(checkpoint.name.removeprefix("step-"))


def newest_checkpoint(run: Path) -> Checkpoint | None:
    """Load the newest intact checkpoint, and log a warning for each damaged checkpoint that is newer.

    Returns None if the run has no checkpoints.

    Raises:
        CheckpointError: all checkpoints are damaged; the user must decide whether to train from the beginning. Or the
            newest undamaged checkpoint is from a newer version of seq2seq, or the user has no permission to read it.
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
    """Delete the checkpoints whose step is not in `keep`, and the temporary directories of interrupted saves."""
    steps = set(keep)
    directory = Path(run) / CHECKPOINTS
    if not directory.is_dir():
        return
    try:
        for path in list_checkpoints(run):
            if step_of(path) in steps:
                if path.exists():
                    delete(old_path(path))
            else:
                # The directory is renamed before it is deleted. Otherwise, an interrupted deletion would leave files
                # that look like a damaged checkpoint.
                if path.exists():
                    delete(temporary_path(path))
                    os.rename(path, temporary_path(path))
                delete(old_path(path))
        for leftover in directory.glob(".step-*.saving"):
            delete(leftover)
    except OSError as error:
        raise CheckpointError(
            f"Old checkpoints in {directory} cannot be deleted: {error.strerror or error}. Check its permissions."
        ) from error


def clear_leftovers(run: Path) -> None:
    """Delete the temporary directories of interrupted saves and deletions in a run. All checkpoints are kept."""
    prune_checkpoints(run, map(step_of, list_checkpoints(run)))
    best = Path(run) / BEST
    delete(temporary_path(best))
    if best.exists():
        delete(old_path(best))


# Bundles


@dataclass(frozen=True)
class Bundle:
    """A model with everything that translation needs: weights, recipe, tokenizers and metadata."""

    directory: Path
    weights: dict[str, Tensor]
    recipe_text: str
    tokenizer_files: dict[str, bytes]
    metadata: dict[str, Any]


def save_bundle(
    directory: Path,
    weights: Mapping[str, Tensor],
    recipe_text: str,
    tokenizer_files: Mapping[str, bytes],
    metadata: Mapping[str, Any],
) -> Path:
    """Write a bundle with its model card. An old bundle is replaced atomically; files that users put into it are kept.

    Args:
        weights: tensors by name; tied weights are included once.
        tokenizer_files: contents by file name. The names must be in TOKENIZER_FILES.
        metadata: further fields of metadata.json, such as test scores and corpus counts.
    Raises:
        CheckpointError: the bundle cannot be written, or the directory contains other files and is not a bundle. In
            both cases nothing is changed.
        ValueError: a file name in `tokenizer_files` is unknown, or a key of `metadata` is reserved.
    """
    unknown = [name for name in tokenizer_files if name not in TOKENIZER_FILES]
    if unknown:
        raise ValueError(f"unknown tokenizer files: {', '.join(unknown)}")
    _require_unreserved(metadata)
    path = Path(os.path.realpath(directory))
    user_files = _user_files(path)
    with replace_directory(path, bytes_of(weights)) as new:
        write_tensors(new / MODEL, weights)
        (new / RECIPE).write_bytes(recipe_text.encode())
        for name, contents in tokenizer_files.items():
            (new / name).write_bytes(contents)
        metadata = {**header("bundle", new), **metadata}
        for file in user_files:
            if file.is_dir():
                shutil.copytree(file, new / file.name, symlinks=True)
            else:
                shutil.copy2(file, new / file.name, follow_symlinks=False)
        metadata, card = with_card(new, metadata, new / RECIPE, new / MODEL)
        write_json(new / METADATA, with_checksum(metadata))
        write_card(new, card)
    return Path(directory)


Shapes = Mapping[str, tuple[tuple[int, ...], str]]
"""Mapping from a tensor's name to its shape and its safetensors dtype, such as F32."""


def load_bundle(directory: Path, require: Callable[[Bundle, Shapes], None] = lambda bundle, shapes: None) -> Bundle:
    """Read a bundle and verify the checksums of its files. The tensors are on the CPU.

    Args:
        require: function that checks the bundle before its weights are read. It gets the bundle without weights, and
            the shapes of the weights. It raises a CheckpointError to refuse the bundle.
    Raises:
        CheckpointError: the bundle is missing, damaged, from a newer version of seq2seq, or refused by `require`.
    """

    def read(current: Path) -> Bundle:
        metadata = read_metadata(current, "bundle", required=(MODEL, RECIPE))
        verify(current, metadata["sha256"])
        names = [name for name in TOKENIZER_FILES if name in metadata["sha256"]]
        try:
            recipe_text = (current / RECIPE).read_bytes().decode()
            tokenizer_files = {name: (current / name).read_bytes() for name in names}
        except OSError as error:
            cannot_read(current, error)
        except UnicodeDecodeError as error:
            raise DamagedError(f"{current / RECIPE} is damaged: {error}.") from error
        fields = {key: value for key, value in metadata.items() if key not in RESERVED}
        bundle = Bundle(Path(directory), {}, recipe_text, tokenizer_files, fields)
        require(bundle, read_shapes(current / MODEL))
        return replace(bundle, weights=read_tensors(current / MODEL))

    return read_with_retry(Path(directory), read)


def bundle_metadata(directory: Path) -> dict[str, Any]:
    """Return a bundle's metadata (scores, corpus counts, …). Only metadata.json is read.

    Raises:
        CheckpointError: there is no bundle, or its metadata.json is damaged.
    """

    def read(current: Path) -> dict[str, Any]:
        metadata = read_metadata(current, "bundle", required=())
        return {key: value for key, value in metadata.items() if key not in RESERVED}

    return read_with_retry(Path(directory), read)


def weights_checksum(directory: Path) -> str:
    """Return the checksum of a bundle's weights. Raises CheckpointError as `bundle_metadata`."""
    def read(current: Path) -> str:
        checksum: str = read_metadata(current, "bundle", required=(MODEL,))["sha256"][MODEL]
        return checksum

    return read_with_retry(Path(directory), read)


def update_bundle_metadata(directory: Path, weights: str | None = None, **fields: Any) -> None:
    """Add or replace fields of a bundle's metadata.json, such as test scores, and renew its model card.

    weights: checksum of the weights that the fields are for; None: they are for any weights.
    Raises:
        CheckpointError: there is no bundle, it has other weights than `weights`, or its metadata.json is damaged or
            cannot be written.
        ValueError: the name of a field is reserved.
    """
    _require_unreserved(fields)

    def update(current: Path) -> None:
        # The directory is opened before metadata.json is read, and metadata.json is replaced in this open directory. If
        # another process replaces the bundle meanwhile, this process changes only the old bundle. `read_with_retry`
        # then calls this function again for the new bundle.
        try:
            with opened_directory(current) as opened:
                metadata = read_metadata(current, "bundle", required=()) | fields
                if weights not in (None, metadata["sha256"][MODEL]):
                    raise CheckpointError(f"{directory} has other weights now.")
                metadata, card = with_card(current, metadata, current / RECIPE, current / MODEL)
                replace_json(opened, METADATA, with_checksum(metadata))
                write_card(opened, card)
        except OSError as error:
            raise cannot_save(current / METADATA, error, needed=0) from error

    read_with_retry(Path(directory), update)


def recipe_path(bundle: Path) -> Path:
    """Return the path of the recipe in which evaluation looks up the corpora of a bundle.

    For the best bundle of a run, this is the recipe in the run directory, because this recipe contains absolute paths.
    The bundle's own recipe has the paths as the user wrote them, relative to the original recipe file.
    """
    bundle = bundle.absolute()
    run_recipe = bundle.parent / RECIPE
    return run_recipe if bundle.name == BEST and run_recipe.is_file() else bundle / RECIPE


def resolve_model_path(path: Path) -> Path:
    """Return the path of a bundle: `path` itself, or its `best` directory if `path` is a run.

    Raises:
        CheckpointError: `path` is neither a bundle nor a run with a bundle. The message says what was found at `path`.
    """
    path = Path(path)
    for candidate in (path, path / BEST):
        if kind_of(candidate) == "bundle":
            return candidate
    expected = f"A model is a bundle (a directory with {MODEL}, {RECIPE} and {METADATA}) or a run with a {BEST}/ in it."
    if not current_path(path).exists():
        raise CheckpointError(f"{path} does not exist. {expected}")
    if path.exists() and not path.is_dir():
        raise _no_model(path, expected)
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
            "or make a bundle of its checkpoints with `seq2seq average`."
        )
    names = sorted(entry.name for entry in current_path(path).iterdir())
    contents = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "") if names else "nothing"
    raise CheckpointError(f"{path} contains {contents}. {expected}")


def is_model(path: Path) -> bool:
    """Return True if `path` is a bundle, or a run with a best bundle."""
    return "bundle" in (kind_of(path), kind_of(path / BEST))


def _no_model(path: Path, expected: str) -> CheckpointError:
    """Return the error for a path that is a file, not a model. expected: end of the message; says what a model is."""
    from seq2seq.recipe import load_recipe

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
    return CheckpointError(f"{path} is a file. {expected}")


# Checks


def _user_files(path: Path) -> list[Path]:
    """Return the files that users have put into a bundle; an empty list if there is no bundle yet.

    Raises:
        CheckpointError: `path` is a file, or it is a directory that contains files of a user but is not a bundle.
    """
    if not current_path(path).exists():
        return []
    if not current_path(path).is_dir():
        raise CheckpointError(f"{path} is a file. Name a new directory for the bundle.")
    own = {README} if has_own_card(current_path(path)) else set()
    bundle_files = {MODEL, RECIPE, METADATA, f".{METADATA}.saving", f".{README}.saving", *TOKENIZER_FILES, *own}
    is_bundle = kind_of(path) == "bundle"
    if not is_bundle and not (current_path(path) / MODEL).exists():             # with MODEL: a damaged bundle
        bundle_files = {file for file in bundle_files if file.endswith(".saving")}
    user_files = [file for file in current_path(path).iterdir() if file.name not in bundle_files]
    if user_files and not is_bundle:
        raise CheckpointError(
            f"{path} contains {user_files[0].name} and is not a bundle. Nothing was changed; name a new directory."
        )
    return user_files


def _require_json(value: Any, name: str) -> None:
    """Raise TypeError if JSON would silently change a value. For example, JSON changes tuples to lists.

    name: name of the value in the error message.
    """
    if isinstance(value, dict):
        for key, inner in value.items():
            if not isinstance(key, str):
                raise TypeError(f"{name}: the key {key!r} is not a string")
            _require_json(inner, f"{name}.{key}")
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            _require_json(inner, f"{name}.{index}")
    elif value is not None and not isinstance(value, str | int | float):
        raise TypeError(f"{name}: {type(value).__name__} is not a JSON value")


def _require_unreserved(fields: Iterable[str]) -> None:
    """Raise ValueError if one of the names `fields` is a reserved key of metadata.json."""
    if reserved := [name for name in fields if name in RESERVED]:
        raise ValueError(f"reserved keys of {METADATA}: {', '.join(reserved)}")
