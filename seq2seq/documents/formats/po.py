"""Gettext catalogues, PO and POT.

Messages without a translation are translated and marked as `fuzzy`. Everything else stays: comments, obsolete messages,
and messages with a translation. Format: https://www.gnu.org/software/gettext/manual/html_node/PO-Files.html
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from seq2seq.documents.block import Block, DocumentError
from seq2seq.documents.spans import decode_text, encode_text, is_text, replace_spans, trim, wrap
from seq2seq.languages import main_language

_STRINGS = r'((?:"(?:[^"\\]|\\.)*+"[ \t]*+)++)'
_LINE = re.compile(rf"[ \t]*+(?:(msgctxt|msgid_plural|msgid|msgstr)(?:\[([0-9]{{1,3}})\])?[ \t]*+)?{_STRINGS}\r?")
_STRING = re.compile(r'"((?:[^"\\]|\\.)*+)"')
_ESCAPE = re.compile(r"\\(?:([0-7]{1,3})|x([0-9a-fA-F]{1,2})|(.))")
_CONTROLS = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v", "\\": "\\", '"': '"'}
_ESCAPED = str.maketrans({character: f"\\{letter}" for letter, character in _CONTROLS.items()})
_CHARSET = re.compile(rb'"[^"\n]{0,99}?Content-Type:[^"\n]{0,99}?charset=([\w.:-]+)', re.IGNORECASE)
_NO_PLURALS = re.compile(r"(?m)(?:^|\"|\\n)Plural-Forms:((?:[ ]*nplurals=INTEGER; plural=EXPRESSION;)?[ ]*)(?=\\n|\")")
_MAX_PLURALS = 10
# Plural rules of gettext (Plural-Forms) and their languages. For other languages, users write the rule themselves.
_SLAVIC = "nplurals=3; plural=(n%10==1 && n%100!=11 ? 0 : n%10>=2 && n%10<=4 && (n%100<10 || n%100>=20) ? 1 : 2);"
_RULES = {
    "nplurals=1; plural=0;": "id ja ko lo ms th vi zh",
    "nplurals=2; plural=(n != 1);": "bg da de el en eo es et eu fi gl he hi hu it nb nl nn no pt sq sv sw ur",
    "nplurals=2; plural=(n > 1);": "fa fr tr",
    _SLAVIC: "be bs hr ru sr uk",
    "nplurals=3; plural=(n==1 ? 0 : n>=2 && n<=4 ? 1 : 2);": "cs sk",
    "nplurals=3; plural=(n==1 ? 0 : n%10>=2 && n%10<=4 && (n%100<10 || n%100>=20) ? 1 : 2);": "pl",
    "nplurals=3; plural=(n==1 ? 0 : (n==0 || (n%100>0 && n%100<20)) ? 1 : 2);": "ro",
    "nplurals=3; plural=(n%10==1 && n%100!=11 ? 0 : n%10>=2 && (n%100<10 || n%100>=20) ? 1 : 2);": "lt",
    "nplurals=3; plural=(n%10==1 && n%100!=11 ? 0 : n != 0 ? 1 : 2);": "lv",
    "nplurals=4; plural=(n%100==1 ? 0 : n%100==2 ? 1 : n%100==3 || n%100==4 ? 2 : 3);": "sl",
    "nplurals=6; plural=(n==0 ? 0 : n==1 ? 1 : n==2 ? 2 : n%100>=3 && n%100<=10 ? 3 : n%100>=11 ? 4 : 5);": "ar",
}
_PLURAL_RULES = {language: rule for rule, languages in _RULES.items() for language in languages.split()}
_WIDTH = 77
"""Maximum number of characters between the quotes of a wrapped line, as in files that gettext writes."""


@dataclass(slots=True)
class _Field:
    """Keyword with its string. begin, end: span in the document, without the line end. value: the joined strings."""

    keyword: str
    line: int
    begin: int
    end: int = 0
    strings: list[str] = field(default_factory=list)                # string on each line
    value: str = ""


@dataclass(slots=True)
class _Message:
    """Message. flags: offset after its `#,` in the document; -1 if it has no flags. begin: offset at which a
    line of flags is inserted if the message has none."""

    fields: list[_Field] = field(default_factory=list)
    flags: int = -1
    begin: int = -1
    fuzzy: bool = False
    blocks: list[int] = field(default_factory=list)                 # indices in Document.blocks

    def find(self, keyword: str) -> list[_Field]:
        return [one for one in self.fields if one.keyword == keyword]


class PoDocument:
    """Gettext catalogue, with the interface `Document`. White space at the edges of messages is not in the blocks."""

    def __init__(self, data: bytes) -> None:
        """Raises DocumentError: a line is malformed, a message is incomplete, or the encoding is not known."""
        declared = _CHARSET.search(data[:100_000])
        encoding = declared[1].decode() if declared and declared[1] != b"CHARSET" else "utf-8"
        self._text, self._encoding = decode_text(data, encoding)
        self._line_end = "\r\n" if "\r\n" in self._text else "\n"
        self._messages = _parse(self._text)
        self._header = next((message.find("msgstr")[0] for message in self._messages
                             if not message.find("msgctxt") and not message.find("msgid")[0].value), None)
        plurals = re.search(r"nplurals\s*=\s*([0-9]{1,3})", self._header.value) if self._header else None
        self._plurals = min(int(plurals[1]), _MAX_PLURALS) if plurals else 0
        self.blocks: list[Block] = []
        for message in self._messages:
            sources = message.find("msgid") + message.find("msgid_plural")
            if any(one.value for one in message.find("msgstr")) or not sources[0].value:
                continue
            for source in sources[-1:] if self._forms(message) == 1 else sources:
                _, block, _ = trim(Block(source.value, place=f"line {source.line}", keeps_lines=True))
                if is_text(block.text):
                    message.blocks.append(len(self.blocks))
                    self.blocks.append(block)

    def _forms(self, message: _Message) -> int:
        return self._plurals or len(message.find("msgstr"))

    def render(self, translations: Sequence[Block], target_language: str) -> bytes:
        """See `Document.render`. In the header, an empty `Language:` is filled in. `Plural-Forms:` is filled in if it
        is empty or has the placeholder that xgettext writes, and `charset=CHARSET` becomes `charset=UTF-8`.

        Raises:
            DocumentError: the document's encoding does not have a character of a translation.
        """
        edits: list[tuple[int, int, str]] = []
        shown = self._text[self._header.begin:self._header.end] if self._header else ""
        rule = _PLURAL_RULES.get(main_language(target_language))
        missing = _NO_PLURALS.search(shown) if rule else None
        if rule and missing:
            self._plurals = int(rule[len("nplurals=")])
        for message in self._messages:
            if all(translations[index] == self.blocks[index] for index in message.blocks):
                continue
            texts = []
            for source in message.find("msgid") + message.find("msgid_plural"):
                before, block, after = trim(Block(source.value, place=f"line {source.line}", keeps_lines=True))
                new = next((translations[one].text for one in message.blocks if self.blocks[one] == block), block.text)
                texts.append(before + new + after)
            edits += self._fill(message, texts)
        if edits and self._header:
            if unknown := re.search(r"charset=(CHARSET)\b", shown):
                edits.append((self._header.begin + unknown.start(1), self._header.begin + unknown.end(1), "UTF-8"))
            if empty := re.search(r"(?m)(^|\"|\\n)Language:[ ]*(?=\\n|\")", shown):
                place = self._header.begin + empty.end()
                edits.append((place, place, ("" if empty[0].endswith(" ") else " ") + target_language))
            if rule and missing:
                begin = self._header.begin
                edits.append((begin + missing.start(1), begin + missing.end(1), f" {rule}"))
        return encode_text(replace_spans(self._text, edits), self._encoding)

    def _fill(self, message: _Message, texts: list[str]) -> list[tuple[int, int, str]]:
        """Return the edits that translate a message. texts: translation, or those of singular and plural."""
        old = message.find("msgstr")
        wrapped = max(len(one.strings) for one in message.fields) > 1
        if len(texts) == 1:
            strings = [self._string("msgstr", texts[0], wrapped)]
        else:
            forms = self._forms(message)
            strings = [self._string(f"msgstr[{form}]", texts[form > 0 or forms == 1], wrapped) for form in range(forms)]
        edits = [(old[0].begin, old[-1].end, self._line_end.join(strings))]
        if message.flags >= 0 and not message.fuzzy:
            edits.append((message.flags, message.flags, " fuzzy,"))
        elif message.flags < 0:
            edits.append((message.begin, message.begin, f"#, fuzzy{self._line_end}"))
        return edits

    def _string(self, keyword: str, text: str, wrapped: bool) -> str:
        lines = wrap(text, _WIDTH if wrapped else len(text))
        if len(lines) > 1:
            lines.insert(0, "")
        return f"{keyword} " + self._line_end.join(f'"{line.translate(_ESCAPED)}"' for line in lines)


def _parse(text: str) -> list[_Message]:
    """Return the messages of a catalogue, except obsolete messages.

    Raises:
        DocumentError: a line is malformed, or a message is incomplete.
    """
    messages: list[_Message] = []
    message = _Message()
    position = 0
    for number, line in enumerate(text.split("\n"), start=1):
        begin, position = position, position + len(line) + 1
        if line.startswith("\ufeff"):
            begin, line = begin + 1, line[1:]
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            if message.find("msgstr"):
                messages.append(_complete(message))
                message = _Message()
            if stripped.startswith("#,"):
                message.flags = begin + line.index("#,") + 2 if message.flags < 0 else message.flags
                message.fuzzy |= "fuzzy" in re.split(r"[\s,]+", stripped[2:])
            elif stripped.startswith("#|") and message.begin < 0:
                message.begin = begin
            elif stripped.startswith("#~"):
                message = _Message()
            continue
        match = _LINE.fullmatch(line)
        if match is None and re.fullmatch(rf"\s*+domain\s++{_STRINGS}\s*+", line):
            continue
        if match is None:
            raise DocumentError(f"line {number}: neither a comment nor a keyword with a string in double quotes: "
                                f"{stripped[:60]!r}. Correct it; msgfmt --check shows all such lines.")
        keyword, index = match[1], match[2]
        if keyword in ("msgid", "msgctxt") and message.find("msgstr"):
            messages.append(_complete(message))
            message = _Message()
        if keyword:
            expected = len(message.find("msgstr"))
            if (index is not None and (keyword != "msgstr" or int(index) != expected)) \
                    or (message.find(keyword) and index is None) \
                    or (keyword in ("msgstr", "msgid_plural") and not message.find("msgid")) \
                    or (keyword == "msgstr" and (index is None) == bool(message.find("msgid_plural"))):
                raise DocumentError(f"line {number}: {keyword} is not expected here. Each message has one msgid, and "
                                    "one msgstr or, after msgid_plural, msgstr[0], msgstr[1] and so on.")
            message.fields.append(_Field(keyword, number, begin + line.index(keyword)))
            message.begin = begin if message.begin < 0 else message.begin
        elif not message.fields:
            raise DocumentError(f"line {number}: a string without a keyword. Write msgid or msgstr before it.")
        last = message.fields[-1]
        last.end = begin + len(line.rstrip())
        last.strings.append("".join(_unescape(string, number) for string in _STRING.findall(match[3])))
    if message.fields:
        messages.append(_complete(message))
    return messages


def _complete(message: _Message) -> _Message:
    if not message.find("msgstr"):
        raise DocumentError(f"line {message.fields[0].line}: the message has no msgstr. Add an empty one.")
    for one in message.fields:
        one.value = "".join(one.strings)
    return message


def _unescape(string: str, line: int) -> str:
    def character(match: re.Match[str]) -> str:
        octal, hexadecimal, letter = match.groups()
        if octal or hexadecimal:
            return chr(int(octal, 8) if octal else int(hexadecimal, 16))
        if letter not in _CONTROLS:
            raise DocumentError(f"line {line}: \\{letter} is not an escape of PO. Write \\\\{letter}, or {letter}.")
        return _CONTROLS[letter]
    return _ESCAPE.sub(character, string) if "\\" in string else string
