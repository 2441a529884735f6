"""Hostile input of many kinds ends with a result or a clear error, quickly, within 2 GB, and changes no other file.

SEQ2SEQ_HOSTILE_INPUTS: number of inputs of the slow tests over all kinds; 1,000 if it is not set.
"""

import io
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import hostile
import pytest
from toy import RECIPE, write_corpus

from seq2seq.cli import main
from seq2seq.data.parallel_text import zip_parallel
from seq2seq.errors import CorpusError, RecipeError, TokenizerError
from seq2seq.recipe import load_recipe
from seq2seq.tokenizers.tokenizer import Tokenizers
from seq2seq.translation.text_io import Input

HARNESS = Path(hostile.__file__)
INPUTS_PER_PROCESS = 120
"""Number of inputs per process; several, so that state which one input leaves in the process shows in the next."""


@pytest.fixture(scope="module")
def valid_files(tmp_path_factory):
    for package in ("transformers", "ctranslate2"):                             # of imports and exports
        pytest.importorskip(package)
    directory = tmp_path_factory.mktemp("hostile") / "valid_files"
    hostile.make_valid_files(directory)
    return directory


def outcomes(valid_files, directory, kind, seed, count):
    """Return the results of the harness; an input that ended its process counts as a failure."""
    directory.mkdir()
    done = subprocess.run([sys.executable, HARNESS, valid_files, directory, kind, str(seed), str(count)],
                          capture_output=True, text=True, timeout=5 * hostile.MAX_SECONDS * (count + 5))
    if done.returncode:
        named = directory / "input.json"
        return {"failures": [f"ended by {done.returncode}", named.read_text() if named.exists() else "",
                             done.stderr[-2000:]]}
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", ["/dev/zero", "/dev/urandom"])
def test_an_endless_device_is_refused_as_a_recipe(name):
    with pytest.raises(RecipeError, match=f"^{name} is not a recipe: it has more than 4,000,000 bytes"):
        load_recipe(name)


def test_a_recipe_can_come_through_a_pipe_and_from_windows(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    text = RECIPE.replace("\n", "\r\n").encode()
    writer = threading.Thread(target=(tmp_path / "pipe").write_bytes, args=(text,))
    writer.start()
    assert load_recipe(tmp_path / "pipe", check_files=False).name == "tiny"
    writer.join()


def test_a_pipe_in_place_of_a_tokenizer_is_named_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "tokenizer.model")
    with pytest.raises(TokenizerError, match="tokenizer.model: the tokenizer cannot be read: it is not a regular file"):
        Tokenizers.load(tmp_path)


@pytest.mark.parametrize("command", [
    ["translate", "{}"], ["train", "recipe.yaml", "--run-dir", "{}"],
    *(pytest.param(command, marks=pytest.mark.slow) for command in (
        ["check", "{}"], ["check", "recipe.yaml", "--run-dir", "{}"], ["average", "{}", "--output", "x"]))])
def test_a_name_too_long_for_the_file_system_is_the_users_error(tmp_path, monkeypatch, capfd, command):
    monkeypatch.chdir(tmp_path)
    write_corpus(tmp_path)
    Path("recipe.yaml").write_text(RECIPE)
    assert main([part.format("x" * 300) for part in command]) == 2
    assert "File name too long" in capfd.readouterr().err


class Endless(io.RawIOBase):
    def readable(self):
        return True

    def readline(self, size=-1):
        return b"dog\n"


def test_a_text_that_never_ends_beside_a_short_one_is_not_counted_to_its_end():
    few, endless = Input(io.BytesIO(b"dog\n" * 3), "few"), Input(Endless(), "endless")
    with pytest.raises(CorpusError, match="^few: 3 lines; endless: at least 100,004 lines"):
        list(zip_parallel(["few", "endless"], few, endless))
    few, endless = Input(io.BytesIO(b"dog\n" * 3), "few"), Input(Endless(), "endless")
    with pytest.raises(CorpusError, match="^endless: at least 100,004 lines; few: 3 lines"):
        list(zip_parallel(["endless", "few"], endless, few))


@pytest.mark.slow
def test_hostile_input_ends_with_a_result_or_a_clear_error(valid_files, tmp_path):
    found = outcomes(valid_files, tmp_path / "directory", "all", 0, 3 * len(hostile.KINDS))
    assert not found["failures"] and found["inputs"] == 3 * len(hostile.KINDS)


@pytest.mark.slow
@pytest.mark.parametrize("kind", hostile.KINDS)
def test_many_hostile_inputs_end_with_a_result_or_a_clear_error(valid_files, tmp_path, kind):
    remaining = -(-int(os.environ.get("SEQ2SEQ_HOSTILE_INPUTS", "1000")) // len(hostile.KINDS))
    failures, seed = [], 0
    while remaining > 0:
        seed += 1
        found = outcomes(valid_files, tmp_path / str(seed), kind, seed, min(remaining, INPUTS_PER_PROCESS))
        failures += found["failures"]
        print(f"{kind} {seed}: {({key: value for key, value in found.items() if key != 'failures'})}")
        remaining -= INPUTS_PER_PROCESS
    assert not failures, json.dumps(failures, indent=1)[:20_000]
