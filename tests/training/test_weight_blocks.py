"""Weights in one buffer, as on a GPU, are trained and saved like separate ones."""

import math

import pytest
import torch

from seq2seq.recipe import TrainingSection
from seq2seq.training.optimizers import build_optimizer
from seq2seq.training.step import mean_gradient_norm, scale_gradient, update_moving_average
from seq2seq.training.weight_blocks import ALIGNMENT, WeightBlocks

NAMES = "matrix", "bias"


def parameters():
    generator = torch.Generator().manual_seed(1)
    return [torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in ((3, 5), (7,))]


class Trained:
    """Two weights, in one buffer or not, after some steps; the third step has no finite gradient."""

    def __init__(self, joined, steps=5, state=None, dtype=torch.float32):
        self.weights = parameters()
        self.blocks = WeightBlocks(self.weights, joined)
        named = zip(NAMES, self.weights, strict=True)
        self.optimizer = build_optimizer(TrainingSection(weight_decay=0.1), named, dtype, self.blocks)
        self.average = [block.detach().clone() for block in self.blocks.blocks]
        if state:
            self.optimizer.restore(state)
        generator, self.norms = torch.Generator().manual_seed(2), []
        for number in range(1, steps + 1):
            gradient = self.blocks.buffer()
            for view in self.blocks.views(gradient):
                view.copy_(torch.randn(view.shape, generator=generator))
            if number == 3:
                self.blocks.views(gradient)[0][1, 2] = math.nan
            norm = mean_gradient_norm(self.blocks.blocks_of(gradient), 11)
            scale_gradient(gradient, norm, 11, 0.1)
            for block, part in zip(self.blocks.blocks, self.blocks.blocks_of(gradient), strict=True):
                block.grad = part
            skip = 1 - norm.isfinite().float()
            self.optimizer.step(0.1, skip)
            update_moving_average(self.average, self.blocks.blocks, 0.9, number, skip)
            self.norms.append(norm.item())
            self.gradient = gradient


def test_one_buffer_is_trained_like_separate_weights():
    joined, separate = Trained(True), Trained(False)
    assert joined.norms == pytest.approx(separate.norms, nan_ok=True) and math.isnan(joined.norms[2])
    for one, other in zip((*joined.weights, *joined.blocks.by_weight(joined.average)),
                          (*separate.weights, *separate.average), strict=True):
        torch.testing.assert_close(one, other)
    state, expected = joined.optimizer.state(), separate.optimizer.state()
    assert state.keys() == expected.keys() and len(state) == 2 * 3
    for name in state:
        torch.testing.assert_close(state[name], expected[name])


def test_gaps_between_weights_stay_0_even_after_a_gradient_that_is_not_finite():
    trained = Trained(True, steps=3)
    moments = [value for values, _ in trained.optimizer._values() for value in values.values() if value.dim()]
    assert len(moments) == 2
    for buffer in (*trained.blocks.blocks, *trained.average, *moments, trained.gradient):
        assert buffer.shape == (2 * ALIGNMENT,)
        assert not buffer.detach()[15:ALIGNMENT].any() and not buffer.detach()[ALIGNMENT + 7:].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("joined", [True, False])
def test_state_of_one_buffer_is_restored_into_separate_weights_and_back(joined, dtype):
    state = {name: value.clone() for name, value in Trained(joined, dtype=dtype).optimizer.state().items()}
    for other in (True, False):
        restored = Trained(other, steps=0, state=state, dtype=dtype).optimizer.state()
        assert restored.keys() == state.keys() and all(torch.equal(restored[name], state[name]) for name in state)


def test_weights_in_one_buffer_remain_parameters_with_gradients_and_copies():
    layer = torch.nn.Linear(5, 3)
    expected = layer(torch.ones(5))
    blocks = WeightBlocks(list(layer.parameters()), joined=True)
    assert torch.equal(layer(torch.ones(5)), expected)
    layer(torch.ones(5)).sum().backward()
    assert all(weight.grad is not None and weight.is_leaf for weight in layer.parameters())
    assert {name: value.shape for name, value in layer.state_dict().items()} == {"weight": (3, 5), "bias": (3,)}
    blocks.blocks[0].zero_()
    assert not layer(torch.ones(5)).any()
    layer.load_state_dict({"weight": torch.ones(3, 5), "bias": torch.zeros(3)})
    assert blocks.blocks[0].sum() == 15
