"""Syntaxes of formats: what is kept in a text, beyond the placeholders that all formats have (`placeholders`).

One table, `SYNTAXES`, has the patterns by name. A format names the syntaxes of a text in `Block.syntax`. The names of
gettext's format flags are those of its manual (Translators for other Languages), without `-format`.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Literal

from seq2seq.formats.inline_tags import element_ends
from seq2seq.formats.spans import replace_spans
from seq2seq.formats.tags_in_text import Markup, MarkupKind
from seq2seq.languages import SPACELESS

_RuleKind = MarkupKind | Literal["pair"]
_Rule = tuple[_RuleKind, str]
"""Kind and pattern. In patterns of the kinds "open" and "close", the group is the name. The kind "pair" is for a text
with an opening tag, the first group, and a closing tag, the second group."""

_POSITION = r"(?:\d++\$)?"


def _printf(letters: str, flags: str = "-+ #0", *, position: str = _POSITION,
            width: str = rf"(?:\*{_POSITION}|\d++)?(?:\.(?:\*{_POSITION}|\d*+))?",
            size: str = "(?:hh|h|ll|l|q|L|j|z|t|Z)?") -> str:
    return f"%{position}[{flags}]*+{width}{size}[{letters}%]"


_C = "diouxXeEfFgGaAcCsSpnm"
_BRACES = r"\{\{|\}\}|\{[^{}\n]*+(?:\{[^{}\n]*+\}[^{}\n]*+)*+\}"
_LISP = r"~(?:[-+]?\d++|'.|[vV#])?(?:,(?:[-+]?\d++|'.|[vV#])?)*+[:@]*+"
_LISP_RULES: tuple[_Rule, ...] = (
    ("open", rf"{_LISP}([{{(\[<])"), ("close", rf"{_LISP}([}})\]>])"), ("alone", f"{_LISP};"),
    ("value", rf"{_LISP}[A-Za-z%&|~^\n$*?_/!]"))
_C_RULES: tuple[_Rule, ...] = (
    ("value", _printf(_C + "@", "-+ #0I'") + rf"|%{_POSITION}[-+ #0]*+\d*+(?:\.\d++)?<PRI\w{{1,12}}>"),)
_FORMATS: dict[str, str | tuple[_Rule, ...]] = {
    "c": _C_RULES, "objc": _C_RULES, "c++": _BRACES,
    "python": _printf("diouxXeEfFgGcrsa", position=r"(?:\([^()\n]*+\))?", size="[hlL]?"),
    "python-brace": _BRACES, "rust": _BRACES,
    "java": r"'[{}][^'\n]*+'|\{\s*+\d++\s*+(?:,[^{}]*+(?:\{[^{}]*+\}[^{}]*+)*+)?\}",
    "java-printf": r"%(?:\d++\$|<)?[-#+ 0,(]*+\d*+(?:\.\d++)?(?:[tT][A-Za-z]|[bBhHsScCdoxXeEfgGaA%n])",
    "csharp": r"\{\{|\}\}|\{\d++(?:,\s*+-?\d++)?(?::[^{}\n]*+)?\}",
    "javascript": _printf("bcdfijoOsxX", "-+ #0'", size=""),
    "scheme": _LISP_RULES, "lisp": _LISP_RULES,
    "elisp": _printf("sSdioxXceEfgG", size=""),
    "librep": _printf("sSdioxXc", "-^0", size=""),
    "ruby": r"%\{[^{}\n]*+\}|%(?:[-+ #0*]|\d++\$?|\.\d*+|<\w++>)*+[bBcdiuoxXeEfgGaAsp%]",
    "sh": r"\$\{[A-Za-z_]\w*+\}|\$[A-Za-z_]\w*+",
    "sh-printf": rf"{_printf('diouxXeEfFgGaAcsb', size='')}|\\(?:[abcefnrtv\\]|[0-7]{{1,3}})",
    "awk": _printf("cdieEfFgGaAosuxX", size=""),
    "lua": _printf("AEGXacdefgiopqsux", position="", size=""),
    "object-pascal": r"%(?:(?:\d++|\*):)?-?(?:\d++|\*)?(?:\.(?:\d++|\*)?)?[dDuUxXeEfFgGnNmMsSpP%]",
    "modula2": _printf("csdux", "-+0", position="", size=""),
    "d": (("open", r"%(\()"), ("close", r"%(\))"),
          ("value", rf"%\||{_printf('sdbocxXeEfFgGaAruqp', '-+ #0=', size='')}")),
    "ocaml": rf"%[{{(][^%\n]*+%[}})]|{_printf('sScCFfeEgGhHBbatrdiuxXo@,!', position='', size='[lnL]?')}",
    "smalltalk": "%[1-9%]", "ycp": "%[1-9%]",
    "qt": r"%L?\d{1,2}|%L?n\b", "qt-plural": r"%L?n|%L?\d{1,2}",
    "kde": r"%[1-9]\d*+", "kde-kuit": r"%[1-9]\d*+",
    "boost": r"%\|[^|\n]*+\||%\d++%|" + _printf(_C + "bt", "-+ #0_='"),
    "tcl": _printf("diouxXeEfgGcsbB", size="(?:h|ll|l|L)?"),
    "perl": _printf("csdiuoxXeEfFgGbBpnaADOU", "-+ #0v", size="(?:hh|h|ll|l|q|L|V|z|t|j)?"),
    "perl-brace": r"\{[A-Za-z_]\w*+\}",
    "php": r"%(?:\d++\$)?(?:[-+ 0]|'.)*+\d*+(?:\.\d++)?[bcdeEfFgGhHosuxX%]",
    "gcc-internal": (("open", r"%([<{])"), ("close", "%([>}])"),
                     ("value", r"%(?:\d++\$)?[qlwtzh+#]{0,4}(?:\.?\*|\.?\d++)?[A-Za-z%'@]")),
    "gfc-internal": (("open", "%(<)"), ("close", "%(>)"), ("value", r"%(?:\d++\$)?[ql]{0,2}[CLcsidu%']")),
    "go": (r"%[-+# 0]*+(?:\[\d++\])?(?:\d++|\*)?(?:\.(?:\[\d++\])?(?:\d++|\*)?)?(?:\[\d++\])?"
           "[vTtbcdoOqxXUeEfFgGspw%]"),
}
# Directives of programs whose language is not known, or in text that no flag marks: "50% off" has none.
_PRINTF = (r"%(?:\d{1,2}\$)?(?:#@\w{1,80}@|arg\b)|"                               # of Apple's plural rules
           r"(?<![\d%])%(?!\(\w++\))(?:\d++\$)?[-+#0,(]*+(?:\d++|\*)?(?:\.(?:\d++|\*))?(?:hh|h|ll|l|L|q|j|z|t)?"
           r"[diouxXeEfFgGaAcsSpb@](?:(?<=\$.)|(?![a-z]{3}))")
_DIRECTIVE = r"%[-_0^#]?[EO]?[aAbBcCdDeFgGhHIjklmMnpPrRSTuUVwWxXyYzZ](?![A-Za-z]{2})"
GETTEXT_FORMATS = frozenset(_FORMATS)
"""Names of the syntaxes that gettext's format flags name."""

