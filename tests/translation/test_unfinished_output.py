"""An unfinished output is resumed after any kind of interruption and equals that of an uninterrupted translation."""

import errno
import fcntl
import gzip
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from random_models import recipe_text, save_random_model, trained_tokenizers

from seq2seq.cli import main
from seq2seq.cli import translate as command
from seq2seq.errors import CorpusError
from seq2seq.tokenizers.source import Source
from seq2seq.translation import text_io, unfinished_output
from seq2seq.translation.sources import equal_shares, growing_blocks
from seq2seq.translation.translator import Translator
from seq2seq.translation.unfinished_output import PartReader
from seq2seq.translation.worker_processes import TranslatorPool

RECIPE = recipe_text(
    283, "d_model: 12, encoder_layers: 1, decoder_layers: 1, num_heads: 2, feed_forward: 7, max_positions: 31",
    "beam_size: 2, max_length_ratio: 1.0, max_length_offset: 3, safety_net: false")
BLOCK = 7
# 5 blocks and a bit; line ends of both kinds, blank lines, bytes that are no text, lines too long, no newline at last.
TEXT = b"".join(b"%d ein Hund\n\ndie Katze\r\n\xff\xfe\n%s\n" % (number, b"der Hund im Haus. " * number)
                for number in range(7)) + b"eine Katze"


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Path:
    """Directory with the bundles `model` and `other`."""
    tokenizers = trained_tokenizers(RECIPE)
    place = tmp_path_factory.mktemp("models")
    for seed, name in enumerate(["model", "other"]):
        save_random_model(place / name, RECIPE, tokenizers, seed)
    return place


@pytest.fixture
def directory(tmp_path, models, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "BLOCK_LINES", BLOCK)
    for name in ("model", "other"):
        (tmp_path / name).symlink_to(models / name)
    (tmp_path / "in").write_bytes(TEXT)
    (tmp_path / "in.gz").write_bytes(gzip.compress(TEXT))
    (tmp_path / "prefixes").write_text("".join(f"{'the' if number % 3 else ''}\n" for number in range(36)))
    return tmp_path


def translate(*arguments: object) -> int:
    return main(["translate", *map(str, arguments), "--device", "cpu"])


@pytest.fixture(scope="module")
def whole(models) -> bytes:
    """Translation of TEXT without interruption."""
    (models / "in").write_bytes(TEXT)
    assert translate(models / "model", models / "in", "-o", models / "out") == 0
    return (models / "out").read_bytes()


@pytest.fixture
def interrupted(directory, monkeypatch):
    """Function that runs a command that fails in a block, counted from 1."""

    def interrupted(block: int, *arguments: object) -> None:
        count = 0

        def failing(real):
            def translate(self, *arguments, **options):
                nonlocal count
                count += 1
                if count == block:
                    raise CorpusError("the lights went out")
                return real(self, *arguments, **options)
            return translate

        with monkeypatch.context() as patch:
            # Workers that are threads call Translator.translate, too, which must not count twice.
            called = TranslatorPool if "--workers" in arguments else Translator
            patch.setattr(called, "translate", failing(called.translate))
            assert translate(*arguments) == 2

    return interrupted


def finished(directory: Path) -> list[bytes]:
    part = PartReader(directory / "out.part.0")
    return [output for _, output in iter(part.next_block, None)]


def left(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir() if path.name.startswith("out"))


@pytest.mark.parametrize("options", [
    ("in", "--sampling", "--format", "jsonl", "--n-best", 2), *(
        pytest.param(options, marks=pytest.mark.slow) for options in (
            ("in",), ("in.gz", "--format", "jsonl"), ("in", "--prefix-file", "prefixes"),
            ("in", "--format", "jsonl", "--workers", 2)))], ids=str)
def test_what_was_interrupted_is_finished_to_the_byte(directory, interrupted, options):
    # By as many workers: in bf16, roundings follow the batches, and these the workers.
    assert translate("model", *options, "--output", "whole") == 0
    interrupted(2, "model", *options, "-o", "out")
    assert left(directory) == ["out.part.0"]
    done = finished(directory)
    assert [block.count(b"\n") for block in done] == [(2 if "--workers" in options else 1) * BLOCK]
    if "--workers" not in options:                                              # they take long to start
        interrupted(2, "model", *options, "-o", "out", "--resume")              # and once more
        assert finished(directory)[:1] == done and len(finished(directory)) == 2
        assert left(directory) == ["out.part.0"]
    assert translate("model", *options, "-o", "out", "--resume") == 0
    assert (directory / "out").read_bytes() == (directory / "whole").read_bytes()
    assert left(directory) == ["out"]


