"""Commands that are killed at random moments and run again give the results of uninterrupted commands."""

import subprocess
import sys
from pathlib import Path

import pytest

HARNESS = Path(__file__).parents[1] / "killing.py"


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "kills"), [
    ("training", 5), ("back-translation", 3), ("adaptation", 2), ("translation", 5)])
def test_a_command_that_is_killed_and_run_again_gives_the_same_result(kind, kills):
    """Kill a few times, because each kill runs the command twice; after changes, run killing.py with many kills."""
    done = subprocess.run([sys.executable, HARNESS, kind, str(kills)], capture_output=True, text=True)
    assert done.stdout.endswith(f"\n{kills} of {kills} equal\n"), done.stdout + done.stderr
