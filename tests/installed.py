"""Skipping of test modules whose packages are not installed."""

from importlib.util import find_spec

import pytest


def require_installed(*packages: str) -> None:
    """Skip the test module unless all packages are installed. Nothing is imported: CTranslate2 reads its environment
    variables when it is first imported, which is to be done by `seq2seq.interop.ctranslate2.library`."""
    for package in packages:
        if find_spec(package) is None:
            pytest.skip(f"{package} is not installed", allow_module_level=True)
