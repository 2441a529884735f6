"""The same model here and in Hugging Face's `MarianMTModel`: which weight is which, and what its config.json says.

Marian's positions are all sines, then all cosines; the paper's alternate. Only the sum of embedding and position
matters, so all that reads from or writes into d_model is reordered, and nothing is computed: weights that go there and
come back are the same to the bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor

from seq2seq.errors import FormatError
from seq2seq.model import build_model
from seq2seq.model.embedding import sinusoids
from seq2seq.model.load_model import Undrawn
from seq2seq.recipe import ModelSection
from seq2seq.recipe.messages import explain
from seq2seq.recipe.yaml_document import Document, SourceLocation

ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "silu": "silu", "swish": "silu"}
SHARED, SOURCE, TARGET, OUTPUT, BIAS = (
    "model.shared.weight", "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight",
    "final_logits_bias")
POSITIONS = ("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight")


@dataclass(frozen=True)
class Weight:
    """A weight of ours, and those of Marian that it consists of, one below another.

    features: its axis of size d_model, along which the order differs; None where it has none.
    """

    ours: str
    theirs: tuple[str, ...]
    features: int | None


def weights_of_layers(section: ModelSection) -> Iterator[Weight]:
    """All weights but embeddings and the output's."""

    def reading(ours: str, *theirs: str) -> Iterator[Weight]:                   # from d_model, into something else
        yield Weight(f"{ours}.weight", tuple(f"{name}.weight" for name in theirs), 1)
        yield Weight(f"{ours}.bias", tuple(f"{name}.bias" for name in theirs), None)

    def writing(ours: str, theirs: str) -> Iterator[Weight]:                    # into d_model, and its norms
        yield Weight(f"{ours}.weight", (f"{theirs}.weight",), 0)
        yield Weight(f"{ours}.bias", (f"{theirs}.bias",), 0)

    for side, layers in (("encoder", section.encoder_layers), ("decoder", section.decoder_layers)):
        for number in range(layers):
            ours, theirs = f"{side}.{number}", f"model.{side}.layers.{number}"
            yield from reading(f"{ours}.self_attention.query_key_value",
                               *(f"{theirs}.self_attn.{part}_proj" for part in "qkv"))
            yield from writing(f"{ours}.self_attention.output", f"{theirs}.self_attn.out_proj")
            yield from writing(f"{ours}.self_residual.norm", f"{theirs}.self_attn_layer_norm")
            yield from reading(f"{ours}.feed_forward.inner", f"{theirs}.fc1")
            yield from writing(f"{ours}.feed_forward.outer", f"{theirs}.fc2")
            yield from writing(f"{ours}.feed_forward_residual.norm", f"{theirs}.final_layer_norm")
            if side == "decoder":
                yield from reading(f"{ours}.cross_attention.query", f"{theirs}.encoder_attn.q_proj")
                yield from reading(f"{ours}.cross_attention.key_value",
                                   *(f"{theirs}.encoder_attn.{part}_proj" for part in "kv"))
                yield from writing(f"{ours}.cross_attention.output", f"{theirs}.encoder_attn.out_proj")
                yield from writing(f"{ours}.cross_residual.norm", f"{theirs}.encoder_attn_layer_norm")


def alternating_to_halves(d_model: int) -> Tensor:
    """Return the index of our feature for each of Marian's features, (d_model,): 0, 2, 4, …, 1, 3, 5, …"""
    return torch.arange(d_model).view(-1, 2).T.flatten()


# From Marian


