"""Training: its results, and how it is stopped, resumed and finished."""

import json
import math
import os
import re
import signal
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from toy import RECIPE, write_corpus
from trainings import die, final_weights, interrupting, logged, press_ctrl_c, same

from seq2seq.errors import CheckpointError, RecipeError, UserError
from seq2seq.recipe import load_recipe
from seq2seq.signals import Stopped
from seq2seq.storage.checkpoints import list_checkpoints, load_bundle, newest_checkpoint
from seq2seq.tokenizers import vocabulary_size
from seq2seq.tokenizers.tokenizer import Tokenizers
from seq2seq.training import trainer, validation
from seq2seq.training.objective import Objective
from seq2seq.training.train_state import TrainState
from seq2seq.training.trainer import Training, train

pytestmark = pytest.mark.usefixtures("quick_tensorboard")


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


# Reporting


def test_a_log_file_says_step_of_steps_rate_time_left_and_loss(recipe, tmp_path, capsys):
    train(recipe("training.validate_every=11"), tmp_path / "run")
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("training ")]
    figure = r"[\d.,]+"
    shown = (rf"training  (\d+)/11 steps  {figure} (steps/s|s/step)  {figure} s left  loss {figure}  "
             rf"perplexity {figure}  epoch \d  {figure} tokens/s  learning rate \S+  gradient {figure}")
    steps = [re.fullmatch(shown, line) for line in lines if "tokenizer" not in line]
    assert [match and int(match[1]) for match in steps] == [2, 4, 6, 8, 10, 11]


def test_a_training_says_where_its_curves_are_and_draws_them(recipe, tmp_path, capsys, monkeypatch):
    run = tmp_path / "a run"
    interrupting(monkeypatch, 7, press_ctrl_c)
    with pytest.raises(Stopped):
        train(recipe(), run)
    told = f"learning curves: open {run}/curves.svg in a browser (updated at every validation), or run tensorboard " \
        f"--logdir '{run}/tensorboard'"
    assert told in capsys.readouterr().err.splitlines()
    assert ElementTree.parse(run / "curves.svg")
    (run / "curves.svg").unlink()
    train(recipe(), run)
    titles = [title.text for title in ElementTree.parse(run / "curves.svg").iter("{http://www.w3.org/2000/svg}title")]
    assert titles[0] == "a run"
    assert {re.match("step [0-9]+", title)[0] for title in titles[1:]} == {"step 5", "step 10", "step 11"}


def test_the_first_lines_explain_loss_and_perplexity(recipe, tmp_path, capsys):
    train(recipe("training.max_steps=1"), tmp_path / "run")
    told = capsys.readouterr().err
    loss, perplexity = "loss: mean negative log-likelihood per target token", "perplexity: exp of the loss"
    assert 0 < told.index(loss) < told.index("loss ", told.index("training  1/1"))
    assert 0 < told.index(perplexity) < told.index("perplexity ", told.index("training  1/1"))


@pytest.mark.parametrize("smoothing", [0, 0.1])
def test_smoothing_is_spoken_of_only_where_labels_are_smoothed(recipe, tmp_path, capsys, smoothing):
    train(recipe("training.max_steps=1", f"training.label_smoothing={smoothing}"), tmp_path / "run")
    assert ("label smoothing" in capsys.readouterr().err) == bool(smoothing)
    assert ("smoothed labels" in (tmp_path / "run" / "curves.svg").read_text()) == bool(smoothing)


def test_the_first_lines_name_everything_that_the_training_loss_includes(recipe, tmp_path, capsys):
    train(recipe("training.max_steps=1", "training.label_smoothing=0.1", "training.consistency=5"), tmp_path / "run")
    told = " ".join(capsys.readouterr().err.split())
    assert "the training loss includes label smoothing and consistency training. perplexity" in told


def test_a_training_computes_on_the_device_of_the_recipe(recipe, tmp_path, monkeypatch):
    wanted = []
    choose = trainer.choose_device
    monkeypatch.setattr(trainer, "choose_device", lambda name="auto": wanted.append(name) or choose("cpu"))
    train(recipe("training.device=cuda:3", "training.max_steps=1"), tmp_path / "run")
    assert wanted == ["cuda:3"]


