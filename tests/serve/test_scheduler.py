"""The scheduler: batches without waiting, short requests first without starving long ones, bounds, and cancellation."""

import threading
import time

import pytest
from served import wait_until

from seq2seq.serve.errors import ApiError, SlowdownError
from seq2seq.serve.scheduler import AGEING_TOKENS_PER_SECOND, Again, Scheduler, estimate_tokens, require_short


class Model:
    """Translator of batches that waits at a gate and records what it gets. Sentences with `slow` are translated in the
    group `again`. seconds: what a batch takes on the clock `now`. during: function that is called in each batch."""

    def __init__(self):
        self.gate, self.batches, self.now, self.seconds = threading.Event(), [], [0.0], 0.0
        self.during = lambda: None

    def __call__(self, group, sentences):
        self.batches.append((group, sentences))
        later = [group != "again" and "slow" in sentence for sentence in sentences]
        assert self.gate.wait(20)
        self.during()
        self.now[0] += self.seconds
        if any("bad" in sentence for sentence in sentences):
            raise ValueError("bad sentence")
        return [Again("again") if each else sentence.upper() for sentence, each in zip(sentences, later, strict=True)]


@pytest.fixture
def start():
    """Function that starts a scheduler whose model is busy with a first sentence, until `release`."""
    started = []

    def make(**options):
        model = Model()
        scheduler = Scheduler(model, clock=lambda: model.now[0], **options)
        started.append((scheduler, model))
        first = scheduler.submit("first", ["busy"])
        wait_until(lambda: model.batches)
        model.batches.clear()

        def release(*futures):
            model.gate.set()
            return [future.result(20) for future in (first, *futures)][1:]

        return scheduler, model, model.now, release

    yield make
    for scheduler, model in started:
        model.gate.set()
        scheduler.close()


def sentences(model):
    return [batch for _, batch in model.batches]


def test_a_lone_sentence_does_not_wait():
    scheduler = Scheduler(lambda group, batch: [sentence.upper() for sentence in batch])
    began = time.monotonic()
    assert scheduler.submit("a", ["one"]).result(20) == ["ONE"]
    assert time.monotonic() - began < 0.5
    scheduler.close()


def test_all_waiting_sentences_are_translated_together(start):
    scheduler, model, _, release = start()
    assert release(*(scheduler.submit("a", [f"s{n}", f"t{n}"]) for n in range(5))) == [
        [f"S{n}", f"T{n}"] for n in range(5)]
    assert len(model.batches) == 1


def test_a_batch_ends_at_its_number_of_tokens_and_a_longer_sentence_is_alone(start):
    scheduler, model, _, release = start(batch_tokens=2 * estimate_tokens("four") + 1)
    release(scheduler.submit("a", ["1111", "2222", "3333", "long" * 9]))
    assert sentences(model) == [["1111", "2222"], ["3333"], ["long" * 9]]


def test_only_sentences_of_one_group_are_in_a_batch(start):
    scheduler, model, _, release = start()
    release(*(scheduler.submit(group, [f"{group}{n}"]) for n in range(2) for group in "ab"))
    assert model.batches == [("a", ["a0", "a1"]), ("b", ["b0", "b1"])]


def test_short_requests_come_first(start):
    scheduler, model, _, release = start(batch_tokens=1)
    release(*(scheduler.submit(group, texts) for group, texts in (
        ("a", ["long one"] * 9), ("b", ["rather short"]), ("a", ["tiny"]))))
    assert [batch[0] for batch in sentences(model)] == ["tiny", "rather short", *["long one"] * 9]


def test_a_long_request_is_overtaken_only_for_a_time(start):
    scheduler, model, now, release = start(batch_tokens=1)
    long = scheduler.submit("a", ["long one"] * 100)
    seconds = 100 * estimate_tokens("long one") / AGEING_TOKENS_PER_SECOND
    now[0] = 0.9 * seconds
    early = scheduler.submit("a", ["early"])
    now[0] = 1.1 * seconds
    late = scheduler.submit("a", ["late"])
    release(long, early, late)
    assert [batch[0] for batch in sentences(model)] == ["early", *["long one"] * 100, "late"]


