"""Ranks find each other within a time limit, say who is missing, and are all heard."""

import os
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from machines import two_machines
from toy import RECIPE, write_corpus
from trainings import EXPLODING

from seq2seq import console
from seq2seq.errors import UserError
from seq2seq.storage.checkpoints import newest_checkpoint
from seq2seq.training import distributed, joining
from seq2seq.training.distributed import explain_lost_rank
from seq2seq.training.joining import Member, choose_interface, described, meet, ranges, require_agreement
from seq2seq.training.lost_ranks import LostRank

ON_A, ON_B = Member("node-a", "H200", "eth0", "10.0.0.2"), Member("node-b", "H200", "eth0", "10.0.0.3")


# Without other processes


def client(port, serve=False):
    return dist.TCPStore("127.0.0.1", port, is_master=serve, wait_for_workers=False, timeout=timedelta(seconds=60))


@pytest.fixture
def store(monkeypatch):
    monkeypatch.setenv("MASTER_ADDR", "node-a")
    return client(0, serve=True)


def meet_in_threads(store, members):
    """Return what each rank gets from `meet`."""
    found = [None] * len(members)

    def join(rank):
        found[rank] = meet(client(store.port), rank, len(members), members[rank], [])

    threads = [threading.Thread(target=join, args=(rank,), daemon=True) for rank in range(len(members))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return found


def test_each_attempt_in_the_same_store_has_keys_of_its_own(store):
    attempts = []
    for gpu in ("first", "second", "third"):
        members = [Member(f"node-{rank}", gpu, "", "") for rank in range(3)]
        found = meet_in_threads(store, members)
        assert [each for each, _ in found] == [members] * 3
        (_, attempt), *others = found
        assert {other for _, other in others} == {attempt}
        attempts.append(attempt)
    assert len(set(attempts)) == 3


def test_a_rank_that_ended_during_the_last_attempt_is_missing_in_the_next(store):
    store.set("rank/1", "number of a process that has ended")
    phases = []
    thread = threading.Thread(target=meet, args=(client(store.port), 0, 3, ON_A, phases), daemon=True)
    thread.start()
    joining._wait_for(store, "attempt of number of a process that has ended")
    while "missing" not in "".join(phases):
        time.sleep(0.01)
    assert "processes 1 to 2 of 3 are missing; there are 0 on node-a (eth0, 10.0.0.2, H200)" in phases[-1]
    others = [threading.Thread(target=meet, args=(client(store.port), rank, 3, ON_B, []), daemon=True)
              for rank in (1, 2)]
    for other in others:
        other.start()
    for each in (thread, *others):
        each.join(60)
        assert not each.is_alive()


def test_ranks_are_named_by_machine():
    assert ranges([0, 1, 2, 5, 7, 8]) == "0 to 2, 5, 7 to 8"
    alone = Member("laptop", None, "lo", "127.0.0.1")
    assert described({0: alone, 1: alone}) == "0 to 1 on laptop (lo, CPU)"
    assert described({0: ON_A, 1: ON_A, 2: ON_B}) == ("0 to 1 on node-a (eth0, 10.0.0.2, H200); "
                                                      "2 on node-b (eth0, 10.0.0.3, H200)")


@pytest.mark.parametrize(("change", "told"), [
    ({}, None), ({"gpu": "another GPU"}, None), ({"gpu": None}, "process 1 on node-b finds no GPU"),
    ({"error": "no GPU 3"}, "process 1 on node-b cannot train: no GPU 3"), ({"torch": "2.0"}, "has torch 2.0"),
    ({"numpy": "1.0"}, "has numpy 1.0")], ids=str)
def test_ranks_that_cannot_train_together_are_refused(change, told):
    members = [ON_A, replace(ON_B, **change)]
    if told is None:
        require_agreement(members)
    else:
        with pytest.raises(UserError, match=told):
            require_agreement(members)


def test_the_main_rank_without_a_gpu_is_named():
    with pytest.raises(UserError, match="process 0 on node-a finds no GPU"):
        require_agreement([replace(ON_A, gpu=None), ON_B])


@pytest.mark.parametrize(("name_means", "hosts", "reached", "expected"), [
    ("10.0.0.2", "ab", "10.0.0.2", None),                                       # gloo chooses well
    ("127.0.1.1", "aa", "127.0.0.1", None),                                     # one machine
    ("127.0.1.1", "ab", "10.0.0.2", "eth1"), ("127.0.1.1", "ab", "127.0.0.1", UserError)])
def test_gloo_uses_an_interface_that_the_other_machine_reaches(monkeypatch, name_means, hosts, reached, expected):
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    monkeypatch.setattr(joining, "_address_of_name", lambda: name_means)
    monkeypatch.setattr(joining, "_source_address", lambda host: reached)
    monkeypatch.setattr(joining, "_interface_of", {"10.0.0.2": "eth1"}.get)
    own, other = (Member(host, None, "", "127.0.0.1") for host in hosts)
    others = [replace(other, address="10.0.0.3")]
    if expected is UserError:
        with pytest.raises(UserError, match="GLOO_SOCKET_IFNAME"):
            choose_interface(own, [own, *others])
    else:
        first, second = choose_interface(own, [own, *others])
        assert first.interface == (expected or "") and second == others[0]
        assert os.environ.get("GLOO_SOCKET_IFNAME") == expected
        monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)


