"""Messages with branches: ICU plural and select, choice formats of Java, plural forms between pipes.

ICU: https://unicode-org.github.io/icu/userguide/format_parse/messages/. Java: java.text.ChoiceFormat. Pipes: vue-i18n,
Laravel and Symfony. {{PLURAL:$1|…}} and {{GENDER:$1|…}}: https://www.mediawiki.org/wiki/Help:Magic_words.

Each branch is translated as a whole sentence: the text around an argument with branches goes into them ("{n, plural,
one {A dog} other {# dogs}} sleeps" has the sentences "A dog sleeps" and "# dogs sleep"). Arguments and quoted parts are
placeholders in these sentences. The translated message has the plural categories of the target language.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from operator import add

from seq2seq.formats.block import DocumentError
from seq2seq.formats.placeholders import Placeholders
from seq2seq.formats.plurals import (
    NUMBERS,
    gettext_rule,
    has_further_numbers,
    plural_categories,
    plural_rule,
    singular_forms,
)
from seq2seq.formats.spans import blanked
from seq2seq.formats.syntaxes import find_markup

_MAX_BRANCHES = 64
"""Maximum number of sentences of a message. Two plurals after each other have as many as their product."""
_MAX_RESULTS = 2_000
"""Maximum number of sentences of a translated message: Arabic has six categories for each plural."""
_MAX_DEPTH = 12
"""Maximum number of arguments with branches that are inside of each other, or that follow each other."""
_PLURALS = ("plural", "selectordinal", "PLURAL")
_START = re.compile(r"\{\s*+[\w.$-]++\s*+,\s*+(?:plural|selectordinal|select|choice)\s*+,")
_MESSAGE_FORMAT_2 = re.compile(r"\s*+\.(?:input|local|match)\b[^{}]*+[{$]")
_HEAD = re.compile(r"\{\s*+([\w.$-]++)\s*+,\s*+(plural|selectordinal|select|choice)\s*+,(?:\s*+offset\s*+:\s*+(\d++))?")
_KEY = re.compile(r"(\s*+)(=\d++|[^\s{}=,'|#]++)(\s*+)\{")
_LIMIT = re.compile(r"(\s*+-?(?:\d++(?:\.\d++)?|∞)\s*+[#<≤])(\s*+)")
_SIMPLE = re.compile(r"\{\s*+[\w.$-]{1,80}+\s*+(?:,[^{}'\n]{0,80})?\}|\{\{[^{}\n]{1,200}\}\}")
_QUOTED = re.compile(r"'(?:[^']++|'')*+'")
_BRACED = re.compile(r"\{[^{}\n]*+\}")
_CHOICES = re.compile(rf"{_LIMIT.pattern}[^|]*+(?:\|{_LIMIT.pattern}[^|]*+)++")
_INTERVAL = re.compile(  # [1,19], {0} of Laravel and Symfony
    r"\s*+(?:\{\d++(?:,\d++)*+\}|[\[\]]\s*+-?(?:\d++|\*|Inf)\s*+,\s*+[+-]?(?:\d++|\*|Inf)\s*+[\[\]])\s*+")
_RANGES = re.compile(r"(?:\s*+\((?:\d++|\d*+-(?:\d++|inf)?)\)\[[^\[\]]++\]\s*+;?)++\s*+")
_KEYWORDS = re.compile(r"(?:[^\s;:|{}&][^;:|{}&\n]{0,60}+;){2,}+")
"""List of a desktop entry, such as `system;monitor;`."""
_LARAVEL = re.compile(r"(?<![\w:]):[A-Za-z_]\w*+")
_FUNCTIONS = ("PLURAL", "GENDER")
"""Functions of MediaWiki whose forms are branches."""
_FORMS = ("one", "few", "many", "two", "zero")
"""Plural categories of the forms before the last one."""
_WIKI_START = re.compile(r"\{\{\s*+(PLURAL|GENDER)\s*+:", re.IGNORECASE)
_WIKI_TOKENS = re.compile(r"(\{\{\s*+(?:PLURAL|GENDER)\s*+:|\{\{|\}\}|\[\[|\]\]|\||\$\d{1,2})", re.IGNORECASE)
_WIKI_LINK = re.compile(r"\[\[[^\[\]]*+\]\]|\|")
_EXACT = re.compile(r"\s*+(\d{1,3})\s*+=")
_BRACKETS = {")": "(", "]": "[", "}": "{"}


@dataclass(frozen=True, slots=True)
class _Kept:
    """Argument without branches, or quoted part, as it stands in the message."""

    raw: str


@dataclass(frozen=True, slots=True)
class _Number:
    """`#` in a branch of a plural: the number of this argument."""

    name: str
    offset: str


@dataclass(frozen=True, slots=True)
class _Argument:
    """Argument with branches. head, tail: what stands before the first branch and after the last one. branches: key and
    contents of each branch; a key has the white space around it."""

    name: str
    kind: str
    offset: str
    head: str
    tail: str
    branches: tuple[tuple[str, tuple[_Node, ...]], ...]

    @property
    def identity(self) -> tuple[str, str, str]:
        """Equal for arguments that choose the branch in the same way."""
        return self.name, self.kind, self.offset


_Node = str | _Kept | _Number | _Argument


@dataclass(frozen=True, slots=True)
class _Sentence:
    """Contents of a branch, whose text is number `index` of the texts to translate. placeholders: those of the text, in
    order, with the private characters that stand for tags. kept: what each placeholder stands for."""

    index: int
    placeholders: tuple[str, ...]
    kept: dict[str, _Kept | _Number]


@dataclass(frozen=True, slots=True)
class _Choice:
    argument: _Argument
    branches: tuple[tuple[str, _Sentence | _Choice], ...]


@dataclass(frozen=True)
class BranchedMessage:
    """Message whose branches are translated one by one. branches: texts to translate, in order."""

    branches: tuple[str, ...]
    _source: str
    _render: Callable[[Sequence[str], str], str]

    def assemble(self, translations: Sequence[str], target_language: str) -> str:
        """Return the message with translated branches, and with the plural categories of the target language.

        translations: one for each of `branches`.
        """
        return self._source if tuple(translations) == self.branches else self._render(translations, target_language)


def parse_message(text: str, syntax: Sequence[str] = ()) -> BranchedMessage | None:
    """Return a message with branches; None if the text has none. syntax: see `Block.syntax`."""
    if "{" in text and _START.search(text):
        return _icu_message(text)
    if "{{" in text and _WIKI_START.search(text):
        return _wiki_message(text)
    if _MESSAGE_FORMAT_2.match(text):
        raise DocumentError("a message of MessageFormat 2, which is not supported. Translate it by hand.")
    if _CHOICES.fullmatch(text):
        return _choice_format(text)
    if _KEYWORDS.fullmatch(text):
        return _fixed(text, re.split(r"([^;]++)", text), ";", ",")
    if _RANGES.fullmatch(text):
        return _fixed(text, re.split(r"(?<=\[)([^\[\]]++)(?=\])", text), "[]", "()")
    return _forms(text, syntax) if "|" in text else None


# ICU and java.text.MessageFormat


class _Parser:
    """Parser of a message. As in ICU, an apostrophe begins a quotation only before a sign of the structure. In
    java.text.MessageFormat, any apostrophe does, but only these quotations matter for the structure."""

    def __init__(self, text: str) -> None:
        self._text, self._position, self._depth = text, 0, 0

    def nodes(self, parent: _Argument | None = None) -> tuple[_Node, ...]:
        """Return what stands before the end of the branch, or of the message if there is no `parent`."""
        text, found = self._text, list[_Node]()
        choice, number = parent is not None and parent.kind == "choice", parent is not None and parent.kind in _PLURALS
        signs = ("{", "}", "#", "|") if choice else ("{", "}", "#") if number else ("{", "}")
        while self._position < len(text):
            character, begin = text[self._position], self._position
            if character == "}" and parent or character == "|" and choice:
                break
            if character == "'":
                doubled = re.compile(r"'{2,4}" if choice else "''").match(text, begin)
                quoted = _QUOTED.match(text, begin) if text[begin + 1:begin + 2] in signs else None
                if text[begin + 1:begin + 2] in signs and not quoted:
                    raise self._error(begin, "a quotation without its end")
                found.append(_Kept(quoted[0]) if quoted else "'")
                self._position = quoted.end() if quoted else doubled.end() if doubled else begin + 1
            elif character == "{":
                found.append(self._argument())
            elif character == "}":
                raise self._error(begin, "a } without its {")
            elif character == "#" and parent and not choice:
                found.append(_Number(parent.name, parent.offset) if number else _Kept("#"))
                self._position += 1
            else:
                end = re.compile(r"[^'{}#|]++|[#|]").match(text, begin)
                assert end is not None
                found.append(end[0])
                self._position = end.end()
        return tuple(found)

    def _argument(self) -> _Kept | _Argument:
        text, begin = self._text, self._position
        head = _HEAD.match(text, begin)
        if head is None:
            simple = _SIMPLE.match(text, begin)
            self._position = simple.end() if simple else self._end_of_argument()
            return _Kept(text[begin:self._position])
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise self._error(begin, f"arguments that are nested more than {_MAX_DEPTH} times")
        self._position = head.end()
        argument = _Argument(head[1], head[2], head[3] or "", head[0], "", ())
        branches = self.limits(argument) if head[2] == "choice" else self._branches(argument)
        end = re.compile(r"\s*+\}").match(text, self._position)
        if end is None or not branches:
            raise self._error(begin, f"an argument {head[2]} without {'its }' if branches else 'branches'}")
        self._position = end.end()
        self._depth -= 1
        return _Argument(argument.name, argument.kind, argument.offset, argument.head, end[0], tuple(branches))

    def _branches(self, argument: _Argument) -> list[tuple[str, tuple[_Node, ...]]]:
        branches: list[tuple[str, tuple[_Node, ...]]] = []
        while key := _KEY.match(self._text, self._position):
            self._position = key.end()
            branches.append((key[1] + key[2] + key[3], self.nodes(argument)))
            if self._position == len(self._text):
                raise self._error(key.start(2), f"a branch {key[2]} without its }}")
            self._position += 1
            known = {one.strip() for one, _ in branches}
            if len(known) < len(branches):
                raise self._error(key.start(2), f"a second branch {key[2]}")
            if argument.kind != "select" and key[2][0] != "=" and key[2] not in ("zero", "one", "two", "few", "many",
                                                                                 "other"):
                raise self._error(key.start(2), f"{key[2]}, which is no plural category")
        return branches

    def limits(self, argument: _Argument) -> list[tuple[str, tuple[_Node, ...]]]:
        """Return the branches of a choice format."""
        branches: list[tuple[str, tuple[_Node, ...]]] = []
        while limit := _LIMIT.match(self._text, self._position):
            self._position = limit.end()
            branches.append((limit[0], self.nodes(argument)))
            if self._text[self._position:self._position + 1] != "|":
                return branches
            self._position += 1
        raise self._error(self._position, "a choice without its limit, such as 0#")

    def _end_of_argument(self) -> int:
        """Return the end of an argument with nested braces or quotes, such as {d, date, '{'yyyy}."""
        depth = 0
        for match in re.compile(r"[{}]|'(?:[^']|'')*+'").finditer(self._text, self._position):
            depth += {"{": 1, "}": -1}.get(match[0], 0)
            if not depth:
                return match.end()
        raise self._error(self._position, "a { without its }")

    def _error(self, position: int, what: str) -> DocumentError:
        near = self._text[position:position + 30]
        return DocumentError(f"a message with {what}, at {near!r}. Correct it, or translate it by hand.")


def _icu_message(text: str) -> BranchedMessage:
    return _hoisted(text, *_trimmed(_Parser(text).nodes()), "''" in text)


def _trimmed(nodes: tuple[_Node, ...]) -> tuple[tuple[_Node, ...], Callable[[str], str]]:
    """Return a message without the white space around it, and the function that adds this white space."""
    before = after = ""
    if isinstance(nodes[0], str):
        before = nodes[0][:len(nodes[0]) - len(nodes[0].lstrip())]
        nodes = (nodes[0][len(before):], *nodes[1:])
    if isinstance(nodes[-1], str):
        after = nodes[-1][len(nodes[-1].rstrip()):]
        nodes = (*nodes[:-1], nodes[-1][:len(nodes[-1]) - len(after)])
    return nodes, lambda inner: before + inner + after


def _choice_format(text: str) -> BranchedMessage:
    """Return a message that is a choice format, without an argument."""
    branches = _Parser(text).limits(_Argument("", "choice", "", "", "", ()))
    return _hoisted(text, (_Argument("", "choice", "", "", "", tuple(branches)),), str, False)


def _hoisted(text: str, nodes: tuple[_Node, ...], around: Callable[[str], str], doubled: bool) -> BranchedMessage:
    sentences: list[str] = []
    tree = _expand(nodes, {}, sentences)
    return BranchedMessage(tuple(sentences), text, lambda translations, language: around(
        _rendered(tree, None, translations, language, doubled)))


def _expand(nodes: tuple[_Node, ...], chosen: dict[tuple[str, str, str], str], sentences: list[str], results: int = 1,
            ) -> _Sentence | _Choice:
    """Return the tree of branches of a message whose leaves are whole sentences, which are added to `sentences`.

    chosen: key of the branch of each argument on the way to these nodes. results: maximum number of such nodes in a
    translated message.
    """
    while any(isinstance(node, _Argument) and node.identity in chosen for node in nodes):
        nodes = tuple(chain.from_iterable(_chosen_branch(node, chosen[node.identity]) if isinstance(node, _Argument)
                                          and node.identity in chosen else (node,) for node in nodes))
    arguments = [node for node in nodes if isinstance(node, _Argument)]
    if len(sentences) == _MAX_BRANCHES or results > _MAX_RESULTS or len(chosen) > _MAX_DEPTH:
        raise DocumentError("a message with too many combinations of branches. Divide it, or translate it by hand.")
    if not arguments:
        inner = next(reversed(chosen), None)
        if any(isinstance(node, _Number) and node.offset and (inner is None or inner[::2] != (node.name, node.offset))
               for node in nodes):
            raise DocumentError("a message with # of a plural with an offset inside of another argument. Write the "
                                "plural with the offset inside, or translate the message by hand.")
        sentence = _sentence(nodes, len(sentences))
        sentences.append(sentence[0])
        return sentence[1]
    first = min(arguments, key=lambda one: bool(one.offset))           # because # with an offset can only stand inside
    same = [one for one in _arguments(nodes) if one.identity == first.identity]
    raw = {key.strip(): key for one in reversed(same) for key, _ in one.branches}
    keys = {key.strip(): raw[key.strip()] for one in same for key, _ in one.branches}
    results *= max(len(keys), 6 if first.kind in _PLURALS else 1)
    return _Choice(first, tuple((raw, _expand(nodes, {**chosen, first.identity: key}, sentences, results))
                                for key, raw in keys.items()))


def _arguments(nodes: Sequence[_Node]) -> Iterator[_Argument]:
    """Yield the arguments with branches of a message, also those inside of others."""
    for node in nodes:
        if isinstance(node, _Argument):
            yield node
            for _, branch in node.branches:
                yield from _arguments(branch)


def _chosen_branch(argument: _Argument, key: str) -> tuple[_Node, ...]:
    """Return the contents of the branch that is shown where the branch `key` of an equal argument is shown."""
    branches = {one.strip(): nodes for one, nodes in argument.branches}
    found = branches.get(key, branches.get("one") if key == "=1" else None)
    return branches.get("other", ()) if found is None else found


def _sentence(nodes: Sequence[_Node], index: int) -> tuple[str, _Sentence]:
    parts, names, kept = [], list[str](), dict[str, _Kept | _Number]()
    for node in nodes:
        if isinstance(node, str):
            parts.append(node)
            names += re.findall("[\U000f0000-\U000ffffd]", node)
            continue
        assert not isinstance(node, _Argument)
        if isinstance(node, _Number):
            name = f"{{{node.name}, #{node.offset}}}"
        else:
            name = node.raw if _SIMPLE.fullmatch(node.raw) else f"{{,{len(kept)}}}"
        parts.append(name)
        names.append(name)
        kept[name] = node
    return "".join(parts), _Sentence(index, tuple(names), kept)


def _rendered(tree: _Sentence | _Choice, parent: _Argument | None, translations: Sequence[str], language: str,
              doubled: bool) -> str:
    if isinstance(tree, _Sentence):
        return _escaped(translations[tree.index], tree.kept, parent, doubled)
    argument = tree.argument
    branches = list(tree.branches)
    if argument.kind in _PLURALS:
        branches = _with_categories(branches, argument, language)
    if argument.kind in _FUNCTIONS:
        forms = [_rendered(branch, argument, translations, language, doubled) for _, branch in branches]
        exact = [f"{key[1:]}=" if key.startswith("=") else "" for key, _ in branches]
        return argument.head + "|".join(map(add, exact, forms)) + argument.tail
    separator = "|" if argument.kind == "choice" else ""
    opening, closing = ("", "") if argument.kind == "choice" else ("{", "}")
    return argument.head + separator.join(
        key + opening + _rendered(branch, argument, translations, language, doubled) + closing
        for key, branch in branches) + argument.tail


def _with_categories(branches: list[tuple[str, _Sentence | _Choice]], argument: _Argument, language: str,
                     ) -> list[tuple[str, _Sentence | _Choice]]:
    """Return the branches of a plural for the categories of the target language.

    A branch without its number, such as "a dog" for `one`, is shown for this number alone: if the category has further
    numbers in the target language, as `one` has 21 in Russian, the branch gets the key `=1`.
    """
    ordinal = argument.kind == "selectordinal"
    by_key = {key.strip(): (key, branch) for key, branch in branches}
    named = {key: branch for key, branch in by_key.items() if key[0] != "="}
    if plural_rule(language, ordinal) is None or not named:
        return branches
    default = named.get("other", list(named.values())[-1])
    exact = [branch for key, branch in by_key.items() if key[0] == "="]
    found = []
    for category in plural_categories(language, ordinal):
        raw, branch = named.get(category, (_like(default[0], category), default[1]))
        if category in named and category in NUMBERS and _loses_number(branch, default[1], argument) \
                and has_further_numbers(category, language, ordinal):
            key = f"={NUMBERS[category] + int(argument.offset or 0)}"
            if key not in by_key:
                exact.append((_like(raw, key), branch))
            branch = default[1]
        found.append((raw, branch))
    return _spaced([*exact, *found], [key for key, _ in branches])


def _like(raw: str, key: str) -> str:
    """Return a key with the white space around another one."""
    return raw.replace(raw.strip(), key)


def _spaced(branches: list[tuple[str, _Sentence | _Choice]], keys: list[str]) -> list[tuple[str, _Sentence | _Choice]]:
    """Return branches with the white space before their keys that `keys` have: the first one, and the others."""
    spaces = [key[:len(key) - len(key.lstrip())] for key in keys]
    return [((spaces[0] if index == 0 else spaces[min(1, len(spaces) - 1)]) + key.lstrip(), branch)
            for index, (key, branch) in enumerate(branches)]


def _loses_number(tree: _Sentence | _Choice, default: _Sentence | _Choice, argument: _Argument) -> bool:
    """Return True if a sentence of a branch has the number of the argument less often than the branch `default`. If
    `default` has no number, it may have it in a tag or in another argument, as in messages of Angular."""
    number = re.compile(rf"\{{+\s*+{re.escape(argument.name)}\b")
    for pattern in (number, re.compile("")):
        counts, wanted = list(_counts(tree, pattern)), list(_counts(default, pattern))
        if any(wanted):
            break
    if len(counts) != len(wanted):
        return min(counts) < max(wanted)
    return any(count < other for count, other in zip(counts, wanted, strict=True))


def _counts(tree: _Sentence | _Choice, pattern: re.Pattern[str]) -> Iterator[int]:
    """Yield the number of placeholders of each sentence of a branch that begin with a pattern."""
    if isinstance(tree, _Choice):
        for _, branch in tree.branches:
            yield from _counts(branch, pattern)
    else:
        yield sum(pattern.match(name) is not None for name in tree.placeholders)


def _escaped(text: str, kept: dict[str, _Kept | _Number], parent: _Argument | None, doubled: bool) -> str:
    """Return a translated sentence as it stands in a branch of `parent`.

    A brace of the translation is quoted, and so is # in a plural. Apostrophes are doubled if the source doubles its
    own. Otherwise, and in choice formats, an apostrophe that would begin a quotation becomes a typographic one, which
    all readers show.
    """
    in_function = parent is not None and parent.kind in _FUNCTIONS
    if in_function:
        text = _WIKI_LINK.sub(lambda match: "/" if match[0] == "|" else match[0], text)
    in_choice = parent is not None and parent.kind == "choice"
    special = "{}#" if parent is not None and parent.kind in _PLURALS else "{}"
    pieces = re.split("(" + "|".join(map(re.escape, sorted(kept, key=len, reverse=True))) + ")", text) if kept else [
        text]
    parts = []
    for index, piece in enumerate(pieces):
        if index % 2:
            parts.append(_restored(kept[piece], parent))
            continue
        if in_function:
            parts.append(piece)
            continue
        if in_choice:
            piece = piece.replace("'", "’").replace("|", "/")
        elif doubled:
            piece = piece.replace("'", "''")
        else:
            piece = re.sub(r"'(?=['{}#|]|\Z)", "’", piece)
        parts.append(re.sub(f"[{special}]++", lambda match: f"'{match[0]}'", piece))
    return "".join(parts)


def _restored(node: _Kept | _Number, parent: _Argument | None) -> str:
    in_plural = parent is not None and parent.kind in _PLURALS
    if isinstance(node, _Kept):
        return "'#'" if node.raw == "#" and in_plural else node.raw
    if parent is not None and in_plural and (parent.name, parent.offset) == (node.name, node.offset):
        return "#"
    return f"{{{node.name}, number}}"


# MediaWiki


def _wiki_message(text: str) -> BranchedMessage:
    nodes, = _wiki_parts(iter(_WIKI_TOKENS.split(text)))
    return _hoisted(text, *_trimmed(nodes), False)


def _wiki_parts(tokens: Iterator[str], depth: int = 0) -> list[tuple[_Node, ...]]:
    """Return the parts between the pipes of a function, such as the name and the forms of a plural; or, with a depth of
    0, of a message, which has one part. tokens: what is not read yet."""
    if depth > _MAX_DEPTH:
        raise DocumentError(f"a message with functions that are nested more than {_MAX_DEPTH} times. Simplify it.")
    parts: list[list[_Node]] = [[]]
    level = 0                                                                   # of links and other functions
    for token in filter(None, tokens):
        if _WIKI_START.match(token):
            name, *forms = _wiki_parts(tokens, depth + 1)
            parts[-1].append(_wiki_argument(token, name, forms))
        elif token[0] == "$" and token[1:].isdigit():
            parts[-1].append(_Kept(token))
        elif depth and not level and token == "}}":
            return list(map(tuple, parts))
        elif depth and not level and token == "|":
            parts.append([])
        else:
            level = max(0, level + {"{{": 1, "[[": 1, "}}": -1, "]]": -1}.get(token, 0))
            parts[-1].append(token)
    if depth:
        raise DocumentError("a message with a function without its }}. Correct it, or translate it by hand.")
    return list(map(tuple, parts))


def _wiki_argument(head: str, name: tuple[_Node, ...], forms: Sequence[tuple[_Node, ...]]) -> _Kept | _Argument:
    written = "".join(node.raw if isinstance(node, _Kept) else str(node) for node in name)
    if not forms:
        return _Kept(f"{head}{written}}}}}")
    kind = head.strip("{: \t\n").upper()
    if kind == "GENDER":
        branches = [(str(index), form) for index, form in enumerate(forms)]
    else:
        texts = [form[0] if form and isinstance(form[0], str) else "" for form in forms]
        exact = [(match, form) for text, form in zip(texts, forms, strict=True) if (match := _EXACT.match(text))]
        others = [form for text, form in zip(texts, forms, strict=True) if not _EXACT.match(text)]
        branches = [(f"={match[1]}", (match.string[match.end():], *form[1:])) for match, form in exact]
        branches += zip([*_FORMS[:len(others) - 1], "other"], others, strict=False)
    return _Argument(written, kind, "", f"{head}{written}|", "}}", tuple(branches))


# Plural forms in a list


def _fixed(text: str, pieces: Sequence[str], signs: str, other_signs: str) -> BranchedMessage:
    """Return a message with a branch in every second piece. signs: signs of the structure, which are replaced by
    `other_signs` in translations."""
    table = str.maketrans(signs, other_signs)
    return BranchedMessage(tuple(pieces[1::2]), text, lambda translations, language: pieces[0] + "".join(
        one.translate(table) + after for one, after in zip(translations, pieces[2::2], strict=True)))


def _forms(text: str, syntax: Sequence[str]) -> BranchedMessage | None:
    """Return a message whose plural forms stand between pipes; None if it has none. syntax: see `Block.syntax`."""
    masked = blanked(text, [match.span() for match in _BRACED.finditer(text)])
    masked = blanked(masked, [(one.begin, one.end) for one in find_markup(masked, syntax)])
    masked = blanked(masked, Placeholders().spans(masked))
    bars = [one.start() for one in re.finditer(r"\|", masked)]
    forms = [text[begin + 1:end] for begin, end in zip([-1, *bars], [*bars, len(text)], strict=True)]
    if not _are_forms(forms):
        return None
    begins = [match.end() if (match := _INTERVAL.match(form)) else len(form) - len(form.lstrip()) for form in forms]
    ends = [max(begin, len(form.rstrip())) for form, begin in zip(forms, begins, strict=True)]
    inner = [form[begin:end] for form, begin, end in zip(forms, begins, ends, strict=True)]
    bare = [index for index, form in enumerate(forms) if not _INTERVAL.match(form)]

    def render(translations: Sequence[str], language: str) -> str:
        new = [form[:begin] + translation.replace("|", "/") + form[end:]
               for form, begin, end, translation in zip(forms, begins, ends, translations, strict=True)]
        if len(bare) == 2 and _LARAVEL.search(text):
            singular, plural = bare
            same = Counter(_LARAVEL.findall(inner[singular])) == Counter(_LARAVEL.findall(inner[plural]))
            new = [*(form for index, form in enumerate(new) if index not in bare),
                   *(new[singular if one else plural] for one in singular_forms(gettext_rule(language), same))]
        return "|".join(new)

    return BranchedMessage(tuple(inner), text, render)


def _are_forms(forms: Sequence[str]) -> bool:
    """Return True if the parts of a text between pipes are translated one by one.

    They are if one has an interval, as in Laravel, or if there are spaces around the pipes, or words of the parts have
    a common beginning ("dog|dogs"). In "(yes | no)" and "Type a | b." the pipe belongs to a sentence.
    """
    if not 2 <= len(forms) <= 6 or not all(any(map(str.isalpha, form)) for form in forms):
        return False
    bare = [form.strip() for form in forms]
    if any(map(_INTERVAL.match, forms)):
        return True
    if not all(map(_is_balanced, bare)) or len({form[-1] in ".!?:" for form in bare}) > 1:
        return False
    if all(before[-1].isspace() and after[0].isspace() for before, after in pairwise(forms)):
        return True
    stems = [{word[:3].lower() for word in re.findall(r"[^\W\d_]{3,}", form)} for form in bare]
    return len(forms) <= 3 and all(before & after for before, after in pairwise(stems))


def _is_balanced(text: str) -> bool:
    """Return True if each bracket and each quote of a text has its counterpart."""
    stack: list[str] = []
    for sign in re.findall(r"[()\[\]{}]", text):
        if sign not in _BRACKETS:
            stack.append(sign)
        elif not stack or stack.pop() != _BRACKETS[sign]:
            return False
    return not stack and not any(text.count(quote) % 2 for quote in "\"`")
