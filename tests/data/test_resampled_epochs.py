"""Epochs with augmented pairs: reproducible, resumable, and without effect on recipes that do not augment."""

from itertools import pairwise

import pytest
from toy import RECIPE, write_corpus
from trainings import die, final_weights, interrupting, logged, press_ctrl_c, same

from seq2seq.cli import main
from seq2seq.data.preparation import TrainingText, make_tokenizers, prepare, train_or_load_tokenizers
from seq2seq.data.resampled_epochs import ResampledEpochs
from seq2seq.errors import RecipeError, TokenizerError
from seq2seq.recipe import load_recipe
from seq2seq.signals import Stopped
from seq2seq.storage.tokenizer_files import save_tokenizers
from seq2seq.tokenizers.term_markers import TERM_MARKERS, has_term_markers
from seq2seq.training.run import start_training, train

pytestmark = pytest.mark.usefixtures("quick_tensorboard")

AUGMENTED = ("data.augmentation={upper_case: 0.2, title_case: 0.1, typos: 0.1, no_final_stop: 0.1, tags: 0.1, "
             "placeholders: 0.1, noise: 0.1, terms: 0.2}", "tokenizer.vocab_size=302")
SAMPLED = "tokenizer.subword_sampling=0.2"


@pytest.fixture
def folder(tmp_path):
    write_corpus(tmp_path)
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    return tmp_path


@pytest.fixture
def recipe(folder):
    def load(*settings):
        return load_recipe(folder / "recipe.yaml", settings)

    return load


@pytest.fixture
def epochs_of(folder):
    made = []

    def make(recipe, **options):
        directory = folder / f"run-{len(made)}"
        (directory / "tokenizer").parent.mkdir()
        tokenizers = train_or_load_tokenizers(TrainingText.of(recipe), directory / "tokenizer")
        prepared = prepare(TrainingText.of(recipe), tokenizers, directory / "prepared")
        made.append(ResampledEpochs(prepared, tokenizers, TrainingText.of(recipe), **options))
        return made[-1]

    yield make
    for epochs in made:
        epochs.close()


def texts(epochs, number):
    """Return the sources and targets of an epoch as text."""
    corpus, tokenizers = epochs.corpus(number), epochs.tokenizers
    return [tokenizer.decode([side.ids[begin:end - 1].tolist() for begin, end in pairwise(side.offsets.tolist())])
            for side, tokenizer in ((corpus.source, tokenizers.source), (corpus.target, tokenizers.target))]


def originals(folder):
    return [(folder / f"train.{language}").read_text().splitlines() for language in ("en", "de")]


@pytest.mark.parametrize("settings", [AUGMENTED, (*AUGMENTED, SAMPLED)])
def test_each_epoch_has_other_changes_which_every_run_repeats(recipe, folder, epochs_of, settings):
    first, second = epochs_of(recipe(*settings)), epochs_of(recipe(*settings))
    by_epoch = [texts(first, number) for number in range(3)]
    assert [texts(second, number) for number in (2,)] == by_epoch[2:]
    unchanged = originals(folder)
    for sides in by_epoch:
        assert any(source.isupper() for source in sides[0])
        assert 5 < sum(pair not in set(zip(*unchanged, strict=True)) for pair in zip(*sides, strict=True)) < 60
    assert by_epoch[0] != by_epoch[1] != by_epoch[2]


def test_terms_have_the_markers_as_pieces(recipe, epochs_of):
    epochs = epochs_of(recipe("data.augmentation={terms: 1}", "tokenizer.vocab_size=302"))
    sources, targets = texts(epochs, 0)
    assert sum(TERM_MARKERS[0] in source for source in sources) > 40
    assert not any(marker in target for target in targets for marker in TERM_MARKERS)
    marker_ids = [ids[-1] for ids in epochs.tokenizers.source.encode(TERM_MARKERS)]
    corpus = epochs.corpus(0)
    assert set(marker_ids) <= set(corpus.source.ids.tolist())


