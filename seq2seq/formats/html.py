"""HTML: blocks of text with inline tags, found by a scanner.

Everything but text comes back byte for byte: tags with their attributes, comments, and the contents of elements that
are not translated (code, scripts, `translate="no"`, other languages). Only `lang` becomes the target language. A run
is the text, with its inline tags, between two tags of block elements. Each run is translated as a whole, so that inline
tags do not divide its sentences. An element with `translate="yes"` is translated even if an element around it has
`translate="no"`, as in HTML 5 and W3C ITS 2.0.

The scanner takes linear time for any input. `html.parser` takes 6 seconds for 30 kB of `<a <a <a` on Python 3.11.
"""

from __future__ import annotations

import html
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from seq2seq.formats.block import MAX_TAGS, Block, decode, require_count
from seq2seq.formats.html_templates import Code, find_code
from seq2seq.formats.inline_tags import Tag, element_ends
from seq2seq.formats.runs import RunDocument, Token
from seq2seq.formats.spans import Edit, replace_spans
from seq2seq.formats.tags_in_text import UNTRANSLATED, VOID
from seq2seq.formats.units import Unit
from seq2seq.languages import is_right_to_left, is_same_language
from seq2seq.tokenizers.line_splitting import SENTENCE_MARKS

# As in HTML 5, a quote begins the value of an attribute only after =.
_TAG = re.compile(r"<(?P<end>/?)(?P<name>[a-zA-Z][^\s/<>]*+)"
                  r"(?P<attributes>(?:[^<>=]|=\s*+(?:\"[^\"]*\"|'[^']*'|(?![\"'])))*+)>|<![^<>]*>")
_ELEMENTS = {
    "block": "address area article aside audio base basefont bgsound blockquote body br button caption center col "
             "colgroup datalist dd details dialog dir div dl dt embed fieldset figcaption figure footer form frame "
             "frameset h1 h2 h3 h4 h5 h6 head header hgroup hr html input legend li link main marquee menu meta nav "
             "noscript ol optgroup option p param search section select summary table tbody td template tfoot th thead "
             "title tr ul video",
    "inline opaque": "code kbd math rp rt rtc samp svg var",
    "opaque": "canvas iframe listing noembed noframes object plaintext pre script style textarea xmp",
    # They may be a part of a word, as in `<b>T</b>wo`. Of others, such as links, two neighbours are two texts.
    "part of a word": "abbr acronym b bdi bdo big cite code data del dfn em font i ins kbd mark nobr q s samp small "
                      "span strike strong sub sup time tt u var",
}
_BLOCK, _INLINE_OPAQUE, _OPAQUE, _PARTS_OF_WORDS = (frozenset(names.split()) for names in _ELEMENTS.values())
_BLOCK |= _OPAQUE
_CHARSET = re.compile(rb"<meta[^>]{0,200}charset\s*=\s*[\"']?([A-Za-z0-9._-]+)", re.IGNORECASE)
_ROOTS = frozenset({"html", "body"})
_LANGUAGE = re.compile(r"((?<![\w-])lang\s*+=\s*+[\"']?)(?!und|mul)([a-z]{2,3}(?:-[a-z\d]+)*+)(?=[\s\"'>])",
                       re.IGNORECASE)
