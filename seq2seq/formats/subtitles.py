"""Subtitles: SRT, WebVTT and ASS or SSA. Cues are joined into sentences, and the translations are divided into cues.

A block is a sequence of cues up to the end of a sentence. A tag of the kind "alone" marks the border between two cues.
Times, numbers, settings, notes and styles stay byte for byte.

Pairs of tags, such as <i>…</i>, are tags of the block. All other markup of a cue (line breaks, timestamps inside of the
cue, karaoke, positions) stays in its cue and in its order, at about the same share of the text.
"""

from __future__ import annotations

import html
import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Literal

from seq2seq.formats.block import MAX_TAGS, Block, DocumentError, require_count
from seq2seq.formats.inline import find_core, shift_tags
from seq2seq.formats.inline_tags import Tag, TagKind, pair_tags
from seq2seq.formats.plain_text import one_line
from seq2seq.formats.spans import Edit
from seq2seq.formats.units import Unit, UnitDocument
from seq2seq.languages import SPACELESS, has_spaceless_words
from seq2seq.tokenizers.canonical_text import is_translatable
from seq2seq.tokenizers.line_splitting import SENTENCE_MARKS, alignment_units

MAX_GAP = 3.0
"""Longest pause in seconds between two cues of a block."""
MAX_CUES = 8
"""Maximum number of cues in a block."""
MAX_SHARE = 2.5
"""Maximum ratio of a cue's share of the translation to its share of the source text, both in characters."""
MAX_SECONDS = 15.0
"""Longest duration of a cue that the next cue can continue. Longer ones are chapters, with a title each."""
_LINE_END = "\\r{0,3}\\n|\\r"                                          # \r\r\n is left by a conversion of \r\n
_LINE = re.compile(rf"([^\r\n]*+)({_LINE_END}|\Z)")
_TIME = r"(?:(\d{1,4}):)?(\d{1,2}):(\d{1,2})(?:[.,:](\d{1,3}))?"
_TIMES = re.compile(rf"\s*{_TIME}\s*-->\s*{_TIME}")
_LIKE_TIMES = re.compile(r"\s*(?:\d{1,4}:)?\d{1,2}:\d{1,2}[.,]\d{1,3}\s*[-=>\u2010-\u2015\u2192]+\s*\d{1,4}:\d")
_ASS_TIME = re.compile(rf"\s*{_TIME}\s*")
_NAME = re.compile(r"[<{](/?)([A-Za-z]+)")
_OVERRIDE = re.compile(r"\\(\d?[a-z]+)([^\\{}]*)")
_SPANS = {"alpha", "b", "bord", "c", "fn", "fs", "fscx", "fscy", "fsp", "i", "s", "shad", "u",
          "1a", "1c", "2c", "3a", "3c", "4a", "4c"}
"""Overrides of ASS that a part of a text can have. They last until they are reset."""
_VOICE = re.compile(r"<v[.\s>]")
_MUSIC = "\u266a\u266b\u266c"
_LEAD = re.compile("(?:[-\u2010\u2013-\u2015](?=\\s*+[^\\s\\d-])\\s*+|"
                   f"[{_MUSIC}]++\\s*+|#(?:\\s++|(?=\\w[^#]*#\\s*\\Z))|>{{2,3}}\\s*+)++")
"""Mark before the words of another person, or of a song."""
_NAMED = re.compile(r"(?:\[[^\[\]\n]{1,40}\]|(?P<name>[^\W\d_][\w.'\u2019&#-]{0,30}(?: [\w.'\u2019&#-]{1,30}){0,3})"
                    r"(?: [(\[][^()\[\]\n]{1,40}[)\]])?)(?::(?=\s|\Z|[^\W\d_])|\uff1a)\s*+")
