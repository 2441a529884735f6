import math

import pytest
import torch

from seq2seq.recipe import TrainingSection
from seq2seq.training.optimizers import (
    FIRST_LOSS_SCALE,
    GROWTH_STEPS,
    build_optimizer,
    is_hidden_matrix,
    learning_rate,
)
from seq2seq.training.step import mean_gradient_norm, scale_gradient, update_moving_average


def rates(steps, **section):
    return [learning_rate(TrainingSection(**section), step) for step in steps]


@pytest.mark.parametrize("step", [1, 2, 3999, 4000, 4001, 100_000])
def test_inverse_sqrt_is_the_schedule_of_the_paper(step):
    # Vaswani et al. 2017, equation 3, d_model 512 and 4,000 warm-up steps; its peak is (512 * 4000)^-0.5.
    paper = 512**-0.5 * min(step**-0.5, step * 4000**-1.5)
    section = {"schedule": "inverse_sqrt", "warmup_steps": 4000, "learning_rate": (512 * 4000) ** -0.5}
    assert rates([step], **section) == [pytest.approx(paper, rel=1e-12)]


@pytest.mark.parametrize("schedule", ["inverse_sqrt", "linear", "cosine", "constant"])
def test_every_schedule_rises_from_the_first_step_to_its_peak(schedule):
    section = {"schedule": schedule, "warmup_steps": 5, "max_steps": 100, "learning_rate": 0.5}
    assert rates(range(1, 6), **section) == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5])
    after = rates(range(6, 101), **section)
    assert after == sorted(after, reverse=True) and max(after) <= 0.5 and min(after) > 0


def test_linear_falls_by_equal_amounts_to_zero_after_the_last_step():
    assert rates(range(1, 7), schedule="linear", warmup_steps=2, max_steps=5, learning_rate=4.0) \
        == pytest.approx([2, 4, 3, 2, 1, 0])


def test_cosine_falls_along_half_a_cosine():
    # Half-way the rate is half the peak; a quarter of the way it is (1 + cos 45 degrees) / 2 of it.
    falling = rates([3, 5, 7, 9, 11], schedule="cosine", warmup_steps=3, max_steps=10, learning_rate=2.0)
    assert falling == pytest.approx([2, 1 + math.sqrt(0.5), 1, 1 - math.sqrt(0.5), 0])


def test_the_constant_schedule_stays_at_its_peak():
    assert rates([7, 100, 10**6], schedule="constant", warmup_steps=7, learning_rate=0.25) == [0.25] * 3


@pytest.mark.parametrize(("schedule", "expected"), [
    ("inverse_sqrt", [1, 1 / math.sqrt(2), 0.5]), ("linear", [0.8, 0.6, 0.2]), ("constant", [1, 1, 1]),
])
def test_without_warm_up_the_rate_falls_from_the_first_step(schedule, expected):
    found = rates([1, 2, 4], schedule=schedule, warmup_steps=0, max_steps=4, learning_rate=1.0)
    assert found == pytest.approx(expected)


@pytest.mark.parametrize("schedule", ["inverse_sqrt", "linear", "cosine", "constant"])
@pytest.mark.parametrize("max_steps", [3, 7])
def test_a_training_that_ends_in_warm_up_only_rises(schedule, max_steps):
    rising = rates(range(1, max_steps + 1), schedule=schedule, warmup_steps=7, max_steps=max_steps, learning_rate=7.0)
    assert rising == pytest.approx(list(range(1, max_steps + 1)))


