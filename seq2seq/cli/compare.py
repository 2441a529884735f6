"""`seq2seq compare`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

import seq2seq.cli.options as options
from seq2seq.cli.common import load_translator, print_json, print_table, require_code, require_one_standard_input
from seq2seq.errors import UserError
from seq2seq.files import STANDARD_INPUT

EXAMPLES = ("seq2seq compare runs/larger runs/baseline",
            "seq2seq compare model other_model --source test.de --reference test.en",
            "seq2seq compare ours.en theirs.en model --source test.de --reference test.en --metric bleu",
            "seq2seq compare runs/larger_* runs/baseline_*    # several seeds of each")


def compare(
    systems: Annotated[list[Path], typer.Argument(
        metavar="SYSTEM", help="Two or more runs, bundles, or files of translations; - is standard input. The first is "
        "compared with each of the others.", show_default=False)],
    source: options.Source = None,
    reference: options.References = None,
    metric: Annotated[list[options.PairedMetric] | None, typer.Option(
        metavar="METRIC", help="Metric to compare: bleu, chrf or ter. Can be repeated.",
        show_default="all three")] = None,
    paired: options.PairedTest = options.Paired.bootstrap,
    samples: options.Samples = None,
    language: options.Language = None,
    recipe: options.TestRecipe = None,
    tag: options.LineTag = None,
    format: options.ReportFormat = options.TextOrJson.text,
    device: options.Device = "auto",
    precision: options.PrecisionOption = options.Precision.reference,
    threads: options.Threads = None,
) -> None:
    """Compare systems, and test whether their differences are statistically significant.

    Without --reference, the models translate the test sets in the recipe of the first of them; a file has translations
    of the only test set.

    The test covers the choice of sentences, not the chance of training. To compare recipes, train each of them with
    several seeds, and name all runs: of runs whose recipes differ only in the seed, the mean and the standard deviation
    of the scores are reported, too.
    """
    require_code("--target-language", language)
    if len(systems) < 2:
        raise UserError(f"{systems[0]} is compared with nothing. Name two systems or more; to score one, use seq2seq "
                        "evaluate.")
    require_one_standard_input([*systems, *(path for path in (source, *(reference or ())) if path)])
    from seq2seq.evaluation.recipe_tests import read_tests
    from seq2seq.evaluation.scores import METRICS
    from seq2seq.evaluation.significance import comparison_to_dict, format_comparison
    from seq2seq.evaluation.system_comparison import compare_systems, format_seeds, scores_of_seeds
    from seq2seq.recipe import load_recipe

    systems = [STANDARD_INPUT if str(path) == "-" else path for path in (systems[0], *dict.fromkeys(systems[1:]))]
    tests = read_tests(systems, source, reference or [], language, None if recipe is None else load_recipe(recipe))
    load = partial(load_translator, device=device, precision=precision, threads=threads, target_language=language,
                   tag=tag)
    by_test = compare_systems(systems, tests, load, metrics=[one.value for one in metric] if metric else METRICS,
                              test=paired.value, samples=samples or 0)
    values: dict[str, Any] = {}
    for name, comparisons in by_test.items():
        seeds = scores_of_seeds(systems, comparisons)
        found = {other: comparison_to_dict(one) for other, one in comparisons.items()}
        values[name] = (found if len(found) > 1 else next(iter(found.values()))) | ({"seeds": seeds} if seeds else {})
        if format is options.TextOrJson.text:
            tables = [format_comparison(one, str(systems[0]), other) for other, one in comparisons.items()]
            text = "\n\n".join([*tables, format_seeds(seeds)]).rstrip()
            print_table(text if reference else f"{name}\n{text}")
    if format is options.TextOrJson.json:
        print_json(values[tests[0].name] if reference else values)
