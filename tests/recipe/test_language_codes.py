"""Tests of language codes: two-letter and three-letter codes of a language are equivalent."""

import pytest

from seq2seq.data.language_identification import is_installed
from seq2seq.languages import _ISO_639, _TWO_LETTERS, code_for, same_code, subtags


@pytest.mark.parametrize(("code", "parts"), [
    ("en", ["en"]), ("ENG", ["en"]), ("eng-US", ["en", "us"]), ("zho_Hant_TW", ["zh", "hant", "tw"]), ("gsw", ["gsw"]),
    ("ger", ["de"]), ("fre", ["fr"]), ("chi", ["zh"]), ("cmn", ["cmn"]), ("enm", ["enm"]), ("", [""]),
])
def test_a_code_is_its_parts_with_the_language_in_two_letters(code, parts):
    assert subtags(code) == parts


def test_same_codes_differ_in_letters_alone():
    assert same_code("deu-AT", "de_at") and not same_code("de-AT", "de") and not same_code("nn", "nb")


def test_the_table_has_the_codes_of_the_standard():
    """ISO 639-2 as of 2023 gives 184 languages a two-letter code, and 20 of them two three-letter codes. `sh` was
    withdrawn, but is still in use."""
    entries = [entry.split(":") for entry in _ISO_639.split()]
    assert [two for two, *_ in entries] == sorted({two for two, *_ in entries})
    assert len(entries) == 184 + 1
    assert sum(len(others) == 2 for _, *others in entries) == 20
    assert len(_TWO_LETTERS) == 185 + 20
    assert all(len(two) == 2 and {len(three) for three in others} == {3} for two, *others in entries)


@pytest.mark.parametrize(("name", "code"), [
    ("japanese", "ja"), ("Japanese", "ja"), ("JP", "ja"), ("german-AT", "de"), ("deutsch", "de"), ("cz", "cs"),
    ("portuguese", "pt"), ("ja", None), ("deu", None), ("zh_Hant", None), ("gsw", None), ("numbers", None),
    ("order", None), ("xx", None), ("kr", None), ("", None),
])
def test_a_name_of_a_language_has_its_code_and_codes_have_none(name, code):
    assert code_for(name) == code


@pytest.mark.skipif(not is_installed(), reason="needs the extra `language`")
def test_the_language_table_agrees_with_lingua():
    import lingua

    for language in lingua.Language.all():
        assert _TWO_LETTERS[language.iso_code_639_3.name.lower()] == language.iso_code_639_1.name.lower()
        assert code_for(language.name) in (None, language.iso_code_639_1.name.lower())
