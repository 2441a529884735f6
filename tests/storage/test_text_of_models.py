"""The recipe of a model, which a stranger may have written, reads no text of this machine but that of its training."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from toy import FOUR_STEPS, RECIPE, train_toy

from seq2seq.cli import main
from seq2seq.data.corpus import Counts, read_corpus, read_pairs, require_readable, text_checksums
from seq2seq.errors import CorpusError, RecipeError
from seq2seq.recipe import Corpus, Readable, load_recipe
from seq2seq.storage.checkpoints import RECIPE_DIRECTORY, TEXT_CHECKSUMS, load_bundle, save_bundle
from seq2seq.training.run import train

SECRET = "opensesame"
CPU = ["--device", "cpu", "--threads", "1", "--precision", "fp32"]
# Corpora that a stranger's recipe can name, each without its first key. All of them name the directory `mine`.
CORPORA = {
    "two files": {"source": "mine/notes", "target": "mine/notes"},
    "one of two files": {"source": "bundle/source.en", "target": "mine/notes"},
    "out of the bundle": {"source": "bundle/../mine/notes", "target": "bundle/../mine/notes"},
    "a link in the bundle": {"source": "bundle/link", "target": "bundle/link"},
    "a link to a directory": {"source": "bundle/out/notes", "target": "bundle/out/notes"},
    "a table": {"file": "mine/notes.tsv"},
    "a header": {"file": "mine/notes.tsv", "header": True, "source": "x", "target": "y"},
    "lines that are no JSON": {"file": "mine/notes.jsonl", "source": "x", "target": "y"},
    "a translation memory": {"file": "mine/notes.tmx"},
    "a table that is no Parquet": {"file": "mine/notes.parquet", "source": "x", "target": "y"},
    "a directory as a data set": {"hub": "mine/set", "split": "train", "source": "x", "target": "y"},
    "a column as a data set": {"hub": "mine/set", "split": "train", "source": "z", "target": "y"},
    "a named pipe": {"source": "bundle/pipe", "target": "bundle/pipe"},
    "a device": {"source": "/dev/zero", "target": "/dev/zero"},
}


@pytest.fixture
def work(made, tmp_path, monkeypatch):
    """Working directory with the user's files in `mine`, each of which contains the secret."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    shutil.copytree(made, tmp_path / "own")
    (tmp_path / "mine" / "set").mkdir(parents=True)
    for name in ("notes", "notes.tmx", "notes.parquet", "notes.jsonl"):
        (tmp_path / "mine" / name).write_text(f"{SECRET}\n" * 7)
    (tmp_path / "mine" / "notes.tsv").write_text(f"{SECRET}\t{SECRET}\n" * 7)
    (tmp_path / "mine" / "set" / "train.jsonl").write_text(json.dumps({"x": SECRET, "y": SECRET}) + "\n")
    return tmp_path


def strangers_bundle(work, sections, metadata=(), where="bundle"):
    """Write the bundle of the user's run as a stranger would change it. sections: replaced sections of the recipe."""
    best = load_bundle(work / "own" / "run" / "best")
    recipe = load_recipe(work / "own" / "recipe.yaml", FOUR_STEPS)
    data = {"train": [{"source": "source.en", "target": "target.de"}],
            "valid": {"source": "source.en", "target": "target.de"}, "test": {}}
    document = recipe.model_dump(mode="json", exclude_none=True) | {"data": data | sections}
    text = json.dumps(document)                                                 # JSON is YAML
    (work / where).mkdir(parents=True, exist_ok=True)
    save_bundle(work / where, best.weights, text, best.tokenizer_files, dict(best.metadata) | dict(metadata))
    bundle = work / where
    for name in ("source.en", "target.de"):
        (bundle / name).write_text("one two three\n" * 7)
    (bundle / "link").symlink_to(work / "mine" / "notes")
    (bundle / "out").symlink_to(work / "mine")
    os.mkfifo(bundle / "pipe")
    return bundle


def absolute(work, corpus):
    return {key: os.path.join(work, value) if "/" in str(value) else value for key, value in corpus.items()}


def run_limited(*command):
    """Run a command in a process that may take 20 seconds and 4 GB."""
    limited = "import resource, sys; resource.setrlimit(resource.RLIMIT_AS, (4 << 30,) * 2); " \
              "from seq2seq.cli import main; sys.exit(main(sys.argv[1:]))"
    return subprocess.run([sys.executable, "-c", limited, *command], capture_output=True, text=True, timeout=20)


