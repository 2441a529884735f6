"""Distributed training on several machines: a shared run directory, directories of their own, and half-shared ones."""

import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch.distributed as dist
from toy import RECIPE, write_corpus
from trainings import EXPLODING, final_weights, logged, run_forked_ranks, same

from seq2seq.cli import main
from seq2seq.errors import UserError
from seq2seq.recipe import load_recipe
from seq2seq.storage import directory_copies
from seq2seq.storage.checkpoints import list_checkpoints, load_bundle
from seq2seq.storage.directory_copies import DirectoryCopies
from seq2seq.training import run_start, trainer
from seq2seq.training.distributed import ProcessGroup

# Each `torchrun` stands for a machine. Its working directory contains the recipe and the text.
WORKER = EXPLODING + """
import sys
from seq2seq.cli import main
from seq2seq.training import run_start
run_start.DIRECTORY_SECONDS = 1
if os.environ.get("RANK") == os.environ.get("ELSEWHERE"):
    sys.argv[-1] += "-elsewhere"
if os.environ.get("RANK") == os.environ.get("DIES"):
    step = trainer.Training._step
    def dying(self, micro_batches):
        if self.state.step == 7:
            os.kill(os.getppid(), 9)                                            # the agent, torchrun
            os.kill(os.getpid(), 9)
        step(self, micro_batches)
    trainer.Training._step = dying
sys.exit(main(["train", *sys.argv[1:]]))
"""
SETTINGS = {
    "plain": ["training.average={kind: last, count: 2}"], "subword sampling": ["tokenizer.subword_sampling=0.1"],
    "rollback": ["training.max_steps=16", "training.validate_every=3", "training.divergence=lower_rate"],
}


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def machine(folder, name):
    """Make the directory of a machine: recipe, text and worker."""
    own = folder / name
    own.mkdir()
    write_corpus(own)
    (own / "recipe.yaml").write_text(RECIPE.replace("  log_every: 2", "  log_every: 1\n  accumulation: 4"))
    (own / "worker.py").write_text(WORKER)
    return own


def start(machines, run="run", processes=1, settings=(), options=(), static=False, **environment):
    """Start a `torchrun` in each machine's directory; returns the processes. Their output is in the file `errors`.

    If `static`, the first machine has rank 0; else the machines agree on their ranks.
    """
    port = free_port()
    started = []
    for number, own in enumerate(machines):
        command = [sys.executable, "-m", "torch.distributed.run", f"--nnodes={len(machines)}", f"--node-rank={number}",
                   f"--nproc-per-node={processes}", "--local-addr=127.0.0.1",
                   *(["--master-addr=127.0.0.1", f"--master-port={port}"] if static else
                     ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}",
                      f"--rdzv-conf=is_host={int(number == 0)}"]),
                   "worker.py", "recipe.yaml", *options,
                   *(argument for setting in settings for argument in ("--set", setting)), "--run-dir", run]
        around = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path.cwd()), **environment}
        with (own / "errors").open("a") as errors:
            started.append(subprocess.Popen(command, cwd=own, stdout=errors, stderr=errors, env=around,
                                            start_new_session=True))
    return started


def train(machines, *arguments, **options):
    """Train on the machines to the end. Returns the directory of the main rank, which is the first or the second."""
    codes = [process.wait(timeout=300) for process in start(machines, *arguments, **options)]
    assert codes == [0] * len(machines), messages(machines)
    return main_machine(machines)


def main_machine(machines):
    """Return the machine with rank 0: the order in which they meet decides. A copy of a run is marked."""
    (main,) = (own for own in machines if (own / "run").is_dir() and not (own / "run" / run_start.COPY).exists())
    return main


def messages(machines):
    return "\n".join((own / "errors").read_text() for own in machines)


def assert_same_training(first, second):
    assert same(final_weights(first), final_weights(second))
    assert same(load_bundle(first / "best").weights, load_bundle(second / "best").weights)
    assert load_bundle(first / "best").metadata["test"] == load_bundle(second / "best").metadata["test"]
    assert logged(first) == logged(second)


class Ranks(ProcessGroup):
    """Process group in which every other rank gathers the given results, one after another."""

    def __init__(self, rank, *others):
        super().__init__(rank, len(others[0]) + 1)
        self.others = list(others)

    def gather(self, items):
        others = self.others.pop(0)
        return [*others[:self.rank], *items, *others[self.rank:]]

    def barrier(self): ...


def directory_of_main_rank(folder):
    (folder / run_start.START).write_text("nonce")
    return folder


def see(*machines_and_sights):
    return [(machine, f"host-{machine}", sees) for machine, sees in machines_and_sights]


