"""T5, mT5 and MADLAD-400 in transformers: config.json and the names of the weights.

Raffel et al. 2020 (arXiv:1910.10683). T5 1.0 has one matrix E for embedding and output, and transformers multiplies
its logits by d_model^-0.5. That is the same as the matrix E * d_model^-0.5 here, with `scale_embedding`. Later models
have an output layer of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from seq2seq.errors import FormatError
from seq2seq.recipe import TransformerSection

SHARED, SOURCE, TARGET, OUTPUT = (
    "shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight")
UNUSED_BIAS = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
"""Weight of old files that no version of transformers uses."""
MAX_POSITIONS = 1024
"""Limit for imported models. Relative positions have none; T5 was trained with 512 tokens."""
FIXED = {"relative_attention_num_buckets": 32, "relative_attention_max_distance": 128, "layer_norm_epsilon": 1e-6}
"""Keys of config.json that have one value in all published models, and here."""
ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "gelu_new": "gelu_tanh", "silu": "silu", "swish": "silu"}


def scales_output(config: Mapping[str, Any]) -> bool:
    """Return True if transformers multiplies the logits by d_model^-0.5. Its class for mT5 never does."""
    return config["model_type"] == "t5" and bool(
        config.get("scale_decoder_outputs", config.get("tie_word_embeddings") is not False))


def has_own_output(theirs: Mapping[str, Tensor]) -> bool:
    """Return True if the output layer has a matrix of its own. config.json does not say it: transformers compares."""
    inputs = [theirs[name] for name in (SHARED, SOURCE, TARGET) if name in theirs]
    if not inputs:
        raise FormatError(f"its weight {SHARED} is missing. Copy all its files again.")
    if not all(torch.equal(inputs[0], other) for other in inputs[1:]):
        raise FormatError("its encoder and decoder have different embeddings, which T5 models of transformers do not "
                          "have.")
    return OUTPUT in theirs and not torch.equal(theirs[OUTPUT], inputs[0])


def section_values(config: Mapping[str, Any], own_output: bool) -> dict[str, Any]:
    """Return the keys of the `model` section that differ between the models. own_output: see `has_own_output`."""
    for key, value in FIXED.items():
        if config.get(key, value) != value:
            raise FormatError(f"its config.json has {key}: {config[key]}. seq2seq supports only {value}, the value of "
                              "all published models.")
    projection = config.get("feed_forward_proj", "relu" if config["model_type"] == "t5" else "gated-gelu")
    gate, _, activation = str(projection).rpartition("-")
    activation = "gelu_new" if projection == "gated-gelu" else activation       # as transformers does
    if gate not in ("", "gated") or activation not in ACTIVATIONS:
        raise FormatError(f"its config.json has feed_forward_proj: {projection}; supported are "
                          f"{', '.join(sorted(ACTIVATIONS))}, also with gated- before.")
    try:
        sizes = {"d_model": config["d_model"], "num_heads": config["num_heads"], "head_size": config["d_kv"],
                 "feed_forward": config["d_ff"], "encoder_layers": config["num_layers"]}
    except KeyError as error:
        raise FormatError(f"its config.json has no {error.args[0]}. Copy it again.") from error
    decoder_layers = config.get("num_decoder_layers")
    return {**sizes, "decoder_layers": sizes["encoder_layers"] if decoder_layers is None else decoder_layers,
            "dropout": config.get("dropout_rate", 0.1), "activation": ACTIVATIONS[activation], "gated": gate == "gated",
            "max_positions": MAX_POSITIONS, "tied_embeddings": "inputs" if own_output else "all",
            "scale_embedding": scales_output(config) and not own_output}


def weight_names(section: TransformerSection) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the name of each weight except embeddings and output layer, and the names of the weights in transformers
    whose concatenation it is."""
    for side, layers in (("encoder", section.encoder_layers), ("decoder", section.decoder_layers)):
        text = "source" if side == "encoder" else "target"
        yield f"{text}_relative.weight", (
            f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight",)
        for number in range(layers):
            ours, theirs = f"{side}.{number}", f"{side}.block.{number}.layer"
            yield f"{ours}.self_attention.query_key_value.weight", tuple(
                f"{theirs}.0.SelfAttention.{part}.weight" for part in "qkv")
            yield f"{ours}.self_attention.output.weight", (f"{theirs}.0.SelfAttention.o.weight",)
            yield f"{ours}.self_residual.norm.weight", (f"{theirs}.0.layer_norm.weight",)
            if side == "decoder":
                yield f"{ours}.cross_attention.query.weight", (f"{theirs}.1.EncDecAttention.q.weight",)
                yield f"{ours}.cross_attention.key_value.weight", tuple(
                    f"{theirs}.1.EncDecAttention.{part}.weight" for part in "kv")
                yield f"{ours}.cross_attention.output.weight", (f"{theirs}.1.EncDecAttention.o.weight",)
                yield f"{ours}.cross_residual.norm.weight", (f"{theirs}.1.layer_norm.weight",)
            last = f"{theirs}.{2 if side == 'decoder' else 1}"
            inner = f"{last}.DenseReluDense.wi"
            if section.gated:
                yield f"{ours}.feed_forward.gate.weight", (f"{inner}_0.weight",)
                yield f"{ours}.feed_forward.inner.weight", (f"{inner}_1.weight",)
            else:
                yield f"{ours}.feed_forward.inner.weight", (f"{inner}.weight",)
            yield f"{ours}.feed_forward.outer.weight", (f"{last}.DenseReluDense.wo.weight",)
            yield f"{ours}.feed_forward_residual.norm.weight", (f"{last}.layer_norm.weight",)
        yield f"{side}_norm.weight", (f"{side}.final_layer_norm.weight",)


# To transformers


def config_values(section: TransformerSection) -> dict[str, Any]:
    """Return the arguments of the class of config.json. tie_word_embeddings says whether the logits are scaled, as they
    are with `scale_embedding` and one matrix for embedding and output."""
    name = {"gelu_tanh": "gelu"}.get(section.activation, section.activation) if section.gated else {
        "gelu_tanh": "gelu_new"}.get(section.activation, section.activation)
    return {"d_model": section.d_model, "num_heads": section.num_heads,
            "d_kv": section.head_size or section.d_model // section.num_heads, "d_ff": section.feed_forward,
            "num_layers": section.encoder_layers, "num_decoder_layers": section.decoder_layers,
            "dropout_rate": section.dropout, "feed_forward_proj": f"gated-{name}" if section.gated else name,
            "tie_word_embeddings": section.scale_embedding and section.tied_embeddings == "all"}


def with_unscaled_query(name: str, weight: Tensor, section: TransformerSection) -> Tensor:
    """Return a projection whose queries give the scores of scaled dot products without scaling. name: this package's
    name of the weight."""
    size = section.head_size or section.d_model // section.num_heads
    queries = section.num_heads * size
    if not name.endswith(("self_attention.query_key_value.weight", "cross_attention.query.weight")):
        return weight
    return torch.cat([weight[:queries] * size**-0.5, weight[queries:]])
