"""Load models from bundles: `read_stored_model` reads the files, without torch; `build` makes models of torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from seq2seq.errors import CheckpointError, RecipeError, TokenizerError
from seq2seq.inference.shortlist import Shortlist
from seq2seq.inference.transformer_weights import differences, expected_shapes
from seq2seq.recipe import ModelSection, Recipe, TransformerSection
from seq2seq.storage.checkpoints import (
    MODEL,
    RECIPE,
    SHORTLIST,
    Bundle,
    Shapes,
    bundle_recipe,
    load_bundle,
    resolve_model_path,
)
from seq2seq.tokenizers.tokenizer import END_ID, Tokenizers, Vocabulary

if TYPE_CHECKING:
    from torch import Tensor, nn

    from seq2seq.model import Model

@dataclass(frozen=True)
class StoredModel:
    """Contents of a bundle, verified; or a model in memory.

    directory: None for a model in memory. weights: parameters by name, float32; tied parameters occur once. metadata:
    see `checkpoints.Bundle`. shortlist: None if the bundle has none.
    """

    directory: Path | None
    recipe: Recipe
    tokenizers: Tokenizers
    weights: dict[str, np.ndarray]
    metadata: dict[str, Any]
    shortlist: Shortlist | None = None

    @property
    def sizes(self) -> tuple[int, int]:
        """Source and target vocabulary size."""
        return self.tokenizers.source.vocab_size, self.tokenizers.target.vocab_size


def read_stored_model(path: Path) -> StoredModel:
    """Read a bundle, or a run's best bundle.

    Untrusted bundles are safe to read: no code in them is executed, and the weights have the shapes of the recipe's
    model, which are compared before memory is allocated.
    """
    bundle = resolve_model_path(path)
    try:
        return _read_bundle(bundle)
    except CheckpointError:
        if (newer := resolve_model_path(path)) == bundle:
            raise
    return _read_bundle(newer)                          # a training has deleted the bundle while it was read


def _read_bundle(directory: Path) -> StoredModel:
    recipe, tokenizers = None, None

    def require(bundle: Bundle, shapes: Shapes) -> None:
        nonlocal recipe, tokenizers
        try:
            recipe = bundle_recipe(bundle.recipe_text, bundle.directory / RECIPE, bundle.metadata)
            tokenizers = Tokenizers.from_files(bundle.tokenizer_files, str(bundle.directory))
        except (RecipeError, TokenizerError) as error:
            raise CheckpointError(str(error)) from error
        sizes = tokenizers.source.vocab_size, tokenizers.target.vocab_size
        if not recipe.task.target_is_text and sizes[1] != END_ID + recipe.model.max_positions:
            raise CheckpointError(f"{bundle.directory / RECIPE}: max_positions is {recipe.model.max_positions:,}, "
                                  f"but the tokenizer was made for {sizes[1] - END_ID:,}. Copy the bundle again from "
                                  "its original location.")
        if unlike := differences(shapes, _model_shapes(recipe.model, sizes, bundle.directory / RECIPE)):
            raise CheckpointError(f"{bundle.directory / MODEL} does not match its {RECIPE}: {unlike}. Copy both "
                                  "files again from the same run.")

    bundle = load_bundle(directory, require)
    assert recipe is not None and tokenizers is not None
    stored = StoredModel(bundle.directory, recipe, tokenizers, bundle.weights, bundle.metadata)
    if (contents := bundle.tokenizer_files.get(SHORTLIST)) is None:
        return stored
    return replace(stored, shortlist=Shortlist.from_file(contents, stored.sizes, str(bundle.directory / SHORTLIST)))


def build(stored: StoredModel) -> Model:
    """Return a model in PyTorch, with a copy of the weights in fp32 on the CPU."""
    from seq2seq.model import SkipInitialization, build_model

    with SkipInitialization():                                                  # `stored` has all weights
        model = build_model(stored.recipe.model, *stored.sizes)
    model.load_state_dict(as_tensors(stored.weights), strict=False)
    return model


def read_model(path: Path) -> tuple[Model, Recipe, Tokenizers]:
    """Return model, recipe and tokenizers of a bundle, or of a run's best bundle; see `read_stored_model`."""
    stored = read_stored_model(path)
    return build(stored), stored.recipe, stored.tokenizers


def _model_shapes(section: ModelSection, sizes: tuple[int, int], recipe_path: Path) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a new model's weights, without allocating weights. recipe_path: path in error messages."""
    if section.peculiarity is None:
        return expected_shapes(cast(TransformerSection, section), sizes)
    import torch

    from seq2seq.model import SkipInitialization, build_model

    try:
        with torch.device("meta"), SkipInitialization():
            return {name: tuple(weight.shape) for name, weight in stored_weights(build_model(section, *sizes)).items()}
    except (ValueError, RuntimeError, MemoryError) as error:                    # inconsistent or too large sizes
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise CheckpointError(f"{recipe_path}: the model cannot be built ({reason}). Copy the bundle again from its "
                              "original location.") from error


def weights_to_start_from(section: ModelSection, sizes: tuple[int, int], path: Path) -> dict[str, Tensor]:
    """Return the weights of a bundle, or of a run's best bundle, for fine-tuning a new model.

    Args:
        section: `model` section of the new model. sizes: source and target vocabulary size of the new model.
    """
    def require(bundle: Bundle, shapes: Shapes) -> None:
        if unlike := differences(shapes, _model_shapes(section, sizes, Path("model"))):
            raise RecipeError(f"training.start_from: the model in {path} differs from the model of this recipe: "
                              f"{unlike}. Remove the keys of `model` and `tokenizer` from the recipe; missing "
                              "keys are taken from the bundle's model.")

    return as_tensors(load_bundle(resolve_model_path(path), require).weights)


def as_tensors(weights: Mapping[str, np.ndarray]) -> dict[str, Tensor]:
    """Return weights as tensors, which share the memory of the arrays."""
    import torch

    return {name: torch.from_numpy(weight) for name, weight in weights.items()}


def as_arrays(weights: Mapping[str, Tensor]) -> dict[str, np.ndarray]:
    """Return weights as arrays, which share the memory of tensors on the CPU."""
    return {name: weight.cpu().numpy() for name, weight in weights.items()}


def stored_weights(model: nn.Module) -> dict[str, Tensor]:
    """Return the parameters that a bundle stores, by name. Tied parameters occur once."""
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def require_same_vocabulary(path: str | Path, tokenizer: Vocabulary, other_path: str | Path, other: Vocabulary
                            ) -> None:
    """Raise CheckpointError if the models at two paths have different vocabularies."""
    if tokenizer.fingerprint != other.fingerprint:
        raise CheckpointError(f"{path} and {other_path} have different vocabularies ({tokenizer.vocab_size:,} and "
                              f"{other.vocab_size:,} pieces), so they cannot be used together. Train both with "
                              "the same tokenizer: set tokenizer.taken_from in one recipe to the model of the other.")


def require_same_context(path: str | Path, context: int, other_path: str | Path, other: int) -> None:
    """Raise CheckpointError if the models at two paths read different numbers of preceding sentences."""
    if context != other:
        raise CheckpointError(f"{path} and {other_path} read different numbers of preceding sentences (data.context: "
                              f"{context} and {other}), so they cannot be used together.")
