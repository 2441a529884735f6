"""An optimizer step: forward pass, loss and backward pass of its micro-batches, clipping, and update of the weights.

The gradients of a step are summed over micro-batches. Micro-batches that do not fit into memory are split. The summed
gradient is divided once, by the number of target tokens of the step. So the number and the size of the micro-batches
affect the gradient only through the dropout masks.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import fields
from functools import partial

import numpy as np
import torch
from torch import Tensor

from seq2seq import console
from seq2seq.data.batching import Batch, EncodedCorpus, Shape, derived_seed, gather, split_by_length, split_to_shape
from seq2seq.devices import allow_tf32, is_out_of_memory
from seq2seq.errors import UserError
from seq2seq.inference.cuda_graphs import CudaGraphs
from seq2seq.model import Model, freeze
from seq2seq.model.consistency import TokenCutoff, consistency_loss, two_passes
from seq2seq.model.loss import LossSum
from seq2seq.recipe import TrainingSection
from seq2seq.storage.averaging import MOVING_AVERAGE
from seq2seq.training.clock import Clock
from seq2seq.training.distributed import SINGLE_PROCESS, ProcessGroup
from seq2seq.training.guided_alignment import GuidedAlignment
from seq2seq.training.optimizers import build_optimizer
from seq2seq.training.weight_blocks import WeightBlocks

OPTIMIZER = "optimizer."
"""Prefix of the names of the optimizer's tensors in a checkpoint."""


