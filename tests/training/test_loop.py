"""Training: its results, and how it is stopped, resumed and finished."""

import json
import math
import os
import re
import shutil
import signal
import time
from functools import partial
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from toy import copy_finished_run
from trainings import die, final_weights, interrupting, logged, press_ctrl_c, same, train_steps

from seq2seq.errors import CheckpointError, RecipeError, UserError
from seq2seq.recipe import Average, load_recipe
from seq2seq.signals import Stopped
from seq2seq.storage.averaging import average_checkpoints
from seq2seq.storage.checkpoints import (
    best_bundle,
    list_checkpoints,
    load_bundle,
    load_checkpoint,
    newest_checkpoint,
    step_of,
    validated_checkpoints,
)
from seq2seq.tokenizers import vocabulary_size
from seq2seq.tokenizers.tokenizer import Tokenizers
from seq2seq.training import loop as loop_module
from seq2seq.training import run as run_module
from seq2seq.training import step as step_module
from seq2seq.training import validation
from seq2seq.training.log_lines import print_training_summary
from seq2seq.training.loop import TrainingLoop
from seq2seq.training.run import start_training, train
from seq2seq.training.step import TrainingStep
from seq2seq.training.train_state import TrainState


@pytest.fixture
def folder(tmp_path):
    """The corpus, its recipe, and the finished run of eleven steps."""
    copy_finished_run(tmp_path)
    return tmp_path


@pytest.fixture
def run(folder):
    return folder / "run"


