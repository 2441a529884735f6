"""Word alignments from attention weights, the settings for them in a model's metadata, and the alignment error rate."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from seq2seq.errors import CheckpointError
from seq2seq.storage.checkpoints import bundle_metadata, resolve_model_path
from seq2seq.tokenizers.line_splitting import Span

Kind = Literal["cross", "encoder", "decoder", "context"]
"""Kind of attention; see `translation.attention_maps.PairAttention`."""
KINDS: tuple[Kind, ...] = ("cross", "encoder", "decoder", "context")

Link = tuple[int, int]
"""Indices of a source word and a target word, counted from 0."""

Step = Literal["reads", "writes"]
Rule = Literal["target", "mutual"]

# Two weights count as equal if their relative difference is at most this number, because sums of floats are rounded.
TIE_TOLERANCE = 1e-5


def piece_word_overlap(pieces: Sequence[Span], words: Sequence[Span]) -> np.ndarray:
    """Return a mask, (pieces, words) bool: True = the piece belongs to the word.

    A piece that overlaps several words belongs to all of them. A piece that overlaps no word belongs to the words of
    the next piece. Such a piece is white space, or a byte piece (byte fallback) that is not the last of its character
    and therefore has an empty span. A piece OUTSIDE of the line belongs to no word.
    """
    begins, ends = np.array(pieces).reshape(-1, 2, 1).swapaxes(0, 1)
    word_begins, word_ends = np.array(words).reshape(-1, 2).T
    overlap: np.ndarray = (begins < word_ends) & (word_begins < ends)
    for index in np.flatnonzero(~overlap.any(1) & (ends[:, 0] >= 0))[::-1]:
        if index + 1 < len(pieces):
            overlap[index] = overlap[index + 1]
    return overlap


def word_weights(weights: np.ndarray, source_overlap: np.ndarray, target_overlap: np.ndarray) -> np.ndarray:
    """Convert attention weights between pieces to weights between words.

    The weights are summed over the pieces of each source word, and averaged over the pieces of each target word.

    Args:
        weights: (target pieces, source pieces + 1), with `</s>` in the last column.
        source_overlap, target_overlap: (pieces, words), from `piece_word_overlap`.
    Returns:
        (target words, source words + 1), with `</s>` and the source pieces that belong to no word in the last column.
    """
    source_with_end = np.zeros((weights.shape[1], source_overlap.shape[1] + 1))
    source_with_end[:-1, :-1] = source_overlap
    source_with_end[:, -1] = ~source_with_end.any(1)
    pieces = np.maximum(target_overlap.sum(0), 1)                               # number of pieces of each target word
    return (target_overlap.T @ weights @ source_with_end) / pieces[:, None]


def extract_links(weights: np.ndarray, rule: Rule) -> set[Link]:
    """Choose links between the words of a sentence pair by the attention weights between these words.

    Args:
        weights: (target words, source words + 1), with `</s>` in the last column; a target word that attends most to
            `</s>` has no link.
        rule: "target": link each target word to the source word with the highest weight. "mutual": keep
            such a link only if no other target word has a higher weight for the source word (fewer links, higher
            precision).
    """
    linked = _is_maximum(weights, axis=1)[:, :-1]
    if rule == "mutual":
        linked = linked & _is_maximum(weights[:, :-1], axis=0)
    return {(int(source), int(target)) for target, source in zip(*linked.nonzero(), strict=True)}


def _is_maximum(weights: np.ndarray, axis: int) -> np.ndarray:
    """Return a mask: True = the weight equals the maximum along the axis (see TIE_TOLERANCE) and is above 0."""
    maximum = weights.max(axis, keepdims=True, initial=0)
    return (weights >= maximum * (1 - TIE_TOLERANCE)) & (weights > 0)


@dataclass(frozen=True)
class Reference:
    """Gold alignment of a sentence pair (Och and Ney 2003, section 5). `possible` includes the sure links."""

    sure: frozenset[Link]
    possible: frozenset[Link]


def alignment_error_rate(alignments: Iterable[Set[Link]], references: Iterable[Reference]) -> float:
    """Return the alignment error rate of all pairs together: 0 is best, 1 is worst.

    Och and Ney 2003 (A Systematic Comparison of Various Statistical Alignment Models, Computational Linguistics 29),
    section 5: 1 - (|A ∩ S| + |A ∩ P|) / (|A| + |S|). A are the links to evaluate, S the sure and P the possible links
    of the reference. Each count is summed over all pairs.

    Raises:
        ValueError: the numbers of alignments and references differ, or there is neither a link to evaluate nor a sure
            link.
    """
    agreed = total = 0
    for links, reference in zip(alignments, references, strict=True):
        agreed += len(links & reference.sure) + len(links & (reference.possible | reference.sure))
        total += len(links) + len(reference.sure)
    if not total:
        raise ValueError("the alignments have no links and the references no sure links: the error rate is undefined")
    return 1 - agreed / total


def format_links(links: Iterable[Link]) -> str:
    """Format links as `source-target` pairs in Pharaoh format: `0-0 1-2`."""
    return " ".join(f"{source}-{target}" for source, target in sorted(links))


@dataclass(frozen=True)
class AlignmentSettings:
    """Settings for word alignment from cross-attention. A model's metadata may contain them under `alignment`.

    layer: counted from 1; None: the last layer. head: counted from 1, or "mean" over all heads of the layer.
    step: decoding step whose attention is used for a target piece. "writes": the step that predicts the piece. "reads":
        the next step, which has the piece as its input.
    rule: see `extract_links`.
    """

    layer: int | None = None
    head: int | Literal["mean"] = "mean"
    step: Step = "writes"
    rule: Rule = "target"

    @staticmethod
    def from_metadata(metadata: Mapping[str, Any], where: str) -> AlignmentSettings:
        """Return the alignment settings in a model's metadata, or the default settings if it contains none.

        If the value of `alignment` is not a mapping, it is the layer. where: name of the metadata in error messages.
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
