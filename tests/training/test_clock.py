"""The clock of a training, and the speed and times that it reports."""

import json
import re

import pytest
from toy import copy_finished_run, train_toy

from seq2seq.training.clock import PHASES, Clock
from seq2seq.training.log_lines import pop_window_means
from seq2seq.training.loop import TrainingLoop
from seq2seq.training.train_state import TrainState


def clock_that_shows(*times):
    return Clock(iter(times).__next__)


def test_an_inner_phase_is_not_counted_for_the_outer_one_and_the_sum_is_the_whole_time():
    clock = clock_that_shows(100, 101, 103, 108, 119, 132, 132)
    with clock.phase("validating"), clock.phase("saving"):
        pass
    seconds = clock.pop()
    assert seconds == {"computing": 1 + 13, "waiting": 0, "reading": 0, "validating": 2 + 11, "saving": 5}
    assert sum(seconds.values()) == 132 - 100
    assert set(seconds) == set(PHASES)


def test_a_phase_goes_on_after_a_reading_of_the_clock():
    clock = clock_that_shows(0, 2, 5, 12, 23)
    with clock.phase("saving"):
        assert clock.pop()["saving"] == 3
    assert clock.pop() == dict.fromkeys(PHASES, 0) | {"saving": 7, "computing": 11}


def test_tokens_per_second_are_those_of_the_wall_clock_with_the_share_of_each_phase():
    state = TrainState(step=7, window={
        "computing": 2.0, "waiting": 1.0, "reading": 0.0, "validating": 5.0, "saving": 2.0, "steps": 3, "loss": 10,
        "likelihood": 10, "source_tokens": 400, "target_tokens": 600, "gradient_norm": 3})
    means = pop_window_means(state, 0.1, waited=3.0, memory=7)                  # another rank has waited longer
    assert means["tokens_per_second"] == 100 and means["seconds"] == 10
    assert [means[phase] for phase in PHASES] == [0.2, 0.3, 0.0, 0.5, 0.2]
    assert "in 0.2 minutes (waiting 10 %, validating 50 %, saving 20 %)" in state.summary()


time_of_test = [0.0]


def slow(function, seconds):
    def run(*arguments, **options):
        time_of_test[0] += seconds
        return function(*arguments, **options)

    return run


def test_a_training_counts_all_of_its_time_and_the_resumed_one_the_rest(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(Clock.__init__, "__defaults__", (lambda: time_of_test[0],))
    monkeypatch.setattr(TrainingLoop, "epoch", slow(TrainingLoop.epoch, 20))
    monkeypatch.setattr(TrainingLoop, "update", slow(TrainingLoop.update, 2))
    monkeypatch.setattr(TrainingLoop, "_evaluate", slow(TrainingLoop._evaluate, 60))
    monkeypatch.setattr(TrainingLoop, "_copy_to_write", slow(TrainingLoop._copy_to_write, 6))
    train_toy(tmp_path, ["training.max_steps=4", "training.validate_every=2", "training.log_every=2", "data.test={}"])
    first, second = logged_trainings(tmp_path)
    assert first["seconds"] == 20 + 2 * 2 and first["reading"] == pytest.approx(20 / 24)
    # The second log line has two steps, and the validation and checkpoint after the first one.
    assert second["seconds"] == first["seconds"] + 2 * 2 + 60 + 6
    assert (second["validating"], second["saving"]) == (pytest.approx(60 / 70), pytest.approx(6 / 70))
    whole = 20 + 4 * 2 + 2 * 60 + 2 * 6
    assert f"trained 4 steps in {whole / 60:.1f} minutes" in capsys.readouterr().err
    train_toy(tmp_path, ["training.max_steps=5", "training.validate_every=5", "training.log_every=2", "data.test={}"])
    assert logged_trainings(tmp_path)[-1]["seconds"] == whole - 6 + 20 + 2       # the copy is counted afterwards


def logged_trainings(folder):
    records = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    return [record for record in records if record["kind"] == "training"]


def test_the_curves_and_the_last_message_tell_the_speed(tmp_path):
    run = copy_finished_run(tmp_path)
    assert "tokens per second" in (run / "curves.svg").read_text()
    assert re.search(r"trained 11 steps in \d+\.\d minutes \(.*(saving|validating) \d+ %",
                     (tmp_path / "messages").read_text())
