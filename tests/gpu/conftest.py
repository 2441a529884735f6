"""A real GPU for the tests of this folder. tests/simulated_gpu runs them with a simulated one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
import torch


@pytest.fixture
def without_waits() -> Callable[[], AbstractContextManager[None]]:
    """Function that makes a context in which the host must not wait for the GPU; skips the test without a GPU."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")

    @contextmanager
    def refusing() -> Iterator[None]:
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")

    return refusing
