"""Latencies of an honest client of `seq2seq serve` while other clients attack the server.

    python -m benchmarks.attacks --seconds 120
    python -m benchmarks.attacks --model runs/multi30k_de_en --only lines,drips
    python -m benchmarks.attacks --load --against ../older_checkout

Each attack has its own server process on 127.0.0.1, and its own process, so that it does not delay the honest client.
Its number of connections is fixed, and it stops after its time. SIGTERM is sent to the server while the attack goes on.
The honest client has another address (127.0.0.2), because servers limit the shares of each address. It sends five
requests with one sentence a second, each on a new connection, and waits for each answer. In the same way, a second one
sends a list of three sentences, HTML, or a file, which is then downloaded. Only its maximum latency is in the table
("others"). A request without an answer counts with the time that the client has waited, and as an error. An answer that
differs from the answer before the attack is an error, too. With --load, there is no attack: 64 clients measure the
throughput of this checkout and another one in turns.
"""

import argparse
import contextlib
import functools
import http.client
import io
import json
import multiprocessing
import os
import random
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import zipfile
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from multiprocessing.synchronize import Event
from pathlib import Path

import numpy as np

from benchmarks.__main__ import RECIPES, ROOT, benchmark_recipe
from benchmarks.measuring import environment, spread
from benchmarks.serving import CAPTIONS, Sentences, measure, percentile
from seq2seq.documents.translate_document import model_recipe
from seq2seq.errors import UserError
from seq2seq.storage.checkpoints import best_bundle, load_bundle, resolve_model_path, save_bundle
from seq2seq.storage.directories import METADATA

KEY = "a-right-key"
HONEST_ADDRESS = "127.0.0.2"
STOP_SECONDS = 90
"""Time after SIGTERM at which a server is killed."""
LAUNCH_SECONDS = 60
MB = 2**20


class Server:
    """A process of `seq2seq serve` on a free port of 127.0.0.1, which is killed at the end of the `with` block.

    log: its output. address: host and port.
    """

    def __init__(self, model: Path, log: Path, options: tuple[str, ...] = (), descriptors: int | None = None,
                 package: Path = ROOT) -> None:
        """Start the server, and wait until it listens.

        descriptors: maximum number of open files of the process. package: checkout with the code of the server.

        Raises:
            UserError: the server did not start. The message contains its output.
        """
        command = [sys.executable, "-m", "seq2seq", "serve", str(model), "--port", "0", "--precision", "int8", *options]
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=package,
                env={**os.environ, "PYTHONPATH": str(package)})
        self.log, end = log, time.monotonic() + LAUNCH_SECONDS
        if descriptors:
            import resource

            resource.prlimit(self.process.pid, resource.RLIMIT_NOFILE, (descriptors, descriptors))
        while not (found := re.search(r"http://([\d.]+):(\d+)", log.read_text(errors="replace"))):
            if self.process.poll() is not None or time.monotonic() > end:
                self.__exit__()
                raise UserError(f"{' '.join(command)} did not start:\n{log.read_text(errors='replace')}")
            time.sleep(0.05)
        self.address = found[1], int(found[2])

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.wait()

    def memory(self, field: str = "VmRSS") -> float:
        """Return the resident memory of the process in MB, or its peak (VmHWM); NaN if the process has ended."""
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
                if line.startswith(f"{field}:"):
                    return int(line.split()[1]) / 1024
        return float("nan")

    def forget_peak(self) -> None:
        """Let the peak of the memory begin now. Linux does this for "5"."""
        with contextlib.suppress(OSError):
            Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")

    def stop(self) -> str:
        """Send SIGTERM, and return the seconds until the process has ended, as text."""
        if self.process.poll() is not None:
            return f"died with {self.process.returncode}"
        began = time.monotonic()
        self.process.terminate()
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            return f"> {STOP_SECONDS}"
        return f"{time.monotonic() - began:.1f}"


