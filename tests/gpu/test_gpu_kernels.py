"""The Triton kernels on a GPU in the number formats and sizes of real models, against float64: `make test-gpu`.

The cases of tests/model/kernels compare small sizes in Triton's interpreter, mostly in fp32. What that cannot show is
here: rounding in 16 bits, many blocks and tiles for each program, and numbers that differ from run to run.
tests/simulated_gpu runs these tests in small.
"""

import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

SIMULATED = "TRITON_INTERPRET" in os.environ                                    # and slow
if not SIMULATED and not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)                      # without importing Triton
pytest.importorskip("triton")
sys.path.append(str(Path(__file__).parents[1] / "model" / "kernels"))

import cases_interval_attention as attention_cases  # noqa: E402
import cases_select_top as select_cases  # noqa: E402
import cases_step_attention as step_cases  # noqa: E402
from cases_sublayers import NUMBER, SEED, factors, gradients, norm_inputs, random, sublayer  # noqa: E402

from seq2seq.model.attention import intervals_of  # noqa: E402
from seq2seq.model.kernels import usable  # noqa: E402
from seq2seq.model.kernels.activation import activated  # noqa: E402
from seq2seq.model.kernels.dropout import draw_seed  # noqa: E402
from seq2seq.model.kernels.embedding import embed  # noqa: E402
from seq2seq.model.kernels.interval_attention import attend  # noqa: E402
from seq2seq.model.kernels.residual_norm import residual_norm  # noqa: E402
from seq2seq.model.kernels.row_sums import linear  # noqa: E402
from seq2seq.model.transformer import ACTIVATIONS  # noqa: E402
from seq2seq.training.run import make_deterministic  # noqa: E402

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
# Bounds of the error of a tensor, relative to its norm: about twice the error of rounding each number once.
BOUND = {BF16: 5e-3, FP16: 8e-4, FP32: 2e-5}


@pytest.fixture(autouse=True)
def gpu_with_kernels(without_waits):
    """A GPU that the kernels support, as in a training: otherwise PyTorch adds gradients of an embedding atomically."""
    if torch.cuda.get_device_capability() < (8, 0):
        pytest.skip("the kernels need compute capability 8.0 or above")
    make_deterministic()


def on_gpu(tensors, dtype=None):
    return [each.to("cuda", dtype) for each in tensors]


def assert_near(found, expected, bound):
    for one, other in zip(found, expected, strict=True):
        error = (one.double() - other).norm() / other.norm().clamp(min=1e-30)
        assert error.item() < bound


def assert_exact_twice(kernel, reference, inputs, given, dtype, bound=1.0):
    """Compare results and gradients with those in float64, and with those of a second run."""
    inputs, given = on_gpu(inputs, dtype), on_gpu(given, dtype)
    (found, of_found), (again, of_again), (expected, of_expected) = (
        gradients(function, inputs, given, precise)
        for function, precise in ((kernel, dtype), (kernel, dtype), (reference, torch.float64)))
    assert all(map(torch.equal, (*found, *of_found), (*again, *of_again)))
    assert_near((*found, *of_found), (*expected, *of_expected), bound * BOUND[dtype])


def some(large, small):
    """Return a size for a real GPU or for the simulated one."""
    return small if SIMULATED else large


def test_triton_runs():
    assert usable(torch.device("cuda", 0))


# Training


def lengths(tokens, longest):
    """Lengths of sentences, some of which are empty."""
    generator, found = np.random.default_rng(1), [longest, 0, 1]
    while sum(found) < tokens:
        found += [min(longest, int(generator.lognormal(3.2, 0.9))), *[0] * int(generator.random() < 0.05)]
    return found


@pytest.mark.parametrize(("size", "dtype", "kind"), [
    (64, BF16, "causal"), (64, BF16, "cross"), (64, BF16, "full"), (64, FP16, "causal window"), (128, BF16, "cross"),
    (128, BF16, "causal"), (32, BF16, "window"), (16, FP16, "cross"), (16, BF16, "causal")])
