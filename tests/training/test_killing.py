"""Trainings that are killed at random moments and resumed give the results of an uninterrupted training."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from killing import PHASES
from toy import RECIPE, write_corpus

HARNESS = Path(__file__).parents[1] / "killing.py"


def kill(folder: Path, seed: int, kills: int) -> dict:
    write_corpus(folder)
    recipe = folder / "recipe.yaml"
    recipe.write_text(RECIPE.replace("vocab_size: 300", "vocab_size: 300, subword_sampling: 0.1").replace(
        "  max_steps: 11", "  max_steps: 17\n  accumulation: 2\n  average: {kind: best, count: 2}"))
    done = subprocess.run([sys.executable, HARNESS, recipe, folder, str(seed), str(kills)], capture_output=True,
                          text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
def test_resuming_after_a_kill_gives_the_same_results(tmp_path):
    found = kill(tmp_path, seed=3, kills=1)
    assert found["differences"] == []
    assert Counter(found["kills"]).total() == 1


@pytest.mark.slow
def test_resuming_after_a_hundred_kills_in_all_phases_gives_the_same_results(tmp_path):
    found = kill(tmp_path, seed=7, kills=110)
    assert found["differences"] == []
    assert Counter(found["kills"]).total() == 110
    assert found["kills"].keys() == PHASES.keys()
