"""DeepL's interface: parameters of texts, glossaries of clients, documents. DeepL's own client asks."""

import resource
import signal
import sqlite3
import threading
import time
from functools import partial

import deepl
import pytest
import requests
from deepl.api_data import MultilingualGlossaryDictionaryEntries as Entries
from dying import in_child
from served import EchoModels, serving, wait_until

from seq2seq.errors import UserError
from seq2seq.serve import deepl_documents, deepl_glossaries
from seq2seq.serve.api import Settings
from seq2seq.serve.deepl_glossaries import GlossaryStore
from seq2seq.serve.errors import ApiError
from seq2seq.serve.limits import Limits

DIRECTIONS = (("de", "en"), ("en", "de"), ("en", "fr"), ("de", "zh-Hant"))
PAIR = ("de", "en")


@pytest.fixture
def stored(tmp_path):
    """Server that stores glossaries: its URL, its models and its store."""
    store = GlossaryStore(tmp_path / "glossaries")
    with serving(EchoModels(DIRECTIONS), settings=Settings(glossaries=store)) as (url, _, models):
        yield url, models, store


@pytest.fixture
def client(stored):
    return deepl.DeepLClient("key", server_url=stored[0])


def translated(url, text, **parameters):
    """Return the translation of a text from German to English, or the error."""
    answer = requests.post(f"{url}/v2/translate", timeout=20, json={
        "text": [text], "source_lang": "DE", "target_lang": "EN", **parameters})
    if answer.status_code == 200:
        return answer.json()["translations"][0]["text"]
    assert answer.status_code == 400 and answer.json()["message"] == answer.json()["error"]
    return answer.json()["message"]


# Texts


@pytest.mark.parametrize(("parameters", "expected"), [
    ({}, "<a>en(eins <b>zwei</b> drei)</a><x>en(vier)</x>"),
    ({"splitting_tags": ["b"]}, "<a>en(eins) <b>en(zwei)</b> en(drei)</a><x>en(vier)</x>"),
    ({"splitting_tags": "q, b"}, "<a>en(eins) <b>en(zwei)</b> en(drei)</a><x>en(vier)</x>"),
    ({"ignore_tags": "x"}, "<a>en(eins <b>zwei</b> drei)</a><x>vier</x>"),
    ({"ignore_tags": ["q", "x"], "splitting_tags": []}, "<a>en(eins <b>zwei</b> drei)</a><x>vier</x>"),
    ({"outline_detection": "0", "splitting_tags": "a,x"}, "<a>en(eins <b>zwei</b> drei)</a><x>en(vier)</x>"),
    ({"outline_detection": True, "tag_handling_version": "v2"}, "<a>en(eins <b>zwei</b> drei)</a><x>en(vier)</x>")])
def test_elements_of_xml_are_treated_as_the_request_says(echo, parameters, expected):
    text = "<a>eins <b>zwei</b> drei</a><x>vier</x>"
    assert translated(echo, text, tag_handling="xml", **parameters) == expected
    form = {"text": text, "source_lang": "DE", "target_lang": "EN", "tag_handling": "xml", **parameters}
    answer = requests.post(f"{echo}/v2/translate", data=form, timeout=20)
    assert answer.json()["translations"][0]["text"] == expected


@pytest.mark.parametrize(("markup", "split", "text", "expected"), [
    ("", "0", "Eins. Zwei\ndrei\n", "en(Eins. Zwei drei)\n"), ("", 0, "Eins. Zwei", "en(Eins. Zwei)"),
    ("", "1", "Eins. Zwei\ndrei", "en(Eins.) en(Zwei)\nen(drei)"), ("", True, "Eins. Zwei", "en(Eins.) en(Zwei)"),
    ("", "nonewlines", "Eins. Zwei\ndrei", "en(Eins.) en(Zwei drei)"), ("", "nonewlines", " 12\n", " 12\n"),
    ("", None, "Eins. Zwei", "en(Eins.) en(Zwei)"),
    ("html", "0", "<p>Eins. Zwei</p>", "<p>en(Eins. Zwei)</p>"),
    ("html", "nonewlines", "<p>Eins. Zwei</p>", "<p>en(Eins.) en(Zwei)</p>"),
    ("xml", "0", "<p>Eins. Zwei</p>", "<p>en(Eins. Zwei)</p>"),
    ("xml", "1", "<p>Eins\nZwei</p>", "<p>en(Eins)\nen(Zwei)</p>")])
