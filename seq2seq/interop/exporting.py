"""Parts that all exports share: reading the model, its card, and the check that the other library agrees with it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence, Set
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Protocol, Unpack, cast

import numpy as np
import torch
from torch import Tensor

from seq2seq import console
from seq2seq.data.alignment_links import AlignmentSettings, measured_aligner
from seq2seq.data.corpus import read_texts, validation_pairs
from seq2seq.errors import FormatError, UserError
from seq2seq.inference.eager import for_inference
from seq2seq.inference.load_model import read_model
from seq2seq.interop.model_card import Sizes, Usage, model_card
from seq2seq.model import Model
from seq2seq.model.attention import CrossAttention
from seq2seq.model.transformer import DecoderLayer, Transformer
from seq2seq.recipe import DecodingOptions, DecodingSection, ModelSection, Recipe, TransformerSection
from seq2seq.recipe.combinations import SAMPLING_KEYS
from seq2seq.storage.atomic import new_directory
from seq2seq.storage.checkpoints import MODEL, README, bundle_metadata, recipe_with_text, resolve_model_path, run_of
from seq2seq.storage.tensor_files import read_shapes
from seq2seq.tokenizers.canonical_text import CODE, is_blank
from seq2seq.tokenizers.context import CONTEXT_SEPARATOR, in_context
from seq2seq.tokenizers.source import Source
from seq2seq.tokenizers.tokenizer import Tokenizers
from seq2seq.tokenizers.vocabulary import as_line
from seq2seq.translation.scoring import PairScore, pair_scores, scorable_pairs
from seq2seq.translation.translation import Translation
from seq2seq.translation.translator import Translator

REPORT = "parity.json"
MAX_LISTED_DIFFERENCES = 5
"""Maximum number of differing translations in the messages about an export."""
# Keys of `decoding` that an export keeps: options of the other library's beam search, keys that have an effect only
# together with a dropped key, and safety_net, which acts after the search. All other keys are dropped, with a note.
SUPPORTED_DECODING_KEYS = {"beam_size", "n_best", "length_penalty", "min_length", "max_length", "max_length_ratio",
            "max_length_offset", "no_repeat_ngram", "batch_tokens", "seed", "diverse_strength", *SAMPLING_KEYS,
            "ensemble_mean", "fusion_weight", "safety_net", "ignore_case"}


class Exported(Protocol):
    """Interface of an exported model that runs in the other library. The methods are those of `Translator`."""

    def translate(self, lines: Sequence[Source], **decoding: Unpack[DecodingOptions]) -> list[list[Translation]]:
        ...

    def score(self, pairs: Sequence[tuple[Source, str]]) -> list[PairScore]:
        ...


@dataclass(frozen=True)
class Tolerance:
    """Maximum difference between a model and its export.

    score: maximum difference, in nats, between the log-probabilities of a translation in both libraries. each: True if
        the maximum applies to every line; False if it applies to the mean difference per token.
    same: minimum share of equal translations. Two different translations of a line also count as equal if the original
        model's scores of them differ by at most 1e-3.
    """

    score: float
    same: float
    each: bool


@dataclass(frozen=True)
class Difference:
    """A line that the two libraries translate differently.

    line: number of the line, from 1. Lines that `compare` leaves out are not counted. ours: translation of the
    original model. theirs: translation of the export. gap: the original model's score of `ours` minus its score of
    `theirs`; None if one of the two is too long to be scored.
    """

    line: int
    source: str
    ours: str
    theirs: str
    gap: float | None

    @property
    def size(self) -> float:
        """Absolute value of the gap; infinite if the gap is None."""
        return math.inf if self.gap is None else abs(self.gap)


@dataclass(frozen=True)
class Parity:
    """Result of a comparison.

    lines: number of compared lines. same: number of lines that both libraries translate identically. Both also compute
    the log-probability of the original model's translation of each line. worst_score: largest absolute difference of
    the two log-probabilities of a line, in nats. mean_score: sum of these differences, divided by the number of tokens.
    """

    lines: int
    same: int
    worst_score: float
    mean_score: float
    differences: list[Difference]

    def summary(self) -> str:
        """Return the result as a sentence for the log."""
        gaps = (" (for other lines, the original model's scores of the two translations differ by at most "
                f"{max(one.size for one in self.differences):.1e})" if self.differences else "")
        return (f"{self.same:,} of {self.lines:,} translations are equal{gaps}; the log-probabilities of given "
                f"translations differ by at most {self.worst_score:.1e}, on average {self.mean_score:.1e} per token")

    def first_differences(self) -> list[str]:
        """Return the first differing translations for the log."""
        return [f"  source: {one.source}\n    ours:   {one.ours}\n    theirs: {one.theirs}  (score gap {one.size:.4f})"
                for one in self.differences[:MAX_LISTED_DIFFERENCES]]


@dataclass(frozen=True)
class Exportable:
    """A model that can be exported: its attention is a softmax over scaled dot products."""

    model: Transformer
    recipe: Recipe
    """Recipe of the model. `decoding` has only keys that the export keeps. `data` and the directory of the model of a
    run are those of the run."""
    tokenizers: Tokenizers
    note: str
    """Sentence about the `decoding` keys that the other library does not support; empty if it supports all."""
    aligner: AlignmentSettings
    """Layer and head that align words best. The head is "mean" or 1: `read_exportable` puts the best head first."""

    @property
    def section(self) -> TransformerSection:
        """Section `model` of the recipe."""
        return cast(TransformerSection, self.recipe.model)


def read_exportable(path: Path, format: str, supported: Set[str] = SUPPORTED_DECODING_KEYS,
                    unsupported: Callable[[ModelSection], str] | None = None) -> Exportable:
    """Read the model of a bundle or run for an export.

    Args:
        format: name of the export format in errors.
        supported: keys of `decoding` that the other library's search supports.
        unsupported: function that returns the reason why the other library does not support the model, "" if it does;
            None: `unsupported_feature`, which is right for any library.
    """
    model, recipe, tokenizers = read_model(path)
    if reason := (unsupported or unsupported_feature)(recipe.model):
        raise FormatError(f"{path} cannot be exported to {format}: {reason}.")
    decoding, note = supported_decoding(recipe.decoding, supported)
    recipe = recipe.model_copy(update={"decoding": decoding})
    if run_of(resolve_model_path(path)) is not None:                            # its validation text is compared on
        found = recipe_with_text(path)
        recipe = recipe.model_copy(update={"data": found.data}).with_directory(found.directory)
    copy, aligner = inference_copy(model), measured_aligner(path)
    if aligner.head != "mean":
        layer = cast(DecoderLayer, copy.decoder[(aligner.layer or len(copy.decoder)) - 1])
        put_head_first(layer.cross_attention, aligner.head)
        aligner = replace(aligner, head=1)
    return Exportable(copy, recipe, tokenizers, note, aligner)


def put_head_first(attention: CrossAttention, head: int) -> None:
    """Reorder the heads in place so that `head`, counted from 1, is the first. The output stays the same."""
    heads = attention.num_heads
    order = torch.tensor([head - 1, *(other for other in range(heads) if other != head - 1)])

    def reordered(rows: Tensor, parts: int) -> Tensor:
        return rows.view(parts, heads, -1, *rows.shape[1:])[:, order].reshape(rows.shape)

    with torch.no_grad():
        for layer, parts in ((attention.query, 1), (attention.key_value, 2)):
            layer.weight.copy_(reordered(layer.weight, parts))
            if layer.bias is not None:
                layer.bias.copy_(reordered(layer.bias, parts))
        attention.output.weight.copy_(reordered(attention.output.weight.T, 1).T)


def supported_decoding(decoding: DecodingSection, supported: Set[str]) -> tuple[DecodingSection, str]:
    """Return `decoding` with only the keys that another library supports, and a note about the unsupported keys."""
    non_default = decoding.model_dump(exclude_defaults=True)
    unsupported = [key for key in non_default if key not in supported]
    if not unsupported:
        return decoding, ""
    # With length_penalty_form: wu, length_penalty is the exponent of another formula, so its value is dropped, too.
    # Sampling keys, and an n_best above beam_size, are invalid without some of the keys that are dropped here.
    dropped = {*unsupported, *SAMPLING_KEYS, "length_penalty" if "length_penalty_form" in unsupported else ""}
    kept = {key: value for key, value in non_default.items() if key not in dropped}
    if "n_best" in kept:
        kept["n_best"] = min(kept["n_best"], decoding.beam_size)
    exported = DecodingSection.model_validate(kept)
    penalty = (f" The export's length_penalty is {exported.length_penalty:g} instead: scores are divided by the length "
               "to this power.") if "length_penalty_form" in unsupported else ""
    keys = " and ".join(f"decoding.{key}" for key in unsupported)
    these = "these keys" if len(unsupported) > 1 else "this key"
    return exported, (f"The search of the other library does not support {keys}: the export translates without {these}."
                      f"{penalty}")


def translator_with_exported_decoding(path: Path, exportable: Exportable) -> Translator:
    """Load the original model in fp32 with the exported `decoding`; print the note about unsupported keys."""
    if exportable.note:
        console.print_message(exportable.note)
    return replace(Translator.load(path, "cpu", "fp32"), decoding=exportable.recipe.decoding)


def inference_copy(model: Model) -> Transformer:
    """Return a copy of a model in fp32 for inference. Attention scores of the copy are scaled dot products: if the
    model's scores are bilinear, their matrix is multiplied into the projection of the queries."""
    return cast(Transformer, for_inference(model, "fp32"))


