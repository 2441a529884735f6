"""Back-translation and distillation: a model generates the missing side of a corpus once, reproducibly line by line."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from toy import RECIPE, write_corpus

from seq2seq.check import check_recipe
from seq2seq.data.preparation import reuse_tokenizers
from seq2seq.errors import CheckpointError, CorpusError, RecipeError
from seq2seq.recipe import DecodingSection, load_recipe
from seq2seq.storage.checkpoints import load_bundle, save_bundle, update_bundle_metadata
from seq2seq.training import synthetic_text as synthetic
from seq2seq.training.synthetic_text import with_synthetic_text
from seq2seq.training.trainer import Training, train
from seq2seq.translation.translator import Translator

LINES = ["zwei Katze", "rot", "", "Hund und Katze und Hund", "nicht blau drei"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Text, a German-English model, and an English-German recipe that uses it for back-translation."""
    folder = tmp_path_factory.mktemp("synthetic")
    write_corpus(folder)
    reverse = RECIPE.replace("source: en, target: de", "source: de, target: en").replace("name: tiny", "name: reverse")
    for name in ("train", "valid"):
        reverse = reverse.replace(f"source: {name}.en, target: {name}.de", f"source: {name}.de, target: {name}.en")
    (folder / "reverse.yaml").write_text(reverse)
    train(load_recipe(folder / "reverse.yaml"), folder / "reverse")
    (folder / "mono.de").write_text("".join(f"{line}\n" for line in LINES))
    (folder / "recipe.yaml").write_text(RECIPE.replace(
        "[{source: train.en, target: train.de}]", '[{source: train.en, target: train.de}, '
        '{target: mono.de, translated_by: reverse, tag: "<BT>"}]'))
    return folder


def made(recipe, folder):
    *_, spec = with_synthetic_text(recipe, folder).data.train
    return spec, Path(spec.source).read_text()


def test_back_translation_samples_sources_for_targets(folder, tmp_path):
    recipe = load_recipe(folder / "recipe.yaml")
    spec, text = made(recipe, tmp_path)
    assert text.count("\n") == len(LINES)
    assert text.splitlines()[2] == ""
    assert spec.target == "mono.de" and spec.tag == "<BT>" and spec.label == "mono.de"
    sampled = Translator.load(folder / "reverse").translate(LINES, sampling=True)
    assert text.splitlines() == [best.text for best, *_ in sampled]
    searched = with_synthetic_text(load_recipe(folder / "recipe.yaml", ["data.train.1.sampling=false"]), tmp_path)
    assert Path(searched.data.train[1].source).read_text() != text


def test_several_models_translate_as_an_ensemble(folder, tmp_path):
    second = load_recipe(folder / "reverse.yaml", ["seed=2", "tokenizer.taken_from=" + str(folder / "reverse")])
    train(second, folder / "second")
    text = (folder / "recipe.yaml").read_text().replace("translated_by: reverse", "translated_by: [reverse, second]")
    (folder / "ensemble.yaml").write_text(text)
    recipe = load_recipe(folder / "ensemble.yaml", ["data.train.1.sampling=false"])
    _, found = made(recipe, tmp_path)
    ensemble = Translator.load(folder / "reverse", ensemble=[folder / "second"])
    assert found.splitlines() == [best.text for best, *_ in ensemble.translate(LINES)]
    alone = load_recipe(folder / "recipe.yaml", ["data.train.1.sampling=false"])
    assert made(alone, tmp_path)[0].source != made(recipe, tmp_path)[0].source
    assert recipe.resolve().data.train[1].translated_by == (str(folder / "reverse"), str(folder / "second"))
    (folder / "ensemble.yaml").write_text(text.replace("[reverse, second]", "[reverse, thrid]"))
    with pytest.raises(RecipeError, match=r"ensemble.yaml:\d+: data.train.1.translated_by.1: there is no directory"):
        load_recipe(folder / "ensemble.yaml")
    (folder / "ensemble.yaml").write_text(text.replace("[reverse, second]", "[]"))
    with pytest.raises(RecipeError, match=r"translated_by: expected at least one item"):
        load_recipe(folder / "ensemble.yaml")


def test_synthetic_text_is_generated_once(folder, tmp_path, monkeypatch):
    recipe = load_recipe(folder / "recipe.yaml")
    _, text = made(recipe, tmp_path)
    monkeypatch.setattr(synthetic, "Translator", None)
    assert made(recipe, tmp_path)[1] == text


