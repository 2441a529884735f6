"""Languages that the styles of Office documents name, for the spelling checker."""

from __future__ import annotations

import re

from babel.core import get_global

from seq2seq.languages import canonical, is_language, is_right_to_left, is_same_language, main_language

_TAG = re.compile(r"<(?:w:lang|a:defRPr|style:text-properties)\b[^<>]*>")
# Attributes for text in Latin and similar letters, in East Asian characters, and in letters from right to left.
# DrawingML has one for all.
_NAMES = {
    "w:lang": (("w:val",), ("w:eastAsia",), ("w:bidi",)),
    "a:defRPr": (("lang",),) * 3,
    "style:text-properties": (("fo:language", "fo:country"), ("style:language-asian", "style:country-asian"),
                              ("style:language-complex", "style:country-complex")),
}


def with_language(xml: str, source: str, target: str) -> str:
    """Return XML of an Office document whose tags that name the source language name the target language."""
    language, region = _language_and_region(target)
    script = 1 if language in ("zh", "ja", "ko", "yue") else 2 if is_right_to_left(target) else 0

    def changed(match: re.Match[str]) -> str:
        tag = match[0]
        names = _NAMES[re.split(r"[\s/>]", tag[1:], maxsplit=1)[0]]
        named = re.search(rf'\s{names[0][0]}="([^"]*)"', tag)
        if named is None or not is_language(named[1]) or not is_same_language(named[1], source):
            return tag
        wanted = names[script]
        values = [language, region] if len(wanted) == 2 else ["-".join(filter(None, (language, region)))]
        for name, value in zip(wanted, values, strict=True):
            tag = _with_attribute(tag, name, value)
        return tag

    return _TAG.sub(changed, xml)


def _with_attribute(tag: str, name: str, value: str) -> str:
    found = re.search(rf'\s{name}="([^"]*)"', tag)
    if found:
        return tag[:found.start(1)] + value + tag[found.end(1):]
    end = len(tag) - (2 if tag.endswith("/>") else 1)
    return f'{tag[:end].rstrip()} {name}="{value}"{tag[end:]}'


def _language_and_region(code: str) -> tuple[str, str]:
    """Return a language and the region where most people speak it, unless the code has one: ("de", "DE") for de."""
    canonical_code = canonical(code).replace("-", "_")
    regions = [part for part in canonical_code.split("_")[1:] if len(part) == 2]
    likely = get_global("likely_subtags").get(canonical_code, get_global("likely_subtags").get(main_language(code), ""))
    return main_language(code), (regions or [part for part in likely.split("_")[1:] if len(part) == 2] or [""])[0]
