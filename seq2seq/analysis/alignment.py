"""Which words translate each other: alignments taken from attention, and how far they are from true ones."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from typing import Literal

import numpy as np

from seq2seq.data.line_splitting import SPACELESS, main_language

Span = tuple[int, int]
"""Characters of a line, (begin, end)."""
Link = tuple[int, int]
"""A source word and a target word, both counted from 0."""

Step = Literal["reads", "writes"]
Rule = Literal["target", "mutual"]

# Words whose weights differ by less than roundings do share the first place.
TIE = 1e-5


def word_spans(text: str, language: str) -> list[Span]:
    """Where the words of a line stand: what white space parts, or single characters in a language without spaces."""
    word = r"\S" if main_language(language) in SPACELESS else r"\S+"
    return [match.span() for match in re.finditer(word, text)]


def words_of_pieces(pieces: Sequence[Span], words: Sequence[Span]) -> np.ndarray:
    """Which words each piece has a part in, (pieces, words) bool.

    A piece of several words belongs to each of them; one of none (white space, all bytes of a character but the last)
    goes with the piece after it.
    """
    shares = np.zeros((len(pieces), len(words)), bool)
    following = np.zeros(len(words), bool)
    for number in reversed(range(len(pieces))):
        begin, end = pieces[number]
        shares[number] = [begin < word_end and word_begin < end for word_begin, word_end in words]
        if not shares[number].any():
            shares[number] = following
        following = shares[number]
    return shares


def word_weights(weights: np.ndarray, of_source: np.ndarray, of_target: np.ndarray) -> np.ndarray:
    """Attention between words: that of all pieces of a source word together, on average over those of a target word.

    Args:
        weights: (target pieces, source pieces + 1), the last column that of `</s>`.
        of_source, of_target: (pieces, words), as `words_of_pieces` gives them.
    Returns:
        (target words, source words + 1), the last column that of `</s>`.
    """
    to_source = np.zeros((weights.shape[1], of_source.shape[1] + 1))
    to_source[:-1, :-1] = of_source
    to_source[-1, -1] = 1
    pieces = np.maximum(of_target.sum(0), 1)                                    # of each target word
    return (of_target.T @ weights @ to_source) / pieces[:, None]


def links_of(weights: np.ndarray, rule: Rule) -> set[Link]:
    """Links between the words that attention joins most strongly.

    Args:
        weights: (target words, source words + 1), the last column that of `</s>`: a target word that attends to it
            more than to any word has no link.
        rule: "target": the strongest source word of each target word. "mutual": of those links the ones that are also
            the strongest of their source word, fewer and surer ones.
    """
    linked = _strongest(weights, axis=1)[:, :-1]
    if rule == "mutual":
        linked = linked & _strongest(weights[:, :-1], axis=0)
    return {(int(source), int(target)) for target, source in zip(*linked.nonzero(), strict=True)}


def _strongest(weights: np.ndarray, axis: int) -> np.ndarray:
    most = weights.max(axis, keepdims=True, initial=0)
    return (weights >= most * (1 - TIE)) & (weights > 0)


@dataclass(frozen=True)
class Reference:
    """What is known about a pair (Och and Ney 2003, section 5): links that an alignment must have, and those that it
    may have, which include the former."""

    sure: frozenset[Link]
    possible: frozenset[Link]


def alignment_error_rate(found: Iterable[Set[Link]], references: Iterable[Reference]) -> float:
    """Alignment error rate over all pairs together: 0 is best, 1 is worst.

    Och and Ney 2003 (A Systematic Comparison of Various Statistical Alignment Models, Computational Linguistics 29),
    section 5: 1 - (|A ∩ S| + |A ∩ P|) / (|A| + |S|), with links A found, S sure and P possible.

    Raises:
        ValueError: not as many alignments as references, or no link in all of them, so that there is nothing to rate.
    """
    agreed = total = 0
    for links, reference in zip(found, references, strict=True):
        agreed += len(links & reference.sure) + len(links & (reference.possible | reference.sure))
        total += len(links) + len(reference.sure)
    if not total:
        raise ValueError("neither a found nor a sure link in any pair: their error rate is undefined")
    return 1 - agreed / total


def format_links(links: Iterable[Link]) -> str:
    """Pharaoh format: `0-0 1-2`, source-target."""
    return " ".join(f"{source}-{target}" for source, target in sorted(links))


def parse_reference(line: str) -> Reference:
    """Read `0-0 1?2`: links in Pharaoh format, those that are only possible with a question mark.

    Raises:
        ValueError: something else stands there.
    """
    sure, possible = set(), set()
    for written in line.split():
        match = re.fullmatch(r"(\d+)([-?])(\d+)", written)
        if not match:
            raise ValueError(f"{written!r} is no link; write 0-2, or 0?2 for one that is only possible")
        link = int(match[1]), int(match[3])
        possible.add(link)
        if match[2] == "-":
            sure.add(link)
    return Reference(frozenset(sure), frozenset(possible))
