"""Devices, precisions and threads of this machine, and process-wide settings of the C library.

Devices are names: cpu, cuda, cuda:1. torch is imported only in functions that need it, such as those that ask about
GPUs. So translation with the kernels for CPUs works without torch.
"""

from __future__ import annotations

import ctypes
import math
import os
import platform
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from seq2seq.errors import OptionError, UserError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

PRECISIONS = ("auto", "reference", "fp32", "bf16", "fp16", "int8")
"""Precisions of inference; see `choose_precision`."""
CPU_PRECISIONS = ("int8", "fp32")
"""Precisions of inference on a CPU."""

MEMORY = Path("/proc/meminfo")
"""File that tells the free memory of the machine."""
STATUS = Path("/proc/self/status")
CLEAR_REFERENCES = Path("/proc/self/clear_refs")
"""File that tells the memory of this process."""
CONTROL_GROUPS = Path("/proc/self/cgroup")
"""File that names the control groups of this process, which limit a container's CPUs and memory."""
MOUNTED_CONTROL_GROUPS = Path("/sys/fs/cgroup")
"""Directory in which systemd and containers mount the control groups."""
MAX_THREADS = 1024
"""Maximum number of CPU threads, the same as for training.threads in recipes. With about ten thousand threads, OpenMP
aborts the process."""


class _Threads(threading.local):
    """Number of threads for the work of each thread. of_thread: as set by `use_threads`; None: that of the process."""

    of_process: int | None = None                       # class attribute: the same for all threads
    of_thread: int | None = None


_threads = _Threads()


def num_threads() -> int:
    """Return the number of CPU threads for the work of the calling thread: kernels, tokenizers, torch."""
    if _threads.of_thread is not None:
        return _threads.of_thread
    if (torch := _imported_torch()) is not None:
        return int(torch.get_num_threads())
    return _threads.of_process or _default_threads()


def use_threads(threads: int) -> None:
    """Set the number of CPU threads for the work of the calling thread, which does not exceed `MAX_THREADS`."""
    _threads.of_thread = threads
    set_threads_of_torch()


def set_threads_of_torch() -> None:
    """Set torch's number of threads if torch is imported and `configure_process` or `use_threads` has set a number."""
    threads = _threads.of_thread or _threads.of_process
    if threads is not None and (torch := _imported_torch()) is not None:
        torch.set_num_threads(threads)


@cache
def _default_threads() -> int:
    """Return the value of OMP_NUM_THREADS, or else the number of processor cores that this process may use."""
    if match := re.match(r"\s*\+?0*([1-9]\d*)\s*(,|$)", os.environ.get("OMP_NUM_THREADS", "")):
        return min(int(match[1]), MAX_THREADS)
    return _cores()


def available_cores() -> int:
    """Return the number of processor cores that this process may use, whatever OMP_NUM_THREADS is: `torchrun` sets it
    to 1, and all other processes wait while one prepares text."""
    return min(_cores(), cpus_of_container() or MAX_THREADS)


