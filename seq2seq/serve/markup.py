"""HTML as sentences to translate, and the translated HTML.

Everything but text comes back byte for byte: tags with their attributes, comments, and the contents of elements that
are not text (code, scripts, `translate="no"`). Text is translated in runs between block elements, so that a sentence
with inline tags is translated as a whole. Inline tags keep their order. A tag is put around the same words if they
occur in the translation unchanged, such as names; otherwise at the same share of the words.

The scanner takes linear time for any input. `html.parser` takes 6 seconds for 30 kB of `<a <a <a` on Python 3.11.
"""

from __future__ import annotations

import html
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from seq2seq.data.line_splitting import split_margins
from seq2seq.serve.texts import is_translatable, split_sentences

_TAG = re.compile(r"<(?P<end>/?)(?P<name>[a-zA-Z][^\s/<>]*)(?P<attributes>(?:[^<>\"']|\"[^\"<]*\"|'[^'<]*')*+)>"
                  r"|<[!?][^<>]*>")
_ELEMENTS = {
    "inline": "a abbr acronym b bdi bdo big cite data del dfn em font i ins label mark q rp rt ruby s small span "
              "strike strong sub sup time tt u",
    "inline void": "img wbr",
    "void": "area base br col embed hr img input link meta source track wbr",
    "opaque": "canvas code iframe kbd math noscript object pre samp script style svg template textarea var",
}
_INLINE, _INLINE_VOID, _VOID, _OPAQUE = (frozenset(names.split()) for names in _ELEMENTS.values())
_MAX_SOUGHT_TAGS, _MAX_SOUGHT_CHARACTERS, _MAX_SOUGHT_PLACES = 500, 200, 20
"""Contents of inline elements are looked for in the translation only in runs with up to this number of tags, up to this
length, and at up to this number of places, which bounds the time."""
_UNTRANSLATED = re.compile(r"\btranslate\s*=\s*[\"']?no\b|\bclass\s*=\s*[\"']?[^\"'>]*\bnotranslate\b", re.IGNORECASE)
_ADDRESS = re.compile(r"\s*(?:https?://|www\.|[@#])\S+\s*")
# A word, or a single character of a script without spaces between words: Thai, Lao, Japanese, Chinese.
_SPACELESS = "\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
_WORD = re.compile(rf"[{_SPACELESS}]|[^\W{_SPACELESS}]+")
_RAW_TEXT = frozenset({"script", "style", "textarea"})


@dataclass
class _Token:
    """Piece of the source. kind: text, open, close, or other (which separates runs and is never changed)."""

    kind: str
    raw: str
    name: str = ""


@dataclass
class _Run:
    """Text with inline tags between block elements.

    tags: (position in `text`, tag) in order. translated: False if the run has no text to translate.
    """

    tokens: list[_Token]
    text: str = ""
    tags: list[tuple[int, _Token]] = field(default_factory=list)

    def __post_init__(self) -> None:
        for token in self.tokens:
            if token.kind == "text":
                self.text += html.unescape(token.raw)
            else:
                self.tags.append((len(self.text), token))

    @property
    def raw(self) -> str:
        return "".join(token.raw for token in self.tokens)


class Markup:
    """HTML, with the interface of `texts.Document`."""

    def __init__(self, source: str) -> None:
        self._pieces: list[str | _Run] = []
        for group in _runs(_with_opaque_joined(list(_tokens(source)))):
            run = _Run(group)
            translated = group[0].kind != "other" and is_translatable(run.text)
            self._pieces.append(run if translated else run.raw)
        runs = [piece for piece in self._pieces if isinstance(piece, _Run)]
        self.content = "\n".join(run.text for run in runs)
        self._lines = [split_sentences(run.text.strip().replace("\n", " ")) for run in runs]
        self.sentences = [text for line in self._lines for text in line.texts if is_translatable(text)]

    def join(self, translations: Sequence[str], target_language: str) -> str:
        """See `texts.Document.join`."""
        remaining, lines = iter(translations), iter(self._lines)
        joined = []
        for piece in self._pieces:
            if isinstance(piece, str):
                joined.append(piece)
                continue
            line = next(lines)
            before, _, after = split_margins(piece.text)
            text = line.join([next(remaining) if is_translatable(text) else text for text in line.texts],
                             target_language)
            joined.append(_with_tags(piece, before + text + after))
        return "".join(joined)


def _tokens(source: str) -> Iterator[_Token]:
    """Yield the tokens of HTML; concatenating their raw text gives `source`."""
    begin = position = 0
    comments_end = True                                                         # False: no --> follows
    while (position := source.find("<", position)) >= 0:
        if comments_end and source.startswith("<!--", position):
            end = source.find("-->", position + 4)
            comments_end = end >= 0
            if comments_end:
                yield from _text(source[begin:position])
                yield _Token("comment", source[position:end + 3])
                begin = position = end + 3
                continue
        match = _TAG.match(source, position)
        if match is None:
            position += 1
            continue
        yield from _text(source[begin:position])
        name = (match["name"] or "").lower()
        if not name:
            yield _Token("other", match[0])
        elif match["end"]:
            yield _Token("close", match[0], name)
        else:
            alone = name in _VOID or match[0].endswith("/>")
            yield _Token("alone" if alone else "open", match[0], name)
            if name in _RAW_TEXT and not alone:
                closing = re.compile(rf"</{name}[\s>]", re.IGNORECASE).search(source, match.end())
                end = closing.start() if closing else len(source)
                if end > match.end():
                    yield _Token("raw", source[match.end():end])
                begin = position = end
                continue
        begin = position = match.end()
    yield from _text(source[begin:])


