"""Messages of trainings that cannot start, go on or end."""

import functools
import math
import re
import shutil
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
import torch
from catalogue import Catalogue
from toy import RECIPE, copy_finished_run, write_corpus

from seq2seq.data.batching import EncodedCorpus, EncodedSide
from seq2seq.errors import UserError
from seq2seq.model import build_transformer, freeze
from seq2seq.recipe import load_recipe
from seq2seq.storage.checkpoints import best_bundle, load_bundle, save_bundle
from seq2seq.storage.int8_score import Int8Score
from seq2seq.training import rollback, step
from seq2seq.training.log_lines import print_int8
from seq2seq.training.memory import largest_micro_batch, memory_warning
from seq2seq.training.run import train
from seq2seq.training.synthetic_text import training_text
from seq2seq.training.train_state import TrainState

CATALOGUE = Catalogue("training")
BACK_TRANSLATION = "data.train=[{source: train.en, target: train.de}, {target: mono.de, translated_by: run}]"


def training(folder: Path, *settings: str, restart: bool = False) -> None:
    """Train in DIR/run. See `copy_finished_run`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        train(load_recipe(folder / "recipe.yaml", settings), folder / "run", restart)


for _name, _settings, _restart in (
        ("another recipe", ["model.dropout=0.2", "training.learning_rate=0.02"], False),
        ("restart with the model to start from in the run", ["training.start_from=run"], True),
        ("restart with the model of the tokenizer in the run", ["tokenizer.taken_from=run"], True),
        ("restart with a model that translates in the run",
         ["data.train=[{source: train.en, target: train.de}, {source: train.en, translated_by: run}]"], True),
        ("restart with text in the run", ["data.train.0.source=run/text.en"], True)):
    def _case(folder, settings=_settings, restart=_restart):
        copy_finished_run(folder)
        shutil.copy(folder / "train.en", folder / "run" / "text.en")
        training(folder, *settings, restart=restart)

    CATALOGUE.add(_name, _case)


def new_training(folder: Path, *settings: str) -> None:
    copy_finished_run(folder)
    shutil.rmtree(folder / "run")
    (folder / "short.de").write_text("eins\n")
    for language in ("en", "de"):
        (folder / f"blank.{language}").write_text("\n \n")
    training(folder, *settings)


for _name, _setting in (
        ("a vocabulary that is larger than the text allows", "tokenizer.vocab_size=9000"),
        ("an unknown device", "training.device=tpu"),
        ("a validation set whose sides differ in length", "data.valid.target=short.de"),
        ("a test set whose sides differ in length", "data.test.small.target=short.de"),
        ("a test set without text", "data.test={blank: {source: blank.en, target: blank.de}}"),
        ("a validation set without text", "data.valid={source: blank.en, target: blank.de}"),
        ("cleaning that drops all pairs", "data.cleaning.max_characters=1")):
    CATALOGUE.add(_name, functools.partial(lambda setting, folder: new_training(folder, setting), _setting))


@CATALOGUE
def other_text(folder):
    copy_finished_run(folder)
    lines = (folder / "train.en").read_text().splitlines()
    (folder / "train.en").write_text("\n".join(["cat cat cat", *lines[1:]]) + "\n")
    training(folder, "training.max_steps=12")


@CATALOGUE
def other_validation_text(folder):
    copy_finished_run(folder)
    lines = (folder / "valid.en").read_text().splitlines()
    (folder / "valid.en").write_text("\n".join(["cat cat cat", *lines[1:]]) + "\n")
    training(folder, "training.max_steps=12")


@CATALOGUE
def a_model_to_start_from_that_has_other_shapes(folder):
    run = copy_finished_run(folder)
    text = "\n".join(line for line in (folder / "recipe.yaml").read_text().splitlines()
                     if not line.startswith(("tokenizer:", "model:")))
    (folder / "recipe.yaml").write_text(text)
    run.rename(folder / "first")
    training(folder, "training.start_from=first", "model.feed_forward=64")


# Divergence


@CATALOGUE
def every_gradient_is_infinite(folder):
    copy_finished_run(folder)
    real = step.mean_gradient_norm
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step, "mean_gradient_norm", lambda gradients, tokens: real(gradients, tokens) * math.inf)
        training(folder, "training.max_steps=50", "training.validate_every=50")


@CATALOGUE
def nan_weights_at_a_validation(folder):
    copy_finished_run(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("seq2seq.training.validation.Validation.measure", _not_a_number)
        training(folder, "training.max_steps=12")


def _not_a_number(*_):
    raise FloatingPointError("the validation loss is not a number")


for _name, _state in (
        ("divergence without a good checkpoint", TrainState(step=12, good_step=0)),
        ("divergence after a good checkpoint", TrainState(step=12, good_step=5)),
        ("divergence after five rollbacks", TrainState(step=12, good_step=5, retreats=5))):
    for _set, _dtype in (("stop", torch.bfloat16), ("lower_rate", torch.float32)):
        def _divergence(folder, state=_state, value=_set, dtype=_dtype):
            copy_finished_run(folder)
            recipe = load_recipe(folder / "recipe.yaml", [f"training.divergence={value}"])
            return rollback.remedy_of(recipe, state, folder / "run", dtype)

        CATALOGUE.add(f"{_name}, divergence: {_set} in {str(_dtype).removeprefix('torch.')}", _divergence)


# Synthetic text


def back_translation(folder: Path, *settings: str, text: str = "eins\n") -> None:
    copy_finished_run(folder)
    (folder / "mono.de").write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        training_text(load_recipe(folder / "recipe.yaml", [BACK_TRANSLATION, *settings]), folder / "new")


@CATALOGUE
def a_model_of_the_other_direction(folder):
    back_translation(folder)


@CATALOGUE
def a_monolingual_text_without_lines(folder):
    back_translation(folder, "languages={source: de, target: en}",
                     "data.train=[{target: mono.de, translated_by: run}]", text=" \n\n")


@CATALOGUE
def a_model_that_is_missing(folder):
    back_translation(folder, "data.train.1.translated_by=nowhere")


@CATALOGUE
def damaged_synthetic_text(folder):
    forward = "data.train=[{source: mono.de, translated_by: run}]"
    back_translation(folder, forward)
    text, = (folder / "new" / "synthetic").glob("*.txt")
    text.write_text("damaged\n")
    return re.sub("[0-9a-f]{16}", "KEY", str(failure(lambda: back_translation(folder, forward))))


def freezing(name: str, *parts: str) -> None:
    def case(folder):
        model = build_transformer(source_vocab_size=7, target_vocab_size=7, d_model=4, num_heads=2, encoder_layers=1,
                                  decoder_layers=2, feed_forward=3)
        freeze(model, parts)

    CATALOGUE.add(name, case)


freezing("frozen layers that the model does not have", "encoder.1-3")
freezing("nothing left to train", "embeddings", "encoder", "decoder")


def short_of_memory(name: str, free: float, *settings: str) -> None:
    def case(folder):
        write_corpus(folder)
        (folder / "recipe.yaml").write_text(RECIPE)
        recipe = load_recipe(folder / "recipe.yaml", ["model.d_model=512", "model.num_heads=8", *settings])
        side = EncodedSide.from_lists([[5] * 20] * 300)
        batch = largest_micro_batch(EncodedCorpus(side, side), [[np.arange(300)]], 30)
        return memory_warning(recipe, (64_000, 64_000), "cpu", "fp32", batch, int(free))

    CATALOGUE.add(name, case)


short_of_memory("too little memory for the activations of a training", 1.8e9)
short_of_memory("too little memory for a training", 1e9)


@CATALOGUE
def a_model_of_other_text_since_the_run_began(folder):
    run = copy_finished_run(folder)
    shutil.copytree(run, folder / "model")
    setting = "data.train=[{source: train.en, target: train.de}, {source: valid.en, translated_by: model}]"
    shutil.rmtree(run)
    training_in_new_run(folder, setting)
    best = load_bundle(best_bundle(folder / "model"))
    shutil.rmtree(best.directory)
    save_bundle(best.directory, {name: -weight for name, weight in best.weights.items()}, best.recipe_text,
                best.tokenizer_files, best.metadata)
    training_in_new_run(folder, setting)


def failure(action) -> Exception:
    with pytest.raises(UserError) as raised:
        action()
    return raised.value


def training_in_new_run(folder: Path, setting: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        train(load_recipe(folder / "recipe.yaml", [setting, "training.max_steps=1"]), folder / "new")


def add_int8(name: str, bleu: float) -> None:
    def case(folder):
        with redirect_stderr(StringIO()) as told:
            print_int8(Int8Score(bleu, 42.0, "bf16", 1014, "nrefs:1"))
        return " ".join(told.getvalue().split())

    CATALOGUE.add(name, case)


add_int8("bleu in int8", 41.9)
add_int8("bleu in int8 that is too low", 41.6)


test_message, test_every_message_belongs_to_a_case = CATALOGUE.tests()
