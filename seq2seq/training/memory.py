"""Memory of a training, predicted before its first step."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

from seq2seq import console
from seq2seq.data.batching import Batch, EncodedCorpus, Shape, gather, split_by_length
from seq2seq.data.epoch_plan import plan_epoch
from seq2seq.devices import dtype_of, free_memory
from seq2seq.model import Model, SkipInitialization, build_model, freeze
from seq2seq.model.loss import Logits, chunks
from seq2seq.recipe import Recipe
from seq2seq.training.optimizers import is_hidden_matrix

PLANNED_STEPS = 1_000
"""Maximum number of steps among which the largest micro-batch is sought."""
PROGRAM = 450_000_000
"""Memory of a training without model and text: Python, PyTorch, other packages, and oneDNN's kernels."""
MAX_ACCUMULATION = 64
"""Maximum of `training.accumulation` that is proposed if memory is short."""


@dataclass(frozen=True)
class Memory:
    """Predicted peak memory of the steps of a training, by part, in bytes.

    program: Python, PyTorch, other packages. weights: with their copy in 16 bits and their moving average. activations:
    what the forward pass of the largest micro-batch keeps for the backward pass; 0: not known. loss: logits of a chunk,
    and gradients of the output matrix on their way to `gradients`. checkpoint: copy from which a checkpoint is written
    while the training goes on, which is made on a CPU only if it fits into memory; it is not counted in `total`.
    """

    program: int
    weights: int
    optimizer: int
    gradients: int
    activations: int
    loss: int
    checkpoint: int

    @property
    def parts(self) -> dict[str, int]:
        """Parts of `total`, by name."""
        return {name: part for name, part in asdict(self).items() if name != "checkpoint"}

    @property
    def total(self) -> int:
        return sum(self.parts.values())

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {part / 1e9:,.1f}" for name, part in self.parts.items())
        return f"{self.total / 1e9:,.1f} GB ({parts})"


def largest_micro_batch(corpus: EncodedCorpus, plan: Iterable[Iterable[np.ndarray]], max_length: int) -> Batch:
    """Return the micro-batch with the most tokens among the first steps. plan: micro-batches of each step. max_length:
    as in `TrainingStep`. Of `corpus`, only the lengths matter."""
    parts = (part for step in islice(plan, PLANNED_STEPS) for pairs in step for part in split_by_length(corpus, pairs))
    pairs = max(parts, key=lambda pairs: sum(corpus.tokens([pairs])))
    return gather(corpus, pairs, Shape.of(corpus, pairs).rounded(), max_length)


def predict_memory(recipe: Recipe, sizes: tuple[int, int], device: str, precision: str, batch: Batch) -> Memory:
    """Predict the peak memory of the steps of a training.

    Args:
        sizes: source and target vocabulary size. device: "cpu" or "cuda". precision: type of the forward and backward
            pass, fp32, bf16 or fp16. batch: the largest micro-batch.
    """
    section, dtype = recipe.training, dtype_of(precision)
    with torch.device("meta"), SkipInitialization():                            # tensors without storage
        model = build_model(recipe.model, *sizes).train().to("meta")            # also positions that the CPU computes
    freeze(model, section.freeze)
    trained = [(name, weight) for name, weight in model.named_parameters() if weight.requires_grad]
    elements = sum(weight.numel() for _, weight in trained)
    of_muon = sum(weight.numel() for name, weight in trained
                  if section.optimizer == "muon" and is_hidden_matrix(name, weight))
    weights = sum(weight.numel() for weight in model.parameters()) * (4 if dtype == torch.float32 else 6)
    weights += 4 * elements if section.ema_decay else 0
    optimizer, gradients = 8 * elements - 4 * of_muon, 4 * elements
    # In a checkpoint, weights and moving average have 32 bits.
    checkpoint = 4 * sum(weight.numel() for weight in model.parameters()) + optimizer
    checkpoint += 4 * elements if section.ema_decay else 0
    if device == "cuda":                            # those of a micro-batch, and the sum of several
        gradients += elements * dtype.itemsize + (4 * elements if section.accumulation > 1 else 0)
    activations, output = kept_by_forward(model.to(dtype), batch)
    loss = 0
    if isinstance(output, Logits):
        rows = chunks(len(batch.target_output), output.weight)[0].stop
        loss = rows * len(output.weight) * dtype.itemsize
        # The gradient of the matrix, and that of a chunk, which is added to it; later, that of a lookup in the matrix.
        loss += 2 * 4 * output.weight.numel() if output.weight.requires_grad else 0
    return Memory(PROGRAM, weights, optimizer, gradients, activations * (2 if section.consistency else 1), loss,
                  0 if device == "cuda" else checkpoint)                        # of a GPU's training, it is in the host


