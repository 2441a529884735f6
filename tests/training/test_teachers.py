"""Ensemble distillation: one command trains teachers, translates the training text with their ensemble, and trains a
student with it."""

import shutil

import pytest
from toy import RECIPE, train_toy
from trainings import same

from seq2seq.check import check_recipe
from seq2seq.errors import RecipeError
from seq2seq.inference.load_model import as_tensors, read_model
from seq2seq.recipe import load_recipe
from seq2seq.signals import Stopped
from seq2seq.storage.checkpoints import list_checkpoints, load_bundle
from seq2seq.training import synthetic_text
from seq2seq.training.loop import TrainingLoop
from seq2seq.training.run import start_training, train
from seq2seq.training.teachers import LABEL, TEACHERS, source_files, teachers_of, text_of_teachers, write_sources
from seq2seq.translation.translator import Translator

SHORT = RECIPE.replace("max_steps: 11", "max_steps: 2\n  valid_sentences: 2").replace(
    "validate_every: 5", "validate_every: 2")
DISTILLED = SHORT.replace("threads: 1", "threads: 1\n  teachers: {count: 2, model: {d_model: 32}}")
PAIRS = "train: [{source: train.en, target: train.de}]"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Text, a recipe with two teachers, and its finished run."""
    folder = tmp_path_factory.mktemp("teachers")
    train_toy(folder, recipe=DISTILLED)
    return folder


def with_corpora(folder, corpora, *settings):
    """Load the recipe with other training corpora."""
    (folder / "other.yaml").write_text(DISTILLED.replace(PAIRS, f"train: [{corpora}]"))
    return load_recipe(folder / "other.yaml", settings)


def weights(run):
    return as_tensors(load_bundle(run / "best").weights)


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
    ensemble = Translator.load(folder / "run" / TEACHERS / "1", precision="reference",
                               ensemble=[folder / "run" / TEACHERS / "2"])
    found, = (folder / "run" / "synthetic").glob("*.txt")
    translations = [best.text for best, *_ in ensemble.translate(sources)]
    assert found.read_text().splitlines() == translations
    counts = start_training(load_recipe(folder / "recipe.yaml"), folder / "run").prepared.counts
    assert [(label, count["kept"]) for label, count in counts.items()] == [
        ("train.en", len(lines)), (LABEL, sum(map(bool, translations)))]        # cleaning drops empty ones


def test_each_teacher_translates_each_source_and_may_have_fewer_steps_than_the_student(folder, tmp_path):
    (folder / "each.yaml").write_text(DISTILLED.replace("count: 2,", "count: 2, ensemble: false, max_steps: 1,"))
    recipe, run = load_recipe(folder / "each.yaml"), tmp_path / "run"
    assert [teacher.training.max_steps for teacher, _ in teachers_of(recipe, run)] == [1, 1]
    shutil.copytree(folder / "run" / TEACHERS, run / TEACHERS)
    counts = start_training(recipe, run).prepared.counts
    sources = (run / TEACHERS / "sources.txt").read_text().splitlines()
    files = [path.read_text().splitlines() for path in (run / "synthetic").glob("*.txt")]
    assert len(files) == 2 and files[0] != files[1]
    for number in (1, 2):
        teacher = Translator.load(run / TEACHERS / str(number), precision="reference")
        found = [best for best, *_ in teacher.translate(sources)]
        assert [best.text for best in found] in files
        assert counts[f"translations of teacher {number}"]["kept"] == sum(
            bool(best.text) and not synthetic_text._unusable(best.faults) for best in found)


def test_a_run_that_was_stopped_in_a_teacher_and_moved_resumes_to_the_same_weights(folder, tmp_path, monkeypatch,
                                                                                  capsys):
    recipe, run = load_recipe(folder / "recipe.yaml"), tmp_path / "moved"
    shutil.copytree(folder / "run" / TEACHERS / "1", run / TEACHERS / "1")

    def step(self, *arguments):
        if self.run.name == "2" and self.state.step == 1:
            raise Stopped(15, "stopped")
        original(self, *arguments)

    original = TrainingLoop.update
    with monkeypatch.context() as patch, pytest.raises(Stopped):
        patch.setattr(TrainingLoop, "update", step)
        train(recipe, run)
    assert (run / TEACHERS / "2").exists() and not (run / "best").exists()
    capsys.readouterr()
    train(recipe, run)
    messages = capsys.readouterr().err
    assert f"{run / TEACHERS / '1'} has finished: " in messages
    assert "--restart" not in messages and "raise" not in messages              # these would affect all models
    assert same(weights(run), weights(folder / "run"))


def test_a_run_that_has_begun_leaves_its_teachers_and_translations_alone_even_if_it_moves(folder, tmp_path, monkeypatch,
                                                                                          capsys):
    run = shutil.copytree(folder / "run", tmp_path / "moved")
    (run / TEACHERS / "sources.txt").touch()
    before = {path: path.stat().st_mtime_ns for name in (TEACHERS, "synthetic") for path in (run / name).rglob("*")}
    monkeypatch.setattr(synthetic_text, "_translate", None)
    train(load_recipe(folder / "recipe.yaml", ["training.max_steps=3"]), run)
    assert "teacher 1" not in capsys.readouterr().err and list_checkpoints(run)[-1].name == "step-00000003"
    assert {path: path.stat().st_mtime_ns for path in before} == before


@pytest.mark.slow
def test_teachers_and_student_translate_a_monolingual_text_only_once(folder, tmp_path, monkeypatch):
    recipe = with_corpora(folder, "{source: train.en, target: train.de}, {source: valid.en, translated_by: run}",
                          "training.teachers.count=1")
    original, translated = synthetic_text._translate, []
    monkeypatch.setattr(synthetic_text, "_translate", lambda spec, *arguments: (
        translated.append(spec.label), original(spec, *arguments)))
    train(recipe, tmp_path / "run")
    assert translated == ["valid.en", LABEL]
    assert len([*(tmp_path / "run" / "synthetic").glob("*.txt")]) == 2
    assert not [*(tmp_path / "run" / TEACHERS).glob("*/synthetic")]
    counts = load_bundle(tmp_path / "run" / TEACHERS / "1" / "best").metadata["corpora"]
    assert counts["valid.en"]["kept"] > 0


def test_the_text_of_the_teachers_has_the_tags_of_its_corpora(folder, tmp_path):
    write_sources(with_corpora(folder, '{source: train.en, target: train.de, tag: "<A>"}'), tmp_path)
    sources = (tmp_path / TEACHERS / "sources.txt").read_text().splitlines()
    assert all(line.startswith("<A> ") and "<A> <A>" not in line for line in sources)


def test_teachers_translate_each_direction_apart(folder, tmp_path):
    recipe = with_corpora(folder, "{source: train.en, target: train.de}, "
                                  "{source: train.de, target: train.en, languages: {source: de, target: en}}")
    write_sources(recipe, tmp_path)
    for language, name in (("en", "en-de.txt"), ("de", "de-en.txt")):
        sources = (tmp_path / TEACHERS / name).read_text().splitlines()
        token = f">>{name[3:5]}<< "
        assert {line.removeprefix(token) for line in sources} == {
            *(folder / f"train.{language}").read_text().splitlines()}
    corpora = text_of_teachers(recipe, tmp_path)
    assert [corpus.label for corpus in corpora] == [f"{LABEL} (en-de)", f"{LABEL} (de-en)"]
    assert [recipe.languages_of(corpus).pair for corpus in corpora] == [("en", "de"), ("de", "en")]


def test_the_translations_have_the_weight_of_their_original_corpus(folder, tmp_path):
    recipe = with_corpora(folder, "{source: train.en, target: train.de, weight: 3}, "
                                  "{source: valid.en, target: valid.de, weight: 0.5}, "
                                  "{source: train.en, target: train.de, weight: 3, limit: 5}")
    write_sources(recipe, tmp_path)
    translated = text_of_teachers(recipe, tmp_path)
    assert [(corpus.label, corpus.weight) for corpus in translated] == [
        (f"{LABEL} (sources_weight_3)", 3), (f"{LABEL} (sources_weight_0.5)", 0.5)]
    for name, original in (("sources_weight_3", "train.en"), ("sources_weight_0.5", "valid.en")):
        lines = (folder / original).read_text().splitlines()
        assert (tmp_path / TEACHERS / f"{name}.txt").read_text().splitlines() == list(dict.fromkeys(lines))


def test_a_direction_without_original_pairs_has_no_text_for_teachers(folder):
    recipe = with_corpora(folder, "{source: train.en, target: train.de}, {target: train.en, translated_by: run, "
                                  "languages: {source: de, target: en}}")
    assert len(recipe.directions) == 2
    assert [file.name for file in source_files(recipe, folder).values()] == ["en-de.txt"]


def test_check_says_what_its_figures_leave_out(folder, tmp_path):
    report = check_recipe(load_recipe(folder / "recipe.yaml"), tmp_path / "run", measured=True)
    assert not report.errors and report.measured
    assert any("2 teachers are trained before this model, with 2 steps each" in warning for warning in report.warnings)
    assert any(warning.startswith(f"{LABEL}: training will first translate") for warning in report.warnings)
    after = check_recipe(load_recipe(folder / "recipe.yaml"), folder / "run")
    assert not any(warning.startswith(LABEL) for warning in after.warnings)


def test_check_accepts_a_teacher_that_is_added_while_the_others_translate(folder, tmp_path):
    run, recipe = tmp_path / "run", load_recipe(folder / "recipe.yaml", ["training.teachers.count=3"])
    shutil.copytree(folder / "run" / TEACHERS, run / TEACHERS)                  # sources.txt and two teachers
    report = check_recipe(recipe, run)
    assert not report.errors
    assert f"{LABEL}: training will first translate this text" in "\n".join(report.warnings)


@pytest.mark.parametrize(("section", "key"), [
    ("{count: 2, model: {d_modle: 32}}", "training.teachers.model.d_modle"),
    ("{count: 2, model: {d_model: 33}}", "model.num_heads"),
    ("{count: 2, model: {type: [a]}}", "training.teachers.model.type"),
    ("{count: 2, model: {dropout: 2}}", "training.teachers.model.dropout"),
    ("{count: 2, model: {base: small}}", "training.teachers.model.base"),
    ("{count: 2, model: {type: language_model}}", "training.teachers.model.type"),
    ("{ensemble: false}", "training.teachers.count"),
    ("{max_steps: 5}", "training.teachers.count"),
    ("{model: {d_model: 32}}", "training.teachers.count"),
    ("{}", "training.teachers.count"),
])
def test_keys_that_no_teacher_can_have_and_a_missing_number_are_errors_with_their_line(folder, section, key):
    (folder / "wrong.yaml").write_text(DISTILLED.replace("{count: 2, model: {d_model: 32}}", section))
    with pytest.raises(RecipeError, match=rf"wrong.yaml:\d+: {key}: "):
        load_recipe(folder / "wrong.yaml")


def test_a_fine_tuned_model_has_teachers_from_the_same_start(folder, tmp_path):
    text = "\n".join(line for line in SHORT.splitlines() if not line.startswith(("tokenizer:", "model:")))
    (folder / "tuned.yaml").write_text(text.replace("threads: 1", "threads: 1\n  teachers: {count: 2}\n"
                                                                  "  start_from: run"))
    _, (teacher, run) = teachers_of(load_recipe(folder / "tuned.yaml"), tmp_path / "run")
    training = start_training(teacher, run)
    assert same(dict(zip(training.step.names, training.step.weights, strict=True)), weights(folder / "run"))
