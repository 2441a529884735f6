"""The tests for a real GPU (tests/gpu), on the simulated one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
import torch.distributed as dist
from simulation import SimulatedGPU

from seq2seq.training.distributed import ProcessGroup

sys.path.append(str(Path(__file__).parents[1] / "gpu"))
from test_gpu import *  # noqa: E402, F403
from test_gpu_kernels import *  # noqa: E402, F403

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("quick_tensorboard", "without_waits")]


for name in ("test_searches_with_the_gpu_find_what_the_search_on_the_cpu_finds",
             "test_a_search_in_16_bits_finds_hypotheses_as_probable_as_the_operators_of_pytorch"):
    globals()[name] = pytest.mark.usefixtures("search_kernels")(globals()[name])


@pytest.fixture
def without_waits(gpu: SimulatedGPU) -> Callable[[], AbstractContextManager[None]]:
    """Function that makes a context in which the host must not wait for the simulated GPU."""
    @contextmanager
    def refusing() -> Iterator[None]:
        gpu.record.clear()
        yield
        assert not gpu.record.waits

    return refusing


@pytest.fixture
def sums_by_nccl(gpu: SimulatedGPU) -> Iterator[ProcessGroup]:
    """A process group of one rank that sends its sums to a backend which does nothing."""
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    yield ProcessGroup(gradients=dist.new_group(backend="fake"))
    dist.destroy_process_group()
