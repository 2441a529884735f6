"""Scheduler of the sentences of all requests: one model thread, dynamic batches, and no request that holds another.

Whenever the model thread is free, it takes waiting sentences, up to a maximum number of tokens, and translates them in
one batch. There is no timer, so a request never waits for other requests to arrive. A batch that runs is never
interrupted, so its maximum number of tokens bounds the time for which it holds other requests. A larger request becomes
several batches, between which those of other requests come.

Requests are ordered by `tokens + AGEING_TOKENS_PER_SECOND * time`, lowest first. So a short request overtakes a long
one, but only if it arrives less than `tokens of the long one / AGEING_TOKENS_PER_SECOND` seconds later. The time is
the arrival, plus the seconds by which the client's virtual clock is ahead of time (L. Zhang 1990, "Virtual Clock").
Model time that a client uses puts its clock forward, so that clients with much work come after those with little.

Between two batches, sentences whose clients have gone leave the queue, and so do those of a request that has used too
much model time. A sentence that takes many times as long as others is translated `Again` in another batch.
"""

from __future__ import annotations

import math
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from seq2seq.serve.errors import ApiError, SlowdownError
from seq2seq.serve.quotas import Rate
from seq2seq.tokenizers.source import Source
from seq2seq.tokenizers.vocabulary import as_line

AGEING_TOKENS_PER_SECOND = 500
"""Number of tokens by which a request may exceed one that arrives a second later, and still come first."""
BYTES_PER_TOKEN = 4
"""Approximate number of UTF-8 bytes of a subword."""
MAX_SENTENCE_TOKENS = 5_000
"""Maximum number of tokens (`estimate_tokens`) of a sentence. No sentence of a text is as long."""
CLOCK_RATE = 4
"""Seconds by which a second of model time puts a client's virtual clock forward."""
MAX_AHEAD = 60
"""Maximum number of seconds by which a client's virtual clock is ahead of time. Each minute, it falls back by 60."""
AGAIN_FACTOR = 8
"""Factor by which the number of tokens counts if sentences are translated `Again`. Measured: 2.4 to 2.9 times the time
of the first translation for loops and lost numbers, 3.3 to 6 for lost placeholders."""
FAR_LONGER = 4
"""Factor by which a sentence has more tokens than another one if it is far longer."""
SMALL_SHARE = 0.01
"""Maximum number of sentences of a small request, as a share of `max_waiting`."""

Item = str | Source | tuple[str, str]
"""Sentence to translate, or a pair to align: a sentence and its translation."""


@dataclass(frozen=True)
class Again:
    """Result of an item that must be translated again in another group, which takes AGAIN_FACTOR times as long."""

    group: Hashable


Translate = Callable[[Any, list[Any]], list[Any]]
"""Function (group, items) that returns the results of a batch. It is called in the model thread. A result may be
`Again`."""


def estimate_tokens(sentence: Item) -> int:
    """Return the approximate number of tokens of a sentence, or of both sentences of a pair, `</s>` included."""
    text = "".join(sentence) if isinstance(sentence, tuple) else as_line(sentence)
    return len(text.encode("utf-8", "replace")) // BYTES_PER_TOKEN + 2


def require_short(sentences: Sequence[Item]) -> None:
    """Raise ApiError if a sentence has more than MAX_SENTENCE_TOKENS."""
    longest = max(map(estimate_tokens, sentences), default=0)
    if longest > MAX_SENTENCE_TOKENS:
        raise ApiError(413, f"Invalid request: a sentence has about {longest:,} tokens, this server accepts at most "
                            f"{MAX_SENTENCE_TOKENS:,}. Divide the text into sentences or lines")


@dataclass(eq=False)
class _Answer:
    """Answer to a request. missing: number of sentences without a result. seconds: model time it has used."""

    client: str
    future: Future[list[Any]]
    results: list[Any]
    missing: int
    seconds: float = 0.0

    @property
    def is_awaited(self) -> bool:
        """False if the client has gone or has its answer."""
        return not self.future.done()

    def complete(self, finish: Callable[[], None]) -> None:
        """Call `finish`, which sets the result or the error of the future, unless the client has gone."""
        if self.is_awaited and self.future.set_running_or_notify_cancel():
            finish()


