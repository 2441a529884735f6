"""LibreTranslate's HTTP interface: every parameter as JSON, form and query string, every answer, every error."""

import gzip
import json
import logging
import re
import socket
import threading
import time
from itertools import product

import pytest
import requests
from served import EchoModels, running, serving, wait_until

from seq2seq.serve.api import Settings
from seq2seq.serve.app import create_app
from seq2seq.serve.files import SUFFIXES
from seq2seq.serve.limits import Limits
from seq2seq.serve.server import proxy_networks

WAYS = ("json", "data", "params", "files")
in_every_way = pytest.mark.parametrize("way", WAYS)


def send(url, way, parameters, **options):
    """Send parameters as JSON, form, query string or multipart form."""
    if way == "files":
        fields = [(name, (None, str(value))) for name, values in parameters.items()
                  for value in (values if isinstance(values, list) else [values])]
        return requests.post(url, files=fields, timeout=20, **options)
    return requests.post(url, timeout=20, **{way: parameters}, **options)


def post(url, **parameters):
    return requests.post(url, json=parameters, timeout=20)


def receive(connection):
    """Return head and body of an answer, which may arrive in two pieces."""
    received = b""
    while not received.endswith(b"}") and (piece := connection.recv(10_000)):
        received += piece
    return received


def error(answer, status):
    assert answer.status_code == status, answer.text
    assert list(answer.json()) == ["error"]


# Translation


@in_every_way
def test_a_text_is_translated(echo, way):
    answer = send(f"{echo}/translate", way, {"q": "ein Hund", "source": "de", "target": "en"})
    assert answer.status_code == 200 and answer.json() == {"translatedText": "en(ein Hund)"}
    assert answer.headers["X-Translation-Path"] == "de,en"


@in_every_way
def test_a_list_is_translated(echo, way):
    answer = send(f"{echo}/translate", way, {"q": ["ein", "zwei"], "source": "de", "target": "en", "alternatives": 2})
    assert answer.json() == {"translatedText": ["en(ein)", "en(zwei)"],
                             "alternatives": [["en2(ein)", "en3(ein)"], ["en2(zwei)", "en3(zwei)"]]}


def test_json_is_accepted_without_a_content_type_and_with_that_of_a_form(echo):
    body = json.dumps({"q": "ein Hund", "source": "de", "target": "en"}).encode()
    for kind in (None, "application/x-www-form-urlencoded", "text/plain", "application/json; charset=utf-8"):
        headers = {"Content-Type": kind} if kind else {}
        answer = requests.post(f"{echo}/translate", data=body, headers=headers, timeout=20)
        assert answer.json() == {"translatedText": "en(ein Hund)"}


def test_parameters_of_the_body_replace_those_of_the_query_string(echo):
    answer = requests.post(f"{echo}/translate?q=falsch&source=de", data={"q": "richtig", "target": "en"}, timeout=20)
    assert answer.json() == {"translatedText": "en(richtig)"}


@in_every_way
def test_the_language_of_each_text_is_detected_with_auto(echo, way):
    url = f"{echo}/translate"
    single = send(url, way, {"q": "Ich weiß nicht, was das bedeuten soll", "source": "auto", "target": "en"}).json()
    assert single["detectedLanguage"]["language"] == "de" and 50 < single["detectedLanguage"]["confidence"] <= 100
    texts = ["Ich weiß nicht, was das bedeuten soll", "This sentence is certainly in English", "12"]
    several = send(url, way, {"q": texts, "source": "auto", "target": "en"})
    assert several.json()["translatedText"] == [f"en({texts[0]})", *texts[1:]]
    assert [one["language"] for one in several.json()["detectedLanguage"]] == ["de", "en", "en"]
    assert several.headers["X-Translation-Path"] == "de,en; en"


def test_alternatives_are_unique_and_only_there_if_asked_for(echo):
    asked = {"q": "ein Hund. Ende.", "source": "de", "target": "en"}
    assert "alternatives" not in post(f"{echo}/translate", **asked).json()
    assert "alternatives" not in post(f"{echo}/translate", **asked, alternatives=0).json()
    assert post(f"{echo}/translate", **asked, alternatives=1).json()["alternatives"] == ["en2(ein Hund.) en2(Ende.)"]
    assert len(post(f"{echo}/translate", **asked, alternatives=99).json()["alternatives"]) == 10
    assert post(f"{echo}/translate", **asked, alternatives="1").json()["alternatives"]
    assert post(f"{echo}/translate", **asked, alternatives=2, format="html").json()["alternatives"] == []
    assert post(f"{echo}/translate", **{**asked, "q": "12"}, alternatives=2).json()["alternatives"] == []


