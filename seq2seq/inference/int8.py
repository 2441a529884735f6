"""Engine for Transformers in int8 or fp32 on a CPU. It needs no PyTorch.

kernels.cpp has functions for the encoder, a decoder step, a whole beam search, and top-k. The result of a row does not
depend on the other rows of the batch: in int8, each row of inputs has its own scale, and sums of integers are exact; in
fp32, a sum has the same order for any number of rows. Attention reads only the keys to which a row may attend, so there
are no masks and no padded sequences. Reordering the beam does not copy the KV cache.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from seq2seq.devices import num_threads
from seq2seq.errors import CheckpointError, OptionError
from seq2seq.inference.kernel_library import (
    ACTIVATIONS,
    KEY_PADDING,
    Functions,
    Layer,
    Linear,
    Norm,
    Relative,
    Stack,
)
from seq2seq.inference.shortlist import Shortlist
from seq2seq.inference.transformer_weights import (
    POSITION_TABLES,
    differences,
    expected_shapes,
    head_size,
    relative_bias,
    scaled_dot_query,
)
from seq2seq.recipe import TransformerSection
from seq2seq.recipe.decoding_section import DEFAULT_BATCH_TOKENS
from seq2seq.search.beam import WholeSearch
from seq2seq.search.beams import Hypothesis
from seq2seq.search.interface import Continuations
from seq2seq.search.options import SearchOptions
from seq2seq.search.scores import ArrayScores
from seq2seq.tokenizers.tokenizer import START_ID, SYMBOLS

if TYPE_CHECKING:
    from seq2seq.model import Model

# Number of decoding steps for which a new KV cache has free rows. When too few rows are free for a step, the rows in
# use are copied to a new cache.
GROWTH_STEPS = 16
# Epsilon of the norms, as in model/layers.py.
EPSILON = {"layer": 1e-5, "rms": 1e-6}
# Alignment of packed weights in bytes: a cache line, and the longest vector.
ALIGNMENT = 64


@dataclass
class _Cache:
    """KV cache of all layers.

    keys_values: (layers, capacity, 2 * features), of `Functions.stored_dtype`; `capacity` is the number of cache rows,
        and `features` is heads * head size.
    used: number of cache rows that decoding states have reserved so far.
    """

    keys_values: np.ndarray
    used: int = 0

    @cached_property
    def address(self) -> int:
        return _address(self.keys_values)


@dataclass(frozen=True, eq=False)
class Memory:
    """Keys and values of cross-attention of a batch.

    keys_values: of `Functions.stored_dtype`. Each decoder layer takes `stride` elements; padding follows the last
        layer. Each layer contains the keys of the first sentence, (features, tokens), then the values of this
        sentence, (tokens, features), then the keys of the second sentence, and so on.
    longest: number of tokens of the longest sentence. keep_attention: see `interface.Stepwise.start`.
    """

    keys_values: np.ndarray
    stride: int
    longest: int
    keep_attention: bool

    @cached_property
    def address(self) -> int:
        return _address(self.keys_values)


@dataclass(frozen=True, eq=False)
class NativeState:
    """Decoding state. `past` maps hypotheses to cache rows, so reordering hypotheses moves no rows of the KV cache.

    position: position of the next token. used: value of `_Cache.used` when this state was created. Cache rows that
        were reserved later belong to other states.
    past: (rows, position) int32, cache row of each earlier position of each hypothesis.
    spans: (2, rows) int32, index of the first source token and number of source tokens of each row's sentence.
    attention: see `interface.State`.
    """

    position: int
    used: int
    cache: _Cache
    past: np.ndarray
    memory: Memory
    spans: np.ndarray
    attention: np.ndarray | None = None

    def select(self, rows: np.ndarray) -> NativeState:
        flat = rows.ravel()
        attention = None if self.attention is None else self.attention[flat]
        return NativeState(self.position, self.used, self.cache, self.past[flat], self.memory,
                         self.spans.take(flat, 1), attention)

    def with_next_position(self, attention: np.ndarray | None) -> NativeState:
        """Return the state with one more position, and reserve a new cache row for each hypothesis."""
        cache, past, used, position = self.cache, self.past, self.used, self.position
        rows = len(past)
        if used + rows > cache.keys_values.shape[1] or cache.used != used:
            # Only the cache rows that hypotheses of this state use are copied to the new cache.
            live_rows, new_rows = np.unique(past, return_inverse=True)
            past, used = new_rows.reshape(past.shape), len(live_rows)
            layers, _, features = cache.keys_values.shape
            keys_values = np.empty((layers, used + GROWTH_STEPS * rows, features), cache.keys_values.dtype)
            keys_values[:, :used] = cache.keys_values[:, live_rows]
            cache = _Cache(keys_values)
        cache.used = used + rows
        longer = np.empty((rows, position + 1), np.int32)
        longer[:, :-1] = past
        longer[:, -1] = np.arange(used, cache.used)
        return NativeState(position + 1, cache.used, cache, longer, self.memory, self.spans, attention)


class NativeEngine:
    """Engine that decodes with a Transformer in the precision of the kernels.

    precision: see `engines.Engine`: "int8", to which the weights are quantised, or "fp32".
    """

    def __init__(self, section: TransformerSection, sizes: tuple[int, int], weights: Mapping[str, np.ndarray],
                 functions: Functions, make_model: Callable[[], Model] | None = None,
                 shortlist: Shortlist | None = None) -> None:
        """Convert a model to the structures of the kernels.

        Args:
            section: `model` section of the recipe, without `peculiarity`. sizes: source and target vocabulary size.
            weights: float16, float32 or float64 weights by name, see `transformer_weights.expected_shapes`. Embeddings
                and learned positions in float32 are used in place; nothing else is kept.
            make_model: function that makes the property `model`, when it is needed.
            shortlist: shortlist of the model, for `SearchOptions.shortlist`.
        """
        stored = {name: (weight.shape, "F32" if weight.dtype.kind == "f" else str(weight.dtype))
                  for name, weight in weights.items()}
        if unlike := differences(stored, expected_shapes(section, sizes)):
            raise CheckpointError(f"the weights do not match the recipe: {unlike}. Copy the model again from its "
                                  "original location.")
        self.section, self.functions, self.make_model, self.shortlist = section, functions, make_model, shortlist
        self.precision = functions.precision
        self.max_positions, self.cross_layers = section.max_positions, section.decoder_layers
        self.batch_tokens = DEFAULT_BATCH_TOKENS
        self.vocab_size, self.features = sizes[1], section.num_heads * head_size(section)
        self.start_id = SYMBOLS[section.decoder_start]
        self._kept: list[Any] = []                                              # arrays whose addresses kernels use
        self._weights = weights                                                 # until the end of the constructor
        embeddings = {"target": self._fp32("target_embedding")}
        shares_inputs = section.tied_embeddings in ("all", "inputs")
        embeddings["source"] = embeddings["target"] if shares_inputs else self._fp32("source_embedding")
        if section.positions == "learned":
            positions = {side: self._fp32(f"{side}_positions") for side in embeddings}
        else:
            table = POSITION_TABLES[section.positions](section.max_positions, section.d_model)
            positions = dict.fromkeys(embeddings, table)
        self._kept += [*embeddings.values(), *positions.values()]
        decoder_layers = 1 if section.tied_decoder_layers else section.decoder_layers
        memory_projections = [self._linear(f"decoder.{index}.cross_attention.key_value")
                              for index in range(decoder_layers)] * (section.decoder_layers // decoder_layers)
        output = self._packed(
            self._fp32("output_weight") if section.tied_embeddings in ("inputs", "none") else embeddings["target"],
            self._fp32("output_bias") if section.output_bias else None)
        self.encoder = self._stack("encoder", section.encoder_layers, section.encoder_layers, memory_projections,
                                   embeddings["source"], positions["source"])
        self.decoder = self._stack("decoder", section.decoder_layers, decoder_layers, [output], embeddings["target"],
                                   positions["target"])
        del self._weights

    @cached_property
    def model(self) -> Model:
        assert self.make_model is not None
        return self.make_model()

    def start(self, source: np.ndarray, source_offsets: np.ndarray, keep_attention: bool = False) -> NativeState:
        source, offsets = np.ascontiguousarray(source, np.int64), np.ascontiguousarray(source_offsets, np.int32)
        spans = np.stack((offsets[:-1], np.diff(offsets)))
        longest = int(spans[1].max(initial=0))
        self._check_length(longest)
        layers, features, sentences = self.cross_layers, 2 * self.features, len(offsets) - 1
        stride = len(source) * features
        keys_values = np.empty(layers * stride + KEY_PADDING, self.functions.stored_dtype)
        self.functions.encode(self.encoder, _address(source), _address(offsets), sentences, _address(keys_values),
                              stride, num_threads())
        cache = _Cache(np.empty((layers, 0, features), keys_values.dtype))
        return NativeState(0, 0, cache, np.empty((sentences, 0), np.int32),
                         Memory(keys_values, stride, longest, keep_attention), spans)

    def step(self, last_tokens: np.ndarray, state: NativeState) -> tuple[ArrayScores, NativeState]:
        self._check_length(state.position + 1)
        last_tokens = np.ascontiguousarray(np.where(last_tokens == START_ID, self.start_id, last_tokens), np.int64)
        rows, memory = len(state.past), state.memory
        assert len(last_tokens) == rows
        attention = np.zeros((rows, memory.longest), np.float32) if memory.keep_attention else None
        after = state.with_next_position(attention)
        logits, length = np.empty((rows, self.vocab_size), np.float32), np.full(rows, after.position, np.int32)
        _, capacity, features = after.cache.keys_values.shape
        first = _address(after.spans)
        self.functions.step(
            self.decoder, _address(last_tokens), after.cache.address, capacity * features, _address(after.past),
            after.position, _address(length), memory.address, memory.stride, first, first + 4 * rows, _address(logits),
            attention if attention is None else _address(attention), memory.longest, rows, num_threads())
        return NativeScores(logits, self.functions), after

    @property
    def whole_search(self) -> WholeSearch:
        return self._whole_search

    def _whole_search(self, source: np.ndarray, source_offsets: np.ndarray, max_lengths: Sequence[int],
                     options: SearchOptions) -> list[list[Hypothesis]]:
        """See `search.beam.WholeSearch`. The search releases Python's global interpreter lock."""
        source = np.ascontiguousarray(source, np.int64)
        state = self.start(source, source_offsets)
        # One step may add `beam_size` finished hypotheses to `finished_per_group` - 1 earlier ones.
        sentences, max_finished = len(max_lengths), options.finished_per_group + options.beam_size - 1
        limits, longest = np.array(max_lengths, np.int64), max(max_lengths, default=0)
        banned = options.banned
        finished, totals = np.empty(sentences, np.int64), np.empty((sentences, max_finished), np.float32)
        lengths = np.empty((sentences, max_finished), np.int32)
        tokens = np.empty((sentences, max_finished, longest), np.int32)
        memory = state.memory
        self.functions.search(
            self.decoder, memory.address, memory.stride, _address(state.spans[0]), _address(state.spans[1]),
            _address(limits), sentences, options.beam_size, options.finished_per_group, _address(banned), len(banned),
            max_finished, longest, _address(finished), _address(totals), _address(lengths), _address(tokens),
            *self._shortlist_arguments(source, options), self.start_id,
            -1 if options.first_id is None else options.first_id, num_threads())
        return [[Hypothesis(tokens[sentence, index, : lengths[sentence, index]].tolist(),
                            float(totals[sentence, index]))
                 for index in range(finished[sentence])] for sentence in range(sentences)]

    def _shortlist_arguments(self, source: np.ndarray, options: SearchOptions) -> tuple[int | None, ...]:
        """Return the arguments of the kernel `search` for the shortlist."""
        if not options.shortlist or self.precision != "int8":
            return None, None, None, 0
        if self.shortlist is None:
            raise OptionError("decoding.shortlist: the model has no shortlist. Make one with seq2seq shortlist MODEL "
                              "SOURCE TARGET, or set the option to 0.")
        return _address(source), _address(self.shortlist.pieces), _address(self.shortlist.offsets), options.shortlist

    def cross_attention(self, source: np.ndarray, source_offsets: np.ndarray, targets: Sequence[Sequence[int]],
                        layer: int) -> list[np.ndarray]:
        if not 1 <= layer <= self.cross_layers:
            raise ValueError(f"there is no decoder layer {layer}; this model has {self.cross_layers}")
        offsets = np.ascontiguousarray(source_offsets, np.int32)
        memory = self.start(source, offsets).memory
        lengths = [1 + len(target) for target in targets]                       # with the start symbol
        self._check_length(max(lengths, default=0))
        target_offsets = np.array([0, *accumulate(lengths)], np.int32)
        tokens = np.fromiter(chain.from_iterable((self.start_id, *target) for target in targets), np.int64)
        shapes = [(self.section.num_heads, *shape) for shape in zip(lengths, np.diff(offsets).tolist(), strict=True)]
        ends = list(accumulate(map(math.prod, shapes), initial=0))
        weights, weight_offsets = np.empty(ends[-1], np.float32), np.array(ends, np.int64)
        self.functions.cross_attention(
            self.decoder, _address(tokens), _address(target_offsets), len(targets), memory.address, memory.stride,
            _address(offsets), layer - 1, _address(weights), _address(weight_offsets), num_threads())
        return [weights[begin:end].reshape(shape) for (begin, end), shape in zip(pairwise(ends), shapes, strict=True)]

    def _check_length(self, length: int) -> None:
        if length > self.max_positions:
            raise ValueError(f"a sentence has {length} tokens; this model supports at most {self.max_positions}")

    # The methods below convert the weights to the structures of the kernels.

    def _stack(self, side: str, number: int, stored: int, last: Sequence[Linear], embedding: np.ndarray,
               positions: np.ndarray) -> Stack:
        """Convert the encoder or the decoder. stored: number of layers with own weights, 1 if layers are tied."""
        section, pre_norm = self.section, self.section.norm == "pre"
        sublayers = ["self", "cross", "feed_forward"] if side == "decoder" else ["self", "feed_forward"]
        norms = [self._norm(f"{side}.{layer % stored}.{sublayer}_residual.norm")
                 for layer in range(number) for sublayer in sublayers]
        first = Norm()
        if pre_norm:
            # The kernels apply a norm after each residual sum. In a pre-norm model, this is the norm of the next
            # sublayer's input.
            first, *norms = [*norms, self._norm(f"{side}_norm")]
        linears = [self._linears(f"{side}.{layer}") for layer in range(stored)]
        layers = []
        for layer in range(number):
            own = norms[layer * len(sublayers) : (layer + 1) * len(sublayers)]
            layers.append(Layer(*linears[layer % stored], (own[0], own[1], own[-1])))
        scale = math.sqrt(section.d_model) if section.scale_embedding else 1.0
        tokens = "source" if side == "encoder" else "target"
        embedding_norm = self._norm(f"{tokens}_embedding_norm") if section.embedding_norm else Norm()
        return Stack((Layer * number)(*layers), number, section.d_model, section.num_heads, head_size(section),
                     section.feed_forward, section.gated, pre_norm, ACTIVATIONS.index(section.activation), first,
                     (Linear * len(last))(*last), len(last), _address(embedding), _address(positions), scale,
                     -1 if section.window is None else section.window, embedding_norm, self._relative(tokens))

    def _relative(self, tokens: str) -> Relative:
        """Return the relative positions of the side with these tokens, "source" or "target"."""
        if self.section.positions != "relative":
            return Relative()
        bias = relative_bias(self._fp32(f"{tokens}_relative.weight"), tokens == "target", self.max_positions)
        return Relative(self._keep_copy(bias) + (self.max_positions - 1) * bias.itemsize, bias.shape[1])

    def _linears(self, layer: str) -> list[Linear]:
        cross = f"{layer}.cross_attention"
        is_decoder = layer.startswith("decoder")
        return [self._query(f"{layer}.self_attention", "query_key_value"),
                self._linear(f"{layer}.self_attention.output"),
                self._query(cross, "query") if is_decoder else Linear(),
                self._linear(f"{cross}.output") if is_decoder else Linear(),
                self._inner(f"{layer}.feed_forward"), self._linear(f"{layer}.feed_forward.outer")]

    def _query(self, attention: str, name: str) -> Linear:
        bilinear = f"{attention}.weighing.weight"
        return self._packed(*scaled_dot_query(
            self.section, *self._weight_and_bias(f"{attention}.{name}"),
            self._fp32(bilinear) if bilinear in self._weights else None))

    def _norm(self, name: str) -> Norm:
        gain, shift = self._weight_and_bias(name)
        return Norm(self._keep_copy(gain), None if shift is None else self._keep_copy(shift),
                    EPSILON[self.section.norm_type])

    def _linear(self, name: str) -> Linear:
        return self._packed(*self._weight_and_bias(name))

    def _inner(self, feed_forward: str) -> Linear:
        """Return the first linear layer of a feed-forward sublayer, behind its gate if it is gated."""
        weight, bias = self._weight_and_bias(f"{feed_forward}.inner")
        if self.section.gated:
            gate, gate_bias = self._weight_and_bias(f"{feed_forward}.gate")
            weight = np.concatenate([gate, weight])
            bias = None if bias is None or gate_bias is None else np.concatenate([gate_bias, bias])
        return self._packed(weight, bias)

    def _weight_and_bias(self, name: str) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the weight of a layer, and its bias if it has one."""
        bias = f"{name}.bias"
        return self._fp32(f"{name}.weight"), self._fp32(bias) if bias in self._weights else None

    def _packed(self, weight: np.ndarray, bias: np.ndarray | None) -> Linear:
        """Arrange a weight matrix, (outputs, inputs), as the kernels read it. In int8, quantise it."""
        weight, (outputs, inputs) = np.ascontiguousarray(weight), weight.shape
        panels = self._new(self.functions.packed_size(outputs, inputs), self.functions.weight_dtype)
        scale, offset = (None, None) if self.precision == "fp32" else (
            self._new(outputs, np.float32), self._new(outputs, np.int32))
        self.functions.pack(_address(weight), outputs, inputs, panels, scale, offset)
        return Linear(panels=panels, scale=scale, offset=offset, bias=None if bias is None else self._keep_copy(bias),
                      inputs=inputs, outputs=outputs)

    def _fp32(self, name: str) -> np.ndarray:
        return np.ascontiguousarray(self._weights[name], np.float32)

    def _keep_copy(self, array: np.ndarray) -> int:
        """Copy an array and return the copy's address. The copy exists as long as the engine."""
        self._kept.append(array.copy())
        return _address(self._kept[-1])

    def _new(self, size: int, dtype: Any) -> int:
        """Return the address of a new array, which exists as long as the engine."""
        self._kept.append(np.empty(size * np.dtype(dtype).itemsize + ALIGNMENT, np.uint8))
        return -(-_address(self._kept[-1]) // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True, eq=False)
class NativeScores(ArrayScores):
    """Scores whose most frequent operations are kernels. Only those of the class that it extends take float64."""

    functions: Functions

    def best(self, totals: np.ndarray, banned: np.ndarray, must_end: np.ndarray | None, count: int,
             skip_log_softmax: bool) -> Continuations:
        if not self._is_fp32 or totals.dtype != np.float32:
            return super().best(totals, banned, must_end, count, skip_log_softmax)
        (groups, beam), totals = totals.shape, np.ascontiguousarray(totals)
        best_totals, indices = np.empty((groups, count), np.float32), np.empty((2, groups, count), np.int64)
        beams = _address(indices)
        banned = np.ascontiguousarray(banned, np.int64)
        if must_end is not None:
            must_end = np.ascontiguousarray(must_end, np.bool_)
        self.functions.topk(_address(self.logits), _address(totals), groups, beam, self.logits.shape[1],
                            _address(banned), len(banned), None if must_end is None else _address(must_end),
                            skip_log_softmax, _address(best_totals), beams, beams + indices[0].nbytes, count,
                            num_threads())
        return best_totals, indices[0], indices[1]

    def log_sum_exp(self) -> np.ndarray:
        if not self._is_fp32:
            return super().log_sum_exp()
        result = np.empty(len(self.logits), np.float32)
        self.functions.log_sum_exp(_address(self.logits), _address(result), *self.logits.shape, num_threads())
        return result

    def sample(self, numbers: np.ndarray, temperature: float, top_k: int, top_p: float, min_p: float) -> np.ndarray:
        if not self._is_fp32:
            return super().sample(numbers, temperature, top_k, top_p, min_p)
        numbers, ids = np.ascontiguousarray(numbers, np.float64), np.empty(len(self.logits), np.int64)
        self.functions.sample(_address(self.logits), _address(numbers), _address(ids), *self.logits.shape, temperature,
                              top_k, top_p, min_p, num_threads())
        return ids

    @property
    def _is_fp32(self) -> bool:
        return self.logits.dtype == np.float32 and self.logits.flags.c_contiguous


def _address(array: np.ndarray) -> int:
    """Return the address of an array. The caller must keep a reference to the array."""
    assert array.flags.c_contiguous
    address: int = array.__array_interface__["data"][0]                         # `ctypes.data` takes five times as long
    return address
