"""Training that starts from another model: `training.start_from`."""

import shutil

import pytest
from toy import RECIPE, copy_finished_run, train_toy
from trainings import die, final_weights, interrupting, same

from seq2seq.data.preparation import TrainingText, train_or_load_tokenizers
from seq2seq.errors import CheckpointError, RecipeError
from seq2seq.interop.huggingface_import import import_model
from seq2seq.recipe import differences, load_recipe, parse_recipe
from seq2seq.storage.checkpoints import best_bundle, load_bundle, newest_checkpoint, save_bundle, stored_recipe
from seq2seq.training.run import start_training, train
from seq2seq.translation.translator import Translator
from tests.fairseq_models import make as make_multilingual
from tests.marian_models import make

FINE_TUNING = """
name: tuned
languages: {source: en, target: de}
data:
  train: [{source: train.en, target: train.de}]
  valid: {source: valid.en, target: valid.de}
  cleaning: {max_pieces: 60}
training: {start_from: START, batch_tokens: 64, max_steps: 2, validate_every: 2, threads: 1, precision: fp32}
decoding: {beam_size: 1, max_length_offset: 3}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A corpus, and a run that was trained on it."""
    folder = tmp_path_factory.mktemp("folder")
    copy_finished_run(folder).rename(folder / "first")
    return folder


@pytest.fixture
def tuned(folder):
    def load(start="first", *settings):
        (folder / "tuned.yaml").write_text(FINE_TUNING.replace("START", str(start)))
        return load_recipe(folder / "tuned.yaml", settings)

    return load


@pytest.mark.parametrize("is_run", [True, False], ids=["run", "bundle"])
def test_start_from_reuses_weights_model_and_tokenizer(is_run, folder, tuned, tmp_path):
    recipe = tuned("first" if is_run else best_bundle(folder / "first"))
    best = load_bundle(best_bundle(folder / "first"))
    assert recipe.model == stored_recipe(best.directory).model
    training = start_training(recipe, tmp_path)
    assert same(dict(zip(training.step.names, training.step.weights, strict=True)), best.weights)
    assert training.tokenizers.files() == best.tokenizer_files


def test_fine_tuning_starts_from_the_model_and_can_be_resumed(folder, tuned, tmp_path):
    recipe = tuned()
    train(recipe, tmp_path / "run")
    found, best = load_bundle(best_bundle(tmp_path / "run")), load_bundle(best_bundle(folder / "first"))
    assert not same(found.weights, best.weights)
    # The bundle says all by itself: its recipe is read without the model that it came from.
    moved = parse_recipe(found.recipe_text, tmp_path / "elsewhere" / "recipe.yaml", alone=True)
    assert moved.model == recipe.model and moved.tokenizer.joint == recipe.tokenizer.joint
    again = start_training(recipe, tmp_path / "run")
    assert again.state.step == 2
    assert not differences(load_recipe(tmp_path / "run" / "recipe.yaml", check_files=False), recipe)


def test_a_training_with_frozen_weights_is_resumed_exactly_and_its_model_has_them(folder, tuned, tmp_path,
                                                                                      monkeypatch):
    recipe = tuned("first", "training.freeze=[embeddings, encoder.0]", "training.ema_decay=0.9",
                   "training.checkpoint_minutes=0", "training.average.kind=last")
    train(recipe, tmp_path / "whole")
    with monkeypatch.context() as patch, pytest.raises(MemoryError):
        interrupting(patch, 2, die)
        train(recipe, tmp_path / "resumed")
    train(recipe, tmp_path / "resumed")
    assert same(final_weights(tmp_path / "whole"), final_weights(tmp_path / "resumed"))
    old, new = (load_bundle(best_bundle(path)) for path in (folder / "first", tmp_path / "whole"))
    changed = {name for name in old.weights if not same({"": old.weights[name]}, {"": new.weights[name]})}
    assert changed and not any(name.startswith(("encoder.0.", "target_embedding")) for name in changed)
    assert parse_recipe(new.recipe_text, tmp_path / "recipe.yaml", alone=True).training.freeze == ()
    with pytest.raises(RecipeError, match="start_from"):
        load_recipe(folder / "recipe.yaml", ["training.freeze=[embeddings]"])


def test_without_memory_for_a_copy_a_checkpoint_is_written_before_the_training_goes_on(folder, tuned, tmp_path,
                                                                                      monkeypatch):
    train(tuned(), tmp_path / "copied")
    monkeypatch.setattr("seq2seq.training.loop.free_memory", lambda device: 10)
    monkeypatch.setattr("seq2seq.training.loop.BackgroundWriter.start", None)
    train(tuned(), tmp_path / "waited")
    copied, waited = (newest_checkpoint(tmp_path / name) for name in ("copied", "waited"))
    assert same(copied.model, waited.model) and same(copied.state, waited.state)


def test_the_recipe_overrides_the_settings_of_the_start_model(folder, tuned, tmp_path):
    recipe = tuned("first", "model.dropout=0.0", "training.start_from=" + str(best_bundle(folder / "first")))
    assert recipe.model.dropout == 0.0 and recipe.model.d_model == 16
    with pytest.raises(RecipeError):
        start_training(tuned("first", "model.feed_forward=64"), tmp_path)


