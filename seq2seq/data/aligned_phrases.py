"""Modifiers that need word alignments: inline tags around aligned phrases, and terms with their target words."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from random import Random

from seq2seq.data.alignment_links import Link
from seq2seq.data.modifiers import SentencePair, Texts
from seq2seq.languages import belongs_to_letter
from seq2seq.tokenizers.line_splitting import Span, word_spans
from seq2seq.tokenizers.term_markers import annotate

TAGGED_WORDS = (1, 1, 2, 3, 4, 5)
TERM_WORDS = (1, 1, 1, 2, 2, 3)
"""Possible numbers of source words of a tagged phrase, and of a term. All entries are equally probable."""
MAX_TERMS = 3
MIN_TERM_LETTERS = 3
"""Minimum number of letters of a term in a language with spaces, so that most function words are not terms."""
ATTEMPTS = 8
"""Maximum number of source phrases that are drawn per pair. Some of them may have no aligned target phrase."""
NAMES = ("b", "i", "u", "em", "strong", "a", "span", "code", "g", "ph", "mark", "x", "bpt", "c")


def tags(pair: SentencePair, random: Random) -> Texts:
    """Tag one or two aligned phrases on both sides: with a pair of tags around the phrase or an empty tag before it."""
    chosen = drawn_phrases(pair, random, random.choice((1, 1, 2)), TAGGED_WORDS)
    texts = list(pair.texts)
    numbers = random.sample(range(1, 10), 2)
    changes: tuple[list[tuple[Span, str, str]], ...] = ([], [])
    for spans, number in zip(chosen, numbers, strict=False):
        before, after = _drawn_tags(random, number)
        for side in (0, 1):
            changes[side].append((spans[side], before, after))
    for side in (0, 1):
        for (begin, end), before, after in sorted(changes[side], reverse=True):
            text = texts[side]
            texts[side] = f"{text[:begin]}{before}{text[begin:end]}{after}{text[end:]}"
    return texts[0], texts[1]


def terms(pair: SentencePair, random: Random) -> Texts:
    """Replace up to MAX_TERMS phrases of the source by their aligned target words, in markers (see `annotate`)."""
    chosen = [(source, target) for source, target in drawn_phrases(pair, random, random.randint(1, MAX_TERMS),
                                                                   TERM_WORDS)
              if _is_term(pair.source[slice(*source)])]
    if not chosen:
        return pair.texts
    return annotate(pair.source, [(*source, pair.target[slice(*target)]) for source, target in chosen]), pair.target


def _is_term(text: str) -> bool:
    letters = sum(map(str.isalpha, text))
    return letters >= MIN_TERM_LETTERS or letters > 0 and any(unicodedata.category(letter) == "Lo" for letter in text)


def _drawn_tags(random: Random, number: int) -> tuple[str, str]:
    """Return a random (opening tag, closing tag), or a self-closing tag such as `<br/>` and ""."""
    name = random.choice(NAMES)
    return random.choice((
        (f"<{name}>", f"</{name}>"), (f"<{name}>", f"</{name}>"), (f"<{number}>", f"</{number}>"),
        (f'<g id="{number}">', "</g>"), (f'<{name} id="{number}">', f"</{name}>"),
        ('<a href="https://example.org">', "</a>"), (f"<{number}/>", ""), (f'<x id="{number}"/>', ""), ("<br/>", "")))


def drawn_phrases(pair: SentencePair, random: Random, count: int, sizes: Sequence[int]) -> list[tuple[Span, Span]]:
    """Return the character spans, (source, target), of at most `count` aligned phrases that do not overlap.

    sizes: possible numbers of source words of a phrase.
    """
    links = pair.links()
    words = [word_spans(text, language) for text, language in zip(pair.texts, pair.languages, strict=True)]
    phrases: list[tuple[Span, Span]] = []
    if not links:
        return phrases
    for _ in range(ATTEMPTS):
        begin = random.choice(links)[0]
        end = begin + random.choice(sizes)
        target = aligned_phrase(links, begin, end)
        if target is None or end > len(words[0]):
            continue
        spans = (_without_punctuation(pair.source, words[0][begin:end]),
                 _without_punctuation(pair.target, words[1][slice(*target)]))
        if any(span[0] >= span[1] for span in spans) or any(
                spans[side][0] < other[side][1] and other[side][0] < spans[side][1]
                for other in phrases for side in (0, 1)):
            continue
        phrases.append(spans)
        if len(phrases) == count:
            break
    return phrases


def aligned_phrase(links: Sequence[Link], begin: int, end: int) -> Span | None:
    """Return the target phrase (begin, end) of n source words; None if it has over 2n + 1 words or is not consistent.
    Consistent phrases (Koehn et al. 2003): the first and last source word have links; no link leads outside."""
    inside = [link for link in links if begin <= link[0] < end]
    if not inside or {begin, end - 1} - {source for source, _ in inside}:
        return None
    first, last = min(target for _, target in inside), max(target for _, target in inside)
    if any(first <= target <= last and not begin <= source < end for source, target in links):
        return None
    return (first, last + 1) if last - first < 2 * (end - begin) + 1 else None


def _without_punctuation(text: str, words: Sequence[Span]) -> Span:
    """Return the character span of the words without punctuation at both ends. Combining marks stay with their letter.
    """
    begin, end = words[0][0], words[-1][1]
    while begin < end and not text[begin].isalnum():
        begin += 1
    while begin < end and not (text[end - 1].isalnum() or belongs_to_letter(text[end - 1])):
        end -= 1
    while begin < end < len(text) and belongs_to_letter(text[end]):
        end += 1
    return begin, end