def section_from(config: Mapping[str, Any], output_bias: bool) -> ModelSection:
    """The `model` section that a config.json describes.

    Raises:
        FormatError: it is no Marian model, or one of a kind that there is none of here.
    """
    kind = config.get("model_type")
    if kind != "marian":
        raise FormatError(f"its config.json says model_type: {kind}. Marian models can be imported (model_type: "
                          "marian), such as those of OPUS-MT.")
    try:
        encoder, decoder = ((config[f"{side}_attention_heads"], config[f"{side}_ffn_dim"])
                            for side in ("encoder", "decoder"))
        sizes = {"d_model": config["d_model"], "encoder_layers": config["encoder_layers"],
                 "decoder_layers": config["decoder_layers"]}
    except KeyError as error:
        raise FormatError(f"its config.json does not say {error.args[0]}. Copy it again.") from error
    if encoder != decoder:
        raise FormatError("its encoder and decoder differ in the number of heads or in feed-forward width, which are "
                          "one for both here.")
    num_heads, feed_forward = encoder
    activation = config.get("activation_function", "gelu")
    if not isinstance(activation, str) or activation not in ACTIVATIONS:
        raise FormatError(f"its activation is {activation}; here there are {', '.join(sorted(set(ACTIVATIONS)))}.")
    for key in ("normalize_before", "normalize_embedding", "add_final_layer_norm"):
        if config.get(key):
            raise FormatError(f"its config.json says {key}: true, which transformers' own Marian does not know either.")
    shared, tied = config.get("share_encoder_decoder_embeddings", True), config.get("tie_word_embeddings", True)
    section = {
        **sizes, "num_heads": num_heads, "feed_forward": feed_forward, "activation": ACTIVATIONS[activation],
        "dropout": config.get("dropout", 0.1), "max_positions": config.get("max_position_embeddings", 1024),
        "tied_embeddings": "none" if not tied else "all" if shared else "decoder",
        "scale_embedding": bool(config.get("scale_embedding", False)), "output_bias": output_bias}
    try:
        return ModelSection.model_validate(section)
    except ValidationError as error:
        mistakes = explain(error, Document(section, {(): SourceLocation("its config.json makes no model here")}))
        raise FormatError("; ".join(map(str, mistakes))) from error