@pytest.mark.skipif(sys.platform != "linux", reason="network interfaces of Linux")
def test_the_loopback_interface_is_never_chosen():
    assert joining._interface_of("127.0.0.1") is None
    assert joining.is_loopback("127.0.1.1") and joining.is_loopback("::1")
    assert not joining.is_loopback("eth0")


@pytest.mark.parametrize("device", ["auto", "cuda"])
def test_each_rank_makes_its_gpu_current_before_anything_uses_a_gpu(monkeypatch, device):
    calls = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "set_device", lambda gpu: calls.append(gpu))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda gpu: calls.append("capability") or (9, 0))
    monkeypatch.setattr(torch, "empty", lambda *arguments, device: calls.append(device))
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert distributed._own_gpu(device, "auto") == torch.device("cuda", 3)
    assert calls[0] == torch.device("cuda", 3) and "capability" in calls


@pytest.mark.parametrize(("error", "kind"), [
    (RuntimeError("Connection closed by peer [127.0.0.1]:1"), LostRank),
    (dist.DistBackendError("NCCL error: ncclRemoteError: a remote process has exited"), LostRank),
    (dist.DistBackendError("NCCL error: unhandled cuda error"), UserError),
    (torch.OutOfMemoryError("CUDA out of memory"), torch.OutOfMemoryError)], ids=str)
def test_only_a_lost_connection_is_called_a_lost_rank(error, kind):
    with pytest.raises(kind) as raised, explain_lost_rank():
        raise error
    assert type(raised.value) is kind


def test_other_ranks_print_warnings_and_errors_once_and_nothing_else(monkeypatch, capfd, store):
    monkeypatch.setenv("RANK", "5")
    host = socket.gethostname()
    try:
        console.silence(False, joining.first_to_say(store))                     # the main rank
        console.warn("both have this")
        console.silence(True, joining.first_to_say(store))
        console.print_message("resuming")
        console.warn("both have this")
        for _ in range(2):
            console.warn("without CUDA graphs")
        console.print_error("no text\x1b")
    finally:
        console.silence(False)
    assert capfd.readouterr().err.splitlines() == [
        "warning: both have this", f"process 5 on {host}: warning: without CUDA graphs",
        f"process 5 on {host}: no text\\x1b"]


# With `torchrun`


# The code of each test comes first.
WORKER = """
import os, sys, time
from seq2seq import console
from seq2seq.errors import UserError
from seq2seq.training import distributed, joining, loop, run
from seq2seq.training.validation import Validation
RANK, ATTEMPT = os.environ["RANK"], int(os.environ["TORCHELASTIC_RESTART_COUNT"])
def at_step(number, action):
    update = loop.TrainingLoop.update
    def replaced(self, *batch):
        update(self, *batch)
        if self.state.step == number:
            action(self)
    loop.TrainingLoop.update = replaced
{code}
from seq2seq.cli import main
sys.exit(main(["train", *sys.argv[1:]]))
"""


