"""Connections that mean harm: they drip, do not read, wait, or are too many. Deadlines are shortened."""

import http.client
import json
import logging
import random
import re
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from datetime import datetime
from pathlib import Path

import pytest
import requests
from served import EchoModels, running, serving, wait_until

from seq2seq.serve import connections
from seq2seq.serve.app import create_app
from seq2seq.serve.connections import Room
from seq2seq.serve.limits import Limits
from seq2seq.serve.server import _Formatter, _JsonFormatter, proxy_networks
from seq2seq.serve.service import Service

HEAD = b"POST /translate?source=de&target=en HTTP/1.1\r\nHost: a\r\n"
GOOD = b"POST /translate?q=Hund&source=de&target=en HTTP/1.1\r\nHost: a\r\n\r\n"


def connect(url):
    host, _, port = url.removeprefix("http://").partition(":")
    return socket.create_connection((host, int(port)), timeout=20)


def rest(connection):
    """Return all that the server sends until it closes the connection."""
    received = b""
    with suppress(ConnectionError):
        while piece := connection.recv(65536):
            received += piece
    return received


def answer(connection):
    """Return the head and the JSON object of an answer."""
    received = b""
    while not received.endswith(b"}") and (piece := connection.recv(65536)):
        received += piece
    return received


def drip(connection, data, seconds=0.02):
    """Send data byte by byte, until the server answers or closes the connection. Returns the time that this took."""
    began = time.monotonic()
    connection.settimeout(seconds)
    for place in range(len(data)):
        with suppress(TimeoutError, ConnectionError):
            connection.sendall(data[place:place + 1])
            connection.recv(1, socket.MSG_PEEK)
            break
    connection.settimeout(20)
    return time.monotonic() - began


@pytest.fixture
def patient(monkeypatch):
    """Function that sets the deadlines of a phase to 0.3 s; all others are 100 s."""

    def only(*names):
        for name in ("HEAD_SECONDS", "BODY_SECONDS", "WRITE_SECONDS", "LINGER_SECONDS"):
            monkeypatch.setattr(connections, name, 0.3 if name in names else 100)

    return only


# Deadlines


@pytest.mark.parametrize("first", [b"", GOOD])
def test_a_head_that_drips_has_one_deadline(patient, echo, first):
    patient("HEAD_SECONDS")
    with connect(echo) as connection:
        if first:                                                               # the second request of a connection
            connection.sendall(first)
            assert answer(connection).startswith(b"HTTP/1.1 200 ")
        assert 0.2 < drip(connection, HEAD + b"X: " + b"a" * 300) < 3
        assert b"HTTP" not in rest(connection)


