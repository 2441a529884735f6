"""Apple's .strings, .stringsdict and .xcstrings: escapes, comments, and plural categories of the target language."""

import json
import plistlib
from dataclasses import replace

import pytest
from unchanged_documents import texts, unchanged, upper

from seq2seq.formats.apple_strings import AppleStringsDocument
from seq2seq.formats.block import DocumentError
from seq2seq.formats.placeholders import Placeholders
from seq2seq.formats.registry import parse
from seq2seq.formats.stringsdict import StringsDictDocument
from seq2seq.formats.xcstrings import XcstringsDocument


def test_characters_are_escaped_as_in_the_document():
    document = AppleStringsDocument(rb'"a" = "Gr\U00fcn \"x\" \\ \U263a\n\101";')
    assert texts(document) == ['Grün "x" \\ ☺\nA']
    assert upper(document) == rb'"a" = "GR\U00dcN \"X\" \\ \U263a\nA";'
    assert upper(AppleStringsDocument('"a" = "Grün";'.encode("utf-16"))).decode("utf-16") == '"a" = "GRÜN";'
    new = replace(document.blocks[0], text="😀")
    assert document.render([new], "de") == rb'"a" = "\Ud83d\Ude00";'


def test_comments_are_no_entries_and_keys_are_no_texts():
    data = b'/* "a" = "one two"; */ // "b" = "one two";\n"one two" /* = "x" */ = "three four" // ;\n ; c = d;'
    document = AppleStringsDocument(data)
    assert [(block.text, block.place) for block in document.blocks] == [("three four", "line 2"), ("d", "line 3")]
    assert upper(document) == data.replace(b"three four", b"THREE FOUR").replace(b"= d", b'= "D"')


@pytest.mark.parametrize(("data", "message"), [
    (b'"a" = "b"\n"c" = "d";', "line 1"), (b'"a" = "b";\n"c" = "d;', "line 2"), (b"bplist00x", "plutil"),
    (b'<?xml version="1.0"?><plist/>', "stringsdict"), (b'/* open\n"a" = "b";', "line 1"), (
        b'"a" = {b = "c"; };', "line 1")])
def test_strings_that_cannot_be_read_are_refused(data, message):
    with pytest.raises(DocumentError, match=message):
        AppleStringsDocument(data)


DOGS = """<plist version="1.0"><dict>
  <key>dogs</key>
  <dict>
    <key>NSStringLocalizedFormatKey</key><string>%#@dogs@</string>
    <key>dogs</key>
    <dict>
      <key>NSStringFormatSpecTypeKey</key>
      <string>NSStringPluralRuleType</string>
      <key>NSStringFormatValueTypeKey</key>
      <string>d</string>
      <key>zero</key>
      <string>no dogs</string>
      <key>one</key>
      <string>{}</string>
      <key>other</key>
      <string>%d dogs</string>
    </dict>
  </dict>
</dict></plist>
"""


@pytest.mark.parametrize(("one", "language", "expected"), [
    ("%d dog", "de", {"one": "%D DOG"}), ("a dog", "de", {"one": "A DOG"}), ("%d dog", "ja", {}),
    ("%d dog", "ru", {"one": "%D DOG", "few": "%D DOGS", "many": "%D DOGS"}),
    ("a dog", "ru", {"one": "%D DOGS", "few": "%D DOGS", "many": "%D DOGS"}),           # 21 dogs have this form, too
    ("a dog", "fr", {"one": "%D DOGS", "many": "%D DOGS"}),                             # 0 dogs have this form, too
    ("%d dog", "ar", {"one": "%D DOG", "two": "%D DOGS", "few": "%D DOGS", "many": "%D DOGS"}), ("%d dog", "qqq", {})])
def test_a_plural_rule_gets_the_categories_of_the_target_language(one, language, expected):
    data = DOGS.format(one).encode()
    document = StringsDictDocument(data)
    assert texts(document) == ["no dogs", one, "%d dogs"]
    assert unchanged(document) == data
    rule = plistlib.loads(upper(document, language))["dogs"]["dogs"]
    kinds = {"NSStringFormatSpecTypeKey": "NSStringPluralRuleType", "NSStringFormatValueTypeKey": "d"}
    assert rule == kinds | {"zero": "NO DOGS", "other": "%D DOGS"} | expected


@pytest.mark.parametrize(("text", "kept"), [
    ("You see %#@dogs@ and %2$#@cats@.", ["%#@dogs@", "%2$#@cats@"]), ("%arg dogs of %1$@", ["%arg", "%1$@"])])
def test_variables_of_plural_rules_are_placeholders(text, kept):
    assert sorted(Placeholders().counts(text)) == sorted(kept)


