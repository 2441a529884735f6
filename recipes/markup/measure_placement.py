"""Measure how well the alignments of a model place inline tags.

    python recipes/markup/measure_placement.py DATA MODEL [--every-head]

DATA contains tagged.en and tagged.de (see prepare.py). The tags of the reference are removed. The tags of the source
are placed in the reference by alignment, and their spans are compared with those of the removed tags. Prints the share
of exact spans and the F1 of the words inside, with 95 % intervals from 1,000 bootstrap samples of sentences.
"""

import html
import re
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import numpy as np

from seq2seq.data.alignment_links import AlignmentSettings
from seq2seq.formats.inline_tags import Tag, TagKind, pair_tags
from seq2seq.tokenizers.line_splitting import alignment_units
from seq2seq.translation.attention_maps import compute_pair_attention
from seq2seq.translation.placement import place_tags

TAG = re.compile(r"<(?P<end>/?)(?P<name>[a-zA-Z][^\s/<>]*)[^<>]*?(?P<alone>/?)>")
Spans = dict[str, list[tuple[int, int]]]


def parse(line: str) -> tuple[str, tuple[Tag, ...]]:
    """Return a line without its tags, and the tags."""
    text, last = "", 0
    found: list[tuple[int, str, TagKind, str]] = []
    for match in TAG.finditer(line):
        text += html.unescape(line[last:match.start()])
        kind: TagKind = "close" if match["end"] else "alone" if match["alone"] else "open"
        found.append((len(text), match[0], kind, match["name"]))
        last = match.end()
    return text + html.unescape(line[last:]), pair_tags(found)


def spans(text: str, tags: Sequence[Tag]) -> Spans:
    """Return the spans of the elements with each name, as indices (begin, end) of alignment units."""
    units = alignment_units(text)
    opened, found = {}, defaultdict(list)
    for tag in tags:
        if tag.kind == "open" and tag.pair is not None:
            opened[tag.pair] = tag.position
        elif tag.kind == "close" and tag.pair in opened:
            inside = [index for index, (begin, end) in enumerate(units)
                      if begin >= opened[tag.pair] and end <= tag.position]
            name = TAG.sub(lambda match: match["name"], tag.raw)
            found[name].append((inside[0], inside[-1] + 1) if inside else (0, 0))
    return found


def compare(gold: Spans, placed: Spans) -> np.ndarray:
    """Return the numbers of elements, of exact spans, and of words in both spans, in gold spans and in placed spans.
    Elements of one name may change their order, so they are matched such that most spans are exact."""
    counts = np.zeros(5)
    for name, right in gold.items():
        found = placed.get(name, [])
        choices = permutations(found) if len(found) <= 6 else [found]
        counts += max((np.sum([
            [1, one == other, max(0, min(one[1], other[1]) - max(one[0], other[0])), one[1] - one[0],
             other[1] - other[0]] for one, other in zip(right, choice, strict=True)], axis=0) for choice in choices),
            key=lambda each: (each[1], each[2]))
    return counts


def summary(counts: np.ndarray) -> tuple[float, float]:
    """Return the share of exact spans and F1 over words, in percent. counts: (sentences, 5)."""
    elements, exact, both, gold, placed = counts.sum(0)
    return 100 * exact / elements, 100 * 2 * both / max(1, gold + placed)


def interval(counts: np.ndarray) -> str:
    """Return both measures with their 95 % intervals."""
    draw = np.random.default_rng(0)
    samples = np.array([summary(counts[draw.integers(0, len(counts), len(counts))]) for _ in range(1000)])
    low, high = np.percentile(samples, [2.5, 97.5], axis=0)
    return " | ".join(f"{value:.1f} ({a:.1f} to {b:.1f})"
                      for value, a, b in zip(summary(counts), low, high, strict=True))


Side = tuple[str, tuple[Tag, ...]]
"""Text without its tags, and the tags."""


def read(data: Path) -> list[tuple[Side, Side]]:
    """Return the parsed pairs of which both sides have the same elements."""
    sides = [(data / f"tagged.{language}").read_text(encoding="utf-8").splitlines() for language in ("en", "de")]
    pairs = [(parse(source), parse(target)) for source, target in zip(*sides, strict=True)]
    def names(side: Side) -> list[tuple[str, int]]:
        return sorted((name, len(found)) for name, found in spans(*side).items())
    return [pair for pair in pairs if names(pair[0]) == names(pair[1]) != []]


def measure(pairs: Sequence[tuple[Side, Side]], weights: Sequence[np.ndarray | None]) -> np.ndarray:
    """Return the counts of `compare` for each pair."""
    return np.array([compare(spans(*target), spans(target[0], place_tags(source[0], source[1], target[0], each)))
                     for (source, target), each in zip(pairs, weights, strict=True)])


def main(data: Path, model: Path, every_head: bool) -> None:
    """Print the table."""
    from seq2seq.data.alignment_links import measured_aligner
    from seq2seq.translation.translator import Translator
    from seq2seq.translation.word_attention import attention_between

    pairs = read(data)
    texts = [(source[0], target[0]) for source, target in pairs]
    translator = Translator.load(model, device="cpu", precision="fp32")
    attention = dict(compute_pair_attention(translator, texts, ["cross"]))
    print(f"{len(pairs)} pairs, {int(measure(pairs, [None] * len(pairs)).sum(0)[0])} elements")

    def row(name: str, aligner: AlignmentSettings | None) -> float:
        weights = [None if aligner is None else attention_between(
            attention[index], aligner, alignment_units(source), alignment_units(target))[:, :-1]
            for index, (source, target) in enumerate(texts)]
        counts = measure(pairs, weights)
        print(f"| {name} | {interval(counts)} |")
        return summary(counts)[0]

    row("position in the sentence", None)
    default = AlignmentSettings()
    row("last layer, mean of heads, writes", default)
    row("last layer, mean of heads, reads", replace(default, step="reads"))
    row(f"stored in the model: {measured_aligner(model)}", measured_aligner(model))
    if every_head:
        layers, heads = attention[0].maps["cross"].shape[:2]
        for layer in range(1, layers + 1):
            for head in [*range(1, heads + 1), "mean"]:
                for step in ("writes", "reads"):
                    row(f"layer {layer}, head {head}, {step}", AlignmentSettings(layer, head, step))


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]), "--every-head" in sys.argv)
