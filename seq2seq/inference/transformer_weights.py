"""Weights of a plain encoder-decoder Transformer as a bundle stores them, for engines that need no PyTorch model."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from seq2seq.errors import CheckpointError
from seq2seq.recipe import TransformerSection
from seq2seq.storage.tensor_files import FLOATING_POINT_TYPES


def expected_shapes(section: TransformerSection, sizes: tuple[int, int]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the stored weights by name. Tied weights occur once.

    Args:
        section: describes a Transformer without `peculiarity`. sizes: source and
            target vocabulary size.
    """
    width, inner, (source_size, target_size) = section.d_model, section.feed_forward, sizes
    features = section.num_heads * head_size(section)
    shapes: dict[str, tuple[int, ...]] = {"target_embedding": (target_size, width)}
    if section.tied_embeddings not in ("all", "inputs"):
        shapes["source_embedding"] = source_size, width
    elif source_size != target_size:
        raise CheckpointError(f"cannot tie embeddings of {source_size} source and {target_size} target ids")
    if section.tied_embeddings in ("inputs", "none"):
        shapes["output_weight"] = target_size, width
    if section.output_bias:
        shapes["output_bias"] = (target_size,)
    if section.positions == "learned":
        shapes |= dict.fromkeys(("source_positions", "target_positions"), (section.max_positions, width))
    if section.positions == "relative":
        shapes |= dict.fromkeys(("source_relative.weight", "target_relative.weight"), (BUCKETS, section.num_heads))

    def add(name: str, has_bias: bool, *weight: int) -> None:
        shapes[f"{name}.weight"] = weight
        if has_bias:
            shapes[f"{name}.bias"] = weight[:1]

    def add_linear(name: str, outputs: int, inputs: int = width) -> None:
        add(name, section.bias, outputs, inputs)

    def add_norm(name: str) -> None:
        add(name, section.norm_type == "layer", width)

    if section.embedding_norm:
        add_norm("source_embedding_norm")
        add_norm("target_embedding_norm")
    for side, layers in (("encoder", section.encoder_layers),
                         ("decoder", 1 if section.tied_decoder_layers else section.decoder_layers)):
        for layer in (f"{side}.{index}" for index in range(layers)):
            projections = {f"{layer}.self_attention": {"query_key_value": 3}}
            if side == "decoder":
                projections[f"{layer}.cross_attention"] = {"query": 1, "key_value": 2}
                add_norm(f"{layer}.cross_residual.norm")
            for attention, widths in projections.items():
                for name, outputs in widths.items():
                    add_linear(f"{attention}.{name}", outputs * features)
                add_linear(f"{attention}.output", width, features)
                if section.score == "bilinear":
                    size = head_size(section)
                    shapes[f"{attention}.weighing.weight"] = section.num_heads, size, size
            add_linear(f"{layer}.feed_forward.inner", inner)
            if section.gated:
                add_linear(f"{layer}.feed_forward.gate", inner)
            add_linear(f"{layer}.feed_forward.outer", width, inner)
            add_norm(f"{layer}.self_residual.norm")
            add_norm(f"{layer}.feed_forward_residual.norm")
        if section.norm == "pre":
            add_norm(f"{side}_norm")
    return shapes


def head_size(section: TransformerSection) -> int:
    """Return the width of an attention head."""
    return section.head_size or section.d_model // section.num_heads


def differences(stored: Mapping[str, tuple[tuple[int, ...], str]], expected: Mapping[str, tuple[int, ...]]) -> str:
    """Describe the first three weights that differ in name, shape or type; return "" if all weights agree.

    stored: shape and safetensors dtype of each weight. expected: shape of each weight.
    """
    found = {name: str(shape) if dtype in FLOATING_POINT_TYPES else f"{shape} of {dtype}"
             for name, (shape, dtype) in stored.items()}
    wanted = {name: str(shape) for name, shape in expected.items()}
    names = [name for name in sorted(found.keys() | wanted.keys()) if found.get(name) != wanted.get(name)]
    return "; ".join(f"{name} is {found.get(name, 'missing')} in the bundle, but {wanted.get(name, 'missing')} in the "
                     "recipe's model" for name in names[:3]) + ("; …" if len(names) > 3 else "")


