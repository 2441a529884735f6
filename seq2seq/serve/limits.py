"""API keys, and rate limits by key and by address."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from seq2seq.errors import UserError
from seq2seq.files import regular_bytes
from seq2seq.serve.errors import ApiError, SlowdownError
from seq2seq.serve.quotas import MAX_CLIENTS, Held, Rate

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
        self._requests, self._seconds = Rate(clock), Rate(clock)
        self._unknown = Held(MAX_WRONG_KEYS)                                        # keys that wait, by network
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
        if (key, name) in self._accepted:
            return f"key {key}"
        if not self._unknown.take(name, 1):
            raise SlowdownError("too many requests have a wrong API key")
        try:
            if not any([hmac.compare_digest(known.encode(), key.encode()) for known in self.keys]):
                await asyncio.sleep(WRONG_KEY_SECONDS)
                raise ApiError(403, "Invalid API key")
        finally:
            self._unknown.give_back(name, 1)
        if len(self._accepted) >= MAX_CLIENTS:
            self._accepted.clear()
        self._accepted.add((key, name))
        return f"key {key}"

    def check(self, client: str, cost: int = 1) -> None:
        """Count a request against the limit of requests of its client (see `identify`), and check the client's limit of
        computation.

        Args:
            cost: number of requests that this request counts as, such as the number of its texts. If the cost is above
                the limit, the request costs as much as the limit.
        Raises:
            SlowdownError: a limit of the client is exceeded.
        """
        kind, _, name = client.partition(" ")
        limit = self.keys.get(name) if kind == "key" else self.requests_per_minute
        if limit:
            cost = min(cost, limit)
            self._requests.require(client, limit, cost, "requests")
            self._requests.use(client, limit, cost)
        if self.seconds_per_minute:
            self._seconds.require(client, self.seconds_per_minute, 0, "seconds of computation")

    def charge(self, client: str, seconds: float) -> None:
        """Count time of the model thread, which a request has used, against its client's limit."""
        if self.seconds_per_minute:
            self._seconds.use(client, self.seconds_per_minute, seconds)


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
