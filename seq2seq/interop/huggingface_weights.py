"""Conversion between this package's Transformer and those of Hugging Face's transformers: weights and config.json.

Their classes for Marian, M2M-100, NLLB-200 and mBART are copies of one (BART), whose weights have the same names. In
Marian's position encodings, all sines come before all cosines. In those of Vaswani et al. 2017, which this package
uses, sines and cosines alternate. Position encodings are added to embeddings, so the conversion permutes the d_model
axis of every weight that has one. Values stay the same: exported and reimported weights are bit-identical. Names and
config.json of T5 are in `huggingface_t5`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor

from seq2seq.errors import FormatError
from seq2seq.interop import huggingface_t5
from seq2seq.model import SkipInitialization, build_model
from seq2seq.model.layers import POSITION_TABLES
from seq2seq.recipe import TransformerSection
from seq2seq.recipe.messages import explain
from seq2seq.recipe.yaml_document import Document, SourceLocation

ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "silu": "silu", "swish": "silu"}


@dataclass(frozen=True)
class Architecture:
    """Model of transformers.

    name: name in messages. model, config: classes in transformers. defaults: values of keys that may be missing in
    config.json. keys: keys of `type: transformer` whose value all its models have. vocabulary: kind of its vocabulary:
    "marian", "t5", or "fairseq" if each text begins with the token of its own language. splits_sinusoids: True if sines
    and cosines are stored in another order than in this package. has_bias: True if there is a bias of the logits, which
    may be 0.
    """

    name: str
    model: str
    config: str
    defaults: Mapping[str, Any]
    keys: Mapping[str, Any]
    vocabulary: str
    splits_sinusoids: bool = False
    has_bias: bool = False


# Keys of BART and of the models that are copies of it.
_BART_KEYS = {"norm_type": "layer", "gated": False, "bias": True, "head_size": None}
ARCHITECTURES = {
    "marian": Architecture("Marian", "MarianMTModel", "MarianConfig",
                           {"activation_function": "gelu", "scale_embedding": False},
                           _BART_KEYS | {"norm": "post", "positions": "sinusoidal", "decoder_start": "<s>",
                                         "embedding_norm": False}, "marian", splits_sinusoids=True, has_bias=True),
    "m2m_100": Architecture("M2M-100", "M2M100ForConditionalGeneration", "M2M100Config",
                            {"activation_function": "relu", "scale_embedding": True},
                            _BART_KEYS | {"norm": "pre", "positions": "fairseq", "decoder_start": "</s>",
                                          "embedding_norm": False}, "fairseq"),
    "mbart": Architecture("mBART", "MBartForConditionalGeneration", "MBartConfig",
                          {"activation_function": "gelu", "scale_embedding": False},
                          _BART_KEYS | {"norm": "pre", "positions": "learned", "decoder_start": "</s>",
                                        "embedding_norm": True}, "fairseq", has_bias=True),
}
_T5_KEYS = {"norm": "pre", "norm_type": "rms", "positions": "relative", "bias": False, "embedding_norm": False,
            "output_bias": False, "tied_decoder_layers": False, "normalize": "softmax", "selection": "soft",
            "copy": False, "context": "concatenate"}
ARCHITECTURES["t5"] = Architecture("T5", "T5ForConditionalGeneration", "T5Config", {}, _T5_KEYS, "t5")
ARCHITECTURES["mt5"] = Architecture("mT5", "MT5ForConditionalGeneration", "MT5Config", {}, _T5_KEYS, "t5")

"""Architectures by their `model_type` in config.json."""
OUTPUT, BIAS = "lm_head.weight", "final_logits_bias"
POSITIONS = tuple(f"model.{side}.embed_positions.{name}" for side in ("encoder", "decoder")
                  for name in ("weight", "weights"))
"""Tables of positions. Those that are not learned are in the files of some versions of transformers only."""
FIRST_POSITION = 2
"""Row of the first token in the tables of positions of fairseq's models. The rows before it are not used."""


@dataclass(frozen=True)
class WeightMapping:
    """Correspondence of a weight of this package's model to weights of transformers.

    ours: name of the weight in this package. theirs: names of the weights whose concatenation along axis 0 is that
    weight. d_model_axis: axis along the features (d_model) of embeddings or hidden states, which the two libraries
    order differently; None if the weight has no such axis.
    """

    ours: str
    theirs: tuple[str, ...]
    d_model_axis: int | None


