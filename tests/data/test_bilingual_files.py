"""PO and XLIFF as parallel text: finished translations are read, in either direction, and all others are counted."""

import gzip
from pathlib import Path

import pytest
from toy import RECIPE, write_corpus

from seq2seq.data.corpus import Counts, as_lines, read_corpus
from seq2seq.errors import CorpusError
from seq2seq.recipe import Corpus, load_recipe
from seq2seq.storage.checkpoints import best_bundle
from seq2seq.training.run import train

PO = r'''# Translators
msgid ""
msgstr ""
"Language: pl\n"
"Content-Type: text/plain; charset=UTF-8\n"
"Plural-Forms: nplurals=3; plural=(n==1 ? 0 : n%10>=2 && n%10<=4 && (n%100<12 || n%100>14) ? 1 : 2);\n"

#: main.c:7
#, c-format
msgid "Cannot open %s\n"
msgstr "Nie można otworzyć %s\n"

#, fuzzy
msgid "Close"
msgstr "Otwórz"

msgid "Untranslated"
msgstr ""

msgctxt "menu"
msgid "a long "
"text"
msgstr ""
"długi "
"tekst"

msgid "%d file"
msgid_plural "%d files"
msgstr[0] "%d plik"
msgstr[1] "%d pliki"
msgstr[2] "%d plików"

msgid "translator-credits"
msgstr "Somebody"

#~ msgid "old"
#~ msgstr "stary"
'''
PO_PAIRS = [(10, "Cannot open %s", "Nie można otworzyć %s"), (21, "a long text", "długi tekst"),
            (27, "%d file", "%d plik"), (28, "%d files", "%d plików")]
XLIFF_1 = '''<?xml version="1.0"?>
<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2">
<file source-language="en-US" target-language="pl" datatype="plaintext" original="a"><body>
<trans-unit id="1"><source>Cannot open <g id="1">this</g> <x id="2"/>file</source><target state="translated">Nie można
  otworzyć <g id="1">tego</g> pliku</target>
  <alt-trans><source>Other</source><target>Inny</target></alt-trans></trans-unit>
<trans-unit id="2"><source>new</source><target state="new">new</target></trans-unit>
<trans-unit id="3"><source>open</source></trans-unit>
<trans-unit id="4"><source>review</source><target state="needs-review-translation">recenzja</target></trans-unit>
<trans-unit id="5" approved="yes"><source>One<ph id="1" ctype="lb">\\n</ph>two</source>
<target>Raz<ph id="1" ctype="lb">\\n</ph>dwa</target></trans-unit>
<trans-unit id="6" translate="no"><source>ID</source><target>ID</target></trans-unit>
</body></file></xliff>'''
XLIFF_2 = '''<xliff version="2.0" srcLang="en" trgLang="pl" xmlns="urn:oasis:names:tc:xliff:document:2.0"><file id="f">
<unit id="1"><notes><note>not text</note></notes><segment state="final"><source>Cannot open <pc id="1">this</pc> file
</source><target>Nie można otworzyć <pc id="1">tego</pc> pliku</target></segment>
<segment state="initial"><source>a</source><target>b</target></segment>
<segment><source>One<ph id="2" equiv="&lt;br/>"/>two</source>
<target>Raz<ph id="2" subType="xlf:lb"/>dwa</target></segment>
</unit><unit id="2" translate="no"><segment><source>ID</source><target>ID</target></segment></unit></file></xliff>'''
XLIFF_PAIRS = [(1, "Cannot open this file", "Nie można otworzyć tego pliku"), (2, "One two", "Raz dwa")]


def read(path, source="en", target="pl", counts=None):
    return list(as_lines(read_corpus(Corpus(file=str(path), source=source, target=target), Path(), counts)))


@pytest.mark.parametrize(("name", "text", "pairs", "unfinished"), [
    ("pl.po", PO, PO_PAIRS, 2), ("a.xlf", XLIFF_1, XLIFF_PAIRS, 3), ("a.xliff", XLIFF_2, XLIFF_PAIRS, 1)])
def test_finished_translations_are_read_in_both_directions_and_the_others_counted(tmp_path, name, text, pairs,
                                                                                  unfinished):
    (tmp_path / name).write_text(text, encoding="utf-8")
    counts = Counts()
    assert read(tmp_path / name, counts=counts) == pairs
    assert counts.unfinished == unfinished and counts.lines == len(pairs)
    assert read(tmp_path / name, "pl", "en") == [(number, target, source) for number, source, target in pairs]
    (tmp_path / f"{name}.gz").write_bytes(gzip.compress(text.encode()))
    assert read(tmp_path / f"{name}.gz") == pairs


def test_units_inside_of_an_element_that_is_not_translated_are_no_pairs(tmp_path):
    (tmp_path / "a.xlf").write_text(XLIFF_1.replace("<body>", '<body><group translate="no">').replace(
        "</body>", "</group></body>").replace('id="5"', 'id="5" translate="yes"'), encoding="utf-8")
    assert read(tmp_path / "a.xlf") == [(1, *XLIFF_PAIRS[1][1:])]


@pytest.mark.parametrize(("rule", "singular", "plural"), [
    ("nplurals=2; plural=n != 1;", "a0", "a1"), ("nplurals=1; plural=0;", None, "a0"),
    ("nplurals=4; plural=(n%100==1 ? 1 : n%100==2 ? 2 : n%100==3 || n%100==4 ? 3 : 0);", "a1", "a0"),
    ("nplurals=x; plural=EXPRESSION;", "a0", "a1")])
