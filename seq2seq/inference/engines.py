"""Interface of engines, and `load_engine`, which selects an engine by model, precision and hardware."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Protocol

import numpy as np

from seq2seq import console
from seq2seq.devices import allow_tf32, choose_precision, cpu_flags, kind
from seq2seq.errors import CheckpointError
from seq2seq.inference.int8 import NativeEngine
from seq2seq.inference.kernel_library import (
    DamagedLibrary,
    Functions,
    processor_flags,
    require_intact,
    usable_libraries,
)
from seq2seq.inference.load_model import StoredModel, build, read_stored_model
from seq2seq.recipe import ModelSection
from seq2seq.search.beam import WholeSearch
from seq2seq.search.interface import Stepwise
from seq2seq.storage.checkpoints import weights_checksum
from seq2seq.storage.int8_score import Int8Score

if TYPE_CHECKING:
    from seq2seq.model import Model
    from seq2seq.model.interface import Seq2Seq


NATIVE_PRECISIONS = ("int8", "fp32")
"""Precisions of `NativeEngine`."""


class Engine(Stepwise, Protocol):
    """Fast implementation of `Stepwise` for a trained model.

    precision: precision of the computations, "fp32", "bf16", "fp16" or "int8".
    """

    precision: str

    @property
    def whole_search(self) -> WholeSearch | None:
        """Beam search without the hooks of `SearchOptions`; None if the engine has only `start` and `step`."""

    @property
    def batch_tokens(self) -> int:
        """Number of source tokens per batch of `whole_search`, if `decoding.batch_tokens` is `auto`."""

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
        precision: "fp32", "bf16", "fp16" (only on a GPU), "int8" (only on a CPU), or "reference" (see
            `choose_precision`) or "auto" (see `default_precision`). If int8 has an obstacle (see `native_obstacle`), it
            is replaced by "reference", and a message says so. `Engine.precision` of the result is the precision in use.
            On a CPU, bundles in int8 and fp32 get a `NativeEngine` if there is no obstacle, everything else PyTorch.
    Raises:
        UserError: the precision is unknown, or not available on this hardware.
    """
    selected = choose_precision(default_precision(model, device) if precision == "auto" else precision, device)
    if isinstance(model, StoredModel) and kind(device) == "cpu" and selected in NATIVE_PRECISIONS:
        if (obstacle := native_obstacle(model.recipe.model, selected)) is None:
            return _native_engine(model, selected)
        if selected == "int8":
            _say_once(f"{obstacle}; translating in {choose_precision('reference', device)} instead")
    if selected == "int8":
        return load_engine(model, "reference", device)
    return _torch_engine(build(model) if isinstance(model, StoredModel) else model, selected, device)


def _torch_engine(model: Model, precision: str, device: str) -> Engine:
    import torch

    from seq2seq.inference.eager import EagerEngine
    from seq2seq.model.kernels import usable

    on = torch.device(device)
    if on.type == "cuda":
        allow_tf32(False)
    if usable(on):
        from seq2seq.inference.static import StaticEngine

        if StaticEngine.serves(model, on):
            return StaticEngine(model, precision, on)
    return EagerEngine(model, precision, on)


def default_precision(model: StoredModel | Model, device: str) -> str:
    """Return the precision that `auto` means for a model: int8 on a CPU, otherwise reference.

    On a CPU, too, reference is the default of a model in memory, of a language model, for which there are no kernels,
    and of a model whose bundle says that int8 loses too much; then a message says so.
    """
    if not isinstance(model, StoredModel) or not model.recipe.task.has_source or kind(device) != "cpu":
        return "reference"
    score = Int8Score.from_metadata(model.metadata, f"the metadata of {model.directory}")
    if score is not None and score.loses_too_much:
        _say_once(f"int8 loses too much: {score}; translating in {choose_precision('reference', device)} unless int8 "
                  "is chosen explicitly")
        return "reference"
    return "int8"


def native_obstacle(section: ModelSection, precision: str) -> str | None:
    """Return the reason why this machine has no `NativeEngine` for a model, as a sentence; None if it has one.

    precision: one of NATIVE_PRECISIONS.
    """
    if (obstacle := NativeEngine.obstacle(section)) is not None:
        return f"{precision} is not available for this model, because it {obstacle}"
    return kernels if isinstance(kernels := _kernels(precision), str) else None


def describe_kernels(precision: str) -> str:
    """Return the name of the kernels that this machine has for a precision, or the reason why it has none."""
    kernels = _kernels(precision)
    return kernels if isinstance(kernels, str) else f"{precision} kernels: {kernels.instruction_set}"


def _native_engine(stored: StoredModel, precision: str) -> NativeEngine:
    kernels, directory, checksum = _kernels(precision), stored.directory, weights_checksum(stored.directory)
    assert isinstance(kernels, Functions), "there is no `native_obstacle`"

    def model_in_pytorch() -> Seq2Seq:
        if weights_checksum(directory) != checksum:
            raise CheckpointError(f"{directory} has changed since it was loaded. Load it again.")
        floating_point = choose_precision("reference", "cpu") if precision == "int8" else precision
        return _torch_engine(build(read_stored_model(directory)), floating_point, "cpu").model

    return NativeEngine(stored.recipe.model, stored.sizes, stored.weights, kernels, model_in_pytorch, stored.shortlist)


@cache
def _kernels(precision: str) -> Functions | str:
    """Return the fastest kernels that this processor can run, with a warning for each faster library that is damaged.
    If there are none, return the reason as a sentence."""
    damaged = False
    try:
        for library in usable_libraries(cpu_flags() or processor_flags(), precision):
            try:
                require_intact(library)
                return Functions(library)
            except DamagedLibrary as error:
                damaged = True
                console.warn(f"{error} It is not used. Install the package again.")
        if damaged:
            return f"{precision} is not available, because the kernels are damaged"
        return (f"{precision} is not available, because this package has no kernels for this processor (they are "
                "compiled if it is built with a C++ compiler)")
    except OSError as error:                                                    # the OpenMP library may be missing
        return f"{precision} is not available, because the kernels cannot be loaded: {error}"


@cache
def _say_once(message: str) -> None:
    console.print_message(message)
