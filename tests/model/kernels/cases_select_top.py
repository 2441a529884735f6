"""The choice of continuations in Triton's interpreter, against PyTorch's operators and the beams on the host."""

import math
from functools import partial

import numpy as np
import pytest
import torch

from seq2seq.model.kernels.select_top import BLOCK, Banned, Beams, advance, best_continuations, serves
from seq2seq.search import beams as host
from seq2seq.tokenizers.tokenizer import END_ID

SENTENCES, INF, NAN = 3, math.inf, math.nan
# The largest vocabularies of some beams.
LARGEST = (16, 131_072), (9, 131_072), (5, 262_144)


def beams_of(limits, beam, positions, finished_per_sentence, totals=None):
    """Beams before the first step, as in inference/static.py."""
    sentences, places = len(limits), finished_per_sentence + beam
    if totals is None:
        totals = torch.full((sentences, beam), -INF)
        totals[:, 0] = 0
    table = torch.zeros(positions, sentences * beam, dtype=torch.int32)
    return Beams(torch.zeros(2, dtype=torch.int64), torch.tensor(limits, dtype=torch.int32),
                 torch.zeros(sentences, beam, dtype=torch.int32), totals, table, table.clone(),
                 torch.zeros(sentences, dtype=torch.bool), torch.zeros(sentences, dtype=torch.int32),
                 torch.zeros(sentences, places), torch.zeros(sentences, places, dtype=torch.int32))


def _launch(beam, vocab_size, stride, dtype, sentences=16):
    beams, banned = beams_of([1] * sentences, beam, 1, beam), Banned.of([0, 1], vocab_size, torch.device("cpu"))
    logits = torch.zeros(sentences * beam, stride, dtype=dtype)[:, :vocab_size]
    found = best_continuations(logits, beams.totals, banned, beams.clock, beams.limits, 2 * beam)
    advance(beams, found, beam)


# To compile, see test_triton_kernels.py.
LAUNCHES = {f"select beam {beam} of {vocab_size} {dtype}": partial(_launch, beam, vocab_size, stride, dtype)
            for beam, vocab_size, stride, dtype in [
                (1, 32_000, 32_000, torch.bfloat16), (4, 32_000, 32_000, torch.bfloat16),
                (4, 31_999, 32_000, torch.float32), (5, 8_003, 8_003, torch.float16),
                (12, 32_000, 32_000, torch.bfloat16), (16, 64_000, 64_000, torch.bfloat16),
                *((beam, vocab_size, vocab_size, torch.bfloat16) for beam, vocab_size in LARGEST)]}
# More sentences than a grid has programs in all dimensions but the first.
LAUNCHES |= {"select, many sentences": partial(_launch, 1, 100, 112, torch.bfloat16, 70_000)}


def totals_of_all(logits, totals, banned, must_end):
    """Return the totals of all continuations, (sentences, beam * vocab_size). Log p is computed in fp64."""
    scores = logits.double().log_softmax(1).float()
    scores[:, banned] = -INF
    scores = scores.view(*totals.shape, -1) + totals[:, :, None]
    ending = scores[:, :, END_ID].clone()
    scores[must_end] = -INF
    scores[:, :, END_ID] = ending
    return scores.flatten(1)


def sorted_continuations(*arguments):
    """Return the results of `totals_of_all`, sorted, and their indices."""
    return totals_of_all(*arguments).sort(dim=1, descending=True, stable=True)


