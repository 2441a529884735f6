"""Engine for Transformers on a GPU, with static KV caches and CUDA graphs.

The whole search runs on the GPU (`search.beam.decode`). The KV caches are static: they are allocated once, and every
search overwrites them. The numbers of sentences, source tokens and target positions are rounded up; the rounded numbers
form a bucket. Within a bucket, the shapes and addresses of all tensors are fixed, and each step is the same sequence of
kernels. The host launches this sequence as one CUDA graph.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from threading import Lock
from typing import NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn

from seq2seq.devices import copy_to_device
from seq2seq.inference.cuda_graphs import CudaGraphs
from seq2seq.inference.device_search import Beams, decode
from seq2seq.inference.eager import EagerEngine
from seq2seq.inference.tensor_scores import at_least_fp32, topk
from seq2seq.model.interface import Logits
from seq2seq.model.kv_cache import LayerCache, TransformerState
from seq2seq.model.transformer import DecoderLayer, StepFunction, Transformer
from seq2seq.search.beam import WholeSearch
from seq2seq.search.beams import Hypothesis
from seq2seq.search.options import SearchOptions

# Minimum number of target positions in a bucket. The number is always a power of 2.
MIN_POSITIONS = 32
# `Bucket.source` is rounded up to a multiple of this number.
SOURCE_MULTIPLE = 16
# The number of sentences is rounded up to a power of 2 if it is at most this number, else to a multiple of this number.
MAX_POWER_OF_SENTENCES = 256


class Bucket(NamedTuple):
    """Number of sentences, maximum number of source tokens per sentence and number of target positions, rounded up."""

    sentences: int
    source: int
    positions: int

    @staticmethod
    def of(sentences: int, source: int, positions: int) -> Bucket:
        """Return the smallest bucket that contains these numbers. Each number must be at least 1."""
        return Bucket(_power_of_two(sentences) if sentences <= MAX_POWER_OF_SENTENCES
                      else -(-sentences // MAX_POWER_OF_SENTENCES) * MAX_POWER_OF_SENTENCES,
                      -(-source // SOURCE_MULTIPLE) * SOURCE_MULTIPLE, max(MIN_POSITIONS, _power_of_two(positions)))

    def contains(self, other: Bucket) -> bool:
        """Return True if every number of `other` is at most the corresponding number of this bucket."""
        return all(number <= size for number, size in zip(other, self, strict=True))


def _power_of_two(number: int) -> int:
    """Return the smallest power of 2 that is at least `number`."""
    return 1 << (number - 1).bit_length()


class StaticCaches:
    """KV caches of a bucket of sentences. As in `TransformerState`, reordering hypotheses changes only `visible`.

    There is a row for each hypothesis: sentences * beam rows. Position p of hypothesis b has slot p * beam + b. If a
    search has fewer sentences than the bucket, dummy sentences (fillers) are added. The source of a filler is a single
    key of zeros, because attention over no key would be NaN.

    keys_values: (layers, 2, sentences, heads, slots, head_size), keys and values of self-attention.
    memory: (layers, 2, sentences, heads, source, head_size), keys and values of cross-attention.
    visible: (sentences, beam, slots), added to the attention scores: 0 for slots to which a row may attend, else -inf.
    source_bias: (sentences, source), 0 for source tokens, -inf for padding.
    """

    def __init__(self, model: Transformer, steps: Sequence[StepFunction], beam_size: int, capacity: Bucket) -> None:
        """steps: step function of each decoder layer. capacity: bucket that determines the sizes of the caches."""
        self.model, self.steps, self.beam_size = model, steps, beam_size
        weight, slots = model.target_embedding, capacity.positions * beam_size
        sides = len(steps), 2, capacity.sentences, model.num_heads
        head_size = model.d_model // model.num_heads
        self.keys_values = weight.new_zeros(*sides, slots, head_size)
        self.memory = weight.new_zeros(*sides, capacity.source, head_size)
        self.visible = weight.new_full((capacity.sentences, beam_size, slots), -math.inf)
        self.source_bias = weight.new_full((capacity.sentences, capacity.source), -math.inf)
        self.hypotheses = torch.arange(beam_size, device=weight.device)
        self.slot_positions = torch.arange(slots, device=weight.device) // beam_size
        # Values of `visible` for the slots of a new position: a hypothesis may attend only to its own slot.
        self.own_slot = weight.new_full((beam_size, beam_size), -math.inf).fill_diagonal_(0).expand(
            capacity.sentences, -1, -1)

    def fill(self, state: TransformerState) -> None:
        """Begin a search. state: the model's state before the first step."""
        sentences, _, _, source = state.source_bias.shape
        # An earlier search may have left NaN in slots. A masked slot has the weight 0, but 0 * NaN is NaN.
        self.keys_values.zero_()
        self.memory.zero_()
        self.visible.fill_(-math.inf)
        self.source_bias.fill_(-math.inf)
        for memory, cache in zip(self.memory, state.caches, strict=True):
            memory[0, :sentences, :, :source] = cache.memory_keys
            memory[1, :sentences, :, :source] = cache.memory_values
        self.source_bias[:sentences, :source] = state.source_bias[:, 0, 0]
        self.source_bias[sentences:, 0] = 0

    def copy_from(self, other: StaticCaches, sentences: Tensor) -> None:
        """Copy sentences of `other` into these caches, to continue their search here.

        sentences: for each sentence of these caches, index in `other` of the sentence to copy.
        """
        slots, source = (min(self.visible.shape[2], other.visible.shape[2]),
                         min(self.source_bias.shape[1], other.source_bias.shape[1]))
        self.keys_values.zero_()
        self.visible.fill_(-math.inf)
        for mine, theirs in zip(self.keys_values, other.keys_values, strict=True):
            mine[:, :, :, :slots] = theirs[:, :, :, :slots].index_select(1, sentences)
        for mine, theirs in zip(self.memory, other.memory, strict=True):
            mine[:, :, :, :source] = theirs[:, :, :, :source].index_select(1, sentences)
        self.visible[:, :, :slots] = other.visible[:, :, :slots].index_select(0, sentences)
        self.source_bias[:, :source] = other.source_bias[:, :source].index_select(0, sentences)

    def step(self, last_tokens: Tensor, position: Tensor, bucket: Bucket) -> Tensor:
        """Return the logits of the next token of each row, (rows, vocab_size).

        last_tokens: (rows,). position: (1,), number of earlier positions. bucket: sizes of the search. Its number of
            sentences must equal that of the caches. It must contain all source tokens and target positions so far.
        """
        model, heads, slots = self.model, self.model.num_heads, bucket.positions * self.beam_size
        new_slots = self.hypotheses + position * self.beam_size
        self.visible.index_copy_(2, new_slots, self.own_slot)
        bias = self.visible[:, :, :slots]
        if model.window is not None:
            bias = bias.masked_fill(self.slot_positions[:slots] < position - model.window, -math.inf)
        target_bias = bias[:, None].expand(-1, heads, -1, -1)
        source_bias = self.source_bias[:, None, None, : bucket.source].expand(-1, heads, -1, -1)
        hidden = model.target_embedding.index_select(0, last_tokens).mul_(model.scale)
        hidden += model.target_positions.index_select(0, position)
        for step, keys_values, memory in zip(self.steps, self.keys_values, self.memory, strict=True):
            cache = LayerCache(*keys_values, *memory[:, :, :, : bucket.source])
            hidden, _ = step(hidden, cache, new_slots, target_bias, source_bias)
        logits = Logits(model.decoder_norm(hidden), model.output_weight, model.output_bias)
        return logits.dense(model.output_projection)

    def select(self, rows: Tensor, bucket: Bucket) -> None:
        """Reorder the hypotheses of each sentence. rows: (rows,), for each row, the row that it continues."""
        visible = self.visible[:, :, : bucket.positions * self.beam_size]
        visible.copy_(visible.flatten(0, 1).index_select(0, rows).view(visible.shape))