def test_a_request_says_where_sentences_end(echo, markup, split, text, expected):
    assert translated(echo, text, tag_handling=markup, split_sentences=split) == expected


@pytest.mark.parametrize(("parameters", "named"), [
    ({"formality": "more"}, "formality"), ({"formality": "less"}, "formality"), ({"model_type": "best"}, "model_type"),
    ({"style_id": "a"}, "style_id"), ({"custom_instructions": ["a"]}, "custom_instructions"),
    ({"translation_memory_id": "a"}, "translation_memory_id"), ({"split_sentences": "2"}, "split_sentences"),
    ({"split_sentences": []}, "split_sentences"), ({"ignore_tags": "x"}, "ignore_tags"),
    ({"splitting_tags": ["x"], "tag_handling": "html"}, "splitting_tags"),
    ({"non_splitting_tags": "a"}, "non_splitting_tags"),
    ({"outline_detection": 0}, "outline_detection"), ({"ignore_tags": [1], "tag_handling": "xml"}, "ignore_tags"),
    ({"preserve_formatting": "x"}, "preserve_formatting"), ({"tag_handling_version": "v9"}, "tag_handling_version"),
    ({"tag_handling": "xml"}, "text:1"), ({"glossary_ids": ["a", "b"]}, "only one glossary")])
def test_what_would_change_a_translation_and_is_not_supported_is_refused_by_name(echo, parameters, named):
    assert named in translated(echo, "<a", **parameters)


def test_what_changes_nothing_is_accepted(echo):
    assert translated(echo, "eins", formality="prefer_more", model_type="quality_optimized", context="Tiere",
                      show_billed_characters=True, preserve_formatting=True, unknown=1, ignore_tags=[],
                      outline_detection=True) == "en(eins)"


# Glossaries


def used_terms(models, *sentences):
    """Return the translations that the glossary of the last batch prescribes for the terms of some sentences."""
    glossary = models.batches[-1][0].options.glossary
    if glossary is None:
        return None
    return [found.term.translations for sentence in sentences for found in glossary.find(sentence)]


def test_a_glossary_is_created_listed_used_and_deleted(stored, client):
    url, models, _ = stored
    assert {(one.source_lang, one.target_lang) for one in client.get_glossary_languages()} == {
        ("de", "en"), ("en", "de"), ("en", "fr"), ("de", "zh")}
    entries = {"Hund": "hound", "#eins": "one", "€": "EUR", '"a"': "b"}
    glossary = client.create_glossary("Tiere", "DE", "EN-US", entries)
    assert (glossary.name, glossary.ready, glossary.source_lang, glossary.target_lang, glossary.entry_count) == (
        "Tiere", True, "DE", "EN", 4)
    assert abs(glossary.creation_time.timestamp() - time.time()) < 60
    assert client.get_glossary_entries(glossary) == entries
    assert client.get_glossary(glossary.glossary_id).name == "Tiere"
    assert [one.glossary_id for one in client.list_glossaries()] == [glossary.glossary_id]
    translation = client.translate_text("ein Hund", source_lang="DE", target_lang="EN-GB", glossary=glossary)
    assert translation.text == "en(ein Hund)" and used_terms(models, "zwei Hunde, #eins €") == [("hound",), ("one",)]
    assert translated(url, "ein Hund") == "en(ein Hund)" and used_terms(models, "Hund") is None
    assert translated(url, "ein Hund", glossary_ids=[glossary.glossary_id]) and used_terms(models, "Hund")
    assert "is not a glossary from de to zh-Hant" in translated(url, "Hund", target_lang="ZH-HANT",
                                                                glossary_id=glossary.glossary_id)
    client.delete_glossary(glossary)
    for use in (client.get_glossary, client.delete_glossary, client.get_glossary_entries):
        with pytest.raises(deepl.GlossaryNotFoundException):
            use(glossary.glossary_id)
    assert client.list_glossaries() == []


