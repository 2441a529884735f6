"""Documents and glossaries over HTTP: formats, alignment in the model thread, hostile uploads."""

import io
import threading
import zipfile
from dataclasses import replace

import pytest
import requests
from random_models import GERMAN, recipe_text, save_random_model, trained_tokenizers
from served import EchoModels, serving, wait_until
from test_files import upload

from seq2seq.serve.api import Settings
from seq2seq.serve.deepl_glossaries import GlossaryStore
from seq2seq.serve.models import Group, MachineOptions, Models, named_files

PO = b'msgid ""\nmsgstr ""\n"Content-Type: text/plain; charset=UTF-8\\n"\n\nmsgid "ein Hund"\nmsgstr ""\n'


@pytest.mark.parametrize(("name", "contents", "expected", "kind"), [
    ("a.html", b"<p>ein <b>Hund</b></p>", b"<p>en(ein <b>Hund</b>)</p>", "text/html; charset=utf-8"),
    ("a.PO", PO, b'msgstr "en(ein Hund)"', ""), ("a.md", b"# eins\n", b"# en(eins)\n", ""),
    ("a.srt", b"1\n00:00:01,000 --> 00:00:02,000\neins\n", b"en(eins)", ""),
    ("values/strings.xml", b'<resources><string name="a">eins</string></resources>', b">en(eins)<", "")])
def test_files_of_all_formats_are_translated(echo, name, contents, expected, kind):
    answer = upload(echo, name, contents)
    assert answer.status_code == 200, answer.text
    fetched = requests.get(answer.json()["translatedFileUrl"], timeout=20)
    assert expected in fetched.content and fetched.headers["Content-Disposition"].startswith("attachment")
    assert kind in ("", fetched.headers["Content-Type"])


def test_a_request_may_have_the_text_of_a_document(echo):
    fields = {"q": '{"a": "eins zwei"}', "source": "de", "target": "en", "format": "json"}
    answer = requests.post(f"{echo}/translate", json=fields, timeout=20)
    assert answer.json() == {"translatedText": '{"a": "en(eins zwei)"}'}
    assert requests.post(f"{echo}/translate", json=fields | {"format": "docx"}, timeout=20).status_code == 400


@pytest.mark.parametrize(("format", "text", "expected"), [
    ("html", '<meta charset="iso-8859-1"><p>ein “Café”</p>', '<meta charset="iso-8859-1"><p>en(ein “Café”)</p>'),
    ("po", PO.decode().replace("UTF-8", "ISO-8859-1").replace("ein Hund", "ein “Café”"), 'msgstr "en(ein “Café”)"'),
    ("android", '<?xml version="1.0" encoding="UTF-16"?><resources><string name="a">ein Café</string></resources>',
     ">en(ein Café)<")])
def test_the_encoding_that_a_text_declares_does_not_matter(echo, format, text, expected):
    fields = {"q": text, "source": "de", "target": "en", "format": format}
    answer = requests.post(f"{echo}/translate", json=fields, timeout=20)
    assert answer.status_code == 200, answer.text
    assert expected in answer.json()["translatedText"] and "\ufeff" not in answer.json()["translatedText"]


def test_translated_characters_are_counted_and_not_bytes():
    with serving() as (url, _, _):
        for format, text in (("text", "ёж"), ("html", "<p><b>ёж</b></p>")):
            fields = {"q": text, "source": "de", "target": "en", "format": format}
            assert requests.post(f"{url}/translate", json=fields, timeout=20).status_code == 200
        assert "seq2seq_characters_total 4" in requests.get(f"{url}/metrics", timeout=20).text.splitlines()


