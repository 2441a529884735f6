"""The gate of every export: the exported model, run by its own library, must translate and score as ours does."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Sequence, Set
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Protocol, Unpack

import numpy as np

from seq2seq import console
from seq2seq.data.corpus import read_pairs, read_texts
from seq2seq.errors import FormatError, UserError
from seq2seq.inference.eager import for_inference
from seq2seq.model import Model
from seq2seq.model.load_model import read_model
from seq2seq.model.transformer import Transformer
from seq2seq.recipe import DecodingOptions, DecodingSection, ModelSection, Recipe, load_recipe
from seq2seq.recipe.decoding_section import SAMPLING_KEYS
from seq2seq.storage.checkpoints import recipe_path, resolve_model_path
from seq2seq.storage.directories import make_directories, recover, replace_directory
from seq2seq.tokenizers.tokenizer import Tokenizers
from seq2seq.translation.line_translator import PairScore, Translation
from seq2seq.translation.translator import Translator

REPORT = "parity.json"
SHOWN = 5
# What searches elsewhere have of ours; anything else in `decoding` must be as if it were not there.
SEARCHED = {"beam_size", "n_best", "length_penalty", "min_length", "max_length", "max_length_ratio",
            "max_length_offset", "no_repeat_ngram", "batch_tokens", "seed", "diverse_strength", *SAMPLING_KEYS,
            "ensemble_mean", "fusion_weight", "safety_net", "ignore_case"}


class Exported(Protocol):
    """The exported model with its own library, as a `Translator` has it."""

    def translate(self, lines: Sequence[str], **decoding: Unpack[DecodingOptions]) -> list[list[Translation]]:
        """See `Translator.translate`."""

    def score(self, pairs: Sequence[tuple[str, str]]) -> list[PairScore]:
        """See `Translator.score`."""


@dataclass(frozen=True)
class Tolerance:
    """Largest difference between a model and its export.

    score: difference in log p of a given translation, in nats: of the worst line if `each`, else the mean per token.
    same: smallest share of equal translations. Different translations count as equal if our model's scores of both
        agree to 1e-3.
    """

    score: float
    same: float
    each: bool


@dataclass(frozen=True)
class Difference:
    """A line that is translated otherwise. gap: by how much our model's own score prefers ours; None where one of them
    is too long to be scored."""

    line: int
    source: str
    ours: str
    theirs: str
    gap: float | None

    @property
    def size(self) -> float:
        """Absolute difference of the scores; infinite if one is missing."""
        return math.inf if self.gap is None else abs(self.gap)


@dataclass(frozen=True)
class Parity:
    """Result of a comparison. worst_score, mean_score: differences in log p of our translations, in nats: the
    largest of a line, and the mean per token."""

    lines: int
    same: int
    worst_score: float
    mean_score: float
    differences: list[Difference]

    def summary(self) -> str:
        """In a sentence."""
        gaps = f", the others with gaps up to {max(one.size for one in self.differences):.1e}" if (
            self.differences) else ""
        return (f"{self.same:,} of {self.lines:,} translations are the same{gaps}; the scores of given ones differ by "
                f"{self.worst_score:.1e} at worst, {self.mean_score:.1e} a token")


@dataclass(frozen=True)
class Exportable:
    """A model that can be exported: its attention is the softmax of scaled dot products."""

    model: Transformer
    recipe: Recipe
    """Its `decoding` as other libraries have it; its `data` by the paths of the run, where the model is one's."""
    tokenizers: Tokenizers
    note: str
    """Sentence about the `decoding` keys that the other library does not support; empty if it supports all."""


def read_exportable(path: Path, format: str, searched: Set[str] = SEARCHED) -> Exportable:
    """The model of a bundle or run, with scores that are dot products folded into the projections.

    searched: keys of `decoding` that the search there has.
    Raises:
        FormatError: `format` has no such models.
    """
    model, recipe, tokenizers = read_model(path)
    if reason := what_is_not_elsewhere(recipe.model):
        raise FormatError(f"{path} cannot be exported to {format}: {reason}.")
    decoding, note = decoding_elsewhere(recipe.decoding, searched)
    bundle = resolve_model_path(path)
    data = recipe.data if recipe_path(bundle).parent == bundle.absolute() else (
        load_recipe(recipe_path(bundle), check_files=False).data)
    return Exportable(folded(model), recipe.model_copy(update={"decoding": decoding, "data": data}), tokenizers, note)


