"""Advice names nothing that the recipe has already."""

import pytest
import torch
from toy import RECIPE, write_corpus

from seq2seq.recipe import load_recipe
from seq2seq.recipe.advice import Proposal, advice
from seq2seq.training.rollback import MAX_ROLLBACKS, remedy_of
from seq2seq.training.train_state import TrainState


@pytest.fixture
def recipe(tmp_path):
    write_corpus(tmp_path)
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    return lambda *settings: load_recipe(tmp_path / "recipe.yaml", settings)


def test_proposals_in_force_are_left_out(recipe):
    proposals = ["free some space", Proposal("set a", "training.divergence", "lower_rate"),
                 Proposal("lower b", "training.validate_every", 1)]
    assert advice(recipe(), proposals) == "free some space, set a, or lower b"
    assert advice(recipe("training.divergence=lower_rate"), proposals) == "free some space or lower b"
    assert advice(recipe("training.divergence=lower_rate", "training.validate_every=1"), proposals) == "free some space"


@pytest.mark.parametrize("retreats", [0, MAX_ROLLBACKS])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("divergence", ["stop", "lower_rate"])
def test_a_divergence_advises_nothing_that_the_run_has(recipe, tmp_path, retreats, dtype, divergence):
    state = TrainState(step=7, retreats=retreats)
    told = remedy_of(recipe(f"training.divergence={divergence}"), state, tmp_path, dtype)
    assert ("fp32" in told) == (dtype == torch.bfloat16)
    assert ("lower_rate" in told) == (divergence == "stop" and not retreats)
