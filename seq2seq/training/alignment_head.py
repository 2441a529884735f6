"""Choice of the attention head that aligns words: the head trained for this, or the best one on the validation set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from seq2seq.data.alignment_links import Reference, Rule, Step, alignment_error_rate, extract_links, word_weights
from seq2seq.data.alignment_links import piece_word_overlap as overlap
from seq2seq.data.line_splitting import alignment_units
from seq2seq.data.word_alignment import WordAligner
from seq2seq.errors import CheckpointError
from seq2seq.recipe import Recipe
from seq2seq.storage.checkpoints import bundle_metadata, resolve_model_path
from seq2seq.tokenizers.source import Source
from seq2seq.tokenizers.vocabulary import as_line
from seq2seq.training.guided_alignment import guided_layer
from seq2seq.translation.attention_maps import compute_pair_attention
from seq2seq.translation.scoring import scorable_pairs
from seq2seq.translation.translator import Translator

MAX_PAIRS = 300
"""Maximum number of pairs on which heads are compared. The statistical aligner is trained on all validation pairs."""


@dataclass(frozen=True)
class AlignmentSettings:
    """Settings for word alignment from cross-attention. A model's metadata may contain them under `alignment`.

    layer: counted from 1; None: the last layer. head: counted from 1, or "mean" over all heads of the layer.
    step: decoding step whose attention is used for a target piece. "writes": the step that predicts the piece. "reads":
        the next step, which has the piece as its input.
    rule: see `alignment_links.extract_links`.
    """

    layer: int | None = None
    head: int | Literal["mean"] = "mean"
    step: Step = "writes"
    rule: Rule = "target"

    @staticmethod
    def from_metadata(metadata: Mapping[str, Any], where: str) -> AlignmentSettings:
        """Return the alignment settings in a model's metadata, or the default settings if it contains none.

        If the value of `alignment` is not a mapping, it is the layer. where: name of the metadata in error messages.
        Raises:
            CheckpointError: the settings are invalid.
        """
        entry = metadata.get("alignment", {})
        values = entry if isinstance(entry, dict) else {"layer": entry}
        settings = {name: values.get(name, default) for name, default in asdict(AlignmentSettings()).items()}
        valid = (_is_positive_int_or(settings["layer"], None) and _is_positive_int_or(settings["head"], "mean")
                 and settings["step"] in get_args(Step) and settings["rule"] in get_args(Rule))
        if not valid:
            raise CheckpointError(f"{where}: alignment is {entry}, which is not a valid setting. Delete the entry to "
                                  "use the default settings.")
        return AlignmentSettings(**settings)


def _is_positive_int_or(value: Any, alternative: str | None) -> bool:
    return value == alternative or isinstance(value, int) and value > 0


def measured_aligner(model: Path) -> AlignmentSettings:
    """Return the alignment settings stored in a model's metadata, or the default settings if there are none."""
    bundle = resolve_model_path(model)
    return AlignmentSettings.from_metadata(bundle_metadata(bundle), f"the metadata of {bundle}")


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
