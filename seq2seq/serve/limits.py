"""API keys, and rate limits by key and by address."""

from __future__ import annotations

import hmac
import ipaddress
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from seq2seq.errors import UserError
from seq2seq.files import regular_bytes
from seq2seq.serve.errors import ApiError, SlowdownError

MAX_CLIENTS = 50_000
"""Maximum number of clients whose requests are counted. If there are more, the longest idle client is forgotten."""


def read_keys(path: Path) -> dict[str, int | None]:
    """Read a file of API keys. Each line has a key and, optionally, its limit. `#` begins a comment.

    Returns the limit of each key in requests per minute; None means unlimited.

    Raises:
        UserError: the file cannot be read or has no keys, or a line is malformed or repeats a key.
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


@dataclass
class Limits:
    """Rate limits of a server.

    keys: requests per minute of each API key; None means unlimited. key_required: if True, requests without a key are
    refused. requests_per_minute: limit for each address that sends no key; 0 means unlimited.
    """

    keys: dict[str, int | None] = field(default_factory=dict)
    key_required: bool = False
    requests_per_minute: int = 0
    clock: Callable[[], float] = time.monotonic
    _tokens: OrderedDict[str, tuple[float, float]] = field(default_factory=OrderedDict)

    def check(self, key: str, address: str, cost: int = 1) -> None:
        """Count a request against the limit of its client.

        Token bucket: the number of requests that the client may still send grows steadily, up to the limit per minute.

        Args:
            key: API key of the request; "" if it has none.
            cost: number of requests that this request counts as, such as the number of its texts. If the cost is above
                the limit, the request costs as much as the limit.
        Raises:
            ApiError: the key is unknown, or a required key is missing (status 403).
            SlowdownError: the client's limit is exceeded.
        """
        limit: int | None = self.requests_per_minute
        client = f"address {_network(address)}"
        if key and self.keys:
            matching = [known for known in self.keys if hmac.compare_digest(known.encode(), key.encode())]
            if not matching:
                raise ApiError(403, "Invalid API key")
            limit, client = self.keys[matching[0]], f"key {key}"
        elif self.key_required:
            raise ApiError(403, "This server requires an API key. Ask its operator for one")
        if not limit:
            return
        now = self.clock()
        left, since = self._tokens.pop(client, (float(limit), now))
        left = min(float(limit), left + (now - since) * limit / 60)
        cost = min(cost, limit)
        allowed = left >= cost
        self._tokens[client] = (left - cost if allowed else left, now)
        if len(self._tokens) > MAX_CLIENTS:
            self._tokens.popitem(last=False)
        if not allowed:
            raise SlowdownError(f"{limit:,} requests per minute are allowed", int((cost - left) * 60 / limit) + 1)


def _network(address: str) -> str:
    """Return an IPv4 address as it is, and an IPv6 address as its /64 network, which usually belongs to one client."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv6Address):
        mapped = parsed.ipv4_mapped
        return str(mapped) if mapped else str(ipaddress.ip_network((parsed.packed[:8] + bytes(8), 64)))
    return address
