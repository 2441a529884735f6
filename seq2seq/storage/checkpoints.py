"""Checkpoints and bundles: training resumes from a checkpoint, and translation loads a bundle.

Both are directories that are written once (`atomic.new_directory`). The file `best` of a run names its best bundle.
What is learned about a bundle later is a line of `scores.jsonl`. Tensors are stored in safetensors files, not pickled.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from seq2seq import console
from seq2seq.errors import CheckpointError, RecipeError
from seq2seq.files import parse_json
from seq2seq.plug_ins import installed_version
from seq2seq.recipe import Recipe, load_recipe, parse_recipe
from seq2seq.storage.atomic import (
    cannot_save,
    delete,
    delete_temporary,
    free_path,
    new_directory,
    open_without_links,
    replace_file,
    temporary_path,
)
from seq2seq.storage.directories import (
    HEADER_KEYS,
    METADATA,
    DamagedError,
    as_json,
    header,
    kind_of,
    read_file,
    read_metadata,
    verify,
    write_tensors,
)
from seq2seq.storage.tensor_files import read_shapes, read_tensors, read_weights

if TYPE_CHECKING:
    from torch import Tensor

logger = logging.getLogger(__name__)

CHECKPOINTS = "checkpoints"
BUNDLES = "bundles"
PACKAGES = "packages"
"""Field of metadata.json with the version of each other package that the model needs, by name."""
_PACKAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+!-]{0,99}")
BEST = "best"
"""File of a run with the name of its best bundle."""
SCORES = "scores.jsonl"
"""File of a run with the scores of its bundles, a JSON object per line."""
MODEL = "model.safetensors"
STATE = "state.safetensors"
BUNDLE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
OWN_BUNDLE_NAME = re.compile(r"(step|average|tested)-\d{8,}(-\d+)?|(adapted|aligned)(-\d+)?")
"""Name of a bundle that a training has written. Other bundles in a run are the user's."""
MAX_NAME_BYTES = 200
CHECKPOINT_NAME = re.compile(r"step-(\d{8,})(?:-(\d+))?")
RECIPE = "recipe.yaml"
README = "README.md"
LICENCE_OF_START = "licence_of_start"
"""Field of a bundle's metadata: licence of the model that it was trained from (`training.start_from`)."""
HELD_OUT = "held_out"
"""Field of a bundle's metadata: number of pairs of each validation and test corpus, by its key in the recipe's section
`data`."""
VALIDATED = "validated"
"""Field of a checkpoint's `info`: True if the checkpoint was saved at a validation, False if it was saved by the clock
or because of a signal."""
SHORTLIST = "shortlist.safetensors"
TOKENIZER_FILES = ("tokenizer.model", "source.model", "target.model", "vocabulary.json", SHORTLIST)
"""Names of the files that belong to the vocabularies of a bundle."""
MAX_SHORTLIST_BYTES = 500_000_000
"""Maximum size of a shortlist: 500 target pieces for each of 250,000 source pieces."""
MAX_RECIPE_BYTES = 4_000_000


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
    """Write <run>/checkpoints/step-<step>, or step-<step>-2 and so on if there are checkpoints of this step already.

    Args:
        run: the run's directory, created if it does not exist.
        model: the weights by name; tied weights are included once.
        state: other tensors, such as optimizer moments and averaged weights.
        info: other JSON values, such as train state and checksums.
    Returns:
        The checkpoint's directory.
    """
    # The number is higher than that of each other checkpoint of this step: the newest one has the highest.
    number = 1 + max((_order(path)[1] for path in list_checkpoints(run) if step_of(path) == step), default=0)
    path = Path(run) / CHECKPOINTS / (f"step-{step:08d}" + (f"-{number}" if number > 1 else ""))
    with new_directory(path) as directory:
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
    return sorted((path for path in directory.iterdir() if CHECKPOINT_NAME.fullmatch(path.name)), key=_order)


def checkpoint_by_step(run: Path) -> dict[int, Path]:
    """Return the path of the newest checkpoint of each step, the oldest step first."""
    return {step_of(path): path for path in list_checkpoints(run)}


def validated_checkpoints(run: Path) -> list[Path]:
    """Return the paths of the checkpoints of a run that were saved at a validation, the oldest first."""
    return [path for path in checkpoint_by_step(run).values()
            if read_metadata(path, "checkpoint", required=(MODEL, STATE))["info"].get(VALIDATED)]


