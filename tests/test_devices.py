"""Devices, their precisions, and numbers of threads."""

import mmap
import os
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch

from seq2seq import devices
from seq2seq.devices import choose_dtype, choose_precision, configure_process, cpus_of_container, free_memory
from seq2seq.errors import UserError

CPU, GPU = "cpu", "cuda"


@pytest.mark.parametrize(("capability", "expected"), [((6, 1), "fp32"), ((7, 0), "fp16"), ((7, 5), "fp16"),
                                                      ((8, 0), "bf16"), ((9, 0), "bf16")])
def test_auto_is_the_half_precision_that_the_gpu_has(monkeypatch, capability, expected):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert choose_precision("auto", GPU) == expected


@pytest.mark.parametrize(("precision", "capability", "message"), [
    ("bf16", (7, 5), "precision bf16: this cuda can only emulate bf16"),
    ("fp16", (6, 1), "precision fp16 needs a GPU of compute capability 7.0 or above"),
    ("tf32", (7, 5), "precision tf32 needs a GPU of compute capability 8.0 or above")])
def test_a_gpu_without_the_precision_is_refused(monkeypatch, precision, capability, message):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    with pytest.raises(UserError, match=message):
        choose_dtype(precision, GPU)


@pytest.mark.parametrize("precision", ["fp16", "tf32"])
def test_a_cpu_has_neither_fp16_nor_tf32(precision):
    with pytest.raises(UserError, match=f"precision {precision} needs a GPU"):
        choose_dtype(precision, CPU)


