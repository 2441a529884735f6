"""Several processes that train one model (`torchrun`), on one machine or many: what each does, and what they sum up.

All of them hold the same weights, plan the same steps and decide the same; each computes its share of a step's parts
and of the validation sentences. The first one alone writes to the run. A process by itself is a group of one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar, Unpack

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from seq2seq import console
from seq2seq.devices import is_out_of_memory
from seq2seq.errors import UserError
from seq2seq.recipe import DecodingOptions
from seq2seq.translation.translator import Progress, Translation, Translator, numbered

Item = TypeVar("Item")
Result = TypeVar("Result")

LONGEST_WAIT = timedelta(hours=12)
"""For what the first process does alone, such as the preparation of a large corpus."""


class Group:
    """The processes of a training, seen from one of them.

    rank: which it is, from 0. size: how many there are.
    """

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.rank, self.size = rank, size

    @property
    def first(self) -> bool:
        """Whether it is the one that writes."""
        return self.rank == 0

    def wait(self) -> None:
        """Return when all have come here."""
        if self.size > 1:
            with lost_process_told():
                dist.barrier()

    def first_of_all(self, make: Callable[[], Result]) -> Result:
        """What `make` returns; the first process makes it before the others find it made."""
        if self.first:
            made = make()
            self.wait()
            return made
        self.wait()
        return make()

    def share(self, items: Sequence[Item]) -> Sequence[Item]:
        """Those that are this process' to do."""
        return items[self.rank :: self.size]

    def collect(self, items: Sequence[Item]) -> list[Item]:
        """What all have made of what `share` gave them, in the order of the whole."""
        if self.size == 1:
            return list(items)
        of_each: list[Any] = [None] * self.size
        with lost_process_told():
            dist.all_gather_object(of_each, list(items))
        whole: list[Any] = [None] * sum(map(len, of_each))
        for rank, made in enumerate(of_each):
            whole[rank :: self.size] = made
        return whole

    def sum(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its sum over the processes."""
        if self.size == 1:
            return
        with lost_process_told():
            for work in [dist.all_reduce(tensor, async_op=True) for tensor in tensors]:
                work.wait()

    def largest(self, number: int, device: torch.device) -> int:
        """The largest that a process has."""
        if self.size == 1:
            return number
        largest = torch.tensor(number, device=device)
        with lost_process_told():
            dist.all_reduce(largest, op=dist.ReduceOp.MAX)
        return int(largest)

    def parts(self, parts: Sequence[np.ndarray]) -> list[tuple[tuple[int, ...], np.ndarray]]:
        """This process' parts of a step, each with the numbers that lead to it: of the part, of its half, and so on.

        A step of fewer parts than there are processes is cut further. Its gradient is the same; what dropout draws
        depends on the numbers, and so, in that case only, on how many processes there are.
        """
        paths: list[tuple[tuple[int, ...], np.ndarray]] = [((number,), part) for number, part in enumerate(parts)]
        while len(paths) < self.size and any(len(part) > 1 for _, part in paths):
            # One with the most pairs; of several the first, so that all processes cut alike.
            place = max(range(len(paths)), key=lambda index: (len(paths[index][1]), -index))
            path, part = paths[place]
            paths[place : place + 1] = [((*path, 0), part[::2]), ((*path, 1), part[1::2])]
        return paths[self.rank :: self.size]


ALONE = Group()


@contextmanager
def joined(device: str = "auto") -> Iterator[Group]:
    """The group that `torchrun` has started this process in, or a group of one.

    device: of the recipe. On GPUs each process takes the one of its number on this machine.
    Raises:
        UserError: the others cannot be reached, or the recipe names one GPU for all of them.
    """
    size = int(os.environ.get("WORLD_SIZE", 1))
    if size == 1:
        yield ALONE
        return
    if ":" in device:
        raise UserError(f"training.device: {device} is one device, and {size} processes train together. Use cuda, of "
                        "which each takes its own, cpu or auto.")
    on_gpus = torch.cuda.is_available() and device != "cpu"
    if on_gpus:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    try:
        dist.init_process_group("nccl" if on_gpus else "gloo", timeout=LONGEST_WAIT)
    except (RuntimeError, ValueError) as error:
        raise UserError(f"the {size} processes of this training cannot find each other: {error}. Start them all by "
                        "one torchrun command on each machine.") from error
    group = Group(dist.get_rank(), size)
    try:
        if not group.first:
            console.be_silent()
        yield group
    finally:
        dist.destroy_process_group()


class SharedTranslator(Translator):
    """A translator that translates only its share of the lines; all processes get all translations."""

    def __init__(self, translator: Translator, group: Group) -> None:
        self.__dict__.update(vars(translator))
        self.group = group

    def translate(self, lines: Sequence[Any], *, progress: Progress | None = None,
                  **decoding: Unpack[DecodingOptions]) -> list[list[Translation]]:
        """See `Translator.translate`."""
        # Sorted by length, as they are batched, so that all have as much to do.
        requests = list(numbered(lines))
        order = sorted(range(len(requests)), key=lambda number: len(requests[number].text))
        mine = [requests[number] for number in self.group.share(order)]
        found = self.group.collect(super().translate(mine, progress=progress, **decoding))
        return [found[place] for place in np.argsort(order)] if order else []


@contextmanager
def lost_process_told() -> Iterator[None]:
    """Turn the error of a broken connection into one that says what to do."""
    try:
        yield
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise
        raise UserError("another process of this training has ended; its message says why. Run the same command again: "
                        f"it goes on from the last checkpoint. ({str(error).splitlines()[0]})") from error