def unsupported_feature(section: ModelSection, knows_t5: bool = False) -> str:
    """Return the reason why other libraries do not support the model; "" if it can be exported. knows_t5: True for a
    library that computes the parts of T5 in any Transformer, as the kernels do."""
    peculiarity = section.peculiarity if knows_t5 else section.export_peculiarity
    if peculiarity is not None:
        return f"it {peculiarity}"
    has_window = cast(TransformerSection, section).window is not None
    return "its attention is limited to a window (model.window)" if has_window else ""


def development_lines(recipe: Recipe, source: Path | None, max_lines: int) -> list[Source]:
    """Return up to `max_lines` source lines, without blank lines, from a file or from the recipe's validation set. A
    model with `data.context` gets each line in its context.
    """
    try:
        if source is not None:
            lines = in_context(read_texts(source), recipe.data.context)
        else:
            lines = [pair[1] for pair in islice(validation_pairs(recipe), max_lines)]
    except UserError as error:
        raise FormatError(f"an export is compared with the original on a validation set, which cannot be read: "
                          f"{error} Name a file of source lines with --source.") from error
    lines = [line for line in lines if not is_blank(line.text)][:max_lines]
    if not lines:
        raise FormatError("an export is compared with the original on a validation set, but this set has no lines. "
                          "Name a file of source lines with --source.")
    return lines


