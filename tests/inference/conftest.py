"""The compiled kernels."""

import os
import shutil

import pytest

from seq2seq.inference.kernel_library import library


@pytest.fixture(scope="session")
def compiled_library(tmp_path_factory):
    """The kernels, compiled and checked once for all processes of the tests."""
    if not any(map(shutil.which, ("c++", "g++", "clang++"))):
        pytest.skip("there is no C++ compiler here")
    own = tmp_path_factory.getbasetemp()
    shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    return library(shared / "kernels")