def test_the_rest_of_a_long_request_fills_the_batches_of_short_ones(start):
    scheduler, model, _, release = start(batch_tokens=3 * estimate_tokens("1111"))
    release(scheduler.submit("a", ["long"] * 4), scheduler.submit("a", ["1111"]))
    assert sentences(model) == [["1111", "long", "long"], ["long", "long"]]


def test_short_sentences_share_no_batch_with_far_longer_ones_of_others(start):
    scheduler, model, _, release = start()
    release(*(scheduler.submit("a", [text]) for text in ("x" * 2000, "one", "two and three")))
    assert sentences(model) == [["one", "two and three"], ["x" * 2000]]


def test_too_many_sentences_are_refused_but_not_those_of_an_admitted_request(start):
    scheduler, model, _, release = start(max_waiting=3)
    kept = scheduler.submit("a", ["1", "2"])
    with pytest.raises(SlowdownError) as refused:
        scheduler.submit("a", ["3", "4"])
    assert refused.value.status == 429 and refused.value.headers == {"Retry-After": "5"}
    with pytest.raises(ApiError) as refused:
        scheduler.submit("a", list("abcd"))
    assert refused.value.status == 413
    pivot = scheduler.submit("a", ["5", "6"], admitted=True)
    assert scheduler.waiting == 4
    assert release(kept, pivot) == [["1", "2"], ["5", "6"]] and scheduler.waiting == 0


def test_large_requests_do_not_keep_small_ones_out(start):
    scheduler, model, _, release = start(max_waiting=100)
    waiting = [scheduler.submit("a", ["large"] * 100)]
    with pytest.raises(SlowdownError):
        scheduler.submit("a", ["1", "2"])
    waiting += [scheduler.submit("a", ["small"]) for _ in range(100)]
    with pytest.raises(SlowdownError):
        scheduler.submit("a", ["small"])
    assert len(release(*waiting)) == 101


def test_cancelled_requests_are_not_translated_and_leave_room(start):
    scheduler, model, _, release = start(max_waiting=3)
    gone = scheduler.submit("a", ["1", "2", "3"])
    assert gone.cancel() and scheduler.waiting == 0
    assert release(scheduler.submit("a", ["4", "5", "6"])) == [["4", "5", "6"]]
    assert sentences(model) == [["4", "5", "6"]]


def test_a_request_that_is_cancelled_in_a_batch_does_not_disturb_the_others(start):
    scheduler, model, _, release = start(batch_tokens=1)
    running = scheduler.submit("a", ["1", "2"])
    model.gate.set()
    wait_until(lambda: running.done())
    model.gate.clear()
    half = scheduler.submit("a", ["3", "4", "5"])
    wait_until(lambda: ["3"] in sentences(model))
    assert half.cancel()
    assert release(scheduler.submit("a", ["6"])) == [["6"]]
    assert ["4"] not in sentences(model) and scheduler.waiting == 0


def test_a_sentence_that_fails_fails_only_its_own_request(start):
    scheduler, _, _, release = start()
    good, bad, other = (scheduler.submit("a", texts) for texts in (["1", "2", "3"], ["4", "bad", "5"], ["6"]))
    assert release(good, other) == [["1", "2", "3"], ["6"]]
    with pytest.raises(ValueError, match="bad sentence"):
        bad.result(20)
    assert scheduler.alive and scheduler.submit("a", ["7"]).result(20) == ["7"]


def test_a_request_without_sentences_is_done_at_once(start):
    scheduler, *_ = start()
    assert scheduler.submit("a", []).result(0) == []


def test_closing_refuses_what_waits_after_the_running_batch(start):
    scheduler, model, _, _ = start(batch_tokens=1)
    waiting = [scheduler.submit("a", [str(n)]) for n in range(5)]
    closing = threading.Thread(target=scheduler.close)
    closing.start()
    assert [future.exception(20).status for future in waiting] == [503] * 5
    with pytest.raises(ApiError) as refused:
        scheduler.submit("a", ["late"])
    assert refused.value.status == 503 and scheduler.alive
    model.gate.set()
    closing.join(20)
    assert not scheduler.alive and not model.batches


