"""A run goes on, and finds its text, wherever recipe, text and run are now: checksums of text and models decide."""

import os
import shutil

import pytest
from toy import FOUR_STEPS, RECIPE, copy_finished_run, write_corpus

from seq2seq.cli import main
from seq2seq.data.corpus import read_pairs
from seq2seq.errors import CheckpointError, CorpusError
from seq2seq.evaluation.recipe_tests import recipe_with_tests
from seq2seq.recipe import TokenizerSection, load_recipe
from seq2seq.storage.checkpoints import best_bundle, bundle_metadata
from seq2seq.storage.run_directory import check_recipe_of_run
from seq2seq.storage.tokenizer_files import save_tokenizers
from seq2seq.tokenizers.tokenizer import train_tokenizers
from seq2seq.training.run import start_training, train

CPU = ["--device", "cpu", "--threads", "1", "--precision", "fp32"]


@pytest.fixture
def project(tmp_path):
    """Directory of a recipe, its text in `text`, and its finished run in `runs/tiny`."""
    place = tmp_path / "project"
    (place / "text").mkdir(parents=True)
    write_corpus(place / "text")
    (place / "recipe.yaml").write_text(RECIPE.replace("data:", "data:\n  root: text"))
    train(load_recipe(place / "recipe.yaml", FOUR_STEPS), place / "runs" / "tiny")
    return place


def copied(project, place):
    """Copy the project as to another machine: other times, and the old directory does not exist there."""
    shutil.copytree(project, place, copy_function=shutil.copyfile)
    project.rename(project.with_name("gone"))
    return place


def resumed(recipe, run):
    check_recipe_of_run(recipe, run)
    training = start_training(recipe, run)
    assert training.state.step == 4
    return training


def test_a_project_that_was_copied_to_another_place_is_resumed_without_preparing_its_text_again(project, tmp_path):
    prepared = [path.name for path in (project / "runs" / "tiny" / "prepared").iterdir()]
    place = copied(project, tmp_path / "another" / "place")
    resumed(load_recipe(place / "recipe.yaml", FOUR_STEPS), place / "runs" / "tiny")
    assert [path.name for path in (place / "runs" / "tiny" / "prepared").iterdir()] == prepared


def test_a_moved_project_goes_on_training_and_reads_its_test_sets_where_they_are_now(project, tmp_path, monkeypatch,
                                                                                     capfd):
    place = copied(project, tmp_path / "moved")
    monkeypatch.chdir(place)
    assert main(["evaluate", "runs/tiny", *CPU]) == 0
    capfd.readouterr()
    more = FOUR_STEPS[1:] + ["training.max_steps=6"]
    assert main(["train", "recipe.yaml", *(word for setting in more for word in ("--set", setting))]) == 0
    changed = [line for line in capfd.readouterr().err.splitlines() if "changed since" in line]
    assert len(changed) == 1 and "max_steps" in changed[0]
    found = recipe_with_tests(best_bundle(place / "runs" / "tiny"))
    assert found.data_directory == place / "text" and "test" in bundle_metadata(best_bundle(place / "runs" / "tiny"))


def test_a_run_that_moved_alone_is_resumed_and_evaluated_with_its_recipe(project, tmp_path):
    run = tmp_path / "elsewhere"
    (project / "runs" / "tiny").rename(run)
    with pytest.raises(CorpusError, match="--recipe"):
        recipe_with_tests(run)
    named = load_recipe(project / "recipe.yaml")
    assert recipe_with_tests(run, named).data_directory == project / "text"
    resumed(load_recipe(project / "recipe.yaml", FOUR_STEPS), run)


def test_text_that_was_renamed_or_moved_is_the_same_text(project, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (project / "text").rename(tmp_path / "corpora")
    (tmp_path / "corpora" / "train.en").rename(tmp_path / "corpora" / "english")
    settings = [*FOUR_STEPS, "data.root=corpora", "data.train.0.source=corpora/english"]
    resumed(load_recipe(project / "recipe.yaml", settings), project / "runs" / "tiny")
    os.symlink(tmp_path / "corpora", tmp_path / "link")
    recipe = load_recipe(project / "recipe.yaml", [*FOUR_STEPS, "data.root=link", "data.train.0.source=link/english"])
    resumed(recipe, project / "runs" / "tiny")


@pytest.mark.parametrize(("name", "other"), [("train.de", "valid.de"), ("valid.en", "train.en")])
def test_other_text_under_the_same_path_is_refused_with_its_name(project, name, other):
    path = project / "text" / name
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:-1], "eins eins eins"]) + "\n")
    with pytest.raises(CheckpointError) as caught:
        resumed(load_recipe(project / "recipe.yaml", FOUR_STEPS), project / "runs" / "tiny")
    assert str(path) in str(caught.value) and other not in str(caught.value)