@pytest.fixture
def folder(tmp_path):
    write_corpus(tmp_path)
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    return tmp_path


def worker(folder, code, *settings):
    """Return the command of a rank that runs some code first, and then trains in the folder."""
    (folder / "worker.py").write_text(WORKER.replace("{code}", code))
    arguments = [argument for setting in settings for argument in ("--set", setting)]
    return [folder / "worker.py", folder / "recipe.yaml", *arguments, "--run-dir", folder / "run"]


def torchrun(command, *options, ranks=2):
    """Run ranks on this machine; returns the exit code of torchrun and all that was printed."""
    done = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node",
                           str(ranks), *options, *map(str, command)], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, timeout=300, env={**os.environ, "OMP_NUM_THREADS": "1"})
    return done.returncode, done.stdout


def name(rank):
    return f"process {rank} on {socket.gethostname()}"


@pytest.mark.slow
@pytest.mark.parametrize(("raised", "told"), [
    ("UserError('valid.de is missing on this machine')", "valid.de is missing on this machine"),
    ("MemoryError()", "Out of memory (MemoryError).")])
def test_the_error_and_the_warnings_of_any_rank_are_printed_with_its_name(folder, raised, told):
    code, output = torchrun(worker(folder, f"""
def fail(self, *arguments):
    console.warn("all ranks say this")
    if RANK == "1":
        console.warn("without CUDA graphs")
        raise {raised}
    time.sleep(3)                                                               # the watching thread sees the loss
Validation.measure = fail
"""))
    assert code
    assert f"{name(1)}: {told}" in output and f"{name(1)}: warning: without CUDA graphs" in output
    assert output.count("all ranks say this") <= 2
    assert "terminate called" not in output and "SIGABRT" not in output
    assert "exitcode  : 2 " in output, output


@pytest.mark.slow
def test_a_signal_and_an_error_of_all_ranks_end_without_a_core_dump(folder):
    _, output = torchrun(worker(folder, "at_step(3, lambda training: os.kill(os.getpid(), 15))"))
    assert "saved at step 3" in output and "terminate called" not in output
    assert newest_checkpoint(folder / "run").step == 3
    _, output = torchrun(worker(folder, "at_step(5, lambda training: 1 / 0)"), ranks=3)
    assert "ZeroDivisionError" in output and "terminate called" not in output and "exitcode  : 1 " in output


@pytest.mark.slow
def test_ranks_that_drift_apart_end_before_the_next_checkpoint(folder):
    code, output = torchrun(worker(folder, """
def drift(training):
    if RANK == "1":
        training.step.weights[0].data.mul_(1.01)
at_step(7, drift)
""", "training.checkpoint_minutes=0"))
    assert code and f"the weights of {name(1)} differ from those of {name(0)}" in output
    assert newest_checkpoint(folder / "run").step == 6
    code, output = torchrun(worker(folder, ""))
    assert code == 0 and "resuming after step 6" in output


@pytest.mark.slow
@pytest.mark.parametrize("explodes", [True, False])
def test_a_rank_that_sees_other_checkpoints_than_the_main_rank_decides_nothing(folder, monkeypatch, explodes):
    if explodes:
        monkeypatch.setenv("EXPLODES", "1")
    code, output = torchrun(worker(folder, EXPLODING + """
from seq2seq.training import rollback
if RANK == "1":
    for module in (loop, rollback):
        module.checkpoint_by_step = lambda run: {}
    loop.average_intact = None                                                  # only the main rank reads checkpoints
""", "training.max_steps=20", "training.validate_every=3", "training.divergence=lower_rate",
                                   "training.average={kind: last, count: 2}"))
    assert code == 0 and "average of 2 checkpoints" in output, output
    assert ("rolling back to step 3" in output) == explodes, output


