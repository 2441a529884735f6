"""Helpers to interrupt trainings and to compare their results."""

import json
import os
import signal

import torch

from seq2seq.storage.checkpoints import newest_checkpoint
from seq2seq.training.trainer import Training


class NoTensorBoard:
    """Replacement for TensorBoard's SummaryWriter that writes nothing, which saves a second per run."""

    def __init__(self, *arguments, **options): ...
    def add_scalar(self, *arguments, **options): ...
    def flush(self): ...
    def close(self): ...


WRITER = "torch.utils.tensorboard.writer.SummaryWriter"


def interrupting(monkeypatch, step, interrupt):
    """Call `interrupt` once, at the end of the optimizer step with this number."""
    original = Training._step

    def interrupted(self, micro_batches):
        original(self, micro_batches)
        if self.state.step == step:
            monkeypatch.setattr(Training, "_step", original)
            interrupt()

    monkeypatch.setattr(Training, "_step", interrupted)


def press_ctrl_c():
    os.kill(os.getpid(), signal.SIGINT)


def die():
    raise MemoryError("ends the training without saving a checkpoint")


def final_weights(run):
    return newest_checkpoint(run).model


def same(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def logged(run):
    """Return the records of the log without the values that depend on the clock."""
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in record.items() if key not in ("seconds", "tokens_per_second")}
            for record in records]
