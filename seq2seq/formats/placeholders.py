"""Placeholders: parts of a text that a translation must contain exactly as often as its source, unchanged.

They are variables of message formats (printf, Python, ICU, Mustache, Qt, Ruby, JavaScript, Laravel), markup in plain
strings, addresses, file paths, emoji, hashtags and user names.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from functools import cache

from seq2seq.errors import UserError
from seq2seq.formats.inline_tags import TagKind, element_ends
from seq2seq.languages import SPACELESS
from seq2seq.tokenizers.line_splitting import Span

_NAME = r"[A-Za-z_][\w.-]{0,80}"
_BRACED = r"\{(?:[^{}\n]|\{(?:[^{}\n]|\{(?:[^{}\n]|\{[^{}\n]*+\})*+\})*+\})*+\}"
_EMOJI = "[\u203c\u2049\u2139\u2194-\u21aa\u231a-\u23ff\u25aa-\u27bf\u2b05-\u2b55\U0001f000-\U0001faff]"
# Text in these scripts can follow an address or a path without a space. Inside of an address or a path, they are found
# only after a delimiter, and only if they do not end in further text.
_LETTERS = f"[{SPACELESS}\uac00-\ud7af]"
_UNSPACED = f"{SPACELESS}\uac00-\ud7af\uff00-\uffef"
_WORD = rf"[^\W{_UNSPACED}]"
_NO_WORD_BEFORE = rf"(?<!{_WORD})"
_IN_ADDRESS = rf"(?:[^\s<>\"“”«»（）、。，{_UNSPACED}]|(?<=[/=?#&]){_LETTERS}++(?=[/.?#&_%=\s-]|\Z))"
# A variable before a path or inside of it is part of the path: $HOME/x, ${HOME}/x, %APPDATA%\x, $(pwd)/x, {dir}/x.
_VARIABLE = (r"(?:\$(?:[A-Za-z_]\w{0,60}(?::[A-Za-z_]\w{0,60})?|[{][^{}\n]{1,200}[}]|\([^()\n]{1,200}\))"
             r"|[#%@][{][^{}\n]{1,200}[}]|%[A-Za-z_]\w{0,60}%|%\([^()\n]{1,80}\)s|[{][\w.]{1,80}[}])")
_IN_PATH = rf"(?:{_WORD}|[@+-]|\.++(?=[@+-]|{_WORD})|(?<=/){_LETTERS}++(?=[/._\s-]|\Z)|{_VARIABLE})"
_QUOTED = r"\"'`“”„‚‘’«»<>|\n/\\"
_QUOTED_NAME = rf"[^\s{_QUOTED}](?:[^{_QUOTED}]{{0,80}}[^\s{_QUOTED}])?"
# `_spans` cuts punctuation off at the end of an address.
_ADDRESSES = (
    rf"{_NO_WORD_BEFORE}[A-Za-z][A-Za-z0-9+-]{{1,20}}://{_IN_ADDRESS}{{1,2000}}+",
    rf"{_NO_WORD_BEFORE}www\.(?:{_WORD}|-)+\.{_IN_ADDRESS}{{1,2000}}+",
    rf"{_NO_WORD_BEFORE}mailto:{_IN_ADDRESS}{{1,500}}+",
    rf"{_NO_WORD_BEFORE}(?<![.+-])(?:{_WORD}|[.+-]){{1,64}}@(?:{_WORD}|-){{1,63}}(?:\.(?:{_WORD}|-){{1,63}}){{1,8}}",
)
_VARIABLES = (
    # Variables in braces: {{x}}, ${x}, #{x}, %{x}, @{x}, {}, {0}, {x!r:.2f}, {x, number}; and, in lines of text, whole
    # arguments with branches: {n, plural, one {…}}. Documents have none here, because `messages` divides them before.
    r"\{\{\{?[^{}\n]{1,200}\}\}\}?", r"[$#%@]\{[^{}\n]{1,200}\}", r"\$t?\([^()\n]{1,200}\)", r"\$\[[^\[\]\n]{1,200}\]",
    rf"(?=\{{\s*+\w++\s*+,\s*+(?:plural|select|selectordinal)\s*+,){_BRACED}",
    r"\{\s*+[!+*#]?(?:[\w.$-]|\[[^\[\]\n]{0,80}\]){0,80}+\s*+(?:![rsa])?(?:[:,][^{}\n]{0,80})?\}",
    # Variables of printf and similar functions: %s, %(count)d, %1$s, %-8.3f, %%, %@, %1, %L2, %n, %name%.
    r"%\([^()\n]{1,80}\)[-+#0]*+\d*+(?:\.\d++)?[A-Za-z]", rf"%{_NAME}%(?![\w%])",
    r"%(?:\d{1,2}\$)?(?:#@\w{1,80}@|arg\b)",                                     # of Apple's plural rules
    r"(?<!\d)%(?:\d++\$)?[-+#0,]*+(?:\d++|\*)?(?:\.(?:\d++|\*))?(?:hh|h|ll|l|L|z|j|t|q)?[diouxXeEfFgGaAcsSpn@](?:(?<=\$.)|(?![a-z]{3}))",
    r"%%", r"(?<!\d)%L?[1-9]\d?(?!\d)", r"(?<![\w%])%[A-Za-z](?![\w%])",
)
TAG = re.compile(r"</?[A-Za-z_][^<>\n]{0,400}>")
"""Tag in a text. Its kind and name are told by `tag_kind`, and those of a string by `tags_in_text`."""
VARIABLE = re.compile(f"(?=[{{%$#@])(?:{'|'.join(_VARIABLES)})")
"""Variable in braces or of printf, such as {name} and %s: a placeholder that is no word, address or tag of a text."""
_PATTERNS = (
    *_ADDRESSES,
    # File paths that begin with a drive or a variable, and paths with spaces in quotes.
    rf"(?<=[\"'`“„‚‘«»])(?:[A-Za-z]:|~|\.{{1,2}}|{_VARIABLE})?[/\\](?:{_QUOTED_NAME}[/\\]){{1,30}}+"
    rf"(?:{_QUOTED_NAME}\.\w{{1,8}}|[^\s{_QUOTED}]{{1,80}})(?=[\"'`“”’«»])",
    rf"{_NO_WORD_BEFORE}(?:[A-Za-z]:|(?<![/.~]){_VARIABLE})(?:/{_IN_PATH}++)++",
    r"\b[A-Za-z]:\\(?:[^\s\\\"<>|]+\\)*+[^\s\\\"<>|]*",
    rf"(?:(?=[$%]){_VARIABLE}|(?<!\\)\\\\[\w.-]{{1,80}})(?:\\[^\s\\\"<>|]+)++\\?",
    # Names between the same signs: $NAME$, #name#, ###NAME###, %%name%%, @@name@@, |NAME|, *|NAME|*, ~NAME~.
    r"(?<![\w#$%@])(?P<sign>#{1,3}|\$|%%|@@)[A-Za-z][\w.:-]{0,60}?(?P=sign)(?![\w#$%@])",
    r"(?<!\w)(?:\*?\|[A-Z][A-Z0-9_:]{1,60}\|\*?|~[A-Z][A-Z0-9_]{1,60}~)(?!\w)",
    *_VARIABLES,
    # Names with underscores: SITE_NAME, user_name, user_list.py. German has Benutzer_innen.
    r"(?<![\w.])(?:[A-Z][A-Z0-9]+(?:_[A-Z0-9]+)+|[a-z][a-z0-9]+(?:_[a-z0-9]+)+(?:\.[a-z]\w{0,8})*)(?!\w)",
    # A name in brackets that has a sign of programs: [user:name], [user_name], and [_1], [quant,_1,file,files] of Perl.
    r"\[(?:[^\[\]\s]{0,80}?\w[:_=+]\w|[^\[\]\n]{0,80}?(?<!\w)_\d)[^\[\]\n]{0,200}\]",
    # Options of commands: --force, --output=FILE.
    r"(?<![^\s(\[{'\"`“„«])--[A-Za-z][\w-]{0,60}+(?:=(?:<[^<>\s]{1,80}>|[\w./:,+-]{0,80}\w))?",
    # Other variables: $name, :name, __name__, [[name]].
    rf"{_NO_WORD_BEFORE}(?<!\$)\$[A-Za-z_]{_WORD}*+(?:\$s)?",
    r"(?<![\w:]):[a-z_]\w{1,60}:?(?!\w)", r"\b__\w{1,60}?__\b",
    r"\[\[[^\[\]\n]{1,200}\]\]",
    # Entities and tags in plain strings.
    r"&(?:[A-Za-z][\w.-]{1,60}|#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6});", TAG.pattern,
    r"<![A-Z]{4,10}\s[^<>\"'\n]{1,200}>?",                                       # <!ENTITY name "text">
    r"</?[0-9]{1,3} ?/?>",                                                      # <0>, </0>, <1/> of i18next and Lingui
    # File paths: /etc/hosts, ~/x, ./x, C:\x. The slash in "10 €/month" and "(s)/he" begins no path.
    rf"(?<![\w/.~<)€$£¥₹₽])(?<![\s\d]%)(?:~{_WORD}{{0,40}}|\.{{1,2}})?(?:/{_IN_PATH}++)++",
    # Escapes in strings: \n, \t, \u00e4. A command of LaTeX with an argument is none.
    r"\\(?:[nrt](?![A-Za-z]*[{\[])|u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2})",
    # User names and hashtags.
    rf"{_NO_WORD_BEFORE}(?<!@)@[A-Za-z_]{_WORD}{{0,60}}", r"(?<![\w&#])#\w*[^\W\d_]\w*",
    # Emoji: sequences of symbols with their modifiers; flags; key caps.
    rf"(?:{_EMOJI}[\ufe0e\ufe0f\u20e3\U0001f3fb-\U0001f3ff]*(?:\u200d{_EMOJI}[\ufe0f\U0001f3fb-\U0001f3ff]*)*"
    "[\U000e0020-\U000e007f]*)+", "[0-9#*]\ufe0f?\u20e3",
)
_ENDS_IN_TEXT = re.compile(rf"[^\W\d_]|(?:{_VARIABLE}|\\)\\")
"""Beginning of an address or a path whose pattern also matches the punctuation after it."""
_FINAL = ".,;:!?)]}'’”\"…"


class Placeholders:
    """Patterns of placeholders: the standard ones and those of the user."""

    def __init__(self, patterns: Sequence[str] = ()) -> None:
        """patterns: regular expressions of the user, in addition to the standard ones."""
        self.patterns = tuple(patterns)
        for pattern in patterns:
            try:
                empty = re.compile(pattern).match("")
            except re.error as error:
                raise UserError(f"--placeholder '{pattern}' is not a regular expression: {error}.") from error
            if empty:
                raise UserError(f"--placeholder '{pattern}' matches the empty text. Write a pattern of at least one "
                                "character.")
        # The patterns are not joined into one, because two of them may have groups of the same name.
        self._own = [re.compile(pattern) for pattern in patterns]

    def spans(self, text: str) -> list[Span]:
        """Return the spans of all placeholders, in order and without overlaps. The user's patterns have priority."""
        found: list[Span] = []
        for pattern in self._own:
            found += [match.span() for match in pattern.finditer(text) if match.end() > match.start()]
        taken, position = [], 0
        for begin, end in sorted(found, key=lambda span: (span[0], -span[1])):
            if begin >= position:
                taken.append((begin, end))
                position = end
        position = 0
        for begin, end in [*taken, (len(text), len(text))]:
            taken += _spans(_PATTERNS, text, position, begin)
            position = end
        return sorted(taken)

    def counts(self, *texts: str) -> Counter[str]:
        """Return the number of occurrences of each placeholder in all texts."""
        return Counter([text[begin:end] for text in texts for begin, end in self.spans(text)])


