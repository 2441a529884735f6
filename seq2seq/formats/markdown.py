"""Markdown (CommonMark with tables, and the extensions of site generators that `markdown_parser` knows) as blocks.

markdown-it finds the blocks and their inline tokens, with their places. The document is never rendered from tokens;
only the spans of changed blocks are replaced in the source.
"""

from __future__ import annotations

import json
import re
import tomllib
from bisect import bisect_right
from collections import ChainMap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from markdown_it.common.html_blocks import block_names
from markdown_it.common.utils import unescapeAll
from markdown_it.token import Token
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from seq2seq.formats.block import Block, require_count
from seq2seq.formats.heading_ids import with_moved_links
from seq2seq.formats.inline import find_core, shift_tags
from seq2seq.formats.inline_tags import Tag, TagKind, pair_tags
from seq2seq.formats.markdown_parser import parser
from seq2seq.formats.plain_text import one_line
from seq2seq.formats.spans import Edit, replace_spans
from seq2seq.formats.tags_in_text import VOID
from seq2seq.formats.texts import is_text
from seq2seq.formats.units import Unit, UnitDocument
from seq2seq.tokenizers.canonical_text import is_translatable

MAX_CHARACTERS = 10_000_000
"""Maximum length of a document, because the parser takes several kB of memory for each line."""
MAX_MARKS = 400_000
"""Maximum number of characters that may be markup, each of which takes the parser up to 20 microseconds."""
_MARKS = "[]!<&*_~`\\|>{}$:=^+"
_LINE_END = re.compile(r"\r\n|\r|\n")
_FRONT_MATTER = re.compile(r"(?:---[ \t]*\r?\n(?:(?!---|\.\.\.).*\r?\n)*+(?:---|\.\.\.)|"
                           r"\+\+\+[ \t]*\r?\n(?:(?!\+\+\+).*\r?\n)*+\+\+\+|"
                           r"\{[ \t]*\r?\n(?:(?!\}).*\r?\n)*+\})[ \t]*(?=\r?\n|\Z)")
_FIELD = re.compile(r"^(?P<key>(?i:title|sub_?title|description|summary|sidebar_label|nav_?title|link_?title)[ \t]*"
                    r"(?P<sign>[:=])[ \t]*)(?P<value>[^\s#].*?)[ \t]*\r?$(?!\n[ \t])", re.MULTILINE)
"""Field of the front matter that is text for readers, on one line."""
_LINK_TITLE = re.compile(r"""(?<=\s)(?:(["'])(?P<quoted>.*)\1|\((?P<braced>.*)\))\Z""", re.DOTALL)
_HTML = re.compile(r"<(?P<end>/?)(?P<name>[A-Za-z][^\s/>]*)")
_ESCAPED = re.compile(r"(?P<replaced>[]${}^~]|[=+](?=[=+])|:(?=[\w+-])|\\(?=[(\[]))"
                      r"|[\\`*\[<&!]|(?<![^\W_])_|_(?![^\W_])")
"""Marks that get a backslash if the text would be read otherwise without it. "replaced": those that become entities
instead, because not all programs know a backslash there, or because it would begin a formula."""
_COMMONMARK = frozenset(".,;:!?'\"()-*_`<>&#+[]/\\")
"""Marks of which the parser knows where they are text."""
_LINE_MARKUP = re.compile(
    r"(?P<number>\d{1,9})[.)](?=\s|$)|(?:#{1,6}|[-+*]|=+|-+)(?=\s|$)"
    r"|[>|<]|```|~~~|:?-+:?\s*\||---|\[(?=[^\]]*\]:)|~(?=\s|$)|:|\+\+\+|!!!|\?\?\?|===|:::|///|\$\$|%"
    r"|(?:[*_-][ \t]*){3,}$")
