"""A bundle that a stranger has made: no command reads or writes a file that neither it nor the user names."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from toy import RECIPE

from seq2seq.cli import main
from seq2seq.errors import CheckpointError
from seq2seq.recipe import Corpus, load_recipe
from seq2seq.storage.checkpoints import best_bundle, load_bundle, recipe_with_text, save_bundle, stored_recipe

HERE = Path(__file__).parent
PACKAGE = HERE.parents[1] / "seq2seq"
SECRET = "opensesame"
CPU = ["--device", "cpu", "--threads", "1"]
FILES = ("metadata.json", "model.safetensors", "recipe.yaml", "tokenizer.model")
# Each command with the outputs that it may write.
COMMANDS = {
    "translate": (["translate", "bundle", "text.en", "--output", "out", *CPU], ["out"]),
    "evaluate": (["evaluate", "bundle", "--source", "text.en", "--reference", "text.de", *CPU], []),
    "report": (["report", "bundle", "--source", "text.en", "--reference", "text.de", "--output", "out.html", *CPU],
               ["out.html"]),
    "export": (["export", "bundle", "--to", "huggingface", "--source", "text.en", "--output", "out"], ["out"]),
    "serve": (["serve", "bundle", "--port", "0", *CPU], []),
    "adapt": (["adapt", "bundle", "train.en", "train.de", "--general", "general.en", "--general", "general.de",
               "--output", "out", "--allow-loss", "100", "--set", "training.max_steps=2"], ["out"]),
    "average": (["average", "bundle", "--output", "out"], ["out"]),
}


def stranger(recipe_text, metadata=()):
    """Return the recipe and the metadata of a bundle in which everything that can name a file names one of the user."""
    document = load_recipe_text(recipe_text)
    notes = {"source": "../mine/notes", "target": "../mine/notes"}
    document["data"] = {**document["data"], "root": "../mine", "train": [notes, {
        "target": "notes", "translated_by": ["../mine/model"]}], "valid": notes, "test": {"x": notes}}
    document["training"]["start_from"] = "../mine/model"
    return json.dumps(document), {**dict(metadata), "recipe_directory": "../mine", "imported_from": "../mine/model"}


def load_recipe_text(text):
    from ruamel.yaml import YAML

    return json.loads(json.dumps(YAML(typ="safe").load(text)))


@pytest.fixture
def work(made, tmp_path, monkeypatch):
    """Working directory with the bundle of a stranger, text of the user, and the user's directory `mine`."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine" / "model").mkdir(parents=True)
    (tmp_path / "mine" / "notes").write_text(f"{SECRET}\n" * 7)
    shutil.copytree(best_bundle(made / "run"), tmp_path / "mine" / "model", dirs_exist_ok=True)
    best = load_bundle(best_bundle(made / "run"))
    text, metadata = stranger(best.recipe_text, best.metadata)
    save_bundle(tmp_path / "bundle", best.weights, text, best.tokenizer_files, metadata)
    for side in ("en", "de"):
        shutil.copy(made / f"valid.{side}", f"text.{side}")
        lines = (made / f"train.{side}").read_text().splitlines(keepends=True)
        for name in ("train", "general"):
            Path(f"{name}.{side}").write_text("".join(lines) * 2)
    return tmp_path


def opened_by(command, work):
    """Run a command in its own process. Return its exit code, the paths that it read and wrote, and what it said."""
    home = work / "home"                                                        # also has temporary files
    home.mkdir()
    environment = os.environ | {"HOME": str(home), "TMPDIR": str(home), "TORCHINDUCTOR_CACHE_DIR": str(home),
                                "PYTHONDONTWRITEBYTECODE": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, HERE / "opened_files.py", home / "opened.json", *command],
                          capture_output=True, text=True, timeout=120, env=environment)
    assert "Traceback" not in done.stderr, done.stderr[-2000:]
    found = json.loads((home / "opened.json").read_text())
    return found["code"], found["read"], found["written"], done.stdout + done.stderr


def is_in(path, directories):
    return any(Path(path) == Path(directory) or Path(directory) in Path(path).parents for directory in directories)


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=() if name in ("translate", "average") else pytest.mark.slow) for name in COMMANDS])
def test_no_file_is_opened_but_those_of_the_bundle_and_of_the_user(work, name):
    command, outputs = COMMANDS[name]
    named = [work / each for each in command if (work / each).is_file()]
    code, read, written, said = opened_by(command, work)
    assert code == (2 if name == "average" else 0) or name == "adapt" and code == 2, said
    # A new directory is written under a temporary name beside its own, and directories are synced.
    outputs = [work / "home", Path("/dev"), Path("/proc/self"), *(work / output for output in outputs), *(
        Path(path) for path in written
        if Path(path).parent == work and Path(path).name.startswith((".out.", "out.part", "out.html.part")))]
    system = [*sys.path[1:], sys.prefix, sys.base_prefix, os.path.realpath(sys.prefix), "/usr", "/etc", "/proc", "/sys"]
    assert [path for path in written if not is_in(path, outputs) and Path(path) != work] == []
    assert [path for path in read if not is_in(path, (*outputs, work / "bundle", *named, PACKAGE.parent, *system))
            and Path(path) not in (work, *work.parents)] == []
    assert SECRET not in said


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("kind", ["link", "link to nothing", "directory", "pipe"])
def test_a_file_that_is_not_a_regular_file_is_refused(work, capfd, name, kind):
    path = work / "bundle" / name
    path.rename(work / "mine" / name)
    if kind == "directory":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(work / "mine" / (name if kind == "link" else "nothing"))
    assert main(["translate", "bundle", "text.en", *CPU]) == 2
    said = capfd.readouterr().err.replace("\n", "")
    assert "Traceback" not in said and (f"bundle/{name}" in said or name == "metadata.json")