_ROLE = r":[A-Za-z](?:[\w.+-]{0,40}:){1,4}"
_NO_TITLE = r"(?!:(?:code|math|samp|kbd|command|literal|raw|sub|sup|file|regexp|program|option|makevar|mimetype):)"
# A translation can have letters beside markup; `with_boundaries` adds what a reader needs there.
_BEFORE = rf"(?:(?<![\w*|\\])|(?<=[{SPACELESS}\uac00-\ud7af]))"
_NO_LETTER = rf"(?![^\W{SPACELESS}\uac00-\ud7af])"
_AFTER = rf"{_NO_LETTER}(?![*|])"
_TICK = r"(?<![`\\])"
_TITLE = r"(?:[^`<>\s]++|\s++(?!<))*+"
_RST: tuple[_Rule, ...] = (
    ("value", rf"{_TICK}````(?=[^`\s])(?:[^`]|`(?!```(?!`)))*+````(?!`)"),
    ("value", rf"{_TICK}``(?=\S)(?!``)(?:[^`]|`(?!`(?!`)))*+``(?!`)"),
    ("pair", rf"({_NO_TITLE}{_ROLE}`)(?=[^`<>\s]){_TITLE}(\s*+<[^`<>]*+>`)(?!`)"),
    ("value", rf"{_ROLE}`[^`]++`(?!`)|{_TICK}`[^`]++`{_ROLE}"),
    ("pair", rf"{_TICK}(`)(?=[^`<>\s]){_TITLE}(\s++<[^`<>]*+(?<!_)>`__?)(?!`)"),
    ("pair", rf"{_BEFORE}(_`)(?=[^`\s])[^`]*+(`)(?!`)"),
    ("value", rf"{_TICK}`(?=[^\s`])[^`]*+`_{{0,2}}(?!`)"),
    ("pair", rf"{_BEFORE}(\*\*)(?=[^\s*])[^*]*+(?<=\S)(\*\*){_AFTER}"),
    ("pair", rf"{_BEFORE}(\*)(?=[^\s*])[^*]*+(?<=\S)(\*){_AFTER}"),
    ("value", rf"{_BEFORE}\|(?=[^\s|])[^|\n]{{1,80}}+(?<=\S)\|_{{0,2}}{_AFTER}"),
    ("alone", r"\[(?:\d++|#[\w-]*+|\*|[A-Za-z][\w.-]*+)\]_" + _NO_LETTER),
    ("value", r"(?<![\w`.@/\\:+-])(?=[A-Za-z0-9])[A-Za-z0-9.+:-]*+(?:_[A-Za-z0-9.+:-]++)*+__?(?![\w`])"),
    ("alone", r"\\ "), ("value", r"\\[^\w\s]"),
)
_MARKDOWN_LINK: _Rule = ("pair", r"(!?\[)[^\[\]]++(\](?:\([^()\s]*+(?:\s++\"[^\"]*+\")?\)|\[[^\[\]]*+\]))")
_MARKDOWN_BOLD: _Rule = ("pair", r"(?<![\w*\\])(\*\*)(?=[^\s*])[^*]*+(?<=\S)(\*\*)(?!\*)")
_MARKDOWN: tuple[_Rule, ...] = (
    ("value", r"(?<!`)``(?!`)(?:[^`]|`(?!`))*+``(?!`)|(?<!`)`[^`]++`(?!`)"),
    ("value", r"\{[A-Za-z][\w:-]*+\}`[^`]++`"), _MARKDOWN_LINK, _MARKDOWN_BOLD,
    ("pair", r"(?<![\w*\\])(\*)(?=[^\s*])[^*]*+(?<=\S)(\*)(?!\*)"),
    ("pair", r"(?<![\w_\\])(__)(?=[^\s_])[^_]*+(?<=\S)(__)(?![\w_])"),
    ("pair", r"(?<![\w_\\])(_)(?=[^\s_])[^_]*+(?<=\S)(_)(?![\w_])"),
    ("value", r"\\[^\w\s]"),
)
_WIKI: tuple[_Rule, ...] = (
    ("pair", r"(\[(?:(?:https?:)?//|mailto:|\{\{)[^\s\[\]]++ ++)[^\[\]]++(\])"),
    ("value", r"\[(?:https?:)?//[^\s\[\]]++\]"),
    ("pair", r"(\[\[[^\[\]|\n]++\|)[^\[\]|\n]++(\]\])"),
    ("pair", r"(?<![\w'])(?P<quotes>''{1,4})(?=[^\s'])(?:[^']|'(?!'))*+(?<=\S)((?P=quotes))(?![\w'])"),
)
# Documents as po4a has them in catalogues: manual pages and POD, AsciiDoc. In a manual page, a single word in bold is
# the name of a command or an option.
_PAGE = r"\([1-9][a-z]{0,4}\)"
_ROMAN = r"\\f(?:[PR1]|\[\w*+\])"
_MAN: tuple[_Rule, ...] = (
    ("value", r"E<lt>[^<>\n]{1,80}E<gt>|[A-Z]<<++\s[^\n]{1,500}?\s>>++|[CFLXZE]<[^<>]*+>"),
    ("value", rf"B<(?:(?:\\ |[^\s<>])++|[^<>]*?\s-[^\s<>][^<>]*+)>(?:{_PAGE})?"),
    ("open", "(?:[BIRS]|CW)(<)"), ("close", "(>)"),
    ("value", rf"\\f(?:[B3]|\[B\])(?:[^\s\\]|\\[- ])++{_ROMAN}(?:{_PAGE})?"),
    ("value", rf"\\f(?:C|\(C.|\[C.?\])[^\n]{{1,200}}?{_ROMAN}"),
    ("open", r"(\\f)(?:[BI2-4]|\(\w\w|\[\w++\])"), ("close", rf"(?=(\\f)){_ROMAN}"),
    ("value", rf"(?a:(?<![\w.:-])[A-Za-z][\w.:-]*+(?:(?:\\-[\w.=]*+)++|{_PAGE})|(?:\\-[\w.=]*+)++)"),
    ("value", r"\\(?:\*?\(..|\*?\[[^\]\s]++\]|\*.|s[-+]?\d|e\w?|[^\w\s]|[ftc0](?!\w))"),
)
# Emphasis and escapes of AsciiDoc are those of Markdown.
_ASCIIDOC: tuple[_Rule, ...] = (
    ("pair", r"([\"']`)(?=\S)[^`]++(`[\"'])"), ("break", r" \+(?=\n|\Z)"),
    ("value", r"(?a:(?<![\w`\\])(?:``(?=[^\s`])[^`\n]++``|`(?=[^\s`'])[^`\n]++`)(?![\w`])"
              r"|(?<![\w+])(?:\+\+\+[^+\n]++\+\+\+|\+\+[^+\n]++\+\+|\+(?=[^\s+])[^+\n]++\+)(?![\w+]))"),
    ("pair", r"((?a:\b)(?:link|xref|mailto|https?|ftp|footnote):[^\s\[\]]{0,500}\[)(?=[^\[\],])"
             r"(?:[^\[\],^]|,(?!\s*+\w++=))++(\^?(?:,[^\[\]]*+)?\])"),
    ("value", rf"(?a:\b[a-z][\w-]{{0,40}}::?[^\s\[\]]{{0,500}}\[[^\[\]]*+\]|(?<![\w.-])[A-Za-z][\w.-]*+{_PAGE})"),
    ("pair", r"(<<[^<>,\n]{1,200},\s*+)[^<>]++(>>)"), ("pair", r"(\(\()(?!\()[^()\n]++(\)\))(?!\))"),
    ("value", r"<<[^<>\n]{1,200}>>|\(\(\([^()\n]*+\)\)\)|\[\[[^\[\]\n]++\]\]|\[[.#%][^\[\]\s]*+\]"), *_MARKDOWN[3:],
)
_BBCODE = ("b|i|u|s|url|quote|size|colou?r|list|center|left|right|spoiler|table|tr|td|th|font|email|sub|sup|h[1-6]|"
           "pre|indent|li|ol|ul|strike|align|user")
