"""`seq2seq average`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from seq2seq import console
from seq2seq.storage.atomic import require_new

EXAMPLES = ("seq2seq average runs/multi30k_de_en --last 3 --output model",
            "seq2seq average runs/a/checkpoints/step-00002000 runs/a/checkpoints/step-00003000 "
            "--output model")


def average(
    models: Annotated[list[Path], typer.Argument(
        metavar="RUN_OR_CHECKPOINTS", help="A run, or several checkpoints of one run.", show_default=False)],
    output: Annotated[Path, typer.Option(
        "--output", "-o", metavar="DIR", help="New directory for the averaged model (a bundle).",
        show_default=False)],
    last: Annotated[int | None, typer.Option(
        metavar="N", min=1, help="Average only the newest N checkpoints of the run that were saved at a validation.",
        show_default="all of these checkpoints")] = None,
) -> None:
    """Average the weights of checkpoints into one model."""
    require_new(output)
    from seq2seq.interop.model_card import bundle_card
    from seq2seq.storage.averaging import average_checkpoints

    steps = average_checkpoints(models, output, last, bundle_card)
    fewer = (f" (the run has no more; --last is {last}, and training.keep_checkpoints is the number that a run keeps)"
             if last and last > len(steps) else "")
    console.print_message(f"averaged {len(steps)} checkpoints{fewer}, saved at steps "
                          f"{', '.join(f'{step:,}' for step in steps)}; "
                          f"translate with: seq2seq translate {shlex.quote(str(output))} FILE")
