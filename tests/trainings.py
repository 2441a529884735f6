"""Trainings that are interrupted, and how two of them are compared."""

import json
import os
import signal

import torch

from seq2seq.storage.checkpoints import newest_checkpoint
from seq2seq.training.trainer import Training


class NoTensorBoard:
    """In place of a writer of TensorBoard's files, which cost a second a run."""

    def __init__(self, *arguments, **options): ...
    def add_scalar(self, *arguments, **options): ...
    def flush(self): ...
    def close(self): ...


WRITER = "torch.utils.tensorboard.writer.SummaryWriter"


def interrupting(monkeypatch, step, interrupt):
    """Let `interrupt` happen in the middle of the step."""
    done = Training._step

    def interrupted(self, micro_batches):
        done(self, micro_batches)
        if self.state.step == step:
            monkeypatch.setattr(Training, "_step", done)
            interrupt()

    monkeypatch.setattr(Training, "_step", interrupted)


def press_ctrl_c():
    os.kill(os.getpid(), signal.SIGINT)


def die():
    raise MemoryError("a process that dies here has saved nothing since the last checkpoint")


def final_weights(run):
    return newest_checkpoint(run).model


def same(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def logged(run):
    """The log without what depends on the clock."""
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in record.items() if key not in ("seconds", "tokens_per_second")}
            for record in records]
