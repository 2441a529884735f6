"""The Triton kernels of the sublayers in Triton's interpreter, on the CPU, against PyTorch's operators and float64.

test_triton_kernels.py runs these cases in a process of its own: TRITON_INTERPRET=1 must be set before Triton is
imported.
"""

from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from seq2seq.model.kernels import dropped, row_sums
from seq2seq.model.kernels.activation import activated
from seq2seq.model.kernels.embedding import embed
from seq2seq.model.kernels.residual_norm import residual_norm
from seq2seq.model.kernels.row_sums import column_sums, linear
from seq2seq.model.transformer import ACTIVATIONS, KERNEL_ACTIVATIONS

# Rows and widths. Some widths are no power of two. 11 is no multiple of 8: a group of 8 elements and a rest of 3.
SHAPES = [(1, 300), (7, 11), (37, 96), (9, 512),
          *(pytest.param(*shape, marks=pytest.mark.slow) for shape in [(257, 300), (3, 1024), (5, 2048)])]
SEED, NUMBER = 2**62 + 12345, 41

every_shape = pytest.mark.parametrize(("rows", "width"), SHAPES)
both_norms = pytest.mark.parametrize("pre_norm", [False, True], ids=["post", "pre"])
every_activation = pytest.mark.parametrize("activation", KERNEL_ACTIVATIONS)
few_programs = pytest.mark.parametrize("programs", [row_sums.PROGRAMS, 5], ids="{} programs".format)


def _launch(dtype, width):
    """Launch the kernels of both directions. FFN layers are four times as wide as the model."""
    def random(*shape):
        return torch.zeros(shape, dtype=dtype, requires_grad=True)

    for pre_norm in (False, True):
        for shift, probability in ((random(width), 0.1), (None, 0.0)):
            seed = torch.zeros(1, dtype=torch.int64) if probability else None
            stream, out = residual_norm(random(32, width), random(32, width), shift, random(width), random(width), 1e-5,
                                        pre_norm, probability, seed)
            (stream + out).sum().backward()
    residual_norm(random(32, width), random(32, width), random(width), random(width), random(width))
    for activation in KERNEL_ACTIVATIONS:
        activated(random(32, width), random(4 * width, width), random(4 * width), activation).sum().backward()
    column_sums(random(32, width).detach())
    for probability, seed in ((0.1, torch.zeros(1, dtype=torch.int64)), (0.0, None)):
        ids = torch.zeros(32, dtype=torch.int64)
        first, second = embed(random(50, width), random(40, width), ids, ids, 2.0, probability, seed)
        (first + second).sum().backward()


# To compile, see test_triton_kernels.py.
LAUNCHES = {f"sublayers {dtype} {width}": partial(_launch, dtype, width)
            for dtype in (torch.bfloat16, torch.float16) for width in (256, 512, 1024)}


def philox(key, c0, c1):
    """Philox4x32-10 (Salmon et al. 2011), written from the paper: counters (c0, c1, 0, 0) -> (…, 4) uint32."""
    low = np.uint64(0xFFFFFFFF)
    c = [np.asarray(c0, dtype=np.uint64), np.full(np.shape(c0), c1, dtype=np.uint64)]
    c += [0 * c[0], 0 * c[0]]
    k = [np.uint64(key & 0xFFFFFFFF), np.uint64(key >> 32)]
    for _ in range(10):
        a, b = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        c = [(b >> np.uint64(32)) ^ c[1] ^ k[0], b & low, (a >> np.uint64(32)) ^ c[3] ^ k[1], a & low]
        k = [(k[0] + np.uint64(0x9E3779B9)) & low, (k[1] + np.uint64(0xBB67AE85)) & low]
    return np.stack(c, -1)


