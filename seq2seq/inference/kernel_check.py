"""Self-check of a compiled `kernels.cpp`: every function against NumPy, with guard bytes around every output buffer.

    python -m seq2seq.inference.kernel_check LIBRARY [--shapes N] [--seed S] [--exact-buffers]

Compilers have bugs: g++ 12.2 once compiled a loop to code that wrote a row beyond its result. A new library is
therefore checked in a separate process before it is used (kernel_library.py). Prints a line of progress per shape; on
failure the last line is the fault, and the exit code is 1. With --exact-buffers, outputs are allocated without guard
bytes, for AddressSanitizer.
"""

from __future__ import annotations

import argparse
import ctypes
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

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
from seq2seq.inference.kernel_reference import Array, activated, attended, brief, laid_out, numbers, read_back

END, START = 2, 1
"""As in kernels.cpp."""
GUARD = 256
"""Bytes before and behind each output buffer that must keep their value."""
SHAPES = 100
"""Default number of random shapes for each function; takes a few seconds."""


class Fault(Exception):
    """A function gave a wrong result or wrote outside its buffers."""


class Checker:
    """Random inputs, guarded output buffers, and comparisons with NumPy."""

    def __init__(self, library: Path, seed: int, exact: bool) -> None:
        self.functions, self.exact = Functions(library), exact
        self.random = np.random.default_rng(seed)
        self.kept: list[Any] = []
        self.guarded: list[tuple[str, Array, int]] = []

    def begin(self) -> None:
        """Release the buffers of the previous shape."""
        self.kept, self.guarded = [], []

    def given(self, values: Any, dtype: Any = np.float32) -> Array:
        """Return a contiguous copy in a memory block of its own, which lives until the next `begin`."""
        array = np.array(values, dtype, order="C")
        self.kept.append(array)
        return array

    def room(self, what: str, shape: Sequence[int], dtype: Any = np.float32) -> Array:
        """Return an output buffer filled with a pattern, between guard bytes that `unharmed` checks."""
        dtype = np.dtype(dtype)
        size = int(np.prod(shape)) * dtype.itemsize
        guard = 0 if self.exact else GUARD
        block = np.full(size + 2 * guard, 0xA5, np.uint8)
        self.kept.append(block)
        self.guarded.append((what, block, size))
        return block[guard : guard + size].view(dtype).reshape(shape)

    def unharmed(self, shape: str) -> None:
        """Raise Fault if a guard byte has changed."""
        if self.exact:
            return
        for what, block, size in self.guarded:
            if (block[:GUARD] != 0xA5).any() or (block[GUARD + size :] != 0xA5).any():
                raise Fault(f"{what} writes outside its result ({shape})")

    def same(self, what: str, found: Array, expected: Array, tolerance: float, shape: str) -> None:
        """Raise Fault if results differ by more than `tolerance` times the largest expected value."""
        largest = max(float(np.abs(expected).max(initial=0)), 1e-6)
        difference = float(np.abs(found.astype(np.float64) - expected).max(initial=0))
        if not difference <= tolerance * largest:
            raise Fault(f"{what} is off by {difference:.3g} of {largest:.3g} ({shape})")

    # Reference and structures

    def linear(self, inputs: int, outputs: int) -> tuple[Linear, Callable[[Array], Array]]:
        """Return a random int8 linear layer, and its reference function."""
        levels = self.random.integers(-127, 128, (outputs, inputs))
        scale = self.given(self.random.uniform(0.5, 2, outputs) / (127 * inputs**0.5))
        bias = self.given(self.random.normal(size=outputs)) if self.random.random() < 0.8 else None
        weights = levels * scale[:, None].astype(np.float64)
        filled = np.zeros((-(-outputs // PANEL) * PANEL, -(-inputs // GROUP) * GROUP), np.int8)
        filled[:outputs, :inputs] = levels
        panels = filled.reshape(-1, PANEL, filled.shape[1] // GROUP, GROUP).transpose(0, 2, 1, 3)

        def product(rows: Array) -> Array:
            step = np.maximum(np.abs(rows).max(1, keepdims=True), 1e-12) / 127.0
            rounded = np.rint(rows / step) * step
            return rounded.astype(np.float64) @ weights.T + (0 if bias is None else bias)

        return Linear(panels=where(self.given(panels, np.int8)), scale=where(scale), bias=where(bias),
                      offset=where(self.given(ZERO_LEVEL * levels.sum(1), np.int32)), inputs=inputs,
                      outputs=outputs), product

    def norm(self, size: int) -> tuple[Norm, Callable[[Array], Array]]:
        """Return a random layer norm, and its reference function."""
        gain, shift = self.given(self.random.uniform(0.5, 1.5, size)), self.given(self.random.normal(size=size))

        def normed(rows: Array) -> Array:
            centred = rows - rows.mean(1, keepdims=True)
            return centred / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-5) * gain + shift

        return Norm(where(gain), where(shift), 1e-5), normed

    # The checks, each on one random shape

    def check_add_and_norm(self) -> None:
        rows, size = self.size(97), self.size(130)
        shape = f"{rows} rows of {size}"
        hidden, output = (self.given(self.random.normal(size=(rows, size))) for _ in range(2))
        norm, normed = self.norm(size)
        total, result = (self.room("add_and_norm", (rows, size)) for _ in range(2))
        self.functions.add_and_norm(where(hidden), where(output), norm, where(total), where(result), rows, size)
        self.unharmed(shape)
        expected = hidden + output
        self.same("add_and_norm", total, expected, 1e-6, shape)
        self.same("add_and_norm", result, normed(expected.astype(np.float64)), 1e-4, shape)

    def check_product(self) -> None:
        rows, inputs, outputs = self.size(97), self.size(300), self.size(200)
        shape = f"{rows} rows, {inputs} inputs, {outputs} outputs"
        linear, product = self.linear(inputs, outputs)
        # Inputs are integers times powers of two: quantising them is exact, so that any wrong sum shows.
        values = self.random.integers(-127, 128, (rows, inputs)).astype(np.float64)
        values[:, self.random.integers(inputs)] = 127
        values *= 2.0 ** self.random.integers(-9, 9, (rows, 1))
        given, result = self.given(values), self.room("product", (rows, outputs), np.float32)
        self.functions.product(linear, where(given), where(result), rows)
        self.unharmed(shape)
        for row in range(rows):                                                 # each with a scale of its own
            expected = product(given[row : row + 1])[0]
            self.same("product", result[row], expected, 2e-5, f"{shape}, row {row}")

    def check_attend_past(self) -> None:
        rows, longest, heads, head_size, query, shape = self.asked()
        features, held = heads * head_size, longest + self.size(50)
        cache = self.brief(self.random.normal(size=(held, 2 * features)))
        length = self.given(self.random.integers(1, longest + 1, rows), np.int32)
        past = self.given(self.random.integers(0, held, (rows, longest)), np.int32)
        result = self.room("attend_past", (rows, features))
        self.functions.attend_past(where(query), query.shape[1], where(cache), where(past), longest, where(length),
                                   where(result), rows, heads, head_size)
        self.unharmed(shape)
        seen = [numbers(cache)[of_row[:number]] for of_row, number in zip(past, length, strict=True)]
        self.same("attend_past", result, attended(query[:, :features], seen, heads), 1e-4, shape)

    def check_attend_source(self) -> None:
        rows, longest, heads, head_size, query, shape = self.asked()
        features = heads * head_size
        lengths = self.random.integers(1, longest + 1, self.size(8))
        sentences = [self.random.normal(size=(tokens, 2 * features)) for tokens in lengths]
        memory = self.brief(np.concatenate([laid_out(keys_values) for keys_values in sentences]), BEHIND)
        # Some successive rows attend to the same sentence.
        chosen = np.sort(self.random.integers(0, len(lengths), rows)) if self.random.random() < 0.8 else \
            self.random.integers(0, len(lengths), rows)
        first = self.given((lengths.cumsum() - lengths)[chosen], np.int32)
        count = self.given(lengths[chosen], np.int32)
        result = self.room("attend_source", (rows, features))
        self.functions.attend_source(where(query), query.shape[1], where(memory), where(first), where(count),
                                     where(result), rows, heads, head_size)
        self.unharmed(shape)
        seen = [numbers(brief(sentences[sentence])) for sentence in chosen]
        self.same("attend_source", result, attended(query[:, :features], seen, heads), 1e-4, shape)

    def asked(self) -> tuple[int, int, int, int, Array, str]:
        """Return random sizes of an attention: rows, largest number of keys, heads, head size; and the queries, some
        with keys and values behind them as in a fused projection; and a description."""
        heads, head_size = int(self.random.integers(1, 5)), int(self.random.choice([32, 64, *range(1, 81), 96, 128]))
        rows, longest, features = self.size(97), self.size(200), heads * head_size
        stride = features + int(self.random.choice([0, 2 * features]))
        query = self.given(self.random.normal(size=(rows, stride)))
        return rows, longest, heads, head_size, query, f"{rows} rows, {heads} heads of {head_size}, {longest} keys"

    def brief(self, values: Array, behind: int = 0) -> Array:
        """`given` in bf16, with `behind` elements of NaN behind it, which kernels may read but not use."""
        return self.given(np.concatenate([brief(values).ravel(), np.full(behind, 0x7FC0, np.uint16)]),
                          np.uint16)[: values.size].reshape(values.shape)

    def check_stack(self) -> None:
        """Check `encode`, then `step` for a few positions."""
        heads, head_size = int(self.random.integers(1, 4)), int(self.random.choice([4, 7, 16, 32]))
        d_model, feed_forward, words = heads * head_size, self.size(100), self.size(150) + 4
        pre_norm, activation = bool(self.random.integers(2)), str(self.random.choice(ACTIVATIONS))
        lengths = self.random.integers(1, 30, self.size(12))
        offsets = np.concatenate([[0], lengths.cumsum()])
        tokens, beam = int(offsets[-1]), int(self.random.integers(1, 6))
        rows, layers = beam * len(lengths), int(self.random.integers(1, 3))
        shape = (f"{len(lengths)} sentences, {tokens} tokens, beam {beam}, {heads} heads of {head_size}, feed-forward "
                 f"{feed_forward}, {words} words, {activation}, {'pre' if pre_norm else 'post'}-norm")
        encoder, encode = self.stack(layers, heads, head_size, feed_forward, pre_norm, activation, False,
                                     [2 * d_model] * layers)
        decoder, decode = self.stack(layers, heads, head_size, feed_forward, pre_norm, activation, True, [words])
        first, count = (self.given(part.repeat(lengths), np.int32) for part in (offsets[:-1], lengths))
        embedded = self.given(self.random.normal(size=(tokens, d_model)))
        ends = self.given(sorted({*self.random.choice(offsets[1:], min(3, len(lengths))).tolist(), tokens}), np.int64)
        memory = self.room("encode", (layers, tokens * 2 * d_model), np.uint16)
        self.functions.encode(encoder, where(embedded), where(first), where(count), where(memory), where(ends),
                              len(ends))
        self.unharmed(shape)
        spans = [slice(begin, begin + each) for begin, each in zip(first, count, strict=True)]
        expected = encode(embedded.astype(np.float64), lambda query, layer, keys_values: attended(
            query, [numbers(brief(keys_values[span])) for span in spans], heads))
        # A value between two int8 levels may be rounded to either; its share of a sum is small.
        tolerance = 0.1
        sources = [[numbers(read_back(memory[layer, 2 * d_model * begin : 2 * d_model * end], d_model))
                    for begin, end in zip(offsets, offsets[1:], strict=False)] for layer in range(layers)]
        for layer in range(layers):
            self.same("encode", np.concatenate(sources[layer]), expected[layer], tolerance, shape)
        memory = self.brief(numbers(memory), BEHIND)                            # exact: they are bf16 already

        positions = int(self.random.integers(1, 5))
        embedding, places = (self.given(self.random.normal(size=(size, d_model))) for size in (words, 24))
        cache = self.room("step", (layers, rows * positions, 2 * d_model), np.uint16)
        kept = np.zeros((layers, rows * positions, 2 * d_model))
        row_first, row_count = (self.given(part.repeat(beam), np.int32) for part in (offsets[:-1], lengths))
        past = np.empty((rows, 0), np.int32)
        for number in range(positions):
            last = self.given(self.random.integers(0, words, rows), np.int64)
            taken = number * rows
            parents = self.random.integers(0, rows, rows) if number else np.arange(rows)
            past = self.given(np.concatenate([past[parents], taken + np.arange(rows)[:, None]], 1), np.int32)
            logits = self.room("step", (rows, words), np.float32)
            length = self.given(np.full(rows, number + 1), np.int32)
            self.functions.step(decoder, where(embedding), where(places), 1.5, where(last), where(cache), cache[0].size,
                                where(past), number + 1, where(length), where(memory), memory[0].size, where(row_first),
                                where(row_count), where(logits), rows)
            self.unharmed(shape)

            def attention(query: Array, layer: int, projected: Array | None, past: Array = past,
                          taken: int = taken) -> Array:
                if projected is None:                                           # cross-attention
                    return attended(query, [source for source in sources[layer] for _ in range(beam)], heads)
                kept[layer, taken : taken + rows] = numbers(brief(projected))
                return attended(query, [kept[layer, of_row] for of_row in past], heads)

            hidden = embedding[last] * 1.5 + places[number]
            self.same("step", logits, decode(hidden.astype(np.float64), attention)[0], tolerance, shape)
        self.check_search(decoder, embedding, places, memory, (self.given(offsets[:-1], np.int32),
                                                               self.given(lengths, np.int32)), shape)

    def check_search(self, decoder: Stack, embedding: Array, places: Array, memory: Array, spans: tuple[Array, Array],
                     shape: str) -> None:
        """Check `search` against a plain beam search that calls `step` and `topk`."""
        (first, count), words, layers = spans, len(embedding), len(memory)
        sentences, beam, longest = len(first), int(self.random.integers(1, 6)), int(self.random.integers(1, 21))
        enough = beam + int(self.random.integers(0, 3))
        limits = self.given(self.random.integers(1, longest + 1, sentences), np.int64)
        forbidden = self.given([0, 1], np.int64)
        most = enough + beam - 1
        found, lengths = self.room("search", (sentences,), np.int64), self.room("search", (sentences, most), np.int32)
        totals = self.room("search", (sentences, most))
        tokens = self.room("search", (sentences, most, longest), np.int32)
        self.functions.search(decoder, where(embedding), where(places), 1.5, where(memory), memory[0].size,
                              where(first), where(count), where(limits), sentences, beam, enough, where(forbidden),
                              len(forbidden), most, longest, where(found), where(totals), where(lengths), where(tokens))
        self.unharmed(shape)
        for sentence in range(sentences):
            expected = []
            groups: list[tuple[float, list[int], list[int]]] = [(0.0, [], [])]  # log p, words, cache rows
            cache = self.given(np.zeros((layers, (beam + 1) * longest, 2 * embedding.shape[1])), np.uint16)
            taken = 0
            for length in range(1, int(limits[sentence]) + 1):
                rows = len(groups)
                past = self.given([[*of_row, taken + row] for row, (_, _, of_row) in enumerate(groups)], np.int32)
                last = self.given([produced[-1] if produced else START for _, produced, _ in groups], np.int64)
                logits = self.given(np.zeros((rows, words)))
                each = [self.given(np.full(rows, value), np.int32)
                        for value in (length, first[sentence], count[sentence])]
                self.functions.step(decoder, where(embedding), where(places), 1.5, where(last), where(cache),
                                    cache[0].size, where(past), length, where(each[0]), where(memory), memory[0].size,
                                    where(each[1]), where(each[2]), where(logits), rows)
                taken += rows
                before = self.given([[total for total, _, _ in groups]])
                best = self.given(np.zeros(2 * beam))
                parents, ids = (self.given(np.zeros(2 * beam), np.int64) for _ in range(2))
                must_end = self.given([length == limits[sentence]], np.bool_)
                self.functions.topk(where(logits), where(before), 1, rows, words, where(forbidden), len(forbidden),
                                    where(must_end), False, where(best), where(parents), where(ids), 2 * beam)
                going = [(total, [*groups[parent][1], word], past[parent].tolist())
                         for total, parent, word in zip(best, parents, ids, strict=True)
                         if word != END and total > LEAST]
                expected += [(groups[parent][1], total) for total, parent, word in
                             zip(best[:beam], parents, ids, strict=False) if word == END and total > LEAST]
                groups = going[:beam]
                if len(expected) >= enough or not groups:
                    break
            ours = [(tokens[sentence, place, : lengths[sentence, place]].tolist(), totals[sentence, place])
                    for place in range(found[sentence])]
            if ours != expected:
                raise Fault(f"search finds other hypotheses than a plain one ({shape}, beam {beam})")

    def stack(self, layers: int, heads: int, head_size: int, feed_forward: int, pre_norm: bool, activation: str,
              of_decoder: bool, last: list[int]) -> tuple[Stack, Callable[..., list[Array]]]:
        """Return a random encoder or decoder, and its reference function, which takes attention as an argument."""
        d_model = heads * head_size
        made, references = [], []
        for _ in range(layers):
            parts = [self.linear(d_model, 3 * d_model), self.linear(d_model, d_model),
                     *([self.linear(d_model, d_model) for _ in range(2)] if of_decoder else
                       [(Linear(), np.positive)] * 2),
                     self.linear(d_model, feed_forward), self.linear(feed_forward, d_model)]
            norms = [self.norm(d_model) for _ in range(3)]
            made.append(Layer(*(linear for linear, _ in parts), (Norm * 3)(*(norm for norm, _ in norms))))
            references.append(([product for _, product in parts], [norm for _, norm in norms]))
        first, first_normed = self.norm(d_model)
        ends = [self.linear(d_model, outputs) for outputs in last]
        held = (Layer * layers)(*made), (Linear * len(ends))(*(linear for linear, _ in ends))
        self.kept.append(held)
        stack = Stack(held[0], layers, d_model, heads, feed_forward, pre_norm, ACTIVATIONS.index(activation), first,
                      held[1], len(ends))

        def run(hidden: Array, attention: Callable[[Array, int, Array | None], Array]) -> list[Array]:
            entering = first_normed(hidden) if pre_norm else hidden

            def left(added: Array, normed: Callable[[Array], Array]) -> tuple[Array, Array]:
                total = hidden + added
                return (total, normed(total)) if pre_norm else (normed(total),) * 2

            for layer, (products, norms) in enumerate(references):
                query_key_value, output, query, source_output, inner, outer = products
                projected = query_key_value(entering)
                own = output(attention(projected[:, :d_model], layer, projected[:, d_model:]))
                hidden, entering = left(own, norms[0])
                if of_decoder:
                    of_source = source_output(attention(query(entering), layer, None))
                    hidden, entering = left(of_source, norms[1])
                hidden, entering = left(outer(activated(inner(entering), activation)), norms[2])
            return [product(entering) for _, product in ends]

        return stack, run

    def check_topk(self) -> None:
        groups, beam, words = self.size(40), int(self.random.integers(1, 8)), self.size(400) + 3
        count, normalised = int(self.random.integers(1, 2 * beam + 2)), bool(self.random.integers(2))
        shape = f"{groups} groups of {beam}, {words} words, the best {count}"
        logits = self.random.normal(size=(groups, beam, words)).astype(np.float32) * 3
        totals = self.given(-self.random.exponential(size=(groups, beam)))
        forbidden = self.given(self.random.choice([0, 1, *range(3, words)], min(3, words - 1), replace=False), np.int64)
        must_end = self.given(self.random.random(groups) < 0.3, np.bool_) if self.random.random() < 0.7 else None
        given = self.room("topk", logits.shape, np.float32)
        given[:] = logits
        found, beams, ids = (self.room("topk", (groups, count), dtype) for dtype in (np.float32, np.int64, np.int64))
        self.functions.topk(where(given), where(totals), groups, beam, words, where(forbidden), len(forbidden),
                            where(must_end), normalised, where(found), where(beams), where(ids), count)
        self.unharmed(shape)
        wide = logits.astype(np.float64)
        if not normalised:
            wide -= np.log(np.exp(wide).sum(2, keepdims=True))
        wide[:, :, forbidden] = -np.inf
        if must_end is not None:
            ends = wide[must_end][:, :, 2].copy()
            wide[must_end] = -np.inf
            wide[must_end, :, 2] = ends
        wide += totals[:, :, None]
        order = np.sort(wide.reshape(groups, -1), 1)[:, ::-1][:, :count]
        possible = np.zeros((groups, count), bool)
        possible[:, : order.shape[1]] = order > -np.inf
        if (found[~possible] > LEAST / 2).any() or not (found[possible] > LEAST / 2).all():
            raise Fault(f"topk gives another number of continuations ({shape})")
        full = np.full((groups, count), -np.inf)
        full[:, : order.shape[1]] = order
        self.same("topk", found[possible], full[possible], 1e-5, shape)
        group, place = np.nonzero(possible)
        if not ((beams[possible] < beam).all() and (ids[possible] < words).all() and
                (beams[possible] >= 0).all() and (ids[possible] >= 0).all()):
            raise Fault(f"topk names continuations that do not exist ({shape})")
        self.same("topk", wide[group, beams[possible], ids[possible]], found[possible], 1e-5, shape)

    def size(self, largest: int) -> int:
        """Return a random size from 1 to `largest`; with probability 0.4 one up to 24."""
        if self.random.random() < 0.4:
            return int(self.random.integers(1, min(largest, 24) + 1))
        return int(self.random.integers(1, largest + 1))


def where(array: Array | None) -> int | None:
    """Return the address of an array, which the caller must keep alive; None for None."""
    return None if array is None else int(array.ctypes.data)


def check(library: Path, shapes: int, seed: int, exact: bool, done: Callable[[], None] = lambda: None) -> None:
    """Check every function of a library on random shapes.

    Raises:
        Fault: a result is wrong, or a guard byte was overwritten; names the function and the shape.
    """
    checker = Checker(library, seed, exact)
    for _ in range(shapes):
        for one in (checker.check_add_and_norm, checker.check_product, checker.check_attend_past,
                    checker.check_attend_source, checker.check_stack, checker.check_topk):
            checker.begin()
            one()
        done()


def main() -> int:
    """Run the command line and return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("library", type=Path)
    parser.add_argument("--shapes", type=int, default=SHAPES, metavar="N", help=f"of each function (default: {SHAPES})")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--exact-buffers", action="store_true", help="no guard bytes, for AddressSanitizer")
    arguments = parser.parse_args()
    try:
        ctypes.CDLL(str(arguments.library))
        check(arguments.library, arguments.shapes, arguments.seed, arguments.exact_buffers,
              lambda: print("checked", flush=True))
    except (Fault, OSError) as fault:
        print(fault, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
