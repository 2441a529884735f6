"""The `model` section of a recipe: the network and its default metrics."""

import warnings
from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from seq2seq.recipe.base_section import MistakeAt, Positions, Section, Share

# pydantic's BaseModel has a deprecated method of this name, which nobody here calls.
warnings.filterwarnings("ignore", 'Field name "copy" in "ModelSection" shadows')

Metric = Literal["bleu", "chrf", "ter", "exact", "perplexity", "word_perplexity", "character_perplexity"]
TRANSLATION_METRICS: tuple[Metric, ...] = ("bleu", "chrf", "ter", "exact")
PERPLEXITIES: tuple[Metric, ...] = ("perplexity", "word_perplexity", "character_perplexity")
# Building a model of millions of layers takes hours, even on the meta device.
Layers = Annotated[int, Field(ge=1, le=1000)]


class ModelSection(Section):
    """Architecture and sizes of the network."""

    base: Annotated[str | None, Field(exclude=True)] = None
    """Size that comes with the package: `tiny`, `small`, `base`, `big` (Transformers) or `rnn_small`; or a file with
    `model:` and `training:` sections, relative to the recipe file. It provides the values that the recipe leaves out,
    and does not appear in the saved recipe."""
    type: Literal["transformer", "rnn", "pointer", "language_model"] = "transformer"
    """Architecture. `transformer`: Vaswani et al. 2017. `rnn`: Bahdanau et al. 2015, with one head unless `num_heads`
    is set. `pointer`: Vinyals et al. 2015, also recurrent; the target file contains positions of source words, counted
    from 1 (`1 3 2`). `language_model`: a decoder-only Transformer, which continues text."""
    d_model: Annotated[int, Field(gt=0, le=65_536)] = 512
    """Width of embeddings and hidden states. In an `rnn` or a `pointer`, width of the decoder, and of both directions
    of the encoder together."""
    encoder_layers: Layers = 6
    """Number of encoder layers. A language model has none."""
    decoder_layers: Layers = 6
    """Number of decoder layers."""
    num_heads: Annotated[int, Field(gt=0, le=256)] = 8
    """Number of attention heads; must divide `d_model`. More heads need more memory for attention scores."""
    score: Literal["scaled_dot", "dot", "additive", "bilinear"] | None = None
    """Scoring function of attention. Not set: `additive` in an `rnn`, else `scaled_dot`."""
    normalize: Literal["softmax", "relu"] = "softmax"
    """Function that turns attention scores into weights."""
    selection: Literal["soft", "hard"] = "soft"
    """`soft` attends to the weighted mean of all positions; `hard` to a single position, sampled in training, in the
    cross-attention of the last decoder layer, or of an `rnn`."""
    window: Positions | None = None
    """Largest distance between positions in self-attention. Not set: the whole sentence."""
    cell: Literal["gru", "lstm"] = "gru"
    """Recurrent unit of an `rnn` or a `pointer`."""
    input_feeding: bool = False
    """In an `rnn`, feed the attentional hidden state of the previous step to the decoder (Luong et al. 2015)."""
    copy: bool = False  # type: ignore[assignment]
    """Copy mechanism: a learned gate mixes the vocabulary's distribution with a copy of source pieces (See et al.
    2017), for names and numbers that training has not seen. Needs `tokenizer.joint` and no label smoothing. Its
    distributions are sharp: use `decoding.patience: 2`, or greedy search."""
    feed_forward: Annotated[int, Field(gt=0, le=1_000_000)] = 2048
    """Hidden width of the feed-forward sublayers."""
    dropout: Share = 0.1
    """Dropout after the embedding and on the output of each sublayer."""
    activation: Literal["relu", "gelu", "silu"] = "relu"
    """Activation of the feed-forward sublayers."""
    norm: Literal["post", "pre"] = "post"
    """Layer norm after each residual sum (as in the paper), or before each sublayer (easier to train when deep)."""
    positions: Literal["sinusoidal", "learned"] = "sinusoidal"
    """Positional encoding: fixed sinusoids, or a learned embedding."""
    max_positions: Positions = 1024
    """Length of the longest sentence in pieces, including end of sentence. `learned` has one vector per position."""
    tied_embeddings: Literal["all", "decoder", "none"] = "all"
    """Embedding matrices that are shared: source, target and output (`all`), target and output (`decoder`), or `none`.
    For a language model, which has no source, `all` and `decoder` are the same."""
    scale_embedding: bool = True
    """Multiply embeddings by the square root of `d_model`."""
    output_bias: bool = False
    """Add a learned bias to the logits."""

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """Default metrics of the finished model."""
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
        """`score`, or its default for this type of model if it is not set."""
        return self.score or ("additive" if self.type == "rnn" else "scaled_dot")

    @field_validator("positions")
    @classmethod
    def _sinusoids_come_in_pairs(cls, positions: str, info: ValidationInfo) -> str:
        d_model = info.data.get("d_model", 0)
        if positions == "sinusoidal" and d_model % 2:
            raise ValueError(f"sinusoidal positions need an even d_model, found {d_model}")
        return positions
