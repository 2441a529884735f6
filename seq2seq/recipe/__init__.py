"""Recipes: the typed schema, reading with all mistakes at once, and comparison. Imports no torch.

Names are imported on first use: the help of a command needs the sizes of models, but not the schema.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from seq2seq.recipe.comparison import PROLONGING, REFUSING, Difference, differences
    from seq2seq.recipe.data import Cleaning, Corpus, Data
    from seq2seq.recipe.decoding import DecodingOptions, DecodingSection
    from seq2seq.recipe.messages import decoding_with
    from seq2seq.recipe.model import Metric, ModelSection
    from seq2seq.recipe.reading import load_recipe, parse_recipe
    from seq2seq.recipe.reference import recipe_reference, recipe_schema
    from seq2seq.recipe.schema import Languages, Recipe, TokenizerSection
    from seq2seq.recipe.section import Section
    from seq2seq.recipe.training import Average, TrainingSection

_MODULES = {
    "Average": "training", "Cleaning": "data", "Corpus": "data", "Data": "data", "DecodingOptions": "decoding",
    "DecodingSection": "decoding", "Difference": "comparison", "Languages": "schema", "Metric": "model",
    "ModelSection": "model", "PROLONGING": "comparison", "REFUSING": "comparison", "Recipe": "schema",
    "Section": "section", "TokenizerSection": "schema", "TrainingSection": "training", "decoding_with": "messages",
    "differences": "comparison", "load_recipe": "reading", "parse_recipe": "reading", "recipe_reference": "reference",
    "recipe_schema": "reference",
}
__all__ = [
    "PROLONGING",
    "REFUSING",
    "Average",
    "Cleaning",
    "Corpus",
    "Data",
    "DecodingOptions",
    "DecodingSection",
    "Difference",
    "Languages",
    "Metric",
    "ModelSection",
    "Recipe",
    "Section",
    "TokenizerSection",
    "TrainingSection",
    "decoding_with",
    "differences",
    "load_recipe",
    "parse_recipe",
    "recipe_reference",
    "recipe_schema",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
