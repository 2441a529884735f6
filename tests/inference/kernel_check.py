"""Compare all functions of `kernels.cpp` with NumPy on random shapes, and detect writes out of bounds.

    python kernel_check.py LIBRARY SHAPES SEED          check a library that was built with sanitizers

Compilers have bugs: for one loop, g++ 12.2 generated code that wrote one row beyond the end of the result. Guard bytes
surround the output buffers. In a process with sanitizers, there are no guard bytes, so that AddressSanitizer can detect
every write outside the buffers. This file does not import torch, so that such a process starts quickly.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import kernel_reference as reference
import numpy as np
from kernel_reference import Array

from seq2seq.inference.kernel_library import (
    ACTIVATIONS,
    KEY_PADDING,
    LOG_ZERO,
    PANEL,
    Functions,
    Layer,
    Linear,
    Norm,
    Relative,
    Stack,
)
from seq2seq.search.sampling import sample_tokens, truncate

END = 2
"""Id of `</s>`, as in kernels.cpp."""
INPUT_ZERO_POINT = 128
"""Zero point of quantised inputs, as in kernels.cpp (where it is 0 on AVX2 without VNNI)."""
GUARD = 256
"""Number of guard bytes before and after each output buffer. Functions must not change guard bytes."""
EMBEDDING_SCALE = 1.5
MAX_POSITIONS = 150
THREADS = 2
"""Number of threads of the functions, also on a machine with one core."""


class Fault(Exception):
    """A function returned a wrong result or wrote outside its buffers."""


class Checker:
    """Provides random inputs, and output buffers with guard bytes, and compares results with NumPy."""

    def __init__(self, library: Path, seed: int, exact: bool = False) -> None:
        """exact: True = omit guard bytes."""
        self.functions, self.exact = Functions(library), exact
        self.fp32 = self.functions.precision == "fp32"
        self.stored_dtype = np.dtype(self.functions.stored_dtype)
        # True: the weights of fp32 layers are so large that the softmax of attention is saturated.
        self.saturated = True
        self.random = np.random.default_rng(seed)
        self.begin()

    @property
    def tolerance_of_stacks(self) -> float:
        """Tolerance of whole stacks. In int8 it is wide, because a value about halfway between two levels may be
        rounded up or down. In fp32, 200 shapes with each of six seeds differ by at most 4.0e-6. If the softmax is
        saturated, it multiplies the rounding of nearly equal scores of some hundreds, which depends on the order of the
        sums: the portable kernels then differ by up to 8.4e-4, and NumPy in fp32 by up to 2.3e-4.
        """
        return 0.1 if not self.fp32 else 1e-3 if self.saturated else 1e-5

    def begin(self) -> None:
        """Release the buffers of the previous shape."""
        self.kept: list[Any] = []                                               # arrays whose addresses are in use
        self.guarded: list[tuple[str, Array, int]] = []                         # function, buffer with guards, size

    def allocate(self, size: int) -> Array:
        """Return a new array of bytes."""
        return np.empty(size, np.uint8)

    def input(self, values: Any, dtype: Any = np.float32) -> Array:
        """Return a contiguous copy of `values` in a new allocation. The copy exists until the next call of `begin`."""
        values = np.asarray(values, dtype)
        array = self.allocate(values.nbytes).view(values.dtype).reshape(values.shape)
        array[...] = values
        self.kept.append(array)
        return array

    def stored_input(self, values: Array, padding: int = 0) -> Array:
        """Like `input`, but as keys and values are stored. In memory, `padding` NaNs follow the copy. Kernels may read
        but not use them."""
        padded = np.concatenate([values.ravel(), np.full(padding, np.nan)])
        stored = padded if self.fp32 else reference.to_bf16(padded)
        return self.input(stored, self.stored_dtype)[: values.size].reshape(values.shape)

    def from_stored(self, stored: Array) -> Array:
        """Return stored keys and values as fp32."""
        return stored if self.fp32 else reference.from_bf16(stored)

    def rounded(self, values: Array) -> Array:
        """Return keys and values as fp32, rounded as they are stored."""
        return values.astype(np.float32) if self.fp32 else reference.round_to_bf16(values)

    def output(self, function: str, shape: Sequence[int], dtype: Any = np.float32) -> Array:
        """Return an output buffer of `function`, filled with a pattern. `check_guards` checks its guard bytes."""
        dtype = np.dtype(dtype)
        size = int(np.prod(shape)) * dtype.itemsize
        guard = 0 if self.exact else GUARD
        block = self.allocate(size + 2 * guard)
        block[:] = 0xA5
        self.kept.append(block)
        self.guarded.append((function, block, size))
        return block[guard : guard + size].view(dtype).reshape(shape)

    def check_guards(self, shape: str) -> None:
        """Raise Fault if a guard byte has changed."""
        if self.exact:
            return
        for function, block, size in self.guarded:
            if (block[:GUARD] != 0xA5).any() or (block[GUARD + size :] != 0xA5).any():
                raise Fault(f"{function} writes outside its result ({shape})")

    def compare(self, function: str, result: Array, expected: Array, tolerance: float, shape: str) -> None:
        """Raise Fault if a result differs by more than `tolerance` times the largest expected magnitude."""
        largest = max(float(np.abs(expected).max(initial=0)), 1e-6)
        difference = float(np.abs(result.astype(np.float64) - expected).max(initial=0))
        if not difference <= tolerance * largest:
            raise Fault(f"{function} is off by {difference:.3g}; the largest expected value is {largest:.3g} ({shape})")

    # The methods below return random inputs, and reference functions for them.

    def random_size(self, largest: int) -> int:
        """Return a random size from 1 to `largest`. In 40 % of the calls, the size is also at most 24."""
        if self.random.random() < 0.4:
            return int(self.random.integers(1, min(largest, 24) + 1))
        return int(self.random.integers(1, largest + 1))

    def random_linear(self, inputs: int, outputs: int) -> tuple[Linear, Callable[[Array], Array]]:
        """Return a random linear layer and its reference function."""
        levels = self.random.integers(-127, 128, (outputs, inputs))
        # In fp32, with powers of two, products with integers are exact, so wrong sums are found.
        least = 6 if self.saturated else 8
        scale = self.input(2.0 ** -self.random.integers(least, least + 6, outputs) if self.fp32 else
                           self.random.uniform(0.5, 2, outputs) / (127 * inputs**0.5))
        bias = self.input(self.random.normal(size=outputs)) if self.random.random() < 0.8 else None
        weights = levels * scale[:, None].astype(np.float64)
        if self.fp32:
            packed = self.input(np.zeros(self.functions.packed_size(outputs, inputs)))
            self.functions.pack(address(self.input(weights)), outputs, inputs, address(packed), None, None)
            return (Linear(panels=address(packed), bias=address(bias), inputs=inputs, outputs=outputs),
                    lambda rows: rows.astype(np.float64) @ weights.T + (0 if bias is None else bias))
        group = self.functions.group
        padded = np.zeros((-(-outputs // PANEL) * PANEL, -(-inputs // group) * group), np.int8)
        padded[:outputs, :inputs] = levels
        panels = padded.reshape(-1, PANEL, padded.shape[1] // group, group).transpose(0, 2, 1, 3)

        def product(rows: Array) -> Array:
            step = np.maximum(np.abs(rows).max(1, keepdims=True), 1e-12) / 127.0
            rounded = np.rint(rows / step) * step
            return rounded.astype(np.float64) @ weights.T + (0 if bias is None else bias)

        return Linear(panels=address(self.input(panels, np.int8)), scale=address(scale), bias=address(bias),
                      offset=address(self.input(INPUT_ZERO_POINT * levels.sum(1), np.int32)), inputs=inputs,
                      outputs=outputs), product

    def random_norm(self, size: int) -> tuple[Norm, Callable[[Array], Array]]:
        """Return a random layer norm or root-mean-square norm and its reference function."""
        gain, shift = self.input(self.random.uniform(0.5, 1.5, size)), self.input(self.random.normal(size=size))
        if self.random.random() < 0.3:
            return Norm(address(gain), None, 1e-6), lambda rows: rows / np.sqrt(
                (rows**2).mean(1, keepdims=True) + 1e-6) * gain

        def normalise(rows: Array) -> Array:
            centred = rows - rows.mean(1, keepdims=True)
            return centred / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-5) * gain + shift

        return Norm(address(gain), address(shift), 1e-5), normalise

    def random_queries(self) -> tuple[int, int, int, int, Array, str]:
        """Return random sizes (rows, maximum number of keys, heads, head size), queries, and a text with the sizes.

        Queries are (rows, features), or (rows, 3 * features), where only the first third of each row is the query, as
        in a fused projection to queries, keys and values."""
        heads, head_size = int(self.random.integers(1, 5)), int(self.random.choice([32, 64, *range(1, 81), 96, 128]))
        rows, longest, features = self.random_size(97), self.random_size(200), heads * head_size
        stride = features + int(self.random.choice([0, 2 * features]))
        query = self.input(self.random.normal(size=(rows, stride)))
        return rows, longest, heads, head_size, query, f"{rows} rows, {heads} heads of {head_size}, {longest} keys"

    def random_relative(self, heads: int) -> tuple[Relative, Callable[[Array], Array]]:
        """Return random relative positions, or none, and a function that returns their bias for distances, (heads,
        distances)."""
        if self.random.random() < 0.5:
            return Relative(), lambda distances: np.zeros((heads, len(distances)))
        bias = self.input(self.random.normal(size=(heads, 2 * MAX_POSITIONS - 1)) * 3)
        here = address(bias[:, MAX_POSITIONS - 1 :])
        return Relative(here, bias.shape[1]), lambda distances: bias[:, distances + MAX_POSITIONS - 1]

    def random_stack(self, layers: int, d_model: int, heads: int, head_size: int, feed_forward: int, gated: bool,
                     pre_norm: bool, activation: str, window: int | None, relative: Relative, is_decoder: bool,
                     last_outputs: list[int], vocab_size: int) -> tuple[Stack, Callable[..., list[Array]]]:
        """Return a random encoder or decoder and its reference function.

        The reference function takes tokens, their positions, and a function that computes attention. The attention
        function takes the queries, the index of the layer, and the projected keys and values (None for
        cross-attention).
        """
        features = heads * head_size
        structures, references = [], []
        for _ in range(layers):
            linears = [self.random_linear(d_model, 3 * features), self.random_linear(features, d_model),
                       *([self.random_linear(d_model, features), self.random_linear(features, d_model)] if is_decoder
                         else [(Linear(), np.positive)] * 2),
                       self.random_linear(d_model, (1 + gated) * feed_forward),
                       self.random_linear(feed_forward, d_model)]
            norms = [self.random_norm(d_model) for _ in range(3)]
            structures.append(Layer(*(linear for linear, _ in linears), (Norm * 3)(*(norm for norm, _ in norms))))
            references.append(([product for _, product in linears], [normalise for _, normalise in norms]))
        first, normalise_first = self.random_norm(d_model)
        last = [self.random_linear(d_model, outputs) for outputs in last_outputs]
        arrays = (Layer * layers)(*structures), (Linear * len(last))(*(linear for linear, _ in last))
        self.kept.append(arrays)
        embedding, positions = (self.input(self.random.normal(size=(size, d_model)))
                                for size in (vocab_size, MAX_POSITIONS))
        stack = Stack(arrays[0], layers, d_model, heads, head_size, feed_forward, gated, pre_norm,
                      ACTIVATIONS.index(activation), first, arrays[1], len(last), address(embedding),
                      address(positions), EMBEDDING_SCALE, -1 if window is None else window, Norm(), relative)

        def run(tokens: Array, position: Array | int, attend: Callable[[Array, int, Array | None], Array]
                ) -> list[Array]:
            hidden = embedding[tokens].astype(np.float64) * EMBEDDING_SCALE + positions[position]
            sublayer_input = normalise_first(hidden) if pre_norm else hidden

            def add(output: Array, normalise: Callable[[Array], Array]) -> tuple[Array, Array]:
                total = hidden + output
                return (total, normalise(total)) if pre_norm else (normalise(total),) * 2

            for layer, (products, norms) in enumerate(references):
                query_key_value, output, query, source_output, inner, outer = products
                projected = query_key_value(sublayer_input)
                attended = output(attend(projected[:, :features], layer, projected[:, features:]))
                hidden, sublayer_input = add(attended, norms[0])
                if is_decoder:
                    attended = source_output(attend(query(sublayer_input), layer, None))
                    hidden, sublayer_input = add(attended, norms[1])
                *gates, units = np.split(inner(sublayer_input), 1 + gated, 1)
                activated = reference.apply_activation(gates[0] if gated else units, activation)
                hidden, sublayer_input = add(outer(activated * units if gated else activated), norms[2])
            return [product(sublayer_input) for _, product in last]

        return stack, run

    # Each of the methods below checks functions on one random shape.

    def check_add_and_norm(self) -> None:
        rows, size = self.random_size(97), self.random_size(130)
        shape = f"{rows} rows of {size}"
        hidden, output = (self.input(self.random.normal(size=(rows, size))) for _ in range(2))
        norm, normalise = self.random_norm(size)
        total, result = (self.output("add_and_norm", (rows, size)) for _ in range(2))
        self.functions.add_and_norm(address(hidden), address(output), norm, address(total), address(result), rows, size)
        self.check_guards(shape)
        expected = hidden + output
        self.compare("add_and_norm", total, expected, 1e-6, shape)
        self.compare("add_and_norm", result, normalise(expected.astype(np.float64)), 1e-4, shape)

    def check_product(self) -> None:
        rows, inputs, outputs = self.random_size(97), self.random_size(300), self.random_size(200)
        # With ReLU, kernels skip groups of inputs that are 0 in all rows of a block.
        relu, zeros = bool(self.random.integers(2)), self.random.choice([0, 0.5, 0.95, 1])
        shape = f"{rows} rows, {inputs} inputs, {outputs} outputs" + f", ReLU of {zeros:.0%} zeros" * relu
        linear, product = self.random_linear(inputs, outputs)
        # If the largest integer is 127, integers times a power of two are quantised exactly, so wrong sums are found.
        values = self.random.integers(-127, 128, (rows, inputs)).astype(np.float64)
        if relu:
            values *= self.random.random((rows, inputs)) >= zeros
        values[:, self.random.integers(inputs)] = 127
        values = self.input(values * 2.0 ** self.random.integers(-9, 9, (rows, 1)))
        result = self.output("product", (rows, outputs))
        self.functions.product(linear, address(values), address(result), rows, relu, THREADS)
        self.check_guards(shape)
        expected = product(np.maximum(values, 0) if relu else values)
        for row in range(rows):                                                 # the magnitudes of rows differ
            self.compare("product", result[row], expected[row], 2e-5, f"{shape}, row {row}")
        values[:] = self.random.normal(size=values.shape) * (values != 0)
        self.functions.product(linear, address(values), address(result), rows, relu, THREADS)
        alone = self.output("product", (outputs,))
        for row in range(rows):
            self.functions.product(linear, address(values[row]), address(alone), 1, relu, 1)
            if alone.tobytes() != result[row].tobytes():
                raise Fault(f"product depends on the other rows ({shape}, row {row})")

    def check_pack(self) -> None:
        outputs, inputs = self.random_size(200), self.random_size(300)
        shape = f"{outputs} outputs, {inputs} inputs"
        weights = self.random.normal(size=(outputs, inputs)) * 10.0 ** self.random.integers(-20, 9, (outputs, 1))
        weights[self.random.integers(outputs)] *= self.random.choice([0, 1e-30, 1])
        weights[self.random.integers(outputs), self.random.integers(inputs)] = self.random.choice([0, np.nan, -np.inf])
        weights = self.input(weights)
        if self.fp32:
            packed = self.output("pack", (self.functions.packed_size(outputs, inputs),))
            self.functions.pack(address(weights), outputs, inputs, address(packed), None, None)
            self.check_guards(shape)
            padding = np.zeros(-outputs % PANEL * inputs, np.float32)
            if not np.array_equal(np.sort(packed), np.sort([*weights.ravel(), *padding]), equal_nan=True):
                raise Fault(f"pack writes other weights ({shape})")
            return
        group = self.functions.group
        panels = self.output("pack", (-(-outputs // PANEL), -(-inputs // group), PANEL, group), np.int8)
        scale, offset = self.output("pack", (outputs,)), self.output("pack", (outputs,), np.int32)
        if self.functions.packed_size(outputs, inputs) != panels.size:
            raise Fault(f"packed_size is wrong ({shape})")
        self.functions.pack(address(weights), outputs, inputs, address(panels), address(scale), address(offset))
        self.check_guards(shape)
        levels, expected = reference.quantised(weights)
        if scale.tobytes() != expected.tobytes() and not np.array_equal(scale, expected, equal_nan=True):
            raise Fault(f"pack computes other scales ({shape})")
        padded = panels.transpose(0, 2, 1, 3).reshape(panels.shape[0] * PANEL, -1)
        if (padded[:outputs, :inputs] != levels).any() or padded[outputs:].any() or padded[:, inputs:].any():
            raise Fault(f"pack writes other levels ({shape})")
        if offset.any() and (offset != INPUT_ZERO_POINT * levels.sum(1, dtype=np.int64)).any():  # or all 0
            raise Fault(f"pack computes other offsets ({shape})")

    def check_attend_past(self) -> None:
        rows, longest, heads, head_size, query, shape = self.random_queries()
        features, cache_rows = heads * head_size, longest + self.random_size(50)
        cache = self.stored_input(self.random.normal(size=(cache_rows, 2 * features)))
        length = self.input(self.random.integers(1, longest + 1, rows), np.int32)
        past = self.input(self.random.integers(0, cache_rows, (rows, longest)), np.int32)
        result = self.output("attend_past", (rows, features))
        self.functions.attend_past(address(query), query.shape[1], address(cache), address(past), longest,
                                   address(length), address(result), rows, heads, head_size)
        self.check_guards(shape)
        keys_values = [self.from_stored(cache[used[:keys]]) for used, keys in zip(past, length, strict=True)]
        self.compare("attend_past", result, reference.attention(query[:, :features], keys_values, heads), 1e-4, shape)

    def check_attend_source(self) -> None:
        rows, longest, heads, head_size, query, shape = self.random_queries()
        features = heads * head_size
        lengths = self.random.integers(1, longest + 1, self.random_size(8))
        sentences = [self.random.normal(size=(tokens, 2 * features)) for tokens in lengths]
        memory = self.stored_input(np.concatenate(list(map(reference.transpose_keys, sentences))), KEY_PADDING)
        # Most shapes have rows sorted by sentence, because the kernel computes successive rows of a sentence together.
        selected = np.sort(self.random.integers(0, len(lengths), rows)) if self.random.random() < 0.8 else \
            self.random.integers(0, len(lengths), rows)
        first = self.input((lengths.cumsum() - lengths)[selected], np.int32)
        count = self.input(lengths[selected], np.int32)
        result = self.output("attend_source", (rows, features))
        self.functions.attend_source(address(query), query.shape[1], address(memory), address(first), address(count),
                                     address(result), rows, heads, head_size)
        self.check_guards(shape)
        keys_values = [self.rounded(sentences[sentence]) for sentence in selected]
        self.compare("attend_source", result, reference.attention(query[:, :features], keys_values, heads), 1e-4, shape)

    def check_stack(self) -> None:
        """Check `encode`, then `step` at a few positions, then `cross_attention`, then `search`."""
        self.saturated = bool(self.random.random() < 0.25)
        heads, head_size = int(self.random.integers(1, 4)), int(self.random.choice([4, 7, 16, 32]))
        features, feed_forward, vocab_size = heads * head_size, self.random_size(100), self.random_size(150) + 4
        d_model = features if self.random.random() < 0.5 else int(self.random.integers(2, 101))
        gated, pre_norm = (bool(self.random.integers(2)) for _ in range(2))
        activation = str(self.random.choice(ACTIVATIONS))
        window = int(self.random.integers(1, 9)) if self.random.random() < 0.3 else None
        lengths = self.random.integers(1, 30, self.random_size(12))
        if self.random.random() < 0.2:
            lengths[0] = MAX_POSITIONS
        offsets = self.input(np.concatenate([[0], lengths.cumsum()]), np.int32)
        tokens, beam = int(offsets[-1]), int(self.random.integers(1, 6))
        rows, layers = beam * len(lengths), int(self.random.integers(1, 3))
        relative, relative_bias = self.random_relative(heads)
        shape = (f"{len(lengths)} sentences, {tokens} tokens, beam {beam}, width {d_model}, {heads} heads of "
                 f"{head_size}, feed-forward {feed_forward}{', gated' * gated}, vocabulary of {vocab_size}, "
                 f"{activation}, {'pre' if pre_norm else 'post'}-norm, window {window}"
                 f"{', relative positions' * bool(relative.here)}")
        sizes = layers, d_model, heads, head_size, feed_forward, gated, pre_norm, activation, window, relative
        encoder, encode = self.random_stack(*sizes, False, [2 * features] * layers, vocab_size)
        decoder, decode = self.random_stack(*sizes, True, [vocab_size], vocab_size)
        source = self.input(self.random.integers(0, vocab_size, tokens), np.int64)
        memory = self.output("encode", (layers, tokens * 2 * features), self.stored_dtype)
        self.functions.encode(encoder, address(source), address(offsets), len(lengths), address(memory), memory[0].size,
                              THREADS)
        self.check_guards(shape)
        distance = tokens if window is None else window
        spans = [slice(max(begin, token - distance), min(end, token + distance + 1))
                 for begin, end in pairwise(offsets.tolist()) for token in range(begin, end)]
        bias = [relative_bias(np.arange(span.start, span.stop) - token) for token, span in enumerate(spans)]
        expected = encode(source, positions_in(offsets), lambda query, layer, keys_values: reference.attention(
            query, [self.rounded(keys_values[span]) for span in spans], heads, bias))
        tolerance = self.tolerance_of_stacks
        sources = [[reference.undo_transpose_keys(block, features)
                    for block in np.split(self.from_stored(memory[layer]), 2 * features * offsets[1:-1])]
                   for layer in range(layers)]
        for layer in range(layers):
            self.compare("encode", np.concatenate(sources[layer]), expected[layer], tolerance, shape)
        memory = self.stored_input(self.from_stored(memory), KEY_PADDING)       # exact: the values are rounded already

        steps, longest = int(self.random.integers(1, 5)), int(lengths.max())
        cache = self.output("step", (layers, rows * steps, 2 * features), self.stored_dtype)
        reference_cache = np.zeros((layers, rows * steps, 2 * features))
        row_first, row_count = (self.input(part.repeat(beam), np.int32) for part in (offsets[:-1], lengths))
        past = np.empty((rows, 0), np.int32)
        for step in range(steps):
            last = self.input(self.random.integers(0, vocab_size, rows), np.int64)
            used = step * rows
            parents = self.random.integers(0, rows, rows) if step else np.arange(rows)
            past = self.input(np.concatenate([past[parents], used + np.arange(rows)[:, None]], 1), np.int32)
            logits = self.output("step", (rows, vocab_size), np.float32)
            attention = self.output("step", (rows, longest)) if self.random.random() < 0.5 else None
            if attention is not None:
                attention[:] = 0
            length = self.input(np.full(rows, step + 1), np.int32)
            self.functions.step(decoder, address(last), address(cache), cache[0].size, address(past), step + 1,
                                address(length), address(memory), memory[0].size, address(row_first),
                                address(row_count), address(logits), address(attention), longest, rows, THREADS)
            self.check_guards(shape)
            weights: list[Array] = []                                           # of the last layer

            def attend(query: Array, layer: int, projected: Array | None, past: Array = past, used: int = used,
                       weights: list[Array] = weights) -> Array:
                if projected is None:                                           # cross-attention
                    keys_values = [source for source in sources[layer] for _ in range(beam)]
                    weights[:] = reference.attention_weights(query, keys_values, heads)
                    return reference.attention(query, keys_values, heads)
                reference_cache[layer, used : used + rows] = self.rounded(projected)
                visible = past if window is None else past[:, -window - 1 :]
                bias = relative_bias(np.arange(1 - visible.shape[1], 1))
                return reference.attention(query, [reference_cache[layer, row_past] for row_past in visible], heads,
                                           [bias] * rows)

            self.compare("step", logits, decode(last, step, attend)[0], tolerance, shape)
            if attention is not None:
                padded = [np.pad(of_row.mean(0), (0, longest - of_row.shape[1])) for of_row in weights]
                self.compare("step", attention, np.array(padded), tolerance, shape)
        self.check_cross_attention(decoder, decode, memory, (offsets, sources), window, relative_bias, shape)
        self.check_search(decoder, vocab_size, memory, (self.input(offsets[:-1], np.int32),
                                                        self.input(lengths, np.int32)), shape)

    def check_cross_attention(self, decoder: Stack, decode: Callable[..., list[Array]], memory: Array,
                              source: tuple[Array, list[list[Array]]], window: int | None,
                              relative_bias: Callable[[Array], Array], shape: str) -> None:
        """Check `cross_attention` with random targets. source: offsets; keys and values by layer and sentence.
        relative_bias: see `random_relative`."""
        (source_offsets, sources), heads = source, decoder.heads
        lengths = self.random.integers(1, 30, len(source_offsets) - 1)
        offsets = self.input(np.concatenate([[0], lengths.cumsum()]), np.int32)
        tokens = self.input(self.random.integers(0, 4, offsets[-1]), np.int64)
        chosen = int(self.random.integers(decoder.number_of_layers))
        sizes = heads * lengths * np.diff(source_offsets)
        weight_offsets = self.input(np.concatenate([[0], sizes.cumsum()]), np.int64)
        found = self.output("cross_attention", (int(sizes.sum()),))
        self.functions.cross_attention(decoder, address(tokens), address(offsets), len(lengths), address(memory),
                                       memory[0].size, address(source_offsets), chosen, address(found),
                                       address(weight_offsets), THREADS)
        self.check_guards(shape)
        positions, sentence_of = positions_in(offsets), np.arange(len(lengths)).repeat(lengths)
        weights: list[Array] = []                                               # of each row, (heads, source tokens)

        def attend(query: Array, layer: int, projected: Array | None) -> Array:
            if projected is None:                                               # cross-attention
                keys_values = [sources[layer][sentence] for sentence in sentence_of]
                if layer == chosen:
                    weights[:] = reference.attention_weights(query, keys_values, heads)
                return reference.attention(query, keys_values, heads)
            rounded = self.rounded(projected)
            keys_values = [rounded[row - (position if window is None else min(position, window)) : row + 1]
                           for row, position in enumerate(positions)]
            bias = [relative_bias(np.arange(1 - len(keys), 1)) for keys in keys_values]
            return reference.attention(query, keys_values, heads, bias)

        decode(tokens, positions, attend)
        expected = [np.stack(weights[begin:end], 1).ravel() for begin, end in pairwise(offsets.tolist())]
        self.compare("cross_attention", found, np.concatenate(expected), self.tolerance_of_stacks,
                     f"{shape}, targets of {lengths}")

    def check_search(self, decoder: Stack, vocab_size: int, memory: Array, spans: tuple[Array, Array],
                     shape: str) -> None:
        """Compare the kernel `search` with a simple beam search that calls the kernels `step` and `topk`.

        In the simple search, the logits of words that are not in a sentence's shortlist are left out.
        """
        (first, count), layers, features = spans, len(memory), decoder.heads * decoder.head_size
        sentences, beam, longest = len(first), int(self.random.integers(1, 6)), int(self.random.integers(1, 21))
        finished_per_group = beam + int(self.random.integers(0, 3))
        limits = self.input(self.random.integers(1, longest + 1, sentences), np.int64)
        forbidden = self.input(sorted({0, 1, int(self.random.integers(3, vocab_size))}), np.int64)
        shortlist, allowed = self.random_shortlist(vocab_size, count)
        start = int(self.random.integers(vocab_size))
        first_word = int(self.random.integers(END + 1, vocab_size)) if self.random.random() < 0.4 else -1
        shape += f", shortlists of {list(map(len, allowed))}, start {start}, first word {first_word}"
        max_finished = finished_per_group + beam - 1
        finished = self.output("search", (sentences,), np.int64)
        totals = self.output("search", (sentences, max_finished))
        lengths = self.output("search", (sentences, max_finished), np.int32)
        tokens = self.output("search", (sentences, max_finished, longest), np.int32)
        self.functions.search(decoder, address(memory), memory[0].size, address(first), address(count),
                              address(limits), sentences, beam, finished_per_group, address(forbidden), len(forbidden),
                              max_finished, longest, address(finished), address(totals), address(lengths),
                              address(tokens), *shortlist, start, first_word, THREADS)
        self.check_guards(shape)
        for sentence in range(sentences):
            expected = []
            hypotheses: list[tuple[float, list[int], list[int]]] = [(0.0, [], [])]  # log p, tokens, cache rows
            cache = self.input(np.zeros((layers, (beam + 1) * longest, 2 * features)), self.stored_dtype)
            used, words = 0, allowed[sentence]
            own_forbidden = self.input(np.flatnonzero(np.isin(words, forbidden)), np.int64)
            for length in range(1, int(limits[sentence]) + 1):
                rows = len(hypotheses)
                past = self.input([[*old, used + row] for row, (_, _, old) in enumerate(hypotheses)], np.int32)
                last = self.input([produced[-1] if produced else start for _, produced, _ in hypotheses], np.int64)
                logits = self.input(np.zeros((rows, vocab_size)))
                row_length, row_first, row_count = (self.input(np.full(rows, value), np.int32)
                                                    for value in (length, first[sentence], count[sentence]))
                self.functions.step(decoder, address(last), address(cache), cache[0].size, address(past), length,
                                    address(row_length), address(memory), memory[0].size, address(row_first),
                                    address(row_count), address(logits), None, 0, rows, THREADS)
                used += rows
                before = self.input([[total for total, _, _ in hypotheses]])
                best = self.input(np.zeros(2 * beam))
                parents, ids = (self.input(np.zeros(2 * beam), np.int64) for _ in range(2))
                must_end, logits = self.input([length == limits[sentence]], np.bool_), self.input(logits[:, words])
                self.functions.topk(address(logits), address(before), 1, rows, len(words), address(own_forbidden),
                                    len(own_forbidden), address(must_end), False, address(best), address(parents),
                                    address(ids), 2 * beam, THREADS)
                ids = words[ids]
                if first_word >= 0 and length == 1 < limits[sentence]:
                    best[:], parents[:], ids = [0.0, *[-np.inf] * (2 * beam - 1)], 0, np.full(2 * beam, first_word)
                unfinished = [(total, [*hypotheses[parent][1], token], past[parent].tolist())
                              for total, parent, token in zip(best, parents, ids, strict=True)
                              if token != END and total > LOG_ZERO]
                expected += [(hypotheses[parent][1], total) for total, parent, token in
                             zip(best[:beam], parents, ids, strict=False) if token == END and total > LOG_ZERO]
                hypotheses = unfinished[:beam]
                if len(expected) >= finished_per_group or not hypotheses:
                    break
            results = [(tokens[sentence, index, : lengths[sentence, index]].tolist(), totals[sentence, index])
                       for index in range(finished[sentence])]
            # The compiler may round log p in `search` otherwise than in `topk`.
            same = [words for words, _ in results] == [words for words, _ in expected]
            if not same or not np.allclose([total for _, total in results], [total for _, total in expected], 1e-5):
                raise Fault(f"search finds other hypotheses than a simple beam search ({shape}, beam {beam})")

    def check_log_sum_exp(self) -> None:
        rows, vocab_size = self.random_size(40), self.random_size(400)
        logits = self.input(self.random.normal(size=(rows, vocab_size)) * 9)
        for row, number in enumerate((-np.inf, np.nan, np.inf)[: rows - 1]):
            logits[row, self.random.integers(vocab_size) if row else slice(None)] = number
        result = self.output("log_sum_exp", (rows,))
        self.functions.log_sum_exp(address(logits), address(result), rows, vocab_size, THREADS)
        shape = f"{rows} rows, vocabulary of {vocab_size}"
        self.check_guards(shape)
        with np.errstate(divide="ignore"):
            expected = np.log(np.exp(logits.astype(np.float64)).sum(1))
        finite = np.isfinite(expected)
        if not np.array_equal(result[~finite], expected[~finite].astype(np.float32), equal_nan=True):
            raise Fault(f"log_sum_exp is wrong for logits that are not finite ({shape})")
        self.compare("log_sum_exp", result[finite], expected[finite], 1e-6, shape)

    def check_sample(self) -> None:
        rows, vocab_size = self.random_size(40), self.random_size(400)
        # No logits are equal: which of equal logits top-k keeps is undefined.
        logits = self.input([self.random.permutation(vocab_size) for _ in range(rows)])
        logits *= 20 / vocab_size
        logits[self.random.random(logits.shape) < 0.1] = -np.inf
        for row, number in enumerate((-np.inf, np.nan)[: rows - 1]):
            logits[row, self.random.integers(vocab_size) if row else slice(None)] = number
        numbers = self.input(self.random.random(rows) * (self.random.random(rows) < 0.9), np.float64)
        ids = self.output("sample", (rows,), np.int64)
        rules = (float(self.random.choice([1, 0.5, 3])), int(self.random.choice([0, 1, 7, 90, vocab_size])),
                 float(self.random.choice([1, 0.9, 0.3])), float(self.random.choice([0, 0.05, 1])))
        self.functions.sample(address(logits), address(numbers), address(ids), rows, vocab_size, *rules, THREADS)
        shape = f"{rows} rows, vocabulary of {vocab_size}, temperature, top-k, top-p, min-p: {rules}"
        self.check_guards(shape)
        with np.errstate(invalid="ignore"):
            expected = sample_tokens(truncate(logits, *rules), numbers)
        # A number may lie between two tokens, or a token on the limit of top-p, but for rounding.
        if (ids != expected).sum() > rows / 20:
            raise Fault(f"sample returns {ids}, not {expected} ({shape})")

    def random_shortlist(self, vocab_size: int, count: Array) -> tuple[tuple[int | None, ...], list[Array]]:
        """Return the arguments of `search` for a random shortlist or for none, and the words of each sentence, sorted.

        count: (sentences,), number of source tokens. All sentences end with `</s>`.
        """
        if self.random.random() < 0.4:
            return (None, None, None, 0), [np.arange(vocab_size)] * len(count)
        kinds, most = int(self.random.integers(END + 1, 9)), self.random_size(vocab_size)
        source = self.random.integers(0, kinds, count.sum())
        source[count.cumsum() - 1] = END
        # The words of a source token may be repeated, in any order, and they may be none or all.
        lists = [self.random.permutation(vocab_size) if self.random.random() < 0.1 else
                 self.random.integers(0, vocab_size, self.random.integers(0, most + 1)) for _ in range(kinds)]
        per_token = int(self.random.integers(1, most + 2))
        pieces, offsets, tokens = (self.input(np.concatenate(lists), np.int32),
                                   self.input(np.cumsum([0, *map(len, lists)]), np.int32), self.input(source, np.int64))
        allowed = [np.unique(np.concatenate([range(END + 1), *(
            lists[token] if token == END else lists[token][:per_token] for token in sentence)]).astype(np.int64))
            for sentence in np.split(source, count.cumsum()[:-1])]
        return (address(tokens), address(pieces), address(offsets), per_token), allowed

    def check_topk(self) -> None:
        groups, beam, vocab_size = self.random_size(40), int(self.random.integers(1, 8)), self.random_size(400) + 3
        count, normalised = int(self.random.integers(1, 2 * beam + 2)), bool(self.random.integers(2))
        shape = f"{groups} groups of {beam}, vocabulary of {vocab_size}, the best {count}"
        logits = self.random.normal(size=(groups, beam, vocab_size)).astype(np.float32) * 3
        totals = self.input(-self.random.exponential(size=(groups, beam)))
        forbidden = self.input(self.random.choice([0, 1, *range(3, vocab_size)], min(3, vocab_size - 1), replace=False),
                               np.int64)
        must_end = self.input(self.random.random(groups) < 0.3, np.bool_) if self.random.random() < 0.7 else None
        overwritten = self.output("topk", logits.shape, np.float32)
        overwritten[:] = logits
        best, beams, ids = (self.output("topk", (groups, count), dtype) for dtype in (np.float32, np.int64, np.int64))
        self.functions.topk(address(overwritten), address(totals), groups, beam, vocab_size, address(forbidden),
                            len(forbidden), address(must_end), normalised, address(best), address(beams), address(ids),
                            count, THREADS)
        self.check_guards(shape)
        scores = logits.astype(np.float64)
        if not normalised:
            scores -= np.log(np.exp(scores).sum(2, keepdims=True))
        scores[:, :, forbidden] = -np.inf
        if must_end is not None:
            end_scores = scores[must_end][:, :, END].copy()
            scores[must_end] = -np.inf
            scores[must_end, :, END] = end_scores
        scores += totals[:, :, None]
        ordered = np.sort(scores.reshape(groups, -1), 1)[:, ::-1][:, :count]
        expected = np.full((groups, count), -np.inf)
        expected[:, : ordered.shape[1]] = ordered
        possible = expected > -np.inf
        if (best[~possible] > LOG_ZERO / 2).any() or not (best[possible] > LOG_ZERO / 2).all():
            raise Fault(f"topk returns a wrong number of continuations ({shape})")
        self.compare("topk", best[possible], expected[possible], 1e-5, shape)
        group, _ = np.nonzero(possible)
        if not ((beams[possible] < beam).all() and (ids[possible] < vocab_size).all() and
                (beams[possible] >= 0).all() and (ids[possible] >= 0).all()):
            raise Fault(f"topk returns continuations that do not exist ({shape})")
        self.compare("topk", scores[group, beams[possible], ids[possible]], best[possible], 1e-5, shape)


def positions_in(offsets: Array) -> Array:
    """Return the position of each token in its sentence. offsets: index of each sentence's first token, then the number
    of tokens."""
    return np.arange(offsets[-1]) - offsets[:-1].repeat(np.diff(offsets))


def address(array: Array | None) -> int | None:
    """Return the memory address of an array; None for None. The caller must keep the array alive."""
    return None if array is None else int(array.ctypes.data)


def check(checker: Checker, shapes: int) -> None:
    """Check every function of a library on random shapes.

    Raises:
        Fault: a result is wrong, or a guard byte was overwritten; the message names the function and the shape.
    """
    for _ in range(shapes):
        for check_function in (checker.check_add_and_norm, checker.check_product, checker.check_pack,
                               checker.check_attend_past, checker.check_attend_source, checker.check_stack,
                               checker.check_topk, checker.check_log_sum_exp, checker.check_sample):
            checker.begin()
            check_function()


if __name__ == "__main__":
    check(Checker(Path(sys.argv[1]), int(sys.argv[3]), exact=True), int(sys.argv[2]))
