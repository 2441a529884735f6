"""Training, translation and a server without the calls that only POSIX systems have."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from toy import RECIPE, write_corpus

TESTS = Path(__file__).parent


def run(directory, *arguments, given=""):
    """Return the standard output of a command. Without `main`, it would have the encoding of Western Europe."""
    done = subprocess.run([sys.executable, str(TESTS / "like_windows.py"), *arguments], cwd=directory, input=given,
                          capture_output=True, encoding="utf-8", timeout=300,
                          env=os.environ | {"PYTHONIOENCODING": "cp1252",
                                            "TMPDIR": str(directory)})
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.slow
def test_training_and_translating_need_no_call_that_windows_lacks(tmp_path):
    write_corpus(tmp_path)
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    run(tmp_path, "train", "recipe.yaml", "--run-dir", "run", "--set", "training.max_steps=5")
    run(tmp_path, "train", "recipe.yaml", "--run-dir", "run")                                   # resumes
    run(tmp_path, "translate", "run", "valid.en", "--output", "out")
    assert len((tmp_path / "out").read_text().splitlines()) == 7
    run(tmp_path, "evaluate", "run")
    assert "─" in run(tmp_path, "check", "recipe.yaml")
    scores = run(tmp_path, "evaluate", "-", "--reference", "valid.en",
                 given=(tmp_path / "valid.en").read_text())
    assert "BLEU  100.00" in scores
