"""Precisions of devices."""

import pytest
import torch

from seq2seq.devices import choose_dtype, choose_precision
from seq2seq.errors import UserError

CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize(("capability", "expected"), [((6, 1), "fp32"), ((7, 0), "fp16"), ((7, 5), "fp16"),
                                                      ((8, 0), "bf16"), ((9, 0), "bf16")])
def test_auto_is_the_half_precision_that_the_gpu_has(monkeypatch, capability, expected):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert choose_precision("auto", GPU) == expected


@pytest.mark.parametrize(("precision", "capability", "message"), [
    ("bf16", (7, 5), "precision bf16: this cuda can only emulate bf16"),
    ("fp16", (6, 1), "precision fp16 needs a GPU of compute capability 7.0 or above"),
    ("tf32", (7, 5), "precision tf32 needs a GPU of compute capability 8.0 or above")])
def test_a_gpu_without_the_precision_is_refused(monkeypatch, precision, capability, message):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    with pytest.raises(UserError, match=message):
        choose_dtype(precision, GPU)


@pytest.mark.parametrize("precision", ["fp16", "tf32"])
def test_a_cpu_has_neither_fp16_nor_tf32(precision):
    with pytest.raises(UserError, match=f"precision {precision} needs a GPU"):
        choose_dtype(precision, CPU)


def test_tf32_keeps_fp32_weights(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    assert choose_dtype("tf32", GPU) == torch.float32