def decoding_elsewhere(decoding: DecodingSection, searched: Set[str]) -> tuple[DecodingSection, str]:
    """Return the part of a recipe's `decoding` that another library supports, and a sentence about the rest."""
    given = decoding.model_dump(exclude_defaults=True)
    lacking = [key for key in given if key not in searched]
    if not lacking:
        return decoding, ""
    # No power of the length is Wu et al.'s divisor: its exponent means nothing there. Without sampling its keys are
    # refused, and without candidates a search has no more than its beam.
    in_vain = {*lacking, *SAMPLING_KEYS, "length_penalty" if "length_penalty_form" in lacking else ""}
    kept = {key: value for key, value in given.items() if key not in in_vain}
    if "n_best" in kept:
        kept["n_best"] = min(kept["n_best"], decoding.beam_size)
    elsewhere = DecodingSection.model_validate(kept)
    penalty = f" length_penalty is {elsewhere.length_penalty:g} instead, the exponent of the length itself." if (
        "length_penalty_form" in lacking) else ""
    return elsewhere, (f"The search there has no {' and no '.join(f'decoding.{key}' for key in lacking)} as the recipe "
                       f"has it: the export leaves it out, and translates without.{penalty}")


def searching_alike(path: Path, exportable: Exportable) -> Translator:
    """Our translator of the model, with the `decoding` that is exported; the person is told where that is another."""
    if exportable.note:
        console.print_message(exportable.note)
    return replace(Translator.load(path, "cpu", "fp32"), decoding=exportable.recipe.decoding)


def folded(model: Model) -> Transformer:
    """A copy for inference in fp32."""
    copy = for_inference(model, "fp32")
    assert isinstance(copy, Transformer)
    return copy


