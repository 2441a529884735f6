"""The `model` section of a recipe: for each type of model, a class with its keys.

`MODEL_SECTIONS` has the types of this package. Installed packages can register others (`seq2seq.plug_ins`).
"""

import builtins
import warnings
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    Field,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    field_validator,
    model_validator,
)

from seq2seq.errors import UserError
from seq2seq.plug_ins import (
    ATTENTION_SCORES,
    MODELS,
    is_registered,
    load_registered,
    package_of,
    registered_names,
)
from seq2seq.recipe.base_section import Positions, RecipeValueError, Section, Share, one_of
from seq2seq.recipe.combinations import (
    CONSISTENCY,
    CONTEXT,
    GUIDED_ALIGNMENT,
    LABEL_SMOOTHING,
    TWO_VOCABULARIES,
    Combination,
    Feature,
    has_value,
    is_set,
)
from seq2seq.recipe.task import LANGUAGE_MODELLING, POINTING, TRANSLATION, Task

# The key `copy` shadows a deprecated method of pydantic's BaseModel, which seq2seq does not call.
warnings.filterwarnings("ignore", 'Field name "copy" in ".*" shadows')

# Building a model of millions of layers takes hours, even on the meta device.
Layers = Annotated[int, Field(ge=1, le=1000)]

DOT_PRODUCTS = ("scaled_dot", "dot", "bilinear")
"""Attention scores that are scaled dot products of transformed queries, so that every engine computes them."""
SCORES = (*DOT_PRODUCTS, "additive")
"""Attention scores of this package, see `model.attention_scores`."""

PACKAGES_CAN = "Installed packages can register others."
KNOWN_TO_ENGINES = frozenset({
    "base", "type", "d_model", "dropout", "max_positions", "scale_embedding", "encoder_layers", "decoder_layers",
    "tied_embeddings", "output_bias", "num_heads", "score", "normalize", "selection", "copy", "window", "feed_forward",
    "activation", "norm", "positions", "decoder_start", "embedding_norm", "tied_decoder_layers", "context",
    "norm_type", "gated", "bias", "head_size"})
"""Keys of a Transformer that the kernels and exports either compute or refuse (`peculiarity`, `export_peculiarity`).
Any other key with another value than its default is refused, so that a new key cannot be overlooked there."""
PARTS_OF_T5 = {"positions": "relative", "activation": "gelu_tanh", "norm_type": "rms", "gated": True, "bias": False}
"""Values of keys that the kernels compute in any Transformer, but other libraries in a T5 only."""
DEFAULT_TYPE = "transformer"


