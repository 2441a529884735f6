"""Engine for Transformers in int8 on a CPU: encoder and decoder step are each one call of the kernels (kernels.cpp).

Weights have a scale per output, inputs a scale per row, and integer sums are exact, so that a row's result does not
depend on the rest of the batch. Each row reads only the keys that it attends to, so there are no masks and no padding,
and reordering the beam copies no cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seq2seq.devices import choose_precision
from seq2seq.inference.eager import EagerEngine, quantised
from seq2seq.inference.kernel_interface import (
    ACTIVATIONS,
    BEHIND,
    GROUP,
    LEAST,
    PANEL,
    ZERO_LEVEL,
    Functions,
    Layer,
    Linear,
    Norm,
    Stack,
)
from seq2seq.model.interface import Continuations, Seq2Seq, State
from seq2seq.model.transformer import ACTIVATIONS as FUNCTIONS
from seq2seq.model.transformer import DecoderLayer, EncoderLayer, Residual, Transformer
from seq2seq.search.topk import topk as default_topk

# Steps that a new KV cache has room for.
STEPS_OF_ROOM = 16
# Approximate tokens of a block of whole sentences in the encoder: its activations fit into a core's cache.
TOKENS_TOGETHER = 96


@dataclass
class _Cache:
    """KV cache of all layers in bf16, (layers, room, 2 * d_model). taken: number of rows written."""

    keys_values: Tensor
    taken: int = 0


@dataclass(frozen=True)
class Int8State:
    """Decoding state. A row of the KV cache is written once and never moves; `past` maps hypotheses to cache rows.

    position: of the next token. taken: number of cache rows that this state may refer to.
    past: (rows, position) int32, cache row of each position of each hypothesis.
    memory: keys and values of cross-attention for each decoder layer, layers * memory_stride elements in bf16 plus
        padding; for each sentence first the keys, (d_model, tokens), then the values, (tokens, d_model).
    first, count: (rows,) int32, first source token and number of source tokens of each row's sentence.
    """

    position: int
    taken: int
    cache: _Cache
    past: np.ndarray
    memory: Tensor
    memory_stride: int
    first: np.ndarray
    count: np.ndarray
    attention: None = None

    def select(self, rows: Tensor) -> Int8State:
        """See `interface.State.select`."""
        flat = rows.numpy().ravel()
        return replace(self, past=self.past[flat], first=self.first[flat], count=self.count[flat])

    def extended(self, rows: int) -> Int8State:
        """Return the state with one more cache row for each hypothesis, which no other state will write to."""
        cache, past, taken = self.cache, self.past, self.taken
        layers, room, features = cache.keys_values.shape
        if taken + rows > room or cache.taken != taken:
            # The new cache only takes over rows that a hypothesis still refers to.
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


class Int8Engine:
    """Decodes with a `Transformer` whose weights are quantised to int8 once.

    With `keep_attention`, and to score whole targets (`model`), it uses PyTorch in the precision of `auto`.
    """

    precision = "int8"

    def __init__(self, model: Transformer, library: Path) -> None:
        """library: the compiled kernels."""
        self.source_model, self.functions, self.max_positions = model, Functions(library), model.max_positions
        self.kept: list[Tensor] = []
        self.d_model, self.scale = model.d_model, model.scale
        self.source_embedding, self.source_positions = (
            part.detach().float() for part in (model.source_embedding, model.source_positions))
        self.target_embedding, self.target_positions = (
            part.detach().float().contiguous() for part in (model.target_embedding, model.target_positions))
        encoder, decoder = cast(list[EncoderLayer], model.encoder), cast(list[DecoderLayer], model.decoder)
        self.encoder = self._stack(
            encoder, [(layer.self_residual, layer.feed_forward_residual) for layer in encoder], model.encoder_norm,
            [self._linear(layer.cross_attention.key_value.weight, layer.cross_attention.key_value.bias)
             for layer in decoder])
        self.decoder = self._stack(
            decoder, [(layer.self_residual, layer.cross_residual, layer.feed_forward_residual) for layer in decoder],
            model.decoder_norm, [self._linear(model.output_weight, model.output_bias)])

    @staticmethod
    def refusal(model: nn.Module) -> str | None:
        """Return the reason why the kernels do not support this model ("is …", "has …"); None if they do."""
        if not isinstance(model, Transformer):
            return "is none"
        if model.copying is not None:
            return "copies from the source"
        if model.window is not None:
            return "has attention in a window"
        for layer in cast(list[DecoderLayer], model.decoder):
            if layer.cross_attention.hard:
                return "has hard attention"
            if not layer.self_attention.weighing.fast:
                weighing = layer.self_attention.weighing
                return f"has {weighing.score} scores, {weighing.normalize}"
        return None

    @cached_property
    def eager(self) -> EagerEngine:
        """Eager engine of the same model, for everything that the kernels do not support."""
        device = torch.device("cpu")
        return EagerEngine(self.source_model, choose_precision("auto", device), device)

    @property
    def model(self) -> Seq2Seq:
        """See `interface.Engine.model`."""
        return self.eager.model

    @torch.no_grad()
    def start(self, source: Tensor, source_offsets: Tensor, longest_source: int, keep_attention: bool = False) -> State:
        """See `interface.Stepwise.start`."""
        if keep_attention or longest_source > self.max_positions:
            return self.eager.start(source, source_offsets, longest_source, keep_attention)
        tokens, offsets, layers = len(source), source_offsets.numpy(), self.encoder.number_of_last
        first, count = offsets[:-1], np.diff(offsets)
        first_of_token, count_of_token = first.repeat(count), count.repeat(count)
        embedded = self.source_embedding[source].mul_(self.scale)
        embedded.add_(self.source_positions[torch.from_numpy(np.arange(tokens) - first_of_token)])
        # Ends of the blocks of whole sentences that pass through all layers together.
        parts = offsets[1:] // TOKENS_TOGETHER
        ends = offsets[1:][np.append(parts[1:] != parts[:-1], True)].astype(np.int64)
        memory_stride = tokens * 2 * self.d_model
        memory = torch.empty(layers * memory_stride + BEHIND, dtype=torch.bfloat16)
        self.functions.encode(self.encoder, embedded.data_ptr(), _where(first_of_token), _where(count_of_token),
                              memory.data_ptr(), _where(ends), len(ends))
        cache = _Cache(torch.empty(layers, 0, 2 * self.d_model, dtype=torch.bfloat16))
        return Int8State(0, 0, cache, np.empty((len(first), 0), np.int32), memory, memory_stride, first, count)

    @torch.no_grad()
    def step(self, last_tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        """See `interface.Stepwise.step`."""
        if not isinstance(state, Int8State):
            return self.eager.step(last_tokens, state)
        if state.position >= self.max_positions:
            raise ValueError(f"a sentence of {state.position + 1} tokens; this model has {self.max_positions} "
                             "positions")
        rows = last_tokens.shape[0]
        after = state.extended(rows)
        keys_values, memory = after.cache.keys_values, state.memory
        logits = torch.empty(rows, self.decoder.last[0].outputs)
        length = np.full(rows, after.position, np.int32)
        self.functions.step(
            self.decoder, self.target_embedding.data_ptr(), self.target_positions.data_ptr(), self.scale,
            last_tokens.data_ptr(), keys_values.data_ptr(), keys_values.stride(0), _where(after.past),
            after.past.shape[1], _where(length), memory.data_ptr(), state.memory_stride, _where(after.first),
            _where(after.count), logits.data_ptr(), rows)
        return logits, after

    def whole_search(self, source: Tensor, source_offsets: Tensor, longest_source: int, *, beam_size: int,
                     max_lengths: Sequence[int], enough: int, forbidden: Sequence[int]
                     ) -> list[list[tuple[list[int], float]]]:
        """See `interface.WholeSearch`. Releases Python's global interpreter lock."""
        state = cast(Int8State, self.start(source, source_offsets, longest_source))
        sentences, most, longest = len(max_lengths), enough + beam_size - 1, max(max_lengths, default=1)
        limits, banned = np.array(max_lengths, np.int64), np.array(forbidden, np.int64)
        found, totals = np.empty(sentences, np.int64), np.empty((sentences, most), np.float32)
        lengths, tokens = np.empty((sentences, most), np.int32), np.empty((sentences, most, longest), np.int32)
        first, count = (np.ascontiguousarray(part, np.int32) for part in (state.first, state.count))
        self.functions.search(
            self.decoder, self.target_embedding.data_ptr(), self.target_positions.data_ptr(), self.scale,
            state.memory.data_ptr(), state.memory_stride, _where(first), _where(count), _where(limits), sentences,
            beam_size, enough, _where(banned), len(banned), most, longest, _where(found), _where(totals),
            _where(lengths), _where(tokens))
        return [[(tokens[sentence, place, : lengths[sentence, place]].tolist(), float(totals[sentence, place]))
                 for place in range(found[sentence])] for sentence in range(sentences)]

    def topk(self, logits: Tensor, totals: np.ndarray, forbidden: Tensor, must_end: np.ndarray | None, count: int,
             normalised: bool) -> Continuations:
        """See `search.topk.topk`."""
        if logits.device.type != "cpu" or logits.dtype != torch.float32 or totals.dtype != np.float32:
            return default_topk(logits, totals, forbidden, must_end, count, normalised)
        (groups, beam), logits, totals = totals.shape, logits.contiguous(), np.ascontiguousarray(totals)
        found = np.empty((groups, count), np.float32)
        beams, ids = np.empty((2, groups, count), np.int64)
        self.functions.topk(logits.data_ptr(), _where(totals), groups, beam, logits.shape[1], forbidden.data_ptr(),
                            len(forbidden), _where(must_end), normalised, _where(found), _where(beams), _where(ids),
                            count)
        found[found <= np.float32(LEAST)] = -np.inf
        return found, beams, ids

    # The model in the structures of the kernels

    def _stack(self, layers: Sequence[EncoderLayer | DecoderLayer], residuals: Sequence[tuple[Residual, ...]],
               last_norm: nn.Module, last: Sequence[Linear]) -> Stack:
        norms = [residual.norm for of_layer in residuals for residual in of_layer]
        pre_norm, feed_forward = residuals[0][0].pre_norm, layers[0].feed_forward
        if pre_norm:
            # In a pre-norm model, the norm after a residual sum is the one before the next sublayer.
            norms = [*norms[1:], cast(nn.LayerNorm, last_norm)]
        first = self._norm(residuals[0][0].norm) if pre_norm else Norm()
        of_layer = len(residuals[0])
        made = [self._layer(layer, list(map(self._norm, norms[number * of_layer : (number + 1) * of_layer])))
                for number, layer in enumerate(layers)]
        activation = next(number for number, name in enumerate(ACTIVATIONS)
                          if feed_forward.activation is FUNCTIONS[name])
        return Stack((Layer * len(made))(*made), len(made), self.d_model, layers[0].self_attention.num_heads,
                     feed_forward.inner.out_features, pre_norm, activation, first, (Linear * len(last))(*last),
                     len(last))

    def _layer(self, layer: EncoderLayer | DecoderLayer, norms: list[Norm]) -> Layer:
        own, feed_forward = layer.self_attention, layer.feed_forward
        ask, source_output, between = Linear(), Linear(), Norm()
        if isinstance(layer, DecoderLayer):
            source = layer.cross_attention
            ask = self._linear(*source.weighing.prepared(source.query))
            source_output, between = self._linear(source.output.weight, source.output.bias), norms[1]
        return Layer(self._linear(*own.weighing.prepared(own.query_key_value)),
                     self._linear(own.output.weight, own.output.bias), ask, source_output,
                     self._linear(feed_forward.inner.weight, feed_forward.inner.bias),
                     self._linear(feed_forward.outer.weight, feed_forward.outer.bias),
                     (norms[0], between, norms[-1]))

    def _norm(self, norm: nn.LayerNorm) -> Norm:
        return Norm(self._keep(norm.weight), self._keep(norm.bias), norm.eps)

    def _linear(self, weight: Tensor, bias: Tensor | None) -> Linear:
        """Quantise a weight, (outputs, inputs), and pack it in the layout of `panel_sums` in kernels.cpp."""
        levels, scale = quantised(weight.detach().float())
        outputs, inputs = levels.shape
        filled = F.pad(levels, (0, -inputs % GROUP, 0, -outputs % PANEL))
        panels = filled.view(-1, PANEL, filled.shape[1] // GROUP, GROUP).transpose(1, 2)
        return Linear(panels=self._keep(panels, torch.int8), scale=self._keep(scale),
                      bias=None if bias is None else self._keep(bias),
                      offset=self._keep(ZERO_LEVEL * levels.sum(1), torch.int32), inputs=inputs, outputs=outputs)

    def _keep(self, tensor: Tensor, dtype: torch.dtype = torch.float32) -> int:
        """Return the address of a copy of `tensor` in `dtype`, which lives as long as the engine."""
        self.kept.append(tensor.detach().to(dtype, copy=True).contiguous())
        return self.kept[-1].data_ptr()


def _where(array: np.ndarray | None) -> int | None:
    """Return the address of an array, which the caller must keep alive; None for None."""
    if array is None:
        return None
    assert array.flags.c_contiguous
    address: int = array.__array_interface__["data"][0]                         # five times as fast as `ctypes.data`
    return address
