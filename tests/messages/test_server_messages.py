"""Messages of the server: answers to invalid requests, and mistakes at its start, in server.txt."""

import asyncio
import json

import pytest
from catalogue import Catalogue

pytest.importorskip("uvicorn", reason="the extra serve is not installed")

from random_models import recipe_text, save_random_model, trained_tokenizers

from seq2seq.cli import main
from seq2seq.cli import serve as command
from seq2seq.serve import detection
from seq2seq.serve.api import Settings
from seq2seq.serve.app import create_app
from seq2seq.serve.deepl_glossaries import FILE, GlossaryStore
from seq2seq.serve.directions import Directions
from seq2seq.serve.limits import Limits, read_keys
from seq2seq.serve.models import Divided, MachineOptions, Models, named_files
from seq2seq.serve.scheduler import Scheduler, estimate_tokens
from seq2seq.serve.server import listen, proxy_networks
from seq2seq.serve.service import Service

catalogue = Catalogue("server")


class NoModels:
    """Models of a server that is asked nothing that it could translate."""

    directions = Directions((("de", "en"), ("zh-Hans", "en")))
    glossaries = {}

    def translate(self, group, sentences):
        raise RuntimeError("secret")

    def context(self, path):
        return 0

    def tags(self, source, target):
        return ("<law>", "<news>")

    def divide(self, group, sentences):
        return [Divided(one, [one], [estimate_tokens(one)]) for one in sentences]


async def answer_of(app, path, body, content_type):
    """Return the status and the body of an answer of an ASGI application."""
    sent, parts = [], [{"type": "http.request", "body": body or b""}]
    path, _, query = path.partition("?")
    scope = {"type": "http", "method": "POST" if body is not None else "GET", "path": path, "raw_path": path.encode(),
             "query_string": query.encode(), "headers": [(b"content-type", content_type.encode())], "root_path": ""}

    async def receive():
        if not parts:
            await asyncio.Event().wait()                                        # the client waits for its answer
        return parts.pop()

    async def send(message):
        sent.append(message)

    await app(scope, receive, send)
    return sent[0]["status"], json.loads(sent[1]["body"])["error"]


def answered(path, body=b"", content_type="application/json", limits=None, settings=None, max_waiting=10_000):
    service = Service(NoModels(), max_waiting=max_waiting)
    try:
        app = create_app(service, limits, settings)
        return "{} {}".format(*asyncio.run(answer_of(app, path, body, content_type)))
    finally:
        service.scheduler.close()


ASKED = {"q": "ein Hund", "source": "de", "target": "en"}
PARAMETERS = {
    "no text": {"q": ""}, "no source": {"source": ""}, "no target": {"target": ""},
    "alternatives are no number": {"alternatives": "many"},
    "alternatives are not finite": {"alternatives": float("inf")},
    "confidence is not true or false": {"confidence": "maybe"}, "text is a number": {"q": 5},
    "text in a list is null": {"q": ["a", None]}, "text with half of a pair": {"q": "\ud800"},
    "unknown language": {"source": "zz"}, "unknown format": {"format": "xml"},
    "direction without a model": {"source": "zh", "target": "de"}, "unknown glossary": {"glossary": "others"},
    "unknown tag": {"tag": "<sport>"}, "line with another tag": {"q": "<news> a", "tag": "<law>"},
    "malformed document": {"q": '{"a": }', "format": "json"}, "unexpected error": {},
}
for name, changed in PARAMETERS.items():
    catalogue.add(name, lambda folder, changed=changed: answered("/translate", json.dumps(ASKED | changed).encode()))
BODIES = {
    "malformed JSON": ("/translate", b"{", "application/json"), "JSON list": ("/translate", b"[]", "application/json"),
    "form in another encoding": ("/translate", b"q=%ff", "application/x-www-form-urlencoded"),
    "query in another encoding": ("/translate?q=%ff", b"", "application/json"),
    "form with too many fields": ("/translate", b"a=1&" * 10_001, "application/x-www-form-urlencoded"),
    "malformed multipart": ("/translate", b"", "multipart/form-data"),
    "no file": ("/translate_file", b"{}", "application/json"), "file as text": (
        "/translate_file", b'{"file": "a"}', "application/json"),
    "other markup of deepl": ("/v2/translate", b'{"text": "a", "target_lang": "EN", "tag_handling": "md"}',
                              "application/json"),
    "suggestion without a file": ("/suggest", json.dumps(ASKED | {"s": "a dog"}).encode(), "application/json"),
    "unknown path": ("/nothing", None, ""), "wrong method": ("/translate", None, ""),
    "file that is gone": ("/download_file/x.txt", None, ""),
}
for name, (path, body, content_type) in BODIES.items():
    catalogue.add(name, lambda folder, path=path, body=body, content_type=content_type: answered(
        path, body, content_type))
