"""Malformed requests over raw sockets: never a status 500, a traceback, a silent end of the server, or a hang."""

import json
import logging
import random
import socket
from contextlib import suppress

import pytest
from served import serving

from seq2seq.serve.api import Settings
from seq2seq.serve.deepl_glossaries import GlossaryStore
from seq2seq.serve.limits import Limits

PATHS = ["/translate", "/detect", "/languages", "/translate_file", "/download_file/x.txt", "/suggest",
         "/frontend/settings", "/health", "/spec", "/docs", "/metrics", "/v2/translate", "/v2/languages", "/v2/usage",
         "/v2/glossaries", "/v2/glossaries/x/entries", "/v3/glossaries", "/v3/glossaries/x/dictionaries",
         "/v2/document", "/v2/document/x/result", "/", "//", "/translate/", "/%00", "/%ff",
         "/download_file/..%2f..%2f", "*", "http://a/translate", "translate"]
COMMON_PATHS = ["/translate", "/translate", "/detect", "/v2/translate", "/translate_file", "/v2/document",
                "/v3/glossaries"] * 8
TYPES = ["application/json", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x",
         "multipart/form-data", "application/json; charset=utf-16", "text/plain", "", "\xff", "x" * 2000,
         "application/x-www-form-urlencoded; charset=x", "multipart/form-data; boundary=\""]
MATCHING = {"json": TYPES[0], "form": TYPES[1], "multipart": TYPES[2], "file": TYPES[2]}
VALUES = ["ein Hund", "", "a" * 3000, "\ud83d\ude00", "\0", "<b><i></b>", "<a " * 50, "&#xffffffff;&#0;", 0, -1, 1e308,
          None, True, [], {}, ["a", "b"], ["a", 1], [[]], "auto", "de", "en", "zz", "br", "%", "\u2028\u0085", "a\r\nb",
          "html", {"a": {"b": []}}, "9" * 400]
NAMES = ["q", "source", "target", "format", "alternatives", "api_key", "confidence", "text", "target_lang",
         "source_lang", "tag_handling", "s", "file", "auth_key", "q[]", "", "__proto__", "ignore_tags",
         "split_sentences", "outline_detection", "glossary_id", "dictionaries", "dictionaries[0].entries", "name",
         "entries"]
HEADERS = ["Origin: x", "Expect: 100-continue", "Connection: close", "Accept-Encoding: gzip", "Cookie: " + "a" * 5000,
           "Authorization: DeepL-Auth-Key \xe4", "Authorization: Basic", "X-Forwarded-For: ;'--", "A" * 3000 + ": b",
           "X-Forwarded-Proto: javascript", "Range: bytes=0-", "Content-Encoding: gzip",
           "Upgrade: websocket\r\nConnection: Upgrade"]
HOSTS = [*["Host: a"] * 12, "Host: \xff", "Host: a/b:c", "X: y", "Host: a\r\nHost: b"]
QUERIES = ["?", "?q=a&source=de", "?%ff=%ff", "?q=%u1234", "?" + "&" * 500, "?a=1;b=2", "?q=" + "x" * 9000]
TRANSFERS = [*["length"] * 12, "chunked", "chunked", "bad chunks", "short", "long", "negative", "both", "none"]


def parameters(draw):
    """Return parameters that are mostly right, so that the deeper layers are reached, too."""
    chosen = {"q": "ein Hund", "source": "de", "target": "en", "text": "ein Hund", "target_lang": "EN", "s": "a dog"}
    for _ in range(draw.choice([0, 1, 1, 2, 3])):
        chosen[draw.choice(NAMES)] = draw.choice(VALUES)
    for _ in range(draw.choice([0, 0, 1, 2])):
        chosen.pop(draw.choice(list(chosen)), None)
    return chosen


def body(draw, chosen, kind):
    if kind == "json":
        return json.dumps(chosen).encode()
    if kind == "form":
        return "&".join(f"{name}={value}" for name, value in chosen.items()).encode("utf-8", "replace")
    if kind in ("multipart", "file"):
        parts = [f'--x\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
                 for name, value in chosen.items()]
        if kind == "file":
            name = draw.choice(["a.txt", "../../a.txt", "a.pdf", "", "\0.txt", "ä.txt", "a" * 300 + ".txt", "\".txt"])
            parts.append(f'--x\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n'
                         f'Content-Type: text/plain\r\n\r\n{draw.choice(VALUES)}\r\n')
        return "".join([*parts, "--x--\r\n"]).encode("utf-8", "replace")
    if kind == "deep":
        return draw.choice([b"[", b'{"q":', b'{"q":[', b"{"]) * draw.choice([10, 100, 20_000])
    return draw.randbytes(draw.choice([1, 10, 1000])) if kind == "noise" else b""


def damaged(draw, data):
    """Return data with some bytes changed, removed or repeated."""
    data = bytearray(data)
    for _ in range(draw.choice([0, 0, 1, 3])):
        if data:
            place = draw.randrange(len(data))
            data[place:place + draw.choice([0, 1, 5])] = draw.choice(
                [b"", b"\0", b"\xff", b"\xe2", b"\r\n", b'"', b"%", b"%u", b"<", b"\\u12", b"{"])
    return bytes(data)


