"""`seq2seq init`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

import seq2seq.cli.options as options
from seq2seq import console
from seq2seq.cli.common import refuse_without_effect, require_code
from seq2seq.errors import CorpusError, OptionError
from seq2seq.languages import country_language, is_same_language, language_name

if TYPE_CHECKING:
    from seq2seq.check.given_text import GivenText
    from seq2seq.check.new_recipe import NewRecipe
    from seq2seq.check.results import CorpusReport
    from seq2seq.recipe import Corpus

EXAMPLES = ("seq2seq init train.de train.en --source-language de --target-language en --output mine",
            "seq2seq init memory.tmx manuals.de manuals.en ui/*.po --source-language de --target-language en "
            "--output mine",
            "seq2seq init train.de train.en --valid dev.de dev.en --test news.tmx --output mine",
            "seq2seq init pairs.jsonl --source-column german --target-column english --output mine",
            "seq2seq init train.sw train.en --monolingual news.en --output mine",
            "seq2seq init train.sw train.en --other big.fr big.en --other-source fr --output mine",
            "seq2seq init",
            "On a terminal, the command asks for everything that is missing.")
COLUMNS, OTHERS = "Tables", "Pairs of other languages"
MAX_WARNINGS = 5
"""Maximum number of warnings that are printed."""


def init(
    files: Annotated[list[Path] | None, typer.Argument(
        metavar=options.PAIRS, show_default=False,
        help="Text for training: two text files that match line by line, or a file with both sides: .tsv, .csv, "
        ".jsonl, .parquet, .tmx, .xlf, .xliff or .po. Several of them become one training text.")] = None,
    source: Annotated[str | None, typer.Option(
        "--source-language", metavar="CODE", help="Language of the source, such as de.",
        show_default="identified")] = None,
    target: Annotated[str | None, typer.Option(
        "--target-language", metavar="CODE", help="Language of the target, such as en.",
        show_default="identified")] = None,
    output: Annotated[Path | None, typer.Option(
        "--output", "-o", metavar="DIR", help="New directory for the recipe and its text. Its name becomes "
        "the name of the recipe. Required without a terminal.", show_default=False)] = None,
    valid: Annotated[list[Path] | None, typer.Option(
        metavar=options.PAIRS, help="Your own validation set.",
        show_default="split off")] = None,
    test: Annotated[list[Path] | None, typer.Option(
        metavar=options.PAIRS, help="Your own test sets: each pair of files, and each table, is one.",
        show_default="split off")] = None,
    minutes: Annotated[float | None, typer.Option(
        metavar="N", min=1, help="Fit size and steps to this time on this machine, validation and test included. Some "
        "steps are measured.", show_default="as many steps as suit the text")] = None,
    monolingual: Annotated[list[Path] | None, typer.Option(
        metavar=options.TEXTS, help="Further text in the target language, for back-translation: writes three recipes, "
        "which seq2seq train DIR trains in order.", show_default=False)] = None,
    other: Annotated[list[Path] | None, typer.Option(
        metavar=options.PAIRS, help="Pairs of which one language is another; the model learns them, too. All of "
        "them have the same two languages.", show_default=False,
        rich_help_panel=OTHERS)] = None,
    other_source: Annotated[str | None, typer.Option(
        "--other-source", metavar="CODE", help="Language of their source, if their target has the language of yours.",
        show_default="identified", rich_help_panel=OTHERS)] = None,
    other_target: Annotated[str | None, typer.Option(
        "--other-target", metavar="CODE", help="Language of their target, if their source has the language of yours.",
        show_default="identified", rich_help_panel=OTHERS)] = None,
    source_column: Annotated[str | None, typer.Option(
        metavar="C", help="Source column of a table: its number, or its name if the columns have names.",
        show_default="1 in .tsv and .csv", rich_help_panel=COLUMNS)] = None,
    target_column: Annotated[str | None, typer.Option(
        metavar="C", help="Target column of a table: its number, or its name if the columns have names.",
        show_default="2 in .tsv and .csv", rich_help_panel=COLUMNS)] = None,
    seed: Annotated[int, typer.Option(
        metavar="N", min=0, help="Seed of the split into training, validation and test text.")] = 1,
) -> None:
    """Write a first recipe for parallel text, with settings that suit the amount and the faults of the text.

    Validation and test text is split off if none is given, so that no sentence is in two of these parts. The given
    files are not changed, and no file is overwritten.
    """
    for option, code in (("--source-language", source), ("--target-language", target),
                         ("--other-source", other_source), ("--other-target", other_target)):
        require_code(option, code)
    if not other:
        refuse_without_effect("they are languages of --other.", other_source=other_source,
                              other_target=other_target)
    from seq2seq.check.given_text import corpora_of, identify_languages
    from seq2seq.check.new_recipe import write_recipe
    from seq2seq.data.language_identification import is_installed
    from seq2seq.recipe.data_section import is_table

    asks = sys.stdin.isatty() and sys.stderr.isatty()
    if not files:
        files = _ask_for_files() if asks else _missing("the files", "seq2seq init train.de train.en --output mine")
    columns = source_column, target_column
    given = [files, valid or [], test or [], other or []]
    codes_of = *3 * [(source, target)], (other_source or source, other_target or target)
    has_table = [any(map(is_table, paths)) for paths in given]
    corpora, valid_corpora, test_corpora, other_corpora = (
        corpora_of(paths, columns if has_table[number] or not any(has_table) else (None, None), codes_of[number],
                   list(chain(*given[:number]))) for number, paths in enumerate(given))
    try:
        found = identify_languages(corpora)
    except CorpusError:
        if not (source and target):
            raise
        found = None, None                                          # `write_recipe` names the likely encoding, too
    codes = [given or (_ask(f"Language of the {side} (code such as de)", code) if asks else code)
             for side, given, code in zip(("source", "target"), (source, target), found, strict=True)]
    if unknown := [side for side, code in zip(("source", "target"), codes, strict=True) if not code]:
        reason = ("was not recognised in its text" if is_installed() else
                  "can be identified with the extra: pip install 'seq2seq-mt[language]'")
        raise OptionError(f"the language of the {' and of the '.join(unknown)} {reason}. Give its code: "
                          f"{' '.join(f'--{side}-language CODE' for side in unknown)}")
    languages = str(codes[0]), str(codes[1])
    for side, code in zip(("source", "target"), languages, strict=True):
        require_code(f"--{side}-language", code)
    if not all(corpus.uses_recipe_languages for corpus in corpora):             # those are read in either direction
        languages = _confirmed(languages, found, asks)
        _warn_of_strays(corpora, languages, found)
    if output is None:
        output = Path(_ask("New directory", "_".join(languages))) if asks else _missing("the new directory",
                                                                                       "--output mine")
    others = None if not other_corpora else (
        other_corpora, _other_languages(other_corpora, languages, other_source, other_target))
    identified = [side for side, given in (("source", source), ("target", target)) if given is None]
    new = write_recipe(corpora, languages, output, seed, valid_corpora, test_corpora, minutes, monolingual or (),
                       others, identified)
    _show(new, languages)


def _confirmed(languages: tuple[str, str], found: Sequence[str | None], asks: bool, of: str = "") -> tuple[str, str]:
    """Compare the given languages with those found in the text. Return them, changed as the user confirms; without a
    terminal, warn. of: beginning of the warnings, which names the text; `write_recipe` refuses exchanged sides of such
    text."""
    from seq2seq.check.given_text import are_exchanged, is_doubtful

    def confirm(fault: str, change: str, remedy: str) -> bool:
        if asks:
            return typer.confirm(f"{fault}. {change}?", default=True, err=True)
        console.warn(f"{of}{fault}. {remedy}.")
        return False

    if not of and are_exchanged(languages, found):
        source, target = map(language_name, languages)
        exchanged = languages[1], languages[0]
        return exchanged if confirm(
            f"the source looks like {target}, and the target like {source}",
            f"Exchange the languages, for a model from {target} to {source}",
            f"For a model from {source} to {target}, give the two files (of a table, the columns) in the other order; "
            f"for one from {target} to {source}, give --source-language {exchanged[0]} --target-language "
            f"{exchanged[1]}") else languages
    confirmed = list(languages)
    for index, (side, given, code) in enumerate(zip(("source", "target"), languages, found, strict=True)):
        if code is None or not (country_language(given) == code or is_doubtful(given, code, languages[1 - index])):
            continue
        fault = f"the {side} looks like {language_name(code)} ({code}), not {language_name(given)} ({given})"
        if confirm(fault, f"Write {code}", "Check the files and the languages"):
            confirmed[index] = code
    return confirmed[0], confirmed[1]


def _other_languages(corpora: Sequence[Corpus], own: tuple[str, str], source: str | None, target: str | None
                      ) -> tuple[str, str]:
    """Return the languages of the pairs of --other: those given, or those found in the text. own: languages of the own
    pairs."""
    from seq2seq.check.given_text import identify_languages

    found, in_either = identify_languages(corpora), all(corpus.uses_recipe_languages for corpus in corpora)
    if source or target:
        codes = source or own[0], target or own[1]
        if not in_either:
            _confirmed(codes, found, False, "--other: ")
            _warn_of_strays(corpora, codes, found, "--other: ")
        return codes
    codes = str(found[0] or ""), str(found[1] or "")
    if not all(codes):
        _missing("the languages of --other", "--other-source fr")
    if in_either:                                                               # the file names its languages
        return codes[::-1] if any(map(is_same_language, codes, reversed(own))) else codes
    _warn_of_strays(corpora, codes, found, "--other: ")
    source, target = (mine if is_same_language(mine, code) else code for mine, code in zip(own, codes, strict=True))
    return source, target


def _warn_of_strays(corpora: Sequence[Corpus], languages: tuple[str, str], found: Sequence[str | None], of: str = ""
                    ) -> None:
    """Warn of each corpus that looks like other languages than all of them together. found, of: see `_confirmed`."""
    from seq2seq.check.given_text import identify_languages

    for corpus in corpora if len(corpora) > 1 and any(found) else ():
        if not corpus.uses_recipe_languages:
            strays = [code if code != usual else None
                      for code, usual in zip(identify_languages([corpus]), found, strict=True)]
            _confirmed(languages, strays, False, f"{of}{corpus.label}: ")


def _missing(what: str, example: str) -> NoReturn:
    raise OptionError(f"{what} must be given on the command line: {example}")


def _ask(question: str, default: str | None = None) -> str:
    return str(typer.prompt(question, default=default, err=True)).strip()


def _ask_for_files() -> list[Path]:
    """Ask for one table or two text files."""
    from seq2seq.recipe.data_section import is_table

    first = _ask("File with the source text, or with both sides (.tsv, .jsonl, .tmx, .xliff, .po, …)")
    if is_table(first):
        return [Path(first)]
    return [Path(first), Path(_ask("File with the target text"))]


def _found(text: GivenText, scanned: CorpusReport, languages: tuple[str, str]) -> list[str]:
    """Return lines about a text that was read."""
    lines = [f"found: {scanned.lines:,} pairs of {text.label}, {languages[0]} to {languages[1]}"]
    for kind, finding in scanned.findings.items():
        found = str(finding) if len(text.corpora) == 1 else (
            f"{finding.count:,} (first: {text.place(finding.lines[0])})")
        lines.append(f"  {kind.replace('_', ' ')}: {found}")
    return lines + [f"  {repair}" for repair in scanned.counts.repairs()]


def _show(new: NewRecipe, languages: tuple[str, str]) -> None:
    """Print what was found, what was written, and the next two commands."""
    from seq2seq.check.new_recipe import MONOLINGUAL_PER_PAIR

    lines = _found(new.text, new.scanned, languages)
    for code, side in zip(languages, new.train.sides.values(), strict=True):
        lengths = side.characters
        lines.append(f"  characters per line of {code}: {lengths[50]:,} (median), {lengths[95]:,} (95 %), "
                     f"{lengths[100]:,} (longest)")
    if new.other:
        lines += _found(new.other.text, new.other.scanned, new.other.languages)
    directory = new.path if new.monolingual else new.path.parent
    sets = ", ".join(f"{count:,} {name}" + (f" (BLEU ± {new.intervals[name]:.1f})" if name in new.intervals else "")
                     for name, count in new.pairs.items())
    lines.append(f"written to {directory}: {sets}")
    if new.copies:
        lines.append(f"  left out of train: {new.copies:,} pairs with a sentence of a validation or test set")
    section = new.recipe.training
    lines.append(f"  model size {new.size}, {section.max_steps:,} steps "
                 f"({section.max_steps / new.steps_per_epoch:,.0f} epochs)")
    lines += [f"  {note}" for note in new.notes]
    if new.monolingual:
        lines.append(f"  {new.monolingual.lines:,} of {new.monolingual.read:,} sentences for back-translation, without "
                     "repetitions, damaged and long lines, and sentences of the validation and test sets; at most "
                     f"{MONOLINGUAL_PER_PAIR} for each pair")
        if wrong := new.monolingual.in_source_language:
            lines.append(f"  left out: {wrong:,} sentence{'s' * (wrong > 1)} like the source language, {languages[0]}")
    if new.other:
        lines.append(f"  {new.other.pairs:,} of {new.other.scanned.lines:,} pairs from "
                     f"{' to '.join(new.other.languages)}, without those of the validation and test sets")
    cleaning = new.recipe.data.cleaning.model_dump(exclude_unset=True)
    augmentation = new.recipe.data.augmentation.model_dump(exclude_unset=True)
    if cleaning or augmentation:
        lines.append("  set because of the text (see the comments in the recipe): "
                     f"{', '.join([*cleaning, *(f'augmentation.{key}' for key in augmentation)])}")
    path = shlex.quote(str(new.path))
    train = f"  seq2seq train {path}"
    default_run = Path("runs", directory.name).absolute()
    if not new.monolingual and directory.absolute() == default_run:
        train += f" --run-dir {shlex.quote(str(directory / 'run'))}"
    for warning in new.warnings[:MAX_WARNINGS]:
        console.warn(warning)
    if (others := len(new.warnings) - MAX_WARNINGS) > 0:
        console.warn(f"{others} further warning{'s' * (others > 1)}: see seq2seq check")
    typer.echo("\n".join([*lines, "next:", f"  seq2seq check {path}", train]))