def test_tagged_and_weighted_corpora_keep_their_tags(folder, epochs_of):
    train, valid = "{source: train.en, target: train.de", "{source: valid.en, target: valid.de"
    text = RECIPE.replace(f"[{train}}}]", f"[{train}, weight: 2}}, {valid}, tag: <bt>}}]")
    (folder / "tagged.yaml").write_text(text)
    epochs = epochs_of(load_recipe(folder / "tagged.yaml", ["data.augmentation={upper_case: 1}"]))
    sources, _ = texts(epochs, 0)
    assert all(source.isupper() for source in sources[:60])
    assert all(source.startswith("<bt> ") and source[5:].isupper() for source in sources[60:])
    assert epochs.corpus(0).weights is not None


def test_a_pair_that_would_be_too_long_does_not_change(recipe, folder, epochs_of):
    longest = 41                                    # toy sentences have at most 41 pieces, those in capitals have more
    epochs = epochs_of(recipe("data.augmentation={noise: 1}", f"data.cleaning.max_pieces={longest}"))
    corpus = epochs.corpus(0)
    assert max(corpus.source.lengths.max(), corpus.target.lengths.max()) <= longest + 1




@pytest.mark.parametrize("settings", [AUGMENTED, pytest.param((*AUGMENTED, SAMPLED), marks=pytest.mark.slow)])
@pytest.mark.parametrize("interrupt, step", [(press_ctrl_c, 7), pytest.param(die, 8, marks=pytest.mark.slow)])
def test_an_interrupted_training_ends_with_the_same_weights(recipe, tmp_path, monkeypatch, settings, interrupt, step):
    whole, parted = tmp_path / "whole", tmp_path / "parted"
    train(recipe(*settings), whole)
    interrupting(monkeypatch, step, interrupt)
    with pytest.raises((Stopped, MemoryError)):
        train(recipe(*settings), parted)
    train(recipe(*settings), parted)
    assert same(final_weights(parted), final_weights(whole))
    assert logged(parted) == logged(whole)
    assert not list(parted.glob("prepared/*/epoch-*"))


def test_the_run_reports_the_changed_pairs_and_other_shares_are_another_training(recipe, tmp_path, capsys):
    train(recipe("training.max_steps=1", "data.augmentation={typos: 0.5}"), tmp_path / "run")
    assert " of 60 training pairs are augmented (typos " in capsys.readouterr().err
    with pytest.raises(RecipeError, match="data.augmentation.typos"):
        train(recipe("training.max_steps=2", "data.augmentation={typos: 0.4}"), tmp_path / "run")


def test_a_training_without_augmentation_stores_no_text(recipe, tmp_path):
    training = start_training(recipe(), tmp_path / "run")
    assert training.resampled is None
    assert not list((tmp_path / "run").glob("prepared/*/*.txt"))


def test_a_tokenizer_without_markers_is_refused(recipe, tmp_path):
    plain = make_tokenizers(TrainingText.of(recipe()))
    assert not has_term_markers(plain.source)
    save_tokenizers(plain.files(), tmp_path / "other")
    settings = "data.augmentation={terms: 0.1}", f"tokenizer.taken_from={tmp_path / 'other'}"
    with pytest.raises(TokenizerError):
        make_tokenizers(TrainingText.of(recipe(*settings)))


@pytest.mark.parametrize("settings", [
    ("data.augmentation={typos: 0.7, noise: 0.4}",), ("data.augmentation={terms: 0.1}", "tokenizer.type=words"),
    ("data.augmentation={typos: 0.1}", "model={type: pointer}", "tokenizer={type: words}")])
def test_the_recipe_refuses(recipe, settings):
    with pytest.raises(RecipeError):
        recipe(*settings)


@pytest.mark.slow
def test_check_accepts_augmentation(folder):
    arguments = [argument for setting in AUGMENTED for argument in ("--set", setting)]
    assert main(["check", str(folder / "recipe.yaml"), *arguments]) == 0
