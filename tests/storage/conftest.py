"""A short run, which each test file trains once."""

import pytest
from toy import FOUR_STEPS, RECIPE, write_corpus

from seq2seq.recipe import load_recipe
from seq2seq.training.run import train


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Directory with text, recipe and a run of 4 steps."""
    folder = tmp_path_factory.mktemp("made")
    write_corpus(folder)
    (folder / "recipe.yaml").write_text(RECIPE)
    train(load_recipe(folder / "recipe.yaml", FOUR_STEPS), folder / "run")
    (folder / "run" / "tensorboard").mkdir(exist_ok=True)
    return folder
