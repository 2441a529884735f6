"""Distributed training with `torchrun`, on one machine or many.

All ranks hold the same weights, plan the same steps and take the same decisions; each computes its share of a step's
micro-batches and of the validation sentences. Only the main rank, rank 0, writes to the run. A training without
`torchrun` is a process group of one rank.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar, Unpack, cast

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from seq2seq import console
from seq2seq.devices import is_out_of_memory
from seq2seq.errors import UserError
from seq2seq.recipe import DecodingOptions
from seq2seq.translation.translator import ReportProgress, Translation, Translator, numbered

Item = TypeVar("Item")
Result = TypeVar("Result")

LONGEST_WAIT = timedelta(hours=12)
"""Longest wait for work of the main rank alone, such as the preparation of a large corpus."""


class ProcessGroup:
    """Process group of a distributed training, as seen by one rank.

    rank: of this process, from 0. size: world size.
    """

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.rank, self.world_size = rank, size

    @property
    def is_main(self) -> bool:
        """True on the main rank, the only one that writes."""
        return self.rank == 0

    def barrier(self) -> None:
        """Wait until all ranks have called this."""
        if self.world_size > 1:
            with explain_lost_rank():
                dist.barrier()

    def main_rank_first(self, make: Callable[[], Result]) -> Result:
        """Call `make` on all ranks, on the main rank first, so that the others find its files; returns the result."""
        if self.is_main:
            made = make()
            self.barrier()
            return made
        self.barrier()
        return make()

    def share(self, items: Sequence[Item]) -> Sequence[Item]:
        """Return this rank's share of the items."""
        return items[self.rank :: self.world_size]

    def gather(self, items: Sequence[Item]) -> list[Item]:
        """Gather the results of all ranks for their `share`, in the original order."""
        if self.world_size == 1:
            return list(items)
        of_each: list[Any] = [None] * self.world_size
        with explain_lost_rank():
            dist.all_gather_object(of_each, list(items))
        whole: list[Any] = [None] * sum(map(len, of_each))
        for rank, made in enumerate(of_each):
            whole[rank :: self.world_size] = made
        return whole

    def sum(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its sum over all ranks."""
        if self.world_size == 1:
            return
        with explain_lost_rank():
            for work in [dist.all_reduce(tensor, async_op=True) for tensor in tensors]:
                work.wait()

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by that of the main rank."""
        if self.world_size > 1:
            with explain_lost_rank():
                for work in [dist.broadcast(tensor.detach(), 0, async_op=True) for tensor in tensors]:
                    work.wait()

    def require_same(self, step: int, tensors: Sequence[Tensor]) -> None:
        """Check that all ranks start from the same step and the same tensors.

        Otherwise each rank would apply the common gradients to other weights, and only the main rank's would be saved.

        Raises:
            UserError: they do not.
        """
        if self.world_size == 1:
            return
        checksum = 0
        for tensor in tensors:
            checksum = zlib.crc32(tensor.detach().cpu().flatten().view(torch.uint8).numpy().data, checksum)
        starts = self.gather([(step, checksum)])
        for rank, (at, found) in enumerate(starts):
            if (at, found) != starts[0]:
                raise UserError(f"process {rank} starts from other weights (step {at:,}) than process 0 (step "
                                f"{starts[0][0]:,}). All machines must see the same run directory, and use the same "
                                "version of torch.")

    def maximum(self, numbers: Sequence[int], device: torch.device) -> list[int]:
        """Return the maximum of each number over all ranks."""
        if self.world_size == 1:
            return list(numbers)
        largest = torch.tensor(numbers)
        if device.type == "cuda":                                               # from pinned memory without waiting
            largest = largest.pin_memory().to(device, non_blocking=True)
        with explain_lost_rank():
            dist.all_reduce(largest, op=dist.ReduceOp.MAX)
        return cast(list[int], largest.tolist())

    def micro_batches(self, micro_batches: Sequence[np.ndarray]) -> list[tuple[tuple[int, ...], np.ndarray]]:
        """Return this rank's micro-batches of a step, each with its path.

        The path is the index of the micro-batch, then 0 or 1 for every time it was split in half. If a step has fewer
        micro-batches than there are ranks, they are split. The gradient stays the same, but dropout, which depends on
        the path, then depends on the number of ranks.
        """
        paths: list[tuple[tuple[int, ...], np.ndarray]] = [
            ((number,), pairs) for number, pairs in enumerate(micro_batches)]
        while len(paths) < self.world_size and any(len(pairs) > 1 for _, pairs in paths):
            # Splits the first of those with the most pairs, so that all ranks split alike.
            place = max(range(len(paths)), key=lambda index: (len(paths[index][1]), -index))
            path, pairs = paths[place]
            paths[place : place + 1] = [((*path, 0), pairs[::2]), ((*path, 1), pairs[1::2])]
        return paths[self.rank :: self.world_size]


SINGLE_PROCESS = ProcessGroup()


@contextmanager
def join_process_group(device: str = "auto") -> Iterator[ProcessGroup]:
    """Join the process group that `torchrun` has started, or yield a group of one.

    device: of the recipe. Each process uses the GPU of its local rank.
    Raises:
        UserError: the other processes cannot be reached, or the recipe names a single GPU for all of them.
    """
    size = int(os.environ.get("WORLD_SIZE", 1))
    if size == 1:
        yield SINGLE_PROCESS
        return
    if ":" in device:
        raise UserError(f"training.device: {device} is one device, and {size} processes train together. Use cuda, of "
                        "which each takes its own, cpu or auto.")
    gpu = None
    if torch.cuda.is_available() and device != "cpu":
        gpu = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
        torch.cuda.set_device(gpu)
    try:
        # Without device_id, the first barrier guesses the GPU from the global rank: wrong if nodes differ in size.
        dist.init_process_group("nccl" if gpu else "gloo", timeout=LONGEST_WAIT, device_id=gpu)
    except (RuntimeError, ValueError) as error:
        raise UserError(f"the {size} processes of this training cannot find each other: {error}. Start them all by "
                        "one torchrun command on each machine.") from error
    group = ProcessGroup(dist.get_rank(), size)
    try:
        if not group.is_main:
            console.be_silent()
        yield group
    finally:
        dist.destroy_process_group()


class DistributedTranslator(Translator):
    """Translator that translates its rank's share of the lines; all ranks get all translations."""

    def __init__(self, translator: Translator, group: ProcessGroup) -> None:
        self.__dict__.update(vars(translator))
        self.group = group

    def translate(self, lines: Sequence[Any], *, progress: ReportProgress | None = None,
                  **decoding: Unpack[DecodingOptions]) -> list[list[Translation]]:
        """See `Translator.translate`."""
        # Sorted by length before they are shared, so that all ranks have equal work.
        requests = list(numbered(lines))
        order = sorted(range(len(requests)), key=lambda number: len(requests[number].text))
        mine = [requests[number] for number in self.group.share(order)]
        found = self.group.gather(super().translate(mine, progress=progress, **decoding))
        return [found[place] for place in np.argsort(order)] if order else []


@contextmanager
def explain_lost_rank() -> Iterator[None]:
    """Turn the error of a broken connection into a UserError that says what to do."""
    try:
        yield
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise
        raise UserError("another process of this training has ended; its message says why. Run the same command again: "
                        f"it goes on from the last checkpoint. ({str(error).splitlines()[0]})") from error
