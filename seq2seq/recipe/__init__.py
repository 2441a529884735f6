"""Recipes: typed schema, loading that reports all errors together, and comparison. This package does not import torch.

Names are imported on first use: the help text of a command needs only the names of the model sizes, and importing the
schema would slow the command down.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from seq2seq.recipe.data_section import Cleaning, Corpus, Languages
    from seq2seq.recipe.decoding_section import DecodingOptions, DecodingSection
    from seq2seq.recipe.loading import load_recipe, parse_recipe
    from seq2seq.recipe.messages import decoding_with
    from seq2seq.recipe.model_section import ModelSection, TransformerSection, validate_model
    from seq2seq.recipe.recipe_differences import KEYS_WITHOUT_EFFECT, Difference, differences
    from seq2seq.recipe.reference_page import recipe_reference, recipe_schema
    from seq2seq.recipe.schema import Recipe
    from seq2seq.recipe.task import Task
    from seq2seq.recipe.tokenizer_section import TokenizerSection
    from seq2seq.recipe.training_section import Average, TrainingSection

_MODULES = {
    "Average": "training_section", "Cleaning": "data_section", "Corpus": "data_section",
    "DecodingOptions": "decoding_section", "DecodingSection": "decoding_section", "Difference": "recipe_differences",
    "KEYS_WITHOUT_EFFECT": "recipe_differences", "Languages": "data_section", "Task": "task",
    "ModelSection": "model_section", "Recipe": "schema", "TransformerSection": "model_section",
    "validate_model": "model_section",
    "TokenizerSection": "tokenizer_section", "TrainingSection": "training_section",
    "decoding_with": "messages", "differences": "recipe_differences", "load_recipe": "loading",
    "parse_recipe": "loading", "recipe_reference": "reference_page", "recipe_schema": "reference_page",
}
__all__ = ["KEYS_WITHOUT_EFFECT", "Average", "Cleaning", "Corpus", "DecodingOptions", "DecodingSection", "Difference",
           "Languages", "ModelSection", "Recipe", "Task", "TokenizerSection", "TrainingSection", "TransformerSection",
           "decoding_with", "differences", "load_recipe", "parse_recipe", "recipe_reference", "recipe_schema",
           "validate_model"]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