def step_of(checkpoint: Path) -> int:
    """Return the step in a checkpoint's name."""
    return _order(checkpoint)[0]


def _order(checkpoint: Path) -> tuple[int, int]:
    """Return the step in a checkpoint's name, and its number among the checkpoints of this step."""
    match = CHECKPOINT_NAME.fullmatch(checkpoint.name)
    assert match is not None, checkpoint
    return int(match[1]), int(match[2] or 1)


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
    """Delete the checkpoints whose step is not in `keep`, and those of which there is a newer one of the same step."""
    kept = {path for step, path in checkpoint_by_step(run).items() if step in set(keep)}
    _prune(path for path in list_checkpoints(run) if path not in kept)


def _prune(paths: Iterable[Path]) -> None:
    """Delete directories of a run. Each is renamed before: otherwise, an interrupted deletion would leave files that
    look like a damaged checkpoint or bundle."""
    for path in paths:
        temporary = temporary_path(path)
        try:
            os.rename(path, temporary)
            delete(temporary)
        except OSError as error:
            raise CheckpointError(f"{path} cannot be deleted: {error.strerror or error}. Check its permissions."
                                  ) from error


def delete_leftovers(run: Path) -> None:
    """Delete what killed processes have left in a run. The caller holds the run's lock."""
    for directory in (run, *filter(Path.is_dir, run.iterdir()), *filter(Path.is_dir, run.glob("prepared/*"))):
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
    recipe: Recipe | str,
    tokenizer_files: Mapping[str, bytes],
    metadata: Mapping[str, Any],
    card: Card | None = None,
) -> Path:
    """Write a bundle to a new directory. It names no file outside (`Recipe.for_bundle`).

    Args:
        weights: tensors or arrays by name; tied weights are included once.
        recipe: recipe of the model, or the text of the recipe of another bundle.
        tokenizer_files: contents by file name. The names must be in TOKENIZER_FILES.
        metadata: further fields of metadata.json, such as test scores and corpus counts.
        card: function that makes the model card; None: the bundle gets none.
    """
    with new_directory(directory) as new:
        write_tensors(new / MODEL, weights)
        text = recipe if isinstance(recipe, str) else recipe.for_bundle().to_yaml()
        (new / RECIPE).write_bytes(text.encode())
        for name, contents in tokenizer_files.items():
            (new / name).write_bytes(contents)
        packages = metadata.get(PACKAGES, {}) if isinstance(recipe, str) else recipe.model.packages
        of_packages = {PACKAGES: packages} if packages else {}
        (new / METADATA).write_bytes(as_json({**header("bundle", new), **metadata, **of_packages}))
        if card is not None:
            (new / README).write_text(card(text, metadata, read_shapes(new / MODEL)), encoding="utf-8")
    return directory


def save_best(run: Path, name: str, *contents: Any) -> Path:
    """Write a bundle into a run, and make it the best of the run. Return its path.

    The bundle that was the best before is kept, because another process may be reading it; older ones are deleted.

    Args:
        name: name of the new bundle, to which a number is added if there is one of this name.
        contents: further arguments of `save_bundle`.
    """
    before = None
    with suppress(DamagedError):                                                # the pointer is written again
        before = best_bundle(run)
    path = save_bundle(free_path(run / BUNDLES / name), *contents)
    try:
        replace_file(run / BEST, f"{path.name}\n".encode())
    except OSError as error:
        raise cannot_save(run / BEST, error) from error
    own = [each for each in path.parent.iterdir() if OWN_BUNDLE_NAME.fullmatch(each.name)]
    try:
        _prune(each for each in own if each not in (path, before))
    except CheckpointError as error:                                            # the new bundle is in place
        console.warn(str(error))
    return path


def best_bundle(run: Path) -> Path | None:
    """Return the path of a run's best bundle; None if the run has none yet."""
    if not os.path.lexists(run / BEST):
        return None
    name = read_file(run / BEST, MAX_NAME_BYTES).decode(errors="replace").strip()
    if not BUNDLE_NAME.fullmatch(name):
        raise DamagedError(f"{run / BEST} is damaged: it must contain the name of a directory in {run / BUNDLES}.")
    return run / BUNDLES / name


