"""Checkpoints to resume from, and bundles to translate with.

Both consist of dicts of tensors and JSON values; nothing is pickled, and no model code is imported. directories.py
writes their directories atomically.
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
from seq2seq.storage.checksums import SEAL, with_checksum
from seq2seq.storage.directories import (
    METADATA,
    RESERVED,
    Damaged,
    aside_of,
    bytes_of,
    cannot_read,
    cannot_save,
    delete,
    header,
    kind_of,
    old_path,
    read_metadata,
    read_shapes,
    read_steadily,
    read_tensors,
    replace_directory,
    replace_json,
    verify,
    where,
    write_json,
    write_tensors,
)

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
    """Weights, optimizer state and train state of a step, for exact resumption."""

    path: Path
    step: int
    model: dict[str, Tensor]
    state: dict[str, Tensor]
    info: dict[str, Any]


def save_checkpoint(
    run: Path, step: int, model: Mapping[str, Tensor], state: Mapping[str, Tensor], info: dict[str, Any]
) -> Path:
    """Write <run>/checkpoints/step-<step>; an older checkpoint of the same step is replaced.

    Args:
        run: the run's directory, created if it does not exist.
        model: the weights; tied ones once.
        state: other tensors, such as optimizer moments and averaged weights.
        info: other values (counters, best scores, …), which JSON must restore exactly.
    Returns:
        The checkpoint's directory.
    Raises:
        CheckpointError: it cannot be written. Earlier checkpoints are unharmed.
        TypeError: a value of `info` would change in JSON.
    """
    _require_json(info, "info")
    place = Path(run) / CHECKPOINTS / f"step-{step:08d}"
    with replace_directory(place, bytes_of(model) + bytes_of(state)) as directory:
        write_tensors(directory / MODEL, model)
        write_tensors(directory / STATE, state)
        metadata = {"step": step, "info": info, **header("checkpoint", directory)}
        write_json(directory / METADATA, with_checksum(metadata))
    return place


def load_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint; tensors are on the CPU, bit-identical to those saved.

    Raises:
        CheckpointError: it is missing, damaged, or from a newer version.
    """

    def read(directory: Path) -> Checkpoint:
        metadata = read_metadata(directory, "checkpoint", required=(MODEL, STATE))
        # The train state must have a checksum, too: a flipped bit in a counter is as bad as one in a weight.
        if SEAL not in metadata:
            raise Damaged(f"{directory / METADATA} is damaged: it has no checksum of its contents.")
        verify(directory, metadata["sha256"])
        model, state = read_tensors(directory / MODEL), read_tensors(directory / STATE)
        return Checkpoint(Path(path), metadata["step"], model, state, metadata["info"])

    return read_steadily(Path(path), read)


def list_checkpoints(run: Path) -> list[Path]:
    """Return the run's checkpoints, intact or not, oldest first."""
    directory = Path(run) / CHECKPOINTS
    if not directory.is_dir():
        return []
    # After an interrupted replacement, the old directory may exist under its temporary name only.
    found = (re.fullmatch(r"(step-\d{8,})|\.(step-\d{8,})\.replaced", path.name) for path in directory.iterdir())
    names = {match[1] or match[2] for match in found if match}
    return sorted((directory / name for name in names), key=step_of)


def step_of(checkpoint: Path) -> int:
    """Return the step in a checkpoint's name."""
    return int(checkpoint.name.removeprefix("step-"))


def newest_checkpoint(run: Path) -> Checkpoint | None:
    """Return the newest intact checkpoint, or None if there are none; warns about damaged ones and skips them.

    Raises:
        CheckpointError: all are damaged, or the newest is from a newer version. Only the user may start again.
    """
    damages = []
    for path in reversed(list_checkpoints(run)):
        try:
            checkpoint = load_checkpoint(path)
        except Damaged as error:
            damages.append(str(error))
            continue
        for damage in damages:
            logger.warning("%s Resuming from %s instead.", damage, path.name)
        return checkpoint
    if damages:
        raise CheckpointError(
            "\n".join([f"No checkpoint of {run} is intact; train again with --restart to begin anew.", *damages])
        )
    return None


def prune_checkpoints(run: Path, keep: Iterable[int]) -> None:
    """Delete the checkpoints whose step is not in `keep`, and temporary files of interrupted saves."""
    kept = set(keep)
    directory = Path(run) / CHECKPOINTS
    if not directory.is_dir():
        return
    try:
        for path in list_checkpoints(run):
            if step_of(path) in kept:
                if path.exists():
                    delete(old_path(path))
            else:
                # Renamed before it is deleted, so that a half-deleted checkpoint does not look like a damaged one.
                if path.exists():
                    delete(aside_of(path))
                    os.rename(path, aside_of(path))
                delete(old_path(path))
        for leftover in directory.glob(".step-*.saving"):
            delete(leftover)
    except OSError as error:
        raise CheckpointError(
            f"Old checkpoints in {directory} cannot be deleted: {error.strerror or error}. Check its permissions."
        ) from error


