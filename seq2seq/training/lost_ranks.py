"""Detection of lost ranks: a distributed training ends on all ranks if the process of one rank ends.

A rank that waits for a lost rank gets an error, because the connection is closed. A rank that works alone for hours,
such as the main rank during the preparation of a large corpus, would not notice the loss. So threads watch the
connections between the main rank and all other ranks.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta

import torch
import torch.distributed as dist

from seq2seq import console
from seq2seq.errors import UserError
from seq2seq.signals import Stopped

GRACE_SECONDS = 15
"""Seconds in which a process can end by itself after another rank is lost. Then a watching thread ends the process."""
NAMING_SECONDS = 5
"""Maximum number of seconds in which a watching thread, too, learns of a rank whose loss has failed an operation."""
WATCHING_TIMEOUT = timedelta(days=1000)
"""Maximum time that a watching thread waits for the last message of another rank; longer than any training."""


class LostRank(UserError):
    """The connection to another rank is lost."""


@contextmanager
def watch_ranks(names: Sequence[str], rank: int, group: dist.ProcessGroup) -> Iterator[None]:
    """End this process if the process of another rank ends during the block.

    The main rank watches all other ranks, and they watch the main rank. All ranks must enter the block. A rank that
    finishes the block, or leaves it with Stopped, waits until the ranks that it watches leave the block, too. Otherwise
    the main rank, which may still be saving, would regard this rank as lost.

    Args:
        names: name of each rank. rank: number of this rank.
        group: gloo group of all ranks, with the timeout WATCHING_TIMEOUT, for nothing else.
    """
    leaving, finished = threading.Event(), threading.Event()
    telling = threading.Lock()                                      # the first message is printed before a thread exits

    def watch(peer: int) -> None:
        try:
            dist.recv(torch.zeros(1), peer, group=group)                        # arrives when the peer leaves the block
        except RuntimeError:
            # Printed at once, because on GPUs, the watchdog thread of NCCL may abort this process at any time (SIGABRT)
            # when a sum of gradients fails. No error is raised then, and no handler runs.
            with telling:
                if not leaving.is_set():
                    leaving.set()
                    console.print_error(f"{names[peer]} has ended; {names[rank]} ends, too. Run the same command "
                                        "again; training resumes from the last checkpoint.", once=False)
            # Even a process that is ending with an error may hang, because destructors may wait for the lost rank.
            if not finished.wait(GRACE_SECONDS):
                os._exit(2)                                 # no file is damaged: files are replaced atomically

    peers = range(1, len(names)) if rank == 0 else [0]
    threads = [threading.Thread(target=watch, args=(peer,), name=f"watch-{peer}", daemon=True) for peer in peers]
    for thread in threads:
        thread.start()

    def leave_together() -> None:
        leaving.set()
        finished.set()
        with suppress(RuntimeError):                        # a lost peer does no harm: this rank has finished
            for peer in peers:
                dist.send(torch.zeros(1), peer, group=group)
        for thread in threads:
            thread.join()

    try:
        yield
    except Stopped:
        leave_together()
        raise
    except LostRank:
        leaving.wait(NAMING_SECONDS)                        # the watching thread knows which rank has ended
        with telling:
            leaving.set()
        raise
    except BaseException:
        leaving.set()
        raise
    leave_together()
