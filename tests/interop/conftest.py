"""One trained model for all tests of exports."""

from pathlib import Path

import pytest

from tests.exportable_models import make_bundle


@pytest.fixture(scope="session")
def bundle(tmp_path_factory) -> Path:
    """Bundle of a converged model. Its best token has a probability near 1, so that rounding changes no translation."""
    return make_bundle(tmp_path_factory.mktemp("bundle") / "ours", steps=150)
