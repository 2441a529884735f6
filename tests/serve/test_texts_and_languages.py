"""Sentences of plain text, directions, language identification, keys and limits."""

import asyncio
import time
import unicodedata

import pytest
import requests
from random_models import PAIRS, recipe_text, save_random_model, trained_tokenizers
from served import serving

from seq2seq.data import language_identification
from seq2seq.documents.divided_document import DividedDocument
from seq2seq.formats.plain_text import PlainTextDocument
from seq2seq.serve import api, detection
from seq2seq.serve import limits as limits_module
from seq2seq.serve.detection import Detector
from seq2seq.serve.directions import Directions
from seq2seq.serve.errors import ApiError, SlowdownError
from seq2seq.serve.limits import Limits, read_keys
from seq2seq.serve.models import MachineOptions, Models
from seq2seq.translation.translator import Translator

# Sentences


def divided(text):
    return DividedDocument(PlainTextDocument(text.encode()))


@pytest.mark.parametrize(("text", "sentences"), [
    ("One. Two! Three? Four… Five", ["One.", "Two!", "Three?", "Four…", "Five"]),
    ("He said: “Go.” Then he went.", ["He said: “Go.”", "Then he went."]),
    ("Dr. Kuhn und Prof. Meier kamen.", ["Dr. Kuhn und Prof. Meier kamen."]),
    ("J. R. Smith wrote, e.g. Poems, z. B. Verse.", ["J. R. Smith wrote, e.g. Poems, z. B. Verse."]),
    ("It costs 3.50 euros. yes", ["It costs 3.50 euros. yes"]),
    ("第一句。第二句！“第三句？”第四", ["第一句。", "第二句！", "“第三句？”", "第四"]),
    ("什么？！太好了！！！他走了。。。", ["什么？！", "太好了！！！", "他走了。。。"]),
    ("one\ntwo", ["one", "two"]), ("12. 13.", []), ("", []), ("...", []), ("Wait... What", ["Wait...", "What"]),
])
def test_text_is_split_into_sentences(text, sentences):
    assert divided(text).sentences == sentences
    assert divided(text).join(sentences, "en").decode() == text or "。" in text


def test_sentences_are_joined_as_the_target_language_requires():
    assert divided("One. Two.").join(["一。", "二。"], "zh-Hans").decode() == "一。二。"
    assert divided("一。二。").join(["One.", "Two."], "en").decode() == "One. Two."


# Directions


def test_the_shortest_chain_of_models_is_chosen():
    directions = Directions((("de", "en"), ("en", "fr"), ("fr", "es"), ("de", "fr"), ("es", "de")))
    assert directions.path("de", "fr") == ("de", "fr") and directions.path("de", "es") == ("de", "fr", "es")
    assert directions.path("en", "en") == ("en",) and Directions((("de", "en"),)).path("en", "de") is None
    assert directions.targets("en") == ["en", "fr", "de", "es"] and directions.sources == ["en", "fr", "de", "es"]


# Language identification


def test_lingua_chooses_among_the_served_languages():
    detector = Detector(["en", "de", "zh-Hans"])
    assert detector.detect("Der Hund läuft durch den Garten")[0].language == "de"
    assert detector.detect("Le chien court dans le jardin")[0].language in ("en", "de")
    assert detector.detect("我不知道这是什么意思")[0].language == "zh-Hans"
    assert detector.detect("123 !") == [detection.Detected("en", 0.0)]
    assert all(0 <= one.confidence <= 100 for one in detector.detect("Hund dog"))


@pytest.mark.skipif(not language_identification.is_installed(), reason="needs the extra `language`")
def test_the_normal_form_of_unicode_does_not_change_the_language():
    detector = Detector(["en", "fr"])
    for form in ("NFC", "NFD"):
        assert detector.detect(unicodedata.normalize(form, "Où est l'hôtel près de la forêt ?"))[0].language == "fr"


