"""Comparison of values of the `decoding` section: translations with each of them, their scores, and whether these
differ significantly from those of the present values."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seq2seq import console
from seq2seq.data.corpus import read_pairs
from seq2seq.errors import OptionError
from seq2seq.evaluation.recipe_tests import recipe_with_tests
from seq2seq.evaluation.scores import TITLES
from seq2seq.evaluation.significance import Comparison, compare, signed
from seq2seq.recipe import DecodingSection, Recipe, decoding_with
from seq2seq.recipe.yaml_document import listed_values
from seq2seq.tokenizers.source import Source
from seq2seq.translation.translator import Translator

WARM_UP = 200
"""Number of lines that are translated before the first measurement, because libraries allocate memory at first use."""


@dataclass(frozen=True)
class Trial:
    """Result of one combination of values.

    options: the values by key. value: score. seconds: time of the translation. comparison: comparison with the present
    values; None for the present values themselves.
    """

    options: dict[str, Any]
    value: float
    seconds: float
    comparison: Comparison | None = None

    @property
    def significant(self) -> bool:
        """True if the score differs significantly from that of the present values."""
        return self.comparison is not None and self.comparison.significant

    @property
    def line(self) -> str:
        """Line of a recipe that sets these values."""
        return f"decoding: {{{', '.join(f'{key}: {json.dumps(value)}' for key, value in self.options.items())}}}"

    def to_dict(self) -> dict[str, Any]:
        """Return the trial as JSON values, not rounded."""
        found = self.comparison
        return {"decoding": self.options, "value": self.value, "seconds": self.seconds,
                "difference": found.difference if found else 0.0, "p_value": found.p_value if found else None,
                "significant": self.significant}


def combinations(settings: Sequence[str], present: DecodingSection) -> list[dict[str, Any]]:
    """Return the combinations of values to compare, first the present values of the keys.

    settings: keys and values, such as length_penalty=0.6,1.0.
    """
    values = listed_values(settings, "length_penalty=0.6,1.0,1.4")
    found: list[tuple[DecodingSection, dict[str, Any]]] = []
    for combination in itertools.product(*values.values()):
        options = dict(zip(values, combination, strict=True))
        section = decoding_with(present, options)
        if section != present and section not in [other for other, _ in found]:
            found.append((section, options))
    if not found:
        raise OptionError("only the present values of the recipe are given. Name others.")
    return [{key: getattr(present, key) for key in values}, *(options for _, options in found)]


def validation_set(model: Path, language: str | None, recipe: Recipe | None = None
                   ) -> tuple[list[Source], list[list[str]], str]:
    """Return the sources and the stream of references of a model's validation set, and their language.

    language: code of the target language; None if all validation corpora have the same. recipe: see
    `recipe_with_tests`.
    """
    recipe = recipe_with_tests(model, recipe, "valid")
    targets = list(dict.fromkeys(recipe.languages_of(spec).target for spec in recipe.data.valid))
    if len(targets) > 1 and language is None or language is not None and language not in targets:
        raise OptionError(f"the validation corpora have the target languages {', '.join(targets)}. Name one of them "
                          "with --target-language.")
    pairs = [(source, target) for spec in recipe.data.valid for _, source, target in read_pairs(recipe, spec)
             if recipe.languages_of(spec).target == (language or targets[0])]
    return [source for source, _ in pairs], [[target for _, target in pairs]], language or targets[0]


def compare_options(translator: Translator, sources: Sequence[str | Source], references: Sequence[Sequence[str]],
                    language: str, trials: Sequence[dict[str, Any]], metric: str, **test: Any) -> list[Trial]:
    """Return the result of each combination of values.

    trials: return value of `combinations`. metric: bleu, chrf or ter. test: arguments `test` and `samples` of
    `compare`.
    """
    translator.translate(list(sources[:WARM_UP]), **trials[0])
    outputs, found = [], []
    for number, options in enumerate(trials, 1):
        with console.progress(f"translating, {number} of {len(trials)}", len(sources)) as advance:
            began = time.perf_counter()
            outputs.append([best.text for best, *_ in translator.translate(sources, progress=advance, **options)])
            seconds = time.perf_counter() - began
        if number == 1:
            found.append(Trial(options, 0.0, seconds))
            continue
        comparison = compare(outputs[-1], outputs[0], references, language, [metric], **test)[metric]
        found.append(Trial(options, comparison.system.value, seconds, comparison))
    present = found[1].comparison
    assert present is not None, "combinations returns at least two"
    return [Trial(trials[0], present.baseline.value, found[0].seconds), *found[1:]]


def best_of(trials: Sequence[Trial], metric: str) -> Trial:
    """Return the trial with the best score; of several, the first. A smaller TER is better."""
    better: Callable[[Trial], float] = (lambda trial: -trial.value) if metric == "ter" else (lambda trial: trial.value)
    return max(trials, key=better)


def format_trials(trials: Sequence[Trial], metric: str) -> str:
    """Return a table with a line per trial, and the line for the recipe if a value is significantly better than the
    present one."""
    present, *others = trials
    keys = list(present.options)
    rows = [[*keys, TITLES[metric], "difference", "significance", "seconds"],
            [*(json.dumps(value) for value in present.options.values()), f"{present.value:.2f}", "", "present value",
             f"{present.seconds:.1f}"]]
    for trial in others:
        found = trial.comparison
        assert found is not None, "only the first trial has no comparison"
        verdict = ("too few lines differ for a test" if found.p_value is None else
                   f"p = {found.p_value:.4f}, {'' if trial.significant else 'not '}significant")
        rows.append([*(json.dumps(value) for value in trial.options.values()), f"{trial.value:.2f}",
                     signed(found.difference), verdict, f"{trial.seconds:.1f}"])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    left = len(keys) + 2                                                        # column of the verdicts
    lines = ["  ".join(f"{cell:<{width}}" if number == left else f"{cell:>{width}}"
                       for number, (cell, width) in enumerate(zip(row, widths, strict=True))) for row in rows]
    best = best_of(trials, metric)
    signature = others[0].comparison.signature if others[0].comparison else ""
    better = best_of([present, *(trial for trial in others if trial.significant)], metric)
    result = (f"for the recipe: {better.line}" if better is not present else
              "no reason to change the recipe: "
              + ("the present value has the best score" if best is present else
                 "no value is significantly better than the present one"))
    edge = [] if best is present else _at_the_edge(best, trials)
    return "\n".join([*lines, f"{TITLES[metric]} {signature}", result, *edge])


def _at_the_edge(best: Trial, trials: Sequence[Trial]) -> list[str]:
    """Return a line for each key whose best value is the lowest or the highest of several numbers."""
    lines = []
    for key, value in best.options.items():
        values = [trial.options[key] for trial in trials]
        if not all(type(each) in (int, float) for each in values) or min(values) == max(values):
            continue
        if value in (min(values), max(values)):
            lines.append(f"the best score is at the edge of the tried values: {key} {json.dumps(value)} is the "
                         f"{'lowest' if value == min(values) else 'highest'}")
    return lines
