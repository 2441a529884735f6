"""Choice of the attention head that aligns words: the head trained for this, or the best one on the validation set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, get_args

import numpy as np

from seq2seq.data.alignment_links import (
    AlignmentSettings,
    Reference,
    Step,
    alignment_error_rate,
    extract_links,
    word_weights,
)
from seq2seq.data.alignment_links import piece_word_overlap as overlap
from seq2seq.data.word_alignment import WordAligner
from seq2seq.recipe import Recipe
from seq2seq.tokenizers.line_splitting import alignment_units
from seq2seq.tokenizers.source import Source
from seq2seq.tokenizers.vocabulary import as_line
from seq2seq.training.guided_alignment import guided_layer
from seq2seq.translation.attention_maps import compute_pair_attention
from seq2seq.translation.scoring import scorable_pairs
from seq2seq.translation.translator import Translator

MAX_PAIRS = 300
"""Maximum number of pairs on which heads are compared. The statistical aligner is trained on all validation pairs."""


def alignment_settings(translator: Translator, recipe: Recipe, pairs: Sequence[tuple[Source, str]]) -> dict[str, Any]:
    """Return a mapping with the entry `alignment` of a bundle's metadata (see `AlignmentSettings`). The mapping is
    empty if no head can be chosen (see `best_aligner`).

    pairs: validation pairs, on which the heads are compared.
    """
    if not (recipe.task.has_source and recipe.task.target_is_text):
        return {}
    if recipe.training.guided_alignment:
        return {"alignment": asdict(AlignmentSettings(guided_layer(recipe.model.decoder_layers) + 1, 1, "reads"))}
    best = best_aligner(translator, pairs)
    return {"alignment": asdict(best)} if best else {}


def best_aligner(translator: Translator, pairs: Sequence[tuple[Source, str]]) -> AlignmentSettings | None:
    """Return the head and step whose links agree best with a statistical aligner (lowest alignment error rate).
    Return None if the model has no cross-attention, or if the statistical aligner links no words."""
    pairs = scorable_pairs(translator, pairs)
    texts = [[text[begin:end] for begin, end in alignment_units(text)]
             for source, target in pairs for text in (as_line(source), target)]
    words = list(zip(texts[::2], texts[1::2], strict=True))
    statistical = WordAligner(words)
    references: list[Reference] = []
    links: dict[AlignmentSettings, list[set[tuple[int, int]]]] = {}
    for index, pair in compute_pair_attention(translator, pairs[:MAX_PAIRS], kinds=["cross"]):
        if "cross" not in pair.maps:
            return None
        found = frozenset(statistical.links(*words[index]))
        references.append(Reference(found, found))
        sides = [overlap(side.spans, alignment_units(side.text)) for side in (pair.source, pair.target)]
        for layer, head in np.ndindex(*pair.maps["cross"].shape[:2]):
            weights = pair.maps["cross"][layer, head]
            for step in get_args(Step):
                aligner = AlignmentSettings(layer + 1, head + 1, step)
                piece_weights = weights[1:] if step == "reads" else weights[:-1]
                links.setdefault(aligner, []).append(extract_links(word_weights(piece_weights, *sides), "target"))
    if not any(reference.sure for reference in references):
        return None
    return min(links, key=lambda aligner: alignment_error_rate(links[aligner], references))
