"""Choose what runs a model: the one seam between models and whatever makes decoding fast on some hardware."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch

from seq2seq import console
from seq2seq.devices import choose_precision
from seq2seq.inference.eager import EagerEngine
from seq2seq.inference.int8 import Int8Engine
from seq2seq.inference.kernel_library import CompilationError, library
from seq2seq.model import Model
from seq2seq.model.interface import Engine
from seq2seq.model.transformer import Transformer


def load_engine(model: Model, precision: str, device: torch.device) -> Engine:
    """An engine that decodes with a copy of `model`: `start`, `step` and its own `topk`.

    Args:
        precision: fp32, bf16, int8 (on a CPU), or auto: bf16 where the hardware has it, else fp32. Where int8 cannot be
            had, for lack of a C++ compiler or because the kernels do not compute such a model, it is as auto, and a
            message says so; `precision` of the engine is what it computes in.
    Raises:
        UserError: the named precision is not to be had here, or there is none of that name.
    """
    chosen = choose_precision(precision, device)
    if chosen == "int8":
        refusal, chosen = Int8Engine.refusal(model), choose_precision("auto", device)
        if refusal is not None:
            _say_once(f"int8 is for Transformers with the usual attention; this model {refusal}: translating in "
                      f"{chosen}")
        elif (compiled := _kernels()) is not None:
            assert isinstance(model, Transformer)
            return Int8Engine(model, compiled)
    return EagerEngine(model, chosen, device)


@cache
def _kernels() -> Path | None:
    """The compiled kernels; compiles them if there are none, and says why where that is not possible."""
    try:
        return library()
    except CompilationError as error:
        console.say(f"translating without int8: {error}")
        return None


@cache
def _say_once(message: str) -> None:
    console.say(message)
