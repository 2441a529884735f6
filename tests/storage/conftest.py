"""A short run, which each test file trains once."""

import pytest
from toy import FOUR_STEPS, train_toy


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Directory with text, recipe and a run of 4 steps."""
    folder = tmp_path_factory.mktemp("made")
    train_toy(folder, FOUR_STEPS)
    (folder / "run" / "tensorboard").mkdir(exist_ok=True)
    return folder