def clear_leftovers(run: Path) -> None:
    """Delete temporary files that interrupted saves and deletions have left in a run; no checkpoint is deleted."""
    prune_checkpoints(run, map(step_of, list_checkpoints(run)))
    best = Path(run) / BEST
    delete(aside_of(best))
    if best.exists():
        delete(old_path(best))


# Bundles


@dataclass(frozen=True)
class Bundle:
    """Weights, recipe, tokenizers and metadata of a model, complete for translation."""

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
    """Write a bundle; replaces an older one atomically, and keeps other files that users have put there.

    Args:
        weights: tied ones once.
        tokenizer_files: contents by name; names as in TOKENIZER_FILES.
        metadata: JSON values: scores with signatures, corpus counts, …
    Raises:
        CheckpointError: it cannot be written, or the directory is not a bundle. Nothing has been changed.
        ValueError: a name in `tokenizer_files` is unknown, or one in `metadata` is reserved.
    """
    unknown = [name for name in tokenizer_files if name not in TOKENIZER_FILES]
    if unknown:
        raise ValueError(f"a bundle has no place for {', '.join(unknown)}")
    _require_unreserved(metadata)
    place = Path(os.path.realpath(directory))
    strangers = _strangers(place)
    with replace_directory(place, bytes_of(weights)) as new:
        write_tensors(new / MODEL, weights)
        (new / RECIPE).write_bytes(recipe_text.encode())
        for name, contents in tokenizer_files.items():
            (new / name).write_bytes(contents)
        write_json(new / METADATA, with_checksum({**header("bundle", new), **metadata}))
        for path in strangers:
            if path.is_dir():
                shutil.copytree(path, new / path.name, symlinks=True)
            else:
                shutil.copy2(path, new / path.name, follow_symlinks=False)
    return Path(directory)


Shapes = Mapping[str, tuple[tuple[int, ...], str]]
"""Shape and safetensors dtype of each tensor, by name."""


def load_bundle(directory: Path, require: Callable[[Bundle, Shapes], None] = lambda bundle, shapes: None) -> Bundle:
    """Read a bundle and verify the checksum of every file; tensors are on the CPU.

    Args:
        require: called before the weights are read, with the bundle without weights, and with the shapes in the file's
            header; raises a CheckpointError to refuse the bundle.
    Raises:
        CheckpointError: it is missing or from a newer version, or a file is missing or damaged.
    """

    def read(found: Path) -> Bundle:
        metadata = read_metadata(found, "bundle", required=(MODEL, RECIPE))
        verify(found, metadata["sha256"])
        names = [name for name in TOKENIZER_FILES if name in metadata["sha256"]]
        try:
            recipe_text = (found / RECIPE).read_bytes().decode()
            tokenizer_files = {name: (found / name).read_bytes() for name in names}
        except OSError as error:
            cannot_read(found, error)
        except UnicodeDecodeError as error:
            raise Damaged(f"{found / RECIPE} is damaged: {error}.") from error
        own = {key: value for key, value in metadata.items() if key not in RESERVED}
        bundle = Bundle(Path(directory), {}, recipe_text, tokenizer_files, own)
        require(bundle, read_shapes(found / MODEL))
        return replace(bundle, weights=read_tensors(found / MODEL))

    return read_steadily(Path(directory), read)


def bundle_metadata(directory: Path) -> dict[str, Any]:
    """Return a bundle's metadata (scores, corpus counts, …) without reading its other files.

    Raises:
        CheckpointError: there is no bundle.
    """

    def read(found: Path) -> dict[str, Any]:
        metadata = read_metadata(found, "bundle", required=())
        return {key: value for key, value in metadata.items() if key not in RESERVED}

    return read_steadily(Path(directory), read)


def update_bundle_metadata(directory: Path, **fields: Any) -> None:
    """Set fields of a bundle's metadata.json, for instance scores that were measured later.

    Raises:
        CheckpointError: there is no bundle, or it cannot be written.
        ValueError: a field's name is reserved.
    """
    _require_unreserved(fields)

    def update(found: Path) -> None:
        # Read and written through the same directory descriptor: if the bundle is replaced in between, the metadata go
        # to the old directory, which is about to be deleted, and not to the new bundle.
        descriptor = -1
        try:
            descriptor = os.open(found, os.O_RDONLY)
            metadata = read_metadata(found, "bundle", required=())
            replace_json(descriptor, METADATA, with_checksum(metadata | fields))
        except OSError as error:
            raise cannot_save(found / METADATA, error, needed=0) from error
        finally:
            if descriptor >= 0:
                os.close(descriptor)

    read_steadily(Path(directory), update)


