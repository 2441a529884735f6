"""Sorting with a pointer network: the script that writes the lists, training, and prediction."""

import importlib.util
import itertools
from pathlib import Path

import pytest
from trainings import final_weights, interrupting, press_ctrl_c, same

from seq2seq.cli import main
from seq2seq.errors import CorpusError
from seq2seq.recipe import load_recipe
from seq2seq.signals import Stopped
from seq2seq.storage.checkpoints import best_bundle, load_bundle
from seq2seq.training.run import start_training, train
from seq2seq.translation.scoring import pair_scores
from seq2seq.translation.translator import Translator

ROOT = Path(__file__).parents[1]

RECIPE = """
name: sorting
languages: {source: numbers, target: order}
data:
  train: [{source: train.numbers, target: train.order}]
  valid: {source: train.numbers, target: train.order}
  test: {same: {source: train.numbers, target: train.order}}
tokenizer: {type: words}
model: {type: pointer, d_model: 32, encoder_layers: 1, decoder_layers: 1, dropout: 0.0}
metrics: [exact]
training:
  batch_tokens: 100
  learning_rate: 0.02
  warmup_steps: 5
  schedule: linear
  max_steps: 80
  validate_every: 80
  label_smoothing: 0.0
  best_metric: exact
  precision: fp32
  threads: 1
decoding: {beam_size: 1}
"""