def test_the_script_decides_without_lingua(monkeypatch):
    monkeypatch.setattr(detection, "is_installed", lambda: False)
    detector = Detector(["en", "ru", "ja", "zh-Hans", "zh-Hant"])
    for text, language in (("dog", "en"), ("собака", "ru"), ("これは犬です", "ja"), ("这个国家", "zh-Hans"),
                           ("這個國家", "zh-Hant"), ("...", "en"), ("ⴰⵣⵓⵍ", "en")):
        assert detector.detect(text)[0].language == language, text
    assert language_identification.is_installed()


def test_without_lingua_a_text_whose_script_leaves_a_choice_is_refused(monkeypatch):
    """A wrong language would leave the text as it is, without an error."""
    for module in (detection, api):
        monkeypatch.setattr(module, "is_installed", lambda: False)
    with serving() as (url, _, _):
        def status(endpoint, **fields):
            answer = requests.post(f"{url}/{endpoint}", json=fields, timeout=20)
            assert answer.status_code == 200 or "extra `language`" in answer.json()["error"]
            return answer.status_code

        assert status("translate", q="Hund", source="auto", target="en") == 400
        assert status("detect", q="Hund") == status("v2/translate", text=["Hund"], target_lang="EN") == 400
        assert status("translate", q="Hund", source="de", target="en") == 200
        assert status("translate", q="什么", source="auto", target="en") == 200
        assert status("translate", q="123", source="auto", target="en") == 200
        settings = requests.get(f"{url}/frontend/settings", timeout=20).json()
        assert settings["language"]["source"]["code"] != "auto"


def test_a_single_language_needs_no_choice():
    assert [one.language for one in Detector(["br"]).detect("Demat d'an holl")] == ["br"]


# Keys and limits


def test_keys_are_read_with_their_limits(tmp_path):
    (tmp_path / "keys").write_text("# comment\nfirst 60\n\nsecond # mine\n")
    assert read_keys(tmp_path / "keys") == {"first": 60, "second": None}
    (tmp_path / "keys").write_bytes(b"\xef\xbb\xbffirst\n")                            # with a byte order mark
    assert read_keys(tmp_path / "keys") == {"first": None}


def test_requests_become_free_steadily():
    now = [0.0]
    limits = Limits(requests_per_minute=6, clock=lambda: now[0])
    limits.check("address a", cost=100)                                         # counts as 6
    with pytest.raises(SlowdownError) as refused:
        limits.check("address a")
    assert refused.value.headers["Retry-After"] == "11"
    limits.check("address b")
    now[0] = 10.5
    limits.check("address a")
    with pytest.raises(SlowdownError):
        limits.check("address a")


def test_computation_is_charged_afterwards_and_becomes_free_steadily():
    now = [0.0]
    limits = Limits({"a": None}, seconds_per_minute=6, clock=lambda: now[0])
    limits.check("key a")
    limits.charge("key a", 7)                                                   # a request may take more than is left
    limits.check("address a")
    with pytest.raises(SlowdownError) as refused:
        limits.check("key a")
    assert refused.value.headers["Retry-After"] == "11"
    now[0] = 10.5
    limits.check("key a")
    Limits().charge("key a", 1e9)                                               # no limit


def identify(limits, key="", address="192.0.2.1"):
    return asyncio.run(limits.identify(key, address))


def test_addresses_of_one_ipv6_network_are_one_client():
    names = [identify(Limits(), address=address) for address in
             ("2001:db8::1", "2001:db8::2:1", "2001:db8:0:1::1", "::ffff:192.0.2.1", "192.0.2.1")]
    assert names[0] == names[1] != names[2] and names[3] == names[4] == "address 192.0.2.1"


def test_keys_of_a_server_without_keys_are_ignored(monkeypatch):
    monkeypatch.setattr(limits_module, "WRONG_KEY_SECONDS", 0)
    assert identify(Limits(), "any") == "address 192.0.2.1"
    with pytest.raises(ApiError):
        identify(Limits({"a": 1}), "ä")
    assert identify(Limits({"a": 1}), "a") == "key a"


