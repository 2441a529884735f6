"""The log of a run after the process was killed, resumed, or had its clock set back."""

import json

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from seq2seq.storage.run_directory import Log

pytestmark = pytest.mark.usefixtures("tensorboard")


def write(run, steps, resumed_at=0, records=0, seconds=0.0):
    log = Log(run, resumed_at, records)
    for step in steps:
        log.write("training", step, {"loss": 10 / step, "seconds": seconds + step})
    log.close()
    return log.records


def logged(run):
    return [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]


def curve(run):
    board = EventAccumulator(str(run / "tensorboard")).Reload()
    return [(event.step, event.value) for event in board.Scalars("training/loss")]


@pytest.mark.parametrize("clock", [4.0e9, 1.0e9])
def test_records_after_the_checkpoint_are_replaced_when_training_resumes(tmp_path, monkeypatch, clock):
    assert write(tmp_path, [2, 4, 6]) == 3
    monkeypatch.setattr("time.time", lambda: clock)             # in 2001, what came before has not happened yet
    assert write(tmp_path, [6, 8], resumed_at=5, records=2) == 4
    assert logged(tmp_path) == [2, 4, 6, 8]
    assert curve(tmp_path) == [(2, 5.0), (4, 2.5), (6, pytest.approx(10 / 6)), (8, 1.25)]


def test_a_record_of_the_checkpoints_own_step_that_came_after_it_is_dropped(tmp_path):
    # A checkpoint at step 4, then its validation's record, then the kill: the validation is repeated.
    write(tmp_path, [2, 4])
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "validation", "step": 4, "loss": 3.0}\n')
    assert Log(tmp_path, 4, 2).records == 2
    assert logged(tmp_path) == [2, 4]


def test_a_record_that_is_damaged_or_missing_is_dropped_with_a_warning(tmp_path, capsys):
    write(tmp_path, [2, 4])
    text = (tmp_path / "metrics.jsonl").read_text()
    (tmp_path / "metrics.jsonl").write_text(text[:-1])
    assert Log(tmp_path, 4, 2).records == 1
    assert "1 of its 2 records" in capsys.readouterr().err
    (tmp_path / "metrics.jsonl").write_text(text + '{"kind": "trai')
    assert Log(tmp_path, 4, 3).records == 2


def test_a_run_without_checkpoints_starts_a_new_log(tmp_path):
    write(tmp_path, [2, 4])
    write(tmp_path, [2])
    assert logged(tmp_path) == [2]
    assert curve(tmp_path) == [(2, 5.0)]


def test_curves_keep_the_time_of_the_training(tmp_path):
    write(tmp_path, [10, 70])
    write(tmp_path, [130], resumed_at=70, records=2)
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload().Scalars("training/loss")
    first, second, third = (event.wall_time for event in events)
    assert second - first == pytest.approx(60, abs=1e-3)
    assert third - second == pytest.approx(60, abs=1e-3)