def test_a_refused_training_leaves_the_recipe_of_the_run_as_it_was(project, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = project / "runs" / "tiny"
    before = (run / "recipe.yaml").read_text()
    settings = [*FOUR_STEPS, f"data.train.0.source={project / 'text' / 'valid.en'}",
                f"data.train.0.target={project / 'text' / 'valid.de'}"]
    with pytest.raises(CheckpointError):
        resumed(load_recipe(project / "recipe.yaml", settings), run)
    assert (run / "recipe.yaml").read_text() == before
    resumed(load_recipe(project / "recipe.yaml", [*FOUR_STEPS, "training.log_every=7"]), run)
    assert "log_every: 7" in (run / "recipe.yaml").read_text()


def test_two_corpora_that_changed_places_are_other_text(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        write_corpus(tmp_path / name)
    (tmp_path / "b" / "train.en").write_text((tmp_path / "b" / "train.en").read_text().replace("cat", "dog"))
    for name, first, second in (("before", "a", "b"), ("after", "b", "a")):
        (tmp_path / f"{name}.yaml").write_text(RECIPE.replace(
            "[{source: train.en, target: train.de}]", f"[{{source: {first}/train.en, target: {first}/train.de}}, "
            f"{{source: {second}/train.en, target: {second}/train.de}}]").replace(": valid.", ": a/valid."))
    train(load_recipe(tmp_path / "before.yaml", ["training.max_steps=1"]), tmp_path / "run")
    with pytest.raises(CheckpointError, match=r"b/train.en and .*a/train.en changed since"):
        start_training(load_recipe(tmp_path / "after.yaml", ["training.max_steps=1"]), tmp_path / "run")


def test_the_model_of_a_tokenizer_may_move_but_not_have_another_tokenizer(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    copy_finished_run(tmp_path).rename(tmp_path / "model")
    train(load_recipe("recipe.yaml", [*FOUR_STEPS, "tokenizer={taken_from: model}"]), tmp_path / "run")
    (tmp_path / "model").rename(tmp_path / "teacher")
    resumed(load_recipe("recipe.yaml", [*FOUR_STEPS, "tokenizer={taken_from: teacher}"]), tmp_path / "run")
    other = train_tokenizers([("one two", "eins zwei")] * 7, TokenizerSection(vocab_size=270), seed=1)
    save_tokenizers(other.files(), tmp_path / "other" / "tokenizer")
    with pytest.raises(CheckpointError, match="another tokenizer"):
        resumed(load_recipe("recipe.yaml", [*FOUR_STEPS, "tokenizer={taken_from: other}"]), tmp_path / "run")


def test_a_model_that_translates_text_may_move(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    copy_finished_run(tmp_path).rename(tmp_path / "model")
    corpora = "data.train=[{source: train.en, target: train.de}, {source: valid.en, translated_by: MODEL}]"
    train(load_recipe("recipe.yaml", [corpora.replace("MODEL", "model"), *FOUR_STEPS]), tmp_path / "run")
    (tmp_path / "model").rename(tmp_path / "teacher")
    resumed(load_recipe("recipe.yaml", [corpora.replace("MODEL", "teacher"), *FOUR_STEPS]), tmp_path / "run")


def test_a_base_may_move(project, tmp_path):
    recipe = load_recipe(project / "recipe.yaml", FOUR_STEPS)
    (tmp_path / "base.yaml").write_text(f"model: {recipe.model.model_dump_json()}\n")
    text = (project / "recipe.yaml").read_text()
    start = text.index("model:")
    (tmp_path / "moved.yaml").write_text(
        text[:start] + "model: {base: base.yaml}" + text[text.index("\n", start):])
    resumed(load_recipe(tmp_path / "moved.yaml", [*FOUR_STEPS, f"data.root={project / 'text'}"]),
            project / "runs" / "tiny")


def test_a_run_keeps_the_paths_that_lead_from_it_to_its_text(project):
    stored = load_recipe(project / "runs" / "tiny" / "recipe.yaml")
    assert stored.data.root == "../../text" and stored.data.train[0].source == "train.en"
    assert [text for _, _, text in read_pairs(stored, stored.data.train[0])] == (
        project / "text" / "train.de").read_text().splitlines()
