"""Waits, operators and collectives of a training step and of a search step: upper bounds that may only fall.

At each wait the GPU is idle until the host has read a result and launched the next kernels. Operators are about as many
kernel launches. Whoever lowers a number lowers it in the tables, too.
"""

from dataclasses import dataclass

import pytest
import torch.distributed as dist
from simulation import SimulatedGPU
from torch.testing._internal.distributed.fake_pg import FakeStore

from seq2seq.inference.device_search import StepwiseRun
from seq2seq.inference.static import StaticEngine, _StaticRun
from seq2seq.training.distributed import SINGLE_PROCESS, ProcessGroup
from seq2seq.training.run import start_training, train
from seq2seq.translation.translator import Translator

pytestmark = pytest.mark.usefixtures("quick_tensorboard")


SHAPE = "data.cleaning.max_pieces=30", "training.batch_tokens=330", "model.num_heads=1"


@dataclass(frozen=True)
class Cost:
    """Upper bounds of a step."""

    waits: float
    operators: float
    collectives: int = 0


# By precision, ranks, and micro-batches of a rank: a Transformer of 1 + 1 layers, which has 33 weights.
TRAINING_STEP = {
    ("bf16", 1, 1): Cost(0, 46),                                                # with CUDA graphs
    ("bf16", 1, 4): Cost(0, 100),
    ("bf16", 8, 1): Cost(0, 46, 2),
    ("bf16", 8, 2): Cost(0, 64, 2),
    ("fp16", 1, 1): Cost(0, 304),                                               # padded, without CUDA graphs
    ("fp32", 1, 1): Cost(0, 282),                                               # 2 of them decide about skipping
}
# Per micro-batch, in bf16, without the update of the step: copies to the GPU, the launch of the CUDA graph, and the sum
# of gradients. The number is the same for every number of layers.
MICRO_BATCH_OPERATORS = 18
# By beam size, and with or without static KV caches and CUDA graphs: the mean of a search of 8 steps, its start
# included. The launch of a graph counts as one operator.
SEARCH_STEP = {(1, False): Cost(1 / 8, 95), (4, False): Cost(1 / 8, 96),
               (1, True): Cost(1 / 8, 9.75), (4, True): Cost(1 / 8, 9.75)}


def assert_within(found, bound, steps=1):
    per_step = Cost(*(found.totals[name] / steps for name in ("waits", "operators", "collectives")))
    assert per_step.waits <= bound.waits, f"{steps} steps:\n{found}"
    assert per_step.operators <= bound.operators, f"{steps} steps: {found.operators}"
    assert per_step.collectives <= bound.collectives, f"{steps} steps: {found.collectives}"


@pytest.fixture
def eight_ranks():
    """Rank 0 of eight, in a process group that sends nothing."""
    dist.init_process_group("fake", rank=0, world_size=8, store=FakeStore())
    yield ProcessGroup(0, 8)
    dist.destroy_process_group()


@pytest.mark.parametrize(("precision", "ranks", "micro_batches"), TRAINING_STEP)
def test_a_training_step(toy_recipe, tmp_path, request, precision, ranks, micro_batches):
    group = SINGLE_PROCESS if ranks == 1 else request.getfixturevalue("eight_ranks")
    recipe = toy_recipe(f"training.precision={precision}", f"training.accumulation={ranks * micro_batches}", *SHAPE)
    record = record_of_step(recipe, tmp_path, group, micro_batches)
    assert_within(record, TRAINING_STEP[precision, ranks, micro_batches])


def record_of_step(recipe, folder, group, micro_batches):
    with SimulatedGPU((7, 5) if recipe.training.precision == "fp16" else (9, 0)) as gpu:
        training = start_training(recipe, folder / f"run{micro_batches}", group)
        steps = training.batches()
        training.update(*next(steps))                                           # makes the optimizer's state
        corpus, step = next(steps)
        assert len(group.micro_batches(step)) == micro_batches
        gpu.record.clear()
        training.update(corpus, step)
        group.maximum((0, 0))                                                   # as the loop does after each step
    return gpu.record


def test_a_micro_batch_of_six_layers(toy_recipe, tmp_path):
    one, four = (record_of_step(
        toy_recipe("training.precision=bf16", f"training.accumulation={number}", "model.encoder_layers=6",
                   "model.decoder_layers=6", *SHAPE), tmp_path, SINGLE_PROCESS, number) for number in (1, 4))
    assert (four.totals["operators"] - one.totals["operators"]) / 3 <= MICRO_BATCH_OPERATORS, one.operators


@pytest.mark.parametrize(("beam_size", "static"), SEARCH_STEP)
def test_a_search_step(toy_recipe, tmp_path, monkeypatch, beam_size, static):
    recipe = toy_recipe("training.max_steps=1", "training.validate_every=1", "data.test={}", "model.d_model=32",
                        "decoding.safety_net=false", "decoding.max_length_ratio=0.3")
    train(recipe, tmp_path / "run")
    lines = (tmp_path / "valid.en").read_text().splitlines()
    with SimulatedGPU() as gpu:
        translator = Translator.load(tmp_path / "run", "cuda", "bf16")
        assert isinstance(translator.engine, StaticEngine)
        if not static:
            monkeypatch.setattr(StaticEngine, "whole_search", StaticEngine._search_on_device)
        translator.translate(lines, beam_size=beam_size)                        # captures the CUDA graphs
        steps = []
        for decoder in (_StaticRun, StepwiseRun):
            monkeypatch.setattr(decoder, "advance", lambda self, length, advance=decoder.advance: (
                steps.append((type(self), length)), advance(self, length)))
        gpu.record.clear()
        translator.translate(lines, beam_size=beam_size)
    assert steps == [(_StaticRun if static else StepwiseRun, length) for length in range(1, 9)]
    assert gpu.record.operators["graph"] == (8 if static else 0)
    assert_within(gpu.record, SEARCH_STEP[beam_size, static], len(steps))
