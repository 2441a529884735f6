"""Meeting of the ranks of a distributed training, within minutes; ranks that do not come are named.

Each rank writes a description of itself into the store that `torchrun` offers to all of its processes. The main rank
collects the descriptions, and answers with all of them. So all ranks know who takes part, and all refuse a training for
the same reason, before they connect to each other.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import os
import socket
import struct
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from itertools import groupby

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store

from seq2seq import console
from seq2seq.errors import UserError
from seq2seq.files import parse_json

JOINING_SECONDS = 600
"""Maximum time until all ranks are connected to each other."""
WAITING_SECONDS = 30
"""Time after which the main rank says for which ranks it waits."""
POLLING_SECONDS = 0.1
MESSAGE_SECONDS = 10
"""Maximum time for asking whether another rank has printed a message."""
GET_ADDRESS = 0x8915
"""SIOCGIFADDR of Linux: the IPv4 address of a network interface (man 7 netdevice)."""


@dataclass(frozen=True)
class Member:
    """Description of a rank for the other ranks.

    gpu: name of its GPU; None: it trains on the CPU. interface and address: by which other machines reach this machine;
    "" if unknown. error: the reason why this rank cannot train; "" if it can. torch and numpy: versions.
    """

    host: str
    gpu: str | None
    interface: str
    address: str
    error: str = ""
    torch: str = str(torch.__version__)
    numpy: str = np.__version__


@contextmanager
def time_limit(world_size: int) -> Iterator[list[str]]:
    """End this process if the block takes more than JOINING_SECONDS. Yields a list, whose last text says what the rank
    is waiting for; the block appends to it.

    Neither the connections of NCCL nor those of the store end for all reasons by themselves.
    """
    phases = [""]

    def end() -> None:
        console.print_error(
            f"the {world_size} processes of this training have not connected within {JOINING_SECONDS / 60:.0f} minutes"
            f": {phases[-1]}. If a process has ended, its error message, which may be in the output of another "
            "machine, says why.")
        os._exit(2)

    timer = threading.Timer(JOINING_SECONDS, end)
    timer.daemon = True
    timer.start()
    try:
        yield phases
    finally:
        timer.cancel()


def connect_to_store(rank: int, world_size: int, serve: bool = True, seconds: float = JOINING_SECONDS) -> Store:
    """Connect to the store of `torchrun`. Without `torchrun`'s, the main rank serves one, unless `serve` is False.

    seconds: maximum time of each operation.
    """
    of_agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    store = dist.TCPStore(  # type: ignore[attr-defined]
        os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), world_size,
        is_master=serve and rank == 0 and not of_agent, wait_for_workers=False, timeout=timedelta(seconds=seconds))
    return PrefixStore(f"seq2seq/{os.environ.get('TORCHELASTIC_RUN_ID', '')}", store)


def meet(store: Store, rank: int, world_size: int, member: Member, phases: list[str]) -> tuple[list[Member], str]:
    """Exchange the descriptions of all ranks. Return them, and a name of this attempt to train, for keys in the store.

    `torchrun --max-restarts` starts the processes again with the same store, in which the keys of the last attempt
    remain. Each process therefore asks with a random number for the number of the attempt, which the main rank draws.
    Answers to processes that have ended harm nobody.
    """
    if rank:
        number = uuid.uuid4().hex
        store.set(f"rank/{rank}", number)
        phases.append(f"process 0, which meets the others at {os.environ['MASTER_ADDR']}, is missing")
        attempt = _wait_for(store, f"attempt of {number}")
        store.set(f"{attempt}/{rank}", json.dumps(asdict(member)))
        phases.append("other processes are missing; process 0 names them")
        members = parse_json(_wait_for(store, f"{attempt}/all"))
        return [Member(**each) for each in members], attempt
    attempt, joined, began, told = uuid.uuid4().hex, {0: member}, time.monotonic(), False
    while len(joined) < world_size:
        for other in set(range(world_size)) - joined.keys():
            if store.check([f"rank/{other}"]):
                number = store.get(f"rank/{other}").decode()
                store.set(f"attempt of {number}", attempt)
            if store.check([f"{attempt}/{other}"]):
                joined[other] = Member(**parse_json(store.get(f"{attempt}/{other}")))
        missing = [other for other in range(world_size) if other not in joined]
        phases.append(f"{'process' if len(missing) == 1 else 'processes'} {ranges(missing)} of {world_size} "
                      f"{'is' if len(missing) == 1 else 'are'} missing; there are {described(joined)}")
        if missing and not told and time.monotonic() - began > WAITING_SECONDS:
            told = True
            console.print_message(f"waiting for processes: {phases[-1]}")
        if missing:
            time.sleep(POLLING_SECONDS)
    members = [joined[other] for other in range(world_size)]
    store.set(f"{attempt}/all", json.dumps([asdict(each) for each in members]))
    return members, attempt


def _wait_for(store: Store, key: str) -> str:
    while not store.check([key]):
        time.sleep(POLLING_SECONDS)
    return store.get(key).decode()


def ranges(numbers: Sequence[int]) -> str:
    """Return ascending numbers as text: 0 to 3, 5, 8 to 9."""
    texts = []
    for _, group in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0]):
        run = [number for _, number in group]
        texts.append(str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}")
    return ", ".join(texts)


def described(members: Mapping[int, Member]) -> str:
    """Return the ranks by machine, in the order of their numbers."""
    by_machine: dict[str, list[int]] = {}
    for rank in sorted(members):
        member = members[rank]
        address = "" if is_loopback(member.address) else member.address
        details = [*filter(None, (member.interface, address)), member.gpu or "CPU"]
        by_machine.setdefault(f"{member.host} ({', '.join(details)})", []).append(rank)
    return "; ".join(f"{ranges(ranks)} on {machine}" for machine, ranks in by_machine.items())


def require_agreement(members: Sequence[Member]) -> None:
    """Refuse a training, with the same message on all ranks, if a rank cannot train, or differs in what must be equal.
    """
    first = members[0]
    for rank, member in enumerate(members):
        if member.error:
            raise UserError(f"process {rank} on {member.host} cannot train: {member.error}")
        if (member.gpu is None) != (first.gpu is None):
            without, host = (rank, member.host) if member.gpu is None else (0, first.host)
            raise UserError(f"process {without} on {host} finds no GPU, and others have one: "
                            f"{described(dict(enumerate(members)))}. Repair CUDA on {host} (`python -c 'import torch; "
                            "torch.cuda.init()'` shows its error), or set training.device: cpu.")
        for package in ("torch", "numpy"):
            found, expected = getattr(member, package), getattr(first, package)
            if found != expected:
                raise UserError(f"process {rank} on {member.host} has {package} {found}, and process 0 on {first.host} "
                                f"has {expected}, which may give other results. Install the same version on all "
                                "machines.")


# Addresses


def describe_self(gpu: str | None, error: str) -> Member:
    """Return the description of this rank. See `Member`.

    The address is the one that gloo chooses: that of an interface in GLOO_SOCKET_IFNAME, or the first one of the
    machine's name. If this is a loopback address, as Debian has in /etc/hosts, it is the address from which the machine
    of the store is reached.
    """
    host = socket.gethostname()
    if interface := os.environ.get("GLOO_SOCKET_IFNAME"):
        return Member(host, gpu, interface, "", error)
    address = _address_of_name()
    if is_loopback(address):
        address = _source_address(os.environ["MASTER_ADDR"])
    return Member(host, gpu, _interface_of(address) or "", address, error)


def _address_of_name() -> str:
    with suppress(OSError):
        for family, kind, _, _, address in socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM):
            with suppress(OSError), socket.socket(family, kind) as probe:
                probe.bind(address)                                             # fails for addresses of other machines
                return str(address[0])
    return "127.0.0.1"


def _source_address(host: str) -> str:
    """Return the address of this machine in packets to another one. Nothing is sent."""
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 1))
        return str(probe.getsockname()[0])
    return "127.0.0.1"


def is_loopback(address: str) -> bool:
    """Return True for addresses that no other machine can reach; False for names of interfaces, too."""
    with suppress(ValueError):
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    return False


def choose_interface(own: Member, members: Sequence[Member]) -> list[Member]:
    """Let gloo use a network interface that other machines reach, if there are some, and the name of this machine means
    a loopback address. Return the descriptions of all ranks, with this interface for those of this machine.
    """
    others = [member for member in members if member.host != own.host]
    if not others or "GLOO_SOCKET_IFNAME" in os.environ or not is_loopback(_address_of_name()):
        return list(members)
    address = own.address
    if is_loopback(address):                            # on the machine of the store, whose name is MASTER_ADDR
        reached = [other.address for other in others if other.address and not is_loopback(other.address)]
        address = _source_address(reached[0]) if reached else address
    if interface := _interface_of(address):
        os.environ["GLOO_SOCKET_IFNAME"] = interface
        return [replace(member, interface=interface, address=address) if member.host == own.host else member
                for member in members]
    raise UserError(f"the name of the machine {own.host} means the address {_address_of_name()}, which other machines "
                    "cannot reach. Give the name another address in /etc/hosts, or set the variables "
                    "GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME to a network interface of this machine (one of "
                    f"{', '.join(name for _, name in socket.if_nameindex())}).")


def _interface_of(address: str) -> str | None:
    """Return the name of the network interface with an IPv4 address that others can reach; None if there is none."""
    if sys.platform == "win32" or is_loopback(address):
        return None
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with suppress(OSError):                                             # an interface without an IPv4 address
                found = fcntl.ioctl(probe.fileno(), GET_ADDRESS, struct.pack("256s", name.encode()))
                if socket.inet_ntoa(found[20:24]) == address:
                    return name
    return None


# Messages


def first_to_say(messages: Store) -> Callable[[str], bool]:
    """Return a function that returns True for a message that no rank has had before, as far as is known.

    messages: a connection of its own, because others are blocked while a thread waits for a key.
    """
    def is_new(message: str) -> bool:
        try:
            return messages.add(f"said/{hashlib.sha256(message.encode(errors='replace')).hexdigest()}", 1) == 1
        except RuntimeError:                                                    # the machine with the store is lost
            return True

    return is_new
