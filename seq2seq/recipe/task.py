"""Tasks that models are trained for, and the data, metrics and defaults of each task."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Metric = Literal["bleu", "chrf", "ter", "exact", "perplexity", "word_perplexity", "character_perplexity"]
RANGES: Mapping[str, tuple[float, float]] = {
    "bleu": (0, 100), "tokenized_bleu": (0, 100), "chrf": (0, 100), "ter": (0, math.inf), "exact": (0, 100),
    "perplexity": (1, math.inf), "word_perplexity": (1, math.inf), "character_perplexity": (1, math.inf)}
"""Lowest and highest value of each metric. TER is above 100 if a translation is much longer than its reference."""


@dataclass(frozen=True)
class Task:
    """Task of a type of model (`ModelSection.task`). Data preparation, translation and evaluation depend on it, not on
    the type.

    has_source: True if the data are pairs of source and target, False if they are monolingual text.
    target_is_text: True if targets are text, False if they are positions of source words. If they are positions,
        `decoding.safety_net` has no effect, and long source lines are not split, because a position in a part of the
        line is not a position in the line.
    metrics: metrics that a recipe may name. default_metrics: metrics of a recipe without the key `metrics`.
    defaults: for some recipe keys, defaults that replace those of the schema, by section.
    """

    has_source: bool
    target_is_text: bool
    metrics: tuple[Metric, ...]
    default_metrics: tuple[Metric, ...]
    defaults: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


PERPLEXITIES: tuple[Metric, ...] = ("perplexity", "word_perplexity", "character_perplexity")

TRANSLATION = Task(True, True, ("bleu", "chrf", "ter", "exact"), ("bleu", "chrf", "ter"))
POINTING = Task(True, False, TRANSLATION.metrics, TRANSLATION.default_metrics,
                {"tokenizer": {"type": "words"}, "training": {"label_smoothing": 0.0}})
LANGUAGE_MODELLING = Task(False, True, PERPLEXITIES, PERPLEXITIES, {"training": {"best_metric": "perplexity"}})
