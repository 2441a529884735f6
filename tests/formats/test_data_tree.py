"""JSON and YAML: strings that are text in catalogues, in documents with a schema, and in those of several languages."""

import json

import pytest
from ruamel.yaml import YAML

from seq2seq.documents.divided_document import DividedDocument
from seq2seq.errors import UserError
from seq2seq.formats.block import DocumentError, KeyNames
from seq2seq.formats.registry import parse

OPENAPI = """openapi: 3.0.3
info:
  title: Pet store
  version: 1.0.0
tags: [pets]
paths:
  /pets:
    get:
      summary: List all pets
      operationId: list_pets
      parameters:
        - name: limit
          in: query
          description: How many pets
          required: true
          schema: {type: string, format: date, enum: [available, sold], default: available}
      responses:
        '200':
          description: OK
          content:
            application/json:
              schema: {$ref: '#/components/schemas/Pet'}
              example: {title: A red cat, text: two}
components:
  schemas:
    Pet:
      type: object
      required: [id, title, description]
      properties:
        title: {type: string, description: Title of the pet}
"""
FORM = """name: Bug report
description: File a bug report
labels: [bug, triage]
body:
  - type: input
    id: contact
    attributes:
      label: Contact
      placeholder: Your address
    validations:
      required: false
  - type: dropdown
    id: version
    attributes:
      label: Version
      options: [stable, Not sure]
"""
MKDOCS = """site_name: Two dogs
site_description: All about two dogs
theme:
  name: material
  features: [navigation.tabs]
nav:
  - Home: index.md
plugins: [search]
markdown_extensions:
  - toc:
      permalink: true
"""
CI = """name: Build it
on: [push, pull_request]
jobs:
  build:
    runs-on: ubuntu-latest
    steps:
      - uses: actions/checkout@v4
      - name: Run the tests
        run: make test
"""
PACKAGE = {"name": "dogs", "version": "1.0.0", "description": "Two dogs", "main": "index.js", "type": "module",
           "scripts": {"test": "jest --all"}, "author": "Ann Smith", "license": "MIT", "keywords": ["dogs"]}
COMPOSER = {"name": "acme/dogs", "type": "library", "description": "Two dogs.", "keywords": ["dog"],
            "authors": [{"name": "Ann Smith", "email": "a@b.org"}], "require": {"php": ">=8.1"}}
SCHEMA = {"$schema": "http://json-schema.org/draft-07/schema#", "title": "Two dogs", "type": "object", "properties": {
    "name": {"type": "string", "description": "Full name"}, "format": {"enum": ["a dog"], "default": "a dog"}},
    "required": ["name"]}


def divided(source, format, target="de", **names):
    data = (source if isinstance(source, str) else json.dumps(source)).encode()
    document = DividedDocument(parse(data, format, "name", "en", target, **names))
    assert document.join(document.sentences, target) == data
    return document


def translated(source, format, target="de"):
    document = divided(source, format, target)
    return document.join(list(map(str.upper, document.sentences)), target).decode()


@pytest.mark.parametrize(("source", "format", "sentences"), [
    (OPENAPI, "yaml", ["Pet store", "List all pets", "How many pets", "OK", "Title of the pet"]),
    (FORM, "yaml", ["File a bug report", "Contact", "Your address", "Version"]),
    (MKDOCS, "yaml", ["All about two dogs"]), (PACKAGE, "json", ["Two dogs"]), (COMPOSER, "json", ["Two dogs."]),
    (SCHEMA, "json", ["Two dogs", "Full name"])])
def test_in_a_document_with_a_schema_only_prose_is_text(source, format, sentences):
    assert divided(source, format).sentences == sentences


def test_a_description_of_an_interface_keeps_its_structure():
    yaml = YAML(typ="safe", pure=True)
    old, new = yaml.load(OPENAPI), yaml.load(translated(OPENAPI, "yaml"))
    for document in (old, new):
        document["info"].pop("title")
        get = document["paths"]["/pets"]["get"]
        get.pop("summary"), get["parameters"][0].pop("description"), get["responses"]["200"].pop("description")
        document["components"]["schemas"]["Pet"]["properties"]["title"].pop("description")
    assert old == new


@pytest.mark.parametrize(("source", "texts", "skipped", "sentences"), [
    (CI, "name", "", ["Build it", "Run the tests"]), (MKDOCS, "site_name", "site_description", ["Two dogs"]),
    (FORM, "options", "attributes", ["File a bug report"]), ("a: A dog\nb: A cat\n", "", "b", ["A dog"]),
    ("a: A dog\nb: A cat\n", "b", "", ["A cat"])])
def test_the_user_names_keys_of_text_and_keys_that_stay(source, texts, skipped, sentences):
    keys = KeyNames(frozenset(texts.split()), frozenset(skipped.split()))
    assert divided(source, "yaml", keys=keys).sentences == sentences


def test_keys_are_refused_for_other_formats():
    with pytest.raises(UserError, match="JSON and YAML, not for html"):
        parse(b"<p>a</p>", "html", "name", "en", "de", KeyNames(frozenset({"a"})))


@pytest.mark.parametrize(("source", "keys"), [(FORM, "name, options"), (MKDOCS, "site_name"),
    (PACKAGE, "test, author")])
def test_keys_that_may_hold_text_are_reported(source, keys):
    document = divided(source, "yaml" if isinstance(source, str) else "json")
    reports = []
    document.join(document.sentences, "de", report=lambda place, fault: reports.append((place, fault)))
    (place, fault), = reports
    assert place == "line 1" and f"{keys}." in fault


