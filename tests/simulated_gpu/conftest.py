"""Simulated GPU for the cases, which run in a process with the device guard."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(autouse=True)
def _without_search_kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Search without kernels, except in cases and modules that ask for `search_kernels`: in Triton's interpreter, a
    program of a kernel takes 10 milliseconds."""
    try:
        from seq2seq.inference.static import StaticEngine
    except ImportError:                                                         # no Triton
        return
    if "search_kernels" not in request.fixturenames:
        monkeypatch.setattr(StaticEngine, "serves", lambda *_: False)


@pytest.fixture
def search_kernels() -> None:
    """Ask for the kernels of beam search (see above)."""
    pytest.importorskip("triton")


@pytest.fixture
def gpu() -> Iterator[Any]:
    """A simulated GPU for the whole test."""
    from simulation import SimulatedGPU

    with SimulatedGPU() as running:
        yield running
