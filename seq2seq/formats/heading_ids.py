"""Links to headings of the same document in Markdown, such as `[see](#a-red-car)` to "## A red car".

Programs generate the identifier of a heading from its text, so that it changes with the translation. The rule here is
that of GitHub, with single hyphens where MkDocs and GitLab have them. Identifiers that the document itself gives
(`{#id}`, `<a id="id">`, `(id)=` of MyST) do not change.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from urllib.parse import quote, unquote

from markdown_it.token import Token

from seq2seq.formats.spans import Edit, blanked, replace_spans

_LINK = re.compile(r"(?<!`)(?P<ticks>`++)(?s:.{0,1000}?)(?<!`)(?P=ticks)(?!`)"
                   r"|(?:\]\([ \t]*+<?|^[ \t>]{0,20}\[[^\]\n]{1,200}\]:[ \t]*+<?|\bhref\s*+=\s*+[\"']?)"
                   r"#(?P<id>[\w%-][^\s()<>\"']*+)", re.MULTILINE)
"""Code, or the destination of a link."""
_GIVEN = re.compile(r"(?:<[A-Za-z][^<>]{0,300}?\s(?:id|name)\s*+=\s*+[\"']?|\{[^{}\n]{0,200}?#"
                    r"|^[ \t]*+\((?=[^()\n]{1,200}\)=))([^\s\"'<>{}()]++)", re.MULTILINE)
"""Identifier that the document gives."""


def with_moved_links(source: str, translated: str, parse: Callable[[str], Sequence[Token]]) -> tuple[str, list[int]]:
    """Return a translated document whose links lead to the translated headings, and the places in the source of links
    whose target is not known, which stay. parse: parser of Markdown."""
    if not any(match["id"] for match in _LINK.finditer(source)):
        return translated, []
    old, new = parse(source), parse(translated)
    headings = list(zip(_ids(old), _ids(new), strict=False)) if len(_ids(old)) == len(_ids(new)) else []
    moved = {_single(before): _single(after) for before, after in headings} | dict(headings)
    moved |= {given: given for given in _GIVEN.findall(_without_code(source, old))}
    edits: list[Edit] = []
    for begin, link in _links(translated, new):
        name = link if link in moved else unquote(link).lower()
        target = moved.get(name, name)
        if target != name:
            edits.append((begin, begin + len(link), target if link == unquote(link) else quote(target)))
    unknown = [begin for begin, link in _links(source, old) if not {link, unquote(link).lower()} & moved.keys()]
    return replace_spans(translated, edits), unknown


def _single(name: str) -> str:
    """Return an identifier with single hyphens."""
    return re.sub("-{2,}", "-", name).strip("-")


def _ids(tokens: Sequence[Token]) -> list[str]:
    """Return the identifiers of all headings as GitHub generates them. The second one of a name gets the number 1."""
    names: Counter[str] = Counter()
    ids: list[str] = []
    for heading, inline in pairwise(tokens):
        if heading.type == "heading_open":
            text = "".join(_shown(token, inline.content) for token in inline.children or []).lower().replace(" ", "-")
            name = "".join(one for one in text if one in "_-" or unicodedata.category(one)[0] in "LMN")
            ids.append(f"{name}-{names[name]}" if names[name] else name)
            names[name] += 1
    return ids


def _shown(token: Token, source: str) -> str:
    """Return the text of an inline token of a heading that counts for its identifier."""
    if token.type == "extension":
        name = source[slice(*token.meta["source"])]
        return name if name.startswith(":") else ""                              # :rocket:
    return token.content if token.type in ("text", "text_special", "code_inline") else ""


def _links(source: str, tokens: Sequence[Token]) -> list[tuple[int, str]]:
    """Return the places of the fragments of all links within the document, and the fragments."""
    return [(match.start("id"), match["id"]) for match in _LINK.finditer(_without_code(source, tokens)) if match["id"]]


def _without_code(source: str, tokens: Sequence[Token]) -> str:
    """Return a document with spaces in place of its blocks of code."""
    begins = [0, *(match.end() for match in re.finditer(r"\r\n|\r|\n", source)), len(source)]
    code = [token.map for token in tokens if token.type in ("fence", "code_block") and token.map]
    return blanked(source, [(begins[first], begins[min(last, len(begins) - 1)]) for first, last in code])
