"""A model out of the files of a bundle: the layers that its recipe describes, with the weights that it holds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from seq2seq.checkpoint import MODEL, RECIPE, Bundle, load_bundle, resolve_model_path
from seq2seq.errors import CheckpointError, RecipeError, TokenizerError
from seq2seq.model import Model, build_model
from seq2seq.recipe import Recipe, parse_recipe
from seq2seq.tokenizer import Tokenizers


def read_model(path: Path) -> tuple[Model, Recipe, Tokenizers]:
    """The model of a bundle, or of a run's best, with its weights in fp32 on the CPU.

    Raises:
        CheckpointError: there is none, a file is damaged, or its files do not belong together. A bundle from a stranger
            can hold anything: nothing of it is run, and no memory is taken but for what fits its weights.
    """
    bundle = load_bundle(resolve_model_path(path))
    try:
        recipe = parse_recipe(bundle.recipe_text, bundle.directory / RECIPE, alone=True)
        tokenizers = Tokenizers.from_files(bundle.tokenizer_files, str(bundle.directory))
    except (RecipeError, TokenizerError) as error:
        raise CheckpointError(str(error)) from error
    sizes = tokenizers.source.vocab_size, tokenizers.target.vocab_size
    try:
        with torch.device("meta"):                                              # shapes without memory
            outline = build_model(recipe.model, *sizes)
        _require_same_shapes(bundle, dict(stored_weights(outline)))
        model = build_model(recipe.model, *sizes)
    except (ValueError, RuntimeError, MemoryError) as error:                     # of the recipe's sizes
        raise CheckpointError(f"{bundle.directory / RECIPE}: its model cannot be built: {str(error).splitlines()[0]} "
                              "Restore the bundle from where it was made.") from error
    model.load_state_dict(bundle.weights, strict=False)
    return model, recipe, tokenizers


def start_from(model: nn.Module, path: Path) -> None:
    """Give a new model the weights of a bundle, or of a run's best.

    Raises:
        CheckpointError: there is none, or it is damaged.
        RecipeError: it is another model.
    """
    found, own = load_bundle(resolve_model_path(path)).weights, stored_weights(model)
    differing = [f"{name} is {_shape(found.get(name))} there, {_shape(own.get(name))} here"
                 for name in sorted(found.keys() | own.keys()) if _shape(found.get(name)) != _shape(own.get(name))]
    if differing:
        raise RecipeError(f"training.start_from: {path} is not the model of this recipe: {'; '.join(differing[:3])}"
                          f"{'; …' if len(differing) > 3 else ''}. Leave the keys of `model` and `tokenizer` out: what "
                          "a recipe does not say is taken over.")
    model.load_state_dict(found, strict=False)


def _shape(weight: Tensor | None) -> str:
    return "missing" if weight is None else "x".join(map(str, weight.shape))


def stored_weights(model: nn.Module) -> dict[str, Tensor]:
    """The model's parameters by name, tied ones once: what a bundle holds."""
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def _require_same_shapes(bundle: Bundle, expected: Mapping[str, Tensor]) -> None:
    place = bundle.directory / MODEL
    lacking, surplus = expected.keys() - bundle.weights.keys(), bundle.weights.keys() - expected.keys()
    remedy = f"Restore it and {RECIPE} from the same run."
    if lacking:
        raise CheckpointError(f"{place} lacks the weights {_some(lacking)} of the model in its {RECIPE}. {remedy}")
    if surplus:
        raise CheckpointError(f"{place} has the weights {_some(surplus)}, which the model in its {RECIPE} has not. "
                              f"{remedy}")
    for name, weight in bundle.weights.items():
        if weight.shape != expected[name].shape or not weight.is_floating_point():
            raise CheckpointError(f"{place}: {name} is {tuple(weight.shape)} of {weight.dtype}; the model in its "
                                  f"{RECIPE} wants {tuple(expected[name].shape)}. {remedy}")


def _some(names: set[str]) -> str:
    shown = sorted(names)
    return ", ".join(shown[:5]) + (f" and {len(shown) - 5} more" if len(shown) > 5 else "")