def layer_weight_mappings(architecture: Architecture, section: TransformerSection) -> Iterator[WeightMapping]:
    """Yield the mappings of all weights except the embeddings and the output projection."""
    if architecture.vocabulary == "t5":
        yield from (WeightMapping(ours, theirs, None) for ours, theirs in huggingface_t5.weight_names(section))
        return

    def from_d_model(ours: str, *theirs: str) -> Iterator[WeightMapping]:       # layer with d_model inputs
        yield WeightMapping(f"{ours}.weight", tuple(f"{name}.weight" for name in theirs), 1)
        yield WeightMapping(f"{ours}.bias", tuple(f"{name}.bias" for name in theirs), None)

    def to_d_model(ours: str, theirs: str) -> Iterator[WeightMapping]:         # layer or norm with d_model outputs
        yield WeightMapping(f"{ours}.weight", (f"{theirs}.weight",), 0)
        yield WeightMapping(f"{ours}.bias", (f"{theirs}.bias",), 0)

    for side, layers in (("encoder", section.encoder_layers), ("decoder", section.decoder_layers)):
        for number in range(layers):
            tied = side == "decoder" and section.tied_decoder_layers
            ours, theirs = f"{side}.{0 if tied else number}", f"model.{side}.layers.{number}"
            yield from from_d_model(f"{ours}.self_attention.query_key_value",
                                    *(f"{theirs}.self_attn.{part}_proj" for part in "qkv"))
            yield from to_d_model(f"{ours}.self_attention.output", f"{theirs}.self_attn.out_proj")
            yield from to_d_model(f"{ours}.self_residual.norm", f"{theirs}.self_attn_layer_norm")
            yield from from_d_model(f"{ours}.feed_forward.inner", f"{theirs}.fc1")
            yield from to_d_model(f"{ours}.feed_forward.outer", f"{theirs}.fc2")
            yield from to_d_model(f"{ours}.feed_forward_residual.norm", f"{theirs}.final_layer_norm")
            if side == "decoder":
                yield from from_d_model(f"{ours}.cross_attention.query", f"{theirs}.encoder_attn.q_proj")
                yield from from_d_model(f"{ours}.cross_attention.key_value",
                                        *(f"{theirs}.encoder_attn.{part}_proj" for part in "kv"))
                yield from to_d_model(f"{ours}.cross_attention.output", f"{theirs}.encoder_attn.out_proj")
                yield from to_d_model(f"{ours}.cross_residual.norm", f"{theirs}.encoder_attn_layer_norm")
        if section.norm == "pre":
            yield from to_d_model(f"{side}_norm", f"model.{side}.layer_norm")
        if section.embedding_norm:
            ours = {"encoder": "source", "decoder": "target"}[side]
            yield from to_d_model(f"{ours}_embedding_norm", f"model.{side}.layernorm_embedding")


def embedding_names(architecture: Architecture) -> tuple[str, str, str]:
    """Return the names of the shared embedding and of those of the encoder and the decoder."""
    prefix = "" if architecture.vocabulary == "t5" else "model."
    return f"{prefix}shared.weight", f"{prefix}encoder.embed_tokens.weight", f"{prefix}decoder.embed_tokens.weight"


def interleaved_to_split_permutation(d_model: int) -> Tensor:
    """Return the permutation from interleaved to split sines and cosines, (d_model,): 0, 2, 4, …, 1, 3, 5, …

    In this package, sines and cosines are interleaved; Marian has all sines first. Element i is this package's index of
    the feature that has index i in Marian.
    """
    return torch.arange(d_model).view(-1, 2).T.flatten()


# From transformers


def architecture_of(config: Mapping[str, Any]) -> Architecture:
    """Return the architecture that a config.json names."""
    model_type = config.get("model_type")
    if model_type not in ARCHITECTURES:
        raise FormatError(f"its config.json has model_type: {model_type}. These can be imported: marian (OPUS-MT), "
                          "m2m_100 (M2M-100, NLLB-200), mbart (mBART-50), t5 (T5, MADLAD-400) and mt5 (mT5).")
    if "auto_map" in config:
        raise FormatError("its config.json names Python code of its own (auto_map), which is not executed. Only models "
                          "that transformers knows can be imported.")
    return ARCHITECTURES[model_type]


