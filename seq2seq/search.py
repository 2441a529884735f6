"""Beam search over the step interface. Knows nothing of architectures.

A hypothesis' score is log p(target) / length^alpha with `</s>` counted in both. Each step considers the 2 * beam_size
best continuations of a sentence; one that ends among the first beam_size of them finishes, and a sentence is done when
beam_size hypotheses have finished. A beam of 1 is greedy search, and a beam as wide as the space is exhaustive.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from seq2seq.model.interface import Seq2Seq
from seq2seq.tokenizer import END_ID, START_ID

# The vocabulary is searched in blocks of so many words.
BLOCK = 64
# Logits that are normalised together: 2 MB, which stay in a core's cache from one pass over them to the next.
CACHED_ELEMENTS = 500_000


@dataclass(frozen=True)
class Hypothesis:
    """A finished target.

    tokens: ids without `</s>`. log_probability: log p(tokens, `</s>` | source). score: what hypotheses are ranked by.
    """

    tokens: list[int]
    log_probability: float
    score: float


@dataclass(frozen=True)
class Hypotheses:
    """The unfinished targets of some sentences, as a function that changes scores sees them.

    tokens: (sentences, beam, length), what has been produced. lines: number of each sentence in the search's input.
    """

    tokens: Tensor
    lines: list[int]


ScoreFunction = Callable[[Hypotheses, Tensor], Tensor]
"""(hypotheses, logits (rows, vocab_size)) -> logits; what changes scores. Search normalises once, afterwards."""

LengthNormaliser = Callable[[int], float]


def power_normaliser(alpha: float) -> LengthNormaliser:
    """length ** alpha; 0 compares plain log-probabilities, 1 their means."""
    return lambda length: float(length**alpha)


def wu_normaliser(alpha: float) -> LengthNormaliser:
    """((5 + length) / 6) ** alpha, Wu et al. 2016 (arXiv:1609.08144), section 7."""
    return lambda length: ((5 + length) / 6) ** alpha


# The bookkeeping of a search is a few hundred numbers a step: it is done on the host, in NumPy, whose operations start
# several times faster than PyTorch's.


@dataclass(frozen=True)
class _Frontier:
    """The sentences still searched, and how far they are.

    lines: (sentences,), the number of each in the input. tokens: (sentences, beam, length). totals: (sentences, beam),
    log p so far. limits: (sentences,), longest target. done: (sentences,) bool, which of them have all their hypotheses
    and only wait for others.
    """

    lines: np.ndarray
    tokens: np.ndarray
    totals: np.ndarray
    limits: np.ndarray
    done: np.ndarray

    @staticmethod
    def begin(limits: np.ndarray) -> _Frontier:
        sentences = len(limits)
        return _Frontier(np.arange(sentences), np.empty((sentences, 1, 0), np.int64),
                         np.zeros((sentences, 1), np.float32), limits, np.zeros(sentences, bool))

    @property
    def last_tokens(self) -> np.ndarray:
        """(rows,)"""
        if not self.tokens.shape[2]:
            return np.full(self.totals.size, START_ID)
        return self.tokens[:, :, -1].ravel()


@dataclass(frozen=True)
class _Candidates:
    """The best continuations of each sentence, best first, each (sentences, candidates).

    totals: log p. beams: which hypothesis each continues. ids: with what.
    """

    totals: np.ndarray
    beams: np.ndarray
    ids: np.ndarray

    @property
    def ends(self) -> np.ndarray:
        return self.ids == END_ID


@torch.inference_mode()
def search(
    model: Seq2Seq, source: Tensor, source_offsets: Tensor, longest_source: int, *, beam_size: int,
    max_lengths: Sequence[int], normaliser: LengthNormaliser, banned: Sequence[int] = (), n_best: int = 1,
    score_functions: Sequence[ScoreFunction] = (),
) -> list[list[Hypothesis]]:
    """The best targets of each sentence.

    Args:
        source: (source_tokens,), source_offsets: (sentences + 1,), longest_source: as `Seq2Seq.start` takes them.
        max_lengths: longest target of each sentence, `</s>` included; a hypothesis that reaches it must end there.
        normaliser: divisor of the log-probability by length.
        banned: ids that no hypothesis holds. They keep their share of probability, so that scores stay the model's.
        n_best: hypotheses for each sentence, at most `beam_size`; fewer where fewer exist.
        score_functions: applied to the logits of each step, in this order.
    Returns:
        For each sentence its hypotheses, best first.
    Raises:
        ValueError: n_best exceeds beam_size.
        FloatingPointError: the model's scores are not numbers.
    """
    if not 1 <= n_best <= beam_size:
        raise ValueError(f"a beam of {beam_size} cannot give {n_best} hypotheses")
    device = source.device
    forbidden = torch.tensor(list(banned), dtype=torch.int64, device=device)
    frontier = _Frontier.begin(np.array(max_lengths, np.int64))
    finished: list[list[Hypothesis]] = [[] for _ in max_lengths]
    state = model.start(source, source_offsets, longest_source)
    while len(frontier.lines):
        logits, state = model.step(torch.from_numpy(frontier.last_tokens).to(device), state)
        for function in score_functions:
            tokens = torch.from_numpy(frontier.tokens).to(device)
            logits = function(Hypotheses(tokens, frontier.lines.tolist()), logits)
        candidates = _candidates(logits, frontier, 2 * beam_size, forbidden)
        _finish(frontier, candidates, beam_size, normaliser, finished)
        frontier, rows = _go_on(frontier, candidates, beam_size, finished)
        if len(frontier.lines) and not np.array_equal(rows.ravel(), np.arange(len(logits))):
            state = state.select(torch.from_numpy(rows).to(device))
    if not all(finished):
        raise FloatingPointError("the model's scores are not numbers")
    return [sorted(hypotheses, key=lambda hypothesis: -hypothesis.score)[:n_best] for hypotheses in finished]


def _candidates(logits: Tensor, frontier: _Frontier, count: int, forbidden: Tensor) -> _Candidates:
    """The `count` best continuations of each sentence; overwrites the logits, (rows, vocab_size)."""
    sentences, beam, length = frontier.tokens.shape
    logits = logits if logits.dtype == torch.float64 else logits.float()
    normaliser = _log_sum_exp(logits)
    ending = logits[:, END_ID].clone()
    logits.index_fill_(1, forbidden, -math.inf)
    must_end = frontier.limits <= length + 1
    if must_end.any():
        rows = torch.from_numpy(must_end.repeat(beam)).to(logits.device)
        logits.masked_fill_(rows[:, None], -math.inf)
    logits[:, END_ID] = ending
    past = torch.from_numpy(frontier.totals).to(logits.device) - normaliser.view(sentences, beam)
    return _Candidates(*(part.cpu().numpy() for part in _best(logits, past, count)))


def _best(logits: Tensor, past: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """The `count` best of past + logits for each sentence; logits: (rows, vocab_size), past: (sentences, beam).

    Returns:
        The sums, the rows of their sentences that they continue, and their words, each (sentences, count).

    They stand in those blocks of the vocabulary whose maxima are best, so that only a pass for the maxima, a vectorised
    one, sees everything.
    """
    (sentences, beam), vocab_size = past.shape, logits.shape[1]
    if padding := -vocab_size % BLOCK:
        logits = F.pad(logits, (0, padding), value=-math.inf)
    blocks = logits.view(len(logits), -1, BLOCK)
    per_row = blocks.shape[1]
    maxima = (blocks.amax(2).view(sentences, beam, per_row) + past[:, :, None]).flatten(1)
    _, chosen = maxima.topk(min(count, maxima.shape[1]), dim=1)                 # (sentences, blocks), of all its rows
    beams = chosen // per_row
    rows = beams + beam * torch.arange(sentences, device=logits.device)[:, None]
    totals = blocks[rows, chosen % per_row] + past.gather(1, beams)[:, :, None]
    best, places = totals.flatten(1).topk(min(count, totals[0].numel()), dim=1)
    block = places // BLOCK
    ids = (chosen % per_row).gather(1, block) * BLOCK + places % BLOCK
    # Where fewer continuations are possible than asked for, the padding fills up.
    return best, beams.gather(1, block), ids.clamp_(max=vocab_size - 1)


def _log_sum_exp(logits: Tensor) -> Tensor:
    """log of the sum of exp(logits) of each row, (rows,)."""
    if logits.is_cuda:
        return logits.logsumexp(1)
    # Without the usual pass for the maximum, a few rows at a time, which the processor's cache holds.
    size = max(1, CACHED_ELEMENTS // logits.shape[1])
    sums = torch.cat([part.exp().sum(1) for part in logits.split(size)]).log_()
    # Logits beyond 88 overflow in fp32, far below 0 they vanish.
    return sums if bool(sums.isfinite().all()) else logits.logsumexp(1)


def _finish(frontier: _Frontier, candidates: _Candidates, beam_size: int, normaliser: LengthNormaliser,
            finished: list[list[Hypothesis]]) -> None:
    """Add the hypotheses that end among the first `beam_size` candidates of their sentence to `finished`."""
    ending = candidates.ends & (candidates.totals > -math.inf) & ~frontier.done[:, None]
    length = frontier.tokens.shape[2] + 1
    for sentence, rank in np.argwhere(ending[:, :beam_size]).tolist():
        log_probability = float(candidates.totals[sentence, rank])
        tokens = frontier.tokens[sentence, candidates.beams[sentence, rank]].tolist()
        finished[frontier.lines[sentence]].append(Hypothesis(tokens, log_probability,
                                                             log_probability / normaliser(length)))


def _go_on(frontier: _Frontier, candidates: _Candidates, beam_size: int,
           finished: list[list[Hypothesis]]) -> tuple[_Frontier, np.ndarray]:
    """The first `beam_size` candidates that do not end, in their order, of the sentences that stay.

    Returns:
        The next frontier, and (sentences, beam), the row that each of its hypotheses continues.
    """
    leaving = candidates.ends | (candidates.totals == -math.inf)
    places = leaving.argsort(axis=1, kind="stable")[:, :beam_size]

    def first(values: np.ndarray) -> np.ndarray:
        return np.take_along_axis(values, places, 1)

    totals = np.where(first(leaving), -np.inf, first(candidates.totals)).astype(candidates.totals.dtype)
    # A total that is not a number counts as hopeless too.
    done = np.array([len(finished[line]) >= beam_size for line in frontier.lines]) | ~(totals[:, 0] > -np.inf)
    # Sentences that are done leave when a round number remains: leaving copies what the others hold, and each new size
    # of the batch wants new kernels.
    waiting = round_size(int((~done).sum())) - int((~done).sum())
    kept = np.flatnonzero(~done | (done.cumsum() <= waiting))
    parents = first(candidates.beams)[kept]
    tokens = np.concatenate([frontier.tokens[kept[:, None], parents], first(candidates.ids)[kept][:, :, None]], 2)
    after = _Frontier(frontier.lines[kept], tokens, totals[kept], frontier.limits[kept], done[kept])
    return after, kept[:, None] * frontier.tokens.shape[1] + parents


def round_size(sentences: int) -> int:
    """The next of 0, 1, 2, 3, 4, 6, 8, 12, 16, 24, …: sizes of batches."""
    size = 1 << max(0, sentences - 1).bit_length()                              # the next power of two
    return 0 if not sentences else size * 3 // 4 if size >= 4 and sentences <= size * 3 // 4 else size