def test_wrong_keys_are_slowed_down_by_network_and_hide_right_ones(monkeypatch):
    monkeypatch.setattr(limits_module, "WRONG_KEY_SECONDS", 0.2)
    limits = Limits({"a": None, "b": None})

    async def outcome(key, address):
        try:
            return await limits.identify(key, address)
        except ApiError as error:
            return error.status

    async def run():
        assert await outcome("a", "192.0.2.1") == "key a"
        wrong = [asyncio.create_task(outcome(str(number), "192.0.2.1")) for number in range(30)]
        await asyncio.sleep(0.02)
        assert await outcome("b", "192.0.2.1") == 429                           # a guess learns nothing
        assert await outcome("a", "192.0.2.1") == "key a"                       # this network has used it before
        assert await outcome("b", "192.0.2.2") == "key b" and await outcome("", "192.0.2.1") == "address 192.0.2.1"
        return [await task for task in wrong]

    began = time.monotonic()
    statuses = asyncio.run(run())
    assert statuses == [403] * limits_module.MAX_WRONG_KEYS + [429] * 20 and time.monotonic() - began >= 0.2
    assert identify(limits, "b") == "key b"


# Tags of the training corpora


def sentences(models):
    return sorted(sentence for _, batch in models.batches for sentence in batch)


@pytest.mark.parametrize(("path", "q", "found"), [
    ("/translate", "q", lambda answer: answer["translatedText"]),
    ("/v2/translate", "text", lambda answer: answer["translations"][0]["text"])])
def test_a_line_of_a_text_may_begin_with_a_tag_that_does_not_come_out(path, q, found):
    languages = {"source": "de", "target": "en", "source_lang": "DE", "target_lang": "EN"}
    with serving() as (url, _, models):
        text = "<law> Ein Hund. Er läuft.\nKatze\n<law>Haus"
        answer = requests.post(f"{url}{path}", json={q: text, **languages}).json()
        assert sentences(models) == ["<law> Ein Hund.", "<law> Er läuft.", "<law> Haus", "Katze"]
        assert found(answer).count("\n") == 2 and found(answer).startswith("en(<law> Ein")     # the model echoes it
        models.batches.clear()
        requests.post(f"{url}{path}", json={q: "Ein Hund.\n<law> Haus", "tag": "<law>", **languages})
        assert sentences(models) == ["<law> Ein Hund.", "<law> Haus"]


def test_only_the_model_that_knows_a_tag_gets_it():
    with serving() as (url, _, models):
        requests.post(f"{url}/translate", json={"q": "<law> Haus", "source": "de", "target": "fr"})
        assert sentences(models) == ["<law> Haus", "en(<law> Haus)"]
        models.batches.clear()
        requests.post(f"{url}/translate", json={"q": "<law> house", "source": "en", "target": "fr"})
        assert sentences(models) == ["<law> house"]                                  # text


@pytest.mark.parametrize(("tag", "q"), [("<news>", "Haus"), ("law", "Haus")])
def test_a_tag_that_no_model_of_the_direction_knows_is_refused(tag, q):
    with serving() as (url, _, models):
        answer = requests.post(f"{url}/translate", json={"q": q, "source": "de", "target": "en", "tag": tag})
        assert answer.status_code == 400 and "<law>" in answer.json()["error"] and not models.batches


def test_a_served_model_gets_a_tag_as_in_training(tmp_path):
    text = recipe_text("auto", "d_model: 16, encoder_layers: 1, decoder_layers: 1, num_heads: 2, feed_forward: 32",
                       "beam_size: 2, max_length: 9").replace("train.en}", "train.en, tag: 'law:'}")
    tokenizers = trained_tokenizers(text, [*PAIRS, ("law: ein Hund", "law:")])
    path = save_random_model(tmp_path / "model", text, tokenizers, 5)
    models = Models.load([path], MachineOptions("cpu", "fp32"))
    (best, *_), = Translator.load(path, "cpu", "fp32").translate(["law: ein Hund"], beam_size=2)
    with serving(models) as (url, *_):
        for request in ({"q": "law: ein Hund"}, {"q": "ein Hund", "tag": "law:"}):
            answer = requests.post(f"{url}/translate", json={**request, "source": "de", "target": "en"}).json()
            assert answer["translatedText"] == best.text.strip()