"""Name of a person before the words, as in "BOB (on the phone): Two dogs"."""
_DESCRIPTION = re.compile("(?:[(\uff08][^()\uff08\uff09]{1,200}[)\uff09]"
                          "|[\\[\u3010\uff3b][^\\[\\]\u3010\u3011\uff3b\uff3d]{1,200}[\\]\u3011\uff3d])(?![:\uff1a])"
                          f"|[{_MUSIC}][^{_MUSIC}\\r\\n]{{1,200}}[{_MUSIC}]++|#\\s[^#\\r\\n]{{1,200}}\\s#")
"""Description of a sound, such as [door opens], or a song."""
_DIRECTION = re.compile("[\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_SENTENCE_END = re.compile(rf"[{SENTENCE_MARKS}\u3002\uff01\uff1f{_MUSIC})\]]"
                           r"[\"'\u201d\u2019\u00bb\u300d\u300f)\]]*\Z")
# With the punctuation of Chinese and Japanese, because a cue often ends with it, and no space follows it.
_JOINED_WITHOUT_SPACE = re.compile(rf"[{SPACELESS}\u3000-\u303f\uff00-\uff60]")


@dataclass(frozen=True, slots=True)
class _Fixed:
    """Markup that stays in its cue and in its order. share: its place in the words, from 0 to 1."""

    share: float
    raw: str
    is_break: bool


@dataclass(slots=True)
class _Piece:
    """Piece of the source of a cue. name: of a tag, for `pair_tags`."""

    raw: str
    text: str
    kind: TagKind | Literal["text", "line end"]
    name: str = ""


@dataclass(frozen=True, slots=True)
class _Cue:
    """Cue, or the part of a cue that one of several speakers says.

    begin, end: character offsets in the source. start, stop: times in seconds. speaker: speaker and style, if known.
    line: number of its first line. words: text to translate. tags, fixed: pairs of tags and other markup in it. before,
    behind: source before and behind it. starts: True if it begins a block, because another person speaks. ends: True if
    it ends a sentence.
    """

    begin: int
    end: int
    start: float
    stop: float
    speaker: str
    line: int
    words: str = ""
    tags: tuple[Tag, ...] = ()
    fixed: tuple[_Fixed, ...] = ()
    before: str = ""
    behind: str = ""
    starts: bool = False
    ends: bool = False


