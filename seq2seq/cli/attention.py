"""`seq2seq attention`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from seq2seq import console
from seq2seq.cli.common import load_translator, measured_aligner, number_or
from seq2seq.cli.options import FORMAT, Device, Model, Precision, PrecisionOption, Threads, examples
from seq2seq.errors import CorpusError, UserError
from seq2seq.translation.text_io import writing

EXAMPLES = examples("seq2seq attention runs/multi30k_de_en --source 'Ein Hund läuft.' --output attention.html",
                    "seq2seq attention model --source 'Ein Hund.' --target 'A dog.' --output dog.png --layer 3 "
                    "--head 2",
                    "seq2seq attention model --source 'Ein Hund.' --output all.png --kind encoder --layer all "
                    "--head all")


class AttentionKind(StrEnum):
    """Kinds of attention."""

    cross = "cross"
    encoder = "encoder"
    decoder = "decoder"


def attention(
    model: Model,
    source: Annotated[str, typer.Option(metavar="TEXT", help="A sentence; of a language model, its text.",
                                        show_default=False)],
    output: Annotated[Path, typer.Option(
        "--output", "-o", metavar="FILE", show_default=False, rich_help_panel=FORMAT,
        help="FILE.html is a page on which layers and heads can be chosen, in one file that needs no network; FILE.png "
        "is a picture (with the extra 'plot').")],
    target: Annotated[str | None, typer.Option(
        metavar="TEXT", help="Its translation.", show_default="the model's own")] = None,
    layer: Annotated[str | None, typer.Option(
        metavar="N|all", help="Layer, from 1; of a page, the one that it opens with.",
        show_default="the one measured to align words best, else the last", rich_help_panel=FORMAT)] = None,
    head: Annotated[str | None, typer.Option(
        metavar="N|mean|all", help="Head of the layer, from 1, the mean of its heads, or all of them side by side.",
        show_default="likewise, else mean", rich_help_panel=FORMAT)] = None,
    kind: Annotated[AttentionKind | None, typer.Option(
        help="Of the target to the source, or of a side to itself.", show_default="cross, if the model has it",
        rich_help_panel=FORMAT)] = None,
    device: Device = "auto",
    precision: PrecisionOption = Precision.fp32,
    threads: Threads = None,
) -> None:
    """Show what the model attends to in a sentence and its translation.

    A row is a piece (subword) that attends, a column one that it attends to. With softmax attention the weights of a
    row add up to 1.
    """
    if output.suffix not in (".html", ".png"):
        raise UserError(f"--output {output}: the name must end in .html for a page or in .png for a picture.")
    given_layer, given_head = number_or(["all"], layer, "--layer"), number_or(["mean", "all"], head, "--head")
    source, given = _one_sentence(source, "--source"), None if target is None else _one_sentence(target, "--target")
    from seq2seq.analysis.attention_picture import picture, require_matplotlib

    if output.suffix == ".png":
        require_matplotlib()
    from seq2seq.analysis.attention_maps import Aligner, Choice, maps_of, see
    from seq2seq.analysis.attention_page import page
    from seq2seq.analysis.attention_weights import KINDS

    translator = load_translator(model, device, precision, threads)
    alone = not translator.task.has_source
    if alone and given:
        raise UserError(f"{model} is a language model, which reads one text; leave --target out.")
    languages = (translator.languages.source or "", translator.languages.target)
    texts = ("", source) if alone else (source, given or translator.translate([source])[0][0].text.strip())
    try:
        ((_, pair),) = see(translator, [texts])
    except ValueError as error:
        raise CorpusError(f"{error}. Give a shorter sentence.") from error
    chosen = kind.value if kind else next((name for name in KINDS if name in pair.maps), KINDS[0])
    best = measured_aligner(model) if chosen == "cross" else Aligner()
    choice = Choice(chosen, given_layer or best.layer or len(maps_of(pair, chosen)), given_head or best.head)
    choice.maps(pair)                                                           # refuses what the model has not
    name = model.resolve().name
    with writing(output) as file:
        if output.suffix == ".png":
            file.file.write(picture(pair, languages, name, choice))
        else:
            file.write(page(pair, languages, name, not (given or alone), choice))
    console.print_message(f"{texts[1]}\nits attention is in {output}")


def _one_sentence(text: str, option: str) -> str:
    """The text without white space around it. Raises UserError where it has no words, or several lines."""
    text = text.strip()
    if not text or len(text.splitlines()) > 1:
        raise UserError(f"{option} {'has several lines' if text else 'is empty'}: give one sentence.")
    return text