@pytest.fixture
def recipe(folder):
    return lambda *settings: load_recipe(folder / "recipe.yaml", settings)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A copy of the same files that no test changes."""
    folder = tmp_path_factory.mktemp("finished")
    copy_finished_run(folder)
    return folder


# Reporting


def test_a_log_file_says_step_of_steps_rate_time_left_and_loss(finished):
    lines = [line for line in (finished / "messages").read_text().splitlines() if line.startswith("training ")]
    figure = r"[\d.,]+"
    shown = (rf"training  (\d+)/11 steps  {figure} (steps/s|s/step)  {figure} (s|min) left  loss {figure}  "
             rf"perplexity {figure}  epoch \d  {figure} tokens/s  learning rate \S+  gradient {figure}"
             r"(  (reading|validating|saving) \d+ %)*")
    steps = [re.fullmatch(shown, line) for line in lines if "tokenizer" not in line]
    assert [match and int(match[1]) for match in steps] == [2, 4, 6, 8, 10, 11]


def test_the_learning_curves_of_a_resumed_training_are_drawn_with_all_validations(recipe, run):
    (run / "curves.svg").unlink()
    train(recipe("training.max_steps=12"), run)
    titles = [title.text for title in ElementTree.parse(run / "curves.svg").iter("{http://www.w3.org/2000/svg}title")]
    assert titles[0] == "run"
    assert {re.match("step [0-9]+", title)[0] for title in titles[1:]} == {f"step {step}" for step in (5, 10, 11, 12)}
    assert "smoothed labels" in (run / "curves.svg").read_text()


@pytest.mark.parametrize(("settings", "included"), [
    (["training.label_smoothing=0"], ""), ([], "label smoothing"),
    (["training.consistency=5"], "label smoothing and consistency training")])
def test_the_first_lines_name_everything_that_the_training_loss_includes(finished, capsys, settings, included):
    section = load_recipe(finished / "recipe.yaml", settings).training
    print_training_summary(finished, "", 0, section)
    told = " ".join(capsys.readouterr().err.split())
    assert re.findall("the training loss includes (.*?)[.] perplexity", told) == [included] * bool(included)


def test_a_training_computes_on_the_device_of_the_recipe(recipe, run, monkeypatch):
    wanted = []
    choose = run_module.choose_device
    monkeypatch.setattr(run_module, "choose_device", lambda name="auto": wanted.append(name) or choose("cpu"))
    start_training(recipe("training.device=cuda:3"), run)
    assert wanted == ["cuda:3"]


def test_validation_and_test_scores_say_their_precision(finished):
    told = (finished / "messages").read_text()
    assert re.search(r"^step 11  validation .*  \(translated in fp32\)", told, re.MULTILINE)
    records = [record for record in logged(finished / "run") if record["kind"] == "validation"]
    assert [record["precision"] for record in records] == ["fp32"] * 3
    metadata = load_bundle(best_bundle(finished / "run")).metadata
    assert metadata["validation"]["bleu"]["precision"] == metadata["test"]["small"]["bleu"]["precision"] == "fp32"


def test_the_validation_sentences_that_are_translated_are_spread_over_the_corpus(recipe, folder, monkeypatch):
    scored, score_pairs = [], validation.score_pairs
    monkeypatch.setattr(validation, "score_pairs", lambda translator, pairs, *others: (
        scored.append([(source.text, target) for source, target in pairs]), score_pairs(translator, pairs, *others))[1])
    train(recipe("training.max_steps=1", "training.valid_sentences=3", "data.test={}"), folder / "new")
    pairs = list(zip(*((folder / f"valid.{side}").read_text().splitlines() for side in ("en", "de")), strict=True))
    assert scored[0] == [pairs[0], pairs[len(pairs) // 3], pairs[2 * len(pairs) // 3]]
    assert scored[1:] in ([], [scored[0]])                                      # in int8, if there are kernels


@pytest.mark.parametrize(("count", "limit", "expected"), [
    (5, 2, [0, 2]), (7, 3, [0, 2, 4]), (3, None, [0, 1, 2]), (3, 9, [0, 1, 2]), (0, 2, [])])
def test_a_limit_of_validation_sentences_leaves_out_sentences_everywhere(count, limit, expected):
    assert validation.scored_pairs(range(count), limit) == expected


def test_the_log_has_every_interval_once_with_true_perplexity(finished):
    records = logged(finished / "run")
    assert [record["step"] for record in records if record["kind"] == "training"] == [2, 4, 6, 8, 10, 11]
    validations = [record for record in records if record["kind"] == "validation"]
    assert [record["step"] for record in validations] == [5, 10, 11]
    for record in validations:
        assert record["perplexity"] == pytest.approx(math.exp(record["loss"]), rel=1e-5)


# Going on


def terminate():
    os.kill(os.getpid(), signal.SIGTERM)


def train_with_interruptions(recipe, run, monkeypatch, interruptions):
    """Train to the end. interruptions: (step, function that interrupts, exception of the training)."""
    for step, interrupt, exception in interruptions:
        interrupting(monkeypatch, step, interrupt)
        with pytest.raises(exception) as stopped:
            train(recipe, run)
        if exception is Stopped:
            assert stopped.value.exit_code == (130 if interrupt is press_ctrl_c else 143)
            assert newest_checkpoint(run).step == step
    train(recipe, run)


def test_a_training_that_is_stopped_and_dies_goes_on_to_the_same_weights_and_log(recipe, run, tmp_path, monkeypatch):
    train_with_interruptions(recipe(), tmp_path / "parted", monkeypatch, [
        (1, press_ctrl_c, Stopped), (3, die, MemoryError), (5, terminate, Stopped), (8, die, MemoryError)])
    assert same(final_weights(tmp_path / "parted"), final_weights(run))
    assert same(load_bundle(best_bundle(tmp_path / "parted")).weights, load_bundle(best_bundle(run)).weights)
    assert logged(tmp_path / "parted") == logged(run)


@pytest.mark.parametrize(("step", "settings"), [
    (2, ("training.batch_tokens=500", "tokenizer.subword_sampling=0.1", "training.accumulation=2",
         "training.consistency=5", "training.max_steps=4")),
    *(pytest.param(step, settings, marks=pytest.mark.slow) for step, settings in (
        (1, ("tokenizer.subword_sampling=0.2",)), (7, ("tokenizer.subword_sampling=0.2",)),
        (7, ("training.accumulation=3",)), (5, ("training.accumulation=3",)), (1, ("training.accumulation=3",)),
        (7, ("training.consistency=3", "training.consistency_cutoff=0.05")),
        (3, ("training.batch_tokens=500", "tokenizer.subword_sampling=0.1"))))])
def test_a_stopped_training_of_any_kind_goes_on_to_the_same_weights_and_log(recipe, tmp_path, monkeypatch, step,
                                                                            settings):
    train(recipe(*settings), tmp_path / "whole")
    train_with_interruptions(recipe(*settings), tmp_path / "parted", monkeypatch, [(step, press_ctrl_c, Stopped)])
    assert same(final_weights(tmp_path / "parted"), final_weights(tmp_path / "whole"))
    assert logged(tmp_path / "parted") == logged(tmp_path / "whole")


def test_ctrl_c_before_the_first_step_leaves_a_run_that_starts(recipe, tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(Stopped) as stopped:
        patched.setattr(run_module, "prepare", interrupted)
        train(recipe(), tmp_path / "new")
    assert stopped.value.exit_code == 130
    assert start_training(recipe(), tmp_path / "new").state.step == 0


def test_another_seed_gives_other_weights(recipe, run, tmp_path):
    first, other = (start_training(recipe(f"seed={seed}"), tmp_path / str(seed)) for seed in (1, 2))
    assert not any(torch.equal(one, two) for one, two in zip(first.step.weights, other.step.weights, strict=True)
                   if one.ndim > 1)


def test_a_finished_run_reports_this_and_evaluates_again(recipe, run, capsys):
    weights, metadata = final_weights(run), load_bundle(best_bundle(run)).metadata
    scores = train(recipe(), str(run))
    assert "has finished: 11 steps" in capsys.readouterr().err
    assert scores["small"]["bleu"].value == metadata["test"]["small"]["bleu"]["value"]
    assert same(final_weights(run), weights)


@pytest.mark.slow
def test_a_run_that_lacks_its_last_validation_has_not_finished(recipe, tmp_path, capsys, monkeypatch):
    settings = "training.max_steps=2", "training.validate_every=1"
    interrupting(monkeypatch, 2, press_ctrl_c)
    with pytest.raises(Stopped):
        train(recipe(*settings), tmp_path / "new")
    assert start_training(recipe(*settings), tmp_path / "new").state.validations[-1][0] == 1
    train(recipe(*settings), tmp_path / "new")
    assert "has finished" not in capsys.readouterr().err


def test_a_prolonged_run_goes_on_and_names_what_changed(recipe, run, capsys):
    train(recipe("training.max_steps=13"), run)
    assert newest_checkpoint(run).step == 13
    assert "training.max_steps: 11 -> 13" in capsys.readouterr().err


def test_another_recipe_is_refused(recipe, run):
    before = (run / "recipe.yaml").read_bytes()
    for settings in (["model.dropout=0.2", "training.learning_rate=0.02"], ["training.max_steps=10"]):
        with pytest.raises(RecipeError):
            train(recipe(*settings), run)
    assert newest_checkpoint(run).step == 11 and (run / "recipe.yaml").read_bytes() == before


def test_a_run_keeps_the_vocabulary_that_auto_chose_if_auto_would_choose_another_one_now(recipe, tmp_path, monkeypatch,
                                                                                         capsys):
    run, automatic = tmp_path / "new", "tokenizer.vocab_size=auto"
    train(recipe(automatic, "training.max_steps=1"), run)
    size = Tokenizers.load(run / "tokenizer").source.vocab_size
    assert f"tokenizer.vocab_size: auto chose {size} pieces for this text" in capsys.readouterr().err
    assert load_recipe(run / "recipe.yaml").tokenizer.vocab_size == "auto"
    before = {path.name: path.read_bytes() for path in (run / "tokenizer").iterdir()}
    monkeypatch.setattr(vocabulary_size, "FACTOR", 1)
    assert start_training(recipe(automatic), run).state.step == 1
    assert {path.name: path.read_bytes() for path in (run / "tokenizer").iterdir()} == before


def test_restart_moves_the_old_run_aside_and_deletes_nothing(recipe, run, finished):
    train(recipe("training.max_steps=1", "seed=2"), run, restart=True)
    assert same(final_weights(run.with_name("run.1")), final_weights(finished / "run"))
    assert newest_checkpoint(run).step == 1


def test_a_run_does_not_go_on_with_other_text(recipe, folder, run):
    lines = (folder / "train.en").read_text().splitlines()
    (folder / "train.en").write_text("\n".join(["cat cat cat", *lines[1:]]) + "\n")
    with pytest.raises(CheckpointError):
        train(recipe("training.max_steps=12"), run)


# Computing


def assert_trained_alike(one, two):
    """Check that weights are equal up to rounding, except for biases of keys."""
    # Adam divides by the gradient's own size: rounding decides what it makes of a gradient that is truly zero, which
    # that of a key's bias is.
    for name in one:
        if not (name.endswith("bias") and "key_value" in name):
            torch.testing.assert_close(one[name], two[name], rtol=0, atol=1e-4)


def test_accumulation_does_not_change_the_result(recipe, tmp_path):
    assert_trained_alike(*(train_steps(recipe("model.dropout=0.0", f"training.accumulation={accumulation}"),
                                       tmp_path / str(accumulation), 5)[1] for accumulation in (1, 3)))


def test_bf16_keeps_weights_in_fp32_and_learns_the_same(recipe, tmp_path, monkeypatch):
    monkeypatch.setattr("seq2seq.devices.has_fast_bf16", lambda device: True)   # else it is emulated, more slowly
    losses = {}
    for precision in ("fp32", "bf16"):
        losses[precision], weights = train_steps(recipe(f"training.precision={precision}"), tmp_path / precision, 11)
        assert {weight.dtype for weight in weights.values()} == {torch.float32}
    assert losses["bf16"] == pytest.approx(losses["fp32"], rel=0.03) and losses["fp32"][-1] < losses["fp32"][0] - 1


def test_running_out_of_memory_splits_micro_batches_without_changing_the_result(recipe, tmp_path, monkeypatch, capsys):
    steps = partial(train_steps, recipe("model.dropout=0.0"))
    _, whole = steps(tmp_path / "whole", 5)
    loss, most = TrainingStep.loss, 20

    def limited(step, batch, links):
        if batch.target_count > most:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 99 bytes.")
        return loss(step, batch, links)

    monkeypatch.setattr(TrainingStep, "loss", limited)
    assert_trained_alike(whole, steps(tmp_path / "cut", 5)[1])
    assert "memory did not suffice" in capsys.readouterr().err


@pytest.fixture
def gradient_norms(monkeypatch):
    """Function that replaces the gradient norm of some calls, counted from 0."""
    def replace(value, is_wrong):
        real, calls = step_module.mean_gradient_norm, iter(range(100))
        monkeypatch.setattr(step_module, "mean_gradient_norm", lambda gradients, tokens: real(gradients, tokens) * (
            value if is_wrong(next(calls)) else 1))

    return replace


def test_a_step_without_a_finite_gradient_is_skipped_counted_and_named(recipe, run, gradient_norms, capsys):
    gradient_norms(math.nan, lambda call: call == 1)
    train(recipe("training.max_steps=14"), run)
    progress = newest_checkpoint(run).info["progress"]
    assert (progress["step"], progress["skipped"]) == (14, 1)
    assert "step 13 is skipped, because its gradient is not finite; line numbers of its pairs in the corpora: " in \
        capsys.readouterr().err


def test_a_diverged_training_stops_and_leaves_its_checkpoints(recipe, run, gradient_norms):
    gradient_norms(math.inf, lambda call: True)
    with pytest.raises(UserError):
        train(recipe("training.max_steps=50", "training.validate_every=50"), run)
    assert newest_checkpoint(run).step >= 11
    assert all(weight.isfinite().all() for weight in final_weights(run).values())


def explode(monkeypatch, factor, begins):
    """Multiply the learning rate from a step on. begins: step by `rate_factor`, which each rollback halves."""
    rate = TrainingLoop._learning_rate
    monkeypatch.setattr("seq2seq.training.train_state.SMOOTHING_STEPS", 2)      # so that a short training shows it
    monkeypatch.setattr(TrainingLoop, "_learning_rate", lambda self, number: rate(self, number) * (
        factor if number >= begins.get(self.state.rate_factor, 99) else 1))


DIVERGING = "training.max_steps=16", "training.validate_every=3", "metrics=[exact]", "training.best_metric=exact"


def test_a_diverging_loss_stops_the_training_or_lowers_its_learning_rate(recipe, tmp_path, monkeypatch):
    explode(monkeypatch, 1000, {1: 8})
    run = tmp_path / "new"
    with pytest.raises(UserError):
        train(recipe(*DIVERGING), run)
    # The advice is followed: it is no other recipe, and the rest is trained with half the rate.
    train(recipe(*DIVERGING, "training.divergence=lower_rate"), run)
    records = [record for record in logged(run) if record["kind"] == "training"]
    assert [record["step"] for record in records] == list(range(2, 17, 2))
    assert records[-1]["learning_rate"] == pytest.approx(0.5 * 0.01 * (3 / 16) ** 0.5)
    assert records[0]["learning_rate"] == pytest.approx(0.01 * 2 / 3)
    assert all(record["loss"] < 8 for record in records)
    assert newest_checkpoint(run).info["progress"]["retreats"] == 1


@pytest.mark.slow
def test_a_rollback_in_a_resumed_training_gives_the_log_of_one_in_an_uninterrupted_training(recipe, tmp_path,
                                                                                            monkeypatch):
    explode(monkeypatch, 1000, {1: 8})
    with pytest.raises(UserError):
        train(recipe(*DIVERGING), tmp_path / "resumed")
    for name in ("resumed", "whole"):
        train(recipe(*DIVERGING, "training.divergence=lower_rate"), tmp_path / name)
    assert logged(tmp_path / "resumed") == logged(tmp_path / "whole")


@pytest.mark.slow
def test_a_training_that_diverges_again_and_again_stops(recipe, tmp_path, monkeypatch, capsys):
    explode(monkeypatch, 1e5, {0.5 ** count: 8 for count in range(7)})
    with pytest.raises(UserError):
        train(recipe(*DIVERGING, "training.divergence=lower_rate"), tmp_path / "new")
    assert capsys.readouterr().err.count("rolling back to step 3") == 5


@pytest.mark.slow
def test_a_training_may_roll_back_again_to_the_last_checkpoint_that_is_known_to_be_good(recipe, tmp_path, monkeypatch,
                                                                                        capsys):
    explode(monkeypatch, 1e5, {1: 11, 0.5: 7})                                  # 6 is good, 9 not known to be
    train(recipe(*DIVERGING, "training.divergence=lower_rate", "training.keep_checkpoints=1"), tmp_path / "new")
    assert capsys.readouterr().err.count("rolling back to step 6") == 2
    progress = newest_checkpoint(tmp_path / "new").info["progress"]
    assert (progress["step"], progress["retreats"], progress["rate_factor"]) == (16, 2, 0.25)


@pytest.mark.slow
def test_nan_weights_at_a_validation_count_as_divergence(recipe, tmp_path, monkeypatch, capsys):
    rate = TrainingLoop._learning_rate
    monkeypatch.setattr("seq2seq.training.train_state.SMOOTHING_STEPS", 2)
    monkeypatch.setattr(TrainingLoop, "_learning_rate", lambda self, number: rate(self, number) * (
        1e38 if number == 11 and self.state.rate_factor == 1 else 1))
    settings = "training.max_steps=13", "training.validate_every=3"
    with pytest.raises(UserError):
        train(recipe(*settings), tmp_path / "new")
    train(recipe(*settings, "training.divergence=lower_rate"), tmp_path / "new")
    assert "rolling back to step 6" in capsys.readouterr().err
    assert newest_checkpoint(tmp_path / "new").step == 13


def test_a_normal_training_is_not_classified_as_diverged():
    progress = TrainState()
    generator = torch.Generator().manual_seed(3)
    for step in range(3000):
        noise = torch.randn(1, generator=generator).item()
        # a bad batch at times
        progress.update_smoothed_loss(1.5 + 8 * 0.99**step + 0.5 * noise + (30 if step % 500 == 499 else 0))
        assert progress.relative_rise() < 0.7, step
    for _ in range(200):
        progress.update_smoothed_loss(7.0)
    assert progress.relative_rise() >= 1


# Validating, averaging, ending


def test_the_moving_average_is_what_is_validated_and_kept(finished):
    best = load_bundle(best_bundle(finished / "run"))
    checkpoint, = (checkpoint for checkpoint in map(newest_checkpoint, [finished / "run"])
                   if checkpoint.step == best.metadata["step"])
    assert same(best.weights, {name: checkpoint.state[f"average.{name}"] for name in checkpoint.model})
    assert not same(best.weights, checkpoint.model)


def test_a_training_that_no_longer_improves_stops_early(recipe, run, monkeypatch):
    monkeypatch.setattr(TrainState, "is_better", lambda self, score, metric: self.best_score is None)
    train(recipe("training.max_steps=100", "training.early_stopping=2", "training.validate_every=1"), run)
    assert newest_checkpoint(run).step == 13


@pytest.mark.parametrize(("metric", "scores"), [("bleu", [9, 10, 11, 10, 10.5]), ("loss", [9, 8, 7, 8, 7.5])])
def test_after_a_rollback_early_stopping_compares_with_the_remaining_validations(metric, scores):
    # The best score, 20 or 5, is that of steps which a rollback has undone.
    state, stale = TrainState(best_score=20.0 if metric == "bleu" else 5.0, best_step=90, retreats=1), []
    for step, score in enumerate(scores):
        state.step = step
        state.add_validation(score, metric)
        stale.append(state.stale)
    assert stale == [0, 0, 0, 1, 2] and state.validations == [[step, score] for step, score in enumerate(scores)]


def test_of_two_models_with_bleu_0_the_later_one_is_kept():
    state = TrainState(best_score=0.0, best_step=1)
    assert state.is_better(0.0, "bleu") and not state.is_better(0.0, "loss")
    assert not TrainState(best_score=5.0, best_step=1).is_better(5.0, "bleu")


@pytest.mark.parametrize(("kind", "metric", "steps"), [
    ("none", "bleu", []), ("last", "bleu", [3, 4]), ("best", "bleu", [1, 3]), ("best", "loss", [2, 4])])
def test_the_last_or_the_best_checkpoints_are_averaged(kind, metric, steps):
    state = TrainState(validations=[[1, 9.0], [2, 5.0], [3, 8.0], [4, 6.0]])
    assert state.steps_to_average(Average(kind=kind, count=2), metric) == steps


def averages(run):
    return [record["step"] for record in logged(run) if record["kind"] == "average"]


def test_checkpoints_are_kept_until_they_are_averaged_at_the_end(recipe, run):
    settings = "training.average.kind=best", "training.keep_checkpoints=1", "training.max_steps=15"
    train(recipe(*settings, "training.average.count=4"), run)
    assert [step_of(path) for path in list_checkpoints(run)] == [5, 10, 11, 15]
    assert newest_checkpoint(run).info["progress"]["averaged"] == [5, 10, 11, 15]
    for count, expected in ((4, [15]), (2, [15, 15])):           # another selection is averaged again
        train(recipe(*settings, f"training.average.count={count}"), run)
        assert averages(run) == expected


@pytest.mark.parametrize("loss", ["damaged", pytest.param("deleted", marks=pytest.mark.slow)])
def test_averaging_that_is_set_later_uses_the_remaining_intact_checkpoints(recipe, run, capsys, loss):
    oldest, *_ = list_checkpoints(run)
    if loss == "deleted":
        shutil.rmtree(oldest)
    else:
        (oldest / "model.safetensors").write_bytes(b"damaged")
    settings = "training.keep_checkpoints=3", "training.average.kind=last", "training.average.count=3"
    train(recipe(*settings), run)
    assert "average of 2 checkpoints" in capsys.readouterr().err
    train(recipe(*settings, "training.max_steps=12"), run)
    assert averages(run) == [11, 12]


def test_an_average_that_is_no_better_does_not_replace_the_best_model(recipe, tmp_path):
    settings = "metrics=[exact]", "training.best_metric=exact", "training.average.kind=last", "training.average.count=2"
    train(recipe("training.max_steps=4", "training.validate_every=2", *settings), tmp_path / "new")
    scores = [record["exact"] for record in logged(tmp_path / "new") if record["kind"] in ("validation", "average")]
    assert scores == [0] * 3
    best, checkpoint = load_bundle(best_bundle(tmp_path / "new")), newest_checkpoint(tmp_path / "new")
    assert same(best.weights, {name: checkpoint.state[f"average.{name}"] for name in checkpoint.model})


def test_only_the_newest_checkpoints_stay_and_a_damaged_one_is_none(recipe, run):
    (run / "checkpoints" / "step-00000011" / "model.safetensors").write_bytes(b"damaged")
    train(recipe("training.max_steps=13", "training.keep_checkpoints=2", "training.checkpoint_minutes=0"), run)
    assert list(map(step_of, list_checkpoints(run))) == [10, 12, 13]            # step 10 was validated
    assert list(map(step_of, validated_checkpoints(run))) == [10, 13]


def delay_writing(monkeypatch, until):
    """Write each checkpoint only when the function `until` returns True."""
    write = loop_module.save_checkpoint

    def write_late(*arguments):
        deadline = time.monotonic() + 60
        while not until():
            assert time.monotonic() < deadline
            time.sleep(0.001)
        return write(*arguments)

    monkeypatch.setattr(loop_module, "save_checkpoint", write_late)


def test_a_training_goes_on_while_the_state_of_a_checkpoint_is_written_unchanged(recipe, run, folder, monkeypatch):
    steps = []
    monkeypatch.setattr(TrainingLoop, "update", lambda self, *batch, update=TrainingLoop.update: (
        update(self, *batch), steps.append(self.state.step)))
    delay_writing(monkeypatch, lambda: steps[-1] > 5)
    train(recipe("training.max_steps=6", "data.test={}"), folder / "new")
    first, second = (load_checkpoint(path / "checkpoints" / "step-00000005") for path in (run, folder / "new"))
    assert same(first.model, second.model) and same(first.state, second.state)


def test_the_clock_saves_no_checkpoint_while_another_one_is_written(recipe, folder, monkeypatch):
    steps = []
    monkeypatch.setattr(TrainingLoop, "update", lambda self, *batch, update=TrainingLoop.update: (
        update(self, *batch), steps.append(self.state.step)))
    delay_writing(monkeypatch, lambda: steps[-1] >= 4)
    saved, copy = [], TrainingLoop._copy_to_write
    monkeypatch.setattr(TrainingLoop, "_copy_to_write", lambda self, log: (
        saved.append(self.state.step), copy(self, log))[1])
    train(recipe("training.max_steps=5", "training.checkpoint_minutes=1e-9", "data.test={}"), folder / "new")
    assert saved[0] == 1 and not {2, 3} & set(saved) and saved[-1] == 5


def test_an_error_of_the_writing_ends_the_training_at_one_of_the_next_steps(recipe, folder, monkeypatch):
    def fail(*arguments):
        raise CheckpointError("the disk is full")

    monkeypatch.setattr(loop_module, "save_checkpoint", fail)
    with pytest.raises(CheckpointError, match="the disk is full"):
        train(recipe("training.max_steps=100000", "training.checkpoint_minutes=1e-9"), folder / "new")
    assert not list_checkpoints(folder / "new")


def test_a_stopped_training_has_written_its_checkpoint(recipe, folder, monkeypatch):
    began = time.monotonic()
    delay_writing(monkeypatch, lambda: time.monotonic() > began + 0.5)
    interrupting(monkeypatch, 2, press_ctrl_c)
    with pytest.raises(Stopped, match="saved at step 2"):
        train(recipe(), folder / "new")
    assert list(map(step_of, list_checkpoints(folder / "new"))) == [2]


def test_checkpoints_that_the_clock_saves_do_not_displace_validated_ones(recipe, folder, monkeypatch):
    run = folder / "new"
    train(recipe("training.checkpoint_minutes=0", "training.keep_checkpoints=3", "training.validate_every=4"), run)
    assert list(map(step_of, list_checkpoints(run))) == [4, 8, 10, 11]
    assert average_checkpoints([run], folder / "average", last=2) == [8, 11]
    interrupting(monkeypatch, 2, press_ctrl_c)
    with pytest.raises(Stopped):
        train(recipe(), folder / "short")
    with pytest.raises(CheckpointError):                                        # nothing was validated
        average_checkpoints([folder / "short"], folder / "nothing")


@pytest.mark.parametrize("change", ["text", "side", "order", "setting"])
def test_validation_text_that_has_changed_does_not_choose_the_best_model(recipe, folder, run, change):
    """Scores of different text cannot be compared."""
    lines = (folder / "valid.de").read_text().splitlines(keepends=True)
    sources = (folder / "valid.en").read_text().splitlines(keepends=True)
    settings = ["training.valid_sentences=3"] if change == "setting" else []
    if change == "text":
        (folder / "valid.de").write_text("".join([*lines[:-1], "eins\n"]))
    elif change == "side":
        (folder / "valid.en").write_text("".join([*sources[:-1], "one\n"]))
    elif change == "order":
        (folder / "valid.de").write_text("".join(lines[::-1]))
        (folder / "valid.en").write_text("".join(sources[::-1]))
    with pytest.raises(UserError):
        train(recipe("training.max_steps=12", *settings), run)
    (folder / "valid.de").write_text("".join(lines))
    (folder / "valid.en").write_text("".join(sources))
    train(recipe("training.max_steps=12", "data.test={}"), run)


def test_a_score_outside_the_expected_range_is_a_warning(recipe, run, capsys):
    scores = train(recipe("expected={small: {bleu: [99, 100]}}"), run)
    assert scores["small"]["bleu"].value < 99
    assert "below the expected 99 to 100" in capsys.readouterr().err


def test_the_bundle_contains_scores_counts_and_a_recipe_without_paths(finished):
    best = load_bundle(best_bundle(finished / "run"))
    assert best.metadata["corpora"]["train.en"]["lines"] == 60
    assert set(best.metadata["held_out"]) == {"valid", "test.small"} and min(best.metadata["held_out"].values()) > 0
    assert best.metadata["test"]["small"]["bleu"]["signature"].startswith("nrefs:1|case:mixed")
    assert "name: train.en" in best.recipe_text and "source: train.en" not in best.recipe_text
    assert "root: ..\n" in (finished / "run" / "recipe.yaml").read_text()


@pytest.mark.slow
def test_changed_decoding_settings_are_saved_in_the_model_of_a_finished_run(recipe, run):
    train(recipe("decoding.beam_size=3"), run)
    assert "beam_size: 3" in load_bundle(best_bundle(run)).recipe_text


# What a run survives


def test_a_first_start_that_failed_does_not_bind_the_run_to_its_recipe(recipe, tmp_path):
    with pytest.raises(UserError):
        train(recipe("tokenizer.vocab_size=9000"), tmp_path / "new")
    train(recipe("training.max_steps=1"), tmp_path / "new")
    assert newest_checkpoint(tmp_path / "new").step == 1


@pytest.mark.parametrize("setting", [
    "tokenizer.vocab_size=9000", "data.test.small.target=short.de", *(
        pytest.param(setting, marks=pytest.mark.slow) for setting in (
            "training.device=tpu", "data.valid.target=short.de",
            "data.test={blank: {source: blank.en, target: blank.de}}"))])
def test_a_refused_training_trains_nothing(recipe, folder, monkeypatch, setting):
    monkeypatch.chdir(folder)
    (folder / "short.de").write_text("eins\n")
    (folder / "blank.de").write_text("\n \n")
    (folder / "blank.en").write_text("one\ntwo\n")
    with pytest.raises(UserError):
        train(recipe(setting), folder / "new")
    assert not {"tokenizer", "checkpoints"}.intersection(path.name for path in folder.glob("new/*"))
    assert not list(folder.glob("new/prepared/*/source.ids")), "only what cleaning has found may be there"


def test_a_restart_that_fails_does_not_move_the_old_run(recipe, folder, run):
    (folder / "short.de").write_text("eins\n")
    with pytest.raises(UserError):
        train(recipe(f"data.test.small.target={folder / 'short.de'}"), run, restart=True)
    assert newest_checkpoint(run).step == 11 and not (folder / "run.1").exists()


@pytest.mark.parametrize("setting", ["training.start_from=run", *(
    pytest.param(setting, marks=pytest.mark.slow) for setting in (
        "tokenizer.taken_from=run", "data.train.0.source=run/train.en",
        "data.train=[{source: train.en, target: train.de}, {source: train.en, translated_by: run}]"))])
def test_restart_does_not_move_away_what_the_recipe_uses(recipe, folder, run, monkeypatch, setting):
    monkeypatch.chdir(folder)
    shutil.copy(folder / "train.en", run)
    with pytest.raises(RecipeError):
        train(recipe(setting), run, restart=True)
    assert best_bundle(run) and not (folder / "run.1").exists()


@pytest.mark.slow
def test_restart_of_a_run_behind_a_link_leaves_a_run_there(recipe, run, tmp_path):
    run.rename(tmp_path / "disk")
    run.symlink_to(tmp_path / "disk")
    train(recipe("training.max_steps=1"), run, restart=True)
    assert run.is_symlink()
    assert (newest_checkpoint(run).step, newest_checkpoint(tmp_path / "disk.1").step) == (1, 11)


@pytest.mark.slow
def test_columns_that_are_not_chosen_are_said_once(recipe, folder, capsys):
    pairs = zip(*((folder / f"train.{side}").read_text().splitlines() for side in ("en", "de")), strict=True)
    (folder / "pairs.csv").write_text("".join(f"{source},{target},x\n" for source, target in pairs))
    for step in (1, 2):
        train(recipe(f"data.train=[{{file: {folder / 'pairs.csv'}}}]", f"training.max_steps={step}"), folder / "new")
        assert ("pairs.csv: line 1 has 3 columns" in capsys.readouterr().err) == (step == 1)


def test_sentences_may_fill_all_positions_of_the_model(recipe, tmp_path):
    losses, _ = train_steps(recipe("data.cleaning.max_pieces=13", "model.max_positions=14"), tmp_path / "new", 5)
    assert np.isfinite(losses).all()


@pytest.mark.slow
def test_a_run_shortened_to_its_step_is_validated_and_measured(recipe, tmp_path, monkeypatch):
    interrupting(monkeypatch, 2, press_ctrl_c)
    with pytest.raises(Stopped):
        train(recipe(), tmp_path / "new")
    with pytest.raises(RecipeError, match="11 -> 1, but it has 2 steps, and ends here with 2"):
        train(recipe("training.max_steps=1"), tmp_path / "new")
    assert train(recipe("training.max_steps=2"), tmp_path / "new")["small"]["bleu"].value >= 0


def test_a_signal_in_the_last_validation_stops_before_the_tests(recipe, run, monkeypatch):
    done = TrainingLoop._validate
    monkeypatch.setattr(TrainingLoop, "_validate", lambda self, log: (done(self, log), terminate()))
    with pytest.raises(Stopped) as stopped:
        train(recipe("training.max_steps=12"), run)
    assert stopped.value.exit_code == 143
    monkeypatch.undo()
    assert json.loads((best_bundle(run) / "metadata.json").read_text())["step"] in (10, 11, 12)
    assert train(recipe("training.max_steps=12"), run)["small"]
