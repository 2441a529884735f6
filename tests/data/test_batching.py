import tracemalloc
from collections import Counter
from itertools import chain, combinations, pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from seq2seq.data.batching import (
    IGNORE_INDEX,
    EncodedCorpus,
    EncodedSide,
    Shape,
    derived_seed,
    gather,
    split_by_length,
    split_to_shape,
)
from seq2seq.data.epoch_plan import batches_in_order, open_plan, plan_epoch
from seq2seq.tokenizers.tokenizer import END_ID, START_ID

PAIRS = 997


@pytest.fixture
def corpus(make_corpus):
    """Corpus with 2 to 30 tokens on each side; the lengths of source and target are independent."""
    random = np.random.default_rng(1)
    return make_corpus(*(random.integers(2, 31, PAIRS).tolist() for _ in range(2)))


def pairs_in(plan):
    return [int(index) for step in plan for part in step for index in part]


def as_lists(plan):
    return [[part.tolist() for part in step] for step in plan]


# The order of an epoch


@pytest.mark.parametrize("batch_tokens", [31, 211, 10**6])
@pytest.mark.parametrize("accumulation", [1, 3])
def test_every_pair_stands_once_in_an_epoch(corpus, batch_tokens, accumulation):
    assert sorted(pairs_in(plan_epoch(corpus, batch_tokens, accumulation, seed=1, epoch=0))) == list(range(PAIRS))


def test_seed_and_epoch_alone_decide_the_order(corpus):
    plan = as_lists(plan_epoch(corpus, 211, 2, seed=1, epoch=3))
    np.random.seed(7)
    torch.manual_seed(7)
    assert as_lists(plan_epoch(corpus, 211, 2, seed=1, epoch=3)) == plan
    assert as_lists(plan_epoch(corpus, 211, 2, seed=1, epoch=4)) != plan
    assert as_lists(plan_epoch(corpus, 211, 2, seed=2, epoch=3)) != plan


def test_other_epochs_put_other_pairs_together(corpus):
    first, second = ({frozenset(chain(*step)) for step in as_lists(plan_epoch(corpus, 211, 1, seed=1, epoch=epoch))}
                     for epoch in (0, 1))
    assert len(first & second) < len(first) / 10


def test_steps_keep_to_the_budget_of_target_tokens_and_use_it(corpus):
    plan = plan_epoch(corpus, 211, 1, seed=1, epoch=0)
    targets = [int(sum(corpus.target.lengths[part].sum() for part in step)) for step in plan]
    sources = [int(sum(corpus.source.lengths[part].sum() for part in step)) for step in plan]
    ratio = corpus.source.lengths.sum() / corpus.target.lengths.sum()
    assert max(targets) <= 211 and max(sources) <= 211 * max(1, 1.1 * ratio)
    assert np.median(targets) > 0.7 * 211


def test_a_step_of_long_sources_is_no_giant(make_corpus):
    # Nine pairs are short on both sides and one has a source of 50 tokens for a target of 2.
    corpus = make_corpus([5] * 9 + [50], [5] * 9 + [2])
    budget = 11 * 1.1 * 95 / 47
    for step in plan_epoch(corpus, 11, 1, seed=1, epoch=0):
        (part,) = step
        assert len(part) == 1 or corpus.source.lengths[part].sum() <= budget


def test_a_plan_searches_without_converting_the_whole_corpus(make_corpus, monkeypatch):
    # NumPy converts all sums to floating point if the number to find is not an integer: quadratic time.
    search, kinds = np.searchsorted, set()
    monkeypatch.setattr(np, "searchsorted", lambda sums, number, side: kinds.add(
        (sums.dtype.kind, np.asarray(number).dtype.kind)) or search(sums, number, side))
    plan = plan_epoch(make_corpus([3, 4, 5] * 20, [4, 4, 4] * 20), 30, 1, seed=1, epoch=0)
    assert len(plan) > 5 and kinds == {("i", "i")}


@pytest.mark.parametrize("weighted", [False, True])
def test_a_plan_that_is_made_block_by_block_is_that_of_the_whole_corpus(corpus, monkeypatch, weighted):
    weights = np.random.default_rng(2).uniform(0, 3, PAIRS) if weighted else None
    corpus = EncodedCorpus(corpus.source, corpus.target, weights)
    whole = plan_epoch(corpus, 97, 1, seed=1, epoch=3)
    monkeypatch.setattr("seq2seq.data.epoch_plan.BLOCK_PAIRS", 7)
    by_blocks = plan_epoch(corpus, 97, 1, seed=1, epoch=3)
    assert by_blocks.order.tolist() == whole.order.tolist() and by_blocks.ends.tolist() == whole.ends.tolist()
    if not weighted:
        random = np.random.default_rng(derived_seed(1, "epoch", 3))
        assert whole.order.tolist() == random.permutation(np.arange(PAIRS)).tolist()