def test_a_document_that_names_its_language_needs_no_detection(echo):
    text = '<xliff version="1.2"><file source-language="{}" target-language="en"><body><trans-unit id="1"><source>' \
           "Hand</source></trans-unit></body></file></xliff>"
    for named, path in (("de", "de,en"), ("zh_CN", "zh-Hans,en"), ("fr", None)):
        answer = upload(echo, "a.xlf", text.format(named).encode(), source="auto")
        assert answer.headers.get("X-Translation-Path") == path, answer.text
    answer = upload(echo, "a.xlf", text.format("fr").encode())
    assert answer.status_code == 400 and "a.xlf: " in answer.json()["error"] and "fr, not de" in answer.json()["error"]
    answer = upload(echo, "a.tmx", b"<tmx/>", source="auto")
    assert answer.status_code == 400 and "Name it in the request" in answer.json()["error"]
    job = requests.post(f"{echo}/v2/document", data={"target_lang": "en"}, files={"file": ("a.tmx", b"<tmx/>")},
                        timeout=20).json()
    wait_until(lambda: requests.post(f"{echo}/v2/document/{job['document_id']}", timeout=20, json={
        "document_key": job["document_key"]}).json().get("status") == "error")


def archive(*members):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as package:
        for name, contents in members:
            package.writestr(name, contents)
    return file.getvalue()


BOMB = archive(("[Content_Types].xml", "<Types/>"), ("word/document.xml", b"\0" * 101_000_000))
ENTITIES = b"".join(b'<!ENTITY %c "&%c;&%c;&%c;&%c;">' % (98 + one, *[97 + one] * 4) for one in range(20))
LAUGHS = b'<!DOCTYPE x [<!ENTITY a "ha">' + ENTITIES + b"]><resources>&t;</resources>"


@pytest.mark.parametrize(("name", "contents", "message"), [
    ("a.docx", BOMB, "a.docx"), ("strings.xml", LAUGHS, "strings.xml"), ("a.docx", b"PK\x03\x04 no archive", "a.docx"),
    ("a.json", b'{"a": \n}', "a.json:2"),
    ("a.html", b"<b>" * 500 + b"eins" + b"</b>" * 500, None)])
def test_hostile_files_are_refused_with_their_place_while_others_are_answered(echo, name, contents, message):
    answers = []
    other = threading.Thread(target=lambda: answers.append(requests.post(
        f"{echo}/translate", json={"q": "eins", "source": "de", "target": "en"}, timeout=20).json()))
    other.start()
    answer = upload(echo, name, contents)
    other.join(20)
    assert answers == [{"translatedText": "en(eins)"}]
    assert answer.status_code == 200 if message is None else (
        answer.status_code == 400 and message in answer.json()["error"]), answer.text


@pytest.mark.parametrize("format", ["html", "text", "xliff"])
def test_tags_inside_sentences_are_aligned_in_the_model_thread(format):
    q = "<p>ein <b>Hund</b> läuft</p>"
    if format == "xliff":
        q = ('<xliff version="1.2"><file><body><trans-unit id="1"><source>ein &lt;b&gt;Hund&lt;/b&gt; läuft</source>'
             "</trans-unit></body></file></xliff>")
    with serving(EchoModels()) as (url, _, models):
        fields = {"q": q, "source": "de", "target": "en", "format": format}
        assert requests.post(f"{url}/translate", json=fields, timeout=20).status_code == 200
        assert models.batches[1] == (Group("de", "en", None), [("ein Hund läuft", "en(ein Hund läuft)")])
        assert requests.post(f"{url}/translate", json=fields | {"target": "fr"}, timeout=20).status_code == 200
        assert len(models.batches) == 4, "no alignment of a translation by way of English"


def test_a_message_that_cannot_be_read_is_reported(echo):
    fields = {"q": '["{n, plural, one {ein", "zwei"]', "source": "de", "target": "en", "format": "json"}
    assert requests.post(f"{echo}/translate", json=fields, timeout=20).json() == {
        "translatedText": '["{n, plural, one {ein", "en(zwei)"]', "faults": {"not_translated": 1}}


def test_requests_name_a_glossary(echo):
    fields = {"q": "eins", "source": "de", "target": "en"}
    assert requests.get(f"{echo}/glossaries", timeout=20).json() == [{"name": "terms", "source": "de", "target": "en"}]
    assert requests.post(f"{echo}/translate", json=fields | {"glossary": "terms"}, timeout=20).status_code == 200
    answer = requests.post(f"{echo}/translate", json=fields | {"glossary": "others"}, timeout=20)
    assert answer.status_code == 400


