"""Placement of inline tags in a translation, by word alignment.

Each element (a pair of tags) is put around the interval of the translation with the highest score. The score adds
(share of attention to the element's contents - 1/2) over the words of the interval, and subtracts penalties for an
unlikely length, begin or end. The interval lies inside that of the enclosing element and does not overlap with those of
sibling elements. So the result is well-formed, every tag occurs once, and elements may change their order as words do.
A tag without contents is put beside the translation of the word beside it in the source (Bergamot's rule).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, pairwise

import numpy as np

from seq2seq.formats.inline_tags import Tag
from seq2seq.formats.placeholders import Placeholders
from seq2seq.formats.spans import overlapping, replace_spans
from seq2seq.languages import SPACELESS_CHARACTER, belongs_to_letter
from seq2seq.tokenizers.line_splitting import Span, alignment_units

Align = Callable[[Sequence[tuple[str, str]]], Sequence[np.ndarray | None]]
"""Function that takes pairs of a sentence and its translation, and returns the attention weights of each pair (see
`place_tags`), or None for a pair that cannot be aligned."""

MAX_TAGS, MAX_DEPTH, MAX_CELLS = 200, 30, 4_000_000
"""Limits that bound the time: tags of a sentence, depth of nested elements, and source units times translation units
(see `alignment_units`). If a limit is exceeded, the tags keep their order and are placed by position."""
MAX_STARTS = 1_000
"""Approximate maximum length, in units of the translation, of the intervals that are scored."""
_ENDS = 64
"""Number of interval ends that are scored in one NumPy operation."""
LENGTH_PENALTY, EDGE_PENALTY = 0.6, 0.6
"""Penalties of intervals (see `_Placement._gain`), chosen on one half of the sentence pairs of recipes/markup."""
SAME_WORD = 0.95
"""Minimum cosine of the attention of two characters without a space between them that are one word. Chosen on Tatoeba's
validation set for words of English that occur with one word of Chinese: exact spans rise from 30 to 42 percent, and
tags inside of a word fall from 39 to 13 percent (test set, 590 words)."""
_HYPHENS = "-\u2010\u2011\u2013/_"
_POSITION_WIDTH = 0.1
"""Standard deviation of the difference between the relative positions (0 to 1) of aligned units in a long sentence.
Attention is multiplied by a Gaussian of this width, because small models spread attention over the sentence. This
raises the F1 of recipes/markup by 15 points without guided alignment, and by 2 to 7 points with guided alignment."""


def place_tags(source: str, tags: Sequence[Tag], translation: str, weights: np.ndarray | None = None) -> list[Tag]:
    """Return the tags of a sentence with their positions in its translation, in the order of the translation.

    Args:
        tags: tags with positions in `source`. An opening or closing tag without a counterpart belongs to an element
            that continues outside of the sentence.
        weights: (units of the translation, units of the source), attention of each unit of the translation; see
            `line_splitting.alignment_units`. If None, units at similar relative positions count as aligned.
    """
    if not tags:
        return []
    old, new = alignment_units(source), alignment_units(translation)
    if not old or not new:
        return [replace(tag, position=0 if not new else len(translation) * (tag.position > 0)) for tag in tags]
    if len(tags) > MAX_TAGS or len(old) * len(new) > MAX_CELLS or _depth(_tree(tags, old)) > MAX_DEPTH:
        return _in_order(tags, old, new)
    divided = _divide_words(source, tags, translation, old, new, _shares(weights, len(new), len(old)))
    placement = _Placement(source, tags, translation, *divided, weights is not None)
    root = _tree(tags, placement.old)
    placement.place(root)
    return _outside_placeholders(placement.emit(root), translation)


def align_words(align: Align | None, pairs: Sequence[tuple[str, str]], placeholders: Placeholders,
                ) -> list[np.ndarray | None]:
    """Return the attention weights of pairs (see `Align`), in which each placeholder is aligned with itself.

    Models attend wrongly around placeholders, so these are left out of the texts that `align` gets.
    """
    if align is None or not pairs:
        return [None] * len(pairs)
    divided = [[_without_placeholders(text, placeholders) for text in pair] for pair in pairs]
    weights: list[np.ndarray | None] = []
    for one, (old, new) in zip(align([(old.text, new.text) for old, new in divided]), divided, strict=True):
        whole = None
        if one is not None and one.shape == (sum(new.outside), sum(old.outside)):
            whole = np.zeros((len(new.outside), len(old.outside)))
            whole[np.ix_(new.outside, old.outside)] = one
            for text, groups in new.kept.items():
                for rows, columns in zip(groups, old.kept.get(text, ()), strict=False):
                    whole[np.ix_(rows, columns)] = 1 / len(columns) if columns else 0
        weights.append(whole)
    return weights


@dataclass(frozen=True)
class _Outside:
    """Text with a space in place of each placeholder. outside: for each unit of the original text, True if it is
    outside of placeholders. kept: units of each occurrence of each placeholder."""

    text: str
    outside: np.ndarray
    kept: dict[str, list[list[int]]]


def _without_placeholders(text: str, placeholders: Placeholders) -> _Outside:
    spans, units = placeholders.spans(text), alignment_units(text)
    outside = np.ones(len(units), bool)
    kept: dict[str, list[list[int]]] = defaultdict(list)
    for begin, end in spans:
        inside = overlapping(units, begin, end)
        outside[inside] = False
        kept[text[begin:end]].append(inside)
    return _Outside(replace_spans(text, [(begin, end, " ") for begin, end in spans]), outside, kept)


@dataclass
class _Node:
    """Element, or tag without contents. opened, closed: indices of its tags; None for a tag outside of the sentence.
    begin, end: range of source units. low, high: range of translation units. alone: True if `opened` is a tag alone."""

    opened: int | None
    closed: int | None
    begin: int
    end: int
    children: list[_Node] = field(default_factory=list)
    alone: bool = False
    low: int = 0
    high: int = 0


def _tree(tags: Sequence[Tag], units: list[Span]) -> _Node:
    unit_begins, unit_ends = [begin for begin, _ in units], [end for _, end in units]
    root = _Node(None, None, 0, len(units))
    stack = [root]
    open_pairs: set[int | None] = set()
    for index, tag in enumerate(tags):
        begins, ends = bisect_right(unit_ends, tag.position), bisect_left(unit_begins, tag.position)
        if tag.kind == "alone":
            stack[-1].children.append(_Node(index, None, begins, begins, alone=True))
        elif tag.kind == "open":
            node = _Node(index, None, begins, len(units))
            stack[-1].children.append(node)
            stack.append(node)
            if tag.pair is not None:
                open_pairs.add(tag.pair)
        elif tag.pair in open_pairs:
            while True:
                node = stack.pop()
                pair = None if node.opened is None else tags[node.opened].pair
                open_pairs.discard(pair)                        # tags of wrongly nested elements stay unpaired
                if pair == tag.pair:
                    break
            node.closed, node.end = index, max(ends, node.begin)
        else:                                                                   # opened before the sentence
            stack[-1].children = [_Node(None, index, 0, ends, stack[-1].children)]
    return root


def _depth(root: _Node) -> int:
    depth, level = 0, [root]
    while level := [child for node in level for child in node.children]:
        depth += 1
    return depth


def _shares(weights: np.ndarray | None, new: int, old: int) -> np.ndarray:
    """Return an array (translation units, source units): the attention weights times a Gaussian of the distance between
    relative positions, or the Gaussian alone if there are no weights. Rows sum to 1."""
    distance = (np.arange(new)[:, None] + 0.5) / new - (np.arange(old)[None] + 0.5) / old
    if weights is None or weights.shape != (new, old):
        shares = np.exp(-(distance / _POSITION_WIDTH) ** 2 / 2)
    else:                                                   # wider for short sentences: their words move farther
        near = np.exp(-(distance / (_POSITION_WIDTH + 1.5 / new)) ** 2 / 2)
        shares = near * weights / np.maximum(weights.sum(1, keepdims=True), 1e-9)
    return shares / np.maximum(shares.sum(1, keepdims=True), 1e-9)


def _divide_words(source: str, tags: Sequence[Tag], translation: str, old: list[Span], new: list[Span],
                  shares: np.ndarray) -> tuple[list[Span], list[Span], np.ndarray]:
    """Divide words with tags inside, such as km<sup>2</sup>, and return the new source units, translation units and
    shares. A word is divided only if the translation has the same word, or one with the same beginning or end."""
    cuts = sorted({tag.position for tag in tags})
    for unit in reversed(range(len(old))):
        begin, end = old[unit]
        inner = [cut - begin for cut in cuts[bisect_right(cuts, begin):bisect_left(cuts, end)]]
        if not inner:
            continue
        first, last = source[begin:begin + inner[0]], source[begin + inner[-1]:end]
        found: dict[int, list[int]] = {}                        # offsets of the cuts in each unit of the translation
        for index, (low, high) in enumerate(new):
            word = translation[low:high]
            if word == source[begin:end]:
                found[index] = inner
            elif len(inner) == 1 and len(word) > len(last) and word.endswith(last):
                found[index] = [len(word) - len(last)]
            elif len(inner) == 1 and len(word) > len(first) and word.startswith(first):
                found[index] = [len(first)]
        if not found:
            continue
        other = max(found, key=lambda index: float(shares[index, unit]))
        low, high = new[other]
        count = len(inner) + 1
        shares[:, unit] = shares[other] = 0                     # the alignment of the parts is certain
        shares = np.repeat(shares, [count if index == unit else 1 for index in range(len(old))], axis=1)
        shares = np.repeat(shares, [count if index == other else 1 for index in range(len(new))], axis=0)
        shares[other:other + count, unit:unit + count] = np.eye(count)
        old = [*old[:unit], *_parts(begin, inner, end), *old[unit + 1:]]
        new = [*new[:other], *_parts(low, found[other], high), *new[other + 1:]]
    return old, new, shares


def _parts(begin: int, inner: list[int], end: int) -> list[Span]:
    cuts = [begin, *(begin + cut for cut in inner), end]
    return list(zip(cuts[:-1], cuts[1:], strict=True))


def _word_borders(text: str, units: list[Span], shares: np.ndarray) -> np.ndarray:
    """Return, for each place before or after a unit of a text, True if no word of several units is around it.

    Languages without spaces have a unit for each character. The characters of a word have a similar alignment.
    """
    directions = shares / np.maximum(np.linalg.norm(shares, axis=1, keepdims=True), 1e-9)
    borders = np.ones(len(units) + 1, bool)
    borders[1:-1] = (directions[1:] * directions[:-1]).sum(1) < SAME_WORD
    for place, ((_, end), (begin, _)) in enumerate(pairwise(units), 1):
        if end < begin or not (SPACELESS_CHARACTER.match(text[begin]) and SPACELESS_CHARACTER.match(text[end - 1])):
            borders[place] = True
    return borders


class _Placement:
    """Choice of the intervals of a sentence's elements. old, new: units of the source and of the translation."""

    def __init__(self, source: str, tags: Sequence[Tag], translation: str, old: list[Span], new: list[Span],
                 shares: np.ndarray, is_aligned: bool) -> None:
        """is_aligned: False if the shares are known from positions alone."""
        self.source, self.tags, self.translation, self.old, self.new = source, tags, translation, old, new
        self.shares = shares
        borders = _word_borders(translation, new, shares) if is_aligned else np.ones(len(new) + 1, bool)
        units = np.arange(len(new) + 1)
        self.begins = np.maximum.accumulate(np.where(borders, units, 0))
        """Begin of the word of each unit of the translation; ends: the end of the word before each border of units."""
        self.ends = np.minimum.accumulate(np.where(borders, units, len(new))[::-1])[::-1]

    def place(self, root: _Node) -> None:
        """Choose the interval of every node."""
        root.low, root.high = 0, len(self.new)
        pending = [root]
        while pending:
            node = pending.pop()
            elements = [child for child in node.children if child.begin < child.end]
            # Elements that continue outside of the sentence come first, because their intervals must reach an edge
            # of the enclosing interval. The other elements follow, the highest score first.
            if len(elements) > 1:
                elements.sort(key=lambda child: (child.opened is not None and child.closed is not None,
                                                 -self._gain(child, node.low, node.high)[0]))
            free = [(node.low, node.high)]
            for child in elements:
                child.low, child.high = self._interval(child, node, free)
                free = [part for low, high in free for part in (
                    [(low, high)] if child.high <= low or child.low >= high else
                    [(low, child.low), (child.high, high)]) if part[0] < part[1]]
            for child in elements:
                if child.low == child.high and child.opened is not None and child.closed is not None:
                    self._share(child, elements)
            taken = [(child.low, child.high) for child in elements]
            for child in node.children:
                if child.begin == child.end:
                    child.low = child.high = self._gap(child, node, taken)
            pending += [child for child in node.children if child.children]

    def _interval(self, child: _Node, node: _Node, free: list[Span]) -> Span:
        """Return the interval of an element in `node`. free: parts of `node`'s interval that no sibling has taken."""
        if (child.begin, child.end) == (node.begin, node.end) and free == [(node.low, node.high)]:
            return node.low, node.high
        if child.closed is None or child.opened is None:
            return self._edge(child, node, free)
        found = self._same_text(child, free)
        if found is not None:
            return found
        gain, low, high = max((self._gain(child, low, high) for low, high in free), key=lambda one: one[0],
                              default=(-np.inf, 0, 0))
        if gain > -np.inf:
            return low, high
        gap = self._gap(child, node, [])
        return gap, gap

    def _share(self, child: _Node, siblings: Sequence[_Node]) -> None:
        """Give an element that has got no interval the first or last unit of a sibling's interval, if there is one of
        several units: with an empty pair of tags, the markup of a word would be lost."""
        values = self._values(child)
        edges = [(float(values[unit] - self._values(one)[unit]), unit, index) for index, one in enumerate(siblings)
                 if one.high - one.low > 1 for unit in (one.low, one.high - 1)]
        if edges:
            _, unit, index = max(edges)
            sibling = siblings[index]
            child.low, child.high = unit, unit + 1
            if unit == sibling.low:
                sibling.low += 1
            else:
                sibling.high -= 1

    def _edge(self, child: _Node, node: _Node, free: list[Span]) -> Span:
        """Return the interval of an element that continues outside of the sentence."""
        values = self._values(child)
        if child.closed is None and child.opened is None:
            return node.low, node.high
        if child.closed is None:
            low, high = next(((low, high) for low, high in free if high == node.high), (node.high, node.high))
            sums = [float(values[begin:high].sum()) for begin in range(low, high + 1)]
            return max(low, int(self.begins[low + np.argmax(sums)])), high
        low, high = next(((low, high) for low, high in free if low == node.low), (node.low, node.low))
        sums = [float(values[low:end].sum()) for end in range(low, high + 1)]
        return low, min(high, int(self.ends[low + len(sums) - 1 - np.argmax(sums[::-1])]))

    def _values(self, child: _Node) -> np.ndarray:
        return np.asarray(self.shares[:, child.begin:child.end].sum(1) - 0.5)

    def _gain(self, child: _Node, low: int, high: int) -> tuple[float, int, int]:
        """Return the score, begin and end of the best interval within [low, high) for an element.

        The score is the sum of the values inside (see `_values`), minus penalties for a length that differs from the
        expected length, and for unlikely edges (see `_edges`).
        """
        if low >= high:
            return -np.inf, low, low
        sums = np.concatenate([[0.0], np.cumsum(self._values(child)[low:high])])
        begins, ends = self._edges(child, low, high)
        expected = (child.end - child.begin) * len(self.new) / len(self.old)
        best: tuple[float, int, int] = (-np.inf, low, low)
        for first in range(1, high - low + 1, _ENDS):
            until = np.arange(first, min(first + _ENDS, high - low + 1))[:, None]
            since = np.arange(max(0, first - MAX_STARTS), until[-1, 0])
            lengths = until - since
            scores = sums[until] - sums[since] + begins[since] + ends[until - 1] - LENGTH_PENALTY * np.abs(
                np.log(np.maximum(lengths, 1) / expected))
            scores[lengths < 1] = -np.inf
            end, begin = divmod(int(np.argmax(scores)), len(since))
            if scores[end, begin] > best[0]:
                best = float(scores[end, begin]), low + int(since[begin]), low + int(until[end, 0])
        score, begin, end = best
        return score, max(low, int(self.begins[begin])), min(high, int(self.ends[end]))

    def _edges(self, child: _Node, low: int, high: int) -> tuple[np.ndarray, np.ndarray]:
        """Return, for each unit of [low, high), the penalties of an interval that begins or ends with this unit.

        An edge is unlikely inside a hyphenated word, or at a punctuation mark that the contents lack at this edge. The
        begin is also unlikely at a lower-case letter if the contents begin with a capital letter.
        """
        texts = [self.translation[begin:end] for begin, end in self.new[low:high]]
        first, last = (self.source[slice(*self.old[unit])] for unit in (child.begin, child.end - 1))
        marks = np.array([not text[0].isalnum() for text in texts])
        glued = np.array([begin == before_end and (
            self.translation[begin] in _HYPHENS or self.translation[before_end - 1] in _HYPHENS)
            for (_, before_end), (begin, _) in zip(self.new[low:high], self.new[low + 1:high], strict=False)], bool)
        begins, ends = np.zeros(high - low), np.zeros(high - low)
        begins[1:] -= EDGE_PENALTY * glued
        ends[:-1] -= EDGE_PENALTY * glued
        if first[0].isalnum():
            begins -= EDGE_PENALTY * marks
        if last[-1].isalnum():
            ends -= EDGE_PENALTY * marks
        if first[0].isupper():
            begins -= EDGE_PENALTY * np.array([text[0].islower() for text in texts])
        return begins, ends

    def _same_text(self, child: _Node, free: list[Span]) -> Span | None:
        """Return an interval whose text equals the element's source text, such as a name; None if there is no such
        interval. Of several such intervals, the one with the most attention is returned."""
        text = self.source[self.old[child.begin][0]:self.old[child.end - 1][1]]
        if len(text) < 2 or not (len(text) > 3 or any(map(str.isdigit, text)) or text != text.lower()):
            return None
        begins = {begin: unit for unit, (begin, _) in enumerate(self.new)}
        ends = {end: unit + 1 for unit, (_, end) in enumerate(self.new)}
        found: list[tuple[float, int, int]] = []
        at = self.translation.find(text)
        while at >= 0 and len(found) < 20:
            low, high = begins.get(at), ends.get(at + len(text))
            if low is not None and high is not None and any(a <= low and high <= b for a, b in free):
                found.append((float(self._values(child)[low:high].sum()), low, high))
            at = self.translation.find(text, at + 1)
        return max(found)[1:] if found else None

    def _follows(self, child: _Node) -> bool:
        """Return True if a tag without contents belongs to the unit before it; False if to the unit after it."""
        index = child.closed if child.opened is None else child.opened
        assert index is not None
        position = self.tags[index].position
        before, after = self.source[position - 1:position], self.source[position:position + 1]
        return bool(before.strip()) and not after.isalnum()

    def _gap(self, child: _Node, node: _Node, taken: list[Span]) -> int:
        """Return the index of the translation unit before which a tag without contents is placed."""
        follows = self._follows(child)
        neighbour = child.begin - 1 if follows else child.begin
        if not node.begin <= neighbour < node.end:
            gap = node.low if neighbour < node.begin else node.high
        else:
            # Translation units that attend to the neighbour more than to any other source unit are preferred. The share
            # alone would favour units at the edges of the sentence, because their shares are larger.
            rows = self.shares[node.low:node.high]
            column = rows[:, neighbour]
            gap = node.low + (int(np.argmax(column + (column >= rows.max(1)))) + follows if len(column) else 0)
        word = int(self.begins[gap]), int(self.ends[gap])
        inside = next(((low, high) for low, high in [*taken, word] if low < gap < high), None)
        if inside is not None:
            gap = inside[0] if gap - inside[0] <= inside[1] - gap else inside[1]
        return gap

    def emit(self, root: _Node) -> list[Tag]:
        """Return the tags in the order of the translation."""
        placed: list[Tag] = []
        lowest = 0

        def add(index: int | None, position: int) -> None:
            nonlocal lowest
            lowest = max(lowest, position)
            if index is not None:
                placed.append(replace(self.tags[index], position=lowest))

        def visit(node: _Node) -> None:
            if node.alone:
                add(node.opened, self._position(node))
                return
            empty = node.low == node.high
            add(node.opened, self._position(node) if empty else self.new[node.low][0])
            for child in sorted(node.children, key=lambda child: (child.low, child.high > child.low)):
                visit(child)
            add(node.closed, lowest if empty else self.new[node.high - 1][1])

        for child in sorted(root.children, key=lambda child: (child.low, child.high > child.low)):
            visit(child)
        return placed

    def _position(self, node: _Node) -> int:
        """Return the position of a tag without contents."""
        if node.low == len(self.new):
            return self.new[-1][1]
        if node.low and self._follows(node):
            return self.new[node.low - 1][1]
        return self.new[node.low][0]


