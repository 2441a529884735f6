"""The libraries of kernels."""

import pytest

from seq2seq.devices import cpu_flags
from seq2seq.inference.kernel_library import INSTRUCTION_SETS, Functions, usable_libraries


@pytest.fixture(scope="session")
def libraries():
    """The libraries of kernels that this processor can run, by instruction set, the fastest of each precision first."""
    usable = [path for precision in INSTRUCTION_SETS for path in usable_libraries(cpu_flags(), precision)]
    if not usable:
        pytest.skip("the package was built without kernels (make setup, with a C++ compiler)")
    return {path.name.split(".")[1]: path for path in usable}


@pytest.fixture(scope="session", params=INSTRUCTION_SETS)
def kernels(libraries, request):
    """The functions of the fastest of these libraries for each precision."""
    return Functions(next(path for name, path in libraries.items() if name in INSTRUCTION_SETS[request.param]))