_PLAIN = re.compile(r"(?!(?:im|ex)port\b)[^\W\d_](?:[^\W_]|[ ,.;?'()/-])*+")
"""Text that is no markup anywhere."""
_ODD_START = re.compile(r"[^\w\s&\\]|_|import\b|export\b")
_FRAMES = {"line": ("", ""), "underlined": ("", "\n---"), "heading": ("# ", ""), "cell": ("|", "|\n|-|"),
           "row": ("", "|b\n-|-"), "term": ("", "\n: a"), "alt": ("![", "](a)"), "note": ("^[", "]")}
"""Kinds of texts, each with the smallest document in which the parser reads such a text. "line": paragraph.
"underlined": heading above a line of = or -, or paragraph above a rule of -, as "> a" above "---". "heading": heading
after #. "cell": cell of a table after a |. "row": cell of a table at the beginning of a line, without a | before it.
"term": term above its definition. "alt": text of an image. "note": footnote in a text. Four kinds have frames of their
own: "title" (of an admonition or a tab), "argument" (of a directive), "quoted" (title of a link) and "field" (of the
front matter)."""
_CLOSING = re.compile(r"(?<=[ \t])#(?=#*[ \t]*$)|^#(?=#*[ \t]*$)")
_BREAKS = frozenset({"br", *block_names})
_CODE = frozenset({"code", "kbd", "samp", "var"})
_NOTE = re.compile(r"(?<=[^\W\d_]{3}|..[^\w\s])<sup[^<>]*+>(?:[^<>A-Za-z[]++|\[[^]A-Za-z]++\]\([^()\s]*+\))</sup>")
"""Reference to a note. The number of a shorter word, as in m<sup>2</sup>, is an exponent."""
_ELEMENTS = {"*": "em", "_": "em", "**": "strong", "__": "strong", "~~": "del", "==": "mark", "^^": "ins"}


@dataclass(frozen=True, slots=True)
class _Text:
    """Text with tags in the document.

    kind, frame: see _FRAMES. text, tags: those of the whole span. core: part of the text and tags that is the block;
    see `find_core`. escapes: see `_escapes`.
    """

    kind: str
    frame: tuple[str, str]
    text: str
    tags: tuple[Tag, ...]
    core: tuple[int, int, int, int]
    escapes: dict[str, str]

    def block(self, place: str) -> Block:
        """Return the part that is translated."""
        begin, end, first, last = self.core
        return Block(self.text[begin:end], shift_tags(self.tags[first:last], begin, end), place,
                     split=self.kind not in ("alt", "quoted", "title", "argument", "field"), syntax=(),
                     markup_in_text=False)


@dataclass(frozen=True, slots=True)
class _Span:
    """Place of a text in the source.

    begin, end: character offsets. prefix: line end, with the indentation or `>` of the next line. inner: texts inside
    of the tags of `text`, each with the tag that it is in, and its offsets in the tag.
    """

    begin: int
    end: int
    prefix: str
    text: _Text
    inner: tuple[tuple[str, int, int, _Text], ...] = ()

    def finish(self, result: str) -> str:
        """Return the source of a text or a tag as it stands in the document."""
        if self.text.kind in ("cell", "row"):
            return result.replace("|", "\\|")
        return result.replace("\n", self.prefix) if self.prefix else result

    def replace_tag(self, source: str, old: str, new: str) -> str:
        """Return the source of the text with another tag, `new`, in place of `old`."""
        lines = (self.finish(old) if self.text.kind in ("cell", "row") else old).split("\n")
        pattern = r"(?:\r\n|\r|\n)[ \t>]*".join(re.escape(line.lstrip(" \t")) for line in lines)
        return re.sub(pattern, lambda match: self.finish(new), source)


