"""Word alignments from attention, and their error rate."""

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
"""Indices of a source word and a target word, from 0."""

Step = Literal["reads", "writes"]
Rule = Literal["target", "mutual"]

# Relative difference up to which weights count as equal, because of rounding.
TIE = 1e-5


def word_spans(text: str, language: str) -> list[Span]:
    """Return the spans of a line's words, separated by white space; single characters in a language without spaces."""
    word = r"\S" if main_language(language) in SPACELESS else r"\S+"
    return [match.span() for match in re.finditer(word, text)]


def words_of_pieces(pieces: Sequence[Span], words: Sequence[Span]) -> np.ndarray:
    """Return which pieces overlap which words, (pieces, words) bool.

    A piece of several words belongs to each of them; a piece of none (white space, all bytes of a character but the
    last) belongs to the words of the next piece.
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
    """Return attention between words: summed over the pieces of a source word, averaged over those of a target word.

    Args:
        weights: (target pieces, source pieces + 1), with `</s>` in the last column.
        of_source, of_target: (pieces, words), from `words_of_pieces`.
    Returns:
        (target words, source words + 1), with `</s>` in the last column.
    """
    to_source = np.zeros((weights.shape[1], of_source.shape[1] + 1))
    to_source[:-1, :-1] = of_source
    to_source[-1, -1] = 1
    pieces = np.maximum(of_target.sum(0), 1)                                    # number for each target word
    return (of_target.T @ weights @ to_source) / pieces[:, None]


def links_of(weights: np.ndarray, rule: Rule) -> set[Link]:
    """Return the links between words with the highest attention weights.

    Args:
        weights: (target words, source words + 1), with `</s>` in the last column; a target word that attends most to
            `</s>` has no link.
        rule: "target": link each target word to its strongest source word. "mutual": keep only the links that are also
            the strongest of their source word (fewer links of higher precision).
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
    """Gold alignment of a pair (Och and Ney 2003, section 5): sure links, and possible links, which include them."""

    sure: frozenset[Link]
    possible: frozenset[Link]


def alignment_error_rate(found: Iterable[Set[Link]], references: Iterable[Reference]) -> float:
    """Return the alignment error rate over all pairs together: 0 is best, 1 is worst.

    Och and Ney 2003 (A Systematic Comparison of Various Statistical Alignment Models, Computational Linguistics 29),
    section 5: 1 - (|A ∩ S| + |A ∩ P|) / (|A| + |S|), with links A found, S sure and P possible.

    Raises:
        ValueError: the numbers of alignments and references differ, or none of them has a link.
    """
    agreed = total = 0
    for links, reference in zip(found, references, strict=True):
        agreed += len(links & reference.sure) + len(links & (reference.possible | reference.sure))
        total += len(links) + len(reference.sure)
    if not total:
        raise ValueError("neither a found nor a sure link in any pair: their error rate is undefined")
    return 1 - agreed / total


def format_links(links: Iterable[Link]) -> str:
    """Format links in Pharaoh format: `0-0 1-2`, source-target."""
    return " ".join(f"{source}-{target}" for source, target in sorted(links))


def parse_reference(line: str) -> Reference:
    """Read `0-0 1?2`: links in Pharaoh format, those that are only possible with a question mark.

    Raises:
        ValueError: the line has another format.
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
