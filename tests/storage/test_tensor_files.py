"""Tensors of strangers: what is read is dense, real, finite, and no larger than the file states and is."""

import json
import os
import resource
import struct
import zipfile
from collections import OrderedDict

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from seq2seq.errors import CheckpointError
from seq2seq.storage.links import DamagedError
from seq2seq.storage.tensor_files import NotWeights, read_pickled_weights, read_shapes, read_tensors, read_weights


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
    torch.save({"sound": torch.ones(2), "broken": weight}, tmp_path / "y")
    for read, name in ((read_weights, "x"), (read_pickled_weights, "y")):
        with pytest.raises(DamagedError, match=f"{name}: the weight broken contains NaN or infinity"):
            read(tmp_path / name)
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


@pytest.mark.parametrize("read", [read_shapes, read_weights, read_tensors, read_pickled_weights])
@pytest.mark.parametrize("kind", ["fifo", "/dev/zero", "directory", "dangling"])
def test_only_regular_files_are_read_and_none_is_waited_for(tmp_path, read, kind):
    path = tmp_path / "x"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        path.symlink_to(kind)
    with pytest.raises(CheckpointError, match="x (cannot be read|is missing)"):
        read(path)


@pytest.mark.parametrize("read", [read_shapes, read_weights, read_tensors, read_pickled_weights])
def test_a_sparse_file_of_a_terabyte_takes_no_memory(tmp_path, read):
    with (tmp_path / "x").open("wb") as file:
        file.truncate(10**12)
    with limited_memory(), pytest.raises(DamagedError):
        read(tmp_path / "x")


# Pickles


class limited_memory:
    """Context in which this process may take 500 MB more than it has."""

    def __enter__(self):
        self.before = resource.getrlimit(resource.RLIMIT_AS)
        pages = int(open("/proc/self/statm").read().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + 500 * 2**20, self.before[1]))

    def __exit__(self, *error):
        resource.setrlimit(resource.RLIMIT_AS, self.before)


class Call:
    """Object whose pickle calls a function with arguments when it is loaded."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def saved(path, value, old=False):
    torch.save(value, path, _use_new_zipfile_serialization=not old)
    return path


small, large = torch.zeros(4), torch.zeros(100_003)
HOSTILE_VALUES = {
    "ten terabytes of one number": lambda: {"a": small[:1].expand(10**6, 10**6)},
    "windows that overlap": lambda: {"a": torch.zeros(1000).as_strided((500, 501), (1, 1))},
    "one tensor under a thousand names": lambda: {str(name): large for name in range(1000)},
    "sparse": lambda: {"a": torch.sparse_coo_tensor(torch.tensor([[0], [0]]), torch.ones(1), (10**6, 10**6))},
    "compressed sparse": lambda: {"a": torch.eye(3).to_sparse_csr()},
    "complex": lambda: {"a": torch.zeros(3, dtype=torch.complex64)},
    "quantised": lambda: {"a": torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)},
    "meta": lambda: {"a": torch.empty(10**6, 10**6, device="meta")},
    "nested": lambda: {"a": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])},
    "integers": lambda: {"a": torch.arange(3)}, "a number": lambda: {"a": 5}, "a list": lambda: [torch.ones(2)],
    "a tensor alone": lambda: torch.ones(2), "a name that is none": lambda: {5: torch.ones(2)},
    "a module": lambda: torch.nn.Linear(2, 3), "None": lambda: None,
    "a storage": lambda: {"a": small.untyped_storage()},
    "a byte array without end": lambda: {"a": Call(bytearray, 10**11)},
    "a system call": lambda: {"a": Call(os.system, "echo executed > executed")},
    "an evaluation": lambda: {"a": Call(eval, "open('executed', 'w')")},
    "a deep tower": lambda: {"a": tower()},
    "many instructions": lambda: {"a": list(range(300, 2_000_300)), "b": [None] * 2_000_000},
}


def tower():
    value = []
    for _ in range(200):
        value = [value]
    return value


@pytest.mark.parametrize("old", [False, True], ids=["zip", "before 1.6"])
@pytest.mark.parametrize("name", HOSTILE_VALUES)
@pytest.mark.filterwarnings("ignore")
def test_a_pickle_of_anything_but_dense_real_tensors_is_refused(tmp_path, monkeypatch, name, old):
    monkeypatch.chdir(tmp_path)
    try:
        saved(tmp_path / "x", HOSTILE_VALUES[name](), old)
    except RuntimeError as error:
        pytest.skip(str(error))
    with limited_memory(), pytest.raises(NotWeights, match="x contains something other than weights"):
        read_pickled_weights(tmp_path / "x")
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("old", [False, True], ids=["zip", "before 1.6"])
def test_tied_transposed_and_sliced_weights_are_read(tmp_path, old):
    embedding, other = torch.randn(7, 5), torch.randn(3, 11)
    weights = OrderedDict({name: embedding for name in "abcd"}, t=other.T, p=torch.nn.Parameter(other[:, 2:]),
                          h=other.half(), b=other.bfloat16(), d=other.double(), e=torch.empty(0, 3))
    read = read_pickled_weights(saved(tmp_path / "x", weights, old))
    assert read.keys() == weights.keys()
    for name, weight in weights.items():
        assert read[name].dtype == np.float32 and np.array_equal(read[name], weight.detach().float().numpy())


def rewritten(path, change, compression=zipfile.ZIP_STORED):
    """Write the members of a file of PyTorch again. change: function from name and contents to new contents."""
    with zipfile.ZipFile(path) as archive:
        members = {info.filename: archive.read(info) for info in archive.infolist()}
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, contents in members.items():
            archive.writestr(name, change(name, contents))
    return path


def test_a_packed_archive_is_refused_before_it_is_unpacked(tmp_path):
    path = rewritten(saved(tmp_path / "x", {"a": torch.ones(3)}), lambda name, contents: contents + bytes(
        3 * 10**8 * name.endswith("data.pkl")), zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < 10**6
    with limited_memory(), pytest.raises(NotWeights):
        read_pickled_weights(path)


@pytest.mark.parametrize("old", [False, True], ids=["zip", "before 1.6"])
@pytest.mark.parametrize("number, other", [(b"K\x04\x85", b"K\x05\x85"), *(
    (b"K\x04", b"J" + struct.pack("<i", size)) for size in (2**31 - 1, -1))])
def test_a_size_beyond_the_storage_is_refused(tmp_path, number, other, old):
    path = saved(tmp_path / "x", {"a": torch.ones(4)}, old)
    if old:
        path.write_bytes(path.read_bytes().replace(number, other))
    else:
        rewritten(path, lambda name, contents: contents.replace(number, other) if name.endswith("pkl") else contents)
    with limited_memory(), pytest.raises(NotWeights):
        read_pickled_weights(path)


def test_the_directory_of_an_archive_is_bounded(tmp_path):
    with zipfile.ZipFile(tmp_path / "x", "w") as archive:
        for number in range(60_000):
            archive.writestr(f"{number:050}", b"")
    with pytest.raises(NotWeights):
        read_pickled_weights(tmp_path / "x")
