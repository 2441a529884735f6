"""Simulated GPU and small data for the cases, which run in a process with the device guard."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from toy import RECIPE, write_corpus

from seq2seq.recipe import Recipe, load_recipe


@pytest.fixture
def gpu() -> Iterator[Any]:
    """A simulated GPU for the whole test."""
    from simulation import SimulatedGPU

    with SimulatedGPU() as running:
        yield running


@pytest.fixture
def toy_recipe(tmp_path: Path) -> Callable[..., Recipe]:
    """Recipe of the toy corpus with some settings, without dropout, whose masks differ between devices."""
    write_corpus(tmp_path)
    (tmp_path / "recipe.yaml").write_text(RECIPE.replace("dropout: 0.1", "dropout: 0.0"))
    return lambda *settings: load_recipe(tmp_path / "recipe.yaml", settings)