# Contents of a tag of a template language. The next beginning of a tag ends them, so that a search takes linear time.
_PERCENT = r"(?:[^%{]|%(?!\})|\{(?!%))*+%\}"
_TEMPLATE: tuple[_Rule, ...] = (
    ("alone", rf"(?<=[^\W\d_])\{{%-?\s*+if\b{_PERCENT}\w{{1,4}}(?:\{{%-?\s*+else\b{_PERCENT}\w{{1,4}})?"
              rf"\{{%-?\s*+endif\b{_PERCENT}"),
    # Code that decides about the text separates sentences, as in HTML.
    ("break", rf"\{{%[-+~]?\s*+(?:(?:end)?(?:if\w*+|for\w*+|unless|case|switch|with|block|while)|else\w*+|elif|elsif"
              rf"|empty|plural|when|default)\b{_PERCENT}"),
    ("close", rf"\{{%[-+~]?\s*+end([a-z_]*+)\b{_PERCENT}"),
    ("open", rf"\{{%[-+~]?\s*+([a-z_]++)\b{_PERCENT}"),
    ("value", rf"\{{%{_PERCENT}"),
    ("alone", r"\{#(?:[^#{]|#(?!\})|\{(?!#))*+#\}|\{\{!--(?:[^-{]|-(?!-\}\}))*+--\}\}|\{\{![^{}]*+\}\}"),
    ("break", r"\{\{~?\s*+(?:else\b|\^\s*+(?=\})|[#/^]\s*+(?:if|unless|each|with|for|foreach|range)\b)[^{}]*+\}\}"),
    ("open", r"\{\{~?\s*+[#^]\s*+[*>]?\s*+([\w.-]++)[^{}]*+\}\}"),
    ("close", r"\{\{~?\s*+/\s*+([\w.-]++)[^{}]*+\}\}"),
    ("value", r"\{\{\{?[^{}]*+(?:\{\{[^{}]*+\}\}[^{}]*+)*+\}\}\}?|\{!![^!{]*+!!\}|\{\$[^{}\n]++\}"),
    ("break", r"<\?php\s++(?:if|else\w*+|end\w++|for\w*+|while|switch|case|[{}])(?:[^?<]|\?(?!>)|<(?!\?))*+\?>"),
    ("value", r"<%[-=](?:[^%<]|%(?!>)|<(?!%))*+%>|<\?(?:php\b|=)(?:[^?<]|\?(?!>)|<(?!\?))*+\?>"),
    ("break", r"<%(?:[^%<]|%(?!>)|<(?!%))*+%>"),
    ("value", r"\[%(?:[^%\[]|%(?!\])|\[(?!%))*+%\]"),
    ("open", r"<[#@]([a-z][\w.]*+)[^<>]*+>"), ("close", r"</[#@]([a-z][\w.]*+)\s*+>"),
)
SYNTAXES: dict[str, tuple[_Rule, ...]] = {
    **{name: (("value", rules),) if isinstance(rules, str) else rules for name, rules in _FORMATS.items()},
    "strftime": (("value", rf"(?<![0-9%]){_DIRECTIVE}(?:[-./:,hT年月時]?[ ]?{_DIRECTIVE})*+"),),
    "dates": (("value", rf"(?<![0-9%]){_DIRECTIVE}(?:[-./:,hT年月時]?[ ]?{_DIRECTIVE})++"),),
    "chrome": (("value", r"\$[A-Za-z0-9_@]++\$|\$[1-9](?!\d)|\$\$"),),
    "vue": (("value", r"(?<![\w.@])@(?:\.[a-z]++)?:(?:\([^()\n]*+\)|\{[^{}\n]*+\}|[\w-]++(?:\.[\w-]++)*+)"
             r"|\{'[^'\n]*+'\}"),),
    "printf": (("value", _PRINTF),), "rst": _RST, "markdown": _MARKDOWN,
    "wiki": _WIKI, "man": _MAN, "asciidoc": _ASCIIDOC,
    # Variables that are names or numbers after a sign, and options of commands. "50 %" and "$5.00" are none.
    "names": (("value", r"(?a:(?<![\w%])%(?![a-z][A-Z])[A-Za-z_][\w.-]*\w%?|(?<![\w!<])![a-z_](?:[\w-]*\w)?"
               r"|(?<![\w$])\$\d{1,2}(?!\w|[.,]\d)|(?<![\w/.-])-[A-Za-z](?![\w-]))"),),
    # In strings of any program, `file' is a quotation, and single asterisks and underscores may be anything.
    "markdown-in-strings": (("value", r"(?<![`\w])`[^`'\s](?:[^`'\n]*+)`(?!`)"), _MARKDOWN_LINK, _MARKDOWN_BOLD),
    "template": _TEMPLATE,
    # Filters of file dialogs: "Images (*.png *.jpg);;All files (*)" of Qt, "Text (*.txt)|*.txt" of .NET.
    "filter": (("break", r"\((?:\*(?:\.[\w*]++)?[ ,;]*+)++\)(?:;;|\|[^|\n]*+(?:\||\Z)|\Z)"),
               ("value", r"\((?:\*\.[\w*]++[ ,;]*+)++\)|(?<![\w*])\*\.\w{1,8}\b")),
    "bbcode": (("value", r"(?i:\[(?:img|code|noparse|youtube)(?:=[^\[\]\n]*+)?\][^\[\]\n]*+"
                r"\[/(?:img|code|noparse|youtube)\])"),
               ("alone", r"\[(?:\*|hr)\]"), ("open", rf"(?i:\[({_BBCODE})(?:[= ][^\[\]\n]*+)?\])"),
               ("close", rf"(?i:\[/({_BBCODE})\])")),
}
"""Rules of each syntax. Where several match at the same place, the first one counts."""
SIGNS = re.compile(r"[%{}<\[$~`*_|\\@!(+]|''|(?<!\S)-[A-Za-z]")
"""One of these is in everything in SYNTAXES."""
_COUNTERPARTS = {")": "(", "]": "[", "}": "{", ">": "<"}


