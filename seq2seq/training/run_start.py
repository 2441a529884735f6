"""Start of a training on all ranks: the lock, the run directory of each machine, and the recipe."""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from seq2seq import console
from seq2seq.data.corpus import first_line_warnings
from seq2seq.errors import RecipeError, UserError
from seq2seq.recipe import Recipe, differences
from seq2seq.signals import resumable
from seq2seq.storage.atomic import replace_file
from seq2seq.storage.checkpoints import BEST, CHECKPOINTS, RECIPE, list_checkpoints
from seq2seq.storage.locks import LOCK, lock_run
from seq2seq.storage.run_directory import check_and_store_recipe, rename_old_run
from seq2seq.training.distributed import ProcessGroup

DIRECTORY_SECONDS = 30
"""Maximum time until a file that the main rank has written is visible on other machines. Network file systems cache
lists of files for some seconds."""
START = ".start"
"""File with a random text, by which ranks recognise the main rank's run directory. It is deleted after this check."""
COPY = ".copy"
"""File that marks a run directory as a copy of the run directory on another machine."""
OWN_KEYS = ("license", "data.root", "data.valid", "data.test", "training.device", "training.threads",
            "training.start_from")
"""Keys whose values may differ between machines. For data.valid and data.test, the text must be the same."""


@contextmanager
def open_run(recipe: Recipe, run: Path, group: ProcessGroup, restart: bool, held_out_crc32: int) -> Iterator[Recipe]:
    """Lock the run directory during the block, store the recipe, and yield the recipe to train with.

    Machines that do not see the run directory of the main rank receive copies of its recipe, tokenizer, checkpoints and
    best model. `ProcessGroup.share` later updates the copies.

    Args:
        restart: True to rename an existing run.
        held_out_crc32: checksum of the validation and test text, which must be the same for all ranks.
    Raises:
        UserError: only some ranks of a machine see the main rank's run directory; the ranks have different recipes, or
            different validation or test text; or a copy would replace other files. `lock_run` and
            `check_and_store_recipe` list further causes.
        Stopped: Ctrl-C interrupted the block.
    """
    with ExitStack() as stack:
        if group.is_main:
            if restart and run.exists():
                with lock_run(run):
                    console.print_message(f"the old run was renamed to {rename_old_run(recipe, run)}")
            stack.enter_context(lock_run(run, provisional=[RECIPE, START]))
            for warning in first_line_warnings(recipe) if not list_checkpoints(run) else ():
                console.warn(f"{warning.fault} {warning.remedy}")
        if group.world_size > 1:
            start, *_ = group.gather([secrets.token_hex()])
            if group.is_main:
                replace_file(run / START, start.encode())
            receivers = _receivers(run, start, group)
            if group.is_main:
                (run / START).unlink()
            if group.rank in receivers:
                if restart and run.exists():
                    with lock_run(run):
                        rename_old_run(recipe, run)
                stack.enter_context(lock_run(run, provisional=[COPY]))
                _mark_as_copy(run)
            if receivers:
                _require_no_lost_run(run, group)
                group.send_copies_to(receivers)
            recipe = _common_recipe(recipe, held_out_crc32, group)
        if group.is_main:
            (run / COPY).unlink(missing_ok=True)
            recipe = check_and_store_recipe(recipe, run)
        group.share(run / RECIPE, run / "tokenizer", run / CHECKPOINTS, run / BEST)
        # On the main rank, `check_and_store_recipe` may have replaced `vocab_size: auto` by the stored number.
        tokenizer, *_ = group.gather([recipe.tokenizer])
        with resumable():                           # outside the training loop, for example while teachers translate
            yield recipe.model_copy(update={"tokenizer": tokenizer})


def _receivers(run: Path, start: str, group: ProcessGroup) -> list[int]:
    """Return the first rank of each machine on which the main rank's run directory is not visible.

    start: text in the file START of the main rank's run directory.
    Raises:
        UserError: some ranks of a machine see the main rank's run directory, and other ranks of this machine do not.
    """
    def sees_start() -> bool:
        with suppress(OSError):
            return (run / START).read_text(errors="replace") == start
        return False

    group.barrier()                                                             # wait until the file is written
    deadline = time.monotonic() + DIRECTORY_SECONDS
    while not sees_start() and time.monotonic() < deadline:
        time.sleep(0.1)
    machine = os.environ.get("GROUP_RANK", "0")                         # number of the machine's torchrun command
    ranks = group.gather([(machine, socket.gethostname(), sees_start())])
    receivers: dict[str, int] = {}
    for rank, (number, host, sees) in enumerate(ranks):
        if sees:
            continue
        other = next((rank for rank, found in enumerate(ranks) if found[0] == number and found[2]), None)
        if other is not None:
            raise UserError(f"process {rank} on {host} does not see the run directory {run} of process 0 on "
                            f"{ranks[0][1]}, but process {other} of the same machine does. Name the same --run-dir "
                            "for all processes of a machine.")
        receivers.setdefault(number, rank)
    return list(receivers.values())


def _mark_as_copy(run: Path) -> None:
    """Mark a directory as a copy, in which files may be replaced and deleted.

    Raises:
        UserError: the directory contains other files and is not a copy.
    """
    if (run / COPY).exists():
        return
    if any(path.name != LOCK for path in run.iterdir()):
        raise UserError(f"{run} on {socket.gethostname()} contains files, and the run directory of process 0 is on "
                        "another machine. A copy of that directory would replace these files. Start process 0 on the "
                        "same machine as before, or move the files away, or name another --run-dir.")
    replace_file(run / COPY, b"This directory is a copy of the run directory of another machine.\n")


def _require_no_lost_run(run: Path, group: ProcessGroup) -> None:
    """Check, before the copies are updated, that the main rank's run directory has not lost its checkpoints.

    Raises:
        UserError: a copy has checkpoints, and the main rank's run directory has none.
    """
    states = group.gather([(socket.gethostname(), len(list_checkpoints(run)))])
    for host, count in states[1:] if not states[0][1] else ():
        if count:
            raise UserError(f"{run} on {host} contains checkpoints, but the run directory of process 0 on "
                            f"{states[0][0]} contains none. To resume, copy {run} from {host} to {states[0][0]}; to "
                            "train from the beginning, use --restart.")


def _common_recipe(recipe: Recipe, held_out_crc32: int, group: ProcessGroup) -> Recipe:
    """Return this rank's recipe with the main rank's `data.train`.

    The weights of the corpora must be equal on all ranks, because they determine the batches.

    Raises:
        RecipeError: a key that must be equal on all ranks has another value on the main rank.
        UserError: the validation or test text differs from that of the main rank.
    """
    main, *_ = group.gather([recipe])
    changed = [f"{change.key} is {change.new} instead of {change.old}"
               for change in differences(main.with_directory(recipe.directory), recipe)
               if not change.key.startswith((*OWN_KEYS, "data.train", "tokenizer.taken_from"))]
    ranks = group.gather([(socket.gethostname(), changed, held_out_crc32)])
    for rank, (host, keys, crc32) in enumerate(ranks):
        if keys:
            raise RecipeError(f"the recipe of process {rank} on {host} differs from that of process 0 on "
                              f"{ranks[0][0]}: {', '.join(keys[:5])}. Use the same recipe and options on all machines.")
        if crc32 != ranks[0][2]:
            raise UserError(f"the validation or test text of process {rank} on {host} differs from that of process 0 "
                            f"on {ranks[0][0]}. Copy the text of data.valid and data.test to all machines.")
    return recipe.model_copy(update={"data": recipe.data.model_copy(update={"train": main.data.train})})
