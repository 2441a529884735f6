"""Text of the recipes that `seq2seq init` writes, with comments."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import numpy as np

from seq2seq.check.given_text import GivenText
from seq2seq.check.results import CorpusReport
from seq2seq.errors import UserError
from seq2seq.evaluation.scores import sacrebleu_metric
from seq2seq.recipe import Recipe, load_recipe
from seq2seq.recipe.model_sizes import size_for


class Step(Enum):
    """Recipe that is written: the only one, or one of those that follow each other for text in one language. The value
    is the name of its file."""

    ONLY = "recipe.yaml"
    BASELINE = "1_baseline.yaml"
    REVERSE = "2_reverse.yaml"
    FINAL = "3_final.yaml"

    @property
    def before(self) -> tuple[Step, ...]:
        """Recipes whose models this one uses. It continues the first of them."""
        return (Step.BASELINE, Step.REVERSE) if self is Step.FINAL else ()

    @property
    def run(self) -> str:
        """Name of the run in the directory of runs."""
        return self.value.removesuffix(".yaml")

    @property
    def suffix(self) -> str:
        """End of the recipe's name."""
        return "" if self is Step.ONLY else self.run[1:]


REAL_WEIGHT, CONTINUED_RATE = 3, 0.5
"""Weight of the pairs beside back-translated sentences, and learning rate of a training that continues, relative to
that of its start. With these values, 5,000 pairs gained 2.4 BLEU over as many steps on the pairs alone, in one seed
(recipes/little_text); other values were not tried."""
MAX_NAMED = 3
"""Maximum number of files that the recipe names."""
EPOCHS = 30
"""Number of epochs of the training. Most recipes in `recipes/` train for 3 to 38 epochs."""
MIN_STEPS = 1_000
"""Minimum number of steps: with fewer, the learning rate cannot rise and fall slowly enough."""
VALIDATIONS, MIN_TO_STOP = 20, 6
"""Number of validations of a training that is not stopped early, and minimum number to stop early at all."""
BATCH_TOKENS = {"tiny": 1024, "small": 2048, "base": 25_000}
"""Target tokens per step for each model size, as in the recipes with this size. Tiny corpora get smaller batches."""
MAX_VALIDATED = 500
"""Maximum number of validation sentences that are translated in each validation."""


@dataclass(frozen=True)
class Settings:
    """Settings of a new recipe that depend on its text. cleaning, augmentation: their lines in the recipe.
    reason: comment on max_steps; "" if they are those of EPOCHS. test_sentences: limit of the test set; None: all."""

    size: str
    batch_tokens: int
    consistency: float
    max_steps: int = MIN_STEPS
    validations: int = VALIDATIONS
    valid_sentences: int = MAX_VALIDATED
    test_sentences: int | None = None
    cleaning: tuple[str, ...] = ()
    augmentation: tuple[str, ...] = ()
    reason: str = ""


@dataclass(frozen=True)
class Monolingual:
    """Text in the target language, which the model of `Step.REVERSE` translates. file: its name in the directory of the
    recipes. lines: number of lines that are used, of `read` lines. in_source_language: number of lines that were left
    out because they look like the source language."""

    file: str
    lines: int
    read: int
    in_source_language: int


@dataclass(frozen=True)
class OtherPairs:
    """Pairs of other languages, which the model learns, too. scanned: report on them before cleaning.
    pairs: number of pairs without sentences of the held-out sets; cleaning keeps `kept` of them. weight: weight of the
    own pairs beside them."""

    text: GivenText
    scanned: CorpusReport
    pairs: int
    kept: int
    weight: int = 1

    @property
    def languages(self) -> tuple[str, str]:
        """Codes of source and target."""
        return str(self.text.recipe.languages.source), self.text.recipe.languages.target


