"""Reading of tensors from safetensors files that a stranger may have written.

Bundles are read into NumPy arrays, because translation does not need torch; checkpoints are read into tensors, which
keep their types. No file takes more memory than a few times its size: every size that it states is compared with its
own size before memory is allocated. Files are read, not mapped into memory: if another process truncated a mapped file
later, reading from the map would kill this process. `safetensors.deserialize` has a copy of the whole file in memory
besides the tensors.
"""

from __future__ import annotations

import io
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from seq2seq.files import NotJson, parse_json
from seq2seq.storage.directories import DamagedError, cannot_read, open_file

if TYPE_CHECKING:
    from torch import Tensor

TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1",
         "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "u1", "BOOL": "?"}
"""Types of safetensors files that are read, with the NumPy type of their bytes."""
FLOATING_POINT_TYPES = ("F64", "F32", "F16", "BF16")
"""Types that weights may have."""
MAX_HEADER_BYTES = 10_000_000
"""Maximum size of the header of a safetensors file. A tensor takes about 100 bytes."""
MAX_DIMENSIONS = 8
MAX_VALUES = 1 << 48
"""Maximum product of the dimensions of a tensor, those of zero left out: NumPy makes no empty array of larger ones."""
BLOCK = 1 << 18
"""Number of values that are checked at once; they fit into the second-level cache."""

# safetensors


def read_weights(path: Path) -> dict[str, np.ndarray]:
    """Read the weights in a safetensors file, as float32."""
    weights = {}
    for name, dtype, array in _read_safetensors(path):
        if dtype not in FLOATING_POINT_TYPES:
            raise DamagedError(f"{path} is damaged, or seq2seq did not write it: {name} has the type {dtype}.")
        # A bfloat16 is the upper half of a float32.
        weights[name] = _as_weight((array.astype(np.uint32) << 16).view(np.float32) if dtype == "BF16" else array,
                                   name, path)
    return weights


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read the tensors of a safetensors file to the CPU, in the types of the file."""
    import torch

    tensors = {}
    for name, dtype, array in _read_safetensors(path):
        tensor = torch.from_numpy(array)
        tensors[name] = tensor.view(torch.bfloat16) if dtype == "BF16" else tensor
    return tensors


def read_shapes(path: Path) -> dict[str, tuple[tuple[int, ...], str]]:
    """Return shape and dtype (such as F32) of each tensor, by name, from the header of a safetensors file."""
    try:
        with open_file(path) as file:
            return {name: (shape, dtype) for name, dtype, shape, _ in _read_header(file, path)}
    except OSError as error:
        cannot_read(path, error)


def _read_safetensors(path: Path) -> Iterator[tuple[str, str, np.ndarray]]:
    """Yield name, type and values of each tensor; bfloat16 as uint16."""
    try:
        with open_file(path) as file:
            for name, dtype, shape, size in _read_header(file, path):
                array = np.empty(size // np.dtype(TYPES[dtype]).itemsize, TYPES[dtype])
                if file.readinto(cast(Any, array)) < size:
                    raise DamagedError(f"{path} is damaged: it became shorter while it was read.")
                yield name, dtype, array.reshape(shape)
    except OSError as error:
        cannot_read(path, error)


def _read_header(file: io.BufferedReader, path: Path) -> list[tuple[str, str, tuple[int, ...], int]]:
    """Read name, type, shape and size in bytes of each tensor in the order of the file; their data follow.

    Format: https://github.com/huggingface/safetensors. The data of the tensors cover the rest of the file without
    gaps and overlaps, so that all tensors together are as large as the file.
    """
    length = int.from_bytes(file.read(8), "little")
    if length > MAX_HEADER_BYTES:
        raise DamagedError(f"{path} is damaged, or not a safetensors file: it states a header of {length:,} bytes.")
    try:
        header = parse_json(file.read(length))
    except NotJson as error:
        raise DamagedError(f"{path} is damaged, or not a safetensors file: its header is not JSON ({error}).") from None
    found = []
    try:
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            dtype, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
            if dtype not in TYPES:
                raise DamagedError(f"{path} is damaged, or seq2seq did not write it: {name} has the type "
                                   f"{str(dtype)[:20]}.")
            if (len(shape) > MAX_DIMENSIONS or not all(type(size) is int and size >= 0 for size in (*shape, begin, end))
                    or math.prod(max(1, size) for size in shape) > MAX_VALUES):
                raise ValueError(name)
            found.append((begin, end, name, dtype, tuple(shape)))
        place = 0
        for begin, end, name, dtype, shape in sorted(found):
            if begin != place or end - begin != math.prod(shape) * np.dtype(TYPES[dtype]).itemsize:
                raise ValueError(name)
            place = end
        if 8 + length + place != os.fstat(file.fileno()).st_size:
            raise ValueError("the last tensor")
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise DamagedError(f"{path} is damaged: its header does not describe its tensors ({error}).") from None
    return [(name, dtype, shape, end - begin) for begin, end, name, dtype, shape in sorted(found)]


def _as_weight(array: np.ndarray, name: str, path: Path) -> np.ndarray:
    """Return an array as contiguous float32."""
    with np.errstate(over="ignore"):
        weight = np.ascontiguousarray(array, np.float32).reshape(array.shape)
    require_finite(name, weight, path)
    return weight


def require_finite(name: str, weight: np.ndarray, path: Path) -> None:
    """Raise DamagedError if a weight in the file `path` has a value that is not finite."""
    flat = weight.reshape(-1)
    for begin in range(0, flat.size, BLOCK):
        block = flat[begin:begin + BLOCK]
        if not (np.isfinite(block.min()) and np.isfinite(block.max())):         # both are NaN if a value is
            raise DamagedError(f"{path}: the weight {name} contains NaN or infinity, so the model cannot be used. Copy "
                               "the file again, or take another model.")
