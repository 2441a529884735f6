"""The simulated GPU itself: what it refuses, what it counts, and its CUDA graphs."""

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from simulation import DeviceMismatch

from seq2seq.inference.cuda_graphs import CudaGraphs
from seq2seq.training.step_results import StepResult, StepResults
from seq2seq.training.train_state import TrainState


def on_gpu(*shape, dtype=torch.float32):
    return torch.ones(shape, device="cuda", dtype=dtype)


def test_tensors_say_that_they_are_on_the_gpu(gpu):
    weight = torch.arange(6.0).view(2, 3).to("cuda")
    assert (weight.device, weight.is_cuda, weight.shape) == (torch.device("cuda:0"), True, (2, 3))
    assert weight.T.stride() == (1, 3)
    assert weight.sum().item() == 15 and weight.cpu().device.type == "cpu"
    with pytest.raises(TypeError, match="can't convert cuda:0"):
        weight.numpy()


@pytest.mark.parametrize("mixed", [
    lambda host: host + on_gpu(3), lambda host: on_gpu(3) * host, lambda host: on_gpu(2, 3) @ host,
    lambda host: host[torch.tensor([0], device="cuda")], lambda host: torch.cat([host, on_gpu(3)]),
    lambda host: on_gpu(3).masked_fill(host > 0, 1.0), lambda host: F.embedding(host.long(), on_gpu(3, 2)),
    lambda host: F.scaled_dot_product_attention(on_gpu(1, 3), on_gpu(1, 3), host[None]),
], ids=["add", "multiply", "matmul", "index", "cat", "mask", "embedding", "attention"])
def test_tensors_of_two_devices_do_not_mix(gpu, mixed):
    with pytest.raises(DeviceMismatch, match="mixes tensors of cuda:0"):
        mixed(torch.ones(3))


@pytest.mark.parametrize(("waiting", "reason"), [
    (lambda: on_gpu(3).cpu(), "copy to the host"),
    (lambda: torch.ones(3).to("cuda"), "copy to the GPU"),
    (lambda: torch.ones(3).to("cuda", non_blocking=True), "copy to the GPU from memory that is not pinned"),
    (lambda: torch.ones(3).copy_(on_gpu(3)), "copy to the host"),
    (lambda: on_gpu(3).copy_(torch.ones(3)), "copy to the GPU"),
    (lambda: torch.tensor([1.0, 2.0], device="cuda"), "copy to the GPU"),
    (lambda: on_gpu(1).item(), "_local_scalar_dense"), (lambda: bool(on_gpu(1)), "_local_scalar_dense"),
    (lambda: on_gpu(3).nonzero(), "nonzero"), (lambda: on_gpu(3)[on_gpu(3) > 0], "boolean index"),
    (lambda: on_gpu(3)[torch.tensor([1])], "index on the host"),
    (lambda: torch.equal(on_gpu(3), on_gpu(3)), "equal"),
    (lambda: torch.repeat_interleave(on_gpu(3), on_gpu(3).long()), "repeat_interleave without output_size"),
])
def test_what_makes_the_host_wait_is_counted(gpu, waiting, reason):
    waiting()
    assert gpu.record.waits == {(reason, "outside of seq2seq"): 1}


@pytest.mark.parametrize("passing", [
    lambda: torch.ones(3).pin_memory().to("cuda", non_blocking=True),
    lambda: torch.zeros(3, device="cuda").add_(1).sum(), lambda: on_gpu(3).topk(2), lambda: on_gpu(3).new_full((2,), 7),
    lambda: torch.repeat_interleave(on_gpu(3), on_gpu(3).long(), output_size=3), lambda: torch.ones(3).sum().item(),
])
def test_what_the_host_need_not_wait_for_is_not_counted(gpu, passing):
    passing()
    assert not gpu.record.waits


def test_a_wait_is_found_in_the_line_that_causes_it(gpu, tmp_path):
    results = StepResults(TrainState(), SimpleNamespace(lines=None), torch.float32)
    results.add(StepResult(1, on_gpu(3).double(), [], 2, 2))
    assert not gpu.record.waits
    results.read()
    ((reason, place), count), = gpu.record.waits.items()
    assert (reason, count) == ("copy to the host", 1) and place.startswith("training/step_results.py:")


@pytest.mark.parametrize(("deterministic", "waits"), [(False, []), (True, ["deterministic scatter_add_"])])
def test_deterministic_scatters_of_tensors_wait(gpu, monkeypatch, deterministic, waits):
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: deterministic)
    rows, places = on_gpu(2, 3), torch.zeros(2, 1, dtype=torch.int64).pin_memory().to("cuda", non_blocking=True)
    rows.scatter_(1, places, 7, reduce="add")
    assert not gpu.record.waits
    rows.scatter_add_(1, places, on_gpu(2, 1))
    assert [reason for reason, _ in gpu.record.waits] == waits


# CUDA graphs


def captured(function):
    graph = torch.cuda.CUDAGraph()
    graph.capture_begin()
    try:
        function()
    finally:
        graph.capture_end()
    return graph


