"""Distributed training with `torchrun`, on one machine or several.

All ranks have the same weights, plan the same steps and make the same decisions. Each rank computes its shard of every
step's micro-batches and of the validation sentences. Only the main rank, rank 0, writes to the run directory. A
training without `torchrun` uses a process group of one rank.
"""

from __future__ import annotations

import atexit
import os
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from itertools import islice
from typing import Any, TypeVar, Unpack, cast

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore

from seq2seq import console
from seq2seq.data.batching import EncodedCorpus
from seq2seq.data.epoch_plan import deal
from seq2seq.devices import choose_device, choose_dtype, is_out_of_memory
from seq2seq.errors import UserError
from seq2seq.recipe import DecodingOptions
from seq2seq.signals import Stopped
from seq2seq.tokenizers.source import Source
from seq2seq.training.joining import (
    MESSAGE_SECONDS,
    choose_interface,
    connect_to_store,
    describe_self,
    described,
    first_to_say,
    meet,
    require_agreement,
    time_limit,
)
from seq2seq.training.lost_ranks import WATCHING_TIMEOUT, LostRank, watch_ranks
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
    there is no group to communicate with: one rank, and no `gradients`. hosts: machine of each rank, for messages.
    names: name of each rank in messages.
    """

    def __init__(self, rank: int = 0, world_size: int = 1, gradients: dist.ProcessGroup | None = None,
                 hosts: Sequence[str] = ()) -> None:
        self.rank, self.world_size, self.gradients = rank, world_size, gradients
        places = [f" on {host}" for host in hosts] or [""] * world_size
        self.names = [f"process {number}{place}" for number, place in enumerate(places)]
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
        first, *others = self.gather([(step, checksum, str(dtype).removeprefix("torch."))])
        for name, (at, found, format) in zip(self.names[1:], others, strict=True):
            if format != first[2]:
                raise UserError(f"{name} would compute in {format}, and {self.names[0]} in {first[2]}. Set "
                                "training.precision to a format that all machines have, such as fp32.")
            if (at, found) != first[:2]:
                raise UserError(f"{name} (step {at:,}) does not start from the same weights and optimizer state as "
                                f"{self.names[0]} (step {first[0]:,}). Both read the same checkpoint: look for errors "
                                "of their file system and memory.")

    def require_same_weights(self, step: int, blocks: Sequence[Tensor]) -> None:
        """Check that all ranks have the same weights after a step: each does the same updates with the same gradients.

        blocks: contiguous tensors with all weights. Their bytes are summed on their device as integers, which neither
        rounds nor depends on an order.
        """
        if self.alone:
            return
        first, *others = self.gather([torch.stack([_sum_of_bits(block) for block in blocks]).tolist()])
        if different := [name for name, found in zip(self.names[1:], others, strict=True) if found != first]:
            raise UserError(
                f"step {step:,}: the weights of {', '.join(different)} differ from those of {self.names[0]}, although "
                "all processes do the same updates. Look for faulty memory, and use the same kind of GPU or processor "
                "for all processes. Run the same command again; training resumes from the last checkpoint, which was "
                "saved while all weights were equal.")

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


def _sum_of_bits(tensor: Tensor) -> Tensor:
    """Return the sum of a contiguous tensor as if it contained integers, modulo 2 ** 64."""
    flat = tensor.detach().flatten()
    size = flat.element_size()
    # On a CPU, the sum of integers of 8 bytes is ten times as fast as that of smaller ones.
    if flat.nbytes % 8 == 0:
        flat = flat if flat.storage_offset() * size % 8 == 0 else flat.clone()
        size = 8
    return flat.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[size]).sum()


SINGLE_PROCESS = ProcessGroup()


@contextmanager
def join_process_group(device: str = "auto", precision: str = "auto") -> Iterator[ProcessGroup]:
    """Join the process group of `torchrun`; without `torchrun`, yield a group of one process.

    Args:
        device: `training.device` of the recipe. On GPUs, each process uses the GPU whose index is its local rank.
        precision: `training.precision`.
    """
    size = int(os.environ.get("WORLD_SIZE", 1))
    if size == 1:
        choose_dtype(precision, choose_device(device))                      # refused before a directory is made
        yield SINGLE_PROCESS
        return
    try:
        with time_limit(size) as phases:
            group, watching = _connect(size, device, precision, phases)
        with watch_ranks(group.names, group.rank, watching):
            yield group
    except BaseException as error:
        _end_at_exit(error)
        raise
    dist.destroy_process_group()            # not after an error: it might wait for ranks that have ended


def _connect(size: int, device: str, precision: str, phases: list[str]) -> tuple[ProcessGroup, dist.ProcessGroup]:
    """Connect this rank to all others. Return the process group, and the group of `watch_ranks`.

    phases: see `time_limit`.
    """
    rank = int(os.environ["RANK"])
    console.silence(rank > 0)
    try:
        gpu, error = _own_gpu(device, precision), ""
    except UserError as found:
        gpu, error = None, str(found)
    try:
        phases.append(f"the store at {os.environ['MASTER_ADDR']} does not answer")
        store = connect_to_store(rank, size)
        own = describe_self(None if gpu is None else torch.cuda.get_device_name(gpu), error)
        members, attempt = meet(store, rank, size, own, phases)
        messages = connect_to_store(rank, size, serve=False, seconds=MESSAGE_SECONDS)
        console.silence(rank > 0, first_to_say(PrefixStore(attempt, messages)))
        require_agreement(members)
        members = choose_interface(own, members)
        phases.append("the machines do not reach each other. Set GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME to the "
                      "network interface of each machine that the others reach, and open the ports of the machines "
                      f"to each other. There are {described(dict(enumerate(members)))}")
        dist.init_process_group("gloo", store=PrefixStore(attempt, store), rank=rank, world_size=size,
                                timeout=WAITING_TIMEOUT)
        console.print_message(
            f"{size} processes train together: {described(dict(enumerate(members)))}. Process 0 reads the text and "
            f"writes the run.{' NCCL connects the GPUs; NCCL_DEBUG=INFO shows how.' if gpu else ''}")
        # Without device_id, NCCL derives the GPU from the global rank, which is wrong if GPU counts of machines differ.
        gradients = dist.new_group(backend="nccl", timeout=GRADIENT_TIMEOUT, device_id=gpu) if gpu else None
        watching = dist.new_group(backend="gloo", timeout=WATCHING_TIMEOUT)
    except (RuntimeError, ValueError) as error:
        raise UserError(f"this process cannot connect to the other processes of this training: {phases[-1]}. "
                        f"({error})") from error
    return ProcessGroup(rank, size, gradients, [member.host for member in members]), watching


def _own_gpu(device: str, precision: str) -> torch.device | None:
    """Return the GPU of this process, and make it the current one, before anything uses another; None: it uses the CPU.

    Refuse a device or precision that this process cannot use.
    """
    if ":" in device:
        raise UserError(f"training.device: {device} is one device, and several processes train together. Use cuda "
                        "(each process then uses its own GPU), cpu or auto.")
    gpu = None
    if torch.cuda.is_available() and device != "cpu":
        gpu = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
        if (count := torch.cuda.device_count()) <= gpu.index:
            raise UserError(f"this machine has {count} GPUs, too few for its process {gpu.index} (counted from 0). "
                            f"Start torchrun with --nproc-per-node {count}, or set training.device: cpu.")
        try:
            torch.cuda.set_device(gpu)
        except RuntimeError as error:
            raise UserError(f"its GPU {gpu.index} cannot be used: {error}") from error
    choose_dtype(precision, choose_device(device))
    return gpu


def _end_at_exit(error: BaseException) -> None:
    """Let this process end as soon as Python exits, with the exit code for an error, without the rest of Python's exit.

    Threads of gloo and NCCL wait for ranks that have ended. Python's exit would wait for them, too, or abort.
    """
    of_user = isinstance(error, UserError | OSError) or isinstance(error, Exception) and is_out_of_memory(error)
    code = error.exit_code if isinstance(error, Stopped) else 2 if of_user else 1

    def end() -> None:
        with suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)

    atexit.register(end)


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
    """Turn an error in communication into a LostRank if a connection to another rank is lost, else into a UserError."""
    try:
        yield
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise
        reason = str(error).splitlines()[0]
        # NCCL has this code for lost connections. Other errors of NCCL, such as those of CUDA, are of this process.
        if isinstance(error, dist.DistBackendError) and "ncclRemoteError" not in str(error):
            raise UserError(f"NCCL failed in this process: {reason}. NCCL_DEBUG=INFO shows more. Run the same command "
                            "again; training resumes from the last checkpoint.") from error
        raise LostRank("another process of this training has ended; its error message says why. Run the same command "
                       f"again; training resumes from the last checkpoint. ({reason})") from error
