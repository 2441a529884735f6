"""Back-translation and distillation: a model generates the missing side of a corpus once, reproducibly line by line."""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from bundle_metadata import change_metadata
from random_models import save_random_model, trained_tokenizers
from toy import RECIPE, copy_finished_run

from seq2seq.check import check_recipe
from seq2seq.data.preparation import reuse_tokenizers
from seq2seq.errors import CheckpointError, CorpusError, RecipeError
from seq2seq.formats.placeholders import Placeholders
from seq2seq.recipe import DecodingSection, load_recipe
from seq2seq.storage.checkpoints import best_bundle, load_bundle, save_bundle
from seq2seq.training import synthetic_text as synthetic
from seq2seq.training.run import start_training, train
from seq2seq.training.synthetic_text import training_text
from seq2seq.translation.translator import Translator
from seq2seq.translation.unfinished_output import UnfinishedOutput

LINES = ["two cat", "red", "", "dog and cat and dog", "not blue three"]
PAIRS = "[{source: train.de, target: train.en}]"
REVERSED = RECIPE.replace("source: en, target: de", "source: de, target: en")
for _name in ("train", "valid"):
    REVERSED = REVERSED.replace(f"source: {_name}.en, target: {_name}.de", f"source: {_name}.de, target: {_name}.en")


