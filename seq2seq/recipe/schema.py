"""What a recipe may say: typed sections. A default stands here and nowhere else, and so does its documentation."""

import os
import warnings
from pathlib import Path
from typing import Annotated, Literal

from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    PrivateAttr,
    ValidationInfo,
    field_validator,
    model_validator,
)

from seq2seq.errors import RecipeError
from seq2seq.recipe.data import Data
from seq2seq.recipe.decoding import DecodingSection
from seq2seq.recipe.section import MistakeAt, Section

# pydantic's BaseModel has a deprecated method of this name, which nobody here calls.
warnings.filterwarnings("ignore", 'Field name "copy" in "ModelSection" shadows')

Metric = Literal["bleu", "chrf", "ter", "exact", "perplexity", "word_perplexity", "character_perplexity"]
TRANSLATION_METRICS: tuple[Metric, ...] = ("bleu", "chrf", "ter", "exact")
PERPLEXITIES: tuple[Metric, ...] = ("perplexity", "word_perplexity", "character_perplexity")
RunName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]
LanguageCode = Annotated[str, Field(pattern=r"^[A-Za-z]{2,8}([_-][A-Za-z0-9]{1,8})*$")]
Share = Annotated[float, Field(ge=0, lt=1)]
Layers = Annotated[int, Field(ge=1, le=1000)]


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


