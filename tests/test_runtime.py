"""The packages of runtime.txt suffice for translation by the native engine: it imports no other package."""

import json
import re
import subprocess
import sys
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from random_models import recipe_text, save_random_model, trained_tokenizers

from seq2seq.devices import cpu_flags
from seq2seq.inference.kernel_library import usable_libraries

ROOT = Path(__file__).parents[1]
SIZES = "d_model: 12, encoder_layers: 1, decoder_layers: 2, num_heads: 2, feed_forward: 7, max_positions: 61"
RECIPE = recipe_text(283, SIZES, "beam_size: 2, max_length: 9")
# Packages that modules on the road import.
ROOTS = ("sentencepiece", "sacrebleu", "safetensors", "numpy", "ruamel.yaml", "pydantic", "typer", "rich",
         "markdown-it-py", "mdit-py-plugins", "babel", "starlette", "uvicorn", "h11", "python-multipart")
# Runs commands in a process in which the packages cannot be imported, and prints the exit code and output of each.
PROGRAM = """\
import contextlib, io, json, sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name in ("torch", "datasets", "pyarrow", "tensorboard", "pandas", "filelock"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Refuse())
from seq2seq.cli import main

for command in json.load(sys.stdin):
    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(command)
    print(json.dumps([code, out.buffer.getvalue().decode(), err.getvalue()]))

from pathlib import Path
from seq2seq.serve.models import Group, Models
models = Models.load([Path("model")])
print(json.dumps([models.describe(), [one.text for one, *_ in models.translate(Group("de", "en"), ["ein Hund"] * 2)]]))
"""
TRANSLATE = ["translate", "model", "--device", "auto", "--precision", "int8"]
LINES = [*TRANSLATE, "text.de"]
COMMANDS = {
    "plain": LINES,
    "fp32": ["translate", "model", "text.de", "--precision", "fp32"],
    "evaluate": ["evaluate", "model", "--source", "text.de", "--reference", "text.en", "--precision", "fp32"],
    "long": [*TRANSLATE, "long.de"],
    "n-best": [*LINES, "--n-best", "2", "--format", "jsonl"],
    "word confidence": [*LINES, "--word-confidence", "--format", "jsonl"],
    "a prefix": [*LINES, "--prefix-file", "prefix.en"],
    "required phrases": [*LINES, "--require-file", "phrases.tsv"],
    "a forbidden phrase": [*LINES, "--forbid", "dog"],
    "sampling": [*LINES, "--sampling", "--top-p", "0.9"],
    "diverse groups": [*LINES, "--beam-size", "4", "--diverse-groups", "2"],
    "minimum Bayes risk": [*LINES, "--mbr", "4", "--beam-size", "4"],
    "a coverage penalty": [*LINES, "--coverage-penalty", "0.2"],
    "an ensemble": [*LINES, "--ensemble", "model"],
    "workers": [*LINES, "--workers", "2"],
    "a glossary": [*LINES, "--glossary", "terms.tsv"],
    "a document": [*TRANSLATE, "page.html"],
    "evaluate a file": ["evaluate", "text.de", "--reference", "text.en", "--format", "json"],
}
REFUSED = {"train": ["train", "recipe.yaml"], "score": ["score", "model", "text.de", "text.en"],
           "another model": ["translate", "recurrent", "text.de"]}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Results of `PROGRAM` by command, and its last line."""
    if not usable_libraries(cpu_flags()):
        pytest.skip("the package was built without kernels (make setup, with a C++ compiler)")
    folder = tmp_path_factory.mktemp("runtime")
    save_random_model(folder / "model", RECIPE, trained_tokenizers(RECIPE), seed=2, noise=0.3)
    recurrent = recipe_text(283, "type: rnn, d_model: 12, num_heads: 2", "")
    save_random_model(folder / "recurrent", recurrent, trained_tokenizers(RECIPE), seed=2)
    (folder / "recipe.yaml").write_text(RECIPE)
    for name, text in {
        "text.de": "ein Hund läuft\ndie Katze schläft\n", "text.en": "a dog runs\nthe cat sleeps\n",
        "train.de": "ein Hund läuft\n", "train.en": "a dog runs\n", "test.de": "ein\n", "test.en": "a\n",
        "long.de": "ein Hund läuft und die Katze schläft. " * 20 + "\n", "prefix.en": "a\nthe\n",
        "phrases.tsv": "cat\n\n", "terms.tsv": "Hund\thound\n",
        "page.html": "<p>ein <b>Hund</b> läuft</p>",
    }.items():
        (folder / name).write_text(text)
    commands = COMMANDS | REFUSED
    done = subprocess.run([sys.executable, "-c", PROGRAM], input=json.dumps(list(commands.values())), text=True,
                          cwd=folder, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr
    *lines, served = map(json.loads, done.stdout.splitlines())
    return dict(zip(commands, lines, strict=True)), served


@pytest.mark.parametrize("name", COMMANDS)
def test_commands_on_the_road_of_translation_import_no_other_package(results, name):
    code, out, err = results[0][name]
    assert code == 0, err
    assert out.strip() and "instead" not in err


@pytest.mark.parametrize("name", REFUSED)
def test_a_command_that_needs_another_package_names_it(results, name):
    code, out, err = results[0][name]
    assert code == 2 and not out
    assert re.search(r"\b(torch|datasets)\b.*pip install \1", err.replace("\n", " ")) and "Traceback" not in err


def test_a_server_imports_no_other_package(results):
    described, translations = results[1]
    assert "int8 on cpu" in described[0] and len(set(translations)) == 1


def test_runtime_txt_has_all_packages_of_the_road_and_no_others_in_the_versions_of_constraints_txt():
    needed, names = set(), list(ROOTS)
    while names:
        name = normalised(names.pop())
        if name not in needed:
            needed.add(name)
            names += [one.name for one in map(Requirement, requires(name) or [])
                      if one.marker is None or one.marker.evaluate({"extra": ""})]
    pinned = [line for line in (ROOT / "runtime.txt").read_text().splitlines() if not line.startswith("#")]
    assert {normalised(line.partition("==")[0]) for line in pinned} == needed
    assert set(pinned) <= set((ROOT / "constraints.txt").read_text().splitlines())


def normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