class MarkdownDocument(UnitDocument):
    """Markdown. A text that Markdown cannot express in its place stays as it was."""

    def find_units(self) -> Iterator[Unit]:
        require_count(len(self.text), MAX_CHARACTERS, "characters")
        require_count(sum(map(self.text.count, _MARKS)), MAX_MARKS, "characters of markup")
        self._environment: dict[str, Any] = {}
        for span, line in self._find_spans():
            if texts := _translatable(span):
                yield Unit(span.begin, span.end, [text.block(f"line {line}") for text in texts], info=span)

    def edits(self, unit: Unit, blocks: Sequence[Block], language: str) -> Iterator[Edit]:
        changed = {id(text): new for text, old, new in zip(_translatable(unit.info), unit.blocks, blocks, strict=True)
                   if (new.text, new.tags) != (old.text, old.tags)}
        yield unit.begin, unit.end, self._render(unit.info, changed)

    def _render(self, span: _Span, changed: dict[int, Block]) -> str:
        """Return the source of a span. changed: translated block by the id of its text."""
        inner: dict[str, dict[tuple[int, int], str]] = {}               # equal tags have equal texts
        for raw, begin, end, text in span.inner:
            written = self._write(text, changed.get(id(text)))
            if written is not None:
                inner.setdefault(raw, {})[begin, end] = written
        raws = {raw: replace_spans(raw, [(*place, new) for place, new in edits.items()])
                for raw, edits in inner.items()}
        result = self._write(span.text, changed.get(id(span.text)), raws)
        if result is not None:
            return span.finish(result)
        source = self.text[span.begin:span.end]
        for old, new in raws.items():
            source = span.replace_tag(source, old, new)
        return source

    def finish(self, edits: list[Edit], language: str) -> bytes:
        """Return the document with its edits. Links to its headings lead to the translated headings."""
        if not edits:
            return self.encode(self.text)
        text, unknown = with_moved_links(self.text, replace_spans(self.text, edits), lambda source: parser().parse(
            _without_front_matter(source)[1]))
        self.left_out += [f"line {self.line_at(place)}" for place in unknown]
        return self.encode(text)

    def _find_spans(self) -> Iterator[tuple[_Span, int]]:
        """Yield the spans of text, and the number of the first line of each span."""
        source = self.text
        start = self.begin
        begins = [0, *(match.end() for match in _LINE_END.finditer(source)), len(source)]
        ends = [*(match.start() for match in _LINE_END.finditer(source)), len(source)]
        front, text = _without_front_matter(source)
        if front:
            for field, content in _fields(front[0]):
                begin = start + field.start("value")
                yield (_Span(begin, start + field.end("value"), "", _text("field", content, (), (field["key"], ""))),
                       bisect_right(begins, begin))
            start = front.end()
        kind = "line"
        position = 0
        row = -1
        for token in parser().parse(text, self._environment):
            if token.type == "heading_open":
                kind = "heading" if token.markup.startswith("#") else "underlined"
            elif token.type in _OPENING:
                kind = _OPENING[token.type]
            elif token.type == "definition" and token.map:
                end = ends[token.map[1] - 1]
                yield from self._spans_of_title(max(start, begins[token.map[0]]), end, token.meta.get("title", ""),
                                                token.map[0] + 1)
            elif token.type == "inline" and token.map and token.children:
                first, lines = token.map[0], token.content.split("\n")
                begin = max(start, begins[first])
                prefix = ""
                frame = None
                if kind == "title":
                    begin += token.meta["column"]
                    end = begin + len(token.content)
                    frame = token.meta["frame"]
                    kind = "argument" if "{" in frame[0] else kind      # MyST could read it as the first paragraph
                elif kind in ("cell", "row"):
                    position = position if row == first else begin
                    row = first
                    found = _find_cell(source, position, ends[first], token.content)
                    if found is None:
                        self.unread += [f"line {first + 1}"] * is_translatable(token.content)
                        continue
                    begin, end = found
                    kind = "cell" if "|" in source[begins[first]:begin] else "row"
                    position = end
                else:
                    next_line = first + len(lines)
                    below = source[begins[next_line]:ends[next_line]] if next_line < len(ends) else ""
                    if kind == "line" and "-" in below and not below.lstrip("> \t").strip("-:| \t"):
                        kind = "underlined"
                    line_end = _end_of_text(source[begin:ends[first]], lines[0], kind) + begin
                    begin = line_end - len(lines[0])
                    if source[begin:line_end] != lines[0]:
                        self.unread += [f"line {first + 1}"] * is_translatable(token.content)
                        continue
                    end = line_end
                    if len(lines) > 1:
                        number = first + len(lines) - 1
                        end = _end_of_text(source[begins[number]:ends[number]], lines[-1], kind) + begins[number]
                        second = source[begins[first + 1]:ends[first + 1]]
                        column = next((one for one in map(second.find, (lines[1], lines[1].strip())) if one >= 0), 0)
                        prefix = source[ends[first]:begins[first + 1]] + second[:column]
                content, tags, inner = _inline(token.children, token.content)
                yield _Span(begin, end, prefix, _text(kind, content, tags, frame, token.children), tuple(
                    (raw, low, high, found_text) for raw, low, high, inner_kind, title in inner
                    if (found_text := self._inner_text(raw[low:high], inner_kind, title)) is not None)), first + 1

    def _inner_text(self, content: str, kind: str, title: str) -> _Text | None:
        """Return a text inside of a tag; None if it is not for people. title: text of a quoted title."""
        children = parser().parseInline(content, self._environment)[0].children or []
        if kind not in _FRAMES:
            frame = f"[a](b {kind}", f"{_QUOTES[kind]})"
            return _text("quoted", title, (), frame, children) if is_text(title) else None
        text, tags, _ = _inline(children, content)
        return _text(kind, text, tags, None, children) if is_text(text) else None

    def _spans_of_title(self, begin: int, end: int, title: str, line: int) -> Iterator[tuple[_Span, int]]:
        """Yield the title at the end of the definition of a link, as in `_find_spans`."""
        found = _find_title(self.text[begin:end].rstrip(), 0, title)
        if found and (text := self._inner_text(self.text[begin + found[0]:begin + found[1]], found[2], title)):
            yield _Span(begin + found[0], begin + found[1], "", text), line

    def _write(self, span: _Text, new: Block | None, raws: dict[str, str] | None = None) -> str | None:
        """Return the source of a translated block; None if the block did not change, or if no source would be read as
        this block, which is then left out. raws: tags whose source changes.
        """
        written = self._written(span, new, raws or {}) if new else None
        if new and written is None:
            self.left_out.append(new.place)
        return written

    def _written(self, span: _Text, new: Block, raws: dict[str, str]) -> str | None:
        """See `_write`. If the parser would not read the text as it is, emphasis becomes HTML, which may stand in words
        and beside punctuation; if that does not suffice, all marks in the text are escaped, too."""
        begin, end, first, last = span.core
        core = one_line(new.text)
        text = span.text[:begin] + core + span.text[end:]
        if span.kind == "quoted":
            return _write_quoted(text, span.frame, span.escapes)
        if span.kind == "field":
            return _write_field(text, span.frame[0], span.text)
        change = len(text) - len(span.text)
        tags = [*span.tags[:first], *(Tag(min(tag.position, len(core)) + begin, tag.raw, tag.kind, tag.pair)
                                      for tag in new.tags),
                *(Tag(max(tag.position, end) + change, tag.raw, tag.kind, tag.pair) for tag in span.tags[last:])]
        tags = _without_empty_lines(text, _without_inner_spaces(text, tags))
        # A line of a code span could be read as the second line of a table.
        tags = [replace(tag, raw=raws.get(tag.raw, tag.raw)) for tag in tags]
        tags = [replace(tag, raw=tag.raw.replace("\n", " ")) if tag.raw.startswith("`") else tag for tag in tags]
        html = [*map(_as_html, tags)]
        attempts = [(tags, False), (html, False), (html, True)]
        if core.count("$") > span.text.count("$"):                      # for some programs the end of a formula
            attempts = attempts[2:]
        for placed, is_escaped in attempts:
            result = _written(text, placed, is_escaped, span)
            if _reads_as(result, text, placed, span, self._environment):
                return result
        return None


