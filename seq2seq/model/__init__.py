"""Models, and `build_model`, which builds a model from the `model` section of a recipe."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from seq2seq.devices import set_threads_of_torch
from seq2seq.model.attention import MakeWeighing, ScaledDotProduct, runs_packed
from seq2seq.model.attention_scores import Weighing
from seq2seq.model.copy_mechanism import CopyHead, CopyingModel
from seq2seq.model.hard_attention import HardAttentionTransformer, HardDecoderLayer
from seq2seq.model.hierarchical_context import HierarchicalContext, HierarchicalContextTransformer
from seq2seq.model.language_model import LanguageModel
from seq2seq.model.pointer_network import PointerNetwork
from seq2seq.model.rnn import RecurrentModel
from seq2seq.model.transformer import DecoderLayer, FeedForward, Transformer
from seq2seq.recipe import ModelSection

set_threads_of_torch()                                  # the number may have been set before torch was imported

Model = Transformer | RecurrentModel | PointerNetwork | LanguageModel


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
    def keys(*names: str) -> dict[str, Any]:
        return {name: getattr(section, name) for name in names}

    common = keys("d_model", "dropout", "max_positions", "scale_embedding")
    layers = keys("encoder_layers", "decoder_layers")
    if section.type == "pointer":
        return PointerNetwork(source_vocab_size=source_vocab_size, **common, **layers, **keys("cell"))
    common |= keys("num_heads", "output_bias")
    attention = {"score": section.attention_score, **keys("normalize")}
    transformer = {"pre_norm": section.norm == "pre", **keys("feed_forward", "activation", "positions", "window")}
    if section.type == "language_model":
        return LanguageModel(vocab_size=target_vocab_size, layers=section.decoder_layers,
                             tied_embeddings=section.tied_embeddings != "none", weighing=weighing_of(**attention),
                             **common, **transformer)
    common |= {"source_vocab_size": source_vocab_size, "target_vocab_size": target_vocab_size,
               **layers, **attention, **keys("tied_embeddings", "copy", "selection")}
    if section.type == "rnn":
        return build_recurrent_model(**common, **keys("cell", "input_feeding"))
    return build_transformer(**common, **transformer, **keys("tied_decoder_layers", "context"))


def build_recurrent_model(*, copy: bool = False, **sizes: Any) -> RecurrentModel:
    """Build a recurrent model. copy: True to add the copy mechanism. sizes: see `RecurrentModel`."""
    model = _class_of(RecurrentModel, [CopyingModel] if copy else [])(**sizes)
    if copy:
        model.copying = CopyHead(model.d_model)
    return model


def build_transformer(
    *, d_model: int, num_heads: int, decoder_layers: int, feed_forward: int, dropout: float = 0.0,
    activation: str = "relu", pre_norm: bool = False, window: int | None = None, score: str = "scaled_dot",
    normalize: str = "softmax", selection: str = "soft", copy: bool = False, tied_decoder_layers: bool = False,
    context: str = "concatenate", **sizes: Any,
) -> Transformer:
    """Build a Transformer, plain or with variants. They are added here, so that `Transformer` contains none of them.

    Args:
        score, normalize: attention weights of every layer, see `attention_scores.Weighing`.
        selection: "hard" (see `hard_attention`) or "structured" (see `structured_attention`): cross-attention of the
            last decoder layer. "soft": all layers are alike.
        copy: True to add the copy mechanism.
        tied_decoder_layers: True if all decoder layers are the same module.
        context: "hierarchical": the encoder reads document context with `HierarchicalContext`. "concatenate": the
            encoder reads document context, if any, as a part of the sentence.
        Other arguments: see `Transformer`.
    """
    hard, hierarchical, weighing = selection == "hard", context == "hierarchical", weighing_of(score, normalize)
    variants = [(copy, CopyingModel), (hierarchical, HierarchicalContextTransformer), (hard, HardAttentionTransformer)]
    layer = (d_model, num_heads, feed_forward, dropout, activation, pre_norm, weighing, window)
    # The weights are drawn in the order of the modules, so the last layer and the other parts are made after the rest.
    alike = 1 if tied_decoder_layers else decoder_layers if selection == "soft" else decoder_layers - 1
    model = _class_of(Transformer, [kind for wanted, kind in variants if wanted])(
        d_model=d_model, num_heads=num_heads, decoder_layers=alike, feed_forward=feed_forward, dropout=dropout,
        activation=activation, pre_norm=pre_norm, weighing=weighing, window=window, **sizes)
    if tied_decoder_layers:
        model.decoder.extend([model.decoder[0]] * (decoder_layers - 1))
    elif selection != "soft":
        model.decoder.append(HardDecoderLayer(*layer) if hard else
                             DecoderLayer(*layer, cross_weighing=weighing_of(score, "structured")))
    if copy:
        model.copying = CopyHead(d_model)
    if hierarchical:
        model.hierarchy = HierarchicalContext(d_model, num_heads, FeedForward(d_model, feed_forward, activation),
                                              dropout)
    return model


def weighing_of(score: str, normalize: str) -> MakeWeighing:
    """Return the function that makes the layers of attention weights of this kind."""
    if (score, normalize) == (ScaledDotProduct.score, ScaledDotProduct.normalize):
        return ScaledDotProduct
    return partial(Weighing, score=score, normalize=normalize)


def _class_of(kind: type[Any], variants: list[type[Any]]) -> Any:
    """Return the class of a model with these variants, each of which overrides other methods."""
    return type(kind.__name__, (*variants, kind), {}) if variants else kind


def trains_packed(section: ModelSection, device: torch.device, dtype: torch.dtype) -> bool:
    """Return True if training needs no padding, because all attention is by intervals.

    Without padding, the cost of a batch does not depend on the length of its longest sentence. Recurrent models,
    pointer networks, additive scores, ReLU attention, hard and structured attention, the copy mechanism and
    hierarchical context always need padding.
    """
    pads = (section.type in ("rnn", "pointer") or section.attention_score == "additive" or section.normalize == "relu"
            or section.selection != "soft" or section.copy or section.context == "hierarchical")
    heads = section.num_heads
    return not pads and runs_packed(torch.empty(0, heads, section.d_model // heads, dtype=dtype, device=device))
