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

SAMPLING_KEYS = ("temperature", "top_k", "top_p", "min_p")
"""Keys of `decoding` that affect only samples."""


@dataclass(frozen=True)
class Feature:
    """Setting of a recipe that does not work with some other settings.

    name: name in messages and in the documentation. key: dotted key at which an error is reported.
    used: function that returns True if a recipe has this setting. It reads only the sections of the recipe.
    """

    name: str
    key: str
    used: Callable[[Any], object]


def is_set(key: str) -> Feature:
    """Return the feature that a key is neither 0 nor false nor empty."""
    return Feature(key, key, attrgetter(key))


def has_value(key: str, *values: object) -> Feature:
    """Return the feature that a key has one of these values."""
    name = f"{key}: {' or '.join(str(value).lower() for value in values)}"
    return Feature(name, key, lambda recipe: attrgetter(key)(recipe) in values)


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

    @property
    def error(self) -> CombinationError:
        """Error at the key of the first setting. Its `other` is the error at the key of the second one."""
        error = CombinationError(self.first.key, self._message(self.first, self.second))
        error.other = CombinationError(self.second.key, self._message(self.second, self.first))
        return error

    def _message(self, one: Feature, other: Feature) -> str:
        """Return the error message that follows the key of `one`."""
        value = one.name.removeprefix(one.key).removeprefix(": ")
        return f"{value} does not work with {other.name}, because {self.reason}. Change one of the two.".lstrip()


CONSISTENCY, CUTOFF = is_set("training.consistency"), is_set("training.consistency_cutoff")
CONTEXT = is_set("data.context")
SUBWORD_SAMPLING = is_set("tokenizer.subword_sampling")
WORDS = has_value("tokenizer.type", "words")
SEVERAL_DIRECTIONS = Feature("several directions", "data.train",
                              lambda recipe: len(directions_of(recipe.data, recipe.languages)) > 1)
AUGMENTATION, TERMS = is_set("data.augmentation"), is_set("data.augmentation.terms")
GUIDED_ALIGNMENT = is_set("training.guided_alignment")
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

    Combination(SEVERAL_DIRECTIONS, CONTEXT, "the language token must be the first token of a source"),
    Combination(AUGMENTATION, CONTEXT, "it changes single sentences"),
    Combination(WORDS, CONTEXT, "the separator of sentences must be a piece of the vocabulary"),
    Combination(is_set("decoding.coverage_penalty"), CONTEXT, "the context need not be covered"),
    Combination(GUIDED_ALIGNMENT, CONTEXT, "its word alignments do not include the context"),
    Combination(CUTOFF, CONTEXT, "it would cut separators of sentences"),
)
"""Combinations that do not depend on the type of model. Each type has its own, `ModelSection.combinations`."""


def refuse_combinations(combinations: Iterable[Combination], sections: Mapping[str, Any]) -> None:
    """Raise ValidationError if settings do not work together, with one error for each combination.

    sections: valid sections of a recipe by key. Combinations with a key of another section are not checked.
    """
    recipe = SimpleNamespace(**sections)

    def used(feature: Feature) -> object:
        section = feature.key.partition(".")[0]
        return {section, *(["languages"] if section == "data" else [])} <= sections.keys() and feature.used(recipe)

    raise_all([combination.error for combination in combinations
               if used(combination.first) and used(combination.second)])
