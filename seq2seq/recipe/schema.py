"""A recipe: its sections, and what they owe to one another.

Defaults stand in the sections and nowhere else, and so does their documentation.
"""

import os
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PrivateAttr, ValidationInfo, field_validator, model_validator

from seq2seq.errors import RecipeError
from seq2seq.recipe.data import Data
from seq2seq.recipe.decoding import DecodingSection
from seq2seq.recipe.model import PERPLEXITIES, TRANSLATION_METRICS, Metric, ModelSection
from seq2seq.recipe.section import MistakeAt, Section
from seq2seq.recipe.training import TrainingSection

RunName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]
LanguageCode = Annotated[str, Field(pattern=r"^[A-Za-z]{2,8}([_-][A-Za-z0-9]{1,8})*$")]


class Languages(Section):
    """The two languages, as codes."""

    source: LanguageCode | None = None
    """Code of the language to translate from, such as `de`. A language model has none."""
    target: LanguageCode
    """Code of the language to translate into, such as `en`. Chooses sacreBLEU's tokeniser."""

    @property
    def monolingual(self) -> bool:
        """There is no language to translate from: the model is a language model."""
        return self.source is None

    @property
    def pair(self) -> tuple[str, str]:
        """Both codes.

        Raises:
            RecipeError: there is no language to translate from.
        """
        if self.source is None:
            raise RecipeError("this is a language model: there is no text that it would translate, or attend to.")
        return self.source, self.target


VOCABULARY_SIZES = (260, 10_000_000)


def _number_or_auto(value: Any) -> Any:
    """Refuse what is neither a size nor `auto` in one message; pydantic has one for each type of a union."""
    least, most = VOCABULARY_SIZES
    if value == "auto" or isinstance(value, int) and not isinstance(value, bool) and least <= value <= most:
        return value
    found = "nothing" if value is None else value if isinstance(value, int | float) else f"'{value}'"
    raise ValueError(f"expected auto, or a whole number from {least} to {most:,}; found {found}")


VocabularySize = Annotated[
    Annotated[int, Field(ge=VOCABULARY_SIZES[0], le=VOCABULARY_SIZES[1])] | Literal["auto"],
    BeforeValidator(_number_or_auto)]


class TokenizerSection(Section):
    """The vocabulary, made from the training corpora; of subwords by sentencepiece."""

    taken_from: str | None = None
    """Another model, a run or a bundle, whose tokenizer is used instead of a new one, so that the two can be joined.
    A language model takes that of the target language. All other keys but `subword_sampling` then say nothing."""
    type: Literal["unigram", "bpe", "words"] = "unigram"
    """Unigram language model (Kudo 2018), byte-pair encoding (Sennrich et al. 2016), or whole `words`, which stand
    between white space; those that training has not seen are unknown. Not set for a `pointer`: `words`, which it
    needs."""
    vocab_size: VocabularySize = "auto"
    """Number of pieces, among them 256 bytes and 3 symbols; of `words` the largest number, the most frequent are
    kept. `auto` suits it to the training text: a piece for each different character, and as many subwords as the square
    root of the number of all characters, at most 32,000, or fewer where the text does not give so many; of `words`,
    30,000."""
    joint: bool = True
    """One vocabulary for both languages; false makes one for each, each of `vocab_size` pieces. A pointer's targets are
    positions and always have their own."""
    normalization: Literal["identity", "nmt_nfkc"] = "identity"
    """What happens to text before it is cut. `nmt_nfkc` folds characters (， becomes a comma) and cannot be undone."""
    character_coverage: Annotated[float, Field(ge=0.98, le=1)] = 1.0
    """Share of the characters in the text that get a piece of their own; the others are written as bytes."""
    sample_lines: Annotated[int, Field(gt=0, le=1_000_000_000)] = 1_000_000
    """Lines drawn to train the tokenizer, both languages together."""
    subword_sampling: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Cut training text differently in each epoch: alpha of unigram sampling, dropout of BPE merges. 0 turns it off."""

    @field_validator("subword_sampling")
    @classmethod
    def _words_are_not_cut(cls, subword_sampling: float, info: ValidationInfo) -> float:
        if subword_sampling and info.data.get("type") == "words":
            raise ValueError("words are not cut into pieces; leave it out, or choose tokenizer.type: unigram")
        return subword_sampling


def _defaults_of(model: Any, metrics: Any) -> dict[str, dict[str, Any]]:
    """Defaults, by section, that differ from those in the schema because of what stands in `model` and `metrics`, which
    nobody has checked yet."""
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
    """Everything that decides a training run."""

    name: RunName
    """What the run is called; it is kept in `runs/<name>`."""
    languages: Languages
    """The two languages, as codes."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 1
    """Every random choice follows from it."""
    data: Data
    """Parallel text to train on, to validate with and to test with."""
    tokenizer: TokenizerSection = TokenizerSection()
    """The subword vocabulary."""
    model: ModelSection = ModelSection()
    """The network."""
    metrics: Annotated[tuple[Metric, ...], Field(strict=False, min_length=1)] | None = None
    """What translations are measured by: BLEU, chrF, TER, or `exact`, the share of lines that equal their reference.
    Validation leaves TER out, for it is slow. Not set: the first three; of a language model its perplexities."""
    training: TrainingSection = TrainingSection()
    """How the model is trained."""
    decoding: DecodingSection = DecodingSection()
    """How translations are searched."""
    expected: dict[str, dict[Metric, Annotated[tuple[float, float], Field(strict=False)]]] = {}
    """Lowest and highest score expected, by test name and metric. Training warns when a score lies outside."""

    _directory: Path = PrivateAttr(default_factory=Path.cwd)

    @model_validator(mode="before")
    @classmethod
    def _defaults_follow_the_model(cls, values: Any) -> Any:
        """Fill in what a type of model needs other than the defaults, where the recipe does not say it."""
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
        """A language model is of one language, has text alone and translates nothing; others need both sides."""
        alone = self.model.type == "language_model"
        if not alone and self.languages.source is None:
            raise MistakeAt("languages.source", f"missing. {Languages.model_fields['source'].description}")
        if alone and self.languages.source is not None:
            raise MistakeAt("languages.source", "a language model has one language, `target`; leave this out")
        for key, corpus in self.data.keyed_corpora():
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
        """Recipes are equal when they say the same. Where they were read from is no part of it."""
        return isinstance(other, Recipe) and self.model_dump() == other.model_dump()

    @property
    def measures(self) -> tuple[Metric, ...]:
        """`metrics`, or what they are if they are not set."""
        return self.metrics or self.model.metrics

    @property
    def directory(self) -> Path:
        """Where the recipe's relative paths start: the directory of its file, absolute."""
        return self._directory

    @property
    def data_directory(self) -> Path:
        """Where the relative paths of the corpora start, absolute."""
        return Path(os.path.abspath(self.directory / self.data.root))

    @property
    def tokenizer_model(self) -> Path | None:
        """The model that the tokenizer is taken from, if it is."""
        taken_from = self.tokenizer.taken_from or self.training.start_from
        return None if taken_from is None else self.directory / taken_from

    def located(self, directory: Path) -> "Recipe":
        """The same recipe, with relative paths that start in `directory`."""
        copy = self.model_copy()
        copy._directory = Path(os.path.abspath(directory))
        return copy

    def resolve(self) -> "Recipe":
        """The same recipe with absolute paths, so that it means the same wherever its file lies."""
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
        """The recipe as a file, with every default written out."""
        from seq2seq.recipe.document import write_yaml

        return write_yaml(self.model_dump(mode="json", exclude_none=True))
