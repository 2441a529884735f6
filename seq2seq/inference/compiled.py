"""A Transformer that translates with compiled kernels; see `kernels.cpp`.

The same sums as `Transformer` in the same precision, in another order. What the kernels make possible: each row reads
just the keys that it may see, so there are no masks and no padding, and a cache never moves.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seq2seq.batching import Batch
from seq2seq.inference.eager import Int8Linear, PackedLinear
from seq2seq.inference.flat import FlatDecoderLayer
from seq2seq.inference.kernel_interface import ACTIVATIONS as KERNEL_ACTIVATIONS
from seq2seq.inference.kernel_interface import Layer, Linear, Norm, Stack
from seq2seq.inference.kernels import NAMES, Kernels, Pointers, linear_of_levels
from seq2seq.model.interface import Logits, State
from seq2seq.model.transformer import ACTIVATIONS, DecoderLayer, EncoderLayer, Residual, Transformer
from seq2seq.tokenizer import END_ID

Function = Callable[[Tensor], Tensor]
Sublayer = Callable[[Tensor, Any], Tensor]
"""(rows, d_model), and what says which keys a row sees -> (rows, d_model)."""

# So many rows, those of one sentence, go through a step in one call where products are oneDNN's: what it spares is more
# than what those gain.
FEW_ROWS = 6
# And so many tokens, likewise, through the encoder.
FEW_TOKENS = 64
# A new cache has room for so many steps more.
STEPS_OF_ROOM = 16
# On a CPU each new number of rows costs the time in which oneDNN generates a kernel for it.
ROUND_TOKENS = 16


@dataclass
class _Cache:
    """Keys and values of all layers, (layers, room, 2 * d_model), and how many rows hold some."""

    keys_values: Tensor
    taken: int = 0


@dataclass(frozen=True)
class CompiledState:
    """Decoding state. A row of the cache is written once and never moves; `past` says whose past it is.

    position: of the next token. taken: rows of the cache that belong to this state.
    past: (rows, position) int32, the rows of the cache that each hypothesis consists of.
    memory: of each layer (source_tokens, 2 * d_model), keys and values of the source; and where they are.
    first, count: (rows,) int32, which tokens of the source are each row's.
    """

    position: int
    taken: int
    cache: _Cache
    past: np.ndarray
    memory: tuple[Tensor, ...]
    memory_places: ctypes.Array[Any]
    first: np.ndarray
    count: np.ndarray
    attention: None = None

    def select(self, rows: Tensor) -> CompiledState:
        """See `interface.State.select`."""
        flat = rows.numpy().ravel()
        return replace(self, past=self.past[flat], first=self.first[flat], count=self.count[flat])

    def extended(self, rows: int) -> CompiledState:
        """The state with a row of the cache more for each of its rows, which no other state writes."""
        cache, past, taken = self.cache, self.past, self.taken
        layers, room, features = cache.keys_values.shape
        if taken + rows > room or cache.taken != taken:
            # What is part of no hypothesis any more stays behind.
            held, places = np.unique(past, return_inverse=True)
            past, taken = places.reshape(past.shape), len(held)
            fresh = cache.keys_values.new_empty(layers, taken + STEPS_OF_ROOM * rows, features)
            fresh[:, :taken] = cache.keys_values[:, torch.from_numpy(held).long()]
            cache = _Cache(fresh)
        cache.taken = taken + rows
        longer = np.empty((rows, self.position + 1), np.int32)
        longer[:, :-1] = past
        longer[:, -1] = np.arange(taken, cache.taken)
        return replace(self, position=self.position + 1, taken=cache.taken, cache=cache, past=longer)


@dataclass(frozen=True)
class _Seen:
    """Of each row, the first that it sees and how many, both (rows,) int32."""

    first: np.ndarray
    count: np.ndarray


class CompiledTransformer:
    """`model`, as `inference.for_inference` made it for a CPU, with compiled start and step.

    In int8, where the processor multiplies bytes, a step is one kernel, and so it is elsewhere for few rows; for more,
    the products are those of `model`, and what lies between is compiled.
    Where attention is to be kept, and for the scores of whole sentences, it is `model` itself.
    """

    def __init__(self, model: Transformer, kernels: Kernels) -> None:
        self.model, self.kernels, self.max_positions = model, kernels, model.max_positions
        self.pointers, self.linears = Pointers(), dict[nn.Module, Linear]()
        # Products of bytes need nobody else's, and are ready for any number of rows.
        self.any_size = kernels.multiplies_bytes and isinstance(model.decoder[0].feed_forward.inner, Int8Linear)
        self.few_rows, self.few_tokens = (sys.maxsize, sys.maxsize) if self.any_size else (FEW_ROWS, FEW_TOKENS)
        encoder, decoder = cast(list[EncoderLayer], model.encoder), cast(list[DecoderLayer], model.decoder)
        encoder_norms = self._norms([part for layer in encoder for part in (
            layer.self_residual, layer.feed_forward_residual)], model.encoder_norm)
        decoder_norms = self._norms([part for layer in decoder for part in (
            layer.self_residual, layer.cross_residual, layer.feed_forward_residual)], model.decoder_norm)
        memory = [layer.cross_attention.key_value for layer in decoder]
        vocabulary = model.vocabulary or _linear(model.output_weight, model.output_bias)

        self.encoder = self._stack(
            [part for layer in encoder for part in (self._self_attention(layer), self._feed_forward(layer))],
            *encoder_norms)
        self.decoder = self._stack(
            [part for number, layer in enumerate(decoder) for part in (
                self._past_attention(layer, number), self._source_attention(layer, number), self._feed_forward(layer))],
            *decoder_norms)
        self.memory_products, self.vocabulary = [self._product(layer) for layer in memory], self._product(vocabulary)
        self.whole_encoder = self._whole(encoder, *encoder_norms, memory)
        self.whole_decoder = self._whole(decoder, *decoder_norms, [vocabulary])

    @staticmethod
    def serves(model: Transformer) -> bool:
        """Whether `model` is on a CPU, its attention is the usual one, and it copies nothing."""
        return (model.window is None and model.copying is None and model.output_weight.device.type == "cpu"
                and model.output_weight.dtype in NAMES
                and all(isinstance(layer, FlatDecoderLayer) for layer in model.decoder))

    def __call__(self, batch: Batch) -> Logits:
        """See `interface.Seq2Seq.__call__`."""
        return cast(Logits, self.model(batch))

    @torch.no_grad()
    def start(self, source: Tensor, source_offsets: Tensor, longest_source: int, keep_attention: bool = False) -> State:
        """See `interface.Seq2Seq.start`."""
        if keep_attention or longest_source > self.max_positions:
            return self.model.start(source, source_offsets, longest_source, keep_attention)
        model, tokens, offsets = self.model, len(source), source_offsets.numpy()
        first, count = offsets[:-1], np.diff(offsets)
        whole = tokens <= self.few_tokens
        # Tokens that round their number see themselves alone.
        alone = np.arange(tokens, tokens if whole else tokens + -tokens % ROUND_TOKENS, dtype=np.int32)
        seen = _Seen(np.concatenate([first.repeat(count), alone]), np.concatenate([count.repeat(count),
                                                                                   np.ones_like(alone)]))
        positions = torch.from_numpy(np.arange(tokens + len(alone)) - seen.first)
        embedded = model.source_embedding[F.pad(source, (0, len(alone)), value=END_ID)]
        embedded = embedded.mul_(model.scale).add_(model.source_positions[positions])
        if whole:
            memory = tuple(self.kernels.encode(self.whole_encoder, embedded.float(), seen.first, seen.count, offsets))
        else:
            encoded = self.encoder(embedded, seen)
            memory = tuple(product(encoded) for product in self.memory_products)
        places = (ctypes.c_void_p * len(memory))(*(part.data_ptr() for part in memory))
        cache = _Cache(embedded.new_empty(len(memory), STEPS_OF_ROOM * len(first), 2 * model.d_model))
        return CompiledState(0, 0, cache, np.empty((len(first), 0), np.int32), memory, places, first, count)

    @torch.no_grad()
    def step(self, last_tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        """See `interface.Seq2Seq.step`."""
        if not isinstance(state, CompiledState) or state.position >= self.max_positions:
            return self.model.step(last_tokens, state)
        model, rows = self.model, last_tokens.shape[0]
        after = state.extended(rows)
        embedding, position = model.target_embedding, model.target_positions[state.position]
        if rows > self.few_rows:
            hidden = embedding[last_tokens].mul_(model.scale).add_(position)
            return self.vocabulary(self.decoder(hidden, after)), after
        return self.kernels.step(self.whole_decoder, embedding, position, model.scale, last_tokens,
                                 after.cache.keys_values, after.taken - rows, after.past, after.memory_places,
                                 after.first, after.count), after

    def _self_attention(self, layer: EncoderLayer) -> Sublayer:
        own = layer.self_attention
        project, output = self._product(own.query_key_value), self._product(own.output)
        d_model, heads = self.model.d_model, self.model.num_heads

        def sublayer(hidden: Tensor, seen: _Seen) -> Tensor:
            projected = project(hidden)
            return output(self.kernels.attend(projected, projected[:, d_model:], heads, first=seen.first,
                                              count=seen.count))

        return sublayer

    def _past_attention(self, layer: DecoderLayer, number: int) -> Sublayer:
        own = layer.self_attention
        project, output = self._product(own.query_key_value), self._product(own.output)
        d_model, heads = self.model.d_model, self.model.num_heads

        def sublayer(hidden: Tensor, state: CompiledState) -> Tensor:
            projected, keys_values = project(hidden), state.cache.keys_values[number]
            keys_values[state.taken - len(hidden) : state.taken] = projected[:, d_model:]
            return output(self.kernels.attend(projected, keys_values, heads, past=state.past))

        return sublayer

    def _source_attention(self, layer: DecoderLayer, number: int) -> Sublayer:
        query, output = self._product(layer.cross_attention.query), self._product(layer.cross_attention.output)

        def sublayer(hidden: Tensor, state: CompiledState) -> Tensor:
            return output(self.kernels.attend(query(hidden), state.memory[number], self.model.num_heads,
                                              first=state.first, count=state.count))

        return sublayer

    def _feed_forward(self, layer: EncoderLayer | DecoderLayer) -> Sublayer:
        inner, outer = self._product(layer.feed_forward.inner), self._product(layer.feed_forward.outer)
        activation = layer.feed_forward.activation
        return lambda hidden, _: outer(activation(inner(hidden)))

    def _product(self, layer: nn.Module) -> Function:
        """What `layer` computes."""
        if not isinstance(layer, Int8Linear) or not self.kernels.multiplies_bytes:
            return cast(Function, layer.forward)
        linear = self._linear(layer)
        return lambda rows: self.kernels.product(linear, rows)

    def _stack(self, sublayers: list[Sublayer], first: Norm | None, norms: list[Norm]) -> Sublayer:
        """The sublayers with the residual connections and norms around them; see `transformer.Residual`."""
        parts, add_and_norm = list(zip(sublayers, norms, strict=True)), self.kernels.add_and_norm

        def run(hidden: Tensor, context: Any) -> Tensor:
            entering = add_and_norm(hidden, torch.zeros_like(hidden), first)[1] if first else hidden
            for sublayer, norm in parts:
                total, entering = add_and_norm(hidden, sublayer(entering, context), norm)
                hidden = total if first else entering
            return entering

        return run

    def _norms(self, residuals: list[Residual], last: nn.Module) -> tuple[Norm | None, list[Norm]]:
        """The norm before the first sublayer, if there is one, and those that follow each sum."""
        norms = [Norm(self.pointers.of(norm.weight), self.pointers.of(norm.bias), norm.eps)
                 for norm in (*(residual.norm for residual in residuals), last) if isinstance(norm, nn.LayerNorm)]
        # What follows a sum is, in a pre-norm model, the norm before the next sublayer.
        return (norms[0], norms[1:]) if residuals[0].pre_norm else (None, norms)

    def _whole(self, layers: Sequence[EncoderLayer | DecoderLayer], first: Norm | None, norms: list[Norm],
               last: Sequence[nn.Module]) -> Stack:
        """What the kernels need to know of an encoder or decoder."""
        own = [self._layer(layer, norms[number * len(norms) // len(layers) :]) for number, layer in enumerate(layers)]
        feed_forward = layers[0].feed_forward
        # In bf16 `inference` has put ReLU into the product, and Identity here.
        activation = next((number for number, known in enumerate(KERNEL_ACTIVATIONS)
                           if feed_forward.activation is ACTIVATIONS[known]), KERNEL_ACTIVATIONS.index("relu"))
        return Stack((Layer * len(own))(*own), len(own), self.model.d_model, self.model.num_heads, own[0].inner.outputs,
                     first is not None, activation, first or Norm(),
                     (Linear * len(last))(*map(self._linear, last)), len(last))

    def _layer(self, layer: EncoderLayer | DecoderLayer, norms: list[Norm]) -> Layer:
        own, feed_forward = layer.self_attention, layer.feed_forward
        of_source, of_both = (Linear(), Linear()), (norms[0], Norm(), norms[1])
        if isinstance(layer, DecoderLayer):
            of_source = self._linear(layer.cross_attention.query), self._linear(layer.cross_attention.output)
            of_both = norms[0], norms[1], norms[2]
        return Layer(self._linear(own.query_key_value), self._linear(own.output), *of_source,
                     self._linear(feed_forward.inner), self._linear(feed_forward.outer), of_both)

    def _linear(self, layer: nn.Module) -> Linear:
        """What the kernels need to know of a layer, made once."""
        if layer not in self.linears:
            self.linears[layer] = self._described(layer)
        return self.linears[layer]

    def _described(self, layer: nn.Module) -> Linear:
        of = self.pointers.of
        if isinstance(layer, Int8Linear):
            return linear_of_levels(self.pointers, layer)
        if isinstance(layer, PackedLinear):
            outputs, inputs = layer.levels.shape
            return Linear(levels=of(layer.levels, torch.int8), scale=of(layer.scale), bias=of(layer.bias),
                          inputs=inputs, outputs=outputs)
        assert isinstance(layer, nn.Linear)
        return Linear(weight=of(layer.weight), bias=of(layer.bias), inputs=layer.in_features,
                      outputs=layer.out_features)


def _linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    outputs, inputs = weight.shape
    layer = nn.Linear(inputs, outputs, bias=bias is not None, device="meta")
    layer.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        layer.bias = nn.Parameter(bias, requires_grad=False)
    return layer
