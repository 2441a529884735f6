"""`seq2seq export`."""

from __future__ import annotations

import shlex
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

import seq2seq.cli.options as options
from seq2seq import console
from seq2seq.errors import UserError
from seq2seq.storage.atomic import require_new


class Format(StrEnum):
    """Export formats."""

    huggingface = "huggingface"
    ctranslate2 = "ctranslate2"
    argos = "argos"
    seq2seq = "seq2seq"


class Quantization(StrEnum):
    """Number formats in which CTranslate2 can store weights."""

    float32 = "float32"
    int8 = "int8"
    int8_float32 = "int8_float32"
    int8_float16 = "int8_float16"
    int8_bfloat16 = "int8_bfloat16"
    int16 = "int16"
    float16 = "float16"
    bfloat16 = "bfloat16"


EXAMPLES = ("seq2seq export runs/multi30k_de_en --to seq2seq --output de_en",
            "seq2seq export runs/multi30k_de_en --to huggingface --output marian",
            "seq2seq export runs/multi30k_de_en --to ctranslate2 --quantization int8 --output fast",
            "seq2seq export opus-de-en --to ctranslate2 --source dev.de --output fast",
            "seq2seq export runs/multi30k_de_en --to argos --splitter de.onnx --output de_en.argosmodel")


def export(
    model: options.Model,
    format: Annotated[Format, typer.Option(
        "--to", metavar="FORMAT", show_default=False,
        help="huggingface: a model of transformers. ctranslate2: a directory for CTranslate2. argos: an "
        ".argosmodel file for Argos Translate and LibreTranslate. seq2seq: a bundle with a model card, to publish.")],
    output: Annotated[Path, typer.Option(
        "--output", "-o", metavar="PATH", help="New directory for the exported model; for argos, a new file.",
        show_default=False)],
    quantization: Annotated[Quantization | None, typer.Option(
        metavar="TYPE", help="For ctranslate2 and argos: number format of the weights, one of "
        f"{', '.join(Quantization)}.", show_default="float32; for argos: int8")] = None,
    splitter: Annotated[Path | None, typer.Option(
        metavar="PATH", help="For argos: sentence splitter to put into the package, either a directory of Stanza or an "
        ".onnx file of MiniSBD.", show_default="none; Argos Translate downloads one")] = None,
    source: Annotated[Path | None, typer.Option(
        metavar="FILE", help="Source lines for the comparison of the exported model with the original.",
        show_default="the recipe's validation set; a bundle names none")] = None,
    lines: Annotated[int, typer.Option(
        metavar="N", min=1, help="Maximum number of lines to compare.")] = 500,
) -> None:
    """Write a model to publish it, or to use it in another library.

    The other library loads the exported model, translates the lines of --source, and scores the translations of
    the original model. If its results differ too much from those of the original model, the exported model is
    discarded, and the error shows the first lines that differ.
    """
    from seq2seq.storage.checkpoints import resolve_model_path

    model = resolve_model_path(model)                                           # a training may save a better one
    notes: list[str] = []
    if format is Format.seq2seq:
        if quantization or splitter or source:
            raise UserError("--quantization, --splitter and --source are for the formats of other libraries. Leave "
                            "these options out.")
        from seq2seq.interop.model_card import publish

        publish(model, output)
        console.print_message(f"publish with: hf upload NAME/MODEL {shlex.quote(str(output))}")
        return
    if splitter and format is not Format.argos:
        raise UserError("--splitter is for --to argos. Leave the option out.")
    if format is not Format.argos:
        require_new(output)
    if format is Format.huggingface:
        if quantization not in (None, Quantization.float32):
            raise UserError("--quantization is for --to ctranslate2 and argos; transformers can quantise while it "
                            "loads a model. Leave the option out.")
        from seq2seq.interop.huggingface_export import export_model

        parity = export_model(model, output, source, lines)
    elif format is Format.ctranslate2:
        from seq2seq.interop import ctranslate2

        parity = ctranslate2.export_model(model, output, (quantization or Quantization.float32).value, source, lines)
    else:
        from seq2seq.interop import argos

        exported = argos.export_model(model, output, (quantization or Quantization.int8).value, splitter, source, lines)
        parity, notes = exported.parity, exported.notes
    console.print_message(parity.summary())
    for difference in parity.first_differences():
        console.print_message(difference)
    if format is Format.argos:
        for note in notes:
            console.print_message(note)
        console.print_message(f"install with: argospm install {shlex.quote(str(output))}")
    elif format is Format.huggingface:
        console.print_message(f"{output / 'README.md'} says how transformers loads the model")