def test_a_plan_is_the_same_after_it_is_written_and_mapped(corpus, tmp_path):
    plan = plan_epoch(corpus, 97, 3, seed=1, epoch=3)
    plan_epoch(corpus, 97, 3, seed=1, epoch=2).save(tmp_path, 2)
    plan.save(tmp_path, 3)
    opened = open_plan(tmp_path, 3, corpus, 3)
    assert as_lists(opened) == as_lists(plan)
    assert isinstance(opened.order, np.memmap) and not isinstance(opened[0][0], np.memmap)
    assert len(list(tmp_path.iterdir())) == 2                                   # that of epoch 2 is deleted


def test_a_plan_takes_few_bytes_for_each_pair(monkeypatch):
    monkeypatch.setattr("seq2seq.data.epoch_plan.BLOCK_PAIRS", 10_000)
    pairs = 300_000
    side = EncodedSide(np.zeros(0, np.uint16), np.arange(0, 5 * pairs + 1, 5))
    tracemalloc.start()
    try:
        plan = plan_epoch(EncodedCorpus(side, side), 2000, 1, seed=1, epoch=0)
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(plan) == pairs / 400
    assert kept < 4.5 * pairs and peak < 8 * pairs


def test_steps_are_divided_into_micro_batches_when_they_are_read(make_corpus):
    plan = plan_epoch(make_corpus([3, 4, 5] * 20, [4, 4, 4] * 20), 30, 2, seed=1, epoch=0)
    assert as_lists(plan) == as_lists([plan[index] for index in range(len(plan))]) and len(plan[-1]) == 2
    with pytest.raises(IndexError):
        plan[len(plan)]


def test_a_pair_longer_than_the_budget_is_alone_in_its_step(make_corpus):
    corpus = make_corpus([3] * 7, [3, 3, 3, 29, 3, 3, 3])
    plan = as_lists(plan_epoch(corpus, 13, 2, seed=1, epoch=0))
    assert [[3]] in plan
    assert sorted(chain(*chain(*plan))) == list(range(7))


def test_every_step_holds_short_and_long_pairs_as_the_corpus_does(corpus):
    steps = [corpus.target.lengths[np.concatenate(step)] for step in plan_epoch(corpus, 211, 1, seed=1, epoch=0)]
    # Lengths are uniform from 2 to 30. The last step has what is left.
    assert all(lengths.min() < 12 and lengths.max() > 20 for lengths in steps[:-1])
    whole = corpus.target.lengths
    deviations = [(lengths.mean() - whole.mean()) / (whole.std() / len(lengths) ** 0.5) for lengths in steps[:-1]]
    assert 0.7 < np.std(deviations) < 1.3                                       # what independent draws give is 1


@pytest.mark.parametrize("accumulation", [1, 2, 3, 5])
def test_parts_cut_a_step_and_change_nothing_else(corpus, accumulation):
    whole = as_lists(plan_epoch(corpus, 211, 1, seed=1, epoch=0))
    cut = as_lists(plan_epoch(corpus, 211, accumulation, seed=1, epoch=0))
    assert [sorted(chain(*step)) for step in cut] == [sorted(chain(*step)) for step in whole]
    assert max(len(step) for step in cut) == accumulation
    assert all(part for step in cut for part in step)


@pytest.mark.parametrize("accumulation", [2, 3, 5])
def test_parts_of_a_step_have_like_numbers_of_tokens_on_both_sides(corpus, accumulation):
    for step in plan_epoch(corpus, 997, accumulation, seed=1, epoch=0):
        for side in (corpus.source, corpus.target):
            tokens = [side.lengths[part].sum() for part in step]
            assert max(tokens) <= sum(tokens) / accumulation + side.lengths.max() / 2