@in_every_way
def test_confidence_lists_the_words_of_each_translation(echo, way):
    asked = {"source": "de", "target": "en", "confidence": "true"}
    answer = send(f"{echo}/translate", way, {"q": "ein Hund", **asked})
    assert answer.json()["confidence"] == [{"text": "en(ein", "confidence": 0.5}, {"text": "Hund)", "confidence": 0.5}]
    several = send(f"{echo}/translate", way, {"q": ["ein", "7"], **asked})
    assert several.json()["confidence"] == [[{"text": "en(ein)", "confidence": 0.5}], []]


@pytest.mark.parametrize(("q", "expected"), [
    ("ein Hund\n\n  zwei\t\r\n3 4\n", "en(ein Hund)\n\n  en(zwei)\t\r\n3 4\n"),
    ("Ein Satz. Noch einer!  Und z. B. Dr. Kuhn?", "en(Ein Satz.) en(Noch einer!)  en(Und z. B. Dr. Kuhn?)"),
    ("  \n", "  \n"), ("1,000 % — 😀", "1,000 % — 😀"),
])
def test_lines_sentences_and_white_space_are_kept(echo, q, expected):
    assert post(f"{echo}/translate", q=q, source="de", target="en").json() == {"translatedText": expected}


def test_a_missing_model_is_replaced_by_a_chain(echo):
    answer = post(f"{echo}/translate", q="ein Hund", source="de", target="br")
    assert answer.json() == {"translatedText": "br(fr(en(ein Hund)))"}
    assert answer.headers["X-Translation-Path"] == "de,en,fr,br"


def test_a_text_in_the_target_language_comes_back_unchanged(echo):
    answer = post(f"{echo}/translate", q="a. dog\n <", source="en", target="en")
    assert answer.json() == {"translatedText": "a. dog\n <"}


@pytest.mark.parametrize("code", ["zh", "zh-Hans", "zh_CN", "ZH-cn", "zho", "zho_Hans", "cmn"])
def test_codes_of_other_programs_are_understood(echo, code):
    answer = post(f"{echo}/translate", q="一只狗", source=code, target="en-US")
    assert answer.headers["X-Translation-Path"] == "zh-Hans,en"


# Other endpoints


@in_every_way
def test_languages_are_detected(echo, way):
    answer = send(f"{echo}/detect", way, {"q": "Ich weiß nicht, was das bedeuten soll"})
    assert answer.json()[0]["language"] == "de" and 50 < answer.json()[0]["confidence"] <= 100
    assert {one["language"] for one in answer.json()} <= {"de", "en", "fr", "br", "zh-Hans"}
    assert send(f"{echo}/detect", way, {"q": "一只狗在跑"}).json()[0]["language"] == "zh-Hans"


def test_languages_are_listed_with_their_targets(echo):
    assert requests.get(f"{echo}/languages", timeout=20).json() == [
        {"code": "br", "name": "Breton", "targets": ["br"]},
        {"code": "zh-Hans", "name": "Chinese", "targets": ["br", "zh-Hans", "en", "fr"]},
        {"code": "en", "name": "English", "targets": ["br", "en", "fr"]},
        {"code": "fr", "name": "French", "targets": ["br", "fr"]},
        {"code": "de", "name": "German", "targets": ["br", "en", "fr", "de"]}]


def test_settings_health_and_metrics(echo):
    assert requests.get(f"{echo}/frontend/settings", timeout=20).json() == {
        "apiKeys": False, "charLimit": -1, "filesTranslation": True, "frontendTimeout": 500, "keyRequired": False,
        "language": {"source": {"code": "auto", "name": "Auto Detect"}, "target": {"code": "br", "name": "Breton"}},
        "suggestions": False, "supportedFilesFormat": list(SUFFIXES)}
    assert requests.get(f"{echo}/health", timeout=20).json() == {"status": "ok"}
    requests.get(f"{echo}/a\"b\nc", timeout=20)
    lines = requests.get(f"{echo}/metrics", timeout=20).text.splitlines()
    assert any(line.startswith('seq2seq_requests_total{endpoint="/health",status="200"} ') for line in lines)
    assert any(line.startswith('seq2seq_requests_total{endpoint="other",status="404"} ') for line in lines)
    assert r'seq2seq_model_info{model="models/\"echo\"",sha256="aaaaaaaaaaaa"} 1' in lines
    assert all(re.fullmatch(r'# (HELP|TYPE) \w+ .+|\w+(\{[\w=",/+.\\]+\})? [\d.e+-]+', line) for line in lines)


