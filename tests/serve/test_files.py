"""Translated files: uploads of any name and content, unguessable names, deletion."""

import itertools
import time
from urllib.parse import unquote

import pytest
import requests
from served import serving

from seq2seq.serve import files
from seq2seq.serve.api import Settings
from seq2seq.serve.errors import ApiError
from seq2seq.serve.files import FileStore, StoredFile, translated_name

KEYS = map(str, itertools.count())


def upload(url, name, contents, **parameters):
    fields = {"source": "de", "target": "en", **parameters}
    return requests.post(f"{url}/translate_file", data=fields, files={"file": (name, contents)}, timeout=20)


def test_a_file_is_translated_and_fetched_once(echo):
    answer = upload(echo, "letter.txt", b"ein Hund\r\n\n zwei\n")
    assert answer.status_code == 200 and answer.headers["X-Translation-Path"] == "de,en"
    address = answer.json()["translatedFileUrl"]
    assert address.startswith(f"{echo}/download_file/") and address.endswith(".txt") and len(address) > 80
    assert requests.head(address, timeout=20).status_code == 200
    fetched = requests.get(address, timeout=20)
    assert fetched.content == b"en(ein Hund)\r\n\n en(zwei)\n"
    assert fetched.headers["Content-Disposition"] == 'attachment; filename="letter_en.txt"'
    assert fetched.headers["X-Content-Type-Options"] == "nosniff"
    deadline = time.monotonic() + 10                                            # it is deleted after its delivery
    while (status := requests.get(address, timeout=20).status_code) != 404:
        assert status == 200 and time.monotonic() < deadline


def test_parameters_of_an_upload_may_be_in_the_query_string(echo):
    answer = requests.post(f"{echo}/translate_file?source=de&target=en", files={"file": ("a.txt", b"a")}, timeout=20)
    assert requests.get(answer.json()["translatedFileUrl"], timeout=20).content == b"en(a)"


def test_a_byte_order_mark_is_removed(echo):
    address = upload(echo, "a.txt", b"\xef\xbb\xbfeins").json()["translatedFileUrl"]
    assert requests.get(address, timeout=20).content == b"en(eins)"


@pytest.mark.parametrize(("name", "contents", "translation"), [
    ("a.txt", "größe\n", "en(größe)\n"), ("a.md", "# größe\n", "# en(größe)\n"),
    ("a.json", '{"a": "größe"}', '{"a": "en(größe)"}'),
    ("a.srt", "1\n00:00:01,000 --> 00:00:02,000\ngröße\n", "1\n00:00:01,000 --> 00:00:02,000\nen(größe)\n"),
    ("a.properties", "a=größe\n", "a=en(größe)\n"), ("a.html", "<p>größe</p>", "<p>en(größe)</p>"),
    ("strings.xml", '<resources><string name="a">größe</string></resources>',
     '<resources><string name="a">en(größe)</string></resources>')])
def test_text_in_any_unicode_encoding_is_read_after_its_mark_and_refused_without(echo, name, contents, translation):
    for encoding in ("utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"):
        address = upload(echo, name, f"\ufeff{contents}".encode(encoding)).json()["translatedFileUrl"]
        fetched = requests.get(address, timeout=20)
        assert fetched.content == f"\ufeff{translation}".encode(encoding)
        assert "utf-8" not in fetched.headers["Content-Type"]
        answer = upload(echo, name, contents.encode(encoding))
        assert answer.status_code == 400 and f"{name}:1: a byte of value 0" in answer.json()["error"]


@pytest.mark.parametrize(("name", "quoted"), [
    ("größe.txt", 'filename="gr__e_en.txt"; filename*=UTF-8\'\'gr%C3%B6%C3%9Fe_en.txt'),
    ("日本.md", "filename=\"___en.md\"; filename*=UTF-8''%E6%97%A5%E6%9C%AC_en.md"),
    ("a b.txt", 'filename="a b_en.txt"'),
    ("é.TXT", "filename=\"__en.txt\"; filename*=UTF-8''%C3%A9_en.txt"),
    ("e\u0301.txt", "filename=\"__en.txt\"; filename*=UTF-8''%C3%A9_en.txt"),
    ("की.txt", "filename=\"___en.txt\"; filename*=UTF-8''%E0%A4%95%E0%A5%80_en.txt")])
def test_names_of_downloads_that_are_not_ascii(echo, name, quoted):
    fetched = requests.get(upload(echo, name, b"eins").json()["translatedFileUrl"], timeout=20)
    assert fetched.headers["Content-Disposition"] == f"attachment; {quoted}"


