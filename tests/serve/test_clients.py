"""Programs that speak LibreTranslate's or DeepL's interface, with real models of random weights."""

import json
import urllib.error
import urllib.parse
import urllib.request

import pytest
import requests
from random_models import recipe_text, save_random_model, trained_tokenizers
from served import serving

from seq2seq.serve.limits import Limits
from seq2seq.serve.models import MachineOptions, Models
from seq2seq.translation.translator import Translator

RECIPE = recipe_text(
    283, "d_model: 12, encoder_layers: 1, decoder_layers: 1, num_heads: 2, feed_forward: 7, max_positions: 31",
    "beam_size: 2, max_length_ratio: 1.0, max_length_offset: 5, safety_net: false")
DIRECTIONS = (("de", "en"), ("en", "zh"))


@pytest.fixture(scope="module")
def bundles(tmp_path_factory):
    folder, tokenizers = tmp_path_factory.mktemp("models"), trained_tokenizers(RECIPE)
    return [save_random_model(folder / f"{source}_{target}",
                              RECIPE.replace("{source: de, target: en}", f"{{source: {source}, target: {target}}}", 1),
                              tokenizers, seed, noise=0.3)
            for seed, (source, target) in enumerate(DIRECTIONS, start=2)]


@pytest.fixture(scope="module")
def translators(bundles):
    return [Translator.load(bundle, "cpu", "fp32") for bundle in bundles]


@pytest.fixture(scope="module")
def url(bundles):
    with serving(Models.load(bundles, MachineOptions(precision="fp32"))) as (url, _, _):
        yield url


@pytest.fixture
def expected(translators):
    """Function that translates from German by the model itself, without the server."""

    def translate(text, target="en"):
        english = translators[0].translate([text])[0][0].text
        return english if target == "en" else translators[1].translate([english])[0][0].text

    return translate


def test_libretranslatepy(url, expected):
    from libretranslatepy import LibreTranslateAPI

    client = LibreTranslateAPI(url, "any key")
    assert client.translate("ein Hund läuft", "de", "en") == expected("ein Hund läuft")
    assert client.translate("ein Hund läuft", "de", "zh") == expected("ein Hund läuft", "zh")
    assert client.detect("Ich weiß nicht, was soll es bedeuten")[0]["language"] == "de"
    assert [(one["code"], one["targets"]) for one in client.languages()] == [
        ("zh-Hans", ["zh-Hans"]), ("en", ["zh-Hans", "en"]), ("de", ["zh-Hans", "en", "de"])]


def test_deep_translator(url, expected):
    from deep_translator import LibreTranslator

    client = LibreTranslator(source="de", target="en", api_key="any key", custom_url=f"{url}/")
    assert client.translate("ein Hund läuft & schläft + 1 Ω") == expected("ein Hund läuft & schläft + 1 Ω")
    assert client.translate_batch(["der Hund", "die Katze"]) == [expected("der Hund"), expected("die Katze")]
    long = "der Hund läuft\n" * 100                                            # 2,000 bytes of query string
    assert client.translate(long) == f"{expected('der Hund läuft')}\n" * 100


def test_deepl(url, expected):
    import deepl

    client = deepl.Translator("any key", server_url=url)
    german = "Ich weiß nicht, was soll es bedeuten"
    found = client.translate_text(german, target_lang="EN-US")
    assert (found.text, found.detected_source_lang) == (expected(german), "DE")
    several = client.translate_text(["ein Hund", "eine Katze"], source_lang="DE", target_lang="ZH")
    assert [one.text for one in several] == [expected("ein Hund", "zh"), expected("eine Katze", "zh")]
    marked = client.translate_text("<p class='a'>12 <x/></p>", source_lang="DE", target_lang="EN-US",
                                   tag_handling="html")
    assert marked.text == "<p class='a'>12 <x/></p>"
    with pytest.raises(deepl.DeepLException, match="KO is not supported"):
        client.translate_text("a", source_lang="DE", target_lang="KO")
    assert {one.code for one in client.get_target_languages()} == {"EN", "ZH-HANS"}
    assert {one.code for one in client.get_source_languages()} == {"DE", "EN"}