def recipe_path(bundle: Path) -> Path:
    """Return the path of the recipe from which to read a bundle's corpora: that of its run, if it is in one.

    The run's copy of the recipe has absolute paths. Those in the bundle's copy are as written, relative to the original
    recipe file.
    """
    bundle = bundle.absolute()
    of_run = bundle.parent / RECIPE
    return of_run if bundle.name == BEST and of_run.is_file() else bundle / RECIPE


def resolve_model_path(path: Path) -> Path:
    """Return the bundle at `path`: `path` itself, or `best` if it is a run.

    Raises:
        CheckpointError: it is neither; the message says what is there.
    """
    path = Path(path)
    for candidate in (path, path / BEST):
        if kind_of(candidate) == "bundle":
            return candidate
    expected = f"A model is a bundle (a directory with {MODEL}, {RECIPE} and {METADATA}) or a run with a {BEST}/ in it."
    if not where(path).exists():
        raise CheckpointError(f"{path} does not exist. {expected}")
    if path.exists() and not path.is_dir():
        raise _no_model(path, expected)
    if kind_of(path) == "checkpoint":
        raise CheckpointError(
            f"{path} is a checkpoint, from which training resumes. Name the run, {path.parent.parent}, "
            "or make a bundle of checkpoints with `seq2seq average`."
        )
    if where(path / BEST).is_dir() or (path / MODEL).exists():
        bundle = path / BEST if where(path / BEST).is_dir() else path
        raise CheckpointError(f"{bundle} is no bundle: its {METADATA} is missing or damaged. {expected}")
    if (path / CHECKPOINTS).is_dir():
        raise CheckpointError(
            f"{path} is a run that has no {BEST}/ yet: it is written at the first validation. Train on, "
            "or make a bundle of its checkpoints with `seq2seq average`."
        )
    names = sorted(entry.name for entry in path.iterdir())
    found = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "") if names else "nothing"
    raise CheckpointError(f"{path} holds {found}. {expected}")


def is_model(path: Path) -> bool:
    """Return True where `resolve_model_path` finds a bundle."""
    return "bundle" in (kind_of(path), kind_of(path / BEST))


def _no_model(path: Path, expected: str) -> CheckpointError:
    """The error that a file was named in place of a model; expected: what a model is."""
    from seq2seq.recipe import load_recipe

    if is_model(path.parent):
        return CheckpointError(f"{path} is a file. Name its directory, {path.parent}. {expected}")
    if path.suffix in (".yaml", ".yml"):
        with suppress(RecipeError):
            run = Path("runs") / load_recipe(path, check_files=False).name
            if is_model(run):
                return CheckpointError(f"{path} is a recipe. Name the model that its training made: {run}")
            return CheckpointError(f"{path} is a recipe, and its run, {run}, holds no model yet. Train it first "
                                   f"(seq2seq train {shlex.quote(str(path))}), or name the directory that --run-dir "
                                   "gave it.")
    return CheckpointError(f"{path} is a file. {expected}")


# Checks


def _strangers(place: Path) -> list[Path]:
    """Return files that users have put into a bundle. Refuses a directory with other content that is not a bundle."""
    if not where(place).exists():
        return []
    if not where(place).is_dir():
        raise CheckpointError(f"{place} is a file. Name a new directory for the bundle.")
    own = {MODEL, RECIPE, METADATA, f".{METADATA}.saving", *TOKENIZER_FILES}
    strangers = [path for path in where(place).iterdir() if path.name not in own]
    if strangers and kind_of(place) != "bundle":
        raise CheckpointError(
            f"{place} holds {strangers[0].name} and is no bundle. It is left as it is; name a new directory."
        )
    return strangers


def _require_json(value: Any, where: str) -> None:
    """Raise TypeError for values that JSON changes silently, such as tuples (to lists) and number keys (to strings)."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if not isinstance(key, str):
                raise TypeError(f"{where}: the key {key!r} is no string")
            _require_json(inner, f"{where}.{key}")
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            _require_json(inner, f"{where}.{index}")
    elif value is not None and not isinstance(value, str | int | float):
        raise TypeError(f"{where}: {type(value).__name__} is no JSON value")


def _require_unreserved(fields: Iterable[str]) -> None:
    if reserved := [name for name in fields if name in RESERVED]:
        raise ValueError(f"reserved in {METADATA}: {', '.join(reserved)}")