def test_the_page_describes_all_endpoints_and_loads_nothing_from_elsewhere(echo):
    paths = requests.get(f"{echo}/spec", timeout=20).json()["paths"]
    assert len(paths) > 20
    page = requests.get(f"{echo}/docs", timeout=20).text
    assert all(f"{path}</code>" in page for path in paths)
    assert not re.search(r"(src|href)\s*=\s*[\"']?(https?:)?//|@import|url\(", page)


def test_the_documentation_has_the_languages_and_the_address_that_clients_see():
    models = EchoModels((("fr", "br"), ("br", "zh-Hans")))
    with serving(models) as (_, service, _), running(create_app(service), proxy_networks(["127.0.0.1"])) as url:
        headers = {"Host": "mt.example.org", "X-Forwarded-Proto": "https", "X-Forwarded-Prefix": "/mt"}
        page = requests.get(f"{url}/docs", timeout=20, headers=headers).text
        assert "-d source=fr -d target=br https://mt.example.org/mt/translate" in page
        assert "Breton" in page and not re.search(r"127\.0\.0\.1|German|&quot;(de|en|DE)&quot;", page)
        spec = requests.get(f"{url}/spec", timeout=20, headers=headers)
        assert spec.json()["servers"] == [{"url": "https://mt.example.org/mt"}]
        assert requests.get(f"{url}/docs", timeout=20).text.count(f"{url}/translate") == 1