def test_a_model_uses_its_glossary_and_places_tags_by_attention(tmp_path):
    text = recipe_text(290, "d_model: 16, encoder_layers: 1, decoder_layers: 1, num_heads: 2, feed_forward: 32",
                       "beam_size: 4, max_length: 12")
    path = save_random_model(tmp_path / "model", text, trained_tokenizers(text), seed=3)
    (tmp_path / "terms.tsv").write_text("Hund\tdog\n")
    models = Models.load([path], MachineOptions("cpu", "fp32", 1), named_files([f"animals={tmp_path / 'terms.tsv'}"]))
    fields = {"q": f"<p>{GERMAN[0]} <b>{GERMAN[1]}</b></p>", "source": "de", "target": "en", "format": "html"}
    store = GlossaryStore(tmp_path / "glossaries")
    new = {"name": "a", "source_lang": "DE", "target_lang": "EN", "entries": "Hund\thound"}
    with serving(models, settings=Settings(glossaries=store)) as (url, _, _):
        created = requests.post(f"{url}/v2/glossaries", json=new, timeout=20).json()
        asked = {"text": fields["q"], "source_lang": "DE", "target_lang": "EN", "tag_handling": "xml",
                 "glossary_id": created["glossary_id"]}
        translated = requests.post(f"{url}/v2/translate", json=asked, timeout=60).json()["translations"][0]["text"]
        assert "hound" in translated and translated.count("<b>") == translated.count("</b>") == 1
        answer = requests.post(f"{url}/translate", json=fields | {"glossary": "animals"}, timeout=60)
        assert answer.status_code == 200
        translated = answer.json()["translatedText"]
        assert "dog" in translated and translated.count("<b>") == translated.count("</b>") == 1
    (tmp_path / "terms.tsv").write_text("...\tdog\n")
    (message, _) = models.reload(changed_only=False)
    assert message.startswith("the old glossaries stay in use: ") and models.glossaries


class FaultyModels(EchoModels):
    """Models that lose %s, and report it as a model that keeps placeholders does."""

    def _translation(self, group, sentence, rank):
        one = super()._translation(group, sentence.replace("%s", "s"), rank)
        lost = "%s" in sentence
        return replace(one, faults=("lost_placeholder",) * lost, placed_terms=("dog",) * ("Hund" in sentence))


def test_an_answer_names_the_faults_and_the_terms_of_each_text():
    with serving(FaultyModels()) as (url, _, _):
        def answer(q, path="/translate", **fields):
            found = requests.post(f"{url}{path}", json={"q": q, "source": "de", "target": "en", **fields}, timeout=20)
            assert found.status_code == 200, found.text
            return found.json()

        assert answer("ein Hund %s") == {"translatedText": "en(ein Hund s)", "faults": {"lost_placeholder": 1},
                                         "placed_terms": ["dog"]}
        assert answer(["Hund", "da", "%s da"]) == {
            "translatedText": ["en(Hund)", "en(da)", "en(s da)"],
            "faults": [{}, {}, {"lost_placeholder": 1}], "placed_terms": [["dog"], [], []]}
        assert answer("da") == {"translatedText": "en(da)"}
        assert answer("da %s", target="fr")["faults"] == {"lost_placeholder": 1}                # on the way to English
        fields = {"text": "da %s", "source_lang": "DE", "target_lang": "EN"}
        (deepl,) = requests.post(f"{url}/v2/translate", data=fields, timeout=20).json()["translations"]
        assert deepl["faults"] == {"lost_placeholder": 1}
        assert upload(url, "a.md", b"# da %s\n\nja %s\n").json()["faults"] == {"lost_placeholder": 2}
        assert 'seq2seq_faults_total{fault="lost_placeholder"} 6' in requests.get(f"{url}/metrics", timeout=20).text
