"""Compilation of Triton kernels for GPUs that this machine does not have.

    with compiling(90) as binaries:
        interval_attention.attend(…)    # with tensors on the CPU: every launch compiles its kernel, and runs nothing
    print(binaries)
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction, mangle_type

CUOBJDUMP = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
OPTIONS = "num_warps", "num_stages"


class Binary(NamedTuple):
    """Resources of a thread and a program of a compiled kernel. stack: bytes of registers that are spilled to memory.
    shared: bytes of shared memory. wide: number of instructions that load 16 bytes for a thread."""

    kernel: str
    registers: int
    stack: int
    shared: int
    wide: int = 0


@contextmanager
def compiling(capability: int) -> Iterator[list[Binary]]:
    """Context in which a launch compiles the kernel and adds it to the list, once for each set of constants."""
    binaries: list[Binary] = []
    found: set[Any] = set()

    def run(kernel: Any, *arguments: Any, grid: Any, warmup: bool = False, **named: Any) -> None:
        assert grid[0] > 0 and all(0 < size < 2**16 for size in grid[1:]), f"CUDA has no grid of {grid}"
        options = {name: named.pop(name) for name in OPTIONS if name in named}
        values = dict(zip(kernel.arg_names, arguments, strict=False)) | named
        source, key = _source(kernel, values)
        if (key := (kernel, *key, *options.items())) not in found:
            found.add(key)
            compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
            # The binary names only shared memory of a fixed size; Triton asks for more when it launches the kernel.
            binaries.append(_resources(kernel.fn.__name__, compiled.asm["cubin"])._replace(
                shared=compiled.metadata.shared, wide=len(re.findall(r"ld\.global\S*\.v4", compiled.asm["ptx"]))))

    with mock.patch.object(JITFunction, "run", run):
        yield binaries


def _source(kernel: Any, values: dict[str, Any]) -> tuple[ASTSource, tuple[Any, ...]]:
    """Return a kernel with the types of its arguments, as a launch with these values specialises them."""
    signature: dict[str, str] = {}
    constants: dict[tuple[int, ...], Any] = {}
    attributes: dict[tuple[int, ...], Any] = {}
    for index, parameter in enumerate(kernel.params):
        value = values[parameter.name]
        specialised = not parameter.do_not_specialize and not parameter.is_constexpr
        if parameter.is_constexpr or value is None or specialised and type(value) is int and value == 1:
            signature[parameter.name] = "constexpr"
            constants[index,] = value
            continue
        signature[parameter.name] = mangle_type(value)
        aligned = value.data_ptr() % 16 == 0 if isinstance(value, torch.Tensor) else (
            type(value) is int and value % 16 == 0)
        if specialised and aligned:
            attributes[index,] = [["tt.divisibility", 16]]
    source = ASTSource(kernel, signature, constants, attributes)
    return source, (*signature.values(), *map(str, constants.items()), *map(str, attributes))


def _resources(name: str, binary: bytes) -> Binary:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary)
        file.flush()
        shown = subprocess.run([CUOBJDUMP, "--dump-resource-usage", file.name], capture_output=True, text=True,
                               check=True).stdout
    used = {key: int(number) for key, number in re.findall(r"(REG|STACK|SHARED|LOCAL):(\d+)", shown)}
    return Binary(name, used["REG"], used["STACK"] + used["LOCAL"], used["SHARED"])