@dataclass
class Honest:
    """An honest client with one connection, and its results.

    kinds: kinds of its requests, which take turns: "sentence", "list", "html" or "file". rate: requests a second, if
    the server is quick enough. seconds: latencies. As in HdrHistogram, the requests that the client would have sent
    while it waited count with the rest of that time; otherwise, a server that stops for a minute would have only one
    slow request. errors: number by kind: a status, the name of an exception, or "other answer".
    """

    address: tuple[str, int]
    pair: tuple[str, str]
    sentences: list[str]
    kinds: tuple[str, ...]
    rate: float
    expected: dict[str, str] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)
    requests: int = 0
    errors: Counter[str] = field(default_factory=Counter)

    def prepare(self) -> None:
        """Translate each sentence before the attack begins."""
        for sentence in self.sentences:
            self.expected[sentence] = json.loads(self._post(self._json(sentence), 60))["translatedText"]

    def run(self, seconds: float, patience: float) -> None:
        """Send requests for some seconds.

        patience: seconds after which a request without an answer is an error.
        """
        began, number = time.monotonic(), 0
        while (now := time.monotonic()) < began + seconds:
            sentence = self.sentences[self.requests % len(self.sentences)]
            kind, timeout = self.kinds[self.requests % len(self.kinds)], max(5.0, began + patience - now)
            self.requests += 1
            try:
                if kind == "list":
                    self._post(self._json([sentence, *self.sentences[:2]]), timeout)
                elif kind == "html":
                    self._post(self._json(f"<p>{sentence} <b>{sentence}</b></p>", format="html"), timeout)
                elif kind == "file":
                    body, content_type = _form({"source": self.pair[0], "target": self.pair[1]}, "a.txt",
                                               sentence.encode())
                    answer = self._post(body, timeout, "/translate_file", content_type)
                    self._request("GET", urllib.parse.urlsplit(json.loads(answer)["translatedFileUrl"]).path, timeout)
                else:
                    answer = self._post(self._json(sentence), timeout)
                    if json.loads(answer)["translatedText"] != self.expected[sentence]:
                        raise _WrongStatus("other answer")
            except (OSError, http.client.HTTPException, _WrongStatus) as error:
                self.errors[str(error) if isinstance(error, _WrongStatus) else type(error).__name__] += 1
            took, number = time.monotonic() - now, number + 1
            while took > 0:
                self.seconds.append(took)
                took -= 1 / self.rate
            time.sleep(max(0.0, began + number / self.rate - time.monotonic()))

    def _json(self, q: object, **more: str) -> bytes:
        return json.dumps({"q": q, "source": self.pair[0], "target": self.pair[1], **more}).encode()

    def _post(self, body: bytes, timeout: float, path: str = "/translate", content_type: str = "application/json"
              ) -> bytes:
        return self._request("POST", path, timeout, body, {"Content-Type": content_type})

    def _request(self, method: str, path: str, timeout: float, body: bytes | None = None,
                 headers: Mapping[str, str] | None = None) -> bytes:
        connection = http.client.HTTPConnection(*self.address, timeout=timeout, source_address=(HONEST_ADDRESS, 0))
        with contextlib.closing(connection):
            connection.request(method, f"{path}?api_key={KEY}", body, headers or {})
            answer = connection.getresponse()
            content = answer.read()
        if answer.status != 200:
            raise _WrongStatus(str(answer.status))
        return content


class _WrongStatus(Exception):
    """An answer that an honest client should not get."""


@dataclass(frozen=True)
class Target:
    """A server under attack.

    pair: languages of a direction. process: its number. model, glossary: files of the server, which an attack may
    change. end: `time.monotonic()` at which the attack stops.
    """

    address: tuple[str, int]
    pair: tuple[str, str]
    process: int
    model: Path
    glossary: Path
    end: float


