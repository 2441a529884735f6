"""Distributed training: steps and weights do not depend on the number of processes."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from toy import RECIPE, write_corpus
from trainings import EXPLODING

from seq2seq.errors import UserError
from seq2seq.recipe import load_recipe
from seq2seq.storage.checkpoints import newest_checkpoint
from seq2seq.storage.run_directory import LOG_FILE
from seq2seq.training import distributed
from seq2seq.training.distributed import ProcessGroup
from seq2seq.training.run import train

# `torchrun` starts this; DOUBLE lets it compute in float64, where nothing is lost to rounding.
WORKER = EXPLODING + """
import sys
from pathlib import Path
from seq2seq.cli import main
if "DOUBLE" in os.environ:
    build = run.build_model
    run.build_model = lambda *arguments: build(*arguments).double()
if os.environ.get("DIES") == os.environ.get("RANK", "0") and not Path(sys.argv[-1], "died").exists():
    update = loop.TrainingLoop.update
    def dying(self, *batch):
        if self.state.step == 7:
            Path(self.run, "died").touch()
            os.kill(os.getpid(), 9)
        update(self, *batch)
    loop.TrainingLoop.update = dying
if os.environ.get("RANK") == "1" and "DIFFERS" in os.environ:
    name = {"start": "build_model", "checkpoint": "load_checkpoint"}[os.environ["DIFFERS"]]
    same = getattr(run, name)
    def other(*arguments):
        found = same(*arguments)
        weights = [] if found is None else found.parameters() if name == "build_model" else found.model.values()
        for weight in weights:
            weight.data.add_(0.25)
        return found
    setattr(run, name, other)
if os.environ.get("RANK") == os.environ.get("ELSEWHERE"):
    sys.argv[-1] += "-elsewhere"
if "ELSEWHERE" in os.environ:
    run.DIRECTORY_SECONDS = 1
sys.exit(main(["train", *sys.argv[1:]]))
"""


@pytest.fixture
def folder(tmp_path):
    write_corpus(tmp_path)
    (tmp_path / "recipe.yaml").write_text(RECIPE.replace("dropout: 0.1", "dropout: 0.0").replace(
        "  precision", "  accumulation: 3\n  precision"))
    (tmp_path / "worker.py").write_text(WORKER)
    return tmp_path


def start(folder, run, processes, *settings, **environment):
    """Start a training of the recipe in the folder; its output is written to a file beside the run."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    arguments = [argument for setting in settings for argument in ("--set", setting)]
    around = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    with (folder / f"{run}.errors").open("a") as errors:
        return subprocess.Popen([*command, folder / "worker.py", folder / "recipe.yaml", *arguments,
                                 "--run-dir", folder / run], stdout=errors, stderr=errors, env=around)


def trained(folder, run, processes, *settings, **environment):
    code = start(folder, run, processes, *settings, **environment).wait(timeout=300)
    assert code == 0, (folder / f"{run}.errors").read_text()
    return newest_checkpoint(folder / run)


def losses(folder, run):
    records = [json.loads(line) for line in (folder / run / LOG_FILE).read_text().splitlines()]
    return [record["loss"] for record in records]


def without_keys(name, weight):
    """A weight without biases of keys: they move all scores of a query alike, so that their true gradient is zero, and
    what Adam makes of rounding is another thing each time."""
    if name.endswith("query_key_value.bias"):
        return weight.unflatten(0, (3, -1))[[0, 2]]
    if name.endswith("key_value.bias"):
        return weight.unflatten(0, (2, -1))[1]
    return weight


def test_micro_batches_are_assigned_whole_if_there_are_enough_for_all_ranks(make_corpus):
    micro_batches = [np.arange(first, first + 3) for first in (0, 3, 6, 9, 12)]
    corpus = make_corpus([5] * 15, [7] * 15)
    dealt = [ProcessGroup(rank, 2).micro_batches(corpus, micro_batches) for rank in range(2)]
    assert [path for path, _ in dealt[0]] == [(0,), (2,), (4,)]
    assert [path for path, _ in dealt[1]] == [(1,), (3,)]
    alone = ProcessGroup().micro_batches(corpus, micro_batches)
    assert [path for path, _ in alone] == [(number,) for number in range(5)]