@pytest.mark.parametrize("count", [8, 16])
def test_a_shape_for_many_micro_batches_with_lengths_as_in_news_is_little_larger_than_their_mean(count):
    random = np.random.default_rng(1)
    targets = random.lognormal(np.log(26), 0.55, 60_000).astype(int).clip(2, 257)
    sources = (targets * random.normal(1, 0.18, len(targets))).astype(int).clip(2, 257)
    corpus = EncodedCorpus(*(EncodedSide(np.zeros(0), np.concatenate([[0], side.cumsum()]))
                             for side in (sources, targets)))
    *plan, _ = plan_epoch(corpus, 25_000, count, seed=1, epoch=0)
    tokens = np.array([[side.lengths_of(part).sum() for side in (corpus.source, corpus.target)]
                       for step in plan for part in step])
    assert tokens.max(0).sum() < 1.04 * tokens.mean(0).sum()                    # 9 and 16 % without fitting


def test_a_step_of_few_pairs_has_no_empty_part(make_corpus):
    assert as_lists(plan_epoch(make_corpus([5], [7]), 13, 3, seed=1, epoch=0)) == [[[0]]]


def test_a_weight_says_how_often_a_pair_is_seen(make_corpus):
    plain = make_corpus([3] * 300, [3] * 300)
    weights = np.repeat([2.0, 0.5, 1.0], 100)
    corpus = EncodedCorpus(plain.source, plain.target, weights)
    seen = Counter(chain(*(pairs_in(plan_epoch(corpus, 31, 1, seed=1, epoch=epoch)) for epoch in range(40))))
    assert {seen[pair] for pair in range(100)} == {80}
    assert {seen[pair] for pair in range(200, 300)} == {40}
    halves = [seen[pair] for pair in range(100, 200)]
    # 4,000 draws at 1/2: five standard deviations are 158.
    assert abs(sum(halves) - 2000) < 158 and min(halves) >= 5
    once = Counter(pairs_in(plan_epoch(corpus, 31, 1, seed=1, epoch=0)))
    assert max(once[pair] for pair in range(100, 200)) == 1


def test_derived_seeds_depend_on_all_they_are_given():
    # Golden: the first 8 bytes of SHA-256 of "(1, 'epoch', 2)", little-endian, without the lowest bit.
    assert derived_seed(1, "epoch", 2) == derived_seed(1, "epoch", 2)
    others = [(1, "epoch", 2), (2, "epoch", 1), (1, "epoch", 12), (11, "epoch", 2), (1, "step", 2), (1, "epoch")]
    assert len({derived_seed(*numbers) for numbers in others}) == len(others)
    assert all(0 <= derived_seed(*numbers) < 2**63 for numbers in others)


# Packed batches


def tiny():
    return EncodedCorpus(EncodedSide.from_lists([[3, 4, 5], [], [6], [7, 8]]),
                         EncodedSide.from_lists([[9], [10, 11, 12, 13], [14, 15], []]))


def test_gathered_ids_equal_slices():
    side = tiny().source
    ids, offsets, positions = side.gather(np.array([3, 0, 1, 3]))
    assert ids.tolist() == [7, 8, END_ID, 3, 4, 5, END_ID, END_ID, 7, 8, END_ID]
    assert offsets.tolist() == [0, 3, 7, 8, 11]
    assert positions.tolist() == [0, 1, 2, 0, 1, 2, 3, 0, 0, 1, 2]


def test_a_batch_is_the_pairs_one_behind_another(corpus):
    indices = np.array([13, 5, 997 - 1, 0])
    batch = gather(corpus, indices)
    sides = ((corpus.source, batch.source, batch.source_offsets, batch.source_positions, batch.longest_source),
             (corpus.target, batch.target_output, batch.target_offsets, batch.target_positions, batch.longest_target))
    for side, tokens, offsets, positions, longest in sides:
        slices = [side.ids[side.offsets[index] : side.offsets[index + 1]].tolist() for index in indices]
        assert tokens.tolist() == list(chain(*slices)) and tokens.dtype == torch.int64
        assert offsets.diff().tolist() == [len(each) for each in slices] and offsets.dtype == torch.int32
        assert positions.tolist() == list(chain(*(range(len(each)) for each in slices)))
        assert longest == max(map(len, slices))
    assert batch.target_count == len(batch.target_output)


def test_the_decoder_reads_the_target_shifted_by_one():
    batch = gather(tiny(), np.array([0, 1, 3]))
    assert batch.target_input.tolist() == [START_ID, 9, START_ID, 10, 11, 12, 13, START_ID]
    assert batch.target_output.tolist() == [9, END_ID, 10, 11, 12, 13, END_ID, END_ID]


