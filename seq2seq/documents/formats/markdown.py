"""Markdown (CommonMark with tables, front matter and footnotes) as blocks.

markdown-it finds the blocks and their inline tokens. Its inline rules are extended to record where each token begins
and ends. The document is never rendered from tokens; only the spans of changed blocks are replaced in the source.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from seq2seq.documents.block import Block, Tag, TagKind, is_translatable, pair_tags, require_block_size, require_count
from seq2seq.documents.formats.plain_text import one_line
from seq2seq.documents.inline import find_core, shift_tags
from seq2seq.documents.spans import decode_text, encode_text

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.rules_block import StateBlock
    from markdown_it.rules_core import StateCore
    from markdown_it.rules_inline import StateInline
    from markdown_it.token import Token

MAX_CHARACTERS = 10_000_000
"""Maximum length of a document, because the parser takes several kB of memory for each line."""
MAX_MARKS = 400_000
"""Maximum number of characters that may be markup, each of which takes the parser up to 20 microseconds."""
_MARKS = "[]!<&*_~`\\|>"
_LINE_END = re.compile(r"\r\n|\r|\n")
_FRONT_MATTER = re.compile(r"(?:---[ \t]*\r?\n(?:(?!---|\.\.\.).*\r?\n)*+(?:---|\.\.\.)|"
                           r"\+\+\+[ \t]*\r?\n(?:(?!\+\+\+).*\r?\n)*+\+\+\+)[ \t]*(?=\r?\n|\Z)")
_KEPT = re.compile(r"\[\^[^\]\s]{1,200}\]|\[![A-Za-z]{1,30}\](?:[ \t]*+\n)?|\{%[^%\n]{0,200}%\}|\{\{[^{}\n]{0,200}\}\}"
                   r"|\{[#.][^{}\n]{1,200}\}(?=[ \t]*+\Z)"
                   r"|\$\$[^$\n]{1,500}\$\$|\$(?![\s$])[^$\n]{1,200}(?<![\s$])\$(?![\d$])")
_KEPT_FIRST = re.compile(r"\[\^[^\]\s]{1,200}\]:[ \t]*|\[[ xX]\](?=\s)")
"""Markup that is not translated. _KEPT: footnotes such as [^1], alerts such as [!NOTE], templates, formulas, and ids of
headings. _KEPT_FIRST: labels of footnote definitions, and task boxes such as [x], at the beginning of a text."""
_KEPT_LINE = re.compile(r"(?:(?::{3,}|!!!|\?\?\?)[^\n]{0,200}|\{:[^\n]{0,200}\}|\{%[^\n]{0,200}%\}|\{\{[^\n]{0,200}\}\}"
                        r"|\$\$[^$]{1,2000}\$\$)[ \t]*+(?:\n|\Z)|(?<=\n):[ \t]+(?=\S)"
                        r"|(?<=\n)\[\^[^\]\s]{1,200}\]:[ \t]*")
"""Lines of extensions that are not translated, such as :::note, the colon before the definition of a term, and the
label of a footnote definition after another line of the paragraph."""
_INDENTS = re.compile(r"^(?:\[\^[^\]\s]{1,200}\]:|(?:!!!|\?\?\?\+?)[ \t]+\S)|\n:[ \t]", re.MULTILINE)
"""Footnote definitions, admonitions and definitions of terms, whose further paragraphs are indented by four columns."""
_HTML = re.compile(r"<(?P<end>/?)(?P<name>[A-Za-z][^\s/>]*)")
_VOID = frozenset({"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "wbr"})
_ESCAPES: tuple[re.Pattern[str], ...] = (
    re.compile("(?!)"), re.compile(r"[\\&<]"), re.compile(r"[\\`*\[\]<>&~!]|(?<![^\W_])_|_(?![^\W_])"))
"""Sets of characters to escape, in the order in which they are tried until the parser reads the text correctly."""
_LINE_MARKUP = re.compile(r"(?P<number>\d{1,9})[.)](?=\s|$)|(?:#{1,6}|[-+*]|=+|-+)(?=\s|$)|[>|<]|```|~~~|:?-+:?\s*\|"
                          r"|---|\[(?=[^\]]*\]:)|(?:[*_-][ \t]*){3,}$")
_Kind = Literal["line", "underlined", "heading", "cell", "row"]
"""Place of a text. "line": paragraph. "underlined": heading above a line of = or -, or paragraph above a rule of -,
as "> a" above "---". "heading": heading after #. "cell": cell of a table after a |. "row": cell of a table at the
beginning of a line, without a | before it."""
_CLOSING = re.compile(r"(?<=[ \t])#(?=#*[ \t]*$)|^#(?=#*[ \t]*$)")
_CODE = frozenset({"code", "kbd", "samp", "var"})
_ELEMENTS = {"*": "em", "_": "em", "**": "strong", "__": "strong", "~~": "del"}


@dataclass(frozen=True, slots=True)
class _Span:
    """Place of a block in the source.

    begin, end: character offsets. prefix: line end, with the indentation or `>` of the next line. text, tags: those of
    the whole span. core: part of the text and tags that is the block; see `find_core`.
    """

    begin: int
    end: int
    kind: _Kind
    prefix: str
    text: str
    tags: tuple[Tag, ...]
    core: tuple[int, int, int, int]


class MarkdownDocument:
    """Markdown, with the interface of `block.Document`."""

    def __init__(self, data: bytes) -> None:
        """Raises DocumentError: the document is too large, has too much markup, or cannot be decoded."""
        self._source, self._encoding = decode_text(data)
        require_count(len(self._source), MAX_CHARACTERS, "characters")
        require_count(sum(map(self._source.count, _MARKS)), MAX_MARKS, "characters of markup")
        self._environment: dict[str, Any] = {}
        self.blocks: list[Block] = []
        self._spans: list[_Span] = []
        for span, line in self._find_spans():
            begin, end, first, last = span.core
            if is_translatable(span.text):
                self.blocks.append(Block(span.text[begin:end], shift_tags(span.tags[first:last], begin, end),
                                         f"line {line}"))
                self._spans.append(span)

    def render(self, translations: Sequence[Block], target_language: str) -> bytes:
        """See `block.Document.render`."""
        parts, last = [], 0
        for span, old, new in zip(self._spans, self.blocks, translations, strict=True):
            if (new.text, new.tags) != (old.text, old.tags):
                parts += [self._source[last:span.begin], self._render(span, new)]
                last = span.end
        return encode_text("".join([*parts, self._source[last:]]), self._encoding)

    def _find_spans(self) -> Iterator[tuple[_Span, int]]:
        """Yield the spans of text, and the number of the first line of each span."""
        source = self._source
        start = len(source) - len(source.removeprefix("\ufeff"))
        front = _FRONT_MATTER.match(source, start)
        if front:
            start = front.end()
        begins = [0, *(match.end() for match in _LINE_END.finditer(source)), len(source)]
        ends = [*(match.start() for match in _LINE_END.finditer(source)), len(source)]
        text = "\n" * len(_LINE_END.findall(source, 0, start)) + source[start:]
        kind: _Kind = "line"
        position = 0
        row = -1
        for token in _parser().parse(text, self._environment):
            if token.type == "heading_open":
                kind = "heading" if token.markup.startswith("#") else "underlined"
            elif token.type == "paragraph_open":
                kind = "line"
            elif token.type in ("td_open", "th_open"):
                kind = "cell"
            elif token.type == "inline" and token.map and token.children:
                first, lines = token.map[0], token.content.split("\n")
                begin = max(start, begins[first])
                prefix = ""
                if kind in ("cell", "row"):
                    position = position if row == first else begin
                    row = first
                    found = _find_cell(source, position, ends[first], token.content)
                    if found is None:
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
                        continue
                    end = line_end
                    if len(lines) > 1:
                        number = first + len(lines) - 1
                        end = _end_of_text(source[begins[number]:ends[number]], lines[-1], kind) + begins[number]
                        second = source[begins[first + 1]:ends[first + 1]]
                        prefix = source[ends[first]:begins[first + 1]] + second[:max(0, second.find(lines[1].strip()))]
                content, tags = _inline(token.children, token.content)
                yield _Span(begin, end, kind, prefix, content, tags, find_core(content, tags)), first + 1

    def _render(self, span: _Span, new: Block) -> str:
        """Return the source of a translated block. Text is escaped only if the parser would read it as markup."""
        begin, end, first, last = span.core
        core = one_line(new.text)
        text = span.text[:begin] + core + span.text[end:]
        change = len(text) - len(span.text)
        tags = [*span.tags[:first], *(Tag(min(tag.position, len(core)) + begin, tag.raw, tag.kind, tag.pair)
                                      for tag in new.tags),
                *(Tag(max(tag.position, end) + change, tag.raw, tag.kind, tag.pair) for tag in span.tags[last:])]
        tags = _without_empty_lines(text, _without_inner_spaces(text, tags))
        # A line of a code span could be read as the second line of a table.
        tags = [replace(tag, raw=tag.raw.replace("\n", " ")) if tag.raw.startswith("`") else tag for tag in tags]
        result = ""
        for rename in (str, lambda raw: raw.replace("_", "*"), None):
            renamed = [Tag(tag.position, _renamed(tag, rename), tag.kind) for tag in tags]
            for special in _ESCAPES:
                result = _write(text, renamed, special, span.kind)
                if _reads_as(result, text, renamed, self._environment):
                    return self._finish(result, span)
        return self._finish(result, span)

    def _finish(self, result: str, span: _Span) -> str:
        if span.kind in ("cell", "row"):
            return result.replace("|", "\\|")
        return result.replace("\n", span.prefix) if span.prefix else result


def _renamed(tag: Tag, rename: Callable[[str], str] | None) -> str:
    """Return the source of a tag. rename: function that changes marks of emphasis; None: they become HTML tags."""
    if tag.raw not in _ELEMENTS:
        return tag.raw
    if rename is None:
        return f"<{'/' * (tag.kind == 'close')}{_ELEMENTS[tag.raw]}>"
    return rename(tag.raw)


def _write(text: str, tags: Sequence[Tag], special: re.Pattern[str], kind: str) -> str:
    """Return the source of a text with tags. special: characters to escape."""
    parts: list[str] = []
    last = 0
    starts_line = kind in ("line", "underlined", "row")
    for position, raw in [*((tag.position, tag.raw) for tag in tags), (len(text), "")]:
        is_break = _breaks_line(raw)
        part = text[last:position]
        part = special.sub(r"\\\g<0>", part.rstrip(" ") if is_break else part)
        if parts and _breaks_line(parts[-1]):
            part = part.lstrip(" ")
        if kind == "underlined":
            part = part.replace("|", "&#124;")                           # with the line below, | would make a table
        if part and starts_line and not (kind == "row" and part.startswith("|")):
            part = _escape_start(part, is_break)
        parts += [part, raw]
        starts_line = is_break
        last = position
    result = "".join(parts).lstrip(" \t")
    return _CLOSING.sub(r"\\#", result) if kind == "heading" else result


def _escape_start(part: str, ends_line: bool) -> str:
    """Escape a text if it would begin a block, such as a list. ends_line: True if a line break follows the text."""
    stripped = part.lstrip()
    match = _LINE_MARKUP.match(stripped)
    if match is None and not (ends_line and stripped.startswith("[")):  # a [label]: may go on in the next line
        return part
    at = len(part) - len(stripped) + (len(match["number"]) if match and match["number"] else 0)
    return f"{part[:at]}\\{part[at:]}"


def _reads_as(result: str, text: str, tags: Sequence[Tag], environment: dict[str, Any]) -> bool:
    """Return True if the parser reads a source, `result`, as this text with these tags."""
    children = _parser().parseInline(result, environment)[0].children or []
    read, found = _inline(children, result)
    expected = [tag.raw for tag in tags]
    return read.split() == text.split() and [tag.raw for tag in found] == expected and all(
        read[:one.position].split() == text[:other.position].split()
        for one, other in zip(found[:50], tags[:50], strict=True))


def _without_inner_spaces(text: str, tags: Sequence[Tag]) -> list[Tag]:
    """Move marks of emphasis so that there is no white space just inside of them, which Markdown does not accept."""
    moved: list[Tag] = []
    for index, tag in enumerate(tags):
        position = tag.position
        if tag.raw in _ELEMENTS:
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
    return not _is_hard_break(tag) and (tag.kind in ("alone", "break") or tag.raw.startswith(("<", "]")))


def _breaks_line(raw: str) -> bool:
    return raw.startswith("\n") or raw.endswith("\n")


def _is_hard_break(tag: Tag) -> bool:
    return tag.raw.endswith("\n") and not tag.raw.strip(" \n\\")


def _inline(children: Sequence[Token], source: str) -> tuple[str, tuple[Tag, ...]]:
    """Return the text and the tags of inline tokens."""
    texts: list[str] = []
    tags: list[tuple[int, str, TagKind, str]] = []
    length = cursor = 0
    hidden = False                                                      # inside of an address <https://...>
    label = 0                                                           # beginning of the text of the last link
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
            end = label = begin + 1
        elif token.type == "link_close":
            raw = source[cursor:end]
            if raw in ("]", "][]"):                                     # the link text, which changes, is the label
                raw = f"][{source[label:cursor]}]"
            tags.append((length, raw, "close", "["))
        elif token.type.endswith(("_open", "_close")):
            tags.append((length, token.markup, "open" if token.nesting > 0 else "close", token.markup))
            end = cursor + len(token.markup)
        else:
            html = _HTML.match(token.content) if token.type == "html_inline" else None
            name = html["name"].lower() if html else ""
            if name in _CODE and html and not html["end"] and source.find(f"</{name}", end) >= 0:
                code = f"</{name}", begin
            elif name == "br" or _breaks_line(source[begin:end]):
                tags.append((length, source[begin:end], "break", name))
                content = "" if name else " "
            else:
                alone = not html or name in _VOID or token.content.endswith("/>")
                tags.append((length, source[begin:end],
                             "alone" if alone else "close" if html and html["end"] else "open", name))
        texts.append(content)
        length += len(content)
        cursor = end if not hidden or token.type == "link_open" else cursor
    return "".join(texts), pair_tags(tags)


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
        after = source[begin + len(written):end].lstrip(" \t")[:1]
        before = source[position:begin].rstrip(" \t")[-1:]
        if after in ("", "|") and (before in ("", "|") or not before.isalnum()):
            return begin, begin + len(written)
        position = begin + 1
    return None


def _require_block_sizes(state: StateCore) -> None:
    """Raise DocumentError if the text of a block is too long. Called before inline markup is parsed."""
    for token in state.tokens:
        if token.type == "inline":
            require_block_size(len(token.content), f"line {(token.map or [0])[0] + 1}")


def _further_paragraphs(state: StateBlock, begin: int, end: int, silent: bool) -> bool:
    """Rule of the parser: read indented text below a paragraph that matches _INDENTS as further blocks, not as code."""
    above = next((line for line in range(begin - 1, -1, -1) if not state.isEmpty(line)), None)
    if above is None or state.level > 9 or not state.is_code_block(begin):          # deeper nesting could be hostile
        return False
    # A footnote of one word is no paragraph to the parser, but the definition of a link.
    texts = [state.getLines(above, above + 1, state.blkIndent, False).lstrip(" "),
             *(token.content for token in state.tokens[-2:-1] if state.tokens[-1].type == "paragraph_close")]
    if not any(map(_INDENTS.search, texts)):
        return False
    state.blkIndent, state.level = state.blkIndent + 4, state.level + 1
    state.md.block.tokenize(state, begin, end)                          # stops at the first line with less indentation
    state.blkIndent, state.level = state.blkIndent - 4, state.level - 1
    return True


@cache
def _parser() -> MarkdownIt:
    """Return the parser. It sets `meta["source"]` of inline tokens except text to their span in the block's source."""
    from markdown_it import MarkdownIt, rules_inline

    def placed(rule: Callable[[StateInline, bool], bool]) -> Callable[[StateInline, bool], bool]:
        def place(state: StateInline, silent: bool) -> bool:
            begin, count = state.pos, len(state.tokens)
            if not rule(state, silent):
                return False
            if len(state.tokens) > count and not silent:
                opened = next((token for token in state.tokens[count:] if token.type != "text"), None)
                for token in (opened, state.tokens[-1]):
                    if token is not None:
                        token.meta["source"] = begin, state.pos
            return True

        return place

    def keep(state: StateInline, silent: bool) -> bool:
        begin = state.pos
        match = _KEPT_FIRST.match(state.src) if begin == 0 else None
        if begin == 0 or state.src[begin] == "\n":
            match = match or _KEPT_LINE.match(state.src, begin + (state.src[begin] == "\n"))
        match = match or _KEPT.match(state.src, begin)
        if match is None:
            return False
        if not silent:
            state.push("kept", "", 0)
        state.pos = match.end()
        return True

    parser = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    parser.disable("text_join")
    parser.block.ruler.before("code", "further_paragraphs", _further_paragraphs)
    parser.core.ruler.before("inline", "size", _require_block_sizes)
    rules: dict[str, Any] = {"escape": rules_inline.escape, "backticks": rules_inline.backtick,
                             "link": rules_inline.link, "image": rules_inline.image,
                             "autolink": rules_inline.autolink, "html_inline": rules_inline.html_inline,
                             "entity": rules_inline.entity, "newline": rules_inline.newline}
    for name, rule in rules.items():
        parser.inline.ruler.at(name, placed(rule))
    parser.inline.ruler.before("newline", "kept", placed(keep))
    return parser