def _text(raw: str) -> Iterator[_Token]:
    if raw:
        yield _Token("text", raw)


def _with_opaque_joined(tokens: list[_Token]) -> list[_Token]:
    """Replace each element that is not translated, with its contents, by one token; and each tag that separates runs
    by a token of kind `other`."""
    ends = _element_ends(tokens)
    result: list[_Token] = []
    index = 0
    while index < len(tokens):
        token = tokens[index]
        if token.kind == "open" and index in ends and _is_opaque(tokens, index, ends[index]):
            raw = "".join(one.raw for one in tokens[index:ends[index] + 1])
            result.append(_Token("other", raw))
            index = ends[index] + 1
            continue
        inline = token.kind in ("text", "comment") or token.name in (
            _INLINE_VOID if token.kind == "alone" else _INLINE)
        result.append(token if inline else _Token("other", token.raw))
        index += 1
    return result


def _element_ends(tokens: list[_Token]) -> dict[int, int]:
    """Return the index of the end tag for the index of each start tag that has one. Elements that overlap wrongly, as
    in <b><i></b></i>, end with the element around them and are left out."""
    ends: dict[int, int] = {}
    stack: list[int] = []
    open_names: dict[str, int] = {}
    for index, token in enumerate(tokens):
        if token.kind == "open":
            stack.append(index)
            open_names[token.name] = open_names.get(token.name, 0) + 1
        elif token.kind == "close" and open_names.get(token.name):
            while True:
                begin = stack.pop()
                open_names[tokens[begin].name] -= 1
                if tokens[begin].name == token.name:
                    ends[begin] = index
                    break
    return ends


def _is_opaque(tokens: list[_Token], begin: int, end: int) -> bool:
    token = tokens[begin]
    if token.name in _OPAQUE or _UNTRANSLATED.search(token.raw):
        return True
    if token.name not in ("a", "span") or end - begin > 20:
        return False
    return bool(_ADDRESS.fullmatch("".join(one.raw for one in tokens[begin:end] if one.kind == "text")))


def _runs(tokens: list[_Token]) -> Iterator[list[_Token]]:
    """Yield the tokens between separators together, and each separator alone. Inline tags at the edges of a run whose
    other end is in another run are kept in place, because the order of tags never changes."""
    run: list[_Token] = []
    for token in tokens:
        if token.kind == "other":
            if run:
                yield run
            yield [token]
            run = []
        else:
            run.append(token)
    if run:
        yield run


def _with_tags(run: _Run, translation: str) -> str:
    """Return the translation of a run with its inline tags, escaped. translation: with the run's white space around."""
    before, core, after = split_margins(run.text)
    begin, end, new_end = len(before), len(run.text) - len(after), len(translation) - len(after)
    if translation[begin:new_end] == core.replace("\n", " "):
        return run.raw
    words = [match.span() for match in _WORD.finditer(translation, begin, new_end)]
    old_words = [match.span() for match in _WORD.finditer(run.text, begin, end)]
    word_begins, word_ends = [word[0] for word in old_words], [word[1] for word in old_words]
    positions = [position for position, _ in run.tags]
    closing = _element_ends([tag for _, tag in run.tags])
    inner = {opened: closed for opened, closed in closing.items()
             if positions[opened] < end and positions[closed] > begin
             and (positions[opened] > begin or positions[closed] < end)}
    movable = {*inner, *inner.values()}
    found: dict[int, int] = {}
    places: list[int] = []
    lowest = 0
    for index, (position, tag) in enumerate(run.tags):
        if index not in movable and position <= begin:
            place = position
        elif index not in movable and position >= end:
            place = new_end + position - end
        elif index in found:
            place = found[index]
        else:
            if index in inner and len(run.tags) <= _MAX_SOUGHT_TAGS:
                content = run.text[position:positions[inner[index]]].strip()
                at = _find(content, translation, max(begin, lowest), new_end)
                if at >= 0:
                    found[index], found[inner[index]] = at, at + len(content)
            if index in found:
                place = found[index]
            elif not words:
                place = begin
            elif tag.kind == "close":
                share = bisect_left(word_begins, position) / max(1, len(old_words))
                place = words[max(1, round(share * len(words))) - 1][1]
            else:
                share = bisect_right(word_ends, position) / max(1, len(old_words))
                place = words[min(round(share * len(words)), len(words) - 1)][0]
        lowest = max(lowest, min(place, len(translation)))
        places.append(lowest)
    parts, last = [], 0
    for place, (_, tag) in zip(places, run.tags, strict=True):
        parts += [html.escape(translation[last:place], quote=False), tag.raw]
        last = place
    return "".join([*parts, html.escape(translation[last:], quote=False)])


def _find(content: str, translation: str, begin: int, end: int) -> int:
    """Return the index of `content` between words of the translation; -1 if it is not there, empty or too long."""
    if not 0 < len(content) <= _MAX_SOUGHT_CHARACTERS:
        return -1
    for _ in range(_MAX_SOUGHT_PLACES):
        begin = translation.find(content, begin, end)
        if begin < 0 or not (_in_one_word(translation[begin - 1:begin + 1])
                             or _in_one_word(translation[begin + len(content) - 1:begin + len(content) + 1])):
            return begin
        begin += 1
    return -1


def _in_one_word(characters: str) -> bool:
    """Return True if both of two characters belong to the same word."""
    match = _WORD.match(characters)
    return match is not None and match.end() == 2
