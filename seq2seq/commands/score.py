"""`seq2seq score`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from seq2seq.commands.common import bar, json_line, load_translator, too_long
from seq2seq.options import FORMAT, Device, Model, Precision, PrecisionOption, TextOrLines, Threads, examples
from seq2seq.textio import blocks_of_pairs, reading, require_as_many_lines, writing

# Pairs scored together: enough to sort them by length, few enough to hold any corpus.
SCORED_TOGETHER = 8192


EXAMPLES = examples("seq2seq score model test.de test.en > scores",
                    "seq2seq score model test.de test.en --format jsonl")


def score(
    model: Model,
    source: Annotated[Path, typer.Argument(metavar="SOURCE", help="Text, one sentence a line.", show_default=False)],
    target: Annotated[Path, typer.Argument(metavar="TARGET", help="Its translation, line by line.",
                                           show_default=False)],
    format: Annotated[TextOrLines, typer.Option(
        help="A number or a JSON object for each pair.", rich_help_panel=FORMAT)] = TextOrLines.text,
    device: Device = "auto",
    precision: PrecisionOption = Precision.fp32,
    threads: Threads = None,
) -> None:
    """Log-probability of each given translation, in nats; the end of the sentence is counted."""
    with reading(source) as sources, reading(target) as targets, writing(None) as written:
        require_as_many_lines(sources, targets)
        translator = load_translator(model, device, precision, threads)
        with bar("scoring", sources, written) as advance:
            for block in blocks_of_pairs(sources, targets, SCORED_TOGETHER):
                pairs = [(one.text, other.text) for one, other in block]
                try:
                    scores = translator.score(pairs, progress=advance)
                except ValueError as error:
                    raise too_long(translator, block, sources, targets) from error
                for (one, other), found in zip(block, scores, strict=True):
                    if format is TextOrLines.text:
                        written.write(f"{found.log_probability:.6f}\n")
                    else:
                        written.write(json_line({
                            "line": one.number, "source": one.text, "target": other.text,
                            "log_probability": found.log_probability, "tokens": found.tokens}) + "\n")