class Attacker:
    """One connection of an attack."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self._connection = http.client.HTTPConnection(*target.address, timeout=300)

    def request(self, method: str, path: str, body: bytes | None = None, content_type: str = "application/json",
                headers: Mapping[str, str] | None = None) -> bytes:
        """Send a request on this connection, and return the body of the answer."""
        self._connection.request(method, path, body, {"Content-Type": content_type, **(headers or {})})
        return self._connection.getresponse().read()

    def close(self) -> None:
        """Close the connection. The next request opens it again."""
        self._connection.close()

    def connect(self, receive_buffer: int = 0) -> socket.socket:
        """Return a new connection, for bytes that are not a request, or not a whole one."""
        connection = socket.socket()
        connection.settimeout(5)
        if receive_buffer:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        connection.connect(self.target.address)
        return connection

    @property
    def goes_on(self) -> bool:
        """True until the end of the attack."""
        return time.monotonic() < self.target.end


Work = Callable[[Attacker], None]
"""One step of an attack, which is repeated. It may raise OSError and HTTPException."""


def _translate(make: Callable[[], object], path: str = "/translate", **more: object) -> Work:
    """Return the attack that sends a `q` and waits for the answer."""
    body = _body(make, **more)
    return lambda attacker: _ignore(attacker.request("POST", path, body(attacker.target.pair)))


def _body(make: Callable[[], object], **more: object) -> Callable[[tuple[str, str]], bytes]:
    @functools.cache
    def body(pair: tuple[str, str]) -> bytes:
        parameters = {"q": make(), "source": pair[0], "target": pair[1], **more}
        return json.dumps(parameters, separators=(",", ":")).encode()

    return body


def _post(make: Callable[[], bytes]) -> Work:
    """Return the attack that sends a body, which need not be JSON."""
    return lambda attacker: _ignore(attacker.request("POST", "/translate", make()))


def _upload(name: str, make: Callable[[], bytes]) -> Work:
    """Return the attack that sends a file, and never downloads its translation."""

    @functools.cache
    def body(pair: tuple[str, str]) -> tuple[bytes, str]:
        return _form({"source": pair[0], "target": pair[1]}, name, make())

    return lambda attacker: _ignore(attacker.request("POST", "/translate_file", *body(attacker.target.pair)))


def _form(fields: Mapping[str, str], name: str, contents: bytes) -> tuple[bytes, str]:
    """Return the body and the content type of a form with a file."""
    parts = [f'--b\r\nContent-Disposition: form-data; name="{key}"\r\n\r\n{value}\r\n'.encode()
             for key, value in fields.items()]
    file = f'--b\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n\r\n'.encode()
    return b"".join([*parts, file, contents, b"\r\n--b--\r\n"]), "multipart/form-data; boundary=b"


def _ignore(answer: bytes) -> None:
    """Drop an answer."""


def _post_head(length: int) -> bytes:
    return (f"POST /translate HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
            ).encode()


def _leave(attacker: Attacker) -> None:
    """Send a request that takes long, and close the connection after 0.2 s."""
    body = LONG_LINE(attacker.target.pair)
    with attacker.connect() as connection:
        connection.sendall(_post_head(len(body)) + body)
        time.sleep(0.2)


def _drip(start: bytes) -> Work:
    """Return the attack that holds 228 connections open, on each of which a byte arrives every second."""

    def drip(attacker: Attacker) -> None:
        with contextlib.ExitStack() as stack:
            connections: list[socket.socket | None] = [None] * 228
            while attacker.goes_on:
                for index, connection in enumerate(connections):
                    try:
                        if connection is None:
                            connections[index] = connection = stack.enter_context(attacker.connect())
                            connection.sendall(start)
                        connection.sendall(b"a")
                    except OSError:
                        if connection is not None:
                            connection.close()
                        connections[index] = None
                time.sleep(1)

    return drip


def _forward(attacker: Attacker) -> None:
    """Claim other addresses, also some with control characters."""
    address = random.choice([f"10.1.{random.randrange(256)}.{random.randrange(256)}", "1.2.3.4\t5", "\x9b31mred",
                             "\x85b", "a" * 60_000])
    attacker.request("POST", "/translate", SHORT(attacker.target.pair), headers={
        "X-Forwarded-For": address, "X-Forwarded-Proto": "\x9bhttp", "Forwarded": f'for="{address}"'})
    with attacker.connect() as connection:
        connection.sendall(b"GET /\x1b[2J HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: \x1b]0;title\x07\r\n\r\n")
        connection.recv(1000)


def _wrong_keys(attacker: Attacker) -> None:
    """Guess keys, with a small body, and with a large one."""
    for body in (SHORT(attacker.target.pair), BIG(attacker.target.pair)):
        attacker.request("POST", f"/translate?api_key={random.random()}", body)
    attacker.request("POST", "/translate", b'{"q": "a", "source": "de", "target": "en", "api_key": "b"}')


def _break_model(attacker: Attacker) -> None:
    """Break the files of the server in different ways, and ask it to load them."""
    model, glossary = attacker.target.model, attacker.target.glossary
    good, sound = load_bundle(model), glossary.read_bytes()
    metadata = (model / METADATA).read_bytes()

    def reload() -> None:
        os.kill(attacker.target.process, signal.SIGHUP)
        time.sleep(2)

    try:
        for value in (float("nan"), float("inf"), 0.0):
            weights = {name: np.full_like(array, value) if array.dtype.kind == "f" else array
                       for name, array in ((name, np.asarray(weight)) for name, weight in good.weights.items())}
            shutil.rmtree(model)
            save_bundle(model, weights, good.recipe_text, good.tokenizer_files, good.metadata)
            reload()
        (model / METADATA).write_bytes(metadata[:100])
        reload()
        (model / METADATA).unlink()
        os.mkfifo(model / METADATA)
        reload()
        (model / METADATA).unlink()
        glossary.unlink()
        os.mkfifo(glossary)
        reload()
    finally:
        glossary.unlink(missing_ok=True)
        glossary.write_bytes(sound)
        shutil.rmtree(model)
        save_bundle(model, good.weights, good.recipe_text, good.tokenizer_files, good.metadata)
        with contextlib.suppress(ProcessLookupError):
            reload()


def _fields(attacker: Attacker) -> None:
    """Send forms with 10,000 fields."""
    body, content_type = _form({f"f{number}": "" for number in range(9_990)}, "a.txt", b"a")
    attacker.request("POST", "/translate", body, content_type)


def _read_slowly(attacker: Attacker) -> None:
    """Upload a file, and download it at one byte a second."""
    source, target = attacker.target.pair
    body, content_type = _form({"source": source, "target": target}, "a.html", _empty_html())
    answer = json.loads(attacker.request("POST", "/translate_file", body, content_type))
    if "translatedFileUrl" not in answer:
        time.sleep(0.2)
        return
    path = urllib.parse.urlsplit(answer["translatedFileUrl"]).path
    with attacker.connect(receive_buffer=4096) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
        while attacker.goes_on and connection.recv(1):
            time.sleep(1)


def _pipeline(attacker: Attacker) -> None:
    """Send 1,000 requests without waiting for the answers."""
    body = SHORT(attacker.target.pair)
    with attacker.connect() as connection:
        connection.sendall((_post_head(len(body)) + body) * 1_000)
        while attacker.goes_on and connection.recv(2**16):
            pass


def _sentences(number: int) -> list[str]:
    """Return different sentences: the words of captions in random order. Equal ones would be translated only once."""
    generator = random.Random(7)
    words = [caption.rstrip(".").split() for caption in CAPTIONS]
    return [" ".join(generator.sample(one, len(one))) + f" {generator.randrange(10**6)}."
            for one in generator.choices(words, k=number)]


def _empty_html() -> bytes:
    return b"<html><script>" + b"a" * 7 * MB + b"</script></html>"


def _bomb() -> bytes:
    """Return a .docx whose document is 300 MB of spaces."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("[Content_Types].xml", "<Types/>")
        with archive.open("word/document.xml", "w", force_zip64=True) as document:
            for _ in range(300):
                document.write(b" " * MB)
    return file.getvalue()