def changed_model(bundle, place, factor):
    best = load_bundle(bundle)
    weights = {name: factor * weight for name, weight in best.weights.items()}
    shutil.rmtree(place, ignore_errors=True)
    return save_bundle(place, weights, best.recipe_text, best.tokenizer_files, best.metadata)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Text, two English-German models, and a German-English recipe that uses the first one for back-translation."""
    folder = tmp_path_factory.mktemp("synthetic")
    run = copy_finished_run(folder)
    changed_model(best_bundle(run), folder / "second", 1.1)
    (folder / "mono.en").write_text("".join(f"{line}\n" for line in LINES))
    (folder / "recipe.yaml").write_text(REVERSED.replace(PAIRS, '[{source: train.de, target: train.en}, '
                                                                '{target: mono.en, translated_by: run, tag: "<BT>"}]'))
    (folder / "forward.yaml").write_text(RECIPE)
    return folder


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """The runs of other tests, which lie beside those of a test, are not searched."""
    monkeypatch.setattr(synthetic, "_taken_from_another_run", lambda translation: False)


@pytest.fixture
def recipe(folder):
    return lambda *settings: load_recipe(folder / "recipe.yaml", settings)


@pytest.fixture
def without_translator(monkeypatch):
    """Function that makes every further translation fail."""
    return lambda: monkeypatch.setattr(synthetic, "Translator", None)


def made(recipe, run):
    *_, spec = training_text(recipe, run).corpora
    return spec, Path(spec.source).read_text()


def translated(model, lines=LINES, **options):
    return [best.text for best, *_ in Translator.load(model, precision="reference").translate(lines, **options)]


def test_back_translation_samples_sources_for_targets(folder, recipe, tmp_path):
    spec, text = made(recipe(), tmp_path)
    assert text.splitlines() == translated(folder / "run", sampling=True) and text.splitlines()[2] == ""
    assert spec.target == "mono.en" and spec.tag == "<BT>" and spec.label == "mono.en"
    assert made(recipe("data.train.1.sampling=false"), tmp_path)[1].splitlines() == translated(folder / "run") != text


def test_a_text_whose_translations_are_mostly_alike_is_warned_of(tmp_path, capsys):
    for number, line in enumerate(("{0}", "same {0}", "always the same")):
        rows = "".join(f"{json.dumps([line.format(count % (8 if number else 100)), ''])}\n" for count in range(17))
        unfinished = SimpleNamespace(joined=lambda rows=rows: [rows], delete_parts=lambda: None)
        synthetic._join_blocks(unfinished, tmp_path / f"{number}.txt", "mono")
        assert ("translations are different" in capsys.readouterr().err) == bool(number)


def test_several_models_translate_as_an_ensemble(folder, recipe, tmp_path):
    settings = f"data.train.1.translated_by=[{folder}/run, {folder}/second]", "data.train.1.sampling=false"
    spec, found = made(recipe(*settings), tmp_path)
    ensemble = Translator.load(folder / "run", precision="reference", ensemble=[folder / "second"])
    assert found.splitlines() == [best.text for best, *_ in ensemble.translate(LINES)]
    assert made(recipe(settings[1]), tmp_path)[0].source != spec.source


def test_distillation_translates_sources_with_beam_search(folder, tmp_path):
    recipe = load_recipe(folder / "forward.yaml", [
        f"data.train=[{{source: {folder / 'mono.en'}, translated_by: {folder / 'run'}}}]"])
    spec = training_text(recipe, tmp_path).corpora[0]
    assert Path(spec.target).read_text().splitlines() == translated(folder / "run")


def test_synthetic_text_is_generated_once_whatever_the_scores_description_or_date_of_its_inputs(
        folder, recipe, tmp_path, monkeypatch, without_translator):
    model = changed_model(best_bundle(folder / "run"), tmp_path / "model", 1.0)
    using = recipe(f"data.train.1.translated_by={model}")
    spec, expected = made(using, tmp_path)
    best = load_bundle(model)

    def save(old, new):
        shutil.rmtree(model)
        save_bundle(model, best.weights, best.recipe_text.replace(old, new), best.tokenizer_files, best.metadata)

    save("name: tiny", "name: tiny\nlicense: CC0-1.0")
    change_metadata(model, test={"small": {"bleu": {"value": 1.5}}})
    os.utime(folder / "mono.en", (1, 1))
    with monkeypatch.context() as patch:
        patch.setattr(synthetic, "Translator", None)
        assert made(using, tmp_path) == (spec, expected)
    save("beam_size: 2", "beam_size: 3")                                        # changes translations
    assert made(using, tmp_path)[0].source != spec.source


def test_text_that_another_run_has_generated_is_copied_by_its_key(recipe, tmp_path, monkeypatch, without_translator):
    monkeypatch.undo()
    using = recipe()
    first, text = made(using, tmp_path / "first")
    assert re.fullmatch(r"mono\.de-en\.[0-9a-f]{16}\.txt|mono\.en-de\.[0-9a-f]{16}\.txt", Path(first.source).name)
    Path(first.source).rename(Path(first.source).with_name(Path(first.source).name.replace("mono", "renamed")))
    description = synthetic._description_file(Path(first.source))
    description.rename(description.with_name(description.name.replace("mono", "renamed")))
    without_translator()
    copied, same = made(using, tmp_path / "second")
    assert same == text and Path(copied.source).name == Path(first.source).name and copied.faulty == first.faulty
    assert Path(copied.source).is_relative_to(tmp_path / "second")              # a run can be moved alone
    for damaged in tmp_path.glob("*/synthetic/*.txt"):
        damaged.write_text("other")
    with pytest.raises(AttributeError):                                         # it would be generated again
        made(using, tmp_path / "third")
    with pytest.raises(AttributeError):
        made(recipe("data.train.1.limit=2"), tmp_path / "fourth")


def test_damaged_synthetic_text_is_never_trained_on(recipe, tmp_path):
    spec, _ = made(recipe(), tmp_path)
    contents = bytearray(Path(spec.source).read_bytes())
    contents[len(contents) // 2] ^= 1
    Path(spec.source).write_bytes(contents)
    with pytest.raises(CheckpointError):
        train(recipe(), tmp_path)


@pytest.mark.parametrize(("damaged", "repeated"), [(False, 3), (True, 5)])
def test_synthetic_text_of_an_interrupted_run_is_kept_unless_it_is_damaged(recipe, tmp_path, monkeypatch, damaged,
                                                                          repeated):
    expected = made(recipe(), tmp_path / "whole")[1]
    monkeypatch.setattr(synthetic, "BLOCK_LINES", 2)
    write, translate, lines = UnfinishedOutput.write, Translator.translate, []

    def interrupted(*arguments):
        write(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(UnfinishedOutput, "write", interrupted)
        made(recipe(), tmp_path / "parted")
    part, = (tmp_path / "parted" / "synthetic").glob("*.part.0")
    contents = bytearray(part.read_bytes())
    contents[-3] ^= damaged
    part.write_bytes(contents)
    monkeypatch.setattr(Translator, "translate", lambda self, requests, **options: (
        lines.extend(requests), translate(self, requests, **options))[1])
    assert made(recipe(), tmp_path / "parted")[1] == expected
    assert len(lines) == repeated and not part.exists()


def test_synthetic_text_is_generated_on_the_device_of_the_training(recipe, tmp_path, monkeypatch):
    asked = []

    def load(path, device, **options):
        asked.append(device)
        return Translator.load(path, "cpu", **options)

    monkeypatch.setattr(synthetic, "Translator", SimpleNamespace(load=load))
    made(recipe("training.device=cuda:1"), tmp_path)
    assert asked == ["cuda:1"]


@pytest.mark.parametrize("own", [
    {"sampling": True, "top_k": 5, "mbr": 32}, {"diverse_groups": 5}, {"require": ("Katze",)}, {"mbr": 3, "n_best": 2}])
def test_sampling_of_synthetic_text_follows_the_recipe_instead_of_the_model(own):
    own = DecodingSection(**own)
    for samples in (True, False):
        options = DecodingSection.model_validate({**own.model_dump(), **synthetic._options(own, samples)})
        assert (options.sampling, options.n_best) == (samples, 1)


def test_a_model_of_another_direction_or_task_and_a_text_without_lines_are_refused_by_check_and_training(
        folder, recipe, tmp_path):
    text = REVERSED.replace("source: de, target: en", "target: de").replace("encoder_layers: 1", "type: language_model")
    text = text.replace("vocab_size: auto", "vocab_size: 270").replace(PAIRS, "[{text: train.de}]")
    text = text.replace("{source: valid.de, target: valid.en}", "{text: valid.de}")
    model = save_random_model(tmp_path / "model", text, trained_tokenizers(text, [("", "eins zwei drei")] * 9), 1)
    (tmp_path / "empty.en").write_text(" \n\n")
    for wrong, error, place in (
            (f"data.train.1.translated_by={model}", RecipeError, "data.train.1: "),
            ("languages={source: en, target: de}", RecipeError, "data.train.1: "),
            (f"data.train=[{{source: {folder / 'mono.en'}, translated_by: {folder / 'run'}}}]", RecipeError,
             "data.train.0: "),
            (f"data.train.1.target={tmp_path / 'empty.en'}", CorpusError, str(tmp_path / "empty.en"))):
        for start in (check_recipe, training_text):
            with pytest.raises(error, match=f"^{place}"):
                start(recipe(wrong), tmp_path)


def test_language_codes_may_be_written_differently(recipe, tmp_path, without_translator):
    expected = made(recipe(), tmp_path)
    without_translator()
    assert made(recipe("languages={source: ger, target: eng}"), tmp_path)[1] == expected[1]


@pytest.mark.parametrize("name", ["mono[1]", "mono*"])
def test_file_names_are_not_interpreted_as_patterns(folder, recipe, tmp_path, name):
    for stem, text in (("mono1", "blue\n"), ("mono2", "blue\n"), (name, "two cat\n")):
        (tmp_path / f"{stem}.en").write_text(text)
    (tmp_path / "model1").mkdir()
    (tmp_path / "model[1]").symlink_to(folder / "run")
    model = f"{tmp_path}/model[1]"
    settings = (f"data.train=[{{target: '{tmp_path / name}.en', translated_by: '{model}', sampling: false}}]",
                f"tokenizer.taken_from={model}")
    assert made(recipe(*settings), tmp_path)[1].splitlines() == translated(folder / "run", ["two cat"])
    assert reuse_tokenizers(recipe(*settings)).joint


def test_synthetic_pairs_are_trained_on_with_their_tag(recipe, tmp_path):
    training = start_training(recipe(), tmp_path)
    assert training.prepared.counts["mono.en"]["lines"] == len(LINES)
    # The tag is no text: what was translated into nothing is empty.
    assert training.prepared.counts["mono.en"]["dropped"]["empty"] >= 1
    sides = training.prepared.corpus.source
    last = sides.ids[sides.offsets[-2]:sides.offsets[-1]].tolist()
    assert training.tokenizers.source.decode([last])[0].startswith("<BT> ")


def test_a_run_does_not_go_on_with_translations_of_a_changed_model(folder, recipe, tmp_path):
    model = changed_model(best_bundle(folder / "run"), tmp_path / "model", 1.0)
    using = recipe(f"data.train.1.translated_by={model}", "training.max_steps=1")
    train(using, tmp_path / "new")
    changed_model(model, model, -1.0)
    with pytest.raises(CheckpointError):
        train(using, tmp_path / "new")


def test_check_reports_synthetic_text_that_does_not_exist_yet(folder, recipe, tmp_path):
    report = check_recipe(recipe(), tmp_path)
    assert [corpus.label for corpus in report.corpora if corpus.role == "train"] == ["train.de"]
    assert any(warning.startswith("mono.en: training will first translate this text") for warning in report.warnings)
    alone = check_recipe(recipe("data.cleaning.max_characters=1"), tmp_path)
    assert not alone.errors and any(warning.startswith("train: no pair is left") for warning in alone.warnings)
    training_text(recipe(), tmp_path)
    assert [corpus.label for corpus in check_recipe(recipe(), tmp_path).corpora if corpus.role == "train"] == [
        "train.de", "mono.en"]
    only = load_recipe(folder / "forward.yaml", [
        f"data.train=[{{source: {folder / 'mono.en'}, translated_by: {folder / 'run'}}}]"])
    assert not check_recipe(only, tmp_path).errors


# `torchrun` starts this; blocks are small, so that both ranks translate.
RANK = """
import sys
from dataclasses import replace
from pathlib import Path
from seq2seq.recipe import load_recipe
from seq2seq.training import synthetic_text
from seq2seq.training.distributed import join_process_group
from seq2seq.translation.translator import Translator
synthetic_text.BLOCK_LINES = 2
synthetic_text._taken_from_another_run = lambda translation: False
original, blocks = Translator.translate, []
Translator.translate = lambda self, *arguments, **options: blocks.append(1) or original(self, *arguments, **options)
with join_process_group("cpu") as group:
    text = synthetic_text.training_text(load_recipe(Path("recipe.yaml")), Path(sys.argv[1]), group)
    shares = group.gather([len(blocks)])
    if group.is_main:                                   # only the main rank reads the text
        print(*shares, Path(text.corpora[1].source).exists())
    else:
        assert text.corpora[1].source is None