@pytest.mark.parametrize("kind", CORPORA)
def test_a_strangers_test_set_outside_the_bundle_is_neither_read_nor_shown(work, kind, capfd):
    corpus = absolute(work, CORPORA[kind])
    bundle = strangers_bundle(work, {"test": {"x": corpus}})
    before = {path.name: path.lstat().st_mtime_ns for path in bundle.iterdir()}
    for command in (["evaluate", "bundle", *CPU], ["report", "bundle", "-o", "page.html", *CPU[:4]],
                    ["evaluate", "bundle", "--baseline", "bundle", *CPU]):
        assert main(command) == 2
        said = "".join(capfd.readouterr())
        assert "Traceback" not in said and SECRET not in said and not Path("page.html").exists()
        assert "--source and --reference" in " ".join(said.split())
        if "hub" not in corpus:
            assert any(part in said.replace("\n", "").replace(" ", "") for part in map(
                os.path.basename, map(str, corpus.values())))
    assert {path.name: path.lstat().st_mtime_ns for path in bundle.iterdir()} == before


@pytest.mark.parametrize("kind", ["two files", "a table", "a directory as a data set"])
def test_a_strangers_training_and_validation_text_is_not_used_for_other_commands(work, kind, capfd):
    corpus = absolute(work, CORPORA[kind])
    strangers_bundle(work, {"train": [corpus], "valid": corpus})
    text = ["--source", "own/valid.en", "--reference", "own/valid.de"]
    assert main(["report", "bundle", *text, "-o", "page.html", *CPU[:4]]) == 0
    said = "".join(capfd.readouterr())
    assert "training text of bundle cannot be read" in " ".join(said.split())
    assert SECRET not in said + Path("page.html").read_text()
    assert main(["adapt", "bundle", "own/train.en", "own/train.de", "--output", "adapted"]) == 2
    said = " ".join("".join(capfd.readouterr()).split())
    assert "--general" in said and SECRET not in said and not Path("adapted").exists()


@pytest.mark.parametrize("checksums", [["", "0" * 64, None, ["x"], {}], {}, "x", 5, None])
def test_checksums_and_directories_that_a_stranger_writes_open_no_file(work, checksums, capfd):
    notes = {"source": "notes", "target": "notes"}
    strangers_bundle(work, {"train": [notes], "valid": notes, "test": {"x": notes}},
                     {RECIPE_DIRECTORY: str(work / "mine"), TEXT_CHECKSUMS: checksums})
    assert main(["evaluate", "bundle", *CPU]) == 2
    said = "".join(capfd.readouterr())
    assert SECRET not in said and "mine/notes" in said.replace("\n", "") and "is missing" not in said


def test_text_in_a_bundle_is_read(work):
    strangers_bundle(work, {"test": {"x": {"source": "source.en", "target": "target.de"}}}, {TEXT_CHECKSUMS: []})
    assert main(["evaluate", "bundle", *CPU]) == 0


def test_a_file_of_ten_terabytes_in_a_bundle_is_not_read_to_its_end(work, capfd):
    bundle = strangers_bundle(work, {"test": {"x": {"source": "huge", "target": "huge"}}})
    with (bundle / "huge").open("wb") as file:
        file.truncate(10 * 2**40)
    assert main(["evaluate", "bundle", *CPU]) == 2
    assert "huge:1" in "".join(capfd.readouterr().err.split())


def test_a_strangers_run_is_no_door_either(work, capfd):
    corpus = absolute(work, CORPORA["two files"])
    strangers_bundle(work, {"test": {"x": corpus}}, where="run/best")
    shutil.copy("run/best/recipe.yaml", "run/recipe.yaml")
    assert main(["evaluate", "run", *CPU]) == 2
    said = "".join(capfd.readouterr())
    assert SECRET not in said and "notes" in said.replace("\n", "")


def test_a_run_its_average_and_a_copy_of_its_bundle_read_their_text_elsewhere(made, work, capfd):
    shutil.copytree(made / "run" / "best", "copy")
    assert main(["average", str(made / "run"), "--output", "averaged"]) == 0
    for model in (str(made / "run"), str(made / "run" / "best"), "averaged", "copy"):
        assert main(["evaluate", model, *CPU]) == 0
    assert main(["report", "copy", "-o", "page.html", *CPU[:4]]) == 0
    assert "cannot be read" not in " ".join(capfd.readouterr().err.split())


def test_a_test_set_that_has_changed_since_is_an_error_that_names_it(work, tmp_path, capfd):
    train_toy(tmp_path, FOUR_STEPS)
    assert main(["evaluate", "run", *CPU]) == 0
    Path("valid.de").write_text(Path("valid.de").read_text().replace("rot", "blau"))
    assert main(["evaluate", "run", *CPU]) == 2
    said = " ".join(capfd.readouterr().err.split())
    assert "valid.de" in said and "--source and --reference" in said
    assert main(["evaluate", "run", "--source", "valid.en", "--reference", "valid.de", *CPU]) == 0