def test_impossible_start_models_are_refused_before_training(folder, tuned):
    with pytest.raises(RecipeError, match="training.start_from: "):
        tuned("nowhere")
    with pytest.raises(RecipeError, match="start_from: "):
        tuned("first", f"tokenizer.taken_from={folder / 'first'}")


def test_a_run_is_resumed_wherever_its_start_model_is_and_not_with_other_weights(folder, tuned, tmp_path):
    train(tuned(), tmp_path / "run")
    copy = shutil.copytree(best_bundle(folder / "first"), tmp_path / "copy")
    assert start_training(tuned(copy), tmp_path / "run").state.step == 2
    best = load_bundle(copy)
    shutil.rmtree(copy)
    save_bundle(copy, {name: -weight for name, weight in best.weights.items()}, best.recipe_text, best.tokenizer_files,
                best.metadata)
    with pytest.raises(CheckpointError, match="start_from"):
        start_training(tuned(copy), tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize("separate", [False, True], ids=["joint", "separate"])
def test_an_imported_model_can_be_trained_on(separate, folder, tuned, tmp_path):
    pytest.importorskip("transformers")
    make(tmp_path / "theirs", separate=separate)
    import_model(str(tmp_path / "theirs"), tmp_path / "ours")
    recipe = tuned(tmp_path / "ours", "tokenizer.subword_sampling=0.1")
    imported = load_bundle(tmp_path / "ours")
    training = start_training(recipe, tmp_path / "run")
    assert same(dict(zip(training.step.names, training.step.weights, strict=True)), imported.weights)
    training.train()
    best = load_bundle(best_bundle(tmp_path / "run"))
    assert best.tokenizer_files == imported.tokenizer_files and not same(best.weights, imported.weights)
    loaded = train_or_load_tokenizers(TrainingText.of(recipe), tmp_path / "run" / "tokenizer")
    assert loaded.files() == imported.tokenizer_files


def test_a_model_knows_the_tags_of_its_corpora_and_of_the_model_that_it_was_trained_from(tmp_path):
    tagged = RECIPE.replace("target: train.de}]", "target: train.de, tag: <law>}]")
    train_toy(tmp_path, ["training.max_steps=2"], tagged)
    assert Translator.load(tmp_path / "run", "cpu", "fp32").reader.tags == ("<law>",)
    second = tagged.replace("<law>", "<2news>").replace("model: {d_model: 16, encoder_layers: 1, decoder_layers: 1, "
                                                     "num_heads: 2, feed_forward: 32, dropout: 0.1}\n", "")
    (tmp_path / "second.yaml").write_text(second.replace("tokenizer: {vocab_size: 300}\n", ""))
    settings = ["training.max_steps=1", f"training.start_from={tmp_path / 'run'}"]
    train(load_recipe(tmp_path / "second.yaml", settings), tmp_path / "second")
    assert Translator.load(tmp_path / "second", "cpu", "fp32").reader.tags == ("<2news>", "<law>")


SEVERAL = FINE_TUNING.replace("source: en, target: de", "source: eng_Latn, target: deu_Latn").replace(
    "train: [{source: train.en, target: train.de}]", """
  train:
  - {source: train.en, target: train.de}
  - {source: train.de, target: train.en, languages: {source: de, target: ell_Grek}}""")


@pytest.mark.slow
def test_an_imported_multilingual_model_is_trained_in_several_directions_and_resumed_exactly(folder, tmp_path,
                                                                                             monkeypatch):
    pytest.importorskip("transformers")
    make_multilingual(tmp_path / "theirs")
    import_model(str(tmp_path / "theirs"), tmp_path / "ours", "en", "de")
    (folder / "several.yaml").write_text(SEVERAL.replace("START", str(tmp_path / "ours")))
    recipe = load_recipe(folder / "several.yaml", [
        "training.max_steps=4", "training.checkpoint_minutes=0", "tokenizer.subword_sampling=0.1",
        "model.dropout=0.1"])
    train(recipe, tmp_path / "whole")
    with monkeypatch.context() as patch, pytest.raises(MemoryError):
        interrupting(patch, 3, die)
        train(recipe, tmp_path / "resumed")
    train(recipe, tmp_path / "resumed")
    assert same(final_weights(tmp_path / "whole"), final_weights(tmp_path / "resumed"))
    imported, best = (load_bundle(path) for path in (tmp_path / "ours", best_bundle(tmp_path / "whole")))
    assert best.tokenizer_files == imported.tokenizer_files and not same(best.weights, imported.weights)
    translator = Translator.load(tmp_path / "whole", "cpu", "fp32")
    assert translator.directions.codes == ("deu_Latn", "ell_Grek")
    sources = [translator.into(code).source("eins") for code in ("deu_Latn", "ell_Grek")]
    # Another target language does not change the language of the source.
    assert [(line.source_language, line.language) for line in sources] == [
        ("eng_Latn", "deu_Latn"), ("eng_Latn", "ell_Grek")]
    assert all(translator.into(code).translate(["one two"]) for code in ("de", "el"))
