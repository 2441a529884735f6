"""The recipe: its sections, and the rules between keys of different sections.

Each default and its documentation exist once, in the section.
"""

import os
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PrivateAttr, ValidationInfo, field_validator, model_validator

from seq2seq.errors import RecipeError
from seq2seq.recipe.base_section import MistakeAt, Section
from seq2seq.recipe.data_section import Data
from seq2seq.recipe.decoding_section import DecodingSection
from seq2seq.recipe.model_section import PERPLEXITIES, TRANSLATION_METRICS, Metric, ModelSection
from seq2seq.recipe.training_section import TrainingSection

RunName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]
LanguageCode = Annotated[str, Field(pattern=r"^[A-Za-z]{2,8}([_-][A-Za-z0-9]{1,8})*$")]


class Languages(Section):
    """Language codes of source and target."""

    source: LanguageCode | None = None
    """Code of the language to translate from, such as `de`. A language model has none."""
    target: LanguageCode
    """Code of the language to translate into, such as `en`. Chooses sacreBLEU's tokeniser."""

    @property
    def monolingual(self) -> bool:
        """True for a language model, which has no source language."""
        return self.source is None

    @property
    def pair(self) -> tuple[str, str]:
        """Source and target code.

        Raises:
            RecipeError: the model is a language model, which has no source.
        """
        if self.source is None:
            raise RecipeError("this is a language model: there is no text that it would translate, or attend to.")
        return self.source, self.target


VOCABULARY_SIZES = (260, 10_000_000)


def _number_or_auto(value: Any) -> Any:
    """Return a size or `auto`; refuse anything else with one message, where pydantic has one per type of the union."""
    least, most = VOCABULARY_SIZES
    if value == "auto" or isinstance(value, int) and not isinstance(value, bool) and least <= value <= most:
        return value
    found = "nothing" if value is None else value if isinstance(value, int | float) else f"'{value}'"
    raise ValueError(f"expected auto, or a whole number from {least} to {most:,}; found {found}")


VocabularySize = Annotated[
    Annotated[int, Field(ge=VOCABULARY_SIZES[0], le=VOCABULARY_SIZES[1])] | Literal["auto"],
    BeforeValidator(_number_or_auto)]


class TokenizerSection(Section):
    """The vocabulary, built from the training corpora: sentencepiece subwords, or whole words."""

    taken_from: str | None = None
    """Use the tokenizer of this model (a run or a bundle) instead of training a new one, so that the two models can
    decode together. A language model takes the target tokenizer. All other keys but `subword_sampling` are then
    ignored."""
    type: Literal["unigram", "bpe", "words"] = "unigram"
    """Unigram language model (Kudo 2018), byte-pair encoding (Sennrich et al. 2016), or whole `words`, separated by
    white space, where words that training has not seen become the unknown token. Not set for a `pointer`: `words`,
    which it needs."""
    vocab_size: VocabularySize = "auto"
    """Number of pieces, including 256 bytes and 3 symbols; for `words` the upper limit, the most frequent ones are
    kept. `auto` derives it from the training text: one piece for each different character, plus as many subwords as
    the square root of the number of all characters (at most 32,000, and no more than the text allows); 30,000 for
    `words`."""
    joint: bool = True
    """Train one vocabulary for both languages; false trains one per language, each of `vocab_size` pieces. The targets
    of a `pointer` are positions and always have a vocabulary of their own."""
    normalization: Literal["identity", "nmt_nfkc"] = "identity"
    """Unicode normalisation before tokenization. `nmt_nfkc` folds characters (， becomes a comma) and cannot be
    undone."""
    character_coverage: Annotated[float, Field(ge=0.98, le=1)] = 1.0
    """Share of the text that consists of characters with a piece of their own; rarer ones are encoded as bytes."""
    sample_lines: Annotated[int, Field(gt=0, le=1_000_000_000)] = 1_000_000
    """Number of lines sampled to train the tokenizer, both languages together."""
    subword_sampling: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Segment the training text differently in each epoch (subword regularisation): alpha of unigram sampling, or the
    dropout of BPE merges. 0 turns it off."""

    @field_validator("subword_sampling")
    @classmethod
    def _words_are_not_cut(cls, subword_sampling: float, info: ValidationInfo) -> float:
        if subword_sampling and info.data.get("type") == "words":
            raise ValueError("words are not cut into pieces; leave it out, or choose tokenizer.type: unigram")
        return subword_sampling


def _defaults_of(model: Any, metrics: Any) -> dict[str, dict[str, Any]]:
    """Return the defaults, by section, that depend on `model` and `metrics`, both unvalidated, and differ from the
    schema's."""
    model = model if isinstance(model, dict) else {}
    training: dict[str, Any] = {}
    tokenizer: dict[str, Any] = {}
    if model.get("type") == "language_model":
        training["best_metric"] = "perplexity"
    elif isinstance(metrics, list) and "bleu" not in metrics:
        training["best_metric"] = next((metric for metric in metrics if metric in ("chrf", "exact")), "loss")
    if model.get("type") == "pointer":
        tokenizer["type"] = "words"
    if model.get("type") == "pointer" or model.get("copy") is True:
        training["label_smoothing"] = 0.0
    return {name: section for name, section in (("training", training), ("tokenizer", tokenizer)) if section}