@pytest.mark.parametrize(("name", "kind"), [("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW)])
def test_the_optimizer_is_the_one_the_recipe_names(name, kind):
    section = TrainingSection(optimizer=name, betas=(0.7, 0.9), epsilon=1e-3, weight_decay=0.2, learning_rate=0.5)
    (one,) = build_optimizer(section, [("weight", torch.nn.Parameter(torch.ones(2)))]).optimizers
    (group,) = one.param_groups
    chosen = (group["lr"], tuple(group["betas"]), group["eps"], group["weight_decay"])
    assert chosen == (0.5, (0.7, 0.9), 1e-3, 0.2)
    assert type(one) is kind


def test_muon_takes_the_matrices_of_layers_and_adamw_the_rest(make_model):
    model = make_model(torch.float32, positions="learned", output_bias=True)
    optimizer = build_optimizer(TrainingSection(optimizer="muon"), model.named_parameters())
    adamw, muon = ({id(weight) for group in one.param_groups for weight in group["params"]}
                   for one in optimizer.optimizers)
    names = {id(weight): name for name, weight in model.named_parameters()}
    assert adamw | muon == set(names) and not adamw & muon
    assert "encoder.0.self_attention.output.weight" in {names[weight] for weight in muon}
    assert {"target_embedding", "target_positions", "output_bias", "encoder.0.self_residual.norm.weight"} \
        <= {names[weight] for weight in adamw}
    assert type(optimizer.optimizers[1]) is torch.optim.Muon


@pytest.mark.parametrize(("name", "hidden"), [
    ("encoder.0.feed_forward.first.weight", True), ("decoder.weight_ih_l0", True),      # the latter: pointer network
    ("layers.0.self_attention.output.weight", True), ("cells.0.weight_hh", True),       # language model, RNN
    ("source_embedding", False), ("output", False), ("first.weight", False)])
def test_muon_takes_the_matrices_of_layers_in_all_types_of_models(name, hidden):
    assert is_hidden_matrix(name, torch.zeros(2, 3)) == hidden
    assert not is_hidden_matrix(name, torch.zeros(3))


def test_the_update_of_muon_has_nearly_equal_singular_values():
    # Its singular values are near one, times 0.2 sqrt(the longer side) (Liu et al. 2025, equation 4).
    torch.manual_seed(1)
    weight = torch.nn.Parameter(torch.zeros(8, 8))
    weight.grad = torch.randn(8, 1) @ torch.randn(1, 8) + 0.3 * torch.randn(8, 8)
    norm = torch.nn.Parameter(torch.ones(8))
    section = TrainingSection(optimizer="muon")
    build_optimizer(section, [("encoder.0.x.weight", weight), ("encoder.0.norm.weight", norm)]).step(0.1)
    values = torch.linalg.svdvals(weight.detach()) / (0.1 * 0.2 * 8**0.5)
    assert values.min() > 0.3 and values.max() < 1.4


def test_the_first_update_of_adam_is_the_learning_rate():
    # Kingma and Ba 2015, algorithm 1: after one step the corrected moments are g and g^2, so the update is a * sign(g).
    weight = torch.nn.Parameter(torch.tensor([1.0, 2.0]))
    weight.grad = torch.tensor([3.0, -0.01])
    build_optimizer(TrainingSection(), [("weight", weight)]).step(0.1)
    assert weight.tolist() == pytest.approx([0.9, 2.1])


def gradients():
    return [torch.tensor([3.0, 0.0]) * 7, torch.tensor([[4.0]]) * 7]            # of 7 tokens: the norm of the mean is 5


@pytest.mark.parametrize(("clip", "factor"), [(0, 1), (5, 1), (100, 1), (2, 0.4)])
def test_gradients_become_means_and_are_clipped_to_a_norm(clip, factor):
    scaled = gradients()
    norm = mean_gradient_norm(scaled, 7)
    assert norm.item() == 5
    gradient = torch.cat([part.flatten() for part in scaled])
    scale_gradient(gradient, norm, 7, clip)
    assert gradient.tolist() == pytest.approx([3 * factor, 0, 4 * factor])


@pytest.mark.parametrize(("optimizer", "value"), [("adam", math.nan), ("adamw", math.inf), ("muon", math.nan)])
def test_a_skipped_step_changes_neither_weights_nor_optimizer_state(optimizer, value):
    weights = {"encoder.0": torch.nn.Parameter(torch.eye(3)), "bias": torch.nn.Parameter(torch.ones(3))}
    built = build_optimizer(TrainingSection(optimizer=optimizer, weight_decay=0.1), weights.items())

    def step(gradient, skip):
        for weight in weights.values():
            weight.grad = torch.full_like(weight, gradient)
        built.step(0.1, torch.tensor(skip))
        return [tensor.clone() for tensor in [*weights.values(), *built.state().values()]]

    before = step(0.5, 0.0)
    assert all(map(torch.equal, step(value, 1.0), before))
    assert not all(map(torch.equal, step(0.5, 0.0), before))


def test_the_moving_average_follows_its_equation():
    average, weights = [torch.tensor([1.0, 2.0])], [torch.tensor([3.0, 7.0])]
    update_moving_average(average, weights, 0.75, step=1000, skip=torch.tensor(0.0))
    assert average[0].tolist() == pytest.approx([0.75 * 1 + 0.25 * 3, 0.75 * 2 + 0.25 * 7])
    assert weights[0].tolist() == [3, 7]
    before = average[0].clone()
    update_moving_average(average, weights, 0.75, step=1001, skip=torch.tensor(1.0))
    assert torch.equal(average[0], before)


def test_the_moving_average_soon_forgets_the_random_start():
    # TensorFlow's ExponentialMovingAverage: decay min(d, (1 + step) / (10 + step)), here 2/11 and 3/12.
    average, weights = [torch.tensor([11.0 * 12])], [torch.zeros(1)]
    update_moving_average(average, weights, 0.999, step=1, skip=torch.tensor(0.0))
    assert average[0].item() == pytest.approx(2 * 12)
    update_moving_average(average, weights, 0.999, step=2, skip=torch.tensor(0.0))
    assert average[0].item() == pytest.approx(2 * 3)


def fp16_optimizer():
    weight = torch.nn.Parameter(torch.ones(2))
    weight.grad = torch.ones(2)
    return build_optimizer(TrainingSection(), [("weight", weight)], torch.float16)


def step(optimizer, skip):
    optimizer.step(0.1, torch.tensor(skip))
    return optimizer.loss_scale.value.item()


def test_only_fp16_has_a_loss_scale():
    weight = torch.nn.Parameter(torch.ones(2))
    for dtype in (torch.float32, torch.bfloat16):
        assert build_optimizer(TrainingSection(), [("weight", weight)], dtype).loss_scale is None


def test_the_loss_scale_is_halved_by_a_skipped_step_and_doubled_after_many_finite_ones():
    optimizer = fp16_optimizer()
    assert [step(optimizer, skip) for skip in (0.0, 1.0, 1.0, 0.0)] == [128, 64, 32, 32]
    optimizer.loss_scale.finite_steps.fill_(GROWTH_STEPS - 2)
    assert [step(optimizer, 0.0) for _ in range(3)] == [32, 64, 64]
    optimizer.loss_scale.value.fill_(32768)
    optimizer.loss_scale.finite_steps.fill_(GROWTH_STEPS - 1)
    assert step(optimizer, 0.0) == 32768                                        # twice as much is infinite in fp16


def test_the_loss_scale_is_restored_and_a_checkpoint_without_one_leaves_it():
    optimizer, restored = fp16_optimizer(), fp16_optimizer()
    for skip in (1.0, 1.0, 0.0, 0.0):
        step(optimizer, skip)
    restored.restore(optimizer.state())
    assert {name: value.tolist() for name, value in restored.state().items()} == {
        name: value.tolist() for name, value in optimizer.state().items()}
    assert (restored.loss_scale.value, restored.loss_scale.finite_steps) == (32, 2)
    other = fp16_optimizer()
    other.restore({name: value for name, value in optimizer.state().items() if name.startswith("weight.")})
    assert (other.loss_scale.value, other.state()["weight.step"]) == (FIRST_LOSS_SCALE, 2)