def run_of(bundle: Path) -> Path | None:
    """Return the run in which a bundle is; None for a bundle elsewhere."""
    bundle = bundle.absolute()
    run = bundle.parent.parent
    return run if bundle.parent.name == BUNDLES and (run / RECIPE).is_file() else None


def append_scores(bundle: Path, kind: str, values: Mapping[str, Any]) -> None:
    """Append what was learned about a bundle of a run to the scores of the run. Do nothing for a bundle elsewhere."""
    if (run := run_of(bundle)) is None:
        return
    record = {"bundle": bundle.name, "kind": kind, "time": datetime.now(UTC).isoformat(timespec="seconds"),
              "scores": values}
    try:
        with open(run / SCORES, "a", encoding="utf-8", opener=open_without_links) as file:
            # An earlier line may have been cut off by a crash.
            cut = file.tell() > 0 and not (run / SCORES).read_bytes().endswith(b"\n")
            file.write("\n" * cut + json.dumps(record, ensure_ascii=False) + "\n")
    except OSError as error:
        raise cannot_save(run / SCORES, error) from error


def recipe_of_training(bundle: Path) -> Recipe:
    """Return the recipe with which a bundle was trained: that of its run, or for a bundle elsewhere its own, which
    names no file and no other model."""
    return stored_recipe(run_of(bundle) or bundle)


def was_tested(bundle: Path) -> bool:
    """Return True if a bundle of a run was evaluated at the end of its training, or is elsewhere."""
    if (run := run_of(bundle)) is None:
        return True
    try:
        lines = read_file(run / SCORES).split(b"\n")
    except CheckpointError:
        return False
    for line in lines:
        with suppress(ValueError, TypeError, KeyError):                         # an earlier line may have been cut off
            record = parse_json(line)
            if (record["bundle"], record["kind"]) == (bundle.name, "test"):
                return True
    return False


def warn_if_unfinished(models: Iterable[Path]) -> None:
    """Warn of each run whose training has not ended. A file of translations is no run."""
    for path in models:
        if path.is_dir() and not was_tested(bundle := resolve_model_path(path)):
            console.warn(f"the training of {path} has not ended: its best model so far is that of step "
                         f"{bundle_metadata(bundle).get('step', 0):,}")


def load_bundle(directory: Path, require: Callable[[Bundle, Shapes], None] = lambda bundle, shapes: None) -> Bundle:
    """Read a bundle and verify the checksums of its files. The weights are finite, in float32.

    Args:
        require: function that checks the bundle before its weights are read. It gets the bundle without weights, and
            the shapes of the weights. It raises a CheckpointError to refuse the bundle.
    """
    metadata = read_metadata(directory, "bundle", required=(MODEL, RECIPE))
    verify(directory, metadata["sha256"])
    names = [name for name in TOKENIZER_FILES if name in metadata["sha256"]]
    try:
        recipe_text = read_file(directory / RECIPE).decode()
    except UnicodeDecodeError as error:
        raise DamagedError(f"{directory / RECIPE} is damaged: {error}.") from error
    tokenizer_files = {name: read_file(directory / name, *[MAX_SHORTLIST_BYTES] * (name == SHORTLIST))
                       for name in names}
    bundle = Bundle(directory, {}, recipe_text, tokenizer_files, _fields(metadata))
    require(bundle, read_shapes(directory / MODEL))
    return replace(bundle, weights=read_weights(directory / MODEL))


def bundle_metadata(directory: Path) -> dict[str, Any]:
    """Return a bundle's metadata (scores, corpus counts, …). Only metadata.json is read."""
    return _fields(read_metadata(directory, "bundle", required=()))


def _fields(metadata: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in metadata.items() if key not in HEADER_KEYS}


def _packages(directory: Path, metadata: Mapping[str, Any]) -> dict[str, str]:
    """Return the packages that the model of a bundle needs, from its metadata: version by name."""
    packages = metadata.get(PACKAGES, {})
    if not isinstance(packages, dict) or not all(
            isinstance(part, str) and _PACKAGE.fullmatch(part) for each in packages.items() for part in each):
        raise DamagedError(f"{directory / METADATA} is damaged: {PACKAGES} are not names and versions.")
    return packages


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
    checksum: str = read_metadata(directory, "bundle", required=(MODEL,))["sha256"][MODEL]
    return checksum


