"""The files in deploy/: their metrics, options and limits are those of the server."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="the extra serve is not installed")

from typer.main import get_command

from seq2seq.cli import application
from seq2seq.serve.metrics import Metrics
from seq2seq.serve.server import STOP_SECONDS

DEPLOY = Path(__file__).parents[2] / "deploy"
RULES, DASHBOARD = DEPLOY / "prometheus" / "seq2seq.rules.yml", DEPLOY / "grafana" / "seq2seq.json"
SERVE = get_command(application(["serve"])).commands["serve"]


def metrics_of_a_server():
    """Return the names of all metrics, without the endings of histograms, and the label names of each."""
    metrics = Metrics()
    metrics.count_request("/translate", 200, 0.1)
    metrics.count_faults({"loop": 1})
    text = metrics.text(3, {"models/de_en": 64 * "a"})
    kinds = dict(re.findall(r"^# TYPE (\w+) (\w+)$", text, re.MULTILINE))
    labels = {name: set() for name in kinds}
    for name, found in re.findall(r"^(\w+)\{(.*)\} ", text, re.MULTILINE):
        labels[re.sub(r"_(bucket|sum|count)$", "", name) if name not in kinds else name] |= set(
            re.findall(r'(\w+)="', found))
    return kinds, labels


@pytest.mark.parametrize("path", [RULES, DASHBOARD], ids=lambda path: path.name)
def test_every_metric_and_label_of_rules_and_dashboard_is_one_of_the_server(path):
    kinds, labels = metrics_of_a_server()
    text = path.read_text(encoding="utf-8").replace('\\"', '"')
    used = re.findall(r"\b(seq2seq_\w+?)(_bucket|_sum|_count)?\b(?:\{([^}]*)\})?", text)
    found = set()
    for name, ending, selectors in used:
        assert name in kinds, name
        assert bool(ending) == (kinds[name] == "histogram"), name
        assert set(re.findall(r"(\w+)[=!]~?", selectors)) <= labels[name] | {"instance"}, selectors
        found.add(name)
    if path == DASHBOARD:
        assert found == set(kinds), "the dashboard shows all metrics"


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool (package prometheus) is not installed")
def test_prometheus_accepts_rules_and_configuration():
    for command in (["rules", RULES], ["config", DEPLOY / "prometheus" / "prometheus.yml"]):
        subprocess.run(["promtool", "check", *map(str, command)], check=True, capture_output=True)


def test_the_service_uses_options_of_the_command_and_waits_for_its_end():
    text = (DEPLOY / "systemd" / "seq2seq.service").read_text(encoding="utf-8")
    command = re.search(r"^ExecStart=(.*?[^\\])$", text, re.MULTILINE | re.DOTALL)[1]
    known = {name for parameter in SERVE.params for name in parameter.opts}
    options = set(re.findall(r"--[\w-]+", command))
    assert options and options <= known
    assert int(re.search(r"TimeoutStopSec=(\d+)", text)[1]) > STOP_SECONDS


def test_the_proxy_passes_what_the_server_accepts():
    text = (DEPLOY / "nginx" / "seq2seq.conf").read_text(encoding="utf-8")
    defaults = {parameter.name: parameter.default for parameter in SERVE.params}
    assert int(re.search(r"client_max_body_size (\d+)m", text)[1]) * 2**20 == defaults["max_request_bytes"]
    assert int(re.search(r"proxy_read_timeout (\d+)s", text)[1]) > defaults["seconds_per_request"]
    assert "X-Forwarded-For $remote_addr" in text and "location /mt/" in text and "X-Forwarded-Prefix /mt;" in text
    log_format = re.search(r"log_format seq2seq ([^;]*);", text)[1]
    assert "access_log /var/log/nginx/seq2seq.log seq2seq;" in text
    assert not re.search(r"\$(request|request_uri|args|query_string|http_referer)\b", log_format), "texts and keys"