@pytest.mark.parametrize(("name", "contents"), [
    ("a.pdf", b"%PDF"), ("a", b"a"), (".txt", b"a"), ("a.txt", b"caf\xe9"), ("a.json", b'{"a": \n}')])
def test_other_files_are_refused(echo, name, contents):
    assert upload(echo, name, contents).status_code == 400


@pytest.mark.parametrize("name", ["../../etc/passwd.txt", "..\\..\\a.txt", "/etc/a.txt", "a\x00b.txt", "a\"; b.txt",
                                  "é" * 300 + ".txt", "%2e%2e%2fa.txt", "a\r\nSet-Cookie: b.txt"])
def test_names_never_become_paths_or_headers(echo, name):
    answer = upload(echo, name, b"eins")
    if answer.status_code == 400:
        return
    fetched = requests.get(answer.json()["translatedFileUrl"], timeout=20)
    given, _, encoded = fetched.headers["Content-Disposition"].partition("; filename*=UTF-8''")
    assert fetched.content == b"en(eins)" and "Set-Cookie" not in fetched.headers
    for one in (given.removeprefix('attachment; filename="').removesuffix('"'), unquote(encoded) or "_en.txt"):
        assert one.endswith("_en.txt") and not set(one) & set('/\\"\r\n\0') and len(one) < 100


@pytest.mark.parametrize("path", ["x.txt", "..%2f..%2fetc%2fpasswd", "../../../etc/passwd", "%00", ""])
def test_other_files_cannot_be_fetched(echo, path):
    answer = requests.get(f"{echo}/download_file/{path}", timeout=20)
    assert answer.status_code == 404 and list(answer.json()) == ["error"]


def test_large_files_are_refused_and_files_below_the_limit_are_translated():
    with serving(settings=Settings(max_request_bytes=20_000, character_limit=15_000)) as (url, _, _):
        assert upload(url, "a.txt", b"x" * 30_000).status_code == 413
        assert upload(url, "a.txt", b"x" * 15_001).status_code == 400
        address = upload(url, "a.txt", b"eins zwei\n" * 1_000).json()["translatedFileUrl"]
        assert requests.get(address, timeout=20).content == b"en(eins zwei)\n" * 1_000


def add(store, contents, client):
    key = next(KEYS)
    store.add(StoredFile(client, "a.txt", contents), key)
    return key


def test_files_expire_and_are_bounded(monkeypatch):
    now = [0.0]
    store = FileStore(lambda: now[0])
    key = add(store, b"abc", "a")
    assert store.get(key).contents == b"abc" and add(store, b"abc", "a") != key
    now[0] = files.LIFETIME_SECONDS
    assert store.get(key) is None
    monkeypatch.setattr(files, "MAX_BYTES", files.FILE_BYTES + 2)
    with pytest.raises(ApiError, match="larger than 2 bytes"):
        add(store, b"abc", "a")


def test_a_client_s_new_files_replace_its_own_old_ones_and_never_those_of_others(monkeypatch):
    monkeypatch.setattr(files, "FILE_BYTES", 1)
    monkeypatch.setattr(files, "MAX_BYTES", 20)
    monkeypatch.setattr(files, "CLIENT_SHARE", 5)
    store = FileStore()
    other = add(store, b"12", "b")
    mine = [add(store, b"1", "a") for _ in range(7)]
    assert [store.get(key) is not None for key in mine] == [False] * 5 + [True] * 2 and store.get(other)
    large = add(store, b"123456789", "a")                                       # alone, it may exceed the share
    assert store.get(large) and not any(map(store.get, mine)) and store.get(other)


def test_if_the_store_is_full_the_files_of_the_client_with_most_bytes_give_way(monkeypatch):
    monkeypatch.setattr(files, "FILE_BYTES", 1)
    monkeypatch.setattr(files, "MAX_BYTES", 17)
    monkeypatch.setattr(files, "CLIENT_SHARE", 11)
    store = FileStore()
    small = add(store, b"1", "a")
    oldest, older = add(store, b"1234", "b"), add(store, b"1234", "b")
    third = add(store, b"12", "c")
    fourth = add(store, b"1234", "d")
    assert store.get(oldest) is None and all(map(store.get, (small, older, third, fourth)))
    for name in "efghijkl":                                                     # many clients do not keep one out
        assert store.get(add(store, b"1234", name))


@pytest.mark.parametrize(("name", "expected"), [("a b.txt", "a b_en.txt"), ("../.txt", "txt_en"),
                                                ("x.TXT", "x_en.txt"), ("...txt", "translation_en.txt")])
def test_names_of_translations(name, expected):
    assert translated_name(name, "en") == expected
