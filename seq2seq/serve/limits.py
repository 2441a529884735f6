"""API keys, and rate limits by key and by address."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path

from seq2seq.errors import UserError
from seq2seq.files import regular_bytes
from seq2seq.serve.errors import ApiError, SlowdownError

MAX_CLIENTS = 50_000
"""Maximum number of clients whose requests are counted. If there are more, the longest idle client is forgotten."""
WRONG_KEY_SECONDS, MAX_WRONG_KEYS = 1.0, 10
"""Time after which a wrong key is answered, and maximum number of wrong keys of a network that wait for it."""


def read_keys(path: Path) -> dict[str, int | None]:
    """Read a file of API keys. Each line has a key and, optionally, its limit. `#` begins a comment.

    Returns the limit of each key in requests per minute; None means unlimited.
    """
    try:
        lines = regular_bytes(path).decode("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}.") from error
    keys: dict[str, int | None] = {}
    for number, line in enumerate(lines, start=1):
        fields = line.partition("#")[0].split()
        if not fields:
            continue
        if len(fields) > 2 or len(fields) == 2 and not (fields[1].isdecimal() and int(fields[1]) > 0):
            raise UserError(f"{path}:{number}: expected a key, and optionally its requests per minute (1 or more).")
        if fields[0] in keys:
            raise UserError(f"{path}:{number}: this key is there twice. Remove one of the lines.")
        keys[fields[0]] = int(fields[1]) if len(fields) == 2 else None
    if not keys:
        raise UserError(f"{path} has no keys. Write one key per line.")
    return keys


class _Buckets:
    """Token buckets of all clients: what a client may still use grows steadily, up to its limit per minute. Several
    threads can use them at the same time."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._tokens: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, client: str, limit: float, cost: float = 0) -> float:
        """Take `cost` from a client's bucket, and return what is left, which may be negative."""
        with self._lock:
            now = self._clock()
            left, since = self._tokens.pop(client, (limit, now))
            left = min(limit, left + (now - since) * limit / 60) - cost
            self._tokens[client] = left, now
            if len(self._tokens) > MAX_CLIENTS:
                self._tokens.popitem(last=False)
            return left


class Limits:
    """Keys and limits of a server. A client is a key, or the network of a request without a key."""

    def __init__(self, keys: Mapping[str, int | None] | None = None, key_required: bool = False,
                 requests_per_minute: int = 0, seconds_per_minute: int = 0,
                 clock: Callable[[], float] = time.monotonic) -> None:
        """keys: requests per minute of each API key; None means unlimited. key_required: if True, requests without a
        key are refused. requests_per_minute: limit for each network that sends no key. seconds_per_minute: limit of the
        model thread's time for each client. 0 means unlimited."""
        self.keys, self.key_required = dict(keys or {}), key_required
        self.requests_per_minute, self.seconds_per_minute = requests_per_minute, seconds_per_minute
        self._requests, self._seconds = _Buckets(clock), _Buckets(clock)
        self._refused: Counter[str] = Counter()                                     # wrong keys that wait, by network
        self._accepted: set[tuple[str, str]] = set()                                # keys with their networks

    async def identify(self, key: str, address: str) -> str:
        """Return the name of a request's client.

        A wrong key is answered after WRONG_KEY_SECONDS. If many requests of a network wait for that, keys that this
        network has not used before are not even compared, so that nobody can guess keys quickly.

        Args:
            key: API key of the request; "" if it has none.
        Raises:
            ApiError: the key is unknown, or a required key is missing (status 403).
            SlowdownError: too many wrong keys come from this network.
        """
        name = network(address)
        if not (key and self.keys):
            if self.key_required:
                raise ApiError(403, "This server requires an API key. Ask its operator for one")
            return f"address {name}"
        if self._refused[name] >= MAX_WRONG_KEYS and (key, name) not in self._accepted:
            raise SlowdownError("too many requests have a wrong API key")
        if any([hmac.compare_digest(known.encode(), key.encode()) for known in self.keys]):
            if len(self._accepted) >= MAX_CLIENTS:
                self._accepted.clear()
            self._accepted.add((key, name))
            return f"key {key}"
        self._refused[name] += 1
        try:
            await asyncio.sleep(WRONG_KEY_SECONDS)
        finally:
            self._refused[name] -= 1
            if not self._refused[name]:
                del self._refused[name]
        raise ApiError(403, "Invalid API key")

    def check(self, client: str, cost: int = 1) -> None:
        """Count a request against the limit of requests of its client (see `identify`).

        Args:
            cost: number of requests that this request counts as, such as the number of its texts. If the cost is above
                the limit, the request costs as much as the limit.
        Raises:
            SlowdownError: the client's limit is exceeded.
        """
        kind, _, name = client.partition(" ")
        limit = self.keys.get(name) if kind == "key" else self.requests_per_minute
        if not limit:
            return
        cost = min(cost, limit)
        left = self._requests.take(client, limit)
        if left < cost:
            raise SlowdownError(f"{limit:,} requests per minute are allowed", int((cost - left) * 60 / limit) + 1)
        self._requests.take(client, limit, cost)

    def require_time(self, client: str) -> None:
        """Raise SlowdownError if a client has used up its time of the model thread."""
        if limit := self.seconds_per_minute:
            left = self._seconds.take(client, limit)
            if left <= 0:
                raise SlowdownError(f"{limit:,} seconds of computation per minute are allowed",
                                    int(-left * 60 / limit) + 1)

    def charge(self, client: str, seconds: float) -> None:
        """Count time of the model thread, which a request has used, against its client's limit."""
        if self.seconds_per_minute:
            self._seconds.take(client, self.seconds_per_minute, seconds)


def network(address: str) -> str:
    """Return an IPv4 address as it is, and an IPv6 address as its /64 network, which usually belongs to one client."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv6Address):
        mapped = parsed.ipv4_mapped
        return str(mapped) if mapped else str(ipaddress.ip_network((parsed.packed[:8] + bytes(8), 64)))
    return address