class TokenizerSection(Section):
    """The vocabulary, made from the training corpora; of subwords by sentencepiece."""

    taken_from: str | None = None
    """Another model, a run or a bundle, whose tokenizer is used instead of a new one, so that the two can be joined.
    A language model takes that of the target language. All other keys but `subword_sampling` then say nothing."""
    type: Literal["unigram", "bpe", "words"] = "unigram"
    """Unigram language model (Kudo 2018), byte-pair encoding (Sennrich et al. 2016), or whole `words`, which stand
    between white space; those that training has not seen are unknown."""
    vocab_size: Annotated[int, Field(ge=260)] = 8000
    """Number of pieces, among them 256 bytes and 3 symbols; of `words` the largest number, the most frequent are
    kept."""
    joint: bool = True
    """One vocabulary for both languages; false makes one for each, of `vocab_size` pieces. A pointer's targets are
    positions and always have their own."""
    normalization: Literal["identity", "nmt_nfkc"] = "identity"
    """What happens to text before it is cut. `nmt_nfkc` folds characters (， becomes a comma) and cannot be undone."""
    character_coverage: Annotated[float, Field(ge=0.98, le=1)] = 1.0
    """Share of the characters in the text that get a piece of their own; the others are written as bytes."""
    sample_lines: PositiveInt = 1_000_000
    """Lines drawn to train the tokenizer, both languages together."""
    subword_sampling: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Cut training text differently in each epoch: alpha of unigram sampling, dropout of BPE merges. 0 turns it off."""

    @field_validator("subword_sampling")
    @classmethod
    def _words_are_not_cut(cls, subword_sampling: float, info: ValidationInfo) -> float:
        if subword_sampling and info.data.get("type") == "words":
            raise ValueError("words are not cut into pieces; leave it out, or choose tokenizer.type: unigram")
        return subword_sampling


class ModelSection(Section):
    """The network."""

    base: Annotated[str | None, Field(exclude=True)] = None
    """File with `model:` and `training:` sections that are used where the recipe says nothing, relative to the recipe
    file. Gone once the recipe is read."""
    type: Literal["transformer", "rnn", "pointer", "language_model"] = "transformer"
    """Architecture. `transformer`: Vaswani et al. 2017. `rnn`: Bahdanau et al. 2015, with one head unless `num_heads`
    says otherwise. `pointer`: Vinyals et al. 2015, recurrent too; the target file holds positions of the source's
    words, counted from 1 (`1 3 2`). `language_model`: the Transformer's decoder alone, which continues text."""
    d_model: PositiveInt = 512
    """Width of embeddings and of the states between sublayers; of an `rnn` or a `pointer`, of its decoder and of both
    directions of its encoder together."""
    encoder_layers: Layers = 6
    """Layers of the encoder. A language model has none."""
    decoder_layers: Layers = 6
    """Layers of the decoder."""
    num_heads: PositiveInt = 8
    """Heads of each attention; must divide `d_model`."""
    score: Literal["scaled_dot", "dot", "additive", "bilinear"] | None = None
    """How attention compares a query with a key. Not set: `scaled_dot`, in an `rnn` `additive`."""
    normalize: Literal["softmax", "relu"] = "softmax"
    """What makes attention's weights of the scores."""
    selection: Literal["soft", "hard"] = "soft"
    """`soft` attends to a weighted mean; `hard` to one position, drawn in training: the cross-attention of the last
    decoder layer, or of an `rnn`."""
    window: PositiveInt | None = None
    """Self-attention sees positions no further away than this. Not set: the whole sentence."""
    cell: Literal["gru", "lstm"] = "gru"
    """Recurrent unit of an `rnn` or a `pointer`."""
    input_feeding: bool = False
    """In an `rnn`, show the decoder what it made of the last step (Luong et al. 2015)."""
    copy: bool = False  # type: ignore[assignment]
    """Mix words of the vocabulary with pieces copied from the source, by a learned gate (See et al. 2017): for names
    and numbers that training has not seen. Needs `tokenizer.joint` and no label smoothing."""
    feed_forward: PositiveInt = 2048
    """Width inside the feed-forward sublayers."""
    dropout: Share = 0.1
    """Dropout after the embedding and on the output of each sublayer."""
    activation: Literal["relu", "gelu", "silu"] = "relu"
    """Activation inside the feed-forward sublayers."""
    norm: Literal["post", "pre"] = "post"
    """Layer norm after each residual sum (the paper), or before each sublayer (easier to train when deep)."""
    positions: Literal["sinusoidal", "learned"] = "sinusoidal"
    """How positions are told apart."""
    max_positions: PositiveInt = 1024
    """Pieces of the longest sentence, its end included. `learned` has a vector for each position."""
    tied_embeddings: Literal["all", "decoder", "none"] = "all"
    """Which matrices are one: source, target and output (`all`), target and output (`decoder`), or `none`. A language
    model has no source: to it `all` and `decoder` are the same."""
    scale_embedding: bool = True
    """Multiply embeddings by the square root of `d_model`."""
    output_bias: bool = False
    """Add a learned bias to each word's score."""

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """What the finished model is measured by."""
        if self.type == "language_model":
            return PERPLEXITIES
        return ("bleu", "chrf", "ter")

    @field_validator("num_heads")
    @classmethod
    def _heads_divide_width(cls, num_heads: int, info: ValidationInfo) -> int:
        d_model = info.data.get("d_model", 0)
        if d_model % num_heads:
            raise ValueError(f"d_model ({d_model}) cannot be cut into {num_heads} heads of equal size")
        return num_heads

    @field_validator("selection")
    @classmethod
    def _draws_need_probabilities(cls, selection: str, info: ValidationInfo) -> str:
        if selection == "hard" and info.data.get("normalize") == "relu":
            raise ValueError("'hard' draws from probabilities, and normalize: relu makes none. Use softmax.")
        return selection

    @model_validator(mode="after")
    def _says_nothing_in_vain(self) -> "ModelSection":
        of_transformers = ("window", "feed_forward", "activation", "norm", "positions")
        useless = {"transformer": ("cell", "input_feeding"), "rnn": of_transformers,
                   "pointer": (*of_transformers, "score", "normalize", "selection", "input_feeding", "copy",
                               "tied_embeddings", "output_bias"),
                   "language_model": ("selection", "copy", "cell", "input_feeding")}[self.type]
        for key in useless:
            if getattr(self, key) != type(self).model_fields[key].default:
                raise MistakeAt(key, f"has no meaning in model.type: {self.type}. Leave it out.")
        return self

    @property
    def attention_score(self) -> str:
        """`score`, or what it is if it is not set."""
        return self.score or ("additive" if self.type == "rnn" else "scaled_dot")

    @field_validator("positions")
    @classmethod
    def _sinusoids_come_in_pairs(cls, positions: str, info: ValidationInfo) -> str:
        d_model = info.data.get("d_model", 0)
        if positions == "sinusoidal" and d_model % 2:
            raise ValueError(f"sinusoidal positions need an even d_model, found {d_model}")
        return positions