def script():
    """Import recipes/sorting/generate.py as a module."""
    spec = importlib.util.spec_from_file_location("sorting", ROOT / "recipes" / "sorting" / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


sorting = script()


@pytest.fixture
def lists():
    drawn = itertools.islice(sorting.lists(seed=3), 100)
    return [numbers for numbers in drawn if len(numbers) < 8][:20]


@pytest.fixture
def folder(tmp_path, lists):
    write(tmp_path, "train", lists)
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    return tmp_path


def line(numbers):
    return " ".join(map(str, numbers))


def write(folder, name, lists):
    (folder / f"{name}.numbers").write_text("".join(line(numbers) + "\n" for numbers in lists))
    (folder / f"{name}.order").write_text("".join(line(sorting.order(numbers)) + "\n" for numbers in lists))


# The script


def test_the_largest_number_comes_first():
    # The example of Vinyals et al. 2015 as the foundations state it: 20, 5, 10 -> 1, 3, 2.
    assert sorting.order([20, 5, 10]) == [1, 3, 2]


def test_no_list_stands_in_two_splits_and_lists_are_what_the_script_says():
    splits = sorting.generate(3000, seed=5)
    lists = {name: {tuple(numbers) for numbers in rows} for name, rows in splits.items()}
    assert {name: len(rows) for name, rows in splits.items()} == {"train": 3000, "valid": 500, "test": 2000}
    assert len(lists["test"]) == 2000
    assert not lists["train"] & (lists["valid"] | lists["test"]) and not lists["valid"] & lists["test"]
    for numbers in lists["train"]:
        assert 1 <= len(numbers) <= 20 and len(set(numbers)) == len(numbers) and set(numbers) <= set(range(100))
    assert {len(numbers) for numbers in lists["test"]} >= set(range(2, 21))


# Learning


@pytest.mark.slow
def test_a_pointer_can_be_fine_tuned(folder):
    train(load_recipe(folder / "recipe.yaml", ["training.max_steps=5", "training.validate_every=5"]), folder / "run")
    (folder / "tuned.yaml").write_text(RECIPE.replace(
        "  threads: 1", "  threads: 1\n  start_from: run"))
    training = start_training(load_recipe(folder / "tuned.yaml"), folder / "tuned")
    best = load_bundle(best_bundle(folder / "run"))
    assert same(dict(zip(training.step.names, training.step.weights, strict=True)), best.weights)
    assert training.tokenizers.files() == best.tokenizer_files


@pytest.mark.slow
@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_a_pointer_memorises_twenty_lists_and_sorts_them_from_its_bundle(folder, lists, capfdbinary, cell):
    scores = train(load_recipe(folder / "recipe.yaml", [f"model.cell={cell}"]), folder / "run")
    assert scores["same"]["exact"].value == 100
    assert load_bundle(best_bundle(folder / "run")).metadata["test"]["same"]["exact"]["value"] == 100
    translator = Translator.load(folder / "run")
    texts = [line(numbers) for numbers in lists]
    found = translator.translate(texts)
    assert [best.text for best, *_ in found] == [line(sorting.order(numbers)) for numbers in lists]
    alone = [translator.translate([text])[0][0] for text in texts]
    assert [best.text for best, *_ in found] == [best.text for best in alone]
    scored = pair_scores(translator, [(text, best.text) for text, (best, *_) in zip(texts, found, strict=True)])
    assert [score.log_probability for score in scored] == pytest.approx(
        [best.log_probability for best, *_ in found], abs=1e-3)
    in_int8 = Translator.load(folder / "run", precision="int8").translate(texts)
    assert sum(best.text == wanted.text for (best, *_), (wanted, *_) in zip(in_int8, found, strict=True)) >= 17
    assert main(["translate", str(folder / "run"), str(folder / "train.numbers"), "--document", "lines",
                 "--threads", "1"]) == 0
    assert capfdbinary.readouterr().out == (folder / "train.order").read_bytes()
    assert main(["evaluate", str(folder / "run"), "--threads", "1"]) == 0
    assert b"exact  100.00  nrefs:1|case:mixed|equal:line" in capfdbinary.readouterr().out


@pytest.mark.slow
def test_a_pointer_stopped_by_ctrl_c_goes_on_to_the_same_weights(folder, monkeypatch):
    recipe = load_recipe(folder / "recipe.yaml", ["training.max_steps=7", "model.dropout=0.2", "model.cell=lstm"])
    train(recipe, folder / "whole")
    interrupting(monkeypatch, 3, press_ctrl_c)
    with pytest.raises(Stopped):
        train(recipe, folder / "parted")
    train(recipe, folder / "parted")
    assert same(final_weights(folder / "parted"), final_weights(folder / "whole"))


# What cannot be sorted


@pytest.mark.parametrize(("name", "target", "said"), [
    ("train", "1 9", "'9' is not a position in a source of 2 words; write numbers from 1 to 2."),
    ("valid", "first", "'first' is not a position in a source of 2 words; write numbers from 1 to 2."),
    ("test", "1 9", "'9' is not a position in a source of 2 words; write numbers from 1 to 2."),
])
def test_a_target_that_is_no_position_is_an_error_with_file_and_line(folder, name, target, said):
    (folder / "bad.numbers").write_text("7 8 9\n3 4\n")
    (folder / "bad.order").write_text(f"3 2 1\n{target}\n")
    key = {"train": "data.train.0", "valid": "data.valid", "test": "data.test.same"}[name]
    recipe = load_recipe(folder / "recipe.yaml", [
        f"{key}.source={folder}/bad.numbers", f"{key}.target={folder}/bad.order"])
    with pytest.raises(CorpusError) as error:
        train(recipe, folder / "run")
    assert str(error.value) == f"{folder}/bad.order:2: {said}"


def test_what_a_model_cannot_point_at_is_refused(folder):
    recipe = load_recipe(folder / "recipe.yaml", ["training.max_steps=2", "model.max_positions=13",
                                                  "data.cleaning.max_pieces=9"])
    train(recipe, folder / "run")
    translator = Translator.load(folder / "run")
    assert translator.translate([line(range(12))])
    with pytest.raises(CorpusError, match="begins with '0 1 2 3 4 5 6 7 8 9 10 11 12' has 13 words, but this model "
                                          "accepts at most 12"):
        translator.translate([line(range(3)), line(range(13))])
    with pytest.raises(CorpusError, match="'4 1' cannot be scored: '4' is not a position in a source of 3 words"):
        pair_scores(translator, [("7 8 9", "1 2"), ("7 8 9", "4 1")])