def test_a_filled_batch_has_its_shape_and_the_same_pairs():
    plain, filled = (gather(tiny(), np.array([2, 0, 1]), fill) for fill in (None, Shape(23, 29, 11)))
    for side, tokens, empty in (("source", 7, 8), ("target", 10, 8)):
        offsets = getattr(plain, f"{side}_offsets").tolist()
        assert getattr(filled, f"{side}_offsets").tolist() == [*offsets, *[tokens] * empty]
        tail = [0] * (len(getattr(filled, f"{side}_positions")) - tokens)
        assert getattr(filled, f"{side}_positions").tolist() == [*getattr(plain, f"{side}_positions").tolist(), *tail]
    assert filled.source.tolist() == [*plain.source.tolist(), *[END_ID] * 16]
    assert filled.target_output.tolist() == [*plain.target_output.tolist(), *[IGNORE_INDEX] * 19]
    assert filled.target_input.tolist() == [*plain.target_input.tolist(), *[END_ID] * 19]
    assert all(getattr(filled, name) == getattr(plain, name) for name in
               ("longest_source", "longest_target", "target_count", "copies"))


@pytest.mark.parametrize(("max_length", "longest"), [(0, (4, 5)), (41, (4, 8)), (7, (4, 7)), (5, (4, 5))])
def test_the_longest_length_is_rounded_up_to_at_most_the_maximum(max_length, longest):
    batch = gather(tiny(), np.array([2, 0, 1]), max_length=max_length)
    assert (batch.longest_source, batch.longest_target) == longest


@pytest.mark.parametrize("fill", [Shape(6, 29, 11), Shape(23, 9, 11), Shape(23, 29, 2)], ids=str)
def test_pairs_that_do_not_fit_a_shape_are_an_error(fill):
    with pytest.raises(ValueError, match="cannot be filled up to"):
        gather(tiny(), np.array([2, 0, 1]), fill)


def test_a_batch_that_fills_its_shape_has_no_tail():
    full = gather(tiny(), np.array([2, 0, 1]), Shape(7, 10, 3))
    assert full.source.tolist() == gather(tiny(), np.array([2, 0, 1])).source.tolist()


def test_a_batch_on_its_device_stays_as_it_is():
    batch = gather(tiny(), np.array([0]))
    assert batch.to(torch.device("cpu")) is batch


@pytest.mark.parametrize("batch_tokens", [1, 37, 10**6])
def test_batches_for_translation_hold_every_sentence_once_longest_first(batch_tokens):
    lengths = np.random.default_rng(1).integers(1, 30, 101)
    batches = list(batches_in_order(lengths, batch_tokens))
    order = np.concatenate(batches)
    assert sorted(order.tolist()) == list(range(101))
    assert (np.diff(lengths[order]) <= 0).all()
    assert all(len(batch) == 1 or lengths[batch].max() * len(batch) <= batch_tokens for batch in batches)
    assert list(batches_in_order(lengths[:0], batch_tokens)) == []


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(2, 40)), min_size=1, max_size=60))
def test_every_micro_batch_fits_its_rounded_size(lengths):
    corpus = EncodedCorpus(*(EncodedSide.from_lists([[7] * (length - 1) for length in side])
                             for side in zip(*lengths, strict=True)))
    part = np.arange(len(corpus))
    filled = gather(corpus, part, Shape.of(corpus, part).rounded())
    assert len(filled.source) % 64 == len(filled.target_output) % 64 == (len(filled.source_offsets) - 1) % 8 == 0


# Groups of like length


def places_of(corpus, groups):
    return sum(len(group) * (corpus.source.lengths[group].max() + corpus.target.lengths[group].max()) ** 2
               for group in groups)


@pytest.mark.parametrize("cost", [0, 3_000, 40_000, 10**9])
def test_no_other_split_at_eighths_costs_less_than_the_chosen_one(make_corpus, monkeypatch, cost):
    monkeypatch.setattr("seq2seq.data.batching.GROUP_COST", cost)
    random = np.random.default_rng(1)
    targets = np.sort(random.geometric(0.04, 61) + 1)
    corpus = make_corpus((targets + random.integers(0, 9, 61)).tolist(), targets.tolist())
    groups = split_by_length(corpus, np.arange(61))
    assert np.concatenate(groups).tolist() == list(range(61))
    possible = [np.split(np.arange(61), cuts) for count in range(8) for cuts in combinations(range(8, 61, 8), count)]
    assert len(possible) == 128
    least = min(places_of(corpus, cut) + cost * len(cut) for cut in possible)
    assert places_of(corpus, groups) + cost * len(groups) == least
    assert (len(groups) == 1) == (cost == 10**9)