def _entities() -> bytes:
    """Return a .tmx with entities that grow to ten billion characters."""
    names = "abcdefghij"
    nested = "".join(f'<!ENTITY {name} "{f"&{before};" * 10}">' for before, name in zip(names, names[1:], strict=False))
    return (f'<?xml version="1.0"?><!DOCTYPE tmx [<!ENTITY a "aaaaaaaaaa">{nested}]><tmx version="1.4"><header/><body>'
            "<tu><tuv xml:lang='de'><seg>&j;</seg></tuv></tu></body></tmx>").encode()


SHORT = _body(lambda: CAPTIONS[0])
LONG_LINE = _body(lambda: "<!D" * 6_600)
BIG = _body(lambda: "a" * 7 * MB)


@dataclass(frozen=True)
class Attack:
    """Attackers of a server. Each kind of `works` has `connections` threads.

    options: of `seq2seq serve`. descriptors: limit of the server's open files.
    """

    works: tuple[Work, ...]
    connections: int = 1
    options: tuple[str, ...] = ()
    descriptors: int | None = None


ATTACKS = {
    "none": Attack(()),
    # Empty strings in one q: 300 KB, and 8 MB.
    "empty": Attack((_translate(lambda: [""] * 100_000),)),
    "empty-8mb": Attack((_translate(lambda: [""] * 2_700_000),)),
    # A line of 60 KB without the end of a sentence.
    "line": Attack((_translate(lambda: "<!D" * 20_000),)),
    "lines": Attack((_translate(lambda: "<!D" * 20_000),), connections=4),
    "allowed-lines": Attack((_translate(lambda: "<!D" * 6_600),), connections=8),
    "faulty": Attack((_translate(lambda: "<!D" * 80),), connections=30),
    "leaving": Attack((_leave,), connections=4),
    "uploads": Attack((_upload("a.html", _empty_html), _upload("b.txt", lambda: b"1\n"),
                       _upload("a.txt", lambda: "\n".join(_sentences(150_000)).encode()[:8_000_000]))),
    "drips": Attack((_drip(b"GET / HTTP/1.1\r\nX-A: "), _drip(_post_head(100_000))), descriptors=256),
    "keys": Attack((_wrong_keys,), connections=4, options=("--require-key",)),
    "forwarded": Attack((_forward,), connections=2),
    "reloads": Attack((_break_model,)),
    # Texts for which the model computes much.
    "texts": Attack((_translate(lambda: [" ".join(five) for five in zip(*[iter(_sentences(5_000))] * 5, strict=True)]),
                     _translate(lambda: [f"{number} " + " ".join(["la"] * 100) for number in range(50)]),
                     _translate(lambda: " ".join(_sentences(200)), alternatives=10, confidence=True))),
    # Documents that are hard to parse.
    "documents": Attack((_translate(lambda: "<div>" * 40_000 + CAPTIONS[0], format="html"),
                         _translate(lambda: "[" * 50_000, format="markdown"),
                         _translate(lambda: "*a **b " * 10_000, format="markdown"),
                         _upload("a.docx", _bomb), _upload("a.tmx", _entities))),
    # Bodies that are hard to decode.
    "bodies": Attack((_post(lambda: b"[" * 8_000_000), _post(lambda: b'{"q":[' + b"[]," * 2_600_000 + b"[]]}"),
                      _fields, _translate(lambda: " ".join(CAPTIONS) * 35_000, "/detect"))),
    "slow-readers": Attack((_read_slowly,), connections=20),
    "pipelines": Attack((_pipeline,), connections=4),
    "flood": Attack((_translate(lambda: CAPTIONS[0]),), connections=200),
}