def test_a_glossary_may_come_as_csv(client):
    csv = '\ufeff"Haus, rot","a ""red"" house",de,en\r\nHund,dog\n'
    glossary = client.create_glossary_from_csv("csv", "DE", "EN", csv)
    assert client.get_glossary_entries(glossary) == {"Haus, rot": 'a "red" house', "Hund": "dog"}


def test_a_multilingual_glossary_is_created_edited_and_used(stored, client):
    url, models, _ = stored
    made = client.create_multilingual_glossary("Tiere", [Entries("DE", "EN", {"Hund": "hound"}),
                                                         Entries("EN", "FR", {"dog": "chien"})])

    def contents(source, target):
        return client.get_multilingual_glossary_entries(made, source, target).dictionaries[0].entries

    assert [(one.source_lang, one.target_lang, one.entry_count) for one in made.dictionaries] == [
        ("DE", "EN", 1), ("EN", "FR", 1)]
    assert contents("EN", "FR") == "dog\tchien"
    assert client.list_glossaries() == [] and len(client.list_multilingual_glossaries()) == 1
    for text, source, target, expected in (("Hund", "DE", "EN-US", "hound"), ("dog", "EN", "FR", "chien")):
        client.translate_text(text, source_lang=source, target_lang=target, glossary=made)
        assert used_terms(models, text) == [(expected,)]
    assert translated(url, "das ist ein deutscher Satz", source_lang="", glossary_id=made.glossary_id)
    assert used_terms(models, "Hund") == [("hound",)]
    assert client.update_multilingual_glossary_name(made, "neu").name == "neu"
    client.update_multilingual_glossary_dictionary(made, Entries("DE", "EN", {"Hund": "dog", "Katze": "cat"}))
    client.update_multilingual_glossary_dictionary(made, Entries("EN", "DE", {"cat": "Katze"}))
    assert contents("DE", "EN") == "Hund\tdog\nKatze\tcat" and contents("EN", "DE") == "cat\tKatze"
    replaced = client.replace_multilingual_glossary_dictionary(made, Entries("DE", "EN", {"Maus": "mouse"}))
    assert (replaced.source_lang, replaced.target_lang, replaced.entry_count) == ("DE", "EN", 1)
    assert contents("DE", "EN") == "Maus\tmouse"
    client.delete_multilingual_glossary_dictionary(made, source_lang="EN", target_lang="FR")
    with pytest.raises(deepl.GlossaryNotFoundException):
        contents("EN", "FR")
    client.delete_multilingual_glossary(made)
    with pytest.raises(deepl.GlossaryNotFoundException):
        client.get_multilingual_glossary(made.glossary_id)


def test_requests_of_libretranslate_s_interface_can_name_a_client_s_glossary(stored):
    url, models, _ = stored
    listed = requests.post(f"{url}/v3/glossaries", timeout=20, json={"name": "Tiere", "dictionaries": [
        {"source_lang": "de", "target_lang": "en", "entries": "Hund\thound", "entries_format": "tsv"}]}).json()
    server, mine = requests.get(f"{url}/glossaries", timeout=20).json()
    assert server == {"name": "terms", "source": "de", "target": "en"}
    assert mine == {"id": listed["glossary_id"], "name": "Tiere", "source": "de", "target": "en"}
    fields = {"q": "ein Hund", "source": "de", "target": "en", "glossary": mine["id"]}
    assert requests.post(f"{url}/translate", json=fields, timeout=20).status_code == 200
    assert used_terms(models, "ein Hund") == [("hound",)]
    assert requests.post(f"{url}/translate", json=fields | {"target": "fr"}, timeout=20).status_code == 400
    assert requests.post(f"{url}/translate", json=fields | {"glossary": "x"}, timeout=20).status_code == 404