def _without_front_matter(source: str) -> tuple[re.Match[str] | None, str]:
    """Return the front matter, and the document with empty lines in its place."""
    start = int(source.startswith("\ufeff"))
    front = _FRONT_MATTER.match(source, start)
    start = front.end() if front else start
    return front, "\n" * len(_LINE_END.findall(source, 0, start)) + source[start:]


_OPENING = {"paragraph_open": "line", "td_open": "cell", "th_open": "cell", "dt_open": "term", "title_open": "title"}
_QUOTES = {'"': '"', "'": "'", "(": ")"}


def _text(kind: str, text: str, tags: tuple[Tag, ...], frame: tuple[str, str] | None = None,
          children: Sequence[Token] = ()) -> _Text:
    return _Text(kind, frame or _FRAMES[kind], text, tags, find_core(text, tags), _escapes(children))


def _escapes(children: Sequence[Token]) -> dict[str, str]:
    """Return the source of each character that a text has as an escape or an entity, such as `\\{` or `&lbrace;`.

    A translation has it for this character, too: a program may know more markup than the parser. A mark of CommonMark
    that stands in the text without an escape, too, needs none.
    """
    plain = "".join(token.content for token in children if token.type == "text")
    return {token.content: token.markup for token in children if token.type == "text_special"
            and len(token.content) == 1 and not (token.content.isascii() and token.content.isalnum())
            and not (token.content in _COMMONMARK and token.content in plain)}