def test_a_capture_computes_nothing_and_a_replay_repeats_it_on_the_same_tensors(gpu):
    total, numbers, out = torch.zeros(2, device="cuda"), on_gpu(2, 3), torch.zeros(2, 3, device="cuda")
    step = torch.ones(1, dtype=torch.int64, device="cuda")
    gpu.record.clear()

    def function():
        doubled = numbers * 2
        total.add_(doubled[:, 1:].sum(1))
        torch.add(doubled.T.T, 1, out=out)
        numbers.index_copy_(1, step, total[:, None])
        torch.nn.functional.scaled_dot_product_attention(numbers[None], numbers[None], out[None])

    graph = captured(function)
    assert not gpu.record.operators
    assert (total.tolist(), numbers.tolist(), out.tolist()) == ([0, 0], [[1, 1, 1]] * 2, [[0, 0, 0]] * 2)
    graph.replay()
    assert (total.tolist(), numbers.tolist(), out.tolist()) == ([4, 4], [[1, 4, 1]] * 2, [[3, 3, 3]] * 2)
    step += 1
    graph.replay()
    assert (total.tolist(), numbers.tolist(), out.tolist()) == ([14, 14], [[1, 4, 14]] * 2, [[3, 9, 3]] * 2)
    assert gpu.record.operators["graph"] == 2 and not gpu.record.operators["aten.mul.Tensor"]


def test_a_replay_does_not_know_new_tensors_and_new_numbers_of_python(gpu):
    place = SimpleNamespace(tensor=torch.zeros(1, device="cuda"), number=1)
    before = place.tensor
    graph = captured(lambda: place.tensor.add_(place.number))
    place.tensor, place.number = torch.zeros(1, device="cuda"), 5
    graph.replay()
    assert (before.tolist(), place.tensor.tolist()) == ([1], [0])


def test_a_replay_needs_its_tensors(gpu):
    inputs, result = [on_gpu(1)], on_gpu(1)
    graph = captured(lambda: result.add_(inputs[0]))
    graph.replay()
    inputs.clear()
    with pytest.raises(AssertionError, match="deleted"):
        graph.replay()


@pytest.mark.parametrize("waiting", [lambda: on_gpu(1).item(), lambda: torch.ones(3).to("cuda"),
                                     lambda: on_gpu(2).cpu()])
def test_a_capture_refuses_what_makes_the_host_wait(gpu, waiting):
    numbers = on_gpu(2)
    with pytest.raises(RuntimeError, match="due to a previous error during capture"):
        captured(lambda: numbers.add_(1) is waiting())
    assert numbers.tolist() == [1, 1] and captured(lambda: numbers.add_(1)).operators


def test_graphs_are_deleted_while_no_other_thread_captures(gpu):
    numbers, graphs, made = on_gpu(2), CudaGraphs(torch.device("cuda", 0)), {}
    for _ in range(2):
        graphs.run(lambda: numbers.add_(1), "key", made)
    graphs.delete(made)                                                         # see `wait_for_device` in graphs.py
    CudaGraphs.free_unused_memory()
    assert not made and not CudaGraphs.capturing.locked()


def test_a_first_call_without_enough_memory_is_followed_by_another_first_call(gpu):
    numbers, graphs, made, calls = on_gpu(2), CudaGraphs(torch.device("cuda", 0)), {}, []

    def function():
        calls.append(gpu.capture is None)
        if len(calls) == 1:
            raise torch.OutOfMemoryError("full")
        numbers.add_(1)

    with pytest.raises(torch.OutOfMemoryError):
        graphs.run(function, "key", made)
    for count in (2, 3, 4):
        graphs.run(function, "key", made)
        assert numbers.tolist() == [count, count]
    assert calls == [True, True, False] and made["key"].replays == 2


@pytest.mark.parametrize("failures", [1, 2])
def test_a_capture_without_enough_memory_is_tried_once_more_with_the_memory_that_is_kept(gpu, monkeypatch, capsys,
                                                                                         failures):
    numbers, graphs, made, calls, freed = on_gpu(2), CudaGraphs(torch.device("cuda", 0)), {}, [], []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: freed.append(len(calls)))

    def function():
        calls.append(gpu.capture is not None)
        numbers.add_(1)
        if calls.count(True) <= failures and calls[-1]:
            raise torch.OutOfMemoryError("full")

    for count in (2, 3, 4):
        graphs.run(function, "key", made)
        assert numbers.tolist() == [count, count]
    assert freed == [2] and graphs.enabled == (failures == 1) == bool(made["key"])
    assert ("could not be captured: full" in capsys.readouterr().err) == (failures == 2)


def test_a_capture_returns_no_memory_to_the_driver(gpu, monkeypatch):
    returned = []
    for name in ("synchronize", "empty_cache"):
        monkeypatch.setattr(torch.cuda, name, lambda *_, name=name: returned.append(name))
    numbers, graphs, made = on_gpu(2), CudaGraphs(torch.device("cuda", 0)), {}
    for _ in range(2):
        graphs.run(lambda: numbers.add_(1), "key", made)
    assert made["key"] and not returned