@pytest.mark.parametrize(("others", "receivers"), [
    (see(("0", True), ("1", True), ("1", True)), []),
    (see(("0", True), ("1", False), ("1", False)), [2]),
    (see(("0", True), ("1", False), ("2", True), ("3", False), ("3", False)), [2, 4]),
])
def test_one_rank_of_each_machine_without_the_run_directory_receives_it(tmp_path, monkeypatch, others, receivers):
    monkeypatch.setenv("GROUP_RANK", "0")
    assert run_start._receivers(directory_of_main_rank(tmp_path), "nonce", Ranks(0, others)) == receivers


@pytest.mark.parametrize("others", [see(("0", False)), see(("1", True), ("1", False)), see(("1", False), ("1", True))])
def test_a_machine_that_sees_the_run_directory_in_part_is_refused(tmp_path, monkeypatch, others):
    monkeypatch.setenv("GROUP_RANK", "0")
    with pytest.raises(UserError, match="does not see the run directory .* of the same machine does"):
        run_start._receivers(directory_of_main_rank(tmp_path), "nonce", Ranks(0, others))


def test_another_directory_is_not_that_of_the_main_rank(tmp_path, monkeypatch):
    monkeypatch.setenv("GROUP_RANK", "1")
    monkeypatch.setattr(run_start, "DIRECTORY_SECONDS", 0)
    main = [("0", "first", True)]
    assert run_start._receivers(directory_of_main_rank(tmp_path), "another nonce", Ranks(1, main)) == [1]
    assert run_start._receivers(tmp_path / "missing", "nonce", Ranks(1, main)) == [1]


def test_a_directory_with_other_files_does_not_become_a_copy(tmp_path):
    (tmp_path / "recipe.yaml").write_text("of a run on this machine")
    with pytest.raises(UserError, match="contains files, and the run directory of process 0 is on another machine"):
        run_start._mark_as_copy(tmp_path)
    (tmp_path / "recipe.yaml").unlink()
    run_start._mark_as_copy(tmp_path)
    (tmp_path / "recipe.yaml").write_text("copied")
    run_start._mark_as_copy(tmp_path)
    assert (tmp_path / run_start.COPY).exists()


def test_the_only_directory_with_checkpoints_is_not_overwritten(tmp_path):
    with pytest.raises(UserError, match="on second contains checkpoints, but .* of process 0 on .* contains none"):
        run_start._require_no_lost_run(tmp_path, Ranks(0, [("second", 3)]))
    run_start._require_no_lost_run(tmp_path, Ranks(0, [("second", 0)]))
    (tmp_path / "checkpoints" / "step-00000001").mkdir(parents=True)
    run_start._require_no_lost_run(tmp_path, Ranks(0, [("second", 3)]))


def test_machines_use_the_same_recipe_and_the_same_held_out_text(tmp_path):
    own = machine(tmp_path, "own")
    main = load_recipe(own / "recipe.yaml", ["data.train.0.weight=2", "training.threads=2"])
    other = load_recipe(own / "recipe.yaml")
    assert run_start._common_recipe(other, 7, Ranks(1, [main], [("first", [], 7)])).data.train[0].weight == 2
    with pytest.raises(UserError, match="text of process 1 on second differs from that of process 0"):
        run_start._common_recipe(main, 7, Ranks(0, [other], [("second", [], 8)]))
    changed = load_recipe(own / "recipe.yaml", ["training.learning_rate=0.5"])
    with pytest.raises(UserError, match="process 1 on .* differs .*: training.learning_rate is 0.5 instead of 0.01"):
        run_start._common_recipe(changed, 7, Ranks(1, [main], [("first", [], 7)]))


def test_copies_have_the_files_of_the_main_rank_and_no_others(tmp_path, monkeypatch):
    monkeypatch.setattr(directory_copies, "BLOCK_BYTES", 1000)
    for rank in range(3):
        for name, contents in (("same", b"same"), ("tokenizer/long", bytes(2500)), ("tokenizer/empty", b""),
                               ("one", b"1")):
            path = tmp_path / str(rank) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(contents)
    (tmp_path / "0" / "tokenizer" / "long").write_bytes(bytes(range(250)) * 10)
    (tmp_path / "0" / "one").unlink()
    shutil.rmtree(tmp_path / "2" / "tokenizer")
    (tmp_path / "1" / "tokenizer" / ".long.copying").write_bytes(b"incomplete: the process was killed")
    (tmp_path / "1" / "old" / "deep").mkdir(parents=True)
    (tmp_path / "1" / "old" / "deep" / "file").write_bytes(b"not on the main rank")
    inode = (tmp_path / "1" / "same").stat().st_ino
    names = "same", "tokenizer", "one", "old"

    def work(rank):
        DirectoryCopies(dist.group.WORLD, rank).update([tmp_path / str(rank) / name for name in names])
        dist.barrier()

    assert run_forked_ranks(3, tmp_path / "store", work) == [0, 0, 0]
    for rank in (1, 2):
        copy = tmp_path / str(rank)
        files = {str(path.relative_to(copy)): path.read_bytes() for path in copy.rglob("*") if path.is_file()}
        assert files == {"same": b"same", "tokenizer/long": bytes(range(250)) * 10, "tokenizer/empty": b""}
        assert not (copy / "old").exists()
    assert (tmp_path / "1" / "same").stat().st_ino == inode, "an equal file is not sent"


