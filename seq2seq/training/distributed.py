"""Distributed training with `torchrun`, on one machine or several.

All ranks have the same weights, plan the same steps and make the same decisions. Each rank computes its shard of every
step's micro-batches and of the validation sentences. Only the main rank, rank 0, writes to the run directory. A
training without `torchrun` uses a process group of one rank.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from itertools import islice
from typing import Any, TypeVar, Unpack, cast

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from seq2seq import console
from seq2seq.data.batching import EncodedCorpus
from seq2seq.data.epoch_plan import deal
from seq2seq.devices import is_out_of_memory
from seq2seq.errors import UserError
from seq2seq.recipe import DecodingOptions
from seq2seq.tokenizers.source import Source
from seq2seq.training.lost_ranks import LostRank, watch_ranks
from seq2seq.translation.sources import equal_shares
from seq2seq.translation.translation import ReportProgress, Translation
from seq2seq.translation.translator import Translator

Item = TypeVar("Item")
Result = TypeVar("Result")

WAITING_TIMEOUT = timedelta(hours=12)
"""Maximum time that ranks wait for each other. It is long because the main rank alone may prepare a large corpus."""
GRADIENT_TIMEOUT = timedelta(minutes=10)
"""Maximum time that the GPUs wait for each other's gradients."""


class ProcessGroup:
    """Process group of a distributed training, from the point of view of one rank.

    rank: number of this process, from 0. world_size: number of processes. gradients: NCCL group that sums and
    broadcasts tensors on GPUs; None on CPUs, where the default group is used instead. The default group uses gloo, so
    that the processes can wait for each other and agree on decisions without waiting for their GPUs. alone: True if
    there is no group to communicate with: one rank, and no `gradients`.
    """

    def __init__(self, rank: int = 0, world_size: int = 1, gradients: dist.ProcessGroup | None = None) -> None:
        self.rank, self.world_size, self.gradients = rank, world_size, gradients
        self.alone = world_size == 1 and gradients is None

    @property
    def is_main(self) -> bool:
        """True on the main rank, the only one that writes files."""
        return self.rank == 0

    def barrier(self) -> None:
        """Wait until all ranks have called this method."""
        if not self.alone:
            with explain_lost_rank():
                dist.barrier()

    def main_rank_first(self, function: Callable[[], Result]) -> Result:
        """Return the result of a function that is called on the main rank first, then on the other ranks.

        So the other ranks find the files that the main rank writes.
        """
        result = function() if self.is_main else None
        self.barrier()
        return cast(Result, result) if self.is_main else function()

    def shard(self, items: Sequence[Item]) -> Sequence[Item]:
        """Return this rank's shard of the items: every n-th item, where n is the number of ranks."""
        return items[self.rank :: self.world_size]

    def gather(self, items: Sequence[Item]) -> list[Item]:
        """Return the results of all ranks for their shards, in the order that the items had before `shard`."""
        if self.alone:
            return list(items)
        shards: list[Any] = [None] * self.world_size
        with explain_lost_rank():
            dist.all_gather_object(shards, list(items))
        gathered: list[Any] = [None] * sum(map(len, shards))
        for rank, shard in enumerate(shards):
            gathered[rank :: self.world_size] = shard
        return gathered

    def from_main_rank(self, function: Callable[[], Result]) -> Result:
        """Return the result of a function that is called only on the main rank. All ranks must call this method."""
        return cast(Result, self.gather([function() if self.is_main else None])[0])

    def sum(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its sum over all ranks."""
        if self.alone:
            return
        with explain_lost_rank():
            for work in [dist.all_reduce(tensor, group=self.gradients, async_op=True) for tensor in tensors]:
                work.wait()

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by the main rank's tensor."""
        if not self.alone:
            with explain_lost_rank():
                for work in [dist.broadcast(tensor.detach(), 0, group=self.gradients, async_op=True)
                             for tensor in tensors]:
                    work.wait()

    def require_same(self, step: int, dtype: torch.dtype, tensors: Sequence[Tensor]) -> None:
        """Check that all ranks start from the same step and the same tensors, and compute in the same number format.

        Without this check, nobody would notice different weights, because only the main rank's weights are saved.
        """
        if self.alone:
            return
        checksum = 0
        for tensor in tensors:
            checksum = zlib.crc32(tensor.detach().cpu().flatten().view(torch.uint8).numpy().data, checksum)
        starts = self.gather([(step, checksum, str(dtype).removeprefix("torch."), str(torch.__version__))])
        first, *_ = starts
        for rank, (at, found, format, version) in enumerate(starts):
            if format != first[2]:
                raise UserError(f"process {rank} would compute in {format}, and process 0 in {first[2]}. Set "
                                "training.precision to a format that all machines have, such as fp32.")
            if (at, found) != first[:2]:
                raise UserError(f"process {rank} (step {at:,}) does not start from the same weights and optimizer state"
                                f" as process 0 (step {first[0]:,})." + (
                                    f" They have different versions of torch, {version} and {first[3]}."
                                    if version != first[3] else ""))

    def maximum(self, numbers: Sequence[int]) -> list[int]:
        """Return the maximum of each number over all ranks."""
        if self.alone:
            return list(numbers)
        largest = torch.tensor(numbers)
        with explain_lost_rank():
            dist.all_reduce(largest, op=dist.ReduceOp.MAX)
        return cast(list[int], largest.tolist())

    def micro_batches(self, corpus: EncodedCorpus, micro_batches: Sequence[np.ndarray]
                      ) -> list[tuple[tuple[int, ...], np.ndarray]]:
        """Return this rank's micro-batches of a step (see `of_all_ranks`)."""
        return self.of_all_ranks(corpus, micro_batches)[self.rank :: self.world_size]

    def of_all_ranks(self, corpus: EncodedCorpus, micro_batches: Sequence[np.ndarray]
                     ) -> list[tuple[tuple[int, ...], np.ndarray]]:
        """Return the micro-batches of a step that the ranks compute in turn, each with its path.

        The path is the index of the micro-batch. If a step has fewer micro-batches than there are ranks, each is dealt
        to several, and their number in it follows in the path. This changes only the dropout masks, because they depend
        on the path; without dropout, the gradient of the step stays the same.
        """
        if len(micro_batches) >= self.world_size:
            return [((number,), pairs) for number, pairs in enumerate(micro_batches)]
        each, more = divmod(self.world_size, len(micro_batches))
        return [((number, part), dealt) for number, pairs in enumerate(micro_batches)
                for part, dealt in enumerate(deal(corpus, pairs, each + (number < more)))]


SINGLE_PROCESS = ProcessGroup()


@contextmanager
def join_process_group(device: str = "auto") -> Iterator[ProcessGroup]:
    """Join the process group of `torchrun`; without `torchrun`, yield a group of one process.

    device: `training.device` of the recipe. On GPUs, each process uses the GPU whose index is its local rank.
    """
    size = int(os.environ.get("WORLD_SIZE", 1))
    if size == 1:
        yield SINGLE_PROCESS
        return
    if ":" in device:
        raise UserError(f"training.device: {device} is one device, and {size} processes train together. Use cuda "
                        "(each process then uses its own GPU), cpu or auto.")
    gpu = None
    if torch.cuda.is_available() and device != "cpu":
        gpu = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
        if (count := torch.cuda.device_count()) <= gpu.index:
            raise UserError(f"this machine has {count} GPUs, too few for its process {gpu.index} (counted from 0). "
                            f"Start torchrun with --nproc-per-node {count}, or set training.device: cpu.")
        torch.cuda.set_device(gpu)
    try:
        dist.init_process_group("gloo", timeout=WAITING_TIMEOUT)
        # Without device_id, NCCL derives the GPU from the global rank, which is wrong if GPU counts of machines differ.
        gradients = dist.new_group(backend="nccl", timeout=GRADIENT_TIMEOUT, device_id=gpu) if gpu else None
    except (RuntimeError, ValueError) as error:
        raise UserError(f"the {size} processes of this training cannot connect to each other: {error}. Start them with "
                        "one torchrun command on each machine.") from error
    group = ProcessGroup(dist.get_rank(), size, gradients)
    if not group.is_main:
        console.silence()
    with watch_ranks(group.rank, size):
        yield group
    dist.destroy_process_group()            # not after an error: it might wait for ranks that have ended


def translate_lines(translator: Translator, group: ProcessGroup, lines: Sequence[str | Source], *,
                    progress: ReportProgress | None = None, **decoding: Unpack[DecodingOptions]
                    ) -> list[list[Translation]]:
    """Return the result of `Translator.translate` for all lines. Each rank translates a share of the lines."""
    requests = list(translator.reader.number(lines))
    share = equal_shares(requests, group.world_size)[group.rank]
    translations = translator.translate([requests[index] for index in share], progress=progress, **decoding)
    return [n_best for _, n_best in sorted(group.gather(list(zip(share, translations, strict=True))),
                                           key=lambda indexed: indexed[0])]


def translate_whole_blocks(translator: Translator, group: ProcessGroup, blocks: Iterator[list[Source]], *,
                           progress: ReportProgress | None = None, **decoding: Unpack[DecodingOptions]
                           ) -> Iterator[list[tuple[str, tuple[str, ...]]]]:
    """Yield the best translation of each line of each block, with its faults. All ranks must exhaust this iterator.

    Each rank translates whole blocks, because rounding depends on the lines of a block. blocks: only the main rank's
    are read.
    """
    while turn := group.from_main_rank(lambda: list(islice(blocks, group.world_size))):
        yield from group.gather([
            [(best.text.replace("\n", " "), best.faults)
             for best, *_ in translator.translate(block, progress=progress, **decoding)]
            for block in group.shard(turn)])


@contextmanager
def explain_lost_rank() -> Iterator[None]:
    """Turn the error of a lost connection to another rank into a LostRank that says what to do."""
    try:
        yield
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise
        raise LostRank("another process of this training has ended; its error message says why. Run the same command "
                       f"again; training resumes from the last checkpoint. ({str(error).splitlines()[0]})") from error
