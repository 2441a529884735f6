"""The attention of a decoding step in Triton's interpreter, against PyTorch's operators."""

import math
from functools import partial

import pytest
import torch

from seq2seq.model.kernels import step_attention
from seq2seq.model.kernels.step_attention import cross_attention, self_attention

LENGTHS = [1, 130, 7, 31, 32, 33, 64, 0]


def _launch_cross(beam, heads, size, dtype, sentences=2):
    query, memory = torch.zeros(sentences * beam, heads, size, dtype=dtype), torch.zeros(3, 2, heads, size, dtype=dtype)
    cross_attention(query, memory, *torch.zeros(2, sentences, dtype=torch.int32))


def _launch_self(beam, heads, size, dtype, numbers=(2, 1024)):                  # programs of 1 and of 4 hypotheses
    for sentences in numbers:
        rows = sentences * beam
        self_attention(torch.zeros(rows, 3, heads, size, dtype=dtype), torch.zeros(rows, 2, heads, size, dtype=dtype),
                       torch.zeros(1, rows, dtype=torch.int32), torch.zeros(2, dtype=torch.int64), beam)


# To compile, see test_triton_kernels.py.
LAUNCHES = {f"{name} beam {beam} head {size} {dtype}": partial(launch, beam, 8, size, dtype)
            for name, launch in (("cross", _launch_cross), ("self", _launch_self))
            for beam, size, dtype in [(4, 64, torch.bfloat16), (5, 32, torch.bfloat16), (4, 128, torch.bfloat16),
                                      (4, 64, torch.float16), (1, 16, torch.float16), (16, 48, torch.bfloat16),
                                      (4, 64, torch.float32), (5, 128, torch.float32), (1, 32, torch.float32)]}
# More sentences than a grid has programs in all dimensions but the first.
LAUNCHES |= {"cross, many sentences": partial(_launch_cross, 1, 2, 16, torch.bfloat16, 70_000),
             "self, many sentences": partial(_launch_self, 1, 2, 16, torch.bfloat16, [70_000])}


def draw(*shape, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def attended(query, keys, values):
    """query: (heads, head_size). keys, values: (n, heads, head_size)."""
    query, keys, values = (each.double() for each in (query, keys, values))
    weights = (torch.einsum("hd,nhd->hn", query, keys) / math.sqrt(query.shape[1])).softmax(1)
    return torch.einsum("hn,nhd->hd", weights, values)


def assert_close(found, expected):
    rtol = 2e-3 if found.dtype == torch.float16 else 1e-5
    torch.testing.assert_close(found.double(), expected, rtol=rtol, atol=rtol)


def cross_results(beam, size, dtype, heads=2, device="cpu", repeat=1):
    """Return the attention of beams over their sources, and that by PyTorch's operators in float64."""
    lengths = torch.tensor(LENGTHS * repeat)
    end = lengths.cumsum(0).int()
    kept = torch.tensor([6, 0, 7, 1, 3, 4, 5, *range(8, len(lengths))])         # as after sentences have left
    first, end = ((end - lengths.int())[kept]).to(device), end[kept].to(device)
    query, memory = (draw(rows, *shape, heads, size, dtype=dtype).to(device)
                     for rows, shape in ((len(kept) * beam, ()), (int(lengths.sum()), (2,))))
    expected = [attended(one, *memory[begin:stop].unbind(1)) for sentence, begin, stop in zip(
        query.view(-1, beam, heads, size), first.tolist(), end.tolist(), strict=True) for one in sentence]
    return cross_attention(query, memory, first, end), torch.stack(expected)


@pytest.mark.parametrize(("beam", "size", "dtype"), [
    (4, 64, torch.float32), (5, 8, torch.float32), (1, 48, torch.float16), (16, 16, torch.float32),
    pytest.param(12, 128, torch.float32, marks=pytest.mark.slow)])
def test_a_beam_attends_to_the_source_of_its_sentence(beam, size, dtype):
    found, expected = cross_results(beam, size, dtype)
    assert not found[2 * beam : 3 * beam].any(), "a sentence without tokens"
    assert_close(found, expected)


def self_results(beam, size, position, window, dtype, sentences=3, heads=2, device="cpu"):
    """Return the attention of hypotheses over their past, and that by PyTorch's operators in float64. Places of the
    cache that belong to no ancestor are NaN."""
    rows, generator = sentences * beam, torch.Generator().manual_seed(1)
    places = (position + 2) * rows
    projected, cache = (draw(*shape, heads, size, dtype=dtype).to(device) for shape in ((rows, 3), (places, 2)))
    parents = torch.arange(rows) // beam * beam + torch.randint(beam, (position, rows), generator=generator)
    shuffled = torch.randperm(places - rows, generator=generator)[: position * rows].view(position, rows)
    ancestors = shuffled.gather(1, parents).int() if position else torch.zeros(1, rows, dtype=torch.int32)
    before, nobodys = cache.clone(), torch.ones(places, dtype=torch.bool)
    nobodys[ancestors[:position].long()] = False
    cache.masked_fill_(nobodys.to(device)[:, None, None, None], math.nan)
    before[places - rows :] = projected[:, 1:]
    ancestors, clock = ancestors.to(device), torch.tensor([position, places - rows]).to(device)
    found = self_attention(projected, cache, ancestors, clock, beam, window)
    assert torch.equal(cache[places - rows :], projected[:, 1:])
    begin = 0 if window is None else max(0, position - window)
    return found, torch.stack([attended(projected[row, 0], *torch.cat(
        [before.index_select(0, ancestors[begin:position, row].long()), projected[row : row + 1, 1:]]).unbind(1))
        for row in range(rows)])


@pytest.mark.parametrize("min_programs", [1, 1 << 20], ids=["four", "one"])
@pytest.mark.parametrize(("beam", "size", "position", "window", "dtype"), [
    (4, 64, 0, None, torch.float32), (4, 32, 40, None, torch.float32), (5, 8, 33, 6, torch.float32),
    (1, 48, 70, None, torch.float16), (6, 16, 9, 1, torch.float32),
    pytest.param(12, 128, 130, None, torch.float32, marks=pytest.mark.slow)])
def test_hypotheses_attend_to_their_ancestors(monkeypatch, beam, size, position, window, dtype, min_programs):
    monkeypatch.setattr(step_attention, "MIN_PROGRAMS", min_programs)
    assert_close(*self_results(beam, size, position, window, dtype))


@pytest.mark.parametrize("min_programs", [1, 1 << 20], ids=["four", "one"])
def test_nan_stays_in_its_sentence(monkeypatch, min_programs):
    monkeypatch.setattr(step_attention, "MIN_PROGRAMS", min_programs)
    cache, projected, query = draw(12, 2, 2, 16), draw(6, 3, 2, 16), draw(6, 2, 16)
    cache[3] = math.nan                                                         # of the second sentence
    found = self_attention(projected, cache, torch.arange(6, dtype=torch.int32)[None], torch.tensor([1, 6]), 3)
    assert found[:3].isfinite().all() and found[3].isnan().all()
    memory = draw(5, 2, 2, 16)
    memory[4] = math.nan
    found = cross_attention(query, memory, *torch.tensor([[0, 3], [3, 5]], dtype=torch.int32))
    assert found[:3].isfinite().all() and found[3:].isnan().all()