def attack(name: str, target: Target, begins: Event) -> None:
    """Attack a server until `target.end`. Set `begins` at the beginning."""

    def repeat(work: Work) -> None:
        attacker = Attacker(target)
        while attacker.goes_on:
            try:
                work(attacker)
            except (OSError, http.client.HTTPException):
                attacker.close()
                time.sleep(0.05)

    threads = [threading.Thread(target=repeat, args=(work,), daemon=True)
               for work in ATTACKS[name].works for _ in range(ATTACKS[name].connections)]
    begins.set()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def measure_attack(name: str, model: Path, sentences: list[str], seconds: float, package: Path = ROOT) -> list[str]:
    """Attack a new server, and return the row of the table.

    model: run or bundle. A copy is served, because an attack breaks it.
    """
    kind = ATTACKS[name]
    source, target = pair = model_recipe(model).directions[0].pair
    with tempfile.TemporaryDirectory(prefix="seq2seq-benchmarks-") as directory:
        folder = Path(directory)
        served, glossary, keys = folder / "model", folder / "terms.tsv", folder / "keys"
        shutil.copytree(resolve_model_path(model), served)
        glossary.write_text(f"{source}\t{target}\nHund\tdog\n", encoding="utf-8")
        keys.write_text(f"{KEY}\n")
        options = ("--glossary", f"terms={glossary}", "--api-keys", str(keys), *kind.options)
        with Server(served, folder / "log", options, kind.descriptors, package) as server:
            honest = Honest(server.address, pair, sentences, ("sentence",), 5)
            others = Honest(server.address, pair, sentences, ("list", "html", "file"), 1.5)
            honest.prepare()
            server.forget_peak()
            memory, log_bytes = [server.memory()], server.log.stat().st_size
            longest = LAUNCH_SECONDS + seconds + STOP_SECONDS
            context = multiprocessing.get_context("spawn")
            begins = context.Event()
            target_of_attack = Target(server.address, pair, server.process.pid, served, glossary,
                                      time.monotonic() + longest)
            process = context.Process(target=attack, args=(name, target_of_attack, begins), daemon=True)
            watchdog = threading.Timer(longest + STOP_SECONDS, server.process.kill)
            beside = threading.Thread(target=others.run, args=(seconds, seconds))
            watchdog.start()
            process.start()
            try:
                if not begins.wait(LAUNCH_SECONDS):
                    raise UserError(f"the attack {name} did not begin within {LAUNCH_SECONDS} s")
                beside.start()
                for patience in (seconds, seconds / 2):
                    honest.run(seconds / 2, patience)
                    memory.append(server.memory())
                beside.join()
                peak, stopped = server.memory("VmHWM"), server.stop()
            finally:
                watchdog.cancel()
                process.kill()
                process.join()
            log = server.log.read_bytes()[log_bytes:]
    control = len(re.findall(rb"[\0-\x08\x0b-\x1f\x7f]|\xc2[\x80-\x9f]", log))
    latencies = [statistics.median(honest.seconds), percentile(honest.seconds, 95), max(honest.seconds),
                 max(others.seconds)]
    errors = ", ".join(f"{number} {error}" for error, number in (honest.errors + others.errors).items())
    return [name, f"{honest.requests + others.requests:,}",
            *(f"{1000 * latency:,.0f}" for latency in latencies), errors or "0",
            *(f"{value:,.0f}" for value in (*memory, peak)),
            f"{len(log):,}" + (f", {control:,} control characters" if control else ""), stopped]