def flip(path):
    contents = bytearray(path.read_bytes())
    contents[len(contents) // 2] ^= 1
    path.write_bytes(contents)


def leave(part): ...


def test_damaged_synthetic_text_is_refused_until_it_is_deleted(folder, tmp_path):
    recipe = load_recipe(folder / "recipe.yaml", ["training.max_steps=2"])
    spec, text = made(recipe, tmp_path / "synthetic")
    flip(Path(spec.source))
    for refused in (lambda: train(recipe, tmp_path), lambda: check_recipe(recipe, tmp_path)):
        with pytest.raises(CheckpointError):
            refused()
    Path(spec.source).unlink()
    assert made(recipe, tmp_path / "synthetic")[1] == text


@pytest.mark.parametrize("change", [flip, lambda part: synthetic._journal(part).unlink(), leave],
                         ids=["damaged", "without journal", "intact"])
def test_unfinished_synthetic_text_is_continued_if_it_is_intact(folder, tmp_path, capsys, change):
    recipe = load_recipe(folder / "recipe.yaml")
    spec, text = made(recipe, tmp_path)
    path = Path(spec.source)
    part = path.with_suffix(".part")
    path.rename(part)
    synthetic._journal(path).rename(synthetic._journal(part))
    with part.open("ab") as file:
        file.write(b"the start of a li")
    change(part)
    capsys.readouterr()
    assert made(recipe, tmp_path)[1] == text
    assert ("damaged" in capsys.readouterr().err) == (change is not leave)
    assert not part.exists()


def test_new_scores_in_the_metadata_do_not_regenerate_synthetic_text(folder, tmp_path, monkeypatch):
    recipe = load_recipe(folder / "recipe.yaml")
    _, text = made(recipe, tmp_path)
    update_bundle_metadata(folder / "reverse" / "best", test={"small": {"measured": "by seq2seq evaluate"}})
    monkeypatch.setattr(synthetic, "Translator", None)
    assert made(recipe, tmp_path)[1] == text


def test_a_description_and_a_new_date_do_not_regenerate_synthetic_text(folder, tmp_path, monkeypatch):
    text = (folder / "recipe.yaml").read_text()
    (folder / "described.yaml").write_text(text.replace("translated_by: reverse", "translated_by: described"))
    shutil.copytree(folder / "reverse", folder / "described")
    recipe = load_recipe(folder / "described.yaml")
    spec, expected = made(recipe, tmp_path)
    best = load_bundle(folder / "described" / "best")

    def save(old, new):
        save_bundle(folder / "described" / "best", best.weights, best.recipe_text.replace(old, new),
                    best.tokenizer_files, best.metadata)

    save("name: reverse", "name: reverse\nlicense: CC0-1.0")
    os.utime(folder / "mono.de", (1, 1))
    with monkeypatch.context() as patch:
        patch.setattr(synthetic, "Translator", None)
        assert made(recipe, tmp_path) == (spec, expected)
    save("beam_size: 2", "beam_size: 3")                                        # changes translations
    assert made(recipe, tmp_path)[0].source != spec.source


def test_synthetic_text_is_generated_on_the_device_of_the_training(folder, tmp_path, monkeypatch):
    asked = []

    def load(path, device, **options):
        asked.append(device)
        return Translator.load(path, "cpu", **options)

    monkeypatch.setattr(synthetic, "Translator", SimpleNamespace(load=load))
    made(load_recipe(folder / "recipe.yaml", ["training.device=cuda:1"]), tmp_path)
    assert asked == ["cuda:1"]


@pytest.mark.parametrize("own", [
    {"sampling": True, "top_k": 5, "mbr": 32}, {"diverse_groups": 5}, {"require": ("Katze",)}, {"mbr": 3, "n_best": 2}])
def test_sampling_of_synthetic_text_follows_the_recipe_instead_of_the_model(own):
    own = DecodingSection(**own)
    for samples in (True, False):
        options = DecodingSection.model_validate({**own.model_dump(), **synthetic._options(own, samples)})
        assert (options.sampling, options.n_best) == (samples, 1)


def test_distillation_translates_sources_with_beam_search(folder, tmp_path):
    recipe = load_recipe(folder / "reverse.yaml", [
        f"data.train=[{{source: {folder / 'mono.de'}, translated_by: {folder / 'reverse'}}}]"])
    spec = with_synthetic_text(recipe, tmp_path).data.train[0]
    found = Translator.load(folder / "reverse").translate(LINES)
    assert Path(spec.target).read_text().splitlines() == [best.text for best, *_ in found]


def test_a_model_of_the_other_direction_is_refused(folder, tmp_path):
    corpus = f"{{source: {folder / 'mono.de'}, translated_by: {folder / 'reverse'}}}"
    recipe = load_recipe(folder / "recipe.yaml", [f"data.train=[{corpus}]"])
    with pytest.raises(RecipeError, match="translates from de to en; .* needs a model from en to de"):
        with_synthetic_text(recipe, tmp_path)


def test_the_error_about_a_model_of_the_other_direction_names_the_key_of_its_corpus(folder, tmp_path):
    recipe = load_recipe(folder / "recipe.yaml", ["languages={source: de, target: en}"])
    with pytest.raises(RecipeError) as refused:
        with_synthetic_text(recipe, tmp_path)
    assert str(refused.value) == (
        f"data.train.1: {folder / 'reverse' / 'best'} translates from de to en; the corpus mono.de needs a model from "
        "en to de. Name such a model in `translated_by`, or correct the side of the text: `target` is text in en.")


@pytest.mark.parametrize("text", ["", " \n\n"])
def test_an_empty_text_to_translate_is_refused_by_name(folder, tmp_path, text):
    (tmp_path / "empty.de").write_text(text)
    recipe = load_recipe(folder / "recipe.yaml", [f"data.train.1.target={tmp_path / 'empty.de'}"])
    for start in (lambda: check_recipe(recipe, tmp_path), lambda: with_synthetic_text(recipe, tmp_path / "synthetic")):
        with pytest.raises(CorpusError, match=r"empty\.de has no text to translate. Correct the file, or leave this"):
            start()


def test_a_language_model_is_refused(folder, tmp_path):
    data = f"{{train: [{{text: {folder / 'train.de'}}}], valid: {{text: {folder / 'valid.de'}}}}}"
    train(load_recipe(folder / "recipe.yaml", ["languages={target: de}", f"data={data}", "model.type=language_model",
                                               "tokenizer.vocab_size=280", "training.max_steps=1"]), tmp_path / "lm")
    recipe = load_recipe(folder / "recipe.yaml", [f"data.train.1.translated_by={tmp_path / 'lm'}"])
    with pytest.raises(RecipeError, match="best is a language model; the corpus .* needs a model from de to en"):
        with_synthetic_text(recipe, tmp_path)


def test_language_codes_may_be_written_differently(folder, tmp_path):
    recipe = load_recipe(folder / "recipe.yaml", ["languages={source: eng, target: ger}"])
    assert made(recipe, tmp_path)[1] == made(load_recipe(folder / "recipe.yaml"), tmp_path)[1]


@pytest.mark.parametrize("name", ["mono[1]", "mono*"])
def test_file_names_are_not_interpreted_as_patterns(folder, tmp_path, name):
    for stem, text in (("mono1", "blau\n"), ("mono2", "blau\n"), (name, "zwei Katze\n")):
        (tmp_path / f"{stem}.de").write_text(text)
    (tmp_path / "model1").mkdir()
    (tmp_path / "model[1]").symlink_to(folder / "reverse")
    recipe = load_recipe(folder / "recipe.yaml", [
        f"data.train=[{{target: '{tmp_path / name}.de', translated_by: '{tmp_path}/model[1]', sampling: false}}]",
        f"tokenizer.taken_from={tmp_path}/model[1]"])
    assert made(recipe, tmp_path / "made")[1].splitlines() == [
        best.text for best, *_ in Translator.load(folder / "reverse").translate(["zwei Katze"])]
    assert reuse_tokenizers(recipe).joint


def test_synthetic_pairs_are_trained_on_with_their_tag(folder, tmp_path):
    training = Training(load_recipe(folder / "recipe.yaml"), tmp_path / "run")
    assert training.prepared.counts["mono.de"]["lines"] == len(LINES)
    # The tag is no text: what was translated into nothing is empty.
    assert training.prepared.counts["mono.de"]["dropped"]["empty"] >= 1
    sides = training.corpus.source
    last = sides.ids[sides.offsets[-2]:sides.offsets[-1]].tolist()
    assert training.tokenizers.source.decode([last])[0].startswith("<BT> ")


def test_a_run_does_not_go_on_with_translations_of_a_changed_model(folder, tmp_path):
    shutil.copytree(folder / "reverse", tmp_path / "reverse")
    settings = [f"data.train.1.translated_by={tmp_path / 'reverse'}", "training.max_steps=2"]
    train(load_recipe(folder / "recipe.yaml", settings), tmp_path / "run")
    bundle = load_bundle(tmp_path / "reverse" / "best")
    weights = {name: -weight for name, weight in bundle.weights.items()}
    save_bundle(bundle.directory, weights, bundle.recipe_text, bundle.tokenizer_files, bundle.metadata)
    with pytest.raises(CheckpointError, match=r"a file or a model of data\.train has changed since"):
        train(load_recipe(folder / "recipe.yaml", settings), tmp_path / "run")


def test_check_refuses_a_model_of_another_direction_as_training_does(folder, tmp_path):
    wrong = load_recipe(folder / "recipe.yaml", [
        f"data.train=[{{source: {folder / 'mono.de'}, translated_by: {folder / 'reverse'}}}]"])
    for start in (lambda: check_recipe(wrong, tmp_path), lambda: with_synthetic_text(wrong, tmp_path / "synthetic")):
        with pytest.raises(RecipeError, match=r"from de to en; the corpus .*mono\.de needs a model from en to de"):
            start()


def test_check_reports_synthetic_text_that_does_not_exist_yet(folder, tmp_path):
    recipe = load_recipe(folder / "recipe.yaml")
    report = check_recipe(recipe, tmp_path)
    assert [corpus.label for corpus in report.corpora if corpus.role == "train"] == ["train.en"]
    assert any(warning.startswith("mono.de: training will first translate this text") for warning in report.warnings)
    alone = check_recipe(load_recipe(folder / "recipe.yaml", ["data.cleaning.max_characters=1"]), tmp_path)
    assert not alone.errors and any(warning.startswith("train: no pair is left") for warning in alone.warnings)
    with_synthetic_text(recipe, tmp_path / "synthetic")
    assert [corpus.label for corpus in check_recipe(recipe, tmp_path).corpora if corpus.role == "train"] == [
        "train.en", "mono.de"]
    only = load_recipe(folder / "reverse.yaml", [
        f"data.train=[{{source: {folder / 'mono.de'}, translated_by: {folder / 'reverse'}}}]"])
    assert not check_recipe(only, tmp_path).errors


# `torchrun` starts this; blocks are small, so that both ranks translate.
RANK = """
import sys
from pathlib import Path
from seq2seq.recipe import load_recipe
from seq2seq.training import synthetic_text
from seq2seq.training.distributed import join_process_group
from seq2seq.translation.translator import Translator
synthetic_text.BLOCK_LINES = 2
original, blocks = Translator.translate, []
Translator.translate = lambda self, *arguments, **options: blocks.append(1) or original(self, *arguments, **options)
with join_process_group("cpu") as group:
    recipe = synthetic_text.with_synthetic_text(load_recipe(Path("recipe.yaml")), Path(sys.argv[1]), group)
    shares = group.gather([len(blocks)])
    if group.is_main:                                   # only the main rank reads the text
        print(*shares, Path(recipe.data.train[1].source).exists())
    else:
        assert recipe.data.train[1].source is None
"""


@pytest.mark.slow
def test_any_number_of_ranks_generates_the_same_text(folder, tmp_path):
    (tmp_path / "rank.py").write_text(RANK)
    texts = []
    for ranks, expected in ((1, "3 True"), (2, "2 1 True"), (3, "1 1 1 True")):
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        done = subprocess.run([*command, tmp_path / "rank.py", tmp_path / f"by{ranks}"], cwd=folder, timeout=120,
                              capture_output=True, text=True, check=False,
                              env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[2])})
        assert done.stdout.strip() == expected, done.stderr
        texts += [path.read_bytes() for path in (tmp_path / f"by{ranks}").glob("*.txt")]
    assert len(texts) == 3 and len(set(texts)) == 1 and texts[0].count(b"\n") == len(LINES)