class TrainingStep:
    """Optimizer steps of a model, with everything that they change: the weights, the optimizer and the moving average.

    weights, names: weights of the model that are trained, in fp32, and their names, in the order of the model's
        parameters. The others are frozen (`training.freeze`): they have no gradient and no optimizer state.
    compute_model: the model itself, or a copy in bf16 or fp16, which computes losses and gradients.
    blocks, ema_blocks: the weights, and their exponential moving average (empty without `ema_decay`), in blocks.
    max_tokens: maximum number of tokens of a micro-batch, source and target together; larger micro-batches are split.
        It is lowered permanently after each out-of-memory error. None: no limit.
    deterministic: False once an operator has no deterministic algorithm.
    clock: clock of the training, which counts the time of waiting for other ranks and of reading batches.
    """

    def __init__(self, model: Model, section: TrainingSection, dtype: torch.dtype = torch.float32, *, seed: int,
                 max_length: int, shape: Shape | None = None, guided: GuidedAlignment | None = None,
                 cutoff: TokenCutoff | None = None, group: ProcessGroup = SINGLE_PROCESS) -> None:
        """Build the optimizer.

        Args:
            model: model on its device, in training mode. dtype: type of the forward and backward pass.
            seed: seed of the dropout masks.
            max_length: maximum number of tokens of a sentence, `</s>` included.
            shape: shape that all batches are filled up to, so that a GPU can compute their gradients by one CUDA graph;
                None: on a CPU, each batch is filled up to its own rounded shape; on a GPU, it is not.
            guided: loss of the alignment head; None: no such loss. cutoff: cuts tokens for `consistency_cutoff`.
            group: ranks that compute the micro-batches of a step together.
        """
        self.model, self.section, self.group, self.guided, self.cutoff = model, section, group, guided, cutoff
        freeze(model, section.freeze)
        trained = [(name, weight) for name, weight in model.named_parameters() if weight.requires_grad]
        self.names, self.weights = [name for name, _ in trained], [weight for _, weight in trained]
        self.device, self.dtype, self.seed, self.max_length = self.weights[0].device, dtype, seed, max_length
        # Muon needs the matrices themselves. On a CPU, a call costs less than on a GPU, and separate weights are saved
        # without copies.
        joined = self.device.type == "cuda" and section.optimizer != "muon"
        self.blocks = WeightBlocks(self.weights, joined)
        # Mixed precision: weights and accumulated gradients are fp32, because rounding in 16 bits loses small updates.
        # Forward and backward pass may use a copy in bf16 or fp16, whose matrix products are several times faster.
        self.compute_model = model if dtype == self.weights[0].dtype else copy.deepcopy(model).to(dtype)
        self.compute_weights = [weight for weight in self.compute_model.parameters() if weight.requires_grad]
        # On a CPU, memory may be short, and the copy of a gradient costs the same for each weight by itself.
        self.adds_at_once = self.device.type == "cpu"
        self.compute_blocks = self.blocks if self.compute_model is model else WeightBlocks(self.compute_weights, joined)
        self.optimizer = build_optimizer(section, trained, dtype, self.blocks)
        self.ema_blocks = [block.detach().clone() for block in self.blocks.blocks] if section.ema_decay else []
        self.shape = shape
        self.max_tokens: int | None = None
        self.deterministic = True
        self.clock = Clock()
        # The labels of guided alignment are chosen on the host, so a graph cannot compute their loss.
        self.graphs = CudaGraphs(self.device, "training") if shape is not None and guided is None else None
        self.captured: dict[str, torch.cuda.CUDAGraph | None] = {}
        self.static: tuple[Batch, Tensor, Tensor] | None = None                 # the tensors of the graph

    def update(self, corpus: EncodedCorpus, micro_batches: Sequence[np.ndarray], number: int, learning_rate: float
               ) -> Tensor:
        """Do an optimizer step on all ranks. A step whose gradient is not finite leaves the weights as they are.

        Args:
            micro_batches: indices of the pairs of each micro-batch in `corpus`, for all ranks.
            number: number of the step, from 1.
        Returns:
            (3,) float64, on the device: training loss and negative log-likelihood of the targets, in nats, summed over
            the tokens of the step; norm of the mean gradient.
        """
        # Only here: validation and translations compute fp32 as fp32, also in a training in TF32.
        allow_tf32(self.section.precision == "tf32")
        try:
            sums, gradient = self.accumulate(corpus, self.group.micro_batches(corpus, micro_batches), number)
            with self.clock.phase("waiting"):                                  # on a GPU, the host does not wait here
                self.group.sum([gradient, sums])
            _, target_tokens = corpus.tokens(micro_batches)                     # of all ranks
            norm = mean_gradient_norm(self.blocks.blocks_of(gradient), target_tokens)
            scale_gradient(gradient, norm, target_tokens, self.section.gradient_clip)
            # The device decides whether to skip the update. To decide itself, the host would have to wait for the GPU.
            skip = 1 - norm.isfinite().float()
            self.optimizer.step(learning_rate, skip)
        finally:
            allow_tf32(False)
        if self.ema_blocks:
            update_moving_average(self.ema_blocks, self.blocks.blocks, self.section.ema_decay, number, skip)
        self._copy_to_compute_model()
        self.optimizer.zero_grad()
        return torch.cat([sums, norm[None]])

    # Micro-batches

    def accumulate(self, corpus: EncodedCorpus, micro_batches: Sequence[tuple[tuple[int, ...], np.ndarray]],
                   number: int) -> tuple[Tensor, Tensor]:
        """Compute the gradients of some micro-batches of a step, and store their sum in the `grad` of each block.

        micro_batches: (path, indices of the pairs) of each micro-batch, as `ProcessGroup.micro_batches` returns them.
        Returns:
            sums: (2,) float64, on the device of the model: training loss and negative log-likelihood of the targets, in
                nats, summed over the tokens of these micro-batches.
            gradient: (elements,), in the dtype of the weights; all gradients, in the order of the weights. It is valid
                until the next call.
        """
        gradient = None
        while gradient is None:
            sums = torch.zeros(2, dtype=torch.float64, device=self.device)
            gradient = self._sum_of_gradients(corpus, micro_batches, number, sums)
        for block, part in zip(self.blocks.blocks, self.blocks.blocks_of(gradient), strict=True):
            block.grad = part
        return sums, gradient

    def _sum_of_gradients(self, corpus: EncodedCorpus, micro_batches: Sequence[tuple[tuple[int, ...], np.ndarray]],
                          number: int, sums: Tensor) -> Tensor | None:
        """Return the sum of the gradients, (elements,), and add losses to `sums`. Arguments: as in `accumulate`.

        Returns:
            None if a micro-batch has failed while it was added to the sum, so that all must be computed again.
        """
        gradient: Tensor | None = None
        pending = list(micro_batches)
        while pending:
            path, pairs = pending.pop(0)
            splits = list(self._split_to_fit(corpus, pairs))
            if len(splits) > 1:
                pending = [((*path, part), split) for part, split in enumerate(splits)] + pending
                continue
            if gradient is not None and self.static is not None and gradient is self.static[1]:
                gradient = gradient.clone()                 # the graph would overwrite it with the next gradient
            new = self._gradient_of_micro_batch(corpus, (number, *path), pairs, sums, gradient)
            if new is None and gradient is not None and self.adds_at_once:
                return None
            if new is None:
                pending.insert(0, (path, pairs))
            elif gradient is None or new is gradient:
                gradient = new
            else:
                gradient.add_(new)
        return self.blocks.buffer().zero_() if gradient is None else gradient   # a rank without micro-batches

    def _gradient_of_micro_batch(self, corpus: EncodedCorpus, path: tuple[int, ...], pairs: np.ndarray,
                                 sums: Tensor, before: Tensor | None) -> Tensor | None:
        """Return the gradient of a micro-batch, (elements,), and add its loss and negative log-likelihood to `sums`.

        path: number of the step, then the path of the micro-batch. The seed of the dropout masks is derived from it.
        before: sum of the gradients of earlier micro-batches; None: there are none. On a CPU, the gradient is added to
            this sum, which is returned.
        Returns:
            None if the micro-batch must be tried again, in parts if memory did not suffice. `sums` is then unchanged.
        """
        shape = self._fixed_shape()
        try:
            torch.manual_seed(derived_seed(self.seed, "dropout", *path))
            fill = shape or (Shape.of(corpus, pairs).rounded() if self.device.type == "cpu" else None)
            with self.clock.phase("reading"):
                batch = gather(corpus, pairs, fill, self.max_length).to(self.device)
            if shape is None or self.graphs is None:
                adds = self.adds_at_once and before is not None
                gradient, losses = (before if before is not None and adds else self.blocks.buffer()), self._losses()
                links = None if self.guided is None else self.guided.labels.gather(corpus, pairs, batch)
                self._forward_backward(batch, links, gradient, losses, adds)
            else:
                gradient, losses = self._run_graph(batch)
        except RuntimeError as error:
            if is_out_of_memory(error):
                self._lower_max_tokens(corpus, pairs)
                return None
            operator, without, _ = str(error).partition(" does not have a deterministic implementation")
            if not without or not self.deterministic:
                raise
            console.warn(f"trainings with the same seed will differ slightly on this device, because PyTorch has no "
                         f"deterministic algorithm there for {operator}")
            self.deterministic = False
            return None
        finally:
            for weight in self.compute_weights:
                weight.grad = None
        sums += losses
        return gradient

    def _forward_backward(self, batch: Batch, links: np.ndarray | None, gradient: Tensor, losses: Tensor,
                          adds: bool = False) -> None:
        """Do a forward and a backward pass.

        Args:
            links: labels of the alignment head (see `AlignmentLabels.gather`); None without guided alignment.
            gradient: (elements,), is overwritten with the gradient of all weights.
            losses: (2,) float64, is overwritten with the loss and the negative log-likelihood.
            adds: True to add the gradient to `gradient`, on a CPU.
        """
        for weight in self.compute_weights:                                     # a failed capture may leave gradients
            weight.grad = None
        loss_scale = self.optimizer.loss_scale
        collecting = self._collecting(self.blocks.views(gradient), adds) if self.adds_at_once else nullcontext()
        with strictly_deterministic() if self.deterministic else nullcontext(), collecting:
            total, loss = self.loss(batch, links)
            total.backward(None if loss_scale is None else loss_scale.value)
        if not self.adds_at_once:
            gradients = [gradient_of(name, weight)
                         for name, weight in zip(self.names, self.compute_weights, strict=True)]
            torch._foreach_copy_(self.blocks.views(gradient), gradients)
        if loss_scale is not None:
            gradient.div_(loss_scale.value)
        losses.copy_(torch.stack([loss.total.detach(), loss.negative_log_likelihood]))

    @contextmanager
    def _collecting(self, views: Sequence[Tensor], adds: bool) -> Iterator[None]:
        """Copy or add the gradient of each weight to its view as soon as it is computed, and free it. So the gradients
        are in memory only once.

        views: part of the summed gradient for each weight. adds: False to copy.
        """
        missing = dict(enumerate(self.names))

        def collect(index: int, weight: Tensor) -> None:
            assert weight.grad is not None
            (views[index].add_ if adds else views[index].copy_)(weight.grad)
            weight.grad = None
            missing.pop(index, None)

        handles = [weight.register_post_accumulate_grad_hook(partial(collect, index))
                   for index, weight in enumerate(self.compute_weights)]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
        for name in missing.values():
            raise without_gradient(name)

    def loss(self, batch: Batch, links: np.ndarray | None = None) -> tuple[Tensor, LossSum]:
        """Return (loss to minimise, loss to report), both summed over target tokens. Only the loss to minimise includes
        the loss of the alignment head. links: labels of the alignment head; None without guided alignment."""
        model, section = self.compute_model, self.section
        target, tokens, smoothing = batch.target_output, batch.target_count, section.label_smoothing
        with self.guided.recording(model) if self.guided else nullcontext():
            if section.consistency:
                second = batch
                if section.consistency_cutoff:
                    assert self.cutoff is not None
                    second = self.cutoff.cut(batch, section.consistency_cutoff)
                together = batch.source.is_cuda and self.guided is None         # the alignment head needs each pass
                loss = consistency_loss(two_passes(model, batch, second, together), target, tokens, smoothing,
                                        section.consistency, symmetric=not section.consistency_cutoff)
            else:
                loss = model.loss(batch, smoothing)
        if self.guided is None or links is None:
            return loss.total, loss
        return loss.total + self.guided.loss(links), loss

    def _run_graph(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Do the passes of `_forward_backward` for a batch of the fixed shape by a CUDA graph. Return the gradient and
        the losses, which are valid until the next call.

        A pass over a small batch consists of many short kernels, which take longer to launch than to run: 1,129 kernels
        of a step with 3 + 3 layers took 65 ms on an H200, and 7 ms as a graph, which launches all of them at once.
        """
        assert self.graphs is not None
        if self.static is None:
            self.static = batch, self.blocks.buffer(), self._losses()
        static_batch, gradient, losses = self.static
        for field in fields(batch):
            if isinstance(value := getattr(batch, field.name), Tensor):
                getattr(static_batch, field.name).copy_(value)
        self.graphs.run(partial(self._forward_backward, static_batch, None, gradient, losses), "micro-batch",
                        self.captured)
        return gradient, losses

    def _losses(self) -> Tensor:
        return torch.empty(2, dtype=torch.float64, device=self.device)

    # Memory

    def _fixed_shape(self) -> Shape | None:
        """Return the shape of all batches; None if they differ. They differ if the number of tokens is limited, because
        batches that are filled up need the same memory, however few tokens they have."""
        return self.shape if self.max_tokens is None else None

    def _split_to_fit(self, corpus: EncodedCorpus, pairs: np.ndarray) -> Iterator[np.ndarray]:
        """Yield the micro-batch, or parts of it if it exceeds `max_tokens` or `shape` or has very different lengths."""
        if self.max_tokens is not None and len(pairs) > 1 and _tokens(corpus, pairs) > self.max_tokens:
            yield from (pairs[::2], pairs[1::2])
        elif (shape := self._fixed_shape()) is not None:
            yield from split_to_shape(corpus, pairs, shape)
        else:
            yield from split_by_length(corpus, pairs)

    def _lower_max_tokens(self, corpus: EncodedCorpus, pairs: np.ndarray) -> None:
        """Set `max_tokens` to half the tokens of a micro-batch for which memory did not suffice."""
        tokens = _tokens(corpus, pairs)
        if len(pairs) == 1:
            where = "" if corpus.lines is None else f" The pair is on line {int(corpus.lines[pairs[0]])} of its corpus."
            raise UserError(f"memory does not suffice for a single pair of {tokens:,} tokens.{where} Remove it, "
                            "lower data.cleaning.max_pieces, or use a smaller model. The last checkpoint is intact.")
        if self.device.type == "cuda":
            self.release_graph()
            CudaGraphs.free_unused_memory()
        self.max_tokens = max(1, tokens // 2)
        slower = "" if self.graphs is None else ", and steps run without CUDA graphs, more slowly"
        console.warn(f"memory did not suffice for a micro-batch of {tokens:,} tokens; from now on, micro-batches of "
                     f"more than {self.max_tokens:,} tokens are split{slower}. Except for dropout, gradients stay the "
                     "same.")

    def release_graph(self) -> None:
        """Delete the graph and its memory, which is about as large as all activations. A later step makes a new graph,
        with the same results."""
        if self.graphs is not None and self.static is not None:
            self.graphs.delete(self.captured)
            self.static = None

    # Weights and state

    @contextmanager
    def use_weights(self, weights: Sequence[Tensor]) -> Iterator[None]:
        """Put other weights into the model, and set it to evaluation mode, during the block. `weights` has the trained
        weights meanwhile, so that no third copy is in memory; if it is `self.weights`, nothing changes."""
        self.release_graph()                                                    # its memory is used in the block
        self.model.eval()
        exchange(self.weights, weights)
        try:
            yield
        finally:
            exchange(self.weights, weights)
            self.model.train()

    @property
    def ema_weights(self) -> list[Tensor]:
        """Exponential moving average of each weight; empty without `ema_decay`."""
        return self.blocks.by_weight(self.ema_blocks) if self.ema_blocks else []

    def state(self) -> dict[str, Tensor]:
        """Return the tensors of the optimizer and the moving average by name, which the next step changes."""
        tensors = {f"{OPTIMIZER}{name}": value for name, value in self.optimizer.state().items()}
        tensors |= {f"{MOVING_AVERAGE}{name}": value for name, value in zip(self.names, self.ema_weights, strict=False)}
        return {name: value.detach() for name, value in tensors.items()}

    def restore(self, weights: dict[str, Tensor], state: dict[str, Tensor]) -> None:
        """Restore the weights, and a result of `state`."""
        copy_all(list(self.model.parameters()), [weights[name].to(self.device) for name, _ in
                                                 self.model.named_parameters()])
        copy_all(list(self.compute_model.parameters()), list(self.model.parameters()))
        self.optimizer.restore({name.removeprefix(OPTIMIZER): value for name, value in state.items()
                                if name.startswith(OPTIMIZER)})
        if self.ema_blocks:
            copy_all(self.ema_weights, [state[f"{MOVING_AVERAGE}{name}"].to(self.device) for name in self.names])

    def _copy_to_compute_model(self) -> None:
        if self.compute_model is not self.model:
            copy_all(self.compute_blocks.blocks, self.blocks.blocks)


def _tokens(corpus: EncodedCorpus, pairs: np.ndarray) -> int:
    return int(corpus.source.lengths_of(pairs).sum() + corpus.target.lengths_of(pairs).sum())


def gradient_of(name: str, weight: Tensor) -> Tensor:
    """Return the gradient of a weight. Raises UserError if a model of another package computes none."""
    if weight.grad is None:
        raise without_gradient(name)
    return weight.grad


def without_gradient(name: str) -> UserError:
    return UserError(f"the weight {name} of the model has no gradient. Every weight must contribute to the loss of "
                     "every step.")


def mean_gradient_norm(gradients: list[Tensor], tokens: int) -> Tensor:
    """Return the norm of the mean gradient, () float64. gradients: sums over the step's `tokens` target tokens."""
    return torch.nn.utils.get_total_norm(gradients).double() / tokens


def scale_gradient(gradient: Tensor, norm: Tensor, tokens: int, clip: float) -> None:
    """Divide a summed gradient in place by the step's number of target tokens, then clip its norm to at most `clip`.

    norm: norm of the mean gradient before clipping, () float64. clip: maximum norm; 0 turns clipping off.
    """
    factor = torch.full_like(norm, 1 / tokens)
    if clip:
        factor = torch.fmin(factor, clip / (norm * tokens))     # finite, so that gaps between the weights stay 0
    gradient.mul_(factor)


@torch.no_grad()
def update_moving_average(ema_weights: Sequence[Tensor], weights: Sequence[Tensor], decay: float, step: int,
                          skip: Tensor) -> None:
    """Update the exponential moving average in place: ema_weights = d ema_weights + (1 - d) weights.

    d = min(decay, (1 + step) / (10 + step)), as in TensorFlow's ExponentialMovingAverage. In the first steps, d is
    smaller than `decay`, so that the average soon forgets the random initial weights.

    skip: () float32 on the device of the weights; 1: leave the average as it is.
    """
    decay = min(decay, (1 + step) / (10 + step))
    share = (1 - decay) * (1 - skip)
    for average, weight in zip(ema_weights, weights, strict=True):
        average.lerp_(weight, share)


@contextmanager
def strictly_deterministic() -> Iterator[None]:
    """Context in which operators without a deterministic algorithm raise errors.

    If they only warn, fused attention on a GPU (PyTorch 2.11) has a backward pass that is not deterministic, although
    there is one that is.
    """
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(True, warn_only=True)


@torch.no_grad()
def exchange(some: Sequence[Tensor], others: Sequence[Tensor]) -> None:
    """Exchange the values of the tensors, one after another."""
    for one, other in zip(some, others, strict=True) if some is not others else ():
        value = one.clone()
        one.copy_(other)
        other.copy_(value)


@torch.no_grad()
def copy_all(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    torch._foreach_copy_(list(targets), list(sources))
