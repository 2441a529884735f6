"""Settings of a recipe that do not work together. The error messages and docs/combinations.md are made from this table,
and from those of the types of model (model_section.py).

Rules about one key, about two numbers, about two keys of a section, or about the form of a corpus are in the sections.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from types import SimpleNamespace
from typing import Any

from seq2seq.recipe.base_section import CombinationError, raise_all
from seq2seq.recipe.directions import directions_of
from seq2seq.recipe.task import TRANSLATION

SAMPLING_KEYS = ("temperature", "top_k", "top_p", "min_p")
"""Keys of `decoding` that affect only samples."""


@dataclass(frozen=True)
class Feature:
    """Setting of a recipe that does not work with some other settings.

    name: name in the documentation. key: dotted key at which an error is reported.
    used: function that returns True if a recipe has this setting. It reads only the sections of the recipe.
    named: function that returns the name in a message about a recipe which has this setting; None: it is `name`.
    """

    name: str
    key: str
    used: Callable[[Any], object]
    named: Callable[[Any], str] | None = None

    def name_in(self, recipe: Any) -> str:
        """Return the name in a message about a recipe."""
        return self.name if self.named is None else self.named(recipe)


def is_set(key: str) -> Feature:
    """Return the feature that a key is neither 0 nor false nor empty."""
    return Feature(key, key, attrgetter(key))


def has_value(key: str, *values: object) -> Feature:
    """Return the feature that a key has one of these values."""
    names = [str(value).lower() for value in values]
    return Feature(f"{key}: {' or '.join(names)}", key, lambda recipe: attrgetter(key)(recipe) in values,
                   lambda recipe: f"{key}: {names[values.index(attrgetter(key)(recipe))]}")


def model_that(description: str, used: Callable[[Any], object]) -> Feature:
    """Return the feature that the type of the model has some property. used: function of the section `model`."""
    return Feature(f"a model that {description}", "model.type", lambda recipe: used(recipe.model),
                   lambda recipe: f"model.type: {recipe.model.type}")


def is_changed(key: str) -> Feature:
    """Return the feature that a key differs from its default."""
    section, _, name = key.rpartition(".")

    def used(recipe: Any) -> bool:
        values = attrgetter(section)(recipe)
        return bool(getattr(values, name) != type(values).model_fields[name].default)

    return Feature(key, key, used)


@dataclass(frozen=True)
class Combination:
    """Two settings that do not work together. Errors are reported at the key of the first one; if the recipe does not
    set it, at the key of the second one.

    reason: clause that follows `because`.
    """

    first: Feature
    second: Feature
    reason: str

    def error(self, recipe: Any) -> CombinationError:
        """Return the error at the key of the first setting. Its `other` is the error at the key of the second one."""
        error = CombinationError(self.first.key, self._message(self.first, self.second, recipe))
        error.other = CombinationError(self.second.key, self._message(self.second, self.first, recipe))
        error.reason = self.reason
        return error

    def _message(self, one: Feature, other: Feature, recipe: Any) -> str:
        """Return the error message that follows the key of `one`."""
        value = one.name_in(recipe).removeprefix(one.key).removeprefix(": ")
        return (f"{value} does not work with {other.name_in(recipe)}, because {self.reason}. Change one of the two."
                ).lstrip()


CONSISTENCY, CUTOFF = is_set("training.consistency"), is_set("training.consistency_cutoff")
CONTEXT = is_set("data.context")
SUBWORD_SAMPLING = is_set("tokenizer.subword_sampling")
WORDS = has_value("tokenizer.type", "words")
SEVERAL_DIRECTIONS = Feature("several directions", "data.train",
                              lambda recipe: len(directions_of(recipe.data, recipe.languages)) > 1)
AUGMENTATION, TERMS = is_set("data.augmentation"), is_set("data.augmentation.terms")
GUIDED_ALIGNMENT = is_set("training.guided_alignment")
LABEL_SMOOTHING = is_set("training.label_smoothing")
TWO_VOCABULARIES = has_value("tokenizer.joint", False)
NO_TRANSLATION = model_that("does not translate", lambda model: model.task is not TRANSLATION)
POSITIONS = model_that("points at positions", lambda model: not model.task.target_is_text)
NO_TRANSFORMER_DECODER = model_that("has no Transformer decoder", lambda model: not model.has_transformer_decoder)
SAMPLING, REQUIRE = is_set("decoding.sampling"), is_set("decoding.require")
DIVERSE_GROUPS = is_changed("decoding.diverse_groups")

IN_DECODING = (
    Combination(DIVERSE_GROUPS, REQUIRE, "the groups of a beam cannot share the required phrases"),
    Combination(SAMPLING, REQUIRE, "only beam search compares hypotheses by their required phrases"),
    Combination(SAMPLING, DIVERSE_GROUPS, "samples are drawn independently of each other"),
    *(Combination(is_changed(f"decoding.{key}"), has_value("decoding.sampling", False), "it affects only samples")
      for key in SAMPLING_KEYS),
)
"""Combinations within the section `decoding`, which options of a command can cause, too."""

COMBINATIONS = (
    Combination(SUBWORD_SAMPLING, WORDS, "whole words have no subwords"),
    Combination(TERMS, WORDS, "its markers must be pieces of the vocabulary"),
    Combination(AUGMENTATION, SEVERAL_DIRECTIONS, "it aligns the words of only one pair of languages"),
    Combination(CONSISTENCY, has_value("model.dropout", 0), "it compares predictions with different dropout masks"),
    Combination(CUTOFF, has_value("training.consistency", 0), "it changes the second pass of consistency training"),
    Combination(GUIDED_ALIGNMENT, SUBWORD_SAMPLING, "its labels belong to a fixed segmentation"),
    Combination(GUIDED_ALIGNMENT, SEVERAL_DIRECTIONS, "it aligns the words of only one pair of languages"),
    Combination(is_set("training.start_from"), is_set("tokenizer.taken_from"),
                "fine-tuning uses the tokenizer of the model in start_from"),

    Combination(GUIDED_ALIGNMENT, NO_TRANSFORMER_DECODER, "it trains a head of a Transformer decoder"),
    Combination(AUGMENTATION, NO_TRANSLATION, "it changes pairs of source and target text"),
    Combination(CONTEXT, NO_TRANSLATION, "only translation has a context"),
    Combination(TWO_VOCABULARIES, model_that("reads one language", lambda model: not model.task.has_source),
                "a language model has only one vocabulary"),
    Combination(POSITIONS, has_value("tokenizer.type", "unigram", "bpe"), "its targets are positions of whole words"),
    Combination(LABEL_SMOOTHING, POSITIONS, "a distribution over positions covers only the words of the source"),
    Combination(CONSISTENCY, POSITIONS, "it compares predictions over a vocabulary, not over positions"),

    Combination(SEVERAL_DIRECTIONS, CONTEXT, "the language token must be the first token of a source"),
    Combination(AUGMENTATION, CONTEXT, "it changes single sentences"),
    Combination(WORDS, CONTEXT, "the separator of sentences must be a piece of the vocabulary"),
    Combination(is_set("decoding.coverage_penalty"), CONTEXT, "the context need not be covered"),
    Combination(GUIDED_ALIGNMENT, CONTEXT, "its word alignments do not include the context"),
    Combination(CUTOFF, CONTEXT, "it would cut separators of sentences"),
)
"""Combinations that do not depend on keys of a type of model. Those that do are `ModelSection.combinations`."""


def refuse_combinations(combinations: Iterable[Combination], sections: Mapping[str, Any]) -> None:
    """Raise ValidationError if settings do not work together, with one error for each combination.

    sections: valid sections of a recipe by key. Combinations with a key of another section are not checked.
    """
    recipe = SimpleNamespace(**sections)

    def used(feature: Feature) -> object:
        section = feature.key.partition(".")[0]
        return {section, *(["languages"] if section == "data" else [])} <= sections.keys() and feature.used(recipe)

    raise_all([combination.error(recipe) for combination in combinations
               if used(combination.first) and used(combination.second)])