@pytest.mark.parametrize("name", ["../mine/notes", "/etc/passwd", "a/b", "a\\b", "", "..", "C:notes"])
def test_checksums_of_files_elsewhere_are_damage(work, capfd, name):
    path = work / "bundle" / "metadata.json"
    metadata = json.loads(path.read_text())
    metadata["sha256"][name] = "0" * 64
    from seq2seq.storage.directories import as_json

    path.write_bytes(as_json(metadata))
    with pytest.raises(CheckpointError, match="is not the name of a file"):
        load_bundle(work / "bundle")


def test_a_bundle_names_no_text_and_evaluation_asks_for_it(made, work, capfd):
    for command in (["tune", "bundle", "beam_size=1,2"], ["compare", "bundle", "bundle"], ["evaluate", "bundle"]):
        assert main([*command, *CPU]) == 2
        assert "--recipe" in " ".join(capfd.readouterr().err.split())
    assert main(["evaluate", "bundle", "--recipe", str(made / "recipe.yaml"), *CPU]) == 0
    with pytest.raises(CheckpointError):
        recipe_with_text(work / "bundle")


@pytest.mark.parametrize(("corpus", "name", "url"), [
    ({"source": "secret/a.en", "target": "b"}, "a.en", None),
    ({"source": "C:\\me\\a.en", "target": "b"}, "a.en", None),
    ({"file": "/home/me/a.tsv", "url": "https://a.org"}, "a.tsv", "https://a.org"),
    ({"hub": "wmt/wmt14", "config": "de-en", "split": "train", "source": "de", "target": "en"}, "wmt/wmt14 de-en train",
     "https://huggingface.co/datasets/wmt/wmt14"),
    ({"hub": "./me/set", "split": "train", "source": "de", "target": "en"}, "set train", None)])
def test_a_corpus_in_a_bundle_has_a_name_and_an_address_and_no_directory(corpus, name, url):
    found = Corpus.model_validate(corpus).for_bundle()
    assert (found.name, found.url) == (name, url) and found.is_only_named


def test_the_recipe_of_a_bundle_has_no_path(made):
    run = made / "run"
    text = (best_bundle(run) / "recipe.yaml").read_text()
    assert str(made) not in text and "source: train.en" not in text and "name: train.en" in text
    recipe = recipe_with_text(run)
    assert recipe.data_directory == made and recipe.for_bundle() == load_bundle_recipe(run)
    for corpus in recipe.for_bundle().data.corpora():
        assert corpus.is_only_named and not corpus.paths


@pytest.mark.parametrize("corpus", [
    {"source": "../mine/notes", "target": "../mine/notes"}, {"file": "../mine/notes.tsv"},
    {"hub": "mine", "split": "train", "source": "x", "target": "y"}])
def test_the_corpora_of_a_strangers_bundle_are_never_read(work, corpus, capfd):
    best = load_bundle(work / "mine" / "model")
    document = load_recipe_text(best.recipe_text)
    document["data"] = {**document["data"], "train": [corpus], "valid": corpus, "test": {"x": corpus}}
    save_bundle(work / "other", best.weights, json.dumps(document), best.tokenizer_files, best.metadata)
    assert main(["export", "other", "--to", "huggingface", "--output", "out"]) == 2
    assert main(["evaluate", "other", *CPU]) == 2
    files = ["--source", "text.en", "--reference", "text.de"]
    assert main(["report", "other", *files, "--output", "page.html", *CPU]) == 0
    said = "".join(capfd.readouterr())
    assert SECRET not in said + Path("page.html").read_text() and not Path("out").exists()


def load_bundle_recipe(run):
    return stored_recipe(best_bundle(run))


def test_a_recipe_of_a_user_needs_text_and_not_only_names(tmp_path):
    from seq2seq.errors import RecipeError

    (tmp_path / "recipe.yaml").write_text(RECIPE.replace("source: train.en, target: train.de", "name: train"))
    with pytest.raises(RecipeError, match="recipe.yaml:.*a corpus needs `source` and `target`"):
        load_recipe(tmp_path / "recipe.yaml", check_files=False)


@pytest.mark.slow
@pytest.mark.parametrize("base", ["../mine/notes", "/dev/zero"])
def test_the_recipe_of_a_bundle_follows_no_base(work, base, capfd):
    best = load_bundle(work / "mine" / "model")
    text = best.recipe_text.replace("model:\n", f"model:\n  base: {base}\n")
    assert text != best.recipe_text
    save_bundle(work / "other", best.weights, text, best.tokenizer_files, best.metadata)
    assert main(["translate", "other", "text.en", *CPU]) == 2
    said = " ".join(capfd.readouterr().err.split())
    assert "cannot have a base" in said and SECRET not in said
