"""`seq2seq report`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

import seq2seq.cli.options as options
from seq2seq import console
from seq2seq.errors import OptionError

EXAMPLES = ("seq2seq report runs/baseline runs/larger",
            "seq2seq report runs/mine --robustness --output mine.html",
            "seq2seq report ours.en theirs.en other.en --source test.de --reference test.en",
            "seq2seq report runs/mine theirs.en --scores comet=ours.comet --scores comet=theirs.comet")


def report(
    systems: Annotated[list[Path], typer.Argument(
        metavar="SYSTEM", help="Runs, bundles, or files of translations. The first system is compared with each "
        "of the others.")],
    output: Annotated[Path, typer.Option(
        "--output", "-o", metavar="FILE", help="Output file, a page.")] = Path("report.html"),
    source: options.Source = None,
    reference: Annotated[Path | None, typer.Option(
        metavar="FILE", help="Reference translations of the test set.", show_default=False)] = None,
    language: options.Language = None,
    source_language: options.SourceLanguage = None,
    recipe: options.TestRecipe = None,
    glossary: Annotated[Path | None, typer.Option(
        metavar="FILE", help="Glossary whose terms are counted in the translations.", show_default=False)] = None,
    scores: Annotated[list[str] | None, typer.Option(
        metavar="NAME=FILE", help="File with another score of each sentence, such as COMET: one number per line. "
        "For each NAME, give this option once for each system, in the order of the systems.",
        show_default=False)] = None,
    robustness: Annotated[bool, typer.Option(
        "--robustness", help="Also translate changed sources of the test sets: in capitals, in title case, "
        "without final stops, and with typos.")] = False,
    device: options.Device = "auto",
    precision: options.PrecisionOption = options.Precision.reference,
    threads: options.Threads = None,
) -> None:
    """Write a web page that compares how systems translate test sets.

    The page has scores with confidence intervals and significance tests, learning curves, chrF of groups of sentences,
    n-grams that are too frequent or too rare, faults, calibration of confidence, and settings that differ. Sentences
    can be searched, and sorted by the difference in chrF. The page is one file and loads nothing from the network.
    """
    if output.suffix not in (".html", ".htm"):
        raise OptionError(f"--output {output}: the name must end in .html, because a report is a page.")
    from seq2seq.data.glossary import Glossary
    from seq2seq.documents.adherence import report_columns
    from seq2seq.evaluation.recipe_tests import read_tests
    from seq2seq.evaluation.report_page import page
    from seq2seq.evaluation.systems import read_scores, read_system, tell_apart, training_frequencies
    from seq2seq.recipe import load_recipe
    from seq2seq.translation.text_io import writing

    tests = read_tests(systems, source, [reference] if reference else [], language,
                       None if recipe is None else load_recipe(recipe), source_language=source_language)
    if scores and len(tests) > 1:
        raise OptionError("--scores needs a single test set. Name it with --source and --reference.")
    further = read_scores(scores or [], len(systems), len(tests[0].references))
    terms = None if glossary is None else Glossary.read(glossary, *tests[0].languages)
    with writing(output) as file:                                           # an error comes before the translation
        read = tell_apart([
            read_system(path, tests, device=device, precision=precision.value, threads=threads, robustness=robustness)
            for path in systems])
        frequencies = training_frequencies(read, tests[0].languages[0])
        file.write(page(read, tests, frequencies=frequencies, columns=partial(report_columns, terms), scores=further))
    console.print_message(f"{output} has the report; open it in a browser")
