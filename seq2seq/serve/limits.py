"""API keys, and limits of requests per minute by key and by address."""

from __future__ import annotations

import hmac
import ipaddress
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from seq2seq.errors import UserError
from seq2seq.serve.errors import ApiError, SlowdownError

MAX_CLIENTS = 50_000
"""Maximum number of clients whose requests are counted. Beyond it, those that were idle for longest are forgotten."""


def read_keys(path: Path) -> dict[str, int | None]:
    """Read a file with an API key on each line, and optionally its requests per minute. `#` begins a comment.

    Returns the requests per minute of each key; None: unlimited.

    Raises:
        UserError: the file cannot be read, or a line has another form.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}.") from error
    keys: dict[str, int | None] = {}
    for number, line in enumerate(lines, start=1):
        fields = line.partition("#")[0].split()
        if not fields:
            continue
        if len(fields) > 2 or len(fields) == 2 and not (fields[1].isdecimal() and int(fields[1]) > 0):
            raise UserError(f"{path}:{number}: expected a key, and optionally its requests per minute, at least 1.")
        if fields[0] in keys:
            raise UserError(f"{path}:{number}: this key is there twice. Remove one of the lines.")
        keys[fields[0]] = int(fields[1]) if len(fields) == 2 else None
    if not keys:
        raise UserError(f"{path} has no keys. Write one key per line.")
    return keys


@dataclass
class Limits:
    """Limits of a server.

    keys: requests per minute of each API key (None: unlimited). key_required: True: refuse requests without a key.
    requests_per_minute: limit for each address without a key; 0: unlimited.
    """

    keys: dict[str, int | None] = field(default_factory=dict)
    key_required: bool = False
    requests_per_minute: int = 0
    clock: Callable[[], float] = time.monotonic
    _tokens: OrderedDict[str, tuple[float, float]] = field(default_factory=OrderedDict)

    def check(self, key: str, address: str, cost: int = 1) -> None:
        """Count requests of a client.

        The requests left grow steadily up to those of a minute (token bucket).

        Args:
            key: API key of the request; empty: none.
            cost: number of requests that it counts as: the length of a list. A list that is longer than the limit
                counts as the limit.
        Raises:
            ApiError: 403: the key is unknown, or is missing and required.
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
    """Return an IPv4 address, or the /64 network of an IPv6 address, which usually belongs to one client."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv6Address):
        mapped = parsed.ipv4_mapped
        return str(mapped) if mapped else str(ipaddress.ip_network((parsed.packed[:8] + bytes(8), 64)))
    return address