class _SubtitleDocument(UnitDocument):
    """Subtitles."""

    _markup = re.compile("")
    """Regular expression of the tags, line ends and escapes in the text of a cue."""
    _example = "00:00:01.000 --> 00:00:02.500"
    """Times of a cue in this format, for messages."""
    _ends_at_empty_line = True
    """True if an empty line ends a cue. False: text after an empty line belongs to the cue before."""

    def find_units(self) -> Iterator[Unit]:
        self._require_form()
        require_count(sum(map(self.text.count, ("<", "{", "\\N", "\\n", "\\h"))), MAX_TAGS, "tags")
        line_end = re.search(_LINE_END, self.text)
        self.line_end = line_end[0] if line_end else "\n"
        found = list(self._find_cues())
        text = "\n".join(self._plain(self.text[cue.begin:cue.end]) for cue in found)
        names = Counter[str]()
        for line in _DESCRIPTION.sub("", text).split("\n"):
            match = _NAMED.match(re.sub(rf"\A{_LEAD.pattern}", "", line.lstrip()))
            if match and match["name"] and not any(word[0].islower() for word in match["name"].split()):
                names[match["name"]] += 2 if match["name"].isupper() and not text.isupper() else 1
        self._speakers = {name for name, count in names.items() if count > 1}
        for cues in _group([part for cue in found for part in self._divide(cue)]):
            yield Unit(cues[0].begin, cues[-1].end, (self._block(cues),), info=cues)

    def edits(self, unit: Unit, blocks: Sequence[Block], language: str) -> Iterator[Edit]:
        """Yield the edit of each cue that changes."""
        spaceless = has_spaceless_words(language)
        for cue, (text, tags) in zip(unit.info, _divide_translation(unit.info, blocks[0], spaceless), strict=True):
            if (text, [(tag.position, tag.raw) for tag in tags]) != (
                    cue.words, [(tag.position, tag.raw) for tag in cue.tags]):
                yield cue.begin, cue.end, self._write(cue, text, tags, spaceless)

    def _require_form(self) -> None:
        """Raise DocumentError if the source is not in this format."""

    def _find_cues(self) -> Iterator[_Cue]:
        """Yield the cues without their texts."""
        current: _Cue | None = None
        end = before_last = 0                                           # end of the cue, end without its last line
        last = ""                                                       # last line of the cue
        for number, match in enumerate(_LINE.finditer(self.text), 1):
            line, times = match[1], _TIMES.match(match[1])
            if times is None and _LIKE_TIMES.match(line):
                raise DocumentError(f"line {number}: '{line.strip()[:60]}' looks like times of a cue. Write them like "
                                    f"{self._example}.")
            if times is None and current is not None and (line if self._ends_at_empty_line else line.strip()):
                last, before_last, end = line, end, match.end(1)
                continue
            if times is None and not self._ends_at_empty_line:
                continue
            if times is not None and current is not None and last.strip().isdigit():
                end = before_last                                       # the last line is the number of the next cue
            if current is not None and end > current.begin:
                yield replace(current, end=end)
            current, last, end = None, "", match.end()
            if times is not None:
                begin = _seconds(times.groups()[:4])
                current = _Cue(match.end(), match.end(), begin, _seconds(times.groups()[4:]), "", number + 1)
        if current is not None and end > current.begin:
            yield replace(current, end=end)

    def _escape(self, text: str) -> str:
        return text.replace("-->", "\u2192")

    def _unescape(self, text: str) -> str:
        return text

    def _plain(self, raw: str) -> str:
        """Return the source of a text without tags, and with line feeds as its line ends."""
        return self._unescape(self._markup.sub(lambda match: "" if _is_tag(match[0]) else "\n", raw))

    def _end_of_lead(self, text: str, begin: int = 0, end: int = 10_000_000) -> int:
        """Return the end of the marks and the name before the words of a person or a song.

        A name is in brackets or in upper case, or it begins several lines, each of its words with a capital letter.
        """
        while True:
            lead = _LEAD.match(text, begin, end) or _NAMED.match(text, begin, end)
            if lead is None or lead.re is _NAMED and lead["name"] and lead["name"] not in self._speakers:
                return begin
            begin = lead.end()

    def _divide(self, cue: _Cue) -> Iterator[_Cue]:
        """Yield a cue with its text. If several persons speak, each after a mark or tag, yield a part per person."""
        raw = self.text[cue.begin:cue.end]
        begin = 0
        for match in [*self._markup.finditer(raw), None]:
            end = after = len(raw)
            if match is not None and match[0] == "</v>":
                end = after = match.end()
            elif match is not None:
                end = after = match.start()
                if not _VOICE.match(match[0]):
                    if _is_tag(match[0]) or match[0] == "\\h":
                        continue
                    if not self._end_of_lead(self._plain(raw[match.end():match.end() + 200])):
                        continue
                    after = match.end()
            if end > begin:
                for low, high in pairwise([begin, *self._cuts(raw, begin, end), end]):
                    yield self._with_text(cue, low, high)
            begin = after

    def _cuts(self, raw: str, begin: int, end: int) -> Iterator[int]:
        """Yield the places between what is said and descriptions of sounds, which are no part of its sentences.

        A description is at the beginning or the end of the words, has a line of its own, or follows a sentence. One in
        round brackets can also be a part of a sentence, unless the next one begins after it.
        """
        end = min(end, begin + 2_000)                                   # because each takes linear time
        for match in _DESCRIPTION.finditer(raw, begin, end):
            before, after = self._plain(raw[begin:match.start()]), self._plain(raw[match.end():end])
            said = before[self._end_of_lead(before):].strip()
            is_first, is_last = not is_translatable(said), not is_translatable(after)
            has_line = before.rstrip(" ").endswith("\n") and after.lstrip(" ").startswith("\n")
            is_apart = is_first or is_last or has_line
            if match[0][0] in "(\uff08":
                is_apart = is_first and not after.strip()[:1].islower()
            if not is_apart and not _SENTENCE_END.search(said):
                continue
            if not is_first:
                yield match.start()
            if not is_last:
                yield match.end()
            begin = match.end()

    def _with_text(self, cue: _Cue, low: int, high: int) -> _Cue:
        """Return the part from `low` to `high` of a cue, with its text."""
        source_begin, source_end = cue.begin + low, cue.begin + high
        pieces = self._pieces(self.text[source_begin:source_end])
        text = "".join(piece.text for piece in pieces)
        places = list(accumulate((len(piece.text) for piece in pieces), initial=0))
        tags = pair_tags([(place, piece.raw, piece.kind, piece.name) for piece, place
                          in zip(pieces, places, strict=False) if piece.kind != "text" and piece.kind != "line end"])
        begin, end, first, after = find_core(text, tags)
        lead = text[begin:self._end_of_lead(text, begin, end)]
        begin += len(lead)
        end = max(begin, len(text[:end].rstrip(_MUSIC + " \u00a0" + "#" * ("#" in lead))))
        pair_ends = {tag.pair: tag.position for tag in tags} | {None: -1}
        before = behind = ""
        fixed: list[_Fixed] = []
        inner = []
        line = -1                                                       # beginning of the last line
        numbered = enumerate(tags)
        for piece, low, high in zip(pieces, places, places[1:], strict=False):
            if piece.kind != "text" and piece.kind != "line end":
                number, tag = next(numbered)
                if (piece.name == "rt" or pair_ends[tag.pair] > begin) and first <= number < after:
                    inner.append(tag)
                    continue
            if piece.kind == "text":
                before += piece.raw if high <= begin else self._escape(piece.text[:max(0, begin - low)])
                behind += piece.raw if low >= end else self._escape(piece.text[max(0, end - low):])
            elif high <= begin:
                before += piece.raw
            elif low >= end:
                behind += piece.raw
            else:
                # A position at the beginning of a line stays there.
                share = fixed[-1].share if low == line else ((low + high) / 2 - begin) / (end - begin)
                line = high if piece.kind == "line end" else line
                fixed.append(_Fixed(share, piece.raw, piece.kind == "line end"))
        return replace(
            cue, begin=source_begin, end=source_end, words=text[begin:end], tags=shift_tags(inner, begin, end),
            fixed=tuple(fixed), before=before, behind=behind,
            starts=(source_begin > cue.begin or lead != "" or _VOICE.search(before) is not None
                    or _DESCRIPTION.fullmatch(text[begin:end]) is not None),
            ends=_SENTENCE_END.search(text.rstrip()) is not None)

    def _pieces(self, raw: str) -> list[_Piece]:
        """Return the pieces of the source of a cue."""
        pieces: list[_Piece] = []
        opened: Counter[str] = Counter()
        last, character = 0, ""                                         # last character of the text
        line_end: _Piece | None = None
        for match in [*self._markup.finditer(raw), None]:
            text = raw[last:match.start() if match else len(raw)]
            if text:
                pieces.append(_Piece(text, _DIRECTION.sub("", self._unescape(text)), "text"))
            if text := pieces[-1].text if text else "":
                if line_end and _JOINED_WITHOUT_SPACE.match(character) and _JOINED_WITHOUT_SPACE.match(text):
                    line_end.text = ""
                line_end, character = None, text[-1]
            if match is None:
                break
            last = match.end()
            if match[0] == "\\h":
                pieces.append(_Piece(match[0], "\u00a0", "text"))
            elif _is_tag(match[0]):
                pieces.append(_Piece(match[0], "", *_kind(match[0], opened)))
            else:
                line_end = _Piece(match[0], " ", "line end")
                pieces.append(line_end)
        return pieces

    def _block(self, cues: Sequence[_Cue]) -> Block:
        text = ""
        tags: list[Tag] = []
        pairs = 0
        for index, cue in enumerate(cues):
            if index:
                if not (_JOINED_WITHOUT_SPACE.match(text[-1:]) and _JOINED_WITHOUT_SPACE.match(cue.words)):
                    text += " "
                tags.append(Tag(len(text), _border(index)))
            tags += [Tag(tag.position + len(text), tag.raw, tag.kind, None if tag.pair is None else
                         tag.pair + pairs) for tag in cue.tags]
            text += cue.words
            pairs += 1 + max((tag.pair or 0 for tag in cue.tags), default=0)
        return Block(text, tuple(tags), f"line {cues[0].line}", syntax=(), markup_in_text=False)

    def _write(self, cue: _Cue, text: str, tags: Sequence[Tag], spaceless: bool) -> str:
        """Return the source of a cue with a translated text and its tags."""
        parts = [cue.before]
        begins = _word_begins(text, spaceless)
        position = index = line = place = 0
        for one in cue.fixed:
            lowest = max(line, place - 1) if one.is_break else place - 1
            found = _nearest(begins, round(one.share * len(text)), lowest, len(text))
            if one.is_break and found == len(text):
                continue                                                # an empty line would end the cue
            place = found
            end = position + len(text[position:place].rstrip()) if one.is_break else place
            line = place if one.is_break else line
            after = index
            while after < len(tags) and (tags[after].position, tags[after].kind == "open") < (place, True):
                after += 1
            parts += [Block(text[position:end], shift_tags(tags[index:after], position, end)).serialize(self._escape),
                      self.line_end if one.is_break and one.raw[0] != "\\" else one.raw]
            position, index = place, after
        parts.append(Block(text[position:], shift_tags(tags[index:], position, len(text))).serialize(self._escape))
        return "".join([*parts, cue.behind])


