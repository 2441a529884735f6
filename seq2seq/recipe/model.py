"""The `model` section of a recipe: the network, and what it is measured by."""

import warnings
from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from seq2seq.recipe.section import MistakeAt, Positions, Section, Share

# pydantic's BaseModel has a deprecated method of this name, which nobody here calls.
warnings.filterwarnings("ignore", 'Field name "copy" in "ModelSection" shadows')

Metric = Literal["bleu", "chrf", "ter", "exact", "perplexity", "word_perplexity", "character_perplexity"]
TRANSLATION_METRICS: tuple[Metric, ...] = ("bleu", "chrf", "ter", "exact")
PERPLEXITIES: tuple[Metric, ...] = ("perplexity", "word_perplexity", "character_perplexity")
Layers = Annotated[int, Field(ge=1, le=1000)]


class ModelSection(Section):
    """The network."""

    base: Annotated[str | None, Field(exclude=True)] = None
    """Size that comes with the package: `tiny`, `small`, `base`, `big` (Transformers) or `rnn_small`; or a file with
    `model:` and `training:` sections, relative to the recipe file. It fills in what the recipe does not say. Gone once
    the recipe is read."""
    type: Literal["transformer", "rnn", "pointer", "language_model"] = "transformer"
    """Architecture. `transformer`: Vaswani et al. 2017. `rnn`: Bahdanau et al. 2015, with one head unless `num_heads`
    says otherwise. `pointer`: Vinyals et al. 2015, recurrent too; the target file holds positions of the source's
    words, counted from 1 (`1 3 2`). `language_model`: the Transformer's decoder alone, which continues text."""
    d_model: Annotated[int, Field(gt=0, le=65_536)] = 512
    """Width of embeddings and of the states between sublayers; of an `rnn` or a `pointer`, of its decoder and of both
    directions of its encoder together."""
    encoder_layers: Layers = 6
    """Layers of the encoder. A language model has none."""
    decoder_layers: Layers = 6
    """Layers of the decoder."""
    num_heads: Annotated[int, Field(gt=0, le=256)] = 8
    """Heads of each attention; must divide `d_model`. Memory for the scores of attention grows with them."""
    score: Literal["scaled_dot", "dot", "additive", "bilinear"] | None = None
    """How attention compares a query with a key. Not set: `scaled_dot`, in an `rnn` `additive`."""
    normalize: Literal["softmax", "relu"] = "softmax"
    """What makes attention's weights of the scores."""
    selection: Literal["soft", "hard"] = "soft"
    """`soft` attends to a weighted mean; `hard` to one position, drawn in training: the cross-attention of the last
    decoder layer, or of an `rnn`."""
    window: Positions | None = None
    """Self-attention sees positions no further away than this. Not set: the whole sentence."""
    cell: Literal["gru", "lstm"] = "gru"
    """Recurrent unit of an `rnn` or a `pointer`."""
    input_feeding: bool = False
    """In an `rnn`, show the decoder what it made of the last step (Luong et al. 2015)."""
    copy: bool = False  # type: ignore[assignment]
    """Mix words of the vocabulary with pieces copied from the source, by a learned gate (See et al. 2017): for names
    and numbers that training has not seen. Needs `tokenizer.joint` and no label smoothing. So sure a model is best
    searched with `decoding.patience: 2`, or greedily."""
    feed_forward: Annotated[int, Field(gt=0, le=1_000_000)] = 2048
    """Width inside the feed-forward sublayers."""
    dropout: Share = 0.1
    """Dropout after the embedding and on the output of each sublayer."""
    activation: Literal["relu", "gelu", "silu"] = "relu"
    """Activation inside the feed-forward sublayers."""
    norm: Literal["post", "pre"] = "post"
    """Layer norm after each residual sum (the paper), or before each sublayer (easier to train when deep)."""
    positions: Literal["sinusoidal", "learned"] = "sinusoidal"
    """How positions are told apart."""
    max_positions: Positions = 1024
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
