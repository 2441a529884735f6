"""Shares of clients: what they use per minute, and what they hold."""

import threading
import time

import pytest

from seq2seq.serve import quotas
from seq2seq.serve.errors import SlowdownError
from seq2seq.serve.quotas import Held, Rate


def test_what_is_left_grows_steadily_up_to_the_limit():
    now = [5.0]
    rate = Rate(lambda: now[0])
    assert rate.left("a", 30) == 30
    rate.use("a", 30, 7)
    assert rate.left("a", 30) == 23 and rate.left("b", 11) == 11
    now[0] = 11.0                                                               # 3 of 30 in 6 of 60 seconds
    assert rate.left("a", 30) == 26
    now[0] = 60.0
    assert rate.left("a", 30) == 30


def test_who_requires_more_than_is_left_is_told_when_it_is_there():
    now = [0.0]
    rate = Rate(lambda: now[0])
    rate.use("a", 30, 19)
    rate.require("a", 30, 11, "requests")
    with pytest.raises(SlowdownError, match="30 requests per minute") as refused:
        rate.require("a", 30, 13, "requests")
    assert refused.value.headers["Retry-After"] == "5"                          # 2 of 30 in 4 of 60 seconds
    now[0] = 5.0
    rate.require("a", 30, 13, "requests")


def test_more_than_is_left_counts_against_the_following_minutes():
    now = [0.0]
    rate = Rate(lambda: now[0])
    rate.use("a", 30, 90)
    assert rate.left("a", 30) == -60
    now[0] = 120.0
    assert rate.left("a", 30) == 0


def test_of_too_many_clients_the_longest_idle_one_is_forgotten(monkeypatch):
    monkeypatch.setattr(quotas, "MAX_CLIENTS", 2)
    rate = Rate(lambda: 0.0)
    for client in "abac":
        rate.use(client, 10, 3)
    assert [rate.left(client, 10) for client in "abc"] == [4, 10, 7]


def test_several_threads_use_a_rate_at_the_same_time():
    rate = Rate(lambda: time.sleep(0) or 0.0)                                   # the other threads have their turn

    def use():
        for _ in range(1_000):
            rate.use("a", 10_000, 1)

    threads = [threading.Thread(target=use) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert rate.left("a", 10_000) == 7_000


def test_a_client_holds_at_most_its_share_and_all_clients_the_total():
    held = Held(7, 11)
    assert held.take("a", 5) and not held.take("a", 3) and held.take("a", 2)
    assert not held.take("b", 5) and held.take("b", 4)
    held.give_back("a", 5)
    assert held.take("b", 3) and held.take("a", 2) and not held.take("c", 1)


@pytest.mark.parametrize("amount", [8, 12])
def test_one_that_holds_nothing_may_take_more_than_its_share_but_all_only_if_nothing_is_held(amount):
    held = Held(7, 11)
    assert held.take("a", amount) and not held.take("a", 1)
    assert held.take("b", 3) is (amount == 8)
    held.give_back("a", amount)
    assert held.take("a", 7)


def test_clients_that_hold_nothing_take_no_memory():
    held = Held(7)
    for client in "abc":
        assert held.take(client, 3)
        held.give_back(client, 3)
    assert not held._held
