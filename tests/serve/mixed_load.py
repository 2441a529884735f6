"""Mixed load on a server: good requests of every kind, malformed ones, and clients that go away."""

import collections
import random
import socket
import threading
import time
from pathlib import Path

import requests
from test_malformed_requests import answers, request

EXPECTED = {"text": {200, 429}, "list": {200, 429}, "html": {200, 429}, "file": {200, 429}, "detect": {200},
            "languages": {200}, "deepl": {200, 429}, "malformed": {0, 200, 307, *range(400, 500)}, "gone": {0}}
"""Statuses that may come for each kind of request; 0: the server closed the connection, or the client did not wait."""


class MixedLoad:
    """Clients in threads, until `stop`. sentences: source sentences. pair: codes of source and target.

    counts: number of requests by kind and status; a connection that fails has the status "lost". wrong: descriptions of
    answers that the interface does not have.
    """

    def __init__(self, url, sentences, pair, clients=12):
        self.url, self.sentences, self.pair = url, sentences, dict(zip(("source", "target"), pair, strict=True))
        self.host, self.port = url.removeprefix("http://").rstrip("/").split(":")
        self.counts, self.wrong, self._stop = collections.Counter(), [], threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(seed,), daemon=True) for seed in range(clients)]
        for thread in self._threads:
            thread.start()

    def stop(self):
        self._stop.set()
        for thread in self._threads:
            thread.join(120)
            assert not thread.is_alive()

    def _run(self, seed):
        draw, number = random.Random(seed), 0
        with requests.Session() as session:
            while not self._stop.is_set():
                number += 1
                kind = draw.choice(["text"] * 6 + [*EXPECTED])
                try:
                    status, detail = self._send(kind, draw, session, 1_000 * seed + number)
                except (requests.RequestException, OSError) as error:
                    self.counts[kind, "lost"] += 1
                    assert not isinstance(error, requests.JSONDecodeError), "the answer is not JSON"
                    time.sleep(0.05)
                    continue
                self.counts[kind, status] += 1
                if status not in EXPECTED[kind]:
                    self.wrong.append((kind, status, detail))

    def _send(self, kind, draw, session, seed):
        texts = draw.sample(self.sentences, min(len(self.sentences), draw.choice([2, 5, 20])))
        if kind == "malformed":
            data = request(random.Random(seed))
            received = answers((self.host, int(self.port)), data).removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n")
            status = received[9:12].decode("latin-1")
            return int(status) if status.isdecimal() else 0, (data, received[:200])
        if kind == "gone":
            body = requests.Request("POST", f"{self.url}/translate", json={"q": texts, **self.pair}).prepare()
            with socket.create_connection((self.host, int(self.port)), timeout=20) as connection:
                head = "".join(f"{name}: {value}\r\n" for name, value in body.headers.items())
                connection.sendall(f"POST /translate HTTP/1.1\r\nHost: a\r\n{head}\r\n".encode() + body.body)
                time.sleep(draw.choice([0, 0.01, 0.1]))
            return 0, ""
        if kind == "file":
            files = {"file": ("a.txt", "\n".join(texts).encode())}
            answer = session.post(f"{self.url}/translate_file", files=files, data=self.pair, timeout=60)
            if answer.status_code == 200:
                name = answer.json()["translatedFileUrl"].rpartition("/")[2]
                answer = session.get(f"{self.url}/download_file/{name}", timeout=60)
                same = answer.text.count("\n") == len(texts) - 1
                return answer.status_code if same else "lines lost", answer.text
        elif kind == "deepl":
            body = {"text": texts, "target_lang": self.pair["target"].upper()}
            answer = session.post(f"{self.url}/v2/translate", json=body, timeout=60)
        elif kind in ("languages", "detect"):
            answer = (session.get(f"{self.url}/languages", timeout=60) if kind == "languages" else
                      session.post(f"{self.url}/detect", data={"q": texts[0]}, timeout=60))
        else:
            sentence = texts[0] if kind == "text" else texts
            body = {"q": f"<p>{texts[0]} <b>{texts[1]}</b></p>" if kind == "html" else sentence,
                    "format": "html" if kind == "html" else "text", **self.pair}
            way = draw.choice(["json", "data", "params"] if kind == "text" else ["json"])
            answer = session.post(f"{self.url}/translate", **{way: body}, timeout=60)
            if kind == "list" and answer.status_code == 200 and len(answer.json()["translatedText"]) != len(texts):
                return "texts lost", answer.text
        if answer.status_code != 200 and "error" not in answer.json():
            return "no error", answer.text
        return answer.status_code, answer.text[:200]


def resident(process):
    """Return the resident memory of a process in MB."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmRSS"))) / 1024
