"""Engine for Transformers on a GPU: whole searches with Triton kernels and CUDA graphs.

All searches use the same tensors, from their beginning, and a kernel reads the numbers that change from a tensor. So a
step depends only on the number of sentences, rounded up: neither on the lengths of the sources nor on the position. For
each number of sentences, the host launches the kernels of a step as one CUDA graph.

- Keys and values of the source are packed. Finished sentences leave the search, but no key or value moves.
- The KV cache consists of places. Each step writes the keys and values of its rows to the next places. For each
  position of a hypothesis, `ancestors` has the place (see `model.kernels.step_attention`).
- The tokens of hypotheses are followed back on the host after the search, through the `history` of all steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from functools import cached_property
from threading import Lock
from typing import cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from seq2seq.devices import copy_to_device
from seq2seq.inference.cuda_graphs import CudaGraphs
from seq2seq.inference.eager import EagerEngine
from seq2seq.model import Model
from seq2seq.model.kernels.select_top import Banned, Beams, advance, best_continuations, serves
from seq2seq.model.kernels.step_attention import MAX_HEAD_SIZE, cross_attention, self_attention
from seq2seq.model.packing import Sentences, check_length
from seq2seq.model.transformer import DecoderLayer, Transformer
from seq2seq.search.beam import StepwiseRun, WholeSearch
from seq2seq.search.beams import Hypothesis
from seq2seq.search.options import SearchOptions
from seq2seq.tokenizers.tokenizer import START_ID

# The number of sentences is rounded up to a power of 2 if it is at most this number, else to a multiple of this number.
# Translating 3,003 sentences then needs 14 to 18 graphs; finer steps save little time, coarser ones few graphs.
MAX_POWER_OF_SENTENCES = 32
# The number of rows of the output layer is rounded up to this number. Each row of the logits then begins at a multiple
# of 16 bytes.
VOCABULARY_MULTIPLE = 16
# The KV cache is at first large enough for targets that have this number of tokens more than the longest source.
MORE_POSITIONS = 16
MAX_BATCH_TOKENS = 65_536
# Maximum number of settings whose graphs exist at once, for requests with different beam sizes.
MAX_STORAGES = 3
# Number of steps between two checks for finished sentences. At each check, the host waits for the GPU.
CHECK_STEPS = 8


def rounded(sentences: int) -> int:
    """Return the number of sentences, at least 1, rounded up."""
    multiple = MAX_POWER_OF_SENTENCES
    return _power_of_two(sentences) if sentences <= multiple else -(-sentences // multiple) * multiple


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()


class Caches:
    """Large tensors of the searches of an engine. Their shapes do not depend on the settings of a search.

    memory, cache: (layers, source tokens, 2, heads, head_size) and (layers, places, 2, heads, head_size), keys and
        values of cross- and self-attention.
    ancestors, history: (places,), see `Beams`.
    sizes: maximum numbers of source tokens, sentences, and places.
    """

    def __init__(self, model: Transformer, tokens: int, sentences: int, places: int) -> None:
        self.sizes, weight = (tokens, sentences, places), model.target_embedding
        vector = 2, model.num_heads, model.head_size
        self.memory = weight.new_empty(len(model.decoder), tokens, *vector)
        self.cache = weight.new_empty(len(model.decoder), places, *vector)
        self.ancestors, self.history = (torch.zeros(places, dtype=torch.int32, device=weight.device) for _ in range(2))

    def add_places(self, delete_graphs: Callable[[], None]) -> None:
        """Double the number of places. delete_graphs: function that deletes the graphs, which use the old tensors."""
        tokens, sentences, places = self.sizes
        # If the memory does not suffice, this raises an error and changes nothing.
        cache = self.cache.new_empty(len(self.cache), 2 * places, *self.cache.shape[2:])
        ancestors, history = (table.new_empty(2 * places) for table in (self.ancestors, self.history))
        delete_graphs()
        cache[:, :places], ancestors[:places], history[:places] = self.cache, self.ancestors, self.history
        self.cache, self.ancestors, self.history = cache, ancestors, history
        self.sizes = tokens, sentences, 2 * places


class Storage:
    """Small tensors of searches with the same settings (beam size, banned ids), and the CUDA graphs of their steps.

    first, end: (sentences,), see `cross_attention`.
    clock, limits, tokens, totals, done, finished_count, finished_totals, finished_ends: see `Beams`.
    ticks: (2,), what a step adds to the clock.
    """

    def __init__(self, model: Transformer, options: SearchOptions, caches: Caches) -> None:
        weight, beam, finished = model.target_embedding, options.beam_size, options.finished_per_group
        self.caches, self.beam, self.finished_per_sentence = caches, beam, finished
        self.banned = Banned.of(options.banned.tolist(), len(weight), weight.device)
        self.graphs: dict[int, torch.cuda.CUDAGraph | None] = {}
        _, sentences, _ = caches.sizes

        def zeros(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=weight.device)

        self.first, self.end, self.limits, self.finished_count = (zeros(sentences) for _ in range(4))
        self.tokens, self.totals = zeros(sentences, beam), zeros(sentences, beam, dtype=torch.float32)
        self.done = zeros(sentences, dtype=torch.bool)
        # One step may add `beam` finished hypotheses to `finished` - 1 earlier ones.
        self.finished_totals = zeros(sentences, finished + beam - 1, dtype=torch.float32)
        self.finished_ends = zeros(sentences, finished + beam - 1)
        self.clock, self.ticks = zeros(2, dtype=torch.int64), zeros(2, dtype=torch.int64)

    def start(self, offsets: Tensor, max_lengths: Sequence[int], sentences: int) -> None:
        """Begin a search, with fillers (sentences without source and without hypotheses) up to `sentences`.

        offsets: (len(max_lengths) + 1,), see `Stepwise.start`.
        """
        count = len(max_lengths)
        for tensor in (self.first, self.end, self.finished_count, self.done, self.clock):
            tensor.zero_()
        self.first[:count], self.end[:count] = offsets[:-1], offsets[1:]
        limits = torch.tensor([each - 1 for each in max_lengths], dtype=torch.int32)
        self.limits[:count] = copy_to_device(limits, self.limits.device)
        self._set_hypotheses(START_ID, count)
        self._set_ticks(sentences)

    def begin_with(self, first_id: int, count: int, sentences: int) -> None:
        """Replace what the first step has chosen by hypotheses of a given token with log p = 0. count: number of
        sentences without fillers. sentences: number with fillers."""
        self._set_hypotheses(first_id, count)
        self.finished_count.zero_()
        # All hypotheses continue the first one. Before the first step, those of a sentence do not differ.
        self.caches.history[: sentences * self.beam] = first_id * self.beam

    def _set_hypotheses(self, token: int, count: int) -> None:
        """Let each of `count` sentences have one hypothesis, with this last token and log p = 0."""
        self.tokens.fill_(token)
        self.totals.fill_(-math.inf)
        self.totals[:count, 0] = 0

    def _set_ticks(self, sentences: int) -> None:
        self.ticks[0].fill_(1)
        self.ticks[1].fill_(sentences * self.beam)

    def beams(self, sentences: int) -> Beams:
        """Return the beams of this number of sentences as views."""
        rows = sentences * self.beam
        positions = self.caches.sizes[2] // rows
        ancestors, history = (each[: positions * rows].view(positions, rows)
                              for each in (self.caches.ancestors, self.caches.history))
        return Beams(self.clock, self.limits[:sentences], self.tokens[:sentences], self.totals[:sentences], ancestors,
                     history, self.done[:sentences], self.finished_count[:sentences], self.finished_totals[:sentences],
                     self.finished_ends[:sentences])

    def keep(self, before: int, sentences: Tensor, length: int) -> None:
        """Continue the search with some of its sentences. before: number of sentences so far. length: steps so far."""
        for tensor in (self.first, self.end, self.limits, self.finished_count, self.tokens, self.totals, self.done,
                       self.finished_totals, self.finished_ends):
            tensor[: len(sentences)] = tensor.index_select(0, sentences)
        for table in (self.caches.ancestors, self.caches.history):
            kept = table[: length * before * self.beam].view(length, before, self.beam).index_select(1, sentences)
            table[: kept.numel()] = kept.flatten()
        self._set_ticks(len(sentences))

    def finished(self, sentences: int, length: int, chosen: Tensor | None) -> list[list[Hypothesis]]:
        """Return the finished hypotheses of sentences in the order in which they ended. This waits for the GPU once.

        sentences: number of sentences in the search. length: steps so far. chosen: indices of the sentences to return;
        None: all.
        """
        beam, places = self.beam, self.finished_ends.shape[1]
        history = self.caches.history[: length * sentences * beam].view(length, sentences, beam)
        history = history.transpose(0, 1).flatten(1)
        numbers = torch.cat([self.finished_count[:sentences, None], self.finished_totals[:sentences].view(torch.int32),
                             self.finished_ends[:sentences], history], 1)
        numbers = numbers if chosen is None else numbers.index_select(0, chosen)
        count, totals, ends, steps = np.split(numbers.cpu().numpy(), [1, 1 + places, 1 + 2 * places], axis=1)
        totals, steps = np.ascontiguousarray(totals).view(np.float32), steps.reshape(-1, length, beam)
        lengths, hypothesis = np.divmod(ends, beam)
        tokens, sentence = np.zeros((*ends.shape, length), np.int64), np.arange(len(ends))[:, None]
        for position in range(length - 1, -1, -1):
            tokens[:, :, position], parent = np.divmod(steps[sentence, position, hypothesis], beam)
            hypothesis = np.where(position < lengths, parent, hypothesis)
        return [[Hypothesis(tokens[index, place, : lengths[index, place]].tolist(), float(totals[index, place]))
                 for place in range(number)] for index, number in enumerate(count[:, 0].tolist())]


class StaticEngine(EagerEngine):
    """Eager engine with a beam search that runs on the GPU in fixed tensors."""

    def __init__(self, model: Model, precision: str, device: torch.device) -> None:
        """model: a model for which `serves` is True."""
        super().__init__(model, precision, device)
        self.transformer = cast(Transformer, self.model)
        self.layer_steps = [_make_layer_step(cast(DecoderLayer, layer)) for layer in self.transformer.decoder]
        self.output_weight: Tensor = self.transformer.output_weight
        self.output_bias: Tensor | None = self.transformer.output_bias
        if padding := -len(self.output_weight) % VOCABULARY_MULTIPLE:
            self.output_weight = F.pad(self.output_weight, (0, 0, 0, padding))
            self.output_bias = None if self.output_bias is None else F.pad(self.output_bias, (0, padding))
        self.caches: Caches | None = None
        self.storages: dict[Hashable, Storage] = {}                             # by settings
        self.in_use, self.cuda_graphs = Lock(), CudaGraphs(device)

    @staticmethod
    def serves(model: Model, device: torch.device) -> bool:
        """Return True if this engine supports the model, and the kernels support the device, where Triton runs."""
        return (model.has_plain_decoder
                and all(layer.is_scaled_dot_product and layer.head_size <= MAX_HEAD_SIZE
                        for layer in model.attentions)
                and next(model.parameters()).dtype != torch.float64
                and torch.cuda.get_device_capability(device) >= (8, 0))

    @cached_property
    def batch_tokens(self) -> int:
        """See `engines.Engine.batch_tokens`: as many as fit into four fifths of the memory that is free now."""
        model, size = self.transformer, self.transformer.target_embedding.element_size()
        vectors = 2 * len(model.decoder) * model.num_heads * model.head_size * size     # keys and values of a token
        # A beam search has up to one row per token: in sentences of one token and `</s>`. Its logits and hidden states
        # count twice. The hypotheses of a batch have about twice as many tokens as `batch_tokens`. Their cache may be
        # rounded up to twice its size, and exists twice while it grows.
        per_token = 2 * size * (len(self.output_weight) + 4 * model.d_model) + 8 * vectors
        free = torch.cuda.mem_get_info(self.device)[0] + (
            torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device))
        return int(max(1024, min(MAX_BATCH_TOKENS, 0.8 * free / per_token)))

    @property
    def whole_search(self) -> WholeSearch:
        return self._search

    @torch.inference_mode()
    def _search(self, source: np.ndarray, source_offsets: np.ndarray, max_lengths: Sequence[int],
                options: SearchOptions) -> list[list[Hypothesis]]:
        """See `search.beam.WholeSearch`. Only one thread searches at a time, because threads share the storage.

        Beams and vocabularies that the kernels do not serve are searched on the host.
        """
        if not serves(options.beam_size, len(self.transformer.output_weight)):
            return StepwiseRun(self, source, source_offsets, max_lengths, options).finish()
        with self.in_use:
            tokens, offsets, longest_source = self.on_device(source, source_offsets)
            check_length(longest_source, self.max_positions)
            sentences = rounded(len(max_lengths))
            positions = min(max(max_lengths), longest_source + MORE_POSITIONS)
            storage = self._storage_for(options, len(tokens), sentences, sentences * options.beam_size * positions)
            hidden, _ = self.transformer.encode(tokens, Sentences.from_offsets(offsets, longest_source, len(tokens)))
            for layer, memory in zip(self.transformer.decoder, storage.caches.memory, strict=True):
                projected = cast(DecoderLayer, layer).cross_attention.key_value(hidden)
                memory[: len(tokens)] = projected.view(len(tokens), *memory.shape[1:])
            storage.start(offsets, max_lengths, sentences)
            return _StaticRun(self, storage, sentences, max_lengths).finish(options.first_id)

    def _storage_for(self, options: SearchOptions, *sizes: int) -> Storage:
        """Return the storage of these settings, with caches of at least these sizes. The others and their graphs stay
        unless the caches are too small, or there are MAX_STORAGES of them."""
        settings = options.beam_size, options.finished_per_group, tuple(options.banned_ids)
        before = (0, 0, 0) if self.caches is None else self.caches.sizes
        is_small = any(need > size for need, size in zip(sizes, before, strict=True))
        if self.caches is None or is_small or settings not in self.storages and len(self.storages) == MAX_STORAGES:
            self.delete_graphs()
            self.storages, self.caches = {}, None                               # frees their memory
            self.caches = Caches(self.transformer, *map(_power_of_two, map(max, sizes, before)))
        if settings not in self.storages:
            self.storages[settings] = Storage(self.transformer, options, self.caches)
        return self.storages[settings]

    def delete_graphs(self) -> None:
        if any(storage.graphs for storage in self.storages.values()):
            self.cuda_graphs.delete(*(storage.graphs for storage in self.storages.values()))

    def advance(self, storage: Storage, sentences: int) -> None:
        """Do a step of the search. For a number of sentences, all calls launch the same kernels for the same tensors.
        """
        model, beams = self.transformer, storage.beams(sentences)
        hidden = model.embed_step(beams.tokens.flatten(), beams.clock[:1])
        for step, cache, memory in zip(self.layer_steps, storage.caches.cache, storage.caches.memory, strict=True):
            hidden = step(hidden, cache, memory, beams, storage.first[:sentences], storage.end[:sentences])
        logits = F.linear(model.decoder_norm(hidden), self.output_weight, self.output_bias)
        continuations = best_continuations(logits[:, : len(model.output_weight)], beams.totals, storage.banned,
                                           beams.clock, beams.limits, 2 * storage.beam)
        advance(beams, continuations, storage.finished_per_sentence)
        storage.clock += storage.ticks


def _make_layer_step(layer: DecoderLayer) -> Callable[[Tensor, Tensor, Tensor, Beams, Tensor, Tensor], Tensor]:
    """Return the function that computes one position of each row, (rows, d_model) -> (rows, d_model).

    step(hidden, cache, memory, beams, first, end): see `Storage` and `Caches`; cache and memory are those of the layer.
    """
    past, source = layer.self_attention, layer.cross_attention
    project = past.weighing.make_projection(past.query_key_value)
    project_query = source.weighing.make_projection(source.query)

    def attend_to_past(hidden: Tensor, cache: Tensor, beams: Beams) -> Tensor:
        projected = project(hidden).view(-1, 3, *cache.shape[2:])
        attended = self_attention(projected, cache, beams.ancestors, beams.clock, beams.tokens.shape[1], past.window)
        return cast(Tensor, past.output(attended.flatten(1)))

    def attend_to_source(hidden: Tensor, memory: Tensor, first: Tensor, end: Tensor) -> Tensor:
        query = project_query(hidden).view(-1, *memory.shape[2:])
        return cast(Tensor, source.output(cross_attention(query, memory, first, end).flatten(1)))

    self_step = layer.self_residual.make_step_function(attend_to_past)
    cross_step = layer.cross_residual.make_step_function(attend_to_source)
    transform = layer.feed_forward_residual.make_step_function(layer.feed_forward.make_step_function())
    return lambda hidden, cache, memory, beams, first, end: transform(
        cross_step(self_step(hidden, cache, beams), memory, first, end))


class _StaticRun:
    """Search of a batch in a storage.

    lines: index of each sentence of the search in its input; -1 for a filler. sentences: number of sentences, rounded
    up. used: number of places that are written. length: steps so far.
    """

    def __init__(self, engine: StaticEngine, storage: Storage, sentences: int, max_lengths: Sequence[int]) -> None:
        """sentences: `len(max_lengths)`, rounded up. max_lengths: as in `search.beam.search`."""
        self.engine, self.storage, self.sentences, self.max_lengths = engine, storage, sentences, max_lengths
        self.used, self.length = 0, 0
        self.lines = [*range(len(max_lengths)), *[-1] * (sentences - len(max_lengths))]

    def finish(self, first_id: int | None) -> list[list[Hypothesis]]:
        """Do all steps. Return the finished hypotheses of each sentence. first_id: see `SearchOptions`.

        Finished sentences are looked for only once in CHECK_STEPS steps, because the host then waits for the GPU, and
        removed only if at least half of the sentences are finished, because removal costs time.
        """
        results: list[list[Hypothesis]] = [[] for _ in self.max_lengths]
        longest = max(self.max_lengths)
        for length in range(1, longest + 1):
            self.advance(length)
            if length == 1 and first_id is not None:
                self.storage.begin_with(first_id, len(self.max_lengths), self.sentences)
            if length == longest or length % CHECK_STEPS:
                continue
            done = self.storage.done[: self.sentences].cpu().tolist()
            ended, unfinished = ([sentence for sentence, each in enumerate(done) if each is wanted]
                                 for wanted in (True, False))
            if not unfinished:
                break
            if ended and len(unfinished) <= len(ended):
                self._record(results, ended)
                self._keep(unfinished)
        self._record(results, range(self.sentences))
        return results

    def advance(self, length: int) -> None:
        """Do step `length`, from 1, without waiting for the GPU. Unfinished hypotheses then have `length` tokens."""
        engine, storage, sentences = self.engine, self.storage, self.sentences
        self.used, self.length = self.used + sentences * storage.beam, length
        while self.used > storage.caches.sizes[2]:
            storage.caches.add_places(engine.delete_graphs)
        engine.cuda_graphs.run(lambda: engine.advance(storage, sentences), sentences, storage.graphs)

    def _record(self, results: list[list[Hypothesis]], sentences: Sequence[int]) -> None:
        every = len(sentences) == self.sentences
        chosen = None if every else copy_to_device(torch.tensor(sentences), self.storage.done.device)
        for sentence, finished in zip(sentences, self.storage.finished(self.sentences, self.length, chosen),
                                      strict=True):
            if (line := self.lines[sentence]) >= 0:
                results[line] = finished

    def _keep(self, unfinished: Sequence[int]) -> None:
        # Finished sentences occupy the remaining places of the rounded number.
        others = sorted(set(range(self.sentences)) - set(unfinished))
        kept = [*unfinished, *others][: rounded(len(unfinished))]
        if len(kept) < self.sentences:
            chosen = copy_to_device(torch.tensor(kept), self.storage.done.device)
            self.storage.keep(self.sentences, chosen, self.length)
            self.lines, self.sentences = [self.lines[sentence] for sentence in kept], len(kept)
