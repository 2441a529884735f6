"""Models, and `build_model`, which builds a model from the `model` section of a recipe."""

from __future__ import annotations

from typing import Any

import torch

from seq2seq.model.attention import runs_packed
from seq2seq.model.language_model import LanguageModel
from seq2seq.model.pointer_network import PointerNetwork
from seq2seq.model.rnn import RecurrentModel
from seq2seq.model.transformer import Transformer
from seq2seq.recipe import ModelSection

Model = Transformer | RecurrentModel | PointerNetwork | LanguageModel


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
    common |= {"score": section.attention_score, **keys("num_heads", "normalize", "output_bias")}
    transformer = {"pre_norm": section.norm == "pre", **keys("feed_forward", "activation", "positions", "window")}
    if section.type == "language_model":
        return LanguageModel(vocab_size=target_vocab_size, layers=section.decoder_layers,
                             tied_embeddings=section.tied_embeddings != "none", **common, **transformer)
    common |= {"source_vocab_size": source_vocab_size, "target_vocab_size": target_vocab_size,
               **layers, **keys("tied_embeddings", "copy", "selection")}
    if section.type == "rnn":
        return RecurrentModel(**common, **keys("cell", "input_feeding"))
    return Transformer(**common, **transformer, **keys("tied_decoder_layers", "context"))


def trains_packed(section: ModelSection, device: torch.device, dtype: torch.dtype) -> bool:
    """Return True if training needs no padding, because all attention runs in the variable-length kernel.

    Without padding, the cost of a batch does not depend on the length of its longest sentence. Recurrent models,
    pointer networks, additive scores, ReLU attention, hard and structured attention, the copy mechanism and
    hierarchical context always need padding.
    """
    pads = (section.type in ("rnn", "pointer") or section.attention_score == "additive" or section.normalize == "relu"
            or section.selection != "soft" or section.copy or section.context == "hierarchical")
    heads = section.num_heads
    return not pads and runs_packed(torch.empty(0, heads, section.d_model // heads, dtype=dtype, device=device))