"""


@pytest.mark.slow
def test_any_number_of_ranks_generates_the_same_text(folder, tmp_path):
    (tmp_path / "rank.py").write_text(RANK)
    texts = []
    for ranks, expected in ((1, "3 True"), (2, "2 1 True"), (3, "1 1 1 True")):
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        done = subprocess.run([*command, tmp_path / "rank.py", tmp_path / f"by{ranks}"], cwd=folder, timeout=120,
                              capture_output=True, text=True, check=False,
                              env={**os.environ, "OMP_NUM_THREADS": "1"})
        assert done.stdout.strip() == expected, done.stderr
        texts += [path.read_bytes() for path in (tmp_path / f"by{ranks}" / "synthetic").glob("*.txt")]
    assert len(texts) == 3 and len(set(texts)) == 1 and texts[0].count(b"\n") == len(LINES)


MARKED = ["{name} sees two cat", "one <b>dog</b> and %s", "https://a.b/c hears red", "two {name} and {x}"] * 5


@pytest.mark.parametrize("sampling", ["true", "false"])
def test_generated_lines_keep_their_placeholders_and_tags(recipe, folder, tmp_path, sampling):
    text = tmp_path / "marked.en"
    text.write_text("".join(f"{line}\n" for line in MARKED))
    _, found = made(recipe(f"data.train.1.target={text}", f"data.train.1.sampling={sampling}"), tmp_path / "run")
    lines, counts = found.splitlines(), Placeholders().counts
    assert len(lines) == len(MARKED) and all(counts(line) >= counts(source) for line, source in zip(lines, MARKED,
                                                                                                    strict=True))


def faulty_translations(monkeypatch):
    """Let every translation have the faults that the words of its line name, such as cat for a loop."""
    faults = {"cat": "loop", "dog": "lost_number", "red": "copied", "three": "lost_url"}

    def translate(self, sources, **options):
        assert options.get("safety_net", True)
        return [[replace(best, faults=tuple(fault for word, fault in faults.items() if word in source.text)), *others]
                for source, (best, *others) in zip(sources, original(self, sources, **options), strict=True)]

    original = Translator.translate
    monkeypatch.setattr(Translator, "translate", translate)


def test_translations_with_faults_are_no_training_pairs_and_are_counted(recipe, tmp_path, monkeypatch, capsys):
    faulty_translations(monkeypatch)
    using, run = recipe("training.max_steps=2"), tmp_path / "run"
    spec, text = made(using, run)
    assert text.count("\n") == len(LINES) and spec.faulty == {1: "loop", 2: "copied", 4: "loop"}
    told = capsys.readouterr().err
    assert "3 of 5 translations" in told and "2 loop" in told and "1 copied" in told
    train(using, run)
    counts = load_bundle(best_bundle(run)).metadata["corpora"]["mono.en"]
    assert counts["dropped"] == {"loop": 2, "copied": 1, "empty": 1} and counts["kept"] == 1
    assert counts["lines"] == len(LINES)


def test_the_faults_of_a_generated_text_are_the_same_after_an_interruption(recipe, tmp_path, monkeypatch):
    faulty_translations(monkeypatch)
    spec, text = made(recipe(), tmp_path / "whole")
    monkeypatch.setattr(synthetic, "BLOCK_LINES", 2)
    write = UnfinishedOutput.write

    def interrupted(*arguments):
        write(*arguments)
        raise KeyboardInterrupt

    for _ in range(2):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(UnfinishedOutput, "write", interrupted)
            made(recipe(), tmp_path / "parted")
    again, same = made(recipe(), tmp_path / "parted")
    assert (again.faulty, same) == (spec.faulty, text)
    assert made(recipe(), tmp_path / "parted")[0].faulty == spec.faulty         # read again