class SrtDocument(_SubtitleDocument):
    """Subtitles in the format SRT. Like FFmpeg, it reads a cue up to the number and times of the next one, with its
    empty lines, which a translation loses."""

    # With the tags of MicroDVD, such as {i} and {y:i}, and with the escapes of ASS that players know in SRT, too.
    _markup = re.compile(r"</?[A-Za-z][^<>\r\n]*>|\{(?:\\[^{}\r\n]*|/?[ibus]|[a-zA-Z]:[^{}\r\n]*)\}"
                         r"|[\r\n](?:[ \t]*+[\r\n])*+|(?<![:\\])\\[Nh]")
    _example = "00:00:01,000 --> 00:00:02,500"
    _ends_at_empty_line = False

    def _require_form(self) -> None:
        if self.text.strip("\ufeff \t\r\n") and not any(_TIMES.match(line) for line in self.text.splitlines()):
            raise DocumentError(f"this is no .srt file: there are no times of a cue, such as {self._example}.")


class VttDocument(_SubtitleDocument):
    """Subtitles in the format WebVTT."""

    _markup = re.compile(rf"<rt(?:[.\s][^<>]*+)?>[^<]*+(?:</rt>)?|<[^<>]*>|{_LINE_END}")

    def _require_form(self) -> None:
        if self.text.strip("\ufeff \t\r\n") and not self.text.removeprefix("\ufeff").startswith("WEBVTT"):
            raise DocumentError("line 1: a .vtt file begins with the line WEBVTT.")

    def _escape(self, text: str) -> str:
        return html.escape(text, quote=False)

    def _unescape(self, text: str) -> str:
        return html.unescape(text)


