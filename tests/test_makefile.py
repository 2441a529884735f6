"""pip commands of `make setup`, and the targets that the workflow runs."""

import os
import pty
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# Script that replaces Python before and inside the environment, and writes its arguments and pip settings to a file.
PYTHON = """#!/bin/sh
echo "$@" >> {calls}
env | grep ^PIP_ >> {calls}
if [ "$2" = venv ]; then mkdir -p .venv/bin; cp "$0" .venv/bin/python; fi
"""


pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
SETTINGS = {"PIP_EXTRA_INDEX_URL": "https://localhost/cpu", "PIP_CONSTRAINT": "own.txt"}


@pytest.fixture
def set_up(tmp_path):
    """Return a function that runs `make setup` with an output, and returns the arguments and settings of Python."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt", "setup.py"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "seq2seq/inference", tmp_path / "seq2seq/inference")
    calls, python = tmp_path / "calls", tmp_path / "python"
    python.write_text(PYTHON.format(calls=calls))
    python.chmod(0o755)

    def run(output):
        subprocess.run(["make", "setup", f"PYTHON={python}"], cwd=tmp_path, check=True, env=os.environ | SETTINGS,
                       stdout=output)
        return calls.read_text()
    return run


def test_setup_keeps_to_pips_own_settings(set_up):
    told = set_up(subprocess.DEVNULL)
    assert "-m pip install" in told and "--constraint constraints.txt" in told
    for option in ("--index-url", "--extra-index-url", "--no-index", "--isolated", "--no-cache-dir"):
        assert option not in told, "an option takes the place of a setting"
    for name, value in SETTINGS.items():
        assert told.count(f"{name}={value}\n") == 2                              # for the environment, and for pip


def test_setup_shows_pips_progress_in_a_terminal_and_keeps_it_out_of_a_log(set_up, tmp_path):
    assert "install --quiet" in set_up(subprocess.DEVNULL)
    (tmp_path / "calls").unlink()
    (tmp_path / ".venv/.ready").unlink()
    here, there = pty.openpty()
    try:
        told = set_up(there)
    finally:
        os.close(there)
        os.close(here)
    assert "-m pip install --disable" in told and "--quiet" not in told


def test_the_workflow_runs_targets_of_the_makefile():
    workflow, makefile = ((ROOT / name).read_text() for name in (".github/workflows/ci.yml", "Makefile"))
    called = set(re.findall(r"run: make ([\w-]+)$", workflow, re.MULTILINE))
    assert called == {"setup", "check", "test", "docs", "wheels"}
    assert called <= set(re.findall(r"[\w-]+(?=:)", makefile))
