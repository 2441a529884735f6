"""The web page: headers and files without a browser, behaviour in Chromium against a server with fake answers."""

import asyncio
import json
import re
import socket
import threading
import time
from types import SimpleNamespace

import pytest

pytest.importorskip("starlette", reason="the extra serve is not installed")
pytest.importorskip("uvicorn", reason="the extra serve is not installed")

import requests
import uvicorn
from browsers import start_browser
from random_models import recipe_text, save_random_model, trained_tokenizers
from served import serving
from starlette.applications import Starlette
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.routing import Route

from seq2seq.serve.app import FOLDER, page_routes
from seq2seq.serve.models import Group, MachineOptions, Models

ATTACK = "<script>window.attacked=1</script><img src=x onerror='window.attacked=1'>"


# Without a browser


async def answer_of(path, headers=()):
    sent = []
    app = Starlette(routes=page_routes())
    scope = {"type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "query_string": b"",
             "headers": [(name.encode(), value.encode()) for name, value in headers], "root_path": ""}

    async def receive():
        return {"type": "http.request", "body": b""}

    async def send(message):
        sent.append(message)

    await app(scope, receive, send)
    found = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], found, b"".join(part.get("body", b"") for part in sent[1:])


def get(path, *headers):
    return asyncio.run(answer_of(path, headers))


@pytest.mark.parametrize("path, media_type", [
    ("/", "text/html; charset=utf-8"), ("/page/style.css", "text/css; charset=utf-8"),
    ("/page/page.js", "text/javascript; charset=utf-8"), ("/page/texts.json", "application/json"),
    ("/page/icon.svg", "image/svg+xml")])
def test_every_file_has_its_media_type_and_the_security_headers(path, media_type):
    status, headers, content = get(path)
    assert (status, headers["content-type"]) == (200, media_type)
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["content-security-policy"].startswith("default-src 'none'; script-src 'self'; style-src 'self';")
    assert "unsafe" not in headers["content-security-policy"]
    assert content == (FOLDER / (path.removeprefix("/").removeprefix("page/") or "index.html")).read_bytes()


def test_a_file_that_the_browser_has_is_not_sent_again():
    _, headers, _ = get("/page/page.js")
    assert headers["cache-control"] == "no-cache"
    status, again, content = get("/page/page.js", ("if-none-match", f'"other", W/{headers["etag"]}'))
    assert (status, again["etag"], content) == (304, headers["etag"], b"")
    assert get("/page/page.js", ("if-none-match", '"other"'))[0] == 200


@pytest.mark.parametrize("path", ["/page/", "/page/none.js", "/page/../page.py", "/page/%2e%2e/page.py",
                                  "/page/index.html"])
def test_other_paths_are_unknown(path):
    assert get(path)[0] == 404


def test_the_three_languages_have_the_same_texts_and_values():
    texts = json.loads((FOLDER / "texts.json").read_text(encoding="utf-8"))
    assert set(texts) == {"en", "de", "zh"}
    values = {language: {name: sorted(re.findall(r"\{\w+\}", text)) for name, text in entries.items()}
              for language, entries in texts.items()}
    assert values["en"] == values["de"] == values["zh"]
    assert all(text.strip() for entries in texts.values() for text in entries.values())


def test_every_text_that_the_page_names_exists():
    texts = json.loads((FOLDER / "texts.json").read_text(encoding="utf-8"))["en"]
    html, script = ((FOLDER / name).read_text(encoding="utf-8") for name in ("index.html", "page.js"))
    names = set(re.findall(r'data-(?:text|label|placeholder)="(\w+)"', html))
    names |= set(re.findall(r'(?:say|showState|showMessage|showFileState)\("(\w+)"', script)) - {"error"}
    assert names <= set(texts)


def test_files_name_no_host_and_the_page_has_no_inline_code():
    for path in FOLDER.iterdir():
        text = path.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?:|[\"'(]//", text), path.name
    assert not re.search(r"<style|\sstyle=|\son\w+=|<script>", (FOLDER / "index.html").read_text(encoding="utf-8"))
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b",
                         (FOLDER / "page.js").read_text(encoding="utf-8"))


# With a browser


