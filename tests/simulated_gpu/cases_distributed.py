"""Process groups on GPUs, as far as a single process can test them."""

import socket
from contextlib import nullcontext

import pytest
import torch
import torch.distributed as dist
from torch.distributed import HashStore

from seq2seq import console
from seq2seq.training import distributed
from seq2seq.training.distributed import join_process_group
from seq2seq.training.joining import Member


@pytest.fixture
def third_of_four(gpu, monkeypatch):
    """Environment of the third rank of four, which is the second on its machine; returns the groups that it makes."""
    for name, value in {"WORLD_SIZE": 4, "RANK": 2, "LOCAL_RANK": 1, "MASTER_ADDR": "here"}.items():
        monkeypatch.setenv(name, str(value))
    groups = []
    members = [Member(socket.gethostname(), "H200", "", "")] * 4
    monkeypatch.setattr(distributed, "connect_to_store", lambda *arguments, **options: HashStore())
    monkeypatch.setattr(distributed, "meet", lambda *arguments: (list(members), "attempt"))
    monkeypatch.setattr(distributed, "first_to_say", lambda attempt: None)
    monkeypatch.setattr(console, "silence", lambda *arguments: None)            # it would last until the process ends
    monkeypatch.setattr(distributed, "_end_at_exit", lambda error: None)        # likewise
    monkeypatch.setattr(dist, "init_process_group", lambda backend, **options: groups.append((backend, options)))
    monkeypatch.setattr(dist, "new_group", lambda backend, **options: groups.append((backend, options)) or backend)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "H200")
    monkeypatch.setattr(distributed, "watch_ranks", lambda names, rank, group: nullcontext())   # there are no others
    monkeypatch.setattr(dist, "destroy_process_group", lambda: groups.append("destroyed"))
    return groups


@pytest.mark.parametrize("device", ["auto", "cuda"])
def test_gpus_sum_gradients_by_nccl_and_hosts_wait_by_gloo(gpu, third_of_four, device):
    with join_process_group(device) as group:
        assert (group.rank, group.world_size, group.gradients) == (2, 4, "nccl")
    (hosts, waiting), (gpus, summing), (watching, _), end = third_of_four
    assert (hosts, gpus, watching, end) == ("gloo", "nccl", "gloo", "destroyed")
    assert summing["device_id"] == torch.device("cuda", 1) and summing["timeout"] < waiting["timeout"]


def test_trainings_on_cpus_have_one_group(gpu, third_of_four):
    with join_process_group("cpu") as group:
        assert group.gradients is None
    assert [backend for backend, _ in third_of_four[:-1]] == ["gloo", "gloo"]


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_a_rank_with_an_error_does_not_wait_for_others(gpu, third_of_four, device):
    with pytest.raises(RuntimeError), join_process_group(device):
        raise RuntimeError("another rank has ended")
    assert "destroyed" not in third_of_four