def factors(rows, width, probability, seed=SEED, number=NUMBER):
    """Return what dropout multiplies by, (rows, width), from the random numbers in NumPy."""
    if not probability:
        return torch.ones(rows, width)
    groups = -(-width // 8)
    words = philox(seed, np.arange(rows * groups).reshape(rows, groups), number)
    bits = np.stack([words & 0xFFFF, words >> 16], -1).reshape(rows, 8 * groups)[:, :width].astype(np.int64)
    return torch.tensor(bits >= dropped(probability)) * (65536 / (65536 - dropped(probability)))


def random(*shapes, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for shape in shapes]


def gradients(function, inputs, given, dtype=torch.float32):
    """Return the results of a function, and the gradients of its inputs for gradients of its results."""
    inputs = [each.to(dtype).clone().requires_grad_() for each in inputs]
    results = function(*inputs)
    return [each.detach() for each in results], torch.autograd.grad(results, inputs, [each.to(dtype) for each in given])


def assert_exact(found, expected, tolerance=1e-6):
    """Assert that errors are at most `tolerance` of the number and of the root mean square (of 1, where it is less)."""
    for one, other in zip(found, expected, strict=True):
        scale = max(1.0, other.double().norm().item() / max(1, other.numel())**0.5)
        torch.testing.assert_close(one.double(), other.double(), rtol=tolerance, atol=tolerance * scale)


def assert_kernel_is_exact(kernel, reference, inputs, given):
    """Compare results with the reference in fp32 and float64, gradients with float64; two runs are equal to the bit."""
    found, found_gradients = gradients(kernel, inputs, given)
    expected, expected_gradients = gradients(reference, inputs, given, torch.float64)
    assert_exact(found, reference(*inputs))
    assert_exact(found, expected)
    assert_exact(found_gradients, expected_gradients, 1e-5)
    again, again_gradients = gradients(kernel, inputs, given)
    assert all(map(torch.equal, (*again, *again_gradients), (*found, *found_gradients)))


def sublayer(pre_norm, mask):
    """Return the function that residual_norm computes, by PyTorch's operators."""
    def function(x, y, shift, gain, bias):
        summed = x + mask.to(x.dtype) * (y + shift)
        normalised = F.layer_norm(summed, x.shape[-1:], gain, bias, 1e-5)
        return (summed if pre_norm else normalised), normalised

    return function


def norm_inputs(rows, width):
    x, y, shift, gain, bias = random((rows, width), (rows, width), (width,), (width,), (width,))
    return [2 * x + 0.5, y, shift, 1 + 0.3 * gain, 0.3 * bias]


@both_norms
@pytest.mark.parametrize("probability", [0.0, 0.3])
@every_shape
def test_residual_dropout_and_norm(monkeypatch, rows, width, probability, pre_norm):
    if pre_norm:                                                                # each program has many tiles
        monkeypatch.setattr("seq2seq.model.kernels.residual_norm.PROGRAMS", 5)
    seed, reference = torch.tensor([SEED]), sublayer(pre_norm, factors(rows, width, probability))
    inputs, given = norm_inputs(rows, width), random((rows, width), (rows, width), seed=2)

    def kernel(*inputs):
        return residual_norm(*inputs, 1e-5, pre_norm, probability, seed, NUMBER)

    assert_kernel_is_exact(kernel, reference, inputs, given)


@both_norms
@pytest.mark.parametrize("used", [0, 1], ids=["stream", "inputs"])
def test_one_of_the_two_results_may_be_without_gradient(pre_norm, used):
    inputs, given = norm_inputs(7, 96), random((7, 96))
    reference = sublayer(pre_norm, torch.ones(7, 96))
    _, found = gradients(lambda *inputs: (residual_norm(*inputs, 1e-5, pre_norm)[used],), inputs, given)
    inputs64 = [each.double().requires_grad_() for each in inputs]
    expected = torch.autograd.grad(reference(*inputs64)[used], inputs64, given[0].double(), allow_unused=True)
    expected = [torch.zeros_like(one) if other is None else other for one, other in zip(found, expected, strict=True)]
    assert_exact(found, expected, 5e-6)


def test_without_shift_there_is_none_to_add_and_inference_mode_works():
    x, y, shift, gain, bias = norm_inputs(7, 96)
    with torch.inference_mode():
        without = residual_norm(x, y, None, gain, bias)
        assert_exact(residual_norm(x, y - shift, shift, gain, bias), without)
        stream, inputs = residual_norm(x, y, None, gain, bias, pre_norm=True)
    assert_exact([without[0], stream], [F.layer_norm(x + y, (96,), gain, bias), x + y])
    assert torch.equal(without[0], without[1]) and torch.equal(inputs, without[0])


@both_norms
def test_gradients_are_exact_also_where_the_gain_is_0(pre_norm):
    inputs, given = norm_inputs(7, 96), random((7, 96), (7, 96), seed=2)
    inputs[3][:3] = 0
    _, found = gradients(lambda *inputs: residual_norm(*inputs, 1e-5, pre_norm), inputs, given)
    _, expected = gradients(sublayer(pre_norm, torch.ones(7, 96)), inputs, given, torch.float64)
    assert found[3][:3].all()
    assert_exact(found, expected, 1e-5)


@few_programs
@every_activation
@every_shape
def test_the_first_layer_of_the_feed_forward_sublayer(monkeypatch, rows, width, activation, programs):
    monkeypatch.setattr(row_sums, "PROGRAMS", programs)
    inputs, given = random((rows, 5), (width, 5), (width,)), random((rows, width), seed=2)
    kernel = lambda rows, weight, bias: (activated(rows, weight, bias, activation),)            # noqa: E731
    reference = lambda rows, weight, bias: (ACTIVATIONS[activation](rows @ weight.T + bias),)   # noqa: E731
    assert_kernel_is_exact(kernel, reference, inputs, given)


@every_activation
def test_rows_may_have_more_dimensions(activation):
    rows, weight, bias = random((2, 3, 5), (11, 5), (11,))
    assert_exact([activated(rows, weight, bias, activation)], [ACTIVATIONS[activation](F.linear(rows, weight, bias))])


@every_activation
def test_what_is_not_a_number_stays_so(activation):
    rows = torch.tensor([[1.0], [float("nan")], [-1.0]])
    found = activated(rows, torch.ones(3, 1), torch.zeros(3), activation)
    assert found.isnan().tolist() == [[False] * 3, [True] * 3, [False] * 3]
    assert residual_norm(torch.zeros(3, 1), rows, None, torch.ones(1), torch.zeros(1))[0].isnan().flatten().tolist() \
        == [False, True, False]


@few_programs
@every_shape
def test_sums_over_rows(monkeypatch, rows, width, programs):
    monkeypatch.setattr(row_sums, "PROGRAMS", programs)
    (x,) = random((rows, width))
    assert_exact([column_sums(x)], [x.double().sum(0)])
    assert torch.equal(column_sums(x), column_sums(x))


@pytest.mark.parametrize("shape", [(7, 5), (2, 3, 5), (0, 5)], ids=str)
def test_a_linear_layer(shape):
    inputs, given = random(shape, (11, 5), (11,)), random((*shape[:-1], 11), seed=2)
    found = gradients(lambda *inputs: (linear(*inputs),), inputs, given)
    expected = gradients(lambda *inputs: (F.linear(*inputs),), inputs, given, torch.float64)
    for one, other in zip(found, expected, strict=True):
        assert_exact(one, other)


@pytest.mark.parametrize("probability", [0.0, 0.3])
@pytest.mark.parametrize(("rows", "width"), SHAPES[:3])
@pytest.mark.parametrize("learned", [False, True])
def test_embedding(rows, width, probability, learned):
    generator, seed = torch.Generator().manual_seed(3), torch.tensor([SEED])
    tokens = torch.randint(0, 13, (rows,), generator=generator)
    positions = torch.randint(0, 5, (rows,), generator=generator)
    matrices, given = random((13, width), (5, width)), random((rows, width), (rows, width), seed=2)
    factor = factors(rows, width, probability, number=0)

    def reference(embedding, encodings):
        return [factor.to(embedding.dtype) * (embedding[tokens] * 5.5 + encodings[positions])] * 2

    def kernel(embedding, encodings):
        return embed(embedding, encodings if learned else encodings.detach(), tokens, positions, 5.5, probability, seed)

    for expected, used in zip(reference(*matrices), embed(*matrices, tokens, positions, 5.5, probability, seed),
                              strict=True):
        assert_exact([used], [expected])
    inputs, exact = ([each.to(dtype, copy=True).requires_grad_() for each in matrices]
                     for dtype in (torch.float32, torch.float64))
    torch.autograd.backward(kernel(*inputs), given)
    torch.autograd.backward(reference(*exact), [each.double() for each in given])
    assert_exact([inputs[0].grad], [exact[0].grad], 1e-5)
    assert (inputs[1].grad is not None) == learned
    if learned:
        assert_exact([inputs[1].grad], [exact[1].grad], 1e-5)


def test_a_token_or_a_position_that_does_not_exist_is_not_a_number():
    tokens, positions = torch.tensor([0, 13, 12, 12, -1]), torch.tensor([4, 4, 5, 4, 4])
    rows, _ = embed(*random((13, 96), (5, 96)), tokens, positions, 1.0, 0.0, None)
    assert rows.isnan().all(1).tolist() == rows.isnan().any(1).tolist() == [False, True, True, False, True]


def test_the_gradients_of_a_token_or_a_position_that_does_not_exist_are_written_inside_of_the_matrices(monkeypatch):
    operator, found = torch.ops.aten.embedding_dense_backward, []
    monkeypatch.setattr(torch.ops.aten, "embedding_dense_backward", lambda rows, indices, size, *others: (
        found.append((indices.min() >= 0 and indices.max() < size).item()), operator(rows, indices, size, *others))[1])
    matrices = [each.requires_grad_() for each in random((13, 96), (5, 96))]
    first, second = embed(*matrices, torch.tensor([0, 13, 12, -1]), torch.tensor([4, 4, 5, 4]), 1.0, 0.0, None)
    torch.stack([first, second]).square().sum().backward()
    assert found == [True, True] and all(each.grad.isnan().any() for each in matrices)


# Masks


def mask(rows, width, probability, seed=SEED, number=NUMBER):
    """Return what the kernel multiplies by, (rows, width): the sum of 0 and of ones with dropout."""
    return residual_norm(torch.zeros(rows, width), torch.ones(rows, width), None, torch.ones(width), torch.zeros(width),
                         1e-5, True, probability, torch.tensor([seed]), number)[0]


def test_the_reference_of_the_random_numbers_is_philox():
    # Random123's known answers (kat_vectors: philox4x32 10, counter and key 0).
    assert philox(0, 0, 0).tolist() == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]