@dataclass
class Draft:
    """Recipe that is being written, with what its comments say. pairs: number of pairs of each set. kept: number of
    training pairs that cleaning keeps. split: names of the sets that were split off."""

    output: Path
    directory: Path
    text: GivenText
    languages: tuple[str, str]
    scanned: CorpusReport
    seed: int
    pairs: dict[str, int]
    kept: int
    split: Sequence[str]
    monolingual: Monolingual | None = None
    other: OtherPairs | None = None

    def write(self, settings: Settings, step: Step = Step.ONLY) -> Recipe:
        """Write a recipe with these settings, and load it."""
        path = self.directory / step.value
        path.write_text(recipe_text(self, settings, step), encoding="utf-8", newline="\n")
        runs = {Path(os.path.normpath(self.directory / "runs" / other.run)): load_recipe(self.directory / other.value)
                for other in step.before}
        return load_recipe(path, planned=runs)


def recipe_text(draft: Draft, settings: Settings, step: Step = Step.ONLY) -> str:
    """Return the YAML of a recipe, with comments that say why its settings suit the text."""
    source, target = draft.languages[::-1] if step is Step.REVERSE else draft.languages
    pairs, max_steps = draft.pairs, settings.max_steps
    name = re.sub("[^A-Za-z0-9_.-]", "_", draft.output.absolute().name).lstrip("_.-") or "_".join(draft.languages)
    limits = {"test": f", limit: {settings.test_sentences}"} if settings.test_sentences else {}
    files = {split: f"source: {split}.{source}, target: {split}.{target}{limits.get(split, '')}" for split in pairs}
    try:
        sacrebleu_metric("bleu", target)
        metrics = ""
    except UserError as error:
        metrics = f"# {error}\nmetrics: [chrf]\n"
    about_sets = (" Replace a set by your own if you have one." if len(draft.split) == 2 else
                  f" `{draft.split[0]}` was split off." if draft.split else "")
    about_limit = "  # Only `limit` sentences are translated, so that all fits into the time.\n" if limits else ""
    tests = {one: count for one, count in pairs.items() if one not in ("train", "valid")}
    named = ", ".join(f"{one}: {{{files[one]}}}" for one in tests)
    test = "" if step is Step.REVERSE else (
        f"{about_limit}  test: {{{named}}}  # {', '.join(f'{count:,}' for count in tests.values())} pairs\n")
    sections = "".join(f"  {section}:\n{''.join(lines)}" for section, lines in (
        ("cleaning", settings.cleaning), ("augmentation", settings.augmentation)) if lines)
    start, fraction = "", 1.0
    if step.before:
        start, fraction = f"  start_from: runs/{step.before[0].run}\n", CONTINUED_RATE
    rate = fraction * (7e-4 if settings.size == "base" else 2e-3)
    return f"""\
{_introduction(draft, step)}
name: {json.dumps(name + step.suffix)}
languages: {{source: {source}, target: {target}}}
data:
  # The keys license and url of a corpus appear in the model card, such as {{…, license: CC-BY-4.0, url: https://…}}.
{_training_text(draft, files["train"], step)}\
  # No sentence of these sets occurs in {_own_text(draft, step)}.{about_sets}
  valid: {{{files["valid"]}}}  # {pairs["valid"]:,} pairs
{test}{sections}{"" if start else _model(draft, settings)}{metrics}training:
{start}\
  # Target tokens per step. Lower this number if the memory is too small.
  batch_tokens: {settings.batch_tokens}
  learning_rate: {np.format_float_scientific(rate, trim="-", exp_digits=1)}
  warmup_steps: {min(max_steps // 10, 4000)}
  schedule: linear
  # {settings.reason or f"About {EPOCHS} epochs, and at least {MIN_STEPS:,} steps."}
  max_steps: {max_steps}
  validate_every: {-(-max_steps // settings.validations)}
  # BLEU in validation is computed on this many of the sentences, because translation takes time.
  valid_sentences: {min(pairs["valid"], settings.valid_sentences)}
  # Stop after this many validations without improvement (0: never).
  early_stopping: {settings.validations // 2 if settings.validations >= MIN_TO_STOP else 0}
  # Moving average of the weights, which is validated and saved as the model.
  ema_decay: 0.99
{_consistency(settings.consistency, step)}"""


