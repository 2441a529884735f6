"""Imitation of another processor, for `tests/processors.sh`. Python imports this file at the start of every process
that has its folder in PYTHONPATH, so the processes that tests start imitate the same processor.

IMITATED_KERNELS: an instruction set of `kernel_library`; flags of the processor that only other libraries need are
hidden. IMITATED_AUTO: fp32 also hides those that make `auto` mean bf16.
"""

import os

from seq2seq import devices
from seq2seq.inference import kernel_library

BF16 = {"avx512_bf16", "amx_bf16", "bf16"}
by_library = {name: {*needed} for libraries in kernel_library.INSTRUCTION_SETS.values()
              for name, needed in libraries.items()}
kept = by_library[os.environ["IMITATED_KERNELS"]]
hidden = {flag for needed in by_library.values() for flag in needed} - kept
if os.environ["IMITATED_AUTO"] == "fp32" or "avx512f" in hidden:
    hidden |= BF16
of_linux, of_library = devices.cpu_flags, kernel_library.processor_flags
devices.cpu_flags = lambda: of_linux() - hidden
kernel_library.processor_flags = lambda: of_library() - hidden
