"""Beam search over the step interface. Knows nothing of architectures.

A hypothesis' score is log p(target) / length^alpha with `</s>` counted in both. Each step considers the 2 * beam_size
best continuations of a sentence; one that ends among the first beam_size of them finishes, and a sentence is done when
beam_size hypotheses have finished. A beam of 1 is greedy search, and a beam as wide as the space is exhaustive.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from seq2seq.model.interface import Seq2Seq
from seq2seq.tokenizer import END_ID, START_ID


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
    """
    if not 1 <= n_best <= beam_size:
        raise ValueError(f"a beam of {beam_size} cannot give {n_best} hypotheses")
    device = source.device
    lines = list(range(len(source_offsets) - 1))
    finished: list[list[Hypothesis]] = [[] for _ in lines]
    forbidden = torch.tensor(list(banned), dtype=torch.int64, device=device)
    limits = torch.tensor(list(max_lengths), device=device)                     # (sentences,)
    tokens = torch.empty(len(lines), 1, 0, dtype=torch.int64, device=device)    # (sentences, beam, length)
    totals = torch.zeros(len(lines), 1, device=device)                          # (sentences, beam), log p so far
    last_tokens = torch.full((len(lines),), START_ID, device=device)            # (rows,)
    done = [False] * len(lines)
    state = model.start(source, source_offsets, longest_source)
    length = 0
    while lines:
        length += 1
        logits, state = model.step(last_tokens, state)
        for function in score_functions:
            logits = function(Hypotheses(tokens, lines), logits)
        logits = logits if logits.dtype == torch.float64 else logits.float()
        must_end = (limits <= length).repeat_interleave(tokens.shape[1])
        scores, ids = _best_of_each_row(logits, 2 * beam_size, forbidden, must_end)
        values, beams, chosen = _best_of_each_sentence(scores, ids, totals, 2 * beam_size)

        ends = chosen == END_ID
        alive = values > -math.inf
        finishing = ends & alive
        finishing[:, beam_size:] = False
        for sentence, rank in finishing.nonzero().tolist():
            if done[sentence]:                                                  # it found these waiting for others
                continue
            log_probability = values[sentence, rank].item()
            finished[lines[sentence]].append(Hypothesis(
                tokens[sentence, int(beams[sentence, rank])].tolist(), log_probability,
                log_probability / normaliser(length),
            ))
        # The first beam_size candidates that do not end go on, in their order.
        going_on = (ends | ~alive).to(torch.int8).argsort(dim=1, stable=True)[:, :beam_size]
        totals = values.masked_fill(ends, -math.inf).gather(1, going_on)
        hopeless = (totals[:, 0] == -math.inf).tolist()
        done = [hopeless[number] or len(finished[line]) >= beam_size for number, line in enumerate(lines)]

        # Sentences that are done leave when they are a quarter of the batch: leaving copies what the others hold.
        kept = torch.arange(len(lines), device=device)
        if all(done) or sum(done) * 4 >= len(lines):
            kept = torch.tensor([number for number in range(len(lines)) if not done[number]], dtype=torch.int64,
                                device=device)
            lines = [line for line, is_done in zip(lines, done, strict=True) if not is_done]
            done = [False] * len(lines)
        beam = tokens.shape[1]
        parents, next_tokens = beams.gather(1, going_on)[kept], chosen.gather(1, going_on)[kept]
        tokens = torch.cat([tokens[kept[:, None], parents], next_tokens[:, :, None]], dim=2)
        totals, limits, last_tokens = totals[kept], limits[kept], next_tokens.flatten()
        rows = kept[:, None] * beam + parents                                   # (sentences, beam)
        if len(lines) and not _keeps_order(rows, len(logits)):
            state = state.select(rows)
    best = [sorted(hypotheses, key=lambda hypothesis: -hypothesis.score)[:n_best] for hypotheses in finished]
    return best


def _best_of_each_row(logits: Tensor, count: int, forbidden: Tensor, must_end: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probabilities and ids of each row's best candidates, (rows, count); overwrites the logits."""
    normaliser = logits.logsumexp(1, keepdim=True)
    ending = logits[:, END_ID].clone()
    logits.index_fill_(1, forbidden, -math.inf)
    if must_end.any():
        logits.masked_fill_(must_end[:, None], -math.inf)
    logits[:, END_ID] = ending
    # Only the best of each row can be among the best of its sentence: no pass over rows * vocab_size is wasted on
    # normalising the rest.
    best, ids = logits.topk(min(count, logits.shape[1]), dim=1)
    return best - normaliser, ids


def _best_of_each_sentence(scores: Tensor, ids: Tensor, totals: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Candidates of all beams of a sentence, best first: log-probability, beam and id, each (sentences, count)."""
    sentences, beam = totals.shape
    every = (totals[:, :, None] + scores.view(sentences, beam, -1)).flatten(1)  # (sentences, beam * candidates)
    values, places = every.topk(min(count, every.shape[1]), dim=1)
    return values, places // scores.shape[1], ids.view(sentences, -1).gather(1, places)


def _keeps_order(rows: Tensor, count: int) -> bool:
    flat = rows.flatten()
    return len(flat) == count and bool((flat == torch.arange(count, device=rows.device)).all())
