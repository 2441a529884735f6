"""Models, and `build_model`, which builds a model from the `model` section of a recipe."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from seq2seq.devices import set_threads_of_torch
from seq2seq.errors import UserError
from seq2seq.model.attention import MakeWeighing
from seq2seq.model.attention_scores import score_named, weighing_of
from seq2seq.model.freezing import freeze
from seq2seq.model.interface import Model
from seq2seq.model.transformer import DecoderLayer, FeedForward, Transformer
from seq2seq.model.variants.copying import CopyHead, CopyingModel
from seq2seq.model.variants.hard import (
    HardAttentionRecurrentModel,
    HardAttentionTransformer,
    HardDecoderLayer,
    HardSourceAttention,
)
from seq2seq.model.variants.hierarchical import HierarchicalContext, HierarchicalContextTransformer
from seq2seq.model.variants.language_model import LanguageModel
from seq2seq.model.variants.pointer import PointerNetwork
from seq2seq.model.variants.rnn import RecurrentModel, SourceAttention
from seq2seq.model.variants.structured import StructuredWeighing
from seq2seq.plug_ins import MODELS, load_registered, package_of
from seq2seq.recipe import ModelSection

__all__ = ["BUILDERS", "Model", "SkipInitialization", "build_model", "build_recurrent_model", "build_transformer",
           "freeze"]

set_threads_of_torch()                                  # the number may have been set before torch was imported


class SkipInitialization(TorchFunctionMode):
    """Context manager that skips the random initialisation of parameters, for models whose weights come from a file.

    This also saves a second of import time: on the meta device, random initialisation makes torch import torch._dynamo
    and sympy.
    """

    INITIALISERS = frozenset({
        Tensor.normal_, Tensor.uniform_, nn.init.normal_, nn.init.uniform_, nn.init.xavier_uniform_,
        nn.init.kaiming_uniform_})

    def __torch_function__(self, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (),
                           kwargs: Mapping[str, Any] | None = None) -> Any:
        if func in self.INITIALISERS:
            return args[0] if args else (kwargs or {})["tensor"]
        return func(*args, **(kwargs or {}))


def build_model(section: ModelSection, source_vocab_size: int, target_vocab_size: int) -> Model:
    """Build the model that a recipe's `model` section describes, initialised with torch's global random generator.

    Raises:
        ValueError: all embeddings are tied, but the vocabularies differ in size.
    """
    if section.type in BUILDERS:
        return BUILDERS[section.type](section, source_vocab_size, target_vocab_size)
    kind = load_registered(MODELS, section.type)
    if not (isinstance(kind, type) and issubclass(kind, Model)):
        raise UserError(f"{MODELS}: '{section.type}' of the package {package_of(MODELS, section.type)[0]} is not a "
                        "subclass of Model.")
    return kind.build(section, source_vocab_size, target_vocab_size)


def build_transformer(
    *, d_model: int, num_heads: int, decoder_layers: int, feed_forward: int, dropout: float = 0.0,
    activation: str = "relu", pre_norm: bool = False, window: int | None = None, score: str = "scaled_dot",
    normalize: str = "softmax", selection: str = "soft", copy: bool = False, tied_decoder_layers: bool = False,
    context: str = "concatenate", head_size: int | None = None, bias: bool = True, norm_type: str = "layer",
    gated: bool = False, **sizes: Any,
) -> Transformer:
    """Build a Transformer, plain or with variants. They are added here, so that `Transformer` contains none of them.

    Args:
        score, normalize: attention weights of every layer, see `attention_scores.Weighing`.
        selection: "hard" or "structured": cross-attention of the last decoder layer. "soft": all layers are alike.
        copy: True to add the copy mechanism.
        tied_decoder_layers: True if all decoder layers are the same module.
        context: "hierarchical": the encoder reads document context with `HierarchicalContext`. "concatenate": the
            encoder reads document context, if any, as a part of the sentence.
        Other arguments: see `Transformer`.
    """
    hard, hierarchical, weighing = selection == "hard", context == "hierarchical", weighing_of(score, normalize)
    variants = [(copy, CopyingModel), (hierarchical, HierarchicalContextTransformer), (hard, HardAttentionTransformer)]
    layer = (d_model, num_heads, feed_forward, dropout, activation, pre_norm, weighing, window)
    form: dict[str, Any] = {"head_size": head_size, "bias": bias, "norm_type": norm_type, "gated": gated}
    # The weights are drawn in the order of the modules, so the last layer and the other parts are made after the rest.
    alike = 1 if tied_decoder_layers else decoder_layers if selection == "soft" else decoder_layers - 1
    model = _class_of(Transformer, [kind for wanted, kind in variants if wanted])(
        d_model=d_model, num_heads=num_heads, decoder_layers=alike, feed_forward=feed_forward, dropout=dropout,
        activation=activation, pre_norm=pre_norm, weighing=weighing, window=window, **form,
        **sizes)
    form["relative"] = model.target_relative
    if tied_decoder_layers:
        model.decoder.extend([model.decoder[0]] * (decoder_layers - 1))
    elif selection != "soft":
        model.decoder.append(HardDecoderLayer(*layer, **form) if hard else
                             DecoderLayer(*layer, cross_weighing=_weighing_of(score, normalize, selection), **form))
    if copy:
        model.copying = CopyHead(d_model)
    if hierarchical:
        model.hierarchy = HierarchicalContext(d_model, num_heads, FeedForward(d_model, feed_forward, activation),
                                              dropout)
    return model


def build_recurrent_model(*, score: str = "additive", normalize: str = "softmax", selection: str = "soft",
                          copy: bool = False, **sizes: Any) -> RecurrentModel:
    """Build a recurrent model, plain or with variants.

    Args:
        score, normalize, copy: see `build_transformer`. selection: "soft", "hard" or "structured": kind of attention.
        Other arguments: see `RecurrentModel`.
    """
    kind, attention = (HardAttentionRecurrentModel, HardSourceAttention) if selection == "hard" else (
        RecurrentModel, SourceAttention)
    model = _class_of(kind, [CopyingModel] if copy else [])(
        attention=attention, weighing=_weighing_of(score, normalize, selection),
        projects=score_named(score).formula is not None, **sizes)
    if copy:
        model.copying = CopyHead(model.d_model)
    return model


def _weighing_of(score: str, normalize: str, selection: str) -> MakeWeighing:
    """Return the function that makes the layers of the attention to the source."""
    return partial(StructuredWeighing, score=score) if selection == "structured" else weighing_of(score, normalize)


def _class_of(kind: type[Any], variants: list[type[Any]]) -> Any:
    """Return the class of a model with these variants, each of which overrides other methods."""
    return type(kind.__name__, (*variants, kind), {}) if variants else kind


def _keys(section: ModelSection, *left_out: str) -> dict[str, Any]:
    """Return the keys of a section as arguments of a model's constructor. left_out: further keys that are none."""
    return section.model_dump(exclude={"type", *left_out})


