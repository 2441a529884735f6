"""The processes of `torchrun` share the lines to translate; one of them reads, writes and prints."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from random_models import recipe_text, save_random_model, trained_tokenizers

from seq2seq.cli import main, translate
from seq2seq.translation.unfinished_output import journal_of

RECIPE = recipe_text(
    283, "d_model: 12, encoder_layers: 1, decoder_layers: 1, num_heads: 2, feed_forward: 7, max_positions: 31",
    "beam_size: 2, max_length_ratio: 1.0, max_length_offset: 3")
# Lines of different lengths, blank lines, line ends of both kinds, bytes that are no text, no newline at the end.
TEXT = b"".join(b"%d ein Hund%s\n" % (number, b" im Haus" * (number % 5)) + b"\ndie Katze\r\n\xff\xfe\n"
                for number in range(80)) + b"eine Katze"
# Small blocks. The rank in DIES dies in its third block, and that in FAILS has no memory there.
WORKER = """
import os, sys
from seq2seq.cli import main, translate
from seq2seq.translation.translator import Translator
translate.BLOCK_LINES = 20
blocks, original = 0, Translator.translate
def dying(self, *arguments, **options):
    global blocks
    blocks += 1
    if os.environ.get("DIES") == os.environ["RANK"] and blocks == 3:
        os.kill(os.getpid(), 9)
    if os.environ.get("FAILS") == os.environ["RANK"] and blocks == 3:
        raise MemoryError("no memory is left")
    return original(self, *arguments, **options)
Translator.translate = dying
code = main(sys.argv[1:])
with open(f"code{os.environ['RANK']}", "w") as file:
    file.write(str(code))
sys.exit(code)
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return save_random_model(tmp_path_factory.mktemp("models") / "model", RECIPE, trained_tokenizers(RECIPE), 1)


@pytest.fixture
def folder(tmp_path, model, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(translate, "BLOCK_LINES", 20)
    (tmp_path / "model").symlink_to(model)
    (tmp_path / "in").write_bytes(TEXT)
    (tmp_path / "worker.py").write_text(WORKER)
    return tmp_path


def start(ranks: int, *arguments: object, text: bytes | None = None, **environment: str) -> subprocess.Popen:
    """Start `translate` on some ranks; what they print is written to the files `printed` and `told`."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", "worker.py"]
    around = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[2]), **environment}
    for path in Path().glob("code?"):
        path.unlink()
    with open("in", "rb") as file, open("printed", "wb") as printed, open("told", "wb") as told:
        return subprocess.Popen([*command, "translate", "--device", "cpu", "--precision", "fp32", *map(str, arguments)],
                                stdin=file, stdout=printed, stderr=told, env=around)


def finish(process: subprocess.Popen) -> str:
    """Wait until all processes have ended, and return what they printed on standard error."""
    process.wait(timeout=120)
    return Path("told").read_text()


def codes() -> list[str]:
    return [path.read_text() for path in sorted(Path().glob("code?"))]


def alone(output: str, *arguments: object) -> bytes:
    assert main(["translate", "model", "in", *map(str, arguments), "-o", output, "--device", "cpu", "--precision",
                 "fp32", "--threads", "1"]) == 0
    return Path(output).read_bytes()


def rounded(output: bytes) -> bytes:
    """Round the scores to 6 digits. A retried line is in a batch with the retried lines of its rank, and in fp32 the
    last digits of a sum depend on the size of the batch."""
    return re.sub(rb"-?\d+\.\d{6,}", lambda number: b"%.6g" % float(number[0]), output)


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "options"), [
    (2, ()), (3, ("--format", "jsonl", "--n-best", "2")),
    (2, ("--sampling", "--seed", "3", "--format", "jsonl", "--n-best", "2"))], ids=str)
def test_any_number_of_ranks_writes_what_one_process_writes(folder, ranks, options):
    told = finish(start(ranks, "model", "in", *options, "-o", "out"))
    assert codes() == ["0"] * ranks, told
    assert told.count(f"translating in fp32, {ranks} workers") == 1
    assert rounded(Path("out").read_bytes()) == rounded(alone("whole", *options))
    assert not Path("out.part").exists() and not Path("out.part.json").exists()


@pytest.mark.slow
def test_only_the_main_rank_reads_standard_input_and_prints(folder):
    told = finish(start(2, "model"))
    assert Path("printed").read_bytes() == alone("whole"), told


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1, 2])
def test_a_killed_rank_ends_the_others_and_the_finished_lines_are_kept(folder, rank):
    process, began = start(3, "model", "in", "-o", "out", DIES=str(rank)), time.monotonic()
    told = finish(process)
    assert process.returncode != 0 and time.monotonic() - began < 60
    assert codes() == ["2", "2"], told                                          # not one that torchrun had to kill
    if rank:
        assert told.count(f"process {rank} on ") == 1, told
        assert f"was lost at lines {101 + 20 * (rank + 1)} to {120 + 20 * (rank + 1)}" in told
    else:
        assert "because process 0 has ended" in told
    assert "--resume to keep the finished lines" in told
    assert Path("out.part").read_bytes().count(b"\n") == 120
    assert "resuming after line 120" in finish(start(3, "model", "in", "-o", "out", "--resume"))
    assert Path("out").read_bytes() == alone("whole")


@pytest.mark.slow
def test_an_error_is_printed_once_and_ends_all_ranks(folder):
    told = finish(start(3, "model", "in", "-o", "out", FAILS="2"))
    assert codes() == ["2"] * 3 and told.count("Out of memory") == 1, told
    assert Path("out.part").read_bytes().count(b"\n") == 120


@pytest.mark.slow
@pytest.mark.parametrize(("arguments", "message"), [
    (("--beam-sise", "2"), "No such option"), (("--workers", "2"), "--workers has no effect with torchrun"),
    (("--n-best", "2"), "Add --format jsonl"), (("--beam-size", "2", "--n-best", "3", "--format", "jsonl"),
                                               "a beam of 2 cannot"),
    (("--engine", "ctranslate2"), "does not work with torchrun"), (("--device", "cuda:1"), "cuda:1")], ids=str)
def test_a_wrong_option_is_reported_once_and_ends_all_ranks(folder, arguments, message):
    told = finish(start(2, "model", "in", *arguments))
    assert told.count(message) == 1, told
    assert codes() == ["2", "2"]


@pytest.mark.slow
def test_a_line_that_cannot_be_translated_is_reported_once_with_its_number(folder):
    Path("phrases").write_text("".join("\n" if number != 148 else "Hund Hund Hund\n" for number in range(321)))
    told = finish(start(2, "model", "in", "--require", "phrases", "--forbid", "Hund", "-o", "out"))
    assert codes() == ["2", "2"] and told.count("line 149: ") == 1, told


@pytest.mark.slow
def test_a_signal_to_torchrun_stops_all_ranks_after_the_block(folder):
    Path("in").write_bytes(TEXT * 50)
    process = start(2, "model", "in", "-o", "out")
    deadline = time.monotonic() + 60
    while not (journal_of(Path("out.part")).exists() and Path("out.part").stat().st_size):
        assert time.monotonic() < deadline, Path("told").read_text()
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    told = finish(process)
    (lines,) = re.findall(r"([\d,]+) lines are finished. To resume:", told)
    assert codes() == ["143", "143"] and " model in -o out --resume" in told
    assert Path("out.part").read_bytes().count(b"\n") == int(lines.replace(",", ""))