def _translatable(span: _Span) -> list[_Text]:
    """Return the texts of a span that are blocks."""
    return [*([span.text] if is_translatable(span.text.text) else []), *(text for _, _, _, text in span.inner)]


def _fields(front: str) -> Iterator[tuple[re.Match[str], str]]:
    """Yield the fields of the front matter that are text for readers, with their values."""
    sign = {"-": ":", "+": "="}.get(front[0])
    for field in _FIELD.finditer(front):
        value = _read_field(field["key"] + field["value"]) if field["sign"] == sign else None
        if value is not None and is_text(value):
            yield field, value


def _read_field(line: str) -> str | None:
    """Return the string that a line of YAML or TOML assigns; None if it assigns something else."""
    try:
        if _FIELD.fullmatch(line)["sign"] == "=":                       # type: ignore[index]
            values = tomllib.loads(line)
        else:
            values = YAML(typ="safe", pure=True).load(line)
    except (YAMLError, ValueError, TypeError):
        return None
    value = next(iter(values.values())) if isinstance(values, dict) and len(values) == 1 else None
    return value if isinstance(value, str) and " #" not in line.replace(value, "") else None


def _write_field(text: str, key: str, old: str) -> str | None:
    """Return the source of a value in the front matter; None if it would not be read as the text."""
    return next((value for value in (text, json.dumps(text, ensure_ascii=False))
                 if _read_field(key + value) == text), None)


def _write_quoted(text: str, frame: tuple[str, str], escapes: dict[str, str]) -> str | None:
    """Return the source of the title of a link in its quotes; None if it would not be read as the text."""
    for result in ("".join(escapes.get(one, one) for one in text), re.sub(r"[\\&\"'()]", r"\\\g<0>", text)):
        children = parser().parseInline(frame[0] + result + frame[1])[0].children or []
        if children and children[0].attrs.get("title") == text and len(children) == 3:
            return result
    return None


def _find_title(raw: str, begin: int, title: str | float) -> tuple[int, int, str] | None:
    """Return the begin and end of a title at the end of a link or its definition, and its opening quote."""
    match = _LINK_TITLE.search(raw.removesuffix(")").rstrip() if raw.startswith(("]", "!")) else raw, begin)
    group = "quoted" if match and match[1] else "braced"
    return (*match.span(group), match[1] or "(") if match and title and unescapeAll(match[group]) == title else None