def request(draw):
    """Return the bytes of a request."""
    method = draw.choice(["POST"] * 14 + ["GET", "PATCH", "DELETE", "PUT", "OPTIONS", "HEAD", "BREW", "post", ""])
    chosen, path = parameters(draw), draw.choice(PATHS + COMMON_PATHS)
    if draw.random() < 0.3:
        path += draw.choice(QUERIES)
    kind = draw.choice(["json", "json", "json", "form", "form", "multipart", "file", "file", "deep", "noise", "empty"])
    content = body(draw, chosen, kind)
    if draw.random() < 0.4:
        content = damaged(draw, content)
    headers = [f"Content-Type: {draw.choice([*TYPES, *[MATCHING.get(kind, '')] * 30])}", draw.choice(HOSTS),
               *draw.sample(HEADERS, draw.choice([0, 0, 1, 2]))]
    transfer = draw.choice(TRANSFERS)
    if transfer in ("chunked", "bad chunks", "both"):
        headers.append("Transfer-Encoding: chunked")
        size = draw.choice([1, 7, 1000])
        pieces = [content[place:place + size] for place in range(0, min(len(content), 40 * size), size)]
        wrong = b"zz" if transfer == "bad chunks" else b""
        content = b"".join(b"%x%s\r\n%s\r\n" % (len(piece), wrong, piece) for piece in pieces) + b"0\r\n\r\n"
    length = {"length": len(content), "short": len(content) // 2, "long": len(content) + 9, "negative": -5, "both": 3}
    if transfer in length:
        headers.append(f"Content-Length: {length[transfer]}")
    version = draw.choice(["1.1"] * 18 + ["1.0", "2.0", "9"])
    head = "\r\n".join([f"{method} {path} HTTP/{version}", *headers, "", ""])
    encoded = head.encode("latin-1")
    return (damaged(draw, encoded) if draw.random() < 0.2 else encoded) + content


def answers(address, data):
    """Send bytes and return everything that the server answers. A correct request follows, after which the server
    closes the connection; if the server waits for more, the client closes it."""
    received = b""
    with socket.create_connection(address, timeout=20) as connection, suppress(ConnectionError):
        connection.sendall(data + b"GET /health HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        connection.settimeout(0.2)
        while True:
            try:
                piece = connection.recv(65536)
            except TimeoutError:
                connection.settimeout(20)
                connection.shutdown(socket.SHUT_WR)
                continue
            if not piece:
                break
            received += piece
    return received


@pytest.mark.parametrize(("count", "seed"), [(40, 2), pytest.param(2_000, 1_000, marks=pytest.mark.slow)])
def test_malformed_requests_do_no_harm(count, seed, caplog, tmp_path):
    """Random requests may get any status but 500, or a closed connection."""
    caplog.set_level(logging.INFO)
    statuses = {}
    settings = Settings(max_request_bytes=50_000, character_limit=5_000, glossaries=GlossaryStore(tmp_path))
    with serving(settings=settings, limits=Limits({"key": 5_000})) as (url, service, _):
        address = ("127.0.0.1", int(url.rpartition(":")[2]))
        for number in range(count):
            draw = random.Random(seed + number)
            data = request(draw)
            received = answers(address, data)
            status = received[9:12].decode("latin-1")
            statuses[status] = statuses.get(status, 0) + 1
            assert b" 500 " not in received[:20] and b"Traceback" not in received, data
            assert "Traceback" not in caplog.text and "Error" not in caplog.text, (data, caplog.text)
            if received and status not in ("200", "100", "307") and b"application/json" in received:
                assert b'"error"' in received or b"HEAD" in data[:10], (data, received)
            caplog.clear()
        good = b"POST /translate?q=Hund&source=de&target=en HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
        assert answers(address, good).endswith(b'{"translatedText":"en(Hund)"}')
        assert service.scheduler.waiting == 0
    assert {"200", "400"} <= set(statuses)


def test_a_request_that_is_never_completed_times_out(monkeypatch):
    monkeypatch.setattr("seq2seq.serve.connections.BODY_SECONDS", 0.05)
    with serving() as (url, _, _), socket.create_connection(
            ("127.0.0.1", int(url.rpartition(":")[2])), timeout=20) as connection:
        connection.sendall(b"POST /translate HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nq=")
        assert connection.recv(1000).startswith(b"HTTP/1.1 408 ")


@pytest.mark.parametrize("data", [b"", b"POST /transl", b"POST /translate HTTP/1.1\r\nHost: a\r\n"])
def test_a_silent_connection_is_closed(monkeypatch, data):
    monkeypatch.setattr("seq2seq.serve.connections.HEAD_SECONDS", 0.05)
    with serving() as (url, _, _), socket.create_connection(
            ("127.0.0.1", int(url.rpartition(":")[2])), timeout=20) as connection:
        connection.sendall(data)
        assert connection.recv(1000) == b""


def test_what_is_not_http_is_answered_as_an_error(echo):
    received = answers(("127.0.0.1", int(echo.rpartition(":")[2])), b"\x16\x03\x01 TLS\r\n\r\n")
    assert received.startswith(b"HTTP/1.1 400 ")
