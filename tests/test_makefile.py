"""pip commands of `make setup`."""

import os
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


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_setup_keeps_to_pips_own_settings(tmp_path):
    for name in ("Makefile", "pyproject.toml", "constraints.txt", "setup.py"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "seq2seq/inference", tmp_path / "seq2seq/inference")
    calls, python = tmp_path / "calls", tmp_path / "python"
    python.write_text(PYTHON.format(calls=calls))
    python.chmod(0o755)
    settings = {"PIP_EXTRA_INDEX_URL": "https://localhost/cpu", "PIP_CONSTRAINT": "own.txt"}
    subprocess.run(["make", "setup", f"PYTHON={python}"], cwd=tmp_path, check=True, env=os.environ | settings,
                   capture_output=True)
    told = calls.read_text()
    assert "-m pip install" in told and "--constraint constraints.txt" in told
    for option in ("--index-url", "--extra-index-url", "--no-index", "--isolated", "--no-cache-dir"):
        assert option not in told, "an option takes the place of a setting"
    for name, value in settings.items():
        assert told.count(f"{name}={value}\n") == 2                              # for the environment, and for pip
