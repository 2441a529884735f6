"""Shares of clients: what they use per minute, and what they hold until they give it back.

These are two classes, because what is used becomes free with time, and what is held only when its holder ends. Both
refuse. Where something old can give way to something new instead, its place has the rule (`FileStore`, `Room`).
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable

from seq2seq.serve.errors import SlowdownError

MAX_CLIENTS = 50_000
"""Maximum number of clients whose use is remembered. If there are more, the longest idle client is forgotten."""


class Rate:
    """Use by clients per minute, as token buckets: the rest of a client grows steadily, up to its limit. Several
    threads can use it at the same time."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def left(self, client: str, limit: float) -> float:
        """Return what is left for a client. limit: amount per minute."""
        now = self._clock()
        left, since = self._left.get(client, (limit, now))
        return min(limit, left + (now - since) * limit / 60)

    def require(self, client: str, limit: float, amount: float, what: str) -> None:
        """Raise SlowdownError if less than an amount is left for a client. what: its name, for the message."""
        if (left := self.left(client, limit)) < amount:
            raise SlowdownError(f"{limit:,} {what} per minute are allowed", int((amount - left) * 60 / limit) + 1)

    def use(self, client: str, limit: float, amount: float) -> None:
        """Count an amount. If it is more than what is left, the rest counts against the following minutes."""
        with self._lock:
            self._left[client] = self.left(client, limit) - amount, self._clock()
            self._left.move_to_end(client)
            if len(self._left) > MAX_CLIENTS:
                self._left.popitem(last=False)


class Held:
    """Amounts that clients hold at the same time: at most `share` each, and `total` together. If nothing is held, any
    amount can be taken."""

    def __init__(self, share: float, total: float = math.inf) -> None:
        self.share, self.total = share, total
        self._held: Counter[str] = Counter()

    def take(self, client: str, amount: int) -> bool:
        """Take an amount for a client, and return True; or False if that is too much."""
        own, all = self._held[client], self._held.total()
        if own and own + amount > self.share or all and all + amount > self.total:
            return False
        self._held[client] += amount
        return True

    def give_back(self, client: str, amount: int) -> None:
        """Give back what `take` has taken."""
        self._held[client] -= amount
        if not self._held[client]:
            del self._held[client]