def model_section_from_config(config: Mapping[str, Any], theirs: Mapping[str, Tensor]) -> TransformerSection:
    """Return the `model` section of a recipe for the model that a config.json describes. theirs: its weights by name.
    """
    architecture = architecture_of(config)
    if architecture.vocabulary == "t5":
        values = huggingface_t5.section_values(config, huggingface_t5.has_own_output(theirs)) | {"score": "dot"}
    else:
        values = _bart_values(architecture, config, BIAS in theirs and bool(theirs[BIAS].any()))
    section = {**values, **architecture.keys}
    try:
        return TransformerSection.model_validate(section)
    except ValidationError as error:
        location = SourceLocation("its config.json describes an unsupported model")
        mistakes = explain(error, Document(section, {(): location}))
        raise FormatError("; ".join(map(str, mistakes))) from error


def _bart_values(architecture: Architecture, config: Mapping[str, Any], output_bias: bool) -> dict[str, Any]:
    """Return the keys of the `model` section that differ between the models of an architecture other than T5."""
    config = {**architecture.defaults, **config}
    try:
        encoder, decoder = ((config[f"{side}_attention_heads"], config[f"{side}_ffn_dim"])
                            for side in ("encoder", "decoder"))
        sizes = {"d_model": config["d_model"], "encoder_layers": config["encoder_layers"],
                 "decoder_layers": config["decoder_layers"]}
    except KeyError as error:
        raise FormatError(f"its config.json has no {error.args[0]}. Copy it again.") from error
    if encoder != decoder:
        raise FormatError("its encoder and decoder differ in the number of heads or in the feed-forward width. "
                          "seq2seq supports only models in which both are equal.")
    num_heads, feed_forward = encoder
    activation = config["activation_function"]
    if not isinstance(activation, str) or activation not in ACTIVATIONS:
        raise FormatError(f"its activation is {activation}; supported are {', '.join(sorted(set(ACTIVATIONS)))}.")
    for key in ("normalize_before", "normalize_embedding", "add_final_layer_norm"):
        if config.get(key) and architecture.keys["norm"] == "post":
            raise FormatError(f"its config.json has {key}: true, which the {architecture.name} model of transformers "
                              "does not support either.")
    shared, tied = config.get("share_encoder_decoder_embeddings", True), config.get("tie_word_embeddings", True)
    return {
        **sizes, "num_heads": num_heads, "feed_forward": feed_forward, "activation": ACTIVATIONS[activation],
        "dropout": config.get("dropout", 0.1), "max_positions": config.get("max_position_embeddings", 1024),
        "tied_embeddings": "none" if not tied else "all" if shared else "decoder",
        "scale_embedding": bool(config["scale_embedding"]), "output_bias": output_bias}


