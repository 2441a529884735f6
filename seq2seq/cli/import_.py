"""`seq2seq import`."""

from __future__ import annotations

import shlex
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from seq2seq import console
from seq2seq.cli.common import require_code
from seq2seq.storage.atomic import require_new


class Format(StrEnum):
    """Import formats."""

    huggingface = "huggingface"


EXAMPLES = ("seq2seq import Helsinki-NLP/opus-mt-de-en --output opus-de-en",
            "seq2seq import opus-mt-en-roa --target-language fra --output opus-en-fr",
            "seq2seq import facebook/nllb-200-distilled-600M --source-language en --target-language sw -o nllb-en")


def import_(
    model: Annotated[str, typer.Argument(
        metavar="PATH_OR_NAME", help="Directory of the model, or its name on the Hugging Face hub.",
        show_default=False)],
    output: Annotated[Path, typer.Option(
        "--output", "-o", metavar="DIR", help="New directory for the imported model (a bundle).", show_default=False)],
    format: Annotated[Format, typer.Option(
        "--from", help="Format of the model. huggingface: a model of transformers: OPUS-MT, M2M-100, NLLB-200, "
        "mBART-50, T5, mT5 or MADLAD-400.",
        )] = Format.huggingface,
    source_language: Annotated[str | None, typer.Option(
        metavar="CODE", help="Source language.", show_default="from the model's files or name")] = None,
    target_language: Annotated[str | None, typer.Option(
        metavar="CODE", help="Target language. If the model has several, this is the one that it translates into by "
        "default.", show_default="from the model's files or name")] = None,
) -> None:
    """Convert a model of another toolkit to a bundle, which can be used and fine-tuned like any other bundle."""
    from seq2seq.interop.huggingface_import import import_model

    assert format is Format.huggingface
    require_new(output)
    require_code("--source-language", source_language)
    require_code("--target-language", target_language)
    imported = import_model(model, output, source_language, target_language)
    chosen = imported.chosen
    console.print_message(f"imported {imported.parameters:,} parameters, {chosen.source} to {chosen.target}")
    if len(imported.targets) > 1:
        targets = ", ".join(imported.targets[:8]) + (", …" if len(imported.targets) > 8 else "")
        console.print_message(f"the model translates into {len(imported.targets)} languages ({targets}): choose one "
                              f"with translate --target-language; the default is {chosen.target}")
    console.print_message(f"translate with: seq2seq translate {shlex.quote(str(output))} FILE")