@cache
def _compiled(syntax: tuple[str, ...]) -> tuple[re.Pattern[str], dict[int, tuple[_RuleKind, int, str]]]:
    """Return the pattern of all rules, and the kind, number of groups and syntax of the rule of each group."""
    patterns, rules, group = [], dict[int, tuple[_RuleKind, int, str]](), 1
    for name in syntax:
        for kind, pattern in SYNTAXES.get(name, ()):
            patterns.append(f"({pattern})")
            rules[group] = kind, re.compile(pattern).groups, name
            group += 1 + rules[group][1]
    return re.compile("|".join(patterns) or r"\Z(?!\Z)"), rules


def find_markup(text: str, syntax: Sequence[str]) -> list[Markup]:
    """Return what a text has of some syntaxes, in order and without overlaps. syntax: keys of SYNTAXES.

    An opening or closing tag without its counterpart is a "value". Directives of strftime count only if there are two
    of them, or if the text has no other letters.
    """
    if not SIGNS.search(text):
        return []
    pattern, rules = _compiled(tuple(syntax))
    found: list[Markup] = []
    directives: list[int] = []                                                  # indices in `found`

    def find(begin: int, end: int) -> None:
        for match in pattern.finditer(text, begin, end):
            index = match.lastindex
            assert index is not None
            kind, groups, name = rules[index]
            if kind == "pair":
                found.append(Markup(*match.span(index + 1), "open", match[index + 1]))
                find(match.end(index + 1), match.start(index + 2))
                found.append(Markup(*match.span(index + 2), "close", match[index + 1]))
                continue
            if name == "strftime":
                directives.append(len(found))
            tag = match[index + 1].lower() if groups else ""
            found.append(Markup(*match.span(), kind, _COUNTERPARTS.get(tag, tag)))

    find(0, len(text))
    ends = element_ends((one.kind, one.name) for one in found)
    paired = {*ends, *ends.values()}
    found = [replace(one, kind="value", name="") if one.kind in ("open", "close") and index not in paired else one
             for index, one in enumerate(found)]
    if len(directives) == 1:
        only = found[directives[0]]
        if text.count("%", only.begin, only.end) == 1 and any(map(str.isalpha, text[:only.begin] + text[only.end:])):
            del found[directives[0]]
    return found