def test_the_glossaries_of_a_key_are_listed_only_with_it(tmp_path):
    store = GlossaryStore(tmp_path)
    limits = Limits({"secret": None}, key_required=True)
    with serving(EchoModels(DIRECTIONS), limits, Settings(glossaries=store)) as (url, _, _):
        key = {"Authorization": "Bearer secret"}
        requests.post(f"{url}/v2/glossaries", timeout=20, headers=key, data={
            "name": "Tiere", "source_lang": "de", "target_lang": "en", "entries": "Hund\thound"})
        names = [[one["name"] for one in requests.get(f"{url}/glossaries", timeout=20, headers=headers).json()]
                 for headers in (key, {})]
        assert names == [["terms", "Tiere"], ["terms"]]


def test_dictionaries_may_come_as_fields_of_a_form(stored):
    # As `deepl-node` 1.28 sends them.
    fields = {"name": "Tiere"}
    for number, pair in enumerate((("de", "en"), ("en", "de"))):
        fields |= {f"dictionaries[{number}].source_lang": pair[0], f"dictionaries[{number}].target_lang": pair[1],
                   f"dictionaries[{number}].entries": "a\tb", f"dictionaries[{number}].entries_format": "tsv"}
    answer = requests.post(f"{stored[0]}/v3/glossaries", data=fields, timeout=20)
    assert answer.status_code == 201
    assert [(one["source_lang"], one["target_lang"]) for one in answer.json()["dictionaries"]] == [
        ("de", "en"), ("en", "de")]


def test_weblate_s_requests(stored):
    # As Weblate 5.14's class DeepLTranslation sends them.
    url, models, _ = stored

    def ask(method, path, status=200, **options):
        answer = requests.request(method, f"{url}/v2/{path}", timeout=20, **options, headers={
            "Referer": "http://a/", "Accept": "application/json; charset=utf-8",
            "Authorization": "DeepL-Auth-Key key"})
        assert answer.status_code == status, answer.text
        return answer.json() if answer.content else None

    assert {one["language"] for one in ask("get", "languages", params={"type": "source"})} == {"DE", "EN"}
    assert {one["language"] for one in ask("get", "languages", params={"type": "target"})} == {
        "DE", "EN", "FR", "ZH-HANT"}
    assert {"source_lang": "de", "target_lang": "en"} in ask("get", "glossary-language-pairs")["supported_languages"]
    new = {"name": "weblate:1:DE:EN:7", "source_lang": "DE", "target_lang": "EN", "entries": "Hund\thound",
           "entries_format": "tsv"}
    first = ask("post", "glossaries", 201, json=new)["glossary_id"]
    assert ask("post", "glossaries", 201, json=new | {"entries": "Hund\tdog"})["glossary_id"] == first
    assert {one["name"]: one["glossary_id"] for one in ask("get", "glossaries")["glossaries"]} == {new["name"]: first}
    asked = {"text": ['<x id="4"></x> Hunde', "a &lt; b"], "source_lang": "DE", "target_lang": "EN",
             "formality": "default", "tag_handling": "xml", "ignore_tags": ["x"], "context": "Tiere",
             "glossary_id": first, "model_type": "prefer_quality_optimized"}
    answer = ask("post", "translate", json=asked)
    assert [one["text"] for one in answer["translations"]] == ['<x id="4"></x> en(Hunde)', "en(a &lt; b)"]
    assert used_terms(models, "Hund") == [("dog",)]
    ask("delete", f"glossaries/{first}", 204)
    ask("delete", f"glossaries/{first}", 404)