def _as_html(tag: Tag) -> Tag:
    """Return a mark of emphasis as an HTML tag, and another tag as it is."""
    if tag.raw not in _ELEMENTS:
        return tag
    return replace(tag, raw=f"<{'/' * (tag.kind == 'close')}{_ELEMENTS[tag.raw]}>")


def _written(text: str, tags: Sequence[Tag], is_escaped: bool, span: _Text) -> str:
    """Return the source of a text with tags in the place of a text, `span`. is_escaped: True if all marks in the text
    are escaped."""
    kind = span.kind
    parts: list[str] = []
    last = 0
    starts_line = kind in ("line", "underlined", "row", "term", "argument")
    divide = re.compile(f"([{re.escape(''.join(span.escapes))}])" if span.escapes else r"(?!)").split
    for position, raw in [*((tag.position, tag.raw) for tag in tags), (len(text), "")]:
        is_break = raw.endswith("\n")
        part = text[last:position].rstrip(" ") if is_break else text[last:position]
        part = "".join(span.escapes.get(piece) or (_escaped(piece) if is_escaped else piece)
                       for piece in divide(part))
        if not part and raw.startswith("`") and parts and parts[-1].startswith("`"):
            part = " "                                                   # `a``b` would be one piece of code
        if parts and parts[-1].endswith("\n"):
            part = part.lstrip(" ")
        if kind == "underlined" or kind in ("heading", "alt", "note") and "|" not in span.text:
            part = part.replace("|", "&#124;")                           # with the line below, | could make a table
        if part and starts_line and not (kind == "row" and part.startswith("|")):
            part = _escape_start(part, is_break, is_escaped)
        parts += [part, raw]
        starts_line = is_break
        last = position
    result = "".join(parts).lstrip(" \t")
    return _CLOSING.sub(r"\\#", result) if kind == "heading" else result


def _escaped(text: str) -> str:
    """Return the source of a text in which all marks are escaped."""
    return _ESCAPED.sub(lambda match: f"&#{ord(match[0])};" if match["replaced"] else f"\\{match[0]}", text)


def _escape_start(part: str, ends_line: bool, always: bool) -> str:
    """Escape a text if it would begin a block, such as a list.

    ends_line: True if a line break follows the text. always: True if any mark that the text begins with is escaped.
    """
    stripped = part.lstrip()
    match = _LINE_MARKUP.match(stripped)
    if match is None and not (ends_line and stripped.startswith("[")) and not (  # a [label]: may go on in the next line
            always and _ODD_START.match(stripped)):
        return part
    at = len(part) - len(stripped) + (len(match["number"]) if match and match["number"] else 0)
    sign = f"&#{ord(part[at])};" if always or part[at] in ":?/$%" else f"\\{part[at]}"
    return f"{part[:at]}{sign}{part[at + 1:]}"


def _reads_as(result: str, text: str, tags: Sequence[Tag], span: _Text, environment: dict[str, Any]) -> bool:
    """Return True if the parser reads a source, `result`, as this text with these tags, and as no other block."""
    if not tags and result == text and _PLAIN.fullmatch(text):          # most texts: spares four fifths of the time
        return True
    before, after = span.frame
    written = result.replace("|", "\\|") if span.kind in ("cell", "row") else result
    environment = {"references": ChainMap({}, environment.get("references", {}))}
    tokens = parser().parse(f"{before}{written}{after}", environment)
    if [token.type for token in tokens] != _types(before, after):
        return False
    token = next(token for token in tokens if token.type == "inline")
    children = token.children or []
    if span.kind in ("alt", "note"):
        if len(children) != 1 or children[0].type not in ("image", "extension"):
            return False
        children = parser().parseInline(result, environment)[0].children or []
    elif token.content.strip() != result.strip():
        return False
    read, found, _ = _inline(children, result.lstrip() if span.kind not in ("alt", "note") else result)
    expected = [(tag.raw, tag.kind) for tag in tags]
    return read.split() == text.split() and [(tag.raw, tag.kind) for tag in found] == expected and all(
        read[:one.position].split() == text[:other.position].split()
        for one, other in zip(found[:50], tags[:50], strict=True))


