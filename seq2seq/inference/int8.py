"""Engine for Transformers in int8 on a CPU.

kernels.cpp has functions for the encoder, a decoder step, a whole beam search, and top-k. The result of a row does not
depend on the other rows of the batch: each row of inputs has its own scale, and sums of integers are exact. Attention
reads only the keys to which a row may attend, so there are no masks and no padded sequences. Reordering the beam does
not copy the KV cache.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seq2seq.devices import choose_precision
from seq2seq.inference.eager import EagerEngine, quantised
from seq2seq.inference.kernel_library import (
    ACTIVATIONS,
    GROUP,
    INPUT_ZERO_POINT,
    KEY_PADDING,
    LOG_ZERO,
    PANEL,
    Functions,
    Layer,
    Linear,
    Norm,
    Stack,
)
from seq2seq.model.interface import Seq2Seq, State
from seq2seq.model.packing import check_length
from seq2seq.model.transformer import ACTIVATIONS as FUNCTIONS
from seq2seq.model.transformer import DecoderLayer, EncoderLayer, Residual, Transformer
from seq2seq.search.bookkeeping import Hypothesis
from seq2seq.search.options import SearchOptions
from seq2seq.search.topk import Continuations
from seq2seq.search.topk import topk as reference_topk

# Number of decoding steps for which a new KV cache has free rows. When too few rows are free for a step, the rows in
# use are copied to a new cache.
GROWTH_STEPS = 16
# Approximate number of tokens in a block of sentences. The encoder computes the sentences of a block together. The
# activations of a block fit into a core's cache.
ENCODER_BLOCK_TOKENS = 96


@dataclass
class _Cache:
    """KV cache of all layers.

    keys_values: (layers, capacity, 2 * d_model), bf16; `capacity` is the number of cache rows. used: number of cache
    rows that decoding states have reserved so far.
    """

    keys_values: Tensor
    used: int = 0


@dataclass(frozen=True)
class Int8State:
    """Decoding state. `past` maps hypotheses to cache rows, so reordering hypotheses moves no rows of the KV cache.

    position: position of the next token. used: value of `_Cache.used` when this state was created. Cache rows that
        were reserved later belong to other states.
    past: (rows, position) int32, cache row of each earlier position of each hypothesis.
    memory: bf16, keys and values of cross-attention. Each decoder layer takes memory_stride elements; padding follows
        the last layer. Each layer contains the keys of the first sentence, (d_model, tokens), then the values of this
        sentence, (tokens, d_model), then the keys of the second sentence, and so on.
    first, count: (rows,) int32, index of the first source token and number of source tokens of each row's sentence.
    """

    position: int
    used: int
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

    def with_next_position(self, rows: int) -> Int8State:
        """Return the state with one more position, and reserve a new cache row for each hypothesis."""
        cache, past, used = self.cache, self.past, self.used
        layers, capacity, features = cache.keys_values.shape
        if used + rows > capacity or cache.used != used:
            # Only the cache rows that hypotheses of this state use are copied to the new cache.
            live_rows, new_rows = np.unique(past, return_inverse=True)
            past, used = new_rows.reshape(past.shape), len(live_rows)
            keys_values = cache.keys_values.new_empty(layers, used + GROWTH_STEPS * rows, features)
            keys_values[:, :used] = cache.keys_values[:, torch.from_numpy(live_rows).long()]
            cache = _Cache(keys_values)
        cache.used = used + rows
        longer = np.empty((rows, self.position + 1), np.int32)
        longer[:, :-1] = past
        longer[:, -1] = np.arange(used, cache.used)
        return replace(self, position=self.position + 1, used=cache.used, cache=cache, past=longer)


class Int8Engine:
    """Engine that decodes with a `Transformer` whose weights are quantised to int8.

    The kernels return no attention weights and do not score given targets. For searches with `keep_attention`, and for
    the property `model`, the engine uses an eager engine in precision "auto".
    """

    precision = "int8"

    def __init__(self, model: Transformer, functions: Functions) -> None:
        self.source_model, self.functions, self.max_positions = model, functions, model.max_positions
        self.kept: list[Tensor] = []                                            # tensors whose addresses kernels use
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
    def obstacle(model: nn.Module) -> str | None:
        """Return the reason why the kernels do not support this model; None if they support it.

        The reason is a predicate for the subject "it" (the model), such as "has hard attention".
        """
        if not isinstance(model, Transformer):
            return "is not an encoder-decoder Transformer"
        if model.variant is not None:
            return model.variant
        if model.window is not None:
            return "has an attention window"
        for layer in cast(list[DecoderLayer], model.decoder):
            if layer.cross_attention.hard:
                return "has hard attention"
            for weighing in (layer.self_attention.weighing, layer.cross_attention.weighing):
                if not weighing.is_scaled_dot_product:
                    return f"has {weighing.score} attention scores with {weighing.normalize}"
        return None

    @cached_property
    def eager(self) -> EagerEngine:
        """Eager engine of the same model, for tasks that the kernels do not support."""
        return EagerEngine(self.source_model, choose_precision("auto", "cpu"), torch.device("cpu"))

    @property
    def model(self) -> Seq2Seq:
        """See `engines.Engine.model`."""
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
        # A thread passes a block of sentences through all layers before it begins another block. Sentences with the
        # same value of (offset of the sentence's end) // ENCODER_BLOCK_TOKENS form a block.
        blocks = offsets[1:] // ENCODER_BLOCK_TOKENS
        ends = offsets[1:][np.append(blocks[1:] != blocks[:-1], True)].astype(np.int64)
        memory_stride = tokens * 2 * self.d_model
        memory = torch.empty(layers * memory_stride + KEY_PADDING, dtype=torch.bfloat16)
        self.functions.encode(self.encoder, embedded.data_ptr(), _address(first_of_token), _address(count_of_token),
                              memory.data_ptr(), _address(ends), len(ends))
        cache = _Cache(torch.empty(layers, 0, 2 * self.d_model, dtype=torch.bfloat16))
        return Int8State(0, 0, cache, np.empty((len(first), 0), np.int32), memory, memory_stride, first, count)

    @torch.no_grad()
    def step(self, last_tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        """See `interface.Stepwise.step`."""
        if not isinstance(state, Int8State):
            return self.eager.step(last_tokens, state)
        last_tokens = last_tokens.contiguous()                                  # the kernel reads the memory itself
        check_length(state.position + 1, self.max_positions)
        rows = last_tokens.shape[0]
        after = state.with_next_position(rows)
        keys_values, memory = after.cache.keys_values, state.memory
        logits = torch.empty(rows, self.decoder.last[0].outputs)
        length = np.full(rows, after.position, np.int32)
        self.functions.step(
            self.decoder, self.target_embedding.data_ptr(), self.target_positions.data_ptr(), self.scale,
            last_tokens.data_ptr(), keys_values.data_ptr(), keys_values.stride(0), _address(after.past),
            after.past.shape[1], _address(length), memory.data_ptr(), state.memory_stride, _address(after.first),
            _address(after.count), logits.data_ptr(), rows)
        return logits, after

    def whole_search(self, source: Tensor, source_offsets: Tensor, longest_source: int, max_lengths: Sequence[int],
                     options: SearchOptions) -> list[list[Hypothesis]]:
        """See `search.beam.WholeSearch`. The search releases Python's global interpreter lock."""
        state = cast(Int8State, self.start(source, source_offsets, longest_source))
        # One step may add `beam_size` finished hypotheses to `finished_per_group` - 1 earlier ones.
        sentences, max_finished = len(max_lengths), options.finished_per_group + options.beam_size - 1
        limits, banned, longest = np.array(max_lengths, np.int64), options.banned_on(source.device), max(max_lengths)
        finished, totals = np.empty(sentences, np.int64), np.empty((sentences, max_finished), np.float32)
        lengths = np.empty((sentences, max_finished), np.int32)
        tokens = np.empty((sentences, max_finished, longest), np.int32)
        first, count = (np.ascontiguousarray(part, np.int32) for part in (state.first, state.count))
        self.functions.search(
            self.decoder, self.target_embedding.data_ptr(), self.target_positions.data_ptr(), self.scale,
            state.memory.data_ptr(), state.memory_stride, _address(first), _address(count), _address(limits), sentences,
            options.beam_size, options.finished_per_group, banned.data_ptr(), len(banned), max_finished, longest,
            _address(finished), _address(totals), _address(lengths), _address(tokens))
        return [[Hypothesis(tokens[sentence, index, : lengths[sentence, index]].tolist(),
                            float(totals[sentence, index]))
                 for index in range(finished[sentence])] for sentence in range(sentences)]

    def topk(self, logits: Tensor, totals: Tensor, banned: Tensor, must_end: Tensor | None, count: int,
             skip_log_softmax: bool) -> Continuations:
        """See `search.topk.topk`."""
        if logits.device.type != "cpu" or logits.dtype != torch.float32 or totals.dtype != torch.float32:
            return reference_topk(logits, totals, banned, must_end, count, skip_log_softmax)
        (groups, beam), logits, totals = totals.shape, logits.contiguous(), totals.contiguous()
        best_totals = torch.empty(groups, count)
        beams, ids = torch.empty(2, groups, count, dtype=torch.int64)
        self.functions.topk(logits.data_ptr(), totals.data_ptr(), groups, beam, logits.shape[1], banned.data_ptr(),
                            len(banned), None if must_end is None else must_end.data_ptr(), skip_log_softmax,
                            best_totals.data_ptr(), beams.data_ptr(), ids.data_ptr(), count)
        return best_totals.masked_fill_(best_totals <= LOG_ZERO, -math.inf), beams, ids

    # The methods below convert the model to the structures of the kernels.

    def _stack(self, layers: Sequence[EncoderLayer | DecoderLayer], residuals: Sequence[tuple[Residual, ...]],
               last_norm: nn.Module, last: Sequence[Linear]) -> Stack:
        norms = [residual.norm for layer_residuals in residuals for residual in layer_residuals]
        pre_norm, feed_forward = residuals[0][0].pre_norm, layers[0].feed_forward
        if pre_norm:
            # The kernels apply a norm after each residual sum. In a pre-norm model, this is the norm of the next
            # sublayer's input.
            norms = [*norms[1:], cast(nn.LayerNorm, last_norm)]
        first = self._norm(residuals[0][0].norm) if pre_norm else Norm()
        sublayers = len(residuals[0])
        converted = [self._layer(layer, list(map(self._norm, norms[index * sublayers : (index + 1) * sublayers])))
                     for index, layer in enumerate(layers)]
        activation = next(index for index, name in enumerate(ACTIVATIONS)
                          if feed_forward.activation is FUNCTIONS[name])
        return Stack((Layer * len(converted))(*converted), len(converted), self.d_model,
                     layers[0].self_attention.num_heads, feed_forward.inner.out_features, pre_norm, activation, first,
                     (Linear * len(last))(*last), len(last))

    def _layer(self, layer: EncoderLayer | DecoderLayer, norms: list[Norm]) -> Layer:
        self_attention, feed_forward = layer.self_attention, layer.feed_forward
        query, source_output, cross_norm = Linear(), Linear(), Norm()
        if isinstance(layer, DecoderLayer):
            source = layer.cross_attention
            query = self._linear(*source.weighing.prepared_parameters(source.query))
            source_output, cross_norm = self._linear(source.output.weight, source.output.bias), norms[1]
        return Layer(self._linear(*self_attention.weighing.prepared_parameters(self_attention.query_key_value)),
                     self._linear(self_attention.output.weight, self_attention.output.bias), query, source_output,
                     self._linear(feed_forward.inner.weight, feed_forward.inner.bias),
                     self._linear(feed_forward.outer.weight, feed_forward.outer.bias),
                     (norms[0], cross_norm, norms[-1]))

    def _norm(self, norm: nn.LayerNorm) -> Norm:
        return Norm(self._keep_copy(norm.weight), self._keep_copy(norm.bias), norm.eps)

    def _linear(self, weight: Tensor, bias: Tensor | None) -> Linear:
        """Quantise a weight matrix, (outputs, inputs), and pack it into panels (see PANEL in kernels.cpp)."""
        levels, scale = quantised(weight.detach().float())
        outputs, inputs = levels.shape
        padded = F.pad(levels, (0, -inputs % GROUP, 0, -outputs % PANEL))
        panels = padded.view(-1, PANEL, padded.shape[1] // GROUP, GROUP).transpose(1, 2)
        return Linear(panels=self._keep_copy(panels, torch.int8), scale=self._keep_copy(scale),
                      bias=None if bias is None else self._keep_copy(bias),
                      offset=self._keep_copy(INPUT_ZERO_POINT * levels.sum(1), torch.int32), inputs=inputs,
                      outputs=outputs)

    def _keep_copy(self, tensor: Tensor, dtype: torch.dtype = torch.float32) -> int:
        """Copy a tensor, converted to `dtype`, and return the copy's address. The copy exists as long as the engine."""
        self.kept.append(tensor.detach().to(dtype, copy=True).contiguous())
        return self.kept[-1].data_ptr()


def _address(array: np.ndarray) -> int:
    """Return the address of an array. The caller must keep a reference to the array."""
    assert array.flags.c_contiguous
    address: int = array.__array_interface__["data"][0]                         # `ctypes.data` takes five times as long
    return address