def weights_from(theirs: Mapping[str, Tensor], section: ModelSection, source_ids: Sequence[int],
                 target_ids: Sequence[int]) -> dict[str, Tensor]:
    """Our weights by name, tied ones once, in float32.

    Args:
        source_ids, target_ids: Marian's id of each of ours.
    Raises:
        FormatError: weights are missing, or are more than the model has, or are of other shapes, or no numbers.
    """
    for name, tensor in theirs.items():
        if tensor.isnan().any():
            raise FormatError(f"its weight {name} holds what is not a number. Copy all its files again.")
    left = {name: tensor.float() for name, tensor in theirs.items()}
    features = alternating_to_halves(section.d_model).argsort()

    embeddings = {name: left.pop(name) for name in (SHARED, SOURCE, TARGET, OUTPUT) if name in left}

    def embedding(ids: Sequence[int], *names: str) -> Tensor:
        name = next((name for name in names if name in embeddings), None)
        if name is None:
            raise FormatError(f"its weight {names[0]} is missing. Copy all its files again.")
        _require_shape(name, embeddings[name], (len(ids), section.d_model))
        return embeddings[name].index_select(0, torch.tensor(ids)).index_select(1, features)

    # Files of other versions have one of these names, or another, or all of them.
    kinds: dict[str, dict[str, tuple[str, ...]]] = {
        "all": {"target_embedding": (SHARED, SOURCE, TARGET, OUTPUT)},
        "decoder": {"target_embedding": (TARGET, OUTPUT), "source_embedding": (SOURCE,)},
        "none": {"target_embedding": (TARGET, SHARED), "source_embedding": (SOURCE, SHARED),
                 "output_weight": (OUTPUT,)}}
    ours = {name: embedding(source_ids if name == "source_embedding" else target_ids, *copies)
            for name, copies in kinds[section.tied_embeddings].items()}
    bias = left.pop(BIAS, None)
    if bias is not None:
        _require_shape(BIAS, bias, (1, len(target_ids)))
        if section.output_bias:
            ours["output_bias"] = bias[0, torch.tensor(target_ids)]
    layers: list[tuple[Weight, list[Tensor]]] = []
    for layer in weights_of_layers(section):
        missing = [name for name in layer.theirs if name not in left]
        if missing:
            raise FormatError(f"its weight {missing[0]} is missing. Copy all its files again.")
        layers.append((layer, [left.pop(name) for name in layer.theirs]))
    for name in POSITIONS:
        positions = left.pop(name, None)
        if positions is not None:
            _require_shape(name, positions, (section.max_positions, section.d_model))
            expected = sinusoids(section.max_positions, section.d_model)[:, features.argsort()]
            if not torch.allclose(positions, expected, rtol=0, atol=1e-4):
                raise FormatError(f"its positions {name} are not the sinusoids that Marian has.")
    if left:
        raise FormatError(f"it has weights that no Marian model has: {', '.join(sorted(left)[:5])}.")
    with torch.device("meta"), Undrawn():                                       # shapes without memory
        outline = dict(build_model(section, len(source_ids), len(target_ids)).named_parameters())
    for layer, parts in layers:
        rows, *columns = outline[layer.ours].shape
        for name, part in zip(layer.theirs, parts, strict=True):
            _require_shape(name, part, (rows // len(parts), *columns))
        whole = torch.cat(parts)
        ours[layer.ours] = whole if layer.features is None else whole.index_select(layer.features, features)
    assert {name: tensor.shape for name, tensor in ours.items()} == {
        name: tensor.shape for name, tensor in outline.items()}
    return ours


def _require_shape(name: str, weight: Tensor, shape: tuple[int, ...]) -> None:
    if weight.shape != shape:
        raise FormatError(f"its weight {name} has the shape {tuple(weight.shape)} and not {shape}, as vocabulary and "
                          "config.json say. Copy all its files again.")


# To Marian


def config_of(section: ModelSection, source_vocab_size: int, target_vocab_size: int, *, start: int, end: int
              ) -> dict[str, Any]:
    """The arguments of `MarianConfig`. start, end: ids of the symbols.

    Raises:
        FormatError: Marian has no such model; the message says why.
    """
    refuse_what_marian_lacks(section)
    return {
        "vocab_size": source_vocab_size, "decoder_vocab_size": target_vocab_size, "d_model": section.d_model,
        "encoder_layers": section.encoder_layers, "decoder_layers": section.decoder_layers,
        "encoder_attention_heads": section.num_heads, "decoder_attention_heads": section.num_heads,
        "encoder_ffn_dim": section.feed_forward, "decoder_ffn_dim": section.feed_forward, "dropout": section.dropout,
        "activation_function": section.activation, "scale_embedding": section.scale_embedding,
        "max_position_embeddings": section.max_positions, "eos_token_id": end, "forced_eos_token_id": end,
        "pad_token_id": start, "decoder_start_token_id": start,
        "share_encoder_decoder_embeddings": section.tied_embeddings == "all",
        "tie_word_embeddings": section.tied_embeddings != "none",
    }


def refuse_what_marian_lacks(section: ModelSection) -> None:
    """Raises FormatError if transformers has no model of this kind with a Marian tokenizer."""
    if section.norm == "pre":
        raise FormatError("model.norm: pre cannot be exported to huggingface: Marian, the model of transformers that "
                          "this would be, is post-norm. Export to ctranslate2.")
    if section.positions == "learned":
        raise FormatError("model.positions: learned cannot be exported to huggingface: Marian computes sinusoids, and "
                          "would lose learned positions when it is saved again. Export to ctranslate2.")


def weights_to(ours: Mapping[str, Tensor], section: ModelSection) -> dict[str, Tensor]:
    """Marian's weights by name, tied ones once. ours: likewise, with scores that are scaled dot products."""
    features = alternating_to_halves(section.d_model)
    names = {"all": {"target_embedding": SHARED},
             "decoder": {"target_embedding": TARGET, "source_embedding": SOURCE},
             "none": {"target_embedding": TARGET, "source_embedding": SOURCE, "output_weight": OUTPUT},
             }[section.tied_embeddings]
    theirs = {name: ours[mine].index_select(1, features) for mine, name in names.items()}
    bias = ours.get("output_bias")
    theirs[BIAS] = (ours["target_embedding"].new_zeros(len(ours["target_embedding"])) if bias is None else bias)[None]
    for weight in weights_of_layers(section):
        whole = ours[weight.ours]
        if weight.features is not None:
            whole = whole.index_select(weight.features, features)
        theirs.update(zip(weight.theirs, whole.chunk(len(weight.theirs)), strict=True))
    return theirs