def compare(ours: Translator, theirs: Exported, lines: Sequence[Source]) -> Parity:
    """Translate lines with the original model and the export, and score the original's translations with both. The
    lines are normalised before, because exports only have the normalisation of sentencepiece. Empty lines, and lines
    that are too long for the model, are left out."""
    longest = max(1, min(ours.max_pieces, 256) - 1)                             # the token of a language may precede
    lines = [replace(line, text=ours.tokenizers.source.normalized(line.text)) for line in map(ours.source, lines)]
    lines = [line for line, ids in zip(lines, ours.tokenizers.source.encode(lines), strict=True)
             if 0 < len(ids) <= ours.max_pieces]
    # Use only options that every library supports, and the same length limit for all lines.
    options = DecodingSection(beam_size=ours.decoding.beam_size, length_penalty=ours.decoding.length_penalty,
                              min_length=min(ours.decoding.min_length, longest), max_length=longest,
                              max_length_offset=longest, safety_net=False,
                              batch_tokens=ours.decoding.batch_tokens).model_dump()
    our_texts, their_texts = (
        [best.text for best, *_ in translator.translate(lines, **options)] for translator in (ours, theirs))
    pairs = scorable_pairs(ours, list(zip(lines, our_texts, strict=True)))
    score_gaps = [(abs(our_score.log_probability - their_score.log_probability), our_score.tokens)
                  for our_score, their_score in zip(pair_scores(ours, pairs), theirs.score(pairs), strict=True)]
    triples = zip(lines, our_texts, their_texts, strict=True)
    differences = [Difference(number, as_line(source), our_text, their_text, _gap(ours, source, our_text, their_text))
                   for number, (source, our_text, their_text) in enumerate(triples, start=1) if our_text != their_text]
    worst = float(np.max([gap for gap, _ in score_gaps], initial=0.0))          # NaN stays NaN, unlike with max()
    return Parity(len(lines), len(lines) - len(differences), worst,
                  sum(gap for gap, _ in score_gaps) / max(1, sum(tokens for _, tokens in score_gaps)), differences)


