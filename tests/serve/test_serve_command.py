"""The command `seq2seq serve`: options, errors, signals."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time

import pytest
import requests
from mixed_load import MixedLoad, resident
from random_models import recipe_text, save_random_model, trained_tokenizers

from seq2seq.cli import main
from seq2seq.serve.server import listen

RECIPE = recipe_text(
    283, "d_model: 12, encoder_layers: 1, decoder_layers: 1, num_heads: 2, feed_forward: 7, max_positions: 31",
    "beam_size: 2, max_length_ratio: 1.0, max_length_offset: 5, safety_net: false")


def test_the_help_has_examples(capsys):
    assert main(["serve", "--help"]) == 0
    text = capsys.readouterr().out
    assert "seq2seq serve models/de_en models/en_fr" in text and "--require-key" in text


def test_answers_are_not_delayed_by_nagle_s_algorithm():
    with listen("127.0.0.1", 0) as listening:
        assert listening.proto == socket.IPPROTO_TCP                            # asyncio then sets TCP_NODELAY


def heed_interrupts():
    """Undo that programs in the background ignore SIGINT, which child processes inherit."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.fixture
def started(tmp_path):
    """Function that starts the command and returns the process, the URL, and the path of the model."""
    tokenizers = trained_tokenizers(RECIPE)
    model = save_random_model(tmp_path / "de_en", RECIPE, tokenizers, seed=2, noise=0.3)
    log = tmp_path / "log"
    processes = []

    def start(*options):
        with log.open("wb") as file:
            process = subprocess.Popen([sys.executable, "-m", "seq2seq", "serve", str(model), "--port", "0",
                                        "--precision", "fp32", "--threads", "1", *options], stderr=file,
                                       preexec_fn=heed_interrupts)
        processes.append(process)
        end = time.monotonic() + 60
        while not (found := re.search(r"listening on (http://[\d.:]+),", log.read_text())):
            assert process.poll() is None and time.monotonic() < end, log.read_text()
            time.sleep(0.05)
        wait_for(lambda: requests.get(f"{found[1]}/health", timeout=20).status_code == 200)
        return process, found[1], model

    yield start, lambda: log.read_text(), lambda seed: save_random_model(model, RECIPE, tokenizers, seed, noise=0.3)
    for process in processes:
        process.kill()
        process.wait(20)


def wait_for(condition, seconds=30):
    end = time.monotonic() + seconds
    while True:
        try:
            if condition():
                return
        except requests.ConnectionError:
            pass
        assert time.monotonic() < end
        time.sleep(0.05)


def translate(url, q="ein Hund läuft"):
    return requests.post(f"{url}/translate", json={"q": q, "source": "de", "target": "en"}, timeout=60)


@pytest.mark.slow
def test_sigterm_finishes_the_requests_in_progress(started):
    import threading

    start, log, _ = started
    process, url, _ = start()
    answers = []
    lines = "\n".join(f"ein Hund läuft {number}" for number in range(8_000))
    client = threading.Thread(target=lambda: answers.append(translate(url, lines)))
    client.start()
    wait_for(lambda: re.search(r"waiting_sentences [1-9]", requests.get(f"{url}/metrics", timeout=20).text))
    process.send_signal(signal.SIGTERM)
    client.join(60)
    assert process.wait(60) == 0
    assert answers[0].status_code == 200 and answers[0].json()["translatedText"].count("\n") == 7_999
    with pytest.raises(requests.ConnectionError):
        translate(url)
    assert "Traceback" not in log()


@pytest.mark.slow
def test_ctrl_c_stops_the_server_without_a_traceback(started):
    start, log, _ = started
    process, _, _ = start()
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130 and "Traceback" not in log()


@pytest.mark.slow
def test_each_line_of_the_log_as_json_is_an_object(started):
    start, log, _ = started
    process, url, model = start("--log-format", "json", "--host", "0.0.0.0")
    assert translate(url).status_code == 200
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    first, *others = map(json.loads, log().splitlines())
    assert first["message"].startswith(f"de to en: {model}, fp32 on cpu")
    assert [one["level"] for one in others] == ["INFO", "WARNING", "INFO", "INFO"]      # listening, no limits, request
    assert others[-1]["message"] == "the server has stopped"


@pytest.mark.slow
def test_sighup_loads_the_models_again(started):
    start, log, save = started
    process, url, model = start()
    before = translate(url).json()["translatedText"]
    save(3)
    os.kill(process.pid, signal.SIGHUP)
    wait_for(lambda: translate(url).json()["translatedText"] != before)
    assert f"{model} was loaded again" in log()
    (model / "model.safetensors").write_bytes(b"damaged")
    after = translate(url).json()["translatedText"]
    os.kill(process.pid, signal.SIGHUP)
    wait_for(lambda: "the old model stays in use" in log())
    assert translate(url).json()["translatedText"] == after
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0


@pytest.mark.slow
def test_options_reach_the_server(started, tmp_path):
    (tmp_path / "keys").write_text("secret 60\n")
    start, log, _ = started
    _, url, _ = start("--api-keys", str(tmp_path / "keys"), "--require-key", "--character-limit", "20", "--log-text",
                      "--suggestions", str(tmp_path / "suggestions"), "--beam-size", "1", "--glossary-directory",
                      str(tmp_path / "glossaries"))
    assert translate(url).status_code == 403
    body = {"q": "ein Hund", "source": "de", "target": "en", "api_key": "secret"}
    assert requests.post(f"{url}/translate", json=body, timeout=20).status_code == 200
    assert requests.post(f"{url}/translate", json=body | {"q": "x" * 21}, timeout=20).status_code == 400
    assert requests.post(f"{url}/suggest", json=body | {"s": "a dog"}, timeout=20).status_code == 200
    new = {"name": "a", "source_lang": "de", "target_lang": "en", "entries": "Hund\thound", "auth_key": "secret"}
    assert requests.post(f"{url}/v2/glossaries", json=new, timeout=20).status_code == 201
    assert "hound" in (tmp_path / "glossaries" / "glossaries.sqlite").read_text(errors="replace")
    assert "'ein Hund' -> " in log()


@pytest.mark.slow
def test_mixed_load_gets_only_answers_of_the_interface_in_constant_memory(started):
    start, log, _ = started
    process, url, _ = start("--max-waiting", "40")
    load = MixedLoad(url, [f"ein Hund läuft {number}" for number in range(100)], ("de", "en"))
    time.sleep(10)
    before = resident(process.pid)
    time.sleep(20)
    after = resident(process.pid)
    load.stop()
    assert not load.wrong and {("text", 200), ("list", 200), ("list", 429), ("malformed", 400)} <= set(load.counts)
    assert not any(status == "lost" for _, status in load.counts)
    assert after < before + 40 and "Traceback" not in log()


@pytest.mark.slow
def test_clients_of_a_killed_server_see_connection_errors_only_and_a_new_server_answers_them(started):
    start, _, _ = started
    process, url, _ = start()
    load = MixedLoad(url, [f"ein Hund läuft {number}" for number in range(100)], ("de", "en"))
    wait_for(lambda: load.counts["text", 200] > 50)
    process.kill()
    process.wait(20)
    wait_for(lambda: load.counts["text", "lost"] > 20)
    answered = load.counts["text", 200]
    start("--port", url.rpartition(":")[2])
    wait_for(lambda: load.counts["text", 200] > answered + 50)
    load.stop()
    assert not load.wrong