COLUMNS = ("attack", "requests", "median (ms)", "95 % (ms)", "maximum (ms)", "maximum, others (ms)", "errors",
           "memory at start (MB)", "at half time", "at the end", "peak", "log (bytes)", "seconds to end")


def measure_load(model: Path, sentences: list[str], against: Path, seconds: float, rounds: int, clients: int = 64
                 ) -> None:
    """Print throughput and latencies of this checkout and another one, whose servers take turns."""
    source, target = model_recipe(model).directions[0].pair
    loads: dict[str, list[tuple[float, ...]]] = {}
    failures: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="seq2seq-benchmarks-") as directory, contextlib.ExitStack() as stack:
        servers = {name: stack.enter_context(Server(model, Path(directory) / name, package=package))
                   for name, package in (("this", ROOT), ("other", against))}
        for number in range(rounds + 1):                                        # the first round is a warm-up
            for name, server in servers.items():
                load = measure(f"http://{server.address[0]}:{server.address[1]}", Sentences(sentences), clients, 1,
                               seconds if number else min(seconds, 5), source, target)
                failures[name] += load.failures
                if number:
                    rate = len(load.seconds) / load.took
                    loads.setdefault(name, []).append((rate, *(1000 * percentile(load.seconds, at) for at in (50, 95))))
    print(f"| {clients} clients, one sentence per request | sentences/s | 50 % (ms) | 95 % (ms) | failures |")
    print("|---" * 5 + "|")
    for name, results in loads.items():
        print(f"| {name} | {' | '.join(_spread(list(column)) for column in zip(*results, strict=True))} | "
              f"{failures[name]:,} |")
    ratios = [[ours / theirs for ours, theirs in zip(*pair, strict=True)] for pair in zip(*loads.values(), strict=True)]
    print(f"| this / other | {' | '.join(_spread(list(column), '.3f') for column in zip(*ratios, strict=True))} | |")


