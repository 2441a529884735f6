"""Parser of Markdown with the extensions of site generators (MkDocs, Sphinx, Docusaurus, VitePress, Hugo, Jekyll).

mdit-py-plugins has the rules of footnotes, definition lists, and targets and comments of MyST. The rules below
recognise what no plugin knows, or what its plugin reads otherwise than the generators, or in quadratic time.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Any

from markdown_it import MarkdownIt, rules_inline
from markdown_it.ruler import RuleOptionsType
from markdown_it.rules_block import StateBlock
from markdown_it.rules_core import StateCore
from markdown_it.rules_inline import StateInline
from mdit_py_plugins.deflist import deflist_plugin
from mdit_py_plugins.footnote.index import footnote_def
from mdit_py_plugins.myst_blocks import myst_block_plugin

from seq2seq.formats.block import require_block_size

_KEY = r"(?:\"[^\"\n]{1,80}\"|[\w'-]{1,40})"
# Inline markup by the kind of tag that it becomes. Each pattern is bounded, because it is tried at each mark.
_INLINE = {
    "close": (r"(?<=[^\s=])==(?![=\w])", r"(?<=[^\s^])\^\^(?![\^\w])", r"\]{ATTRIBUTES}"),
    "alone": (
        r"\A\[[ xX]\](?=\s)",                                                           # box of a task
        r"\[\^[^\]\s]{1,200}\]", r"\^\[[^\[\]\n]{1,1000}\](?!\()",                     # footnotes
        # Templates of Jinja, Liquid and Hugo, expressions and comments of MDX.
        r"\{\{[<%][^\n]{0,400}?[>%]\}\}", r"\{\{[^{}\n]{0,400}\}\}", r"\{%[^\n]{0,400}?%\}", r"\{#[^{}\n]{1,200}#\}",
        r"\{/\*[^\n]{0,400}?\*/\}", r"<%[^\n]{0,400}?%>",
        r"</?[A-Z][\w.]{0,60}+(?=[\s/>])(?:[^<>{}\"'\n]++|\"[^\"\n]*+\"|'[^'\n]*+'|\{(?:[^{}\n]|\{[^{}\n]*+\})*+\})"
        r"{0,80}+>",
        r"{ATTRIBUTES}",
        r"\{[\w:+-]{1,80}\}(?P<ticks>`{1,3})(?!`)(?s:.{1,500}?)(?<!`)(?P=ticks)(?!`)",  # role of MyST
        r"(?<![\w:]):(?:[+-]1|[a-z0-9_][\w+-]{0,60}):(?![\d:])",                        # icon or emoji
        rf"(?<![\w+])\+\+{_KEY}(?:\+{_KEY}){{0,6}}\+\+(?![\w+])",
        # Superscript and subscript.
        r"(?<!\^)\^(?:(?:[^\s^\[\]\\]|\\.){1,80}|\[[^\[\]^\n]{1,80}\]\([^()\s^]{1,200}\))\^(?!\^)",
        r"(?<!~)~(?:[^\s~\\]|\\.){1,80}~(?!~)",
        r"\\\([^\n]{1,500}?\\\)", r"\\\[[^\n]{1,500}?\\\]",                                # formulas
        r"\\\\\((?s:.{1,500}?)\\\\\)", r"\\\\\[(?s:.{1,500}?)\\\\\]",                   # formulas of MathJax
        # An environment of TeX, and an end or beginning without its counterpart, which text must not complete.
        r"\\begin\{(?P<environment>[A-Za-z]{1,30}\*?)\}(?s:.{1,500}?)\\end\{(?P=environment)\}",
        r"\\(?:begin|end)\{[A-Za-z]{1,30}\*?\}",
        r"\$\$(?:[^$\\]|\\.){1,500}\$\$",
        r"\$(?![\s$])(?:[^$\\]|\\.){1,500}(?<!\s)\$(?![\w$])",
        r"\$(?=[^$\n]{0,500}[\\^])(?![\s$])(?:[^$\\]|\\.){1,500}(?<!\s)\$(?![\d$])",
    ),
    "open": (r"(?<![=\w])==(?=[^\s=])", r"(?<![\^\w])\^\^(?=[^\s^])"),
}
_ATTRIBUTES = r"\{(?::|[ \t]{0,9}(?=[.#]|[A-Za-z][\w-]{0,40}=))[^{}\n]{1,200}\}"
_INLINE_MARKUP = re.compile("|".join(f"(?P<{kind}>{'|'.join(patterns)})" for kind, patterns in _INLINE.items()).replace(
    "{ATTRIBUTES}", _ATTRIBUTES))
_MAX_MARKED = 500
"""Maximum length of a text between == and ==, or ^^ and ^^."""
_MARKS = "]+=^[{<:~\\$"
_SPAN = re.compile(rf"\[(?=[^\[\]\n]{{1,300}}\]{_ATTRIBUTES})")
"""Beginning of a text with attributes: [text]{.class}."""
_LINK_ROLE = re.compile(r"\{(?:[\w+-]{1,40}:){0,3}(?:ref|doc|any|numref|download|term|eq)\}`(?=[^`<>\s])"
                        r"(?P<text>[^`<>]{1,400}?)\s*<[^`<>\n]{1,300}>`")

_LINE = re.compile("(?:" + "|".join((
    # Admonitions, tabs of MkDocs.
    r'(?P<indented>(?:!!!|\?\?\?\+?)[ \t]*+[\w-]++(?:[ \t]++[\w-]++)*+(?:[ \t]*+"(?:{HEADING}(?P<title1>\S[^\n]*))?")?'
    r'|===[!+]{0,2}[ \t]+"(?P<title2>\S[^\n]*)")',
    # Containers of Docusaurus and VitePress.
    r":{3,}[ \t]*+[\w-]++[ \t]*+\[(?P<title3>\S[^\n]*)\](?:\{[^{}]*+\})?",
    r":{3,}[ \t]*+[A-Za-z][\w-]*+[ \t]++(?P<title4>[^\s{}\[][^{}\n]*+)(?:\{[^{}]*+\})?", r":{3,}[^\n]*",
    # Blocks of pymdown-extensions. The arguments of some are no text.
    r"(?P<options>/{3,}[ \t]*+(?:(?:html|fancylists)\b[^\n]*"
    r"|[\w-]++(?:[ \t]*+\|[ \t]*+{HEADING}(?P<title5>\S[^\n]*))?))", r"/{3,}",
    r"\*\[[^\]\n]{1,200}\]:[ \t]*+(?P<title6>\S[^\n]*)",                                # abbreviation
    r"\[![A-Za-z]{1,30}\][+-]?(?:[ \t]++{HEADING}(?P<title7>\S[^\n]*))?",                        # alert
    # Comments of MyST, tables of contents, snippets, commands of TeX, lists of attributes.
    r"%[^\n]*", r"(?i:\[TOC\]|\[\[_?TOC_?\]\]|@\[toc\])", r";?-{1,8}8<-{1,8}[ \t]+[^\n]*", r"<<<[ \t]+[^\n]*",
    r"\\[A-Za-z]{2,30}(?:\{[^{}\n]*\}|\[[^\[\]\n]*\])*+", _ATTRIBUTES)).replace(
        "{HEADING}", r"(?:#{1,6}[ \t]++)?+") + ")$")
"""Lines that are no text but for their titles."""

_CALL = r"[ \t]*+(highlight|comment|code|codeblock|mermaid|math|katex|chart|gist)\b"
_BLOCKS = tuple((re.compile(opening), closing, has_empty_lines) for opening, closing, has_empty_lines in (
    (r"\$\$", "$$", True), (r"\\\[", "\\]", True), (r"\\\\\[", "\\\\]", True),
    (r"\\begin\{([A-Za-z]{1,30}\*?)\}", "\\end{%s}", True),
    (r"-{2,8}8<-{2,8}(?=[ \t]*$)", "8<--", True), (rf"\{{%-?{_CALL}", "end%s", True),
    (rf"\{{\{{[<%]{_CALL}(?![^\n]*/[>%]\}}\}})", "/%s", True),
    (r"\{%", "%}", False), (r"\{\{<", ">}}", False), (r"\{\{%", "%}}", False), (r"\{\{", "}}", False),
    (r"\{#", "#}", False), (r"\{/\*", "*/}", True), (r"<%", "%>", False),
    # Parts of MDX, up to an empty line.
    (r"</?[A-Z][\w.]*(?:[^>\n]*=\{|[^>\n]*$)", "", False),
    (r"import[ \t]+(?:['\"{]|\*[ \t]+as\b|[\w$]+[ \t,][^\n]*\bfrom[ \t]*['\"])", "", False),
    (r"export[ \t]+(?:(?:const|default|function|let|class|async)\b|\{)", "", False)))
"""Blocks that are no text: the beginning of the first line, the string that ends them, and whether they may have empty
lines. %s: name in the first line."""
_END_OF_BLOCK = re.compile(r"(?:[ \t]*+-?[%>]?\}{1,2}|[ \t]++\([^()\n]{1,80}\)|[ \t]*+\{[^{}\n]{1,80}\})?[ \t]*+"
                           r"[.,;]?$")

_DIRECTIVE = re.compile(r"(?P<fence>:{3,}|`{3,}|~{3,})[ \t]*\{(?P<name>[\w:.+-]{1,80})\}[ \t]*+(?P<title>[^\n]*)$")
_TITLED = frozenset({
    "admonition", "attention", "caution", "card", "danger", "dropdown", "error", "grid-item-card", "hint", "important",
    "note", "seealso", "sidebar", "tab-item", "tip", "todo", "topic", "warning"})
_UNTITLED = frozenset({
    "aside", "card-carousel", "centered", "container", "deprecated", "div", "epigraph", "figure", "grid", "grid-item",
    "highlights", "list-table", "margin", "pull-quote", "tab-set", "table", "versionadded", "versionchanged"})
"""Directives of MyST whose contents are Markdown; those of _TITLED have a title. All others stay as they are."""
_DEFINITION = re.compile(r":[ \t]+(?P<title>\S[^\n]*)$")
_TERM = re.compile(r"(?P<title>.*)")
_MAX_TERMS = 17
"""Maximum number of lines of the terms of a definition, and its first line."""
_OPTION = re.compile(r":[\w-]+:(?:\s|$)")


def _indented_end(state: StateBlock, line: int, end: int, indent: int) -> int:
    """Return the first line from `line` on that is neither empty nor indented by `indent` columns."""
    while line < end and (state.isEmpty(line) or state.sCount[line] >= indent):
        line += 1
    return line


def _text_of(state: StateBlock, line: int) -> str:
    return state.src[state.bMarks[line] + state.tShift[line]:state.eMarks[line]].rstrip()


def _push_title(state: StateBlock, line: int, match: re.Match[str], group: str, below: str = "") -> None:
    """Add the tokens of a title. `meta` has the column of the title, and the parts of its line around it with the line
    below, without which the parser would not read the title as one."""
    begin = state.bMarks[line] + state.tShift[line] + match.start(group)
    title = match[group].rstrip()
    state.push("title_open", "", 1)
    token = state.push("inline", "", 0)
    token.content, token.map, token.children = title, [line, line + 1], []
    token.meta = {"column": begin - state.src.rfind("\n", 0, begin) - 1,
                  "frame": (match.string[:match.start(group)], match.string[match.start(group) + len(title):] + below)}
    state.push("title_close", "", -1)


def _parse_inside(state: StateBlock, begin: int, end: int, indent: int) -> None:
    """Parse the lines from `begin` to `end`, which are indented by `indent` columns, as blocks inside of a block."""
    before = state.blkIndent, state.lineMax, state.parentType
    state.blkIndent, state.lineMax, state.parentType = indent, end, "container"
    state.md.block.tokenize(state, begin, end)
    state.blkIndent, state.lineMax, state.parentType = before


def _line(state: StateBlock, line: int, end: int, silent: bool) -> bool:
    """Rule of the parser: a line of _LINE, and the indented blocks below it if it has some."""
    match = None if state.is_code_block(line) else _LINE.match(_text_of(state, line))
    if match is None or silent:
        return match is not None
    state.push("extension_open", "", 1)
    group = next((name for name, title in match.groupdict().items() if name.startswith("title") and title), None)
    if group:
        _push_title(state, line, match, group)
    state.line = line + 1
    if match["indented"]:
        indent = state.sCount[line] + 4
        state.line = _indented_end(state, line + 1, end, indent)
        _parse_inside(state, line + 1, state.line, indent)
    elif match["options"]:
        while state.line < end and not state.isEmpty(state.line) and state.sCount[state.line] >= state.sCount[line] + 4:
            state.line += 1
    state.push("extension_close", "", -1)
    return True


def _block(state: StateBlock, line: int, end: int, silent: bool) -> bool:
    """Rule of the parser: a block of _BLOCKS."""
    text = "" if state.is_code_block(line) else _text_of(state, line)
    if text[:1] not in ("$", "\\", "-", "{", "<", "i", "e"):
        return False
    for opening, closing, has_empty_lines in _BLOCKS:
        match = opening.match(text)
        last = _last_line(state, line, end, match, closing, has_empty_lines) if match else None
        if last is not None:
            if not closing and silent:                                  # these begin after an empty line
                return False
            if not silent:
                state.push("extension", "", 0)
                state.line = last + 1
            return True
    return False


def _last_line(state: StateBlock, line: int, end: int, match: re.Match[str], closing: str, has_empty_lines: bool
               ) -> int | None:
    """Return the last line of a block of _BLOCKS; None if it is no such block, because its end is missing."""
    closing = closing % match[1] if "%" in closing and "s" in closing else closing
    # Lines up to this one were searched before, in vain. Without it, many beginnings would take quadratic time.
    searched: dict[str, int] = state.env.setdefault("searched", {})
    if searched.get(closing, -1) >= line and closing:
        return None
    for current in range(line, end):
        if current > line and (state.sCount[current] < state.blkIndent and not state.isEmpty(current)
                               or state.isEmpty(current) and not has_empty_lines):
            break
        text = _text_of(state, current)
        found = text.find(closing, match.end() if current == line else 0) if closing else -1
        if found >= 0:
            return current if _END_OF_BLOCK.match(text, found + len(closing)) else None
    else:
        current = end
    if not closing:
        return current - 1
    searched[closing] = current - 1
    return None


def _directive(state: StateBlock, line: int, end: int, silent: bool) -> bool:
    """Rule of the parser: a directive of MyST. Its options, and its contents if they are no text, make no tokens."""
    match = None if state.is_code_block(line) else _DIRECTIVE.match(_text_of(state, line))
    if match is None or not (is_text := match["name"] in _TITLED or match["name"] in _UNTITLED) and match[0][0] != ":":
        return False
    if silent:
        return True
    fence = match["fence"]
    closing = line + 1
    while closing < end and (state.isEmpty(closing) or state.sCount[closing] >= state.blkIndent):
        text = _text_of(state, closing)
        if text.startswith(fence) and not text.strip(fence[0]):
            break
        closing += 1
    state.push("extension_open", "", 1)
    if is_text:
        if match["title"] and match["name"] in _TITLED:
            _push_title(state, line, match, "title")
        begin = line + 1
        if begin < closing and _text_of(state, begin) == "---":
            begin = next((number + 1 for number in range(begin + 1, closing)
                          if _text_of(state, number) == "---"), begin)
        while begin < closing and _OPTION.match(_text_of(state, begin)):
            begin += 1
        _parse_inside(state, begin, closing, state.blkIndent)
    state.push("extension_close", "", -1)
    state.line = min(closing + 1, end)
    return True


def _definition(state: StateBlock, line: int, end: int, silent: bool) -> bool:
    """Rule of the parser: a definition, or a term above another term of the same definition."""
    if state.is_code_block(line):
        return False
    last = line
    if not _DEFINITION.match(_text_of(state, line)):
        lines = range(line + 1, min(line + _MAX_TERMS, end))
        below = next((one for one in lines if state.isEmpty(one) or _DEFINITION.match(_text_of(state, one))), line)
        definition = below + state.isEmpty(below)
        if silent or below <= line + 1 or definition >= end or not _DEFINITION.match(_text_of(state, definition)):
            return False                                                # the last term is one of `deflist_plugin`
        while last + 1 < below and state.is_code_block(last + 1):       # would be code after the end of a term
            last += 1
    if silent:
        return True
    for number in range(line, last + 1):
        text = _text_of(state, number)
        state.push("extension_open", "", 1)
        if match := _DEFINITION.match(text) or _TERM.match(text):
            _push_title(state, number, match, "title", "\n: x" if match.start("title") else "")
        state.push("extension_close", "", -1)
    state.line = last + 1
    return True


def _require_block_sizes(state: StateCore) -> None:
    """Raise DocumentError if the text of a block is too long. Called before inline markup is parsed."""
    for token in state.tokens:
        if token.type == "inline":
            require_block_size(len(token.content), f"line {(token.map or [0])[0] + 1}")


def _placed(rule: Callable[[StateInline, bool], bool]) -> Callable[[StateInline, bool], bool]:
    """Return an inline rule whose first and last tokens have their span in the source of the block in `meta`."""

    def place(state: StateInline, silent: bool) -> bool:
        begin, count = state.pos, len(state.tokens)
        if not rule(state, silent):
            return False
        if len(state.tokens) > count and not silent:
            opened = next((token for token in state.tokens[count:] if token.type != "text"), None)
            for token in (opened, state.tokens[-1]):
                if token is not None:
                    token.meta.setdefault("source", (begin, state.pos))
        return True

    return place


def _extension(state: StateInline, silent: bool) -> bool:
    """Rule of the parser: inline markup of extensions, as tokens `extension` with the kind and name of a tag."""
    begin = state.pos
    if state.src[begin] not in _MARKS:
        return False
    role = _LINK_ROLE.match(state.src, begin) if state.src[begin] == "{" else None
    match = role or _INLINE_MARKUP.match(state.src, begin)
    if match is None or match[0] in ("==", "^^") and not _has_counterpart(state.src, match):
        return False
    if role and not silent:
        _push(state, "open", "{", begin, role.start("text"))
        state.push("text", "", 0).content = " ".join(role["text"].split())
        _push(state, "close", "{", role.end("text"), role.end())
    elif not silent:
        name = "[" if match[0].startswith("]") else match[0]
        _push(state, match.lastgroup, name, begin, match.end())
    state.pos = match.end()
    return True


def _has_counterpart(source: str, match: re.Match[str]) -> bool:
    """Return True if the next mark is the closing one of an opening mark, or the one before the opening one."""
    mark, begin = match[0], match.start()
    other = source.find(mark, begin + 2, begin + _MAX_MARKED) if match.lastgroup == "open" else source.rfind(
        mark, max(0, begin - _MAX_MARKED), begin)
    found = _INLINE_MARKUP.match(source, other) if other >= 0 else None
    return found is not None and {found.lastgroup, match.lastgroup} == {"open", "close"}


def _span(state: StateInline, silent: bool) -> bool:
    """Rule of the parser: the opening bracket of [text]{.class}, which is no link."""
    if state.src[state.pos] != "[" or not _SPAN.match(state.src, state.pos):
        return False
    if not silent:
        _push(state, "open", "[", state.pos, state.pos + 1)
    state.pos += 1
    return True


def _push(state: StateInline, kind: str | None, name: str, begin: int, end: int) -> None:
    state.push("extension", "", 0).meta.update(source=(begin, end), kind=kind, name=name)


@cache
def parser() -> MarkdownIt:
    """Return the parser. It sets `meta["source"]` of inline tokens except text to their span in the block's source."""
    markdown = MarkdownIt("commonmark", {"inline_definitions": True}).enable(["table", "strikethrough"])
    markdown.disable("text_join")
    everywhere: RuleOptionsType = {"alt": ["paragraph", "reference", "blockquote", "list"]}
    # The rule for comments, which _LINE replaces, fails if the last line of a quotation is empty.
    markdown.use(deflist_plugin).use(myst_block_plugin).disable("myst_line_comment")
    markdown.block.ruler.before("reference", "footnote_def", footnote_def, everywhere)
    for name, rule in (("directive", _directive), ("extension_block", _block), ("extension_line", _line)):
        markdown.block.ruler.before("table", name, rule, everywhere)
    markdown.block.ruler.before("lheading", "definition", _definition, everywhere)
    markdown.core.ruler.before("inline", "size", _require_block_sizes)
    rules: dict[str, Any] = {"escape": rules_inline.escape, "backticks": rules_inline.backtick,
                             "link": rules_inline.link, "image": rules_inline.image,
                             "autolink": rules_inline.autolink, "html_inline": rules_inline.html_inline,
                             "entity": rules_inline.entity, "newline": rules_inline.newline}
    for name, inline_rule in rules.items():
        markdown.inline.ruler.at(name, _placed(inline_rule))
    markdown.inline.ruler.before("newline", "extension", _extension)
    markdown.inline.ruler.after("link", "span", _span)
    return markdown
