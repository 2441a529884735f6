"""The processes (ranks) of `torchrun` share the blocks of an input, and one of them joins the output."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
from random_models import recipe_text, save_random_model, trained_tokenizers

from seq2seq import console
from seq2seq.cli import main, translate
from seq2seq.errors import UserError
from seq2seq.translation.unfinished_output import PartReader, part_of, resumable

# Blocks of a text without a model


TEXT_BLOCKS = [[f"line {line} of block {number}" for line in range(number % 3 + 1)] for number in range(11)]
WHOLE = "".join(f"{line.upper()}\n" for block in TEXT_BLOCKS for line in block)


def write(path, rank, world_size, resume=False, die_at=None, inputs=None, blocks=TEXT_BLOCKS):
    """Write the lines in capitals, as one rank. die_at: number of the block of this rank in which it fails."""
    with resumable([], path, resume, rank, world_size) as output:
        output.begin(inputs or {"model": 1})
        for count, block in enumerate(output.pending(blocks)):
            if count == die_at:
                raise InterruptedError
            output.write("".join(f"{line.upper()}\n" for line in block), len(block))
        if output.output is not None:
            for data in output.joined():
                output.output.write(data)


def write_on_ranks(path, world_size, **options):
    threads = [threading.Thread(target=write, args=(path, rank, world_size), kwargs=options)
               for rank in range(world_size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)


def finished(path, world_size=13):
    """Return the number of finished blocks."""
    parts = [PartReader(part_of(path, rank)) for rank in range(world_size)]
    return sum(1 for part in parts for _ in iter(part.next_block, None))


@pytest.mark.parametrize("world_size", [
    2, *(pytest.param(size, marks=pytest.mark.slow) for size in (1, 3, 13))])
def test_any_number_of_ranks_writes_the_same_output(tmp_path, world_size):
    write_on_ranks(tmp_path / "out", world_size)
    assert (tmp_path / "out").read_text() == WHOLE
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def interrupt_ranks(path, world_size, **options):
    for rank in range(world_size):
        with pytest.raises(InterruptedError):
            write(path, rank, world_size, die_at=1, **options)


@pytest.mark.parametrize("world_size", [2, *(pytest.param(size, marks=pytest.mark.slow) for size in (1, 5))])
def test_an_output_is_resumed_by_as_many_ranks(tmp_path, world_size):
    interrupt_ranks(tmp_path / "out", world_size)
    assert finished(tmp_path / "out") == world_size
    write_on_ranks(tmp_path / "out", world_size, resume=True)
    assert (tmp_path / "out").read_text() == WHOLE
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 3), (3, 2)])
def test_another_number_of_ranks_is_refused_and_named(tmp_path, before, after):
    interrupt_ranks(tmp_path / "out", before)
    for rank in range(after):
        if rank < before:
            with pytest.raises(UserError, match=f"processes: {before} there, {after} here"):
                write(tmp_path / "out", rank, after, resume=True)
    assert finished(tmp_path / "out") == before


def test_a_part_that_was_cut_at_any_byte_is_resumed_or_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)                   # would take most of the time
    interrupt_ranks(tmp_path / "out", 1)
    part, = tmp_path.glob("out.part.*")
    contents = part.read_bytes()
    for length in range(len(contents)):
        part.write_bytes(contents[:length])
        if 0 < length <= contents.index(b"\n"):                                 # the inputs are not known
            with pytest.raises(UserError):
                write(tmp_path / "out", 0, 1, resume=True)
            assert part.read_bytes() == contents[:length]
        else:
            write(tmp_path / "out", 0, 1, resume=True)
            assert (tmp_path / "out").read_text() == WHOLE and not part.exists()


def test_a_rank_with_other_inputs_than_rank_0_is_noticed(tmp_path):
    with pytest.raises(InterruptedError):
        write(tmp_path / "out", 1, 2, die_at=1, inputs={"model": 2})
    with pytest.raises(UserError, match="out.part.1"):                          # before its first block
        write(tmp_path / "out", 0, 2)
    assert finished(tmp_path / "out") == 1
    (tmp_path / "out.part.1").unlink()
    with resumable([], tmp_path / "out", False, 0, 2) as output, pytest.raises(UserError, match="out.part.1"):
        output.begin({"model": 1})
        next(output.pending(TEXT_BLOCKS))
        with pytest.raises(InterruptedError):
            write(tmp_path / "out", 1, 2, die_at=1, inputs={"model": 2})
        output.write("", 1)                                                     # after it


def test_a_rank_whose_blocks_were_joined_while_it_loaded_its_model_has_nothing_to_do(tmp_path):
    with pytest.raises(InterruptedError):
        write(tmp_path / "out", 0, 2, die_at=5)
    write(tmp_path / "out", 1, 2)
    with resumable([], tmp_path / "out", True, 1, 2) as output:
        write(tmp_path / "out", 0, 2, resume=True)
        output.begin({"model": 1})
        assert list(output.pending(TEXT_BLOCKS)) == []
    assert (tmp_path / "out").read_text() == WHOLE
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_rank_without_blocks_does_not_wait_for_rank_0(tmp_path):
    write(tmp_path / "out", 12, 13)


# The command


@pytest.mark.parametrize("arguments", [
    ("-", "-o", "out"), ("in",), ("in", "-o", "out", "--workers", "2"), ("in", "-o", "out", "--device", "cuda:1"),
    ("in", "-o", "/dev/null")], ids=str)
def test_what_several_processes_cannot_do_is_refused(tmp_path, model, monkeypatch, arguments):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").write_text("ein Hund\n")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(["translate", str(model), *arguments]) == 2


def test_another_rank_names_itself_in_its_error_and_is_silent_otherwise(tmp_path, model, monkeypatch, capfd):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setattr(console, "FIRST_RANK_SECONDS", 0)
    assert main(["translate", str(model), "-o", str(tmp_path / "out")]) == 2
    assert capfd.readouterr().err.startswith("process 1 on ")


RECIPE = recipe_text(
    283, "d_model: 12, encoder_layers: 1, decoder_layers: 1, num_heads: 2, feed_forward: 7, max_positions: 31",
    "beam_size: 2, max_length_ratio: 1.0, max_length_offset: 3, safety_net: false")
# Lines of different lengths, blank lines, line ends of both kinds, bytes that are not UTF-8, no newline at the end.
TEXT = b"".join(b"%d ein Hund%s\n" % (number, b" im Haus" * (number % 5)) + b"\ndie Katze\r\n\xff\xfe\n"
                for number in range(750)) + b"eine Katze"
# Blocks of 100 lines. The rank in FAILS fails in its third block.
WORKER = """
import os, sys
from seq2seq.cli import main, translate
from seq2seq.translation.translator import Translator
translate.BLOCK_LINES = 100
count, original = 0, Translator.translate
def failing(self, *arguments, **options):
    global count
    count += 1
    if os.environ.get("FAILS") == os.environ["RANK"] and count == 3:
        raise MemoryError("no memory is left")
    return original(self, *arguments, **options)