def test_deepl_with_keys(bundles):
    import deepl

    with serving(Models.load(bundles[:1], MachineOptions(precision="fp32")), Limits({"right": 2}, True)) as (url, _, _):
        answer = deepl.Translator("right", server_url=url).translate_text("12", source_lang="DE", target_lang="EN-US")
        assert answer.text == "12"
        with pytest.raises(deepl.AuthorizationException):
            deepl.Translator("wrong", server_url=url).translate_text("a", target_lang="EN-US")
        refused = requests.post(f"{url}/v2/translate", json={"text": ["a", "b"], "target_lang": "EN"}, timeout=20,
                                headers={"Authorization": "DeepL-Auth-Key right"})
        assert refused.status_code == 429 and refused.json()["message"] == refused.json()["error"]


def test_argos_translate_sends_forms(url, expected):
    # The requests of `argostranslate.apis.LibreTranslateAPI` 1.11. It asks for /languages by POST, too, which
    # LibreTranslate 1.9.6 refuses with 405, and so does this server.
    def request(path, **fields):
        data = urllib.parse.urlencode(fields).encode()
        with urllib.request.urlopen(urllib.request.Request(f"{url}/{path}", data=data), timeout=20) as answer:
            return json.loads(answer.read())

    assert request("translate", q="ein Hund", source="de", target="en") == {"translatedText": expected("ein Hund")}
    assert request("detect", q="Ich weiß nicht, was soll es bedeuten")[0]["language"] == "de"
    with pytest.raises(urllib.error.HTTPError, match="405"):
        request("languages")


def test_weblate(url, expected):
    pairs = {(source["code"], target) for source in requests.get(f"{url}/languages", timeout=20).json()
             for target in source["targets"] if source["code"] != target}
    assert pairs == {("de", "en"), ("de", "zh-Hans"), ("en", "zh-Hans")}
    body = {"q": ["ein Hund läuft", "%s Katzen"], "source": "de", "target": "en", "api_key": ""}
    answer = requests.post(f"{url}/translate", json=body, timeout=20).json()
    assert answer == {"translatedText": [expected("ein Hund läuft"), expected("%s Katzen")]}


def test_mastodon(url, expected):
    targets = {one["code"]: [code for code in one["targets"] if code != one["code"]]
               for one in requests.get(f"{url}/languages", timeout=20).json()}
    assert "en" in targets["de"]
    body = {"q": ["<p>Ich weiß nicht, was soll es bedeuten</p>", "<p><a href='https://a.b'>#tag</a> 12</p>"],
            "source": "auto", "target": "en", "format": "html", "api_key": ""}
    answer = requests.post(f"{url}/translate", data=json.dumps(body), timeout=20,
                           headers={"Content-Type": "application/json"}).json()
    assert answer["translatedText"][0].startswith("<p>") and answer["translatedText"][0].endswith("</p>")
    assert answer["translatedText"][1] == body["q"][1]
    assert answer["detectedLanguage"][0]["language"] == "de" and len(answer["detectedLanguage"]) == 2


def test_answers_do_not_depend_on_other_requests(url, expected):
    texts = ["ein Hund", "eine Katze schläft", "der Hund läuft im Haus", "Katze", "im Haus. der Hund"]
    alone = [requests.post(f"{url}/translate", json={"q": text, "source": "de", "target": "en"}, timeout=20).json()
             for text in texts]
    together = requests.post(f"{url}/translate", json={"q": texts, "source": "de", "target": "en"}, timeout=20).json()
    assert [one["translatedText"] for one in alone] == together["translatedText"]
    assert together["translatedText"][1] == expected(texts[1])


def test_alternatives_and_confidence_come_from_the_beam(url, translators):
    found = translators[0].translate(["ein Hund läuft"], n_best=4, beam_size=4, word_confidence=True)[0]
    answer = requests.post(f"{url}/translate", timeout=20, json={
        "q": "ein Hund läuft", "source": "de", "target": "en", "alternatives": 3, "confidence": True}).json()
    assert [answer["translatedText"], *answer["alternatives"]] == list(dict.fromkeys(one.text for one in found))
    assert answer["confidence"] == [
        {"text": word.text, "confidence": pytest.approx(word.confidence, abs=1e-4)} for word in found[0].words]