def _transformer(section: Any, source_vocab_size: int, target_vocab_size: int) -> Transformer:
    return build_transformer(source_vocab_size=source_vocab_size, target_vocab_size=target_vocab_size,
                             pre_norm=section.norm == "pre", **_keys(section, "norm"))


def _recurrent_model(section: Any, source_vocab_size: int, target_vocab_size: int) -> RecurrentModel:
    return build_recurrent_model(source_vocab_size=source_vocab_size, target_vocab_size=target_vocab_size,
                                 **_keys(section))


def _pointer_network(section: Any, source_vocab_size: int, target_vocab_size: int) -> PointerNetwork:
    return PointerNetwork(source_vocab_size=source_vocab_size, **_keys(section))


def _language_model(section: Any, source_vocab_size: int, target_vocab_size: int) -> LanguageModel:
    return LanguageModel(
        vocab_size=target_vocab_size, layers=section.decoder_layers, pre_norm=section.norm == "pre",
        tied_embeddings=section.tied_embeddings in ("all", "decoder"),
        weighing=weighing_of(section.score, section.normalize),
        **_keys(section, "decoder_layers", "norm", "tied_embeddings", "score", "normalize"))


BUILDERS: dict[str, Callable[[Any, int, int], Model]] = {
    "transformer": _transformer, "rnn": _recurrent_model, "pointer": _pointer_network,
    "language_model": _language_model}
"""Functions that build the models of this package, by `model.type`. Their arguments are those of `build_model`."""
