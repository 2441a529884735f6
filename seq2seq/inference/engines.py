"""Interface of engines, and `load_engine`, which selects an engine by model, precision and hardware."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Protocol

import numpy as np

from seq2seq import console
from seq2seq.devices import choose_precision, cpu_flags, kind
from seq2seq.errors import CheckpointError
from seq2seq.inference.int8 import Int8Engine
from seq2seq.inference.kernel_library import Functions, usable_libraries
from seq2seq.inference.load_model import StoredModel, build, read_stored_model
from seq2seq.search.beam import WholeSearch
from seq2seq.search.interface import Stepwise
from seq2seq.storage.checkpoints import weights_checksum

if TYPE_CHECKING:
    from seq2seq.model import Model
    from seq2seq.model.interface import Seq2Seq


class Engine(Stepwise, Protocol):
    """Fast implementation of `Stepwise` for a trained model.

    precision: precision of the computations, "fp32", "bf16", "fp16" or "int8".
    """

    precision: str

    @property
    def whole_search(self) -> WholeSearch | None:
        """Beam search without the hooks of `SearchOptions`; None if the engine has only `start` and `step`."""

    @property
    def cross_layers(self) -> int:
        """Number of decoder layers with cross-attention for `cross_attention`; 0 if there are none."""

    def cross_attention(self, source: np.ndarray, source_offsets: np.ndarray, targets: Sequence[Sequence[int]],
                        layer: int) -> list[np.ndarray]:
        """Return the cross-attention of a decoder layer with teacher forcing.

        Args:
            source, source_offsets: see `search.interface.Stepwise.start`. targets: ids of a target for each sentence,
                without `</s>`. layer: from 1.
        Returns:
            For each sentence, (heads, len(target) + 1, source tokens) float32. Row i belongs to the step that reads
            token i of `<s>` and the target.
        Raises:
            ValueError: a sentence is longer than `max_positions`.
        """

    @property
    def model(self) -> Seq2Seq:
        """Model of the engine as a PyTorch module, which scores all positions of a given target in one call."""


def load_engine(model: StoredModel | Model, precision: str, device: str) -> Engine:
    """Return an engine that decodes with a copy of `model`.

    Args:
        model: contents of a bundle; or a model in memory, as in validation, for which there is no int8.
        precision: "fp32", "bf16", "fp16" (only on a GPU), "int8" (only on a CPU), or "auto" (see `choose_precision`).
            If the int8 kernels do not support the model, or the package contains none, "int8" is replaced by "auto",
            and a message says so. `Engine.precision` of the result is the precision in use.
    Raises:
        UserError: the precision is unknown, or not available on this hardware.
    """
    selected = choose_precision(precision, device)
    if selected == "int8" and isinstance(model, StoredModel):
        obstacle, selected = Int8Engine.obstacle(model.recipe.model), choose_precision("auto", device)
        if obstacle is not None:
            _say_once(f"int8 is not available for this model, because it {obstacle}; translating in {selected} instead")
        elif (kernels := _kernels()) is not None:
            directory, checksum = model.directory, weights_checksum(model.directory)

            def model_in_pytorch() -> Seq2Seq:
                if weights_checksum(directory) != checksum:
                    raise CheckpointError(f"{directory} has changed since it was loaded. Load it again.")
                return load_engine(read_stored_model(directory), "auto", device).model

            return Int8Engine(model.recipe.model, model.sizes, model.weights, kernels, model_in_pytorch,
                              model.shortlist)
    import torch

    from seq2seq.inference.eager import EagerEngine
    from seq2seq.inference.static import StaticEngine
    from seq2seq.model.transformer import Transformer

    model = build(model) if isinstance(model, StoredModel) else model
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
