"""`seq2seq shortlist`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from seq2seq import console
from seq2seq.cli.common import bar, load_translator
from seq2seq.cli.options import (
    Device,
    Model,
    Precision,
    PrecisionOption,
    TargetLanguage,
    Threads,
    examples,
)
from seq2seq.data.parallel_text import blocks, require_as_many_lines, zip_parallel
from seq2seq.storage.atomic import require_new
from seq2seq.translation.text_io import reading

# Number of sentence pairs in a block. The pairs of a block are sorted by length and divided into batches.
PAIRS_PER_BLOCK = 8192

EXAMPLES = examples("seq2seq shortlist runs/de_en train.de train.en --output model",
                    "seq2seq translate model --shortlist 100 < test.de")


def shortlist(
    model: Model,
    source: Annotated[Path, typer.Argument(
        metavar="SOURCE", help="Text like that to be translated, such as the training text, one sentence per line.",
        show_default=False)],
    target: Annotated[Path, typer.Argument(metavar="TARGET", help="Translation of SOURCE, line by line.",
                                           show_default=False)],
    output: Annotated[Path, typer.Option(
        "--output", "-o", metavar="DIR", help="Directory to write the model with its shortlist to.",
        show_default=False)],
    target_language: TargetLanguage = None,
    device: Device = "auto",
    precision: PrecisionOption = Precision.auto,
    threads: Threads = None,
) -> None:
    """Make a model faster on a CPU by a shortlist of output words.

    For each piece (subword) of the source vocabulary, the shortlist has the target pieces that the model's attention
    aligns with it most often in the given text. If decoding.shortlist is K, a search in int8 considers only the first K
    of them for each piece of a sentence, and pieces that are frequent in all of the text.
    """
    require_new(output)
    with reading(source) as sources, reading(target) as targets:
        names = sources.name, targets.name
        require_as_many_lines(names, sources.total, targets.total)
        from seq2seq.alignment.estimate_shortlist import ShortlistCounts
        from seq2seq.interop.model_card import bundle_card
        from seq2seq.storage.checkpoints import SHORTLIST, load_bundle, resolve_model_path, save_bundle

        model = resolve_model_path(model)                                       # a training may save a better one
        translator = load_translator(model, device, precision, threads, target_language)
        counts = ShortlistCounts(translator)
        with bar("aligning", sources, None) as advance:
            for block in blocks(zip_parallel(names, sources, targets), PAIRS_PER_BLOCK):
                counts.add([(source_line.text, target_line.text) for source_line, target_line in block], advance)
    if counts.too_long:
        console.warn(f"{counts.too_long:,} pairs are too long for the model and were left out")
    bundle, found = load_bundle(model), counts.shortlist()
    save_bundle(output, bundle.weights, bundle.recipe_text, {**bundle.tokenizer_files, SHORTLIST: found.to_file()},
                bundle.metadata, bundle_card)
    console.print_message(f"the shortlist has {len(found.pieces):,} pairs of pieces; translate with: seq2seq translate "
                          f"{shlex.quote(str(output))} --shortlist 100 FILE")