@lru_cache(64)
def _types(before: str, after: str) -> list[str]:
    """Return the types of the tokens of a frame with a text."""
    return [token.type for token in parser().parse(f"{before}x{after}")]


def _without_inner_spaces(text: str, tags: Sequence[Tag]) -> list[Tag]:
    """Move marks of emphasis so that there is no white space just inside of them, which Markdown does not accept."""
    moved: list[Tag] = []
    for index, tag in enumerate(tags):
        position = tag.position
        if tag.raw in _ELEMENTS and tag.pair is not None:
            lowest = moved[-1].position if moved else 0
            highest = tags[index + 1].position if index + 1 < len(tags) else len(text)
            if tag.kind == "open":
                while position < highest and text[position].isspace():
                    position += 1
            else:
                while position > lowest and text[position - 1].isspace():
                    position -= 1
        moved.append(Tag(position, tag.raw, tag.kind, tag.pair))
    return moved


def _without_empty_lines(text: str, tags: Sequence[Tag]) -> list[Tag]:
    """Return the tags except unsuitable line breaks. A line break with no text before or after it would end the
    paragraph. A line break before ```code``` would turn it into a code block, because ``` would begin a line."""
    kept: list[Tag] = []
    last = 0
    end = len(text.rstrip())
    filled = False                                                      # the line has an image, code or another tag
    filled_later = sum(_fills_line(tag) for tag in tags)
    for tag, following in zip(tags, [*tags, Tag(end, "")][1:], strict=True):
        fences = following.raw.startswith("```") and not text[tag.position:following.position].strip()
        if not _is_hard_break(tag):
            filled_later -= _fills_line(tag)
            filled = filled or _fills_line(tag)
            kept.append(tag)
        elif not fences and (filled or tag.raw[0] == "\\" or text[last:tag.position].strip()) and (
                filled_later or tag.position < end):
            kept.append(tag)
            last, filled = tag.position, False
    return kept


def _fills_line(tag: Tag) -> bool:
    """Return True if a line that contains only this tag counts as not empty."""
    return not _is_hard_break(tag) and (tag.kind in ("alone", "break") or tag.raw.startswith(("<", "[", "]")))


def _is_hard_break(tag: Tag) -> bool:
    return tag.raw.endswith("\n") and not tag.raw.strip(" \n\\")


