"""The recipe: its sections, and the validation rules that involve several sections.

Each default and its documentation are defined only once, in the section of the key.
"""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

from pydantic import (
    Field,
    PrivateAttr,
    SerializationInfo,
    SerializeAsAny,
    ValidationInfo,
    field_serializer,
    field_validator,
    model_validator,
)

from seq2seq.recipe.base_section import (
    RecipeValueError,
    Section,
    SectionsError,
    collecting,
    describe_keys,
    raise_all,
    refuse_if,
)
from seq2seq.recipe.combinations import COMBINATIONS, refuse_combinations
from seq2seq.recipe.data_section import Corpus, Data, Languages, OneLine
from seq2seq.recipe.decoding_section import DecodingSection
from seq2seq.recipe.directions import check_directions, direction_into, directions_of, targets_of, with_languages
from seq2seq.recipe.model_section import AnyModel, ModelSection, TransformerSection, section_of_type
from seq2seq.recipe.task import RANGES, TRANSLATION, Metric, Task
from seq2seq.recipe.tokenizer_section import TokenizerSection
from seq2seq.recipe.training_section import TrainingSection

RunName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]

def _dependent_defaults(model: Any, metrics: Any) -> dict[str, dict[str, Any]]:
    """Return the defaults that depend on `model` and `metrics` and differ from those of the schema, by section.

    model, metrics: unvalidated values.
    """
    model = model if isinstance(model, dict) else {}
    section = section_of_type(model) or TransformerSection
    defaults = section.dependent_defaults(model)
    if section.task.has_source and isinstance(metrics, list) and "bleu" not in metrics:
        best = next((metric for metric in metrics if metric in ("chrf", "exact")), "loss")
        defaults.setdefault("training", {})["best_metric"] = best
    return defaults


def _check_metrics(recipe: Any, errors: list[SectionsError]) -> None:
    """Append an error for each metric that is not for the task. recipe: `task`, and the sections that have no errors.
    """
    for metric in getattr(recipe, "metrics", None) or ():
        with collecting(errors):
            refuse_if(metric not in recipe.task.metrics, "metrics", f"'{metric}' is not for model.type: "
                      f"{recipe.model.type}; expected some of {', '.join(recipe.task.metrics)}")
    with collecting(errors):
        best = recipe.training.best_metric if hasattr(recipe, "training") else "loss"
        refuse_if(not recipe.task.has_source and best not in ("loss", "perplexity"), "training.best_metric",
                  f"'{best}' is a metric of translations; for a language model, write loss or perplexity, or leave "
                  "this key out.")


def _check_sides(recipe: Any, errors: list[SectionsError]) -> None:
    """Append an error for each language or corpus whose sides do not fit the task. recipe: as in `_check_metrics`."""
    monolingual = not recipe.task.has_source
    with collecting(errors):
        refuse_if(not monolingual and recipe.languages.source is None, "languages.source",
                  f"missing. {describe_keys(Languages)['source']}")
        refuse_if(monolingual and recipe.languages.source is not None, "languages.source",
                  "a language model has only a `target` language; leave this key out")
    for key, corpus in recipe.data.corpora_with_keys():
        with collecting(errors):
            refuse_if(monolingual and corpus.text is None and not corpus.is_only_named, ("data", *key),
                      "a language model reads monolingual text: set `text` instead of `source` and `target`")
            refuse_if(not monolingual and corpus.text is not None, ("data", *key, "text"),
                      f"a model of type {recipe.model.type} needs `source` and `target`; `text` is only for "
                      "language models")


