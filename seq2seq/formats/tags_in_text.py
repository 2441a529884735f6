"""Inline tags in plain strings, such as `<b>` in a line of text or in JSON: pairs of tags, empty elements, comments."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from seq2seq.formats.inline_tags import Tag, TagKind, element_ends, pair_tags
from seq2seq.formats.placeholders import Placeholders
from seq2seq.formats.spans import blanked

_VOID_LIST = "area base basefont bgsound br col embed frame hr img input link meta param source track wbr"
VOID = frozenset(_VOID_LIST.split())
"""Elements of HTML that have no contents and no end tag."""
UNTRANSLATED = re.compile(r"\btranslate\s*=\s*[\"']?no\b"
                          r"|\bclass\s*=\s*[\"']?[^\"'>]*\b(?:no-?|skip)translate\b", re.IGNORECASE)
"""Attribute in a tag of HTML or XML whose element is not translated, such as `its:translate="no"`."""

# A slash at the end of an unquoted value, as in <a href=/x/>, does not end an empty element.
_TAG = re.compile(r"<(?P<end>/?)(?P<name>[A-Za-z_][\w:.-]{0,80}|[0-9]{1,3})"
                  r"(?P<rest>(?:\s(?:[^<>\"'/]|/(?!>)|(?<=[^\s\"'}])/|\"[^\"<]{0,2000}\"|'[^'<]{0,2000}'){0,400})?)"
                  r"(?P<alone>/?)>|<!\[CDATA\[|\]\]>|<!--(?:(?!-->|<!--).){0,2000}-->", re.DOTALL)
_ELEMENTS = {
    "dividing": "address article aside blockquote br center dd details div dl dt fieldset figcaption figure footer "
                "form h1 h2 h3 h4 h5 h6 header hr li main nav ol p section summary table tbody td tfoot th thead tr ul",
    "not translated": "code kbd math pre samp script style svg tt var",
}
_BREAKS, _KEPT = (frozenset(names.split()) for names in _ELEMENTS.values())
_PLACEHOLDERS = Placeholders()

MarkupKind = TagKind | Literal["value"]


@dataclass(frozen=True, slots=True)
class Markup:
    """Part of a text that is kept.

    begin, end: its span. kind: "value" stands for a word, such as `%B` of strftime; the others are those of a tag.
    name: name that an opening tag and its closing tag share.
    """

    begin: int
    end: int
    kind: MarkupKind = "value"
    name: str = ""


def element_name(name: str) -> str:
    """Return the name of an element in a string, in lower case if it can be one of HTML: `br` for `<BR>`, but `Link`
    for `<Link>`, which is a component of React."""
    return name.lower() if name.isupper() else name


def tags_in_text(text: str, hidden: Sequence[Markup] = ()) -> list[Markup]:
    """Return the tags that a plain string contains, in order.

    These are pairs of tags, empty elements and comments. An element that is not translated, such as `<code>`, is one
    tag. A tag without its counterpart, such as `<name>` in "Hello <name>", is a placeholder. So is a tag inside of a
    placeholder, such as `{{ "<b>" }}`. hidden: further spans in which there are no tags.
    """
    if "<" not in text:
        return []
    text = blanked(text, [(one.begin, one.end) for one in hidden])
    text = blanked(text, [span for span in _PLACEHOLDERS.spans(text) if text[span[0]] != "<"])
    found = [(match, element_name(match["name"] or "")) for match in _TAG.finditer(text)]
    kinds: list[TagKind] = ["alone" if match["alone"] or name in VOID or not name else
                            "close" if match["end"] else "open" for match, name in found]
    names = [name for _, name in found]
    ends = element_ends(zip(kinds, names, strict=True))
    closed = set(ends.values())
    markup: list[Markup] = []
    index = 0
    while index < len(found):
        match, name = found[index]
        last = index
        if name in _BREAKS and (kinds[index] == "alone" or index in ends or index in closed):
            markup.append(Markup(*match.span(), "break"))
        elif index in ends and (name in _KEPT or UNTRANSLATED.search(match["rest"])):
            last = ends[index]
            markup.append(Markup(match.start(), found[last][0].end(), "alone"))
        elif kinds[index] == "alone" or index in ends or index in closed:
            markup.append(Markup(*match.span(), kinds[index], name))
        index = last + 1
    return markup


class TaggedText(NamedTuple):
    """Text without its tags, and the tags with their positions in it."""

    text: str
    tags: tuple[Tag, ...]


def without_tags(line: str) -> TaggedText:
    """Return a line without its tags (see `tags_in_text`). A line break, such as `<br>`, is a tag without contents."""
    parts: list[str] = []
    taken: list[tuple[int, str, TagKind, str]] = []
    last = length = 0
    for one in tags_in_text(line):
        parts.append(line[last:one.begin])
        length += len(parts[-1])
        kind: TagKind = one.kind if one.kind in ("open", "close") else "alone"
        taken.append((length, line[one.begin:one.end], kind, one.name))
        last = one.end
    tags = (tag if tag.pair is not None else replace(tag, kind="alone") for tag in pair_tags(taken))
    return TaggedText("".join([*parts, line[last:]]), tuple(tags))
