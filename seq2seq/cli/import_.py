"""`seq2seq import`."""

from __future__ import annotations

import shlex
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from seq2seq import console
from seq2seq.cli.common import require_code, require_no_bundle
from seq2seq.cli.options import Overwrite, examples


class Format(StrEnum):
    """Formats that can be imported."""

    huggingface = "huggingface"


EXAMPLES = examples("seq2seq import --from huggingface Helsinki-NLP/opus-mt-de-en --output opus-de-en",
                    "seq2seq import --from huggingface opus-mt-en-roa --target-language fra --output opus-en-fr")


def import_(
    model: Annotated[str, typer.Argument(
        metavar="PATH_OR_NAME", help="A directory, or the name of a model on the Hugging Face hub.",
        show_default=False)],
    format: Annotated[Format, typer.Option(
        "--from", help="The form that it has: a Marian model of transformers, such as those of OPUS-MT.",
        show_default=False)],
    output: Annotated[Path, typer.Option(
        "--output", "-o", metavar="DIR", help="The bundle that is made.", show_default=False)],
    source_language: Annotated[str | None, typer.Option(
        metavar="CODE", help="The language to translate from.", show_default="what the model says")] = None,
    target_language: Annotated[str | None, typer.Option(
        metavar="CODE", help="The language to translate into; of a model with several, the one to choose, such as fra "
        "where it has >>fra<<.", show_default="what the model says")] = None,
    overwrite: Overwrite = False,
) -> None:
    """Make a bundle of somebody else's model: it translates, scores and trains on like our own."""
    from seq2seq.interop.huggingface_import import import_model

    assert format is Format.huggingface
    require_no_bundle(output, overwrite)
    require_code("--source-language", source_language)
    require_code("--target-language", target_language)
    imported = import_model(model, output, source_language, target_language)
    console.print_message(f"imported {imported.parameters:,} parameters, {imported.source} to {imported.target}")
    if imported.languages and imported.token is None:
        shown = ", ".join(imported.languages[:8]) + (", …" if len(imported.languages) > 8 else "")
        console.print_message(f"it translates into {len(imported.languages)} languages: begin each line with one of "
                              f"{shown}, or import it with --target-language")
    console.print_message(f"translate with: seq2seq translate {shlex.quote(str(output))} FILE")
