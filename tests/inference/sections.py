"""The `model` section of a recipe for a Transformer that a test has built."""

import math

import torch
from torch import nn

from seq2seq.inference.int8 import NativeEngine
from seq2seq.inference.load_model import stored_weights
from seq2seq.model.attention_scores import SCORES
from seq2seq.model.layers import POSITION_TABLES
from seq2seq.model.transformer import ACTIVATIONS, Transformer
from seq2seq.recipe import TransformerSection
from seq2seq.tokenizers.tokenizer import SYMBOLS


def score_of(weighing) -> str:
    """Return the name of the score of a layer of attention weights."""
    return next((name for name, score in SCORES.items() if score is getattr(weighing, "score", None)), "scaled_dot")


def section_of(model: Transformer) -> TransformerSection:
    """Return the section from which `build_model` builds a model of this kind, without its variants."""
    layer, tied = model.encoder[0], model.target_embedding is model.output_weight
    return TransformerSection(
        d_model=model.d_model, encoder_layers=len(model.encoder), decoder_layers=len(model.decoder),
        tied_decoder_layers=len(model.decoder) > 1 and model.decoder[0] is model.decoder[1],
        num_heads=model.num_heads, score=score_of(layer.self_attention.weighing), window=model.window,
        feed_forward=layer.feed_forward.inner.out_features,
        activation=next(name for name, function in ACTIVATIONS.items() if function is layer.feed_forward.activation),
        norm="pre" if layer.self_residual.pre_norm else "post",
        positions="learned" if isinstance(model.source_positions, nn.Parameter) else "relative"
        if model.source_relative else next(
            name for name, table in POSITION_TABLES.items()
            if torch.allclose(table(model.max_positions, model.d_model), model.source_positions.float(), atol=1e-2)),
        decoder_start=next(symbol for symbol, index in SYMBOLS.items() if index == model.start_id),
        max_positions=model.max_positions, scale_embedding=model.scale == math.sqrt(model.d_model),
        tied_embeddings=("all" if tied else "inputs") if model.source_embedding is model.target_embedding else
        "decoder" if tied else "none",
        output_bias=model.output_bias is not None, embedding_norm=model.source_embedding_norm is not None,
        norm_type="rms" if isinstance(layer.self_residual.norm, nn.RMSNorm) else "layer",
        gated=layer.feed_forward.gate is not None, bias=layer.feed_forward.outer.bias is not None,
        head_size=None if model.num_heads * model.head_size == model.d_model else model.head_size)


def native_engine(model: Transformer, functions, **changes) -> NativeEngine:
    """Return the native engine of a model. changes: changed weights by name."""
    sizes = len(model.source_embedding), len(model.target_embedding)
    weights = {name: weight.numpy() for name, weight in stored_weights(model).items()}
    return NativeEngine(section_of(model), sizes, weights | changes, functions, lambda: model)