def _spread(values: list[float], form: str = ",.1f") -> str:
    return "{median} ({lowest} … {highest})".format(
        **{name: f"{value:{form}}" for name, value in spread(values).items()})


def trained_model(data: Path) -> Path:
    """Train a small model in some minutes, unless that is done already, and return its run."""
    from seq2seq.training.run import train  # here, because the processes of attacks need no torch

    recipe, run = benchmark_recipe(data, "small", None), ROOT / "runs" / "benchmarks" / "attacks"
    # There is a best model after the only validation, at the end.
    training = {"batch_tokens": 2048, "learning_rate": 2e-3, "max_steps": 700, "validate_every": 700,
                "warmup_steps": 200}
    if not best_bundle(run):
        train(recipe.model_copy(update={"training": recipe.training.model_copy(update=training)}), run)
    return run


def main(arguments: list[str] | None = None) -> int:
    """Print a Markdown table and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path,
                        help="run or bundle (default: a small model is trained once, in some minutes)")
    parser.add_argument("--data", type=Path, default=RECIPES / "multi30k" / "data", metavar="DIRECTORY",
                        help="directory with Multi30k, to train a model (default: as in its recipe)")
    parser.add_argument("--text", type=Path, help="file with a sentence per line (default: five captions in German)")
    parser.add_argument("--seconds", type=float, default=120, help="duration of each attack (default: %(default)s)")
    parser.add_argument("--only", metavar="NAME,NAME",
                        help=f"attacks to measure (default: all of {', '.join(ATTACKS)})")
    parser.add_argument("--package", type=Path, default=ROOT, metavar="DIRECTORY",
                        help="checkout whose server is attacked (default: this one)")
    parser.add_argument("--load", action="store_true", help="measure the throughput for honest clients instead")
    parser.add_argument("--against", type=Path, metavar="DIRECTORY", help="checkout to compare with, for --load")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="rounds of --load (default: %(default)s)")
    options = parser.parse_args(arguments)
    names = options.only.split(",") if options.only else list(ATTACKS)
    if unknown := set(names) - set(ATTACKS):
        parser.error(f"there is no attack {', '.join(sorted(unknown))}; choose from {', '.join(ATTACKS)}")
    if options.load != bool(options.against):
        parser.error("--load and --against belong together")
    lines = options.text.read_text(encoding="utf-8").splitlines() if options.text else CAPTIONS
    sentences = [line for line in lines if line.strip()]
    try:
        model = options.model or trained_model(options.data)
        if options.load:
            measure_load(model, sentences, options.against, options.seconds, options.rounds)
        else:
            print(f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|", flush=True)
            for name in names:
                print(f"| {' | '.join(measure_attack(name, model, sentences, options.seconds, options.package))} |",
                      flush=True)
    except (UserError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    print("\n" + ", ".join(f"{key} {value}" for key, value in environment().items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