def test_the_plural_rule_tells_which_forms_translate_the_two_forms_of_english(tmp_path, rule, singular, plural):
    count = max(1, rule.count("?") + 1) if "?" in rule else 1 if "plural=0" in rule else 2
    forms = "".join(f'msgstr[{index}] "a{index}"\n' for index in range(count))
    (tmp_path / "a.po").write_text(f'msgid ""\nmsgstr "Language: pl\\nPlural-Forms: {rule}\\n"\n\nmsgid "one"\n'
                                   f'msgid_plural "several"\n{forms}')
    found = {source: target for _, source, target in read(tmp_path / "a.po")}
    assert found == {source: target for source, target in (("one", singular), ("several", plural)) if target}


@pytest.mark.parametrize(("fields", "languages", "pairs"), [
    ("Language: pt_BR", ("en", "pt-BR"), ("msgid", "msgstr")), ("Language: pt_BR", ("pt", "fr"), ("msgstr", "msgid")),
    ("Language: sr@latin", ("en", "sr-Latn"), ("msgid", "msgstr")), ("", ("de", "fr"), ("msgid", "msgstr")),
    ("Language: en\\nX-Source-Language: de", ("de", "en"), ("msgid", "msgstr")), ("Language: fr", ("en", "de"), None),
    ("Language: zh_TW", ("en", "zh-CN"), None), ("Language: en\\nX-Source-Language: de", ("fr", "en"), None)])
def test_the_header_tells_which_side_is_in_which_language(tmp_path, fields, languages, pairs):
    (tmp_path / "a.po").write_text(f'msgid ""\nmsgstr "{fields}\\n"\n\nmsgid "msgid"\nmsgstr "msgstr"\n')
    if pairs is None:
        with pytest.raises(CorpusError, match=r"a\.po: "):
            read(tmp_path / "a.po", *languages)
    else:
        assert [(source, target) for _, source, target in read(tmp_path / "a.po", *languages)] == [pairs]


def test_text_for_a_language_model_is_not_taken_from_the_wrong_side(tmp_path):
    (tmp_path / "a.po").write_text(PO, encoding="utf-8")
    texts = {}
    for language in ("en", "pl"):
        spec = Corpus(file=str(tmp_path / "a.po"), text=language)
        texts[language] = [text for *_, text in as_lines(read_corpus(spec, Path()))]
    assert texts == {"en": [pair[1] for pair in PO_PAIRS], "pl": [pair[2] for pair in PO_PAIRS]}
    with pytest.raises(CorpusError):
        list(read_corpus(Corpus(file=str(tmp_path / "a.po"), text="de"), Path()))


@pytest.mark.parametrize(("name", "data", "place"), [
    ("a.po", b'msgid "a"\nmsgstr "b"\nnonsense\n', "a.po:3: "), ("a.po", b'msgid "a"\n', "a.po:1: "),
    ("a.po", b'msgid "a"\nmsgstr "\xff"\n', "a.po:2: "),
    ("a.po", b'"Content-Type: text/plain; charset=x-none\\n"', "a.po"),
    ("a.xlf", b"<tmx/>", "a.xlf:1: "), ("a.xlf", b"<xliff>\n<file>", "a.xlf:2: "),
    ("a.xlf", b'<xliff>\n<!ENTITY a "b"></xliff>', "a.xlf:2: "),
    ("a.xlf", b'<!DOCTYPE a [<!ENTITY b "b">]><xliff/>', "a.xlf:1: "),
    ("a.xlf", XLIFF_1.replace('"pl"', '"de"').encode(), "a.xlf: ")])
def test_a_damaged_file_and_one_in_other_languages_is_refused_with_its_place(tmp_path, name, data, place):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(CorpusError) as caught:
        read(tmp_path / name)
    assert place in str(caught.value)


def test_the_target_is_in_the_language_that_the_source_is_not_in_if_the_file_does_not_name_it(tmp_path):
    (tmp_path / "a.xlf").write_text(XLIFF_1.replace('target-language="pl"', ""), encoding="utf-8")
    assert read(tmp_path / "a.xlf") == XLIFF_PAIRS
    assert read(tmp_path / "a.xlf", "pl", "en") == [(number, target, source) for number, source, target in XLIFF_PAIRS]


@pytest.mark.slow
def test_a_recipe_trains_on_a_catalogue(tmp_path, quick_tensorboard):
    write_corpus(tmp_path)
    sides = [(tmp_path / f"train.{code}").read_text().splitlines() for code in ("en", "de")]
    messages = (f'msgid "{source}"\nmsgstr "{target}"\n\n' for source, target in zip(*sides, strict=True))
    (tmp_path / "train.po").write_text(f'msgid ""\nmsgstr "Language: de\\n"\n\n{"".join(messages)}', encoding="utf-8")
    (tmp_path / "recipe.yaml").write_text(RECIPE.replace("{source: train.en, target: train.de}", "{file: train.po}"))
    scores = train(load_recipe(tmp_path / "recipe.yaml", ["training.max_steps=2"]), tmp_path / "run")
    assert scores["small"]["bleu"].value >= 0 and best_bundle(tmp_path / "run")