def _outside_placeholders(tags: Sequence[Tag], text: str) -> list[Tag]:
    """Move tags out of the placeholders of a translation: opening tags before the placeholder, others and empty
    elements behind it."""
    spans = Placeholders().spans(text)
    ends = {tag.pair: tag.position for tag in tags if tag.kind == "close"}
    moved: list[Tag] = []
    for tag in tags:
        begin, end = next(((begin, end) for begin, end in spans if begin < tag.position < end), (tag.position,) * 2)
        position = begin if tag.kind == "open" and ends.get(tag.pair) != tag.position else end
        moved.append(replace(tag, position=max([position, *(before.position for before in moved[-1:])])))
    return moved


def single_spaced(text: str, tags: Sequence[Tag]) -> str:
    """Return a text without the second space of "Run <x/> now", which without its tag has two spaces in a row."""
    if not tags:
        return text
    places = sorted({tag.position for tag in tags if text[max(tag.position - 1, 0):tag.position + 1] == "  "})
    return "".join(text[begin + (begin > 0):end] for begin, end in pairwise([0, *places, len(text)]))


def with_spaces(source: str, tags: Sequence[Tag], translation: str, placed: Sequence[Tag]) -> tuple[str, list[Tag]]:
    """Return a translation and its placed tags, with the spaces that are around the tags in the source.

    Without its tag, "Run <x/> now" has two spaces in a row. Its translation usually has only one, so a second space is
    inserted beside the tag. A tag without contents touches a word in the result only if it touches one in the source.

    tags: with positions in `source`. placed: the result of `place_tags`.
    """
    origins: dict[tuple[str, str, int | None], deque[int]] = defaultdict(deque)
    for tag in tags:
        origins[tag.raw, tag.kind, tag.pair].append(tag.position)
    text, end = "", 0
    follows_whole = -1                                              # end of last group if `whole` was True; else -1
    result: list[Tag] = []
    for (position, origin), same_place in groupby(
            placed, lambda tag: (tag.position, origins[tag.raw, tag.kind, tag.pair].popleft())):
        group = list(same_place)
        before, after = source[max(origin - 1, 0):origin], source[origin:origin + 1]
        pairs = Counter(tag.pair for tag in group if tag.kind != "alone")
        whole = None not in pairs and set(pairs.values()) <= {2}        # no tag of the group has its pair elsewhere
        gap = translation[max(position - 2, end):position]
        if before.isspace() and after.isspace() and len(gap) == 2 and gap.isspace():
            position -= 1                                           # put the tags between the two spaces
        text += translation[end:position]
        end = position
        apart = before.isspace() and (whole or after.isspace()) or whole and after.isspace()
        if apart and (_needs_space(text[-1:], before) or whole and before.isspace() and follows_whole == len(text)):
            text += " "
        result += [replace(tag, position=len(text)) for tag in group]
        follows_whole = len(text) if whole else -1
        following = translation[position:position + 1]
        same = following != "" and following == source[origin + 1:origin + 2]           # the same mark after a space
        if apart and (_needs_space(following, after) or same and after.isspace()):
            text += " "
    return text + translation[end:], result


