"""Simulated GPU for the cases, which run in a process with the device guard."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture
def gpu() -> Iterator[Any]:
    """A simulated GPU for the whole test."""
    from simulation import SimulatedGPU

    with SimulatedGPU() as running:
        yield running
