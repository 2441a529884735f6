"""`seq2seq align`."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

import seq2seq.cli.options as options
from seq2seq import console
from seq2seq.cli.common import Block, Progress, Results, for_each_block, load_translator, number_or, reading_parallel
from seq2seq.translation.text_io import writing

if TYPE_CHECKING:
    from seq2seq.alignment.align import Alignment

ATTENTION = "Attention"

EXAMPLES = ("seq2seq align model test.de test.en > test.align",
            "seq2seq align model test.de test.en --layer 5 --head mean --rule mutual",
            "seq2seq align model test.en test.zh --format jsonl")


class AlignmentStep(StrEnum):
    """Decoding step that supplies the attention weights of a target piece."""

    writes = "writes"
    reads = "reads"


class AlignmentRule(StrEnum):
    """Rules that choose links from attention weights."""

    target = "target"
    mutual = "mutual"


def align(
    model: options.Model,
    source: options.SourceFile,
    target: options.TargetFile,
    layer: Annotated[int | None, typer.Option(
        metavar="N", min=1, help="Index of the decoder layer, counted from 1.", rich_help_panel=ATTENTION,
        show_default="the layer measured to align words best, else the last")] = None,
    head: Annotated[str | None, typer.Option(
        metavar="N|mean", help="Index of the attention head, counted from 1; or mean: the mean of the layer's heads.",
        rich_help_panel=ATTENTION, show_default="the head measured to align words best, else mean")] = None,
    step: Annotated[AlignmentStep | None, typer.Option(
        help="Decoding step that supplies the attention weights of a target piece (subword). writes: the step that "
        "predicts the piece. reads: the next step, which has the piece as its input.",
        rich_help_panel=ATTENTION, show_default="the step measured to align words best, else writes")] = None,
    rule: Annotated[AlignmentRule | None, typer.Option(
        help="target: link each target word to the source word with the highest weight. mutual: keep such a link only "
        "if no other target word has a higher weight for the source word. This gives fewer links with higher "
        "precision.",
        rich_help_panel=ATTENTION, show_default="the rule measured to align words best, else target")] = None,
    format: Annotated[options.TextOrLines, typer.Option(
        help="text: links in Pharaoh format. jsonl: a JSON object with words, links and weights for each pair.",
        rich_help_panel=options.FORMAT)] = options.TextOrLines.text,
    target_language: options.TargetLanguage = None,
    source_language: options.SourceLanguage = None,
    device: options.Device = "auto",
    precision: options.PrecisionOption = options.Precision.fp32,
    threads: options.Threads = None,
) -> None:
    """Align the words of given translations by cross-attention.

    Prints the links of each sentence pair on one line: "0-0 1-2" links source word 0 to target word 0, and source word
    1 to target word 2. Words are counted from 0 and separated by white space. If the language in the model's recipe is
    Chinese, Japanese, Thai, Lao, Khmer, Burmese, Tibetan or Dzongkha, every character is a word. A target word has no
    link if it attends most to the end-of-sentence token or to an added language token. If the model's attention has no
    softmax, a target word can also attend to nothing; then it has no link either.
    """
    chosen = {"layer": layer, "head": number_or(["mean"], head, "--head"), "step": step and step.value,
              "rule": rule and rule.value}
    with reading_parallel(source, target) as inputs, writing(None) as output:
        from seq2seq.alignment.align import align as align_pairs
        from seq2seq.data.alignment_links import format_links, measured_aligner

        translator = load_translator(model, device, precision, threads, target_language,
                                     source_language=source_language)
        overrides = {key: value for key, value in chosen.items() if value is not None}
        aligner = replace(measured_aligner(model), **overrides)
        console.print_message(f"aligning by {'the last layer' if aligner.layer is None else f'layer {aligner.layer}'}, "
                              f"{'the mean of its heads' if aligner.head == 'mean' else f'head {aligner.head}'}")

        def aligned(block: Block, progress: Progress) -> Results:
            pairs = [(source_line.text, target_line.text) for source_line, target_line in block]
            alignments = align_pairs(translator, pairs, aligner, progress)
            for (line, _), alignment in zip(block, alignments, strict=True):
                yield format_links(alignment.links), _record(line.number, alignment)

        for_each_block("aligning", inputs, output, format, aligned, translator)


def _record(line: int, alignment: Alignment) -> dict[str, Any]:
    links = [{"source": source, "target": target, "weight": round(weight, 6)}
             for (source, target), weight in alignment.links.items()]
    return {"line": line, "source_words": alignment.source_words, "target_words": alignment.target_words,
            "links": links}