@pytest.mark.slow
def test_each_restart_of_torchrun_resumes(folder):
    command = worker(folder, """
if ATTEMPT < 2 and RANK == "1":
    at_step(4 + 3 * ATTEMPT, lambda training: os.kill(os.getpid(), 9))
""", "training.checkpoint_minutes=0")
    for number in range(5):
        command[-1] = folder / f"run{number}"
        code, output = torchrun(command, "--max-restarts", "3")
        assert code == 0 and output.count("resuming after step") == 2, f"{number}: {output}"


@pytest.mark.slow
def test_a_restarted_training_would_lose_its_steps_with_each_restart_of_torchrun(folder):
    code, output = torchrun([*worker(folder, ""), "--restart"], "--max-restarts", "1")
    assert code and output.count("--restart") and not (folder / "run").exists()


# On two machines


def limited(seconds):
    return f"joining.JOINING_SECONDS = {seconds}"


@pytest.mark.slow
@pytest.mark.parametrize("loopback_names", [False, True])
def test_machines_whose_own_names_are_loopback_addresses_train_together(folder, loopback_names):
    with two_machines(folder, loopback_names, apart=True) as machines:
        command = worker(folder, limited(60), "training.max_steps=3")
        agents = [machines.start(machine, command, ranks=2) for machine in range(2)]
        assert [agent.wait(120) for agent in agents] == [0, 0], machines.told(0) + machines.told(1)
        told = machines.told(0) + machines.told(1)
        assert told.count("4 processes train together: 0 to 1 on node-") == 1
        assert "10.213.7.1, CPU" in told and "10.213.7.2, CPU" in told


@pytest.mark.slow
def test_a_machine_that_fails_before_joining_is_missed_within_the_time_limit(folder):
    with two_machines(folder) as machines:
        for machine in range(2):
            code = f"{limited(8)}\nif os.environ['GROUP_RANK'] == '1': raise SystemExit(3)"
            machines.start(machine, worker(folder, code))
        assert all(agent.wait(60) for agent in machines.started)
        told = machines.told(0) + machines.told(1)
        assert f"process 1 of 2 is missing; there are 0 on {machines.first[:5]}" in told


@pytest.mark.slow
def test_a_machine_without_a_gpu_is_refused_at_once_with_the_same_message_on_all(folder):
    fake = """
if RANK == "0":
    import torch
    distributed._own_gpu = lambda *arguments: torch.device("cuda", 0)
    torch.cuda.get_device_name = lambda *arguments: "H200"
"""
    with two_machines(folder) as machines:
        for machine in range(2):
            machines.start(machine, worker(folder, fake))
        assert all(agent.wait(60) for agent in machines.started)
        told = machines.told(0) + machines.told(1)
        assert f"process 1 on {machines.first[:5]}" in told and "finds no GPU" in told
        assert 1 <= told.count("finds no GPU") <= 2


@pytest.mark.slow
def test_machines_that_do_not_reach_each_other_end_within_the_time_limit(folder):
    with two_machines(folder, apart=True) as machines:
        for machine in range(2):
            machines.start(machine, worker(folder, limited(8)), GLOO_SOCKET_IFNAME="lo")
        assert all(agent.wait(60) for agent in machines.started)
        told = machines.told(0) + machines.told(1)
        assert "NCCL_SOCKET_IFNAME" in told and "the machines do not reach each other" in told, told


@pytest.mark.slow
def test_a_restart_on_one_machine_restarts_the_other_one(folder):
    command = worker(folder, """
if RANK == "1" and not os.path.exists(sys.argv[-1] + ".died"):
    def die(training):
        open(sys.argv[-1] + ".died", "w").close()
        os.kill(os.getpid(), 9)
    at_step(4, die)
""", "training.checkpoint_minutes=0")
    with two_machines(folder) as machines:
        agents = [machines.start(machine, command, options=["--max-restarts", "3"]) for machine in range(2)]
        assert [agent.wait(180) for agent in agents] == [0, 0], machines.told(0) + machines.told(1)
        assert "resuming after step" in machines.told(0) + machines.told(1)