NUMBERED = dict.fromkeys(["c", "objc", "perl", "php", "java-printf", "awk", "tcl", "boost", "ruby", "elisp", "librep",
                          "gcc-internal", "gfc-internal", "javascript", "sh-printf", "d", "printf"], "%")
NUMBERED |= {"python-brace": "{", "rust": "{", "c++": "{", "object-pascal": "%", "go": "%"}
"""Formats that can number the arguments of their directives, and the first character of these directives."""
_DOUBLED = frozenset(["%%", "{{", "}}"])
_LITERALS = frozenset(["%%", "{{", "}}", "%'", "%m", "%n", "~%", "~~"])
_NAMED = re.compile(r"%(?:\d++%|[({]\w|<(?!PRI)\w)|%L?[1-9]\d?\Z|\$|\{[^{}:!]")
_ARGUMENT_NUMBER = re.compile(r"(?<=%)(?:\d++[$:])|(?<=%\|)\d++\$|(?<=\{)\d++(?=[}:!])|\[\d++\](?=[A-Za-z]\Z)")


def keeps_arguments(source: str, translation: str, name: str) -> bool:
    """Return True if the directives of a translation take the same arguments as those of its source.

    "%2$d: %1$s" does so for the source "%s: %d", but "%d: %s" does not. name: syntax that a format flag of gettext
    names.
    """
    return _taken(source, name) == _taken(translation, name)