def test_a_document_with_a_schema_without_known_keys_is_refused():
    with pytest.raises(DocumentError, match="^name:1: .* name, run") as error:
        divided(CI, "yaml")
    assert "--keys" in str(error.value)


@pytest.mark.parametrize(("source", "format", "sentences"), [
    ("- id: home\n  translation: Home page\n- id: more\n  translation: more\n", "yaml", ["Home page", "more"]),
    ("home:\n  other: Home\nposts:\n  one: one post\n  other: posts\n", "yaml", ["Home", "one post", "posts"]),
    ({"appName": {"message": "Two dogs", "description": "Name"}}, "json", ["Two dogs"]),
    ({"role": "button", "state": "open", "red": "red", "x": "cat", "y": "dog"}, "json",
     ["button", "open", "red", "cat", "dog"]),
    ({"a": "Two dogs", "n": 5, "on": True}, "json", ["Two dogs"]),
    ({"home": "Home", "cards": [{"type": "card", "icon": "star", "title": "fast"}], "more": "Read more", "foot": "End"},
     "json", ["Home", "fast", "Read more", "End"]),
    ({"en": {"a": "Two dogs", "b": "x.y", "c": "z.y", "d": "a.b", "e": "b.c", "f": 5}}, "json", ["Two dogs"])])
def test_in_a_catalogue_every_key_has_text(source, format, sentences):
    assert divided(source, format).sentences == sentences


@pytest.mark.parametrize(("source", "expected"), [
    ({"en": {"a": "Two"}, "de": {"a": "Zwei"}}, {"en": {"a": "Two"}, "de": {"a": "Zwei"}}),
    ({"en": {"a": "Two", "b": "Red"}, "de": {"a": "Zwei"}, "fr": {"a": "Deux"}},
     {"en": {"a": "Two", "b": "Red"}, "de": {"a": "Zwei", "b": "RED"}, "fr": {"a": "Deux"}}),
    ({"en": {"a": "Two"}, "fr": {"a": "Deux"}},
     {"en": {"a": "Two"}, "de": {"a": "TWO"}, "fr": {"a": "Deux"}}),
    ({"resources": {"en": {"translation": {"a": "Two", "n": {"b": "Red"}}}, "de": {"translation": {}}}},
     {"resources": {"en": {"translation": {"a": "Two", "n": {"b": "Red"}}},
                    "de": {"translation": {"a": "TWO", "n": {"b": "RED"}}}}}),
    ([{"title": {"en": "Two", "de": ""}}, {"title": {"en-GB": "Red", "fr": "Rouge"}}],
     [{"title": {"en": "Two", "de": "TWO"}}, {"title": {"en-GB": "Red", "de": "RED", "fr": "Rouge"}}]),
    ({"x": {"en": ["Two", "Red"], "de": ["Zwei"]}}, {"x": {"en": ["Two", "Red"], "de": ["Zwei", "RED"]}}),
    ({"en": "Two", "de": None}, {"en": "Two", "de": "TWO"}),
    ({"names": {"en": "English", "de": "German"}}, {"names": {"en": "ENGLISH", "de": "GERMAN"}}),
    ({"x": {"is": "Is", "no": "No"}}, {"x": {"is": "IS", "no": "NO"}}),
    ([{"lang": "en", "text": "Two"}, {"lang": "de", "text": "Zwei"}],
     [{"lang": "en", "text": "TWO"}, {"lang": "de", "text": "Zwei"}]),
    ({"en": {"a": "Two"}}, {"de": {"a": "TWO"}})])
@pytest.mark.parametrize("indent", [None, 2])
def test_what_a_language_lacks_is_added_to_its_entries(source, expected, indent):
    assert json.loads(translated(json.dumps(source, indent=indent), "json")) == expected
    assert YAML(typ="safe", pure=True).load(translated(json.dumps(source, indent=indent), "yaml")) == expected


@pytest.mark.parametrize(("source", "expected"), [
    ("en:\n  a: Two\n  n:\n    b: Red\nde:\n  a: Zwei\n",
     "en:\n  a: Two\n  n:\n    b: Red\nde:\n  a: Zwei\n  n:\n    b: RED\n"),
    ("en:\n  a: Two\n# note\nfr:\n  a: Deux\n", "en:\n  a: Two\nde:\n  a: TWO\n# note\nfr:\n  a: Deux\n"),
    ("t:\n  en: |\n    One\n    two\n  de:\n", "t:\n  en: |\n    One\n    two\n  de: |\n    ONE\n    TWO\n"),
    ("- t:\n    en: |\n      One\n    fr: Une\n", "- t:\n    en: |\n      One\n    de: |\n      ONE\n    fr: Une\n"),
    ("a: &x\n  b: Two\nt:\n  en:\n    b: Red\n  de:\n    <<: *x\n",
     "a: &x\n  b: TWO\nt:\n  en:\n    b: Red\n  de:\n    <<: *x\n"),
    ("t: {'en': Two}\nu: {'en': Two, 'fr': Deux}\n", "t: {'en': TWO}\nu: {'en': Two, 'de': TWO, 'fr': Deux}\n")])
def test_yaml_with_several_languages_keeps_its_layout(source, expected):
    assert translated(source, "yaml") == expected


@pytest.mark.parametrize("format", ["json", "yaml"])
def test_languages_without_the_source_language_are_refused(format):
    with pytest.raises(DocumentError, match="several languages"):
        divided({"fr": {"a": "Deux"}, "es": {"a": "Dos"}}, format)