def test_groups_of_similar_length_keep_captions_together_and_split_off_a_long_tail(make_corpus):
    captions = [length for length in range(6, 31) for _ in range(5)]
    corpus = make_corpus(captions, captions)
    assert len(split_by_length(corpus, np.arange(len(captions)))) == 1
    with_tail = captions + [60] * 8 + [250] * 8
    corpus = make_corpus(with_tail, with_tail)
    ends = np.cumsum([len(group) for group in split_by_length(corpus, np.arange(len(with_tail)))])
    # At a multiple of eight pairs, so that a few captions may stand with what follows.
    assert ends[-1] == len(with_tail) and any(len(captions) - 8 < end <= len(captions) for end in ends)
    assert all(end - begin >= 8 for begin, end in pairwise([0, *ends[:-1]]))


def test_larger_micro_batches_have_fewer_candidate_splits(make_corpus):
    corpus = make_corpus([5] * 4000 + [200] * 4000, [5] * 4000 + [200] * 4000)
    groups = split_by_length(corpus, np.arange(8000))
    assert np.concatenate(groups).tolist() == list(range(8000)) and 2 <= len(groups) <= 32


def test_a_micro_batch_too_large_for_a_fixed_shape_is_split_into_parts_that_fit():
    corpus = EncodedCorpus(EncodedSide.from_lists([[7] * 10] * 9), EncodedSide.from_lists([[7] * 4] * 9))
    shape = Shape(source_tokens=40, target_tokens=40, sentences=20)
    parts = list(split_to_shape(corpus, np.arange(9), shape))
    assert sorted(np.concatenate(parts).tolist()) == list(range(9))
    for part in parts:
        gather(corpus, part, shape)


def test_a_fixed_shape_fits_the_micro_batches_of_other_epochs_with_little_to_fill():
    random = np.random.default_rng(1)
    targets = random.lognormal(3, 0.5, 20_000).astype(int).clip(2, 257)
    sources = (targets * random.normal(0.95, 0.15, len(targets))).astype(int).clip(2, 257)
    corpus = EncodedCorpus(*(EncodedSide(np.full(side.sum(), 7), np.concatenate([[0], side.cumsum()]))
                             for side in (sources, targets)))
    shape = Shape.for_plan(corpus, plan_epoch(corpus, 4001, 2, seed=1, epoch=0), 257)
    plan = [part for epoch in (1, 2, 3) for step in plan_epoch(corpus, 4001, 2, 1, epoch) for part in step]
    assert sum(len(list(split_to_shape(corpus, part, shape))) > 1 for part in plan) <= len(plan) / 100
    # The last step of an epoch is a partial one.
    filled = np.array([[side.lengths_of(part).sum() for side in (corpus.source, corpus.target)] for part in plan])
    assert (filled.mean(0) > 0.9 * np.array([shape.source_tokens, shape.target_tokens])).all()


def test_a_pair_that_grows_in_a_later_epoch_fits_the_fixed_shape(make_corpus):
    shape = Shape.for_plan(make_corpus([3, 5], [7, 2]), [[np.array([0])], [np.array([1])]], max_length=41)
    grown = make_corpus([41, 40], [40, 41])
    assert [part.tolist() for part in split_to_shape(grown, np.arange(2), shape)] == [[0], [1]]


@given(st.lists(st.tuples(st.integers(2, 19), st.integers(2, 19)), min_size=1, max_size=60),
       st.integers(2, 200), st.integers(1, 5))
def test_each_micro_batch_fits_its_fixed_shape_or_its_halves_do(lengths, batch_tokens, accumulation):
    corpus = EncodedCorpus(*(EncodedSide.from_lists([[7] * (length - 1) for length in side])
                             for side in zip(*lengths, strict=True)))
    shape = Shape.for_plan(corpus, plan_epoch(corpus, batch_tokens, accumulation, seed=1, epoch=0), 19)
    for epoch in (0, 1):
        for step in plan_epoch(corpus, batch_tokens, accumulation, 1, epoch):
            parts = [part for pairs in step for part in split_to_shape(corpus, pairs, shape)]
            assert sorted(np.concatenate(parts).tolist()) == sorted(np.concatenate(step).tolist())
            assert epoch or len(parts) == len(step)