def test_closing_refuses_what_would_be_translated_again(start):
    scheduler, model, _, _ = start()
    closing = threading.Thread(target=scheduler.close)

    def close():
        if model.batches:
            closing.start()
            wait_until(lambda: scheduler._closing)

    model.during = close
    slow = scheduler.submit("a", ["1", "slow 2"])
    model.gate.set()
    assert slow.exception(20).status == 503 and model.batches == [("a", ["1", "slow 2"])]
    closing.join(20)


def test_a_large_request_becomes_several_batches_and_a_small_one_waits_for_one_of_them(start):
    scheduler, model, _, release = start(batch_tokens=20 * estimate_tokens("s00"))
    texts, small = [f"s{n:02}" for n in range(100)], []

    def arrive():
        if len(model.batches) == 2:
            small.append(scheduler.submit("a", ["one"]))

    model.during = arrive
    assert release(scheduler.submit("a", texts)) == [[text.upper() for text in texts]]
    assert small[0].result(0) == ["ONE"]
    assert sentences(model) == [texts[:20], texts[20:40], ["one", *texts[40:59]], texts[59:79], texts[79:99],
                                texts[99:]]


def test_a_request_that_uses_too_much_model_time_is_refused(start):
    charged = []
    scheduler, model, _, release = start(batch_tokens=1, max_seconds=25,
                                         charge=lambda client, seconds: charged.append((client, seconds)))
    future = scheduler.submit("a", ["1", "2", "3", "4"], client="key a")
    model.seconds = 10
    release()
    assert future.exception(20).status == 413 and "more than 25 seconds" in future.exception(0).message
    assert scheduler.submit("a", ["next"]).result(20) == ["NEXT"]
    assert charged[1:4] == [("key a", 10)] * 3 and ["4"] not in sentences(model)


def test_sentences_that_take_long_are_translated_again_and_hold_no_others(start):
    scheduler, model, _, release = start()
    mixed = scheduler.submit("a", ["1", "slow 2", "3", "slow 4"])
    plain = scheduler.submit("a", ["5"])
    assert release(mixed, plain) == [["1", "SLOW 2", "3", "SLOW 4"], ["5"]]
    assert model.batches == [("a", ["5", "1", "slow 2", "3", "slow 4"]), ("again", ["slow 2", "slow 4"])]


def test_a_client_that_goes_leaves_no_sentences_to_translate_again(start):
    scheduler, model, _, release = start(batch_tokens=1)
    gone = scheduler.submit("a", ["slow 1", "2"])
    model.gate.set()
    wait_until(lambda: ("a", ["2"]) in model.batches)
    model.gate.clear()
    gone.cancel()
    release()
    assert scheduler.submit("a", ["3"]).result(20) == ["3"] and scheduler.waiting == 0


def test_clients_with_little_use_come_before_those_with_much(start):
    scheduler, model, now, release = start(batch_tokens=1)
    scheduler._usage.use("busy", 60, 1)
    release(*(scheduler.submit("a", [name], client=name) for name in ("busy", "idle")))
    assert sentences(model) == [["idle"], ["busy"]]


def test_a_sentence_that_no_text_has_is_refused():
    require_short(["short", "<!D" * 6_000])
    with pytest.raises(ApiError) as refused:
        require_short(["short", "<!D" * 20_000])
    assert refused.value.status == 413 and "about 15,002 tokens" in refused.value.message


def test_results_are_right_when_many_threads_submit_and_cancel():
    scheduler = Scheduler(lambda group, batch: [sentence.upper() for sentence in batch], batch_tokens=20,
                          max_waiting=10_000)
    failures = []

    def client(number):
        for turn in range(20):
            texts = [f"x{number}-{turn}-{index}" for index in range(turn % 4)]
            future = scheduler.submit(number % 3, texts)
            if (number + turn) % 5 == 0 and future.cancel():
                continue
            if future.result(20) != [text.upper() for text in texts]:
                failures.append((number, turn))

    threads = [threading.Thread(target=client, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    wait_until(lambda: scheduler.waiting == 0)
    assert not failures and scheduler.alive
    scheduler.close()