Translator.translate = failing
with open(f"pid{os.environ['RANK']}", "w") as file:
    file.write(str(os.getpid()))
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return save_random_model(tmp_path_factory.mktemp("models") / "model", RECIPE, trained_tokenizers(RECIPE), 1)


@pytest.fixture
def folder(tmp_path, model, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(translate, "BLOCK_LINES", 100)
    (tmp_path / "model").symlink_to(model)
    (tmp_path / "in").write_bytes(TEXT)
    (tmp_path / "worker.py").write_text(WORKER)
    return tmp_path


def start(ranks: int, *arguments: object, **environment: str) -> subprocess.Popen:
    """Start `translate` on some ranks. What they print is written to the file `told`."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", "worker.py",
               "translate", "model", "in", "-o", "out", "--device", "cpu", "--precision", "fp32"]
    around = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    with open("told", "wb") as told:
        return subprocess.Popen([*command, *map(str, arguments)], stderr=told, env=around)


def finish(process: subprocess.Popen) -> str:
    """Wait until all processes have ended, and return what they printed on standard error."""
    process.wait(timeout=300)
    return Path("told").read_text()


def alone(output: str, *arguments: object) -> bytes:
    assert main(["translate", "model", "in", *map(str, arguments), "-o", output, "--device", "cpu", "--precision",
                 "fp32"]) == 0
    return Path(output).read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "options"), [
    (2, ()), (3, ("--sampling", "--seed", "3", "--format", "jsonl", "--n-best", "2"))], ids=str)
def test_torchrun_writes_what_one_process_writes(folder, ranks, options):
    process = start(ranks, *options)
    told = finish(process)
    assert process.returncode == 0 and told.count("translating in fp32") == 1, told
    assert Path("out").read_bytes() == alone("whole", *options)
    assert not list(Path().glob("out.part*"))


@pytest.mark.slow
def test_a_translation_that_is_killed_again_and_again_loses_nothing(folder):
    whole, generator = alone("whole"), random.Random(7)
    for _ in range(5):
        process = start(3, "--resume")
        before, deadline = finished(Path("out")), time.monotonic() + 120
        while process.poll() is None and finished(Path("out")) <= before and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(generator.random())
        process.kill()
        for path in Path().glob("pid?"):                                        # torchrun gives each rank its session
            with suppress(ProcessLookupError):
                os.kill(int(path.read_text()), signal.SIGKILL)
            path.unlink()
        process.wait()
    told = finish(start(3, "--resume"))
    assert Path("out").read_bytes() == whole, told
    assert not list(Path().glob("out.part*"))


@pytest.mark.slow
@pytest.mark.parametrize("rank", ["0", "1"])
def test_an_error_in_one_rank_ends_all_and_the_finished_blocks_are_kept(folder, rank):
    process = start(2, FAILS=rank)
    told = finish(process)
    assert process.returncode and told.count("Out of memory") == 1, told
    assert finished(Path("out")) >= 2
    assert finish(start(2, "--resume")).count("resuming") == 1
    assert Path("out").read_bytes() == alone("whole")


@pytest.mark.slow
def test_a_signal_to_torchrun_stops_all_ranks_after_the_block(folder):
    process, deadline = start(2), time.monotonic() + 120
    while not finished(Path("out"), 1):                                         # rank 0, which tells how to resume
        assert time.monotonic() < deadline, Path("told").read_text()
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    told = finish(process)
    assert told.count("To resume:\n  torchrun [same options] -m ") == 1, told
    finish(start(2, "--resume"))
    assert Path("out").read_bytes() == alone("whole")
