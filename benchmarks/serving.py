"""Throughput and latency of translation servers with LibreTranslate's interface.

    seq2seq serve runs/multi30k_de_en
    python -m benchmarks.serving http://127.0.0.1:5000
    python -m benchmarks.serving http://127.0.0.1:5000 http://127.0.0.1:5001 --text test.de --seconds 20

Start the servers before, all with the same number of threads. One server is measured at a time. A client is a thread
with one connection, which sends its next request when it has received the answer. With n lines of text, a sentence
repeats only after n² sentences, so that with a large --text no server can answer from a cache.
"""

import argparse
import http.client
import json
import sys
import threading
import time
import urllib.parse
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

CLIENTS = (1, 8, 64)
LIST_LENGTHS = (1, 50)
PERCENTILES = (50, 95, 99)
CAPTIONS = ("Zwei Hunde laufen über eine grüne Wiese.", "Ein Mann mit Hut steht vor dem Haus.",
         "Eine Frau liest ein Buch.", "Mehrere Kinder spielen im Park Fußball.",
         "Ein Junge springt in das kalte Wasser.")


@dataclass
class Load:
    """Results of a measurement. seconds: duration of each request with status 200. failures: number of requests with
    another status. took: duration of the measurement in seconds."""

    list_length: int
    seconds: list[float] = field(default_factory=list)
    failures: int = 0
    took: float = 0.0

    def row(self) -> list[str]:
        """Return requests/s, sentences/s, the latencies in ms, and the failures, for a table."""
        if not self.seconds:
            return ["-"] * (2 + len(PERCENTILES)) + [f"{self.failures:,}"]
        latencies = [1000 * percentile(self.seconds, percent) for percent in PERCENTILES]
        rate = len(self.seconds) / self.took
        return [f"{rate:,.1f}", f"{rate * self.list_length:,.1f}", *(f"{latency:,.0f}" for latency in latencies),
                f"{self.failures:,}"]


def percentile(values: list[float], percent: int) -> float:
    """Return the value that `percent` % of the values do not exceed."""
    return sorted(values)[min(len(values) - 1, len(values) * percent // 100)]


class Sentences:
    """Supply of different sentences of about the same length, for several threads. Numbers in front of repeated lines
    would make the lines different, too, but models lose such numbers, and seq2seq then retries."""

    def __init__(self, lines: list[str]) -> None:
        self._lines, self._numbers = [line.split() for line in lines], count()

    def take(self, number: int) -> list[str]:
        """Return the next `number` sentences: first the lines themselves, later the first half of a line joined to the
        second half of another line."""
        taken = []
        for _ in range(number):
            turn, index = divmod(next(self._numbers), len(self._lines))
            first, second = self._lines[index], self._lines[(index + turn) % len(self._lines)]
            taken.append(" ".join([*first[: len(first) // 2], *second[len(second) // 2:]]))
        return taken


def measure(url: str, sentences: Sentences, clients: int, list_length: int, seconds: float, source: str, target: str
            ) -> Load:
    """Send requests for some seconds, and return their results.

    Raises:
        OSError: the server does not answer.
    """
    load, lock = Load(list_length), threading.Lock()
    errors: list[Exception] = []
    began = time.perf_counter()

    def client() -> None:
        try:
            connection = _connect(url)
            while time.perf_counter() - began < seconds and not errors:
                texts = sentences.take(list_length)
                body = json.dumps({"q": texts if list_length > 1 else texts[0], "source": source, "target": target})
                start = time.perf_counter()
                connection.request("POST", "/translate", body, {"Content-Type": "application/json"})
                answer = connection.getresponse()
                answer.read()
                took = time.perf_counter() - start
                with lock:
                    if answer.status == 200:
                        load.seconds.append(took)
                    else:
                        load.failures += 1
            connection.close()
        except (OSError, http.client.HTTPException) as error:
            errors.append(error)

    threads = [threading.Thread(target=client) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise OSError(f"{url}: {errors[0]}")
    load.took = time.perf_counter() - began
    return load


def _connect(url: str) -> http.client.HTTPConnection:
    parts = urllib.parse.urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    return kind(parts.netloc, timeout=120)


def main(arguments: list[str] | None = None) -> int:
    """Print a Markdown table for the servers and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("urls", nargs="+", metavar="URL", help="address of a server, such as http://127.0.0.1:5000")
    parser.add_argument("--text", type=Path, help="file with a sentence per line (default: five captions in German)")
    parser.add_argument("--source", default="de", help="language of the sentences (default: %(default)s)")
    parser.add_argument("--target", default="en", help="language to translate into (default: %(default)s)")
    parser.add_argument("--clients", type=int, nargs="+", default=CLIENTS, metavar="N")
    parser.add_argument("--list-lengths", type=int, nargs="+", default=LIST_LENGTHS, metavar="N",
                        help="sentences per request")
    parser.add_argument("--seconds", type=float, default=10, help="duration of each measurement (default: %(default)s)")
    options = parser.parse_args(arguments)
    lines = options.text.read_text(encoding="utf-8").splitlines() if options.text else list(CAPTIONS)
    lines = [line for line in lines if line.strip()]
    if not lines:
        print(f"{options.text} has no sentences", file=sys.stderr)
        return 2
    print("| server | clients | sentences per request | requests/s | sentences/s | "
          + " | ".join(f"{percent} % (ms)" for percent in PERCENTILES) + " | failures |")
    print("|---" * (6 + len(PERCENTILES)) + "|")
    for clients in options.clients:
        for list_length in options.list_lengths:
            for url in options.urls:
                sentences = Sentences(lines)
                try:
                    measure(url, sentences, 1, 1, 0.5, options.source, options.target)          # warms the server up
                    load = measure(url, sentences, clients, list_length, options.seconds, options.source,
                                   options.target)
                except OSError as error:
                    print(f"{error}. Start the server first.", file=sys.stderr)
                    return 2
                print(f"| {url} | {clients} | {list_length} | {' | '.join(load.row())} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