class AssDocument(_SubtitleDocument):
    """Subtitles in the format ASS or SSA."""

    # A drawing is between {\p1} and {\p0}.
    _markup = re.compile(r"(?<!\\)\{(?=[^{}]*+\})(?:[^{}]*\\p[1-9][^{}]*+\}(?:[^{]|\{(?![^{}]*\\p0))*+(?:\{[^{}]*+\})?"
                         r"|[^{}]*+\})|\\[Nnh]")

    def _require_form(self) -> None:
        if self.text.strip("\ufeff \t\r\n") and "[events]" not in self.text.lower():
            raise DocumentError("this is no .ass or .ssa file: there is no line [Events].")

    def _find_cues(self) -> Iterator[_Cue]:
        fields: list[str] = []
        section = ""
        for number, match in enumerate(_LINE.finditer(self.text), 1):
            line = match[1]
            if line.lstrip("\ufeff").startswith("["):
                section = line.lstrip("\ufeff").strip().lower()
            key, _, value = line.partition(":")
            if section != "[events]" or key.strip() not in ("Format", "Dialogue"):
                continue
            if key.strip() == "Format":
                fields = [name.strip().lower() for name in value.split(",")]
                continue
            if not {"start", "end"} <= {*fields} or fields[-1] != "text":
                raise DocumentError(f"line {number}: before this line, [Events] needs a line `Format:` with Start and "
                                    "End, and with Text at the end.")
            values = value.split(",", len(fields) - 1)
            if len(values) < len(fields):
                raise DocumentError(f"line {number}: {len(values)} fields, but the line `Format:` names {len(fields)}.")
            of = dict(zip(fields, values, strict=True))
            times = [_ASS_TIME.fullmatch(of[name]) for name in ("start", "end")]
            if times[0] is None or times[1] is None:
                continue
            yield _Cue(match.end(1) - len(of["text"]), match.end(1), _seconds(times[0].groups()),
                       _seconds(times[1].groups()), of.get("name", of.get("actor", "")) + "\n" + of.get("style", ""),
                       number)

    def _escape(self, text: str) -> str:
        text = re.sub(r"\\(?=[Nnh{}])", "\\\\\u2060", text)             # a word joiner, which is invisible
        return re.sub("[{}]", r"\\\g<0>", text).replace("\u00a0", "\\h")

    def _unescape(self, text: str) -> str:
        return re.sub(r"\\([{}])", r"\1", text)


