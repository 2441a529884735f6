"""Interface of engines, and `load_engine`, which selects an engine by model, precision and hardware."""

from __future__ import annotations

from functools import cache
from typing import Protocol

import torch

from seq2seq import console
from seq2seq.devices import choose_precision, cpu_flags, kind
from seq2seq.inference.eager import EagerEngine
from seq2seq.inference.int8 import Int8Engine
from seq2seq.inference.kernel_library import Functions, usable_libraries
from seq2seq.inference.load_model import StoredModel, build
from seq2seq.inference.static import StaticEngine
from seq2seq.model import Model
from seq2seq.model.interface import Seq2Seq, Stepwise
from seq2seq.model.transformer import Transformer
from seq2seq.search.beam import WholeSearch
from seq2seq.search.topk import TopK


class Engine(Stepwise, Protocol):
    """Fast implementation of `Stepwise` for a trained model.

    precision: precision of the computations, "fp32", "bf16", "fp16" or "int8".
    """

    precision: str

    @property
    def topk(self) -> TopK:
        """Function that finds the best continuations of hypotheses from the logits of a step."""

    @property
    def whole_search(self) -> WholeSearch | None:
        """Beam search without the hooks of `SearchOptions`; None if the engine has only `start` and `step`."""

    @property
    def model(self) -> Seq2Seq:
        """Model of the engine as a PyTorch module, which scores all positions of a given target in one call."""


def load_engine(model: StoredModel | Model, precision: str, device: str) -> Engine:
    """Return an engine that decodes with a copy of `model`.

    Args:
        model: contents of a bundle, or a model in memory, as in validation.
        precision: "fp32", "bf16", "fp16" (only on a GPU), "int8" (only on a CPU), or "auto" (see `choose_precision`).
            If the int8 kernels do not support the model, or the package contains none, "int8" is replaced by "auto",
            and a message says so. `Engine.precision` of the result is the precision in use.
    Raises:
        UserError: the precision is unknown, or not available on this hardware.
    """
    model = build(model) if isinstance(model, StoredModel) else model
    selected = choose_precision(precision, device)
    if selected == "int8":
        obstacle, selected = Int8Engine.obstacle(model), choose_precision("auto", device)
        if obstacle is not None:
            _say_once(f"int8 is not available for this model, because it {obstacle}; translating in {selected} instead")
        elif (kernels := _kernels()) is not None:
            assert isinstance(model, Transformer)
            return Int8Engine(model, kernels)
    if kind(device) == "cuda" and StaticEngine.obstacle(model) is None:
        assert isinstance(model, Transformer)
        return StaticEngine(model, selected, torch.device(device))
    return EagerEngine(model, selected, torch.device(device))


@cache
def _kernels() -> Functions | None:
    """Return the fastest kernels that this processor can run. If there are none, print why and return None."""
    try:
        for library in usable_libraries(cpu_flags()):
            return Functions(library)
        reason = "this package has no kernels for this processor; they are compiled if it is built with a C++ compiler"
    except OSError as error:                                                    # the OpenMP library may be missing
        reason = f"the kernels cannot be loaded: {error}"
    console.print_message(f"translating without int8: {reason}")
    return None


@cache
def _say_once(message: str) -> None:
    console.print_message(message)