def _taken(text: str, name: str) -> Counter[tuple[int, str]]:
    """Return the directives of a text, each with the index of its argument; -1 if it has a name or no argument."""
    taken, following = Counter[tuple[int, str]](), 0
    for one in find_markup(text, (name,)):
        directive = text[one.begin:one.end]
        if directive in _DOUBLED:
            continue
        if number := _ARGUMENT_NUMBER.search(directive):
            following = int(number[0].strip("$:[]")) - _first_number(name)
            directive = directive[:number.start()] + directive[number.end():]
        is_named = number is None and _NAMED.match(directive) is not None or (
            directive in _LITERALS or directive[0] == "\\")
        taken[-1 if is_named else following, directive] += 1
        following += not is_named
    return taken


@cache
def literal_signs(name: str) -> frozenset[str]:
    """Return the signs that begin directives of printf and similar functions, and that a text has twice: `%` in c."""
    return frozenset(sign for sign in "%{}" if name in GETTEXT_FORMATS | {"printf"} and [
        (one.begin, one.end) for one in find_markup(2 * sign, (name,))] == [(0, 2)])


def numbered(directives: Mapping[str, str], order: Sequence[str], name: str) -> Mapping[str, str]:
    """Return directives with the numbers of their arguments, if they stand in another order in the translation, and if
    the format can number them: `%s` and `%d` become `%1$s` and `%2$d`.

    Args:
        directives: directives of the source by key, in order. order: keys in the order of the translation. name: one of
            NUMBERED.
    """
    taking = {key: one for key, one in directives.items() if one not in _LITERALS and one[0] == NUMBERED[name] and (
        _ARGUMENT_NUMBER.search(one) or not _NAMED.match(one))}
    if [key for key in order if key in taking] == list(taking) or any(
            "*" in one or _ARGUMENT_NUMBER.search(one) for one in taking.values()):
        return directives
    first = _first_number(name)
    return {**directives, **{key: _with_number(one, number, name)
                             for number, (key, one) in enumerate(taking.items(), first)}}


