"""Plans that fit into a time: the best size that the time suffices for, and what more time would change."""

from dataclasses import replace

import pytest

from seq2seq.check.time_budget import (
    MIN_SENTENCES,
    START_SECONDS,
    Candidate,
    Speed,
    best_plan,
    candidates,
    shortest,
    with_more_time,
)

SPEED = Speed(preparation=20, step=0.5, sentence=0.02, loss=1, valid=500, test=1000)
SMALL = Candidate("small", 0, SPEED, steps_per_epoch=200, max_steps=6_000)
TINY = Candidate("tiny", 0, replace(SPEED, step=0.1), steps_per_epoch=400, max_steps=12_000)


def measured(size, consistency):
    return {"small": SMALL, "tiny": TINY}[size]


@pytest.mark.parametrize("minutes", [2, 7, 30, 45])
def test_a_plan_takes_the_time_that_it_has(minutes):
    plan = SMALL.plan(60 * minutes)
    validation = SPEED.loss + plan.valid_sentences * SPEED.sentence
    total = START_SECONDS + 20 + plan.test_sentences * 0.02 + plan.steps * 0.5 + plan.validations * validation
    total += 0.5 * plan.valid_sentences * 0.02                                  # in int8
    assert total == pytest.approx(plan.seconds) and plan.seconds == pytest.approx(60 * minutes, abs=0.5)
    assert plan.epochs == plan.steps / 200
    assert plan.validations * validation < 0.16 * 60 * minutes or plan.valid_sentences <= MIN_SENTENCES + 25


def test_the_test_set_gets_less_if_the_time_is_short_unless_the_user_gave_it():
    slow = replace(TINY, speed=replace(SPEED, step=0.1, sentence=0.1))
    assert slow.plan(3_600).test_sentences == 1_000
    short = slow.plan(180)
    assert MIN_SENTENCES <= short.test_sentences <= 0.1 * 180 / 0.1 + MIN_SENTENCES
    assert short.seconds == pytest.approx(180, abs=0.5)
    given = replace(slow, speed=replace(slow.speed, given_test=True))
    assert given.plan(180).test_sentences == 1_000


def test_the_shortest_time_is_the_first_for_which_a_plan_has_enough_steps():
    _, tried = best_plan(candidates(["small", "tiny"], 5.0, measured), 120)
    line = shortest(tried)
    minutes = int(line.split(": ")[1].split()[0])
    assert "(tiny, " in line
    assert tried[-1].is_enough(tried[-1].plan(60 * minutes)) and not tried[-1].is_enough(tried[-1].plan(30 * minutes))


def test_a_training_that_needs_less_time_than_there_is_ends_earlier():
    plan = SMALL.plan(36_000)
    assert plan.steps == 6_000 and plan.seconds < 5_000


def test_a_time_without_room_for_steps_has_no_plan():
    assert SMALL.plan(30) is None
    assert best_plan(iter([SMALL]), 30) == (None, [SMALL])


@pytest.mark.parametrize(("minutes", "size", "consistency"), [
    (300, "small", 5), (30, "small", 0), (5, "tiny", 0), (2, "tiny", 0)])
def test_the_best_candidate_is_chosen_for_which_the_time_is_enough(minutes, size, consistency):
    plan, tried = best_plan(candidates(["small", "tiny"], 5.0, measured), 60 * minutes)
    assert (plan.size, plan.consistency) == (size, consistency)
    assert (len(tried) == 1) == (minutes == 300)                                # others are not measured


def test_more_time_brings_larger_plans_in_order_of_their_time():
    plan, tried = best_plan(candidates(["small", "tiny"], 5.0, measured), 120)
    lines = with_more_time(tried, plan, 2)
    times = [int(line.split()[1].replace(",", "")) for line in lines]
    assert times == sorted(times) and times[0] > 2 and all(time & (time - 1) == 0 for time in times)
    assert [line.split()[3] for line in lines] == ["small,"] * len(lines)
    assert lines[-1].endswith("small, 6,000 steps (30.0 epochs), with consistency training")
    assert with_more_time([SMALL], SMALL.plan(36_000), 600) == []
