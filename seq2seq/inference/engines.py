"""Interface of engines, and `load_engine`, which selects an engine by model, precision and hardware."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

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
from seq2seq.recipe import ModelSection, TransformerSection
from seq2seq.search.beam import WholeSearch
from seq2seq.search.interface import Stepwise
from seq2seq.storage.checkpoints import weights_checksum
from seq2seq.storage.int8_score import Int8Score

if TYPE_CHECKING:
    from seq2seq.model import Model


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
    def model(self) -> Model:
        """Model of the engine as a PyTorch module, which scores all positions of a given target in one call."""


def load_engine(stored: StoredModel, precision: str, device: str) -> Engine:
    """Return an engine that decodes with a model.

    Args:
        precision: "int8" (only on a CPU), "fp32", "bf16", "fp16" (only on a GPU), or "reference" (see
            `choose_precision`) or "auto" (see `default_precision`). On a CPU, the engine is a `NativeEngine` if there
            is no obstacle (see `native_obstacle`), else PyTorch in fp32; a message says so if int8 was selected.
            `Engine.precision` of the result is the precision in use.
    """
    selected = choose_precision(default_precision(stored, device) if precision == "auto" else precision, device)
    if kind(device) == "cpu":
        if (obstacle := native_obstacle(stored.recipe.model, selected)) is None:
            return _native_engine(stored, selected)
        if selected == "int8":
            _say_once(f"{obstacle}; translating in fp32 instead")
            return load_engine(stored, "fp32", device)
    return torch_engine(build(stored), selected, device)


def torch_engine(model: Model, precision: str, device: str) -> Engine:
    """Return an engine that decodes with a copy of a model in PyTorch. precision: "fp32", or on a GPU also "bf16" or
    "fp16"."""
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


def default_precision(stored: StoredModel, device: str) -> str:
    """Return the precision that `auto` means for a model: int8 on a CPU, otherwise reference.

    On a CPU, too, reference is the default of a language model, for which there are no kernels, and of a model whose
    bundle says that int8 loses too much; then a message says so.
    """
    if not stored.recipe.task.has_source or kind(device) != "cpu":
        return "reference"
    score = Int8Score.from_metadata(stored.metadata, f"the metadata of {stored.directory}")
    if score is not None and score.loses_too_much:
        _say_once(f"int8 loses too much: {score}; translating in fp32 unless int8 is chosen explicitly")
        return "reference"
    return "int8"


def native_obstacle(section: ModelSection, precision: str) -> str | None:
    """Return the reason why this machine has no `NativeEngine` for a model, as a sentence; None if it has one.

    precision: one of CPU_PRECISIONS.
    """
    if section.peculiarity is not None:
        return f"{precision} is not available for this model, because it {section.peculiarity}"
    return kernels if isinstance(kernels := _kernels(precision), str) else None


def describe_kernels(precision: str) -> str:
    """Return the name of the kernels that this machine has for a precision, or the reason why it has none."""
    kernels = _kernels(precision)
    return kernels if isinstance(kernels, str) else f"{precision} kernels: {kernels.instruction_set}"


def _native_engine(stored: StoredModel, precision: str) -> NativeEngine:
    kernels = _kernels(precision)
    assert isinstance(kernels, Functions), "there is no `native_obstacle`"
    # The weights of a bundle are not kept. If the model in PyTorch is needed, they are read again.
    again = (lambda: stored) if stored.directory is None else _reader(stored.directory)
    section = cast(TransformerSection, stored.recipe.model)
    return NativeEngine(section, stored.sizes, stored.weights, kernels,
                        lambda: torch_engine(build(again()), "fp32", "cpu").model, stored.shortlist)


def _reader(directory: Path) -> Callable[[], StoredModel]:
    """Return a function that reads a bundle again. It raises CheckpointError if the bundle has changed meanwhile."""
    checksum = weights_checksum(directory)

    def read() -> StoredModel:
        if weights_checksum(directory) != checksum:
            raise CheckpointError(f"{directory} has changed since it was loaded. Load it again.")
        return read_stored_model(directory)

    return read


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