def test_suggestions_are_appended_to_a_file(tmp_path):
    suggestion = {"q": "ein\nHund", "s": "a “dog”", "source": "de", "target": "en"}
    with serving(settings=Settings(suggestions=tmp_path / "suggestions.jsonl")) as (url, _, _):
        for way in WAYS:
            assert send(f"{url}/suggest", way, suggestion).json() == {"success": True}
        error(send(f"{url}/suggest", "json", {**suggestion, "s": ""}), 400)
        assert requests.get(f"{url}/frontend/settings", timeout=20).json()["suggestions"] is True
    lines = (tmp_path / "suggestions.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in lines] == [suggestion] * len(WAYS)


def test_suggestions_are_refused_without_a_file(echo):
    error(post(f"{echo}/suggest", q="a", s="b", source="de", target="en"), 403)


def test_web_pages_of_other_hosts_may_use_the_server(echo):
    preflight = requests.options(f"{echo}/translate", timeout=20, headers={
        "Origin": "https://example.org", "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "content-type"})
    assert preflight.status_code == 200 and preflight.headers["Access-Control-Allow-Origin"] == "*"
    for path in ("/translate", "/nothing"):
        answer = requests.post(f"{echo}{path}", headers={"Origin": "https://example.org"}, timeout=20)
        assert answer.headers["Access-Control-Allow-Origin"] == "*"


# Errors


@pytest.mark.parametrize("changed", [
    {"source": ["de"]}, {"target": 5}, {"format": {}}, {"alternatives": []}, {"alternatives": 1.5},
    {"alternatives": "1" * 5000}, {"api_key": 7}, {"confidence": [1]}, {"confidence": 2}, {"q": []}, {"q": None},
    {"q": 5}, {"q": True}, {"q": {"a": 1}}, {"q": [["a"]]}, {"q": ["a", None]}])
def test_every_parameter_of_a_wrong_type_is_an_error(echo, changed):
    error(post(f"{echo}/translate", **{"q": "ein", "source": "de", "target": "en", **changed}), 400)


@in_every_way
@pytest.mark.parametrize("changed", [{"q": ""}, {"alternatives": "many"}, {"confidence": "maybe"}, {"source": "zz"}])
def test_wrong_parameters_are_errors(echo, way, changed):
    error(send(f"{echo}/translate", way, {"q": "ein Hund", "source": "de", "target": "en", **changed}), 400)


@pytest.mark.parametrize("body", [
    b"{", b"[]", b"null", b'"q"', b"{'q': 1}", b'{"q": "\xff"}', b'{"q": "\\ud800"}', b"\xef\xbb\xbf{}",
    b'{"q": ' + b"[" * 9_000, b'{"q": ' + b"[" * 90 + b"]" * 90 + b"}", b'{"alternatives": ' + b"9" * 5000 + b"}",
    '{"q": "a"}'.encode("utf-16"), b'{"q": NaN', b'{"q": "a"} {}', b"\0",
    *(b'{"q": "a", "source": "de", "target": "en", "alternatives": %s}' % number for number in (b"1e999", b"NaN"))])
def test_malformed_json_is_an_error(echo, body):
    answer = requests.post(f"{echo}/translate", data=body, headers={"Content-Type": "application/json"}, timeout=20)
    error(answer, 400)


ASKED = b'{"q": "Gr\xc3\xbc\xc3\x9fe", "source": "de", "target": "en"}'


@pytest.mark.parametrize(("kind", "body"), [
    *product(["application/json", "application/json; charset=UTF-8", "text/plain", ""],
             [ASKED, b"\xef\xbb\xbf" + ASKED, b"\xef\xbb\xbf \n" + ASKED]),
    *product(["text/plain", ""], [b"\xef\xbb\xbfq=Gr%C3%BC%C3%9Fe&source=de&target=en"])])
def test_a_body_may_begin_with_a_byte_order_mark(echo, kind, body):
    answer = requests.post(f"{echo}/translate", data=body, headers={"Content-Type": kind}, timeout=20)
    assert answer.json() == {"translatedText": "en(Grüße)"}


def gzipped(body, *members):
    return gzip.compress(body, mtime=0) + b"".join(members)


@pytest.mark.parametrize("encoding", ["gzip", "GZIP", "x-gzip"])
def test_a_body_may_be_compressed_with_gzip(echo, encoding):
    headers = {"Content-Encoding": encoding}
    file = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.txt"\r\n\r\n'
    file += b"a\n" * 9_999 + b"\r\n--x--"
    for path, body, kind in (("/translate", ASKED, "application/json"),
                             ("/translate", b"q=a&source=de&target=en", "application/x-www-form-urlencoded"),
                             ("/v2/translate", b"text=a&source_lang=de&target_lang=en", ""),
                             ("/translate_file?source=de&target=en", file, "multipart/form-data; boundary=x")):
        answer = requests.post(echo + path, data=gzipped(body), headers=headers | {"Content-Type": kind}, timeout=20)
        assert answer.status_code == 200, answer.text
    pieces = (gzipped(ASKED)[place:place + 7] for place in range(0, 200, 7))    # chunked
    assert requests.post(f"{echo}/translate", data=pieces, headers=headers, timeout=20).status_code == 200
    assert requests.post(f"{echo}/translate?q=a&source=de&target=en", headers=headers, timeout=20).status_code == 200
    assert requests.get(f"{echo}/languages", headers=headers, timeout=20).status_code == 200


@pytest.mark.parametrize("body", [ASKED, gzipped(ASKED)[:-1], gzipped(ASKED, b"x"), gzipped(ASKED, gzipped(ASKED)),
                                  b"\x1f", gzipped(ASKED)[:-8] + bytes(8)])
def test_damaged_gzip_is_an_error(echo, body):
    error(requests.post(f"{echo}/translate", data=body, headers={"Content-Encoding": "gzip"}, timeout=20), 400)


@pytest.mark.parametrize("encoding", ["deflate", "br", "zstd", "compress", "gzip, gzip", "\xff", "x" * 500])
def test_other_compressions_are_refused_by_name(echo, encoding):
    answer = requests.post(f"{echo}/translate", data=ASKED, headers={"Content-Encoding": encoding}, timeout=20)
    error(answer, 415)
    assert encoding[:30] in answer.json()["error"] and answer.headers["Accept-Encoding"] == "gzip"
    for encoding in ("identity", ""):
        answer = requests.post(f"{echo}/translate", data=ASKED, headers={"Content-Encoding": encoding}, timeout=20)
        assert answer.status_code == 200


def test_a_compressed_body_counts_with_its_expanded_size():
    bomb = gzip.compress(b'{"q": "' + b"a" * 50_000_000 + b'"}', mtime=0)
    with serving(settings=Settings(max_request_bytes=100_000)) as (url, _, _):
        answer = requests.post(f"{url}/translate", data=bomb, headers={"Content-Encoding": "gzip"}, timeout=20)
        error(answer, 413)
        assert requests.get(f"{url}/health", timeout=20).status_code == 200


@pytest.mark.parametrize(("kind", "body", "status"), [
    ("application/json; charset=iso-8859-1", '{"q": "Gr\u00fc\u00dfe"}'.encode("latin-1"), 415),
    ("application/json; charset=iso-8859-1", ASKED, 415),
    ("application/json; charset=utf-16", ASKED.decode().encode("utf-16"), 415),
    ("application/x-www-form-urlencoded; charset=windows-1252", b"q=Gr%FC%DFe&source=de&target=en", 415),
    ("application/x-www-form-urlencoded; charset=ISO-8859-1", b"q=a&source=de&target=en", 200),
    ("application/json; charset=us-ascii", b'{"q": "a", "source": "de", "target": "en"}', 200),
    ('application/json; charset="utf-8"', ASKED, 200), ("application/json;charset=UTF8", ASKED, 200)])
def test_a_body_in_another_charset_than_utf_8_is_refused_by_name(echo, kind, body, status):
    answer = requests.post(f"{echo}/translate", data=body, headers={"Content-Type": kind}, timeout=20)
    assert answer.status_code == status, answer.text
    if status == 415:
        assert kind.partition("charset=")[2] in answer.json()["error"]


@pytest.mark.parametrize(("query", "status"), [
    ("q=a&source=de&source=en&target=en", 400), ("q=a&source=de&target=en&target=fr", 400),
    ("q=a&source=de&source=de&target=en", 200), ("q=a&q=b&source=de&target=en", 200),
    ("q=a&source=de&target=en&format=text&format=html", 400)])
def test_a_parameter_with_several_values_is_an_error(echo, query, status):
    answer = requests.post(f"{echo}/translate?{query}", timeout=20)
    assert answer.status_code == status and (status == 200 or "several values" in answer.json()["error"])
    answer = requests.post(f"{echo}/translate", data=query, timeout=20, headers={
        "Content-Type": "application/x-www-form-urlencoded"})
    assert answer.status_code == status


@pytest.mark.parametrize("path", ["/translate", "/v2/translate", "/detect", "/suggest", "/translate_file"])
@pytest.mark.parametrize("kind", ["application/json", "application/x-www-form-urlencoded", ""])
def test_an_empty_body_is_an_error_that_names_a_parameter(echo, path, kind):
    for body in (b"", b" \n", b"\xef\xbb\xbf", b"{}"):
        answer = requests.post(f"{echo}{path}", data=body, headers={"Content-Type": kind}, timeout=20)
        assert answer.status_code == 400 and "missing" in answer.json()["error"]


def test_head_and_options_are_answered_and_no_header_accept_is_refused(echo):
    for path, status in (("/languages", 200), ("/health", 200), ("/v2/usage", 200), ("/translate", 405)):
        answer = requests.head(f"{echo}{path}", timeout=20)
        assert answer.status_code == status and answer.content == b""
    answer = requests.options(f"{echo}/translate", timeout=20)
    assert answer.status_code == 405 and answer.headers["Allow"] == "POST"
    for accepted in ("text/html", "application/xml", "*/*;q=0", ""):
        answer = requests.post(f"{echo}/translate", data=ASKED, headers={"Accept": accepted}, timeout=20)
        assert answer.status_code == 200 and answer.headers["Content-Type"] == "application/json"


def test_text_that_is_not_utf_8_is_an_error(echo):
    for options in ({"data": b"q=%ff&source=de&target=en"}, {"data": b"q=\xff"}):
        answer = requests.post(f"{echo}/translate", timeout=20, **options,
                               headers={"Content-Type": "application/x-www-form-urlencoded"})
        error(answer, 400)

    def multipart(text):
        fields = {"q": text, "source": "de", "target": "en"}
        return requests.post(f"{echo}/translate", files={name: (None, value) for name, value in fields.items()},
                             timeout=20)

    assert multipart("ein Café 茶".encode()).json() == {"translatedText": "en(ein Café 茶)"}
    error(multipart("ein Café".encode("latin-1")), 400)
    error(requests.post(f"{echo}/translate?q=%ff", timeout=20), 400)


@pytest.mark.parametrize("headers", [{"Content-Type": "multipart/form-data"},
                                     {"Content-Type": "multipart/form-data; boundary=x"},
                                     {"Content-Type": "multipart/form-data; boundary=" + "x" * 5000}])
def test_malformed_multipart_is_an_error(echo, headers):
    for body in (b"", b"--x", b"--x\r\nContent-Disposition: form-data\r\n\r\n1\r\n--x--", b"\0" * 100):
        error(requests.post(f"{echo}/translate", data=body, headers=headers, timeout=20), 400)


def test_wrong_methods_and_paths_are_errors(echo):
    error(requests.get(f"{echo}/translate", timeout=20), 405)
    error(requests.put(f"{echo}/languages", timeout=20), 405)
    error(requests.post(f"{echo}/health", timeout=20), 405)
    error(requests.get(f"{echo}/admin", timeout=20), 404)


def test_long_texts_and_large_requests_are_refused():
    with serving(settings=Settings(character_limit=10, max_request_bytes=2000)) as (url, _, _):
        asked = {"source": "de", "target": "en"}
        assert post(f"{url}/translate", q="x" * 10, **asked).status_code == 200
        error(post(f"{url}/translate", q="x" * 11, **asked), 400)
        error(post(f"{url}/translate", q=["x" * 5, "y" * 6], **asked), 400)
        error(post(f"{url}/detect", q="x" * 11), 400)
        assert requests.get(f"{url}/frontend/settings", timeout=20).json()["charLimit"] == 10
        error(post(f"{url}/translate", q="x" * 3000, **asked), 413)
        error(requests.post(f"{url}/translate", data=(b"x" * 1000 for _ in range(3)), timeout=20), 413)
        assert post(f"{url}/translate", q="x", **asked).status_code == 200


def test_requests_have_at_most_1000_texts(echo):
    asked = {"source": "en", "target": "en"}
    for q, status in ((["a"] * 1_000, 200), (["a"] * 1_001, 413), ([""] * 100_000, 413)):
        assert post(f"{echo}/translate", q=q, **asked).status_code == status
        assert post(f"{echo}/detect", q=q).status_code == status
        assert post(f"{echo}/v2/translate", text=q, source_lang="EN", target_lang="EN").status_code == status
        body = {"q": q, **asked}
        assert requests.post(f"{echo}/translate", data=body, timeout=20).status_code == (400 if len(q) > 10_000 else
                                                                                        status)


@pytest.mark.parametrize("body", [
    b'{"q": [' + b'"",' * 2_000_000 + b'""]}', b'{"x": [' + b"[]," * 2_000_000 + b"1]}",
    b'{"q": "' + b'\\"' * 3_000_000, b'{"q": "' + b"\\u0041" * 1_000_000 + b'"}', b"q=" + b"%41" * 1_000_000,
    b"a=b&" * 1_000_000, b'--x\r\nContent-Disposition: form-data; name="a"\r\n\r\nb\r\n' * 100_000,
    b'--x\r\nContent-Disposition: form-data; name="a"\r\n\r\n' + b"\r\n--" * 1_500_000])
def test_other_requests_are_answered_while_a_hostile_body_is_decoded(echo, body):
    kind = "multipart/form-data; boundary=x" if body[:3] == b"--x" else "text/plain"
    statuses = []
    attack = threading.Thread(target=lambda: statuses.append(requests.post(
        f"{echo}/translate", data=body, headers={"Content-Type": kind}, timeout=60).status_code))
    attack.start()
    start, slowest = time.monotonic(), 0.0
    while attack.is_alive():
        began = time.monotonic()
        assert requests.get(f"{echo}/health", timeout=20).status_code == 200
        slowest = max(slowest, time.monotonic() - began)
    # On a busy machine everything takes longer; a request that waits for the attack takes as long as the attack.
    assert statuses[0] in (400, 413) and slowest < max(0.8, (time.monotonic() - start) / 2)


def test_an_unexpected_error_is_answered_and_logged_without_the_text(caplog):
    caplog.set_level(logging.INFO, "seq2seq.serve")
    with serving() as (url, _, _):
        error(post(f"{url}/translate", q="Fehler im Geheimnis", source="de", target="en"), 500)
        assert post(f"{url}/translate", q="geheim", source="de", target="en").status_code == 200
    assert "RuntimeError" in caplog.text and "in translate" in caplog.text
    assert "eheim" not in caplog.text


def test_texts_are_logged_only_on_request(caplog):
    caplog.set_level(logging.INFO, "seq2seq.serve")
    with serving(settings=Settings(log_text=True)) as (url, _, _):
        post(f"{url}/translate", q="ein\nHund", source="de", target="en")
        error(post(f"{url}/translate", q="Fehler", source="de", target="en"), 500)
    assert r"de,en 'ein\nHund' -> 'en(ein)\nen(Hund)'" in caplog.text and "cannot translate Fehler" in caplog.text


def test_the_query_string_is_not_logged(caplog):
    caplog.set_level(logging.INFO, "seq2seq.serve")
    with serving() as (url, _, _):                      # the line of a request is logged after its answer
        requests.post(f"{url}/translate?q=geheim&source=de&target=en", timeout=20)
        requests.post(f"{url}/geheim%0a", timeout=20)
    assert "POST /translate 200" in caplog.text and "POST other 404" in caplog.text and "geheim" not in caplog.text


# Keys and limits


def test_keys_are_checked_in_every_way(monkeypatch):
    monkeypatch.setattr("seq2seq.serve.limits.WRONG_KEY_SECONDS", 0)
    with serving(limits=Limits({"secret": None}, key_required=True)) as (url, _, _):
        asked = {"q": "ein", "source": "de", "target": "en"}
        for way in WAYS:
            error(send(f"{url}/translate", way, {**asked, "api_key": "wrong"}), 403)
            error(send(f"{url}/translate", way, asked), 403)
            assert send(f"{url}/translate", way, {**asked, "api_key": "secret"}).status_code == 200
        for path in ("detect", "suggest"):
            error(post(f"{url}/{path}", **asked, s="a", api_key="wrong"), 403)
        error(requests.post(f"{url}/translate_file", files={"file": ("a.txt", b"a")}, timeout=20), 403)
        settings = requests.get(f"{url}/frontend/settings", timeout=20).json()
        assert settings["apiKeys"] and settings["keyRequired"]
        assert requests.get(f"{url}/languages", timeout=20).status_code == 200


def test_too_many_requests_are_slowed_down():
    with serving(limits=Limits({"secret": 5}, requests_per_minute=3)) as (url, _, _):
        asked = {"source": "de", "target": "en"}
        assert post(f"{url}/translate", q=["ein", "zwei"], **asked).status_code == 200
        refused = post(f"{url}/translate", q=["ein", "zwei"], **asked)
        error(refused, 429)
        assert 1 <= int(refused.headers["Retry-After"]) <= 21
        assert post(f"{url}/translate", q=["ein"] * 5, api_key="secret", **asked).status_code == 200
        error(post(f"{url}/translate", q="ein", api_key="secret", **asked), 429)


def test_requests_beyond_the_queue_are_refused_and_the_others_are_answered():
    models = EchoModels()
    models.gate.clear()
    with serving(models, max_waiting=4) as (url, service, _):
        session = socket.create_connection(url.removeprefix("http://").split(":"))
        body = b'{"q": ["a", "b", "c", "d"], "source": "de", "target": "en"}'
        head = b"POST /translate HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n"
        session.sendall(head % len(body) + body)
        wait_until(lambda: models.batches)                                      # the model thread has all four
        session2 = socket.create_connection(url.removeprefix("http://").split(":"))
        session2.sendall(head % len(body) + body)
        wait_until(lambda: service.scheduler.waiting == 4)
        refused = post(f"{url}/translate", q="e", source="de", target="en")
        error(refused, 429)
        assert refused.headers["Retry-After"] == "5"
        error(post(f"{url}/translate", q=list("abcde"), source="de", target="en"), 413)
        models.gate.set()
        for one in (session, session2):
            assert b"en(d)" in receive(one)
            one.close()


def test_a_request_whose_client_is_gone_is_dropped():
    models = EchoModels()
    models.gate.clear()
    with serving(models) as (url, service, _):
        address = url.removeprefix("http://").split(":")
        first, second = socket.create_connection(address), socket.create_connection(address)
        first.sendall(b"POST /translate?q=erster&source=de&target=en HTTP/1.1\r\nHost: a\r\n\r\n")
        wait_until(lambda: models.batches)
        second.sendall(b"POST /translate?q=zweiter&source=de&target=en HTTP/1.1\r\nHost: a\r\n\r\n")
        wait_until(lambda: service.scheduler.waiting == 1)
        second.close()
        wait_until(lambda: service.scheduler.waiting == 0)
        models.gate.set()
        assert b"en(erster)" in receive(first)
        first.close()
        time.sleep(0.02)
    assert [sentences for _, sentences in models.batches] == [["erster"]]
