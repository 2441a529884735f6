"""One attention head learns to align words, and its place is stored in the model."""

import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from toy import RECIPE, write_corpus

from seq2seq.data.alignment_links import AlignmentSettings, measured_aligner
from seq2seq.data.batching import EncodedCorpus, EncodedSide
from seq2seq.errors import RecipeError
from seq2seq.interop.exporting import put_head_first
from seq2seq.recipe import load_recipe
from seq2seq.storage import growing_files
from seq2seq.tokenizers.source import Source
from seq2seq.training import guided_alignment
from seq2seq.training.alignment_head import best_aligner
from seq2seq.training.guided_alignment import (
    CHECKSUMS,
    DIRECTORY,
    FILES,
    AlignmentLabels,
    GuidedAlignment,
    guided_layer,
    piece_links,
)
from seq2seq.training.run import start_training, train
from seq2seq.translation.translator import Translator
from seq2seq.translation.word_attention import unit_weights

# The model of conftest.py has 2 encoder and 3 decoder layers with 2 heads.


def test_the_weight_of_a_word_is_shared_by_its_pieces_and_the_end_has_what_is_missing():
    weights = np.array([[0.6, 0.2], [0.0, 0.04]])                               # (target words, source words)
    source = np.array([[True, False], [True, False], [False, True]])            # (pieces, words)
    target = np.array([[True, False], [False, True]])
    found = piece_links(weights, source, target)
    np.testing.assert_allclose(found, [[0, 0, 0.3], [0, 1, 0.3], [0, 2, 0.2], [0, 3, 0.2], [1, 3, 1.0]], rtol=1e-6)


def guided_loss(model, batch, links, weight=0.5):
    corpus = EncodedCorpus(EncodedSide.from_lists([[0]]), EncodedSide.from_lists([[0]]))
    labels = AlignmentLabels(corpus, np.array(links, np.float32), np.array([0, len(links), *[len(links)] * 3]))
    guided = GuidedAlignment(labels, weight)
    with guided.recording(model):
        model(batch)
    return guided.loss(labels.gather(corpus, np.arange(4), batch))


def test_the_loss_is_the_cross_entropy_of_the_first_head_at_the_step_that_reads_the_piece(make_model, make_batch):
    model, batch = make_model().eval(), make_batch()
    maps = model.attention_maps(batch).cross[guided_layer(3)][0, 0]            # (targets, sources) of pair 0
    expected = -0.5 * (0.75 * maps[1, 2].log() + 0.25 * maps[1, 0].log() + maps[2, 1].log())
    loss = guided_loss(model, batch, [[0, 2, 0.75], [0, 0, 0.25], [1, 1, 1.0]])
    torch.testing.assert_close(loss, expected.float(), rtol=1e-4, atol=1e-5)