_DIRECTION = re.compile(r"(\sdir\s*+=\s*+[\"']?)(?:ltr|rtl)\b", re.IGNORECASE)
_TRANSLATED = re.compile(r"\btranslate\s*=\s*[\"']?yes\b", re.IGNORECASE)
_ADDRESS = re.compile(r"(?:https?://|www\.|[@#])\S+|[\ue000-\uf8ff]+")
_REFERENCE = re.compile(r"&(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,40});")
_SIGN = re.compile(r"(?i)\W*+(?:\d[\d\W]*+[a-z]?|[a-z](?:[,;\s]++[a-z])*+|[ivxlc]{1,7})?\W*|\[\w{1,12}\s\d{1,4}\]")
"""Text of a reference to a note: signs, numbers or letters."""
_NOTE = re.compile(r"\b(?:type|role|class)=[\"']?(?:[\w-]++\s)*(?:doc-|foot)?(?:note-?(?:back)?ref|pagebreak|backlink)")
_LINK_TO_PART = re.compile(r"\shref\s*=\s*[\"']?[^\s\"'>#]*#", re.IGNORECASE)
_EXPONENT = re.compile(r"[-+\u2212\u2013]?\d*[-+\u2212\u2013]?")
_SYMBOL = re.compile(r"(?<![^\W_])[^\W_]{1,2}\Z")
"""Word so short that a superscript number behind it is an exponent or part of a unit, as in km<sup>2</sup>."""
_CLASS = re.compile(r"\sclass\s*=\s*[\"']?([^\"'>]*)", re.IGNORECASE)
_ICON = re.compile(r"(?:\A|[\s_-])(?:icons?|symbols)(?:-(?:outlined?|round(?:ed)?|sharp|two-tone|filled))?(?:\s|\Z)")
_GLYPH = re.compile(r"[a-z][a-z0-9_:-]*|[^\w\s]+")
_PICTURES = frozenset({"img", "picture", "svg"})
_SENTENCE_END = re.compile(rf"[{SENTENCE_MARKS}\u3002\uff01\uff1f][\"')\]\u201d\u2019\u00bb]*\Z")
_RAW_TEXT = frozenset({"script", "style", "textarea"})


class HtmlDocument(RunDocument):
    """HTML. An element that names another language than that of the page is not translated."""

    def decode(self, data: bytes) -> tuple[str, str]:
        return decode_html(data)

    def tokens(self) -> Iterable[Token]:
        require_count(sum(map(self.text.count, ("<", "{{", "{%", "{#", "{!!", "@"))), MAX_TAGS, "tags")
        tokens = list(_tokens(self.text[self.begin:]))
        root = next((_LANGUAGE.search(token.raw) for token in tokens if token.name == "html"), None)
        self._language = self.languages[0] or (root[2] if root else "")
        _mark_untranslated(tokens, self._language)
        return _with_borders(_with_opaque_joined(tokens))

    def block(self, text: str, tags: tuple[Tag, ...], place: str) -> Block:
        return Block(text, tags, place, syntax=("template",), markup_in_text=False)

    def write(self, unit: Unit, block: Block) -> str:
        table = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", **_references(unit.info)})
        codes = [re.escape(token.text) for token in unit.info if token.kind == "value"]
        divide = re.compile(f"({'|'.join(codes)})" if codes else r"(?!)").split

        def escape(text: str) -> str:
            return "".join(part if index % 2 else part.translate(table) for index, part in enumerate(divide(text)))

        return block.serialize(escape)

    def other_edits(self, language: str) -> Iterable[Edit]:
        for begin, token in self.markup:
            if token.kind in ("open", "other") and (tag := _TAG.fullmatch(token.raw)):
                yield begin, begin + len(token.raw), self._in_language(tag, language)

    def edits(self, unit: Unit, blocks: Sequence[Block], language: str) -> Iterable[Edit]:
        tags = tuple(replace(tag, raw=self._in_language(found, language)) if tag.kind == "open" and (
            found := _TAG.fullmatch(tag.raw)) else tag for tag in blocks[0].tags)
        return super().edits(unit, [replace(blocks[0], tags=tags)], language)

    def _in_language(self, tag: re.Match[str], language: str) -> str:
        """Return a tag that names the target language and its direction if it names those of the page. The root element
        always does, and it gets `dir` for a language that is written from right to left."""
        name = (tag["name"] or "").lower()
        named = _LANGUAGE.search(tag[0])
        if name not in _ROOTS and (named is None or not is_same_language(named[2], self._language)):
            return tag[0]
        from_right = is_right_to_left(language)
        result = _LANGUAGE.sub(rf"\g<1>{language}", tag[0])
        result = _DIRECTION.sub(rf"\g<1>{'rtl' if from_right else 'ltr'}", result)
        if name == "html" and from_right and not tag["end"] and not _DIRECTION.search(result):
            result = f'{result[:len("<html")]} dir="rtl"{result[len("<html"):]}'
        return result


