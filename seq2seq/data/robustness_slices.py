"""Robustness slices: changed copies of a test set, which measure the robustness of a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from seq2seq.data.batching import derived_seed
from seq2seq.data.modifiers import SentencePair, Texts, no_final_stop, title_case, typos, upper_case

SLICES: dict[str, Callable[[SentencePair, Random], Texts]] = {
    "clean": lambda pair, random: pair.texts, "upper_case": upper_case, "title_case": title_case,
    "no_final_stop": no_final_stop, "typos": typos}


def robustness_slices(sources: Sequence[str], references: Sequence[str], languages: tuple[str, str], seed: int = 1
                      ) -> dict[str, tuple[list[str], list[str]]]:
    """Return the sources and references of each slice: clean, upper_case, title_case, no_final_stop, typos.

    The reference is changed like the source: to upper case for upper_case, to title case for title_case, without the
    final stop for no_final_stop. For typos, only the source is changed. Every slice contains all lines.

    Args:
        languages: codes of source and target.
        seed: seed of the typos; the same seed always gives the same typos.
    """
    pairs = [SentencePair(*texts, languages, list) for texts in zip(sources, references, strict=True)]
    slices = {}
    for name, modifier in SLICES.items():
        changed = [modifier(pair, Random(derived_seed(seed, name, index))) for index, pair in enumerate(pairs)]
        slices[name] = [source for source, _ in changed], [target for _, target in changed]
    return slices
