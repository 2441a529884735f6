"""Train variants of a recipe with several seeds at the same time, and compare their validation scores.

    python recipes/multi30k/compare.py de_en_best --at-once 6                  # on a GPU: all variants, three seeds
    python recipes/multi30k/compare.py en_de_best SimCut --seeds 1             # one variant and seed
    python recipes/multi30k/compare.py de_en_best --set data.root=DIRECTORY    # with the text in another directory

An interrupted training is resumed, and a finished one is not repeated. Prints a Markdown table of the best validation
BLEU of each run. Only the variant that is chosen by it should be evaluated on the test set: `seq2seq evaluate RUN`.
"""

import argparse
import json
import re
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

HERE = Path(__file__).parent
RUNS = HERE.parents[1] / "runs" / "multi30k_variants"

SIMCUT = ["training.consistency=3", "training.consistency_cutoff=0.05"]
PIECES = ["tokenizer.vocab_size=12000"]
# The settings of each variant.
VARIANTS: dict[str, list[str]] = {
    "as it is": [],
    "12,000 pieces": PIECES,
    "12,000 pieces, dropout 0.3, 60 % of 11,200 steps": [*PIECES, "model.dropout=0.3", "training.max_steps=6720"],
    "12,000 pieces, SimCut": [*PIECES, *SIMCUT],
}


def main() -> int:
    """Run the command and return its exit code: 1 if a training failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", help="name of a recipe in this directory, without .yaml")
    parser.add_argument("variants", nargs="*", metavar="VARIANT", help=f"any of: {'; '.join(VARIANTS)} (default: all)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], metavar="N", help="default: 1 2 3")
    parser.add_argument("--at-once", type=int, default=1, metavar="N", help="number of trainings at the same time")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="settings",
                        help="override a key of the recipe, as in seq2seq train")
    arguments = parser.parse_args()
    if unknown := set(arguments.variants) - set(VARIANTS):
        parser.error(f"there is no variant {', '.join(sorted(unknown))}")
    variants = arguments.variants or list(VARIANTS)
    with ThreadPoolExecutor(arguments.at_once) as pool:
        runs = list(pool.map(lambda pair: train(arguments.recipe, pair[0], pair[1], arguments.settings),
                             product(variants, arguments.seeds)))
    scores = iter([best_score(run) for run in runs])
    print(f"| {arguments.recipe}, validation BLEU | {' | '.join(f'seed {seed}' for seed in arguments.seeds)} | mean |")
    print(f"|{'---|' * (len(arguments.seeds) + 2)}")
    for variant in variants:
        row = [next(scores) for _ in arguments.seeds]
        print(f"| {variant} | {' | '.join(f'{score:.2f}' for score in row)} | {statistics.mean(row):.2f} |")
    return int(None in runs)


def train(recipe: str, variant: str, seed: int, settings: list[str]) -> Path | None:
    """Train a variant, and return its run; None if the training failed."""
    name = re.sub(r"\W+", "_", variant)
    run = RUNS / recipe / f"{name}_{seed}"
    run.parent.mkdir(parents=True, exist_ok=True)
    values = [*VARIANTS[variant], f"seed={seed}", *settings]
    with open(f"{run}.log", "a", encoding="utf-8") as log:
        done = subprocess.run([sys.executable, "-m", "seq2seq", "train", HERE / f"{recipe}.yaml", "--run-dir", run,
                               *(argument for value in values for argument in ("--set", value))],
                              stdout=log, stderr=log, check=False)
    if done.returncode:
        print(f"{variant}, seed {seed} failed; see {run}.log", file=sys.stderr)
        return None
    return run


def best_score(run: Path | None) -> float:
    """Return the best validation BLEU of a run; NaN if its training failed."""
    if run is None:
        return float("nan")
    records = map(json.loads, (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    return max(record["bleu"] for record in records if record["kind"] == "validation")


if __name__ == "__main__":
    sys.exit(main())