def _needs_space(character: str, original: str) -> bool:
    """Return True if a tag needs a space beside `character`: if this is a letter or digit of a script with spaces, and
    `original`, the character beside the tag in the source ("" at an edge), is a space or a punctuation mark."""
    in_word = character.isalnum() or belongs_to_letter(character)
    return in_word and not SPACELESS_CHARACTER.match(character) and original != "" and not original.isalnum()


def _in_order(tags: Sequence[Tag], old: list[Span], new: list[Span]) -> list[Tag]:
    """Place each tag at its relative position in the source, measured in units. The tags keep their order."""
    begins, ends = np.array([begin for begin, _ in old]), np.array([end for _, end in old])
    placed = []
    for tag in tags:
        if tag.kind == "close":
            share = int(np.searchsorted(begins, tag.position)) / len(old)
            unit = min(max(1, round(share * len(new))), len(new))
            placed.append((new[unit - 1][1], tag))
        else:
            share = int(np.searchsorted(ends, tag.position, side="right")) / len(old)
            unit = round(share * len(new))
            placed.append((new[unit][0] if unit < len(new) else new[-1][1], tag))
    positions = np.maximum.accumulate([position for position, _ in placed])
    return [replace(tag, position=int(position)) for position, (_, tag) in zip(positions, placed, strict=True)]
