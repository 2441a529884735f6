"""Weights of a plain encoder-decoder Transformer as a bundle stores them, for engines that need no PyTorch model."""

from __future__ import annotations

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

    def add_linear(name: str, outputs: int, inputs: int = width) -> None:
        shapes.update({f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)})

    def add_norm(name: str) -> None:
        shapes.update({f"{name}.weight": (width,), f"{name}.bias": (width,)})

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
                    add_linear(f"{attention}.{name}", outputs * width)
                add_linear(f"{attention}.output", width)
                if section.score == "bilinear":
                    size = width // section.num_heads
                    shapes[f"{attention}.weighing.weight"] = section.num_heads, size, size
            add_linear(f"{layer}.feed_forward.inner", inner)
            add_linear(f"{layer}.feed_forward.outer", width, inner)
            add_norm(f"{layer}.self_residual.norm")
            add_norm(f"{layer}.feed_forward_residual.norm")
        if section.norm == "pre":
            add_norm(f"{side}_norm")
    return shapes


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


POSITION_TABLES = {"sinusoidal": sinusoids, "fairseq": fairseq_sinusoids}
"""See `model.layers.POSITION_TABLES`."""


def scaled_dot_query(section: TransformerSection, weight: np.ndarray, bias: np.ndarray, bilinear: np.ndarray | None
                     ) -> tuple[np.ndarray, np.ndarray]:
    """Return the weight and the bias of a projection whose first d_model outputs are the queries of scaled dot
    products, see `attention_scores.Weighing.prepared_parameters`.

    weight: (outputs, d_model). bilinear: (heads, head size, head size); None if the scores are not bilinear.
    """
    if section.score == "scaled_dot":
        return weight, bias
    width, size = section.d_model, section.d_model // section.num_heads
    columns = np.concatenate([weight, bias[:, None]], 1)                        # (outputs, d_model + 1)
    queries = columns[:width].reshape(section.num_heads, size, width + 1)
    if bilinear is not None:
        queries = bilinear.swapaxes(1, 2) @ queries
    columns[:width] = (queries * np.float32(size**0.5)).reshape(width, width + 1)
    return columns[:, :-1], columns[:, -1]