@pytest.mark.parametrize(("probability", "seed", "number"), [(0.1, 11, 0), (0.3, 2**62 + 12345, 41)])
@pytest.mark.parametrize("width", [11, 96, 300])
def test_masks_are_those_of_the_random_numbers(width, probability, seed, number):
    torch.testing.assert_close(mask(67, width, probability, seed, number), factors(67, width, probability, seed, number
                                                                                    ).float(), rtol=1e-6, atol=0)


@pytest.mark.parametrize("probability", [0.1, 0.3, 0.5])
def test_the_share_of_dropped_elements_is_the_probability(probability):
    found = mask(33, 512, probability)
    deviation = (probability * (1 - probability) / found.numel())**0.5
    assert abs((found == 0).double().mean() - probability) < 4 * deviation
    assert abs(found.double().mean() - 1) < 4 * deviation / (1 - probability)


def test_masks_of_other_seeds_numbers_rows_and_columns_are_independent():
    one = mask(33, 512, 0.3)
    others = [mask(33, 512, 0.3, seed=SEED + 1), mask(33, 512, 0.3, number=NUMBER + 1), one.roll(1, 0),
              one.roll(1, 1), one.roll(8, 1)]
    for other in others:
        correlation = torch.corrcoef(torch.stack([one.flatten(), other.flatten()]))[0, 1]
        assert abs(correlation) < 4 / one.numel()**0.5