@dataclass(eq=False)
class _Request:
    """Sentences of a request that wait or are being translated: all, or those that are translated `Again`.

    size: number of tokens of all sentences. tokens: number of tokens of each, times AGAIN_FACTOR if they are translated
    `Again`. number: position in the order of arrival. places: index of each sentence in the answer. begun: number of
    sentences that batches have taken.
    """

    answer: _Answer
    group: Hashable
    arrival: float
    number: int
    size: int
    sentences: list[Item]
    tokens: list[int]
    places: Sequence[int]
    begun: int = 0

    @property
    def waiting(self) -> int:
        """Number of sentences that no batch has taken."""
        return len(self.sentences) - self.begun


_Taken = tuple[_Request, int]
"""Item that a batch has taken: its request and its index in the request's sentences."""


class Scheduler:
    """Queue of sentences, and the model thread, which translates them.

    All sentences of a batch belong to one group: they have the same model and the same decoding options.
    """

    def __init__(self, translate: Translate, batch_tokens: int = 512, max_waiting: int = 10_000,
                 max_seconds: float = math.inf,
                 report: Callable[[int, float], None] = lambda sentences, seconds: None,
                 charge: Callable[[str, float], None] = lambda client, seconds: None,
                 clock: Callable[[], float] = time.monotonic) -> None:
        """Start the model thread.

        Args:
            batch_tokens: maximum number of tokens of a batch (docs/serving.md says how long these take). A longer
                sentence has its own batch.
            max_waiting: maximum number of sentences that wait. A request that would exceed this number is refused.
                Small requests (SMALL_SHARE) may exceed it by a factor of 2, so that large ones cannot keep them out.
            max_seconds: maximum model time of a request.
            report: function that is called after each batch with its number of sentences and its model time.
            charge: function that is called after each batch with each of its clients and the client's model time.
        """
        self.max_waiting, self.max_seconds, self._batch_tokens = max_waiting, max_seconds, batch_tokens
        self._translate, self._report, self._charge, self._clock = translate, report, charge, clock
        self._waiting: list[_Request] = []
        self._usage = Rate(clock)
        self._count = self._number = 0
        self._closing = False
        self._condition = threading.Condition(threading.RLock())
        self._thread = threading.Thread(target=self._run, name="model", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Number of sentences that wait."""
        return self._count

    @property
    def alive(self) -> bool:
        """True while the model thread runs."""
        return self._thread.is_alive()

    def submit(self, group: Hashable, sentences: Sequence[Item], arrival: float | None = None, admitted: bool = False,
               client: str = "", tokens: Sequence[int] | None = None) -> Future[list[Any]]:
        """Queue the sentences of a request, and return a future for the list of their results, in the same order.

        If the future is cancelled, the sentences that no batch has taken are removed from the queue.

        Args:
            group: model and options of the request. `translate` gets it as its first argument.
            arrival: time of the request's arrival by the scheduler's clock; None means now. All steps of a request,
                such as the models of a pivot translation, have the same arrival.
            admitted: True for the later steps of an accepted request. They are accepted even if the queue is full.
            client: name of the client whose virtual clock counts.
            tokens: number of tokens of each sentence; None: see `estimate_tokens`.
        Raises:
            SlowdownError: too many sentences wait.
            ApiError: the request has more than `max_waiting` sentences, or the server is stopping.
        """
        future: Future[list[Any]] = Future()
        if not sentences:
            future.set_result([])
            return future
        tokens = list(map(estimate_tokens, sentences) if tokens is None else tokens)
        with self._condition:
            if self._closing:
                raise _stopping()
            if not admitted:
                self._require_room(len(sentences))
            answer = _Answer(client, future, [None] * len(sentences), len(sentences))
            self._queue(_Request(answer, group, self._clock() if arrival is None else arrival, 0, sum(tokens),
                                 list(sentences), tokens, range(len(sentences))))
        future.add_done_callback(lambda done: self._drop(answer) if done.cancelled() else None)
        return future

    def close(self) -> None:
        """Refuse further requests, answer those that wait with an error, and end the model thread after its batch."""
        with self._condition:
            self._closing = True
            for request in self._waiting:
                self._fail(request.answer, _stopping())
            self._condition.notify()
        self._thread.join()

    def _require_room(self, sentences: int) -> None:
        if sentences > self.max_waiting:
            raise ApiError(413, f"Invalid request: request has {sentences:,} sentences, this server accepts at most "
                                f"{self.max_waiting:,}")
        is_small = sentences <= SMALL_SHARE * self.max_waiting
        if self._count + sentences > (2 if is_small else 1) * self.max_waiting:
            raise SlowdownError(f"{self._count:,} sentences are waiting to be translated. Try again later", 5)

    def _queue(self, request: _Request) -> None:
        with self._condition:
            if self._closing:                                                   # since the batch of the request began
                self._fail(request.answer, _stopping())
                return
            self._number += 1
            request.number = self._number
            self._waiting.append(request)
            self._count += request.waiting
            self._condition.notify()

    def _drop(self, answer: _Answer) -> None:
        """Remove the sentences that wait for this answer from the queue."""
        with self._condition:
            self._waiting = [request for request in self._waiting if request.answer is not answer]
            self._count = sum(request.waiting for request in self._waiting)

    def _run(self) -> None:
        while True:
            with self._condition:
                while not (batch := self._next_batch()):
                    if self._closing:
                        return
                    self._condition.wait()
            self._work(batch)

    def _next_batch(self) -> list[_Taken]:
        """Take the next batch from the queue: sentences of the request that comes first, and of others of its group.

        A search takes as many steps as its longest sentence needs, so the sentences of the first request share no batch
        with far longer ones of others.
        """
        self._waiting = [request for request in self._waiting if request.waiting]
        if not self._waiting:
            return []
        first, *others = sorted(self._waiting, key=self._priority)
        taken: list[_Taken] = []
        total = longest = 0
        for request in (first, *others):
            if request.group != first.group:
                continue
            while request.waiting:
                size = request.tokens[request.begun]
                if taken and total + size > self._batch_tokens:
                    return taken
                if request is first:
                    longest = max(longest, size)
                elif size > FAR_LONGER * longest:
                    break
                taken.append((request, request.begun))
                total += size
                request.begun += 1
                self._count -= 1
        return taken

    def _priority(self, request: _Request) -> tuple[float, int]:
        ahead = MAX_AHEAD - self._usage.left(request.answer.client, MAX_AHEAD)
        return request.size + AGEING_TOKENS_PER_SECOND * (request.arrival + ahead), request.number

    def _work(self, batch: list[_Taken]) -> None:
        """Translate a batch, and count its model time. A request that has used too much is refused."""
        began = self._clock()
        self._finish(batch[0][0].group, batch)
        used_seconds = self._clock() - began
        tokens: dict[_Request, int] = defaultdict(int)
        for request, index in batch:
            tokens[request] += request.tokens[index]
        for request, used in tokens.items():
            answer, seconds = request.answer, used_seconds * used / sum(tokens.values())
            answer.seconds += seconds
            if answer.seconds > self.max_seconds:
                self._fail(answer, ApiError(413, "Invalid request: the translation takes more than "
                                                 f"{self.max_seconds:g} seconds. Send smaller requests"))
            left = self._usage.left(answer.client, MAX_AHEAD)
            self._usage.use(answer.client, MAX_AHEAD, min(CLOCK_RATE * seconds, left))
            self._charge(answer.client, seconds)
        self._report(len(batch), used_seconds)

    def _finish(self, group: Hashable, batch: list[_Taken]) -> None:
        """Translate a batch and store its results. If the translation fails, translate each half of the batch
        separately, so that a sentence that cannot be translated makes only its own request fail."""
        live = [(request, index) for request, index in batch if request.answer.is_awaited]
        if not live:
            return
        try:
            results = self._translate(group, [request.sentences[index] for request, index in live])
        except Exception as error:
            if len(live) == 1:
                self._fail(live[0][0].answer, error)
                return
            middle = len(live) // 2
            self._finish(group, live[:middle])
            self._finish(group, live[middle:])
            return
        again: dict[tuple[_Request, Hashable], list[int]] = {}
        for (request, index), result in zip(live, results, strict=True):
            if isinstance(result, Again):
                again.setdefault((request, result.group), []).append(index)
                continue
            answer = request.answer
            answer.results[request.places[index]] = result
            answer.missing -= 1
            if not answer.missing:
                answer.complete(partial(answer.future.set_result, answer.results))
        for (request, other), indices in again.items():
            if not request.answer.is_awaited:
                continue
            tokens = [AGAIN_FACTOR * request.tokens[index] for index in indices]
            self._queue(replace(
                request, group=other, size=sum(tokens), tokens=tokens, begun=0,
                sentences=[request.sentences[index] for index in indices],
                places=[request.places[index] for index in indices]))

    def _fail(self, answer: _Answer, error: Exception) -> None:
        self._drop(answer)
        answer.complete(partial(answer.future.set_exception, error))


def _stopping() -> ApiError:
    return ApiError(503, "The server is stopping")