def stored_recipe(directory: Path) -> Recipe:
    """Load the recipe that is stored in a bundle or a run."""
    path = directory / RECIPE
    try:
        text = read_file(path, MAX_RECIPE_BYTES).decode()
    except UnicodeDecodeError as error:
        raise DamagedError(f"{path} is damaged: {error}.") from error
    if kind_of(directory) == "bundle":
        return bundle_recipe(text, path, bundle_metadata(directory))
    return parse_recipe(text, path, alone=True)


def bundle_recipe(text: str, path: Path, metadata: Mapping[str, Any]) -> Recipe:
    """Return the recipe of a bundle from its text. A stranger may have written it: what it names is not read. metadata:
    that of the bundle, which names the packages of a model that is not known here."""
    packages = _packages(path.parent, metadata)
    try:
        recipe = parse_recipe(text, path, alone=True).for_bundle()
    except RecipeError:
        if missing := [f"{name}=={version}" for name, version in packages.items() if installed_version(name) is None]:
            raise CheckpointError(f"{path.parent} has a model of other packages, which are not installed. If you trust "
                                  f"their authors: pip install {' '.join(missing)}") from None
        raise
    for name, version in recipe.model.packages.items():
        if packages.get(name, version) != version:
            _warn_once(f"{path.parent} was made with {name} {packages[name]}; {version} is installed, which may "
                       "compute something else.")
    return recipe


@cache
def _warn_once(message: str) -> None:
    console.warn(message)


def recipe_with_text(model: Path) -> Recipe:
    """Return the recipe of a run, which names the text of the run. A bundle outside a run names none.

    model: a run, or a bundle.
    """
    run = run_of(resolve_model_path(model))
    if run is None:
        raise CheckpointError(f"{model} is a bundle, which names no text.")
    return load_recipe(run / RECIPE, check_files=False)


def resolve_model_path(path: Path) -> Path:
    """Return the path of a bundle: `path` itself, or the best bundle of `path` if it is a run."""
    path = Path(path)
    kind = kind_of(path)
    if kind == "bundle":
        return path
    if (best := best_bundle(path)) is not None:
        if kind_of(best) != "bundle":
            raise DamagedError(f"{best}, the best bundle of {path}, is missing or damaged. Copy it from a backup, or "
                               "make another of checkpoints with `seq2seq average`.")
        return best
    expected = (f"A model is a bundle (a directory with {MODEL}, {RECIPE} and {METADATA}) or a run. `seq2seq import` "
                "makes bundles of models of transformers.")
    if not path.exists():
        raise CheckpointError(f"{path} does not exist. {expected}")
    if not path.is_dir():
        raise _no_model(path, expected)
    if kind == "checkpoint":
        raise CheckpointError(
            f"{path} is a checkpoint, from which training resumes. Name the run, {path.parent.parent}, "
            "or make a bundle of checkpoints with `seq2seq average`."
        )
    if (path / MODEL).exists():
        raise CheckpointError(f"{path} is not a bundle: its {METADATA} is missing or damaged. {expected}")
    if (path / CHECKPOINTS).is_dir():
        raise CheckpointError(
            f"{path} is a run without a bundle: the first is written at the first validation. Continue the training, "
            "or make a bundle of one of its checkpoints with `seq2seq average CHECKPOINT`."
        )
    names = sorted(entry.name for entry in path.iterdir())
    contents = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "") if names else "nothing"
    runs = [run for run in sorted(path.glob("*/*")) if (run / BEST).is_file() and (run / RECIPE).is_file()]
    last = f" The last of the runs in it is {runs[-1]}." if runs else ""
    raise CheckpointError(f"{path} contains {contents}. {expected}{last}")


def licence_of(model: Path) -> str | None:
    """Return the licence of a model: its own, or else that of the model that it was trained from; None: not stated."""
    bundle = resolve_model_path(model)
    return stored_recipe(bundle).license or bundle_metadata(bundle).get(LICENCE_OF_START)


def is_model(path: Path) -> bool:
    """Return True if `path` is a bundle, or a run with a best bundle."""
    return kind_of(path) == "bundle" or (path / BEST).is_file()


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
    return CheckpointError(f"{path} is a file. {expected}")
