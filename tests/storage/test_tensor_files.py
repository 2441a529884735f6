"""Tensors of strangers: what is read is dense, real, finite, and no larger than the file states and is."""

import json
import os
import resource

import pytest
import torch
from safetensors.torch import save_file

from seq2seq.errors import CheckpointError
from seq2seq.storage.directories import DamagedError
from seq2seq.storage.tensor_files import read_shapes, read_tensors, read_weights


def safetensors_file(path, header, data=b"", length=None):
    contents = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes((len(contents) if length is None else length).to_bytes(8, "little") + contents + data)
    return path


def entry(dtype, shape, *offsets):
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


HOSTILE_HEADERS = {
    "a header longer than the file": (b"{}", b"", 10**6), "a huge header": (b"{}", b"", 2**63), "no object": (b"[1]",),
    "another type": ({"a": entry("C64", [1], 0, 8)}, bytes(8)), "a type that is a list": ({"a": entry([], [1], 0, 4)},
                                                                                          bytes(4)),
    "a shape larger than its data": ({"a": entry("F32", [10**9, 10**9], 0, 4)}, bytes(4)),
    "a shape that overflows": ({"a": entry("F32", [2**32, 2**32], 0, 0)},),
    "an empty shape without end": ({"a": entry("F32", [0, 2**62, 2**62], 0, 0)},),
    "a negative size": ({"a": entry("F32", [-1, -1], 0, 4)}, bytes(4)), "a fraction": ({"a": entry("F32", [1.0], 0, 4)},
                                                                                      bytes(4)),
    "truth as size": ({"a": entry("F32", [True], 0, 4)}, bytes(4)), "a shape that is a text": ({"a": entry(
        "F32", "11", 0, 4)}, bytes(4)), "a hundred dimensions": ({"a": entry("F32", [1] * 100, 0, 4)}, bytes(4)),
    "the same data twice": ({"a": entry("F32", [1], 0, 4), "b": entry("F32", [1], 0, 4)}, bytes(4)),
    "a gap": ({"a": entry("F32", [1], 4, 8)}, bytes(8)), "data behind": ({"a": entry("F32", [1], 0, 4)}, bytes(8)),
    "data missing": ({"a": entry("F32", [2], 0, 8)}, bytes(4)), "one offset": ({"a": entry("F32", [1], 0)}, bytes(4)),
    "offsets reversed": ({"a": entry("F32", [1], 4, 0)}, bytes(4)),
    "no entry": ({"a": 5},), "keys missing": ({"a": {}},),
}


@pytest.mark.parametrize("name", HOSTILE_HEADERS)
@pytest.mark.parametrize("read", [read_shapes, read_weights, read_tensors])
def test_a_header_that_does_not_describe_its_file_is_refused(tmp_path, name, read):
    path = safetensors_file(tmp_path / "x.safetensors", *HOSTILE_HEADERS[name])
    with pytest.raises(DamagedError, match="x.safetensors is damaged"):
        read(path)


def test_a_file_of_the_library_comes_back_with_its_metadata_left_out(tmp_path):
    tensors = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.tensor(5), "c": torch.tensor([True, False])}
    save_file(tensors, tmp_path / "x", {"format": "pt"})
    assert all(torch.equal(tensors[name], tensor) for name, tensor in read_tensors(tmp_path / "x").items())
    assert read_shapes(tmp_path / "x") == {"a": ((2, 3), "F32"), "b": ((), "I64"), "c": ((3 - 1,), "BOOL")}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("place", [0, 300_000])
def test_weights_that_are_not_finite_are_refused_when_they_are_read(tmp_path, dtype, value, place):
    weight = torch.zeros(300_001, dtype=dtype)
    weight[place] = value
    save_file({"sound": torch.ones(2), "broken": weight}, tmp_path / "x")
    with pytest.raises(DamagedError, match="x: the weight broken contains NaN or infinity"):
        read_weights(tmp_path / "x")
    assert read_tensors(tmp_path / "x")["broken"].dtype == dtype                # a checkpoint may have such state


def test_a_double_that_overflows_in_float32_is_not_finite(tmp_path):
    save_file({"a": torch.tensor([1e300], dtype=torch.float64)}, tmp_path / "x")
    with pytest.raises(DamagedError, match="infinity"):
        read_weights(tmp_path / "x")


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.complex64, torch.int64, torch.bool])
def test_weights_of_another_type_than_floating_point_are_refused(tmp_path, dtype):
    save_file({"a": torch.ones(3).to(dtype)}, tmp_path / "x")
    with pytest.raises(DamagedError, match="a has the type "):
        read_weights(tmp_path / "x")


# Special files


class limited_memory:
    """Context in which this process may take 500 MB more than it has."""

    def __enter__(self):
        self.before = resource.getrlimit(resource.RLIMIT_AS)
        pages = int(open("/proc/self/statm").read().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + 500 * 2**20, self.before[1]))

    def __exit__(self, *error):
        resource.setrlimit(resource.RLIMIT_AS, self.before)


@pytest.mark.parametrize("read", [read_shapes, read_weights, read_tensors])
@pytest.mark.parametrize("kind", ["fifo", "/dev/zero", "directory", "dangling"])
def test_only_regular_files_are_read_and_none_is_waited_for(tmp_path, read, kind):
    path = tmp_path / "x"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        path.symlink_to(kind)
    with pytest.raises(CheckpointError, match="x (cannot be read|is missing|is a link)"):
        read(path)


@pytest.mark.parametrize("read", [read_shapes, read_weights, read_tensors])
def test_a_sparse_file_of_a_terabyte_takes_no_memory(tmp_path, read):
    with (tmp_path / "x").open("wb") as file:
        file.truncate(10**12)
    with limited_memory(), pytest.raises(DamagedError):
        read(tmp_path / "x")
