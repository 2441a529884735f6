"""Augmentation of training pairs: in each epoch, at most one modifier changes a pair, by the shares in the recipe."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Any

from seq2seq.data.aligned_phrases import tags, terms
from seq2seq.data.alignment_links import Link
from seq2seq.data.batching import derived_seed
from seq2seq.data.modifiers import (
    SentencePair,
    Texts,
    no_final_stop,
    noise,
    title_case,
    typos,
    upper_case,
)
from seq2seq.data.word_alignment import WordAligner
from seq2seq.formats import placeholders as placeholder_patterns
from seq2seq.languages import combining_marks
from seq2seq.recipe.data_section import Augmentation
from seq2seq.tokenizers.line_splitting import word_spans
from seq2seq.tokenizers.source import Source

# A number, or a word of letters that are not Chinese or Japanese: 用Python写 has the word Python. Combining marks,
# such as accents in NFD text, belong to their letters.
TOKEN = re.compile(rf"\d+(?:[.,:]\d+)*|(?:[^\W\d_\u2e80-\u9fff\uf900-\ufaff][{combining_marks()}]*){{2,}}")
NAMES = ("name", "user", "count", "n", "x", "value", "file", "path", "title", "date", "time", "id", "total", "item",
         "page", "url", "size", "email", "app", "version", "number", "userName", "file_name", "min", "max", "host")
FORMS = ("{{{name}}}", "{{{number}}}", "{{{{ {name} }}}}", "{{{{{name}}}}}", "${{{name}}}", "%s", "%d", "%@", "%i",
         "%{position}$s", "%({name})s", "%({name})d", "%{{{name}}}", "%{name}%", "<{name}>", ":{name}", "@{name}",
         "$" "{name}", "[{name}]", "#{{{name}}}", "__{name}__", "{{{name}:.2f}}", "%.1f", "&{name};", "[[{name}]]")
# Placeholders and tags in real text, by which `seq2seq init` sees that a text has some.
PLACEHOLDER, TAG = placeholder_patterns.VARIABLE, placeholder_patterns.TAG


def placeholders(pair: SentencePair, random: Random) -> Texts:
    """Replace a name or number that occurs once on each side by a placeholder. If no name or number does, add the
    placeholder at the beginning or at the end of both sides."""
    placeholder = drawn_placeholder(random)
    counts = [Counter(TOKEN.findall(text)) for text in pair.texts]
    shared = [token for token, count in counts[0].items()
              if count == counts[1][token] == 1 and (token[0].isdigit() or token[0].isupper())]
    if shared:
        token = random.choice(shared)
        source, target = (_replaced(text, token, placeholder) for text in pair.texts)
        return source, target
    form = random.choice(("{placeholder} {text}", "{text} {placeholder}"))
    return (form.format(placeholder=placeholder, text=pair.source),
            form.format(placeholder=placeholder, text=pair.target))


def drawn_placeholder(random: Random) -> str:
    form, name = random.choice(FORMS), random.choice(NAMES)
    if random.random() < 0.1:
        name = name.upper()
    number = random.randrange(10)
    return form.format(name=name, number=number, position=1 + number % 4)


def _replaced(text: str, token: str, placeholder: str) -> str:
    span = next(match.span() for match in TOKEN.finditer(text) if match[0] == token)
    return text[:span[0]] + placeholder + text[span[1]:]


MODIFIERS: dict[str, Callable[[SentencePair, Random], Texts]] = {
    "upper_case": upper_case, "title_case": title_case, "typos": typos, "no_final_stop": no_final_stop, "tags": tags,
    "placeholders": placeholders, "noise": noise, "terms": terms}
"""Modifier for each key of `data.augmentation`."""

LINKED = {"tags", "terms"}
"""Modifiers that need word links."""

Links = Callable[[int], list[Link]]
"""Function that returns the word links of a training pair, given the index of the pair in the training corpus."""


class PairAugmenter:
    """Changes pairs of a training corpus. The change of a pair depends only on (seed, epoch, index of the pair)."""

    def __init__(self, section: Augmentation, languages: tuple[str, str], seed: int, links: Links | None = None,
                 aligner: Callable[..., WordAligner] | None = None) -> None:
        """links: see `Links`. aligner: function that returns a word aligner. If `links` is None and a modifier needs
        links, `align` calls it once."""
        self.languages, self.seed, self._links, self._make_aligner = languages, seed, links, aligner
        self._aligner: WordAligner | None = None
        shares = section.model_dump()
        self.shares = {name: shares[name] for name in MODIFIERS if shares[name]}

    def align(self, *arguments: Any) -> None:
        """Make the word aligner if it is needed and missing. arguments: those of the function `aligner`."""
        if self._links is None and self._aligner is None and self._make_aligner and not LINKED.isdisjoint(self.shares):
            self._aligner = self._make_aligner(*arguments)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_make_aligner": None}                          # for other processes, after `align`

    def augment(self, epoch: int, index: int, source: Source, target: str) -> tuple[Source, str, str]:
        """Return a pair in this epoch: (source, target, key of the modifier that changed the pair, or "" if unchanged).

        At most one modifier is drawn for a pair: a modifier with a share of 0.05 is drawn for 5 % of the pairs. If the
        modifier does not apply to the pair, the pair is not changed. index: index of the pair in the training corpus.
        """
        seed = derived_seed(self.seed, "augmentation", epoch, index)
        name = self._drawn(seed / 2**63)
        if not name:
            return source, target, ""
        pair = SentencePair(source.text, target, self.languages, lambda: self._links_of(index, source.text, target))
        changed = MODIFIERS[name](pair, Random(seed))
        if changed == pair.texts or not all(changed):
            return source, target, ""
        return replace(source, text=changed[0]), changed[1], name

    def _drawn(self, number: float) -> str:
        """Return the modifier for a random number in [0, 1), or "". Each modifier has an interval as long as its share;
        the intervals are in the order of MODIFIERS."""
        for name, share in self.shares.items():
            if number < share:
                return name
            number -= share
        return ""

    def _links_of(self, index: int, source: str, target: str) -> list[Link]:
        if self._links is not None:
            return self._links(index)
        if self._aligner is None:
            return []
        return self._aligner.links(*(words_of(text, language)
                                     for text, language in zip((source, target), self.languages, strict=True)))

    def summary(self, counts: Counter[str], pairs: int, epoch: int) -> str:
        """Return a message with the numbers of pairs that each modifier has changed in an epoch."""
        each = ", ".join(f"{name} {counts[name]:,}" for name in self.shares)
        return f"epoch {epoch + 1}: {counts.total():,} of {pairs:,} training pairs are augmented ({each})"


def words_of(text: str, language: str) -> Sequence[str]:
    """Return the words of a text, as found by `word_spans`."""
    return [text[begin:end] for begin, end in word_spans(text, language)]