def test_the_loss_changes_only_the_first_head_of_the_last_but_one_layer_and_what_is_below_it(make_model, make_batch):
    model = make_model().eval()
    guided_loss(model, make_batch(), [[0, 2, 1.0]]).backward()
    attention = model.decoder[1].cross_attention
    d_model = attention.query.weight.shape[0]
    assert attention.query.weight.grad[: d_model // 2].abs().sum() > 0
    assert attention.query.weight.grad[d_model // 2:].eq(0).all()
    assert attention.output.weight.grad is None and model.decoder[2].cross_attention.query.weight.grad is None
    assert model.decoder[0].cross_attention.query.weight.grad.abs().sum() > 0


def test_a_pair_that_an_epoch_has_changed_has_no_labels():
    def corpus(*targets):
        return EncodedCorpus(EncodedSide.from_lists([[5], [6]]), EncodedSide.from_lists(list(targets)))

    labels = AlignmentLabels(corpus([7], [8]), np.array([[0, 0, 1], [0, 0, 1]], np.float32), np.array([0, 1, 2]))
    shape = SimpleNamespace(target_offsets=[0, 1, 2], longest_target=2, longest_source=2)
    assert labels.gather(corpus([7], [9]), np.array([0, 1]), shape).tolist() == [[[0, 0], [1, 0]], [[0, 0], [0, 0]]]


def train_guided(folder, steps):
    write_corpus(folder)
    text = RECIPE.replace("training:", "training:\n  guided_alignment: 0.5").replace("d_model: 16", "d_model: 32")
    (folder / "recipe.yaml").write_text(text.replace("decoder_layers: 1", "decoder_layers: 2"))
    settings = f"training.max_steps={steps}", f"training.validate_every={steps}"
    train(load_recipe(folder / "recipe.yaml", settings), folder / "run")
    return folder


@pytest.fixture(scope="module")
def guided_run(tmp_path_factory):
    return train_guided(tmp_path_factory.mktemp("guided"), 2)


@pytest.mark.slow
def test_the_trained_head_aligns_a_corpus_that_is_translated_word_by_word(tmp_path):
    aligner = measured_aligner(train_guided(tmp_path, 300) / "run")
    assert aligner == AlignmentSettings(1, 1, "reads")
    lines = [(tmp_path / f"valid.{language}").read_text().splitlines() for language in ("en", "de")]
    translator = Translator.load(tmp_path / "run", precision="fp32")
    pairs = list(zip(*lines, strict=True))
    correct = [np.argmax(weights, 1) == np.arange(len(weights)) for weights in unit_weights(translator, pairs, aligner)]
    assert np.concatenate(correct).mean() > 0.85
    assert best_aligner(translator, pairs).layer in (1, 2)


def test_damaged_labels_are_computed_again(guided_run, tmp_path):
    shutil.copytree(guided_run / "run", tmp_path / "run")
    training = start_training(load_recipe(guided_run / "recipe.yaml"), tmp_path / "run")
    directory = training.prepared.directory
    files = [*(directory / DIRECTORY / name for name in FILES), directory / CHECKSUMS]
    before = [file.read_bytes() for file in files]
    damaged = bytearray(before[0])
    damaged[-2] ^= 1
    for file, contents in ((files[0], damaged), (files[1], before[1][:-8]), (files[2], b"{"), (files[2], b"[]")):
        file.write_bytes(contents)
        labels = AlignmentLabels.load_or_make(training.prepared, training.tokenizers, Source(""))
        assert [file.read_bytes() for file in files] == before and labels.offsets[-1] == len(labels.links)
    files[2].unlink()
    AlignmentLabels.load_or_make(training.prepared, training.tokenizers, Source(""))
    assert [file.read_bytes() for file in files] == before


@pytest.mark.slow
def test_labels_of_several_processes_that_are_interrupted_are_those_of_one(guided_run, tmp_path, monkeypatch):
    shutil.copytree(guided_run / "run", tmp_path / "run")
    training = start_training(load_recipe(guided_run / "recipe.yaml"), tmp_path / "run")
    directory = training.prepared.directory
    before = [(directory / DIRECTORY / name).read_bytes() for name in FILES]
    shutil.rmtree(directory / DIRECTORY)
    (directory / CHECKSUMS).unlink()
    monkeypatch.setattr(guided_alignment, "BLOCK_PAIRS", 7)
    monkeypatch.setattr(growing_files, "COMMIT_SECONDS", 0.0)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(growing_files.GrowingFiles, "commit", committed_once)
        AlignmentLabels.load_or_make(training.prepared, training.tokenizers, Source(""), 1)
    AlignmentLabels.load_or_make(training.prepared, training.tokenizers, Source(""), 2)
    assert [(directory / DIRECTORY / name).read_bytes() for name in FILES] == before


def committed_once(files, state, now=False, commit=growing_files.GrowingFiles.commit):
    commit(files, state, now)
    raise KeyboardInterrupt


def test_the_first_head_of_an_export_is_the_one_that_aligns_words_best(make_model, make_batch):
    model, batch = make_model(), make_batch()
    before, hidden = model.attention_maps(batch).cross[0], model(batch).hidden
    put_head_first(model.decoder[0].cross_attention, 2)
    torch.testing.assert_close(model.attention_maps(batch).cross[0][:, [1, 0]], before)
    torch.testing.assert_close(model(batch).hidden, hidden)


@pytest.mark.parametrize("change", ["normalize: relu", "type: rnn"])
def test_a_model_whose_attention_is_no_softmax_is_refused(tmp_path, change):
    write_corpus(tmp_path)
    text = RECIPE.replace("training:", "training:\n  guided_alignment: 0.05")
    model = f"model: {{{change}}}" if change.startswith("type") else f"model: {{{change}, d_model: 16, num_heads: 2}}"
    (tmp_path / "recipe.yaml").write_text("\n".join(
        model if line.startswith("model:") else line for line in text.splitlines()))
    with pytest.raises(RecipeError, match="guided_alignment: "):
        load_recipe(tmp_path / "recipe.yaml")