def test_validation_and_test_scores_say_their_precision(recipe, tmp_path, capsys):
    scores = train(recipe("training.validate_every=11"), tmp_path / "run")
    assert {score.precision for score in scores["small"].values()} == {"fp32"}
    told = capsys.readouterr().err
    assert re.search(r"^step 11  validation .*  \(translated in fp32\)  \(best\)$", told, re.MULTILINE)
    records = [record for record in logged(tmp_path / "run") if record["kind"] == "validation"]
    assert [record["precision"] for record in records] == ["fp32"]
    metadata = load_bundle(tmp_path / "run" / "best").metadata
    assert metadata["validation"]["bleu"]["precision"] == metadata["test"]["small"]["bleu"]["precision"] == "fp32"


def test_the_validation_sentences_that_are_translated_are_spread_over_the_corpus(recipe, folder, tmp_path, monkeypatch):
    scored, score_pairs = [], validation.score_pairs
    monkeypatch.setattr(validation, "score_pairs", lambda translator, pairs, *others: (
        scored.append(pairs), score_pairs(translator, pairs, *others))[1])
    train(recipe("training.validate_every=11", "training.max_steps=11", "training.valid_sentences=3"), tmp_path / "run")
    pairs = list(zip(*((folder / f"valid.{side}").read_text().splitlines() for side in ("en", "de")), strict=True))
    assert scored == [[pairs[0], pairs[len(pairs) // 3], pairs[2 * len(pairs) // 3]]]


@pytest.mark.parametrize(("count", "limit", "expected"), [
    (5, 2, [0, 2]), (7, 3, [0, 2, 4]), (3, None, [0, 1, 2]), (3, 9, [0, 1, 2]), (0, 2, [])])
def test_a_limit_of_validation_sentences_leaves_out_sentences_everywhere(count, limit, expected):
    assert validation.scored_pairs(range(count), limit) == expected


# Going on


def test_ctrl_c_before_the_first_step_says_how_to_resume(recipe, tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(Stopped, match="run the same command again") as stopped:
        patched.setattr(trainer, "prepare", interrupted)
        train(recipe(), tmp_path / "run")
    assert stopped.value.exit_code == 130
    train(recipe(), tmp_path / "run")


@pytest.mark.parametrize(("step", "settings"), [
    (7, ()), (1, ("training.accumulation=3",)),
    (3, ("training.bidirectional_epochs=1", "training.batch_tokens=500", "tokenizer.subword_sampling=0.1")),
    (7, ("training.consistency=5", "training.word_dropout=0.1", "training.switch_out=1")),
    *(pytest.param(step, (), marks=pytest.mark.slow) for step in (1, 5)),
    *(pytest.param(step, (setting,), marks=pytest.mark.slow) for step, setting in (
        (1, "tokenizer.subword_sampling=0.2"), (5, "tokenizer.subword_sampling=0.2"),
        (7, "tokenizer.subword_sampling=0.2"), (5, "training.accumulation=3"), (7, "training.accumulation=3")))])
def test_a_training_stopped_by_ctrl_c_goes_on_to_the_same_weights_and_log(recipe, tmp_path, monkeypatch, step,
                                                                          settings):
    whole, parted = tmp_path / "whole", tmp_path / "parted"
    train(recipe(*settings), whole)
    interrupting(monkeypatch, step, press_ctrl_c)
    with pytest.raises(Stopped, match=f"saved at step {step}") as stopped:
        train(recipe(*settings), parted)
    assert stopped.value.exit_code == 130
    train(recipe(*settings), parted)
    assert same(final_weights(parted), final_weights(whole))
    assert same(load_bundle(parted / "best").weights, load_bundle(whole / "best").weights)
    assert logged(parted) == logged(whole)


def test_sigterm_stops_with_143(recipe, tmp_path, monkeypatch):
    interrupting(monkeypatch, 2, lambda: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(Stopped) as stopped:
        train(recipe(), tmp_path / "run")
    assert stopped.value.exit_code == 143


@pytest.mark.parametrize("step", [3, 8])
def test_a_training_that_dies_between_checkpoints_repeats_what_it_lost(recipe, tmp_path, monkeypatch, step):
    whole, parted = tmp_path / "whole", tmp_path / "parted"
    train(recipe(), whole)
    interrupting(monkeypatch, step, die)
    with pytest.raises(MemoryError):
        train(recipe(), parted)
    train(recipe(), parted)
    assert same(final_weights(parted), final_weights(whole))
    assert logged(parted) == logged(whole)


def test_the_same_seed_gives_the_same_weights_and_another_seed_others(recipe, tmp_path):
    for name, seed in (("first", 1), ("again", 1), ("other", 2)):
        train(recipe(f"seed={seed}", "training.max_steps=3"), tmp_path / name)
    assert same(final_weights(tmp_path / "first"), final_weights(tmp_path / "again"))
    assert not same(final_weights(tmp_path / "first"), final_weights(tmp_path / "other"))


def test_a_finished_run_reports_this_and_evaluates_again(recipe, tmp_path, capsys):
    first = train(recipe(), tmp_path / "run")
    weights = final_weights(tmp_path / "run")
    again = train(recipe(), str(tmp_path / "run"))
    messages = capsys.readouterr().err
    assert "has finished: 11 steps" in messages and "To continue, raise training.max_steps" in messages
    assert again == first
    assert same(final_weights(tmp_path / "run"), weights)


def test_a_run_that_lacks_its_last_validation_has_not_finished(recipe, tmp_path, capsys, monkeypatch):
    interrupting(monkeypatch, 11, press_ctrl_c)
    with pytest.raises(Stopped):
        train(recipe("training.validate_every=8"), tmp_path / "run")
    assert Training(recipe("training.validate_every=8"), tmp_path / "run").state.validations[-1][0] == 8
    monkeypatch.undo()
    train(recipe("training.validate_every=8"), tmp_path / "run")
    assert "has finished" not in capsys.readouterr().err


def test_train_requires_a_recipe_object_instead_of_a_path(tmp_path):
    with pytest.raises(TypeError, match=r"recipe is of type str; expected Recipe, such as load_recipe\(path\)"):
        train("recipe.yaml", tmp_path / "run")


def test_a_prolonged_run_goes_on_and_names_what_changed(recipe, tmp_path, capsys):
    run = tmp_path / "run"
    train(recipe(), run)
    train(recipe("training.max_steps=13"), run)
    assert newest_checkpoint(run).step == 13
    assert "training.max_steps: 11 -> 13" in capsys.readouterr().err


def test_another_recipe_is_refused_with_every_difference(recipe, tmp_path):
    run = tmp_path / "run"
    train(recipe("training.max_steps=2"), run)
    weights = final_weights(run)
    with pytest.raises(RecipeError) as refusal:
        train(recipe("training.max_steps=2", "model.dropout=0.2", "training.learning_rate=0.02"), run)
    assert "model.dropout: 0.1 -> 0.2" in str(refusal.value)
    assert "training.learning_rate: 0.01 -> 0.02" in str(refusal.value)
    assert "--restart" in str(refusal.value)
    assert same(final_weights(run), weights)


def test_the_size_of_an_automatic_vocabulary_is_said_and_the_recipe_keeps_auto(recipe, folder, capsys):
    run = folder / "run"
    train(recipe("training.max_steps=2", "tokenizer.vocab_size=auto"), run)
    size = Tokenizers.load(run / "tokenizer").source.vocab_size
    assert f"tokenizer.vocab_size: auto chose {size} pieces for this text" in capsys.readouterr().err
    assert load_recipe(run / "recipe.yaml").tokenizer.vocab_size == "auto"
    with pytest.raises(RecipeError, match="tokenizer.vocab_size: auto -> 300"):
        train(recipe("training.max_steps=3"), run)


def test_restart_moves_the_old_run_aside_and_deletes_nothing(recipe, tmp_path):
    run = tmp_path / "run"
    train(recipe("training.max_steps=2"), run)
    weights = final_weights(run)
    train(recipe("training.max_steps=2", "seed=2"), run, restart=True)
    assert same(final_weights(tmp_path / "run.1"), weights)
    assert not same(final_weights(run), weights)


def test_a_run_does_not_go_on_with_other_text(recipe, folder):
    run = folder / "run"
    train(recipe("training.max_steps=2"), run)
    lines = (folder / "train.en").read_text().splitlines()
    (folder / "train.en").write_text("\n".join(["cat cat cat", *lines[1:]]) + "\n")
    with pytest.raises(CheckpointError, match="was trained on other text"):
        train(recipe("training.max_steps=4"), run)


# Computing


def assert_trained_alike(run, other):
    """Check that the final weights of two runs are equal up to rounding, except for biases of keys."""
    one, two = final_weights(run), final_weights(other)
    # Adam divides by the gradient's own size: rounding decides what it makes of a gradient that is truly zero, which
    # that of a key's bias is.
    keys = [name for name in one if name.endswith("bias") and ("query_key_value" in name or "key_value" in name)]
    for name in one.keys() - set(keys):
        torch.testing.assert_close(one[name], two[name], rtol=0, atol=1e-4)


def test_the_first_epochs_train_in_both_directions(recipe, tmp_path):
    training = Training(recipe("training.bidirectional_epochs=1", "training.max_steps=1000"), tmp_path / "run")
    pairs, lengths = len(training.prepared.corpus), {}
    for micro_batches in training._steps():
        if training.state.epoch == 2:
            break
        lengths.setdefault(training.state.epoch, []).extend(np.concatenate(micro_batches).tolist())
        training.state.step += 1
        training.state.step_in_epoch += 1
    assert sorted(lengths[0]) == list(range(2 * pairs)) and sorted(lengths[1]) == list(range(pairs))


def test_accumulation_does_not_change_the_result(recipe, tmp_path):
    for accumulation in (1, 3):
        settings = ("model.dropout=0.0", f"training.accumulation={accumulation}", "training.max_steps=5")
        train(recipe(*settings), tmp_path / str(accumulation))
    assert_trained_alike(tmp_path / "1", tmp_path / "3")


def test_bf16_keeps_weights_in_fp32_and_learns_the_same(recipe, tmp_path, monkeypatch):
    monkeypatch.setattr("seq2seq.devices.has_fast_bf16", lambda device: True)   # else it is emulated, more slowly
    losses = {}
    for precision in ("fp32", "bf16"):
        run = tmp_path / precision
        train(recipe(f"training.precision={precision}", "training.max_steps=40", "training.validate_every=40"), run)
        losses[precision] = logged(run)[-1]["loss"]
        assert {weight.dtype for weight in final_weights(run).values()} == {torch.float32}
    assert losses["bf16"] == pytest.approx(losses["fp32"], rel=0.03)


def test_validation_and_test_translate_in_the_precision_of_the_training(recipe, tmp_path, monkeypatch):
    monkeypatch.setattr("seq2seq.devices.has_fast_bf16", lambda device: True)
    for precision, chosen in (("fp32", "fp32"), ("bf16", "bf16"), ("auto", "bf16")):
        training = Training(recipe(f"training.precision={precision}"), tmp_path / precision)
        assert training._translator().precision == chosen


def test_running_out_of_memory_splits_micro_batches_without_changing_the_result(recipe, tmp_path, monkeypatch, capsys):
    settings = ("model.dropout=0.0", "training.max_steps=5", "training.precision=fp32")
    train(recipe(*settings), tmp_path / "whole")
    loss, most = Objective.loss, 20

    def limited(objective, model, batch, corpus, pairs):
        if batch.target_count > most:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 99 bytes.")
        return loss(objective, model, batch, corpus, pairs)

    monkeypatch.setattr(Objective, "loss", limited)
    train(recipe(*settings), tmp_path / "cut")
    assert "memory did not suffice" in capsys.readouterr().err
    assert_trained_alike(tmp_path / "whole", tmp_path / "cut")
    assert newest_checkpoint(tmp_path / "cut").info["progress"]["most_tokens"] > 0


def test_a_step_without_a_finite_gradient_is_skipped_counted_and_named(recipe, tmp_path, monkeypatch, capsys):
    from seq2seq.training import trainer

    real = trainer.mean_gradient_norm
    calls = iter(range(100))
    monkeypatch.setattr(trainer, "mean_gradient_norm", lambda gradients, tokens: real(gradients, tokens) * (
        math.nan if next(calls) == 3 else 1))
    train(recipe(), tmp_path / "run")
    progress = newest_checkpoint(tmp_path / "run").info["progress"]
    assert (progress["step"], progress["skipped"]) == (11, 1)
    assert "step 4 is skipped, because its gradient is not finite; line numbers of its pairs in the corpora: " in \
        capsys.readouterr().err


def test_a_diverged_training_stops_and_leaves_its_checkpoints(recipe, tmp_path, monkeypatch):
    from seq2seq.training import trainer

    real = trainer.mean_gradient_norm
    calls = iter(range(100))
    monkeypatch.setattr(trainer, "mean_gradient_norm", lambda gradients, tokens: real(gradients, tokens) * (
        math.inf if next(calls) >= 5 else 1))
    with pytest.raises(UserError, match="diverged"):
        train(recipe("training.max_steps=50"), tmp_path / "run")
    assert newest_checkpoint(tmp_path / "run").step >= 5
    assert all(weight.isfinite().all() for weight in final_weights(tmp_path / "run").values())


@pytest.fixture
def exploding(monkeypatch):
    """Make updates a thousand times too large from step 8 on, unless the training has rolled back and lowered its
    learning rate."""
    done = Training._update
    monkeypatch.setattr("seq2seq.training.train_state.SMOOTHING_STEPS", 2)      # so that a short training shows it
    monkeypatch.setattr(Training, "_update", lambda self, rate, step, skip: done(
        self, rate * (1000 if step >= 8 and self.state.rate_factor == 1 else 1), step, skip))


def test_a_diverging_loss_stops_the_training_and_names_the_last_good_checkpoint(recipe, tmp_path, exploding):
    settings = "training.max_steps=30", "training.validate_every=3"
    with pytest.raises(UserError, match=r"step \d+: .* has risen from .*: the training has diverged. The checkpoint of "
                                        r"step 3 .*training.divergence=lower_rate"):
        train(recipe(*settings), tmp_path / "run")
    # The advice is followed: it is no other recipe, and the rest is trained with half the rate.
    train(recipe(*settings, "training.divergence=lower_rate"), tmp_path / "run")
    rates = {record["step"]: record["learning_rate"] for record in logged(tmp_path / "run")
             if record["kind"] == "training"}
    train(recipe(*settings, "training.divergence=lower_rate"), tmp_path / "other")
    assert rates == {record["step"]: record["learning_rate"] for record in logged(tmp_path / "other")
                     if record["kind"] == "training"}
    assert list(rates) == list(range(2, 31, 2))
    assert rates[30] == pytest.approx(0.5 * 0.01 * (3 / 30) ** 0.5)
    assert rates[2] == pytest.approx(0.01 * 2 / 3)
    assert all(record["loss"] < 8 for record in logged(tmp_path / "run"))
    assert newest_checkpoint(tmp_path / "run").info["progress"]["retreats"] == 1


def test_a_training_that_diverges_again_and_again_stops(recipe, tmp_path, monkeypatch, capsys):
    done = Training._update
    monkeypatch.setattr("seq2seq.training.train_state.SMOOTHING_STEPS", 2)
    monkeypatch.setattr(Training, "_update",
                        lambda self, rate, step, skip: done(self, rate * (1e5 if step >= 8 else 1), step, skip))
    with pytest.raises(UserError, match="diverged. It has been rolled back 5 times, each time with half the learning "
                                        "rate. Train from the beginning "):
        train(recipe("training.max_steps=60", "training.validate_every=3", "training.divergence=lower_rate"),
              tmp_path / "run")
    assert capsys.readouterr().err.count("rolling back to step 3") == 5


def test_a_training_that_diverges_again_before_saving_rolls_back_again(recipe, tmp_path, monkeypatch, capsys):
    done = Training._update
    monkeypatch.setattr("seq2seq.training.train_state.SMOOTHING_STEPS", 2)
    begins = {1: 11, 0.5: 7}                                                    # by rate: 6 is good, 9 not known to be
    monkeypatch.setattr(Training, "_update", lambda self, rate, step, skip: done(
        self, rate * (1e5 if step >= begins.get(self.state.rate_factor, 99) else 1), step, skip))
    train(recipe("training.max_steps=20", "training.validate_every=3", "training.divergence=lower_rate",
                 "training.keep_checkpoints=1"), tmp_path / "run")
    assert capsys.readouterr().err.count("rolling back to step 6") == 2
    progress = newest_checkpoint(tmp_path / "run").info["progress"]
    assert (progress["step"], progress["retreats"], progress["rate_factor"]) == (20, 2, 0.25)


def test_nan_weights_at_a_validation_count_as_divergence(recipe, tmp_path, monkeypatch, capsys):
    done = Training._update
    monkeypatch.setattr("seq2seq.training.train_state.SMOOTHING_STEPS", 2)
    monkeypatch.setattr(Training, "_update", lambda self, rate, step, skip: done(
        self, rate * (1e38 if step == 11 and self.state.rate_factor == 1 else 1), step, skip))
    settings = "training.max_steps=20", "training.validate_every=3"
    with pytest.raises(UserError, match="step 12: the validation loss is not a number: the training has diverged"):
        train(recipe(*settings), tmp_path / "run")
    train(recipe(*settings, "training.divergence=lower_rate"), tmp_path / "run")
    assert "rolling back to step 6" in capsys.readouterr().err
    assert newest_checkpoint(tmp_path / "run").step == 20


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


def test_the_moving_average_is_what_is_validated_and_kept(recipe, tmp_path):
    train(recipe("training.max_steps=5"), tmp_path / "run")
    checkpoint, best = newest_checkpoint(tmp_path / "run"), load_bundle(tmp_path / "run" / "best")
    assert same(best.weights, {name: checkpoint.state[f"average.{name}"] for name in checkpoint.model})
    assert not same(best.weights, checkpoint.model)


def test_a_training_that_no_longer_improves_stops_early(recipe, tmp_path, monkeypatch):
    monkeypatch.setattr(TrainState, "is_better", lambda self, score, metric: self.best_score is None)
    train(recipe("training.max_steps=100", "training.early_stopping=2"), tmp_path / "run")
    assert newest_checkpoint(tmp_path / "run").step == 15                       # best at 5, then two without gain


@pytest.mark.parametrize(("metric", "scores"), [("bleu", [9, 10, 11, 10, 10.5]), ("loss", [9, 8, 7, 8, 7.5])])
def test_after_a_rollback_early_stopping_compares_with_the_remaining_validations(metric, scores):
    # The best score, 20 or 5, is that of steps which a rollback has undone.
    state, stale = TrainState(best_score=20.0 if metric == "bleu" else 5.0, best_step=90, retreats=1), []
    for step, score in enumerate(scores):
        state.step = step
        state.add_validation(score, metric)
        stale.append(state.stale)
    assert stale == [0, 0, 0, 1, 2] and state.validations == [[step, score] for step, score in enumerate(scores)]


@pytest.mark.parametrize("kind", ["last", "best"])
def test_checkpoints_are_averaged_at_the_end_and_kept_until_then(recipe, tmp_path, kind):
    run = tmp_path / "run"
    train(recipe(f"training.average.kind={kind}", "training.average.count=3", "training.keep_checkpoints=1",
                 "training.max_steps=15"), run)
    assert [path.name for path in list_checkpoints(run)] == ["step-00000005", "step-00000010", "step-00000015"]
    assert [record["kind"] for record in logged(run)].count("average") == 1
    assert newest_checkpoint(run).info["progress"]["averaged"] == [5, 10, 15]
    settings = f"training.average.kind={kind}", "training.keep_checkpoints=1", "training.max_steps=15"
    for count, averages in ((3, 1), (2, 2), (2, 2)):                # only another selection is averaged again
        train(recipe(*settings, f"training.average.count={count}"), run)
        assert [record["kind"] for record in logged(run)].count("average") == averages


def test_an_average_that_is_no_better_does_not_replace_the_best_model(recipe, tmp_path):
    settings = "metrics=[exact]", "training.best_metric=exact", "training.average.kind=last", "training.average.count=3"
    train(recipe("training.max_steps=15", *settings), tmp_path / "run")
    scores = [record["exact"] for record in logged(tmp_path / "run") if record["kind"] in ("validation", "average")]
    assert scores == [0] * 4
    best, checkpoint = load_bundle(tmp_path / "run" / "best"), newest_checkpoint(tmp_path / "run")
    assert same(best.weights, {name: checkpoint.state[f"average.{name}"] for name in checkpoint.model})


def test_a_damaged_checkpoint_is_left_out_of_the_average(recipe, tmp_path, capsys):
    run, settings = tmp_path / "run", ("training.keep_checkpoints=3", "training.max_steps=15")
    train(recipe(*settings), run)
    oldest, *intact = list_checkpoints(run)
    (weights,) = oldest.glob("model*")
    weights.write_bytes(weights.read_bytes()[:-1])
    train(recipe(*settings, "training.average.kind=last", "training.average.count=3"), run)
    assert "step-00000005" in (told := capsys.readouterr().err) and "The average leaves this checkpoint out." in told
    assert "average of 2 checkpoints" in told
    assert newest_checkpoint(run).info["progress"]["averaged"] and len(intact) == 2


def test_a_run_keeps_its_vocabulary_if_a_later_version_chooses_another_size(recipe, tmp_path, monkeypatch, capsys):
    run = tmp_path / "run"
    train(recipe("tokenizer.vocab_size=auto", "training.max_steps=5"), run)
    assert "auto chose" in capsys.readouterr().err
    before = {path.name: path.read_bytes() for path in (run / "tokenizer").iterdir()}
    monkeypatch.setattr(vocabulary_size, "FACTOR", 1)
    train(recipe("tokenizer.vocab_size=auto", "training.max_steps=10"), run)
    assert "auto chose" not in capsys.readouterr().err and newest_checkpoint(run).step == 10
    assert {path.name: path.read_bytes() for path in (run / "tokenizer").iterdir()} == before


def test_only_the_newest_checkpoints_stay(recipe, tmp_path):
    train(recipe("training.keep_checkpoints=2", "training.checkpoint_minutes=0"), tmp_path / "run")
    assert [path.name for path in list_checkpoints(tmp_path / "run")] == ["step-00000010", "step-00000011"]


def test_a_score_outside_the_expected_range_is_a_warning(recipe, folder, capsys):
    with open(folder / "recipe.yaml", "a") as file:
        file.write("expected: {small: {bleu: [99, 100]}}\n")
    scores = train(recipe("training.max_steps=2"), folder / "run")
    assert scores["small"]["bleu"].value < 99
    assert "below the expected 99 to 100" in capsys.readouterr().err


def test_the_bundle_contains_scores_counts_and_the_original_recipe(recipe, tmp_path):
    train(recipe("training.max_steps=2"), tmp_path / "run")
    best = load_bundle(tmp_path / "run" / "best")
    assert best.metadata["corpora"]["train.en"]["lines"] == 60
    assert best.metadata["test"]["small"]["bleu"]["signature"].startswith("nrefs:1|case:mixed")
    assert "source: train.en" in best.recipe_text
    assert str(tmp_path) in (tmp_path / "run" / "recipe.yaml").read_text()


def test_the_log_has_every_interval_once_with_true_perplexity(recipe, tmp_path):
    train(recipe(), tmp_path / "run")
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records if record["kind"] == "training"] == [2, 4, 6, 8, 10, 11]
    assert [record["step"] for record in records if record["kind"] == "validation"] == [5, 10, 11]
    for record in records:
        if record["kind"] == "validation":
            assert record["perplexity"] == pytest.approx(torch.tensor(record["loss"]).exp().item(), rel=1e-5)


# What a run survives


def test_a_first_start_that_failed_does_not_bind_the_run_to_its_recipe(recipe, tmp_path):
    run = tmp_path / "run"
    with pytest.raises(UserError, match="largest possible vocabulary"):
        train(recipe("tokenizer.vocab_size=9000"), run)
    train(recipe("training.max_steps=2"), run)
    assert newest_checkpoint(run).step == 2


@pytest.mark.parametrize("setting", ["tokenizer.vocab_size=9000", "training.device=tpu", "data.valid.target=short.de"])
def test_a_refused_training_leaves_at_most_its_recipe(recipe, folder, monkeypatch, setting):
    monkeypatch.chdir(folder)
    (folder / "short.de").write_text("eins\n")
    before = sorted(folder.rglob("*"))
    for _ in range(2):
        with pytest.raises(UserError):
            train(recipe(setting), folder / "runs" / "new")
        assert {path.name for path in {*folder.rglob("*")} - {*before}} <= {"runs", "new", "recipe.yaml", ".lock"}


def test_a_restart_that_fails_does_not_move_the_old_run(recipe, folder):
    train(recipe("training.max_steps=1"), folder / "run")
    (folder / "short.de").write_text("eins\n")
    with pytest.raises(UserError, match="must match line by line"):
        train(recipe(f"data.test.small.target={folder / 'short.de'}"), folder / "run", restart=True)
    assert newest_checkpoint(folder / "run").step == 1 and not (folder / "run.1").exists()


def test_a_header_that_counts_as_a_pair_is_said_once(recipe, folder, capsys):
    pairs = zip(*((folder / f"train.{side}").read_text().splitlines() for side in ("en", "de")), strict=True)
    (folder / "pairs.csv").write_text("".join(f"{source},{target}\n" for source, target in [("en", "de"), *pairs]))
    for step in (1, 2):
        train(recipe(f"data.train=[{{file: {folder / 'pairs.csv'}}}]", f"training.max_steps={step}"), folder / "run")
        assert ("pairs.csv:1: the line looks like column names" in capsys.readouterr().err) == (step == 1)


def test_a_mistake_in_the_test_set_is_known_before_anything_is_trained(recipe, folder):
    (folder / "short.de").write_text("eins\n")
    with pytest.raises(UserError, match="must match line by line"):
        train(recipe(f"data.test.small.target={folder / 'short.de'}"), folder / "run")
    assert not (folder / "run" / "tokenizer").exists()


def test_sentences_may_fill_all_positions_of_the_model(recipe, tmp_path):
    train(recipe("data.cleaning.max_pieces=13", "model.max_positions=14", "training.max_steps=5"), tmp_path / "run")
    assert newest_checkpoint(tmp_path / "run").step == 5


def test_averaging_enabled_after_resuming_uses_the_remaining_checkpoints(recipe, tmp_path):
    run = tmp_path / "run"
    train(recipe("training.keep_checkpoints=1"), run)
    train(recipe("training.max_steps=15", "training.average.kind=last", "training.average.count=4"), run)
    assert newest_checkpoint(run).info["progress"]["averaged"]
    train(recipe("training.max_steps=20", "training.average.kind=last", "training.average.count=4"), run)
    assert [record["step"] for record in logged(run) if record["kind"] == "average"] == [15, 20]


def test_a_run_shortened_below_its_step_is_validated_and_measured(recipe, tmp_path, monkeypatch):
    run = tmp_path / "run"
    interrupting(monkeypatch, 4, press_ctrl_c)
    with pytest.raises(Stopped):
        train(recipe(), run)
    assert train(recipe("training.max_steps=3"), run)["small"]["bleu"].value >= 0


def test_a_damaged_newer_checkpoint_never_displaces_a_good_one(recipe, tmp_path):
    run = tmp_path / "run"
    train(recipe("training.checkpoint_minutes=0", "training.keep_checkpoints=2"), run)
    (run / "checkpoints" / "step-00000011" / "model.safetensors").write_bytes(b"damaged")
    train(recipe("training.max_steps=12", "training.checkpoint_minutes=0", "training.keep_checkpoints=1"), run)
    assert newest_checkpoint(run).step == 12


def test_restart_does_not_move_the_text_away(recipe, folder):
    train(recipe("training.max_steps=2"), folder)
    with pytest.raises(RecipeError, match="would rename the run, and .*train.en is in it"):
        train(recipe("training.max_steps=2"), folder, restart=True)
    assert (folder / "train.en").exists()


@pytest.mark.parametrize("setting", [
    "training.start_from=run", "tokenizer.taken_from=run",
    "data.train=[{source: train.en, target: train.de}, {source: train.en, translated_by: run}]"])
def test_restart_does_not_move_a_model_away_that_the_recipe_uses(recipe, folder, monkeypatch, setting):
    monkeypatch.chdir(folder)
    run = folder / "run"
    train(recipe("training.max_steps=2"), run)
    with pytest.raises(RecipeError, match="would rename the run, and the recipe uses the model .*run, which is in it"):
        train(recipe(setting, "training.max_steps=3"), run, restart=True)
    assert (run / "best").exists() and not (folder / "run.1").exists()


def test_changed_decoding_settings_are_saved_in_the_model_of_a_finished_run(recipe, tmp_path):
    run = tmp_path / "run"
    train(recipe("training.max_steps=2"), run)
    train(recipe("training.max_steps=2", "decoding.beam_size=3"), run)
    assert "beam_size: 3" in load_bundle(run / "best").recipe_text


def test_a_test_set_without_text_is_refused_before_anything_is_trained(recipe, folder):
    (folder / "blank.de").write_text("\n \n")
    (folder / "blank.en").write_text("one\ntwo\n")
    test = f"data.test={{blank: {{source: {folder / 'blank.en'}, target: {folder / 'blank.de'}}}}}"
    with pytest.raises(UserError, match="data.test.blank .* has no line with text"):
        train(recipe(test), folder / "run")
    assert not (folder / "run" / "tokenizer").exists()


def test_a_signal_in_the_last_validation_stops_before_the_tests(recipe, tmp_path, monkeypatch):
    done = Training._validate

    def interrupted(self, log):
        done(self, log)
        if self.state.step == 4:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(Training, "_validate", interrupted)
    with pytest.raises(Stopped, match="saved at step 4") as stopped:
        train(recipe("training.max_steps=4"), tmp_path / "run")
    assert stopped.value.exit_code == 143
    monkeypatch.undo()
    assert train(recipe("training.max_steps=4"), tmp_path / "run")["small"]


def test_restart_of_a_run_behind_a_link_leaves_a_run_there(recipe, tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "disk")
    for restart in (False, True):
        train(recipe("training.max_steps=2"), tmp_path / "run", restart)
    assert (tmp_path / "run").is_symlink()
    assert newest_checkpoint(tmp_path / "run").step == newest_checkpoint(tmp_path / "disk.1").step == 2


def test_of_two_models_with_bleu_0_the_later_one_is_kept():
    state = TrainState(best_score=0.0, best_step=1)
    assert state.is_better(0.0, "bleu") and not state.is_better(0.0, "loss")
    assert not TrainState(best_score=5.0, best_step=1).is_better(5.0, "bleu")