def results(beam, vocab_size, padding, dtype, sentences=SENTENCES, device="cpu"):
    """Return the best continuations, and the totals of all. Of three sentences, the second one must end, and the third
    one has one hypothesis, as in the first step."""
    generator = torch.Generator().manual_seed(beam)
    logits = torch.full((sentences * beam, vocab_size + padding), NAN, dtype=dtype, device=device)[:, :vocab_size]
    logits.copy_(3 * torch.randn(logits.shape, generator=generator))
    logits[::2, END_ID] = 9
    banned = [0, 1, 77, vocab_size - 1]
    logits[:, banned] = 30                                                      # large, but no candidates
    totals = (-5 * torch.rand(sentences, beam, generator=generator)).to(device)
    totals[2::3, 1:] = -INF
    limits = torch.tensor([9, 5, 6], dtype=torch.int32).repeat(-(-sentences // 3))[:sentences].to(device)
    clock = torch.tensor([5, 0]).to(device)
    found = best_continuations(logits, totals, Banned.of(banned, vocab_size, logits.device), clock, limits, 2 * beam)
    return found, totals_of_all(logits, totals, banned, limits <= 5)


@pytest.mark.parametrize(("beam", "vocab_size", "padding", "dtype"), [
    (1, 100, 0, torch.float32), (4, 1_000, 24, torch.float32), (5, 4_999, 1, torch.float16),
    (12, 300, 0, torch.float32), pytest.param(4, 31_999, 1, torch.float32, marks=pytest.mark.slow)])
def test_the_best_continuations(beam, vocab_size, padding, dtype):
    (found, parents, ids), totals = results(beam, vocab_size, padding, dtype)
    expected, indices = (each[:, : 2 * beam] for each in totals.sort(dim=1, descending=True, stable=True))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    possible = expected > -INF
    assert possible.sum(1).tolist() == [2 * beam, beam, 2 * beam]
    if dtype == torch.float32:                                                  # 16 bits have equal totals
        assert torch.equal((parents * vocab_size + ids)[possible].long(), indices[possible])
    assert ids.max() < vocab_size and parents.max() < beam


@pytest.mark.parametrize(("beam", "vocab_size"), LARGEST)
def test_larger_vocabularies_and_beams_are_not_served(beam, vocab_size):
    assert serves(beam, vocab_size) and not serves(beam, vocab_size + 1) and not serves(17, 90)


def test_equal_totals_are_in_the_order_of_hypotheses_and_ids():
    logits = torch.zeros(2 * 3, 3 * BLOCK)
    logits[:, 300:303] = 2
    logits[3:, 5] = 2
    _, parents, ids = best_continuations(logits, torch.zeros(2, 3), Banned.of([], 384, logits.device),
                                         torch.tensor([0, 0]), torch.tensor([9, 9], dtype=torch.int32), 6)
    assert parents.tolist() == [[0, 0, 0, 1, 1, 1], [0, 0, 0, 0, 1, 1]]
    assert ids.tolist() == [[300, 301, 302] * 2, [5, 300, 301, 302, 5, 300]]


@pytest.mark.parametrize("value", [NAN, -NAN, INF], ids=str)
def test_nan_is_no_continuation_and_stays_in_its_sentence(value):
    logits = torch.randn(2 * 2, 700, generator=torch.Generator().manual_seed(1))
    logits[:2, 500] = value
    beams = beams_of([9, 9], 2, 4, 2, torch.zeros(2, 2))
    found = best_continuations(logits, beams.totals, Banned.of([3], 700, logits.device), beams.clock, beams.limits, 4)
    assert not (found[0][0] > -INF).any() and found[0][1].isfinite().all()
    advance(beams, found, 2)
    assert beams.done.tolist() == [True, False] and beams.finished_count.tolist() == [0, 0]


@pytest.mark.parametrize(("beam", "patience", "vocab_size"), [
    (1, 1, 40), (4, 1, 40), *(pytest.param(*each, marks=pytest.mark.slow) for each in [(5, 2, 300), (12, 0.5, 300)])])
def test_a_search_with_random_logits_has_the_beams_of_the_host(beam, patience, vocab_size):
    limits, banned = [6, 3, 8, 7, 0], [0, 1, 33]
    sentences, finished, rows = len(limits), max(beam, round(beam * patience)), len(limits) * beam
    generator = torch.Generator().manual_seed(beam)
    mine = beams_of(limits, beam, 9, finished)
    theirs = host.Beams([limit + 1 for limit in limits], beam, finished, np.dtype(np.float32))
    lineage = [[] for _ in range(rows)]                                         # rows of the cache
    for step in range(max(limits) + 1):
        logits = 2 * torch.randn(rows, vocab_size, generator=generator)
        logits[:, END_ID] += 3
        mine.clock.copy_(torch.tensor([step, 1_000 + step * rows]))
        found = best_continuations(logits, mine.totals, Banned.of(banned, vocab_size, logits.device), mine.clock,
                                   mine.limits, 2 * beam)
        width = theirs.totals.shape[1]
        expected, indices = sorted_continuations(
            logits.view(sentences, beam, -1)[:, :width].flatten(0, 1), torch.from_numpy(theirs.totals), banned,
            torch.from_numpy(theirs.must_end()))
        size = min(2 * beam, expected.shape[1])
        parents = theirs.advance(tuple(each[:, :size].numpy() for each in (
            expected, indices // vocab_size, indices % vocab_size)))
        advance(mine, found, finished)
        assert mine.done.tolist() == theirs.done.tolist()
        assert mine.finished_count.tolist() == list(map(len, theirs.finished))
        torch.testing.assert_close(mine.totals, torch.from_numpy(theirs.totals), rtol=1e-5, atol=1e-5)
        parents = (parents + np.arange(0, rows, beam)[:, None]).ravel().tolist()
        lineage = [[*lineage[parent], 1_000 + step * rows + parent] for parent in parents]
        for row in np.flatnonzero(theirs.totals.ravel() > -INF).tolist():
            assert mine.tokens.flatten()[row] == theirs.tokens.reshape(rows, -1)[row, -1]
            assert mine.history[step, row] == theirs.tokens.reshape(rows, -1)[row, -1] * beam + parents[row] % beam
            assert mine.ancestors[: step + 1, row].tolist() == lineage[row]
    assert mine.done.all() and mine.finished_count.sum() >= 5
    for sentence, hypotheses in enumerate(theirs.finished):
        ends = mine.finished_ends[sentence, : len(hypotheses)] // beam
        assert ends.tolist() == [len(each.tokens) for each in hypotheses]
        assert mine.finished_totals[sentence, : len(hypotheses)].tolist() == pytest.approx(
            [each.log_probability for each in hypotheses], abs=1e-5)