@pytest.mark.parametrize("size", [2, 3, 4, 7, 13])
def test_micro_batches_are_dealt_until_each_rank_has_one(make_corpus, size):
    micro_batches = [np.arange(6), np.arange(6, 11)]
    corpus = make_corpus([3, 5, 2, 7, 11, 2, 3, 5, 7, 2, 3], [2] * 11)
    dealt = [ProcessGroup(rank, size).micro_batches(corpus, micro_batches) for rank in range(size)]
    pairs = sorted(int(pair) for each in dealt for _, part in each for pair in part)
    assert pairs == list(range(11))
    assert sum(1 for each in dealt if each) == min(size, 11)
    paths = [path for each in dealt for path, _ in each]
    assert len(set(paths)) == len(paths)


def test_gathered_results_are_in_the_original_order():
    items = list(range(7))
    shares = [ProcessGroup(rank, 3).shard(items) for rank in range(3)]
    whole = [None] * 7
    for rank, share in enumerate(shares):
        whole[rank::3] = share
    assert whole == items


@pytest.mark.slow
def test_any_number_of_processes_trains_the_same(folder):
    # In float64, because differences of fp32 grow from step to step.
    settings = "training.max_steps=20", "training.validate_every=10"
    alone = trained(folder, "alone", 1, *settings, DOUBLE="1")
    for processes in (2, 4):
        run = f"together{processes}"
        together = trained(folder, run, processes, *settings, DOUBLE="1")
        assert losses(folder, run) == pytest.approx(losses(folder, "alone"), abs=1e-5)
        assert (folder / f"{run}.errors").read_text().count("tok:13a") == 1, "the main rank prints the scores"
        for name, weight in alone.model.items():
            assert weight.dtype == torch.float64
            torch.testing.assert_close(without_keys(name, together.model[name]), without_keys(name, weight), atol=1e-6,
                                       rtol=0, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.slow
def test_a_dead_rank_ends_the_others_and_another_number_of_ranks_resumes(folder):
    settings = "training.checkpoint_minutes=0", "tokenizer.subword_sampling=0.1"
    alone = trained(folder, "alone", 1, *settings)
    process = start(folder, "together", 2, *settings, DIES="1")
    assert process.wait(timeout=120) != 0
    assert newest_checkpoint(folder / "together").step >= 6
    # torchrun may end the other rank before that notices the loss, and then says itself which rank was killed.
    told = (folder / "together.errors").read_text()
    assert "has ended" in told or "Signal 9 (SIGKILL)" in told
    together = trained(folder, "together", 3, *settings)
    assert together.step == alone.step
    assert losses(folder, "together") == pytest.approx(losses(folder, "alone"), abs=1e-4)


@pytest.mark.slow
def test_all_ranks_roll_back_together_after_divergence(folder):
    settings = "training.max_steps=20", "training.validate_every=3", "training.divergence=lower_rate"
    together = trained(folder, "together", 2, *settings, EXPLODES="1")
    assert (together.step, together.info["progress"]["retreats"]) == (20, 1)
    assert "rolling back to step 3" in (folder / "together.errors").read_text()


@pytest.mark.slow
def test_a_signal_to_torchrun_stops_all_after_saving(folder):
    process = start(folder, "run", 2, "training.max_steps=100000", "training.validate_every=100000")
    deadline = time.monotonic() + 60
    while not (folder / "run" / LOG_FILE).exists() or (folder / "run" / LOG_FILE).stat().st_size == 0:
        assert time.monotonic() < deadline, (folder / "run.errors").read_text()
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) != 0
    saved = newest_checkpoint(folder / "run").step
    assert f"saved at step {saved:,}" in (folder / "run.errors").read_text()


