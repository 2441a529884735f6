"""Tests of codes and names of languages, and of what depends on the language."""

import pytest

from seq2seq.data.language_identification import is_installed
from seq2seq.languages import (
    _COUNTRIES,
    _COUNTRIES_AND_LANGUAGES,
    LANGUAGES,
    _names,
    _two_letters,
    bleu_tokenizer,
    canonical,
    code_for,
    country_language,
    language_name,
    resolve,
    same_code,
    subtags,
    ter_tokenizer,
)


@pytest.mark.parametrize(("code", "parts"), [
    ("en", ["en"]), ("ENG", ["en"]), ("eng-US", ["en", "us"]), ("zho_Hant_TW", ["zh", "hant", "tw"]), ("gsw", ["gsw"]),
    ("ger", ["de"]), ("fre", ["fr"]), ("chi", ["zh"]), ("cmn", ["cmn"]), ("enm", ["enm"]), ("", [""]),
    ("arb_Arab", ["ar", "arab"]), ("tgl", ["tl"]), ("fil", ["fil"]), ("twi", ["tw"]), ("hbs", ["sh"]), ("src", ["src"]),
])
def test_a_code_is_its_parts_with_the_language_in_two_letters(code, parts):
    assert subtags(code) == parts


def test_same_codes_differ_in_letters_alone():
    assert same_code("deu-AT", "de_at") and not same_code("de-AT", "de") and not same_code("nn", "nb")


def test_every_language_has_a_name_and_its_three_letter_code():
    assert _names().keys() >= LANGUAGES.keys()
    assert {code for code in LANGUAGES if len(code) == 2} <= {*_two_letters().values()}
    assert {len(three) for three in _two_letters()} == {3} and not LANGUAGES.keys() & _two_letters().keys()


@pytest.mark.parametrize(("name", "code"), [
    ("japanese", "ja"), ("Japanese", "ja"), ("JP", "ja"), ("german-AT", "de"), ("deutsch", "de"), ("cz", "cs"),
    ("portuguese", "pt"), ("ua", "uk"), ("sp", "es"), ("po", "pl"), ("rs", "sr"), ("se", None),
    ("si", None), ("ja", None), ("deu", None), ("zh_Hant", None), ("gsw", None), ("numbers", None),
    ("order", None), ("xx", None), ("kr", None), ("", None),
])
def test_a_name_of_a_language_has_its_code_and_codes_have_none(name, code):
    assert code_for(name) == code


def test_codes_of_countries_are_no_language_codes_or_are_known_to_be_both():
    languages = {*_names(), *_two_letters()}
    assert not languages & _COUNTRIES.keys() and languages > _COUNTRIES_AND_LANGUAGES.keys()
    assert languages > {*_COUNTRIES.values(), *_COUNTRIES_AND_LANGUAGES.values()}
    assert country_language("se") == "sv" and country_language("sv") is None


@pytest.mark.skipif(not is_installed(), reason="needs the extra `language`")
def test_the_language_table_agrees_with_lingua():
    import lingua

    for language in lingua.Language.all():
        assert _two_letters()[language.iso_code_639_3.name.lower()] == language.iso_code_639_1.name.lower()
        assert code_for(language.name) in (None, language.iso_code_639_1.name.lower())


@pytest.mark.parametrize(("code", "expected"), [
    ("de", "de"), ("DE", "de"), ("deu", "de"), ("zh", "zh-Hans"), ("zho_Hans", "zh-Hans"), ("zh-Hant-TW", "zh-Hant"),
    ("zt", "zh-Hant"), ("pb", "pt-BR"), ("pt_br", "pt-BR"), ("no", "nb"), ("yue", "yue"), ("cmn", "zh-Hans"),
    ("sr-latn", "sr-Latn"), ("en-us", "en-US"),
    ("srp_Cyrl", "sr"), ("eng_Latn", "en"), ("arb_Arab", "ar"), ("kor_Hang", "ko"), ("yue_Hant", "yue"),
    ("ace_Arab", "ace-Arab"), ("swh_Latn", "sw"), ("en_XX", "en"), ("zh_CN", "zh-Hans"), ("iw", "he"), ("gsw", "gsw")])
def test_codes_are_those_of_the_interface(code, expected):
    assert canonical(code) == expected and canonical(expected) == expected


@pytest.mark.parametrize(("code", "served", "expected"), [
    ("de-AT", ["de"], "de"), ("en", ["de", "en-US"], "en-US"), ("zh-TW", ["zh-Hans"], None), ("zh", ["zh-Hant"], None),
    ("zh-TW", ["zh-Hans", "zh-Hant"], "zh-Hant"), ("pt", ["pt-BR"], "pt-BR"), ("pt-PT", ["pt-BR", "pt"], "pt"),
    ("zz", ["de"], None), ("", ["de"], None), ("-", ["de"], None), ("sr", ["sr-Latn"], "sr-Latn"),
    ("sr-Latn", ["sr"], None), ("srp_Cyrl", ["sr"], "sr"), ("srp_Cyrl", ["sr-Latn"], None), ("de-Latn", ["de"], "de"),
    ("xx-Latn", ["xx"], "xx"),
    ("d" * 1000, ["de"], None), ("de_DE.UTF-8", ["de"], "de")])
def test_codes_of_clients_are_matched_with_the_served_languages(code, served, expected):
    assert resolve(code, served) == expected


def test_languages_have_names():
    names = {"de": "German", "zh-Hans": "Chinese", "zh-Hant": "Chinese (traditional)", "pt-BR": "Portuguese (Brazil)",
             "en-US": "English (US)", "bn": "Bengali", "nb": "Norwegian", "ace": "Acehnese", "xx": "xx",
             "xx-YY": "xx-YY"}
    assert {code: language_name(code) for code in names} == names


def test_the_tokeniser_follows_the_language():
    languages = ["de", "zh", "zh-CN", "zh_Hant", "zho_Hans", "cmn", "ja", "jpn_Jpan", "ko", "ZH", "zza", "jam", "th",
                 "lo", "khm_Khmr", "my", "bod_Tibt", "dz"]
    assert [bleu_tokenizer(language) for language in languages] == [
        "13a", *["zh"] * 5, "ja-mecab", "ja-mecab", "ko-mecab", "zh", "13a", "13a", *["char"] * 6,
    ]  # fmt: skip


@pytest.mark.parametrize(("tokenizer", "languages"), [
    ("char",
        "th th-TH tha lo lao_Laoo km km-KH khm_Khmr my mya_Mymr bo bod_Tibt dz ja jpn_Jpan nan gan pi-Thai jv-Java"),
    ("asian", "zh zh-CN zh_Hant zho_Hans cmn yue wuu lzh"),
    ("tercom", "en de vi ko jv jav_Latn zh-Latn ja-Latn th-Latn su hi fa zza"),
])
def test_the_tokeniser_of_ter_knows_the_languages_without_spaces(tokenizer, languages):
    assert {language: ter_tokenizer(language) for language in languages.split()} == {
        language: tokenizer for language in languages.split()}
