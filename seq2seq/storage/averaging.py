"""Checkpoint averaging: the mean of the weights of several checkpoints of a run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from seq2seq import console
from seq2seq.errors import CheckpointError, OptionError, UserError
from seq2seq.files import real_path
from seq2seq.recipe import Recipe
from seq2seq.storage.checkpoints import (
    CHECKPOINT_NAME,
    HELD_OUT,
    PACKAGES,
    Card,
    best_bundle,
    list_checkpoints,
    load_bundle,
    load_checkpoint,
    save_bundle,
    step_of,
    stored_recipe,
    validated_checkpoints,
)
from seq2seq.storage.directories import DamagedError
from seq2seq.storage.tokenizer_files import load_tokenizers

MOVING_AVERAGE = "average."
"""Prefix of tensor names in a checkpoint's state: average.NAME is the moving average of the weight NAME."""


def average_checkpoints(paths: Sequence[Path], output: Path, last: int | None = None, card: Card | None = None
                        ) -> list[int]:
    """Write a bundle with the mean of the weights of a run's checkpoints.

    If the checkpoints contain moving averages of the weights, the mean of the moving averages is written instead.

    Args:
        paths: a run directory, or checkpoints of one run. Of a run, only checkpoints saved at a validation are used.
        last: number of the run's newest validated checkpoints to average; None: all.
        card: see `save_bundle`.
    Returns:
        The steps that were averaged.
    """
    if last is not None and last < 1:
        raise OptionError(f"last is {last}; set it to 1 or more, or leave it out to average all checkpoints")
    checkpoints = sorted({real_path(path) for path in _checkpoints(paths, last)}, key=step_of)
    runs = sorted({path.parent.parent for path in checkpoints})
    if len(runs) > 1:
        raise CheckpointError(f"These checkpoints belong to {len(runs)} runs: {', '.join(map(str, runs))}. Models that "
                              "were trained separately cannot be averaged; name checkpoints of one run.")
    weights = average_weights(validated_weights(path) for path in checkpoints)
    steps = [step_of(path) for path in checkpoints]
    recipe, metadata = _description(runs[0])
    tokenizers = load_tokenizers(runs[0] / "tokenizer")
    save_bundle(output, weights, recipe, tokenizers.files(), {**metadata, "averaged_steps": steps}, card)
    return steps


def average_weights(models: Iterable[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Return the mean of several models' weights, as in Vaswani et al. 2017 (arXiv:1706.03762), section 6.1.

    Args:
        models: weights of each model, by name. If `models` is a generator, the models are loaded one after another, so
            that they are not all in memory at once.
    Returns:
        Means by name, computed in float64 and converted to each tensor's dtype. Integer tensors are not averaged: they
        must be equal in all models.
    """
    total: dict[str, Tensor] = {}
    first: dict[str, Tensor] = {}
    count = 0
    for count, weights in enumerate(models, start=1):
        if count == 1:
            first = dict(weights)
            total = {name: tensor.to(torch.float64, copy=True) for name, tensor in first.items()}
            continue
        if different := weights.keys() ^ first.keys():
            raise CheckpointError(
                f"Models 1 and {count} cannot be averaged: only one of them has {', '.join(sorted(different)[:5])}. "
                "Average models of one run."
            )
        for name, tensor in weights.items():
            if tensor.shape != first[name].shape:
                raise CheckpointError(
                    f"Models 1 and {count} cannot be averaged: {name} has the shape {tuple(first[name].shape)} in one "
                    f"and {tuple(tensor.shape)} in the other. Average models of one run."
                )
            if not tensor.is_floating_point() and not torch.equal(tensor, first[name]):
                raise CheckpointError(
                    f"Models 1 and {count} cannot be averaged: the integers in {name} differ. Average models of one "
                    "run."
                )
            total[name] += tensor
    if not count:
        raise CheckpointError("There are no models to average.")
    return {
        name: (total[name] / count).to(tensor.dtype) if tensor.is_floating_point() else tensor
        for name, tensor in first.items()
    }


def average_intact(checkpoints: Sequence[Path]) -> tuple[dict[str, Tensor], int]:
    """Return the mean of `validated_weights` of those checkpoints that are not damaged, and their number."""
    count = 0

    def intact() -> Iterator[dict[str, Tensor]]:
        nonlocal count
        for path in checkpoints:
            try:
                weights = validated_weights(path)
            except DamagedError as error:
                console.warn(f"{error} The average leaves this checkpoint out.")
            else:
                count += 1
                yield weights

    return average_weights(intact()), count


def _checkpoints(paths: Sequence[Path], last: int | None) -> Iterator[Path]:
    """Yield the checkpoints among `paths`, and the newest `last` validated checkpoints (None: all) of each run among
    `paths`. Between validations, checkpoints are saved by the clock, so that the newest ones may be a few steps apart.
    """
    for path in paths:
        path = real_path(path)
        if CHECKPOINT_NAME.fullmatch(path.name):
            if last is not None:
                raise UserError(f"{path} is a checkpoint; --last selects the newest checkpoints of a run. Name the "
                                "run, or leave out --last.")
            yield path
            continue
        if not list_checkpoints(path):
            raise CheckpointError(f"{path} is neither a run with checkpoints nor a checkpoint. Name a run such as "
                                  "runs/NAME, or checkpoints such as runs/NAME/checkpoints/step-00001000.")
        checkpoints = validated_checkpoints(path)
        if not checkpoints:
            raise CheckpointError(f"no checkpoint of {path} was saved at a validation. Continue the training to its "
                                  f"first validation, or name checkpoints, such as {list_checkpoints(path)[-1]}.")
        yield from checkpoints if last is None else checkpoints[-last:]


def validated_weights(path: Path) -> dict[str, Tensor]:
    """Return the weights that validation uses: a checkpoint's moving averages, or the weights themselves if they have
    none."""
    checkpoint = load_checkpoint(path)
    averaged = {name.removeprefix(MOVING_AVERAGE): tensor for name, tensor in checkpoint.state.items()
                if name.startswith(MOVING_AVERAGE)}
    return checkpoint.model | averaged


def _description(run: Path) -> tuple[Recipe | str, dict[str, Any]]:
    """Return the recipe and the metadata for a bundle of the run's checkpoints.

    If the run has a best bundle, return its recipe, corpus counts, tags, number of parameters and alignment settings.
    Without a best bundle, return the run's recipe.
    """
    try:
        path = best_bundle(run)
        best = load_bundle(path) if path else None
    except CheckpointError as error:
        console.warn(f"{str(error).rstrip('.')}. The average has no counts of the training text.")
        best = None
    if best is None:
        return stored_recipe(run), {}
    kept = ("corpora", HELD_OUT, "characters", "tags", "parameters", "alignment", PACKAGES)
    return best.recipe_text, {key: best.metadata[key] for key in kept if key in best.metadata}
