"""Wall clock of a training, divided into phases."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

PHASES = ("computing", "waiting", "reading", "validating", "saving")
"""Phases of a training: steps, waiting for other ranks, planning and reading of batches, validation, saving."""


class Clock:
    """Wall-clock time since the last `pop`, divided into phases. Their sum is the whole time.

    At any moment the time counts for one phase: that of the innermost `phase` block, or "computing" outside of all
    blocks.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._phase, self._entered = PHASES[0], now()
        self._seconds = dict.fromkeys(PHASES, 0.0)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the time of the block for this phase."""
        outer = self._phase
        self._enter(name)
        try:
            yield
        finally:
            self._enter(outer)

    def pop(self) -> dict[str, float]:
        """Return the seconds of each phase since the last call, and begin anew. The present phase goes on."""
        self._enter(self._phase)
        seconds, self._seconds = self._seconds, dict.fromkeys(PHASES, 0.0)
        return seconds

    def _enter(self, phase: str) -> None:
        now = self._now()
        self._seconds[self._phase] += now - self._entered
        self._phase, self._entered = phase, now


def as_percentages(shares: Mapping[str, float]) -> list[str]:
    """Return texts such as "saving 3 %" for the phases besides the steps that take one per cent of the time or more.

    shares: of each phase, from 0 to 1.
    """
    return [f"{phase} {100 * shares[phase]:.0f} %" for phase in PHASES[1:] if shares[phase] >= 0.01]
