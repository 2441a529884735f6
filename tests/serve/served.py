"""Servers for tests: uvicorn in a thread, on a free port of 127.0.0.1, with models that are quick and predictable."""

import threading
import time
from contextlib import contextmanager

from seq2seq.data.glossary import Glossary
from seq2seq.serve.app import create_app
from seq2seq.serve.directions import Directions
from seq2seq.serve.models import Divided
from seq2seq.serve.scheduler import estimate_tokens
from seq2seq.serve.server import create_server, listen
from seq2seq.serve.service import Service
from seq2seq.tokenizers.vocabulary import as_line
from seq2seq.translation.translation import Translation
from seq2seq.translation.word_confidence import Word

DIRECTIONS = (("de", "en"), ("en", "fr"), ("fr", "br"), ("zh-Hans", "en"))


class EchoModels:
    """Models whose translation names the direction: `en(ein Hund)`, with alternatives `en2(ein Hund)`, …

    A sentence with `Fehler` raises an error that quotes it. batches: group and sentences of each batch.
    """

    def __init__(self, directions=DIRECTIONS):
        self.directions = Directions(directions)
        self.batches, self.glossaries = [], {("terms", "de", "en"): Glossary([], "de", "en")}
        self.gate = threading.Event()
        self.gate.set()

    @property
    def checksums(self):
        return {'models/"echo"': 64 * "a"}

    def context(self, path):
        return 0

    def tags(self, source, target):
        return ("<law>",) if source == "de" else ()

    def divide(self, group, sentences):
        return [Divided(one, [one], [estimate_tokens(one)]) for one in sentences]

    def translate(self, group, sentences):
        if group.options is None:
            self.batches.append((group, sentences))
            return [None] * len(sentences)
        sentences = list(map(as_line, sentences))
        self.batches.append((group, sentences))
        assert self.gate.wait(20)
        for sentence in sentences:
            if "Fehler" in sentence:
                raise RuntimeError(f"cannot translate {sentence}")
        return [[self._translation(group, sentence, rank) for rank in range(1, 1 + group.options.n_best)]
                for sentence in sentences]

    def _translation(self, group, sentence, rank):
        text = f"{group.target}{rank if rank > 1 else ''}({sentence})"
        words = tuple(Word(word, 0.5) for word in text.split()) if group.options.word_confidence else ()
        return Translation(text, -1.0, -1.0, 3, words=words)

    def reload(self, changed_only=True):
        return {}


@contextmanager
def running(app, trusted_proxies=()):
    """Serve an application during the `with` block; yields its URL."""
    with listen("127.0.0.1", 0) as listening:
        server = create_server(app, trusted_proxies)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        wait_until(lambda: server.started or not thread.is_alive())
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(20)
            assert not thread.is_alive()


@contextmanager
def serving(models=None, limits=None, settings=None, **service):
    """Serve `models` during the `with` block; yields the URL, the service, and the models."""
    models = models or EchoModels()
    service = Service(models, **service)
    try:
        with running(create_app(service, limits, settings)) as url:
            yield url, service, models
    finally:
        if isinstance(models, EchoModels):
            models.gate.set()
        service.scheduler.close()


def wait_until(condition, seconds=20):
    """Wait until a condition is true; fail after `seconds`."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.002)