class _Buffers:
    """KV caches and beams for searches with a fixed number of sentences, and the CUDA graphs that use these tensors."""

    def __init__(self, engine: StaticEngine, capacity: Bucket, options: SearchOptions) -> None:
        self.capacity, self.options = capacity, options
        self.caches = StaticCaches(engine.transformer, engine.steps, options.beam_size, capacity)
        self.banned = torch.from_numpy(options.banned).to(self.caches.visible.device)
        self.cuda_graphs = engine.cuda_graphs
        self.graphs: dict[Bucket, torch.cuda.CUDAGraph | None] = {}
        self.beams = self._start([])

    def _start(self, max_lengths: Sequence[int]) -> Beams:
        """Return the beams before the first step of a search. Fillers end in the first step."""
        visible, options = self.caches.visible, self.options
        return Beams.start([*max_lengths, *[1] * (self.capacity.sentences - len(max_lengths))], self.capacity.positions,
                           options.beam_size, options.finished_per_group,
                           torch.promote_types(visible.dtype, torch.float32), visible.device)

    def fill(self, state: TransformerState, max_lengths: Sequence[int]) -> None:
        """Begin a search."""
        self.caches.fill(state)
        self.beams.copy_from(self._start(max_lengths))

    def copy_from(self, other: _Buffers, sentences: Tensor) -> None:
        """Continue the search of other buffers with some of their sentences. sentences: as in `StaticCaches.copy_from`.
        """
        self.caches.copy_from(other.caches, sentences)
        self.beams.copy_from(other.beams.select(sentences))

    def step(self, bucket: Bucket) -> None:
        """Do a step of the search."""
        self.cuda_graphs.run(partial(self._step, bucket), bucket, self.graphs)

    def _step(self, bucket: Bucket) -> None:
        """Do a step; `step` captures this method. All calls for a bucket use the same shapes and addresses."""
        beams, options = self.beams, self.options
        logits = self.caches.step(beams.last_tokens.flatten(), beams.length, bucket)
        logits = at_least_fp32(logits)
        continuations = topk(logits, beams.totals, self.banned, beams.must_end(), 2 * options.beam_size, False)
        rows = beams.advance(continuations, options.finished_per_group, bucket.positions)
        self.caches.select(rows.flatten(), bucket)