class Recipe(Section):
    """All settings of a training run."""

    name: RunName
    """Name of the run; it is saved in `runs/<name>`."""
    languages: Languages
    """Language codes of source and target."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 1
    """Seed of every random choice."""
    data: Data
    """Parallel text to train on, to validate with and to test with."""
    tokenizer: TokenizerSection = TokenizerSection()
    """The vocabulary, built from the training corpora: sentencepiece subwords, or whole words."""
    model: ModelSection = ModelSection()
    """The network."""
    metrics: Annotated[tuple[Metric, ...], Field(strict=False, min_length=1)] | None = None
    """Metrics of translations: BLEU, chrF, TER, or `exact`, the share of lines that equal their reference. Validation
    skips TER, which is slow. Not set: the first three, or the perplexities of a language model."""
    training: TrainingSection = TrainingSection()
    """Optimizer, batches, validation and checkpoints."""
    decoding: DecodingSection = DecodingSection()
    """Search options."""
    expected: dict[str, dict[Metric, Annotated[tuple[float, float], Field(strict=False)]]] = {}
    """Lowest and highest expected score, by test set and metric. Training warns about a score outside the range."""

    _directory: Path = PrivateAttr(default_factory=Path.cwd)

    @model_validator(mode="before")
    @classmethod
    def _defaults_follow_the_model(cls, values: Any) -> Any:
        """Fill in the defaults that depend on the type of the model, where the recipe has no value."""
        model = values.get("model") if isinstance(values, dict) else None
        defaults = _defaults_of(model, values.get("metrics")) if isinstance(values, dict) else {}
        filled = {section: keys | values.get(section, {}) for section, keys in defaults.items()
                  if isinstance(values.get(section, {}), dict)}
        return values | filled if filled else values

    @field_validator("model")
    @classmethod
    def _model_fits_data(cls, model: ModelSection, info: ValidationInfo) -> ModelSection:
        tokenizer: TokenizerSection | None = info.data.get("tokenizer")
        both_sides = model.type != "language_model"
        if both_sides and tokenizer and not tokenizer.joint and model.tied_embeddings == "all":
            raise MistakeAt(
                "tied_embeddings",
                "'all' shares one matrix between source and target, which needs "
                "tokenizer.joint: true. Write 'decoder' or 'none' here.",
            )
        if tokenizer and not tokenizer.joint and model.copy:
            raise MistakeAt(
                "copy",
                "a piece of the source can be copied where it means the same in the target, which needs "
                "tokenizer.joint: true.",
            )
        if tokenizer and model.type == "pointer" and tokenizer.type != "words":
            raise MistakeAt(
                "type",
                "a pointer's targets are positions of words: it needs tokenizer: {type: words}, found "
                f"'{tokenizer.type}'",
            )
        data: Data | None = info.data.get("data")
        if data and model.max_positions <= data.cleaning.max_pieces:
            pieces = data.cleaning.max_pieces
            raise MistakeAt(
                "max_positions",
                f"training sentences of {pieces} pieces and their end need at least "
                f"{pieces + 1}, found {model.max_positions}. Raise it, or lower "
                f"data.cleaning.max_pieces.",
            )
        return model

    @field_validator("training")
    @classmethod
    def _training_fits_model_and_metrics(cls, training: TrainingSection, info: ValidationInfo) -> TrainingSection:
        model: ModelSection | None = info.data.get("model")
        tokenizer: TokenizerSection | None = info.data.get("tokenizer")
        if training.start_from is not None and tokenizer and tokenizer.taken_from is not None:
            raise MistakeAt("start_from", "the model's own tokenizer comes with it. Leave tokenizer.taken_from out.")
        if model and model.type == "pointer" and training.label_smoothing:
            raise MistakeAt(
                "label_smoothing",
                "the words that it would give probability to are not in every source. A pointer needs "
                "training.label_smoothing: 0.",
            )
        if model and model.copy and training.label_smoothing:
            raise MistakeAt(
                "label_smoothing",
                "only what is generated could be smoothed, not what is copied. model.copy needs "
                "training.label_smoothing: 0.",
            )
        metrics = info.data.get("metrics") or (model.metrics if model else ())
        translates = model is not None and model.type != "language_model"
        if translates and metrics and training.best_metric not in (*metrics, "loss", "perplexity"):
            raise MistakeAt(
                "best_metric",
                f"'{training.best_metric}' is not among metrics: [{', '.join(metrics)}]. Choose one of these, loss "
                "or perplexity, or add it there.",
            )
        return training

    @field_validator("expected")
    @classmethod
    def _expectations_are_testable(
        cls, expected: dict[str, dict[Metric, tuple[float, float]]], info: ValidationInfo
    ) -> dict[str, dict[Metric, tuple[float, float]]]:
        data: Data | None = info.data.get("data")
        model: ModelSection | None = info.data.get("model")
        for name, ranges in expected.items():
            if data and name not in data.test:
                known = ", ".join(data.test) or "no test sets"
                raise MistakeAt(name, f"data.test has no '{name}', it has {known}")
            for metric, (low, high) in ranges.items():
                measures = info.data.get("metrics") or (model.metrics if model else (metric,))
                if metric not in measures:
                    raise MistakeAt(f"{name}.{metric}", f"this model is measured by {', '.join(measures)}")
                if low > high:
                    raise MistakeAt(f"{name}.{metric}", f"the lowest score comes first, found [{low}, {high}]")
        return expected

    @model_validator(mode="after")
    def _one_language_or_two(self) -> "Recipe":
        """Check that a language model has one language and monolingual text, and any other model has both sides."""
        alone = self.model.type == "language_model"
        if not alone and self.languages.source is None:
            raise MistakeAt("languages.source", f"missing. {Languages.model_fields['source'].description}")
        if alone and self.languages.source is not None:
            raise MistakeAt("languages.source", "a language model has one language, `target`; leave this out")
        for key, corpus in self.data.corpora_with_keys():
            if alone and corpus.text is None:
                raise MistakeAt(("data", *key), "a language model reads text alone: give `text` instead of `source` "
                                                "and `target`")
            if not alone and corpus.text is not None:
                raise MistakeAt(("data", *key, "text"), f"a model of type {self.model.type} needs `source` and "
                                                        "`target`; `text` is for model.type: language_model")
        for metric in self.metrics or ():
            if alone != (metric in PERPLEXITIES):
                raise MistakeAt("metrics", f"'{metric}' is not for model.type: {self.model.type}; expected some of "
                                           f"{', '.join(PERPLEXITIES if alone else TRANSLATION_METRICS)}")
        if alone and not self.tokenizer.joint:
            raise MistakeAt("tokenizer.joint", "a language model has one language and one vocabulary; leave this out")
        if alone and self.training.best_metric not in ("loss", "perplexity"):
            raise MistakeAt("training.best_metric", f"'{self.training.best_metric}' is of translations; a language "
                                                    "model is compared by loss or perplexity. Write one of them here, "
                                                    "or leave this out.")
        return self

    def __eq__(self, other: object) -> bool:
        """Compare the values of all keys; the directory a recipe was read from does not count."""
        return isinstance(other, Recipe) and self.model_dump() == other.model_dump()

    @property
    def measures(self) -> tuple[Metric, ...]:
        """`metrics`, or the default for this type of model if they are not set."""
        return self.metrics or self.model.metrics

    @property
    def directory(self) -> Path:
        """Directory that the recipe's paths are relative to: that of its file, absolute."""
        return self._directory

    @property
    def data_directory(self) -> Path:
        """Directory that the paths of the corpora are relative to (`data.root`), absolute."""
        return Path(os.path.abspath(self.directory / self.data.root))

    @property
    def tokenizer_model(self) -> Path | None:
        """Path of the model whose tokenizer is used; None if a new tokenizer is trained."""
        taken_from = self.tokenizer.taken_from or self.training.start_from
        return None if taken_from is None else self.directory / taken_from

    def with_directory(self, directory: Path) -> "Recipe":
        """Return a copy of the recipe whose paths are relative to `directory`."""
        copy = self.model_copy()
        copy._directory = Path(os.path.abspath(directory))
        return copy

    def resolve(self) -> "Recipe":
        """Return a copy with absolute paths, which is valid in any directory."""
        root = self.data_directory
        data = self.data.model_copy(
            update={
                "root": ".",
                "train": tuple(corpus.resolve(root, self.directory) for corpus in self.data.train),
                "valid": self.data.valid.resolve(root),
                "test": {name: corpus.resolve(root) for name, corpus in self.data.test.items()},
            }
        )
        tokenizer = self.tokenizer
        if tokenizer.taken_from is not None:
            other = os.path.abspath(self.directory / tokenizer.taken_from)
            tokenizer = tokenizer.model_copy(update={"taken_from": other})
        training = self.training
        if training.start_from is not None:
            start = os.path.abspath(self.directory / training.start_from)
            training = training.model_copy(update={"start_from": start})
        return self.model_copy(update={"data": data, "tokenizer": tokenizer, "training": training})

    def to_yaml(self) -> str:
        """Return the recipe as YAML, with every default written out."""
        from seq2seq.recipe.yaml_document import write_yaml

        return write_yaml(self.model_dump(mode="json", exclude_none=True))