def unit(text, state="translated"):
    return {"stringUnit": {"state": state, "value": text}}


def catalogue(strings, **more):
    return json.dumps({"sourceLanguage": "en", "strings": strings, "version": "1.0", **more}, indent=2).encode()


def translated(strings, language="de", source="en"):
    data = catalogue(strings)
    document = parse(data, "xcstrings", "name", source, language)
    assert unchanged(document) == data
    return texts(document), json.loads(upper(document, language))["strings"]


def test_variations_and_substitutions_of_a_catalogue_get_the_categories_of_the_target_language():
    plural = {"plural": {"one": unit("%arg dog"), "other": unit("%arg dogs")}}
    strings = {"Look": {"localizations": {"en": unit("See %#@dogs@") | {
        "substitutions": {"dogs": {"argNum": 1, "formatSpecifier": "lld", "variations": plural}}}}},
        "Tap": {"localizations": {"en": {"variations": {"device": {"mac": {"variations": plural}, "other": unit(
            "Tap it")}}}}}}
    found, result = translated(strings, "pl")
    assert found == ["See %#@dogs@", "%arg dog", "%arg dogs", "%arg dog", "%arg dogs", "Tap it"]
    expected = {"plural": {"one": unit("%ARG DOG", "needs_review"), **{
        category: unit("%ARG DOGS", "needs_review") for category in ("few", "many", "other")}}}
    polish = {key: value["localizations"]["pl"] for key, value in result.items()}
    assert polish == {
        "Look": unit("SEE %#@DOGS@", "needs_review") | {
            "substitutions": {"dogs": {"argNum": 1, "formatSpecifier": "lld", "variations": expected}}},
        "Tap": {"variations": {"device": {"mac": {"variations": expected}, "other": unit("TAP IT", "needs_review")}}}}


def test_a_value_that_is_no_string_stays():
    plural = {"plural": {"one": unit(0), "other": unit("%d dogs")}}
    _, result = translated({"Dogs": {"localizations": {"en": {"variations": plural}}}})
    assert result["Dogs"]["localizations"]["de"] == {"variations": {"plural": {
        "one": unit(0, "needs_review"), "other": unit("%D DOGS", "needs_review")}}}


@pytest.mark.parametrize(("string", "found"), [
    ({}, True), ({"localizations": {}}, True), ({"localizations": {"fr": unit("x")}}, True),
    ({"shouldTranslate": False}, False), ({"shouldTranslate": True}, True),
    ({"localizations": {"de": unit("Ein Hund")}}, False), ({"localizations": {"de": unit("x", "needs_review")}}, False),
    ({"localizations": {"de": unit("", "new")}}, True), ({"localizations": {"de-AT": unit("Ein Hund")}}, True)])
def test_strings_without_a_translation_are_translated(string, found):
    assert translated({"A dog": string})[0] == ["A dog"] * found


def test_the_key_of_a_catalogue_is_the_text_if_the_source_language_has_none():
    found, result = translated({"A dog": {}, "menu.title": {"localizations": {"en": unit("A cat")}}, "%@ %lld": {},
                                "menu.name": {"extractionState": "manual"}})
    assert found == ["A dog", "A cat"]
    assert result["menu.title"]["localizations"] == {"de": unit("A CAT", "needs_review"), "en": unit("A cat")}
    assert result["menu.name"] == {"extractionState": "manual"}


def test_the_code_of_the_target_language_is_that_of_the_catalogue():
    strings = {"A dog": {}, "A cat": {"localizations": {"zh-Hans": unit("猫")}}}
    document = parse(catalogue(strings), "xcstrings", "name", "en", "zh")
    assert [*json.loads(upper(document, "zh"))["strings"]["A dog"]["localizations"]] == ["zh-Hans"]


@pytest.mark.parametrize(("data", "message"), [
    (b'{"strings": {}}', "sourceLanguage"), (b'{"sourceLanguage": "en"}', "strings"), (b'{"a": }', "name:1, column 7"),
    (b"[1]", "catalogue"), (catalogue({}).replace(b'"en"', b'"fr"'), "language fr, not en")])
def test_other_json_is_no_catalogue(data, message):
    with pytest.raises(DocumentError, match=message):
        parse(data, "xcstrings", "name", "en", "de")


def test_a_catalogue_without_line_ends_stays_on_one_line():
    data = b'{"sourceLanguage":"en","strings":{"A dog":{},"A cat":{"comment":"x"}}}'
    result = upper(XcstringsDocument(data, "en", "de"))
    assert b"\n" not in result
    assert {key: value["localizations"] for key, value in json.loads(result)["strings"].items()} == {
        "A dog": {"de": unit("A DOG", "needs_review")}, "A cat": {"de": unit("A CAT", "needs_review")}}
