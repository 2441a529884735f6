"""Beam search with any model that has the step interface (`model.interface.Stepwise`), on a CPU or a GPU.

The score of a hypothesis is log p(target) / length penalty. Both count `</s>` as a token of the target. Each step
computes the 2 * beam_size best continuations of a sentence. Each `</s>` among the first beam_size continuations
finishes a hypothesis. The best beam_size continuations with other tokens form the next beam. A sentence is finished
when it has beam_size finished hypotheses. `SearchOptions` can change these rules. With a beam size of 1, this is greedy
search; with a beam as large as the search space, exhaustive search.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain
from typing import Protocol

import torch
from torch import Tensor

from seq2seq.devices import copy_to_device
from seq2seq.model.interface import Stepwise
from seq2seq.search.bookkeeping import Beams, Hypothesis
from seq2seq.search.options import Hypotheses, SearchOptions
from seq2seq.search.topk import Continuations, TopK, at_least_fp32, ban, log_sum_exp
from seq2seq.search.topk import topk as default_topk
from seq2seq.tokenizers.tokenizer import START_ID

CHECK_STEPS = 8
"""Number of steps between two checks for finished sentences on a GPU. At each check, the host waits for the GPU."""

WholeSearch = Callable[[Tensor, Tensor, int, Sequence[int], SearchOptions], list[list[Hypothesis]]]
"""Type of an engine's own search, a function (source, source_offsets, longest_source, max_lengths, options) -> finished
hypotheses of each sentence, in the order in which they ended. The arguments are those of `search`; the options have no
hooks. The results are those of `search`.
"""


class NoHypothesis(Exception):
    """At least one sentence has no hypothesis that satisfies the constraints. lines: indices of these sentences."""

    def __init__(self, lines: list[int]) -> None:
        super().__init__(f"no hypothesis of sentences {lines} satisfies all constraints")
        self.lines = lines


@torch.inference_mode()
def search(model: Stepwise, source: Tensor, source_offsets: Tensor, longest_source: int, max_lengths: Sequence[int],
           options: SearchOptions, topk: TopK = default_topk, whole_search: WholeSearch | None = None,
           ) -> list[list[Hypothesis]]:
    """Find the best hypotheses of each sentence.

    Args:
        source, source_offsets, longest_source: as in `Stepwise.start`.
        max_lengths: maximum number of target tokens of each sentence, `</s>` included. If a hypothesis reaches
            this length, its last token must be `</s>`.
        topk: `search.topk.topk` or an engine's implementation of it.
        whole_search: an engine's own search, which is not used if `options.has_hooks` is True or a maximum length
            exceeds the model's maximum number of positions.
    Returns:
        The hypotheses of each sentence, best first.
    Raises:
        NoHypothesis: a sentence has no hypothesis that satisfies the constraints.
        FloatingPointError: a sentence has no hypothesis, because the logits are NaN.
    """
    if not max_lengths:
        return []
    if whole_search is not None and not options.has_hooks and max(max_lengths) <= model.max_positions:
        finished, run = whole_search(source, source_offsets, longest_source, max_lengths, options), None
    else:
        run = _StepwiseRun(model, source, source_offsets, longest_source, max_lengths, options, topk)
        finished = decode(run, max_lengths, options.groups, waits=source.is_cuda)
    if without := [line for line, hypotheses in enumerate(finished) if not hypotheses]:
        if run is not None and options.has_constraints and not run.nan:
            raise NoHypothesis(without)
        raise FloatingPointError("the model's scores are not numbers")
    scored = [[replace(each, score=each.log_probability / options.length_penalty(len(each.tokens) + 1) + each.bonus)
               for each in hypotheses] for hypotheses in finished]
    return [sorted(each, key=lambda hypothesis: -hypothesis.score)[: options.n_best] for each in scored]


class SearchRun(Protocol):
    """Search of a batch, step by step: a model with its state, and the beams."""

    @property
    def beams(self) -> Beams:
        """Hypotheses after the latest step."""

    @property
    def lines(self) -> list[int]:
        """Index of each sentence of the beams in the input of the search."""

    def advance(self, length: int) -> None:
        """Do step `length`, from 1, without waiting for the GPU. Unfinished hypotheses then have `length` tokens."""

    def keep(self, unfinished: Sequence[int]) -> None:
        """Remove finished sentences. If it is cheaper, some finished sentences may stay.

        unfinished: indices of the unfinished sentences in `lines`.
        """


def decode(run: SearchRun, max_lengths: Sequence[int], groups: int = 1, waits: bool = True) -> list[list[Hypothesis]]:
    """Do a whole search. Return the finished hypotheses of each sentence, group by group.

    Args:
        run: before its first step. max_lengths, groups: as in `search` and `SearchOptions`.
        waits: True if reading a tensor can make the host wait for a GPU. Then finished sentences are looked for only
            once in CHECK_STEPS steps, and removed only if at least half of the sentences are finished, because removal
            copies the KV caches.
    """
    results: list[list[Hypothesis]] = [[] for _ in max_lengths]
    longest, length = max(max_lengths), 0

    def record(sentences: Sequence[int]) -> None:
        rows = groups_of(sentences, groups, run.beams.done.device) if len(sentences) < len(run.lines) else None
        finished = run.beams.finished(length, rows)
        for place, sentence in enumerate(sentences):
            if (line := run.lines[sentence]) >= 0:
                results[line] = list(chain(*finished[place * groups : (place + 1) * groups]))

    for length in range(1, longest + 1):
        run.advance(length)
        if length == longest or waits and length % CHECK_STEPS:
            continue
        done = run.beams.done.cpu().numpy().reshape(-1, groups).min(1).tolist()
        ended, unfinished = ([sentence for sentence, each in enumerate(done) if each is wanted]
                             for wanted in (True, False))
        if not unfinished:
            break
        if ended and (not waits or len(unfinished) <= len(ended)):
            record(ended)
            run.keep(unfinished)
    record(range(len(run.lines)))
    return results


def groups_of(sentences: Sequence[int], groups: int, device: torch.device) -> Tensor:
    """Return the indices of all groups of some sentences."""
    indices = [sentence * groups + group for sentence in sentences for group in range(groups)]
    return copy_to_device(torch.tensor(indices), device)


class _StepwiseRun:
    """Search with any model with the step interface, and the hooks of `SearchOptions`.

    lines: see `SearchRun`. rows: (groups, beam), row of the latest step that each row of the next step continues.
    reordered: False if `rows` are all rows in their order. nan: () bool, True = a score was NaN in a step with
    constraints.
    """

    beams: Beams
    rows: Tensor

    def __init__(self, model: Stepwise, source: Tensor, source_offsets: Tensor, longest_source: int,
                 max_lengths: Sequence[int], options: SearchOptions, topk: TopK) -> None:
        self.model, self.options, self.topk, self.device = model, options, topk, source.device
        self.max_lengths, self.lines = max_lengths, list(range(len(max_lengths)))
        self.banned = options.banned_on(source.device)
        self.nan = torch.zeros((), dtype=torch.bool, device=source.device)
        self.state = model.start(source, source_offsets, longest_source)
        # The first step has one row per group; later steps have one row per hypothesis.
        self.rows = torch.arange(len(max_lengths), device=source.device).repeat_interleave(options.groups)
        self.reordered = options.groups > 1

    def advance(self, length: int) -> None:
        """See `SearchRun.advance`."""
        options, size = self.options, self.options.group_size
        if self.reordered:
            self.state = self.state.select(self.rows.view(len(self.lines), -1))
        width = 1 if length == 1 else size                                      # hypotheses per group before this step
        last_tokens = self.rows.new_full((self.rows.numel(),), START_ID) if length == 1 else self.beams.last_tokens
        logits, self.state = self.model.step(last_tokens.flatten(), self.state)
        logits = at_least_fp32(logits)
        if length == 1:
            self.beams = Beams.start([each for each in self.max_lengths for _ in range(options.groups)],
                                     max(self.max_lengths), size, options.finished_per_group, logits.dtype, self.device)
        beams = self.beams
        totals = beams.totals[:, :width]
        must_end = beams.must_end() if length >= min(self.max_lengths) else None
        if options.has_constraints:
            continuations = self._constrained(logits, totals, must_end, length - 1)
        else:
            continuations = self.topk(logits, totals, self.banned, must_end, 2 * size, options.skip_log_softmax)
        bonuses = None if options.bonus is None else options.bonus(self.state).view(totals.shape)
        rows = beams.advance(continuations, options.finished_per_group, length, bonuses)
        self.rows, self.reordered = rows if length > 1 else rows // size, size > 1

    def _constrained(self, logits: Tensor, totals: Tensor, must_end: Tensor | None, length: int) -> Continuations:
        """Return the continuations that logits processors and candidate selection choose. length: tokens so far."""
        options, count = self.options, 2 * self.options.group_size
        by_group = totals.view(len(self.lines), options.groups, -1)
        tokens = self.beams.tokens[:, : totals.shape[1], :length]
        hypotheses = Hypotheses(tokens.unflatten(0, by_group.shape[:2]).flatten(1, 2), self.lines)
        # The log-sum-exp is subtracted before logits processors set the logits of forbidden tokens to -inf. The other
        # tokens therefore keep their probability.
        past = by_group if options.skip_log_softmax else by_group - log_sum_exp(logits).view(by_group.shape)
        for processor in options.logits_processors:
            logits = processor(hypotheses, logits)
        if options.candidate_selection is None:
            continuations = self.topk(logits, past.flatten(0, 1), self.banned, must_end, count, True)
        else:
            ban(logits, self.banned, must_end)
            selected = options.candidate_selection(hypotheses, logits, past, count)
            continuations = selected[0].flatten(0, 1), selected[1].flatten(0, 1), selected[2].flatten(0, 1)
        self.nan |= past.isnan().any() | continuations[0].isnan().any()
        return continuations

    def keep(self, unfinished: Sequence[int]) -> None:
        """See `SearchRun.keep`."""
        groups = groups_of(unfinished, self.options.groups, self.device)
        self.beams, self.rows, self.reordered = self.beams.select(groups), self.rows.index_select(0, groups), True
        self.lines = [self.lines[sentence] for sentence in unfinished]
