"""Calls of kernels that are compiled for another kind of processor. Only the kernels run in the emulator, not Python.

The process in the emulator (kernel_emulator.cpp) maps a file at the same address as this process. Arrays and structures
in this shared memory therefore have the same address in both.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
import subprocess
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from kernel_check import Checker, Fault
from kernel_reference import Array

SIZE = 256 << 20
"""Size of the shared memory in bytes."""
ADDRESSES = count(0x2000_0000_0000, SIZE)
"""Addresses for shared memories, where Linux places nothing by itself. A shared memory remains until this process ends,
because the report of a failed test may show arrays in it."""
MAP_FIXED_NOREPLACE = 0x100000
LINE = 64
"""Number of bytes of which addresses of arrays are multiples, as a cache line's."""


class Emulator:
    """A library in an emulator, with the functions of `ctypes.CDLL`."""

    def __init__(self, command: Sequence[str | Path], library: Path, file: Path, positional: bool = False) -> None:
        """command: starts kernel_emulator.cpp. file: name of a new file for the shared memory. positional: True =
        floats take the places of integers among the arguments, as on Windows."""
        self.positional = positional
        file.touch()
        os.truncate(file, SIZE)
        function = ctypes.CDLL(None, use_errno=True).mmap
        function.restype, function.argtypes = ctypes.c_void_p, (
            ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
        address = next(ADDRESSES)
        with file.open("r+b") as opened:
            mapped = function(address, SIZE, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED | MAP_FIXED_NOREPLACE,
                              opened.fileno(), 0)
        assert mapped == address, os.strerror(ctypes.get_errno())
        self.memory = np.ctypeslib.as_array((ctypes.c_uint8 * SIZE).from_address(address))
        self.used = 0
        self.process = subprocess.Popen([*command, library, file, str(address), str(SIZE)], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, env=os.environ | {"OMP_NUM_THREADS": "2"})

    def __getattr__(self, name: str) -> _Function:
        return _Function(self, name)

    def close(self) -> None:
        """End the process."""
        self.process.communicate()

    def allocate(self, size: int) -> Array:
        """Return `size` bytes of the shared memory that nothing has used since `used` was 0."""
        begin, self.used = self.used, self.used + -(-size // LINE) * LINE
        return self.memory[begin : begin + size]

    def copy(self, structure: ctypes.Structure) -> int:
        """Return the address of a copy of a structure in the shared memory. Arrays of structures to which it points,
        of which there are `number_of_` their name, are copied, too."""
        copy = type(structure).from_buffer(self.allocate(ctypes.sizeof(structure)))
        for name, kind, *_ in structure._fields_:
            value = getattr(structure, name)
            if issubclass(kind, ctypes._Pointer):
                address = self.allocate(ctypes.sizeof(value._type_) * getattr(structure, f"number_of_{name}"))
                ctypes.memmove(address.ctypes.data, value, address.size)
                value = ctypes.cast(address.ctypes.data, kind)
            setattr(copy, name, value)
        return ctypes.addressof(copy)


class _Function:
    """A function of the library. `argtypes` and `restype` are set as those of ctypes."""

    argtypes: Sequence[Any] = ()
    restype: Any = None

    def __init__(self, emulator: Emulator, name: str) -> None:
        self.emulator, self.name = emulator, name

    def __call__(self, *arguments: Any) -> int:
        numbers, integers = b"", []
        for kind, value in zip(self.argtypes, arguments, strict=True):
            if kind in (ctypes.c_float, ctypes.c_double):
                number = struct.pack("d" if kind is ctypes.c_double else "f4x", value)
                if self.emulator.positional:
                    integers += struct.unpack("q", number)
                else:
                    numbers += number
            else:
                integers.append(self.emulator.copy(value) if isinstance(value, ctypes.Structure) else int(value or 0))
        process = self.emulator.process
        assert process.stdin is not None and process.stdout is not None
        integers += [0] * (24 - len(integers))
        process.stdin.write(struct.pack("32s24q24s", self.name.encode(), *integers, numbers))
        process.stdin.flush()
        if len(result := process.stdout.read(8)) < 8:
            raise Fault(f"{self.name} ended the emulator with exit code {process.wait()}")
        return struct.unpack("q", result)[0]


class EmulatedChecker(Checker):
    """Checks the functions of a library in an emulator."""

    def __init__(self, emulator: Emulator, library: Path, seed: int) -> None:
        self.emulator = emulator
        super().__init__(library, seed)

    def begin(self) -> None:
        super().begin()
        self.emulator.used = 0

    def allocate(self, size: int) -> Array:
        return self.emulator.allocate(size)
