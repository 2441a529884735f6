"""Subtitles: SRT, WebVTT and ASS or SSA. Cues are joined into sentences, and the translations are divided into cues.

A block is a sequence of cues up to the end of a sentence. A tag of the kind "alone" marks the border between two cues.
Times, numbers, settings, notes and styles stay byte for byte.
"""

from __future__ import annotations

import html
import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Literal

from seq2seq.data.line_splitting import SENTENCE_MARKS, alignment_units
from seq2seq.documents.block import Block, DocumentError, Tag, is_translatable, pair_tags
from seq2seq.documents.formats.plain_text import one_line
from seq2seq.documents.inline import find_core, shift_tags
from seq2seq.documents.spans import decode_text, encode_text
from seq2seq.languages import SPACELESS, has_spaceless_words

MAX_GAP = 3.0
"""Longest pause in seconds between two cues of a block."""
MAX_CUES = 8
"""Maximum number of cues in a block."""
MAX_SHARE = 2.5
"""Maximum ratio of a cue's share of the translation to its share of the source text, both in characters."""
_LINE = re.compile(r"([^\r\n]*+)(\r\n|\r|\n|\Z)")
_TIME = r"(?:(\d{1,4}):)?(\d{1,2}):(\d{1,2})(?:[.,:](\d{1,3}))?"
_TIMES = re.compile(rf"\s*{_TIME}\s*-->\s*{_TIME}")
_LIKE_TIMES = re.compile(r"\s*(?:\d{1,4}:)?\d{1,2}:\d{1,2}[.,]\d{1,3}\s*[-=>\u2010-\u2015\u2192]+\s*\d{1,4}:\d")
_ASS_TIME = re.compile(rf"\s*{_TIME}\s*")
_NAME = re.compile(r"<(/?)([A-Za-z]+)|\{\\([ibus])([01])\}")
_DASH = re.compile(r"[-\u2010\u2013-\u2015]\s*+(?=[^\s\d-])")
_SENTENCE_END = re.compile(rf"[{SENTENCE_MARKS}\u3002\uff01\uff1f\u266a)\]][\"'\u201d\u2019\u00bb\u300d\u300f)\]]*\Z")
# With the punctuation of Chinese and Japanese, because a cue often ends with it, and no space follows it.
_JOINED_WITHOUT_SPACE = re.compile(rf"[{SPACELESS}\u3000-\u303f\uff00-\uff60]")


@dataclass(frozen=True, slots=True)
class _Cue:
    """Cue, or the part of a cue that one of several speakers says.

    begin, end: character offsets in the source. start, stop: times in seconds. speaker: speaker and style, if known.
    line: number of its first line. core: part of text and tags that is translated; see `find_core`. lines:
    number of lines of text. starts: True if it begins a block, because it has a dash or the tag of a speaker.
    """

    begin: int
    end: int
    start: float
    stop: float
    speaker: str
    line: int
    text: str = ""
    tags: tuple[Tag, ...] = ()
    core: tuple[int, int, int, int] = (0, 0, 0, 0)
    lines: int = 1
    starts: bool = False

    @property
    def words(self) -> str:
        """Text to translate."""
        return self.text[self.core[0]:self.core[1]]

    @property
    def inner_tags(self) -> tuple[Tag, ...]:
        """Tags in `words`, with their positions in `words`."""
        return shift_tags(self.tags[self.core[2]:self.core[3]], self.core[0], self.core[1])


