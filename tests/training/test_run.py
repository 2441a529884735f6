"""Distributed training on several machines, which share the run directory. Each `torchrun` stands for a machine."""

import os
import socket
import subprocess
import sys
import time

import pytest
from toy import RECIPE, write_corpus
from trainings import EXPLODING, final_weights, logged, same

from seq2seq.cli import main
from seq2seq.errors import UserError
from seq2seq.recipe import load_recipe
from seq2seq.storage.checkpoints import best_bundle, load_bundle
from seq2seq.training import run as run_module
from seq2seq.training.distributed import ProcessGroup

# The working directory of a `torchrun` contains the recipe and the text.
WORKER = EXPLODING + """
import sys
from seq2seq.cli import main
run.DIRECTORY_SECONDS = 1
if os.environ.get("RANK") == os.environ.get("ELSEWHERE"):
    sys.argv[-1] += "-elsewhere"
if os.environ.get("RANK") == os.environ.get("DIES"):
    update = loop.TrainingLoop.update
    def dying(self, *batch):
        if self.state.step == 7:
            os.kill(os.getppid(), 9)                                            # the agent, torchrun
            os.kill(os.getpid(), 9)
        update(self, *batch)
    loop.TrainingLoop.update = dying
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
        around = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
        with (own / "errors").open("a") as errors:
            started.append(subprocess.Popen(command, cwd=own, stdout=errors, stderr=errors, env=around,
                                            start_new_session=True))
    return started


def train(machines, *arguments, **options):
    """Train on the machines to the end."""
    codes = [process.wait(timeout=300) for process in start(machines, *arguments, **options)]
    assert codes == [0] * len(machines), messages(machines)


def sharing(folder, *names):
    """Make machines whose run directory is the directory `shared`."""
    (folder / "shared").mkdir()
    machines = [machine(folder, name) for name in names]
    for own in machines:
        (own / "run").symlink_to(folder / "shared")
    return machines


def messages(machines):
    return "\n".join((own / "errors").read_text() for own in machines)


def assert_same_training(first, second):
    assert same(final_weights(first), final_weights(second))
    assert same(load_bundle(best_bundle(first)).weights, load_bundle(best_bundle(second)).weights)
    assert load_bundle(best_bundle(first)).metadata["test"] == load_bundle(best_bundle(second)).metadata["test"]
    assert logged(first) == logged(second)


class Ranks(ProcessGroup):
    """Process group in which every other rank gathers the given results, one after another."""

    def __init__(self, rank, *others):
        super().__init__(rank, len(others[0]) + 1)
        self.others = list(others)

    def gather(self, items):
        others = self.others.pop(0)
        return [*others[:self.rank], *items, *others[self.rank:]]


@pytest.mark.parametrize(("contents", "sees", "crc32", "fits"), [
    ("nonce", True, 7, True), ("another nonce", True, 7, False), (None, True, 7, False), ("nonce", False, 7, False),
    ("nonce", True, 8, False)])
def test_ranks_see_the_same_run_directory_and_the_same_held_out_text(tmp_path, monkeypatch, contents, sees, crc32,
                                                                     fits):
    monkeypatch.setattr(run_module, "DIRECTORY_SECONDS", 0)
    if contents:
        (tmp_path / ".holder").write_text(contents)
    group = Ranks(1, ["nonce", ""], [(True, 7), (sees, crc32)])
    if fits:
        run_module.require_same_files(tmp_path, "", 7, group)
    else:
        with pytest.raises(UserError):
            run_module.require_same_files(tmp_path, "", 7, group)


@pytest.mark.slow
@pytest.mark.parametrize("kind", SETTINGS)
def test_machines_that_share_the_run_directory_train_as_one_machine_does(tmp_path, kind):
    explodes = {"EXPLODES": "1"} if kind == "rollback" else {}
    alone = machine(tmp_path, "alone")
    train([alone], processes=2, settings=SETTINGS[kind], **explodes)
    machines = sharing(tmp_path, "first", "second")
    train(machines, settings=[*SETTINGS[kind], "training.max_steps=5"], static=True, **explodes)
    train(machines, settings=SETTINGS[kind], static=True, **explodes)           # resumes
    assert_same_training(alone / "run", tmp_path / "shared")
    assert (kind == "rollback") == ("rolling back" in messages(machines))


@pytest.mark.slow
def test_only_the_machine_of_the_main_rank_needs_the_training_text(tmp_path):
    alone = machine(tmp_path, "alone")
    train([alone], processes=2)
    first, second = sharing(tmp_path, "first", "second")
    for language in ("en", "de"):
        (second / f"train.{language}").unlink()
    train([first, second], static=True)
    assert_same_training(alone / "run", tmp_path / "shared")


@pytest.mark.slow
def test_a_run_directory_that_a_process_does_not_see_is_refused(tmp_path):
    machines = sharing(tmp_path, "first", "second")
    codes = [process.wait(timeout=120) for process in start(machines, processes=2, ELSEWHERE="3")]
    assert all(codes)
    assert "process 3 on " in messages(machines)
    assert not any((own / "run-elsewhere").exists() for own in machines)
    assert set(os.listdir(tmp_path / "shared")) == {".lock", ".holder"}


@pytest.mark.slow
@pytest.mark.parametrize("lost", [0, 1])
def test_the_loss_of_a_machine_ends_the_other_within_a_minute_and_changes_no_result(tmp_path, lost):
    alone = machine(tmp_path, "alone")
    train([alone], processes=2)
    machines = sharing(tmp_path, "first", "second")
    started, ended, deadline = start(machines, static=True, DIES=str(lost)), [], time.monotonic() + 180
    while started:
        assert time.monotonic() < deadline, messages(machines)
        for process in [process for process in started if process.poll() is not None]:
            assert process.returncode != 0, messages(machines)
            started.remove(process)
            ended.append(time.monotonic())
        time.sleep(0.1)
    assert ended[1] - ended[0] < 60
    assert f"process {lost} on {socket.gethostname()} has ended" in messages(machines)
    train(machines, static=True)
    assert_same_training(alone / "run", tmp_path / "shared")


def test_a_recipe_in_its_own_run_directory_is_not_overwritten(tmp_path, capsys):
    write_corpus(tmp_path)
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    assert main(["train", str(tmp_path / "recipe.yaml"), "--run-dir", str(tmp_path)]) == 2
    assert "--run-dir" in capsys.readouterr().err
    assert (tmp_path / "recipe.yaml").read_text() == RECIPE and not (tmp_path / "tokenizer").exists()
    run_module.train(load_recipe(tmp_path / "recipe.yaml", ["training.max_steps=2"]), tmp_path / "run")
    assert main(["train", str(tmp_path / "run" / "recipe.yaml"), "--run-dir", str(tmp_path / "run")]) == 0