def _first_number(name: str) -> int:
    return int(NUMBERED.get(name) == "%" and name != "object-pascal")


def _with_number(directive: str, number: int, name: str) -> str:
    if name == "go":
        return f"{directive[:-1]}[{number}]{directive[-1]}"
    begin = 2 if directive.startswith("%|") else 1
    sign = "" if directive[0] == "{" else ":" if name == "object-pascal" else "$"
    return f"{directive[:begin]}{number}{sign}{directive[begin:]}"


BOUNDARIES = {"rst": ("\\ ", "\\", "'\"(<[{-/:", "'\")>]}-/:\\.,;!?"),
              "asciidoc": (" ", "\\[<( ", "'\"(<[{-/:*_`=,.;+", "'\")>]}-/:*_`=,.;+!?")}
"""Signs that divide markup from letters, by syntax; first signs of markup that can touch them; and the signs of ASCII
that markup can begin after, and end before."""


def with_boundaries(text: str, syntax: str) -> str:
    r"""Return a text with a space between markup and letters beside it, where a reader would not see the markup:
    "日本``a``" becomes "日本\ ``a``" in reStructuredText. syntax: key of BOUNDARIES."""
    space, free, before, after = BOUNDARIES[syntax]
    places, depth = [], 0
    for one in find_markup(text, (syntax,)):
        if text[one.begin] not in free:
            if depth == 0 and one.kind != "close" and not _is_boundary(text[one.begin - 1:one.begin], before, "Ps"):
                places.append(one.begin)
            depth += {"open": 1, "close": -1}.get(one.kind, 0)
            if depth == 0 and not _is_boundary(text[one.end:one.end + 1], after, "Pe"):
                places.append(one.end)
    return replace_spans(text, [(place, place, space) for place in places])


def _is_boundary(character: str, signs: str, brackets: str) -> bool:
    """Return True if inline markup can begin after a character, or end before it, as docutils requires. signs: ASCII
    punctuation; brackets: Unicode category of brackets."""
    return not character or character.isspace() or character in signs or not character.isascii() and (
        unicodedata.category(character) in (brackets, "Pi", "Pf", "Pd", "Po"))
