"""A hub that cannot be reached is one quick error, whatever the network does; its libraries would try for minutes."""

import http.server
import socket
import sys
import threading
import time

import pytest
from huggingface_hub import constants

from seq2seq.cli import main
from seq2seq.data import hub
from seq2seq.data.hub import hub_fault
from seq2seq.errors import FormatError
from seq2seq.interop.huggingface_import import local_folder

RECIPE = """\
name: x
languages: {source: de, target: en}
data:
  train: [{hub: nobody/nothing, split: train, source: de, target: en}]
  valid: {hub: nobody/other, split: train, source: de, target: en}
training: {precision: fp32}
"""


@pytest.fixture(autouse=True)
def forgotten(monkeypatch):
    monkeypatch.setattr(hub, "_faults", {})
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)


@pytest.fixture
def closed():
    """Address where connections are refused."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{probe.getsockname()[1]}"


@pytest.fixture
def silent(monkeypatch):
    """Address of a server that accepts connections and never answers."""
    monkeypatch.setattr(hub, "ANSWER_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def unknown(monkeypatch):
    """Address whose name server does not answer."""
    monkeypatch.setattr(hub, "ANSWER_SECONDS", 0.2)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *arguments, **options: time.sleep(1))
    return "http://hub.invalid"


@pytest.fixture
def answering():
    """Function that returns the address of a server with a status, and the list of its requests."""
    servers = []

    def start(status):
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_HEAD(self):
                requests.append(self.path)
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *arguments): ...

        requests = []
        servers.append(http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler))
        threading.Thread(target=servers[-1].serve_forever, args=(0.01,), daemon=True).start()
        return f"http://127.0.0.1:{servers[-1].server_port}", requests

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def broken(answering):
    return answering(503)[0]


@pytest.mark.parametrize("kind", ["closed", "silent", "unknown", "broken"])
def test_a_recipe_and_an_import_from_a_hub_that_cannot_be_reached_end_with_one_error(kind, request, monkeypatch,
                                                                                    tmp_path, capfd):
    monkeypatch.setattr(constants, "ENDPOINT", request.getfixturevalue(kind))
    monkeypatch.setitem(sys.modules, "datasets", None)                          # is not asked
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    monkeypatch.chdir(tmp_path)
    assert main(["train", "recipe.yaml"]) == 2
    said = capfd.readouterr().err
    assert said.count("nobody/other train") == said.count(constants.ENDPOINT) == 1 and "HF_HUB_OFFLINE" in said
    assert not (tmp_path / "runs").exists()
    with pytest.raises(FormatError, match=constants.ENDPOINT):
        local_folder("nobody/nothing")


@pytest.mark.parametrize("status", [200, 401, 404, 429, 501])
def test_a_hub_that_answers_is_left_to_its_libraries(answering, monkeypatch, status):
    endpoint, requests = answering(status)
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    assert hub_fault("datasets/a/b c") == "" and requests == ["/api/datasets/a/b%20c"]


def test_a_hub_that_was_not_reached_is_asked_again_only_later(answering, monkeypatch):
    endpoint, requests = answering(503)
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    assert hub_fault("datasets/a") == hub_fault("datasets/b") != "" and len(requests) == 1
    monkeypatch.setattr(hub, "REMEMBERED_SECONDS", 0)
    assert hub_fault("datasets/c") and len(requests) == 2


def test_in_offline_mode_the_hub_is_not_asked(answering, monkeypatch):
    endpoint, requests = answering(503)
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert hub_fault("datasets/a") == "" and not requests
