"""`seq2seq adapt`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

import seq2seq.cli.options as options
from seq2seq import console
from seq2seq.cli.common import with_flags

EXAMPLES = ("seq2seq adapt runs/de_en memory.tmx --output runs/de_en_medicine",
            "seq2seq adapt runs/en_de ui/*.po manuals.en manuals.de --output runs/en_de_ui --general news.tsv",
            "seq2seq adapt nllb-en clinic.tsv --target-language sw --general news.tsv --output nllb-en-sw",
            "Run the same command again to resume an adaptation that was stopped.")


def adapt(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Model to adapt: a bundle or a run.")],
    text: Annotated[list[Path], typer.Argument(
        metavar=options.PAIRS, help="Text of the domain: two text files that match line by line, or a "
        "file with both sides: .tmx, .po, .xlf, .xliff, .tsv, .csv, .jsonl or .parquet. Can be several.")],
    output: Annotated[Path, typer.Option(
        "--output", "-o", metavar="DIR", help="New directory for the adapted model, the text and the training run.")],
    general: Annotated[list[Path] | None, typer.Option(
        metavar=options.PAIRS, help="General text, which the model must still translate as well as before.",
        show_default="the text that the model was trained with")] = None,
    allow_loss: Annotated[float, typer.Option(
        metavar="X", min=0, help="Maximum loss on general text, in points of BLEU.")] = 0.5,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Seed of the training and of the text split.")] = 1,
    source_language: options.SourceLanguage = None,
    target_language: options.TargetLanguage = None,
    settings: options.Overrides = None,
    device: options.TrainingDevice = None,
    precision: options.TrainingPrecisionOption = None,
    threads: options.TrainingThreads = None,
) -> None:
    """Adapt a model to the text of a domain, such as a translation memory, with little loss on other text.

    The model is trained on text of the domain and at most as much general text. Then averages of the old and the new
    weights are scored on validation text by BLEU (chrF if the recipe lacks BLEU). Of the averages that lose at most
    --allow-loss on general text, the best on the domain is written. If none gains on the domain significantly (paired
    bootstrap, p < 0.05), no model is written. Text in other languages than the model's is refused.
    """
    from seq2seq.check import adapt as adaptation
    from seq2seq.evaluation.significance import verdict
    from seq2seq.interop.model_card import bundle_card

    found = adaptation.adapt(model, text, output, allow_loss=allow_loss, seed=seed, general=general or (),
                             settings=with_flags(settings, device=device, precision=precision,
                                                                  threads=threads), card=bundle_card,
                             source_language=source_language, target_language=target_language)
    typer.echo(adaptation.as_text(found.table, found.metric, found.validated))
    typer.echo(f"chosen share: {found.chosen.share}\n\n{found.metric} on test text   before   after")
    for name, test in found.tests.items():
        typer.echo(f"{name:<{len(found.metric) + 13}} {test.baseline.value:8.2f} {test.system.value:7.2f}   "
                   f"{verdict(test)}")
    console.print_message(f"the adapted model is in {output}; translate with: seq2seq translate "
                          f"{shlex.quote(str(output))} FILE")
