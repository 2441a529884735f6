"""The `model` section of a recipe: architecture and sizes of the network."""

import warnings
from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator

from seq2seq.recipe.base_section import Positions, Section, Share
from seq2seq.recipe.task import TASKS, Task

# The key `copy` shadows a deprecated method of pydantic's BaseModel, which seq2seq does not call.
warnings.filterwarnings("ignore", 'Field name "copy" in "ModelSection" shadows')

# Building a model of millions of layers takes hours, even on the meta device.
Layers = Annotated[int, Field(ge=1, le=1000)]


class ModelSection(Section):
    """Architecture and sizes of the network."""

    base: Annotated[str | None, Field(exclude=True)] = None
    """Size that comes with the package: `tiny`, `small`, `base`, `big` (Transformers) or `rnn_small`; or path of a file
    with `model:` and `training:` sections, relative to the recipe file. Keys of these sections that the recipe does not
    set are taken from the base. The recipe that a run stores contains the values of the base, but not this key."""
    type: Literal["transformer", "rnn", "pointer", "language_model"] = "transformer"
    """Architecture. `transformer`: Vaswani et al. 2017. `rnn`: Bahdanau et al. 2015 (but with `num_heads` attention
    heads instead of one). `pointer`: recurrent pointer network (Vinyals et al. 2015), whose target file contains
    positions of source words, numbered from 1 (`1 3 2`). `language_model`: decoder-only Transformer, which continues
    text."""
    d_model: Annotated[int, Field(gt=0, le=65_536)] = 512
    """Width of embeddings and hidden states. In an `rnn` or a `pointer`, width of the decoder, and total width of the
    two directions of the encoder."""
    encoder_layers: Layers = 6
    """Number of encoder layers. A language model has none."""
    decoder_layers: Layers = 6
    """Number of decoder layers."""
    tied_decoder_layers: bool = False
    """All decoder layers of a `transformer` share their weights (Dabre and Fujita 2019, arXiv:1807.05353). The model is
    smaller, but not faster."""
    num_heads: Annotated[int, Field(gt=0, le=256)] = 8
    """Number of attention heads. It must divide `d_model`. More heads need more memory for attention scores."""
    score: Literal["scaled_dot", "dot", "additive", "bilinear"] | None = None
    """Scoring function of attention. Not set: `additive` in an `rnn`, else `scaled_dot`."""
    normalize: Literal["softmax", "relu"] = "softmax"
    """Function that turns attention scores into weights."""
    selection: Literal["soft", "hard", "structured"] = "soft"
    """`soft`: attention to the weighted mean of all positions. `hard`: attention to a single source position, which is
    sampled in training. `structured` (Kim et al. 2017, arXiv:1702.00887): the weights are the marginals of a linear
    chain in which the selection of a source position also depends on its neighbours. `hard` and `structured` apply to
    the cross-attention of the last decoder layer of a `transformer`, and to the attention of an `rnn`; all other
    attention is soft."""
    window: Positions | None = None
    """Maximum distance between positions that attend to each other in self-attention. Not set: no limit."""
    cell: Literal["gru", "lstm"] = "gru"
    """Recurrent unit of an `rnn` or a `pointer`."""
    input_feeding: bool = False
    """In an `rnn`, feed the attentional hidden state of the previous step to the decoder (Luong et al. 2015)."""
    copy: bool = False  # type: ignore[assignment]
    """Copy mechanism for names and numbers that are not in the training text: a learned gate mixes the distribution
    over the vocabulary with a distribution over source pieces (See et al. 2017). The mechanism needs
    `tokenizer.joint: true` and no label smoothing. The mixed distributions are sharp, so use `decoding.patience: 2` or
    greedy search."""
    context: Literal["concatenate", "hierarchical"] = "concatenate"
    """Use of `data.context`. `concatenate`: source and context are one sequence (Tiedemann and Scherrer 2017,
    arXiv:1708.05943). `hierarchical`: the encoder reads each sentence alone. Then each position attends to the words of
    each context sentence, and to the resulting sentence vectors (Miculicich et al. 2018, arXiv:1809.01576)."""
    feed_forward: Annotated[int, Field(gt=0, le=1_000_000)] = 2048
    """Hidden width of the feed-forward sublayers."""
    dropout: Share = 0.1
    """Dropout after the embedding and on the output of each sublayer; in an `rnn` or a `pointer`, between layers."""
    activation: Literal["relu", "gelu", "silu"] = "relu"
    """Activation of the feed-forward sublayers."""
    norm: Literal["post", "pre"] = "post"
    """Layer normalisation: `post` after each residual sum (as in Vaswani et al. 2017), `pre` before each sublayer
    (easier to train for deep models)."""
    positions: Literal["sinusoidal", "learned"] = "sinusoidal"
    """Positional encoding: fixed sinusoids, or a learned embedding."""
    max_positions: Positions = 1024
    """Maximum length of a sentence in pieces, including `</s>`. `positions: learned` has one vector per position."""
    tied_embeddings: Literal["all", "decoder", "none"] = "all"
    """Matrices that share their weights: `all` (source embedding, target embedding and output), `decoder` (target
    embedding and output) or `none`. A language model has no source; for it, `all` and `decoder` are the same."""
    scale_embedding: bool = True
    """Multiply embeddings by the square root of `d_model`."""
    output_bias: bool = False
    """Add a learned bias to the logits."""

    @property
    def task(self) -> Task:
        return TASKS[self.type]

    @field_validator("num_heads")
    @classmethod
    def _require_heads_to_divide_width(cls, num_heads: int, info: ValidationInfo) -> int:
        d_model = info.data.get("d_model", 0)
        if d_model % num_heads and info.data.get("type") != "pointer":          # pointer networks have no heads
            raise ValueError(f"d_model ({d_model}) cannot be divided into {num_heads} heads of equal size")
        return num_heads

    @property
    def attention_score(self) -> str:
        """`score`, or its default for this type of model if it is not set."""
        return self.score or ("additive" if self.type == "rnn" else "scaled_dot")

    @field_validator("positions")
    @classmethod
    def _require_even_width_for_sinusoids(cls, positions: str, info: ValidationInfo) -> str:
        d_model = info.data.get("d_model", 0)
        if positions == "sinusoidal" and d_model % 2:
            raise ValueError(f"sinusoidal positions need an even d_model, found {d_model}")
        return positions
