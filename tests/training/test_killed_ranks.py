"""A distributed training survives the loss of any process in any phase."""

import faulthandler
import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
import torch.distributed as dist
from toy import RECIPE, write_corpus
from trainings import run_forked_ranks

from seq2seq.signals import Stopped
from seq2seq.training import lost_ranks

HARNESS = Path(__file__).parents[1] / "killed_ranks.py"


def check(folder, cases, max_steps=17):
    """Kill a rank in each case (number of ranks, rank, phase), and check how the others end and what resuming gives."""
    write_corpus(folder)
    recipe = folder / "recipe.yaml"
    recipe.write_text(RECIPE.replace("  max_steps: 11", f"  max_steps: {max_steps}\n  accumulation: 4\n"
                                     "  average: {kind: last, count: 2}"))
    done = subprocess.run([sys.executable, HARNESS, recipe, folder, json.dumps(cases)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)
    assert len(results) == len(cases)
    for (size, victim, phase), found in zip(cases, results, strict=True):
        case = f"rank {victim} of {size} killed in {phase}: {found}"
        assert found["seconds"] < 60, case
        for rank in range(size):
            assert found["killed"][rank] == (-signal.SIGKILL if rank == victim else 2), case
            assert rank == victim or "has ended" in found["messages"][rank], case
        assert found["resumed"] == [0] * size, case
        assert found["differences"] == [], case


@pytest.mark.slow
def test_the_loss_of_a_rank_while_the_main_rank_works_alone_changes_no_result(tmp_path):
    check(tmp_path, [(2, 1, "preparation")], max_steps=3)


@pytest.mark.slow
def test_the_loss_of_each_of_two_ranks_in_each_phase_changes_no_result(tmp_path):
    from killed_ranks import PHASES  # imports much, for the processes

    check(tmp_path, [(2, victim, phase) for phase in PHASES for victim in range(2)])


@pytest.mark.slow
def test_the_loss_of_one_of_four_ranks_changes_no_result(tmp_path):
    check(tmp_path, [(4, 0, "validation"), (4, 1, "preparation"), (4, 2, "saving a checkpoint"),
                     (4, 3, "middle of training")])


def watch_ranks(rank):
    return lost_ranks.watch_ranks(["process 0", "process 1"], rank, dist.new_group(backend="gloo"))


def test_a_lost_rank_is_named_before_nccls_watchdog_can_abort_the_process(tmp_path, capfd):
    def work(rank):
        faulthandler.disable()                                                  # pytest's would print stacks
        with watch_ranks(rank):
            threading.Timer(2 if rank == 0 else 0.2, os.abort).start()          # the watchdog of rank 0 is later
            time.sleep(60)                                                      # waits for its GPU

    assert run_forked_ranks(2, tmp_path / "store", work) == [-signal.SIGABRT] * 2
    message = capfd.readouterr().err
    assert "process 1 has ended; process 0 ends, too. Run the same command again" in message


@pytest.mark.parametrize(("error", "code"), [(None, 0), (Stopped(15, "saved"), 0), (ValueError("of one rank"), 2)])
def test_the_main_rank_may_save_after_others_have_finished_or_stopped(tmp_path, monkeypatch, error, code):
    monkeypatch.setattr(lost_ranks, "GRACE_SECONDS", 0.2)

    def work(rank):
        with suppress(Stopped), watch_ranks(rank):
            if rank == 0:
                time.sleep(20 if code else 1)                                   # saves; 20: until the watcher ends it
            if error:
                raise error

    assert run_forked_ranks(2, tmp_path / "store", work) == [code, 99 if code else 0]
