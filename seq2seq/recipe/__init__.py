"""Recipes: the typed schema, reading with all mistakes at once, and comparison. Imports no torch."""

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