class Stub:
    """Server with fake translations: the target's code in brackets, then the source."""

    def __init__(self):
        self.settings = {"charLimit": 6000, "keyRequired": False, "filesTranslation": True,
                         "supportedFilesFormat": [".txt"], "language": {"target": {"code": "de"}}}
        self.error, self.requests = None, []
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.address = f"http://127.0.0.1:{self.port}/"
        self.start()

    def start(self):
        names = {"en": "English", "de": "German", "zh-Hans": "Chinese", "ar": "Arabic"}
        listed = [{"code": code, "name": name, "targets": list(names)} for code, name in names.items()]

        async def translate(request):
            fields = await request.json()
            self.requests.append(fields)
            if self.error:
                return JSONResponse({"error": self.error[1]}, self.error[0], {"Retry-After": "1"})
            if fields["q"] == "slow":
                await asyncio.sleep(1.5)
            best = "مرحبا بالعالم" if fields["target"] == "ar" else f"[{fields['target']}] {fields['q']}"
            answer = {"translatedText": best, "alternatives": [f"{best} {n}" for n in range(fields["alternatives"])]}
            if fields["source"] == "auto":
                answer["detectedLanguage"] = {"confidence": 90, "language": "en"}
            if fields.get("confidence"):
                answer["confidence"] = [{"text": word, "confidence": (0.97, 0.31, 0.67)[n % 3]}
                                        for n, word in enumerate(best.split())]
            return JSONResponse(answer)

        async def translate_file(request):
            async with request.form() as form:
                self.uploaded = (await form["file"].read(), form["source"], form["target"])
            return JSONResponse({"translatedFileUrl": "http://elsewhere.invalid/download_file/done.txt"})

        async def languages(request):
            return JSONResponse(listed)

        async def glossaries(request):
            return JSONResponse([{"name": "products", "source": "de", "target": "en"},
                                 {"name": "mine", "id": "0A1B", "source": "de", "target": "en"}])

        async def settings(request):
            return JSONResponse(self.settings)

        async def download(request):
            return PlainTextResponse("translated")

        app = Starlette(routes=[
            *page_routes(), Route("/translate", translate, methods=["POST"]),
            Route("/translate_file", translate_file, methods=["POST"]), Route("/download_file/{name}", download),
            Route("/languages", languages), Route("/glossaries", glossaries),
            Route("/frontend/settings", settings)])
        self.server = uvicorn.Server(uvicorn.Config(app, "127.0.0.1", self.port, log_level="error",
                                                    timeout_graceful_shutdown=1))
        self.thread = threading.Thread(target=self.server.run, daemon=True)
        self.thread.start()
        until(lambda: self.server.started)

    def stop(self):
        self.server.should_exit = True
        self.thread.join(10)


def until(condition, seconds=8):
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "the expected state did not come"
        time.sleep(0.03)
    return found


@pytest.fixture(scope="module")
def browser():
    made = start_browser()
    yield made
    made.quit()


@pytest.fixture
def stub():
    made = Stub()
    yield made
    made.stop()


class Page:
    def __init__(self, browser, stub):
        self.browser, self.stub = browser, stub
        browser.set_window_size(1200, 900)
        self.open()

    def open(self):
        self.browser.get(self.stub.address)
        until(lambda: self.js("return document.querySelectorAll('#target option').length"))

    def js(self, script, *values):
        return self.browser.execute_script(script, *values)

    def one(self, name):
        return self.browser.find_element("id", name)

    def text(self, name):
        return self.js("return document.getElementById(arguments[0]).textContent", name)

    def type(self, text):
        self.one("text").send_keys(text)

    def put(self, text):
        self.js("const t = document.getElementById('text'); t.value = arguments[0];"
                "t.dispatchEvent(new Event('input'))", text)

    def choose(self, name, value):
        self.js("const s = document.getElementById(arguments[0]); s.value = arguments[1];"
                "s.dispatchEvent(new Event('change'))", name, value)

    def shows(self, name, text):
        until(lambda: text in self.text(name))


@pytest.fixture
def page(browser, stub):
    return Page(browser, stub)


def console_errors(browser):
    return [entry["message"] for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]


@pytest.mark.slow
def test_typing_translates_once_and_shows_the_detected_language_and_loads_nothing_from_elsewhere(page):
    page.browser.get_log("browser")
    page.type("a dog")
    page.shows("translation", "[de] a dog")
    assert page.text("detected") == "Detected: English"
    assert page.text("counter") == "5 of 6000 characters"
    assert len(page.stub.requests) <= 2
    loaded = page.js("return performance.getEntriesByType('resource').map(entry => entry.name)")
    assert loaded and all(name.startswith(page.stub.address) for name in loaded)
    assert console_errors(page.browser) == []


@pytest.mark.slow
def test_glossaries_are_offered_for_the_chosen_languages(page):
    assert not page.one("glossary-field").is_displayed()
    page.choose("source", "de")
    page.choose("target", "en")
    until(lambda: page.js("return [...document.querySelectorAll('#glossary option')].map(one => one.textContent)") == [
        "none", "products", "mine"])
    page.put("ein Hund")
    page.shows("translation", "[en] ein Hund")
    assert "glossary" not in page.stub.requests[-1]
    page.choose("glossary", "0A1B")
    until(lambda: page.stub.requests[-1].get("glossary") == "0A1B")
    page.choose("target", "ar")
    until(lambda: page.stub.requests[-1]["target"] == "ar")
    assert "glossary" not in page.stub.requests[-1] and not page.one("glossary-field").is_displayed()


