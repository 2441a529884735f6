"""The Triton kernels: where they are used, their results in Triton's interpreter, and their compilation for GPUs.

Neither the interpreter nor the compiler needs a GPU. The cases of a kernel, cases_*.py, compare it with PyTorch's
operators, and list launches to compile, `LAUNCHES`. tests/gpu compares the results on a GPU.
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from seq2seq.model import kernels
from seq2seq.model.attention import runs_packed
from seq2seq.model.kernels import multiplies_in_loops, usable
from seq2seq.model.loss import gradient_function, overwrite_with_gradient

HERE = Path(__file__).parent
CASES = sorted(HERE.glob("cases_*.py"))
CUDA, CPU = torch.device("cuda", 0), torch.device("cpu")

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None,
                                  reason="Triton is not installed; it comes with PyTorch's CUDA build")


def skip_if_the_interpreter_cannot_run_loops():
    """Triton before 3.7 converts the bounds of a loop with `int(np.array([1]))`, which NumPy 2.4 refuses."""
    import triton

    if tuple(map(int, triton.__version__.split(".")[:2])) < (3, 7):
        try:
            int(np.array([1]))
        except TypeError:
            pytest.skip(f"the interpreter of Triton {triton.__version__} cannot run loops with NumPy {np.__version__}")


def run_cases(path, marked):
    skip_if_the_interpreter_cannot_run_loops()
    around = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    folders = [str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", "--tb", "short",
               "-W", "ignore::RuntimeWarning", "-m", marked, path]
    done = subprocess.run(list(map(str, command)), cwd=HERE.parents[2], capture_output=True, text=True, timeout=1200,
                          env={**around, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(folders)})
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "skipped" not in done.stdout


@needs_triton
@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_a_kernel_equals_the_operators_of_pytorch_in_the_interpreter(path):
    run_cases(path, "not slow")


@pytest.mark.slow
@needs_triton
@pytest.mark.parametrize("path", [path for path in CASES if "mark.slow" in path.read_text()],
                         ids=lambda path: path.stem)
def test_slow_cases_of_a_kernel_pass_in_the_interpreter(path):
    run_cases(path, "slow")


@pytest.mark.slow
@needs_triton
@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_a_kernel_compiles_without_spilled_registers(path, capability, tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.syspath_prepend(HERE)
    from compiling import compiling

    launches = importlib.import_module(path.stem).LAUNCHES
    for name, launch in launches.items():
        with compiling(capability) as binaries:
            launch()
        assert binaries, name
        for binary in binaries:
            print(f"sm_{capability} {name}: {binary}")
            assert binary.stack == 0, f"{name}: {binary}"
            assert binary.shared <= 99 * 1024, f"{name}: {binary}"              # RTX 30, 40 and 50 have no more


@pytest.mark.slow
@needs_triton
def test_the_loss_reads_padded_rows_16_bytes_at_once(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.syspath_prepend(HERE)
    from compiling import compiling

    from seq2seq.model.kernels.loss import overwrite_with_gradient

    wide = []
    for stride in (37_000, 37_008, 32_000):
        logits, outputs = torch.zeros(2, stride, dtype=torch.bfloat16), torch.zeros(2, 2, 1)
        with compiling(90) as binaries:
            overwrite_with_gradient(logits[:, : min(stride, 37_000)], torch.zeros(2, 1, dtype=torch.int64),
                                    torch.ones(2, dtype=torch.bool), 0.1, True, *outputs)
        wide.append(binaries[0].wide)
    assert wide[0] == 0 and wide[1] == wide[2] > 0


# The choice of the implementation


@pytest.fixture
def probes(monkeypatch):
    """Devices on which a kernel has been tried, for a PyTorch and a device that seem to have CUDA."""
    calls = []
    probe = SimpleNamespace(run=calls.append)
    monkeypatch.setattr(kernels, "probe", probe, raising=False)
    monkeypatch.setitem(sys.modules, "seq2seq.model.kernels.probe", probe)
    monkeypatch.setitem(sys.modules, "seq2seq.model.kernels.loss",
                        SimpleNamespace(overwrite_with_gradient="the kernel"))
    monkeypatch.setattr(kernels, "loss", sys.modules["seq2seq.model.kernels.loss"], raising=False)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    usable.cache_clear()
    yield calls
    usable.cache_clear()


def test_gpus_use_the_kernels_after_one_launch(probes):
    for _ in range(3):
        assert usable(CUDA)
        assert gradient_function(CUDA, torch.bfloat16) == "the kernel"
    assert probes == [CUDA]


@pytest.mark.parametrize(("device", "dtype"), [(CPU, torch.float32), (CPU, torch.bfloat16), (CUDA, torch.float64)],
                         ids=str)
def test_cpus_and_float64_use_the_operators_of_pytorch(probes, device, dtype):
    assert gradient_function(device, dtype) is overwrite_with_gradient and not probes


def test_a_pytorch_without_cuda_uses_its_operators(probes, monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", None)
    assert not usable(CUDA) and not probes


def test_without_triton_gpus_use_the_operators_of_pytorch(probes, monkeypatch, capsys):
    monkeypatch.delattr(kernels, "probe")
    monkeypatch.delitem(sys.modules, "seq2seq.model.kernels.probe")
    monkeypatch.setitem(sys.modules, "triton", None)                            # cannot be imported
    assert gradient_function(CUDA, torch.bfloat16) is overwrite_with_gradient
    assert not capsys.readouterr().err


def fail(error):
    def run(_):
        raise error

    return run


def test_kernels_that_cannot_run_are_replaced_with_one_warning(probes, monkeypatch, capsys):
    monkeypatch.setattr(kernels.probe, "run", fail(RuntimeError("Failed to find C compiler.")))
    for _ in range(3):
        assert gradient_function(CUDA, torch.bfloat16) is overwrite_with_gradient
    assert capsys.readouterr().err.count("warning") == 1


@pytest.mark.parametrize(("capability", "version", "right"), [
    ((10, 0), "3.6.0", False), ((10, 3), "3.7.0+git1234", False), ((10, 0), "3.7.1", True), ((10, 3), "3.10.0", True),
    ((8, 0), "3.6.0", True), ((9, 0), "3.6.0", True), ((12, 0), "3.6.0", True)])
def test_attention_by_intervals_is_left_to_a_triton_that_computes_it_right(monkeypatch, capsys, capability, version,
                                                                           right):
    monkeypatch.setitem(sys.modules, "triton", SimpleNamespace(__version__=version))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "the card")
    monkeypatch.setattr("seq2seq.model.attention.usable_in_16_bits", lambda tensor: True)
    multiplies_in_loops.cache_clear()
    query = SimpleNamespace(shape=(7, 8, 64), device=CUDA)
    assert [runs_packed(query) for _ in range(3)] == [right] * 3
    assert capsys.readouterr().err.count("warning") == (not right)
    multiplies_in_loops.cache_clear()


def test_exhausted_memory_is_no_reason_to_replace_the_kernels(probes, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(kernels.probe, "run", fail(torch.OutOfMemoryError("full")))
        with pytest.raises(torch.OutOfMemoryError):
            usable(CUDA)
    assert usable(CUDA)
