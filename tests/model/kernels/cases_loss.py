"""The Triton kernel of the loss in Triton's interpreter, on the CPU, against PyTorch's operators.

test_triton_kernels.py runs these cases in a process of its own: TRITON_INTERPRET=1 must be set before Triton is
imported.
"""

import math
from functools import partial

import pytest
import torch

from seq2seq.data.batching import IGNORE_INDEX
from seq2seq.model import loss as loss_module
from seq2seq.model.kernels import loss as loss_kernel
from seq2seq.model.loss import Logits, smoothed_cross_entropy

ROWS, D_MODEL = 11, 5
IGNORED = [0, 7, 10]
# Below one block, no multiple of 16, more than one block with a rest, and 8 blocks of which the last one is not full.
VOCAB_SIZES = [7, 1_000, 10_007, 32_000]
INF, NAN = math.inf, math.nan
LOWEST_LOG_P = pytest.approx(math.log(torch.finfo(torch.float32).tiny))



def _launch(dtype):
    for differentiate in (True, False):
        logits, outputs = torch.zeros(2, 32_000, dtype=dtype), torch.zeros(2, 2, 1)
        loss_kernel.overwrite_with_gradient(logits, torch.zeros(2, 1, dtype=torch.int64), torch.ones(2).bool(), 0.1,
                                            differentiate, *outputs)


# To compile, see test_triton_kernels.py.
LAUNCHES = {f"loss {dtype}": partial(_launch, dtype) for dtype in (torch.float32, torch.bfloat16, torch.float16)}

every_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
every_vocab_size = pytest.mark.parametrize("vocab_size", VOCAB_SIZES)


@pytest.fixture
def kernel(monkeypatch):
    """Number of calls of the kernel, as a list. The loss uses the kernel for all tensors, in chunks of 5 rows."""
    calls = []

    def counted(*arguments):
        calls.append(arguments)
        loss_kernel.overwrite_with_gradient(*arguments)

    monkeypatch.setattr(loss_module, "MAX_CHUNK_ROWS", 5)
    monkeypatch.setattr(loss_module, "gradient_function", lambda *_: counted)
    return calls


def close(dtype):
    """Tolerances: rounding of the last bit of the dtype, and of sums in fp32."""
    return {"rtol": max(torch.finfo(dtype).eps, 5e-6), "atol": 1e-6, "equal_nan": True}


def both(logits, targets, counted=None, smoothing=0.1, differentiate=True):
    """Return the gradient, the targets' logits and their log p: of the kernel, and of PyTorch's operators."""
    counted = torch.ones(len(logits), dtype=torch.bool) if counted is None else counted
    results = []
    for function in (loss_kernel.overwrite_with_gradient, loss_module.overwrite_with_gradient):
        gradient, outputs = logits.clone(), torch.full((2, len(logits), 1), 77.0)
        function(gradient, targets[:, None], counted, smoothing, differentiate, *outputs)
        results.append((gradient, *outputs))
    return results


def assert_same(found, expected):
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, **close(one.dtype))


def random_case(vocab_size, dtype=torch.float32, rows=ROWS, spread=3.0):
    generator = torch.Generator().manual_seed(vocab_size)
    logits = (spread * torch.randn(rows, vocab_size, generator=generator)).to(dtype)
    targets = torch.randint(vocab_size, (rows,), generator=generator)
    targets[:2] = torch.tensor([0, vocab_size - 1])
    return logits, targets


@every_dtype
@every_vocab_size
def test_gradients_and_log_p_of_rows(vocab_size, dtype):
    logits, targets = random_case(vocab_size, dtype)
    counted = torch.ones(ROWS, dtype=torch.bool)
    counted[IGNORED] = False
    found, expected = both(logits, targets, counted, smoothing=0.1)
    assert_same(found, expected)
    assert not found[0][IGNORED].any() and found[0][1:7].any(1).all()
    # The rows of softmax sum to 1, those of the gradient to e.
    sums = found[0][counted].double().sum(1)
    torch.testing.assert_close(sums, torch.full_like(sums, 0.1), rtol=0, atol=0.03 if dtype != torch.float32 else 1e-5)


@every_vocab_size
def test_rows_may_have_a_larger_stride(vocab_size):
    logits, targets = random_case(vocab_size)
    padded = torch.full((ROWS, vocab_size + 9), NAN)[:, :vocab_size].copy_(logits)
    found, expected = (torch.full((2, ROWS, 1), 77.0) for _ in range(2))
    for each, outputs in ((padded, found), (logits, expected)):
        loss_kernel.overwrite_with_gradient(each, targets[:, None], torch.ones(ROWS, dtype=torch.bool), 0.1, True,
                                            *outputs)
    assert_same([padded, found], [logits, expected])                            # sums may have another order


@every_vocab_size
def test_without_gradient_the_logits_stay_as_they_are(vocab_size):
    logits, targets = random_case(vocab_size)
    found, expected = both(logits, targets, differentiate=False)
    assert_same(found, expected)
    assert torch.equal(found[0], logits)


@pytest.mark.parametrize("offset", [0.0, -3e4, 3e4])
def test_large_logits_do_not_overflow(offset):
    logits, targets = random_case(5_003, spread=300.0)
    found, expected = both(logits + offset, targets)
    assert_same(found, expected)
    assert found[2].isfinite().all() and found[2].min().item() == LOWEST_LOG_P