def test_glossaries_survive_a_restart_without_the_names_of_their_clients(tmp_path):
    store = GlossaryStore(tmp_path)
    kept = store.create("key a", "Tiere", {PAIR: {"Hund": "dog"}, ("en", "de"): {"cat": "Katze"}})
    gone = store.create("key a", "x", {PAIR: {"a": "b"}})
    changed = store.update("key a", kept.glossary_id, {PAIR: {"Hund": "hound"}})
    store.delete("key a", gone.glossary_id)
    again = GlossaryStore(tmp_path)
    assert again.of("key a") == [changed] == store.of("key a") and changed.name == "Tiere"
    assert [again.entries(one) for one in changed.dictionaries] == [{"Hund": "hound"}, {"cat": "Katze"}]
    with pytest.raises(ApiError, match="changed or deleted"):
        again.entries(kept.dictionaries[0])
    file, = tmp_path.iterdir()
    assert b"Katze" in file.read_bytes() and b"key a" not in file.read_bytes()


def test_a_process_killed_during_a_change_leaves_the_old_glossary_or_the_new_one(tmp_path):
    """The system kills the process when it writes beyond a size of a file: of the journal, or of the glossaries."""
    old, new = ({PAIR: terms, ("en", "de"): terms} for terms in (
        {"Hund": "d" * 1000}, {f"Wort {number}": "w" * 1000 for number in range(100)}))
    store, codes, unfinished = GlossaryStore(tmp_path), [], 0
    glossary = store.create("a", "Tiere", old)

    def change(size):
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        GlossaryStore(tmp_path).update("a", glossary.glossary_id, new)

    for size in (300_000, 200_000, 100_000, 50_000, 10_000, 3_000, 500):
        store.update("a", glossary.glossary_id, old)
        codes.append(in_child(partial(change, size)))
        unfinished += (tmp_path / "glossaries.sqlite-journal").exists()
        again = GlossaryStore(tmp_path)
        found = {one.languages: again.entries(one) for one in again.get("a", glossary.glossary_id).dictionaries}
        assert found == (old if codes[-1] else new)
    assert codes == [0] + [-signal.SIGXFSZ] * 6 and unfinished >= 4


def test_a_full_disk_leaves_the_old_glossary(tmp_path, monkeypatch):
    store = GlossaryStore(tmp_path)
    old = store.create("a", "Tiere", {PAIR: {"Hund": "dog"}})
    connect = sqlite3.connect

    def full(*arguments, **options):
        connection = connect(*arguments, **options)
        connection.execute("PRAGMA max_page_count = 1")                         # no page more than there are
        return connection

    with monkeypatch.context() as patched:
        patched.setattr(deepl_glossaries.sqlite3, "connect", full)
        large = {PAIR: {f"{number}": "x" * 1000 for number in range(100)}}
        for change in (lambda: store.update("a", old.glossary_id, large), lambda: store.create("a", "x", large)):
            with pytest.raises(ApiError, match="disk is full") as error:
                change()
            assert error.value.status == 503
    assert store.of("a") == [old] and store.entries(old.dictionaries[0]) == {"Hund": "dog"}


@pytest.mark.parametrize("contents", [b"no database" * 100, None])
def test_a_damaged_file_is_refused_at_the_start(tmp_path, contents):
    store = GlossaryStore(tmp_path)
    store.create("a", "Tiere", {PAIR: {f"{number}": "x" * 1000 for number in range(100)}})
    path = tmp_path / "glossaries.sqlite"
    whole = path.read_bytes()
    path.write_bytes(contents or whole[:4096] + b"x" * 4096 + whole[8192:])
    with pytest.raises(UserError, match="is damaged"):
        GlossaryStore(tmp_path)
    with pytest.raises(ApiError) as error:
        store.create("a", "x", {PAIR: {"a": "b"}})
    assert error.value.status == 503


