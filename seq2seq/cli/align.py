"""`seq2seq align`."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from seq2seq import console
from seq2seq.cli.common import (
    bar,
    json_line,
    load_translator,
    measured_aligner,
    number_or,
    require_model_first,
    too_long,
)
from seq2seq.cli.options import FORMAT, Device, Model, Precision, PrecisionOption, TextOrLines, Threads, examples
from seq2seq.translation.text_io import blocks_of_pairs, reading, require_as_many_lines, writing

if TYPE_CHECKING:
    from seq2seq.analysis.attention_maps import Alignment

# Pairs aligned together: enough to sort them by length.
ALIGNED_TOGETHER = 4096
ATTENTION = "Attention"

EXAMPLES = examples("seq2seq align model test.de test.en > test.align",
                    "seq2seq align model test.de test.en --layer 5 --head mean --rule mutual",
                    "seq2seq align model test.en test.zh --format jsonl")


class AlignmentStep(StrEnum):
    """Steps of the decoder at which a target piece can be looked up."""

    writes = "writes"
    reads = "reads"


class AlignmentRule(StrEnum):
    """Rules by which links are chosen."""

    target = "target"
    mutual = "mutual"


def align(
    model: Model,
    source: Annotated[Path, typer.Argument(metavar="SOURCE", help="Text, one sentence a line.", show_default=False)],
    target: Annotated[Path, typer.Argument(metavar="TARGET", help="Its translation, line by line.",
                                           show_default=False)],
    layer: Annotated[int | None, typer.Option(
        metavar="N", min=1, help="Layer, from 1.", rich_help_panel=ATTENTION,
        show_default="the one measured to align best, else the last")] = None,
    head: Annotated[str | None, typer.Option(
        metavar="N|mean", help="Head, from 1, or the mean of a layer's heads.", rich_help_panel=ATTENTION,
        show_default="likewise, else mean")] = None,
    step: Annotated[AlignmentStep | None, typer.Option(
        help="The attention of a target piece (subword). writes: that of the step which predicts it. reads: that of "
        "the next step, whose input it is.",
        rich_help_panel=ATTENTION, show_default="likewise, else writes")] = None,
    rule: Annotated[AlignmentRule | None, typer.Option(
        help="target: each target word with the source word it attends to most. mutual: of those links the ones that "
        "are also the strongest of their source word, fewer and surer.", rich_help_panel=ATTENTION,
        show_default="likewise, else target")] = None,
    format: Annotated[TextOrLines, typer.Option(
        help="Links in Pharaoh format, or a JSON object with words and weights, for each pair.",
        rich_help_panel=FORMAT)] = TextOrLines.text,
    device: Device = "auto",
    precision: PrecisionOption = Precision.fp32,
    threads: Threads = None,
) -> None:
    """Align the words of given translations, by cross-attention: "0-0 1-2", source-target, a line for each pair.

    Words are counted from 0 and parted by white space. In Chinese, Japanese, Thai, Lao, Khmer and Burmese, by the
    languages of the model's recipe, every character counts as a word. A word that attends to nothing has no link.
    """
    require_model_first("align", model, source, target)
    given = {"layer": layer, "head": number_or(["mean"], head, "--head"), "step": step and step.value,
             "rule": rule and rule.value}
    with reading(source) as sources, reading(target) as targets, writing(None) as written:
        require_as_many_lines(sources, targets)
        from seq2seq.analysis.alignment import format_links
        from seq2seq.analysis.attention_maps import align as align_pairs

        translator = load_translator(model, device, precision, threads)
        chosen = {key: value for key, value in given.items() if value is not None}
        aligner = replace(measured_aligner(model), **chosen)
        console.print_message(f"aligning by {'the last layer' if aligner.layer is None else f'layer {aligner.layer}'}, "
                              f"{'the mean of its heads' if aligner.head == 'mean' else f'head {aligner.head}'}")
        with bar("aligning", sources, written) as advance:
            for block in blocks_of_pairs(sources, targets, ALIGNED_TOGETHER):
                pairs = [(one.text.strip(), other.text.strip()) for one, other in block]
                try:
                    alignments = align_pairs(translator, pairs, aligner, progress=advance)
                except ValueError as error:
                    raise too_long(translator, block, sources, targets) from error
                for (one, _), found in zip(block, alignments, strict=True):
                    if format is TextOrLines.text:
                        written.write(format_links(found.links) + "\n")
                    else:
                        written.write(json_line(_record(one.number, found)) + "\n")


def _record(line: int, found: Alignment) -> dict[str, Any]:
    links = [{"source": source, "target": target, "weight": round(weight, 6)}
             for (source, target), weight in found.links.items()]
    return {"line": line, "source_words": found.source_words, "target_words": found.target_words, "links": links}