class Average(Section):
    """Averaging of checkpoints at the end of training."""

    kind: Literal["none", "last", "best"] = "none"
    """Average no checkpoints, the newest ones, or those with the best validation scores."""
    count: PositiveInt = 5
    """How many checkpoints are averaged; as many are kept until then."""


class TrainingSection(Section):
    """How the model is trained."""

    start_from: str | None = None
    """Another model, a run or a bundle (one that was imported, too), whose weights the training starts from:
    fine-tuning. Its tokenizer is taken over, and so is its `model` section where the recipe says nothing."""
    batch_tokens: PositiveInt = 4096
    """Target tokens per optimizer step."""
    accumulation: PositiveInt = 1
    """Parts in which a step is computed. More parts need less memory; the result is the same."""
    optimizer: Literal["adam", "adamw", "muon"] = "adam"
    """Adam, or Adam with decoupled weight decay, or Muon for the matrices of the layers and AdamW for the rest."""
    learning_rate: PositiveFloat = 7.0e-4
    """Learning rate at the end of the warm-up, its highest."""
    betas: Annotated[tuple[Share, Share], Field(strict=False)] = (0.9, 0.98)
    """Decay of Adam's running means of the gradient and of its square."""
    epsilon: PositiveFloat = 1.0e-9
    """Adam's epsilon."""
    weight_decay: NonNegativeFloat = 0.0
    """Weight decay; 0 turns it off."""
    warmup_steps: NonNegativeInt = 4000
    """Steps in which the learning rate rises linearly from 0."""
    schedule: Literal["inverse_sqrt", "linear", "cosine", "constant"] = "inverse_sqrt"
    """How the learning rate falls after the warm-up; `linear` and `cosine` reach 0 at `max_steps`."""
    max_steps: PositiveInt = 100_000
    """Optimizer steps of the whole training."""
    gradient_clip: NonNegativeFloat = 1.0
    """Longest gradient: longer ones are scaled to this norm. 0 turns it off."""
    label_smoothing: Share = 0.1
    """Probability that the training target gives to all words alike."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """Numbers of the computation; `auto` is bf16 on GPUs and CPUs that have it in hardware, else fp32."""
    validate_every: PositiveInt = 500
    """Steps between validations."""
    valid_sentences: PositiveInt | None = None
    """Translate only the first so many validation sentences for BLEU. Not set: all."""
    best_metric: Literal["bleu", "chrf", "exact", "loss", "perplexity"] = "bleu"
    """Validation score that decides which model is best: one of `metrics`, or `loss` or `perplexity`. A language model
    has the last two only."""
    early_stopping: NonNegativeInt = 0
    """Stop after this many validations without improvement; 0 never does."""
    keep_checkpoints: PositiveInt = 3
    """Newest checkpoints that are kept."""
    checkpoint_minutes: Annotated[float, Field(ge=0, le=2)] = 2.0
    """Most minutes of work that a crash may lose. 0 saves after each step."""
    average: Average = Average()
    """Averaging of checkpoints at the end of training."""
    ema_decay: Share = 0.0
    """Decay of a running mean of the weights, which is then validated and kept as the model; 0 turns it off."""
    divergence: Literal["stop", "lower_rate"] = "stop"
    """What follows when the loss blows up, or many steps in a row have no finite gradient: `stop` explains it,
    `lower_rate` goes back to the last good checkpoint and halves the learning rate."""
    log_every: PositiveInt = 50
    """Steps between lines of the log."""
    threads: PositiveInt | None = None
    """Threads of a computation on the CPU. Not set: torch decides."""


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
                                                    "model is compared by loss or perplexity. Write one of them here.")
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