def kept_by_forward(model: Model, batch: Batch) -> tuple[int, Any]:
    """Return the bytes that a forward pass keeps for the backward pass, and the result of the pass.

    The pass runs on PyTorch's meta device, whose tensors have sizes, but no elements. So nothing is computed, and the
    number is right for every architecture. A model that reads elements of its tensors has none: 0 and None.

    model: model on the meta device.
    """
    weights = {weight.untyped_storage()._cdata for weight in model.parameters()}
    kept = dict[int, torch.UntypedStorage]()

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in weights:
            kept[storage._cdata] = storage
        return tensor

    batch = replace(batch.to(torch.device("meta")), filled=False)               # the size of a tail would be read
    try:
        with torch.device("meta"), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            output = model(batch)
    except (NotImplementedError, RuntimeError):
        return 0, None
    return sum(storage.nbytes() for storage in kept.values()), output


def memory_warning(recipe: Recipe, sizes: tuple[int, int], device: str, precision: str, batch: Batch, free: int
                   ) -> str | None:
    """Return a warning with a remedy if the steps of a training need more memory than is free; else None.

    free: free memory for this training, in bytes. Other arguments: see `predict_memory`.
    """
    needed = predict_memory(recipe, sizes, device, precision, batch)
    if needed.total <= free:
        return None
    return (f"the steps of this training need about {needed}, but {free / 1e9:,.1f} GB are free. "
            f"{_remedy(recipe, sizes, device, precision, batch, free)}")


def _remedy(recipe: Recipe, sizes: tuple[int, int], device: str, precision: str, batch: Batch, free: int) -> str:
    """Return the settings with the least effect on the training with which it fits into memory."""
    section, stack = recipe.training, recipe.model.layers[0] if recipe.model.layers else 0
    parts: list[tuple[str, ...]] = [(), ("embeddings",), ("embeddings", f"encoder.0-{max(0, stack // 2 - 1)}"),
                                    ("embeddings", "encoder")]
    for frozen in parts if section.start_from and not section.freeze else [section.freeze]:
        changed = recipe.model_copy(update={"training": section.model_copy(update={"freeze": frozen})})
        needed = predict_memory(changed, sizes, device, precision, batch)
        accumulation = section.accumulation
        while needed.total > free and accumulation < MAX_ACCUMULATION:
            accumulation, needed = 2 * accumulation, replace(needed, activations=needed.activations // 2)
        if needed.total <= free:
            settings = {"freeze": f"[{','.join(frozen)}]" if frozen != section.freeze else None,
                        "accumulation": accumulation if accumulation > section.accumulation else None}
            listed = " ".join(f"--set training.{key}={value}" for key, value in settings.items() if value)
            return f"About {needed.total / 1e9:,.1f} GB suffice with {listed}."
    return "Free some memory, or choose a smaller model or vocabulary."


def warn_if_memory_is_short(recipe: Recipe, sizes: tuple[int, int], device: str, precision: str, corpus: EncodedCorpus
                            ) -> None:
    """Warn if the steps of a training need more memory than is free. Arguments: as in `predict_memory`.

    Trainings that certainly need less than half of the free memory start without a prediction, which takes a second.
    """
    section, model = recipe.training, recipe.model
    free = free_memory(device)
    layers, width = sum(model.layers) or 1, max(model.d_model, getattr(model, "feed_forward", 0) / 4)
    tokens = 2 * section.batch_tokens / section.accumulation
    bound = PROGRAM + 24 * (16 * layers * width**2 + 2 * sum(sizes) * width) + 200 * tokens * layers * width
    if free is None or bound < free / 2:
        return
    free //= int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    plan = plan_epoch(corpus, section.batch_tokens, section.accumulation, recipe.seed, epoch=0)
    batch = largest_micro_batch(corpus, plan, recipe.data.cleaning.max_pieces + 1)
    if warning := memory_warning(recipe, sizes, device, precision, batch, free):
        console.warn(warning)