def _gap(ours: Translator, source: Source, our_text: str, their_text: str) -> float | None:
    pairs = scorable_pairs(ours, [(source, our_text), (source, their_text)])
    scores = [score.log_probability / score.tokens**ours.decoding.length_penalty for score in pair_scores(ours, pairs)]
    return scores[0] - scores[1] if len(scores) == 2 else None


def require(parity: Parity, tolerance: Tolerance, export: str) -> None:
    """Check that the differences of an export are within the tolerance. export: name of the export in errors."""
    if not parity.lines:
        raise FormatError(f"{export} is refused: all lines of the validation set are too long for the model. Name "
                          "other lines with --source.")
    equivalent = parity.same + sum(one.size <= 1e-3 for one in parity.differences)
    score_difference = parity.worst_score if tolerance.each else parity.mean_score
    # If the difference is NaN, the comparison is False, and the export is refused.
    if equivalent >= tolerance.same * parity.lines and score_difference <= tolerance.score:
        return
    raise FormatError("\n".join([
        f"{export} is refused, because its results differ from the original model's: {parity.summary()}. The limits "
        f"are a difference of {tolerance.score:g} nats {'in any line' if tolerance.each else 'per token'} and "
        f"{1 - tolerance.same:.0%} different translations."
        f"{' First differences:' if parity.differences else ''}",
        *parity.first_differences()]))


def write_card(directory: Path, path: Path, exportable: Exportable, library: str, usage: str, weights: Path,
               number_format: str) -> None:
    """Write the README of an export: the card of the original model with other instructions.

    Args:
        directory: directory of the export. path: the original model, a bundle or a run.
        library: library that runs the export, as `library_name` on the Hugging Face hub.
        usage: instructions to run the export, as Markdown.
        weights: file of the exported weights. number_format: number format of these weights.
    """
    bundle = resolve_model_path(path)
    original = Sizes.of_tensors(read_shapes(bundle / MODEL))
    sizes = Sizes(original.parameters, weights.stat().st_size, number_format)
    note = (f"Exported by seq2seq, which compared the results of this model with those of the original: see {REPORT}."
            f"{exportable.note and f' {exportable.note}'}")
    if count := exportable.recipe.data.context:
        mark = CONTEXT_SEPARATOR
        note += (f" The model reads up to {count} preceding sentences of the document before each sentence. Write "
                 f"{mark} after each of them: `It rains.{mark} It is wet.` Write {mark} before the first sentence of a "
                 f"document, too: `{mark} It rains.`")
    if exportable.tokenizers.source.is_canonical:
        note += (" The model was trained on text in canonical form: in Unicode's NFC, with ordinary single spaces, and "
                 "without invisible characters. seq2seq brings text into this form itself. For this export, do it in "
                 f"Python: `text = {CODE}`.")
    shown = Usage(library, f"{note}\n\n{usage}", lossless=number_format == "float32")
    # The other library has another int8.
    metadata = {key: value for key, value in bundle_metadata(bundle).items() if key != "int8"}
    (directory / README).write_text(model_card(exportable.recipe, metadata, sizes, shown), encoding="utf-8")


def write_checked_export(output: Path, export: str, write: Callable[[Path], None], load: Callable[[Path], Exported],
                         ours: Translator, lines: Sequence[Source], tolerance: Tolerance) -> Parity:
    """Write an export to a temporary directory, which is renamed to `output` if the export passes the comparison.

    Args:
        output: new directory. export: name of the export in errors.
        write: function that writes the export to a directory. load: function that loads the export from a directory.
        ours: the original model. lines: the source lines to compare on.
    """
    with new_directory(output) as directory:
        write(directory)
        parity = compare(ours, load(directory), lines)
        require(parity, tolerance, export)
        report = {**asdict(parity), "tolerance": asdict(tolerance)}
        (directory / REPORT).write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        for path in directory.iterdir():                                # safetensors makes files private to their owner
            path.chmod(directory.stat().st_mode & 0o666)
    return parity
