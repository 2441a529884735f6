"""Process groups on GPUs, as far as a single process can test them."""

import pytest
import torch
import torch.distributed as dist

from seq2seq.training.distributed import join_process_group


@pytest.fixture
def third_of_four(monkeypatch):
    """Environment of the third rank of four, which is the second on its machine; returns the arguments of the group."""
    for name, value in {"WORLD_SIZE": 4, "RANK": 2, "LOCAL_RANK": 1}.items():
        monkeypatch.setenv(name, str(value))
    given = {}
    monkeypatch.setattr(dist, "init_process_group", lambda backend, **options: given.update(options, backend=backend))
    monkeypatch.setattr(dist, "get_rank", lambda: 2)
    monkeypatch.setattr(dist, "destroy_process_group", lambda: None)
    return given


@pytest.mark.parametrize(("device", "backend", "device_id"), [
    ("auto", "nccl", torch.device("cuda", 1)), ("cuda", "nccl", torch.device("cuda", 1)), ("cpu", "gloo", None)])
def test_a_rank_tells_its_group_which_gpu_it_uses(gpu, third_of_four, device, backend, device_id):
    with join_process_group(device) as group:
        assert (group.rank, group.world_size) == (2, 4)
    assert (third_of_four["backend"], third_of_four["device_id"]) == (backend, device_id)
