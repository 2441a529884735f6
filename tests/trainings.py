"""Helpers to interrupt trainings and to compare their results."""

import json
import os
import signal

import torch
import torch.distributed as dist

from seq2seq.storage.checkpoints import newest_checkpoint
from seq2seq.training.clock import PHASES
from seq2seq.training.loop import TrainingLoop
from seq2seq.training.run import start_training

# Code for a process of `torchrun`: from step 8 the learning rate is so high that the loss diverges, until a rollback.
EXPLODING = """
import os
from seq2seq.training import loop, run, train_state
if "EXPLODES" in os.environ:
    train_state.SMOOTHING_STEPS = 2
    rate = loop.TrainingLoop._learning_rate
    loop.TrainingLoop._learning_rate = lambda self, number: rate(self, number) * (
        1e5 if number >= 8 and self.state.rate_factor == 1 else 1)
"""


TIME_DEPENDENT_KEYS = ("seconds", "peak_memory", "tokens_per_second", *PHASES)
"""Keys of log records that depend on the clock."""


class NoTensorBoard:
    """Replacement for TensorBoard's SummaryWriter that writes nothing, which saves a second per run."""

    def __init__(self, *arguments, **options): ...
    def add_scalar(self, *arguments, **options): ...
    def flush(self): ...
    def close(self): ...


def interrupting(monkeypatch, step, interrupt):
    """Call `interrupt` once, at the end of the optimizer step with this number."""
    original = TrainingLoop.update

    def interrupted(self, *batch):
        original(self, *batch)
        if self.state.step == step:
            monkeypatch.setattr(TrainingLoop, "update", original)
            interrupt()

    monkeypatch.setattr(TrainingLoop, "update", interrupted)


def press_ctrl_c():
    os.kill(os.getpid(), signal.SIGINT)


def die():
    raise MemoryError("ends the training without saving a checkpoint")


def run_forked_ranks(world_size, store, work):
    """Call `work(rank)` in forked processes of a gloo group, which meet in the file `store`; returns the exit codes."""
    children = []
    for rank in range(world_size):
        child = os.fork()
        if child == 0:
            try:
                dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world_size)
                work(rank)
                os._exit(0)
            finally:
                os._exit(99)
        children.append(child)
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


def final_weights(run):
    return newest_checkpoint(run).model


def same(first, second):
    return first.keys() == second.keys() and all(
        torch.equal(*map(torch.as_tensor, (first[name], second[name]))) for name in first)


def logged(run):
    """Return the records of the log without the values that depend on the clock."""
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in record.items() if key not in TIME_DEPENDENT_KEYS}
            for record in records]


def train_steps(recipe, run, count):
    """Do the first optimizer steps, without log, validations and checkpoints. Return the loss per token of each step,
    and the weights."""
    training, losses = start_training(recipe, run), []
    steps = training.batches()
    for _ in range(count):
        training.update(*next(steps))
        training.results.read()
        losses.append(training.state.window.pop("likelihood") / training.state.window.pop("target_tokens"))
    return losses, dict(zip(training.step.names, training.step.weights, strict=True))