def decode_html(data: bytes) -> tuple[str, str]:
    """Decode an HTML document; see `decode`. Without a byte order mark, `<meta charset>` decides. Default: UTF-8."""
    declared = _CHARSET.search(data[:4096])
    encoding = declared[1].decode().lower() if declared else "utf-8"
    return decode(data, {"iso-8859-1": "cp1252", "latin1": "cp1252", "us-ascii": "cp1252"}.get(encoding, encoding))


def _tokens(source: str) -> Iterator[Token]:
    """Yield the tokens of HTML; concatenating their raw text gives `source`."""
    codes = find_code(source)
    edits = [(code.begin, code.end, "x" * (code.end - code.begin)) for code in codes]
    markup = replace_spans(source, edits)                       # without the quotes and brackets of template code
    begin = position = 0
    is_endless = False                                          # True after a comment that is not closed
    while (position := markup.find("<", position)) >= 0:
        if markup.startswith("<!--", position) and not is_endless:
            end = markup.find("-->", position + 4)
            if end >= 0:
                yield from _text(source, begin, position, codes)
                begin = end + 3
                yield Token("alone", source[position:begin])
                position = begin
                continue
            is_endless = True
        match = _TAG.match(markup, position)
        if match is None:
            position += 1
            continue
        yield from _text(source, begin, position, codes)
        name = written = (match["name"] or "").lower()
        if (local := name.rpartition(":")[2]) in _OPAQUE or local in _INLINE_OPAQUE:
            name = local                                                        # <m:math> of XHTML
        raw = source[position:match.end()]
        begin = position = match.end()
        if not name:
            yield Token("other", raw)
        elif match["end"]:
            yield Token("close", raw, name)
        else:
            alone = name in VOID or raw.endswith("/>")
            yield Token("alone" if alone else "open", raw, name)
            if name in _RAW_TEXT and not alone:
                closing = re.compile(rf"</{re.escape(written)}[\s>]", re.IGNORECASE).search(markup, begin)
                position = closing.start() if closing else len(source)
                if position > begin:
                    yield Token("other", source[begin:position])
                begin = position
    yield from _text(source, begin, len(source), codes)


def _text(source: str, begin: int, end: int, codes: Sequence[Code]) -> Iterator[Token]:
    """Yield the tokens of a text from `begin` to `end`. codes: template code of the whole source."""
    for code in codes[bisect_left(codes, (begin,)):bisect_left(codes, (end,))]:
        raw = source[code.begin:code.end]
        yield from _words(source[begin:code.begin])
        yield Token(code.kind, raw, text=raw if code.kind == "value" else "")
        begin = code.end
    yield from _words(source[begin:end])


def _words(raw: str) -> Iterator[Token]:
    """Yield the token of a text. Soft hyphens are left out: they divide words of the source language."""
    if raw:
        yield Token("text", raw, text=html.unescape(raw).replace("\u00ad", ""))


def _references(tokens: Sequence[Token]) -> dict[str, str]:
    """Return the character references of a text, such as `&#123;`, by the characters that they stand for.

    A translation has them for these characters, too: what reads the page may take the character itself for markup.
    """
    found = [match[0] for token in tokens if token.kind == "text" for match in _REFERENCE.finditer(token.raw)]
    characters = {html.unescape(one): one for one in found}
    return {one: reference for one, reference in characters.items()
            if len(one) == 1 and not (one.isascii() and one.isalnum())}


