"""Plural forms: categories of languages from CLDR, and plurals of documents that have an entry for each category.

CLDR: https://cldr.unicode.org/index/cldr-spec/plural-rules. Forms of gettext: see `gettext_rule`."""

from __future__ import annotations

import gettext
from collections.abc import Mapping
from functools import cache, lru_cache

from babel import Locale, UnknownLocaleError
from babel.core import get_global
from babel.messages.plurals import PLURALS
from babel.plural import PluralRule

from seq2seq.formats.placeholders import Placeholders
from seq2seq.languages import canonical, main_language

CATEGORIES = ("zero", "one", "two", "few", "many", "other")
"""Plural categories of CLDR, in its order."""
_SCRIPTS = {"Latn": "latin", "Cyrl": "cyrillic", "Arab": "arabic", "Deva": "devanagari"}
MAX_FORMS = 10
"""Maximum number of plural forms of a message of gettext."""
NUMBERS = {"zero": 0, "one": 1, "two": 2}
"""Numbers after which categories are named."""
# Rules of gettext's manual that differ from Babel's, which come from CLDR: those have a form for millions in Romance
# languages and for the dual in Hebrew, and begin with the form for 0 in Latvian.
_GETTEXT = {
    "nplurals=2; plural=(n != 1);": "ca es he it pt vec", "nplurals=2; plural=(n > 1);": "fr pt-BR",
    "nplurals=3; plural=(n%10==1 && n%100!=11 ? 0 : n != 0 ? 1 : 2);": "lv",
}
_RULES = {code: f"nplurals={count}; plural={expression};" for code, (count, expression) in PLURALS.items()}
_RULES |= {"tl": _RULES["fil"], "sh": _RULES["sr"]}
_RULES |= {code: rule for rule, languages in _GETTEXT.items() for code in languages.split()}
_PLACEHOLDERS = Placeholders()


@cache
def plural_rule(language: str, ordinal: bool = False) -> PluralRule | None:
    """Return the rule that tells the plural category of a number; None for an unknown language.

    ordinal: True for the categories of "1st, 2nd, 3rd" instead of those of "1 dog, 2 dogs".
    """
    try:
        locale = Locale.parse(language.replace("_", "-").partition("@")[0], sep="-")
    except (UnknownLocaleError, ValueError):
        return None
    return locale.ordinal_form if ordinal else locale.plural_form


def plural_categories(language: str, ordinal: bool = False) -> tuple[str, ...]:
    """Return the plural categories of a language in the order of CLDR, such as ("one", "few", "many", "other") for ru.

    An unknown language has the category `other`, as CLDR's root has. ordinal: see `plural_rule`.
    """
    rule = plural_rule(language, ordinal)
    return tuple(one for one in CATEGORIES if one == "other" or rule and one in rule.tags)


@cache
def has_further_numbers(category: str, language: str, ordinal: bool = False) -> bool:
    """Return True if a language uses a category of NUMBERS for further integers, too, as Russian uses `one` for 21, and
    French for 0. ordinal: see `plural_rule`."""
    rule = plural_rule(language, ordinal)
    return rule is not None and any(rule(one) == category for one in range(300) if one != NUMBERS[category])


def plural_sources(texts: Mapping[str, str], language: str) -> dict[str, str]:
    """Return the categories of a translated message, each with the category whose translation it gets.

    A category that the source lacks gets the translation of `other`. So does `one` if the source leaves the number out,
    as in "a dog", but `one` of the target language has further numbers, as 0 in French or 21 in Russian. A text for
    `zero`, which several formats use for the number 0 in any language, stays.

    Args:
        texts: text of each category of the source; `other` is one of them.
        language: target language.
    """
    wanted = [one for one in CATEGORIES if one in plural_categories(language) or one == "zero" and one in texts]
    sources = {one: one if one in texts else "other" for one in wanted}
    if sources.get("one") == "one" and has_further_numbers("one", language) \
            and _PLACEHOLDERS.counts(texts["one"]) != _PLACEHOLDERS.counts(texts["other"]):
        sources["one"] = "other"
    return sources


def gettext_rule(language: str) -> str:
    """Return the plural forms of a language as in gettext's header field Plural-Forms. An unknown language has a form
    for the number 1 and one for the others, as gettext assumes where the field is missing."""
    code = canonical(language.partition("@")[0])
    return _RULES.get(code) or _RULES.get(main_language(code)) or "nplurals=2; plural=(n != 1);"


@lru_cache(maxsize=64)
def singular_forms(rule: str, same_placeholders: bool) -> tuple[bool, ...]:
    """Return True for each plural form that gets the translation of the singular, False for those of the plural.

    The form of the number 1 gets that of the singular, unless the singular leaves out the number, as in "a dog", and
    the form has more than 5 numbers up to 1000, where msgfmt requires the same placeholders as in the plural.

    Args:
        rule: value of Plural-Forms.
        same_placeholders: True if the singular has the same placeholders as the plural.
    """
    count, _, expression = rule.partition("plural=")
    forms = min(int("".join(filter(str.isdigit, count)) or 2), MAX_FORMS)
    try:
        form = gettext.c2py(expression.partition(";")[0])
        numbers = [form(number) for number in range(1001)]
    except (ValueError, ArithmeticError):
        numbers = [0, 0]
    one = numbers[1]
    return tuple(index == one and (same_placeholders or numbers.count(one) <= 5) and forms > 1
                 for index in range(forms))


def gettext_language(language: str) -> str:
    """Return the code of a language as gettext spells it: pt_BR for pt-BR, zh_CN for zh-Hans, sr@latin for sr-Latn."""
    code, _, variant = language.partition("@")
    main, *others = canonical(code).split("-")
    script = next((one for one in others if len(one) == 4 and one.isalpha()), "")
    region = next((one for one in others if one != script), "")
    if main == "zh" and not region:
        region = "TW" if script == "Hant" else "CN"
    if script and main != "zh" and f"_{script}_" not in get_global("likely_subtags").get(main, ""):
        variant = _SCRIPTS.get(script, script.lower())
    return main + (f"_{region}" if region else "") + (f"@{variant}" if variant else "")
