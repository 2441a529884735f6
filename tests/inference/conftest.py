"""The libraries of kernels."""

import pytest

from seq2seq.devices import cpu_flags
from seq2seq.inference.kernel_library import Functions, usable_libraries


@pytest.fixture(scope="session")
def libraries():
    """The libraries of kernels that this processor can run, by instruction set, the fastest first."""
    usable = usable_libraries(cpu_flags())
    if not usable:
        pytest.skip("the package was built without kernels (make setup, with a C++ compiler)")
    return {path.name.split(".")[1]: path for path in usable}


@pytest.fixture(scope="session")
def kernels(libraries):
    """The functions of the fastest of these libraries."""
    return Functions(next(iter(libraries.values())))