UPLOAD = ('--x\r\nContent-Disposition: form-data; name="file"; filename="{}"\r\n\r\na\r\n'
          '--x\r\nContent-Disposition: form-data; name="source"\r\n\r\nauto\r\n'
          '--x\r\nContent-Disposition: form-data; name="target"\r\n\r\nen\r\n--x--\r\n')
for name in ("a.pdf", "a.tmx"):
    catalogue.add(f"file {name}", lambda folder, name=name: answered(
        "/translate_file", UPLOAD.format(name).encode(), "multipart/form-data; boundary=x"))


@catalogue
def text_that_is_too_long(folder):
    return answered("/translate", json.dumps(ASKED).encode(), settings=Settings(character_limit=5))


@catalogue
def request_that_is_too_large(folder):
    return answered("/translate", json.dumps(ASKED).encode(), settings=Settings(max_request_bytes=5))


@catalogue
def request_with_too_many_sentences(folder):
    return answered("/translate", json.dumps(ASKED | {"q": ["a", "b", "c"]}).encode(), max_waiting=2)


@catalogue
def unknown_key(folder):
    return answered("/translate", json.dumps(ASKED | {"api_key": "x"}).encode(), limits=Limits({"a": None}))


@catalogue
def request_without_a_key(folder):
    return answered("/translate", json.dumps(ASKED).encode(), limits=Limits({"a": None}, key_required=True))


@catalogue
def requests_beyond_the_limit(folder):
    limits = Limits(requests_per_minute=3)
    limits.check("address a", 3)
    limits.check("address a")


@catalogue
def computation_beyond_the_limit(folder):
    limits = Limits(seconds_per_minute=3)
    limits.charge("address a", 5)
    limits.check("address a")


@catalogue
def language_that_the_script_leaves_open(folder):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(detection, "is_installed", lambda: False)
        return answered("/detect", json.dumps({"q": "Hund"}).encode())


@catalogue
def too_many_texts(folder):
    return answered("/translate", json.dumps(ASKED | {"q": ["a"] * 1_001}).encode())


@catalogue
def too_many_values(folder):
    return answered("/translate", json.dumps(ASKED | {"x": [1] * 10_001}).encode())


@catalogue
def proxy_that_is_not_an_address(folder):
    proxy_networks(["proxy.example.org"])


@catalogue
def server_that_is_stopping(folder):
    scheduler = Scheduler(NoModels().translate)
    scheduler.close()
    scheduler.submit("a", ["a"])


# Start of the server


def keys(folder, contents):
    (folder / "keys").write_text(contents)
    read_keys(folder / "keys")


for name, contents in {"limit is no number": "a b", "limit is 0": "a 0", "twice": "a\na 5", "none": "# none"}.items():
    catalogue.add(f"keys: {name}", lambda folder, contents=contents: keys(folder, contents))


@catalogue
def keys_that_do_not_exist(folder):
    read_keys(folder / "keys")


@catalogue
def suggestions_that_cannot_be_written(folder):
    Settings(suggestions=folder / "none" / "suggestions")


@catalogue
def glossary_directory_that_is_a_file(folder):
    (folder / "glossaries").write_text("")
    GlossaryStore(folder / "glossaries")


@catalogue
def glossaries_that_are_damaged(folder):
    (folder / FILE).write_text("no database")
    GlossaryStore(folder)


@catalogue
def glossaries_that_cannot_be_changed(folder):
    GlossaryStore(folder)
    (folder / f"{FILE}-journal").mkdir()
    GlossaryStore(folder)


@catalogue
def glossary_without_a_name(folder):
    named_files(["terms.tsv"])


@catalogue
def port_that_is_taken(folder):
    with listen("127.0.0.1", 0) as taken:
        try:
            listen("127.0.0.1", taken.getsockname()[1])
        except Exception as error:
            return str(error).replace(str(taken.getsockname()[1]), "PORT")


@catalogue
def model_that_does_not_exist(folder):
    Models.load([folder / "none"], MachineOptions())


@catalogue
def two_models_of_one_direction(folder):
    text = recipe_text(290, "d_model: 4, encoder_layers: 1, decoder_layers: 1, num_heads: 1, feed_forward: 4",
                       "beam_size: 1")
    tokenizers = trained_tokenizers(text)
    Models.load([save_random_model(folder / name, text, tokenizers, 1) for name in "ab"], MachineOptions("cpu", "fp32"))


test_message, test_every_message_belongs_to_a_case = catalogue.tests()


def test_mistakes_of_the_command_line_are_messages(capsys, monkeypatch, tmp_path):
    assert main(["serve", str(tmp_path), "--require-key"]) == 2
    assert capsys.readouterr().err == "--require-key needs keys. Add --api-keys FILE.\n"
    monkeypatch.setattr(command, "PACKAGES", {"uvicorn": "no_such_module", "starlette": "starlette"})
    assert main(["serve", "model"]) == 2
    assert capsys.readouterr().err == "seq2seq serve needs packages that are not installed: uvicorn. Install the " \
                                      "extra: pip install 'seq2seq-mt[serve]'\n"
