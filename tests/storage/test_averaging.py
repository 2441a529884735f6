"""Averages of models are exact, and only models of one run can be averaged."""

import pytest
import torch
from bits import assert_same_bits

from seq2seq.errors import CheckpointError, OptionError
from seq2seq.storage.averaging import average_checkpoints, average_weights


def test_an_average_is_the_mean_in_the_original_type():
    models = [{"a": torch.tensor([[value, -value]]), "b": torch.tensor(value).bfloat16()} for value in (1.0, 2.0, 6.0)]
    assert_same_bits(
        average_weights(iter(models)), {"a": torch.tensor([[3.0, -3.0]]), "b": torch.tensor(3.0).bfloat16()}
    )
    assert models[0]["a"].tolist() == [[1.0, -1.0]]


def test_an_average_is_computed_without_rounding_errors():
    # In float32, 2^24 + 1 is 2^24 again: summed there, the ones would vanish.
    values = (2.0**24, 1.0, 1.0, -(2.0**24))
    assert average_weights([{"a": torch.tensor([value])} for value in values])["a"].tolist() == [0.5]


def test_whole_numbers_are_not_averaged():
    same = {"steps": torch.tensor([2, 3])}
    assert_same_bits(average_weights([same, dict(same)]), same)
    with pytest.raises(CheckpointError, match="steps"):
        average_weights([same, {"steps": torch.tensor([2, 4])}])


def test_models_that_differ_cannot_be_averaged():
    first = {"a": torch.ones(2, 3), "b": torch.ones(1)}
    with pytest.raises(CheckpointError, match=r"1 and 3.*a has the shape \(2, 3\) in one and \(3, 2\)"):
        average_weights([first, first, {"a": torch.ones(3, 2), "b": torch.ones(1)}])
    with pytest.raises(CheckpointError, match="only one of them has b, c"):
        average_weights([first, {"a": torch.ones(2, 3), "c": torch.ones(1)}])
    with pytest.raises(CheckpointError, match="no models"):
        average_weights([])


@pytest.mark.parametrize("last", [0, -1])
def test_averaging_no_checkpoints_is_refused(tmp_path, last):
    with pytest.raises(OptionError, match=f"last is {last}; set it to 1 or more"):
        average_checkpoints([tmp_path], tmp_path / "average", last=last)