def _mark_untranslated(tokens: Sequence[Token], language: str) -> None:
    """Set `Token.is_translated` of the tags that say it, by `translate`, by a class, or by a language.

    language: that of the page; "" if it is not known. The language of the root element is often that of a template, and
    so does not count.
    """
    ends = element_ends((token.kind, token.name) for token in tokens)
    others: list[int] = []                                      # ends of the elements around in another language
    for index in sorted(ends):
        token = tokens[index]
        while others and others[-1] < index:
            others.pop()
        named = _LANGUAGE.search(token.raw) if language and token.name not in _ROOTS else None
        if _TRANSLATED.search(token.raw) or UNTRANSLATED.search(token.raw):
            token.is_translated = UNTRANSLATED.search(token.raw) is None
        elif named and not is_same_language(named[2], language):
            token.is_translated = False
            others.append(ends[index])
        elif named and others:
            token.is_translated = True


def _with_opaque_joined(tokens: list[Token]) -> list[Token]:
    """Replace each element that is not translated by one token that includes its contents. Replace each tag that
    separates runs by a token of kind `other`.

    An element that is translated inside of one that is not divides the latter into several tokens `other`.
    """
    ends = element_ends((token.kind, token.name) for token in tokens) | _ruby_ends(tokens)
    exceptions = sorted(index for index in ends if tokens[index].is_translated)
    resumed: list[tuple[int, int]] = []     # token after an exception, token after the element around it
    result: list[Token] = []
    index = 0
    while index < len(tokens):
        token = tokens[index]
        divided = bool(resumed) and resumed[-1][0] == index
        if divided or (token.kind == "open" and index in ends and _is_opaque(tokens, index, ends[index])):
            after = stop = resumed.pop()[1] if divided else ends[index] + 1
            if divided or (token.name not in _OPAQUE and token.is_translated is False):
                next_exception = bisect_left(exceptions, index if divided else index + 1)
                stop = min([after, *exceptions[next_exception:next_exception + 1]])
            if stop < after:
                resumed.append((ends[stop] + 1, after))
            inline = not divided and stop == after and token.name not in _BLOCK
            raw = "".join(one.raw for one in tokens[index:stop])
            if token.name == "a" and inline and stop < len(tokens):
                raw = _with_brackets(raw, result, tokens[stop])
            if stop > index:
                result.append(Token("alone" if inline else "other", raw, "img" if _is_icon(token) else token.name))
            index = stop
            continue
        result.append(Token("other", token.raw) if token.name in _BLOCK else token)
        index += 1
    return result


def _with_brackets(raw: str, before: Sequence[Token], after: Token) -> str:
    """Return the source of a link that is kept, with the brackets around it, as in "[<a>1</a>]". The texts before and
    after it lose these brackets."""
    last = before[-1] if before else None
    if last is None or last.text[-1:] + after.text[:1] not in ("[]", "()") or (
            last.raw[-1:] + after.raw[:1] != last.text[-1:] + after.text[:1]):
        return raw
    raw = last.raw[-1] + raw + after.raw[0]
    last.raw, last.text, after.raw, after.text = last.raw[:-1], last.text[:-1], after.raw[1:], after.text[1:]
    return raw


def _with_borders(tokens: Sequence[Token]) -> list[Token]:
    """Separate the runs of neighbours that touch without white space, but are no parts of one word.

    These are two links, or two elements that this module does not know, as `<a>Two dogs</a><a>A red car</a>`; texts on
    both sides of a picture; texts between which a sentence ends; and elements of which the second one begins with an
    upper-case letter. Other neighbours, as in `<b>T</b>wo`, may be parts of a word.
    """
    result: list[Token] = []
    last: Token | None = None                                                   # text of the run
    since = 0                                                                   # index in `result` behind it
    for token in tokens:
        if token.kind == "other":
            last = None
        elif token.kind in ("text", "value") and token.text:
            between = result[since:]
            if last is not None and between and not last.text[-1:].isspace() and not token.text[:1].isspace():
                result[since:] = _separated(between, last.text, token.text)
            last, since = token, len(result) + 1
        result.append(token)
    return result


