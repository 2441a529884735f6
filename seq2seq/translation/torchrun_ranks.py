"""Translation by the processes (ranks) that `torchrun` starts: the connections over which they exchange lines.

The main rank, rank 0, reads the input, writes the output and sends lines to the other ranks, which only translate them.
"""

from __future__ import annotations

import hmac
import json
import os
import secrets
import signal
import socket
import time
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from typing import Any

from seq2seq import console
from seq2seq.errors import UserError
from seq2seq.files.json_reader import parse_json
from seq2seq.translation.worker_processes import Rank, serve

Broadcast = Callable[[Any], Any]
"""Function that sends a JSON value to all ranks. The other ranks call it with None and get the main rank's value."""

CONNECTING_SECONDS = 300
"""Maximum time until all ranks are connected. On a busy file system, importing torch takes minutes."""
ENDING_SECONDS = 10
"""Maximum time that the main rank waits for the other ranks to end."""
# Socket options. With them, a machine that is lost without closing its connections is detected after 30 seconds.
KEEP_ALIVE = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 30_000}


class Ranks:
    """Connections of the main rank to the other ranks. members: the other ranks, in order."""

    def __init__(self, size: int, broadcast: Broadcast) -> None:
        """Wait until all other ranks are connected. size: number of ranks, the main rank included.

        Raises:
            UserError: some ranks do not connect within CONNECTING_SECONDS.
        """
        # If all ranks run on this machine, the server listens on 127.0.0.1, so that no other machine can connect.
        local = os.environ.get("LOCAL_WORLD_SIZE") == str(size)
        host = "127.0.0.1" if local else os.environ["MASTER_ADDR"]
        dual = not local and socket.has_dualstack_ipv6()
        key = secrets.token_hex(16)
        found: dict[int, Rank] = {}
        with socket.create_server((host if local else "", 0), family=socket.AF_INET6 if dual else socket.AF_INET,
                                  backlog=size, dualstack_ipv6=dual) as server:
            broadcast([host, server.getsockname()[1], key])
            deadline = time.monotonic() + CONNECTING_SECONDS
            while len(found) < size - 1:
                server.settimeout(max(deadline - time.monotonic(), 0.01))
                try:
                    client, _ = server.accept()
                except TimeoutError:
                    raise UserError(f"only {len(found) + 1} of {size} processes have connected within "
                                    f"{CONNECTING_SECONDS} seconds. Start them with one torchrun command on each "
                                    "machine.") from None
                client.settimeout(CONNECTING_SECONDS)
                if not hmac.compare_digest(client.recv(len(key), socket.MSG_WAITALL), key.encode()):
                    client.close()                                              # not a rank
                    continue
                connection = _connection(client)
                rank, name = connection.recv()
                found[rank] = Rank(connection, f"process {rank} on {name}")
        self.members = [found[rank] for rank in sorted(found)]

    def end(self, code: int) -> None:
        """Tell the other ranks to end with this exit code, wait until they have ended, and close the connections."""
        remaining = []
        for rank in self.members:
            try:
                rank.connection.send(("end", code))
                remaining.append(rank.connection)
            except OSError:
                pass                                                            # the rank has ended already
        # All answers are read, because closing a connection with unread answers would discard the "end" message, too.
        deadline = time.monotonic() + ENDING_SECONDS
        while remaining and (ready := wait(remaining, max(deadline - time.monotonic(), 0))):
            for connection in [each for each in ready if isinstance(each, Connection)]:
                try:
                    connection.recv_bytes()
                except (EOFError, OSError):
                    remaining.remove(connection)
        for rank in self.members:
            rank.connection.close()


def serve_main_rank(rank: int, broadcast: Broadcast) -> int:
    """Translate the lines that the main rank sends, until it sends an exit code. Return the exit code.

    Raises:
        UserError: the main rank cannot be reached, or has ended without a message.
    """
    host, port, key = broadcast(None)
    try:
        client = socket.create_connection((host, port), CONNECTING_SECONDS)
        client.sendall(key.encode())
    except OSError as error:
        raise UserError(f"process {rank} on {socket.gethostname()} cannot connect to process 0 at {host}:{port}: "
                        f"{error}. All machines must be able to connect to each other.") from error
    with _connection(client) as connection:
        connection.send((rank, socket.gethostname()))
        code = serve(connection, int(os.environ.get("LOCAL_RANK", 0)))
    if code is None:
        raise UserError(f"process {rank} on {socket.gethostname()} ends, because process 0 has ended. Run the same "
                        "command again; seq2seq translate needs --resume to keep the finished lines.")
    return code


def run_on_ranks(command: Callable[[Ranks], int]) -> int:
    """Call `command` on the main rank, which the other ranks of `torchrun` serve. Return the exit code of `command`.

    The other ranks ignore SIGINT and SIGTERM. `torchrun` sends signals to all ranks, but the main rank still needs the
    other ranks to finish the current block of lines.

    Raises:
        UserError: the ranks cannot connect to each other, or the main rank has ended without a message.
    """
    from torch.distributed.rendezvous import rendezvous

    size = int(os.environ["WORLD_SIZE"])
    try:
        store, rank, _ = next(rendezvous("env://", timeout=timedelta(seconds=CONNECTING_SECONDS)))
        address = parse_json(store.get("seq2seq")) if rank else None
    except (RuntimeError, ValueError) as error:
        raise UserError(f"the {size} processes cannot connect to each other: {error}. Start them with one torchrun "
                        "command on each machine.") from error

    if rank:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        console.silence()
        return serve_main_rank(rank, lambda _: address)
    ranks = Ranks(size, lambda value: store.set("seq2seq", json.dumps(value)))
    code = 1
    try:
        code = command(ranks)
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        ranks.end(code)
    return code


def _connection(client: socket.socket) -> Connection:
    """Turn a socket into a connection that reports an error if the other machine is lost."""
    client.settimeout(None)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for name, value in KEEP_ALIVE.items():
        if hasattr(socket, name):                                               # not on every system
            client.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return Connection(client.detach())
