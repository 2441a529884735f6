"""`seq2seq init`."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from seq2seq import console
from seq2seq.cli.options import examples
from seq2seq.errors import CorpusError, OptionError

if TYPE_CHECKING:
    from seq2seq.check.new_recipe import NewRecipe

EXAMPLES = examples("seq2seq init train.de train.en --source de --target en --output mine",
                    "seq2seq init memory.tmx --source de --target en --output mine",
                    "seq2seq init pairs.tsv --output mine",
                    "seq2seq init pairs.jsonl --source-column german --target-column english --output mine",
                    "seq2seq init",
                    "On a terminal, the command asks for everything that is missing.")
COLUMNS = "Tables"


def init(
    files: Annotated[list[Path] | None, typer.Argument(
        metavar="[SOURCE TARGET | TABLE]", show_default=False,
        help="Two text files that match line by line, or one file with both sides: .tsv, .csv, .jsonl, .tmx or "
        ".parquet.")] = None,
    source: Annotated[str | None, typer.Option(
        metavar="CODE", help="Language of the source, such as de.", show_default="identified by lingua")] = None,
    target: Annotated[str | None, typer.Option(
        metavar="CODE", help="Language of the target, such as en.", show_default="identified by lingua")] = None,
    output: Annotated[Path | None, typer.Option(
        metavar="DIR", help="New directory for the recipe and its text. Its name becomes the name of the recipe.",
        show_default=False)] = None,
    source_column: Annotated[str | None, typer.Option(
        metavar="C", help="Source column of a table: its number, or its name if the columns have names.",
        show_default="1 in .tsv and .csv", rich_help_panel=COLUMNS)] = None,
    target_column: Annotated[str | None, typer.Option(
        metavar="C", help="Target column of a table: its number, or its name if the columns have names.",
        show_default="2 in .tsv and .csv", rich_help_panel=COLUMNS)] = None,
    seed: Annotated[int, typer.Option(
        metavar="N", min=0, help="Seed of the split into training, validation and test text.")] = 1,
) -> None:
    """Write a first recipe for parallel text, with settings that suit the amount of text.

    The text is divided into training, validation and test text, so that no sentence is in two of these parts. The given
    files are not changed, and no file is overwritten.
    """
    from seq2seq.check.new_recipe import corpus_of, identify_languages, is_doubtful, write_recipe
    from seq2seq.data.language_identification import is_installed

    asks = sys.stdin.isatty() and sys.stderr.isatty()
    if not files:
        files = _ask_for_files() if asks else _missing("the files", "seq2seq init train.de train.en --output mine")
    corpus = corpus_of(files, source_column, target_column)
    try:
        found = identify_languages(corpus)
    except CorpusError:
        if not (source and target):
            raise
        found = None, None                                          # `write_recipe` names the likely encoding, too
    codes = [given or (_ask(f"Language of the {side} (code such as de)", code) if asks else code)
             for side, given, code in zip(("source", "target"), (source, target), found, strict=True)]
    if not all(codes):
        _missing("the languages", "--source de --target en" + (
            "" if is_installed() else ". To have them identified (except in .tmx files), install the extra: pip "
                                           "install 'seq2seq-mt[language]'"))
    languages = str(codes[0]), str(codes[1])
    for side, given, code, other in zip(("source", "target"), languages, found, reversed(languages), strict=True):
        if code and is_doubtful(given, code, other):
            console.warn(f"lingua identifies the {side} as {code}, not {given}. Check that the files and the languages "
                         "are in the right order.")
    if output is None:
        output = Path(_ask("New directory", f"{codes[0]}_{codes[1]}")) if asks else _missing("the new directory",
                                                                                            "--output mine")
    _show(write_recipe(corpus, languages, output, seed), languages)


def _missing(what: str, example: str) -> NoReturn:
    raise OptionError(f"{what} must be given on the command line: {example}")


def _ask(question: str, default: str | None = None) -> str:
    return str(typer.prompt(question, default=default, err=True)).strip()


def _ask_for_files() -> list[Path]:
    """Ask for one table or two text files."""
    from seq2seq.recipe import Corpus

    first = _ask("File with the source text, or with both sides (.tsv, .csv, .jsonl, .tmx, .parquet)")
    if Corpus.model_construct(file=first).table_format:
        return [Path(first)]
    return [Path(first), Path(_ask("File with the target text"))]


def _show(new: NewRecipe, languages: tuple[str, str]) -> None:
    """Print what was found, what was written, and the next two commands."""
    lines = [f"found: {new.scanned.lines:,} pairs, {languages[0]} to {languages[1]}"]
    lines += [f"  {kind.replace('_', ' ')}: {finding}" for kind, finding in new.scanned.findings.items()]
    for code, side in zip(languages, new.train.sides.values(), strict=True):
        lengths = side.characters
        lines.append(f"  characters per line of {code}: {lengths[50]:,} (median), {lengths[95]:,} (95 %), "
                     f"{lengths[100]:,} (longest)")
    directory = new.path.parent
    lines.append(f"written to {directory}: {', '.join(f'{count:,} {split}' for split, count in new.pairs.items())}"
                 f"{f'; left out: {new.copies:,} further copies of validation and test pairs' if new.copies else ''}")
    epochs = new.max_steps / new.steps_per_epoch
    lines.append(f"  model size {new.size}, {new.max_steps:,} steps ({epochs:,.0f} epochs)")
    path = shlex.quote(str(new.path))
    train = f"  seq2seq train {path}"
    if directory.absolute() == Path("runs", directory.name).absolute():         # the default directory of the run
        train += f" --run-dir {shlex.quote(str(directory / 'run'))}"
    typer.echo("\n".join([*lines, "next:", f"  seq2seq check {path}", train]))