class StaticEngine(EagerEngine):
    """Eager engine with a beam search on static KV caches."""

    def __init__(self, model: Transformer, precision: str, device: torch.device) -> None:
        """model: a model for which `obstacle` returns None."""
        super().__init__(model, precision, device)
        self.transformer = cast(Transformer, self.model)
        self.steps = [cast(DecoderLayer, layer).make_step_function() for layer in self.transformer.decoder]
        # Buffers by number of sentences, all for searches with the same `settings`: beam size, number of finished
        # hypotheses per group, and banned ids.
        self.settings: tuple[int, int, tuple[int, ...]] | None = None
        self.buffers: dict[int, _Buffers] = {}
        self.in_use, self.cuda_graphs = Lock(), CudaGraphs(device)

    @staticmethod
    def obstacle(model: nn.Module) -> str | None:
        """Return the reason why this engine does not support the model; None if it supports the model."""
        if not isinstance(model, Transformer):
            return "is not an encoder-decoder Transformer"
        return model.variant

    @property
    def whole_search(self) -> WholeSearch:
        """See `engines.Engine.whole_search`."""
        return self._search

    @torch.inference_mode()
    def _search(self, source: np.ndarray, source_offsets: np.ndarray, max_lengths: Sequence[int],
                options: SearchOptions) -> list[list[Hypothesis]]:
        """See `search.beam.WholeSearch`. Only one thread searches at a time, because threads share the buffers."""
        with self.in_use:
            settings = options.beam_size, options.finished_per_group, tuple(options.banned_ids)
            if self.settings != settings:
                self.buffers.clear()
                self.settings = settings
            tokens, offsets, longest_source = self.on_device(source, source_offsets)
            state = self.transformer.start(tokens, offsets, longest_source)
            bucket = Bucket.of(len(max_lengths), longest_source, 1)
            buffers = self.buffers_for(bucket, options)
            buffers.fill(state, max_lengths)
            del state
            return decode(_StaticRun(self, buffers, bucket, len(max_lengths)), max_lengths)

    def buffers_for(self, bucket: Bucket, options: SearchOptions) -> _Buffers:
        """Return buffers that are large enough for a bucket. Existing buffers that are too small are replaced."""
        found = self.buffers.get(bucket.sentences)
        if found is None or not found.capacity.contains(bucket):
            capacity = bucket if found is None else Bucket(*map(max, bucket, found.capacity))
            found = self.buffers[bucket.sentences] = _Buffers(self, capacity, options)
        return found


class _StaticRun:
    """Search with static KV caches. It changes to another bucket when the sizes of the search change."""

    def __init__(self, engine: StaticEngine, buffers: _Buffers, bucket: Bucket, sentences: int) -> None:
        """sentences: number of sentences without fillers."""
        self.engine, self.buffers, self.bucket = engine, buffers, bucket
        self.lines = [*range(sentences), *[-1] * (bucket.sentences - sentences)]

    @property
    def beams(self) -> Beams:
        """See `SearchRun.beams`."""
        return self.buffers.beams

    def advance(self, length: int) -> None:
        """See `SearchRun.advance`."""
        if length > self.bucket.positions:
            self._move(range(self.bucket.sentences), length)
        self.buffers.step(self.bucket)

    def keep(self, unfinished: Sequence[int]) -> None:
        """See `SearchRun.keep`."""
        # Finished sentences occupy the remaining places of the smaller bucket.
        others = sorted(set(range(self.bucket.sentences)) - set(unfinished))
        sentences = Bucket.of(len(unfinished), 1, 1).sentences
        self._move([*unfinished, *others][:sentences], self.bucket.positions)

    def _move(self, sentences: Sequence[int], positions: int) -> None:
        """Move the search to the bucket for these sentences and positions, and drop all other sentences."""
        before, self.bucket = self.buffers, Bucket.of(len(sentences), self.bucket.source, positions)
        self.lines = [self.lines[sentence] for sentence in sentences]
        self.buffers = self.engine.buffers_for(self.bucket, self.buffers.options)
        if self.buffers is not before:
            kept = copy_to_device(torch.tensor(sentences), self.beams.length.device)
            self.buffers.copy_from(before, kept)
