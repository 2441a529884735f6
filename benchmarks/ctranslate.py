"""The same model in CTranslate2: our weights in its format, and its Translator on our pieces."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from ctranslate2.specs import common_spec, transformer_spec
from torch import Tensor, nn

from seq2seq.model.attention import CrossAttention, SelfAttention
from seq2seq.model.transformer import FeedForward, Transformer
from seq2seq.recipe import ModelSection
from seq2seq.tokenizer import END_ID, START_ID, UNKNOWN_ID, Tokenizer, Tokenizers

ACTIVATIONS = {"relu": common_spec.Activation.RELU, "gelu": common_spec.Activation.GELU,
               "silu": common_spec.Activation.SWISH}


def convert(model: Transformer, section: ModelSection, tokenizers: Tokenizers, directory: Path) -> None:
    """Write a CTranslate2 model with the weights of `model` in fp32; it quantises when it loads."""
    spec = transformer_spec.TransformerSpec.from_config(
        (section.encoder_layers, section.decoder_layers), section.num_heads, pre_norm=section.norm == "pre",
        activation=ACTIVATIONS[section.activation])
    for side, embedding, positions, layers in (
        (spec.encoder, model.source_embedding, model.source_positions, model.encoder),
        (spec.decoder, model.target_embedding, model.target_positions, model.decoder),
    ):
        embeddings = side.embeddings[0] if isinstance(side.embeddings, list) else side.embeddings
        embeddings.weight = _array(embedding)
        side.scale_embeddings = section.scale_embedding
        side.position_encodings.encodings = _array(positions)
        for theirs, ours in zip(side.layer, layers, strict=True):
            _self_attention(theirs.self_attention, ours.self_attention, ours.self_residual.norm)
            if isinstance(side, transformer_spec.TransformerDecoderSpec):
                _cross_attention(theirs.attention, ours.cross_attention, ours.cross_residual.norm)
            _feed_forward(theirs.ffn, ours.feed_forward, ours.feed_forward_residual.norm)
    if section.norm == "pre":
        _norm(spec.encoder.layer_norm, model.encoder_norm)
        _norm(spec.decoder.layer_norm, model.decoder_norm)
    spec.decoder.projection.weight = _array(model.output_weight)
    if model.output_bias is not None:
        spec.decoder.projection.bias = _array(model.output_bias)
    source, target = (pieces(tokenizer) for tokenizer in (tokenizers.source, tokenizers.target))
    spec.register_source_vocabulary(source)
    spec.register_target_vocabulary(target)
    spec.config.unk_token, spec.config.eos_token = target[UNKNOWN_ID], target[END_ID]
    spec.config.bos_token = spec.config.decoder_start_token = target[START_ID]
    spec.config.add_source_eos = True
    spec.validate()
    spec.optimize()
    directory.mkdir(parents=True, exist_ok=True)
    spec.save(str(directory))


def pieces(tokenizer: Tokenizer) -> list[str]:
    """The vocabulary by id."""
    return tokenizer.pieces(range(tokenizer.vocab_size))


def _array(weight: Tensor) -> np.ndarray:
    return weight.detach().float().numpy()


def _linear(spec: Any, layer: nn.Linear) -> None:
    spec.weight, spec.bias = _array(layer.weight), _array(layer.bias)


def _norm(spec: Any, norm: nn.Module) -> None:
    assert isinstance(norm, nn.LayerNorm)
    spec.gamma, spec.beta = _array(norm.weight), _array(norm.bias)


def _self_attention(spec: Any, layer: SelfAttention, norm: nn.LayerNorm) -> None:
    _linear(spec.linear[0], layer.query_key_value)
    _linear(spec.linear[1], layer.output)
    _norm(spec.layer_norm, norm)


def _cross_attention(spec: Any, layer: CrossAttention, norm: nn.LayerNorm) -> None:
    _linear(spec.linear[0], layer.query)
    _linear(spec.linear[1], layer.key_value)
    _linear(spec.linear[2], layer.output)
    _norm(spec.layer_norm, norm)


def _feed_forward(spec: Any, layer: FeedForward, norm: nn.LayerNorm) -> None:
    _linear(spec.linear_0, layer.inner)
    _linear(spec.linear_1, layer.outer)
    _norm(spec.layer_norm, norm)
