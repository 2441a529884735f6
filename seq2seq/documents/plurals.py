"""Plural categories of languages, from CLDR (https://cldr.unicode.org/index/cldr-spec/plural-rules)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from babel import Locale, UnknownLocaleError

from seq2seq.documents.placeholders import Placeholders

CATEGORIES = ("zero", "one", "two", "few", "many", "other")
"""Plural categories of CLDR, in its order."""
_PLACEHOLDERS = Placeholders()


@cache
def _locale(language: str) -> Locale | None:
    try:
        return Locale.parse(language.replace("_", "-"), sep="-")
    except (UnknownLocaleError, ValueError):
        return None


def plural_categories(language: str) -> tuple[str, ...]:
    """Return the plural categories of a language in the order of CLDR, such as ("one", "few", "many", "other") for ru.

    An unknown language has the category `other`, as CLDR's root has.
    """
    locale = _locale(language)
    return tuple(one for one in CATEGORIES if one == "other" or locale and one in locale.plural_form.tags)


def plural_sources(texts: Mapping[str, str], language: str) -> dict[str, str]:
    """Return the categories of a translated message, each with the category whose translation it gets.

    A category that the source lacks gets the translation of `other`. So does `one` if the source leaves the number out,
    as in "a dog", but `one` of the target language has further numbers, as 0 in French or 21 in Russian. A text for
    `zero`, which several formats use for the number 0 in any language, stays.

    Args:
        texts: text of each category of the source; `other` is one of them.
        language: target language.
    """
    locale = _locale(language)
    wanted = [one for one in CATEGORIES if one in plural_categories(language) or one == "zero" and one in texts]
    sources = {one: one if one in texts else "other" for one in wanted}
    if sources.get("one") == "one" and locale and any(locale.plural_form(number) == "one" for number in (0, 21, 101)) \
            and _PLACEHOLDERS.counts(texts["one"]) != _PLACEHOLDERS.counts(texts["other"]):
        sources["one"] = "other"
    return sources