@pytest.mark.slow
def test_swapping_exchanges_languages_and_texts(page):
    page.put("a dog")
    page.shows("translation", "[de] a dog")
    page.one("swap").click()
    page.shows("translation", "[en] [de] a dog")
    assert [page.one(name).get_property("value") for name in ("source", "target", "text")] == ["de", "en", "[de] a dog"]


@pytest.mark.slow
def test_markup_in_text_answer_and_error_is_shown_as_text(page):
    page.one("confidence").click()
    page.put(ATTACK)
    page.shows("translation", "[de] " + ATTACK)
    page.stub.error = (400, ATTACK)
    page.put("x")
    page.shows("message", ATTACK)
    assert page.js("return window.attacked") is None
    assert page.js("return document.querySelectorAll('main script, main img').length") == 0


@pytest.mark.slow
def test_alternatives_are_shown_and_can_be_chosen(page):
    page.put("a dog")
    page.shows("alternatives", "[de] a dog 2")
    page.browser.find_elements("css selector", "#alternatives button")[2].click()
    assert page.text("translation") == "[de] a dog 2"
    assert "[de] a dog" in [one.text for one in page.browser.find_elements("css selector", "#alternatives button")]


@pytest.mark.slow
def test_uncertain_words_are_marked_and_listed_and_can_be_switched_off(page):
    page.one("confidence").click()
    page.put("a dog")
    page.shows("uncertain", "Uncertain words: \u2068a\u2069 (31 %), \u2068dog\u2069 (67 %)")
    assert page.js("return document.querySelector('#translation .doubtful').textContent") == "a"
    page.one("confidence").click()
    assert page.js("return document.querySelectorAll('#translation span').length") == 0
    assert not page.one("uncertain").is_displayed()


@pytest.mark.slow
def test_the_translation_is_copied(page):
    page.browser.execute_cdp_cmd("Browser.grantPermissions", {
        "permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"], "origin": page.stub.address})
    page.put("a dog")
    page.shows("translation", "[de] a dog")
    page.one("copy").click()
    page.shows("state", "Copied.")
    assert page.js("return navigator.clipboard.readText()") == "[de] a dog"


@pytest.mark.slow
def test_a_file_is_uploaded_and_linked_on_the_own_host(page, tmp_path):
    (tmp_path / "a.txt").write_text("a dog")
    page.one("file").send_keys(str(tmp_path / "a.txt"))
    page.one("upload").click()
    until(lambda: page.one("download").is_displayed())
    assert page.one("download").get_property("href") == page.stub.address + "download_file/done.txt"
    assert page.stub.uploaded == (b"a dog", "auto", "de")


@pytest.mark.slow
def test_a_late_answer_to_an_old_text_is_discarded(page):
    page.put("slow")
    until(lambda: page.stub.requests)
    page.put("fast")
    page.shows("translation", "[de] fast")
    time.sleep(1.6)
    assert page.text("translation") == "[de] fast"


@pytest.mark.slow
def test_errors_of_the_server_are_shown_and_a_busy_server_is_asked_again(page):
    page.stub.error = (429, "Slowdown: too many requests.")
    page.put("a dog")
    page.shows("message", "Slowdown: too many requests. The page tries again in 1 seconds.")
    page.stub.error = None
    page.shows("translation", "[de] a dog")
    assert not page.one("message").is_displayed()


@pytest.mark.slow
def test_the_page_recovers_when_an_unreachable_server_returns(page):
    page.stub.stop()
    page.put("a dog")
    page.shows("message", "cannot be reached")
    page.stub.start()
    page.shows("translation", "[de] a dog")
    assert not page.one("message").is_displayed()


@pytest.mark.slow
def test_the_keyboard_reaches_every_control_in_reading_order_with_a_visible_focus(page):
    from selenium.webdriver import ActionChains, Keys
    page.put("a dog")
    page.shows("alternatives", "2")
    page.js("document.activeElement.blur(); document.body.focus()")
    reached = []
    for _ in range(16):
        ActionChains(page.browser).send_keys(Keys.TAB).perform()
        reached.append(page.js("return document.activeElement.id || document.activeElement.tagName"))
        if reached[-1] == "BODY":                              # the end of the page
            break
        assert page.js("return getComputedStyle(document.activeElement).outlineStyle") != "none"
    order = ["interface", "theme", "source", "text", "clear", "swap", "target", "translation", "copy", "confidence",
             "BUTTON", "file"]
    assert [name for name in dict.fromkeys(reached) if name in order] == order
    unnamed = page.js("return [...document.querySelectorAll('select, textarea, input, button')].filter("
                      "one => !one.labels?.length && !one.textContent.trim() && !one.ariaLabel).map(one => one.id)")
    assert unnamed == []


