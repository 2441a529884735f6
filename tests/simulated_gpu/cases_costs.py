"""Waits, operators and collectives of a training step and of a search step: upper bounds that may only fall.

At each wait the GPU is idle until the host has read a result and launched the next kernels. Operators are about as many
kernel launches. Whoever lowers a number lowers it in the tables, too.
"""

import importlib
from dataclasses import dataclass

import numpy as np
import pytest
import torch
import torch.distributed as dist
from simulation import GPU, SimulatedGPU
from torch.testing._internal.distributed.fake_pg import FakeStore

from seq2seq.check import check_recipe
from seq2seq.data.batching import EncodedCorpus, EncodedSide
from seq2seq.model import build_model, build_transformer, kernels
from seq2seq.recipe import TrainingSection, TransformerSection
from seq2seq.search.options import SearchOptions, power_length_penalty
from seq2seq.training.distributed import SINGLE_PROCESS, ProcessGroup
from seq2seq.training.run import start_training, train
from seq2seq.training.step import TrainingStep
from seq2seq.translation.translator import Translator

measure = importlib.import_module("seq2seq.check.measure")                      # not the function of this name
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
    ("bf16", 1, 1): Cost(0, 42),                                                # with CUDA graphs
    ("bf16", 1, 4): Cost(0, 94),
    ("bf16", 8, 1): Cost(0, 42, 2),
    ("bf16", 8, 2): Cost(0, 60, 2),
    ("fp16", 1, 1): Cost(0, 312),                                               # padded, without CUDA graphs
    ("fp32", 1, 1): Cost(0, 290),                                               # 2 of them decide about skipping
}
# Per micro-batch, in bf16, without the update of the step: copies to the GPU, the launch of the CUDA graph, and the sum
# of gradients. The number is the same for every number of layers.
MICRO_BATCH_OPERATORS = 18
# Kernels of a step of the base model in bf16, which a CUDA graph launches at once, by norm.
BASE_STEP = {"post": 526, "pre": 530}
# By beam size, and on the GPU, with kernels and CUDA graphs, or on the host: the mean of a search of 8 steps, its start
# included. The launch of a graph counts as one operator.
SEARCH_STEP = {(1, False): Cost(3, 47.7), (4, False): Cost(3, 49.7),
               (1, True): Cost(1 / 8, 6.2), (4, True): Cost(1 / 8, 6.3)}
# By number of decoder layers: kernels of a step, without a graph.
STEP_KERNELS = {1: 24, 6: 99}


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
    precision = recipe.training.precision
    # In bf16, the numbers of operators do not depend on the results of the kernels, which would take most of the time.
    with SimulatedGPU((7, 5) if precision == "fp16" else (9, 0), run_kernels=precision != "bf16") as gpu:
        training = start_training(recipe, folder / f"run{micro_batches}", group)
        steps = training.batches()
        training.update(*next(steps))                                           # makes the optimizer's state
        corpus, step = next(steps)
        assert len(group.micro_batches(corpus, step)) == micro_batches
        gpu.record.clear()
        training.update(corpus, step)
        group.maximum((0, 0))                                                   # as the loop does after each step
    return gpu.record


def test_a_micro_batch_of_six_layers(toy_recipe, tmp_path):
    one, four = (record_of_step(
        toy_recipe("training.precision=bf16", f"training.accumulation={number}", "model.encoder_layers=6",
                   "model.decoder_layers=6", *SHAPE), tmp_path, SINGLE_PROCESS, number) for number in (1, 4))
    assert (four.totals["operators"] - one.totals["operators"]) / 3 <= MICRO_BATCH_OPERATORS, one.operators