def test_a_test_set_that_is_added_to_a_finished_run_is_read(work, tmp_path):
    train_toy(tmp_path, FOUR_STEPS)
    (tmp_path / "more").mkdir()
    for side in ("en", "de"):
        shutil.copy(f"train.{side}", tmp_path / "more" / f"other.{side}")
        with open(f"more/other.{side}", "a") as file:
            file.write("one\n" if side == "en" else "eins\n")
    Path("recipe.yaml").write_text(RECIPE.replace("test: {", "test: {more: {source: more/other.en, target: "
                                                             "more/other.de}, "))
    train(load_recipe("recipe.yaml", FOUR_STEPS), tmp_path / "run")
    assert main(["evaluate", "run", *CPU]) == 0


def test_a_data_set_of_the_hub_is_known_by_its_texts(work):
    spec = Corpus(hub=str(work / "mine" / "set"), split="train", source="x", target="y")
    recipe = load_recipe("own/recipe.yaml", FOUR_STEPS)
    counts = Counts()
    assert len(list(read_corpus(spec, Path(), counts))) == 1
    checksums = text_checksums(spec, Path(), counts)
    assert checksums == text_checksums(spec, Path()) == [counts.sha256]
    stored = recipe.with_readable(Readable(work / "bundle", frozenset(checksums)))
    assert [target for _, _, target in read_pairs(stored, spec)] == [SECRET]
    with pytest.raises(CorpusError, match="is not read"):
        require_readable(recipe.with_readable(Readable(work / "bundle")), spec)
    with pytest.raises(CorpusError, match="is not read"):
        require_readable(stored, spec.model_copy(update={"source": "y", "limit": 1, "config": None, "target": "x",
                                                         "hub": str(other_set(work))}))


def other_set(work):
    (work / "other").mkdir()
    (work / "other" / "train.jsonl").write_text('{"x": "eins", "y": "one"}\n')
    return work / "other"


@pytest.mark.parametrize("text", [
    f"password: {SECRET}", f"root:!{SECRET}:19000:0\ndaemon:*:1", f"a: *{SECRET}", f"a: &{SECRET} 1\nb: &{SECRET} 2",
    f"a: b\n{SECRET}: 1\n{SECRET}: 2", f"x: '{SECRET}", f"{{{SECRET}: [}}", f"{SECRET} : b: c", f"model: {SECRET}",
    f"%{SECRET} x\n---", f"[{SECRET}]", f"{SECRET}", f"!{SECRET} x: 1", f'"{SECRET}', f"- {SECRET}\n  x: 1"])
@pytest.mark.parametrize("key", ["model", "training"])
@pytest.mark.filterwarnings("error")
def test_messages_do_not_quote_a_file_that_is_no_recipe(work, key, text, capfd):
    (work / "mine" / "recipe.yaml").write_text(text)
    section = "model: {base: mine/recipe.yaml" if key == "model" else "training: {start_from: mine"
    Path("recipe.yaml").write_text(f"name: x\nlanguages: {{source: en, target: de}}\n{section}}}\ndata: {{train: "
                                   "[{source: own/train.en, target: own/train.de}], valid: {source: own/valid.en, "
                                   "target: own/valid.de}}\n")
    with pytest.raises(RecipeError, match=r"mine/recipe.yaml:\d+: ") as caught:
        load_recipe("recipe.yaml")
    assert SECRET not in str(caught.value) + "".join(capfd.readouterr())


def test_a_model_to_start_from_has_no_recipe_elsewhere(work):
    (work / "model").mkdir()
    (work / "model" / "recipe.yaml").symlink_to(work / "own" / "recipe.yaml")
    Path("recipe.yaml").write_text(RECIPE.replace("training:", "training:\n  start_from: model"))
    with pytest.raises(RecipeError, match="link to another directory"):
        load_recipe("recipe.yaml", check_files=False)


@pytest.mark.slow
@pytest.mark.parametrize("base", ["../mine/notes", "/dev/zero", "../bundle/pipe"])
def test_the_recipe_of_a_bundle_or_a_run_follows_no_base(work, base, capfd):
    best = load_bundle(work / "own" / "run" / "best")
    text = best.recipe_text.replace("model:\n", f"model:\n  base: {base}\n")
    assert text != best.recipe_text
    for where in ("bundle", "run/best"):
        save_bundle(work / where, best.weights, text, best.tokenizer_files, best.metadata)
    shutil.copy("run/best/recipe.yaml", "run/recipe.yaml")
    for command in (["evaluate", "bundle"], ["evaluate", "run"], ["report", "run", "-o", "page.html"],
                    ["translate", "bundle", "own/valid.en"], ["train", "own/recipe.yaml", "--run-dir", "run"]):
        done = run_limited(*command)
        assert done.returncode in (0, 2) if command[0] == "train" else done.returncode == 2, done.stderr
        assert SECRET not in done.stdout + done.stderr and "Traceback" not in done.stderr
        if command[0] != "train":
            assert "cannot have a base" in " ".join(done.stderr.split())