@pytest.mark.slow
@pytest.mark.parametrize("kind", SETTINGS)
def test_machines_with_directories_of_their_own_train_as_one_machine_does(tmp_path, kind):
    explodes = {"EXPLODES": "1"} if kind == "rollback" else {}
    alone = machine(tmp_path, "alone")
    train([alone], processes=2, settings=SETTINGS[kind], **explodes)
    machines = [machine(tmp_path, "first"), machine(tmp_path, "second")]
    train(machines, settings=[*SETTINGS[kind], "training.max_steps=5"], **explodes)
    main = train(machines, settings=SETTINGS[kind], **explodes)                 # resumes
    assert_same_training(alone / "run", main / "run")
    (copy,) = (own / "run" for own in machines if own != main)
    assert [path.name for path in list_checkpoints(copy)] == [path.name for path in list_checkpoints(main / "run")]
    assert same(final_weights(copy), final_weights(main / "run"))
    assert (kind == "rollback") == ("rolling back" in messages(machines))


@pytest.mark.slow
def test_machines_that_share_the_run_directory_make_no_copies(tmp_path):
    alone, first, second = (machine(tmp_path, name) for name in ("alone", "first", "second"))
    train([alone], processes=2)
    (tmp_path / "shared").mkdir()
    for own in (first, second):
        (own / "run").symlink_to(tmp_path / "shared")
    assert [process.wait(timeout=300) for process in start([first, second])] == [0, 0]
    assert_same_training(alone / "run", tmp_path / "shared")
    assert not (tmp_path / "shared" / run_start.COPY).exists()


@pytest.mark.slow
def test_only_the_machine_of_the_main_rank_needs_the_training_text(tmp_path):
    alone, first, second = (machine(tmp_path, name) for name in ("alone", "first", "second"))
    train([alone], processes=2)
    for language in ("en", "de"):
        (second / f"train.{language}").unlink()
    assert [process.wait(timeout=300) for process in start([first, second], static=True)] == [0, 0]
    assert_same_training(alone / "run", first / "run")


@pytest.mark.slow
def test_a_run_directory_that_only_some_processes_of_a_machine_see_is_refused(tmp_path):
    machines = [machine(tmp_path, "first"), machine(tmp_path, "second")]
    (tmp_path / "shared").mkdir()
    for own in machines:
        (own / "run").symlink_to(tmp_path / "shared")
    codes = [process.wait(timeout=120) for process in start(machines, processes=2, ELSEWHERE="3")]
    assert all(codes)
    assert "process 3 on " in messages(machines) and "but process 2 of the same machine does" in messages(machines)
    assert not any((own / "run-elsewhere").exists() for own in machines)
    assert os.listdir(tmp_path / "shared") in ([], [".lock"])


@pytest.mark.slow
@pytest.mark.parametrize("lost", [0, 1])
def test_the_loss_of_a_machine_ends_the_other_within_a_minute_and_changes_no_result(tmp_path, lost):
    alone, *machines = (machine(tmp_path, name) for name in ("alone", "first", "second"))
    train([alone], processes=2)
    started, ended, deadline = start(machines, DIES=str(lost)), [], time.monotonic() + 180
    while started:
        assert time.monotonic() < deadline, messages(machines)
        for process in [process for process in started if process.poll() is not None]:
            assert process.returncode != 0, messages(machines)
            started.remove(process)
            ended.append(time.monotonic())
        time.sleep(0.1)
    assert ended[1] - ended[0] < 60
    assert f"process {lost} of this training has ended" in messages(machines)
    assert_same_training(alone / "run", train(machines) / "run")


def test_a_recipe_in_its_own_run_directory_is_not_overwritten(tmp_path, capsys):
    write_corpus(tmp_path)
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    assert main(["train", str(tmp_path / "recipe.yaml"), "--run-dir", str(tmp_path)]) == 2
    assert "Name another directory, such as --run-dir" in capsys.readouterr().err
    assert (tmp_path / "recipe.yaml").read_text() == RECIPE and not (tmp_path / "tokenizer").exists()
    trainer.train(load_recipe(tmp_path / "recipe.yaml", ["training.max_steps=2"]), tmp_path / "run")
    assert main(["train", str(tmp_path / "run" / "recipe.yaml"), "--run-dir", str(tmp_path / "run")]) == 0
