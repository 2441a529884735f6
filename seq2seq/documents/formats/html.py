"""HTML: blocks of text with inline tags, found by a scanner.

Everything but text comes back byte for byte: tags with their attributes, comments, and the contents of elements that
are not translated (code, scripts, `translate="no"`). A run is the text, with its inline tags, between two tags of block
elements. Each run is translated as a whole, so that inline tags do not divide its sentences. An element with
`translate="yes"` is translated even if an element around it has `translate="no"`, as in HTML 5 and W3C ITS 2.0.

The scanner takes linear time for any input. `html.parser` takes 6 seconds for 30 kB of `<a <a <a` on Python 3.11.
"""

from __future__ import annotations

import html
import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence

from seq2seq.documents.block import MAX_TAGS, Block, decode, element_ends, require_count
from seq2seq.documents.runs import RunDocument, Token

# As in HTML 5, a quote begins the value of an attribute only after =.
_TAG = re.compile(r"<(?P<end>/?)(?P<name>[a-zA-Z][^\s/<>]*+)"
                  r"(?P<attributes>(?:[^<>=]|=\s*+(?:\"[^\"]*\"|'[^']*'|(?![\"'])))*+)>|<![^<>]*>")
_WHOLE = {"<!--": "-->", "<?": "?>", "<%": "%>"}
"""Beginnings and ends of comments and of code of PHP and other templates."""
_ELEMENTS = {
    "inline": "a abbr acronym b bdi bdo big cite data del dfn em font i ins label mark q rp rt ruby s small span "
              "strike strong sub sup time tt u",
    "inline void": "img wbr",
    "void": "area base br col embed hr img input link meta source track wbr",
    "inline opaque": "code kbd math samp svg var",
    "opaque": "canvas iframe noscript object pre script style template textarea",
}
_INLINE, _INLINE_VOID, _VOID, _INLINE_OPAQUE, _OPAQUE = (frozenset(names.split()) for names in _ELEMENTS.values())
_CHARSET = re.compile(rb"<meta[^>]{0,200}charset\s*=\s*[\"']?([A-Za-z0-9._-]+)", re.IGNORECASE)
_UNTRANSLATED = re.compile(r"\btranslate\s*=\s*[\"']?no\b|\bclass\s*=\s*[\"']?[^\"'>]*\bnotranslate\b", re.IGNORECASE)
_TRANSLATED = re.compile(r"\btranslate\s*=\s*[\"']?yes\b", re.IGNORECASE)
_ADDRESS = re.compile(r"\s*(?:https?://|www\.|[@#])\S+\s*")
_RAW_TEXT = frozenset({"script", "style", "textarea"})


class HtmlDocument(RunDocument):
    """HTML, with the interface of `block.Document`."""

    def __init__(self, data: bytes) -> None:
        """Raises DocumentError: the document is too large, has too many tags, or is not valid in its encoding."""
        text, encoding = decode_html(data)
        require_count(text.count("<"), MAX_TAGS, "tags")
        mark = "\ufeff" if text.startswith("\ufeff") else ""                    # byte order mark
        tokens = _with_opaque_joined(list(_tokens(text.removeprefix(mark))))
        super().__init__([Token("other", mark), *tokens], encoding)

    def _serialize(self, block: Block, run: Sequence[Token]) -> str:
        return block.serialize(lambda text: html.escape(text, quote=False))


def decode_html(data: bytes) -> tuple[str, str]:
    """Decode an HTML document; see `decode`. Without a byte order mark, `<meta charset>` decides. Default: UTF-8."""
    declared = _CHARSET.search(data[:4096])
    encoding = declared[1].decode().lower() if declared else "utf-8"
    return decode(data, {"iso-8859-1": "cp1252", "latin1": "cp1252", "us-ascii": "cp1252"}.get(encoding, encoding))


def _tokens(source: str) -> Iterator[Token]:
    """Yield the tokens of HTML; concatenating their raw text gives `source`."""
    begin = position = 0
    endless: set[str] = set()                                                   # keys of _WHOLE that are not closed
    while (position := source.find("<", position)) >= 0:
        opening = next((one for one in _WHOLE if source.startswith(one, position)), "")
        if opening and opening not in endless:
            end = source.find(_WHOLE[opening], position + len(opening))
            if end >= 0:
                yield from _text(source[begin:position])
                begin = end + len(_WHOLE[opening])
                yield Token("alone", source[position:begin])
                position = begin
                continue
            endless.add(opening)
        match = _TAG.match(source, position)
        if match is None:
            position += 1
            continue
        yield from _text(source[begin:position])
        name = (match["name"] or "").lower()
        if not name:
            yield Token("other", match[0])
        elif match["end"]:
            yield Token("close", match[0], name)
        else:
            alone = name in _VOID or match[0].endswith("/>")
            yield Token("alone" if alone else "open", match[0], name)
            if name in _RAW_TEXT and not alone:
                closing = re.compile(rf"</{name}[\s>]", re.IGNORECASE).search(source, match.end())
                end = closing.start() if closing else len(source)
                if end > match.end():
                    yield Token("other", source[match.end():end])
                begin = position = end
                continue
        begin = position = match.end()
    yield from _text(source[begin:])


def _text(raw: str) -> Iterator[Token]:
    if raw:
        yield Token("text", raw, text=html.unescape(raw))


def _with_opaque_joined(tokens: list[Token]) -> list[Token]:
    """Replace each element that is not translated by one token that includes its contents. Replace each tag that
    separates runs by a token of kind `other`.

    An element with `translate="yes"` inside of a `translate="no"` divides the latter into several tokens `other`.
    """
    ends = element_ends((token.kind, token.name) for token in tokens)
    exceptions = sorted(index for index in ends if _TRANSLATED.search(tokens[index].raw))
    resumed: list[tuple[int, int]] = []     # token after an exception, token after the `translate="no"` around it
    result: list[Token] = []
    index = 0
    while index < len(tokens):
        token = tokens[index]
        divided = bool(resumed) and resumed[-1][0] == index
        if divided or (token.kind == "open" and index in ends and _is_opaque(tokens, index, ends[index])):
            after = stop = resumed.pop()[1] if divided else ends[index] + 1
            if divided or (token.name not in _OPAQUE and _UNTRANSLATED.search(token.raw)):
                next_exception = bisect_left(exceptions, index if divided else index + 1)
                stop = min([after, *exceptions[next_exception:next_exception + 1]])
            if stop < after:
                resumed.append((ends[stop] + 1, after))
            inline = not divided and stop == after and token.name in _INLINE | _INLINE_OPAQUE
            if stop > index:
                result.append(Token("alone" if inline else "other", "".join(one.raw for one in tokens[index:stop])))
            index = stop
            continue
        inline = not token.name and token.kind != "other" or token.name in (
            _INLINE_VOID if token.kind == "alone" else _INLINE)
        result.append(token if inline else Token("other", token.raw))
        index += 1
    return result


def _is_opaque(tokens: list[Token], begin: int, end: int) -> bool:
    token = tokens[begin]
    if token.name in _OPAQUE or token.name in _INLINE_OPAQUE or _UNTRANSLATED.search(token.raw):
        return True
    if token.name not in ("a", "span") or end - begin > 20:
        return False
    return bool(_ADDRESS.fullmatch("".join(one.raw for one in tokens[begin:end] if one.kind == "text")))