def what_is_not_elsewhere(section: ModelSection) -> str:
    """Return a feature of the model that other libraries do not support; "" if it can be exported."""
    reasons = {
        f"model.type: {section.type} is no encoder-decoder Transformer": section.type != "transformer",
        "it copies pieces of the source (model.copy)": section.copy,
        f"attention by model.score: {section.attention_score} is no dot product": section.attention_score == "additive",
        f"model.normalize: {section.normalize} is not softmax": section.normalize != "softmax",
        "its attention sees a window only (model.window)": section.window is not None,
        "its attention chooses one position (model.selection: hard)": section.selection == "hard",
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


def development_lines(recipe: Recipe, source: Path | None, most: int) -> list[str]:
    """The source lines to compare on: of a file, or of the recipe's validation set; without blank ones.

    Raises:
        FormatError: there are none.
    """
    try:
        if source is not None:
            lines = read_texts(source)
        else:
            lines = [pair[1] for pair in islice(read_pairs(recipe, recipe.data.valid), most)]
    except UserError as error:
        raise FormatError(f"an export is compared on a development set, which cannot be read: {error} "
                          "Name a file of source lines by --source.") from error
    lines = [line for line in lines if line.strip()][:most]
    if not lines:
        raise FormatError("an export is compared on a development set, and this one has no lines. Name a file of "
                          "source lines by --source.")
    return lines


def compare(ours: Translator, theirs: Exported, lines: Sequence[str]) -> Parity:
    """Translate lines by both, and let both score our translations. Lines too long for the model are left out."""
    longest = max(1, min(ours.max_pieces, 256))
    lines = [line for line, ids in zip(lines, ours.tokenizers.source.encode(lines), strict=True)
             if 0 < len(ids) <= ours.max_pieces]
    # What every library has, one search for each line; one limit for all lines.
    options = DecodingSection(beam_size=ours.decoding.beam_size, length_penalty=ours.decoding.length_penalty,
                              max_length=longest, max_length_offset=longest, safety_net=False,
                              batch_tokens=ours.decoding.batch_tokens).model_dump()
    mine, other = ([best.text for best, *_ in side.translate(lines, **options)] for side in (ours, theirs))
    pairs = list(zip(lines, mine, strict=True))
    reachable = ours.scorable_pairs(pairs)
    gaps = [(abs(one.log_probability - another.log_probability), one.tokens) for one, another in
            zip(ours.score(reachable), theirs.score(reachable), strict=True)]
    places = [place for place, (one, another) in enumerate(zip(mine, other, strict=True)) if one != another]
    differences = [Difference(place + 1, lines[place], mine[place], other[place],
                              _gap(ours, lines[place], mine[place], other[place])) for place in places]
    # One that is not a number stays one; Python's max would pass over it.
    worst = float(np.max([gap for gap, _ in gaps], initial=0.0))
    return Parity(len(lines), len(lines) - len(places), worst,
                  sum(gap for gap, _ in gaps) / max(1, sum(tokens for _, tokens in gaps)), differences)


def _gap(ours: Translator, source: str, mine: str, other: str) -> float | None:
    pairs = ours.scorable_pairs([(source, mine), (source, other)])
    scores = [score.log_probability / score.tokens**ours.decoding.length_penalty for score in ours.score(pairs)]
    return scores[0] - scores[1] if len(scores) == 2 else None


def require(parity: Parity, tolerance: Tolerance, what: str) -> None:
    """Raises FormatError, with the first lines that differ, if an export differs by more than `tolerance` allows."""
    if not parity.lines:
        raise FormatError(f"{what} is refused: the model can take none of the lines that it was to be compared on. "
                          "Name others by --source.")
    as_good = parity.same + sum(one.size <= 1e-3 for one in parity.differences)
    found = parity.worst_score if tolerance.each else parity.mean_score
    # A score that is not a number passes no comparison.
    if as_good >= tolerance.same * parity.lines and found <= tolerance.score:
        return
    shown = [f"  line {one.line}: {one.source}\n    ours:   {one.ours}\n    theirs: {one.theirs}  (gap {one.size:.4f})"
             for one in parity.differences[:SHOWN]]
    raise FormatError("\n".join([
        f"{what} is refused, because it does not do what the model does: {parity.summary()}. Allowed are "
        f"{tolerance.score:g} {'at worst' if tolerance.each else 'a token'} and {1 - tolerance.same:.0%} of other "
        f"translations.{' The first of them:' if shown else ''}", *shown]))


def write_gated(output: Path, what: str, write: Callable[[Path], None], load: Callable[[Path], Exported],
                ours: Translator, lines: Sequence[str], tolerance: Tolerance) -> Parity:
    """Write an export beside `output`, compare it, and only then give it its name.

    Raises:
        FormatError: it does not do what the model does, or `output` holds something else.
        CheckpointError: it cannot be written.
    """
    output = Path(os.path.realpath(output))                                     # a link to an export stays a link
    try:
        recover(output)
        if output.exists() and not (output.is_dir() and ((output / REPORT).exists() or not any(output.iterdir()))):
            raise FormatError(f"{output} exists and is no export. It is left as it is; name a new directory.")
        make_directories(output.parent)
    except OSError as error:
        raise FormatError(f"{output} cannot be made: {error.strerror}. Name another directory.") from error
    with replace_directory(output, None) as place:
        write(place)
        parity = compare(ours, load(place), lines)
        require(parity, tolerance, what)
        report = {**asdict(parity), "tolerance": asdict(tolerance)}
        (place / REPORT).write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        for path in place.iterdir():                                            # safetensors lets its owner read alone
            path.chmod(place.stat().st_mode & 0o666)
        if output.exists():
            written = {path.name for path in place.iterdir()}
            if strangers := sorted(path.name for path in output.iterdir() if path.name not in written):
                raise FormatError(f"{output} holds {strangers[0]} besides an earlier export. It is left as it is; move "
                                  "that away, or name a new directory.")
    return parity
