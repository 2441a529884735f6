"""Loading of models from bundles."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from seq2seq.errors import CheckpointError, RecipeError, TokenizerError
from seq2seq.model import Model, build_model
from seq2seq.recipe import ModelSection, Recipe, parse_recipe
from seq2seq.storage.checkpoints import MODEL, RECIPE, Bundle, Shapes, load_bundle, resolve_model_path
from seq2seq.tokenizers.tokenizer import END_ID, Tokenizers

FLOATING = ("F", "BF")
"""Prefixes of safetensors' floating-point dtypes: F64, F32, F16, F8_E4M3, BF16."""


class SkipInitialization(TorchFunctionMode):
    """Context that skips the random initialisation of weights, for models whose weights come from a file.

    On the meta device, torch's initialisation would import torch._dynamo and sympy, which takes a second.
    """

    DRAWING = frozenset({
        Tensor.normal_, Tensor.uniform_, nn.init.normal_, nn.init.uniform_, nn.init.xavier_uniform_,
        nn.init.kaiming_uniform_})

    def __torch_function__(self, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (),
                           kwargs: Mapping[str, Any] | None = None) -> Any:
        named = dict(kwargs or {})
        if func in self.DRAWING:
            return args[0] if args else named["tensor"]
        return func(*args, **named)


def read_model(path: Path) -> tuple[Model, Recipe, Tokenizers]:
    """Load the model of a bundle, or of a run's best bundle, with weights in fp32 on the CPU.

    Safe for untrusted bundles: no code in them is executed, and shapes are checked before memory is allocated.

    Raises:
        CheckpointError: there is no bundle, a file is damaged, or the files do not match.
    """
    recipe, tokenizers = None, None

    def require(bundle: Bundle, shapes: Shapes) -> None:
        nonlocal recipe, tokenizers
        recipe, tokenizers = _described(bundle)
        sizes = tokenizers.source.vocab_size, tokenizers.target.vocab_size
        if recipe.model.type == "pointer" and sizes[1] != END_ID + recipe.model.max_positions:
            raise CheckpointError(f"{bundle.directory / RECIPE}: its model points at {recipe.model.max_positions:,} "
                                  f"positions, its tokenizer has {sizes[1] - END_ID:,}. Restore the bundle from where "
                                  "it was made.")
        _require_same_shapes(bundle.directory, shapes, _outline(recipe.model, sizes, bundle.directory / RECIPE))

    bundle = load_bundle(resolve_model_path(path), require)
    assert recipe is not None and tokenizers is not None
    with SkipInitialization():                                                             # `require` checked all weights
        model = build_model(recipe.model, tokenizers.source.vocab_size, tokenizers.target.vocab_size)
    model.load_state_dict(bundle.weights, strict=False)
    return model, recipe, tokenizers


def _described(bundle: Bundle) -> tuple[Recipe, Tokenizers]:
    try:
        return (parse_recipe(bundle.recipe_text, bundle.directory / RECIPE, alone=True),
                Tokenizers.from_files(bundle.tokenizer_files, str(bundle.directory)))
    except (RecipeError, TokenizerError) as error:
        raise CheckpointError(str(error)) from error


def _outline(section: ModelSection, sizes: tuple[int, int], place: Path) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a model's weights without allocating them. place: the recipe's path, for errors."""
    try:
        with torch.device("meta"), SkipInitialization():
            return {name: tuple(weight.shape) for name, weight in stored_weights(build_model(section, *sizes)).items()}
    except (ValueError, RuntimeError, MemoryError) as error:                    # of the recipe's sizes
        raise CheckpointError(f"{place}: its model cannot be built: {str(error).splitlines()[0]} Restore the bundle "
                              "from where it was made.") from error


def weights_to_start_from(section: ModelSection, sizes: tuple[int, int], path: Path) -> dict[str, Tensor]:
    """Return the weights of a bundle, or of a run's best bundle, to fine-tune; shapes are checked before they are read.

    Args:
        section: of the new model. sizes: of its vocabularies.
    Raises:
        CheckpointError: there is no bundle, or it is damaged.
        RecipeError: its model has other weights.
    """
    def require(bundle: Bundle, shapes: Shapes) -> None:
        own = _outline(section, sizes, Path("model"))
        found = {name: shape for name, (shape, _) in shapes.items()}
        differing = [f"{name} is {_shape(found.get(name))} there, {_shape(own.get(name))} here"
                     for name in sorted(found.keys() | own.keys()) if found.get(name) != own.get(name)]
        if differing:
            raise RecipeError(f"training.start_from: {path} is not the model of this recipe: "
                              f"{'; '.join(differing[:3])}{'; …' if len(differing) > 3 else ''}. Leave the keys of "
                              "`model` and `tokenizer` out: what a recipe does not say is taken over.")

    return load_bundle(resolve_model_path(path), require).weights


def _shape(shape: tuple[int, ...] | None) -> str:
    return "missing" if shape is None else "x".join(map(str, shape))


def stored_weights(model: nn.Module) -> dict[str, Tensor]:
    """Return the parameters to store in a bundle, by name, tied ones once."""
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def _require_same_shapes(directory: Path, found: Shapes, expected: Mapping[str, tuple[int, ...]]) -> None:
    place = directory / MODEL
    lacking, surplus = expected.keys() - found.keys(), found.keys() - expected.keys()
    remedy = f"Restore it and {RECIPE} from the same run."
    if lacking:
        raise CheckpointError(f"{place} lacks the weights {_some(lacking)} of the model in its {RECIPE}. {remedy}")
    if surplus:
        raise CheckpointError(f"{place} has the weights {_some(surplus)}, which the model in its {RECIPE} has not. "
                              f"{remedy}")
    for name, (shape, kind) in found.items():
        if shape != expected[name] or not kind.startswith(FLOATING):
            raise CheckpointError(f"{place}: {name} is {shape} of {kind}; the model in its {RECIPE} wants "
                                  f"{expected[name]}. {remedy}")


def _some(names: set[str]) -> str:
    shown = sorted(names)
    return ", ".join(shown[:5]) + (f" and {len(shown) - 5} more" if len(shown) > 5 else "")