def test_attention_by_intervals(size, dtype, kind):
    own = lengths(some(3_000, 90), some(700, 70))
    other = [max(0, length + (-1) ** place * (place % 4)) for place, length in enumerate(own)]
    found, expected, seen = attention_cases.results(kind, (own, other), 70, size, dtype, "cuda")
    again, *_ = attention_cases.results(kind, (own, other), 70, size, dtype, "cuda")
    assert all(map(torch.equal, found, again))
    assert_near(found, expected, BOUND[dtype])
    assert not found[0][~seen.any(1)].any().item()


@pytest.mark.parametrize(("width", "dtype", "probability", "pre_norm"), [
    (512, BF16, 0.1, False), (512, BF16, 0.1, True), (1024, BF16, 0.3, False), (256, FP16, 0.0, True),
    (100, BF16, 0.25, False)])
def test_residual_dropout_and_norm_with_many_tiles_for_each_program(width, dtype, probability, pre_norm):
    rows = some(25_013, 37)
    seed, mask = torch.tensor([SEED], device="cuda"), factors(rows, width, probability).to("cuda")
    assert_exact_twice(lambda *inputs: residual_norm(*inputs, 1e-5, pre_norm, probability, seed, NUMBER),
                       sublayer(pre_norm, mask), norm_inputs(rows, width), random((rows, width), (rows, width), seed=2),
                       dtype)


@pytest.mark.parametrize(("activation", "dtype"), [("relu", BF16), ("gelu", BF16), ("silu", FP16)])
def test_the_first_layer_of_the_feed_forward_sublayer(activation, dtype):
    rows, inner, width = some((25_013, 512, 2_048), (37, 16, 520))
    hidden, weight, bias = random((rows, inner), (width, inner), (width,))
    # Where relu's input is nearly 0, its derivative may be another one; cuBLAS may add parts of a product in 16 bits.
    assert_exact_twice(lambda *inputs: (activated(*inputs, activation),),
                       lambda rows, weight, bias: (ACTIVATIONS[activation](rows @ weight.T + bias),),
                       [hidden, weight / inner**0.5, bias], random((rows, width), seed=2), dtype, bound=4)


def test_a_linear_layer():
    rows, width = some((25_013, 512), (37, 520))
    hidden, weight, bias = random((rows, width), (width, width), (width,))
    assert_exact_twice(lambda *inputs: (linear(*inputs),), lambda rows, weight, bias: (rows @ weight.T + bias,),
                       [hidden, weight / width**0.5, bias], random((rows, width), seed=2), BF16, bound=4)


@pytest.mark.parametrize("rows", [some(2_000, 37), some(25_013, 67)])           # PyTorch sums gradients in two ways
def test_embedding(rows):
    vocab_size, width, seed = some(32_000, 90), some(512, 96), torch.tensor([SEED], device="cuda")
    generator = torch.Generator().manual_seed(1)
    tokens, positions = on_gpu(torch.randint(most, (rows,), generator=generator) for most in (vocab_size, 128))
    mask = factors(rows, width, 0.1, number=0).to("cuda")

    def reference(embedding, encodings):
        return [mask.to(embedding.dtype) * (22.6 * embedding[tokens] + encodings[positions])] * 2

    assert_exact_twice(lambda *inputs: embed(*inputs, tokens, positions, 22.6, 0.1, seed), reference,
                       random((vocab_size, width), (128, width)), random((rows, width), (rows, width), seed=2), BF16)