@pytest.mark.parametrize(("start", "line", "status"), [
    (HEAD, b"X: y\r\n", b""), (HEAD + b"X: a\r\n", b" y\r\n", b""), (b"GET /health HTTP/1.0\n", b"X: y\n", b""),
    (HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\n", b"X: y\r\n", b" 408 ")])
def test_lines_of_a_head_or_trailer_that_come_one_by_one_have_one_deadline(patient, echo, start, line, status):
    patient("HEAD_SECONDS", "BODY_SECONDS", "LINGER_SECONDS")
    began = time.monotonic()
    with connect(echo) as connection:
        connection.sendall(start)
        with suppress(ConnectionError):
            for _ in range(100):
                connection.sendall(line)
                time.sleep(0.05)
        assert 0.2 < time.monotonic() - began < 3 and status in rest(connection)[:20]


@pytest.mark.parametrize("path", [b"/translate", b"/translate_file", b"/v2/languages", b"/detect"])
@pytest.mark.parametrize("framing", [b"Content-Length: 500", b"Transfer-Encoding: chunked"])
def test_a_body_that_drips_has_one_deadline(patient, echo, path, framing):
    patient("BODY_SECONDS")
    with connect(echo) as connection:
        connection.sendall(b"POST " + path + b" HTTP/1.1\r\nHost: a\r\n" + framing + b"\r\n\r\n")
        assert 0.2 < drip(connection, b"1\r\na\r\n" * 200) < 3
        connection.shutdown(socket.SHUT_WR)
        received = rest(connection)
        assert received.startswith(b"HTTP/1.1 408 ")
        assert list(json.loads(received.partition(b"\r\n\r\n")[2])) == ["error"]


def test_a_body_that_is_announced_and_never_sent_has_a_deadline(patient, echo):
    patient("BODY_SECONDS", "LINGER_SECONDS")
    with connect(echo) as connection:
        connection.sendall(HEAD + b"Content-Length: 500\r\nExpect: 100-continue\r\n\r\n")
        received = rest(connection)
        assert received.startswith(b"HTTP/1.1 100 ") and b"HTTP/1.1 408 " in received


@pytest.mark.parametrize("start", [b"POST /nothing", b"GET /health", b"PUT /translate", b"HEAD /languages"])
def test_a_connection_whose_request_is_answered_before_its_body_is_complete_is_closed(patient, echo, start):
    patient("LINGER_SECONDS")
    began = time.monotonic()
    with connect(echo) as connection:
        connection.sendall(start + b" HTTP/1.1\r\nHost: a\r\nContent-Length: 500\r\n\r\n")
        assert rest(connection).startswith(b"HTTP/1.1 ")
        drip(connection, b"a" * 400)
    assert time.monotonic() - began < 3


def test_an_early_answer_reaches_a_client_that_still_sends_its_body(echo):
    for path in ("/nothing", "/languages"):
        answer = requests.post(f"{echo}{path}", data=b"x" * 5_000_000, timeout=20)
        assert answer.status_code in (404, 405) and "error" in answer.json()
    assert requests.post(f"{echo}/translate", data=b"x" * 20_000_000, timeout=20).status_code == 413


def test_a_client_that_does_not_read_its_answer_is_dropped(patient):
    patient("WRITE_SECONDS")
    body = json.dumps({"q": f"{'a' * 500_000}\n" * 14, "source": "en", "target": "en"}).encode()
    with serving() as (url, service, _):
        with socket.socket() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.connect(("127.0.0.1", int(url.rpartition(":")[2])))
            connection.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            began = time.monotonic()
            wait_until(lambda: 'endpoint="/translate",status="200"' in service.metrics.text(0, {}))
            assert time.monotonic() - began > 0.2
            connection.settimeout(20)
            assert 1_000 < len(rest(connection)) < len(body) - 1_000
        assert len(requests.post(f"{url}/translate", data=body, timeout=20).content) > 7_000_000


def test_the_end_of_the_server_does_not_wait_for_a_body_that_drips(monkeypatch, patient):
    patient("LINGER_SECONDS")
    monkeypatch.setattr(connections, "STOP_SECONDS", 0.3)
    with serving() as (url, _, _):
        drips = [connect(url) for _ in range(3)]
        for connection, data in zip(drips, (b"", b"POST", HEAD + b"Content-Length: 500\r\n\r\na"), strict=True):
            connection.sendall(data)
        time.sleep(0.1)
        began = time.monotonic()
    assert time.monotonic() - began < 5
    for connection in drips:
        connection.close()


# Clients that have gone, and requests after requests


@pytest.mark.parametrize("more", [b"", GOOD, b"GET", b"\r\n\r\n", b"a" * 100_000])
@pytest.mark.parametrize("headers", [b"", b"Connection: Upgrade\r\nUpgrade: h2c\r\n", b"Connection: close\r\n"])
def test_a_request_whose_client_is_gone_is_dropped_whatever_followed_it(more, headers):
    models = EchoModels()
    models.gate.clear()
    with serving(models) as (url, service, _):
        first, second = connect(url), connect(url)
        first.sendall(GOOD)
        wait_until(lambda: models.batches)
        second.sendall(GOOD.replace(b"Hund", b"zweiter").removesuffix(b"\r\n") + headers + b"\r\n" + more)
        wait_until(lambda: service.scheduler.waiting == 1)
        second.close()
        wait_until(lambda: service.scheduler.waiting == 0)
        models.gate.set()
        first.close()


def test_two_requests_in_one_piece_are_answered(echo):
    with connect(echo) as connection:
        connection.sendall(GOOD + GOOD)
        assert rest(connection).count(b"HTTP/1.1 200 ") == 2


def test_what_follows_a_request_at_work_is_dropped_and_the_connection_is_closed_after_the_answer():
    models = EchoModels()
    models.gate.clear()
    with serving(models) as (url, _, _), connect(url) as connection:
        connection.sendall(GOOD)
        wait_until(lambda: models.batches)
        connection.sendall(GOOD * 2_000)
        time.sleep(0.2)
        models.gate.set()
        assert rest(connection).count(b"HTTP/1.1 200 ") == 1


def test_a_connection_serves_requests_one_after_another(echo):
    connection = http.client.HTTPConnection(*echo.removeprefix("http://").split(":"), timeout=20)
    connection.connect()
    first = connection.sock
    for lines in (1, 1_000, 3):
        text = "\n".join(["a" * 100] * lines)
        connection.request("POST", "/translate", json.dumps({"q": text, "source": "de", "target": "en"}))
        translated = json.loads(connection.getresponse().read())["translatedText"]
        assert translated == "\n".join([f"en({'a' * 100})"] * lines)
    assert connection.sock is first
    connection.close()


def random_request(draw):
    """Return the bytes of a request, and the status of its answer."""
    body = json.dumps({"q": "ein Hund\n" * draw.choice([1, 3, 300, 2_500]), "source": "de", "target": "en"}).encode()
    length = b"Host: a\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    size = draw.choice([50, 1_000, 30_000])
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in
                      (body[place:place + size] for place in range(0, len(body), size)))
    return draw.choice([
        (b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n", b"200"), (b"GET /nothing HTTP/1.1\r\nHost: a\r\n\r\n", b"404"),
        (b"POST /translate HTTP/1.1\r\nContent-Type: application/json\r\n" + length, b"200"),
        (b"POST /translate HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
         + chunks + b"0\r\n\r\n", b"200"),
        (b"POST /nothing HTTP/1.1\r\n" + length, b"404")])


@pytest.mark.parametrize("count", [40, pytest.param(400, marks=pytest.mark.slow)])
def test_requests_are_answered_wherever_their_bytes_are_divided(echo, count):
    for seed in range(count):
        draw = random.Random(seed)
        with connect(echo) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for _ in range(draw.randrange(1, 5)):
                data, status = random_request(draw)
                cuts = sorted(draw.sample(range(len(data)), draw.choice([0, 1, 3, 10])))
                with suppress(ConnectionError):                                 # an answer may come before the end
                    for begin, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
                        connection.sendall(data[begin:end])
                        time.sleep(draw.choice([0, 0, 0.001]))
                found = http.client.HTTPResponse(connection)
                found.begin()
                found.read()
                assert found.status == int(status), (seed, data[:30])
                if found.will_close:
                    break


# Size


def test_chunks_of_one_byte_are_refused_and_others_are_not(echo):
    with connect(echo) as connection:
        with suppress(ConnectionError):
            connection.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\na\r\n" * 50_000)
        assert rest(connection).startswith(b"HTTP/1.1 400 ")
    pieces = (b'{"q": "', *[b"Hund " * 8] * 5_000, b'", "source": "en", "target": "en"}')
    answer = requests.post(f"{echo}/translate", data=iter(pieces), timeout=20)
    assert len(answer.json()["translatedText"]) == 200_000


@pytest.mark.parametrize("data", [
    GOOD.removesuffix(b"\r\n") + b"X: " + b"a" * 300_000, b"GET /" + b"a" * 300_000, b"a: b\r\n" * 40_000,
    HEAD + b"Transfer-Encoding: chunked\r\n\r\n1;" + b"a" * 300_000,
    HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\n" + b"a: b\r\n" * 40_000])
def test_large_heads_chunk_extensions_and_trailers_are_refused(echo, data):
    with connect(echo) as connection:
        with suppress(ConnectionError):
            connection.sendall(data)
        assert rest(connection)[:12] in (b"HTTP/1.1 400", b"HTTP/1.1 431")
    assert requests.get(f"{echo}/health", timeout=20).status_code == 200


def test_a_text_of_5000_characters_fits_into_the_query_string(echo):
    q = "\U0001f600" * 5_000
    answer = requests.post(f"{echo}/translate", params={"q": q, "source": "en", "target": "en"}, timeout=20)
    assert answer.json() == {"translatedText": q}


def test_large_bodies_share_memory_by_client_and_small_ones_always_pass(monkeypatch):
    monkeypatch.setattr("seq2seq.serve.app.CLIENT_BODY_BYTES", 150_000)
    body = json.dumps({"q": "a" * 150_000, "source": "en", "target": "en"}).encode()
    with serving() as (url, _, _):
        with connect(url) as slow:
            slow.sendall(HEAD + b"Content-Length: 190000\r\n\r\n" + b"a" * 180_000)
            wait_until(lambda: requests.post(f"{url}/translate", data=body, timeout=20).status_code == 429)
            small = {"q": "a" * 60_000, "source": "en", "target": "en"}
            assert requests.post(f"{url}/translate", json=small, timeout=20).status_code == 200
        wait_until(lambda: requests.post(f"{url}/translate", data=body, timeout=20).status_code == 200)
        for _ in range(5):
            assert requests.post(f"{url}/translate", data=body, timeout=20).status_code == 200


# Number of connections


class Waiting:
    """Connection for `Room`."""

    def __init__(self, room, network):
        self.room, self.network, self.aborted = room, network, False

    def abort(self):
        self.aborted = True
        self.room.remove(self)


def test_the_network_with_most_waiting_connections_makes_room_oldest_first(caplog):
    now = [0.0]
    room = Room(5, lambda: now[0])
    honest, *attackers = [Waiting(room, network) for network in "abbbb"]
    for connection in (honest, *attackers):
        assert room.make()
        room.place(connection, waits=True)
    assert room.make() and [one.aborted for one in (honest, *attackers)] == [False, True, False, False, False]
    room.place(attackers[0], waits=False)
    for one in (honest, *attackers[1:]):
        room.place(one, waits=False)
    assert not room.make()                                                      # all are at work
    room.place(honest, waits=True)
    now[0] = 61
    assert room.make() and honest.aborted
    assert [record.args[0] for record in caplog.records] == [1, 2]              # warnings at most once a minute


def test_new_connections_are_served_while_others_wait_and_refused_if_all_are_at_work(monkeypatch):
    monkeypatch.setattr("seq2seq.serve.server.MAX_CONNECTIONS", 3)
    monkeypatch.setattr("seq2seq.serve.server.ACCEPTED_AT_ONCE", 3)
    models = EchoModels()
    with serving(models) as (url, _, _):
        dripping = [connect(url) for _ in range(18)]
        for number, connection in enumerate(dripping):
            with suppress(ConnectionError):
                connection.sendall([HEAD, HEAD + b"Content-Length: 9\r\n\r\na", b"", GOOD][number % 4])
            assert requests.get(f"{url}/health", timeout=20).status_code == 200
        models.gate.clear()
        working = [connect(url) for _ in range(3)]
        for one in working:
            one.sendall(GOOD)
        time.sleep(0.3)
        with connect(url) as refused:
            assert rest(refused).startswith(b"HTTP/1.1 503 ")
        models.gate.set()
        assert all(b"en(Hund)" in answer(one) for one in working)
        for one in (*dripping, *working):
            one.close()


def test_the_log_as_json_has_the_fields_of_a_request():
    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(json.loads(_JsonFormatter().format(record)))
    logger = logging.getLogger("seq2seq.serve")
    logger.addHandler(handler)
    level = logger.level
    logger.setLevel(logging.INFO)
    try:
        with serving() as (url, _, _):
            logger.warning("two\nlines")
            requests.get(f"{url}/languages", timeout=20)
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
    first, second = reversed(lines)
    assert {name: first[name] for name in ("level", "client", "method", "endpoint", "status")} == {
        "level": "INFO", "client": "127.0.0.1", "method": "GET", "endpoint": "/languages", "status": 200}
    assert first["message"] == f"127.0.0.1 GET /languages 200 {first['milliseconds']} ms"
    assert second["message"] == "two\nlines" and datetime.fromisoformat(second["time"]).tzinfo


SERVER = """
import sys
sys.path[:0] = [{tests!r}]
from served import EchoModels
from seq2seq.serve import server
from seq2seq.serve.api import Settings
from seq2seq.serve.limits import Limits
from seq2seq.serve.service import Service
with server.listen("127.0.0.1", 0) as listening:
    print(listening.getsockname()[1], flush=True)
    server.log_to_standard_error()
    server.serve(server.application(Service(EchoModels()), Limits(), Settings()), listening)
"""


@pytest.mark.slow
def test_a_server_with_256_descriptors_answers_beside_456_connections_that_drip_and_reconnect(tmp_path):
    import resource

    code = SERVER.format(tests=str(Path(__file__).parent))
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=log,
                                   preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256)))
    stop, times = threading.Event(), []
    try:
        url = f"http://127.0.0.1:{int(process.stdout.readline())}"

        def attack():
            open_ones = []
            while not stop.is_set():
                open_ones = [one for one in open_ones if alive(one)]
                while len(open_ones) < 114:
                    one = connect(url)
                    one.sendall(HEAD)
                    open_ones.append(one)
                time.sleep(0.05)

        def alive(one):
            try:
                one.sendall(b"a")
                one.setblocking(False)
                return one.recv(1) != b""
            except BlockingIOError:
                one.settimeout(20)
                return True
            except OSError:
                one.close()
                return False

        threads = [threading.Thread(target=attack, daemon=True) for _ in range(4)]
        for thread in threads:
            thread.start()
        time.sleep(1)
        for _ in range(40):
            began = time.monotonic()
            answer = requests.post(f"{url}/translate", json={"q": "Hund", "source": "de", "target": "en"}, timeout=20)
            assert answer.json() == {"translatedText": "en(Hund)"}
            times.append(time.monotonic() - began)
        stop.set()
        for thread in threads:
            thread.join(20)
        process.terminate()
        assert process.wait(30) == 0
    finally:
        process.kill()
    text = (tmp_path / "log").read_text()
    assert sorted(times)[37] < 1 and len(text) < 20_000 and "Traceback" not in text
    assert text.count("connections were closed") == 1


# Keys, proxies, the log


@pytest.mark.parametrize(("query", "headers"), [
    ("", b"Authorization: DeepL-Auth-Key wrong\r\n"), ("", b"Authorization: Bearer wrong\r\n"),
    ("?api_key=wrong", b""), ("?auth_key=wrong", b"")])
@pytest.mark.parametrize("path", ["/translate", "/translate_file", "/v2/translate", "/suggest", "/detect"])
def test_a_wrong_key_in_the_head_is_refused_before_the_body_is_read(monkeypatch, query, headers, path):
    monkeypatch.setattr("seq2seq.serve.limits.WRONG_KEY_SECONDS", 0)
    with serving(limits=Limits({"right": None})) as (url, _, _), connect(url) as connection:
        connection.sendall(f"POST {path}{query} HTTP/1.1\r\nHost: a\r\nContent-Length: 5000\r\n".encode() + headers
                           + b"\r\n")
        assert connection.recv(65536).startswith(b"HTTP/1.1 403 ")


def test_keys_in_the_head_are_accepted_by_all_endpoints():
    with serving(limits=Limits({"right": None}, key_required=True)) as (url, _, _):
        asked = {"q": "Hund", "source": "de", "target": "en"}
        for options in ({"headers": {"Authorization": "Bearer right"}}, {"params": {"api_key": "right"}},
                        {"headers": {"Authorization": "DeepL-Auth-Key right"}}):
            assert requests.post(f"{url}/translate", json=asked, timeout=20, **options).status_code == 200
            assert requests.post(f"{url}/translate_file", data=asked, files={"file": ("a.txt", b"a")}, timeout=20,
                                 **options).status_code == 200
        basic = {"headers": {"Authorization": "Basic right"}}                   # for a proxy, not for this server
        assert requests.post(f"{url}/translate", json=asked | {"api_key": "right"}, timeout=20, **basic).ok


@pytest.mark.parametrize(("trusted", "expected"), [
    ([], "127.0.0.1"), (["10.0.0.0/8"], "127.0.0.1"), (["127.0.0.1"], "192.0.2.7"), (["127.0.0.0/8"], "192.0.2.7")])
def test_only_named_proxies_tell_the_address_of_a_client(monkeypatch, caplog, trusted, expected):
    caplog.set_level(logging.INFO, "seq2seq.serve")
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "*")
    service = Service(EchoModels())
    with running(create_app(service), proxy_networks(trusted)) as url:
        answer = requests.post(f"{url}/translate_file", data={"source": "de", "target": "en"}, timeout=20, headers={
            "X-Forwarded-For": "192.0.2.1, 192.0.2.7", "X-Forwarded-Proto": "https", "X-Forwarded-Prefix": "/mt",
            "X-Forwarded-Host": "other"}, files={"file": ("a.txt", b"a")})
        begin = f"https://{url[7:]}/mt/" if expected != "127.0.0.1" else f"{url}/"
        assert answer.json()["translatedFileUrl"].startswith(f"{begin}download_file/")
    service.scheduler.close()
    assert f"{expected} POST /translate_file 200" in caplog.text


@pytest.mark.parametrize(("sent", "prefix"), [
    ("/mt", "/mt"), ("/mt/", "/mt"), ("/", ""), ("", ""), ("/a/b.c~d", "/a/b.c~d"), ("/a, /b/", "/a/b"),
    ("/translate", "/translate"), ("//evil.example", ""), ("https://evil.example", ""), ("/a b", ""), ("/a\"", ""),
    ("/<b>", ""), ("/a?b", "")])
def test_a_proxy_tells_the_prefix_under_which_it_serves(sent, prefix):
    service = Service(EchoModels())
    with running(create_app(service), proxy_networks(["127.0.0.1"])) as url:
        headers = {"X-Forwarded-Prefix": sent, "Origin": "https://a.example"}
        for path in ("/translate", "/v2/translate"):
            answer = requests.post(f"{url}{path}", headers=headers, timeout=20, json={
                "q": "a", "source": "de", "target": "en", "text": "a", "target_lang": "en", "source_lang": "de"})
            assert answer.status_code == 200
        address = requests.post(f"{url}/translate_file", data={"source": "de", "target": "en"}, headers=headers,
                                files={"file": ("a.txt", b"a")}, timeout=20).json()["translatedFileUrl"]
        assert address.startswith(f"{url}{prefix}/download_file/")
        assert requests.get(url + address.removeprefix(url + prefix), headers=headers, timeout=20).content == b"en(a)"
        moved = requests.post(f"{url}/translate/", headers=headers, allow_redirects=False, timeout=20)
        assert moved.status_code == 307 and moved.headers["Location"] == f"{url}{prefix}/translate"
        assert list(requests.post(f"{url}/v2/translate", headers=headers, timeout=20).json()) == ["error", "message"]
        # A request is counted after its answer was sent.
        wait_until(lambda: {"/translate", "/download_file"} <= set(re.findall(
            'endpoint="([^"]*)",status="200"', requests.get(f"{url}/metrics", headers=headers, timeout=20).text)))
    service.scheduler.close()


def test_the_log_has_one_line_per_message_and_no_control_characters():
    text = "a\x1b[2J\r2026 INFO forged\n2026 INFO forged\x85\x00"
    record = logging.makeLogRecord({"msg": "%s", "args": (text,)})
    shown = _Formatter("%(message)s").format(record)
    assert shown == "a\\x1b[2J\\r2026 INFO forged\n    2026 INFO forged\\x85\\x00"


def test_methods_and_paths_of_any_length_take_one_short_line_of_the_log(caplog):
    caplog.set_level(logging.INFO, "seq2seq.serve")
    with serving() as (url, _, _), connect(url) as connection:
        connection.sendall(b"A" * 50_000 + b" /" + b"%0a%1b" * 5_000 + b" HTTP/1.0\r\n\r\n")
        rest(connection)
    assert [len(record.getMessage()) < 120 and record.getMessage().isprintable() for record in caplog.records] == [True]