def _separated(tags: Sequence[Token], before: str, after: str) -> Sequence[Token]:
    """Return the tags between two texts, with a token `other` if they separate runs."""
    picture = next((number for number, tag in enumerate(tags)
                    if tag.kind == "alone" and tag.name in _PICTURES), None)
    if picture is not None:
        return [*tags[:picture], Token("other", tags[picture].raw), *tags[picture + 1:]]
    opened = next((number for number, tag in enumerate(tags) if tag.kind == "open"), len(tags))
    closing, opening = tags[opened - 1:opened], tags[opened:opened + 1]         # of neighbours
    ends_sentence = after[0].isalpha() and not after[0].islower() and _SENTENCE_END.search(before[-3:])
    if closing and opening and closing[0].kind == "close":
        parts = closing[0].name in _PARTS_OF_WORDS and opening[0].name in _PARTS_OF_WORDS
        if parts and not ends_sentence and (not after[0].isupper() or before[-1].isupper()):
            return tags
    elif not ends_sentence:
        return tags
    return [*tags[:opened], Token("other", ""), *tags[opened:]]


def _ruby_ends(tokens: Sequence[Token]) -> dict[int, int]:
    """Return the index of the last token of each <rt> and <rp>, whose end tags may be left out."""
    ends: dict[int, int] = {}
    begin = None
    for index, token in enumerate(tokens):
        if token.name in ("rb", "rp", "rt", "rtc", "ruby"):
            if begin is not None:
                ends[begin] = index if (token.kind, token.name) == ("close", tokens[begin].name) else index - 1
            begin = index if token.kind == "open" and token.name in ("rp", "rt") else None
        elif token.name in _BLOCK:
            begin = None
    return ends


def _is_opaque(tokens: list[Token], begin: int, end: int) -> bool:
    """Return True if an element is kept as a whole. begin, end: indices of its tags."""
    token = tokens[begin]
    if token.name in _OPAQUE or token.name in _INLINE_OPAQUE or token.is_translated is False:
        return True
    if token.name in _BLOCK or end - begin > 20:
        return False
    text = "".join(one.text for one in tokens[begin:end] if one.kind in ("text", "value")).strip()
    if token.name in ("a", "i", "span") and _ADDRESS.fullmatch(text):
        return True
    if _is_icon(token):
        return _GLYPH.fullmatch(text) is not None
    return bool(text) and _SIGN.fullmatch(text) is not None and _is_reference(tokens, begin, text)


def _is_icon(token: Token) -> bool:
    """Return True if the text of an element is the name of a glyph, as in <i class="material-icons">home</i>."""
    classes = _CLASS.search(token.raw)
    return token.name.endswith("-icon") or token.name in ("i", "span", "em") and classes is not None and (
        _ICON.search(classes[1]) is not None)


def _is_reference(tokens: list[Token], begin: int, sign: str) -> bool:
    """Return True if an element refers to a note. begin: index of its tag. sign: its text.

    A superscript does, unless it is the ending of a word, as in 1<sup>e</sup>, or an exponent; and a link to a part of
    a document whose number touches a word. In "see section <a>2</a>" the number is part of the text.
    """
    token = tokens[begin]
    closed = [one for one in tokens[max(0, begin - 5):begin] if one.kind != "close" or one.name in _BLOCK | {"sup"}]
    before = closed[-1].text if closed else ""
    if _NOTE.search(token.raw):
        return True
    if token.name == "sup" and sign.isalpha():
        return not before or before[-3:].isalpha() and before[-1].islower() and len(before) > 2
    if token.name == "sup":
        return not (_EXPONENT.fullmatch(sign) and _SYMBOL.search(before[-3:]))
    return token.name == "a" and _LINK_TO_PART.search(token.raw) is not None and (
        not sign[0].isalnum() or not before[-1:].isspace())