def test_the_backward_pass_drops_what_the_forward_pass_has_dropped():
    y = torch.ones(37, 96, requires_grad=True)
    stream, _ = residual_norm(torch.zeros(37, 96), y, None, torch.ones(96), torch.zeros(96), 1e-5, True, 0.3,
                              torch.tensor([SEED]), NUMBER)
    stream.sum().backward()
    assert torch.equal(y.grad, stream) and 0 < (y.grad == 0).sum() < y.numel()


@both_norms
@pytest.mark.parametrize("probability", [5e-6, 1 - 5e-6])
def test_a_probability_that_rounds_to_0_or_1_leaves_no_gradient_undefined(monkeypatch, pre_norm, probability):
    empty = torch.empty_like
    monkeypatch.setattr(torch, "empty_like", lambda *given, **options: empty(*given, **options).fill_(float("nan")))
    inputs, given = norm_inputs(7, 96), random((7, 96), (7, 96))
    mask = factors(7, 96, probability)
    kernel = lambda *inputs: residual_norm(*inputs, 1e-5, pre_norm, probability, torch.tensor([SEED]), NUMBER)  # noqa: E731
    _, found = gradients(kernel, inputs, given)
    _, expected = gradients(sublayer(pre_norm, mask), inputs, given, torch.float64)
    assert_exact(found, expected, 1e-5)


def test_tiles_do_not_change_results(monkeypatch):
    inputs, given = norm_inputs(37, 96), random((37, 96), (37, 96))
    kernel = lambda *inputs: residual_norm(*inputs, 1e-5, True, 0.3, torch.tensor([SEED]), NUMBER)  # noqa: E731
    expected = gradients(kernel, inputs, given)
    for direction in ("FORWARD", "BACKWARD"):
        monkeypatch.setattr(f"seq2seq.model.kernels.residual_norm.{direction}", {"elements": 256, "per_thread": 8})
    for one, other in zip(gradients(kernel, inputs, given), expected, strict=True):
        assert_exact(one, other, 5e-6)


def test_no_rows_cost_nothing():
    inputs = [torch.empty(0, 12, requires_grad=True), torch.empty(0, 12), None, torch.ones(12), torch.zeros(12)]
    assert [each.shape for each in residual_norm(*inputs)] == [(0, 12)] * 2
    for activation in KERNEL_ACTIVATIONS:
        assert activated(torch.empty(0, 5), torch.zeros(12, 5), torch.zeros(12), activation).shape == (0, 12)
    assert not column_sums(torch.empty(0, 12)).any()
