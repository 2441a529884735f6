"""`seq2seq rescore`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import seq2seq.cli.options as options
from seq2seq.cli.common import Block, Progress, Results, for_each_block, load_translator, reading_parallel
from seq2seq.errors import UserError
from seq2seq.translation.text_io import file_or_standard, writing

BLOCK_LINES = 1024
"""Number of lines in a block. Each has several translations."""

EXAMPLES = ("seq2seq translate de_en test.de --beam-size 10 --n-best 10 --format jsonl > n_best.jsonl",
            "seq2seq rescore n_best.jsonl --model language_model --weight 0.1 > test.en",
            "seq2seq rescore n_best.jsonl --model other_de_en --weight 1 --model language_model --weight 0.2 "
            "--format jsonl")


def rescore(
    models: Annotated[list[Path], typer.Option(
        "--model", metavar="MODEL", help="A translation model or language model with any vocabulary. Can be repeated.",
        show_default=False)],
    weights: Annotated[list[float], typer.Option(
        "--weight", metavar="X", help="Weight of the log-probability of a --model. The log-probability of the search "
        "has weight 1. Give one weight for each --model, in the same order.", show_default=False)],
    input: Annotated[Path | None, typer.Argument(
        metavar="N_BEST", help="File with the output of `seq2seq translate --n-best N --format jsonl`; - is standard "
        "input.", show_default="standard input")] = None,
    length_penalty: Annotated[float, typer.Option(
        metavar="X", min=0, help="Exponent of the length penalty, by which the weighted sum is divided. Use the same "
        "value as the search (decoding.length_penalty).")] = 1.0,
    output: Annotated[Path | None, typer.Option(
        "--output", "-o", metavar="FILE", help="Output file.", rich_help_panel=options.FORMAT,
        show_default="standard output")] = None,
    format: Annotated[options.TextOrLines, typer.Option(
        help="text: the best translation of each line. jsonl: all translations of each line, best first.",
        rich_help_panel=options.FORMAT)] = options.TextOrLines.text,
    target_language: options.TargetLanguage = None,
    source_language: options.SourceLanguage = None,
    device: options.Device = "auto",
    precision: options.ScoringPrecisionOption = options.ScoringPrecision.fp32,
    threads: options.Threads = None,
) -> None:
    """Rerank the n-best translations of each line with the log-probabilities of additional models.

    The new score of a translation is (log p of the search + sum of weight * log p of each model) / tokens^penalty. Here
    log p is a natural logarithm, and tokens is the value with this name in the input: the number of pieces (subwords)
    plus one for the end of the sentence. Translations with fewer faults come first. Each line yields one output line.
    """
    if len(models) != len(weights):
        raise UserError(f"{len(models)} --model and {len(weights)} --weight were given. Give one --weight for each "
                        "--model.")
    with reading_parallel(input) as inputs, writing(file_or_standard(output), [input]) as out:
        weighted_models = [(load_translator(path, device, precision, threads, target_language,
                                            source_language=source_language), model_weight)
                           for path, model_weight in zip(models, weights, strict=True)]
        from seq2seq.evaluation.rescoring import read_n_best, rescored_record
        from seq2seq.evaluation.rescoring import rescore as rescore_n_best
        from seq2seq.tokenizers.context import PreviousSentences

        previous = PreviousSentences(max(translator.context for translator, _ in weighted_models))

        def reranked(block: Block, progress: Progress) -> Results:
            read = [read_n_best(line.text, f"{inputs[0].name}:{line.number}") for line, in block]
            sources = [previous.source(record["source"]) for record, _ in read]
            found = rescore_n_best(sources, [n_best for _, n_best in read], weighted_models, length_penalty)
            for (record, _), rescored in zip(read, found, strict=True):
                yield rescored[0].translation.text, rescored_record(record, rescored, models)
            progress(len(block))

        for_each_block("rescoring", inputs, out, format, reranked, weighted_models[0][0], BLOCK_LINES)
