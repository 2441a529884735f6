"""A real GPU for the tests of this folder. tests/simulated_gpu runs them with a simulated one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
import torch
from toy import RECIPE, write_corpus

from seq2seq.recipe import Recipe, load_recipe


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


@pytest.fixture
def toy_recipe(tmp_path: Path) -> Callable[..., Recipe]:
    """Recipe of the toy corpus with some settings, without dropout, whose masks differ between devices."""
    write_corpus(tmp_path)
    (tmp_path / "recipe.yaml").write_text(RECIPE.replace("dropout: 0.1", "dropout: 0.0"))
    return lambda *settings: load_recipe(tmp_path / "recipe.yaml", settings)