@pytest.mark.slow
@pytest.mark.parametrize("language, title, copy, german", [
    ("de", "Übersetzung", "Kopieren", "Deutsch"), ("zh", "翻译", "复制", "德语")])
def test_the_interface_speaks_the_chosen_language_and_remembers_it(page, language, title, copy, german):
    page.choose("interface", language)
    page.shows("source", german)
    page.shows("target", german)
    page.open()
    page.shows("copy", copy)
    assert (page.browser.title, page.js("return document.documentElement.lang")) == (title, language)
    page.js("localStorage.clear()")


@pytest.mark.slow
def test_blocked_storage_does_no_harm(page):
    script = "Object.defineProperty(window, 'localStorage', {get() { throw new DOMException('blocked') }})"
    added = page.browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": script})
    page.open()
    page.choose("theme", "dark")
    page.put("a dog")
    page.shows("translation", "[de] a dog")
    page.browser.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", added)


@pytest.mark.slow
def test_right_to_left_languages_set_the_direction(page):
    page.choose("target", "ar")
    page.put("hello")
    page.shows("translation", "مرحبا")
    assert (page.one("translation").get_property("dir"), page.one("translation").get_attribute("lang")) == ("rtl", "ar")
    page.one("swap").click()
    assert page.one("text").get_property("dir") == "rtl"
    assert page.one("translation").get_property("dir") == "ltr"


@pytest.mark.slow
def test_long_texts_are_translated_on_a_narrow_screen_up_to_the_limit(page):
    page.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride",
                                 {"width": 360, "height": 740, "deviceScaleFactor": 1, "mobile": True})
    page.put("word " * 1000)
    page.shows("translation", "[de] word")
    assert page.js("return document.documentElement.scrollWidth") == 360
    page.put("x" * 5000)
    page.shows("translation", "x" * 5000)
    assert page.js("return document.documentElement.scrollWidth") == 360
    page.put("x" * 6001)
    page.shows("message", "The text has 6001 characters; the limit is 6000.")
    page.browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@pytest.mark.slow
def test_the_key_is_sent_where_the_server_requires_one(stub, browser):
    stub.settings["keyRequired"] = True
    page = Page(browser, stub)
    page.one("key").send_keys("secret")
    page.put("a dog")
    page.shows("translation", "[de] a dog")
    assert stub.requests[-1]["api_key"] == "secret"


@pytest.mark.slow
def test_the_page_works_with_the_real_server_and_models(browser, tmp_path):
    recipe = recipe_text(283, "d_model: 12, encoder_layers: 1, decoder_layers: 1, num_heads: 2, feed_forward: 7, "
                         "max_positions: 31", "beam_size: 4, max_length_ratio: 1.0, safety_net: false")
    back = recipe.replace("{source: de, target: en}", "{source: en, target: de}", 1)
    tokenizers = trained_tokenizers(recipe)
    bundles = [save_random_model(tmp_path / name, text, tokenizers, 2, noise=0.3)
               for name, text in (("de_en", recipe), ("en_de", back))]
    models = Models.load(bundles, MachineOptions(precision="fp32"))
    with serving(models) as (url, _, _):
        page = Page(browser, SimpleNamespace(address=f"{url}/"))
        page.choose("source", "de")
        page.one("confidence").click()
        page.put("Ein Hund läuft.\n" + ATTACK)
        page.shows("translation", models.translate(Group("de", "en"), ["Ein Hund läuft."])[0][0].text)
        assert page.js("return document.querySelectorAll('#translation span').length")
        assert page.browser.find_elements("css selector", "#alternatives button")
        page.one("swap").click()
        until(lambda: page.js("return document.getElementById('target').value") == "de")
        assert not page.js("return window.attacked") and not page.one("message").is_displayed()
        (tmp_path / "text.txt").write_text("A dog runs.\n", encoding="utf-8")
        page.one("file").send_keys(str(tmp_path / "text.txt"))
        page.one("upload").click()
        until(lambda: page.one("download").is_displayed())
        answer = requests.get(page.one("download").get_property("href"), timeout=20)
        expected = models.translate(Group("en", "de"), ["A dog runs."])[0][0].text
        assert answer.content.decode() == f"{expected}\n"
    page.put("Hund")
    page.shows("message", "cannot be reached")