class _SubtitleDocument:
    """Subtitles, with the interface of `block.Document`."""

    _markup = re.compile("")
    """Regular expression of the tags, line ends and escapes in the text of a cue."""
    _example = "00:00:01.000 --> 00:00:02.500"
    """Times of a cue in this format, for messages."""
    _ends_at_empty_line = True
    """True if an empty line ends a cue. False: text after an empty line belongs to the cue before."""

    def __init__(self, data: bytes) -> None:
        """Raises DocumentError: the document is too large, cannot be decoded (see `decode_text`), or is malformed."""
        self._source, self._encoding = decode_text(data)
        self._require_form()
        line_end = re.search(r"\r\n|\r|\n", self._source)
        self._line_end = line_end[0] if line_end else "\n"
        self._groups = list(_group([cue for found in self._find_cues() for cue in self._divide(found)]))
        self.blocks = [self._block(cues) for cues in self._groups]

    def render(self, translations: Sequence[Block], target_language: str) -> bytes:
        """See `block.Document.render`."""
        spaceless = has_spaceless_words(target_language)
        parts, last = [], 0
        for cues, old, new in zip(self._groups, self.blocks, translations, strict=True):
            if (new.text, new.tags) == (old.text, old.tags):
                continue
            for cue, (text, tags) in zip(cues, _divide_translation(cues, new, spaceless), strict=True):
                if (text, [(tag.position, tag.raw) for tag in tags]) == (
                        cue.words, [(tag.position, tag.raw) for tag in cue.inner_tags]):
                    continue
                parts += [self._source[last:cue.begin], self._write(cue, text, tags, spaceless)]
                last = cue.end
        return encode_text("".join([*parts, self._source[last:]]), self._encoding)

    def _require_form(self) -> None:
        """Raise DocumentError if the source is not in this format."""

    def _find_cues(self) -> Iterator[_Cue]:
        """Yield the cues without their texts."""
        current: _Cue | None = None
        last, before_last = "", 0                                       # last line of the cue, end of the lines before
        for number, match in enumerate(_LINE.finditer(self._source), 1):
            line, times = match[1], _TIMES.match(match[1])
            if times is None and _LIKE_TIMES.match(line):
                raise DocumentError(f"line {number}: '{line.strip()[:60]}' looks like times of a cue. Write them like "
                                    f"{self._example}.")
            if times is None and current is not None and line.strip():
                last, before_last = line, current.end
                current = replace(current, end=match.end(1))
                continue
            if times is None and not self._ends_at_empty_line:
                continue
            if times is not None and current is not None and last.strip().isdigit():
                current = replace(current, end=before_last)             # the last line is the number of the next cue
            if current is not None and current.end > current.begin:
                yield current
            current, last = None, ""
            if times is not None:
                begin = _seconds(times.groups()[:4])
                current = _Cue(match.end(), match.end(), begin, _seconds(times.groups()[4:]), "", number + 1)
        if current is not None and current.end > current.begin:
            yield current

    def _escape(self, text: str) -> str:
        return text.replace("-->", "\u2192")

    def _unescape(self, text: str) -> str:
        return text

    def _break(self) -> str:
        return self._line_end

    def _divide(self, cue: _Cue) -> Iterator[_Cue]:
        """Yield a cue with its text. If several persons speak, each after a dash, yield one part per person."""
        raw = self._source[cue.begin:cue.end]
        begin = 0
        for match in [*self._markup.finditer(raw), None]:
            if match is not None:
                if _is_tag(match[0]) or match[0] == "\\h":
                    continue
                following = raw[match.end():match.end() + 200]
                if not _DASH.match(self._markup.sub("", following)):
                    continue
            end = match.start() if match else len(raw)
            if end > begin:
                yield self._with_text(replace(cue, begin=cue.begin + begin, end=cue.begin + end))
            begin = match.end() if match else end

    def _with_text(self, cue: _Cue) -> _Cue:
        raw = self._source[cue.begin:cue.end]
        texts: list[str] = []
        found: list[tuple[int, str, Literal["open", "close", "alone"], str]] = []
        length, last, lines = 0, 0, 1
        spaceless = False
        for match in [*self._markup.finditer(raw), None]:
            text = self._unescape(raw[last:match.start() if match else len(raw)])
            if spaceless and _JOINED_WITHOUT_SPACE.match(text):
                length -= len(texts.pop())
            spaceless = False
            texts.append(text)
            length += len(text)
            if match is None:
                break
            last = match.end()
            if match[0] == "\\h":
                texts.append("\u00a0")
                length += 1
            elif _is_tag(match[0]):
                name = _NAME.match(match[0])
                kind: Literal["open", "close", "alone"] = "alone"
                if name is not None:
                    kind = "close" if name[1] or name[4] == "0" else "open"
                found.append((length, match[0], kind, (name[2] or name[3]).lower() if name else ""))
            else:
                lines += 1
                spaceless = bool(text and _JOINED_WITHOUT_SPACE.match(text[-1]))
                texts.append(" ")
                length += 1
        text, tags = "".join(texts), pair_tags(found)
        begin, end, first, after = find_core(text, tags)
        dash = _DASH.match(text, begin, end)
        return replace(cue, text=text, tags=tags, core=(dash.end() if dash else begin, end, first, after), lines=lines,
                       starts=dash is not None or "<v" in raw)

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
                         tag.pair + pairs) for tag in cue.inner_tags]
            text += cue.words
            pairs += len(cue.tags)
        return Block(text, tuple(tags), f"line {cues[0].line}")

    def _write(self, cue: _Cue, text: str, tags: Sequence[Tag], spaceless: bool) -> str:
        """Return the source of a cue with a translated text and its tags."""
        begin, end, first, after = cue.core
        if cue.lines > 1 and text:
            place = _nearest(text, len(text) // 2, 0, len(text), spaceless)
            if 0 < place < len(text):
                cut = len(text[:place].rstrip())
                at = next((index for index, tag in enumerate(tags)
                           if tag.position > place or tag.position == place and tag.kind == "open"), len(tags))
                tags = [*(replace(tag, position=min(tag.position, cut)) for tag in tags[:at]), Tag(cut, self._break()),
                        *(replace(tag, position=tag.position - place + cut) for tag in tags[at:])]
                text = text[:cut] + text[place:]
        before = Block(cue.text[:begin].rstrip("\r\n"), cue.tags[:first]).serialize(self._escape)
        behind = Block(cue.text[end:], shift_tags(cue.tags[after:], end, len(cue.text))).serialize(self._escape)
        return before + Block(text, tuple(tags)).serialize(self._escape) + behind


class SrtDocument(_SubtitleDocument):
    """Subtitles in the format SRT, with the interface of `block.Document`. Like FFmpeg, it reads a cue up to the number
    and times of the next one, with its empty lines, which a translation loses."""

    _markup = re.compile(r"</?[A-Za-z][^<>\r\n]*>|\{\\[^{}\r\n]*\}|(?:\r\n|\r|\n)(?:[ \t]*+(?:\r\n|\r|\n))*+")
    _example = "00:00:01,000 --> 00:00:02,500"
    _ends_at_empty_line = False

    def _require_form(self) -> None:
        if self._source.strip("\ufeff \t\r\n") and not any(_TIMES.match(line) for line in self._source.splitlines()):
            raise DocumentError(f"this is no .srt file: there are no times of a cue, such as {self._example}.")


class VttDocument(_SubtitleDocument):
    """Subtitles in the format WebVTT, with the interface of `block.Document`."""

    _markup = re.compile(r"<[^<>]*>|\r\n|\r|\n")

    def _require_form(self) -> None:
        if self._source.strip("\ufeff \t\r\n") and not self._source.removeprefix("\ufeff").startswith("WEBVTT"):
            raise DocumentError("line 1: a .vtt file begins with the line WEBVTT.")

    def _escape(self, text: str) -> str:
        return html.escape(text, quote=False)

    def _unescape(self, text: str) -> str:
        return html.unescape(text)


class AssDocument(_SubtitleDocument):
    """Subtitles in the format ASS or SSA, with the interface of `block.Document`."""

    _markup = re.compile(r"\{[^{}]*\}|\\[Nnh]")

    def _require_form(self) -> None:
        if self._source.strip("\ufeff \t\r\n") and "[events]" not in self._source.lower():
            raise DocumentError("this is no .ass or .ssa file: there is no line [Events].")

    def _find_cues(self) -> Iterator[_Cue]:
        fields: list[str] = []
        section = ""
        for number, match in enumerate(_LINE.finditer(self._source), 1):
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
            if times[0] is None or times[1] is None or re.search(r"\{[^{}]*\\p[1-9]", of["text"]):
                continue                                                # a drawing
            yield _Cue(match.end(1) - len(of["text"]), match.end(1), _seconds(times[0].groups()),
                       _seconds(times[1].groups()), of.get("name", of.get("actor", "")) + "\n" + of.get("style", ""),
                       number)

    def _escape(self, text: str) -> str:
        text = re.sub(r"\\(?=[Nnh{}])", "\\\\\u2060", text)             # a word joiner, which is invisible
        return text.replace("{", "\\{").replace("\u00a0", "\\h")

    def _break(self) -> str:
        return "\\N"


def _is_tag(markup: str) -> bool:
    return markup[0] in "<{"


def _seconds(groups: Sequence[str | None]) -> float:
    hours, minutes, seconds, fraction = groups
    return int(hours or 0) * 3600 + int(minutes or 0) * 60 + int(seconds or 0) + float(f"0.{fraction or 0}")


def _border(index: int) -> str:
    """Return the raw text of the tag between two cues of a block. index: index of the second cue in the block."""
    return f"\x1e{index}\x1e"


def _group(cues: Sequence[_Cue]) -> Iterator[list[_Cue]]:
    """Yield the cues of each block."""
    group: list[_Cue] = []
    for cue in cues:
        if group and (cue.starts or len(group) == MAX_CUES or cue.start - group[-1].stop > MAX_GAP
                      or cue.start <= group[-1].start or cue.speaker != group[-1].speaker
                      or not is_translatable(cue.words) or _SENTENCE_END.search(group[-1].words)):
            yield group
            group = []
        if is_translatable(cue.words):
            group.append(cue)
    if group:
        yield group


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
        places = [_nearest(text, place, 0, len(text), False) if 0 < place < len(text)
                  and not (text[place - 1].isspace() or text[place].isspace()) else place
                  for place in places]
    sums = list(accumulate(len(cue.words) for cue in cues))
    parts = [text[begin:end].strip() for begin, end in zip([0, *places], [*places, len(text)], strict=True)]
    if any(not part or len(part) > MAX_SHARE * max(1, len(cue.words) / sums[-1] * len(text))
           for part, cue in zip(parts, cues, strict=True)):
        places = []
        words = [match.start() for match in re.finditer(r"\S++", text)]
        more = len(words) - len(cues)
        for index, total in enumerate(sums[:-1], 1):
            place = _nearest(text, round(total / sums[-1] * len(text)), places[-1] if places else 0, len(text),
                             spaceless)
            places.append(min(max(place, words[index]), words[more + index]) if more >= 0 else place)
    divided = list(_split(text, tags, places))
    for index in range(1, len(divided)):
        if not divided[index][0]:                                       # fewer words than cues
            divided[index] = (divided[index - 1][0], list(shift_tags(divided[index][1], 0, 0)))
    return divided


def _nearest(text: str, place: int, lowest: int, highest: int, spaceless: bool) -> int:
    """Return the beginning of the word that is nearest to `place`, or of a letter in a text without spaces."""
    unspaced = spaceless and " " not in text[lowest:highest].strip()
    begins = ([begin for begin, _ in alignment_units(text)] if unspaced
              else [match.end() for match in re.finditer(r"\s+(?=\S)", text)])
    begins = [begin for begin in begins if lowest < begin < highest]
    if not begins:
        return highest
    at = bisect_left(begins, place)
    return min(begins[max(0, at - 1):at + 1], key=lambda begin: abs(begin - place))


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