def _introduction(draft: Draft, step: Step) -> str:
    """Return the comment at the beginning of a recipe."""
    source, target = draft.languages
    if step is Step.REVERSE:
        return (f"# {target} to {source}: the model that translates the sentences of {_file(draft)} for "
                f"{Step.FINAL.value}.")
    if step is Step.FINAL:
        return (f"# {source} to {target}: the model of {Step.BASELINE.value} continues with the pairs and with "
                "back-translated sentences.")
    seed = f",\n# split with seed {draft.seed}" if draft.split else ""
    first = f"# {source} to {target}: {draft.scanned.lines:,} pairs of {_files(draft.text)}{seed}.\n"
    if step is Step.BASELINE:
        return (f"{first}# The first of three recipes, which `seq2seq train DIRECTORY` trains in order: the model of "
                "the pairs.")
    if (other := draft.other) is not None:
        first += f"# {' to '.join(other.languages)}: {other.scanned.lines:,} pairs of {_files(other.text)}.\n"
    return f"{first}# Check this recipe with `seq2seq check`, then train it with `seq2seq train`."


def _files(text: GivenText) -> str:
    paths = [str(path).encode("utf-8", "backslashreplace").decode()                    # names in any encoding
             for corpus in text.corpora for path in corpus.paths]
    named = [json.dumps(path, ensure_ascii=False) for path in paths[:MAX_NAMED]]
    others = [f"{len(paths) - MAX_NAMED:,} other files"] if len(paths) > MAX_NAMED else []
    return " and ".join([*named, *others])


def _training_text(draft: Draft, files: str, step: Step) -> str:
    """Return the lines of data.train. files: names of the files of the pairs."""
    pairs = f"{draft.pairs['train']:,} pairs"
    if (other := draft.other) is not None:
        source, target = other.languages
        comment, weight = ("", "") if other.weight == 1 else (
            f"    # In an epoch, each of these pairs occurs {other.weight} times, and each of the others once.\n",
            f", weight: {other.weight}")
        return f"""\
  train:
{comment}    - {{{files}{weight}}}  # {pairs}
    - {{source: other.{source}, target: other.{target}, languages: {{source: {source}, target: {target}}}}}  \
# {other.pairs:,} pairs
"""
    if step is not Step.FINAL or draft.monolingual is None:
        return f"  train: [{{{files}}}]  # {pairs}\n"
    return f"""\
  train:
    # In an epoch, each pair occurs {REAL_WEIGHT} times, and each translated sentence once.
    - {{{files}, weight: {REAL_WEIGHT}}}  # {pairs}
    # These sentences get their source from the model of {Step.REVERSE.value}: back-translation. It searches, because
    # what a model of little text samples has little to do with the sentence. The tag marks the translated sources.
    - {{target: {draft.monolingual.file}, translated_by: runs/{Step.REVERSE.run}, sampling: false, tag: <BT>}}  \
# {draft.monolingual.lines:,} sentences
"""


def _own_text(draft: Draft, step: Step) -> str:
    return f"the pairs or in {_file(draft)}" if step is Step.FINAL else "the training text"


def _file(draft: Draft) -> str:
    return draft.monolingual.file if draft.monolingual else ""


def _model(draft: Draft, settings: Settings) -> str:
    """Return the sections `tokenizer` and `model`."""
    after_cleaning = " after cleaning" if draft.kept != draft.pairs["train"] else ""
    pairs = draft.kept
    if draft.other is not None:
        pairs, after_cleaning = pairs + draft.other.kept, " after cleaning"
    return f"""\
# The size of the vocabulary follows from the amount of text.
tokenizer: {{vocab_size: auto}}
# Sizes: tiny, small, base, big. {size_for(pairs)} suits {pairs:,} pairs{after_cleaning}; \
a larger model needs more text and time.
model: {{base: {settings.size}}}
"""


def _consistency(value: float, step: Step) -> str:
    if not value:
        return ""
    helps = "  # Consistency training doubles the time of a step.\n" if step is Step.FINAL else (
        "  # Consistency training helps with little text and about 30 epochs. Write 0 if you lower max_steps to half.\n"
        "  # It doubles the time of a step.\n")
    return f"{helps}  consistency: {value:g}\n"