def _cores() -> int:
    if not hasattr(os, "sched_getaffinity"):            # not Linux
        return os.cpu_count() or 1
    cpus = os.sched_getaffinity(0)
    # Each core is the set of its hardware threads. Kernels gain nothing from more threads than cores.
    cores = {_text(Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")) or str(cpu) for cpu in cpus}
    return min(len(cores), MAX_THREADS)


def _imported_torch() -> Any | None:
    """Return torch if it is imported, else None. While another thread imports it, it may lack its functions."""
    torch = sys.modules.get("torch")
    return torch if hasattr(torch, "OutOfMemoryError") and hasattr(torch, "set_num_threads") else None


def configure_process(threads: int | None = None) -> None:
    """Set the number of CPU threads and the memory allocator's thresholds of this process. Repeated calls are allowed.

    threads: number of CPU threads; None: keep the present number, which at first is one per core. If a container may
        use fewer CPUs (`docker run --cpus`), as many threads as CPUs: the kernel stops all threads of a container for
        the rest of a period of 0.1 s once they have used its share, also if they have only waited for each other.
    """
    if threads is not None:
        if threads < 1:
            raise OptionError(f"threads: expected a number of at least 1; found {threads}")
        if threads > MAX_THREADS:
            raise OptionError(f"threads: expected a number of at most {MAX_THREADS:,}; found {threads:,}")
    elif "OMP_NUM_THREADS" not in os.environ and (cpus := cpus_of_container()) is not None:
        threads = min(cpus, num_threads())
    if threads is not None:
        _Threads.of_process = threads
        set_threads_of_torch()
    _keep_freed_memory()


def _keep_freed_memory() -> None:
    """Let glibc reuse large blocks of memory instead of returning them to the system after each tensor.

    By default, glibc maps new pages for every tensor above a threshold, which starts at 128 KB and can grow to 32 MB.
    The kernel clears new pages, which takes up to half the time of an elementwise operation. This function sets the
    threshold to 32 MB, the largest value that glibc accepts.
    """
    if libc := _glibc():
        mmap_threshold, trim_threshold = -3, -1
        libc.mallopt(mmap_threshold, 32 * 1024 * 1024)
        libc.mallopt(trim_threshold, 2**31 - 1)


def return_freed_memory() -> None:
    """Make glibc return the memory of deleted tensors to the system, instead of keeping it for new tensors."""
    if libc := _glibc():
        libc.malloc_trim(0)


def _glibc() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL("libc.so.6") if sys.platform.startswith("linux") else None
    except OSError:
        return None


def kind(device: str) -> str:
    """Return the kind of a device: "cuda" for cuda:1."""
    return device.partition(":")[0]


def count_gpus() -> int:
    """Return the number of CUDA devices that torch can use; 0 if torch is not installed."""
    if _imported_torch() is None and not (_driver_finds_gpus() and find_spec("torch")):
        return 0
    import torch

    return int(torch.cuda.device_count()) if torch.cuda.is_available() else 0


def _driver_finds_gpus() -> bool:
    """Return True if there may be a GPU of NVIDIA or AMD. Asking their drivers takes much less time than asking torch.
    """
    try:
        driver, count = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"), ctypes.c_int(0)
        if driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value > 0:
            return True
    except (OSError, AttributeError):
        pass
    return os.path.exists("/dev/kfd")                   # AMD's driver


def choose_device(name: str = "auto") -> str:
    """Return the name of a device that can be used. `auto` is cuda if there is a CUDA device, else cpu.

    Other devices of torch are refused. Apple's mps has no float64, in which training sums losses, and nothing has been
    compared with the CPU there.
    """
    if name == "auto":
        return "cuda" if count_gpus() else "cpu"
    if name == "cpu":
        return name
    if kind(name) not in ("cpu", "cuda"):
        raise UserError(f"device '{name}' is not supported. Devices are cpu, cuda, cuda:1, …, and auto.")
    import torch

    known = "Use cpu, cuda (or cuda:1, …) or auto." if torch.cuda.is_available() else "Use cpu or auto."
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"device '{name}' cannot be used here{_why_not(name)}. {known}") from error
    return name


def _why_not(device: str) -> str:
    """Return the reason why a device cannot be used, as the end of an error message; empty if unknown."""
    if kind(device) != "cuda":
        return ""
    import torch

    if not torch.cuda.is_available():
        return ": torch finds no CUDA device" if torch.version.cuda else ": this torch is built without CUDA"
    return f": there are {torch.cuda.device_count()} CUDA devices, counted from cuda:0"


def has_fast_bf16(device: str) -> bool:
    """Return True if the device multiplies bf16 matrices in hardware.

    Such devices are GPUs of CUDA compute capability 8.0 or above, and CPUs with bf16 instructions (AMX, AVX-512, ARM).
    """
    if kind(device) == "cpu":
        return bool({"amx_bf16", "avx512_bf16", "bf16"} & cpu_flags())
    return _has_capability(device, 8)


def _has_capability(device: str, version: int) -> bool:
    """Return True for a CUDA device of this compute capability or above."""
    if kind(device) != "cuda":
        return False
    import torch

    return torch.cuda.get_device_capability(device) >= (version, 0)


def choose_floating_point(precision: str, device: str) -> str:
    """Return "fp32", "bf16" or "fp16", the type of numbers for a precision; tf32 computes with fp32 numbers. `auto` is
    the first of bf16, fp16 and fp32 that the hardware supports.
    """
    fast_bf16, fast_fp16 = has_fast_bf16(device), _has_capability(device, 7)    # 7: V100, T4 and later
    if precision == "auto":
        precision = "bf16" if fast_bf16 else "fp16" if fast_fp16 else "fp32"
    if precision == "bf16" and not fast_bf16:
        raise UserError(f"precision bf16: this {kind(device)} can only emulate bf16, which is many times slower. "
                        "Use precision auto or fp32.")
    if precision == "fp16" and not fast_fp16:
        raise UserError("precision fp16 needs a GPU of compute capability 7.0 or above. Use precision auto or fp32.")
    if precision == "tf32" and not _has_capability(device, 8):
        raise UserError("precision tf32 needs a GPU of compute capability 8.0 or above. Use precision auto or fp32.")
    return "fp32" if precision == "tf32" else precision


def choose_dtype(precision: str, device: str) -> torch.dtype:
    """Return the torch dtype for a precision; see `choose_floating_point`."""
    return dtype_of(choose_floating_point(precision, device))


def dtype_of(precision: str) -> torch.dtype:
    """Return the torch dtype of "fp32", "bf16" or "fp16"."""
    import torch

    return {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[precision]


def choose_precision(precision: str, device: str) -> str:
    """Return the precision for inference.

    `reference` is fp32 on a CPU, and on a GPU the first of bf16, fp16 and fp32 that it supports; results of experiments
    are computed in it. `auto` is the fastest: int8 on a CPU, otherwise `reference`.
    """
    if precision not in PRECISIONS:
        raise OptionError(f"there is no precision '{precision}'. Use one of {', '.join(PRECISIONS)}.")
    if kind(device) == "cpu":
        found = {"auto": "int8", "reference": "fp32"}.get(precision, precision)
        if found not in CPU_PRECISIONS:
            raise UserError(f"precision {found} is for GPUs, and for training; a CPU translates and scores in "
                            f"{' or '.join(CPU_PRECISIONS)}. Use precision auto or reference (fp32).")
        return found
    if precision == "int8":
        raise UserError(f"precision int8 is for the CPU; this is {kind(device)}. Use precision auto or bf16.")
    return choose_floating_point("auto" if precision == "reference" else precision, device)


# Parts of the out-of-memory messages of torch's CPU allocator, and of GPU libraries that do not use torch's allocator.
OUT_OF_MEMORY = ("can't allocate memory", "CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED",
                 "CUDNN_STATUS_ALLOC_FAILED")


def allow_tf32(allowed: bool) -> None:
    """Let GPUs multiply fp32 numbers as TF32, which has mantissas of 10 bits, or forbid it.

    PyTorch has one flag for matrix products, and one for cuDNN's recurrent layers and convolutions. Of these, the
    second is on by default.
    """
    import torch

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = allowed


def copy_to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor from the CPU to `device` without waiting for the GPU. If `device` is the CPU, return the tensor."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def is_out_of_memory(error: Exception) -> bool:
    """Return True for out-of-memory errors: torch's on GPUs, Python's, and errors whose message contains a text of
    `OUT_OF_MEMORY`."""
    torch = _imported_torch()
    return (isinstance(error, MemoryError) or torch is not None and isinstance(error, torch.OutOfMemoryError)
            or any(text in str(error) for text in OUT_OF_MEMORY))


def describe(device: str) -> str:
    """Return the name of a GPU, or the name of the CPU and the number of threads, for logs and result files."""
    if kind(device) == "cuda":
        import torch

        return torch.cuda.get_device_name(device)
    return f"{_cpu_name()}, {num_threads()} threads"


def free_memory(device: str) -> int | None:
    """Return the free memory of a GPU, or, if the device is a CPU, of the machine or this container, whichever has
    less, in bytes; None if unknown."""
    if kind(device) == "cuda":
        import torch

        return int(torch.cuda.mem_get_info(device)[0])
    available = re.search(r"^MemAvailable:\s*(\d+) kB", _text(MEMORY), re.MULTILINE)
    if not available:
        return None
    free = [1024 * int(available[1])]
    for group in _control_groups("memory"):
        for limit_name, used_name in (("max", "current"), ("limit_in_bytes", "usage_in_bytes")):   # versions 2 and 1
            limit, used = (_text(group / f"memory.{name}").strip() for name in (limit_name, used_name))
            if limit.isdecimal() and used.isdecimal():
                # Cached files that nobody has used lately count as used, but make room when memory is needed.
                cached = re.findall(r"^(?:total_)?inactive_file (\d+)$", _text(group / "memory.stat"), re.MULTILINE)
                free.append(max(0, int(limit) - int(used) + max(map(int, cached), default=0)))
    return min(free)


class ProcessMemory(NamedTuple):
    """Resident memory of this process in bytes: now, and at its peak."""

    now: int
    peak: int


def process_memory() -> ProcessMemory | None:
    """Return the resident memory of this process; None on systems that do not report it."""
    try:
        import resource
    except ImportError:                                                         # Windows
        return None
    found = dict(re.findall(r"^(VmRSS|VmHWM):\s*(\d+) kB", _text(STATUS), re.MULTILINE))
    if len(found) == 2:
        return ProcessMemory(1024 * int(found["VmRSS"]), 1024 * int(found["VmHWM"]))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return ProcessMemory(peak, peak)


def reset_peak_memory(device: str) -> None:
    """Let `peak_memory` begin anew, where the system can: on a GPU and on Linux."""
    if kind(device) == "cuda":
        import torch

        torch.cuda.reset_peak_memory_stats(device)
    with suppress(OSError):
        CLEAR_REFERENCES.write_bytes(b"5")                                      # man 5 proc_pid_clear_refs


def peak_memory(device: str) -> int | None:
    """Return the peak memory in bytes since `reset_peak_memory`: on a GPU that which torch has reserved, on a CPU that
    of this process. None on systems that do not report it."""
    if kind(device) == "cuda":
        import torch

        return int(torch.cuda.max_memory_reserved(device))
    used = process_memory()
    return None if used is None else used.peak


def cpus_of_container() -> int | None:
    """Return the number of CPUs that the control groups of this process may use at a time, rounded up; None: no limit
    is set, or this system is not Linux."""
    limits = []
    for group in _control_groups("cpu"):
        version_1 = " ".join(_text(group / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
        for text in (_text(group / "cpu.max"), version_1):
            if match := re.fullmatch(r"(\d+)\s+(\d+)\s*", text):                # no limit: "max", or -1
                limits.append(math.ceil(int(match[1]) / int(match[2])))
    return min(limits, default=None)


def _control_groups(controller: str) -> Iterator[Path]:
    """Yield the directories of this process's control groups, and of the groups that contain them, in versions 1 and 2
    (man 7 cgroups). Of a container's groups, only its own may be mounted, as the root directory; directories that do
    not exist are yielded, too."""
    for line in _text(CONTROL_GROUPS).splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers or controller in controllers.split(","):               # none are named in version 2
            group = Path(path.lstrip("/"))
            yield from (MOUNTED_CONTROL_GROUPS / controllers / parent for parent in (group, *group.parents))


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except (OSError, UnicodeDecodeError):
        return ""


def cpu_flags() -> set[str]:
    """Return the CPU flags in /proc/cpuinfo; an empty set if there are none, as on systems other than Linux."""
    return set(_cpu_info("flags|Features").split())


def _cpu_name() -> str:
    return _cpu_info("model name") or platform.machine()


def _cpu_info(field: str) -> str:
    """Return the first value of a field in /proc/cpuinfo; "" if there is none. field: pattern of its name."""
    found = re.search(rf"^(?:{field})\s*:\s*(.*)$", _text(Path("/proc/cpuinfo")), re.MULTILINE)
    return found[1] if found else ""