def weights_from_huggingface(theirs: Mapping[str, Tensor], architecture: Architecture, section: TransformerSection,
                             source_ids: Sequence[int], target_ids: Sequence[int], output_scale: float = 1.0
                             ) -> dict[str, Tensor]:
    """Return this package's weights by name, in float32, converted from those of transformers. A tied weight occurs
    once.

    Args:
        theirs: weights by name, finite, in float32.
        source_ids, target_ids: their token id for each of this package's token ids.
        output_scale: factor by which transformers multiplies the logits.
    """
    remaining = dict(theirs)
    remaining.pop(huggingface_t5.UNUSED_BIAS, None)
    shared, source, target = embedding_names(architecture)

    def reordered(weight: Tensor, axis: int | None) -> Tensor:
        if axis is None or not architecture.splits_sinusoids:
            return weight
        return weight.index_select(axis, interleaved_to_split_permutation(section.d_model).argsort())

    embeddings = {name: remaining.pop(name) for name in (shared, source, target, OUTPUT) if name in remaining}

    def embedding(ids: Sequence[int], *names: str) -> Tensor:
        name = next((name for name in names if name in embeddings), None)
        if name is None:
            raise FormatError(f"its weight {names[0]} is missing. Copy all its files again.")
        _require_shape(name, embeddings[name], (len(ids), section.d_model))
        return reordered(embeddings[name].index_select(0, torch.tensor(ids)), 1)

    # Depending on the version of transformers that saved a file, a tied weight has one or several of these names.
    names_by_tying: dict[str, dict[str, tuple[str, ...]]] = {
        "all": {"target_embedding": (shared, source, target, OUTPUT)},
        "decoder": {"target_embedding": (target, OUTPUT), "source_embedding": (source,)},
        "inputs": {"target_embedding": (shared, source, target), "output_weight": (OUTPUT,)},
        "none": {"target_embedding": (target, shared), "source_embedding": (source, shared),
                 "output_weight": (OUTPUT,)}}
    ours = {name: embedding(source_ids if name == "source_embedding" else target_ids, *copies)
            for name, copies in names_by_tying[section.tied_embeddings].items()}
    if output_scale != 1:
        ours["output_weight" if "output_weight" in ours else "target_embedding"] *= output_scale
    bias = remaining.pop(BIAS, None)
    if bias is not None:
        _require_shape(BIAS, bias, (1, len(target_ids)))
        if section.output_bias:
            ours["output_bias"] = bias[0, torch.tensor(target_ids)]
    mapped: list[tuple[WeightMapping, list[Tensor]]] = []
    for mapping in layer_weight_mappings(architecture, section):
        missing = [name for name in mapping.theirs if name not in remaining]
        if missing:
            raise FormatError(f"its weight {missing[0]} is missing. Copy all its files again.")
        mapped.append((mapping, [remaining.pop(name) for name in mapping.theirs]))
    learned = {"model.encoder.embed_positions.weight": "source_positions",
               "model.decoder.embed_positions.weight": "target_positions"} if section.positions == "learned" else {}
    if absent := [name for name in learned if name not in remaining]:
        raise FormatError(f"its weight {absent[0]} is missing. Copy all its files again.")
    offset = 0 if architecture.vocabulary == "marian" else FIRST_POSITION
    for name in POSITIONS:
        positions = remaining.pop(name, None)
        if positions is None:
            continue
        _require_shape(name, positions, (section.max_positions + offset, section.d_model))
        if name in learned:
            ours[learned[name]] = positions[offset:].clone()
        else:
            expected = POSITION_TABLES[section.positions](section.max_positions, section.d_model)
            if not torch.allclose(reordered(positions[offset:], 1), expected, rtol=0, atol=1e-3):
                raise FormatError(f"its position encodings {name} are not the sinusoids of {architecture.name}.")
    if remaining:
        raise FormatError(f"it has weights that {architecture.name} models do not have: "
                          f"{', '.join(sorted(remaining)[:5])}.")
    with torch.device("meta"), SkipInitialization():                             # shapes only, without values
        outline = dict(build_model(section, len(source_ids), len(target_ids)).named_parameters())
    for mapping, parts in mapped:
        rows, *columns = outline[mapping.ours].shape
        for name, part in zip(mapping.theirs, parts, strict=True):
            _require_shape(name, part, (rows // len(parts), *columns))
        ours[mapping.ours] = reordered(torch.cat(parts), mapping.d_model_axis)
    assert {name: tensor.shape for name, tensor in ours.items()} == {
        name: tensor.shape for name, tensor in outline.items()}
    return ours


def _require_shape(name: str, weight: Tensor, shape: tuple[int, ...]) -> None:
    if weight.shape != shape:
        raise FormatError(f"its weight {name} has the shape {tuple(weight.shape)} instead of {shape}, which the "
                          "vocabulary and config.json require. Copy all its files again.")


# To transformers


def config_for(architecture: Architecture, section: TransformerSection, source_vocab_size: int,
               target_vocab_size: int, symbols: Mapping[str, int]) -> dict[str, Any]:
    """Return the arguments of the class of config.json for a model. symbols: ids of `start` (of the decoder), `pad` and
    `end`."""
    if architecture.vocabulary == "t5":
        return {**huggingface_t5.config_values(section), "vocab_size": source_vocab_size,
                "eos_token_id": symbols["end"], "pad_token_id": symbols["pad"],
                "decoder_start_token_id": symbols["start"]}
    config = {
        "vocab_size": source_vocab_size, "d_model": section.d_model,
        "encoder_layers": section.encoder_layers, "decoder_layers": section.decoder_layers,
        "encoder_attention_heads": section.num_heads, "decoder_attention_heads": section.num_heads,
        "encoder_ffn_dim": section.feed_forward, "decoder_ffn_dim": section.feed_forward, "dropout": section.dropout,
        "activation_function": section.activation, "scale_embedding": section.scale_embedding,
        "max_position_embeddings": section.max_positions, "eos_token_id": symbols["end"],
        "pad_token_id": symbols["pad"], "decoder_start_token_id": symbols["start"],
        "tie_word_embeddings": section.tied_embeddings != "none",
    }
    if section.embedding_norm:                          # not read by transformers, but by CTranslate2's converter
        config |= {"normalize_before": True, "normalize_embedding": True, "add_final_layer_norm": True}
    if architecture.vocabulary == "marian":
        config |= {"decoder_vocab_size": target_vocab_size, "forced_eos_token_id": symbols["end"],
                   "share_encoder_decoder_embeddings": section.tied_embeddings == "all"}
    return config


def unsupported_keys(architecture: Architecture, section: TransformerSection) -> list[str]:
    """Return the keys of a model whose value differs from that of all models of the architecture."""
    return [key for key, value in architecture.keys.items() if getattr(section, key) != value]


def require_support(architecture: Architecture, section: TransformerSection) -> None:
    """Raise FormatError if the model of transformers does not support a feature of the model."""
    for key in unsupported_keys(architecture, section):
        raise FormatError(f"model.{key}: {getattr(section, key)} cannot be exported to huggingface: the "
                          f"{architecture.name} model of transformers has {key}: {architecture.keys[key]}. Export to "
                          "ctranslate2.")
    if architecture.vocabulary == "t5" and section.tied_embeddings not in ("all", "inputs"):
        raise FormatError(f"model.tied_embeddings: {section.tied_embeddings} cannot be exported to huggingface: the T5 "
                          "model of transformers has one embedding for source and target.")
    if section.output_bias and not architecture.has_bias:
        raise FormatError(f"model.output_bias: true cannot be exported to huggingface: the {architecture.name} model "
                          "of transformers has no bias of the logits.")
    if section.tied_embeddings == "decoder" and architecture.vocabulary != "marian":
        raise FormatError(f"model.tied_embeddings: decoder cannot be exported to huggingface: the {architecture.name} "
                          "model of transformers has one vocabulary.")


def weights_to_huggingface(ours: Mapping[str, Tensor], architecture: Architecture, section: TransformerSection,
                           ids: Sequence[int] | None = None) -> dict[str, Tensor]:
    """Return the weights of transformers by name, converted from this package's weights. A tied weight occurs once.

    Args:
        ours: weights by name, of a model whose attention scores are scaled dot products (see
            `exporting.inference_copy`).
        ids: this package's token id for each of their token ids; None: the ids are the same.
    """
    def reordered(weight: Tensor, axis: int | None) -> Tensor:
        if axis is None or not architecture.splits_sinusoids:
            return weight
        return weight.index_select(axis, interleaved_to_split_permutation(section.d_model))

    shared, source, target = embedding_names(architecture)
    names = {"all": {shared: "target_embedding"},
             "decoder": {target: "target_embedding", source: "source_embedding"},
             "inputs": {shared: "target_embedding", OUTPUT: "output_weight"},
             "none": {target: "target_embedding", source: "source_embedding", OUTPUT: "output_weight"},
             }[section.tied_embeddings]
    rows = slice(None) if ids is None else torch.tensor(ids)
    theirs = {name: reordered(ours[own][rows], 1) for name, own in names.items()}
    if architecture.has_bias:
        bias = ours.get("output_bias")
        theirs[BIAS] = (ours["target_embedding"].new_zeros(len(ours["target_embedding"])) if bias is None else
                        bias)[rows][None]
    if architecture.vocabulary == "fairseq" and section.tied_embeddings == "none":  # not used, but stored
        theirs[shared] = theirs[target]
    if architecture.vocabulary == "t5" and section.scale_embedding:             # their embedding is not scaled
        theirs[shared] = theirs[shared] * section.d_model**0.5
    if section.positions == "learned":
        for side, own in (("encoder", "source_positions"), ("decoder", "target_positions")):
            unused = ours[own].new_zeros(FIRST_POSITION, section.d_model)
            theirs[f"model.{side}.embed_positions.weight"] = torch.cat([unused, ours[own]])
    for mapping in layer_weight_mappings(architecture, section):
        weight = reordered(ours[mapping.ours], mapping.d_model_axis)
        if architecture.vocabulary == "t5":
            weight = huggingface_t5.with_unscaled_query(mapping.ours, weight, section)
        theirs.update(zip(mapping.theirs, weight.chunk(len(mapping.theirs)), strict=True))
    return theirs
