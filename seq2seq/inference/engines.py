"""Choice of the engine that decodes with a model, by precision and hardware."""

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
    """Return an engine that decodes with a copy of `model`.

    Args:
        precision: fp32, bf16, int8 (on a CPU), or auto: bf16 if the hardware has it, else fp32. If there is no C++
            compiler, or the kernels do not support the model, int8 falls back to auto with a message; the engine's
            `precision` is the one in use.
    Raises:
        UserError: the precision is unknown, or not available on this hardware.
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
    """Return the compiled kernels, compiling them on first use; None, with a message, if that fails."""
    try:
        return library()
    except CompilationError as error:
        console.print_message(f"translating without int8: {error}")
        return None


@cache
def _say_once(message: str) -> None:
    console.print_message(message)