@pytest.mark.parametrize("changed", [
    b"another line" + TEXT[TEXT.index(b"\n"):], b"\n".join(TEXT.split(b"\n")[:2 * BLOCK]), TEXT + b"\nund noch eine\n"])
def test_finished_blocks_of_another_input_are_refused_and_kept(directory, interrupted, whole, capfd, changed):
    interrupted(4, "model", "in", "-o", "out")
    before = finished(directory)
    (directory / "in").write_bytes(changed)
    assert translate("model", "in", "-o", "out", "--resume") == 2
    assert "texts: " in capfd.readouterr().err and finished(directory) == before
    (directory / "in").write_bytes(TEXT)
    assert translate("model", "in", "-o", "out", "--resume") == 0
    assert (directory / "out").read_bytes() == whole


def test_finished_blocks_of_another_size_are_refused_and_kept(directory, interrupted, monkeypatch):
    interrupted(3, "model", "in", "-o", "out")
    before = finished(directory)
    monkeypatch.setattr(command, "BLOCK_LINES", BLOCK + 1)
    assert translate("model", "in", "-o", "out", "--resume") == 2
    assert finished(directory) == before


@pytest.mark.parametrize("arguments", [
    ("other", "in"), ("model", "in", "--beam-size", 1), *(
        pytest.param(arguments, marks=pytest.mark.slow) for arguments in (
            ("model", "in", "--safety-net"), ("model", "in", "--format", "jsonl"),
            ("model", "in", "--threads", 1)))], ids=str)
def test_blocks_with_other_inputs_are_refused_and_kept(directory, interrupted, arguments):
    interrupted(3, "model", "in", "-o", "out")
    before = finished(directory)
    assert translate(*arguments, "-o", "out", "--resume") == 2
    assert finished(directory) == before


@pytest.mark.parametrize("first", [b"[", b"", b"[]", b"{}", json.dumps({unfinished_output.INPUTS: [7]}).encode()])
@pytest.mark.parametrize("option", [(), ("--resume",)])
def test_a_part_whose_inputs_are_damaged_is_refused_and_kept(directory, interrupted, first, option):
    interrupted(3, "model", "in", "-o", "out")
    part = directory / "out.part.0"
    part.write_bytes(first + part.read_bytes()[part.read_bytes().index(b"\n"):])
    before = part.read_bytes()
    assert translate("model", "in", "-o", "out", *option) == 2
    assert part.read_bytes() == before


def test_an_interrupted_join_is_repeated(directory, interrupted, whole):
    interrupted(3, "model", "in", "-o", "out")
    (directory / "out.part").write_bytes(b"the first li")
    assert translate("model", "in", "-o", "out", "--resume") == 0
    assert (directory / "out").read_bytes() == whole
    assert left(directory) == ["out"]


def test_without_resume_what_was_done_is_not_overwritten(directory, interrupted):
    interrupted(2, "model", "in", "-o", "out")
    before = finished(directory)
    assert translate("model", "in", "-o", "out") == 2
    assert finished(directory) == before


@pytest.mark.parametrize("name", ["out.part", "out.part.0"])
def test_nothing_is_written_through_a_link(directory, name):
    (directory / "elsewhere").write_text("mine")
    (directory / name).symlink_to("elsewhere")
    assert translate("model", "in", "-o", "out") == 2
    assert (directory / name).is_symlink() and not (directory / "out").exists()
    assert (directory / "elsewhere").read_text() == "mine"


@pytest.mark.parametrize("mine", ["mine", '{"mine": 1}\n', None])
def test_what_a_user_has_in_place_of_a_part_is_kept_and_refused(directory, mine):
    part = directory / "out.part.0"
    part.mkdir() if mine is None else part.write_text(mine)
    for model in ("model", "nowhere"):
        for option in ((), ("--resume",)):
            assert translate(model, "in", "-o", "out", *option) == 2
    assert part.is_dir() if mine is None else part.read_text() == mine


@pytest.mark.parametrize(("damage", "intact"), [
    (lambda contents: contents[:-3], 2), (lambda contents: contents + bytes(5_000), 3),
    (lambda contents: contents[:-9] + bytes(9), 2), (lambda contents: contents + b'{"bytes": 1000000000000}\n', 3),
    (lambda contents: contents.replace(b"\n", b"\n\0", 1), 0)], ids=["cut", "longer", "zeros", "too long", "no block"])
def test_blocks_are_finished_up_to_the_first_that_is_damaged(directory, interrupted, whole, damage, intact):
    interrupted(4, "model", "in", "-o", "out")
    part = directory / "out.part.0"
    part.write_bytes(damage(part.read_bytes()))
    assert len(finished(directory)) == intact
    interrupted(2, "model", "in", "-o", "out", "--resume")
    assert len(finished(directory)) == intact + 1
    assert translate("model", "in", "-o", "out", "--resume") == 0
    assert (directory / "out").read_bytes() == whole and left(directory) == ["out"]