def test_impossible_tokens_have_no_probability():
    logits, targets = random_case(9_001)
    logits[0, 1:] = -INF                                                        # only the target is possible
    logits[1, :8_500] = -INF                                                    # the first two blocks are impossible
    logits[2, 4_000:] = -INF                                                    # the last two
    logits[3, targets[3]] = -INF                                                # the target itself
    found, expected = both(logits, targets)
    assert_same(found, expected)
    assert found[0].isfinite().all() and not found[0][1, :8_500].any()
    assert found[2][0].item() == 0 and found[1][3].item() == -INF and found[2][3].item() == LOWEST_LOG_P


@pytest.mark.parametrize("position", [0, 4_095, 4_096, 9_000])
@pytest.mark.parametrize("value", [NAN, INF])
def test_a_row_that_is_not_finite_has_a_gradient_of_nan_also_if_it_does_not_count(value, position):
    logits, targets = random_case(9_001)
    logits[[3, 5], position] = value
    counted = torch.ones(ROWS, dtype=torch.bool)
    counted[5] = False
    found, expected = both(logits, targets, counted)
    assert_same(found, expected)
    wrong = [row in (3, 5) for row in range(ROWS)]
    assert found[0].isnan().all(1).tolist() == found[0].isnan().any(1).tolist() == wrong
    assert found[2].isnan().squeeze(1).tolist() == wrong


def test_a_row_without_a_possible_token_is_nan():
    logits, targets = random_case(5_003)
    logits[4] = -INF
    found, expected = both(logits, targets)
    assert_same(found, expected)
    assert found[0][4].isnan().all() and found[2][4].isnan() and found[0][5].isfinite().all()


def test_a_target_outside_of_the_vocabulary_is_nan():
    logits, targets = random_case(1_000)
    targets[2] = 1_000
    gradient, outputs = logits.clone(), torch.empty(2, ROWS, 1)
    loss_kernel.overwrite_with_gradient(gradient, targets[:, None], torch.ones(ROWS, dtype=torch.bool), 0.1, True,
                                        *outputs)
    only_third = [row == 2 for row in range(ROWS)]
    assert gradient.isnan().all(1).tolist() == outputs[1].isnan().squeeze(1).tolist() == only_third


# The whole loss


def arguments(vocab_size, dtype, bias, rows=ROWS):
    generator = torch.Generator().manual_seed(1)
    shapes = [(rows, D_MODEL), (vocab_size, D_MODEL)] + [(vocab_size,)] * bias
    parts = [torch.randn(shape, generator=generator).to(dtype).requires_grad_() for shape in shapes]
    return parts, Logits(*parts) if bias else Logits(*parts, None)


def loss_and_gradients(target, vocab_size, dtype, bias, smoothing):
    parts, logits = arguments(vocab_size, dtype, bias, len(target))
    loss = smoothed_cross_entropy(logits, target, int((target >= 0).sum()), smoothing)
    return [loss.total.detach(), loss.log_probabilities, *torch.autograd.grad(3 * loss.total, parts)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@every_vocab_size
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_and_all_gradients(kernel, monkeypatch, vocab_size, dtype, bias, smoothing):
    _, target = random_case(vocab_size)
    target[IGNORED] = IGNORE_INDEX
    found = loss_and_gradients(target, vocab_size, dtype, bias, smoothing)
    assert len(kernel) == 3
    monkeypatch.setattr(loss_module, "gradient_function", lambda *_: loss_module.overwrite_with_gradient)
    expected = loss_and_gradients(target, vocab_size, dtype, bias, smoothing)
    assert len(kernel) == 3 and not found[1][IGNORED].any()
    for one, other in zip(found, expected, strict=True):
        # A rounded number of the logits' gradient may differ in its last bit, which the products add up.
        torch.testing.assert_close(one, other, rtol=close(dtype)["rtol"],
                                   atol=close(dtype)["rtol"] * float(other.abs().max()))


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
def test_no_tokens_cost_nothing(kernel, bias):
    total, log_probabilities, *gradients = loss_and_gradients(torch.empty(0, dtype=torch.int64), 1_000, torch.float32,
                                                              bias, 0.1)
    assert len(kernel) == 1 and total.item() == 0 and log_probabilities.shape == (0,)
    assert [gradient.shape for gradient in gradients] == [(0, D_MODEL), (1_000, D_MODEL), (1_000,)][: 2 + bias]
    assert not any(gradient.any() for gradient in gradients)


def test_tensors_without_gradients_get_the_same_loss_without_computing_gradients(kernel):
    _, target = random_case(1_000)
    parts, logits = arguments(1_000, torch.float32, bias=True)
    loss = smoothed_cross_entropy(logits, target, ROWS, 0.1)
    without = smoothed_cross_entropy(Logits(*(part.detach() for part in parts)), target, ROWS, 0.1)
    assert [differentiate for *_, differentiate, _, _ in kernel] == [True] * 3 + [False] * 3
    assert not without.total.requires_grad and torch.equal(without.total, loss.total.detach())
    assert torch.equal(without.log_probabilities, loss.log_probabilities)


def test_a_loss_with_nan_has_gradients_of_nan(kernel):
    _, target = random_case(1_000)
    (hidden, weight), logits = arguments(1_000, torch.bfloat16, bias=False)
    with torch.no_grad():
        hidden[3, 0] = NAN
    total = smoothed_cross_entropy(logits, target, ROWS, 0.1).total
    assert total.isnan() and torch.autograd.grad(total, weight)[0].isnan().all()
