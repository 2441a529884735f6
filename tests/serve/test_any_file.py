"""Files of every format, valid and damaged, in any encoding: translated, or refused with status 400, never 500."""

import io
import random
import zipfile

import pytest
import requests
from served import EchoModels, serving
from test_malformed_requests import damaged

from seq2seq.formats.block import DocumentError
from seq2seq.serve.files import SUFFIXES

PO = 'msgid ""\nmsgstr ""\n"Content-Type: text/plain; charset={}\\n"\n\nmsgid "ein Hund"\nmsgstr ""\n'
SEEDS = {
    ".html": '<!DOCTYPE html><meta charset="iso-8859-1"><p>ein <b>Hund</b> &amp; <a href="x">zwei</a></p>',
    ".md": "# ein Hund\n\n*zwei* `code` [drei](x) | a\n",
    ".srt": "1\n00:00:01,000 --> 00:00:02,000\nein <i>Hund</i>\n",
    ".vtt": "WEBVTT\n\n00:01.000 --> 00:02.000\nein Hund\n",
    ".ass": "[Events]\nFormat: Start, End, Text\nDialogue: 0:00:01.00,0:00:02.00,ein {\\i1}Hund\n",
    ".po": PO.format("ISO-8859-1"),
    ".xlf": '<?xml version="1.0" encoding="iso-8859-1"?><xliff version="1.2"><file source-language="de"><body>'
            '<trans-unit id="1"><source>ein <g id="1">Hund</g></source></trans-unit></body></file></xliff>',
    ".ts": '<TS version="2.1"><context><message><source>ein Hund</source><translation type="unfinished"/></message>'
           "</context></TS>",
    ".properties": "a=ein Hund\\u0020\n", ".json": '{"a": "ein Hund", "b": [1, {"c": "zwei {name}"}]}',
    ".tmx": '<tmx version="1.4"><body><tu><tuv xml:lang="de"><seg>ein Hund</seg></tuv></tu></body></tmx>',
    "strings.xml": '<?xml version="1.0" encoding="us-ascii"?><resources><string name="a">ein Hund</string></resources>',
    ".txt": "ein Hund\nzwei\n",
}
ENCODINGS = ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-32", "cp037"]


class OddModels(EchoModels):
    """Models whose translations have letters that few encodings have, and markup."""

    def _translation(self, group, sentence, rank):
        one = super()._translation(group, sentence, rank)
        return type(one)(f"茶 € “{sentence}” <&> ]]> \\ {{0}}\u2028", -1.0, -1.0, 3)


@pytest.fixture(scope="module")
def odd():
    with serving(OddModels()) as (url, _, _):
        yield url


def post(url, name, contents):
    return requests.post(f"{url}/translate_file", data={"source": "de", "target": "en"}, timeout=60,
                         files={"file": (name if "." in name[1:] else f"a{name}", contents)})


@pytest.mark.parametrize("name", [*SUFFIXES, "strings.xml"])
def test_any_file_is_translated_or_refused(odd, name):
    draw = random.Random(name)
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("[Content_Types].xml", "<Types/>")
        file.writestr("content.xml", "<a/>")
    contents = [b"", b"\n", b"\0", b"\xff\xfe", b"\xef\xbb\xbf", b"\x1f\x8b\x08\0", archive.getvalue(),
                draw.randbytes(999)]
    for seed in {SEEDS.get(name, SEEDS[".txt"]), *draw.sample(list(SEEDS.values()), 3)}:
        contents += [seed.encode(encoding) for encoding in ENCODINGS]
        contents += [damaged(draw, seed.encode()) for _ in range(5)]
    for data in contents:
        answer = post(odd, name, data)
        assert answer.status_code in (200, 400), (name, data, answer.text)
        if answer.status_code == 400:
            assert answer.json()["error"].startswith("Invalid request: "), answer.text
    if name in SEEDS and name != ".po":
        assert post(odd, name, SEEDS[name].encode()).status_code == 200


def test_an_error_while_a_document_is_written_names_its_file_and_line(odd, monkeypatch):
    def render(self, translations, target_language):
        raise DocumentError("line 3: the translation has 茶, which KOI8-R does not have. Convert it to UTF-8.")

    monkeypatch.setattr("seq2seq.formats.subtitles.SrtDocument.render", render)
    answer = post(odd, "a.srt", SEEDS[".srt"].encode())
    assert answer.status_code == 400 and answer.json()["error"].startswith("Invalid request: a.srt:3: the translation")
