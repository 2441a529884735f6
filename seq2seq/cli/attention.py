"""`seq2seq attention`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

import seq2seq.cli.options as options
from seq2seq import console
from seq2seq.cli.common import load_translator, number_or
from seq2seq.errors import UserError
from seq2seq.translation.text_io import writing

EXAMPLES = ("seq2seq attention runs/multi30k_de_en --source 'Ein Hund läuft.' --output attention.html",
            "seq2seq attention model --source 'Ein Hund.' --target 'A dog.' --output dog.png --layer 3 "
            "--head 2",
            "seq2seq attention model --source 'Ein Hund.' --output all.png --kind encoder --layer all "
            "--head all")


class AttentionKind(StrEnum):
    """Kinds of attention."""

    cross = "cross"
    encoder = "encoder"
    decoder = "decoder"
    context = "context"


def attention(
    model: options.Model,
    source: Annotated[str, typer.Option(
        metavar="TEXT", help="The source sentence, or the text for a language model. If the recipe sets data.context, "
        "previous sentences can precede it, each followed by ␞: 'It rains.␞ It is wet.'", show_default=False)],
    output: Annotated[Path, typer.Option(
        "--output", "-o", metavar="FILE", show_default=False, rich_help_panel=options.FORMAT,
        help="FILE.html: a page with a choice of layers and heads, which works offline. FILE.png: a picture, "
        "which needs matplotlib (the extra 'plot').")],
    target: Annotated[str | None, typer.Option(
        metavar="TEXT", help="The translation of the source sentence.", show_default="the model's translation")] = None,
    layer: Annotated[str | None, typer.Option(
        metavar="N|all", help="Index of the layer, counted from 1, or all. A page (.html) shows this layer first.",
        show_default="the layer measured to align words best, else the last", rich_help_panel=options.FORMAT)] = None,
    head: Annotated[str | None, typer.Option(
        metavar="N|mean|all", help="Index of the attention head, counted from 1; mean: the mean of the layer's "
        "heads; all: all heads side by side.",
        show_default="the head measured to align words best, else mean", rich_help_panel=options.FORMAT)] = None,
    kind: Annotated[AttentionKind | None, typer.Option(
        help="cross: attention of the target to the source. encoder: self-attention of the source. decoder: "
        "self-attention of the target. context: attention to the context (model.context: hierarchical).",
        show_default="cross, if the model has it", rich_help_panel=options.FORMAT)] = None,
    target_language: options.TargetLanguage = None,
    source_language: options.SourceLanguage = None,
    device: options.Device = "auto",
    precision: options.PrecisionOption = options.Precision.fp32,
    threads: options.Threads = None,
) -> None:
    """Show the attention weights of the model for a sentence and its translation.

    Each row of a map belongs to one piece (subword). It shows the weights with which this piece attends to the pieces
    in the columns. With softmax attention, the weights of a row add up to 1.
    """
    if output.suffix not in (".html", ".png"):
        raise UserError(f"--output {output}: the name must end in .html for a page or in .png for a picture.")
    layer_number, head_number = number_or(["all"], layer, "--layer"), number_or(["mean", "all"], head, "--head")
    source = _one_sentence(source, "--source")
    target = None if target is None else _one_sentence(target, "--target")
    from seq2seq.evaluation.learning_curves import require_matplotlib

    if output.suffix == ".png":
        require_matplotlib(" A page (--output FILE.html) works without it.")
    from seq2seq.alignment.attention_page import page
    from seq2seq.alignment.attention_picture import map_of_sentence, name_of, picture

    translator = load_translator(model, device, precision, threads, target_language, source_language=source_language)
    pair, selection = map_of_sentence(translator, source, target, kind.value if kind else None, layer_number,
                                      head_number)
    name = name_of(translator)
    with writing(output) as file:
        if output.suffix == ".png":
            file.file.write(picture(pair, name, selection))
        else:
            translated = translator.task.has_source and not target
            file.write(page(pair, translator.languages.codes, name, translated, selection))
    console.print_message(f"{pair.target.text}\nattention maps written to {output}")


def _one_sentence(text: str, option: str) -> str:
    """Return the text without surrounding white space."""
    text = text.strip()
    if not text or len(text.splitlines()) > 1:
        raise UserError(f"{option} {'has several lines' if text else 'is empty'}: give one sentence.")
    return text