def test_a_key_sees_only_its_own_glossaries(tmp_path, monkeypatch):
    monkeypatch.setattr("seq2seq.serve.limits.WRONG_KEY_SECONDS", 0)
    store = GlossaryStore(tmp_path)
    limits = Limits({"one": None, "two": None}, key_required=True)
    with serving(EchoModels(DIRECTIONS), limits, Settings(glossaries=store)) as (url, _, _):
        one, two = (deepl.DeepLClient(key, server_url=url) for key in ("one", "two"))
        glossary = one.create_glossary("Tiere", "DE", "EN", {"Hund": "dog"})
        assert two.list_glossaries() == [] and len(one.list_glossaries()) == 1
        for use in (two.get_glossary, two.delete_glossary, two.get_glossary_entries, two.get_multilingual_glossary):
            with pytest.raises(deepl.GlossaryNotFoundException):
                use(glossary.glossary_id)
        with pytest.raises(deepl.DeepLException, match="no such glossary"):
            two.translate_text("a", source_lang="DE", target_lang="EN-US", glossary=glossary.glossary_id)
        for method, path in (("get", "/v2/glossaries"), ("get", "/v3/glossaries"), ("get", "/v2/usage"),
                             ("delete", f"/v2/glossaries/{glossary.glossary_id}"), ("post", "/v2/document/1")):
            for key in ("", "wrong"):
                headers = {"Authorization": f"DeepL-Auth-Key {key}"} if key else {}
                answer = requests.request(method, f"{url}{path}", headers=headers, timeout=20)
                assert answer.status_code == 403 and answer.json()["message"]


@pytest.mark.parametrize(("entries", "format", "named"), [
    ("a", "tsv", "line 1: 1 fields"), ("a\tb\tc", "tsv", "line 1: 3 fields"), ("a\tb\n\n\t", "tsv", None),
    ("a\tb\na\tc", "tsv", "line 2: the term 'a' is there twice"), ("a\t", "tsv", "line 1: an empty field"),
    (" \n", "tsv", "there are no entries"), ("a\u2028a\tb", "tsv", "line 1: a control character"),
    ("a\tb\x9f", "tsv", "line 1: a control character"), (f"{'é' * 513}\tb", "tsv", "more than 1,024 bytes"),
    ('"a,b', "csv", "line 1: "), ("a,b,fr,en", "csv", "line 1: the languages"), ("a,b,c", "csv", "line 1: 3 fields"),
    ("a\tb", "xlsx", "entries_format xlsx")])
def test_entries_that_are_no_terms_are_refused_with_their_line(stored, entries, format, named):
    answer = requests.post(f"{stored[0]}/v2/glossaries", timeout=20, json={
        "name": "a", "source_lang": "DE", "target_lang": "EN", "entries": entries, "entries_format": format})
    assert answer.status_code == (201 if named is None else 400) and (named or "") in answer.text, answer.text


@pytest.mark.parametrize("changed", [
    {"name": ""}, {"name": "a" * 1025}, {"name": "a\nb"}, {"name": 5}, {"source_lang": "xx"}, {"target_lang": ["EN"]},
    {"source_lang": "FR"}, {"source_lang": "../../etc"}, {"entries": {"a": "b"}}, {"entries": None}])
def test_a_malformed_glossary_is_refused(stored, changed):
    glossary = {"name": "a", "source_lang": "DE", "target_lang": "EN", "entries": "a\tb", **changed}
    answer = requests.post(f"{stored[0]}/v2/glossaries", json=glossary, timeout=20)
    assert answer.status_code == 400 and answer.json()["message"] == answer.json()["error"]
    answer = requests.post(f"{stored[0]}/v3/glossaries", timeout=20, json={
        "name": glossary.pop("name"), "dictionaries": [glossary]})
    assert answer.status_code == 400


@pytest.mark.parametrize("dictionaries", [None, [], {}, "a", [1], [{}], [{"source_lang": "de", "target_lang": "en"}]])
def test_malformed_dictionaries_are_refused(stored, dictionaries):
    answer = requests.post(f"{stored[0]}/v3/glossaries", json={"name": "a", "dictionaries": dictionaries}, timeout=20)
    assert answer.status_code == 400, answer.text