@pytest.mark.parametrize("text", [b"", b"\n", b"ein Hund", b" \r\n\t\n  ein Hund \r", b"\r" * 3 + b"\n" * 19])
@pytest.mark.parametrize("format", ["text", "jsonl"])
def test_a_file_has_the_bytes_of_standard_output(directory, capfdbinary, text, format):
    (directory / "in").write_bytes(text)
    assert translate("model", "in", "--format", format) == 0
    assert translate("model", "in", "--format", format, "-o", "out") == 0
    assert (directory / "out").read_bytes() == capfdbinary.readouterr().out
    assert left(directory) == ["out"]


class FullDisk:
    """File in which a write, counted from 1 in all files, writes half of the data and fails."""

    count = fails = 0

    def __init__(self, file):
        self.file = file

    def __getattr__(self, name):
        return getattr(self.file, name)

    def write(self, data):
        FullDisk.count += 1
        if FullDisk.count == FullDisk.fails:
            self.file.write(data[:len(data) // 2])
            self.file.flush()
            raise OSError(errno.ENOSPC, "No space left on device")
        return self.file.write(data)


@pytest.mark.slow
@pytest.mark.parametrize("operation", ["write", "fsync", "replace"])
def test_wherever_an_operation_fails_the_output_is_the_old_or_the_new_one(directory, monkeypatch, operation):
    """The n-th call fails, then the next after it, and so on, until the command succeeds."""
    (directory / "in").write_bytes(b"\n".join(TEXT.split(b"\n")[:2 * BLOCK + 1]))
    assert translate("model", "in", "-o", "whole") == 0
    whole, failures = (directory / "whole").read_bytes(), 0
    for fails in range(1, 20):
        (directory / "out").write_bytes(b"old")
        with monkeypatch.context() as patch:
            if operation == "write":
                patch.setattr(FullDisk, "count", 0)
                patch.setattr(FullDisk, "fails", fails)
                real = text_io.Output.__init__
                patch.setattr(text_io.Output, "__init__", lambda self, file, *others, real=real: real(
                    self, FullDisk(file), *others))
            else:
                real, count = getattr(os, operation), iter(range(1, 100))

                def failing(*arguments, real=real, count=count, fails=fails):
                    if next(count) == fails:
                        raise OSError(errno.ENOSPC, "No space left on device")
                    return real(*arguments)

                patch.setattr(os, operation, failing)
            code = translate("model", "in", "-o", "out", "--resume")
        failures += code
        assert (directory / "out").read_bytes() == (b"old" if code else whole)
        assert translate("model", "in", "-o", "out", "--resume") == 0
        assert (directory / "out").read_bytes() == whole and left(directory) == ["out"]
        if not code:
            break
    assert failures == 2 * {"write": 6, "fsync": 5, "replace": 1}[operation]


def test_where_there_is_nothing_to_go_on_with_it_begins(directory, interrupted):
    interrupted(1, "model", "in", "-o", "out", "--resume")                      # before anything was written
    assert left(directory) == []
    assert translate("model", "in", "-o", "out", "--resume") == 0
    assert left(directory) == ["out"]


def test_no_output_replaces_a_text_that_is_read(directory, capfd):
    (directory / "other_name").symlink_to("in")
    (directory / "page.html").write_text("<p>ein Hund</p>")
    before = (directory / "in").read_bytes()
    for arguments in (["in", "--output", "in"], ["in", "--output", "other_name"], ["other_name", "--output", "in"],
                      ["in", "--prefix-file", "prefixes", "--output", "prefixes"],
                      ["page.html", "--output", "page.html"]):
        assert translate("model", *arguments) == 2
        assert "is also an input" in capfd.readouterr().err
    assert (directory / "in").read_bytes() == before and (directory / "page.html").read_text() == "<p>ein Hund</p>"
    assert not list(directory.glob("*.part*"))


def test_resume_needs_files(directory):
    for arguments in (["in"], ["in", "-o", "/dev/null"], ["-o", "out"],
                      ["in", "-o", "out", "--prefix-file", "/dev/null"]):
        assert translate("model", *arguments, "--resume") == 2


def test_an_output_that_was_deleted_while_it_was_written_is_no_output(directory, monkeypatch):
    real = Translator.translate

    def deleting(self, *arguments, **options):
        (directory / "out.part.0").unlink(missing_ok=True)
        return real(self, *arguments, **options)

    monkeypatch.setattr(Translator, "translate", deleting)
    assert translate("model", "in", "-o", "out") == 2
    assert not (directory / "out").exists()


@pytest.mark.parametrize("name", ["out.part", "out.part.0"])
def test_one_output_is_written_by_one_process(directory, capfd, name):
    with (directory / name).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert translate("model", "in", "-o", "out") == 2
    assert "another process is writing" in capfd.readouterr().err


@pytest.mark.parametrize(("largest", "sizes"), [
    (7, [7, 7, 7]), (1024, [1024, 1024, 1024]), (5000, [1024, 4096, 5000]), (30_000, [1024, 4096, 16_384])])
def test_blocks_grow_fourfold_up_to_the_largest_size(largest, sizes):
    blocks = list(growing_blocks(range(30_000), largest))
    assert list(map(len, blocks[:3])) == sizes
    assert [line for block in blocks for line in block] == list(range(30_000))


# Signals, to a process of its own


DRIVER = """\
import os, signal, sys
from seq2seq.cli import main
from seq2seq.cli import translate as command
from seq2seq.translation import text_io
from seq2seq.translation.translator import Translator
command.BLOCK_LINES = 7
translate, write, blocks = Translator.translate, text_io.Output.write, 0
sent = [getattr(signal, name) for name in os.environ["SENT"].split()]

def translating(self, *arguments, **options):
    global blocks
    blocks += 1
    for number in sent if blocks == 3 else ():
        os.kill(os.getpid(), number)
    return translate(self, *arguments, **options)

def writing(self, data):
    if blocks == 3 and not sent:                                                # killed in the middle of writing
        write(self, data[:len(data) // 2])
        os.kill(os.getpid(), signal.SIGKILL)
    write(self, data)

Translator.translate, text_io.Output.write = translating, writing
sys.exit(main())
"""


def start(directory: Path, sent: str, *arguments: str, **options) -> subprocess.Popen:
    environment = os.environ | {"SENT": sent}
    (directory / "driver.py").write_text(textwrap.dedent(DRIVER))
    return subprocess.Popen([sys.executable, "driver.py", "translate", "model", *arguments, "--device", "cpu"],
                            env=environment, stderr=subprocess.PIPE, **options)


@pytest.mark.parametrize(("sent", "code", "lines"), [
    ("SIGTERM", 143, 21), pytest.param("SIGINT SIGTERM", 143, 14, marks=pytest.mark.slow),
    pytest.param("", -signal.SIGKILL, 14, marks=pytest.mark.slow)])
def test_a_signal_ends_it_and_resume_goes_on(directory, sent, code, lines):
    assert translate("model", "in", "--format", "jsonl", "-o", "whole") == 0
    process = start(directory, sent, "in", "--format", "jsonl", "-o", "out")
    err = process.communicate()[1].decode()
    assert process.returncode == code, err
    assert b"".join(finished(directory)).count(b"\n") == lines
    if lines == 21:
        assert "finishing this block of lines; press Ctrl-C again to exit at once" in err
        assert "translate model in --format jsonl -o out --device cpu --resume\n" in err
    assert "Traceback" not in err
    assert translate("model", "in", "--format", "jsonl", "-o", "out", "--resume") == 0
    assert (directory / "out").read_bytes() == (directory / "whole").read_bytes()


@pytest.mark.slow
def test_a_process_that_waits_for_lines_stops_at_once_and_keeps_what_it_has(directory):
    lines, part = TEXT.split(b"\n"), directory / "out.part"
    process = start(directory, "", "-o", "out", stdin=subprocess.PIPE)
    process.stdin.write(b"\n".join(lines[:BLOCK + 3]) + b"\n")
    process.stdin.flush()
    for _ in range(6000):
        if process.poll() is not None or part.exists() and part.stat().st_size:
            break
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    process.wait(60)
    err = process.stderr.read().decode()
    assert process.returncode == 130, err
    assert part.read_bytes().count(b"\n") == BLOCK and left(directory) == ["out.part"]


def test_a_damaged_gz_is_named(tmp_path):
    from seq2seq.translation.text_io import reading

    path = tmp_path / "text.gz"
    path.write_bytes(gzip.compress(b"")[:10] + b"\xff" * 9)                     # a header, and blocks of no known kind
    with reading(path) as lines, pytest.raises(CorpusError, match="text.gz cannot be read to its end: .*invalid"):
        list(lines)


def test_shares_have_equal_work_and_a_single_share_is_the_whole_text_in_its_order():
    requests = [Source(text) for text in ("three", "a", "bb", "four!!")]
    assert equal_shares(requests, 1) == [[0, 1, 2, 3]]
    assert equal_shares(requests, 2) == [[0, 1], [2, 3]]
