"""Ensemble distillation: one command trains teachers, translates the training text with their ensemble, and trains a
student with it."""

import shutil
from pathlib import Path

import pytest
from toy import RECIPE, write_corpus

from seq2seq.check import check_recipe
from seq2seq.errors import RecipeError, UserError
from seq2seq.inference.load_model import read_model
from seq2seq.recipe import load_recipe
from seq2seq.signals import Stopped
from seq2seq.storage.checkpoints import list_checkpoints, load_bundle
from seq2seq.training import synthetic_text, trainer
from seq2seq.training.teachers import LABEL, TEACHERS, source_files, teachers_of, with_translated_text
from seq2seq.training.trainer import Training, train
from seq2seq.translation.translator import Translator

DISTILLED = RECIPE.replace("threads: 1", "threads: 1\n  teachers: {count: 2, model: {d_model: 32}}")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Text, a recipe with two teachers, and its finished run."""
    folder = tmp_path_factory.mktemp("teachers")
    write_corpus(folder)
    (folder / "recipe.yaml").write_text(DISTILLED)
    train(load_recipe(folder / "recipe.yaml"), folder / "run")
    return folder


def test_the_teachers_differ_in_seed_and_model_and_share_a_vocabulary(folder):
    student, recipe, tokenizers = read_model(folder / "run" / "best")
    teachers = [read_model(folder / "run" / TEACHERS / number / "best") for number in ("1", "2")]
    assert [teacher.seed for _, teacher, _ in teachers] == [2, 3]
    assert [teacher.model.d_model for _, teacher, _ in teachers] == [32, 32]
    assert recipe.model.d_model == 16 and recipe.training.teachers.count == 2
    assert teachers[0][2].source.model == teachers[1][2].source.model
    assert not load_bundle(folder / "run" / TEACHERS / "1" / "best").metadata["test"]


def test_their_ensemble_translates_each_source_once_and_the_student_learns_from_both(folder):
    sources = (folder / "run" / TEACHERS / "sources.txt").read_text().splitlines()
    lines = (folder / "train.en").read_text().splitlines()
    assert sources == list(dict.fromkeys(lines))
    ensemble = Translator.load(folder / "run" / TEACHERS / "1", ensemble=[folder / "run" / TEACHERS / "2"])
    found, = (folder / "run" / "synthetic").glob("*.txt")
    translations = [best.text for best, *_ in ensemble.translate(sources)]
    assert found.read_text().splitlines() == translations
    counts = Training(load_recipe(folder / "recipe.yaml"), folder / "run").prepared.counts
    assert [(label, count["kept"]) for label, count in counts.items()] == [
        ("train.en", len(lines)), (LABEL, sum(map(bool, translations)))]        # cleaning drops empty ones


def test_each_teacher_translates_each_source_and_may_have_fewer_steps_than_the_student(folder, tmp_path):
    write_corpus(tmp_path)
    (tmp_path / "recipe.yaml").write_text(DISTILLED.replace("count: 2,", "count: 2, ensemble: false, max_steps: 6,"))
    recipe, run = load_recipe(tmp_path / "recipe.yaml"), tmp_path / "run"
    train(recipe, run)
    steps = [list_checkpoints(path)[-1].name for path in (run / TEACHERS / "1", run / TEACHERS / "2", run)]
    assert [int(step.removeprefix("step-")) for step in steps] == [6, 6, recipe.training.max_steps]
    sources = (run / TEACHERS / "sources.txt").read_text().splitlines()
    corpora = with_translated_text(recipe, run).data.train[1:]
    assert [corpus.label for corpus in corpora] == ["translations of teacher 1", "translations of teacher 2"]
    for number, corpus in enumerate(corpora, 1):
        teacher = Translator.load(run / TEACHERS / str(number))
        translations = [best.text for best, *_ in teacher.translate(sources)]
        files = [path.read_text().splitlines() for path in (run / "synthetic").glob("*.txt")]
        assert len(files) == 2 and files[0] != files[1] and translations in files
        assert Training(recipe, run).prepared.counts[corpus.label]["kept"] == sum(map(bool, translations))


def test_a_run_that_was_stopped_in_a_teacher_resumes_to_the_same_weights(folder, tmp_path, monkeypatch, capsys):
    recipe = load_recipe(folder / "recipe.yaml")
    stopped = []

    def step(self, *arguments):
        if self.run.name == "2" and self.state.step == 7 and not stopped:
            stopped.append(self.run)
            raise Stopped(15, "stopped")
        return original(self, *arguments)

    original = Training._step
    monkeypatch.setattr(trainer.Training, "_step", step)
    with pytest.raises(Stopped):
        train(recipe, tmp_path / "run")
    assert stopped and not (tmp_path / "run" / "best").exists()
    capsys.readouterr()
    train(recipe, tmp_path / "run")
    messages = capsys.readouterr().err
    assert f"{tmp_path / 'run' / TEACHERS / '1'} has finished: " in messages
    assert "--restart" not in messages and "raise" not in messages              # these would affect all models
    assert weights(tmp_path / "run") == weights(folder / "run")


def test_a_run_that_has_begun_leaves_its_teachers_alone(folder, capsys):
    recipe = load_recipe(folder / "recipe.yaml", ["training.max_steps=12"])
    before = {path: path.stat().st_mtime_ns for path in (folder / "run" / TEACHERS).rglob("*") if path.is_file()}
    train(recipe, folder / "run")
    assert "teacher 1" not in capsys.readouterr().err
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_tags_and_back_translated_text_are_kept_apart(folder, tmp_path):
    write_corpus(tmp_path)
    (tmp_path / "recipe.yaml").write_text(RECIPE.replace("target: train.de}", 'target: train.de, tag: "<A>"}').replace(
        "threads: 1", "threads: 1\n  teachers: {count: 1}"))
    train(load_recipe(tmp_path / "recipe.yaml"), tmp_path / "run")
    sources = (tmp_path / "run" / TEACHERS / "sources.txt").read_text().splitlines()
    assert all(line.startswith("<A> ") and "<A> <A>" not in line for line in sources)


def test_teachers_and_student_translate_a_monolingual_text_only_once(folder, tmp_path, monkeypatch):
    write_corpus(tmp_path)
    (tmp_path / "recipe.yaml").write_text(RECIPE.replace("target: train.de}]", "target: train.de}, {source: valid.en, "
                                                         f"translated_by: {folder / 'run'}}}]").replace(
        "threads: 1", "threads: 1\n  teachers: {count: 2}"))
    original, translated = synthetic_text._translate, []
    monkeypatch.setattr(synthetic_text, "_translate", lambda spec, *arguments: (
        translated.append(spec.label), original(spec, *arguments)))
    train(load_recipe(tmp_path / "recipe.yaml"), tmp_path / "run")
    assert translated == ["valid.en", LABEL]
    found = [path.read_bytes() for path in (tmp_path / "run" / TEACHERS).glob("*/synthetic/*.txt")]
    assert len(found) == 2 and (tmp_path / "run" / "synthetic" / next(
        (tmp_path / "run" / TEACHERS).glob("1/synthetic/*.txt")).name).read_bytes() == found[0] == found[1]


def test_teachers_translate_each_direction_apart(folder, tmp_path):
    write_corpus(tmp_path)
    both = ('train: [{source: train.en, target: train.de}, {source: train.de, target: train.en, languages: '
            '{source: de, target: en}}]')
    (tmp_path / "recipe.yaml").write_text(RECIPE.replace("train: [{source: train.en, target: train.de}]", both).replace(
        "threads: 1", "threads: 1\n  teachers: {count: 1}"))
    recipe = load_recipe(tmp_path / "recipe.yaml")
    train(recipe, tmp_path / "run")
    for language, name in (("en", "en-de.txt"), ("de", "de-en.txt")):
        sources = (tmp_path / "run" / TEACHERS / name).read_text().splitlines()
        token = f">>{name[3:5]}<< "
        assert {line.removeprefix(token) for line in sources} == {
            *(tmp_path / f"train.{language}").read_text().splitlines()}
    corpora = Training(recipe, tmp_path / "run").prepared.counts
    assert [f"{LABEL} (en-de)", f"{LABEL} (de-en)"] == list(corpora)[2:]
    assert all(count["kept"] > 0 for count in corpora.values())
    languages = [corpus.languages for corpus in with_translated_text(recipe, tmp_path / "run").data.train]
    assert languages[2] is None and languages[3].pair == ("de", "en")          # for the filter `language: lingua`


def test_the_translations_have_the_weight_of_their_original_corpus(folder, tmp_path):
    write_corpus(tmp_path)
    corpora = ('train: [{source: train.en, target: train.de, weight: 3}, {source: valid.en, target: valid.de, '
               'weight: 0.5}, {source: train.en, target: train.de, weight: 3, limit: 5}]')
    (tmp_path / "recipe.yaml").write_text(RECIPE.replace("train: [{source: train.en, target: train.de}]",
                                                         corpora).replace(
        "threads: 1", "threads: 1\n  teachers: {count: 1}"))
    recipe = load_recipe(tmp_path / "recipe.yaml")
    train(recipe, tmp_path / "run")
    translated = with_translated_text(recipe, tmp_path / "run").data.train[3:]
    assert [(corpus.label, corpus.weight) for corpus in translated] == [
        (f"{LABEL} (sources_weight_3)", 3), (f"{LABEL} (sources_weight_0.5)", 0.5)]
    for corpus, original in zip(translated, ("train.en", "valid.en"), strict=True):
        lines = (tmp_path / original).read_text().splitlines()
        assert Path(corpus.source).read_text().splitlines() == list(dict.fromkeys(lines))
    kept = Training(recipe, tmp_path / "run").prepared.counts
    assert all(kept[corpus.label]["kept"] > 0 for corpus in translated)


def test_a_direction_without_original_pairs_has_no_text_for_teachers(folder):
    back = ("train: [{source: train.en, target: train.de}, {target: train.en, translated_by: run, languages: "
            "{source: de, target: en}}]")
    (folder / "back.yaml").write_text(DISTILLED.replace("train: [{source: train.en, target: train.de}]", back))
    recipe = load_recipe(folder / "back.yaml")
    assert len(recipe.directions) == 2
    assert [file.name for file in source_files(recipe, folder).values()] == ["en-de.txt"]


def test_a_moved_run_keeps_its_translations(folder, tmp_path, monkeypatch):
    shutil.copytree(folder / "run", tmp_path / "moved")
    (tmp_path / "moved" / TEACHERS / "sources.txt").touch()
    monkeypatch.setattr(synthetic_text, "_translate", None)
    recipe = load_recipe(folder / "recipe.yaml", ["training.max_steps=12"])
    train(recipe, tmp_path / "moved")
    assert len([*(tmp_path / "moved" / "synthetic").glob("*.txt")]) == 1


def test_a_run_that_is_moved_before_the_student_begins_keeps_its_teachers(folder, tmp_path, capsys):
    shutil.copytree(folder / "run" / TEACHERS, tmp_path / "moved" / TEACHERS)
    train(load_recipe(folder / "recipe.yaml"), tmp_path / "moved")
    assert "tokenizer.taken_from" in capsys.readouterr().err
    assert weights(tmp_path / "moved") == weights(folder / "run")


def test_check_says_what_its_figures_leave_out(folder, tmp_path):
    report = check_recipe(load_recipe(folder / "recipe.yaml"), tmp_path / "run", measured=True)
    assert not report.errors and report.measured
    assert any("2 teachers are trained before this model, with 11 steps each" in warning for warning in report.warnings)
    assert any(warning.startswith(f"{LABEL}: training will first translate") for warning in report.warnings)
    one = check_recipe(load_recipe(folder / "recipe.yaml", ["training.teachers.count=1"]), tmp_path / "run")
    assert any("1 teacher is trained before this model, with 11 steps. Time" in warning for warning in one.warnings)
    after = check_recipe(load_recipe(folder / "recipe.yaml"), folder / "run")
    assert not any(warning.startswith(LABEL) for warning in after.warnings)


def test_check_accepts_a_teacher_that_is_added_while_the_others_translate(folder, tmp_path):
    run, recipe = tmp_path / "run", load_recipe(folder / "recipe.yaml", ["training.teachers.count=3"])
    shutil.copytree(folder / "run" / TEACHERS, run / TEACHERS)                  # sources.txt and two teachers
    report = check_recipe(recipe, run)
    assert not report.errors
    assert f"{LABEL}: training will first translate this text" in "\n".join(report.warnings)


def test_keys_that_no_teacher_can_have_are_errors_with_their_line(folder):
    for model, message in (("{d_modle: 32}", "d_modle: unknown key. Did you mean 'd_model'?"),
                           ("{d_model: 33}", r"num_heads: d_model \(33\) cannot be divided into 2 heads"),
                           ("{type: [a]}", "type: expected 'transformer', 'rnn', .*; found a list"),
                           ("{dropout: 2}", "dropout: expected a number below 1; found 2"),
                           ("{base: small}", "base: write its keys instead"),
                           ("{type: language_model}", "type: a language_model cannot translate")):
        (folder / "wrong.yaml").write_text(DISTILLED.replace("{d_model: 32}", model))
        with pytest.raises(RecipeError, match=rf"wrong.yaml:\d+: training.teachers.model.{message}"):
            load_recipe(folder / "wrong.yaml")


@pytest.mark.parametrize("section", ["{ensemble: false}", "{max_steps: 5}", "{model: {d_model: 32}}", "{}"])
def test_a_section_without_a_number_of_teachers_is_refused(folder, section):
    (folder / "wrong.yaml").write_text(DISTILLED.replace("{count: 2, model: {d_model: 32}}", section))
    with pytest.raises(RecipeError, match=r"wrong.yaml:\d+: training.teachers.count: missing\. Number of teachers\."):
        load_recipe(folder / "wrong.yaml")
    assert not load_recipe(folder / "wrong.yaml", ["training.teachers.count=0"]).training.teachers.count


def test_a_fine_tuned_model_has_teachers_from_the_same_start(folder, tmp_path):
    text = "\n".join(line for line in RECIPE.splitlines() if not line.startswith(("tokenizer:", "model:")))
    (folder / "tuned.yaml").write_text(text.replace("threads: 1", "threads: 1\n  teachers: {count: 2}\n"
                                                                  "  start_from: run"))
    train(load_recipe(folder / "tuned.yaml"), tmp_path / "run")
    assert len(teachers_of(load_recipe(folder / "tuned.yaml"), tmp_path / "run")) == 2
    with pytest.raises(UserError):
        train(load_recipe(folder / "tuned.yaml", ["training.teachers.count=1"]), tmp_path / "run")


def weights(run: Path) -> dict[str, list[float]]:
    return {name: weight.tolist() for name, weight in load_bundle(run / "best").weights.items()}