def _is_tag(markup: str) -> bool:
    return markup[0] in "<{"


def _kind(markup: str, opened: Counter[str]) -> tuple[TagKind, str]:
    """Return the kind and the name of a tag. opened: names of the overrides of ASS that are open; it is updated."""
    name = _NAME.match(markup)
    if name is not None and name[2] == "rt":
        return "alone", "rt"
    if name is not None:
        return "close" if name[1] else "open", name[2].lower()
    overrides = _OVERRIDE.findall(markup)
    key = " ".join(sorted(name for name, _ in overrides))
    is_end = all(not value or name in "ibus" and value == "0" for name, value in overrides)
    if key == "r" and is_end:
        key = next(iter(opened)) if len(opened) == 1 else ""
    if is_end and key in opened:
        opened[key] -= 1
        if not opened[key]:
            del opened[key]
        return "close", key
    if overrides and not is_end and {name for name, _ in overrides} <= _SPANS:
        opened[key] += 1
        return "open", key
    return "alone", ""


def _seconds(groups: Sequence[str | None]) -> float:
    hours, minutes, seconds, fraction = groups
    return int(hours or 0) * 3600 + int(minutes or 0) * 60 + int(seconds or 0) + float(f"0.{fraction or 0}")


def _border(index: int) -> str:
    """Return the raw text of the tag between two cues of a block. index: index of the second cue in the block."""
    return f"\x1e{index}\x1e"


def _group(cues: Sequence[_Cue]) -> Iterator[list[_Cue]]:
    group: list[_Cue] = []
    for cue in cues:
        if group and (cue.starts or len(group) == MAX_CUES or cue.start - group[-1].stop > MAX_GAP
                      or cue.start <= group[-1].start or cue.speaker != group[-1].speaker
                      or not is_translatable(cue.words) or group[-1].ends
                      or group[-1].stop - group[-1].start > MAX_SECONDS or _is_repeated(group[-1].words, cue.words)):
            yield group
            group = []
        if is_translatable(cue.words):
            group.append(cue)
    if group:
        yield group


def _is_repeated(before: str, words: str) -> bool:
    """Return True if a cue shows words of the cue before again, as captions that roll up do."""
    return " " in words and (before.endswith(words) or words.startswith(before))


