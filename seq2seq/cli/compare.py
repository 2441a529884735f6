"""`seq2seq compare`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import seq2seq.cli.options as options
from seq2seq import console
from seq2seq.cli.common import (
    load_translator,
    print_json,
    print_table,
    refuse_without_effect,
    require_code,
    require_one_standard_input,
    require_run_directory,
)
from seq2seq.errors import OptionError, UserError
from seq2seq.files import STANDARD_INPUT

if TYPE_CHECKING:
    from seq2seq.evaluation.group_report import GroupReport
    from seq2seq.evaluation.significance import Comparisons
    from seq2seq.training.planned_runs import PlannedRun

EXAMPLES = ("seq2seq compare runs/larger runs/baseline",
            "seq2seq compare recipe.yaml --set model.score=dot,additive --seeds 3",
            "seq2seq compare baseline.yaml larger.yaml --seeds 3 --output comparison.html",
            "seq2seq compare runs/larger_* runs/baseline_*    # several seeds of each",
            "seq2seq compare model other_model --source test.de --reference test.en",
            "seq2seq compare ours.en theirs.en model --source test.de --reference test.en --metric bleu")
RECIPES = (".yaml", ".yml")
OUTPUTS = (".html", ".htm", ".md")


def compare(
    systems: Annotated[list[Path], typer.Argument(
        metavar="SYSTEM", help="Runs, bundles, or files of translations (- is standard input); or recipes, which are "
        "trained. The first is compared with each of the others.", show_default=False)],
    source: options.Source = None,
    reference: options.References = None,
    metric: Annotated[list[options.PairedMetric] | None, typer.Option(
        metavar="METRIC", help="Metric to compare: bleu, chrf or ter. Can be repeated.",
        show_default="all three")] = None,
    paired: options.PairedTest = options.Paired.bootstrap,
    samples: options.Samples = None,
    language: options.Language = None,
    source_language: options.SourceLanguage = None,
    recipe: options.TestRecipe = None,
    tag: options.LineTag = None,
    settings: Annotated[list[str] | None, typer.Option(
        "--set", metavar="KEY=VALUE,…", show_default=False, rich_help_panel=options.TRAINED,
        help="Values of a key of the recipes, such as model.score=dot,additive; each is trained. Can be repeated: all "
        "combinations are trained.")] = None,
    seeds: Annotated[int, typer.Option(
        metavar="N", min=1, max=100, rich_help_panel=options.TRAINED,
        help="Number of seeds with which each recipe is trained.")] = 1,
    run_dir: Annotated[Path | None, typer.Option(
        metavar="DIR", rich_help_panel=options.TRAINED, show_default="runs/compare_NAME",
        help="Directory of the runs. The same command resumes those that were stopped, and trains what is missing.",
    )] = None,
    output: Annotated[Path | None, typer.Option(
        "--output", "-o", metavar="FILE", rich_help_panel=options.FORMAT, show_default=False,
        help="Also write the comparison of several seeds as Markdown (.md), or as a page with learning curves "
        "(.html).")] = None,
    format: options.ReportFormat = options.TextOrJson.text,
    device: options.Device = "auto",
    precision: options.PrecisionOption = options.Precision.reference,
    threads: options.Threads = None,
) -> None:
    """Compare systems, and test whether their differences are statistically significant.

    Without --reference, the models translate the test sets in the recipe of the first of them; a file has translations
    of the only test set. A difference is the score of a system minus that of the first, the baseline.

    The test of two systems covers the choice of sentences, not the chance of training. To compare recipes, name the
    recipes and a number of seeds, or runs of several seeds: models whose recipes differ only in the seed are one group,
    and the test covers the seeds, too. Each seed of each recipe becomes an ordinary run.
    """
    require_code("--target-language", language)
    require_code("--source-language", source_language)
    if output is not None and output.suffix not in OUTPUTS:
        raise OptionError(f"--output {output}: the name must end in .html or .md.")
    recipes = [path for path in systems if path.suffix in RECIPES]
    if not recipes:
        refuse_without_effect("no system is a recipe.", set=settings, run_dir=run_dir,
                              seeds=None if seeds == 1 else seeds)
    require_one_standard_input([*systems, *(path for path in (source, *(reference or ())) if path)])
    if output is not None and not output.parent.is_dir():
        raise OptionError(f"--output {output}: there is no directory {output.parent}. Make it first.")
    machine = [f"training.device={device}"] * (device != "auto") + (
        [f"training.threads={threads}"] if threads is not None else [])
    planned = _plan(recipes, [*machine, *(settings or [])], seeds, run_dir)
    if len(systems) - len(recipes) + len({run.group for run in planned}) < 2:
        raise UserError(f"{systems[0]} is compared with nothing. Name two systems or more, or several values of a key "
                        "of a recipe with --set; to score one system, use seq2seq evaluate.")
    from seq2seq.evaluation.recipe_tests import read_tests, read_translations
    from seq2seq.evaluation.scores import METRICS
    from seq2seq.evaluation.system_comparison import compare_systems, translate_tests
    from seq2seq.recipe import load_recipe
    from seq2seq.storage.checkpoints import warn_if_unfinished

    paths = _in_order(systems, planned)
    tests = read_tests(paths, source, reference or [], language, None if recipe is None else load_recipe(recipe),
                       {run.run: run.recipe for run in planned}, source_language)
    groups = {} if planned else _groups(paths, planned)
    with_seeds = bool(planned) or max(map(len, groups.values())) > 1
    if with_seeds:
        refuse_without_effect("several seeds are compared by a test of their own.",
                              paired=None if paired is options.Paired.bootstrap else paired)
        if samples == 1:
            raise OptionError("--samples 1: the test over several seeds needs two samples or more.")
    else:
        refuse_without_effect("no recipe has several seeds.", output=output)
    if planned:
        from seq2seq.training.planned_runs import train_planned

        for path in paths:
            if path.is_file() and path != STANDARD_INPUT:
                read_translations(path, tests)                              # an error comes before the first training
        train_planned(planned)
        groups = _groups(paths, planned)
    if with_seeds and len(groups) == 1:
        raise UserError(f"{paths[0]} is compared with nothing: all of these are seeds of one recipe. Name the runs of "
                        "another recipe, too.")
    warn_if_unfinished(paths)
    load = partial(load_translator, device=device, precision=precision, threads=threads, target_language=language,
                   tag=tag)
    translated = translate_tests(paths, tests, load)
    metrics = [one.value for one in metric] if metric else METRICS
    if with_seeds:
        from seq2seq.evaluation.group_report import report_groups

        by_path = {system.path: system for system in translated}
        by_group = {name: {seed: by_path[path] for seed, path in members.items()} for name, members in groups.items()}
        _print_groups(report_groups(by_group, tests, metrics, samples or 0), planned, output, format)
        return
    _print_pairs(compare_systems(translated, tests, metrics=metrics, test=paired.value, samples=samples or 0),
                 str(paths[0]), reference is None, format)


def _plan(recipes: Sequence[Path], settings: Sequence[str], seeds: int, run_dir: Path | None) -> list[PlannedRun]:
    """Return the runs of the recipes."""
    if not recipes:
        return []
    if int(os.environ.get("WORLD_SIZE", 1)) > 1:
        raise UserError("compare trains one run after another in a single process. Train the runs with torchrun and "
                        "seq2seq train, and name them.")
    from seq2seq.training.planned_runs import plan_runs

    return plan_runs(recipes, settings, seeds, run_dir and require_run_directory(run_dir))


def _in_order(systems: Sequence[Path], planned: Sequence[PlannedRun]) -> list[Path]:
    """Return the paths of the systems, in the order in which they were named. The first may occur again."""
    found: list[Path] = []
    for path in systems:
        found += [run.run for run in planned if run.file == path] if path.suffix in RECIPES else [
            STANDARD_INPUT if str(path) == "-" else path]
    return [found[0], *dict.fromkeys(found[1:])]


def _groups(paths: Sequence[Path], planned: Sequence[PlannedRun]) -> dict[str, dict[int, Path]]:
    """Return the systems by name and seed: models of one recipe by the name of their planned group, or by the path of
    the first of them, and files."""
    from seq2seq.evaluation.system_comparison import groups_by_recipe

    names, found = {run.run: run.group for run in planned}, dict[str, dict[int, Path]]()
    for members in groups_by_recipe(list(dict.fromkeys(paths))):
        first = next(iter(members.values()))
        name = names.get(first, str(first))
        found[str(first) if name in found else name] = members
    return found


def _print_groups(report: GroupReport, planned: Sequence[PlannedRun], output: Path | None,
                  format: options.TextOrJson) -> None:
    """Print the comparison of groups, and write it into `output`, or of planned runs, beside the runs."""
    from seq2seq.translation.text_io import writing

    outputs = [] if output is None else [output]
    if planned and output is None:
        outputs = [planned[0].run.parent / name for name in ("comparison.md", "comparison.html")]
    for path in outputs:
        with writing(path) as file:
            file.write(report.markdown() if path.suffix == ".md" else report.page())
        console.print_message(f"{path} has the comparison")
    if format is options.TextOrJson.json:
        print_json(report.to_dict())
    else:
        print_table(report.text())


def _print_pairs(by_test: Mapping[str, Mapping[str, Comparisons]], first: str, with_names: bool,
                 format: options.TextOrJson) -> None:
    """Print the comparisons of each of the others with the first system. with_names: print the names of the test sets,
    which a recipe has given."""
    from seq2seq.evaluation.significance import comparison_to_dict, format_comparison

    values: dict[str, Any] = {}
    for name, comparisons in by_test.items():
        found = {other: comparison_to_dict(one) for other, one in comparisons.items()}
        values[name] = found if len(found) > 1 else next(iter(found.values()))
        if format is options.TextOrJson.text:
            text = "\n\n".join(format_comparison(one, other, first) for other, one in comparisons.items())
            print_table(f"{name}\n{text}" if with_names else text)
    if format is options.TextOrJson.json:
        print_json(values if with_names else next(iter(values.values())))
