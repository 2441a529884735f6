"""The Triton kernel of the loss: its choice, its results in Triton's interpreter, and its compilation for GPUs.

Neither the interpreter nor the compiler needs a GPU. tests/gpu compares the results on a GPU.
"""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import seq2seq.model
from seq2seq.model.loss import gradient_function, overwrite_with_gradient

CASES = Path(__file__).with_name("cases_loss_kernel.py")
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


@pytest.mark.slow
@needs_triton
def test_the_kernel_equals_the_operators_of_pytorch_in_the_interpreter():
    skip_if_the_interpreter_cannot_run_loops()
    around = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    path = [str(CASES.parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", "--tb", "short",
               "-W", "ignore::RuntimeWarning", CASES]
    done = subprocess.run(list(map(str, command)), cwd=CASES.parents[2], capture_output=True, text=True, timeout=600,
                          env={**around, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(path)})
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "skipped" not in done.stdout


@pytest.mark.slow
@needs_triton
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("capability", [80, 90])
def test_the_kernel_compiles_to_a_binary(capability, dtype, tmp_path, monkeypatch):
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.runtime.jit import mangle_type

    from seq2seq.model import loss_kernel

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    logits, outputs = torch.empty(2, 3, dtype=dtype), torch.empty(2, 2, 1)
    arguments = {"logits": logits, "vocab_size": 32_000, "targets": torch.zeros(2, 1, dtype=torch.int64),
                 "counted": torch.ones(2, dtype=torch.bool), "target_share": -0.9, "target_logits": outputs[0],
                 "target_log_p": outputs[1]}
    sizes = []
    for differentiate in (True, False):
        constants = {"DIFFERENTIATE": differentiate, "BLOCK": loss_kernel.BLOCK}
        signature = {name: mangle_type(value) for name, value in arguments.items()} | dict.fromkeys(constants,
                                                                                                    "constexpr")
        source = ASTSource(fn=loss_kernel._overwrite_row, signature=signature, constexprs=constants)
        compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32),
                                  options={"num_warps": loss_kernel.WARPS})
        assert re.search(rf"^\.target sm_{capability}a?$", compiled.asm["ptx"], re.MULTILINE)
        assert compiled.asm["cubin"].startswith(b"\x7fELF")
        sizes.append(compiled.asm["ptx"].count("st.global"))
    assert sizes[0] > sizes[1] == 2, "only log p and the target's logit are written without gradients"


# The choice of the implementation


@pytest.fixture
def launches(monkeypatch):
    """Arguments of the launches of a correct kernel, for a PyTorch and a device that seem to have CUDA."""
    calls = []
    kernel = SimpleNamespace(overwrite_with_gradient=lambda *arguments: (
        calls.append(arguments), overwrite_with_gradient(*arguments)))
    monkeypatch.setattr(seq2seq.model, "loss_kernel", kernel, raising=False)
    monkeypatch.setitem(sys.modules, "seq2seq.model.loss_kernel", kernel)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    zeros = torch.zeros
    monkeypatch.setattr(torch, "zeros", lambda *sizes, device, **options: zeros(*sizes, **options))
    gradient_function.cache_clear()
    yield calls
    gradient_function.cache_clear()


def test_gpus_use_the_kernel_after_one_launch(launches):
    for _ in range(3):
        assert gradient_function(CUDA, torch.bfloat16) is sys.modules["seq2seq.model.loss_kernel"
                                                                      ].overwrite_with_gradient
    (logits, *_), = launches
    assert logits.dtype == torch.bfloat16


@pytest.mark.parametrize(("device", "dtype"), [(CPU, torch.float32), (CPU, torch.bfloat16), (CUDA, torch.float64)],
                         ids=str)
def test_cpus_and_float64_use_the_operators_of_pytorch(launches, device, dtype):
    assert gradient_function(device, dtype) is overwrite_with_gradient and not launches


def test_a_pytorch_without_cuda_uses_its_operators(launches, monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", None)
    assert gradient_function(CUDA, torch.bfloat16) is overwrite_with_gradient and not launches


def test_without_triton_gpus_use_the_operators_of_pytorch(launches, monkeypatch, capsys):
    monkeypatch.delattr(seq2seq.model, "loss_kernel")
    monkeypatch.delitem(sys.modules, "seq2seq.model.loss_kernel")
    monkeypatch.setitem(sys.modules, "triton", None)                            # cannot be imported
    assert gradient_function(CUDA, torch.bfloat16) is overwrite_with_gradient
    assert not capsys.readouterr().err


def fail(error):
    def overwrite(*_):
        raise error

    return overwrite


def test_a_kernel_that_cannot_run_is_replaced_with_a_warning(launches, monkeypatch, capsys):
    kernel = sys.modules["seq2seq.model.loss_kernel"]
    monkeypatch.setattr(kernel, "overwrite_with_gradient", fail(RuntimeError("Failed to find C compiler.")))
    for _ in range(3):
        assert gradient_function(CUDA, torch.bfloat16) is overwrite_with_gradient
    assert capsys.readouterr().err.count("warning") == 1


def test_exhausted_memory_is_no_reason_to_replace_the_kernel(launches, monkeypatch):
    kernel = sys.modules["seq2seq.model.loss_kernel"]
    with monkeypatch.context() as patched:
        patched.setattr(kernel, "overwrite_with_gradient", fail(torch.OutOfMemoryError("full")))
        with pytest.raises(torch.OutOfMemoryError):
            gradient_function(CUDA, torch.bfloat16)
    assert gradient_function(CUDA, torch.bfloat16) is kernel.overwrite_with_gradient
