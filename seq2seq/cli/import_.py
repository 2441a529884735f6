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


VOCABULARY = "Vocabulary"

EXAMPLES = ("seq2seq import Helsinki-NLP/opus-mt-de-en --output opus-de-en",
            "seq2seq import opus-mt-en-roa --target-language fra --output opus-en-fr",
            "seq2seq import facebook/nllb-200-distilled-600M --source-language en --target-language sw -o nllb-en",
            "seq2seq import facebook/nllb-200-distilled-600M --keep-languages en,sw --vocabulary-from text.en "
            "--vocabulary-from text.sw -o nllb-en-sw")


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
    keep_languages: Annotated[str | None, typer.Option(
        metavar="CODES", help="Trim the vocabulary: keep the tokens of these languages, separated by commas, and the "
        "pieces that the text of --vocabulary-from needs.", show_default="all, and all pieces",
        rich_help_panel=VOCABULARY)] = None,
    add_language: Annotated[list[str] | None, typer.Option(
        metavar="CODE[=like:CODE]", help="Add the token of a new language. It starts from the token of the language "
        "after like:, or from the mean of all language tokens. Characters of --vocabulary-from that the model does not "
        "have become pieces. Can be repeated.", show_default=False, rich_help_panel=VOCABULARY)] = None,
    vocabulary_from: Annotated[list[Path] | None, typer.Option(
        metavar="FILE", help="Text in the languages to keep and to add, one sentence per line. Can be repeated.",
        show_default=False, rich_help_panel=VOCABULARY)] = None,
) -> None:
    """Convert a model of another toolkit to a bundle, which can be used and fine-tuned like any other bundle."""
    from seq2seq.interop.huggingface_import import import_model
    from seq2seq.interop.vocabulary_changes import VocabularyChanges

    assert format is Format.huggingface
    require_new(output)
    require_code("--source-language", source_language)
    require_code("--target-language", target_language)
    changes = VocabularyChanges.parse(keep_languages, add_language or (), vocabulary_from or ())
    imported = import_model(model, output, source_language, target_language, changes)
    chosen = imported.chosen
    console.print_message(f"imported {imported.parameters:,} parameters, {chosen.source} to {chosen.target}")
    console.print_message(f"licence of the model: {imported.licence or 'not stated in its files'}")
    if imported.size != imported.size_before:
        console.print_message(f"before: {imported.size_before}; now: {imported.size}")
    if len(imported.targets) > 1:
        targets = ", ".join(imported.targets[:8]) + (", …" if len(imported.targets) > 8 else "")
        options = "--source-language and --target-language" if imported.names_sources else "--target-language"
        console.print_message(f"the model translates into {len(imported.targets)} languages ({targets}): choose one "
                              f"with translate {options}; the default is {chosen.source} to {chosen.target}")
    console.print_message(f"translate with: seq2seq translate {shlex.quote(str(output))} FILE")
