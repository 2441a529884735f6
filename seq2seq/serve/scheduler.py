"""Scheduler of the sentences of all requests: one model thread, dynamic batches, short requests first.

Whenever the model thread is free, it takes waiting sentences, up to a maximum number of tokens, and translates them in
one batch. There is no timer, so a request never waits for other requests to arrive.

Requests are ordered by `tokens + AGEING_TOKENS_PER_SECOND * arrival time`, lowest first. So a short request overtakes a
long one, but only if it arrives less than `tokens of the long one / AGEING_TOKENS_PER_SECOND` seconds later. The order
of two requests never changes, so a heap can hold them.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol

from seq2seq.serve.errors import ApiError, SlowdownError
from seq2seq.tokenizers.source import Source
from seq2seq.tokenizers.vocabulary import as_line

AGEING_TOKENS_PER_SECOND = 500
"""Number of tokens by which a request may exceed one that arrives a second later, and still come first."""
BYTES_PER_TOKEN = 4
"""Approximate number of UTF-8 bytes of a subword. For an exact count, each sentence would be tokenized twice."""


Item = str | Source | tuple[str, str]
"""Sentence to translate, or a pair to align: a sentence and its translation."""


class Translate(Protocol):
    """Function that translates or aligns one batch of items of the same group. It is called in the model thread."""

    def __call__(self, group: Any, sentences: list[Any]) -> list[Any]: ...


def estimate_tokens(sentence: Item) -> int:
    """Return the approximate number of tokens of a sentence, or of both sentences of a pair, `</s>` included."""
    text = "".join(sentence) if isinstance(sentence, tuple) else as_line(sentence)
    return len(text.encode("utf-8", "replace")) // BYTES_PER_TOKEN + 2


@dataclass(order=True)
class _Request:
    """Request with sentences that wait or are being translated.

    priority: lowest first; see the module's docstring. number: position in the order of arrival; it decides between
    equal priorities. begun: number of sentences that batches have taken. missing: number of sentences without a result.
    """

    priority: float
    number: int
    sentences: list[Item] = field(compare=False)
    tokens: list[int] = field(compare=False)
    future: Future[list[Any]] = field(compare=False)
    results: list[Any] = field(compare=False)
    missing: int = field(compare=False)
    begun: int = field(default=0, compare=False)

    @property
    def waiting(self) -> int:
        """Number of sentences that no batch has taken."""
        return len(self.sentences) - self.begun


_Taken = tuple[_Request, int, Item]
"""Item that a batch has taken: its request, its index in the request, and the item itself."""


class Scheduler:
    """Queue of sentences, and the model thread, which translates them.

    All sentences of a batch belong to one group: they have the same model and the same decoding options.
    """

    def __init__(self, translate: Translate, batch_tokens: int = 1024, max_waiting: int = 10_000,
                 report: Callable[[int, float], None] = lambda sentences, seconds: None,
                 clock: Callable[[], float] = time.monotonic) -> None:
        """Start the model thread.

        Args:
            batch_tokens: maximum number of tokens (`estimate_tokens`) of a batch. A longer sentence has its own batch.
            max_waiting: maximum number of sentences that wait. A request that would exceed this number is refused.
            report: function that is called after each batch with its number of sentences and its duration.
        """
        self.max_waiting, self._batch_tokens = max_waiting, batch_tokens
        self._translate, self._report, self._clock = translate, report, clock
        self._waiting: dict[Hashable, list[_Request]] = defaultdict(list)           # heap of each group
        self._count = self._number = 0
        self._closing = False
        self._condition = threading.Condition()
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
               ) -> Future[list[Any]]:
        """Queue the sentences of a request, and return a future for the list of their results, in the same order.

        If the future is cancelled, the sentences that no batch has taken are removed from the queue.

        Args:
            group: model and options of the request. `translate` gets it as its first argument.
            arrival: time of the request's arrival by the scheduler's clock; None means now. All steps of a request,
                such as the models of a pivot translation, have the same arrival.
            admitted: True for the later steps of an accepted request. They are accepted even if the queue is full.
        Raises:
            SlowdownError: too many sentences wait.
            ApiError: the request has more than `max_waiting` sentences, or the server is stopping.
        """
        future: Future[list[Any]] = Future()
        if not sentences:
            future.set_result([])
            return future
        tokens = [estimate_tokens(sentence) for sentence in sentences]
        with self._condition:
            if self._closing:
                raise ApiError(503, "The server is stopping")
            if not admitted:
                self._require_room(len(sentences))
            priority = sum(tokens) + AGEING_TOKENS_PER_SECOND * (self._clock() if arrival is None else arrival)
            self._number += 1
            request = _Request(priority, self._number, list(sentences), tokens, future, [None] * len(sentences),
                               len(sentences))
            heapq.heappush(self._waiting[group], request)
            self._count += len(sentences)
            self._condition.notify()
        future.add_done_callback(lambda done: self._drop(request) if done.cancelled() else None)
        return future

    def close(self) -> None:
        """Refuse further requests, translate all sentences that wait, and end the model thread."""
        with self._condition:
            self._closing = True
            self._condition.notify()
        self._thread.join()

    def _require_room(self, sentences: int) -> None:
        if sentences > self.max_waiting:
            raise ApiError(413, f"Invalid request: request has {sentences:,} sentences, this server accepts at most "
                                f"{self.max_waiting:,}")
        if self._count + sentences > self.max_waiting:
            raise SlowdownError(f"{self._count:,} sentences are waiting to be translated. Try again later", 5)

    def _drop(self, request: _Request) -> None:
        """Remove a request's waiting sentences from the queue."""
        with self._condition:
            self._count -= request.waiting
            request.sentences, request.tokens, request.begun = [], [], 0

    def _run(self) -> None:
        while True:
            with self._condition:
                while not (taken := self._next_batch()):
                    if self._closing:
                        return
                    self._condition.wait()
            group, batch = taken
            began = self._clock()
            self._finish(group, batch)
            self._report(len(batch), self._clock() - began)

    def _next_batch(self) -> tuple[Hashable, list[_Taken]] | None:
        """Return the group of the request that comes first, and the group's next batch; None if no sentence waits."""
        for group in list(self._waiting):
            heap = self._waiting[group]
            while heap and not heap[0].waiting:
                heapq.heappop(heap)
            if not heap:
                del self._waiting[group]
        if not self._waiting:
            return None
        group = min(self._waiting, key=lambda group: self._waiting[group][0])
        heap, tokens = self._waiting[group], 0
        batch: list[_Taken] = []
        while heap:
            request = heap[0]
            while request.waiting:
                size = request.tokens[request.begun]
                if batch and tokens + size > self._batch_tokens:
                    return group, batch
                batch.append((request, request.begun, request.sentences[request.begun]))
                tokens += size
                request.begun += 1
                self._count -= 1
            heapq.heappop(heap)
        return group, batch

    def _finish(self, group: Hashable, batch: list[_Taken]) -> None:
        """Translate a batch and store its results. If the translation fails, translate each half of the batch
        separately, so that a sentence that cannot be translated makes only its own request fail."""
        live = [taken for taken in batch if not taken[0].future.done()]
        if not live:
            return
        try:
            results = self._translate(group, [sentence for _, _, sentence in live])
        except Exception as error:
            if len(live) == 1:
                self._fail(live[0][0], error)
                return
            middle = len(live) // 2
            self._finish(group, live[:middle])
            self._finish(group, live[middle:])
            return
        for (request, index, _), result in zip(live, results, strict=True):
            request.results[index] = result
            request.missing -= 1
            if not request.missing and request.future.set_running_or_notify_cancel():
                request.future.set_result(request.results)

    def _fail(self, request: _Request, error: Exception) -> None:
        self._drop(request)
        if request.future.set_running_or_notify_cancel():
            request.future.set_exception(error)