class Recipe(Section):
    """All settings of a training run."""

    name: RunName
    """Name of the run, which is saved in `runs/<name>`."""
    license: OneLine | None = None
    """Licence under which you publish the model, such as `cc-by-4.0`, for its model card. Not set: `not stated`."""
    languages: Languages
    """Language codes of source and target."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 1
    """Seed of all random choices in training. Samples in decoding depend on `decoding.seed` instead."""
    data: Data
    """Parallel text for training, validation and test."""
    tokenizer: TokenizerSection = TokenizerSection()
    """The vocabulary: sentencepiece subwords or whole words, trained on the training corpora."""
    model: SerializeAsAny[AnyModel] = TransformerSection()
    """Architecture and sizes of the network."""
    metrics: Annotated[tuple[Metric, ...], Field(strict=False, min_length=1)] | None = None
    """Metrics of translations: BLEU, chrF, TER, or `exact`, the percentage of lines that equal their reference.
    Validation skips TER, which is slow. Not set: BLEU, chrF and TER. A language model has the metrics `perplexity`,
    `word_perplexity` and `character_perplexity`, and uses all three if this key is not set."""
    training: TrainingSection = TrainingSection()
    """Optimizer, batches, validation and checkpoints."""
    decoding: DecodingSection = DecodingSection()
    """Options of search and sampling."""
    expected: dict[str, dict[Metric, Annotated[tuple[float, float], Field(strict=False)]]] = {}
    """Lowest and highest expected score, by test set and metric. `train` and `evaluate` warn if a score is outside."""

    _directory: Path = PrivateAttr(default_factory=Path.cwd)

    @model_validator(mode="before")
    @classmethod
    def _fill_in_dependent_defaults(cls, values: Any) -> Any:
        """Fill in missing keys whose defaults depend on the type of the model or on the metrics."""
        model = values.get("model") if isinstance(values, dict) else None
        defaults = _dependent_defaults(model, values.get("metrics")) if isinstance(values, dict) else {}
        filled = {section: keys | values.get(section, {}) for section, keys in defaults.items()
                  if isinstance(values.get(section, {}), dict)}
        return values | filled if isinstance(values, dict) else values

    @field_validator("data")
    @classmethod
    def _fill_in_languages(cls, data: Data, info: ValidationInfo) -> Data:
        """Give every corpus its languages, so that nothing later depends on which direction `languages` names."""
        languages: Languages | None = info.data.get("languages")
        return with_languages(data, languages) if languages else data

    @field_serializer("data")
    def _as_written(self, data: Data, info: SerializationInfo) -> Any:
        """Return the data without the languages that corpora share with the recipe."""
        short = data.with_corpora(lambda corpus: corpus if corpus.languages != self.languages else
                                  corpus.model_copy(update={"languages": None}))
        return short.model_dump(mode=info.mode, exclude_none=info.exclude_none, exclude_defaults=info.exclude_defaults,
                                exclude_unset=info.exclude_unset)

    @field_validator("model")
    @classmethod
    def _check_positions(cls, model: ModelSection, info: ValidationInfo) -> ModelSection:
        pieces = info.data["data"].cleaning.max_pieces if "data" in info.data else 0
        refuse_if(model.max_positions <= pieces, "max_positions", f"training sentences of {pieces} pieces and `</s>` "
                  f"need at least {pieces + 1} positions, found {model.max_positions}. Raise max_positions, or lower "
                  "data.cleaning.max_pieces.")
        return model

    @field_validator("training")
    @classmethod
    def _check_best_metric(cls, training: TrainingSection, info: ValidationInfo) -> TrainingSection:
        model: ModelSection | None = info.data.get("model")
        metrics = info.data.get("metrics") or (model.task.default_metrics if model else ())
        if model and model.task.has_source and metrics and training.best_metric not in (*metrics, "loss", "perplexity"):
            raise RecipeValueError(
                "best_metric", f"'{training.best_metric}' is not in metrics: [{', '.join(metrics)}]. Choose "
                f"{''.join(f'{metric}, ' for metric in metrics if metric != 'ter')}loss or perplexity, or add it to "
                "metrics.")
        return training

    @field_validator("decoding")
    @classmethod
    def _refuse_combinations(cls, decoding: DecodingSection, info: ValidationInfo) -> DecodingSection:
        """Check the combinations with the last of the sections, so that errors in other keys are reported, too."""
        of_model = info.data["model"].combinations if "model" in info.data else ()
        refuse_combinations((*COMBINATIONS, *of_model), {**info.data, "decoding": decoding})
        return decoding

    @field_validator("expected")
    @classmethod
    def _check_several_sections(
        cls, expected: dict[str, dict[Metric, tuple[float, float]]], info: ValidationInfo
    ) -> dict[str, dict[Metric, tuple[float, float]]]:
        """Check the rules that involve several sections with the last key, so that errors in other keys are reported,
        too. A rule is skipped if one of its sections has errors."""
        recipe = SimpleNamespace(**info.data)
        errors: list[SectionsError] = []
        if "model" in info.data:
            recipe.task = recipe.model.task
            _check_metrics(recipe, errors)
        if {"languages", "data", "model"} <= info.data.keys():
            _check_sides(recipe, errors)
            check_directions(recipe, errors)
        for name, ranges in expected.items():
            with collecting(errors):
                known = recipe.data.test if "data" in info.data else {name: None}
                refuse_if(name not in known, f"expected.{name}", f"data.test has no '{name}'; it has "
                          f"{', '.join(known) or 'no test sets'}")
            for metric, (low, high) in ranges.items():
                defaults = recipe.task.default_metrics if "model" in info.data else (metric,)
                measures = info.data.get("metrics") or defaults
                key = f"expected.{name}.{metric}"
                with collecting(errors):
                    refuse_if(metric not in measures, key, f"not in the metrics of this recipe: {', '.join(measures)}")
                with collecting(errors):
                    refuse_if(low > high, key, f"the lowest score must be first, found [{low}, {high}]")
                with collecting(errors):
                    lowest, highest = RANGES[metric]
                    refuse_if(high < lowest or low > highest, key, f"the metric is from {lowest:g} to {highest:g}, so "
                              f"no score is from {low:g} to {high:g}")
        raise_all(errors)
        return expected

    def __eq__(self, other: object) -> bool:
        """Compare the values of all keys, but not the directory that paths are relative to."""
        return isinstance(other, Recipe) and self.model_dump() == other.model_dump()

    @property
    def measures(self) -> tuple[Metric, ...]:
        """Metrics of the recipe: `metrics`, or the default metrics of this type of model."""
        return self.metrics or self.task.default_metrics

    @property
    def task(self) -> Task:
        return self.model.task

    @property
    def directions(self) -> tuple[Languages, ...]:
        """Directions of the training corpora. If the key `languages` is one of them, it is first."""
        return directions_of(self.data, self.languages)

    @property
    def target_languages(self) -> list[str]:
        """Distinct target languages of the directions. If there are several, the vocabulary needs a token of each."""
        return targets_of(self.directions)

    @property
    def tags(self) -> tuple[str, ...]:
        """Distinct tags of the training corpora, with which the model reads their sources."""
        return tuple(dict.fromkeys(corpus.tag for corpus in self.data.train if corpus.tag))

    def into(self, target_language: str | None, source_language: str | None = None) -> "Recipe":
        """Return a copy whose `languages` are the direction between two languages (see `direction_into`). The target
        language that is None is that of `languages`. If both are None, return `self`."""
        if target_language is None and source_language is None:
            return self
        direction = direction_into(target_language or self.languages.target, self.directions, source_language)
        return self.model_copy(update={"languages": direction})

    def languages_of(self, corpus: Corpus) -> Languages:
        """Return the languages of a corpus: its own, or those of the recipe."""
        return corpus.languages or self.languages

    def language_of(self, corpus: Corpus) -> str:
        """Return `Source.language` of the sources of a corpus: its target language. A model with a single target
        language reads all corpora in this language; a model that does not translate has none ("")."""
        if self.task is not TRANSLATION:
            return ""
        return self.languages_of(corpus).target if len(self.target_languages) > 1 else self.languages.target

    @property
    def resamples_epochs(self) -> bool:
        """True if the training text or its segmentation differs from epoch to epoch."""
        return bool(self.tokenizer.subword_sampling or self.data.augmentation)

    @property
    def keeps_training_text(self) -> bool:
        """True if training needs the text itself, not only its ids."""
        return self.resamples_epochs or bool(self.training.guided_alignment)

    @property
    def max_input_pieces(self) -> int:
        """Maximum number of pieces of a text that is translated as one part. Longer text is translated in several
        parts; if targets are positions, longer text is an error."""
        accepted = self.model.max_positions - 1                                 # without `</s>`
        return min(accepted, self.data.cleaning.max_pieces) if self.task.target_is_text else accepted

    @property
    def directory(self) -> Path:
        """Absolute path of the directory of the recipe file, which paths in the recipe are relative to."""
        return self._directory

    @property
    def data_directory(self) -> Path:
        """Absolute path of the directory that paths of corpora are relative to (`data.root`)."""
        return Path(os.path.abspath(self.directory / self.data.root))

    @property
    def tokenizer_model(self) -> Path | None:
        """Path of the model whose tokenizer the training uses; None if it trains a new tokenizer."""
        taken_from = self.tokenizer.taken_from or self.training.start_from
        return None if taken_from is None else self.directory / taken_from

    def with_directory(self, directory: Path) -> "Recipe":
        """Return a copy of the recipe in which paths are relative to `directory`, without changing the paths."""
        copy = self.model_copy()
        copy._directory = Path(os.path.abspath(directory))
        return copy

    def for_directory(self, directory: Path) -> "Recipe":
        """Return a copy of the recipe to be saved in another directory. Relative paths lead from there to the same
        files, also after the project with the recipe, its text and this directory has moved. Absolute paths stay."""
        directory = Path(os.path.abspath(directory))

        def from_there(path: str | None) -> str | None:
            if path is None or os.path.isabs(path):
                return path
            # Real paths, because `..` after a symbolic link leads out of the directory behind the link.
            real = os.path.realpath(self.directory / path)
            try:
                return os.path.relpath(real, os.path.realpath(directory))
            except ValueError:                                                  # on another drive of Windows
                return real

        train = tuple(corpus.model_copy(update={"translated_by": tuple(map(from_there, corpus.translated_by))})
                      if corpus.translated_by else corpus for corpus in self.data.train)
        return self.model_copy(update={
            "data": self.data.model_copy(update={"root": from_there(self.data.root), "train": train}),
            "tokenizer": self.tokenizer.model_copy(update={"taken_from": from_there(self.tokenizer.taken_from)}),
            "training": self.training.model_copy(update={"start_from": from_there(self.training.start_from)}),
        }).with_directory(directory)

    def for_bundle(self) -> "Recipe":
        """Return a copy of the recipe for a bundle, which names no file: its corpora only have names, languages and
        addresses."""
        return self.model_copy(update={
            "data": self.data.with_corpora(lambda corpus: corpus.for_bundle()).model_copy(update={"root": "."}),
            "tokenizer": self.tokenizer.model_copy(update={"taken_from": None}),
            "training": self.training.model_copy(update={"start_from": None, "freeze": ()}),
        })

    def to_yaml(self) -> str:
        """Return the recipe as YAML, including all defaults. Keys that are not set and have no default are omitted."""
        from seq2seq.recipe.yaml_document import write_yaml

        return write_yaml(self.model_dump(mode="json", exclude_none=True))