def _divide_translation(cues: Sequence[_Cue], new: Block, spaceless: bool) -> list[tuple[str, list[Tag]]]:
    """Divide a translated block at the borders, and return text and tags of each cue. If this makes a cue empty or too
    long (`MAX_SHARE`), divide in proportion to the source cues. A cue still empty repeats the previous cue."""
    text = one_line(new.text)
    if text != new.text:
        new = replace(new, text=text, tags=shift_tags(new.tags, 0, len(text)))
    borders = {_border(index) for index in range(1, len(cues))}
    tags = [tag for tag in new.tags if tag.raw not in borders]
    places = sorted(tag.position for tag in new.tags if tag.raw in borders)
    if not spaceless:                                                   # no border inside of a word
        words = _word_begins(text, False)
        places = [_nearest(words, place, 0, len(text)) if 0 < place < len(text)
                  and not (text[place - 1].isspace() or text[place].isspace()) else place
                  for place in places]
    sums = list(accumulate(len(cue.words) for cue in cues))
    parts = [text[begin:end].strip() for begin, end in zip([0, *places], [*places, len(text)], strict=True)]
    if any(not part or len(part) > MAX_SHARE * max(1, len(cue.words) / sums[-1] * len(text))
           for part, cue in zip(parts, cues, strict=True)):
        places = []
        begins = _word_begins(text, spaceless)
        words = [match.start() for match in re.finditer(r"\S++", text)]
        more = len(words) - len(cues)
        for index, total in enumerate(sums[:-1], 1):
            place = _nearest(begins, round(total / sums[-1] * len(text)), places[-1] if places else 0, len(text))
            places.append(min(max(place, words[index]), words[more + index]) if more >= 0 else place)
    divided = list(_split(text, tags, places))
    for index in range(1, len(divided)):
        if not divided[index][0]:                                       # fewer words than cues
            divided[index] = (divided[index - 1][0], list(shift_tags(divided[index][1], 0, 0)))
    return divided


def _word_begins(text: str, spaceless: bool) -> list[int]:
    """Return the beginnings of all words but the first one, or of all letters in a text without spaces."""
    if spaceless and " " not in text.strip():
        return [begin for begin, _ in alignment_units(text)][1:]
    return [match.end() for match in re.finditer(r"\s+(?=\S)", text)]


def _nearest(begins: Sequence[int], place: int, lowest: int, highest: int) -> int:
    """Return the beginning of a word between `lowest` and `highest` that is nearest to `place`; `highest` if none is.

    begins: see `_word_begins`.
    """
    low, high = bisect_right(begins, lowest), bisect_left(begins, highest)
    if low >= high:
        return highest
    at = bisect_left(begins, place, low, high)
    return min(begins[max(low, at - 1):min(at + 1, high)], key=lambda begin: abs(begin - place))


def _split(text: str, tags: Sequence[Tag], places: Sequence[int]) -> Iterator[tuple[str, list[Tag]]]:
    """Yield the parts of a text with their tags. Elements open at a border are closed before it, reopened after it."""
    closing: dict[int | None, str] = {tag.pair: tag.raw for tag in tags if tag.kind == "close"}
    closing.pop(None, None)
    opened: list[Tag] = []
    remaining = list(reversed(tags))
    for begin, end in zip([0, *places], [*places, len(text)], strict=True):
        part = text[begin:end]
        margin = len(part) - len(part.lstrip())
        length = len(part.strip())
        inside = [replace(tag, position=0) for tag in opened]
        last = end == len(text)
        while remaining and (last or remaining[-1].position < end
                             or remaining[-1].position == end and remaining[-1].kind == "close"):
            tag = remaining.pop()
            inside.append(replace(tag, position=min(max(tag.position - begin - margin, 0), length)))
            if tag.kind == "open" and tag.pair in closing:
                opened.append(tag)
            elif tag.kind == "close":
                opened = [other for other in opened if other.pair != tag.pair]
        inside += [Tag(length, closing[tag.pair], "close", tag.pair) for tag in reversed(opened)]
        yield part.strip(), inside