def test_runs_beside_other_work_are_equal_to_the_bit():
    tokens, beside, work = some(25_000, 90), torch.cuda.Stream(), torch.ones(some(4_096, 8), some(4_096, 8)).to("cuda")
    side = attention_cases.sentences_of(lengths(tokens, some(200, 40)), 100, "cuda")
    intervals, width = intervals_of(side, side, True, None), some(512, 96)
    stacks = [torch.randn(len(side.positions), 3, heads, size).to("cuda", BF16).requires_grad_()
              for size, heads in ((64, 8), (128, 4), (32, 16))[: some(3, 1)]]
    inputs = [each.requires_grad_() for each in on_gpu(norm_inputs(tokens, width), BF16)]
    seed = torch.tensor([SEED], device="cuda")

    def run(stack):
        if stack is None:
            out, _ = residual_norm(*inputs, 1e-5, False, 0.1, seed, NUMBER)
            return [out.detach(), *torch.autograd.grad(out, inputs, torch.ones_like(out))]
        out = attend((stack,), *intervals)
        return [out.detach(), *torch.autograd.grad(out, [stack], torch.ones_like(out))]

    for stack in (*stacks, None):
        expected = run(stack)
        for number in range(some(300, 2)):
            if number % 3 == 0:
                with torch.cuda.stream(beside):
                    work @ work
            assert all(map(torch.equal, run(stack), expected)), number


def test_each_replay_of_a_graph_draws_masks_of_its_own():
    rows = torch.ones(some(1_000, 9), 512, dtype=BF16, device="cuda")
    zeros, out = torch.zeros_like(rows), torch.empty_like(rows)

    def draw():
        out.copy_(residual_norm(zeros, rows, None, rows[0], zeros[0], 1e-5, True, 0.5, draw_seed(rows.device), 1)[0])

    draw()                                                                      # compiles the kernel
    graph, masks = torch.cuda.CUDAGraph(), []
    with torch.cuda.stream(torch.cuda.Stream()):
        graph.capture_begin()
        draw()
        graph.capture_end()
    for seed, run in ((5, graph.replay), (None, graph.replay), (5, graph.replay), (5, draw)):
        if seed is not None:
            torch.manual_seed(seed)
        run()
        masks.append(out == 0)
    assert not torch.equal(masks[0], masks[1])
    assert torch.equal(masks[0], masks[2]) and torch.equal(masks[0], masks[3])


# Search


@pytest.mark.parametrize(("beam", "size", "position", "window", "dtype"), [
    (4, 64, 100, None, BF16), (1, 64, 33, None, BF16), (5, 128, 40, 9, BF16), (12, 32, 20, None, FP16),
    (4, 64, 50, None, FP32)])
def test_attention_of_a_step(beam, size, position, window, dtype):
    sentences, heads = some((300, 8), (3, 2))                                   # 4 hypotheses in a program, or 1
    found, expected = step_cases.self_results(beam, size, some(position, 9), window, dtype, sentences, heads, "cuda")
    assert_near([found], [expected], BOUND[dtype])
    found, expected = step_cases.cross_results(beam, size, dtype, heads, "cuda", repeat=some(40, 1))
    assert_near([found], [expected], BOUND[dtype])


@pytest.mark.parametrize(("beam", "vocab_size", "padding", "dtype"), [
    (4, 32_000, 0, BF16), (4, 37_000, 8, BF16), (5, 31_999, 1, FP16), (16, 32_000, 0, BF16), (1, 8_003, 13, BF16),
    (12, 64_000, 0, FP32)])
def test_the_best_of_many_blocks_of_continuations(beam, vocab_size, padding, dtype):
    vocab_size = some(vocab_size, 300)
    runs = [select_cases.results(beam, vocab_size, padding, dtype, some(100, 3), "cuda") for _ in range(2)]
    (found, parents, ids), scores = runs[0]
    assert all(map(torch.equal, runs[0][0], runs[1][0]))
    expected = scores.topk(2 * beam, 1).values
    possible = expected > -torch.inf
    place = parents.long() * vocab_size + ids.long()
    assert torch.equal(found > -torch.inf, possible)
    for chosen in (found, scores.gather(1, place)):                             # among almost equal ones, any
        torch.testing.assert_close(chosen[possible], expected[possible], rtol=0, atol=2e-5)
    for row, exists in zip(place.tolist(), possible.tolist(), strict=True):
        assert len({each for each, real in zip(row, exists, strict=True) if real}) == sum(exists)