def sinusoids(length: int, d_model: int) -> np.ndarray:
    """Return the same as `model.layers.sinusoids`, (length, d_model) float32."""
    # With z(t) = exp(-i t / 10000^(2i/D)), i z(t) is sin + i cos, and z(a + b) = z(a) z(b). Products are faster than
    # sines.
    frequencies = -1j / 10000 ** (np.arange(0, d_model, 2) / d_model)
    few = 32
    coarse = 1j * np.exp(np.arange(0, length, few)[:, None] * frequencies)
    fine = np.exp(np.arange(few)[:, None] * frequencies)
    table = (coarse[:, None] * fine).reshape(-1, d_model // 2)[:length]
    return table.view(np.float64).astype(np.float32)


def fairseq_sinusoids(length: int, d_model: int) -> np.ndarray:
    """Return the same as `model.layers.fairseq_sinusoids`, (length, d_model) float32."""
    half = d_model // 2
    angles = np.arange(2, length + 2)[:, None] / 10000 ** (np.arange(half) / max(1, half - 1))
    return np.concatenate([np.sin(angles), np.cos(angles)], 1).astype(np.float32)


def no_encoding(length: int, d_model: int) -> np.ndarray:
    """Return the same as `model.layers.no_encoding`, (length, d_model) float32."""
    return np.zeros((length, d_model), np.float32)


POSITION_TABLES = {"sinusoidal": sinusoids, "fairseq": fairseq_sinusoids, "relative": no_encoding}
"""See `model.layers.POSITION_TABLES`."""
BUCKETS, MAX_DISTANCE = 32, 128
"""See `model.relative_positions`."""


def relative_bias(weight: np.ndarray, causal: bool, max_positions: int) -> np.ndarray:
    """Return the bias of each head for the distances from 1 - max_positions to max_positions - 1, in this order,
    (heads, 2 * max_positions - 1) float32; see `model.relative_positions.RelativePositions`.

    weight: (BUCKETS, heads).
    """
    distance = np.arange(1 - max_positions, max_positions)
    count = BUCKETS if causal else BUCKETS // 2
    after = 0 if causal else (distance > 0) * count
    distance = np.maximum(-distance, 0) if causal else np.abs(distance)
    exact = count // 2
    growth = np.log(np.maximum(distance, 1) / exact) / math.log(MAX_DISTANCE / exact) * (count - exact)
    # The distances 16, 32 and 64 are on the borders of buckets, where the logarithm must not be rounded down.
    far = np.minimum(exact + (growth + 1e-6).astype(np.int64), count - 1)
    return np.ascontiguousarray(weight[after + np.where(distance < exact, distance, far)].T)


def scaled_dot_query(section: TransformerSection, weight: np.ndarray, bias: np.ndarray | None,
                     bilinear: np.ndarray | None) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the weight and the bias of a projection whose first outputs, heads * head size, are the queries of scaled
    dot products, see `attention_scores.Weighing.prepared_parameters`.

    weight: (outputs, d_model). bias: None if there is none. bilinear: (heads, head size, head size); None if the scores
    are not bilinear.
    """
    if section.score == "scaled_dot":
        return weight, bias
    size = head_size(section)
    features = section.num_heads * size
    columns = weight.copy() if bias is None else np.concatenate([weight, bias[:, None]], 1)
    queries = columns[:features].reshape(section.num_heads, size, -1)
    if bilinear is not None:
        queries = bilinear.swapaxes(1, 2) @ queries
    columns[:features] = (queries * np.float32(size**0.5)).reshape(features, -1)
    return (columns, None) if bias is None else (columns[:, :-1], columns[:, -1])