@pytest.mark.parametrize("name", ["..", "%2e%2e%2fx", ".lock", "x" * 500, "\0"])
def test_no_identifier_of_a_client_becomes_a_path(stored, name):
    for path in ("/v2/glossaries/{}", "/v2/glossaries/{}/entries", "/v3/glossaries/{}"):
        assert requests.get(stored[0] + path.format(name), timeout=20).status_code in (404, 405)


def test_a_client_fills_neither_the_disk_nor_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(deepl_glossaries, "CLIENT_GLOSSARIES", 3)
    monkeypatch.setattr(deepl_glossaries, "MAX_GLOSSARIES", 5)
    monkeypatch.setattr(deepl_glossaries, "MAX_ENTRIES", 100)
    store = GlossaryStore(tmp_path)
    for _ in range(3):
        last = store.create("a", "x", {PAIR: {"Hund": "dog"}})
    for client, status in (("a", 456), ("b", None), ("c", None), ("d", 456)):
        try:
            store.create(client, "x", {PAIR: {"Hund": "dog"}})
            found = None
        except ApiError as error:
            found = error.status
        assert found == status, client
    with pytest.raises(ApiError) as error:
        store.update("a", last.glossary_id, {PAIR: {f"a{number}": "b" for number in range(101)}})
    assert error.value.status == 413
    monkeypatch.setattr(deepl_glossaries, "CLIENT_BYTES", 3 * 8192 + 30)
    with pytest.raises(ApiError) as error:
        store.update("a", last.glossary_id, {PAIR: {"Hund": "d" * 100}})
    assert error.value.status == 456 and store.of("a")[-1] == last
    monkeypatch.setattr(deepl_glossaries, "MAX_ENTRIES", 1_000)
    with pytest.raises(ApiError, match="the same stem"):
        store.update("b", store.of("b")[0].glossary_id, {PAIR: {f"hund{number:03}": "b" for number in range(501)}})
    monkeypatch.setattr(deepl_glossaries, "LOADED_ENTRIES", 1)
    loaded = [store.terms(one.dictionaries[0], PAIR) for one in store.of("a")]
    assert store.terms(store.of("a")[-1].dictionaries[0], PAIR) is loaded[-1] and len(store._loaded) == 1


def test_a_server_without_a_directory_stores_no_glossaries(echo):
    assert requests.get(f"{echo}/v2/glossary-language-pairs", timeout=20).json() == {"supported_languages": []}
    new = {"name": "a", "source_lang": "DE", "target_lang": "EN", "entries": "a\tb"}
    answer = requests.post(f"{echo}/v2/glossaries", json=new, timeout=20)
    assert answer.status_code == 403 and "does not store glossaries" in answer.json()["message"]
    assert requests.get(f"{echo}/v2/glossaries", timeout=20).json() == {"glossaries": []}
    assert translated(echo, "eins", glossary_id="terms") == "en(eins)"           # of --glossary


