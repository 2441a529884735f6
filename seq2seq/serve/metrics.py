"""Metrics of a server in the text format of Prometheus."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Upper bounds of the histogram buckets for durations, in seconds."""
SENTENCES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Upper bounds of the histogram buckets for batch sizes, in sentences."""
CHECKSUM_DIGITS = 12
"""Number of digits of a model's checksum that are shown."""


class Histogram:
    """Cumulative histogram with fixed bounds."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds, self._counts, self._sum = bounds, [0] * (len(bounds) + 1), 0.0

    def add(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def lines(self, name: str, labels: str = "") -> list[str]:
        """Return the histogram as lines for Prometheus. labels: further labels, such as endpoint="/translate"."""
        lines, total = [], 0
        comma = f"{labels}," if labels else ""
        for bound, count in zip([*map(str, self._bounds), "+Inf"], self._counts, strict=True):
            total += count
            lines.append(f'{name}_bucket{{{comma}le="{bound}"}} {total}')
        braces = f"{{{labels}}}" if labels else ""
        return [*lines, f"{name}_sum{braces} {self._sum:.6f}", f"{name}_count{braces} {total}"]


class Metrics:
    """Counters of requests, texts and batches. Several threads can use them at the same time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: Counter[tuple[str, int]] = Counter()
        self._faults: Counter[str] = Counter()
        self._seconds: dict[str, Histogram] = {}
        self._batch_seconds, self._batch_sentences = Histogram(SECONDS), Histogram(SENTENCES)
        self._counters = Counter(texts=0, characters=0, sentences=0)
        self._reloads = Counter(succeeded=0, failed=0)

    def count_request(self, endpoint: str, status: int, seconds: float) -> None:
        """Count an answered request. endpoint: path of a route, or `other`; never a path from a client."""
        with self._lock:
            self._requests[endpoint, status] += 1
            self._seconds.setdefault(endpoint, Histogram(SECONDS)).add(seconds)

    def count_texts(self, texts: int, characters: int) -> None:
        with self._lock:
            self._counters.update(texts=texts, characters=characters)

    def count_faults(self, faults: Counter[str]) -> None:
        with self._lock:
            self._faults.update(faults)

    def count_reload(self, succeeded: bool) -> None:
        """Count a reload: a model was replaced, or a model or the glossaries could not be loaded."""
        with self._lock:
            self._reloads["succeeded" if succeeded else "failed"] += 1

    def count_batch(self, sentences: int, seconds: float) -> None:
        """Count a batch that the model thread has translated."""
        with self._lock:
            self._counters["sentences"] += sentences
            self._batch_sentences.add(sentences)
            self._batch_seconds.add(seconds)

    def text(self, waiting: int, checksums: Mapping[str, str]) -> str:
        """Return all metrics as text for Prometheus.

        waiting: number of sentences in the queue. checksums: checksum of each model, by its path.
        """
        with self._lock:
            lines = _header("requests_total", "counter", "Answered requests by endpoint and status.")
            lines += [f'seq2seq_requests_total{{endpoint="{endpoint}",status="{status}"}} {count}'
                      for (endpoint, status), count in sorted(self._requests.items())]
            lines += _header("request_seconds", "histogram", "Time from request to answer.")
            for endpoint, histogram in sorted(self._seconds.items()):
                lines += histogram.lines("seq2seq_request_seconds", f'endpoint="{endpoint}"')
            lines += _header("batch_sentences", "histogram", "Number of sentences in a batch.")
            lines += self._batch_sentences.lines("seq2seq_batch_sentences")
            lines += _header("batch_seconds", "histogram", "Time to translate a batch.")
            lines += self._batch_seconds.lines("seq2seq_batch_seconds")
            lines += _header("faults_total", "counter", "Sentences whose translations have a fault, by fault.")
            lines += [f'seq2seq_faults_total{{fault="{fault}"}} {count}' for fault, count in sorted(
                self._faults.items())]
            lines += _header("reloads_total", "counter", "Reloads of models and glossaries, by result.")
            lines += [f'seq2seq_reloads_total{{result="{result}"}} {count}' for result, count in self._reloads.items()]
            for name, count in sorted(self._counters.items()):
                lines += [*_header(f"{name}_total", "counter", _HELP[name]), f"seq2seq_{name}_total {count}"]
        lines += _header("model_info", "gauge", "Models that are served, with the sha256 of their weights.")
        lines += [f'seq2seq_model_info{{model="{_escaped(model)}",sha256="{checksum[:CHECKSUM_DIGITS]}"}} 1'
                  for model, checksum in checksums.items()]
        lines += [*_header("waiting_sentences", "gauge", "Sentences in the queue."),
                  f"seq2seq_waiting_sentences {waiting}"]
        return "\n".join(lines) + "\n"


_HELP = {"texts": "Translated texts.", "characters": "Characters of translated texts.",
         "sentences": "Sentences translated by a model."}


def _escaped(label: str) -> str:
    return label.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _header(name: str, kind: str, help: str) -> list[str]:
    return [f"# HELP seq2seq_{name} {help}", f"# TYPE seq2seq_{name} {kind}"]
