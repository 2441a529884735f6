"""Start of a training on all ranks: the lock, the run directory, and the recipe."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from seq2seq import console
from seq2seq.data.corpus import first_line_warnings
from seq2seq.errors import UserError
from seq2seq.recipe import Recipe
from seq2seq.signals import resumable
from seq2seq.storage.checkpoints import list_checkpoints, recover_run
from seq2seq.storage.locks import LOCK, lock_run
from seq2seq.storage.run_directory import check_and_store_recipe, rename_old_run
from seq2seq.training.distributed import ProcessGroup

DIRECTORY_SECONDS = 30
"""Maximum time until a file that the main rank has written is visible on other machines. Network file systems cache
lists of files for some seconds."""


@contextmanager
def open_run(recipe: Recipe, run: Path, group: ProcessGroup, restart: bool, held_out_crc32: int) -> Iterator[None]:
    """Lock the run directory during the block, remove what a killed training has left in it, and store the recipe.

    Args:
        restart: True to rename an existing run.
        held_out_crc32: checksum of the validation and test text, which must be the same for all ranks.
    Raises:
        UserError: a rank does not see the run directory of the main rank, or has other validation or test text.
            `lock_run` and `check_and_store_recipe` list further causes.
        Stopped: Ctrl-C interrupted the block.
    """
    with ExitStack() as stack:
        lock = ""
        if group.is_main:
            if restart and run.exists():
                with lock_run(run):
                    console.print_message(f"the old run was renamed to {rename_old_run(recipe, run)}")
            lock = stack.enter_context(lock_run(run))
        require_same_files(run, lock, held_out_crc32, group)
        if group.is_main:
            recover_run(run)
            for warning in first_line_warnings(recipe) if not list_checkpoints(run) else ():
                console.warn(f"{warning.fault} {warning.remedy}")
            check_and_store_recipe(recipe, run)
        with resumable():                           # outside the training loop, for example while teachers translate
            yield


def require_same_files(run: Path, lock: str, held_out_crc32: int, group: ProcessGroup) -> None:
    """Check that all ranks see the main rank's run directory, and have the same validation and test text.

    lock: contents of the lock file, on the main rank.
    Raises:
        UserError: the run directory or the text of a rank is not that of the main rank.
    """
    if group.world_size == 1:
        return
    lock, *_ = group.gather([lock])                                     # after the main rank has written the file

    def sees_lock() -> bool:
        try:
            return (run / LOCK).read_text(encoding="utf-8", errors="replace") == lock
        except OSError:
            return False

    deadline = time.monotonic() + DIRECTORY_SECONDS
    while not (sees := sees_lock()) and time.monotonic() < deadline:
        time.sleep(0.1)
    ranks = group.gather([(socket.gethostname(), sees, held_out_crc32)])
    main_host, _, main_crc32 = ranks[0]
    for rank, (host, sees, crc32) in enumerate(ranks):
        if not sees:
            raise UserError(f"process {rank} on {host} does not see the run directory {run} of process 0 on "
                            f"{main_host}. Name a --run-dir on a file system that all machines share.")
        if crc32 != main_crc32:
            raise UserError(f"the validation or test text of process {rank} on {host} differs from that of process 0 "
                            f"on {main_host}. Copy the text of data.valid and data.test to all machines.")