class ModelSection(Section):
    """Keys that all models have.

    Attributes of the class, which say what a model of this type needs and returns:

    task: sides of the data, kind of output, and metrics.
    is_parallel: True if training computes all target positions at once, False if one after another.
    has_transformer_decoder: True if the model has `cross_attentions`, a head of which guided alignment can train.
    combinations: settings of other sections that do not work with some settings of this section.
    """

    task: ClassVar[Task] = TRANSLATION
    is_parallel: ClassVar[bool] = True
    has_transformer_decoder: ClassVar[bool] = False
    combinations: ClassVar[tuple[Combination, ...]] = ()

    base: Annotated[str | None, Field(exclude=True)] = None
    """Size that comes with the package: `tiny`, `small`, `base`, `big` (Transformers) or `rnn_small`; or path of a file
    with `model:` and `training:` sections, relative to the recipe file. Keys of these sections that the recipe does not
    set are taken from the base, as far as this type of model has them. The recipe that a run stores contains the values
    of the base, but not this key."""
    type: str
    """Architecture."""
    d_model: Annotated[int, Field(gt=0, le=65_536)] = 512
    """Width of embeddings and hidden states."""
    dropout: Share = 0.1
    """Dropout after the embedding and on the output of each sublayer; in a recurrent network, between layers."""
    max_positions: Positions = 1024
    """Maximum length of a sentence in pieces, including `</s>`."""
    scale_embedding: bool = True
    """Multiply embeddings by the square root of `d_model`."""

    @property
    def layers(self) -> tuple[int, ...]:
        """Number of layers of each stack: encoder and decoder, or decoder alone."""
        keys = [key for key in ("encoder_layers", "decoder_layers") if key in type(self).model_fields]
        return tuple(getattr(self, key) for key in keys)

    @property
    def peculiarity(self) -> str | None:
        """Difference of the model from the encoder-decoder Transformers that the kernels compute; None: there is none.
        It is a predicate for the subject "it", such as "has hard attention (model.selection)"."""
        return f"is not an encoder-decoder Transformer (model.type: {self.type})"

    @property
    def export_peculiarity(self) -> str | None:
        """Difference of the model from the encoder-decoder Transformer that all export formats know, as
        `peculiarity`."""
        return self.peculiarity

    @property
    def knows_all_characters(self) -> bool:
        """True if the model can write pieces of the source that are not in its vocabulary."""
        return False

    @property
    def packages(self) -> dict[str, str]:
        """Version of each installed package that the model needs besides this one, by name."""
        return {} if self.type in MODEL_SECTIONS else dict([package_of(MODELS, self.type)])

    @classmethod
    def dependent_defaults(cls, values: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """Return the defaults of other sections that depend on this one. values: the unvalidated keys."""
        return {section: dict(keys) for section, keys in cls.task.defaults.items()}


class _Decoder(ModelSection):
    decoder_layers: Layers = 6
    """Number of decoder layers."""


class _EncoderDecoder(_Decoder):
    encoder_layers: Layers = 6
    """Number of encoder layers."""


class _Vocabulary(ModelSection):
    """Keys of models whose output layer has a row for each id of a vocabulary."""

    tied_embeddings: Literal["all", "decoder", "inputs", "none"] = "all"
    """Matrices that share their weights: `all` (source embedding, target embedding and output), `decoder` (target
    embedding and output), `inputs` (source and target embedding) or `none`. A language model has no source; for it,
    `all` and `decoder` are the same, and so are `inputs` and `none`."""
    output_bias: bool = False
    """Add a learned bias to the logits."""

    combinations: ClassVar[tuple[Combination, ...]] = (
        Combination(has_value("model.tied_embeddings", "all", "inputs"), TWO_VOCABULARIES,
                    "one matrix for source and target needs one vocabulary; 'decoder' and 'none' do not"),)


class _Attention(ModelSection):
    """Keys of models with attention."""

    num_heads: Annotated[int, Field(gt=0, le=256)] = 8
    """Number of attention heads. It must divide `d_model`, unless `head_size` is set. More heads need more memory for
    attention scores."""
    score: Annotated[str, Field(json_schema_extra={"examples": list(SCORES)})] = "scaled_dot"
    """Scoring function of attention: `scaled_dot`, `dot`, `additive`, `bilinear`, or one that an installed package
    registers."""
    normalize: Literal["softmax", "relu"] = "softmax"
    """Function that turns attention scores into weights."""

    @property
    def packages(self) -> dict[str, str]:
        own = {} if self.score in SCORES else dict([package_of(ATTENTION_SCORES, self.score)])
        return super().packages | own

    @model_validator(mode="after")
    def _require_heads_to_divide_width(self) -> Self:
        if getattr(self, "head_size", None) is None and self.d_model % self.num_heads:
            raise RecipeValueError("num_heads", f"d_model ({self.d_model}) cannot be divided into {self.num_heads} "
                                   "heads of equal size")
        return self

    @field_validator("score")
    @classmethod
    def _require_known_score(cls, score: str) -> str:
        if score not in SCORES and not is_registered(ATTENTION_SCORES, score):
            raise ValueError(one_of([*SCORES, *registered_names(ATTENTION_SCORES)], score, PACKAGES_CAN))
        return score


class _TransformerLayers(_Attention):
    """Keys of the layers of a Transformer."""

    window: Positions | None = None
    """Maximum distance between positions that attend to each other in self-attention. Not set: no limit."""
    feed_forward: Annotated[int, Field(gt=0, le=1_000_000)] = 2048
    """Hidden width of the feed-forward sublayers."""
    activation: Literal["relu", "gelu", "silu", "gelu_tanh"] = "relu"
    """Activation of the feed-forward sublayers. `gelu_tanh` is the approximation of GELU in T5."""
    norm: Literal["post", "pre"] = "post"
    """Layer normalisation: `post` after each residual sum (as in Vaswani et al. 2017), `pre` before each sublayer
    (easier to train for deep models)."""
    positions: Literal["sinusoidal", "fairseq", "learned", "relative"] = "sinusoidal"
    """Positional encoding: `sinusoidal` (as in Vaswani et al. 2017); `fairseq`, the sinusoids of fairseq's models, such
    as M2M-100 and NLLB-200, with other frequencies and in another order; `learned`, a learned embedding, which has
    one vector for each of `max_positions`; or `relative`, a learned bias of the scores of self-attention for each head
    and 32 classes of distances (Raffel et al. 2020, arXiv:1910.10683)."""

    @field_validator("positions")
    @classmethod
    def _require_even_width_for_sinusoids(cls, positions: str, info: ValidationInfo) -> str:
        d_model = info.data.get("d_model", 0)
        if positions in ("sinusoidal", "fairseq") and d_model % 2:
            raise ValueError(f"sinusoidal positions need an even d_model, found {d_model}")
        return positions


class _CrossAttention(_Attention, _Vocabulary, _EncoderDecoder):
    """Keys of translation models, whose decoder attends to the source."""

    selection: Literal["soft", "hard", "structured"] = "soft"
    """`soft`: attention to the weighted mean of all positions. `hard`: attention to a single source position, which is
    sampled in training. `structured` (Kim et al. 2017, arXiv:1702.00887): the weights are the marginals of a linear
    chain in which the selection of a source position also depends on its neighbours. `hard` and `structured` apply to
    the cross-attention of the last decoder layer of a `transformer`, and to the attention of an `rnn`; all other
    attention is soft."""
    copy: bool = False  # type: ignore[assignment]
    """Copy mechanism for names and numbers that are not in the training text: a learned gate mixes the distribution
    over the vocabulary with a distribution over source pieces (See et al. 2017). The mechanism needs
    `tokenizer.joint: true` and no label smoothing. The mixed distributions are sharp, so use `decoding.patience: 2` or
    greedy search."""

    combinations: ClassVar[tuple[Combination, ...]] = (
        *_Vocabulary.combinations,
        Combination(is_set("model.copy"), TWO_VOCABULARIES, "copied source pieces must be in the target's vocabulary"),
        Combination(is_set("model.copy"), CONTEXT, "pieces of the context would be copied, too"),
        Combination(LABEL_SMOOTHING, is_set("model.copy"), "copied pieces cannot be smoothed"),
        Combination(CONSISTENCY, is_set("model.copy"), "it compares predictions of the vocabulary alone"),
        Combination(CONSISTENCY, has_value("model.selection", "hard"),
                    "it compares predictions that differ only by dropout"))

    @property
    def knows_all_characters(self) -> bool:
        return self.copy

    @classmethod
    def dependent_defaults(cls, values: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        own = {"training": {"label_smoothing": 0.0}} if values.get("copy") is True else {}
        return super().dependent_defaults(values) | own

    @field_validator("selection")
    @classmethod
    def _require_probabilities(cls, selection: str, info: ValidationInfo) -> str:
        if selection != "soft" and info.data.get("normalize") == "relu":
            raise ValueError(f"'{selection}' needs probabilities, which only normalize: softmax produces")
        return selection


class TransformerSection(_TransformerLayers, _CrossAttention):
    """Encoder-decoder Transformer (Vaswani et al. 2017)."""

    type: Literal["transformer"] = "transformer"
    """Architecture. `transformer`: Vaswani et al. 2017. `rnn`: Bahdanau et al. 2015 (but with `num_heads` attention
    heads instead of one). `pointer`: recurrent pointer network (Vinyals et al. 2015), whose target file contains
    positions of source words, numbered from 1 (`1 3 2`). `language_model`: decoder-only Transformer, which continues
    text. Installed packages can register other types. Each type has its own keys."""
    decoder_start: Literal["<s>", "</s>", "<unk>"] = "<s>"
    """Symbol that the decoder reads before the first piece. Models of fairseq, such as M2M-100, read `</s>`, MADLAD-400
    reads `<unk>`."""
    embedding_norm: bool = False
    """Layer normalisation of the sum of embedding and positional encoding, as in mBART."""
    norm_type: Literal["layer", "rms"] = "layer"
    """Kind of all norms: `layer`, or `rms`, which divides by the root mean square and adds no bias (Zhang and Sennrich
    2019, arXiv:1910.07467)."""
    gated: bool = False
    """Multiply the inner layer of the feed-forward sublayers by a gate, the activation of a second layer (Shazeer 2020,
    arXiv:2002.05202)."""
    bias: bool = True
    """Add learned biases in the linear layers of encoder and decoder."""
    head_size: Annotated[int, Field(gt=0, le=65_536)] | None = None
    """Width of an attention head. Not set: `d_model` divided by `num_heads`."""
    tied_decoder_layers: bool = False
    """All decoder layers share their weights (Dabre and Fujita 2019, arXiv:1807.05353). The model is smaller, but not
    faster."""
    context: Literal["concatenate", "hierarchical"] = "concatenate"
    """Use of `data.context`. `concatenate`: source and context are one sequence (Tiedemann and Scherrer 2017,
    arXiv:1708.05943). `hierarchical`: the encoder reads each sentence alone. Then each position attends to the words of
    each context sentence, and to the resulting sentence vectors (Miculicich et al. 2018, arXiv:1809.01576)."""

    has_transformer_decoder: ClassVar[bool] = True
    combinations: ClassVar[tuple[Combination, ...]] = (
        *_CrossAttention.combinations,
        Combination(has_value("model.context", "hierarchical"), has_value("data.context", 0),
                    "there is no context to read"),
        Combination(GUIDED_ALIGNMENT, Feature("model.score other than scaled_dot", "model.score",
                                              lambda recipe: recipe.model.score != "scaled_dot"),
                    "it needs the weights of scaled dot-product attention"),
        Combination(GUIDED_ALIGNMENT, has_value("model.normalize", "relu"),
                    "it needs probabilities, which only softmax produces"))

    @property
    def peculiarity(self) -> str | None:
        if type(self) is not TransformerSection:                                # of another package
            return super().peculiarity
        if self.copy:
            return "copies pieces of the source (model.copy)"
        if self.context == "hierarchical":
            return "reads the context hierarchically (model.context)"
        if self.selection != "soft":
            return f"has {self.selection} attention (model.selection)"
        if self.score not in DOT_PRODUCTS:
            kind = "are not dot products" if self.score in SCORES else "this package does not know"
            return f"has attention scores that {kind} (model.score: {self.score})"
        if self.normalize != "softmax":
            return f"has attention without softmax (model.normalize: {self.normalize})"
        fields = type(self).model_fields
        others = [key for key in fields.keys() - KNOWN_TO_ENGINES if getattr(self, key) != fields[key].default]
        return f"has a value of model.{min(others)} that they do not know" if others else None

    @property
    def export_peculiarity(self) -> str | None:
        parts = [f"model.{key}" for key, value in PARTS_OF_T5.items() if getattr(self, key) == value]
        if self.head_size is not None:
            parts.append("model.head_size")
        return self.peculiarity or (f"has parts of T5 ({', '.join(parts)})" if parts else None)

    @field_validator("tied_decoder_layers")
    @classmethod
    def _require_soft_attention(cls, tied: bool, info: ValidationInfo) -> bool:
        if tied and info.data.get("selection", "soft") != "soft":
            raise ValueError(f"only the last layer has selection: {info.data['selection']}, so the layers cannot be "
                             "tied")
        return tied


class _Recurrent(_EncoderDecoder):
    """Keys of recurrent networks."""

    is_parallel: ClassVar[bool] = False

    cell: Literal["gru", "lstm"] = "gru"
    """Recurrent unit."""

    @field_validator("d_model")
    @classmethod
    def _require_two_directions_of_equal_width(cls, d_model: int) -> int:
        if d_model % 2:
            raise ValueError(f"the two directions of the encoder need an even number, found {d_model}")
        return d_model


class RecurrentSection(_Recurrent, _CrossAttention):
    """Recurrent encoder and decoder with attention (Bahdanau et al. 2015). `d_model` is the width of the decoder, and
    the total width of the two directions of the encoder."""

    type: Literal["rnn"] = "rnn"
    """Architecture: recurrent network."""
    score: Annotated[str, Field(json_schema_extra={"examples": list(SCORES)})] = "additive"
    input_feeding: bool = False
    """Feed the attentional hidden state of the previous step to the decoder (Luong et al. 2015)."""


class PointerSection(_Recurrent):
    """Recurrent pointer network (Vinyals et al. 2015). `d_model` is the width of the decoder, and the total width of
    the two directions of the encoder."""

    task: ClassVar[Task] = POINTING

    type: Literal["pointer"] = "pointer"
    """Architecture: pointer network."""


class LanguageModelSection(_TransformerLayers, _Vocabulary, _Decoder):
    """Decoder-only Transformer, which continues text."""

    task: ClassVar[Task] = LANGUAGE_MODELLING
    combinations: ClassVar[tuple[Combination, ...]] = ()

    type: Literal["language_model"] = "language_model"
    """Architecture: language model."""


MODEL_SECTIONS: dict[str, type[ModelSection]] = {
    "transformer": TransformerSection, "rnn": RecurrentSection, "pointer": PointerSection,
    "language_model": LanguageModelSection}
"""Keys of the models of this package, by `model.type`."""


def section_of_type(values: Mapping[str, Any]) -> type[ModelSection] | None:
    """Return the class with the keys of a `model` section; None if its type does not exist. values: unvalidated keys.
    """
    type = values.get("type", DEFAULT_TYPE)
    if not isinstance(type, str):
        return None
    if type in MODEL_SECTIONS or not is_registered(MODELS, type):
        return MODEL_SECTIONS.get(type)
    model = load_registered(MODELS, type)
    section = getattr(model, "section", None)
    if not (isinstance(section, builtins.type) and issubclass(section, ModelSection) and section is not ModelSection):
        raise UserError(f"{MODELS}: '{type}' of the package {package_of(MODELS, type)[0]} is not a model: it has no "
                        "class `section` of its keys, a subclass of ModelSection.")
    return section


def validate_model(values: Mapping[str, Any]) -> ModelSection:
    """Validate the keys of a `model` section by the class of its type.

    Raises:
        RecipeValueError: the type does not exist. ValidationError: other keys are wrong.
    """
    if (section := section_of_type(values)) is None:
        names = [*MODEL_SECTIONS, *registered_names(MODELS)]
        raise RecipeValueError("type", one_of(names, values["type"], PACKAGES_CAN))
    return section.model_validate(dict(values))


def _by_type(value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
    if isinstance(value, dict):
        return validate_model(value)
    return value if isinstance(value, ModelSection) else TransformerSection.model_validate(value)


AnyModel = Annotated[TransformerSection | RecurrentSection | PointerSection | LanguageModelSection,
                     WrapValidator(_by_type)]
"""Type of the section `model` of a recipe. The class follows from the type, also of an installed package, so that
errors only name keys that this type has."""