_TAG = re.compile(r"<(/?)([A-Za-z_][\w:.-]{0,80}|[0-9]{1,3})\b[^<>\n]{0,400}?(/?)>")


def tag_kind(placeholder: str) -> tuple[TagKind, str]:
    """Return the kind and the name of a placeholder that is a tag; ("alone", "") for any other placeholder."""
    match = _TAG.fullmatch(placeholder)
    if match is None or match[3]:
        return "alone", ""
    return "close" if match[1] else "open", match[2]


def paired_tags(text: str) -> Counter[str]:
    """Return the number of well nested pairs of tags in a text, by name."""
    tags = [tag_kind(match[0]) for match in _TAG.finditer(text)] if "</" in text else []
    return Counter(tags[begin][1] for begin in element_ends(tags))


def addresses(text: str) -> list[Span]:
    """Return the spans of web and e-mail addresses, in order."""
    return _spans(_ADDRESSES, text, 0, len(text))


@cache
def _joined(patterns: tuple[str, ...]) -> re.Pattern[str]:
    """Return one pattern of several. It is compiled for the first text that may match, because all of the standard
    placeholders take a twentieth of a second."""
    return re.compile("|".join(f"(?:{pattern})" for pattern in patterns))


_SIGNS = re.compile(f"[{{%$:&<@#/\\\\\\[|~\u20e3]|_|--|www\\.|{_EMOJI}")
"""One of these is in each placeholder."""


def _spans(patterns: tuple[str, ...], text: str, begin: int, end: int) -> list[Span]:
    spans: list[Span] = []
    if not _SIGNS.search(text, begin, end):
        return spans
    while match := _joined(patterns).search(text, begin, end):
        low, high = match.span()
        if _ENDS_IN_TEXT.match(match[0]):
            while high > low + 1 and text[high - 1] in _FINAL and not (
                    text[high - 1] == ")" and text.count("(", low, high) >= text.count(")", low, high)):
                high -= 1
        spans.append((low, high))
        begin = high
    return spans
