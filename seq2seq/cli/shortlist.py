"""`seq2seq shortlist`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

import seq2seq.cli.options as options
from seq2seq import console
from seq2seq.cli.common import Block, Progress, Results, for_each_block, load_translator, reading_parallel
from seq2seq.storage.atomic import require_new

EXAMPLES = ("seq2seq shortlist runs/de_en train.de train.en --output model",
            "seq2seq translate model --shortlist 100 < test.de")


def shortlist(
    model: options.Model,
    source: options.SourceFile,
    target: options.TargetFile,
    output: Annotated[Path, typer.Option(
        "--output", "-o", metavar="DIR", help="New directory for the model with its shortlist.",
        show_default=False)],
    target_language: options.TargetLanguage = None,
    source_language: options.SourceLanguage = None,
    device: options.Device = "auto",
    precision: options.PrecisionOption = options.Precision.auto,
    threads: options.Threads = None,
) -> None:
    """Make a model faster on a CPU by a shortlist of output words.

    For each piece (subword) of the source vocabulary, the shortlist has the target pieces that the model's attention
    aligns with it most often in the given text, which should be like the text to be translated: the training text, for
    example. If decoding.shortlist is K, a search in int8 considers only the first K of them for each piece of a
    sentence, and pieces that are frequent in all of the text.
    """
    require_new(output)
    with reading_parallel(source, target) as inputs:
        from seq2seq.alignment.estimate_shortlist import ShortlistCounts
        from seq2seq.interop.model_card import bundle_card
        from seq2seq.storage.checkpoints import SHORTLIST, load_bundle, resolve_model_path, save_bundle

        model = resolve_model_path(model)                                       # a training may save a better one
        translator = load_translator(model, device, precision, threads, target_language,
                                     source_language=source_language)
        counts = ShortlistCounts(translator)

        def counted(block: Block, progress: Progress) -> Results:
            counts.add([(source_line.text, target_line.text) for source_line, target_line in block], progress)
            yield from ()

        for_each_block("aligning", inputs, None, options.TextOrLines.text, counted, translator)
    if counts.too_long:
        console.warn(f"{counts.too_long:,} pairs are too long for the model and were left out")
    bundle, found = load_bundle(model), counts.shortlist()
    save_bundle(output, bundle.weights, bundle.recipe_text, {**bundle.tokenizer_files, SHORTLIST: found.to_file()},
                bundle.metadata, bundle_card)
    console.print_message(f"the shortlist has {len(found.pieces):,} pairs of pieces; translate with: seq2seq translate "
                          f"{shlex.quote(str(output))} --shortlist 100 FILE")