@pytest.mark.parametrize("norm", BASE_STEP)
def test_the_kernels_of_a_step_of_the_base_model(norm):
    # The number does not depend on the number of tokens, except for the chunks of the loss.
    side = EncodedSide.from_lists(np.random.default_rng(1).integers(4, 99, (20, 19)).tolist())
    corpus = EncodedCorpus(side, side)
    section = TransformerSection(encoder_layers=6, decoder_layers=6, d_model=512, num_heads=8, feed_forward=2048,
                                 dropout=0.1, norm=norm)
    with SimulatedGPU(run_kernels=False) as gpu:
        if not kernels.usable(GPU):
            pytest.skip("the kernels need Triton")
        step = TrainingStep(build_model(section, 99, 99).to(GPU), TrainingSection(gradient_clip=0.0), torch.bfloat16,
                            seed=1, max_length=30)
        for number in (1, 2):                                                   # 1 makes the optimizer's state
            gpu.record.clear()
            step.update(corpus, [np.arange(len(corpus))], number, 1e-3)
    assert_within(gpu.record, Cost(0, BASE_STEP[norm]))


@pytest.mark.usefixtures("search_kernels")
@pytest.mark.parametrize(("beam_size", "static"), SEARCH_STEP)
def test_a_search_step(toy_recipe, tmp_path, monkeypatch, beam_size, static):
    from seq2seq.inference.static import StaticEngine, _StaticRun

    recipe = toy_recipe("training.max_steps=1", "training.validate_every=1", "data.test={}", "model.d_model=32",
                        "decoding.safety_net=false", "decoding.max_length_ratio=0.3")
    train(recipe, tmp_path / "run")
    lines = sorted((tmp_path / "valid.en").read_text().splitlines(), key=len)[-2:]
    with SimulatedGPU() as gpu:
        translator = Translator.load(tmp_path / "run", "cuda", "bf16")
        assert isinstance(translator.engine, StaticEngine)
        if not static:
            monkeypatch.setattr(StaticEngine, "whole_search", None)
        translator.translate(lines, beam_size=beam_size)                        # captures the CUDA graphs
        steps = []
        for owner, name in ((_StaticRun, "advance"), (StaticEngine, "step")):
            method = getattr(owner, name)
            monkeypatch.setattr(owner, name, lambda self, *arguments, call=method: (
                steps.append(type(self)), call(self, *arguments))[1])
        gpu.record.clear()
        translator.translate(lines, beam_size=beam_size)
    assert steps == [_StaticRun if static else StaticEngine] * 8
    assert gpu.record.operators["graph"] == (8 if static else 0)
    assert_within(gpu.record, SEARCH_STEP[beam_size, static], len(steps))


def test_check_measures_replays_of_the_graph_of_the_training(toy_recipe, tmp_path, monkeypatch):
    monkeypatch.setattr(measure, "SECONDS", 0)
    monkeypatch.setattr(measure, "STEPS_ON_GPU", 2)
    recipe = toy_recipe("training.precision=bf16", *SHAPE)
    with SimulatedGPU() as gpu:
        report = check_recipe(recipe, tmp_path / "run", measured=True)
    assert not report.errors
    assert report.measured["steps"] == measure.MIN_REPORTED * measure.STEPS_ON_GPU
    assert gpu.record.operators["graph"] >= measure.MIN_STEPS * measure.STEPS_ON_GPU - 1     # the first step is direct
    assert not report.estimated


@pytest.mark.usefixtures("search_kernels")
@pytest.mark.parametrize("layers", STEP_KERNELS)
def test_kernels_of_a_search_step(layers):
    from seq2seq.inference.static import StaticEngine

    with SimulatedGPU(run_kernels=False) as gpu, torch.inference_mode():
        model = build_transformer(source_vocab_size=32_000, target_vocab_size=32_000, d_model=512, encoder_layers=1,
                                  decoder_layers=layers, num_heads=8, feed_forward=2048)
        engine = StaticEngine(model.to("cuda"), "bf16", torch.device("cuda"))
        storage = engine._storage_for(SearchOptions(4, power_length_penalty(1.0)), 9, 2, 64)
        storage.start(torch.tensor([0, 4, 9], dtype=torch.int32).to("cuda"), [5, 5], 2)
        gpu.record.clear()
        engine.advance(storage, 2)
    assert gpu.record.totals["operators"] <= STEP_KERNELS[layers], gpu.record.operators
