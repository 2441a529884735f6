"""Two machines for tests of `torchrun`: network namespaces with host names, addresses and /etc/hosts of their own.
Without the rights to make these, two agents of `torchrun` on this machine stand for them."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

NAMES = ("node-a", "node-b")
ADDRESSES = ("10.213.7.1", "10.213.7.2")
PORT = 29513


def ip(*arguments):
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


class Machines:
    """Two machines. spaces: their network namespaces; None: both are this machine. folder: for the outputs of the
    processes. first: name of the first machine."""

    def __init__(self, folder, spaces):
        self.folder, self.spaces, self.started = folder, spaces, []
        self.first = NAMES[0] if spaces else socket.gethostname()

    def start(self, machine, command, ranks=1, options=(), **environment):
        """Start an agent of `torchrun` with `ranks` processes on a machine, 0 or 1, which run a Python command."""
        agent = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", str(ranks),
                 "--rdzv-backend", "c10d", "--rdzv-id", "7", "--rdzv-endpoint",
                 f"{NAMES[0] if self.spaces else 'localhost'}:{PORT}", *options]
        inside = ["ip", "netns", "exec", self.spaces[machine], "unshare", "--uts", "sh", "-c",
                  f'hostname {NAMES[machine]}; exec "$@"', "sh"] if self.spaces else []
        around = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
        with self.output(machine).open("ab") as output:
            process = subprocess.Popen([*inside, *agent, *map(str, command)], stdout=output, stderr=output, env=around,
                                       start_new_session=True)
        self.started.append(process)
        return process

    def output(self, machine):
        return Path(self.folder, f"{NAMES[machine]}.output")

    def told(self, machine):
        return self.output(machine).read_text(errors="replace")

    def end(self):
        for process in self.started:
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
        for process in self.started:
            try:
                process.wait(40)                                                # the agent ends its processes
            except subprocess.TimeoutExpired:
                process.kill()


@contextmanager
def two_machines(folder, loopback_names=False, apart=False):
    """Yield two machines.

    loopback_names: True: the own name of each means 127.0.1.1, as on Debian and Ubuntu. apart: True if two agents on
    this machine would not do.
    """
    if os.geteuid() or not shutil.which("ip") or not shutil.which("unshare"):
        if apart:
            pytest.skip("needs the rights to make network namespaces")
        machines = Machines(folder, None)
        try:
            yield machines
        finally:
            machines.end()
        return
    spaces = [f"s2s-{os.getpid()}-{name}" for name in NAMES]
    files = [Path("/etc/netns", space) for space in spaces]
    machines = Machines(folder, spaces)
    try:
        try:
            for space in spaces:
                ip("netns", "add", space)
        except subprocess.CalledProcessError as error:
            pytest.skip(f"needs the rights to make network namespaces: {error.stderr}")
        links = [f"s2s{os.getpid()}{letter}" for letter in "ab"]
        ip("link", "add", links[0], "netns", spaces[0], "type", "veth", "peer", "name", links[1], "netns", spaces[1])
        for machine, (space, link, address) in enumerate(zip(spaces, links, ADDRESSES, strict=True)):
            for device in (("lo",), (link,)):
                ip("-n", space, "link", "set", *device, "up")
            ip("-n", space, "address", "add", f"{address}/24", "dev", link)
            files[machine].mkdir(parents=True)
            known = dict(zip(NAMES, ADDRESSES, strict=True))
            if loopback_names:
                known[NAMES[machine]] = "127.0.1.1"
            lines = ["127.0.0.1 localhost", *(f"{where} {name}" for name, where in known.items())]
            (files[machine] / "hosts").write_text("\n".join(lines) + "\n")
        yield machines
    finally:
        machines.end()
        for space, made in zip(spaces, files, strict=True):
            subprocess.run(["ip", "netns", "delete", space], capture_output=True, check=False)
            shutil.rmtree(made, ignore_errors=True)
        with suppress(OSError):
            Path("/etc/netns").rmdir()


def wait_for(process, seconds):
    """Return the exit code, and the seconds until the process ended."""
    began = time.monotonic()
    return process.wait(seconds), time.monotonic() - began