def _inline(children: Sequence[Token], source: str
            ) -> tuple[str, tuple[Tag, ...], list[tuple[str, int, int, str, str]]]:
    """Return the text and the tags of inline tokens, and the texts inside of tags.

    Each text inside of a tag has the tag, its begin and end in the tag, and its kind or its opening quote; the last
    value is the title, if it is one.
    """
    texts: list[str] = []
    tags: list[tuple[int, str, TagKind, str]] = []
    inner: list[tuple[str, int, int, str, str]] = []
    length = cursor = 0
    hidden = False                                                      # inside of an address <https://...>
    label = 0                                                           # beginning of the text of the last link
    title: str | float = ""                                             # title of the last link
    code: tuple[str, int] | None = None                                 # name and begin of an open <code>
    for token in children:
        begin, end = token.meta.get("source", (cursor, cursor))
        content = ""
        if code is not None:                                            # inside of <code>
            if token.type == "html_inline" and token.content.startswith(code[0]):
                tags.append((length, source[code[1]:end], "alone", ""))
                code = None
            cursor = max(end, cursor + len(token.content) * (token.type == "text"))
            continue
        if token.type == "text" or token.type == "text_special":
            content = "" if hidden else token.content
            end = max(end, cursor + len(token.content)) if token.type == "text" else end
        elif token.type == "softbreak":
            content = " "
        elif token.type == "hardbreak":
            while source[begin] in " \n" and source[begin - 1:begin] == " ":
                begin -= 1
            tags.append((length, source[begin:source.index("\n", begin) + 1], "break", ""))
            content = " "
        elif token.markup == "autolink":
            hidden = token.nesting > 0
            if hidden:
                tags.append((length, source[begin:end], "alone", ""))
            else:
                end = cursor
        elif token.type == "link_open":
            tags.append((length, "[", "open", "["))
            title = token.attrs.get("title", "")
            end = label = begin + 1
        elif token.type == "link_close":
            raw = source[cursor:end]
            if raw in ("]", "][]"):                                     # the link text, which changes, is the label
                raw = f"][{source[label:cursor]}]"
            elif found := _find_title(raw, 0, title):
                inner.append((raw, *found, str(title)))
            tags.append((length, raw, "close", "["))
        elif token.type == "image":
            raw = source[begin:end]
            tags.append((length, raw, "alone", ""))
            after = 2 + len(token.content)
            if raw.startswith(f"![{token.content}]("):                  # the text of a reference may be its label
                inner.append((raw, 2, after, "alt", ""))
                if found := _find_title(raw, after, token.attrs.get("title", "")):
                    inner.append((raw, *found, str(token.attrs["title"])))
        elif token.type == "extension":
            raw = source[begin:end]
            if raw.startswith("{") and begin == cursor and tags and tags[-1][0] == length and (
                    tags[-1][1].endswith(("]", ")", "`", ":")) and token.meta["kind"] == "alone"):
                before = tags[-1][1]                                    # of a link, an image, code or an icon
                tags[-1] = (length, before + raw, *tags[-1][2:])
                inner[-2:] = [(before + raw if one[0] == before else one[0], *one[1:]) for one in inner[-2:]]
            else:
                tags.append((length, raw, token.meta["kind"], token.meta["name"]))
            if raw.startswith("^[") and raw.endswith("]"):
                inner.append((raw, 2, len(raw) - 1, "note", ""))
        elif token.type.endswith(("_open", "_close")):
            tags.append((length, token.markup, "open" if token.nesting > 0 else "close", token.markup))
            end = cursor + len(token.markup)
        else:
            html = _HTML.match(token.content) if token.type == "html_inline" else None
            name = html["name"].lower() if html else ""
            is_kept = name in _CODE or _NOTE.match(source, begin)
            if is_kept and html and not html["end"] and source.find(f"</{name}", end) >= 0:
                code = f"</{name}", begin
            elif name in _BREAKS or source[begin:end].endswith("\n"):
                tags.append((length, source[begin:end], "break", name))
                content = "" if name else " "
            else:
                alone = not html or name in VOID or token.content.endswith("/>")
                tags.append((length, source[begin:end],
                             "alone" if alone else "close" if html and html["end"] else "open", name))
        texts.append(content)
        length += len(content)
        cursor = end if not hidden or token.type == "link_open" else cursor
    return "".join(texts), pair_tags(tags), inner


def _end_of_text(line: str, text: str, kind: str) -> int:
    """Return the end of a text in its line. Only white space or the closing # of a heading may follow the text."""
    line = line.rstrip(" \t")
    if not line.endswith(text.rstrip(" \t")) and kind == "heading":
        line = line.rstrip("#").rstrip(" \t")
    return len(line) + len(text) - len(text.rstrip(" \t"))


def _find_cell(source: str, position: int, end: int, content: str) -> tuple[int, int] | None:
    """Return the span of the next cell with this content in a table row; None if there is none."""
    written = content.replace("|", "\\|")
    while written and (begin := source.find(written, position, end)) >= 0:
        after = source[begin + len(written):end].lstrip()[:1]
        before = source[position:begin].rstrip()[-1:]
        if after in ("", "|") and (before in ("", "|") or not before.isalnum()):
            return begin, begin + len(written)
        position = begin + 1
    return None