@pytest.mark.slow
def test_all_processes_start_from_the_weights_of_the_first(folder):
    settings = "training.max_steps=3", "training.validate_every=3"
    alone, together = trained(folder, "alone", 1, *settings), trained(folder, "together", 2, *settings, DIFFERS="start")
    for name, weight in alone.model.items():
        torch.testing.assert_close(without_keys(name, together.model[name]), without_keys(name, weight), atol=1e-6,
                                   rtol=0, msg=name)


@pytest.mark.slow
def test_processes_that_resume_from_other_weights_are_refused(folder):
    trained(folder, "run", 2, "training.max_steps=3")
    assert start(folder, "run", 2, "training.max_steps=5", DIFFERS="checkpoint").wait(timeout=120) != 0
    told = (folder / "run.errors").read_text()
    first, second = (f"process {rank} on {socket.gethostname()}" for rank in range(2))
    assert f"{second} (step 3) does not start from the same weights and optimizer state as {first} (step 3)" in told
    assert newest_checkpoint(folder / "run").step == 3


@pytest.mark.slow
def test_a_run_directory_that_only_one_machine_sees_is_refused_before_anything_is_made(folder):
    assert start(folder, "run", 2, ELSEWHERE="1").wait(timeout=120) != 0
    assert f"process 1 on {socket.gethostname()} does not see the run directory" in (folder / "run.errors").read_text()
    assert not (folder / "run-elsewhere").exists() and set(os.listdir(folder / "run")) == {".lock", ".holder"}


@pytest.mark.parametrize(("others", "same"), [((7, 0), True), ((5, 0), False), ((7, 1), False)])
def test_ranks_compare_step_and_weights(monkeypatch, others, same):
    step, change = others
    weights, gathered = [torch.tensor([3.0, 5.0]), torch.tensor(2)], []
    monkeypatch.setattr(ProcessGroup, "gather", lambda self, items: gathered.append(items) or [*items, *items])
    ProcessGroup(1, 2).require_same(step, torch.float32, [weights[0], weights[1] + change])
    monkeypatch.setattr(ProcessGroup, "gather", lambda self, items: [*items, *gathered[0]])
    with nullcontext() if same else pytest.raises(UserError):
        ProcessGroup(0, 2).require_same(7, torch.float32, weights)
    with pytest.raises(UserError):
        ProcessGroup(0, 2).require_same(7, torch.bfloat16, weights)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("size", [7, 8])
def test_the_least_difference_in_one_weight_is_noticed(monkeypatch, dtype, size):
    buffer = torch.linspace(-1, 1, 16, dtype=dtype)
    for offset in (0, 1):
        weights, gathered = [buffer[offset:offset + size], torch.ones(2, 3, dtype=dtype)], []
        monkeypatch.setattr(ProcessGroup, "gather", lambda self, items, gathered=gathered:
                            [*(gathered or items), gathered.append(items[0]) or items[0]])
        group = ProcessGroup(1, 2)
        group.require_same_weights(3, weights)
        group.require_same_weights(3, [weight.clone() for weight in weights])
        other = weights[0].clone()
        other[5] = torch.nextafter(other[5], torch.tensor(2, dtype=dtype))
        monkeypatch.setattr(ProcessGroup, "gather", lambda self, items, gathered=gathered: [gathered[0], *items])
        with pytest.raises(UserError, match="process 1"):
            group.require_same_weights(3, [other, weights[1]])


def test_the_clock_of_the_main_rank_decides_when_a_checkpoint_is_due(folder, monkeypatch):
    asked = []
    monkeypatch.setattr(ProcessGroup, "maximum", lambda self, numbers: asked.append(tuple(numbers)) or numbers)
    settings = ["training.max_steps=4", "training.checkpoint_minutes=0", "data.test={}"]
    train(load_recipe(folder / "recipe.yaml", settings), folder / "run")
    assert asked.count((1, 0)) == 4                             # once a step: due, and stopped by no signal


def test_more_processes_than_gpus_are_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setenv("LOCAL_RANK", "4")
    with pytest.raises(UserError):
        distributed._own_gpu("auto", "auto")


def test_several_processes_do_not_share_a_named_gpu():
    with pytest.raises(UserError):
        distributed._own_gpu("cuda:1", "auto")