def test_several_threads_and_servers_change_a_glossary_at_the_same_time(tmp_path):
    stores = GlossaryStore(tmp_path), GlossaryStore(tmp_path)
    glossary = stores[0].create("a", "x", {PAIR: {"Hund": "dog"}})

    def change(thread):
        for number in range(5):
            stores[thread % 2].update("a", glossary.glossary_id, {PAIR: {f"{'abcd'[thread]}{number}": "x"}}, adds=True)

    threads = [threading.Thread(target=change, args=[number]) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(stores[1].entries(stores[1].of("a")[0].dictionaries[0])) == 21


# Documents


def upload(client, name, contents, **options):
    handle = client.translate_document_upload(contents, filename=name, source_lang=options.pop("source_lang", "DE"),
                                              target_lang="EN-US", **options)
    wait_until(lambda: client.translate_document_get_status(handle).status.value != "translating")
    return handle, client.translate_document_get_status(handle)


def test_a_document_is_translated_in_the_background_and_fetched_once(stored, client):
    url, models, _ = stored
    glossary = client.create_glossary("Tiere", "DE", "EN", {"Hund": "dog"})
    models.gate.clear()
    handle = client.translate_document_upload("ein Hünd\n".encode("utf-16"), filename="größe.txt", source_lang="DE",
                                              target_lang="EN-US", glossary=glossary)
    assert client.translate_document_get_status(handle).status.value == "translating"
    answer = requests.post(f"{url}/v2/document/{handle.document_id}/result", timeout=20,
                           json={"document_key": handle.document_key})
    assert answer.status_code == 503 and answer.json()["message"]
    models.gate.set()
    wait_until(lambda: client.translate_document_get_status(handle).status.value == "done")
    assert client.translate_document_get_status(handle).billed_characters == 8
    assert used_terms(models, "Hund") == [("dog",)]
    for wrong in ({"document_key": "0"}, {"document_key": handle.document_key[:-1]}):
        assert requests.post(f"{url}/v2/document/{handle.document_id}", json=wrong, timeout=20).status_code == 404
    fetched = client.translate_document_download(handle)
    assert fetched.content.decode("utf-16") == "en(ein Hünd)\n"
    assert fetched.headers["Content-Disposition"].endswith("filename*=UTF-8''gr%C3%B6%C3%9Fe_en.txt")
    wait_until(lambda: requests.post(f"{url}/v2/document/{handle.document_id}/result", timeout=20,
                                     json={"document_key": handle.document_key}).status_code == 404)


def test_a_document_with_an_error_says_why(stored, client):
    handle, status = upload(client, "a.json", b'{"a": \n}')
    assert status.status.value == "error" and "a.json:2" in status.error_message
    with pytest.raises(deepl.DeepLException, match="Bad request"):
        client.translate_document_download(handle)
    _, status = upload(client, "a.txt", b"Fehler")                              # the model fails
    assert status.status.value == "error" and status.error_message == "internal error"
    for name, options in (("a.pdf", {}), ("a.txt", {"output_format": "docx"}), ("a.txt", {"source_lang": "XX"}),
                          ("a.txt", {"formality": "more"}), ("a.txt", {"glossary": "x"})):
        with pytest.raises(deepl.DeepLException):
            upload(client, name, b"a", **options)


def test_documents_that_are_being_translated_are_bounded_and_translated_ones_expire(monkeypatch):
    monkeypatch.setattr(deepl_documents, "CLIENT_JOBS", 2)
    models = EchoModels()
    models.gate.clear()
    with serving(models) as (url, _, _):
        def upload():
            return requests.post(f"{url}/v2/document", files={"file": ("a.txt", b"eins")}, timeout=20,
                                 data={"source_lang": "DE", "target_lang": "EN"})

        def status(answer):
            return requests.post(f"{url}/v2/document/{answer.json()['document_id']}", timeout=20,
                                 json={"document_key": answer.json()["document_key"]})

        first, second, third = upload(), upload(), upload()
        assert (first.status_code, second.status_code, third.status_code) == (200, 200, 429)
        assert third.headers["Retry-After"] and "too many documents" in third.json()["message"]
        models.gate.set()
        wait_until(lambda: status(second).json()["status"] == status(first).json()["status"] == "done")
        monkeypatch.setattr("seq2seq.serve.files.LIFETIME_SECONDS", 0)
        third = upload()
        assert third.status_code == 200
        wait_until(lambda: status(third).status_code == 404)                    # at once, because its time is 0
        assert status(second).status_code == 200


def test_errors_have_deepl_s_form_and_there_is_no_quota(echo):
    assert requests.get(f"{echo}/v2/usage", timeout=20).json() == {
        "character_count": 0, "character_limit": 1_000_000_000_000}
    for method, path, status in (("get", "/v2/nothing", 404), ("put", "/v2/translate", 405), ("post", "/v3/x", 404)):
        answer = requests.request(method, f"{echo}{path}", timeout=20)
        assert answer.status_code == status and answer.json()["message"] == answer.json()["error"]
    assert list(requests.get(f"{echo}/nothing", timeout=20).json()) == ["error"]
