"""Trainings and translations on a simulated GPU (simulation.py), in processes of their own.

The device guard must be loaded before torch, and changes what torch is for the rest of the process. So the
cases run in a pytest of their own.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from device_guard import LIBRARY, compile_guard, compiler

HERE = Path(__file__).parent
QUICK, FILES = HERE / "cases_training.py", sorted(HERE.glob("cases_*.py"))

pytestmark = [
    pytest.mark.skipif(torch.version.cuda is not None, reason="this PyTorch has a device guard for real GPUs"),
    pytest.mark.skipif(compiler() is None, reason="no C++ compiler for the device guard of the simulated GPU"),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the device guard is loaded as Linux does it"),
]


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    path = tmp_path_factory.mktemp("device_guard") / "libdevice_guard.so"
    compile_guard(path)
    return path


def run_cases(library, marked, folder, files):
    """Run the cases in an environment that torchrun and pytest-xdist have left no variable in."""
    around = {key: value for key, value in os.environ.items()
              if not key.startswith(("PYTEST_", "RANK", "WORLD_SIZE", "LOCAL_"))}
    path = [str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
    command = [sys.executable, "-m", "pytest", "-p", "device_guard", "-p", "no:cacheprovider", "-p", "no:xdist",
               "-m", marked, "--basetemp", folder / "cases", "--tb", "short", *files]
    done = subprocess.run(list(map(str, command)), cwd=HERE.parents[1], capture_output=True, text=True, timeout=3600,
                          env={**around, LIBRARY: str(library), "PYTHONPATH": os.pathsep.join(path),
                               "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


def test_quick_cases_of_training_pass(library, tmp_path):
    run_cases(library, "not slow", tmp_path, [QUICK])


@pytest.mark.slow
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_all_other_cases_pass(library, tmp_path, path):
    run_cases(library, "slow" if path == QUICK else "", tmp_path, [path])