def test_tf32_keeps_fp32_weights(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    assert choose_dtype("tf32", GPU) == torch.float32


@pytest.fixture
def container(tmp_path, monkeypatch):
    """Return a function that pretends that this process is in the control groups of these names and files, on a
    machine with 2,000 KiB of free memory."""
    def pretend(names, files):
        for name, text in files.items():
            file = tmp_path / "mounted" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        (tmp_path / "names").write_text(names)
        (tmp_path / "memory").write_text("MemTotal: 9000 kB\nMemAvailable: 2000 kB\n")
        monkeypatch.setattr(devices, "MEMORY", tmp_path / "memory")
        monkeypatch.setattr(devices, "CONTROL_GROUPS", tmp_path / "names")
        monkeypatch.setattr(devices, "MOUNTED_CONTROL_GROUPS", tmp_path / "mounted")
    return pretend


@pytest.mark.parametrize(("names", "files", "expected"), [
    ("0::/\n", {"cpu.max": "150000 100000\n"}, 2),
    ("0::/\n", {"cpu.max": "max 100000\n"}, None),
    ("0::/a/b\n", {"a/b/cpu.max": "max 100000\n", "a/cpu.max": "300000 100000\n", "cpu.max": "400000 100000\n"}, 3),
    ("7:cpu,cpuacct:/docker/a\n0::/docker/a\n",
     {"cpu,cpuacct/cpu.cfs_quota_us": "50000\n", "cpu,cpuacct/cpu.cfs_period_us": "100000\n"}, 1),
    ("7:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
    ("7:cpuset:/\n", {"cpuset/cpu.max": "100000 100000\n"}, None)])
def test_the_cpus_of_a_container_are_its_smallest_limit_rounded_up(container, names, files, expected):
    container(names, files)
    assert cpus_of_container() == expected


@pytest.fixture
def two_threads(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    torch.set_num_threads(2)


@pytest.mark.parametrize(("limit", "asked", "environment", "expected"), [
    ("100000 100000", None, None, 1), ("900000 100000", None, None, 2), ("100000 100000", 3, None, 3),
    ("100000 100000", None, "2", 2)])
def test_a_container_has_no_more_threads_than_cpus_unless_the_user_asks_for_them(
        container, two_threads, monkeypatch, limit, asked, environment, expected):
    container("0::/\n", {"cpu.max": limit})
    if environment:
        monkeypatch.setenv("OMP_NUM_THREADS", environment)
    configure_process(asked)
    assert torch.get_num_threads() == expected


def test_a_thread_can_have_its_own_number_of_threads(two_threads):
    found = []

    def work():
        devices.use_threads(1)
        found.append(devices.num_threads())

    worker = threading.Thread(target=work)
    worker.start()
    worker.join()
    assert found == [1] and devices.num_threads() == 2


@pytest.mark.parametrize(("value", "expected"), [
    ("3", 3), (" 4 ", 4), ("5,2", 5), ("0012", 12), ("99999999999", devices.MAX_THREADS), ("0", None), ("-1", None),
    ("many", None), ("", None), ("3 threads", None)])
def test_the_default_number_of_threads_is_that_of_openmp_or_one_per_core(monkeypatch, value, expected):
    monkeypatch.setenv("OMP_NUM_THREADS", value)
    found = devices._default_threads.__wrapped__()
    assert found == expected if expected else 1 <= found <= os.cpu_count()


def test_the_number_of_cores_for_preparing_text_does_not_depend_on_the_threads_of_torchrun(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(devices, "cpus_of_container", lambda: None)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {1001, 1002, 1003}, raising=False)
    assert devices.available_cores() == 3
    monkeypatch.setattr(devices, "cpus_of_container", lambda: 2)
    assert devices.available_cores() == 2


def in_new_process(program):
    """Run a program in a process that has not imported torch."""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120, env=os.environ | {"OMP_NUM_THREADS": "2"})


def test_without_a_driver_of_a_gpu_the_device_is_the_cpu_and_torch_is_not_imported():
    in_new_process("""if True:
        import sys
        from seq2seq import devices
        devices._driver_finds_gpus = lambda: False
        assert devices.choose_device() == "cpu" and devices.choose_precision("int8", "cpu") == "int8"
        devices.configure_process(1)
        assert devices.num_threads() == 1 and devices.free_memory("cpu") and "1 threads" in devices.describe("cpu")
        assert not devices.is_out_of_memory(ValueError("a")) and devices.is_out_of_memory(MemoryError())
        assert "torch" not in sys.modules""")


@pytest.mark.parametrize("name", ["mps", "mps:0", "meta", "xpu", "gpu"])
def test_a_device_on_which_nothing_was_compared_is_refused_without_asking_torch(name, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(UserError, match=f"device '{name}' is not supported"):
        devices.choose_device(name)


def test_a_mac_translates_on_its_cpu_by_default(monkeypatch):
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert devices.choose_device("auto") == CPU and choose_precision("auto", CPU) == "int8"


@pytest.mark.slow
def test_torch_gets_the_number_of_threads_that_was_set_before_it_was_imported():
    in_new_process("""if True:
        from seq2seq import devices
        devices.configure_process(1)
        import seq2seq.model, torch
        assert torch.get_num_threads() == devices.num_threads() == 1""")


@pytest.mark.parametrize(("names", "files"), [
    ("0::/\n", {"memory.max": "5000000", "memory.current": "4000000", "memory.stat": "file 9\ninactive_file 7000\n"}),
    ("3:memory:/a\n", {"memory/memory.limit_in_bytes": "5000000", "memory/memory.usage_in_bytes": "4000000",
                       "memory/memory.stat": "inactive_file 10\ntotal_inactive_file 7000\n"})])
def test_the_free_memory_of_a_container_is_within_its_limit(container, names, files):
    container(names, files)
    assert free_memory(CPU) == 1_007_000


@pytest.mark.parametrize("limit", ["max\n", "9223372036854771712\n"])
def test_the_free_memory_without_a_limit_is_that_of_the_machine(container, limit):
    container("0::/\n", {"memory.max": limit, "memory.current": "4000000\n"})
    assert free_memory(CPU) == 2_000 * 1024


def written(size):
    """Return new memory of the system. An allocator could give memory that the process has already."""
    used = np.frombuffer(mmap.mmap(-1, size), np.uint8)
    used[:] = 1
    return used


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux forgets the peak of a process")
def test_peak_memory_is_that_since_the_last_reset():
    used = written(100_000_000)
    before = devices.peak_memory("cpu")
    del used
    devices.reset_peak_memory("cpu")
    after = devices.peak_memory("cpu")
    assert before - after > 80_000_000
    used = written(50_000_000)
    assert devices.peak_memory("cpu") - after > 40_000_000 and used.all()
